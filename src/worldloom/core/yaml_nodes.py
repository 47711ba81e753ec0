"""Values of a YAML file, each with the place where it stands, which begins every complaint."""

import math
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from worldloom.core.names import one_line, shown, suggest


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is written twice is a mistake and not a replacement."""

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        keys = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.YAMLError(f"the key {shown(key)} is not a name")
            if key in keys:
                line = key_node.start_mark.line + 1
                raise yaml.YAMLError(f"{one_line(key, 60)} is written twice (line {line})")
            keys.add(key)
        return super().construct_mapping(node, deep)  # pyright: ignore[reportArgumentType]


# Numbers such as 1e6, which YAML takes for text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


class Node:
    """A value and its place: the source, and the keys that lead to it."""

    def __init__(self, value: Any, source: str, path: tuple[str, ...] = ()):
        self.value, self.source, self.path = value, source, path

    @property
    def where(self) -> str:
        path = one_line(".".join(self.path), 80)
        return f"{self.source}: {path}" if path else self.source

    def error(self, text: str) -> ValueError:
        """A complaint of one line about this value."""
        return ValueError(one_line(f"{self.where}: {text}"))

    def entries(self, known: Iterable[str] | None = None) -> "dict[str, Node]":
        """The values of keys, all of them known where `known` is given; null is as good as none."""
        if not isinstance(self.value, dict):
            raise self.error(f"{shown(self.value)} is not a list of keys with values")
        names = None if known is None else list(known)
        for key in self.value:
            if names is not None and key not in names:
                raise self.error(f"unknown key {shown(key)}; {suggest(str(key), names)}")
        return {
            key: Node(value, self.source, (*self.path, str(key)))
            for key, value in self.value.items()
            if value is not None
        }

    def items(self) -> "list[Node]":
        """The values of a list, which is not empty; their places are numbered from 1."""
        if not isinstance(self.value, list) or not self.value:
            raise self.error(f"{shown(self.value)} is no list; begin each entry with '- '")
        path = enumerate(self.value, 1)
        return [Node(value, self.source, (*self.path, str(i))) for i, value in path]

    def number(self) -> float:
        """A finite number without a unit; also one in quotes."""
        value = self.value
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e30:
            raise self.error(f"{shown(self.value)} is not a finite number")
        return float(value)

    def whole(self, least: int, most: int = 2**31 - 1) -> int:
        """A whole number of at least `least` and at most `most`."""
        number = self.value
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise self.error(f"{shown(number)}; it must be a whole number of at least {least}")
        if number > most:
            raise self.error(f"{shown(number)}; it must be at most {most}")
        return number

    def flag(self) -> bool:
        """true or false."""
        if not isinstance(self.value, bool):
            raise self.error(f"{shown(self.value)}; it must be true or false")
        return self.value

    def text(self, choices: Iterable[str] | None = None) -> str:
        """A text, one of `choices` where they are given."""
        known = None if choices is None else list(choices)
        if not isinstance(self.value, str) or (known is not None and self.value not in known):
            expected = "a text" if known is None else " or ".join(known)
            raise self.error(f"{shown(self.value)}; it must be {expected}")
        return self.value


def read_text(path: str | Path) -> str:
    """A text file as it is; a ValueError of one line if it is none."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as a text file ({error})") from None


def parse_yaml(text: str, source: str) -> Node:
    """What a YAML text says; `source` is named in complaints."""
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(
            f"{source}: {len(text):,} characters; at most {_MOST_CHARACTERS:,} are read"
        )
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None and _size(node, {}) > _MOST_VALUES:
            raise yaml.YAMLError(f"its aliases stand for more than {_MOST_VALUES:,} values")
        return Node(None if node is None else loader.construct_document(node), source)
    except Exception as error:  # PyYAML raises whatever a tag's constructor does
        reason = one_line(error, 200) or type(error).__name__
        raise ValueError(f"{source}: not a YAML file: {reason}") from None
    finally:
        if loader is not None:
            loader.dispose()


_MOST_CHARACTERS, _MOST_VALUES = 2**20, 1_000_000


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values a node stands for, aliases followed; infinite if it holds itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for one in inner for part in (one if isinstance(one, tuple) else (one,)))
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]
