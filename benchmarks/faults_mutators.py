"""Ways to spoil a file: as bytes, as text, as nested values, as arrays; by a `random.Random`."""

import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

DEEP = "@deep@"  # stands for lists that are nested too deeply for a writer of JSON
# In the place of a number or of a name in a text.
TOKENS = (
    *("", "nan", "NaN", ".nan", "inf", "-inf", "Infinity", "-Infinity", ".inf", "1e400", "-1e400"),
    *("1e308", "-1e308", "1e30", "1e-320", "0", "-0.0", "-1", "-5", "1.5", "2147483648"),
    *("4294967296", "9223372036854775808", "-9223372036854775809", "1000000000", "9" * 400),
    *(
        "9" * 5000,
        "0x7f",
        "1_000",
        "1,5",
        "1 2 3",
        "null",
        "~",
        "true",
        "yes",
        "[]",
        "{}",
        "[",
        "}",
    ),
    *('"', "'", "&a", "*a", "!!python/object:os.system", "!!binary x", "|", "- -", "? a", "%"),
    *(
        "\x00",
        "\ufeff",
        "\u202e",
        "é",
        "💥",
        "\ud7ff",
        "x" * 3000,
        "a.b",
        "..",
        "/",
        "\\",
        "\t",
        "\r",
    ),
)
# In the place of a value of a JSON or YAML file.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -5, 2**31, 2**32, 2**53 + 1, 2**63, 10**12, 10**18, 10**400),
    *(0.5, -0.5, 1.5, 1e-320, 1e30, 1e308, -1e308, math.nan, math.inf, -math.inf),
    *("", " ", "x", "nan", "1e6", "1e400", "é💥", "\x00", "\u202e", "a\nb", "x" * 3000, "0" * 400),
    *([], [[]], [1, 2, 3], [None], ["a"], [math.nan], [[1, 2], [3]], list(range(2000)), DEEP),
    *(
        {},
        {"": 1},
        {"x": None},
        {"a": {"a": {"a": {}}}},
        {"1": [1]},
        {str(i): i for i in range(300)},
    ),
)


# Bytes -------------------------------------------------------------------------------------------


def spoil_bytes(rng: Random, data: bytes) -> bytes:
    """A few bytes changed, cut out, put in or doubled; or the file cut short."""
    if rng.random() < 0.02:
        return rng.choice([b"", b"\x00" * 64, b"\xff\xfe", b"\xef\xbb\xbf" + data, data * 3])
    spoiled = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        size = len(spoiled)
        at, length = rng.randrange(size + 1), rng.choice((1, 1, 2, 4, 8, 64, 512))
        kind = rng.randrange(7)
        if kind < 3 and at < size:
            spoiled[at] = rng.choice((spoiled[at] ^ (1 << rng.randrange(8)), rng.randrange(256)))
        elif kind == 3:
            del spoiled[at : at + length]
        elif kind == 4:
            spoiled[at:at] = spoiled[at : at + length]
        elif kind == 5:
            spoiled[at:at] = rng.randbytes(length)
        else:
            spoiled[at : at + length] = rng.choice((b"\xff", b"\x00")) * length
    return bytes(spoiled[: rng.randrange(len(spoiled) + 1)] if rng.random() < 0.1 else spoiled)


# Text --------------------------------------------------------------------------------------------

_WORD = re.compile(r"[-+]?[0-9][0-9.eE+-]*|[A-Za-z_]\w*")


def spoil_text(rng: Random, text: str, pattern: re.Pattern[str] = _WORD) -> str:
    """A few words or numbers replaced, lines dropped, doubled or exchanged."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        kind = rng.randrange(8)
        lines = text.split("\n")
        a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
        if kind < 5:
            found = list(pattern.finditer(text))
            if found:
                one, other = rng.choice(found), rng.choice(found)
                new = other[0] if rng.random() < 0.2 else rng.choice(TOKENS)
                text = text[: one.start()] + new + text[one.end() :]
            continue
        if kind == 5:
            del lines[a]
        elif kind == 6:
            lines.insert(b, lines[a])
        else:
            lines[a], lines[b] = lines[b], lines[a]
        text = "\n".join(lines)
    return text


# Nested values -----------------------------------------------------------------------------------


def spoil_tree(rng: Random, tree: Any) -> Any:
    """A copy with a few values replaced, dropped, renamed, moved or put in another type."""
    tree = _copy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            return rng.choice(VALUES)
        holder, key = rng.choice(places)
        kind = rng.randrange(10)
        if kind < 5:
            holder[key] = _copy(rng.choice(VALUES))
        elif kind == 5:
            del holder[key]
        elif kind == 6:
            holder[key] = rng.choice((str, repr, lambda x: [x], lambda x: {"a": x}))(holder[key])
        elif kind == 7:
            other, name = rng.choice(places)
            holder[key] = _copy(other[name])
        elif isinstance(holder, dict):
            name = rng.choice(("", "x", "no such key", f"{key}_", str(key).upper(), "é", "a.b"))
            holder[name] = holder.pop(key) if kind == 8 else holder[key]
        else:
            holder[key:key] = [_copy(holder[key])] * rng.choice((1, 2, 20))
    return tree if rng.random() > 0.01 else rng.choice(VALUES)


def _copy(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _copy(value) for key, value in tree.items()}
    return [_copy(value) for value in tree] if isinstance(tree, list) else tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (holder, key) of a nested value."""
    if not isinstance(tree, dict | list):
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key
        yield from _places(value)


def json_text(tree: Any) -> str:
    """JSON with what JSON has not: NaN, Infinity, and lists that are nested without end."""
    deep = "[" * 20_000 + "]" * 20_000
    return json.dumps(tree).replace(f'"{DEEP}"', deep)


def yaml_text(tree: Any) -> str:
    """The same as YAML, of which JSON is nearly a part."""
    text = json.dumps(tree).replace(f'"{DEEP}"', "[" * 400 + "]" * 400)
    return re.sub(r"-?\b(NaN|Infinity)\b", lambda m: ".nan" if m[0] == "NaN" else ".inf", text)


def spoil_document(rng: Random, tree: Any, write: Callable[[Any], str]) -> bytes:
    """A JSON or YAML file that was spoiled as values, as text, or as bytes."""
    how = rng.random()
    if how < 0.6:
        return write(spoil_tree(rng, tree)).encode()
    if how < 0.85:
        return spoil_text(rng, write(tree)).encode("utf-8", "surrogatepass")
    return spoil_bytes(rng, write(tree).encode())


# Arrays ------------------------------------------------------------------------------------------

_TYPES = ("f2", "f4", "f8", ">f8", "i1", "i8", "u8", "?", "U3", "S3", "c8", "M8[s]", "m8[s]", "V4")


def spoil_array(rng: Random, array: np.ndarray) -> np.ndarray:
    """An array of another type, shape or content."""
    kind = rng.randrange(9)
    if kind == 0:
        with np.errstate(all="ignore"):
            try:
                return array.astype(rng.choice((*_TYPES, "O")))
            except (TypeError, ValueError):
                return array.astype("U3")
    if kind == 1:
        return array[: rng.randrange(len(array) + 1)] if array.ndim else array[None]
    if kind == 2:
        return rng.choice(
            (array[..., None], array[None], array.T, array.ravel(), array.ravel()[:0])
        )
    if kind == 3:
        return np.asarray(rng.choice((0, 1.5, "text", None, math.nan, 2**70, [], [[]], [1, 2])))
    if kind == 4:
        return np.zeros((3, 0), array.dtype)
    if kind == 5:
        return np.zeros(3, [("a", "f4"), ("b", "i8")])
    if kind == 6:
        return np.asarray({"a": array}, object)
    if array.dtype.kind not in "fiu" or not array.size:
        return array
    array = array.astype(np.float64)
    worst = rng.choice((math.nan, math.inf, -math.inf, 1e300, -1e39, 0.0, 5.0, 0.5))
    array.reshape(-1)[rng.randrange(array.size)] = worst
    return array


def npz_bytes(arrays: Mapping[str, np.ndarray], compress: bool) -> bytes:
    """An npz file as numpy writes it, objects included."""
    file = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(file, **arrays)
    return file.getvalue()


def lying_npz(rng: Random, arrays: Mapping[str, np.ndarray]) -> bytes:
    """An npz file of which one member declares what it does not hold, or is no array at all."""
    lie = rng.choice(tuple(arrays))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.save(member, array)
            content = member.getvalue()
            if name == lie:
                content = _lie(rng, array)
            archive.writestr(f"{name}.npy", content)
            if name == lie and rng.random() < 0.2:  # twice, of which one is another
                archive.writestr(f"{name}.npz", content[:20])
    return file.getvalue()


def _lie(rng: Random, array: np.ndarray) -> bytes:
    shape = rng.choice(
        (
            "(10**9,)",
            "(1000000000, 8)",
            "(-1,)",
            "(0,)",
            "(3,",
            "(4611686018427387904, 4)",
            "()",
            "x",
        )
    )
    kind = rng.choice((array.dtype.str, "<f8", "|O", "|V1000000000", "<U1000000000", "nothing"))
    order = rng.choice(("False", "True", "None"))
    words = f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}"
    if rng.random() < 0.2:
        words = rng.choice(("{" * 3000, "__import__('os')", "", "[]", "{}", words + " " * 70000))
    header = words.encode().ljust(118) + b"\n"
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x09\x00"))
    length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little", signed=False) \
        if len(header) < 65536 else b"\xff\xff"  # fmt: skip
    body = array.tobytes() if array.dtype.kind != "O" else b""
    # A bomb: a megabyte of zeros is a kilobyte in the file.
    body = b"\x00" * 1_000_000 if rng.random() < 0.02 else body
    return b"\x93NUMPY" + version + length + header + body


def spoil_csv(rng: Random, rows: Sequence[Sequence[str]]) -> str:
    """A table with cells, rows or columns replaced, dropped or doubled."""
    rows = [list(row) for row in rows]
    for _ in range(rng.choice((1, 1, 2, 4))):
        r = rng.randrange(len(rows))
        c = rng.randrange(max(len(rows[r]), 1))
        kind = rng.randrange(9)
        if kind < 5 and c < len(rows[r]):
            rows[r][c] = rng.choice(TOKENS)
        elif kind == 5:
            rows[r][c : c + 1] = []
        elif kind == 6:
            rows.insert(rng.randrange(len(rows)), list(rows[r]))
        elif kind == 7 and len(rows) > 1:
            del rows[r]
        else:
            for row in rows:
                del row[c : c + 1]
    return rng.choice(("\n", "\n", "\n", "\r\n", "\r")).join(",".join(row) for row in rows)
