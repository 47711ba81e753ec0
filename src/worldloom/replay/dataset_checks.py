"""What is wrong with logged data, row by row. Nothing is repaired here.

Rows are counted from 0, as in the columns; where they came from a text file, messages name its line
too. Checks are vectorised: defects are kept as arrays of rows and told one by one when asked for.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np

from worldloom.replay.dataset import Dataset

Columns = Mapping[str, np.ndarray]
REQUIRED = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
KINDS = {
    "shape": "a column has another shape than the others ask for",
    "not_finite": "a number is missing, NaN or infinite",
    "flag": "an end of episode is neither 0 nor 1",
    "action_range": "an action is outside of [-1, 1]",
    "out_of_range": "a signal is outside of its declared range",
    "time": "time does not go forward within an episode",
    "broken_link": "a next observation is not the observation of the next row",
    "duplicate": "a row repeats an earlier one in every column",
    "empty_episode": "an episode has no step",
}
# No learner can use rows with these; the others are for an engineer to judge.
FATAL = ("shape", "not_finite", "flag", "action_range")
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
        for i, row in enumerate(self.rows.tolist()):
            words = {
                name: f"{column[i]:.7g}"
                for name, column in (("value", self.values), ("other", self.others))
                if column is not None
            }
            at = f" (line {lines[row]})" if lines is not None and row < len(lines) else ""
            said = self.text.format(**words)
            yield Defect(self.kind, row, self.column, f"row {row}{at}: {said}")


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
        shown = list(self.found_before)
        for finding in self.findings:
            shown += islice(finding.defects(self.lines), of_each)
        return shown

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
        data: columns of N rows named as in `Rows`, optionally with cost, log_prob and time (N,).
        observation: names and ranges of the n signals; without them no range is checked.
        action: names of the m actuators; their range is [-1, 1].
        lines: the line of each row (N,) in the file it comes from.
        found_before: what the reader of a file has found already.
    """
    if isinstance(data, Dataset):
        found_before = [*found_before, *_empty_episodes(np.asarray(data.starts), data.size)]
        data = columns_of(data)
    early = [*found_before, *shape_defects(data)]
    if any(defect.kind == "shape" for defect in early):
        count = len(data["reward"]) if "reward" in data and data["reward"].ndim else 0
        return Report(count, (), tuple(early), lines)
    obs, act = data["obs"], data["action"]
    for column, signals in (("obs", observation), ("action", action)):
        width = data[column].shape[1]
        if signals and len(signals) != width:
            names = ", ".join(signal.name for signal in signals)
            what = "observation" if column == "obs" else column
            message = f"{width} {what} columns for {len(signals)} signals: {names}"
            return Report(len(obs), (), (*early, Defect("shape", None, column, message)), lines)
    obs_names, action_names = (
        column_names("obs", obs, observation),
        column_names("action", act, action),
    )
    findings = [
        *_not_finite(data, obs_names, action_names),
        *_flags(data),
        *_action_range(act, action_names),
        *_out_of_range(data, obs_names, observation),
        *_time(data),
        *_broken_links(data, obs_names),
        *_duplicates(data),
    ]
    return Report(len(obs), tuple(findings), tuple(early), lines)


def columns_of(dataset: Dataset) -> dict[str, np.ndarray]:
    """The columns (N, ...) of a dataset in host memory."""
    columns = vars(dataset.rows) | {"cost": dataset.cost, "log_prob": dataset.log_prob}
    return {name: np.asarray(value) for name, value in columns.items() if value is not None}


def column_names(kind: str, values: np.ndarray, signals: Sequence[Range] = ()) -> list[str]:
    """What people call the columns of obs (N, n) or action (N, m)."""
    if signals:
        return [signal.name for signal in signals]
    return [f"{kind}[{i}]" for i in range(values.shape[1])]


# Shapes ------------------------------------------------------------------------------------------


def shape_defects(data: Columns) -> list[Defect]:
    """What keeps columns from being a dataset at all."""
    missing = [name for name in REQUIRED if name not in data]
    if missing:
        return [Defect("shape", None, name, f"there is no column {name}") for name in missing]
    rows = len(data["obs"]) if data["obs"].ndim else 0
    if rows == 0:
        return [Defect("shape", None, "obs", "there are no rows")]
    matrices = ("obs", "next_obs", "action", "cost")
    messages = {}
    for name in (n for n in (*REQUIRED, "cost", "log_prob", "time") if n in data):
        value, shape = data[name], "(rows, columns)" if name in matrices else "(rows,)"
        if value.dtype.kind not in "bifu":
            messages[name] = f"{name} holds {value.dtype}, not numbers"
        elif value.ndim != 1 + (name in matrices):
            messages[name] = f"{name} has shape {value.shape}; it must be {shape}"
        elif len(value) != rows:
            messages[name] = f"{name} has {len(value)} rows, obs has {rows}"
    if not messages and data["obs"].shape != data["next_obs"].shape:
        shapes = f"{data['next_obs'].shape}, obs has {data['obs'].shape}"
        messages["next_obs"] = f"next_obs has shape {shapes}"
    return [Defect("shape", None, name, message) for name, message in messages.items()]


def _empty_episodes(starts: np.ndarray, rows: int) -> list[Defect]:
    """Episodes that begin where the next one does, or where there are no rows."""
    following = np.append(starts[1:], rows)
    return [
        Defect("empty_episode", int(starts[i]), "starts", f"episode {i} has no step")
        for i in np.flatnonzero(following <= starts)
    ]


# Values ------------------------------------------------------------------------------------------


def _not_finite(data: Columns, obs_names: list[str], action_names: list[str]) -> Iterator[Finding]:
    named = {
        "obs": obs_names,
        "action": action_names,
        "next_obs": [f"next {name}" for name in obs_names],
    }
    for key in ("obs", "action", "next_obs", "reward", "cost", "log_prob", "time"):
        if key not in data:
            continue
        value = data[key]
        if key != "time":  # too large for float32 is as good as infinite: learners have no other
            with np.errstate(over="ignore"):
                value = value.astype(np.float32, copy=False)
        bad = ~np.isfinite(value)
        if not bad.any():
            continue
        table = bad.reshape(len(bad), -1)
        plain = [key] if bad.ndim == 1 else [f"{key}[{i}]" for i in range(bad.shape[1])]
        names = named.get(key, plain)
        values = data[key].reshape(len(bad), -1)
        for i in np.flatnonzero(table.any(0)):
            rows = np.flatnonzero(table[:, i])
            yield Finding("not_finite", names[i], rows, f"{names[i]} is {{value}}", values[rows, i])


def _flags(data: Columns) -> Iterator[Finding]:
    for key in ("terminated", "truncated"):
        value = data[key]
        rows = np.flatnonzero((value != 0) & (value != 1))
        if len(rows):
            yield Finding("flag", key, rows, f"{key} is {{value}}, not 0 or 1", value[rows])


def _action_range(act: np.ndarray, names: list[str]) -> Iterator[Finding]:
    outside = np.isfinite(act) & (np.abs(act) > 1.0 + ACTION_TOLERANCE)
    for i in np.flatnonzero(outside.any(0)):
        rows = np.flatnonzero(outside[:, i])
        text = f"{names[i]} is {{value}}, outside of [-1, 1]"
        yield Finding("action_range", names[i], rows, text, act[rows, i])


def _out_of_range(data: Columns, names: list[str], signals: Sequence[Range]) -> Iterator[Finding]:
    """In every observation, and in the next ones that no row shows again."""
    unseen = np.append(~_inside(data), True)
    every = np.ones(len(unseen), bool)
    for i, signal in enumerate(signals):
        for prefix, key, looked_at in (("", "obs", every), ("next ", "next_obs", unseen)):
            value = data[key][:, i]
            with np.errstate(invalid="ignore"):
                outside = (value < signal.low) | (value > signal.high)
            rows = np.flatnonzero(outside & np.isfinite(value) & looked_at)
            if len(rows):
                name = prefix + names[i]
                text = f"{name} is {{value}}, outside of [{signal.low:g}, {signal.high:g}]"
                yield Finding("out_of_range", name, rows, text, value[rows])


# Order -------------------------------------------------------------------------------------------


def _inside(data: Columns) -> np.ndarray:
    """bool (N - 1,): whether a row is followed by one of the same episode."""
    return ~(data["terminated"].astype(bool) | data["truncated"].astype(bool))[:-1]


def lost_link(data: Columns) -> int | None:
    """The first row whose next observation is not, bit for bit, that of the row after it.

    Formats with one observation for both would lose it.
    """
    far = (data["obs"][1:] != data["next_obs"][:-1]).any(1) & _inside(data)
    rows = np.flatnonzero(far)
    return int(rows[0]) if len(rows) else None


def _time(data: Columns) -> Iterator[Finding]:
    if "time" not in data:
        return
    time = data["time"]
    back = _inside(data) & (time[1:] <= time[:-1])
    rows = np.flatnonzero(back) + 1
    if len(rows):
        text = "time is {value}, after {other}"
        yield Finding("time", "time", rows, text, time[rows], time[rows - 1])


def _broken_links(data: Columns, names: list[str]) -> Iterator[Finding]:
    # Most links are exact: only rows that differ at all are looked at more closely.
    near = np.flatnonzero((data["obs"][1:] != data["next_obs"][:-1]).any(1) & _inside(data))
    after, before = data["obs"][near + 1], data["next_obs"][near]
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.subtract(after, before, dtype=np.float64))
        far = gap > LINK_TOLERANCE * (1.0 + np.abs(after))
    for i in np.flatnonzero(far.any(0)):
        at = np.flatnonzero(far[:, i])
        text = f"next {names[i]} is {{value}}, but the next row has {{other}}"
        yield Finding("broken_link", names[i], near[at], text, before[at, i], after[at, i])


def _duplicates(data: Columns) -> Iterator[Finding]:
    """Rows that are, bit for bit, an earlier row."""
    keys = ("obs", "action", "reward", "next_obs")
    with np.errstate(over="ignore"):
        parts: list[np.ndarray] = [np.ascontiguousarray(data[key], np.float32) for key in keys]
    if "time" in data:  # a plant at rest repeats itself, but not its clock
        parts.append(np.ascontiguousarray(data["time"], np.float64))
    count = len(parts[0])
    words = np.concatenate([part.reshape(count, -1).view(np.uint32) for part in parts], axis=1)
    records = np.ascontiguousarray(words).view(f"V{4 * words.shape[1]}").ravel()
    _, first, inverse = np.unique(records, return_index=True, return_inverse=True)
    earlier = first[inverse]
    rows = np.flatnonzero(earlier != np.arange(count))
    if len(rows):
        yield Finding("duplicate", "row", rows, "the same as row {other}", None, earlier[rows])
