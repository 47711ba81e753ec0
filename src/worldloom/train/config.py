"""Settings of a training run: one frozen dataclass, written to and read from config.json."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args

from worldloom.algos.dqn import DQNConfig
from worldloom.algos.iqn import IQNConfig
from worldloom.algos.qlearning import QLearningConfig
from worldloom.algos.random import RandomConfig
from worldloom.core.names import suggest
from worldloom.train.driver import Plan, fingerprint
from worldloom.train.modes import MODES, Mode

Algo = Literal["iqn", "dqn", "qlearning", "random"]
ALGOS: tuple[Algo, ...] = get_args(Algo)  # each has its settings in a field of its name

# Settings that may change when a run is resumed: they do not touch what is learned.
CADENCE = ("epochs", "chunk", "eval_every", "eval_episodes", "record_period", "checkpoint_every")


def check_seed(seed: int) -> None:
    """Raises ValueError for a seed that a 32-bit key cannot tell from another."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed}; it must be in 0 .. 4294967295")


@dataclass(frozen=True)
class Settings:
    """Everything about a run but the world it is in."""

    algo: Algo = "iqn"
    mode: Mode = "jax_fused"
    seed: int = 0
    epochs: int = 80
    num_worlds: int = 32  # worlds that every learner plays at once
    updates_per_epoch: int = 20
    memory_rows: int = 408  # turns that a memory holds, for each of its worlds
    epsilon: float = 1.0
    epsilon_decay: float = 0.1  # share by which epsilon falls each epoch
    epsilon_min: float = 0.05
    chunk: int = 10  # epochs in one compiled call, between which the host reports
    eval_every: int = 20  # epochs between greedy evaluations; 0: only at the end
    eval_episodes: int = 200
    record_period: int = 50  # epochs between GIFs of training; 0: none
    checkpoint_every: int = 40
    tuned: bool = False  # torch_sequential without the original's useless work
    iqn: IQNConfig = field(default_factory=IQNConfig)
    dqn: DQNConfig = field(default_factory=DQNConfig)
    qlearning: QLearningConfig = field(default_factory=QLearningConfig)
    random: RandomConfig = field(default_factory=RandomConfig)

    def __post_init__(self):
        known = {"mode": MODES, "algo": ALGOS}
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                hint = suggest(str(getattr(self, name)), list(choices))
                raise ValueError(f"{name}={getattr(self, name)!r} is not known; {hint}")
        least = {"epochs": 1, "num_worlds": 1, "updates_per_epoch": 0, "chunk": 1,
                 "eval_every": 0, "eval_episodes": 2, "record_period": 0, "checkpoint_every": 1,
                 "memory_rows": 1}  # fmt: skip
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name}={getattr(self, name)}; it must be at least {low}")
        check_seed(self.seed)
        for name in ("epsilon", "epsilon_decay", "epsilon_min"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name):g}; it must be in [0, 1]")

    @property
    def agent(self) -> Any:
        """The settings of the chosen algorithm."""
        return getattr(self, self.algo)

    @property
    def plan(self) -> Plan:
        """How far to go, and when the host has something to do."""
        return Plan(
            self.epochs, self.chunk, self.eval_every, self.checkpoint_every, self.record_period
        )


@dataclass(frozen=True)
class TrainConfig(Settings):
    """What to train, on what, for how long.

    `world` holds the options of the world itself, such as {"num_agents": 3}. The defaults learn
    treasure hunt in seconds; `TrainConfig.original()` is the configuration of the original.
    """

    env: str = "treasurehunt"
    world: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def original(cls, **changes: Any) -> "TrainConfig":
        """The original's task, network, memory and schedule: one world, one update an epoch."""
        settings: dict[str, Any] = {
            "world": {"num_frames": 5, "legacy": True},
            "epochs": 1000,
            "num_worlds": 1,
            "updates_per_epoch": 1,
            "memory_rows": 1024,
            "epsilon_decay": 0.001,
            "epsilon_min": 0.0,
            "chunk": 25,
            "eval_every": 100,
            "record_period": 250,
            "checkpoint_every": 250,
            "iqn": IQNConfig.original(),
        }
        return cls(**(settings | changes))

    def __post_init__(self):
        super().__post_init__()
        if self.mode == "torch_sequential":
            if self.env != "treasurehunt" or self.algo != "iqn":
                raise ValueError(
                    "torch_sequential is the original's treasure hunt with IQN agents; "
                    f"it cannot train {self.algo} on {self.env}: use a jax mode"
                )
            if self.num_worlds != 1 or self.updates_per_epoch != 1:
                raise ValueError(
                    "torch_sequential plays one world and updates once an epoch, not "
                    f"num_worlds={self.num_worlds} and updates_per_epoch="
                    f"{self.updates_per_epoch}; start from --preset original"
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain types only; the settings of algorithms that are not used are left out."""
        plain = asdict(self)
        unused = set(ALGOS) - {self.algo}
        return {name: value for name, value in plain.items() if name not in unused}

    def fingerprint(self) -> str:
        """A short hash of everything that decides what is learned."""
        return fingerprint(self.to_dict(), CADENCE)


def from_dict(plain: Mapping[str, Any], source: str = "config") -> TrainConfig:
    """The inverse of `TrainConfig.to_dict`; `source` is named in errors."""
    if not isinstance(plain, Mapping):
        raise ValueError(f"{source}: settings are names with values, not {plain!r}")
    return read_fields(TrainConfig, plain, source)


def read_fields(cls: type, plain: Mapping[str, Any], source: str) -> Any:
    """A settings dataclass from plain types, nested ones included; `source` is named in errors."""
    known = {f.name: f for f in fields(cls)}
    values = {}
    for name, value in plain.items():
        if name not in known:
            raise ValueError(f"{source}: no setting {name!r}; {suggest(name, list(known))}")
        factory, default = known[name].default_factory, known[name].default
        nested = factory() if callable(factory) else None
        if is_dataclass(nested) and isinstance(value, Mapping):
            value = read_fields(type(nested), value, f"{source}: {name}")
        if isinstance(default, tuple) and isinstance(value, list):
            value = tuple(value)  # JSON knows lists only
        values[name] = value
    return cls(**values)
