"""Settings of a run from a command line: --steps 1e6 --world.num-agents 3 --ppo.gamma 0.99.

The same names as in Python, in YAML files and in config.json. What can be set follows from the
world and the algorithm; a mistake is a ValueError of one line.
"""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin

from worldloom import algos
from worldloom.core.names import suggest
from worldloom.training.arguments import read_word
from worldloom.training.config import (
    COMMON,
    FORMER_NAMES,
    TrainConfig,
    convert,
    default_of,
    kind_of,
    merge,
    nest,
)
from worldloom.training.suite import Suite

SHOWN_FIRST = ("algo", "steps", "seed", "num_worlds", "eval_every", "eval_episodes")


@dataclass(frozen=True)
class Option:
    """One setting: its dotted name, default, type and a few words about it."""

    name: str
    default: Any = None
    kind: Any = Any
    text: str = ""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def options_of(cls: type, prefix: str = "") -> list[Option]:
    """The settings of a dataclass, nested ones and vmappable numbers included."""
    options: list[Option] = []
    texts = field_comments(cls)
    for f in fields(cls):
        default = default_of(f)
        if is_dataclass(default):
            inner = prefix if f.name == "hyper" else f"{prefix}{f.name}."
            options += options_of(type(default), inner)
        else:
            kind = kind_of(f.type, default)
            options.append(Option(prefix + f.name, default, kind, texts.get(f.name, "")))
    return options


@cache
def field_comments(cls: type) -> dict[str, str]:
    """What stands behind each field of a dataclass as a comment."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            source = inspect.getsource(base) if is_dataclass(base) else ""
        except OSError:  # made up at run time
            source = ""
        texts |= dict(re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", source, re.MULTILINE))
    return texts


class Schema:
    """What a run of one world and one algorithm can be told, in groups.

    parameters: those of the function that makes the world; None where only itself knows them.
    values: nested settings in the place of the suite's defaults.
    """

    def __init__(
        self,
        suite: Suite,
        env: str,
        algo: str,
        parameters: Mapping[str, inspect.Parameter] | None,
        values: Mapping[str, Any] | None = None,
    ):
        self.env, self.algo = env, algos.get(algo).name
        self._suite, self._parameters = suite, parameters
        rules = suite.rules_of(env)
        self.any_world_option = rules is None and parameters is None
        if rules is not None:
            world = options_of(rules, "world.")
        else:
            world = [
                Option(f"world.{n}", p.default, kind_of(p.annotation, p.default))
                for n, p in (parameters or {}).items()
            ]
        common = [name for name in COMMON if name not in ("env", "world")]
        groups = {
            "common": [o for o in options_of(TrainConfig) if o.name in common],
            f"{env} and its suite": options_of(suite.settings),
            "the world": world,
            self.algo: options_of(algos.get(algo).config, f"{self.algo}."),
        }
        usual = merge(nest(suite.defaults(env, algo)), values or {})
        self.groups = {t: [_with_default(o, usual) for o in group] for t, group in groups.items()}
        self.options = {o.name: o for group in self.groups.values() for o in group}

    def with_algorithm(self, algo: str) -> "Schema":
        """The same with another algorithm."""
        return Schema(self._suite, self.env, algo, self._parameters)

    def find(self, flag: str) -> Option:
        """The setting that a flag names."""
        name = flag.removeprefix("--").replace("-", "_")
        owner, dot, rest = name.partition(".")
        if owner == "algo" and dot:
            name = f"{self.algo}.{rest}"
        if name in self.options:
            return self.options[name]
        if owner == "world" and rest and self.any_world_option:
            return Option(name)
        raise ValueError(f"{flag}: {self._remedy(flag, name)}")

    def _remedy(self, flag: str, name: str) -> str:
        """What to write instead."""
        owner, _, rest = name.partition(".")
        if name == "env":
            return "the world comes first, without a flag"
        for other in (f"world.{name}", f"{self.algo}.{name}", rest):
            if other in self.options:
                return f"write {self.options[other].flag}"
        inside = [o.flag for o in self.options.values() if o.name.startswith(f"{owner}.")]
        if owner in FORMER_NAMES and not inside:
            new = FORMER_NAMES[owner].replace("ALGO", self.algo)
            return f"this is now --{new.replace('_', '-')}"
        if rest and owner in algos.names() and owner != self.algo:
            return f"this run learns with {self.algo}; add --algo {owner}, or leave it out"
        others = [o.flag for o in self.options.values() if "." not in o.name]
        return f"no such option; {suggest(flag, inside if rest and inside else others)}"


def _with_default(option: Option, usual: Mapping[str, Any]) -> Option:
    value: Any = usual
    for part in option.name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return option
        value = value[part]
    return replace(option, default=value)


# Parsing ---------------------------------------------------------------------------------------


def parse_settings(schema: Schema, argv: Sequence[str]) -> dict[str, Any]:
    """Nested settings from flags and values, as `make_config` takes them."""
    given: dict[str, Any] = {}
    for flag, words in flags_of(argv):
        if flag in ("--world", "--hyper") and words:
            group = "world" if flag == "--world" else schema.algo
            raise ValueError(f"{flag} {words[0]}: options are written --{group}.NAME VALUE now")
        option = schema.find(f"--{flag[5:]}" if flag.startswith("--no-") else flag)
        given[option.name] = read_value(flag, words, option.kind)
    return nest(given)


def flags_of(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(flag, values) in order; `--a=b` is `--a b`, and a number may begin with a minus."""
    flag: str | None = None
    words: list[str] = []
    for arg in argv:
        if arg.startswith("--"):
            if flag is not None:
                yield flag, words
            flag, equals, value = arg.partition("=")
            words = [value] if equals else []
        elif flag is None:
            raise ValueError(f"{arg!r} is not expected here; the world comes first, then options")
        else:
            words.append(arg)
    if flag is not None:
        yield flag, words


def read_value(flag: str, words: Sequence[str], kind: Any) -> Any:
    """What was typed behind a flag, as a setting annotated `kind` holds it."""
    optional = type(None) in get_args(kind)
    kinds = get_args(kind) if optional else (kind,)
    if bool in kinds and not words:
        return not flag.startswith("--no-")
    if flag.startswith("--no-"):
        raise ValueError(f"{flag}: there is nothing to switch off; give the option a value")
    if not words:
        raise ValueError(f"{flag} needs a value")
    if any(get_origin(one) is tuple for one in kinds) or (kind is Any and len(words) > 1):
        values = [read_word(flag, word) for word in words]
        return convert(flag, None if values == [None] else values, kind)
    if len(words) > 1:
        raise ValueError(f"{flag} takes one value, not {' '.join(words)}")
    (word,) = words
    is_none = optional and word.lower() in ("none", "null")
    is_text = any(one is str or get_origin(one) is Literal for one in kinds)
    return convert(flag, word if is_text and not is_none else read_word(flag, word), kind)


# Help ------------------------------------------------------------------------------------------


def short_help(schema: Schema, width: int = 80) -> str:
    """Everything that can be set, common things first, in about a screen."""
    common, *others = schema.groups.items()
    first = [schema.options[name] for name in SHOWN_FIRST]
    lines = [common[0], *(option_line(option, 16) for option in first)]
    lines += _wrapped([o for o in common[1] if o not in first], "--", width)
    for title, options in others:
        prefix = {"the world": "world.", schema.algo: f"{schema.algo}."}.get(title, "")
        if prefix:
            title = f"{title}, as --{prefix}NAME VALUE"
            options = [replace(o, name=o.name.removeprefix(prefix)) for o in options]
        if options:
            lines += [title, *_wrapped(options, "" if prefix else "--", width)]
    return "\n".join(lines)


def long_help(schema: Schema) -> str:
    """Every option in a line of its own, with a few words about it where there are any."""
    groups = [(title, *map(option_line, group)) for title, group in schema.groups.items() if group]
    return "\n".join(line for group in groups for line in group)


def option_line(option: Option, width: int = 26) -> str:
    """A line of help: flag, default, a few words."""
    return f"  {option.flag:<{width}} {_shown(option.default):<10} {option.text}".rstrip()


def _wrapped(options: Sequence[Option], prefix: str, width: int) -> list[str]:
    lines, line = [], " "
    for option in options:
        word = f" {prefix}{option.name.replace('_', '-')} {_shown(option.default)}"
        word += "," if option is not options[-1] else ""
        if len(line) + len(word) > width:
            lines, line = [*lines, line], " "
        line += word
    return [*lines, line]


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_shown, value)) or "()"
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
