"""A game as a problem to train on: the world, its networks, how it is scored, what runs keep."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom import suites
from worldloom.core.files import atomic_path
from worldloom.core.names import shown
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import as_pure
from worldloom.core.types import Array, PyTree
from worldloom.nn.networks import Networks
from worldloom.report.gif import save_gif
from worldloom.suites.arc.games.camera import COLOURS
from worldloom.suites.arc.games.evaluate import GameEvaluator, GameScores
from worldloom.suites.arc.games.explore import NAME, explore
from worldloom.suites.arc.games.page import FILM
from worldloom.suites.arc.games.world import GameWorld
from worldloom.suites.arc.suite import unused
from worldloom.training.config import TrainConfig
from worldloom.training.driver import Hook
from worldloom.training.evaluate import random_play
from worldloom.training.recording import recorded_data
from worldloom.training.run import Run
from worldloom.training.suite import Problem

EXPLORED = 4  # episodes of graph exploration, to compare with
FILM_STEPS = 200  # frames of a film at most


def make_problem(config: TrainConfig, folder: Path | None = None) -> Problem:
    """What a loop needs to train in a game."""
    usual = type(config.settings)()
    for name in unused(config.env):
        value = getattr(config.settings, name)
        if value != getattr(usual, name):
            raise ValueError(
                f"{config.env}: {name}={shown(value)} is for ARC tasks, and this is a game; "
                "leave it out"
            )
    env = suites.make_checked(config.env, config.world, config.env)
    if not isinstance(env.base, GameWorld):
        raise ValueError(
            f"{config.env}: the arc suite trains on tasks and in games, and this is neither; "
            "register it without a suite"
        )
    scored = from_first_level(env)
    networks = Networks(encode=one_hot)
    at_most = 0.1 if config.algorithm.loop == "off_policy" else 1.0
    return Problem(
        env=env,
        make_evaluator=lambda trainer, episodes: GameEvaluator(
            scored, trainer.act, episodes, at_most
        ),
        networks=networks,
        no_memory="agents in games have none yet",
        data=recorded_data(config.settings.dataset, env, networks),
        outcomes=lambda info: {"levels": info.solved, "won": info.won},
        references=references,
        pictures=[Film()],
    )


def from_first_level(env: PureEnv) -> PureEnv:
    """The world as it is scored: from the first level, wherever training starts."""
    return as_pure(replace(env.base, start="first"))


def one_hot(obs: Mapping[str, Array]) -> Array:
    """Features (B, n): the colour of each cell as one of 16, and the status."""
    cells = obs["cells"]
    planes = (cells[..., None] == jnp.arange(COLOURS)).astype(jnp.float32)
    return jnp.concatenate([planes.reshape(cells.shape[0], -1), obs["status"]], axis=-1)


def references(evaluator: GameEvaluator, agents: PyTree) -> dict[str, GameScores]:
    """What agents that learn nothing solve."""
    return random_play(evaluator, agents) | {NAME: explore(evaluator.env, EXPLORED)}


class Film(Hook):
    """eval.gif: a greedy episode."""

    phase = "filming"

    def on_end(self, run: Run) -> None:
        if not run.interrupted:
            save_film(run, run.folder / FILM)


def save_film(run: Any, path: Path, seed: int = 0) -> Path:
    """Writes a GIF of a greedy episode of a trained run, whole or not at all."""
    from PIL import Image

    evaluator: Any = run.evaluator
    env = evaluator.env
    world, params = env.base, env.default_params()
    _, spent, actions = evaluator.play(run.agents, jax.random.key(seed), 0.0, False)
    state, _ = env.reset(jax.random.key(seed), params)
    step = jax.jit(lambda state, action: env.step(jax.random.key(0), state, action, params)[0])
    images = [world.pixels(state, params)]
    for action in actions[: min(FILM_STEPS, int(spent[0].sum())), 0]:
        state = step(state, action)
        images.append(world.pixels(state, params))
    with atomic_path(path) as draft:
        save_gif([Image.fromarray(np.asarray(image)) for image in images], draft, ms=200)
    return Path(path)
