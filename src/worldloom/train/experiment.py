"""The experiment of the original treasure hunt, under its own names, run by this project's runner.

`TreasurehuntExperiment` takes the nested configuration of that experiment (`experiment`, `model`,
`world`) and `run_experiment` its arguments. What the settings mean is said once, in `_SETTINGS`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from worldloom.algos.iqn import IQNConfig
from worldloom.core.names import suggest
from worldloom.train.config import TrainConfig
from worldloom.train.modes import Mode
from worldloom.train.progress import Progress
from worldloom.train.runner import Hook, Run, new_folder, run

# section -> key -> where it goes: a setting of the run, or an option of its algorithm or world.
# None: read below, or accepted without effect because configurations hold it: `device` (JAX's
# default is taken), `save_weights` (checkpoints are always written), `run_name` (a run is named by
# what it is) and `model_update_freq` (the original itself never reads it).
_SETTINGS: dict[str, dict[str, str | None]] = {
    "experiment": {
        "epochs": "epochs",
        "max_turns": "world.horizon",
        "record_period": "record_period",
        "seed": "seed",
        "num_agents": "world.num_agents",
        "use_jax": None,
        "parallel_processing": None,
        "mode": None,
        "log_dir": None,
        "run_name": None,
    },
    "model": {
        "agent_vision_radius": "world.radius",
        "epsilon": "epsilon",
        "epsilon_decay": "epsilon_decay",
        "epsilon_min": "epsilon_min",
        "layer_size": "iqn.hidden",
        "n_quantiles": "iqn.num_quantiles",
        "n_frames": "world.num_frames",
        "n_step": "iqn.n_step",
        "batch_size": "iqn.batch_size",
        "memory_size": "memory_rows",
        "sync_freq": "iqn.sync_epochs",
        "LR": "iqn.learning_rate",
        "TAU": "iqn.target_rate",
        "GAMMA": "iqn.gamma",
        "seed": "seed",
        "num_agents": "world.num_agents",
        "num_worlds": "num_worlds",
        "updates_per_epoch": "updates_per_epoch",
        "tuned": "tuned",
        "full_view": None,
        "legacy": None,
        "use_jax": None,
        "parallel_processing": None,
        "mode": None,
        "device": None,
        "model_update_freq": None,
        "save_weights": None,
    },
    "world": {
        name: f"world.{name}"
        for name in ("height", "width", "num_agents", "spawn_prob", "gem_value", "food_value",
                     "bone_value", "items", "turn_order", "view")
    },
}  # fmt: skip


class Logger(Protocol):
    """What the original's loggers offer."""

    def record_turn(self, epoch: int, loss: float, reward: float, epsilon: float) -> None: ...


class TreasurehuntExperiment:
    """The original's experiment: ``TreasurehuntExperiment(config).run_experiment()``.

    `config` is nested as the original's: {"experiment": {...}, "model": {...}, "world": {...}};
    what it leaves out is as in the original. It is read again by every run, so that a change of
    it, of `use_jax` say, is what the next run does.

    The mode follows from `use_jax` (default True) and `parallel_processing` (default False):
    torch_sequential, jax_sequential or jax_parallel; a `mode` of its own, such as jax_fused, goes
    before both. In the JAX modes learning is mended (returns over n steps, memory that knows
    episodes); ``model: {"legacy": True}`` keeps the original's arithmetic there, too.

    `epochs` are counted as asked: the original plays one more.
    """

    # What makes pictures of a run. Training knows of none; `worldloom.adapters.sorrel` sets it.
    pictures: type[Hook] | None = None

    def __init__(self, config: Mapping[str, Any]):
        self.config = config
        self.settings()

    def settings(self, parallel: bool | None = None) -> TrainConfig:
        """The configuration as it is now, as settings of a run."""
        return to_settings(self.config, parallel)

    @property
    def mode(self) -> Mode:
        """How the next run will be executed."""
        return self.settings().mode

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
            output_dir: the run's folder; by default a new one under `log_dir`, or runs/.
            parallel: goes before `parallel_processing`.
            hooks: further work between chunks of epochs.
        """
        settings = self.settings(parallel)
        watchers = list(hooks)
        if animate:
            if self.pictures is None:
                raise ValueError(
                    "run_experiment: animate=True, but nothing here draws; import "
                    "TreasurehuntExperiment from worldloom.adapters.sorrel, or use animate=False"
                )
            watchers.append(self.pictures())
        else:
            settings = replace(settings, record_period=0)
        if logging:
            watchers.append(Progress() if logger is None else _Logged(logger))
        folder = Path(output_dir) if output_dir else self._folder(settings)
        return run(settings, folder, hooks=watchers, command="TreasurehuntExperiment")

    def _folder(self, settings: TrainConfig) -> Path:
        root = _section(self.config, "experiment").get("log_dir", "runs")
        return new_folder(Path(root), settings)


class _Logged(Hook):
    """Hands every epoch to a logger of the original's kind."""

    def __init__(self, logger: Logger):
        self._logger = logger

    def on_epochs(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            # An agent whose memory is not ready has learned nothing: its loss is NaN, there 0.
            loss = float(np.nansum(row["losses"]))
            self._logger.record_turn(row["epoch"], loss, row["score"], row["epsilon"])


def to_settings(config: Mapping[str, Any], parallel: bool | None = None) -> TrainConfig:
    """The nested configuration of the original as settings of a run."""
    _check_sections(config)
    mode = _mode(config, parallel)
    full_view = _section(config, "model").get("full_view", False)
    legacy = mode == "torch_sequential" or bool(_section(config, "model").get("legacy", False))
    given: dict[str, Any] = {"world.legacy": legacy, "mode": mode}
    origin: dict[str, str] = {}
    for section, keys in _SETTINGS.items():
        for key, value in _section(config, section).items():
            target = keys[key]
            if target is None:
                continue
            if given.get(target, value) != value:
                raise ValueError(
                    f"{section}.{key}={value!r} and {origin[target]}={given[target]!r} say "
                    "different things; keep one of them"
                )
            given[target], origin[target] = value, f"{section}.{key}"
    if full_view:
        given["world.radius"] = None
    base = TrainConfig.original()
    iqn = base.iqn if legacy else _mended(given.get("iqn.num_quantiles", base.iqn.num_quantiles))
    iqn = replace(iqn, **_under("iqn.", given))
    world = dict(base.world) | _under("world.", given)
    outer = {name: value for name, value in given.items() if "." not in name}
    return replace(base, iqn=iqn, world=world, **outer)


def _mended(num_quantiles: int) -> IQNConfig:
    """The original's sizes and rates without its faults."""
    return replace(
        IQNConfig.original(),
        legacy=False,
        levels="shared",
        act_levels="midpoints",
        act_quantiles=num_quantiles,
    )


def _under(prefix: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {n.removeprefix(prefix): v for n, v in given.items() if n.startswith(prefix)}


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return config.get(name) or {}


def _check_sections(config: Mapping[str, Any]) -> None:
    for section in config:
        if section not in _SETTINGS:
            owners = [s for s, keys in _SETTINGS.items() if section in keys]
            hint = f"it belongs into {owners[0]!r}" if owners else suggest(section, _SETTINGS)
            raise ValueError(f"config: no section {section!r}; {hint}")
        values = _section(config, section)
        if not isinstance(values, Mapping):
            raise ValueError(f"config: {section!r} is {values!r}; it must hold names and values")
        for key in values:
            if key not in _SETTINGS[section]:
                owners = [s for s, keys in _SETTINGS.items() if key in keys]
                near = suggest(key, _SETTINGS[section])
                hint = f"it belongs into {owners[0]!r}" if owners else near
                raise ValueError(f"config: {section!r} has no setting {key!r}; {hint}")


def _mode(config: Mapping[str, Any], parallel: bool | None) -> Mode:
    """The mode that the switches ask for; each may stand in `experiment` or in `model`."""

    def switch(name: str, default: Any) -> Any:
        found = [
            _section(config, s)[name]
            for s in ("experiment", "model")
            if name in _section(config, s)
        ]
        if len(found) == 2 and found[0] != found[1]:
            raise ValueError(
                f"experiment.{name}={found[0]!r} and model.{name}={found[1]!r} say different "
                "things; keep one of them"
            )
        return found[0] if found else default

    mode = switch("mode", None)
    if mode is not None:
        wanted = {None: mode, True: "jax_parallel", False: "jax_sequential"}[parallel]
        if wanted != mode:
            raise ValueError(
                f"run_experiment: parallel={parallel} contradicts mode={mode!r} of the config; "
                "leave one of them out"
            )
        return mode
    use_jax = switch("use_jax", True)
    if parallel is None:
        parallel = switch("parallel_processing", False) and use_jax
    if parallel and not use_jax:
        raise ValueError(
            "run_experiment: parallel=True needs use_jax=True; the PyTorch loop is sequential"
        )
    if not use_jax:
        return "torch_sequential"
    return "jax_parallel" if parallel else "jax_sequential"
