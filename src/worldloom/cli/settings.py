"""The settings of a run as commands read them: a world, a file, a run, and flags on top."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from worldloom import algos, suites
from worldloom.core.yaml_nodes import parse_yaml, read_text
from worldloom.training.config import TrainConfig, make_config, merge, nest, read_header
from worldloom.training.options import (
    Schema,
    flags_of,
    option_line,
    options_of,
    parse_settings,
    read_value,
)
from worldloom.training.suite import Suite

Flags = TypeVar("Flags")


@dataclass(frozen=True)
class Request:
    """What a command line asks for: a suite, a schema, and nested settings."""

    suite: Suite
    schema: Schema
    given: dict[str, Any]

    @property
    def config(self) -> TrainConfig:
        return make_config(self.suite, self.given)


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
    world = nest({flag[2:]: read_value(flag, words, Any) for flag, words in typed.items()})
    suite, env, base = _starting_point(named, resume, config, preset, world.get("world", {}))
    chosen = [words[0] for flag, words in flags_of(settings) if flag == "--algo" and words]
    algo = chosen[-1] if chosen else str(base.get("algo") or suite.defaults(env, None)["algo"])
    schema = Schema(suite, env, algo, suites.world_parameters(env), base)
    given = merge(base, parse_settings(schema, settings) | {"env": env, "algo": algo})
    if resume and algo != base["algo"]:  # of which `train` will say that it is another
        given.pop(algos.get(base["algo"]).name, None)
    return Request(suite, schema, given)


def asked_devices(settings: Sequence[str], *, resume: str = "", config: str = "") -> int:
    """How many devices a run will ask for, found out without importing any world."""
    base = read_header(resume)["config"] if resume else _read_yaml(config) if config else {}
    given = [words for flag, words in flags_of(settings) if flag == "--devices"]
    return read_value("--devices", given[-1], int) if given else int(base.get("devices", 1))


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
        raise ValueError(f"--config {path}: it must hold settings by name, not {content!r}")
    settings = nest(content)
    if not isinstance(settings.get("world", {}), Mapping):
        raise ValueError(f"--config {path}: world={settings['world']!r}; it must hold names")
    return settings


def flag_help(kind: type) -> str:
    """A line for each of a command's own flags."""
    return "\n".join(map(option_line, options_of(kind)))
