"""Records of an audit log: one JSON object a line, each with the hash of the one before.

    {"seq": 17, "until": 18, "prev": "<hash of 16>", "kind": "act", ..., "hash": "<sha256>"}

Records that were written together end at number `until`, so that a torn group shows. A record's
hash is the sha256 of its line without `,"hash":"..."}`: it can be checked without a parser. Kinds:

    start      a server begins: the policy's digest, batch sizes, versions, signals with units
    segment    a file begins: the last start, and each plant's last record, whose memory goes on
    act        the filter answered: plant, observation, memory before and after, key, batch, actions
    unused     a row that was computed with others but had been answered by an emergency action
    emergency  the action that the memory held ready was answered: out of time, or a failure
    override   somebody set or cleared an override
    reset      somebody lifted a latched stop, or said where the actuators are
    shelve     somebody silenced an alarm of a plant for so many seconds
    resume     records can be written again: why they could not be
    stop       a server ended in good order

Arrays are lists of numbers that give the same float32 when they are read; what is not finite is
"nan", "inf" or "-inf".
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

FIRST = "0" * 64  # stands for the hash of the record before the first
MOVES = ("act", "emergency", "override", "reset")  # kinds that change a plant's memory
PLANT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # a plant's id: never in need of escapes

DTYPES = {
    "previous": np.float32,
    "fallback": np.float32,
    "override": np.float32,
    "overriding": np.bool_,
    "emergencies": np.int32,
    "latched": np.bool_,
    "step": np.int32,
    "estimate": np.float32,
}
OPTIONAL = ("estimate",)  # of filters whose model has a state of its own

_HEAD = re.compile(
    rb'\{"seq":(\d+),"until":(\d+),"prev":"([0-9a-f]{64})","kind":"([a-z]+)"'
    rb'(?:,"plant":"(' + PLANT.encode() + rb')")?'
)
_TAIL = re.compile(rb',"hash":"([0-9a-f]{64})"\}\n')
# Made once: `json.dumps` makes one anew for every call that is not of its usual kind.
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_TAIL_SIZE = len(b',"hash":""}\n') + 64


class Line(NamedTuple):
    """What a record's line says about itself."""

    seq: int
    until: int
    prev: str
    kind: str
    plant: str | None
    hash: str


class Encoded(NamedTuple):
    """The content of a record of a plant as JSON, whose first field is the plant's id."""

    plant: str
    text: bytes


def encode(
    seq: int,
    until: int,
    prev: str,
    kind: str,
    content: Mapping[str, Any] | Encoded,
    more: bytes = b"",
) -> tuple[bytes, str]:
    """A record as a line, and its hash. A plant's id must come first in the content.

    more: fields that are JSON already, each with a comma before it.
    """
    text = content.text if isinstance(content, Encoded) else as_json(content)
    head = f'{{"seq":{seq},"until":{until},"prev":"{prev}","kind":"{kind}"'.encode()
    body = b"%b%b%b%b" % (head, b"," if len(text) > 2 else b"", text[1:-1], more)
    digest = hashlib.sha256(body).hexdigest()
    return b'%b,"hash":"%b"}\n' % (body, digest.encode()), digest


def as_json(value: Any) -> bytes:
    """A value as JSON; one that is not finite has to be named (`numbers`)."""
    return _JSON.encode(value).encode()


def as_line(record: Mapping[str, Any]) -> bytes:
    """A record as the line that it was read from."""
    return as_json(record) + b"\n"


def encode_snapshot(
    seq: int, prev: str, content: Mapping[str, Any], start: bytes, latest: Mapping[str, bytes]
) -> tuple[bytes, str]:
    """A record of kind segment, from the lines of the last start and of the plants' last changes.

    They go in as they are: to parse and to write those of many plants would keep answers waiting.
    """
    plants = b",".join(b'"%b":%b' % (name.encode(), line[:-1]) for name, line in latest.items())
    more = b',"start":%b,"plants":{%b}' % (start[:-1], plants)
    return encode(seq, seq, prev, "segment", content, more)


def check_line(line: bytes) -> Line | None:
    """What a whole line says, if its hash is that of its content; else None."""
    head = _HEAD.match(line)
    tail = _TAIL.fullmatch(line, max(len(line) - _TAIL_SIZE, 0))
    if head is None or tail is None:
        return None
    digest = tail[1].decode()
    if hashlib.sha256(line[:-_TAIL_SIZE]).hexdigest() != digest:
        return None
    plant = None if head[5] is None else head[5].decode()
    return Line(int(head[1]), int(head[2]), head[3].decode(), head[4].decode(), plant, digest)


def numbers(array: Any) -> Any:
    """An array as numbers and lists that JSON can hold, which `array` turns into the same bits."""
    array = np.asarray(array)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return _named(array.tolist())
    return array.tolist()


def _named(value: Any) -> Any:
    if isinstance(value, list):
        return [_named(x) for x in value]
    if value != value:
        return "nan"
    return value if abs(value) != float("inf") else ("inf" if value > 0 else "-inf")


def array(value: Any, dtype: Any = np.float32) -> np.ndarray:
    """The array that `numbers` wrote; a ValueError where it is none."""
    try:
        if np.dtype(dtype).kind == "f":
            return np.asarray(value, np.float64).astype(dtype)
        return np.asarray(value, dtype)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{value!r} is not an array of numbers: {error}") from None


def memory_numbers(memory: Mapping[str, Any]) -> dict[str, Any]:
    """A memory, of one plant, as JSON can hold it."""
    return {name: numbers(memory[name]) for name in memory_names(memory)}


def memory_array(content: Mapping[str, Any]) -> dict[str, Any]:
    """The memory that `memory_numbers` wrote."""
    return {name: array(content[name], DTYPES[name]) for name in memory_names(content)}


def memory_names(memory: Mapping[str, Any]) -> list[str]:
    """The names of what a memory has or must have, in the order of records."""
    return [name for name in DTYPES if name in memory or name not in OPTIONAL]


def same_bits(actual: Any, expected: Any) -> bool:
    """Whether two arrays are the same bit by bit; one NaN is as good as another."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if actual.dtype != np.float32:
        return bool(np.array_equal(actual, expected))
    equal = actual.view(np.uint32) == expected.view(np.uint32)
    return bool((equal | (np.isnan(actual) & np.isnan(expected))).all())
