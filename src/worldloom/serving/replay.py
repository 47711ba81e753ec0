"""Answers that come out again: a log computed anew from what it says went in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.serving.audit import Record, Verification, walk
from worldloom.serving.bundle import Bundle, difference, flat
from worldloom.serving.plants import overridden, restarted
from worldloom.serving.program import Rows, pad, stack
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
        if group[0].line.kind == "segment":
            begun.update(group[0].content["plants"])
        for record, expected in zip(group, _computed(group, bundle), strict=True):
            if expected is None:
                continue
            if record.line.plant not in begun:
                begun.add(record.line.plant)
                expected |= first  # nothing came before
            replay.replayed += record.line.kind in ("act", "emergency")
            gaps = _gaps(record.content, expected, bundle)
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
    inputs = [
        (array(c["obs"]), memory_array(c["memory"]), array(c["key"], np.uint32)) for _, c in group
    ]
    out = bundle.control(*pad(stack(inputs), group[0].content["batch"][0]))
    out["after"] = out.pop("memory")
    columns = flat(out)
    return [
        {name: x[i] for name, x in columns.items()}
        | _after({name: x[i] for name, x in out["after"].items()}, record.content, bundle)
        if record.line.kind == "act"
        else None
        for i, record in enumerate(group)
    ]


def _after(after: Rows, content: dict[str, Any], bundle: Bundle) -> dict[str, Any]:
    """The memory after a record; in shadow mode, after what was executed."""
    if "executed" in content:
        after = bundle.after_executed(after, array(content["executed"]))
    return {f"after.{name}": x for name, x in after.items()}


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
        keep_stop = content.get("keep_stop", False)
        after = restarted(bundle, memory, None if place is None else array(place), keep_stop)
    return expected | _after(after, content, bundle)


def _gaps(content: dict[str, Any], expected: dict[str, Any], bundle: Bundle) -> dict[str, float]:
    """The differences of the numbers of a record to what they should be, where bits differ."""
    gaps = {}
    for name, value in expected.items():
        part, _, leaf = name.partition(".")
        recorded = content[part][leaf] if leaf else content[part]
        recorded = array(recorded, value.dtype).reshape(value.shape)
        if not same_bits(recorded, value):
            # Bits that differ without a difference, as those of 0 and -0, are one nevertheless.
            gaps[name] = max(difference(recorded, value, bundle.scale(name)), 1e-12)
    return gaps
