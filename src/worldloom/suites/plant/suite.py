"""The plant suite: industrial control, learned from logged data or online, with a safety filter."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from worldloom.core.checks import check_fields, check_seed
from worldloom.core.names import shown
from worldloom.training.suite import Suite, World, parts_of

DataQuality = Literal["expert", "medium", "mixed", "random"]
DATA_QUALITIES: tuple[DataQuality, ...] = get_args(DataQuality)

TABLES = (".csv", ".tsv", ".txt", ".parquet")


def is_data(source: str) -> bool:
    """Whether a text is the path of a file of data, or the id of a Minari dataset."""
    known = Path(source).suffix.lower() in (".npz", *TABLES)
    return known or bool(re.search(r"[/\\]|-v\d+$", source))


@dataclass(frozen=True)
class PlantSettings:
    """What runs of plants take beyond the common settings.

    Offline algorithms learn from `dataset`: what a scripted controller of that quality logs in
    `data_steps` rows, or a file. Online ones learn in the plant, from the policy of an offline run
    if `init_from` names one.
    """

    CADENCE: ClassVar[tuple[str, ...]] = ("ope_updates",)
    TASK: ClassVar[tuple[str, ...]] = ("constraints",)  # what decides the meaning of a score

    dataset: str = "medium"  # expert, medium, mixed, random (a scripted controller), or a file
    data_steps: int = 100_000  # rows that a scripted controller logs
    data_seed: int = 0
    constraints: str | None = None  # a YAML file; without one, what the plant's limits amount to
    ope_updates: int = 10_000  # of fitted Q evaluation at the end; 0: no off-policy estimates
    model_updates: int = 10_000  # of the model that the filter of a plant without simulator has
    filter_training: bool = False  # online: whether the safety filter stands before the plant
    init_from: str | None = None  # online: the folder of an offline run to start from

    def __post_init__(self):
        for name in ("dataset", "constraints", "init_from"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, str(getattr(self, name)))
        check_fields(
            "plant", self, at_least={"data_steps": 1, "ope_updates": 0, "model_updates": 1}
        )
        check_seed(self.data_seed)
        if self.dataset not in DATA_QUALITIES and not is_data(self.dataset):
            raise ValueError(
                f"plant: dataset={shown(self.dataset)}; use {', '.join(DATA_QUALITIES)}, or the "
                "path of an npz file (of a plant described in YAML also csv, parquet, Minari)"
            )


_OFFLINE = {"steps": 50_000, "eval_every": 10_000, "checkpoint_every": 10_000, "chunk": 1}
# Models first, then a policy whose every update is a rollout and its gradient.
_MODEL_BASED = {"steps": 10_000, "eval_every": 2_000, "checkpoint_every": 2_000, "chunk": 1}
_OFF_POLICY = {
    "normalise_observations": True,
    "buffer_size": 100_000,
    "learning_starts": 5_000,
    "gradient_steps": 16,
}
_PPO = {"unroll_length": 64, "normalise_observations": True, "entropy_cost": 0.0}
# Of online algorithms: steps, steps from one evaluation and checkpoint to the next, and numbers.
_ONLINE: dict[str, tuple[int, int, Mapping[str, Any]]] = {
    "ppo": (2_000_000, 400_000, _PPO),
    "sac": (100_000, 20_000, _OFF_POLICY),
    "td3": (100_000, 20_000, _OFF_POLICY),
}


def defaults(env: str, algo: str | None) -> Mapping[str, Any]:
    """Settings that control the reactor; the usual algorithm is IQL, from logged data."""
    algo = algo or "iql"
    common = {"algo": algo, "eval_episodes": 64}
    if algo == "iql":  # known without importing it, and jax
        return common | _OFFLINE
    if algo == "mbpo":
        return common | _MODEL_BASED
    if algo in _ONLINE:
        steps, every, numbers = _ONLINE[algo]
        often = {"steps": steps, "eval_every": every, "checkpoint_every": every}
        return common | {"num_worlds": 64, algo: numbers} | often
    from worldloom import algos

    return common | (_OFFLINE if algos.get(algo).loop == "offline" else {"num_worlds": 64})


_WORLDS = {
    "pipeline": "a gate whose water arrives twenty steps later",
    "dmsd": "two masses between springs, pushed to where they belong",
    "simglucose": "insulin for a patient with diabetes, who answers late",
    "industrial-benchmark": "a machine between consumption and fatigue, slow to react",
    "reactor": "a stirred tank that runs away when it is cooled too late",
    "powergrid": "three areas that hold their frequency while loads jump",
    "hvac": "four offices heated and cooled through sun and weather",
    "water": "two tanks that supply a town, which must not run dry",
}

SUITE = Suite(
    name="plant",
    worlds={
        name: World(f"worldloom.suites.plant.{name.replace('-', '_')}:make", text)
        for name, text in _WORLDS.items()
    },
    settings=PlantSettings,
    defaults=defaults,
    **parts_of(
        "worldloom.suites.plant",
        export="export:export_run",
        studio="studio:PlantSession",
        select="select:select_policy",
    ),
    commands={
        "data": (
            "worldloom.suites.plant.data_command:command",
            "make, check and describe logged data of a plant",
        )
    },
    definition=(("signals", "actuators"), "worldloom.suites.plant.description:load"),
)
