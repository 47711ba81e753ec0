"""Logged data from whatever file they are in, and as a described plant's dataset."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.core.names import one_line
from worldloom.replay.dataset import Dataset, columns_of, from_columns
from worldloom.replay.dataset_csv import RewardFunction
from worldloom.replay.dataset_files import Logged, read_npz
from worldloom.replay.dataset_mapping import ColumnMapping, read_mapping
from worldloom.replay.dataset_resample import is_uneven, usual_step
from worldloom.suites.plant.data_figures import costs
from worldloom.suites.plant.description import LoggedPlant, physical
from worldloom.suites.plant.expression import BEFORE
from worldloom.suites.plant.plant import PlantWorld
from worldloom.suites.plant.suite import TABLES

UNEVEN = 0.01  # of all steps that may take another time than the others


def read(source: str | Path, mapping: Path | ColumnMapping | None = None, **options: Any) -> Logged:
    """What was logged in an npz, CSV or Parquet file, or in a Minari dataset.

    mapping: what the columns of a table mean. options: those of `read_csv`, for tables alone.
    """
    path = Path(source)
    if path.suffix.lower() in TABLES:
        from worldloom.replay.dataset_csv import read_csv
        from worldloom.replay.dataset_parquet import read_parquet

        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file; check the path")
        if mapping is None:
            raise ValueError(
                f"{path}: what its columns mean is not known; name a YAML file by --mapping"
            )
        known = mapping if isinstance(mapping, ColumnMapping) else read_mapping(mapping)
        is_parquet = path.suffix.lower() == ".parquet"
        return (read_parquet if is_parquet else read_csv)(path, known, **options)
    if mapping is not None:
        raise ValueError(f"{path}: --mapping is for tables, whose names end in {', '.join(TABLES)}")
    if options.get("seconds") is not None:
        raise ValueError(f"{path}: --resample is for tables, such as CSV files")
    if path.is_file() or path.suffix.lower() == ".npz":
        return read_npz(path)
    from worldloom.adapters import minari

    if minari.find(source) is None:
        raise FileNotFoundError(f"{source}: there is no such file, nor a Minari dataset of that id")
    return minari.read_minari(source)


def read_log(source: str, world: PlantWorld) -> Dataset:
    """A described plant's log as a dataset, with what its limits cost; see `log_rows`."""
    logged, plant = log_rows(source, world), world.plant
    fatal = logged.check().fatal()
    if fatal is not None:
        every = f"`worldloom data check {source} --env PLANT.yaml` lists every defect"
        if "outside of [-1, 1]" in fatal.message:
            every = f"low and high of {plant.name}'s description are -1 and 1; {every}"
        raise ValueError(one_line(f"{source}: {fatal.message}; {every}"))
    data = logged.dataset()
    if not plant.limits:
        return data
    columns = columns_of(data)
    about = {"name": data.name, "provenance": data.provenance}
    return from_columns(**columns | {"cost": costs(world, data, columns)}, **about)


def log_rows(source: str, world: PlantWorld) -> Logged:
    """The rows of a described plant's log, not checked yet; see `description`.

    Samples in which a number is missing are cut out; episodes end there, at pauses and where time
    goes back, and those longer than the plant's horizon are cut into equal parts of about it. In
    an npz or Minari file the signals are in the order of the description, and actions are shares
    of their ranges in [-1, 1].
    """
    plant: Any = world.plant
    reward = None if plant.expression is None else reward_function(plant)
    if Path(source).suffix.lower() in TABLES:
        seconds = plant.step_seconds if plant.resample else None
        method = plant.resample or "linear"
        options = {"seconds": seconds, "method": method, "cut_defects": True}
        logged = read(source, plant.mapping, reward=reward, **options)
        _check_clock(logged, plant)
    else:
        logged = _in_units(read(source), plant, reward)
    if len(logged.columns["reward"]):
        logged = _with_parts(_with_history(logged, plant), plant.horizon)
    if not len(logged.columns["reward"]):
        raise ValueError(
            f"{source}: no episode is longer than a step and the dead time; see log.gap, "
            f"log.episode and the delays of {plant.name}"
        )
    provenance = (*logged.provenance, ("plant", plant.key))
    return replace(logged, name=plant.name, provenance=provenance)


def reward_function(plant: LoggedPlant) -> RewardFunction:
    """What the description's expression makes of obs (N, n), action (N, m) and next obs (N, n)."""
    measured = [signal.name for signal in plant.mapping.observation]
    moved = [signal.name for signal in plant.action]

    def reward(obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
        values = dict(zip(moved, physical(plant, action).T, strict=True))
        for i, name in enumerate(measured):
            values |= {name: next_obs[:, i], f"{BEFORE}({name})": obs[:, i]}
        assert plant.expression is not None
        floats = {name: value.astype(np.float32) for name, value in values.items()}
        return np.asarray(plant.expression(floats))

    return reward


def _in_units(logged: Logged, plant: LoggedPlant, reward: RewardFunction | None) -> Logged:
    """Columns of a file that knows no names: in the description's order, units and reward."""
    fatal = logged.check().fatal()
    sizes = [logged.columns[key].shape[-1] for key in ("obs", "action")]
    expected = [len(plant.mapping.observation), len(plant.action)]
    if fatal is not None or sizes != expected:
        has = f"{sizes[0]} signals and {sizes[1]} actuators, {plant.name} has {expected[0]} and "
        raise ValueError(
            one_line(f"{logged.source}: {fatal.message if fatal else has + str(expected[1])}")
        )
    logged.dataset()  # which refuses a file that is not what it was written as
    scale, offset = (
        np.asarray([getattr(s, part) for s in plant.mapping.observation], np.float64)
        for part in ("scale", "offset")
    )
    columns = dict(logged.columns)
    columns |= {key: columns[key] * scale + offset for key in ("obs", "next_obs")}
    columns.pop("cost", None)  # of whatever limits; the description has its own
    if reward is not None:
        columns["reward"] = reward(columns["obs"], columns["action"], columns["next_obs"])
    return replace(logged, columns=columns, digest="")


def _check_clock(logged: Logged, plant: LoggedPlant) -> None:
    """Refuses rows that are not as far apart as the description says."""
    if "time" not in logged.columns or not len(logged.columns["time"]):
        return
    steps = logged.columns["next_time"] - logged.columns["time"]
    usual, step = usual_step(steps), plant.step_seconds
    remedy = "write `resample: hold` or `resample: linear` under log"
    if is_uneven(np.asarray([usual]), step)[0]:
        raise ValueError(
            f"{logged.source}: samples are {usual:g} s apart, and {plant.name} has steps of "
            f"{step:g} s; mend `step`, or {remedy}"
        )
    uneven = float(is_uneven(steps, step).mean())
    if uneven > UNEVEN:
        raise ValueError(
            f"{logged.source}: {uneven:.0%} of the steps are not of {step:g} s; {remedy}, and "
            "`gap` for pauses"
        )


def _ends(columns: dict[str, np.ndarray]) -> np.ndarray:
    """One past the last row of each episode."""
    over = columns["terminated"].astype(bool) | columns["truncated"].astype(bool)
    over[-1] = True
    return np.flatnonzero(over) + 1


def _with_history(logged: Logged, plant: LoggedPlant) -> Logged:
    """Rows that show what was done during the dead time; those without a known past are left out.

    In row t of an episode `NAME_k_ago` is what was done in row t - k.
    """
    longest, columns = max(plant.delays), logged.columns
    if not longest:
        return logged
    ends = _ends(columns)
    starts = np.append(0, ends[:-1])
    place = np.arange(len(columns["reward"])) - np.repeat(starts, ends - starts)
    kept = place >= longest
    done, at = physical(plant, columns["action"]), np.flatnonzero(kept)
    pairs = [(i, ago) for i, steps in enumerate(plant.delays) for ago in range(1, steps + 1)]
    past = np.stack([done[at - ago, i] for i, ago in pairs], 1)
    after = np.stack([done[at + 1 - ago, i] for i, ago in pairs], 1)
    columns = {name: column[kept] for name, column in columns.items()}
    columns["obs"] = np.concatenate([columns["obs"], past], 1)
    columns["next_obs"] = np.concatenate([columns["next_obs"], after], 1)
    lines = None if logged.lines is None else logged.lines[kept]
    return replace(logged, columns=columns, lines=lines, observation=plant.observation)


def _with_parts(logged: Logged, horizon: int) -> Logged:
    """Long episodes in equal parts of about `horizon` rows: the log stops there, the plant not."""
    if not len(logged.columns["reward"]):
        return logged
    truncated = logged.columns["truncated"].astype(bool)
    terminated = logged.columns["terminated"].astype(bool)
    start = 0
    for end in _ends(logged.columns).tolist():
        count = max(round((end - start) / horizon), 1)
        truncated[np.linspace(start, end, count + 1)[1:].round().astype(int) - 1] = True
        start = end
    columns = logged.columns | {"truncated": truncated & ~terminated}
    return replace(logged, columns=columns)
