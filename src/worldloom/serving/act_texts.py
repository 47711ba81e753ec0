"""Records and answers of a batch as JSON, column by column: one call for all rows of an array.

What `answers.act_answer` says of one record is said here of all rows of a batch at once.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from worldloom.serving.answers import FLAGS
from worldloom.serving.bundle import Bundle, Drift
from worldloom.serving.records import as_json, memory_names, numbers

_ORDER = ("emergency", "projected", "overridden")  # the first counts


class Texts(NamedTuple):
    """JSON of the b rows of a batch."""

    inputs: list[bytes]  # of a record, up to what came out: an object that is not closed
    results: list[bytes]  # of a record, what came out: fields
    answers: list[bytes]  # an object that is not closed: the place of the record is missing
    after: list[bytes]  # the memory, for the next record of the plant
    kinds: list[str]  # what the actions are, as they are counted
    drift: list[list[str]]  # signals outside of the training data


class ActTexts:
    """What is said of the actions of a bundle's policy."""

    def __init__(self, bundle: Bundle):
        self._policy = bundle.digest.encode()
        low, high = (
            np.asarray([signal[end] for signal in bundle.action], np.float64)
            for end in ("low", "high")
        )
        self._low, self._high = low, high
        self._action = _template([signal["name"] for signal in bundle.action])
        self._margins = _template(bundle.rows)
        # The last one stands for -1, which is no row.
        self._reasons = [*(json.dumps(name).encode() for name in bundle.rows), b"null"]
        self._drift = Drift(
            bundle.manifest["drift"], [signal["name"] for signal in bundle.observation]
        )

    def of(
        self,
        plants: Sequence[str],
        memories: Sequence[bytes],
        obs: np.ndarray,
        key: np.ndarray,
        out: Mapping[str, Any],
        now: float,
    ) -> Texts:
        """What is said of b rows: plants, their memories (JSON), obs (b, n), key (b, 2), out.

        out: what the program computed of at least b rows, of which the first are theirs.
        """
        count = len(plants)
        size = len(out["action"])
        out = _first(out, count)
        columns = {name: texts(x) for name, x in out["report"].items()}
        after = {name: texts(out["memory"][name]) for name in memory_names(out["memory"])}
        action, steps = texts(out["action"]), texts(out["report"]["step"])
        drift = self._strange(obs)
        drifted = [as_json(names) if names else b"[]" for names in drift]
        head = b'","time":%b,"policy":"%b","obs":' % (as_json(now), self._policy)
        inputs = [
            b'{"plant":"%b%b%b,"key":%b,"memory":%b,"batch":[%d,%d]'
            % (plant.encode(), head, seen, drawn, memory, size, row)
            for row, (plant, seen, drawn, memory) in enumerate(
                zip(plants, texts(obs), texts(key), memories, strict=True)
            )
        ]
        memory = _objects(_template(list(after)), after.values())
        results = [
            b',"action":%b,"proposed":%b,"report":%b,"after":%b,"drift":%b' % row
            for row in zip(
                action,
                texts(out["proposed"]),
                _objects(_template(list(columns)), columns.values()),
                memory,
                drifted,
                strict=True,
            )
        ]
        flags = b",".join(b'"%b":%%b' % name.encode() for name in FLAGS)
        answer = (
            b'{"plant":"%b","step":%b,"action":%b,"normalised":%b,"late":false,"stopped":%b,'
            + flags
            + b',"reason":%b,"proposed":%b,"margins":%b,"drift":%b'
        )
        answers = [
            answer % row
            for row in zip(
                [plant.encode() for plant in plants],
                steps,
                self._physical(out["action"]),
                action,
                after["latched"],
                *(columns[name] for name in FLAGS),
                [self._reasons[row] for row in out["report"]["active"].tolist()],
                self._physical(out["proposed"]),
                _named(self._margins, out["report"]["margins_after"]),
                drifted,
                strict=True,
            )
        ]
        return Texts(inputs, results, answers, memory, _kinds(out["report"]), drift)

    def _physical(self, shares: np.ndarray) -> list[bytes]:
        """Positions of actuators in physical units, as `answers.physical` has them."""
        low, high, x = self._low, self._high, shares.astype(np.float64)
        value = low + (x + 1.0) / 2.0 * (high - low)
        inside = (x >= -1.0) & (x <= 1.0)
        return _named(self._action, np.where(inside, np.clip(value, low, high), value))

    def _strange(self, obs: np.ndarray) -> list[list[str]]:
        strange = self._drift.strange(obs)
        if not strange.any():
            return [[] for _ in strange]
        found: list[list[str]] = [[] for _ in strange]
        for row, signal in np.argwhere(strange).tolist():
            found[row].append(self._drift.names[signal])
        return found


def texts(column: np.ndarray) -> list[bytes]:
    """Every row of an array (b,) or (b, k) as JSON that reads like `records.numbers` of it."""
    if column.dtype.kind == "f":
        if not np.isfinite(column).all():
            return [as_json(numbers(row)) for row in column]
        # In the digits of float64: those of float32 are read by way of float64, and rounded twice.
        column = column.astype(np.float64)
    whole = orjson.dumps(np.ascontiguousarray(column), option=orjson.OPT_SERIALIZE_NUMPY)
    if column.ndim == 1:
        return whole[1:-1].split(b",")
    return [b"[%b]" % row for row in whole[2:-2].split(b"],[")]


def _first(tree: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {n: _first(x, count) if isinstance(x, Mapping) else x[:count] for n, x in tree.items()}


def _template(names: Sequence[str]) -> bytes:
    """An object with a place for each value."""
    keys = [json.dumps(name).encode().replace(b"%", b"%%") for name in names]
    return b"{%b}" % b",".join(key + b":%b" for key in keys)


def _objects(template: bytes, columns: Any) -> list[bytes]:
    return [template % row for row in zip(*columns, strict=True)]


def _named(template: bytes, column: np.ndarray) -> list[bytes]:
    """Rows of numbers (b, k) as objects; null where one is not finite."""
    if not column.shape[1]:
        return [b"{}"] * len(column)
    rows = [tuple(row[1:-1].split(b",")) for row in texts(column)]
    if not np.isfinite(column).all():
        rows = [tuple(b"null" if x.startswith(b'"') else x for x in row) for row in rows]
    return [template % row for row in rows]


def _kinds(report: Mapping[str, np.ndarray]) -> list[str]:
    flags = zip(*(report[name].tolist() for name in _ORDER), strict=True)
    return [_ORDER[row.index(True)] if True in row else "policy" for row in flags]
