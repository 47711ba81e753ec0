"""The suites, and worlds by name: which suite a world belongs to, and how it is made.

Nothing here imports jax: a suite's descriptor is light, and what it names is imported on use.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldloom.core.lazy import load_file, resolve
from worldloom.core.names import shown, suggest
from worldloom.training.suite import Suite, World

if TYPE_CHECKING:
    from worldloom.core.protocols import PureEnv

SUITES = ("grid", "arc", "robot", "plant", "plain")
# Worlds of others, by what stands before the colon: gymnax:CartPole-v1, brax:ant.
PREFIXES = {
    "gymnax": "worldloom.adapters.gymnax:make",
    "brax": "worldloom.adapters.brax_worlds:make",
}


# A world of a file as runs keep it: its name, and a hash of the file's content.
_KEPT = re.compile(r".+@[0-9a-f]{12}")
_REGISTERED: dict[str, tuple[World, str | None]] = {}  # name -> (world, its suite)


def suite(name: str) -> Suite:
    """A suite by its own name."""
    if name not in SUITES:
        raise ValueError(f"there is no suite {shown(name)}; {suggest(name, SUITES)}")
    return resolve(f"worldloom.suites.{name}.suite:SUITE")


def names(of: str | None = None) -> dict[str, str]:
    """Every known world with its one-line description, or those of one suite."""
    chosen = SUITES if of is None else (of,)
    known = {n: w.description for s in chosen for n, w in suite(s).worlds.items()}
    own = {n: w.description for n, (w, suite) in _REGISTERED.items() if of in (None, suite)}
    return known | own


def register(
    name: str,
    make: "Callable[..., PureEnv]",
    description: str = "",
    suite: str | None = None,
) -> None:
    """Makes a world of yours known by name to `make`, `train` and the command line.

    suite: "plant" for a plant, "robot" for a robot, "grid" for a gridworld; None decides by what
    the world is: turn-based worlds are grids, others plain worlds of one agent.
    """
    if suite is not None and suite not in SUITES:
        raise ValueError(f"register: there is no suite {suite!r}; {suggest(suite, SUITES)}")
    if name in names():
        raise ValueError(f"register: there is already a world named {name!r}; choose another name")
    _REGISTERED[name] = World(make, description), suite
    if "worldloom.adapters.gymnasium" in sys.modules:
        resolve("worldloom.adapters.gymnasium:register_worlds")()


def suite_of(env: str, **options: Any) -> Suite:
    """The suite that trains a world: given by name, by YAML file, or as PATH.py:FUNCTION."""
    own = _suite_named(env)
    if own is None:
        made = make(env, **options)
        usual = "grid" if made.turn_based else "plain"
        own = getattr(made.base, "suite", None) or usual  # a plant says that it is one
    return suite(own)


def _suite_named(env: str) -> str | None:
    """The suite of a world as its name tells it; None where only the world itself can."""
    own = next((name for name in SUITES if env in suite(name).worlds), None)
    own = own or _REGISTERED.get(env, (None, None))[1]
    if own is None and _is_yaml(env):
        own = _defined_by(env)[0].name
    if own is None and env.partition(":")[0] in PREFIXES:
        own = "plain"
    return own


def shaping_parameters(of: str) -> "dict[str, inspect.Parameter]":
    """Options that every world of a suite takes beside its own: they shape what is learned from."""
    transform = suite(of).shaping
    known = inspect.signature(resolve(transform)).parameters if transform else {}
    return {n: p for n, p in known.items() if p.kind is p.KEYWORD_ONLY}


def maker(name: str) -> "Callable[..., PureEnv]":
    """The function that makes a world.

    A name that ends in .yaml is a file's path; PATH.py:FUNCTION is a function in a file of yours;
    gymnax:NAME and brax:NAME are worlds of those packages.
    """
    known = {n: w for each in SUITES for n, w in suite(each).worlds.items()}
    known |= {n: w for n, (w, _) in _REGISTERED.items()}
    if name in known:
        function = known[name].make
        return resolve(function) if isinstance(function, str) else function
    if _is_yaml(name):
        return functools.partial(resolve(_defined_by(name)[1]), name)
    file = re.fullmatch(r"(.+\.py)(?::(\w+))?", name)
    if file:
        return _from_file(Path(file[1]), file[2] or "make")
    prefix, _, rest = name.partition(":")
    if prefix in PREFIXES:
        return functools.partial(resolve(PREFIXES[prefix]), rest)
    if _KEPT.fullmatch(name):
        raise ValueError(f"{name} is a world that a run keeps; name the run, or its YAML file")
    raise ValueError(f"there is no world {shown(name)}; {suggest(name, known)}")


def _is_yaml(name: str) -> bool:
    return name.lower().endswith((".yaml", ".yml"))


def _defined_by(path: str) -> tuple[Suite, str]:
    """The suite whose worlds a YAML file describes, and what makes one.

    The first, which says what is missing, of a file with other keys.
    """
    from worldloom.core.yaml_nodes import parse_yaml, read_text

    known = [(made, *made.definition) for made in map(suite, SUITES) if made.definition]
    content = parse_yaml(read_text(path), path).value
    if not isinstance(content, Mapping):
        keys = "; ".join(f"{made.name}: {', '.join(keys)}" for made, keys, _ in known)
        raise ValueError(f"{path}: it describes no world; keys that tell which one: {keys}")
    fitting = [one for one in known if any(key in content for key in one[1])]
    made, _, function = (fitting or known)[0]
    return made, function


def _from_file(path: Path, name: str) -> Any:
    """What a Python file of the user's defines under a name."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist; write PATH.py:FUNCTION for a world of your own")
    module = load_file(path)
    if not hasattr(module, name):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ValueError(f"{path} has no function {name!r}; {suggest(name, public)}")
    return getattr(module, name)


def make(name: str, **options: Any) -> "PureEnv":
    """A world by name, with options of its own: ``make("treasurehunt", num_agents=3)``."""
    from worldloom.core.transforms import as_pure

    function, known = maker(name), world_parameters(name)
    own = _suite_named(name)
    # A world whose suite only itself can tell may be of any that is shaped.
    shaped = next((n for n in SUITES if suite(n).shaping), "plain") if own is None else own
    shaping = {n: options.pop(n) for n in shaping_parameters(shaped) if n in options}
    if known is not None and any(n in known for n in shaping):  # the world's own go before
        options |= {n: shaping.pop(n) for n in list(shaping) if n in known}
    for option in options:
        if known is not None and option not in known:
            raise ValueError(f"{name} has no option {option!r}; {suggest(option, sorted(known))}")
    needed = [n for n, p in (known or {}).items() if p.default is p.empty and n not in options]
    if needed:
        raise ValueError(f"{name} needs the option {needed[0]!r}; give it as world.{needed[0]}")
    made = function(**options)
    if not hasattr(made, "spec"):
        raise ValueError(f"{name} made a {type(made).__name__}, which is no world: it has no spec")
    made = as_pure(made)
    transform = suite(shaped).shaping
    return resolve(transform)(made, **shaping) if shaping and transform else made


def make_checked(name: str, options: Mapping[str, Any], label: str) -> "PureEnv":
    """A world that can be reset; an option of the wrong type is a ValueError of one line.

    Without options it is the world's own code that is wrong, and its own error says where.
    """
    import jax

    try:
        env = make(name, **options)
        jax.eval_shape(env.reset, jax.random.key(0), env.default_params())
    except (TypeError, OverflowError) as error:
        if not options:
            raise
        _check_kinds(name, options, label)
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{label}: an option is not known or of the wrong type ({reason}); "
            f"mend the options {dict(options)}"
        ) from error
    return env


def _check_kinds(name: str, options: Mapping[str, Any], label: str) -> None:
    """A ValueError that names the first option of another type than its world says it has."""
    from worldloom.training.config import convert

    known = world_parameters(name) or {}
    for option, value in options.items():
        if option in known and known[option].annotation is not inspect.Parameter.empty:
            convert(f"{label}: {option}", value, known[option].annotation)


def world_parameters(name: str) -> "dict[str, inspect.Parameter] | None":
    """Options of a world by name, with defaults and types; None where only its maker knows."""
    if _KEPT.fullmatch(name):
        return {}
    known = dict(inspect.signature(maker(name)).parameters)
    return None if any(p.kind is p.VAR_KEYWORD for p in known.values()) else known
