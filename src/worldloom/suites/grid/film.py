"""Films of agents while they learn, and when they are trained."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from worldloom.core.files import atomic_path
from worldloom.suites.grid import render
from worldloom.training.driver import Hook

if TYPE_CHECKING:
    from worldloom.core.types import Key
    from worldloom.training.run import Run

# Films draw from keys of their own: neither training nor evaluation changes with them.
FILM_KEY = 2_000_003


class Pictures(Hook):
    """GIFs of training every `record_every` steps, and of the trained agents."""

    def on_record(self, run: "Run") -> None:
        path = run.folder / f"training-{run.steps:09d}.gif"
        save_film(run, _key(run), path, exploration(run))

    def on_end(self, run: "Run") -> None:
        # Who pressed Ctrl-C wants to leave: a film would first have to be compiled.
        if not run.interrupted:
            save_film(run, _key(run), run.folder / "eval.gif")


def _key(run: "Run") -> "Key":
    return jax.random.fold_in(jax.random.key(FILM_KEY + run.config.seed), run.iteration)


def exploration(run: "Run") -> float:
    """How much the agents explored in the run's last iteration."""
    if run.config.algorithm.loop != "off_policy":
        return 1.0
    return float(run.config.hyper.exploration(np.float32(max(run.iteration - 1, 0))))


def save_film(run: "Run", key: "Key", path: Path, explore: float = 0.0) -> Path:
    """Writes a GIF of one episode, whole or not at all."""
    evaluator: Any = run.evaluator
    states, scores = evaluator.film(run.agents, key, explore)
    images = render.frames(evaluator.env.base, states, np.diff(scores))
    with atomic_path(path) as draft:
        render.save_gif(images, draft)
    return Path(path)


def film(run: "Run", path: Path, seed: int = 0) -> Path:
    """Writes a GIF of one greedy episode of a trained run."""
    return save_film(run, jax.random.key(seed), path)
