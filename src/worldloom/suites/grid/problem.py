"""A gridworld as a problem to train on: the world, how it is scored, and what runs keep."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldloom import suites
from worldloom.core.files import atomic_path
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Key
from worldloom.nn.networks import Networks
from worldloom.suites.grid import render
from worldloom.suites.grid.evaluate import GridEvaluator
from worldloom.suites.grid.suite import JAX_MODES
from worldloom.training.config import TrainConfig
from worldloom.training.driver import Hook
from worldloom.training.loops import make_trainer, seen_by_agents
from worldloom.training.recording import recorded_data
from worldloom.training.run import Run
from worldloom.training.sinks import CsvTable
from worldloom.training.suite import Problem

# Films draw from keys of their own: neither training nor evaluation changes with them.
FILM_KEY = 2_000_003
WORLD_FILE = "world.yaml"  # a run's own copy of the file that describes its world


def make_env(config: TrainConfig, folder: Path | None = None, *, shaped: bool = True) -> PureEnv:
    """The world that the settings name; whatever is wrong with it is a ValueError.

    shaped=False: with its own rewards, whatever agents learn from.
    """
    own = None if folder is None else Path(folder) / WORLD_FILE
    # The file that a run was started with may have been edited since, or moved.
    name = str(own) if own is not None and own.is_file() else config.env
    ignored = () if shaped else suites.shaping_parameters("grid")
    options = {n: value for n, value in config.world.items() if n not in ignored}
    env = suites.make_checked(name, options, config.env)
    numbers = [np.asarray(x) for x in jax.tree.leaves(env.default_params())]
    if not all(np.isfinite(x).all() for x in numbers):
        raise ValueError(
            f"{config.env}: its rewards or rates are not all finite numbers; "
            f"mend the options {dict(config.world)}"
        )
    if env.spec.horizon is None or not env.turn_based:
        raise ValueError(
            f"{config.env}: training needs a turn-based world that ends; "
            "wrap it in frame_stack and time_limit"
        )
    return env


def make_problem(config: TrainConfig, folder: Path | None = None) -> Problem:
    """What a loop needs to train in a gridworld."""
    env, scored = make_env(config, folder), make_env(config, folder, shaped=False)
    text = _world_text(config.env)
    return Problem(
        env=env,
        make_evaluator=lambda trainer, episodes: _make_evaluator(config, scored, trainer, episodes),
        networks=Networks(),
        data=recorded_data(config.settings.dataset, env, Networks()),
        make_trainer=None if config.settings.mode == "jax_fused" else _mode_trainer,
        about=_about,
        files={} if text is None else {WORLD_FILE: text},
        hooks=[TurnTable()],
        pictures=[Pictures()],
        check_resume=lambda header: _check_world(config, folder),
    )


def new_trainer(config: TrainConfig) -> Any:
    """What trains a gridworld, without a run folder around it."""
    return make_trainer(config, make_problem(config))


def _make_evaluator(
    config: TrainConfig, env: PureEnv, trainer: Any, episodes: int
) -> GridEvaluator:
    act = trainer.act
    if config.algo == "iqn" and config.hyper.act_levels == "random":
        # As it is evaluated it has no chance in it: without the original's random levels.
        levels = config.hyper.num_quantiles
        hyper = replace(config.hyper, act_levels="midpoints", act_quantiles=levels)
        act = replace(trainer.loop, agent=replace(trainer.loop.agent, config=hyper)).act
    return GridEvaluator(seen_by_agents(env, config), act, episodes, rivals=True)


def _mode_trainer(config: TrainConfig, problem: Problem) -> Any:
    """The trainer of an execution mode that is not one program."""
    mode = config.settings.mode
    if config.algorithm.loop != "off_policy":
        raise ValueError(
            f"mode={mode!r}: {config.algo} is trained as one program; use mode='jax_fused'"
        )
    if mode == "torch_sequential":
        from worldloom.suites.grid.torch_trainer import TorchTrainer

        return TorchTrainer(config, problem)
    assert mode in JAX_MODES
    from worldloom.suites.grid.modes import ModeTrainer

    return ModeTrainer(config, problem)


def _world_text(env: str) -> str | None:
    """What the file of a world says; None for a world with a name."""
    is_file = env.lower().endswith((".yaml", ".yml")) and Path(env).is_file()
    return Path(env).read_text(encoding="utf-8") if is_file else None


def _check_world(config: TrainConfig, folder: Path | None) -> None:
    """Raises ValueError if the file that describes the world is no longer the run's own."""
    own = None if folder is None else Path(folder) / WORLD_FILE
    now = _world_text(config.env)
    if own is not None and own.is_file() and now not in (None, own.read_text(encoding="utf-8")):
        raise ValueError(
            f"{folder} was trained in another world: {config.env} has changed since; "
            "bring back what it was, or start a new run"
        )


def _about(run: Run) -> Mapping[str, Any]:
    """What config.json says beside the settings."""
    return {"turn_order": run.problem.env.spec.turn_order}


class TurnTable(Hook):
    """turns.csv: what each agent was paid in each turn, averaged over worlds."""

    def __init__(self):
        self._table: CsvTable | None = None

    def on_start(self, run: Run) -> None:
        columns = ["iteration", "turn", "agent", "reward"]
        self._table = CsvTable(run.folder / "turns.csv", columns, run.iteration)

    def on_iterations(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
        assert self._table is not None
        for row in rows:
            for turn, rewards in enumerate(row.get("turn_rewards", ())):
                for agent, reward in enumerate(rewards):
                    cells = {"turn": turn, "agent": agent, "reward": reward}
                    self._table.write({"iteration": row["iteration"]} | cells)
        self._table.flush()

    def close(self) -> None:
        if self._table is not None:
            self._table.close()


class Pictures(Hook):
    """GIFs of training every `record_every` steps, and of the trained agents."""

    phase = "filming"

    def on_record(self, run: Run) -> None:
        path = run.folder / f"training-{run.steps:09d}.gif"
        save_film(run, self._key(run), path, run.exploration)

    def on_end(self, run: Run) -> None:
        # Who pressed Ctrl-C wants to leave: a film would first have to be compiled.
        if not run.interrupted:
            save_film(run, self._key(run), run.folder / "eval.gif")

    def _key(self, run: Run) -> Key:
        return jax.random.fold_in(jax.random.key(FILM_KEY + run.config.seed), run.iteration)


def save_film(run: Run, key: Key, path: Path, explore: float = 0.0) -> Path:
    """Writes a GIF of one episode; a long one is abridged."""
    evaluator: Any = run.evaluator
    states, paid = evaluator.film(run.agents, key, explore)
    shown = render.abridged(len(paid))
    images = render.frames(evaluator.env.base, states, paid, chosen=shown)
    with atomic_path(path) as draft:
        render.save_gif(images, draft)
    return Path(path)


def film(run: Run, path: Path, seed: int = 0) -> Path:
    """Writes a GIF of one greedy episode of a trained run."""
    return save_film(run, jax.random.key(seed), path)
