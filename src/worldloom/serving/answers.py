"""Requests as JSON asks for them, checked field by field, and answers as JSON tells them.

Clients speak of actuators in physical units alone; policy, filter and records know them as shares
of their ranges, in [-1, 1].
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from worldloom.core.names import suggest
from worldloom.serving.bundle import Bundle
from worldloom.serving.records import PLANT
from worldloom.serving.shadow import physical_gaps

IDEMPOTENCY_KEY = r'[A-Za-z0-9._:-]{1,128}|"[A-Za-z0-9._:-]{1,128}"'
_PLANT = re.compile(PLANT)
LARGEST = float(np.finfo(np.float32).max)
FLAGS = (
    "is_safe",
    "intervened",
    "projected",
    "infeasible",
    "emergency",
    "latched",
    "overridden",
    "input_finite",
)


class BadField(ValueError):
    """A field of a request that is not what it must be."""

    def __init__(self, field: str, message: str):
        self.field, self.message = field[:80], message[:200]  # whatever a client made of them
        super().__init__(f"{self.field}: {self.message}")


# Requests ----------------------------------------------------------------------------------------


def read_body(body: bytes, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON object in a request, with the fields that must and those that may be there."""
    try:
        # Decoded here: left to itself, json guesses UTF-16 and UTF-32.
        content = json.loads(body.decode("utf-8"), object_pairs_hook=_object)
    except BadField:
        raise
    except (ValueError, RecursionError) as error:
        raise BadField("body", f"it is not JSON in UTF-8: {error}") from None
    if not isinstance(content, dict):
        raise BadField("body", "it is not a JSON object")
    known = [*required, *optional]
    for name in content:
        if name not in known:
            raise BadField(name, f"there is no such field; {suggest(name, known)}")
    for name in required:
        if name not in content:
            raise BadField(name, "it is missing")
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise BadField(name, "it is there more than once")
        content[name] = value
    return content


def read_idempotency_key(value: str | None) -> str | None:
    """The key that a request and its repetitions share; as the header has it, in quotes or not."""
    if value is None or re.fullmatch(IDEMPOTENCY_KEY, value):
        return value if value is None else value.strip('"')
    raise BadField(
        "Idempotency-Key", "a key is up to 128 letters, digits, dots, colons, dashes, underscores"
    )


def read_plant(content: Mapping[str, Any]) -> str:
    """The id of the plant that a request is about."""
    name = content["plant"]
    if not isinstance(name, str) or not _PLANT.fullmatch(name):
        raise BadField(
            "plant",
            "an id is up to 64 letters, digits, dots, dashes and underscores, and starts "
            "with a letter or a digit",
        )
    return name


def read_observation(value: Any, signals: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Observations (n,) from numbers in the order of the signals, or by their names.

    A sensor that has failed is null, NaN or infinite: that is for the safety filter to answer.
    """
    values = _values("observation", value, signals, missing=True)
    if min(values) > -LARGEST and max(values) < LARGEST:
        return np.array(values, np.float32)
    values = np.asarray(values)
    with np.errstate(over="ignore"):  # too large for float32 is as good as infinite
        return values.astype(np.float32)


def read_action(field: str, value: Any, signals: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """An action (m,) in [-1, 1] from positions in physical units, in order or by name."""
    values = _values(field, value, signals, missing=False)
    shares = []
    for signal, x in zip(signals, values, strict=True):
        low, high = signal["low"], signal["high"]
        if not low <= x <= high:
            text = f"{x:.9g} is not in its range, {low:.9g} to {high:.9g} {signal['unit'] or ''}"
            raise BadField(f"{field}.{signal['name']}", text.rstrip())
        shares.append(2.0 * (x - low) / ((high - low) or 1.0) - 1.0)
    return np.asarray(shares, np.float32)


def physical(action: Sequence[float], signals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Positions of actuators by name, in physical units, from shares of their ranges."""
    values = {}
    for signal, x in zip(signals, action, strict=True):
        low, high = signal["low"], signal["high"]
        finite = not isinstance(x, str)  # as records tell what is not
        value = low + (x + 1.0) / 2.0 * (high - low) if finite else None
        # What is within the range must not leave it by a rounding: it may come back in a request.
        inside = finite and -1.0 <= x <= 1.0
        values[signal["name"]] = min(max(value, low), high) if inside else value
    return values


def _values(
    field: str, value: Any, signals: Sequence[Mapping[str, Any]], *, missing: bool
) -> list[float]:
    if type(value) is list and len(value) == len(signals) and set(map(type, value)) == {float}:
        return value  # as most of them are
    names = [signal["name"] for signal in signals]
    if isinstance(value, dict):
        for name in value:
            if name not in names:
                raise BadField(
                    f"{field}.{name}", f"there is no such signal; {suggest(name, names)}"
                )
        for name in names:
            if name not in value:
                raise BadField(f"{field}.{name}", "it is missing")
        value = [value[name] for name in names]
    if not isinstance(value, list):
        raise BadField(field, f"a list of {len(names)} numbers, or numbers by name, is needed")
    if len(value) != len(names):
        raise BadField(field, f"{len(value)} numbers; {len(names)} are needed: {', '.join(names)}")
    numbers = []
    for name, x in zip(names, value, strict=True):
        if x is None and missing:
            numbers.append(float("nan"))
        elif isinstance(x, bool) or not isinstance(x, int | float):
            text = f"{x[:40]!r} is not" if isinstance(x, str) else "not"
            raise BadField(f"{field}.{name}", f"{text} a number")
        else:
            try:
                numbers.append(float(x))
            except OverflowError:
                numbers.append(float("inf") if x > 0 else float("-inf"))
    return numbers


# Answers -----------------------------------------------------------------------------------------


def act_answer(bundle: Bundle, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """What a client hears of a record of kind act or emergency.

    action, proposed: in physical units; normalised: the action as the record has it, in [-1, 1].
    In shadow mode the action is what the operator executed; `shadow` tells what would have been,
    and what was proposed less what was executed.
    """
    report, executed = content.get("report"), content.get("executed")
    action = content["action"] if executed is None else executed
    answer = {
        "plant": content["plant"],
        "step": content["memory"]["step"],
        "action": physical(action, bundle.action),
        "normalised": action,
        "late": kind == "emergency",
        "stopped": content["after"]["latched"],
    }
    if executed is not None:
        filtered = physical(content["action"], bundle.action)
        answer["shadow"] = {"action": filtered, "difference": physical_gaps(bundle.action, content)}
    if report is None:
        return answer | {"emergency": True, "reason": content["reason"], "drift": []}
    margins = [None if isinstance(x, str) else x for x in report["margins_after"]]
    active = report["active"]
    return answer | {
        **{name: report[name] for name in FLAGS},
        "reason": bundle.rows[active] if active >= 0 else None,
        "proposed": physical(content["proposed"], bundle.action),
        "margins": dict(zip(bundle.rows, margins, strict=True)),
        "drift": content["drift"],
    }


def outcome_answer(bundle: Bundle, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """`act_answer` of what a request led to, and where its record is."""
    answer = act_answer(bundle, outcome["kind"], outcome["content"])
    return answer | {"record": outcome["record"]}


def plant_answer(bundle: Bundle, content: Mapping[str, Any]) -> dict[str, Any]:
    """What a client hears of a record of kind override or reset, in physical units."""
    after = content["after"]
    overriding = after["overriding"]
    return {
        "plant": content["plant"],
        "step": after["step"],
        "stopped": after["latched"],
        "overriding": overriding,
        "override": physical(after["override"], bundle.action) if overriding else None,
        "previous": physical(after["previous"], bundle.action),
    }
