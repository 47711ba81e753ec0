"""`worldloom completion SHELL`: commands, worlds, algorithms, runs and options by the Tab key.

The script asks `worldloom completion words -- WORD ...` at every press. Options are therefore read
from the text of the modules that define them: importing these would import jax.
"""

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from worldloom import algos, suites
from worldloom.cli.main import QUIET, commands
from worldloom.core.names import suggest

SCRIPTS = {
    "bash": """_worldloom() {
  local IFS=$'\\n' n=0 word words=("")
  # Bash ends words at colons, which are a part of ours, as in gymnax:CartPole-v1.
  for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
    if [[ $word == :* || ${words[n]} == *: ]]; then words[n]+=$word; else words[++n]=$word; fi
  done
  COMPREPLY=($(worldloom completion words -- "${words[@]:1}" 2>/dev/null))
  word=${words[n]}
  if [[ $COMP_WORDBREAKS == *:* ]]; then COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}"); fi
}
complete -o default -o filenames -F _worldloom worldloom""",
    "zsh": """#compdef worldloom
_worldloom() {
  local -a found
  found=("${(@f)$(worldloom completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  [[ -n $found ]] && compadd -a found || _files
}
compdef _worldloom worldloom""",
    "fish": """function __worldloom
  set -l words (commandline -opc) (commandline -ct)
  worldloom completion words -- $words[2..-1] 2>/dev/null
end
complete -c worldloom -a '(__worldloom)'""",
}
USAGE = """usage: worldloom completion bash|zsh|fish

Prints a script that completes commands, worlds, algorithms, runs and options:

  source <(worldloom completion bash)      in ~/.bashrc
  source <(worldloom completion zsh)       in ~/.zshrc
  worldloom completion fish | source       in ~/.config/fish/config.fish"""
WITH_WORLD = ("train", "sweep", "bench", "envs")
# And whatever takes a `run`.
WITH_RUN = ("eval", "report", "compare", "select", "serve", "runs", "studio")
ALL_GRIDS = ("turn_order", "view", "horizon", "num_frames")  # options of every gridworld


def command(argv: list[str]) -> int:
    """Prints a shell's script, or the words that may stand where the last one is."""
    name, *words = argv or ["--help"]
    if name in ("-h", "--help"):
        print(USAGE)
    elif name == "words":
        print("\n".join(complete(words[1:] or [""])))
    elif name in SCRIPTS:
        print(SCRIPTS[name])
    else:
        raise ValueError(f"there is no shell {name!r}; {suggest(name, SCRIPTS)}")
    return 0


def complete(words: list[str]) -> list[str]:
    """What the last of the words behind `worldloom` may become."""
    *before, last = words
    return [word for word in _candidates(before, last) if word.startswith(last)]


def _candidates(before: list[str], last: str) -> Iterable[str]:
    known = commands()
    if not before:
        return known
    name, where = before[0], known.get(before[0], ("", ""))[0].partition(":")[0]
    if not where:
        return ()
    if before[-1] == "--algo":
        return algos.names()
    if before[-1] == "--resume":
        return _runs(last)
    groups = _groups(where)
    if len(before) == 1 and groups:
        return groups
    if last.startswith("-"):
        return [f"--{option.replace('_', '-')}" for option in _options(before, where)] + [QUIET]
    if name == "completion":
        return SCRIPTS
    if name in WITH_WORLD and len(before) == 1:
        return suites.names()
    takes_run = "run" in _fields(where, _class_of(before, where), positional=True)
    return _runs(last) if takes_run or name in WITH_RUN else ()


def _runs(begun: str) -> Iterator[str]:
    """Folders below what was typed, or below runs/, that hold a result."""
    typed = begun.rpartition("/")[0] or "runs"
    for path in sorted(Path(typed).glob("*")):
        if path.is_dir():
            yield str(path)


# Options, without importing anything heavy ------------------------------------------------------


def _options(before: list[str], where: str) -> Iterator[str]:
    name, rest = before[0], before[1:]
    yield from _fields(where, _class_of(before, where))
    yield "help"
    if name not in ("train", "sweep"):
        return
    yield "help_all"
    common = _fields("worldloom.training.config", "TrainConfig")
    yield from (n for n in common if n not in ("env", "hyper", "settings", "world"))
    world = rest[0] if rest and not rest[0].startswith("-") else ""
    suite = next((s for s in map(suites.suite, suites.SUITES) if world in s.worlds), None)
    algo = rest[rest.index("--algo") + 1] if "--algo" in rest[:-1] else None
    if suite is not None:
        yield from _dataclass(suite.settings)
        rules = suite.rules_of(world)
        maker = str(suite.worlds[world].make).partition(":")[0]
        own = _parameters(maker) if rules is None else _dataclass(rules)
        if rules is None and suite.shaping:
            own = [*own, *_keywords(*suite.shaping.split(":"))]
        yield from (f"world.{option}" for option in own)
        algo = algo or suite.defaults(world, None)["algo"]
    if algo in algos.names():
        yield from (f"{algo}.{option}" for option in _algorithm(algo))


def _dataclass(cls: type, prefix: str = "") -> Iterator[str]:
    for f in fields(cls):
        inner = f.default if is_dataclass(f.default) else None
        if inner is None and isinstance(f.default_factory, type):
            inner = f.default_factory() if is_dataclass(f.default_factory) else None
        if inner is None:
            yield prefix + f.name
        else:
            yield from _dataclass(type(inner), f"{prefix}{f.name}.")  # pyright: ignore[reportArgumentType]


@cache
def _tree(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _defined(module: str, kind: Any) -> dict[str, Any]:
    nodes: list[Any] = [node for node in ast.walk(_tree(module)) if isinstance(node, kind)]
    return {node.name: node for node in nodes}


def _groups(where: str) -> list[str]:
    """The commands of a group, which are the classes that `run_group` is given."""
    dicts = [node for node in ast.walk(_tree(where)) if isinstance(node, ast.Dict)]
    classes = _defined(where, ast.ClassDef)
    keys = [[key.id for key in node.keys if isinstance(key, ast.Name)] for node in dicts]
    return next(([n.lower() for n in k] for k in keys if k and {*k} <= {*classes}), [])


def _class_of(before: list[str], where: str) -> str:
    """The class that holds a command's own options: of its name, or Flags."""
    names = [word for word in before[:2] if not word.startswith("-")]
    classes = _defined(where, ast.ClassDef)
    own = {name.lower(): name for name in classes}
    return next((own[name] for name in reversed(names) if name in own), "Flags")


def _fields(module: str, name: str, positional: bool = False) -> Iterator[str]:
    """The options of a class, those of its bases first; or what it takes by position."""
    cls = _defined(module, ast.ClassDef).get(name)
    if cls is None:
        imported = [node for node in _tree(module).body if isinstance(node, ast.ImportFrom)]
        sources = [i.module for i in imported if name in [alias.name for alias in i.names]]
        if sources and str(sources[0]).startswith("worldloom."):
            yield from _fields(str(sources[0]), name, positional)
        return
    for base in cls.bases:
        if isinstance(base, ast.Name):
            yield from _fields(module, base.id, positional)
    for node in cls.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id == "hyper" and isinstance(node.annotation, ast.Name):
            yield from _fields(module, node.annotation.id)
        elif positional == ("Positional" in ast.dump(node.annotation)):
            yield node.target.id


def _keywords(module: str, function: str) -> list[str]:
    return [a.arg for a in _defined(module, ast.FunctionDef)[function].args.kwonlyargs]


def _parameters(module: str) -> dict[str, None]:
    """Options of a world: of `make`, and of the function `world` to which it hands them on.

    Gridworlds have those that `worldloom.suites.grid.options.common_options` adds to it, too.
    """
    functions = _defined(module, ast.FunctionDef)
    makers = [functions[name] for name in ("world", "make") if name in functions]
    calls = [c for f in makers for c in f.decorator_list if isinstance(c, ast.Call)]
    names = [a.arg for f in makers for a in f.args.kwonlyargs]
    names += [a.arg for f in makers if not calls for a in f.args.args]
    for call in calls:
        names += [*(str(keyword.arg) for keyword in call.keywords), *ALL_GRIDS]
        names += [n for a in call.args if isinstance(a, ast.Name) for n in _fields(module, a.id)]
    return dict.fromkeys(names)


def _algorithm(name: str) -> dict[str, None]:
    """Options of an algorithm: of the class that its descriptor names."""
    module = f"worldloom.algos.{name}"
    calls = [node for node in ast.walk(_tree(module)) if isinstance(node, ast.Call)]
    made = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "Algorithm"]
    config = next(a.id for a in made[-1].args if isinstance(a, ast.Name))
    return dict.fromkeys(_fields(module, config))
