"""Settings of a run that learns to control a plant from logged data."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from worldloom.algos.offline import OFFLINE, Algorithm
from worldloom.core.names import suggest
from worldloom.envs import registry
from worldloom.replay import dataset_files
from worldloom.replay.dataset import Dataset
from worldloom.train.config import check_seed, read_fields
from worldloom.train.driver import Plan, fingerprint
from worldloom.train.plant_data import DATA_QUALITIES, make_data

# Settings that may change when a run is resumed: they do not touch what is learned.
CADENCE = (
    "epochs", "chunk", "eval_every", "eval_episodes", "checkpoint_every", "judge_updates",
    "devices",
)  # fmt: skip


@dataclass(frozen=True)
class PlantTrainConfig:
    """What is learned, from which data, and for how long.

    dataset: the quality of what a scripted controller logs (expert, medium, mixed, random), or the
    path of an npz file. constraints: a YAML file; without one, what the plant's limits amount to.
    """

    env: str = "reactor"
    algo: str = "iql"
    dataset: str = "medium"
    seed: int = 0
    data_steps: int = 100_000  # rows that a scripted controller logs
    data_seed: int = 0
    epochs: int = 50
    updates_per_epoch: int = 1000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    hyper: Mapping[str, float] = field(default_factory=dict)  # the algorithm's numbers by name
    world: Mapping[str, Any] = field(default_factory=dict)  # the plant's options
    constraints: str | None = None
    devices: int = 1
    chunk: int = 1  # epochs in one compiled call, between which the host reports
    eval_every: int = 10  # epochs between evaluations; 0: only at the end
    eval_episodes: int = 64
    checkpoint_every: int = 10
    judge_updates: int = 10_000  # of fitted Q evaluation at the end; 0: no off-policy estimate

    def __post_init__(self):
        plants = list(registry.names("plant"))
        if self.env not in plants:
            raise ValueError(f"there is no plant {self.env!r}; {suggest(self.env, plants)}")
        if self.algo not in OFFLINE:
            hint = suggest(self.algo, list(OFFLINE))
            raise ValueError(f"{self.env}: algo={self.algo!r} is not known; {hint}")
        least = {"data_steps": 1, "epochs": 1, "updates_per_epoch": 1, "batch_size": 1, "chunk": 1,
                 "eval_every": 0, "eval_episodes": 1, "checkpoint_every": 1, "judge_updates": 0,
                 "devices": 1}  # fmt: skip
        for name, low in least.items():
            value = getattr(self, name)
            if value < low:
                raise ValueError(f"{self.env}: {name}={value}; it must be at least {low}")
        check_seed(self.seed)
        check_seed(self.data_seed)
        make_algorithm(self)

    @property
    def plan(self) -> Plan:
        """How far to go, and when the host has something to do."""
        return Plan(self.epochs, self.chunk, self.eval_every, self.checkpoint_every)

    def to_dict(self) -> dict[str, Any]:
        """Plain types only."""
        return asdict(self)

    def fingerprint(self) -> str:
        """A short hash of everything that decides what is learned."""
        return fingerprint(self.to_dict(), CADENCE)


def from_dict(plain: Mapping[str, Any], source: str = "config") -> PlantTrainConfig:
    """The inverse of `PlantTrainConfig.to_dict`; `source` is named in errors."""
    if not isinstance(plain, Mapping) or "dataset" not in plain:
        raise ValueError(f"{source}: these are not the settings of a run of a plant")
    return read_fields(PlantTrainConfig, plain, source)


def make_algorithm(config: PlantTrainConfig) -> Algorithm:
    """The learner that the settings name, with its numbers."""
    made = OFFLINE[config.algo]()
    usual = made.config
    known = list(usual.hyper.__dataclass_fields__)
    for name, value in config.hyper.items():
        if name not in known:
            raise ValueError(f"{config.algo} has no number {name!r}; {suggest(name, known)}")
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(f"{config.algo}: {name}={value!r}; it must be a finite number")
    hyper = usual.hyper.replace(**config.hyper)
    sizes = asdict(usual) | {"hidden": tuple(config.hidden), "hyper": hyper}
    return type(made)(type(usual)(**sizes))


def load_data(config: PlantTrainConfig) -> Dataset:
    """The data to learn from, read or made; a ValueError if they are not of this plant."""
    if config.dataset in DATA_QUALITIES:
        data = make_data(
            config.env, config.dataset, config.data_steps, config.data_seed, **config.world
        )
    elif Path(config.dataset).suffix == ".npz":
        data = dataset_files.load(config.dataset)
    else:
        known = ", ".join(DATA_QUALITIES)
        raise ValueError(
            f"{config.env}: dataset={config.dataset!r}; use {known}, or the path of an npz file "
            "(`worldloom data` makes, checks and describes them)"
        )
    plant = registry.make(config.env, **config.world).base.plant
    wanted = (len(plant.observation), len(plant.action))
    found = (data.rows.obs.shape[-1], data.rows.action.shape[-1])
    if wanted != found:
        raise ValueError(
            f"{config.dataset}: rows of {found[0]} signals and {found[1]} actuators are not those "
            f"of {config.env}, which has {wanted[0]} and {wanted[1]}"
        )
    return data
