"""Datasets from and to CSV, as plant historians export it: one line for each sample.

A line holds what was measured, and what was done from then until the next line. So a line and the
one after it in the same episode make one row of a dataset, and the last line of an episode only
says where the step before it led. Where `terminated` is 1 the plant has ended: the row that leads
there is terminated, and none begins there. Every other last row is truncated: the log stops, the
plant does not.
"""

import csv
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from worldloom.core.files import atomic_path
from worldloom.core.names import suggest
from worldloom.replay.dataset import Dataset
from worldloom.replay.dataset_checks import Defect, columns_of, lost_link
from worldloom.replay.dataset_files import Logged, refuse_to_overwrite
from worldloom.replay.dataset_mapping import ColumnMapping, SignalColumn

# reward(obs (N, n), action (N, m), next_obs (N, n)) -> (N,), where no column holds it.
RewardFunction = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def load_csv(
    path: str | Path, mapping: ColumnMapping, reward: RewardFunction | None = None
) -> Dataset:
    """The dataset in a CSV file; a ValueError of one line if it is none, or of no use."""
    return read_csv(path, mapping, reward).dataset()


def read_csv(
    path: str | Path, mapping: ColumnMapping, reward: RewardFunction | None = None
) -> Logged:
    """A CSV file's rows; a ValueError that names line and column if they cannot be read.

    reward: how to compute it where the mapping names no column; actions are in [-1, 1].
    """
    path = Path(path)
    if mapping.reward is None and reward is None:
        raise ValueError(
            f"{path}: the mapping names no reward; add its column, or give a function `reward`"
        )
    texts, lines = _cells(path, mapping)
    numbers = {
        name: _numbers(path, name, texts[name], lines, mapping) for name in mapping.number_columns
    }
    time = None
    if mapping.time is not None:
        time = numbers.get(mapping.time)
        if time is None:
            time = _seconds(path, mapping, texts[mapping.time], lines)
    begins = _begins(mapping, texts, time, len(lines))
    over = numbers[mapping.terminated] == 1 if mapping.terminated else np.zeros(len(lines), bool)
    # A sample leads to the next one if that is of the same episode and the plant had not ended.
    follows = ~begins[1:] & ~over[:-1]
    at = np.flatnonzero(follows)
    obs = np.stack([_physical(signal, numbers) for signal in mapping.observation], 1)
    act = np.stack([_share(signal, _physical(signal, numbers)) for signal in mapping.action], 1)
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
        columns["reward"] = np.asarray(
            reward(columns["obs"], columns["action"], columns["next_obs"])
        )
    else:
        columns["reward"] = numbers[mapping.reward][at + (mapping.reward_at == "next")]
    if mapping.cost:
        columns["cost"] = np.stack([numbers[name][at] for name in mapping.cost], 1)
    if time is not None:
        columns["time"] = time[at]
    units = ", ".join(f"{s.name} [{s.unit}]" for s in (*mapping.observation, *mapping.action))
    return Logged(
        path,
        columns,
        name=mapping.name or path.stem,
        provenance=(("file", path.name), ("signals", units)),
        observation=mapping.observation,
        action=mapping.action,
        lines=lines[at],
        defects=tuple(_lonely(begins, follows, over, lines) + _backwards(begins, time, lines, at)),
    )


def save_csv(
    dataset: Dataset,
    path: str | Path,
    mapping: ColumnMapping,
    *,
    force: bool = False,
    seconds: float = 1.0,
) -> Path:
    """Writes a CSV file that `read_csv` reads back exactly, but for a last row without an end.

    seconds: between samples. Log-probabilities, and costs that the mapping does not name, are left
    out. What the format cannot hold is a ValueError: links that are broken,
    a mapping without the columns for episodes, ends or rewards, or times that are not numbers.
    """
    path = Path(path)
    refuse_to_overwrite(path, force)
    columns = columns_of(dataset)
    widths = (len(mapping.observation), len(mapping.action))
    if widths != (columns["obs"].shape[1], columns["action"].shape[1]):
        raise ValueError(
            f"{path}: the mapping has {widths[0]} observations and {widths[1]} actions, the "
            f"dataset {columns['obs'].shape[1]} and {columns['action'].shape[1]}"
        )
    if mapping.reward is None or mapping.reward_at == "next" or mapping.episode is None:
        raise ValueError(f"{path}: to write, the mapping must name reward (at: this) and episode")
    if len(mapping.cost) not in (0, columns["cost"].shape[1] if "cost" in columns else 0):
        raise ValueError(
            f"{path}: the mapping has {len(mapping.cost)} columns of cost, not those of the data"
        )
    if mapping.terminated is None and columns["terminated"].any():
        raise ValueError(f"{path}: episodes terminate, but the mapping names no such column")
    if mapping.time is not None and mapping.time_format != "number":
        raise ValueError(f"{path}: times are written as numbers, not as {mapping.time_format}")
    broken = lost_link(columns)
    if broken is not None:
        raise ValueError(
            f"{path}: row {broken}: its next observation is not that of the next row; a CSV file "
            "has one line for both, use npz"
        )
    both = np.flatnonzero(columns["terminated"] & columns["truncated"])
    if len(both):
        raise ValueError(
            f"{path}: row {both[0]} is terminated and truncated; a CSV file has one end"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=mapping.delimiter, lineterminator="\n")
        writer.writerow(mapping.columns)
        writer.writerows(_samples(columns, np.asarray(dataset.starts), mapping, seconds))
    return path


def _samples(
    columns: dict[str, np.ndarray], starts: np.ndarray, mapping: ColumnMapping, seconds: float
) -> Iterator[tuple[str, ...]]:
    """The cells of every sample: those of an episode's rows, and of where the last one led."""
    counts = np.diff(np.append(starts, len(columns["reward"]))) + 1
    episode = np.repeat(np.arange(len(counts)), counts)
    last = np.zeros(len(episode), bool)
    last[np.cumsum(counts) - 1] = True
    row = np.arange(len(episode)) - episode - last

    def cells(values: np.ndarray, *, of_steps: bool = True) -> list[str]:
        # In double precision: the way back then rounds to the very same float32.
        texts = [repr(x) for x in values.astype(float).tolist()]
        return ["" if end and of_steps else x for end, x in zip(last, texts, strict=True)]

    texts: dict[str, list[str]] = {}
    obs = np.where(last[:, None], columns["next_obs"][row], columns["obs"][row]).astype(float)
    action = columns["action"][row].astype(float)
    for i, signal in enumerate(mapping.observation):
        texts[signal.column] = cells((obs[:, i] - signal.offset) / signal.scale, of_steps=False)
    for i, signal in enumerate(mapping.action):
        value = signal.low + 0.5 * (action[:, i] + 1.0) * (signal.high - signal.low)
        texts[signal.column] = cells((value - signal.offset) / signal.scale)
    texts[str(mapping.reward)] = cells(columns["reward"][row])
    for i, name in enumerate(mapping.cost):
        texts[name] = cells(columns["cost"][row, i])
    if mapping.terminated:
        texts[mapping.terminated] = [str(int(x)) for x in last & columns["terminated"][row]]
    if mapping.time:
        texts[mapping.time] = cells(np.arange(len(row)) * seconds, of_steps=False)
    if mapping.decimal != ".":
        texts = {name: [x.replace(".", mapping.decimal) for x in t] for name, t in texts.items()}
    texts[str(mapping.episode)] = [str(n) for n in episode]
    return zip(*(texts[name] for name in mapping.columns), strict=True)


# Reading -----------------------------------------------------------------------------------------


def _cells(path: Path, mapping: ColumnMapping) -> tuple[dict[str, list[str]], np.ndarray]:
    """The texts of each column that is mapped, and the line of each sample."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark first
            reader = csv.reader(file, delimiter=mapping.delimiter)
            head = [name.strip() for name in next(reader, [])]
            for row in reader:
                if not row:
                    continue
                if len(row) != len(head):
                    raise ValueError(
                        f"{path}, line {reader.line_num}: {len(row)} cells for {len(head)} columns;"
                        f" is {mapping.delimiter!r} the delimiter?"
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from None
    for name in mapping.columns:
        if name not in head:
            raise ValueError(f"{path}: there is no column {name!r}; {suggest(name, head)}")
        if head.count(name) > 1:
            raise ValueError(f"{path}: {head.count(name)} columns are named {name!r}; rename them")
    if not rows:
        raise ValueError(f"{path}: there are no rows below the names of the columns")
    at = {name: head.index(name) for name in mapping.columns}
    return {name: [row[i].strip() for row in rows] for name, i in at.items()}, np.asarray(lines)


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
                    f"{path}, line {line}, column {name}: {text!r} is not a number; if it stands "
                    "for a missing one, list it under `missing` in the mapping"
                ) from None
        raise


def _seconds(path: Path, mapping: ColumnMapping, texts: list[str], lines: np.ndarray) -> np.ndarray:
    """Dates and times as seconds (L,); those without a zone are taken for UTC."""
    seconds = np.full(len(texts), np.nan)
    for i, text in enumerate(texts):
        if not text or text in mapping.missing:
            continue
        try:
            if mapping.time_format == "iso":
                moment = datetime.fromisoformat(text)
            else:
                moment = datetime.strptime(text, mapping.time_format)
        except ValueError:
            raise ValueError(
                f"{path}, line {lines[i]}, column {mapping.time}: {text!r} is not a time of the "
                f"format {mapping.time_format}"
            ) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds[i] = moment.timestamp()
    return seconds


def _begins(
    mapping: ColumnMapping, texts: dict[str, list[str]], time: np.ndarray | None, count: int
) -> np.ndarray:
    """bool (L,): where an episode begins."""
    begins = np.zeros(count, bool)
    begins[0] = True
    if mapping.episode is not None:
        names = np.asarray(texts[mapping.episode])
        begins[1:] |= names[1:] != names[:-1]
    if mapping.gap is not None and time is not None:
        with np.errstate(invalid="ignore"):
            begins[1:] |= np.diff(time) > mapping.gap
    return begins


def _physical(signal: SignalColumn, numbers: dict[str, np.ndarray]) -> np.ndarray:
    return numbers[signal.column] * signal.scale + signal.offset


def _share(signal: SignalColumn, value: np.ndarray) -> np.ndarray:
    return 2.0 * (value - signal.low) / (signal.high - signal.low) - 1.0


def _lonely(
    begins: np.ndarray, follows: np.ndarray, over: np.ndarray, lines: np.ndarray
) -> list[Defect]:
    """Episodes of a single sample: they have no step. A plant at a stand is not one of them."""
    ends = np.append(begins[1:], True)
    alone = np.flatnonzero(begins & ends & ~over)
    # `row` counts steps: the one that would have come next.
    steps = np.concatenate([[0], np.cumsum(follows)])
    return [
        Defect(
            "empty_episode",
            int(steps[i]),
            "episode",
            f"line {lines[i]}: an episode of one sample has no step",
        )
        for i in alone
    ]


def _backwards(
    begins: np.ndarray, time: np.ndarray | None, lines: np.ndarray, at: np.ndarray
) -> list[Defect]:
    """Last samples of episodes whose time goes back: no row holds that time for a check to see."""
    if time is None or not len(at):
        return []
    last = np.append(at[1:] != at[:-1] + 1, True)
    ends = at[last] + 1
    with np.errstate(invalid="ignore"):
        wrong = ends[time[ends] <= time[ends - 1]]
    rows = np.searchsorted(at, wrong - 1)
    return [
        Defect(
            "time",
            int(row),
            "time",
            f"row {row} (line {lines[i]}): time is {time[i]:.7g}, after {time[i - 1]:.7g}",
        )
        for row, i in zip(rows, wrong, strict=True)
    ]
