"""Learning algorithms, one file each, and the list of them: `names`, `get`, `register`.

An algorithm is a file of this folder that ends in `ABOUT = (name, description, loop, actions)` and
`ALGORITHM = Algorithm(*ABOUT, config, make)`; the list is read from the files, so adding one
touches no other. An algorithm and its options are attributes too:
`worldloom.algos.IQL`, `worldloom.algos.IQLConfig`. Importing this package imports no jax; an
algorithm's file is imported when it is first asked for.
"""

import ast
import functools
import importlib
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from worldloom.core.lazy import load_file
from worldloom.core.names import shown, suggest

if TYPE_CHECKING:
    from worldloom.algos.algorithm import Algorithm

_REGISTERED: dict[str, "Algorithm"] = {}
_ABOUT = "\nABOUT = ("


def names() -> dict[str, str]:
    """Every known algorithm with its one-line description."""
    built_in = {name: file.description for name, file in _files().items()}
    return built_in | {name: one.description for name, one in _REGISTERED.items()}


def get(name: str) -> "Algorithm":
    """An algorithm by name, or one in a file of the user's own: "PATH.py:NAME"."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name in _files():
        return importlib.import_module(_files()[name].module).ALGORITHM
    path, _, attribute = name.partition(".py")
    if path != name and attribute[:1] in ("", ":"):
        return _from_file(f"{path}.py", attribute[1:] or "ALGORITHM")
    raise ValueError(f"there is no algorithm {shown(name)}; {suggest(name, names())}")


def register(algorithm: "Algorithm") -> None:
    """Makes an algorithm of yours known by its name to `get`, `train` and the command line."""
    if algorithm.name in names():
        raise ValueError(
            f"register: there is already an algorithm named {algorithm.name!r}; choose another name"
        )
    _REGISTERED[algorithm.name] = algorithm


# Lookup without imports ------------------------------------------------------------------------


class _File(NamedTuple):
    """What the text of an algorithm's file says of it."""

    module: str
    description: str
    classes: list[str]  # XConfig, X and XHyper


@functools.cache
def _files() -> dict[str, _File]:
    """Files of this package that have a descriptor, by the name in it."""
    files = {}
    for module in pkgutil.iter_modules(__path__):
        source = (pkgutil.get_data(__name__, f"{module.name}.py") or b"").decode()
        start = source.rfind(_ABOUT)
        if start < 0:
            continue
        statement: Any = ast.parse(source[start:]).body[0]
        name, description = (text.value for text in statement.value.elts[:2])
        defined = re.findall(r"^class (\w+)", source, re.MULTILINE)
        stems = [one.removesuffix("Config") for one in defined if one.endswith("Config")]
        public = [one for one in defined if re.sub("(Config|Hyper)$", "", one) in stems]
        files[name] = _File(f"{__name__}.{module.name}", description, public)
    return files


def _from_file(path: str, attribute: str) -> "Algorithm":
    """The descriptor called `attribute` in a Python file."""
    from worldloom.algos.algorithm import Algorithm

    if not Path(path).is_file():
        raise ValueError(f"there is no file {path!r} with an algorithm in it")
    algorithm = getattr(load_file(Path(path)), attribute, None)
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"{path}: {attribute} is not an Algorithm; write "
            f"{attribute} = worldloom.algos.algorithm.Algorithm(...) there"
        )
    return algorithm


def _public() -> dict[str, str]:
    """Classes that are attributes of this package -> the module each is in."""
    return {one: file.module for file in _files().values() for one in file.classes}


def __getattr__(name: str) -> Any:
    if name[:1] != "_" and name in _public():
        return getattr(importlib.import_module(_public()[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_public()])
