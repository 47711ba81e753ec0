"""The experiment of the original treasure hunt, under its own names.

`TreasurehuntExperiment` takes the nested configuration of that experiment (`experiment`, `model`,
`world`) and `run_experiment` its arguments. What the settings mean is said once, in `_SETTINGS`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from worldloom.adapters.sorrel import IQN_NAMES, mended
from worldloom.algos.iqn import IQNConfig
from worldloom.core.names import suggest
from worldloom.suites.grid import treasurehunt
from worldloom.suites.grid.object_world import Entity, ObjectTreasureHunt
from worldloom.suites.grid.suite import SUITE, Mode, original
from worldloom.training.config import TrainConfig, make_config
from worldloom.training.driver import Hook
from worldloom.training.folders import new_folder
from worldloom.training.progress import ShowProgress
from worldloom.training.run import Run, run_folder, train

# section -> key -> where it goes: a setting of the run, or an option of its algorithm or world.
# `per_epoch` ones are in epochs, and become environment steps; `switch` ones decide mode and
# arithmetic. None: names the folder, or is accepted without effect because configurations hold it:
# `device` (JAX's default is taken), `save_weights` (checkpoints are always written) and
# `model_update_freq` (the original itself never reads it).
_SWITCHES = {name: f"switch.{name}" for name in ("use_jax", "parallel_processing", "mode")}
_SETTINGS: dict[str, dict[str, str | None]] = {
    "experiment": {
        "epochs": "per_epoch.steps",
        "max_turns": "world.horizon",
        "record_period": "per_epoch.record_every",
        "seed": "seed",
        "num_agents": "world.num_agents",
        **_SWITCHES,
        **dict.fromkeys(("log_dir", "name", "run_name")),
    },
    "model": {
        "agent_vision_radius": "world.radius",
        "observation_spec": "world.view",
        "n_frames": "world.num_frames",
        "memory_size": "iqn.buffer_size",
        "sync_freq": "iqn.sync_epochs",
        "seed": "seed",
        "num_agents": "world.num_agents",
        "num_worlds": "num_worlds",
        "updates_per_epoch": "iqn.gradient_steps",
        "tuned": "tuned",
        **{name: f"iqn.{name}" for name in ("epsilon", "epsilon_decay", "epsilon_min")},
        **{original: f"iqn.{name}" for original, name in IQN_NAMES.items()},
        "full_view": "switch.full_view",
        "legacy": "switch.legacy",
        **_SWITCHES,
        **dict.fromkeys(("device", "model_update_freq", "save_weights")),
    },
    "world": {
        name: f"world.{name}"
        for name in signature(treasurehunt.world).parameters
        if name not in ("radius", "legacy")  # which are the model's
    },
}
# How the original's plans name the modes, behind the name of an experiment.
_MODE_NAMES = {"torch_sequential": "PYTORCH_SEQUENTIAL"}


class Logger(Protocol):
    """What the original's loggers offer."""

    def record_turn(self, epoch: int, loss: float, reward: float, epsilon: float) -> None: ...


class TreasurehuntExperiment:
    """The original's experiment: ``TreasurehuntExperiment(config).run_experiment()``.

    `config` is nested as the original's: {"experiment": {...}, "model": {...}, "world": {...}};
    what it leaves out is as in the original's example with gems, or, where it gives a value to food
    or bones, in that with all three. It is read again by every run, so that a change of
    it, of `use_jax` say, is what the next run does.

    The mode follows from `use_jax` (default True) and `parallel_processing` (default False):
    torch_sequential, jax_sequential or jax_parallel; a `mode` of its own, such as jax_fused, goes
    before both. In the JAX modes learning is mended (returns over n steps, memory that knows
    episodes); ``model: {"legacy": True}`` keeps the original's arithmetic there, too.

    `epochs` are counted as asked: the original plays one more.
    """

    def __init__(self, config: Mapping[str, Any]):
        self.config = config
        self.settings()

    def settings(self, parallel: bool | None = None) -> TrainConfig:
        """The configuration as it is now, as settings of a run."""
        return to_settings(self.config, parallel)

    @property
    def mode(self) -> Mode:
        """How the next run will be executed."""
        return self.settings().settings.mode

    def run_experiment(
        self,
        animate: bool = True,
        logging: bool = True,
        logger: Logger | None = None,
        output_dir: str | Path | None = None,
        parallel: bool | None = None,
        *,
        hooks: Sequence[Hook] = (),
    ) -> Run:
        """Trains from scratch and writes a run folder.

        Args:
            animate: GIFs every `record_period` epochs and of the trained agents, and report.html.
            logging: show progress; a `logger` gets every epoch instead.
            logger: `record_turn(epoch, loss, reward, epsilon)`, with the loss and the reward of
                all agents together; where several worlds are played, their mean.
            output_dir: the run's folder; by default a new one under `log_dir`, or runs/, named
                by the experiment's `name` and its mode.
            parallel: goes before `parallel_processing`; the PyTorch loop is always sequential.
            hooks: further work between chunks of epochs.
        """
        settings = self.settings(parallel)
        if not animate:
            settings = replace(settings, record_every=0)
        watchers = list(hooks)
        if logging:
            watchers.append(ShowProgress() if logger is None else _Logged(logger))
        folder = Path(output_dir) if output_dir else self._folder(settings)
        return train(
            SUITE,
            settings,
            folder,
            report=animate,
            hooks=watchers,
            command="TreasurehuntExperiment",
        )

    def _folder(self, settings: TrainConfig) -> Path:
        experiment = self.config.get("experiment") or {}
        root, name = Path(experiment.get("log_dir", "runs")), experiment.get("name")
        if name is None:
            return run_folder(root, settings)
        mode = settings.settings.mode
        return new_folder(root, f"{name}_{_MODE_NAMES.get(mode, mode.upper())}")


class TreasurehuntWorld(ObjectTreasureHunt):
    """The original's world of objects, made from the nested configuration."""

    def __init__(self, config: Mapping[str, Any], default_entity: Entity | None = None):
        settings = to_settings(config)
        known = {field.name for field in fields(ObjectTreasureHunt)}
        options = {n: v for n, v in settings.world.items() if n in known}
        self.config, self.default_entity = config, default_entity
        super().__init__(**options, rng=np.random.default_rng(settings.seed))


class TreasurehuntEnv(TreasurehuntExperiment):
    """The experiment as the original builds it: ``TreasurehuntEnv(world, config)``.

    Training makes worlds of its own, which are those of the configuration.
    """

    def __init__(self, world: TreasurehuntWorld, config: Mapping[str, Any]):
        super().__init__(config)
        self.world = world


@dataclass
class _Logged(Hook):
    """Hands every epoch to a logger of the original's kind."""

    logger: Logger

    def on_iterations(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            # An agent whose memory is not ready has learned nothing: its loss is NaN, there 0.
            loss = float(np.nansum(row["agent_loss"]))
            epoch, reward = row["iteration"] - 1, float(row["return"])
            self.logger.record_turn(epoch, loss, reward, float(row["epsilon"]))


def to_settings(config: Mapping[str, Any], parallel: bool | None = None) -> TrainConfig:
    """The nested configuration of the original as settings of a run."""
    given = _given(config)
    switches = _under("switch.", given)
    mode = _mode(switches, parallel)
    legacy = mode == "torch_sequential" or bool(switches.get("legacy", False))
    given |= {"world.legacy": legacy, "mode": mode}
    if switches.get("full_view", False):
        given["world.radius"] = None
    if given.keys() & {"world.food_value", "world.bone_value"}:
        given.setdefault("world.items", "mixed")
    base = original()
    iqn = base["iqn"]
    if given.get("world.items") == "mixed":
        iqn = iqn | _MIXED
    iqn |= _under("iqn.", given)
    if not legacy:
        iqn = asdict(mended(IQNConfig(**iqn)))
    world = base["world"] | _under("world.", given)
    settings = base | {name: value for name, value in given.items() if "." not in name}
    iqn["buffer_size"] *= settings["num_worlds"]  # there a memory is one world's
    # What the original counts in epochs, in environment steps.
    turns = world.get("horizon", 100 if world.get("items") == "mixed" else 50)
    epochs = {n: base[n] // 50 for n in ("steps", "eval_every", "checkpoint_every", "record_every")}
    epochs |= _under("per_epoch.", given)
    steps = {n: count * turns * settings["num_worlds"] for n, count in epochs.items()}
    return make_config(SUITE, settings | steps | {"iqn": iqn, "world": world})


# Where the original's example with gems, food and bones differs from that with gems alone.
_MIXED = {"epsilon": 0.6, "epsilon_decay": 0.0, "batch_size": 64}


def _under(prefix: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {n.removeprefix(prefix): v for n, v in given.items() if n.startswith(prefix)}


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is set, by where it goes; names that are not known and contradictions are refused."""

    def hint(name: str, known: Mapping[str, Any]) -> str:
        owners = [section for section, keys in _SETTINGS.items() if name in keys]
        return f"it belongs into {owners[0]!r}" if owners else suggest(name, known)

    given: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for section, values in config.items():
        if section == "multiprocessing":  # how the original spreads its work; ours is the mode's
            continue
        if section not in _SETTINGS:
            raise ValueError(f"config: no section {section!r}; {hint(section, _SETTINGS)}")
        if not isinstance(values or {}, Mapping):
            raise ValueError(f"config: {section!r} is {values!r}; it must hold names and values")
        known = _SETTINGS[section]
        for key, value in (values or {}).items():
            if key not in known:
                raise ValueError(f"config: {section!r} has no setting {key!r}; {hint(key, known)}")
            target = known[key]
            if target is None:
                continue
            if given.get(target, value) != value:
                raise ValueError(
                    f"{section}.{key}={value!r} and {origin[target]}={given[target]!r} say "
                    "different things; keep one of them"
                )
            given[target], origin[target] = value, f"{section}.{key}"
    return given


def _mode(switches: Mapping[str, Any], parallel: bool | None) -> Mode:
    """The mode that the switches ask for."""
    mode = switches.get("mode")
    if mode is not None:
        asked = {None: mode, True: "jax_parallel", False: "jax_sequential"}[parallel]
        if asked != mode:
            raise ValueError(
                f"run_experiment: parallel={parallel} contradicts mode={mode!r} of the config; "
                "leave one of them out"
            )
        return mode
    if not switches.get("use_jax", True):
        return "torch_sequential"
    if parallel is None:
        parallel = switches.get("parallel_processing", False)
    return "jax_parallel" if parallel else "jax_sequential"
