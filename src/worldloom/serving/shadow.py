"""Shadow mode: how far what the policy proposes is from what the operator executed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.serving.audit import Record, Verification, walk

Signals = Sequence[Mapping[str, Any]]


def gaps(actuators: Signals, content: Mapping[str, Any]) -> dict[str, float]:
    """What a record's policy proposed less what was executed, by actuator, in shares of its range.

    Empty where nobody executed anything else, or nothing was proposed; without what is not finite.
    """
    if "executed" not in content or "proposed" not in content:
        return {}
    pairs = zip(actuators, content["proposed"], content["executed"], strict=True)
    return {a["name"]: (p - e) / 2.0 for a, p, e in pairs if not isinstance(p, str)}


def physical_gaps(actuators: Signals, content: Mapping[str, Any]) -> dict[str, float | None]:
    """`gaps` in physical units; None where the proposal is not finite."""
    found = gaps(actuators, content)
    ranges = {a["name"]: a["high"] - a["low"] for a in actuators}
    return {n: found[n] * width if n in found else None for n, width in ranges.items()}


def shadow_report(path: str | Path) -> tuple[Verification, dict[str, Any]]:
    """What a log tells of shadow mode, after it was verified: by actuator, in physical units.

    intervened, emergencies: of the answers, those in which the filter would have changed the
    proposal, or executed the emergency action.
    """
    result = Verification(str(path))
    actuators: list[Mapping[str, Any]] = []
    differences: dict[str, list[float]] = {}
    counts = dict.fromkeys(("answers", "late", "intervened", "emergencies"), 0)

    def visit(group: list[Record]) -> None:
        for line, content in group:
            start = content if line.kind == "start" else content.get("start")
            if start:
                actuators[:] = start["signals"]["action"]
            if "executed" not in content:
                continue
            report = content.get("report", {})
            counts["answers"] += 1
            counts["late"] += line.kind == "emergency"
            counts["intervened"] += bool(report.get("intervened"))
            counts["emergencies"] += bool(report.get("emergency"))
            for name, gap in physical_gaps(actuators, content).items():
                if gap is not None:
                    differences.setdefault(name, []).append(gap)

    walk(path, result, None, None, visit)
    rows = [_summary(a, np.asarray(differences.get(a["name"], []))) for a in actuators]
    return result, counts | {"actuators": rows}


def _summary(actuator: Mapping[str, Any], gap: np.ndarray) -> dict[str, Any]:
    about = {"name": actuator["name"], "unit": actuator["unit"], "compared": len(gap)}
    if not len(gap):
        return about | dict.fromkeys(("mean", "mean_absolute", "p95", "largest", "share"))
    size = np.abs(gap)
    return about | {
        "mean": float(gap.mean()),
        "mean_absolute": float(size.mean()),
        "p95": float(np.percentile(size, 95)),
        "largest": float(size.max()),
        "share": float(size.mean() / ((actuator["high"] - actuator["low"]) or 1.0)),  # of the range
    }
