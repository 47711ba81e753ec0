"""The settings of a run from a command line: --steps 1e6 --world.num-agents 3 --ppo.gamma 0.99.

The same names as in Python, in YAML files and in config.json. What can be set follows from the
world and the algorithm; settings start from a run, a file, a preset or the defaults. A mistake is
a ValueError of one line.
"""

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin

from worldloom import algos, suites
from worldloom.cli.glossary import meaning
from worldloom.core.names import shown, suggest
from worldloom.core.yaml_nodes import parse_yaml, read_text
from worldloom.training.arguments import read_word
from worldloom.training.config import (
    COMMON,
    TrainConfig,
    convert,
    default_of,
    kind_of,
    make_config,
    merge,
    name_here,
    nest,
    read_header,
    usual_settings,
)
from worldloom.training.suite import Suite

Flags = TypeVar("Flags")
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


QUIET = Option("quiet", False, bool, "no progress, and of results only what --json asks for")


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
            text = texts.get(f.name) or meaning(prefix + f.name)
            options.append(Option(prefix + f.name, default, kind, text))
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
    """What can be set of a run of one world and one algorithm, in groups.

    values: nested settings in the place of the suite's defaults.
    """

    def __init__(self, suite: Suite, env: str, algo: str, values: Mapping[str, Any] | None = None):
        usual = usual_settings(suite, env, algo, values or {})
        self.suite, self.env, self.algo = suite, env, algos.get(algo).name
        rules = suite.rules_of(env)
        parameters = suites.world_parameters(env) if rules is None else None
        self.any_world_option = rules is None and parameters is None
        if rules is not None:
            world = options_of(rules, "world.")
        else:
            parameters = suites.shaping_parameters(suite.name) | (parameters or {})
            world = [
                Option(
                    f"world.{n}", p.default, kind_of(p.annotation, p.default), meaning(f"world.{n}")
                )
                for n, p in parameters.items()
            ]
        common = [name for name in COMMON if name not in ("env", "world")]
        groups = {
            "common": [o for o in options_of(TrainConfig) if o.name in common],
            f"{env} and its suite": options_of(suite.settings),
            "the world": world,
            self.algo: options_of(algos.get(algo).config, f"{self.algo}."),
        }
        usual = merge(usual, values or {})
        self.groups = {t: [_with_default(o, usual) for o in group] for t, group in groups.items()}
        self.options = {o.name: o for group in self.groups.values() for o in group}
        # What runs in this world refuse is parsed, so that they say why, but not offered.
        refused, own = suite.unused(env), f"{env} and its suite"
        self.groups[own] = [o for o in self.groups[own] if o.name.partition(".")[0] not in refused]

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
        other = name_here(rest if owner == self.algo else owner, self.algo)
        if other and (other[0] == "now" or other[1] in self.options):
            return f"this is {other[0]} --{other[1].replace('_', '-')}"
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


# What is asked for ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What a command line asks for: nested settings, and what else could be set."""

    schema: Schema
    given: dict[str, Any]

    @property
    def config(self) -> TrainConfig:
        return make_config(self.schema.suite, self.given)


def split_flags(argv: Sequence[str], kind: type[Flags]) -> tuple[str | None, Flags, list[str]]:
    """What is named first, the command's own flags, a dataclass of type `kind`, and settings."""
    named = None if not argv or argv[0].startswith("-") else argv[0]
    own = {f.name.replace("_", "-"): f for f in fields(kind)}  # pyright: ignore[reportArgumentType]
    values, settings = {}, []
    for flag, words in flags_of(argv[named is not None :]):
        name = flag.removeprefix("--")
        name = name if name in own else name.removeprefix("no-")
        if name in own:
            values[own[name].name] = read_value(flag, words, own[name].type)
        else:
            settings += [flag, *words]
    return named, kind(**values), settings


def read_request(
    named: str | None,
    settings: Sequence[str],
    *,
    resume: str = "",
    config: str = "",
    preset: str = "",
) -> Request:
    """The settings that flags ask for, on top of a run's, a file's, a preset's or the defaults."""
    # Which suite a world of the user's belongs to may hang on its options.
    typed = {f: words for f, words in flags_of(settings) if f.startswith("--world.")}
    world = nest(
        {f[2:]: read_value(f, words, Any) if words else True for f, words in typed.items()}
    )
    suite, env, base = _starting_point(named, resume, config, preset, world.get("world", {}))
    chosen = [words[0] for flag, words in flags_of(settings) if flag == "--algo" and words]
    algo = chosen[-1] if chosen else str(base.get("algo") or suite.defaults(env, None)["algo"])
    schema = Schema(suite, env, algo, base)
    given = merge(base, parse_settings(schema, settings) | {"env": env, "algo": algo})
    if resume and algo != base["algo"]:  # of which `train` will say that it is another
        given.pop(algos.get(base["algo"]).name, None)
    return Request(schema, given)


def asked_devices(settings: Sequence[str], *, resume: str = "", config: str = "") -> int:
    """How many devices a run will ask for, found out without importing any world."""
    base = read_header(resume)["config"] if resume else _read_yaml(config) if config else {}
    given = [words for flag, words in flags_of(settings) if flag == "--devices"]
    return (
        read_value("--devices", given[-1], int)
        if given
        else convert("devices", base.get("devices", 1), int)
    )


def _starting_point(
    named: str | None, resume: str, config: str, preset: str, world: Mapping[str, Any]
) -> tuple[Suite, str, dict[str, Any]]:
    if resume:
        header = read_header(resume)
        kept = header["config"]
        if named not in (None, kept["env"]):
            raise ValueError(f"{resume} is a run in {kept['env']}, not in {named}")
        return suites.suite(header["suite"]), kept["env"], kept
    base = _read_yaml(config) if config else {}
    env = named or base.get("env")
    if env is None:
        raise ValueError(
            "name a world first, as in: worldloom train treasurehunt (`worldloom envs` lists them)"
        )
    suite = suites.suite_of(str(env), **base.get("world", {}) | world)
    if preset:
        if preset not in suite.presets:
            raise ValueError(f"--preset {preset}: {env} has {', '.join(suite.presets) or 'none'}")
        base = merge(suite.presets[preset](), base)
    return suite, str(env), base


def _read_yaml(path: str) -> dict[str, Any]:
    """Settings in a file, nested."""
    try:
        content = parse_yaml(read_text(path), path).value
    except ValueError as error:
        raise ValueError(f"--config {error}") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"--config {path}: it must hold settings by name, not {shown(content)}")
    settings = nest(content)
    if not isinstance(settings.get("world", {}), Mapping):
        raise ValueError(f"--config {path}: world={shown(settings['world'])}; it must hold names")
    return settings


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
    """A line of help: flag, default, a few words, which go on below themselves."""
    start = f"  {option.flag:<{width}} {_shown(option.default):<10} "
    room, indent = shutil.get_terminal_size().columns, " " * (width + 14)
    wrapped = textwrap.fill(
        option.text,
        max(room, len(indent) + 20),
        initial_indent=start,
        subsequent_indent=indent,
        break_long_words=False,
    )
    return wrapped if option.text else start.rstrip()


def flag_help(kind: type) -> str:
    """A line for each of a command's own flags, and for the one that all commands take."""
    return "\n".join(map(option_line, [*options_of(kind), QUIET]))


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
    if value in (None, ""):
        return "-"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
