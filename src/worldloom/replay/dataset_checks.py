"""What is wrong with logged data, row by row. Nothing is repaired here.

Rows are counted from 0, as in the columns; where they came from a text file, messages name its line
too. Checks are vectorised: defects are kept as arrays of rows and listed one by one when asked for.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np

from worldloom.replay.dataset import Dataset, columns_of
from worldloom.replay.dataset_resample import is_uneven, usual_step

Columns = Mapping[str, np.ndarray]
REQUIRED = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
KINDS = {
    "shape": "a column has another shape than the others ask for",
    "not_finite": "a number is missing, NaN or infinite",
    "flag": "an end of episode is neither 0 nor 1",
    "action_range": "an action is outside of [-1, 1]",
    "out_of_range": "a signal is outside of its declared range",
    "time": "time does not go forward within an episode",
    "uneven": "a step takes more or less time than the others",
    "broken_link": "a next observation is not the observation of the next row",
    "duplicate": "a row repeats an earlier one in every column",
    "empty_episode": "an episode has no step",
}
# No learner can use rows with these; the others are for an engineer to judge.
FATAL = ("shape", "not_finite", "flag", "action_range")
OPTIONAL = ("cost", "log_prob", "time", "next_time")
LINK_TOLERANCE = 1e-5  # of the size of the numbers: a format may have rounded them
ACTION_TOLERANCE = 1e-6


class Range(Protocol):
    """A signal's name and the range it must lie in; a plant's `Signal` is one."""

    @property
    def name(self) -> str: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


@dataclass(frozen=True)
class Defect:
    """One thing that is wrong. `row` is None where it is the whole column's."""

    kind: str
    row: int | None
    column: str
    message: str


@dataclass(frozen=True)
class Finding:
    """Defects of one kind in one column: their rows (D,), and how to tell them.

    `text` may use {value} and {other}, which come from `values` (D,) and `others` (D,).
    """

    kind: str
    column: str
    rows: np.ndarray
    text: str
    values: np.ndarray | None = None
    others: np.ndarray | None = None

    def defects(self, lines: np.ndarray | None = None) -> Iterator[Defect]:
        numbers = {"value": self.values, "other": self.others}
        for i, row in enumerate(self.rows.tolist()):
            words = {name: f"{x[i]:.7g}" for name, x in numbers.items() if x is not None}
            at = f" (line {lines[row]})" if lines is not None and row < len(lines) else ""
            message = f"row {row}{at}: {self.text.format(**words)}"
            yield Defect(self.kind, row, self.column, message)


@dataclass(frozen=True)
class Report:
    """What a check found in so many rows; `sound` if nothing."""

    rows: int
    findings: tuple[Finding, ...] = ()
    found_before: tuple[Defect, ...] = ()  # while reading, or of whole columns
    lines: np.ndarray | None = field(default=None, repr=False)

    @property
    def sound(self) -> bool:
        return not self.counts

    @property
    def counts(self) -> dict[str, int]:
        """Defects of each kind that there are, in the order of `KINDS`."""
        counts = Counter(defect.kind for defect in self.found_before)
        for finding in self.findings:
            counts[finding.kind] += len(finding.rows)
        return {kind: counts[kind] for kind in KINDS if counts[kind]}

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def defects(self) -> Iterator[Defect]:
        """Every defect, those of one kind and column together, in the order of their rows."""
        yield from self.found_before
        for finding in self.findings:
            yield from finding.defects(self.lines)

    def first(self, of_each: int = 3) -> list[Defect]:
        """The first few of each kind and column."""
        shown = (islice(finding.defects(self.lines), of_each) for finding in self.findings)
        return [*self.found_before, *chain.from_iterable(shown)]

    def fatal(self) -> Defect | None:
        """The first defect that no learner can live with."""
        return next((defect for defect in self.first(1) if defect.kind in FATAL), None)


def check(
    data: Columns | Dataset,
    *,
    observation: Sequence[Range] = (),
    action: Sequence[Range] = (),
    lines: np.ndarray | None = None,
    found_before: Sequence[Defect] = (),
) -> Report:
    """Looks for every kind of defect in one pass.

    Args:
        data: columns of N rows named as in `Rows`, optionally with cost, log_prob, time (N,)
            and next_time (N,), the time that a row leads to.
        observation: names and ranges of the n signals; without them no range is checked.
        action: names of the m actuators; their range is [-1, 1].
        lines: the line of each row (N,) in the file it comes from.
        found_before: what the reader of a file has found already.
    """
    if isinstance(data, Dataset):
        found_before = [*found_before, *_empty_episodes(np.asarray(data.starts), data.size)]
        data = columns_of(data)
    declared = {"obs": observation, "action": action}
    early = [*found_before, *_shape_defects(data, declared)]
    if any(defect.kind == "shape" for defect in early):
        count = len(data["reward"]) if "reward" in data and data["reward"].ndim else 0
        return Report(count, (), tuple(early), lines)
    names = {name: _column_names(name, value, declared.get(name)) for name, value in data.items()}
    names["next_obs"] = [f"next {name}" for name in names["obs"]]
    findings = []
    for kind, column, bad, text, *values in chain(
        _bad_values(data, names, observation), _bad_order(data)
    ):
        rows = np.flatnonzero(bad)
        if len(rows):
            numbers = (None if x is None else x[rows] for x in values)
            findings.append(Finding(kind, column, rows, text, *numbers))
    findings += _broken_links(data, names["obs"])
    findings.sort(key=lambda finding: list(KINDS).index(finding.kind))
    return Report(len(data["obs"]), tuple(findings), tuple(early), lines)


def _column_names(
    key: str, values: np.ndarray, signals: Sequence[Range] | None = None
) -> list[str]:
    if signals:
        return [signal.name for signal in signals]
    return [key] if values.ndim == 1 else [f"{key}[{i}]" for i in range(values.shape[1])]


# Shapes ------------------------------------------------------------------------------------------


def _shape_defects(data: Columns, declared: Mapping[str, Sequence[Range]]) -> Iterator[Defect]:
    """What keeps columns from being a dataset at all, or one of the signals that are declared."""
    missing = [name for name in REQUIRED if name not in data]
    messages: dict[str, str | None]
    if missing:
        messages = {name: f"there is no column {name}" for name in missing}
    elif not data["obs"].ndim or not len(data["obs"]):
        messages = {"obs": "there are no rows"}
    else:
        messages = {name: _misshapen(name, data) for name in (*REQUIRED, *OPTIONAL) if name in data}
    if not any(messages.values()):
        if data["obs"].shape != data["next_obs"].shape:
            shapes = f"{data['next_obs'].shape}, obs has {data['obs'].shape}"
            messages["next_obs"] = f"next_obs has shape {shapes}"
        for name, signals in declared.items():
            width, what = data[name].shape[1], "observation" if name == "obs" else name
            if signals and len(signals) != width:
                names = ", ".join(signal.name for signal in signals)
                messages[name] = f"{width} {what} columns for {len(signals)} signals: {names}"
    for name, message in messages.items():
        if message is not None:
            yield Defect("shape", None, name, message)


def _misshapen(name: str, data: Columns) -> str | None:
    value, rows = data[name], len(data["obs"])
    axes = 2 if name in ("obs", "next_obs", "action", "cost") else 1
    if value.dtype.kind not in "bifu":
        return f"{name} holds {value.dtype}, not numbers"
    if value.ndim != axes:
        shape = "(rows, columns)" if axes == 2 else "(rows,)"
        return f"{name} has shape {value.shape}; it must be {shape}"
    if axes == 2 and not value.shape[1] and name != "cost":
        return f"{name} has no columns"
    return None if len(value) == rows else f"{name} has {len(value)} rows, obs has {rows}"


def _empty_episodes(starts: np.ndarray, rows: int) -> list[Defect]:
    """Episodes that begin where the next one does, or where there are no rows."""
    following = np.append(starts[1:], rows)
    return [
        Defect("empty_episode", int(starts[i]), "starts", f"episode {i} has no step")
        for i in np.flatnonzero(following <= starts)
    ]


# Rows --------------------------------------------------------------------------------------------

# Kind, column, which rows (N,) are bad, and what to say of the values (N,) that follow.
Suspect = tuple[Any, ...]


def _bad_values(
    data: Columns, names: Mapping[str, list[str]], signals: Sequence[Range]
) -> Iterator[Suspect]:
    for key in ("obs", "action", "next_obs", "reward", "cost", "log_prob", "time"):
        if key not in data:
            continue
        values = data[key].reshape(len(data[key]), -1)
        # Too large for float32 is as good as infinite: learners have no other.
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(values if key == "time" else values.astype(np.float32, copy=False))
        for i, name in enumerate(names[key]):
            yield "not_finite", name, bad[:, i], f"{name} is {{value}}", values[:, i]
    for key in ("terminated", "truncated"):
        bad = (data[key] != 0) & (data[key] != 1)
        yield "flag", key, bad, f"{key} is {{value}}, not 0 or 1", data[key]
    for name, value in zip(names["action"], data["action"].T, strict=True):
        size = np.abs(value, dtype=np.float64)  # -128 is its own size as an int8
        outside = np.isfinite(value) & (size > 1.0 + ACTION_TOLERANCE)
        yield "action_range", name, outside, f"{name} is {{value}}, outside of [-1, 1]", value
    # In every observation, and in the next ones that no row shows again.
    unseen = np.append(~_inside(data), True)
    for i, signal in enumerate(signals):
        for key, looked_at in (("obs", True), ("next_obs", unseen)):
            value, name = data[key][:, i], names[key][i]
            with np.errstate(invalid="ignore"):
                outside = (value < signal.low) | (value > signal.high)
            text = f"{name} is {{value}}, outside of [{signal.low:g}, {signal.high:g}]"
            yield "out_of_range", name, outside & np.isfinite(value) & looked_at, text, value


def _bad_order(data: Columns) -> Iterator[Suspect]:
    keys = ("obs", "action", "reward", "next_obs")
    with np.errstate(over="ignore"):
        parts: list[np.ndarray] = [np.ascontiguousarray(data[key], np.float32) for key in keys]
    count = len(parts[0])
    if "time" in data:
        time = data["time"]
        back = np.append(False, _inside(data) & (time[1:] <= time[:-1]))
        yield "time", "time", back, "time is {value}, after {other}", time, np.roll(time, 1)
        steps = _steps(data)
        usual = usual_step(steps)
        text = (
            f"a step of {{value}} s, where others take {usual:.7g} s; `data convert --resample` "
            "mends it"
        )
        yield "uneven", "time", is_uneven(steps, usual) & ~back, text, steps
        # A plant at rest repeats itself, but not its clock.
        parts.append(np.ascontiguousarray(time, np.float64))
    # Rows that are, bit for bit, an earlier row.
    words = np.concatenate([part.reshape(count, -1).view(np.uint32) for part in parts], axis=1)
    records = np.ascontiguousarray(words).view(f"V{4 * words.shape[1]}").ravel()
    _, first, inverse = np.unique(records, return_index=True, return_inverse=True)
    earlier = first[inverse]
    again = earlier != np.arange(count)
    yield "duplicate", "row", again, "the same as row {other}", None, earlier


def _steps(data: Columns) -> np.ndarray:
    """Seconds (N,) that each row takes; NaN where nobody knows, in the last of an episode."""
    time = data["time"].astype(np.float64)
    after = data.get("next_time")
    if after is None:
        after = np.append(np.where(_inside(data), time[1:], np.nan), np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        return after.astype(np.float64) - time


# Links -------------------------------------------------------------------------------------------


def _inside(data: Columns) -> np.ndarray:
    """bool (N - 1,): whether a row is followed by one of the same episode."""
    return ~(data["terminated"].astype(bool) | data["truncated"].astype(bool))[:-1]


def _unlinked(data: Columns) -> np.ndarray:
    """The rows whose next observation is not, bit for bit, that of the row after it."""
    return np.flatnonzero((data["obs"][1:] != data["next_obs"][:-1]).any(1) & _inside(data))


def lost_link(data: Columns) -> int | None:
    """The first row whose next observation formats with one for both rows would lose."""
    return next(iter(_unlinked(data).tolist()), None)


def _broken_links(data: Columns, names: list[str]) -> Iterator[Finding]:
    # Most links are exact: only rows that differ at all are looked at more closely.
    near = _unlinked(data)
    after, before = data["obs"][near + 1], data["next_obs"][near]
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.subtract(after, before, dtype=np.float64))
        far = gap > LINK_TOLERANCE * (1.0 + np.abs(after))
    for i in np.flatnonzero(far.any(0)):
        at = np.flatnonzero(far[:, i])
        text = f"next {names[i]} is {{value}}, but the next row has {{other}}"
        yield Finding("broken_link", names[i], near[at], text, before[at, i], after[at, i])
