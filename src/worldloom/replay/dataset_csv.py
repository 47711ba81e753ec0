"""Datasets from CSV, as plant historians export it: one line for each sample.

A line holds what was measured, and what was done from then until the next line. So a line and the
one after it in the same episode make one row of a dataset, and the last line of an episode only
says where the step before it led. Where `terminated` is 1 the plant has ended: the row that leads
there is terminated, and none begins there. Every other last row is truncated: the log stops, the
plant does not.
"""

import csv
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from worldloom.core.names import one_line, shown, suggest
from worldloom.replay.dataset_checks import Defect
from worldloom.replay.dataset_files import Logged
from worldloom.replay.dataset_mapping import ColumnMapping
from worldloom.replay.dataset_resample import Method, Samples, resample

# reward(obs (N, n), action (N, m), next_obs (N, n)) -> (N,), where no column holds it.
RewardFunction = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Table(NamedTuple):
    """The samples (L,) of a file: numbers by column, NaN where one is missing, in its order.

    time: seconds. episode: whatever changes with the episode. lines: where each sample stands.
    """

    numbers: dict[str, np.ndarray]
    time: np.ndarray | None
    episode: np.ndarray | None
    lines: np.ndarray


def read_csv(
    path: str | Path, mapping: ColumnMapping, reward: RewardFunction | None = None, **options: Any
) -> Logged:
    """A CSV file's rows; a ValueError that names line and column if they cannot be read.

    options: those of `rows_of`.
    """
    path = Path(path)
    texts, lines = _cells(path, mapping)
    numbers = {
        name: _numbers(path, name, texts[name], lines, mapping) for name in mapping.number_columns
    }
    time = numbers.get(mapping.time or "")
    if mapping.time is not None and time is None:
        time = read_seconds(path, mapping, texts[mapping.time], lines)
    episode = np.asarray(texts[mapping.episode]) if mapping.episode else None
    return rows_of(path, mapping, Table(numbers, time, episode, lines), reward, **options)


def rows_of(
    path: Path,
    mapping: ColumnMapping,
    table: Table,
    reward: RewardFunction | None = None,
    *,
    seconds: float | None = None,
    method: Method = "linear",
    cut_defects: bool = False,
) -> Logged:
    """The rows that a file's samples make.

    reward: how to compute it where the mapping names no column; actions are in [-1, 1].
    seconds: resample it, so that rows are so far apart; see `resample`. Actions, rewards and costs
    are held, so that rewards must be of a time and not of a step: write them as rates.
    cut_defects: leave out samples in which a number is missing, and begin a new episode after them
    and where time goes back.
    """
    if mapping.reward is None and reward is None:
        raise ValueError(
            f"{path}: the mapping names no reward; add its column, or give a function `reward`"
        )
    numbers, time, _, lines = table
    begins = _begins(mapping, table)
    provenance = [("file", path.name)]
    if cut_defects:
        known = np.all([np.isfinite(column) for column in numbers.values()], axis=0)
        if time is not None:
            known &= np.isfinite(time)
            with np.errstate(invalid="ignore"):
                begins = begins | np.append(False, np.diff(time) <= 0.0)
        if not known.any():
            raise ValueError(f"{path}: no line has a number in every column that is named")
        if not known.all():
            # What follows a gap is another episode.
            part = np.cumsum(begins | ~known)[known]
            begins = np.append(True, part[1:] != part[:-1])
            numbers = {name: column[known] for name, column in numbers.items()}
            lines, time = lines[known], None if time is None else time[known]
            provenance.append(("missing", f"{int((~known).sum())} samples cut out"))
    if seconds is not None:
        if time is None:
            raise ValueError(f"{path}: the mapping names no time, by which it could be resampled")
        held = {s.column for s in mapping.action} | {*mapping.cost, *filter(None, [mapping.reward])}
        flags = frozenset(filter(None, [mapping.terminated]))
        logged = Samples(numbers, time, begins, lines)
        numbers, time, begins, lines = resample(
            path, logged, seconds, method, frozenset(held), flags
        )
        provenance.append(("resampled", f"every {seconds:g} s, {method}"))
    over = numbers[mapping.terminated] == 1 if mapping.terminated else np.zeros(len(lines), bool)
    # A sample leads to the next one if that is of the same episode and the plant had not ended.
    at = np.flatnonzero(~begins[1:] & ~over[:-1])
    low, high = (np.asarray([getattr(s, end) for s in mapping.action]) for end in ("low", "high"))
    with np.errstate(over="ignore", invalid="ignore"):  # the check tells of what is not finite
        obs, physical = (
            np.stack([numbers[s.column] * s.scale + s.offset for s in signals], 1)
            for signals in (mapping.observation, mapping.action)
        )
        act = 2.0 * (physical - low) / (high - low) - 1.0
    terminated = over[at + 1]
    last = np.append(at[1:] != at[:-1] + 1, True) if len(at) else np.zeros(0, bool)
    # A flag that is neither 0 nor 1 is passed on, for the check to tell.
    flag = numbers[mapping.terminated][at + 1] if mapping.terminated else terminated
    columns = {
        "obs": obs[at],
        "action": act[at],
        "next_obs": obs[at + 1],
        "terminated": flag,
        "truncated": last & ~terminated,
    }
    if mapping.reward is None:
        assert reward is not None
        columns["reward"] = np.asarray(reward(obs[at], act[at], obs[at + 1]))
    else:
        columns["reward"] = numbers[mapping.reward][at + (mapping.reward_at == "next")]
    if mapping.cost:
        columns["cost"] = np.stack([numbers[name][at] for name in mapping.cost], 1)
    if time is not None:
        columns |= {"time": time[at], "next_time": time[at + 1]}
    units = ", ".join(f"{s.name} [{s.unit}]" for s in (*mapping.observation, *mapping.action))
    return Logged(
        path,
        columns,
        name=mapping.name or path.stem,
        provenance=(*provenance, ("signals", units)),
        observation=mapping.observation,
        action=mapping.action,
        lines=lines[at],
        defects=tuple(_defects(begins, over, time, lines, at, last)),
    )


# Reading -----------------------------------------------------------------------------------------


def _cells(path: Path, mapping: ColumnMapping) -> tuple[dict[str, list[str]], np.ndarray]:
    """The texts of each column that is mapped, and the line of each sample."""
    head, rows, lines = csv_rows(path, mapping.delimiter)
    if not any(head):
        raise ValueError(f"{path}: its first line is empty, and should name the columns")
    for name in mapping.columns:
        if name not in head:
            raise ValueError(f"{path}: there is no column {shown(name)}; {suggest(name, head)}")
        if head.count(name) > 1:
            raise ValueError(f"{path}: {head.count(name)} columns are named {name!r}; rename them")
    if not rows:
        raise ValueError(f"{path}: there are no rows below the names of the columns")
    at = {name: head.index(name) for name in mapping.columns}
    return {name: [row[i].strip() for row in rows] for name, i in at.items()}, np.asarray(lines)


def csv_rows(path: Path, delimiter: str) -> tuple[list[str], list[list[str]], list[int]]:
    """The names of a CSV file's columns, its rows of texts, and the line of each."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark first
            reader = csv.reader(file, delimiter=delimiter)
            head = [name.strip() for name in next(reader, [])]
            for row in reader:
                if not row:
                    continue
                if len(row) != len(head):
                    raise ValueError(
                        f"{path}, line {reader.line_num}: {len(row)} cells for {len(head)} columns;"
                        f" is {delimiter!r} the delimiter?"
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except (UnicodeDecodeError, csv.Error, TypeError) as error:  # the last: no such delimiter
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from None
    return head, rows, lines


def _numbers(
    path: Path, name: str, texts: list[str], lines: np.ndarray, mapping: ColumnMapping
) -> np.ndarray:
    """A column as float64 (L,), NaN where a cell is empty or says that it is missing."""
    nothing = {"", *mapping.missing}
    plain = ["nan" if text in nothing else text for text in texts]
    if mapping.decimal == ",":
        plain = [text.replace(",", ".") for text in plain]
    try:
        return np.asarray(plain, np.float64)
    except ValueError:
        for text, line in zip(plain, lines, strict=True):
            try:
                float(text)
            except ValueError:
                raise ValueError(
                    f"{path}, line {line}, column {one_line(name, 60)}: {shown(text)} is not a "
                    "number; if it stands "
                    "for a missing one, list it under `missing` in the mapping"
                ) from None
        raise ValueError(f"{path}, column {one_line(name, 60)}: a cell is not a number") from None


def read_seconds(
    path: Path, mapping: ColumnMapping, texts: list[str], lines: np.ndarray
) -> np.ndarray:
    """Dates and times as seconds (L,); those without a zone are taken for UTC."""
    seconds = np.full(len(texts), np.nan)
    written = mapping.time_format
    for i, text in enumerate(texts):
        if not text or text in mapping.missing:
            continue
        try:
            iso = written == "iso"
            moment = datetime.fromisoformat(text) if iso else datetime.strptime(text, written)
        except (ValueError, re.error, OverflowError):  # strptime turns its format into a pattern
            raise ValueError(
                f"{path}, line {lines[i]}, column {one_line(mapping.time, 60)}: {shown(text)} is "
                f"not a time of the format {shown(written)}"
            ) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds[i] = moment.timestamp()
    return seconds


def _begins(mapping: ColumnMapping, table: Table) -> np.ndarray:
    """bool (L,): where an episode begins."""
    begins = np.zeros(len(table.lines), bool)
    begins[0] = True
    if table.episode is not None:
        begins[1:] |= table.episode[1:] != table.episode[:-1]
    if mapping.gap is not None and table.time is not None:
        with np.errstate(invalid="ignore"):
            begins[1:] |= np.diff(table.time) > mapping.gap
    return begins


def _defects(
    begins: np.ndarray,
    over: np.ndarray,
    time: np.ndarray | None,
    lines: np.ndarray,
    at: np.ndarray,
    last: np.ndarray,
) -> Iterator[Defect]:
    """What no row shows a check: episodes of one sample, and a time that goes back at an end.

    at (N,): the samples that are rows; last (N,): which of these end an episode. A `row` of an
    episode without a step is the one that would have come next.
    """
    alone = begins & np.append(begins[1:], True) & ~over  # a plant at a stand is no episode
    for i in np.flatnonzero(alone):
        text = f"line {lines[i]}: an episode of one sample has no step"
        yield Defect("empty_episode", int(np.searchsorted(at, i)), "episode", text)
    if time is None:
        return
    for row in np.flatnonzero(last):
        i = at[row] + 1
        if time[i] <= time[i - 1]:
            text = f"row {row} (line {lines[i]}): time is {time[i]:.7g}, after {time[i - 1]:.7g}"
            yield Defect("time", int(row), "time", text)
