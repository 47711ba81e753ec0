"""Settings of a run: one frozen dataclass, one grammar in Python, YAML, config.json and shell."""

import difflib
import hashlib
import inspect
import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from worldloom import algos
from worldloom.algos.algorithm import Algorithm
from worldloom.core.checks import check_fields, check_seed
from worldloom.core.files import plain, read_json
from worldloom.core.names import one_line, shown, suggest
from worldloom.training.suite import Suite

FORMAT = 2  # of config.json; 1, without the number, was one format for each suite
_PERIODS = ("eval_every", "checkpoint_every", "record_every")
# Settings that may change when a run is resumed: they do not touch what is learned. (On another
# number of devices it is rounded otherwise.)
CADENCE = ("steps", "eval_episodes", "chunk", "devices", *_PERIODS)
# What settings were called before there was one grammar; ALGO is the algorithm's name.
FORMER_NAMES = {
    "epochs": "steps, the budget in environment steps (offline: in updates)",
    "updates": "steps, the budget in environment steps (offline: in updates)",
    "updates_per_epoch": "ALGO.gradient_steps (offline: ALGO.updates_per_iteration)",
    "memory_rows": "ALGO.buffer_size, in transitions of all worlds",
    "hyper": "ALGO.NAME for each of the algorithm's numbers",
    "network": "ALGO.hidden, ALGO.activation and the like",
    "record_period": "record_every, in environment steps",
    "judge_updates": "ope_updates",
    "episodes": "eval_episodes",
}
# What other libraries call a setting -> what it is here.
PEERS_NAMES = {
    "lr": "ALGO.learning_rate",
    "num_envs": "num_worlds",
    "total_timesteps": "steps",
    "num_timesteps": "steps",
}


@dataclass(frozen=True)
class TrainConfig:
    """What to train, where, for how long; `worldloom.training.config.make_config` makes it.

    hyper: the config of the algorithm. world: options of the world. settings: what the suite has
    beyond the common settings. All periods are in steps: environment steps over all worlds, or
    updates where an algorithm learns offline.
    """

    env: str
    algo: str
    hyper: Any
    settings: Any
    world: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    steps: int = 1_000_000  # budget: environment steps; offline: updates
    num_worlds: int = 64  # worlds that are played at once
    share_parameters: bool = False  # one network for all agents instead of one for each
    devices: int = 1  # that share the worlds, or the rows of a batch
    eval_every: int = 0  # steps between evaluations; 0: only at the end
    eval_episodes: int = 64
    checkpoint_every: int = 0  # steps between checkpoints; 0: only at the end
    record_every: int = 0  # steps between films of training; 0: none
    chunk: int = 10  # iterations in one compiled call, between which the host reports

    def __post_init__(self):
        least = {name: 0 if name in _PERIODS else 1 for name in (*CADENCE, "num_worlds")}
        check_fields(self.env, self, at_least=least)
        check_seed(self.seed)

    @property
    def algorithm(self) -> Algorithm:
        return algos.get(self.algo)

    @property
    def memory_size(self) -> int:
        """Numbers that each agent keeps from step to step."""
        return getattr(self.hyper, "memory_size", 0)

    @property
    def cadence(self) -> tuple[str, ...]:
        """Settings that may change when the run is resumed."""
        return (*CADENCE, *getattr(type(self.settings), "CADENCE", ()))

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, nested as in a YAML file: what config.json holds."""
        common = {name: getattr(self, name) for name in COMMON}
        groups = {"world": dict(self.world), self.algorithm.name: _flat(self.hyper)}
        return common | groups | asdict(self.settings)

    def fingerprint(self) -> str:
        """A short hash of everything that decides what is learned."""
        kept = {n: v for n, v in self.to_dict().items() if n not in self.cadence}
        same = json.loads(json.dumps(kept), parse_float=_canonical)
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]


COMMON: dict[str, Field] = {
    f.name: f for f in fields(TrainConfig) if f.name not in ("hyper", "settings")
}


def _flat(config: Any) -> dict[str, Any]:
    """An algorithm's options by name; the numbers that may be vmapped are in a struct of theirs."""
    options = asdict(config)
    return options | options.pop("hyper", {})


def _canonical(number: str) -> float:
    """The same for 3 and 3.0, which are the same setting."""
    value = float(number)
    return int(value) if value.is_integer() else value


# Nested settings -------------------------------------------------------------------------------


def merge(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` in the place of `base`, name by name at every depth."""
    both = dict(base)
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(both.get(name), Mapping):
            value = merge(both[name], value)
        both[name] = value
    return both


def nest(given: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as nested settings: {"ppo.gamma": 0.9} is {"ppo": {"gamma": 0.9}}."""
    nested: dict[str, Any] = {}
    for name, value in given.items():
        for part in reversed(str(name).replace("-", "_").split(".")):
            value = {part: value}
        nested = merge(nested, value)
    return nested


def make_config(suite: Suite, given: Mapping[str, Any], source: str = "") -> TrainConfig:
    """The settings of a run: the suite's defaults, with what is `given` in their place.

    `given` is nested as a YAML file is: common settings and the suite's own by name, options of
    the world under "world", those of the algorithm under its name or under "algo_options". Dotted
    names mean the same. Whatever is wrong is a ValueError of one line that begins with `source`.
    """
    place = f"{source}: " if source else ""
    given = nest(given)
    env = str(given.pop("env"))
    algo = given.pop("algo", None) or suite.defaults(env, None)["algo"]
    if not isinstance(algo, str):
        raise ValueError(f"{place}algo={shown(algo)}; it must be the name of an algorithm")
    usual = usual_settings(suite, env, algo, given)
    algorithm = algos.get(algo)
    own = [f.name for f in fields(suite.settings)]
    for name in given:
        if name not in (*COMMON, *own, algorithm.name, "algo_options"):
            raise ValueError(place + _unknown(name, algorithm, own))
    for name in (algorithm.name, "algo_options", "world"):
        given[name] = _group(place + name, given.get(name))
    values = merge(usual, given)
    options = values.get(algorithm.name, {}) | values["algo_options"]
    common = {n: values[n] for n in COMMON if n in values and n != "world"}
    common |= {"env": env, "algo": algo}
    return TrainConfig(
        **{n: convert(place + n, v, COMMON[n].type) for n, v in common.items()},
        hyper=_make_hyper(algorithm, options, f"{place}{algorithm.name}."),
        settings=read_fields(suite.settings, {n: values[n] for n in own if n in values}, place),
        world=_make_world(suite.rules_of(env), values["world"], f"{place}world."),
    )


def usual_settings(suite: Suite, env: str, algo: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The suite's defaults, nested; `given` are settings that others may hang on."""
    usual = nest(suite.defaults(env, algo))  # first: a suite may know what a name stood for
    return merge(usual, nest(suite.refine(env, algo, given))) if suite.refine else usual


def _group(name: str, given: Any) -> Mapping[str, Any]:
    if given is None:
        return {}
    if is_dataclass(given) and not isinstance(given, type):
        return _flat(given)
    if not isinstance(given, Mapping):
        raise ValueError(f"{name}={shown(given)}; it must hold names and values")
    return nest(given)


def _make_hyper(algorithm: Algorithm, options: Mapping[str, Any], place: str) -> Any:
    """The algorithm's config; numbers that may be vmapped go into the struct that holds them."""
    own = {f.name: f for f in fields(algorithm.config)}
    numbers = type(default_of(own.pop("hyper"))) if "hyper" in own else None
    known = [*own, *([] if numbers is None else [f.name for f in fields(numbers)])]
    for name in options:
        if name not in known:
            beside = (
                f"it is a setting of the run: {name}={shown(options[name])} beside {place[:-1]}"
            )
            _, own_name = name_here(str(name), algorithm.name) or ("", "")
            ours = own_name.removeprefix(f"{algorithm.name}.")
            guess = f"did you mean {ours!r}?" if ours in known else suggest(name, known)
            hint = beside if name in COMMON else guess
            raise ValueError(
                f"{place}{one_line(name, 60)} is not an option of {algorithm.name}; {hint}"
            )
    made = read_fields(algorithm.config, {n: v for n, v in options.items() if n in own}, place)
    if numbers is None:
        return made
    chosen = {n: v for n, v in options.items() if n not in own}
    return replace(made, hyper=read_fields(numbers, chosen, place))


def _make_world(rules: type | None, options: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    if rules is not None:
        return asdict(read_fields(rules, options, place))
    values = {}
    for name, value in options.items():
        try:  # as config.json will have it
            values[name] = json.loads(json.dumps(value, default=_plain))
        except (TypeError, RecursionError):
            raise ValueError(f"{place}{name}={shown(value)}; give numbers, text or lists") from None
    return values


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(type(value).__name__)


def name_here(name: str, algo: str) -> tuple[str, str] | None:
    """What a setting of this name, or of one like it, is called: ("now", ...) if it once was ours,
    ("here", ...) if other libraries call it so."""
    for when, names in (("now", FORMER_NAMES), ("here", PEERS_NAMES)):
        close = difflib.get_close_matches(name[:100], names, 1, 0.85)
        if close:
            return when, names[close[0]].replace("ALGO", algo)
    return None


def _unknown(name: str, algorithm: Algorithm, own: list[str]) -> str:
    other = name_here(name, algorithm.name)
    if other:
        return f"{name!r} is {' '.join(other)}"
    if name in algos.names():
        return (
            f"{name!r} holds options of {name}, and this run learns with {algorithm.name}; "
            f"choose algo={name!r}, or leave them out"
        )
    if any(name == f.name for f in fields(algorithm.config)):
        return f"{name!r} is an option of {algorithm.name}: {algorithm.name}={{{name!r}: ...}}"
    hint = suggest(name, [*COMMON, *own, algorithm.name])
    world = "" if "did you mean" in hint else "; options of the world are in world={...}"
    return f"no setting {shown(name)}; {hint}{world}"


# Kept settings ---------------------------------------------------------------------------------


def read_header(folder: str | Path) -> dict[str, Any]:
    """The content of a run's config.json; a ValueError if the folder holds no run we can read."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} is not a run folder: it has no config.json; name a folder under runs/"
        )
    header = read_json(path)
    settings = header.get("config") if isinstance(header, dict) else None
    if not isinstance(settings, dict):
        raise ValueError(f"{path} does not hold the settings of a run; name another folder")
    if header.get("format") != FORMAT:
        versions = header.get("versions")
        version = versions.get("worldloom", "0.1") if isinstance(versions, dict) else "0.1"
        raise ValueError(
            f"{folder} was written by worldloom {one_line(version, 40)}, whose runs this version "
            "cannot read; train again, or look at it with that version"
        )
    if header.get("sha256") not in (None, header_digest(header)):
        raise ValueError(
            f"{path} was changed after the run wrote it, or is damaged (its sha256 is another); "
            "put it back, or give settings as flags; without its sha256 it is taken as it is"
        )
    for name, value in {"suite": header.get("suite"), **_named(settings)}.items():
        if not isinstance(value, str):
            raise ValueError(
                f"{path} does not hold the settings of a run: {name} is {shown(value)}, not a "
                "name; name another folder"
            )
    return header | {"config": _completed(settings)}


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What no settings can do without."""
    return {name: settings.get(name) for name in ("env", "algo")}


def header_digest(header: Mapping[str, Any]) -> str:
    """The sha256 that config.json holds of everything else in it."""
    others = {name: value for name, value in header.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(plain(others), sort_keys=True).encode()).hexdigest()


def _completed(kept: dict[str, Any]) -> dict[str, Any]:
    """Kept settings, with what is newer than they are as the algorithm has it by itself.

    Not as its suite has it now: a run goes on with what it began with.
    """
    algorithm, group = algos.get(kept["algo"]), {}
    if isinstance(kept.get(algorithm.name, {}), Mapping):  # else `make_config` says what is wrong
        group[algorithm.name] = _flat(algorithm.config()) | kept.get(algorithm.name, {})
    return kept | group


# Values ----------------------------------------------------------------------------------------


def read_fields(cls: type, given: Mapping[str, Any], place: str = "") -> Any:
    """A settings dataclass from plain types, nested ones included; `place` begins messages."""
    known = {f.name: f for f in fields(cls)}
    values = {}
    for name, value in given.items():
        if name not in known:
            raise ValueError(
                f"{place}{one_line(name, 60)} is not an option; {suggest(name, list(known))}"
            )
        nested = default_of(known[name])
        if is_dataclass(nested) and not isinstance(value, type(nested)):
            options = _group(place + name, value)
            value = read_fields(type(nested), asdict(nested) | dict(options), f"{place}{name}.")  # pyright: ignore[reportArgumentType]
        values[name] = convert(place + name, value, kind_of(known[name].type, nested))
    made = cls(**values)  # which says what is wrong in words of its own
    for name, value in values.items():
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(abs(x) < math.inf for x in numbers if isinstance(x, float)):
            raise ValueError(f"{place}{name}={shown(value)}; it must be a finite number")
        if not all(abs(x) < 2**63 for x in numbers if isinstance(x, int)):
            raise ValueError(f"{place}{name}={shown(value)}; a number that large cannot be held")
    return made


def kind_of(annotation: Any, default: Any) -> Any:
    """What a setting holds: its annotation or, where there is none, what its default is."""
    if annotation is not inspect.Parameter.empty and not isinstance(annotation, str):
        return annotation
    if default is None or default is MISSING:
        return Any
    kind = tuple[type(default[0]), ...] if isinstance(default, tuple) and default else type(default)
    return kind | None


def default_of(field: Field) -> Any:
    """The default of a dataclass's field; MISSING if it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def convert(name: str, value: Any, kind: Any) -> Any:
    """`value` as what is annotated `kind` holds it: 1e6 is a whole number, a list a tuple.

    A ValueError that begins with `name` where it is no such thing. What only the owner of the
    setting can tell, such as which texts it knows, is left to it.
    """
    if get_origin(kind) in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        kind = next(one for one in get_args(kind) if one is not type(None))
    plain: Any = getattr(value, "tolist", lambda: value)()
    if get_origin(kind) is tuple:
        entries = plain if isinstance(plain, list | tuple) else (plain,)
        return tuple(convert(name, entry, get_args(kind)[0]) for entry in entries)
    allowed, words = _KINDS.get(kind, (object, ""))
    if not isinstance(plain, allowed) or (isinstance(plain, bool) and kind in (int, float)):
        raise ValueError(f"{name}={shown(plain)}; it must be {words}")
    if kind is int and plain % 1:  # also of what is not finite
        raise ValueError(f"{name}={shown(plain)}; it must be a whole number")
    if kind is float and abs(plain) >= 2**1023 and isinstance(plain, int):
        raise ValueError(f"{name}={shown(plain)}; a number that large cannot be held")
    return kind(plain) if kind in (int, float, str) else plain


_NUMBER = (int | float, "a number")
_KINDS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    str: (str | Path, "text"),
    int: _NUMBER,
    float: _NUMBER,
}
