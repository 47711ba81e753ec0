"""Values of a YAML file, each with the place where it stands, which begins every complaint."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from worldloom.core.names import suggest


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is written twice is a mistake and not a replacement."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.YAMLError(f"the key {key!r} is not a name")
            if key in keys:
                line = key_node.start_mark.line + 1
                raise yaml.YAMLError(f"{key} is written twice (line {line})")
            keys.add(key)
        return super().construct_mapping(node, deep)


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
        return f"{self.source}: {'.'.join(self.path)}" if self.path else self.source

    def error(self, text: str) -> ValueError:
        """A complaint of one line about this value."""
        return ValueError(f"{self.where}: {text}")

    def entries(self, known: Iterable[str] | None = None) -> "dict[str, Node]":
        """The values of keys, all of them known where `known` is given; null is as good as none."""
        if not isinstance(self.value, dict):
            raise self.error(f"{self.value!r} is not a list of keys with values")
        names = None if known is None else list(known)
        for key in self.value:
            if names is not None and key not in names:
                raise self.error(f"unknown key {key!r}; {suggest(str(key), names)}")
        return {
            key: Node(value, self.source, (*self.path, str(key)))
            for key, value in self.value.items()
            if value is not None
        }

    def number(self) -> float:
        """A finite number without a unit; also one in quotes."""
        value = self.value
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e30:
            raise self.error(f"{self.value!r} is not a finite number")
        return float(value)

    def whole(self, least: int) -> int:
        """A whole number of at least `least`."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < least:
            raise self.error(f"{self.value!r}; it must be a whole number of at least {least}")
        return self.value

    def flag(self) -> bool:
        """true or false."""
        if not isinstance(self.value, bool):
            raise self.error(f"{self.value!r}; it must be true or false")
        return self.value

    def text(self, choices: Iterable[str] | None = None) -> str:
        """A text, one of `choices` where they are given."""
        known = None if choices is None else list(choices)
        if not isinstance(self.value, str) or (known is not None and self.value not in known):
            expected = "a text" if known is None else " or ".join(known)
            raise self.error(f"{self.value!r}; it must be {expected}")
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
    try:
        return Node(yaml.load(text, _Loader), source)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{source}: not a YAML file: {' '.join(str(error).split())}") from None
