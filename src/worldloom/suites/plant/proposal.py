"""A description of a plant, proposed from the columns of a file that nobody prepared.

Everything that is not in the file itself is marked `# guess`, and what nobody can guess (what is
worth having, what must hold) is left for whoever knows the plant.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from worldloom.core.names import listed, suggest
from worldloom.replay.dataset_csv import csv_rows, read_seconds
from worldloom.replay.dataset_mapping import ColumnMapping, SignalColumn
from worldloom.replay.dataset_resample import is_uneven, usual_step
from worldloom.safety.units import parse_unit
from worldloom.suites.plant.expression import FUNCTIONS
from worldloom.suites.plant.logs import UNEVEN
from worldloom.suites.plant.suite import TABLES

FORMATS = ("iso", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%Y/%m/%d %H:%M:%S",
           "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M")  # fmt: skip
PAUSE = 5.0  # usual steps, beyond which a pause begins a new episode
USUAL = (0.001, 0.999)  # quantiles that a signal's range is proposed from
STILL = 0.6  # of its steps, in which an actuator that is moved in steps does not move
WORDS = 0.05  # of a column, that may be words for missing numbers
LONGEST = 1000  # steps of a proposed episode
_UNIT = re.compile(r"^(.*?)\s*[\[(]([^\[\]()]+)[\])]\s*$")  # of "TI 101 [degC]"
_TIME = re.compile(r"time|date|second|^t$", re.IGNORECASE)
_EPISODE = re.compile(r"episode|batch|campaign|lot|trial", re.IGNORECASE)
_REWARD = re.compile(r"reward|profit|return", re.IGNORECASE)
_ENDED = re.compile(r"terminated|done|trip", re.IGNORECASE)


class Column(NamedTuple):
    """One column: numbers (L,), NaN where there is none; its texts, and words among its numbers."""

    head: str
    numbers: np.ndarray
    texts: list[str]
    words: tuple[str, ...] = ()


class Source(NamedTuple):
    """A file's columns, and how they are written."""

    columns: list[Column]
    delimiter: str = ","
    decimal: str = "."


class Clock(NamedTuple):
    """The time of every sample, in seconds, and how it is written."""

    head: str
    form: str  # "number" or as `ColumnMapping.time_format`
    seconds: np.ndarray


def propose(path: Path, actuators: Sequence[str], name: str) -> tuple[str, int]:
    """The text of a description of what a file logs, and how many guesses are in it.

    actuators: the columns of what is moved; guessed where there are none.
    """
    source = _read(path)
    clock = _clock(path, source)
    heads = [column.head for column in source.columns]
    chosen = [head for word in actuators for head in _split(word, heads)]
    episode = _first(
        source,
        _EPISODE,
        chosen,
        lambda c: 3 * sum(a != b for a, b in pairwise(c.texts)) < len(c.texts),
    )
    reward = _first(source, _REWARD, chosen, lambda c: np.isfinite(c.numbers).any())
    ended = _first(source, _ENDED, chosen, lambda c: set(np.unique(c.numbers)) <= {0.0, 1.0})
    special = {clock.head if clock else None, *(c.head for c in (episode, reward, ended) if c)}
    usable = [c for c in source.columns if c.head not in special and np.isfinite(c.numbers).any()]
    moving = [c for c in usable if np.nanmin(c.numbers) < np.nanmax(c.numbers)]
    moved = [c for c in moving if c.head in chosen]
    if not chosen:
        moved = [c for c in moving if _holds_still(c.numbers)]
    if len(moved) < max(len(chosen), 1):
        still = [head for head in chosen if head not in [c.head for c in moved]]
        what = f"{still[0]!r} never moves" if still else "no column looks like an actuator"
        raise ValueError(
            f"{path}: {what}; name what is moved: --actuators COLUMN ... of "
            f"{listed([c.head for c in moving], 120)}"
        )
    measured = [c for c in moving if c.head not in [one.head for one in moved]]
    if not measured:
        raise ValueError(f"{path}: no column is left that could be a signal; name fewer actuators")
    names = _names([c.head for c in (*measured, *moved)])
    guess = "" if chosen else "  # guess: it moves in steps"
    step, lines = _timing(clock, episode, len(source.columns[0].texts))
    lines = [f"name: {_identifier(name)}", *lines]
    log = _log(clock, source, episode, ended, step)
    lines += ["log:", *log] if log else []
    lines += ["signals:", *(_signal(c, names, USUAL) for c in measured)]
    lines += ["actuators:", *(_signal(c, names, (0.0, 1.0)) + guess for c in moved)]
    lines += _open_parts(reward, measured, moved, names)
    text = "\n".join(lines) + "\n"
    return text, text.count("# guess")


# Reading -----------------------------------------------------------------------------------------


def _read(path: Path) -> Source:
    suffix = path.suffix.lower()
    if suffix not in TABLES:
        raise ValueError(
            f"{path}: a description is proposed from tables, whose columns have names: "
            f"{', '.join(TABLES)}"
        )
    if suffix != ".parquet":
        return _read_csv(path)
    from worldloom.replay.dataset_parquet import parquet_columns

    return Source([_parquet_column(n, c) for n, c in parquet_columns(path).items()])


def _parquet_column(name: str, column: Any) -> Column:
    values = column.to_pylist()
    numbers = [float(x) if isinstance(x, int | float) else np.nan for x in values]
    texts = [
        x.isoformat() if isinstance(x, datetime) else "" if x is None else str(x) for x in values
    ]
    return Column(name, np.asarray(numbers), texts)


def _read_csv(path: Path) -> Source:
    delimiter = ","
    if path.is_file():
        with suppress(UnicodeDecodeError), path.open(encoding="utf-8-sig") as file:
            first = file.readline()
            delimiter = max(",;\t|", key=first.count)
    head, rows, _ = csv_rows(path, delimiter)
    if not rows or len(set(head)) < len(head):
        wrong = "two columns have one name; rename one" if rows else "there are no rows"
        raise ValueError(f"{path}: {wrong}")
    columns = list(zip(*rows, strict=True))
    comma = delimiter != "," and any(re.fullmatch(r"-?\d+,\d+", c[0].strip()) for c in columns)
    decimal = "," if comma else "."
    read = [_column(n, c, decimal) for n, c in zip(head, columns, strict=True)]
    return Source(read, delimiter, decimal)


def _column(head: str, cells: Sequence[str], decimal: str) -> Column:
    texts = [cell.strip() for cell in cells]
    numbers, words = np.full(len(texts), np.nan), {}
    for i, text in enumerate(texts):
        try:
            numbers[i] = float(text.replace(",", ".") if decimal == "," else text)
        except ValueError:
            if text:
                words[text] = words.get(text, 0) + 1
    if sum(words.values()) > WORDS * len(texts):
        return Column(head, np.full(len(texts), np.nan), texts)  # a column of words
    return Column(head, numbers, texts, tuple(words))


def _clock(path: Path, source: Source) -> Clock | None:
    """The first column that is written as a time, or numbers that go forward and are named so."""
    for column in source.columns:
        named = _TIME.search(column.head) and np.isfinite(column.numbers).all()
        if named and _forward(column.numbers):
            return Clock(column.head, "number", column.numbers)
        if np.isfinite(column.numbers).any():
            continue
        for form in FORMATS:
            with suppress(ValueError):
                one = (SignalColumn("x", "x", low=0.0, high=1.0),)
                mapping = ColumnMapping(one, one, time=column.head, time_format=form)
                lines = np.arange(len(column.texts)) + 2
                seconds = read_seconds(path, mapping, column.texts, lines)
                if _forward(seconds):
                    return Clock(column.head, form, seconds)
    return None


def _forward(seconds: np.ndarray) -> bool:
    """Whether most steps go forward; an episode may begin at 0 again."""
    steps = np.diff(seconds[np.isfinite(seconds)])
    return len(steps) > 0 and float((steps > 0.0).mean()) > 0.9


# Guesses -----------------------------------------------------------------------------------------


def _split(word: str, heads: Sequence[str]) -> list[str]:
    """Columns that a word of the command line names: one, or several with commas between."""
    if word in heads:
        return [word]
    parts = [part.strip() for part in word.split(",")]
    for part in parts:
        if part not in heads:
            raise ValueError(f"--actuators {part}: no such column; {suggest(part, heads)}")
    return parts


def _first(
    source: Source, names: re.Pattern[str], taken: Sequence[str], fits: Any
) -> Column | None:
    found = (c for c in source.columns if names.search(c.head) and c.head not in taken and fits(c))
    return next(found, None)


def _holds_still(numbers: np.ndarray) -> bool:
    """Whether a column keeps its value most of the time and then jumps, as set points do."""
    steps = np.abs(np.diff(numbers[np.isfinite(numbers)]))
    return len(steps) > 0 and STILL <= float((steps == 0.0).mean()) < 1.0


def _identifier(head: str) -> str:
    name = re.sub(r"\W+", "_", head.strip(), flags=re.ASCII).strip("_").lower() or "column"
    return f"x_{name}" if name[0].isdigit() or name in FUNCTIONS else name


def _names(heads: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Name and unit of each column; a unit may stand in brackets behind the name."""
    names: dict[str, tuple[str, str]] = {}
    for head in heads:
        match, unit = _UNIT.match(head), ""
        if match:
            with suppress(ValueError):
                unit = parse_unit(match[2]).text
        name = first = _identifier(match[1] if match and unit else head)
        while name in [known for known, _ in names.values()]:
            name = f"{first}_{len(names)}"
        names[head] = (name, unit)
    return names


def _timing(clock: Clock | None, episode: Column | None, rows: int) -> tuple[float, list[str]]:
    """The usual step, and lines that say how far rows are apart and how long episodes are."""
    step = usual_step(np.diff(clock.seconds)) if clock else float("nan")
    known = bool(np.isfinite(step))
    begins = np.zeros(rows, bool)
    begins[0] = True
    if clock:
        steps = np.diff(clock.seconds)
        begins[1:] |= (steps > PAUSE * step) | (steps <= 0.0)
    if episode:
        begins[1:] |= np.asarray(episode.texts)[1:] != np.asarray(episode.texts)[:-1]
    lengths = np.diff(np.append(np.flatnonzero(begins), rows)) - 1
    horizon = int(min(max(np.median(lengths), 1), LONGEST))
    doubt = "" if known else "  # guess: no column is a time"
    count = f"{int(begins.sum())} stretches, the middle one of {int(np.median(lengths))} steps"
    return step, [
        f"step: {step if known else 1.0:g} s{doubt}",
        f"horizon: {horizon}  # guess: {count}",
    ]


def _log(
    clock: Clock | None, source: Source, episode: Column | None, ended: Column | None, step: float
) -> list[str]:
    lines = []
    if clock:
        head, form = _quoted(clock.head), _quoted(clock.form)
        lines.append(f"  time: {{column: {head}, format: {form}}}")
        steps = np.diff(clock.seconds)
        inside = steps[(steps > 0.0) & (steps <= PAUSE * step)]
        if (steps > PAUSE * step).any():
            longest = f"pauses of up to {steps.max():g} s"
            lines.append(f"  gap: {PAUSE * step:g} s  # guess: {longest}")
        if float(is_uneven(inside, step).mean()) > UNEVEN:
            spread = f"steps take from {inside.min():g} to {inside.max():g} s"
            lines.append(f"  resample: linear  # guess: {spread}")
    if episode:
        lines.append(f"  episode: {_quoted(episode.head)}  # guess")
    if ended:
        lines.append(f"  terminated: {_quoted(ended.head)}  # guess")
    words = sorted({word for column in source.columns for word in column.words})
    if words:
        lines.append(f"  missing: [{', '.join(map(_quoted, words))}]")
    if source.delimiter != ",":
        lines.append(f"  delimiter: {_quoted(source.delimiter)}")
    if source.decimal != ".":
        lines.append(f"  decimal: {_quoted(source.decimal)}")
    return lines


def _signal(column: Column, names: dict[str, tuple[str, str]], ends: tuple[float, float]) -> str:
    name, unit = names[column.head]
    low, high = np.nanquantile(column.numbers, ends)
    digits = 10.0 ** np.floor(np.log10(max(high - low, 1e-30)) - 1.0)  # a tenth of the range
    low, high = np.floor(low / digits) * digits, np.ceil(high / digits) * digits
    shown = "" if name == column.head else f"column: {_quoted(column.head)}, "
    return f"  {name}: {{{shown}unit: {_quoted(unit or '1')}, low: {low:.6g}, high: {high:.6g}}}"


def _open_parts(
    reward: Column | None,
    measured: Sequence[Column],
    moved: Sequence[Column],
    names: dict[str, tuple[str, str]],
) -> list[str]:
    """What only somebody who knows the plant can say, with something to start from."""
    first, unit = names[measured[0].head]
    middle, most = np.nanquantile(measured[0].numbers, (0.5, USUAL[1]))
    bound = f"{most:.3g} {unit}".strip()
    lines = ["# What is worth having: an expression of signals and actuators, or {column: NAME}."]
    if reward:
        lines.append(f"reward: {{column: {_quoted(reward.head)}}}  # guess")
    else:
        lines.append(f"reward:  # such as -abs({first} - {middle:.3g})")
    lines += [
        "# What must hold (hard), and what is worth an alarm (hard: false).",
        f"limits: {{}}  # such as {{high: {{signal: {first}, at_most: {bound}}}}}",
        "# Where the actuators go when nothing better is known.",
        "emergency:  # guess: the middle of what was logged",
    ]
    for column in moved:
        name, unit = names[column.head]
        lines.append(f"  {name}: {f'{np.nanmedian(column.numbers):.6g} {unit}'.strip()}")
    return lines


def _quoted(text: str) -> str:
    """A text as YAML takes it for one."""
    plain = re.fullmatch(r"[A-Za-z_][\w.]*", text, re.ASCII)
    reserved = text.lower() in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    return text if plain and not reserved else json.dumps(text, ensure_ascii=False)
