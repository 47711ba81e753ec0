"""Answers that come out again: a log computed anew from what it says went in."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.serving.artifact import MEMORY
from worldloom.serving.audit import Record, Verification, walk
from worldloom.serving.bundle import Bundle, difference
from worldloom.serving.plants import overridden, restarted
from worldloom.serving.program import pad
from worldloom.serving.records import MOVES, array, memory_array, same_bits


@dataclass
class Replay(Verification):
    """What came out when a log's answers were computed again."""

    replayed: int = 0  # answers
    different: int = 0  # records that did not come out the same
    largest: float = 0.0  # difference, in units of each number's scale
    first: str | None = None  # difference, in words


def replay_log(path: str | Path, bundle: Bundle, *, tolerance: float = 0.0) -> Replay:
    """Verifies a log and computes every record again from what it says went in.

    With the same rows in the same places of batches of the same sizes, the same program gives the
    same bits on the same kind of machine with the same jax; elsewhere a tolerance may be needed, in
    units of each number's scale.
    """
    replay = Replay(str(path))
    first = {f"memory.{name}": x for name, x in bundle.initial_memory().items()}
    begun: set[str | None] = set()

    def again(group: list[Record]) -> None:
        for record, expected in zip(group, _computed(group, bundle), strict=True):
            if expected is None:
                continue
            if record.line.plant not in begun:
                begun.add(record.line.plant)
                expected |= first  # nothing came before
            replay.replayed += record.line.kind in ("act", "emergency")
            gaps = {name: gap for name, gap in _gaps(record.content, expected) if gap > 0.0}
            worst = max(gaps.values(), default=0.0)
            replay.largest = max(replay.largest, worst)
            if worst > tolerance:
                replay.different += 1
                if replay.first is None:
                    name = max(gaps, key=lambda name: gaps[name])
                    replay.first = f"record {record.line.seq}: {name} differs by {worst:.3g}"

    walk(path, replay, bundle.digest, None, again)
    return replay


def _computed(group: list[Record], bundle: Bundle) -> list[dict[str, Any] | None]:
    """What each record of a group should say; None where there is nothing to compute."""
    if group[0].line.kind not in ("act", "unused"):
        return [_changed(record, bundle) for record in group]
    size = group[0].content["batch"][0]
    memories = [memory_array(record.content["memory"]) for record in group]
    asked = (
        np.stack([array(record.content["obs"]) for record in group]),
        {name: np.stack([memory[name] for memory in memories]) for name in MEMORY},
        np.stack([array(record.content["key"], np.uint32) for record in group]),
    )
    out = bundle.control(*pad(asked, size))
    scale = np.asarray([row["scale"] for row in bundle.manifest["constraints"]])
    return [
        {
            "action": out["action"][i],
            "proposed": out["proposed"][i],
            **{f"after.{name}": x[i] for name, x in out["memory"].items()},
            **{f"report.{name}": x[i] for name, x in out["report"].items()},
            "scale": scale,
        }
        if record.line.kind == "act"
        else None
        for i, record in enumerate(group)
    ]


def _changed(record: Record, bundle: Bundle) -> dict[str, Any] | None:
    kind, content = record.line.kind, record.content
    if kind not in MOVES:
        return None
    memory = memory_array(content["memory"])
    expected: dict[str, Any] = {}
    if kind == "emergency":
        after = bundle.after_emergency(memory)
        expected["action"] = memory["fallback"]
    elif kind == "override":
        asked = content["action"]
        after = overridden(memory, None if asked is None else array(asked))
    else:
        place = content["previous"]
        after = restarted(bundle, memory, None if place is None else array(place))
    return expected | {f"after.{name}": after[name] for name in MEMORY}


def _gaps(content: dict[str, Any], expected: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The difference of each number of a record to what it should be; 0 for the same bits."""
    scale = expected.pop("scale", 1.0)
    for name, value in expected.items():
        part, _, leaf = name.partition(".")
        said = content[part][leaf] if leaf else content[part]
        value = np.asarray(value)
        said = array(said, value.dtype).reshape(value.shape)
        if not same_bits(said, value):
            unit = scale if leaf.startswith("margins") else 1.0
            # Bits that differ without a difference, as those of 0 and -0, are one nevertheless.
            yield name, max(difference(said, value, unit), 1e-12)
