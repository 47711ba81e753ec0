"""Alarms of served plants: soft rows of the constraints, by priority, with deadbands and shelving.

An alarm goes off where the margin of its row is below 0, and ends when it is above the row's
deadband: a signal that wavers about its limit does not ring again and again. Soft rows of every
kind are alarms, and hard ones of the state as it is now; a latched stop is one as well. What is
shelved is not counted as active until its time is up. None of this changes an action.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from worldloom.serving.audit import Record, Verification, walk

PRIORITIES = ("high", "medium", "low")
STOP = "stop"  # the alarm of a latched emergency stop
LONGEST = 7 * 86_400.0  # seconds that an alarm may be shelved for
CHATTER = 60.0  # seconds within which an alarm that ended should not go off again


class Rule(NamedTuple):
    """An alarm: its row of the constraints, its name and priority, and the margin that ends it."""

    row: int
    name: str
    priority: str
    deadband: float


def alarm_rules(rows: Sequence[Mapping[str, Any]]) -> list[Rule]:
    """The alarms among a manifest's rows of constraints."""
    return [
        Rule(i, row["name"], row.get("priority", "medium"), float(row.get("deadband", 0.0)))
        for i, row in enumerate(rows)
        if not row["hard"] or row["kind"] == "state"
    ]


class Alarms:
    """Which alarms of which plants are active, since when, and which are shelved until when."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]):
        self.rules = alarm_rules(rows)
        self.priorities = {rule.name: rule.priority for rule in self.rules} | {STOP: "high"}
        self._rows = np.asarray([rule.row for rule in self.rules], int)
        self._deadband = np.asarray([rule.deadband for rule in self.rules])
        self._active: dict[str, dict[str, float]] = {}
        self._shelved: dict[tuple[str, str], float] = {}

    def update(
        self, plants: Sequence[str], margins: np.ndarray, latched: np.ndarray, now: float
    ) -> list[tuple[str, str, bool]]:
        """Takes in margins (b, C) and stops (b,) of plants; what changed: plant, alarm, active."""
        own = margins[:, self._rows]
        rings = ~(own >= 0.0)
        if not self._active and not rings.any() and not latched.any():
            return []  # as it mostly is
        stays = ~(own > self._deadband)
        changed = []
        for i, plant in enumerate(plants):
            before = self._active.get(plant, {})
            active = {
                rule.name
                for rule, rung, held in zip(self.rules, rings[i], stays[i], strict=True)
                if rung or (held and rule.name in before)
            }
            active |= {STOP} if latched[i] else set()
            changed += [(plant, name, True) for name in active - before.keys()]
            changed += [(plant, name, False) for name in before.keys() - active]
            kept = {name: before.get(name, now) for name in active}
            if kept:
                self._active[plant] = kept
            else:
                self._active.pop(plant, None)
        return changed

    def watch(
        self,
        plants: Sequence[str],
        margins: np.ndarray,
        latched: np.ndarray,
        count: Callable[..., None],
    ) -> None:
        """`update`, now; what went off is counted."""
        for _, name, active in self.update(plants, margins, latched, time.time()):
            if active:
                count("worldloom_alarms_total", alarm=name, priority=self.priorities[name])

    def shelve(self, plant: str, alarm: str, seconds: float, now: float) -> float | None:
        """Silences an alarm for so long, or no longer (0); until when, by the clock of `now`."""
        self._shelved.pop((plant, alarm), None)
        if seconds <= 0.0:
            return None
        return self._shelved.setdefault((plant, alarm), now + seconds)

    def listed(self, now: float) -> list[dict[str, Any]]:
        """All active alarms and all shelved ones, those of high priority and the oldest first."""
        self._shelved = {key: until for key, until in self._shelved.items() if until > now}
        since = {(p, n): at for p, names in self._active.items() for n, at in names.items()}
        rows = [
            {
                "plant": plant,
                "alarm": name,
                "priority": self.priorities[name],
                "since": since.get((plant, name)),
                "shelved_until": self._shelved.get((plant, name)),
            }
            for plant, name in {**since, **self._shelved}
        ]

        def rank(row: Mapping[str, Any]) -> tuple[int, float]:
            since = math.inf if row["since"] is None else row["since"]
            return PRIORITIES.index(row["priority"]), since

        return sorted(rows, key=rank)

    def ringing(self, now: float) -> int:
        """How many alarms are active and not shelved."""
        rows = [(row["since"], row["shelved_until"]) for row in self.listed(now)]
        return sum(since is not None and until is None for since, until in rows)


# From the record ---------------------------------------------------------------------------------


def alarm_report(
    path: str | Path, manifest: Mapping[str, Any]
) -> tuple[Verification, dict[str, Any]]:
    """What a log tells of alarms and of trips, after it was verified, by the policy's manifest.

    A trip is a run of emergency actions. Demanded by the process are those that began with a row
    that was crossed, or that no action could keep; the others, of signals that were missing, of a
    deadline or a failure, are spurious. Whether the plant would have come to harm without a trip,
    no log can say: evaluations in a simulator count that.
    """
    result, alarms = Verification(str(path)), Alarms(manifest["constraints"])
    rung, again, trips = Counter[str](), Counter[str](), Counter[str]()
    ended: dict[tuple[str, str], float] = {}
    seen: dict[str, list[float]] = {}  # plant -> first and last time
    tripping: set[str] = set()
    interventions = 0

    def visit(group: list[Record]) -> None:
        nonlocal interventions
        for line, content in group:
            if line.kind not in ("act", "emergency") or line.plant is None:
                continue
            plant, now, report = line.plant, float(content["time"]), content.get("report")
            seen.setdefault(plant, [now, now])[1] = now
            trip = report is None or report["emergency"]
            if trip and plant not in tripping:
                trips[_cause(content, report)] += 1
            (tripping.add if trip else tripping.discard)(plant)
            if report is None:
                continue
            interventions += bool(report["intervened"]) and not trip
            margins = np.asarray([report["margins_after"]], float)
            stopped = np.asarray([content["after"]["latched"]])
            for _, name, active in alarms.update([plant], margins, stopped, now):
                rung[name] += active
                again[name] += active and now - ended.get((plant, name), -math.inf) < CHATTER
                if not active:
                    ended[plant, name] = now

    walk(path, result, manifest["digest"], None, visit)
    hours = sum(last - first for first, last in seen.values()) / 3600.0
    demands, spurious = trips["limit"] + interventions, trips.total() - trips["limit"]
    known = alarms.priorities.items()
    return result, {
        "plants": len(seen),
        "hours": hours,
        "alarms": [
            {"alarm": n, "priority": p, "activations": rung[n], "chattering": again[n]}
            for n, p in known
        ],
        "trips": dict(trips),
        "interventions": interventions,
        "demand_rate": demands / hours if hours else None,  # an hour of one plant
        "spurious_trip_rate": spurious / hours if hours else None,
    }


def _cause(content: Mapping[str, Any], report: Mapping[str, Any] | None) -> str:
    if report is None:
        return "deadline" if content["reason"] == "deadline" else "failure"
    return "limit" if report["input_finite"] else "missing signal"
