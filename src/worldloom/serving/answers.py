"""Requests as JSON asks for them, checked field by field, and answers as JSON tells them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from worldloom.core.names import suggest
from worldloom.serving.bundle import Bundle
from worldloom.serving.records import PLANT

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
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


# Requests ----------------------------------------------------------------------------------------


def read_body(body: bytes, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON object in a request, with the fields that must and those that may be there."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadField("body", f"it is not JSON: {error}") from None
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


def read_plant(content: Mapping[str, Any]) -> str:
    """The id of the plant that a request is about."""
    name = content["plant"]
    if not isinstance(name, str) or not re.fullmatch(PLANT, name):
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
    with np.errstate(over="ignore"):  # too large for float32 is as good as infinite
        return np.asarray(_values("observation", value, signals, missing=True)).astype(np.float32)


def read_action(field: str, value: Any, signals: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """An action (m,) in [-1, 1] from numbers in the order of the actuators, or by their names."""
    values = np.asarray(_values(field, value, signals, missing=False))
    for signal, x in zip(signals, values, strict=True):
        if not -1.0 <= x <= 1.0:
            raise BadField(
                f"{field}.{signal['name']}", f"{x:g} is not in [-1, 1], the actuator's range"
            )
    return values.astype(np.float32)


def _values(
    field: str, value: Any, signals: Sequence[Mapping[str, Any]], *, missing: bool
) -> list[float]:
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
            raise BadField(f"{field}.{name}", f"{str(x)[:40]!r} is not a number")
        else:
            try:
                numbers.append(float(x))
            except OverflowError:
                numbers.append(float("inf") if x > 0 else float("-inf"))
    return numbers


# Answers -----------------------------------------------------------------------------------------


def act_answer(bundle: Bundle, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """What a client hears of a record of kind act or emergency.

    action: in [-1, 1], as the policy and the filter know it; control: in physical units, by name.
    """
    report = content.get("report")
    executed = content["action"]
    answer = {
        "plant": content["plant"],
        "step": content["memory"]["step"],
        "action": executed,
        "control": {
            signal["name"]: signal["low"] + (x + 1.0) / 2.0 * (signal["high"] - signal["low"])
            for signal, x in zip(bundle.action, executed, strict=True)
        },
        "late": kind == "emergency",
        "stopped": content["after"]["latched"],
    }
    if report is None:
        return answer | {"emergency": True, "reason": content["reason"], "drift": []}
    margins = [None if isinstance(x, str) else x for x in report["margins_after"]]
    active = report["active"]
    return answer | {
        **{name: report[name] for name in FLAGS},
        "reason": bundle.rows[active] if active >= 0 else None,
        "proposed": [None if isinstance(x, str) else x for x in content["proposed"]],
        "margins": dict(zip(bundle.rows, margins, strict=True)),
        "drift": content["drift"],
    }


def plant_answer(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a client hears of a record of kind override or reset."""
    after = content["after"]
    return {
        "plant": content["plant"],
        "step": after["step"],
        "stopped": after["latched"],
        "overriding": after["overriding"],
        "override": after["override"] if after["overriding"] else None,
        "previous": after["previous"],
    }
