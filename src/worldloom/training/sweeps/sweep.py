"""Sweeps: points of a space of settings, each with several seeds, as few XLA programs as possible.

Points come from a source: a list of them, or a study that learns from what was tried and that
several workers may share. A worker trains them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldloom.core.files import write_json
from worldloom.training.config import TrainConfig
from worldloom.training.console import phase
from worldloom.training.folders import new_folder, world_label
from worldloom.training.machine import machine, use_compilation_cache, versions
from worldloom.training.suite import Suite
from worldloom.training.sweeps.search import Range, Space, first_corner, make_point
from worldloom.training.sweeps.source import Listed, Search, Source, known_points
from worldloom.training.sweeps.study import Sampled
from worldloom.training.sweeps.worker import Worker


@dataclass(frozen=True)
class Place:
    """Where results go, and the storage of a study that others share.

    study: a folder, or the URL of a database. lease: seconds without a sign of life after which the
    points of a worker are another's.
    """

    out: Path
    study: str = ""
    lease: float = 60.0


def make_source(
    suite: Suite, given: Mapping[str, Any], space: Space, search: Search, place: Place
) -> tuple[Source, int]:
    """Points, and how many there will be."""
    if place.study:
        from worldloom.training.sweeps.shared_study import Shared

        shared = Shared(suite, given, space, search, place.study, place.out, place.lease)
        return shared, shared.count
    known = known_points(suite, given, space, search)
    if known is not None:
        return Listed(known), len(known)
    return Sampled(suite, given, space, search), search.points


def default_study(out: Path, env: str) -> str:
    """A new folder for a study, where none is named."""
    return str(new_folder(out, f"sweep-{world_label(env)}"))


def header_of(space: Space, search: Search, config: TrainConfig, command: str) -> dict[str, Any]:
    """What sweep.json says beside results."""
    shown = [(name, str(v) if isinstance(v, Range) else v) for name, v in space]
    return {
        "kind": "sweep",
        "command": command,
        "config": config.to_dict(),
        "grid": [{"name": name, "values": values} for name, values in shown],
        "search": search.chosen_method(space),
        "halving": search.halving,
        "seeds": search.seeds,
        "versions": versions(),
        "machine": machine(),
    }


def sweep(
    suite: Suite,
    given: Mapping[str, Any],
    space: Space,
    search: Search,
    place: Place,
    command: str = "",
) -> tuple[list[dict[str, Any]], Path]:
    """Trains the points of a space; rows of results, and their JSON file.

    The file is written after each program, so that an interrupted sweep keeps what it has. Of a
    shared study it has what all workers found.
    """
    use_compilation_cache()
    source, count = make_source(suite, given, space, search, place)
    worker, path = Worker(suite, search, source, command), None
    # The same for all workers, whichever points they have.
    config = make_point(suite, given, first_corner(space)).config
    header = header_of(space, search, config, command)

    def begin() -> Path:
        folder = source.folder or new_folder(place.out, f"sweep-{world_label(config.env)}")
        folder.mkdir(parents=True, exist_ok=source.folder is not None)
        worker.folder = folder
        return folder / "sweep.json"

    def write(path: Path) -> None:
        rows = source.rows()
        programs = {row["program"] for row in rows if "program" in row}
        about = {"programs": len(programs), "complete": len(rows) == count}
        write_json(path, header | about | {"results": rows})

    with source:
        while tasks := source.ask():
            points = worker.prepare(tasks)
            path = path or begin()
            for batch in worker.batches(points):
                done, steps = len(source.rows()), batch[0].config.steps * search.seeds
                note = f"point {done + 1} of {count}"
                phase("training", done=done * steps, total=count * steps, unit="steps", note=note)
                for task, row in worker.train(batch):
                    source.tell(task, row)
                write(path)
        # The last word: another worker may have written what it knew before this one was done.
        path = path or begin()
        write(path)
    rows = source.rows()
    if rows and all("error" in row for row in rows):
        raise ValueError(f"no point can be trained: {rows[0]['error']}")
    return rows, path
