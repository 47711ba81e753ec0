"""Pictures of a run while it trains, and its page when it is done."""

from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from worldloom.report import render
from worldloom.report.html import write_report
from worldloom.train.evaluate import Evaluator
from worldloom.train.runner import Hook, Run

if TYPE_CHECKING:
    from worldloom.core.types import Key, PyTree
    from worldloom.train.load import LoadedRun

# Films draw from keys of their own: neither training nor evaluation changes with them.
FILM_KEY = 2_000_003


class Pictures(Hook):
    """GIFs of training every `record_period` epochs, of the trained agents, and report.html."""

    def on_record(self, run: Run) -> None:
        path = run.folder / f"training-epoch-{run.epoch:05d}.gif"
        save_film(run.evaluator, run.trainer.agents(), _key(run), path, epsilon_of(run))

    def on_end(self, run: Run) -> None:
        # Who pressed Ctrl-C wants to leave: a film would first have to be compiled.
        if not run.interrupted:
            save_film(run.evaluator, run.trainer.agents(), _key(run), run.folder / "eval.gif")
        write_report(run.folder)


def _key(run: Run) -> "Key":
    return jax.random.fold_in(jax.random.key(FILM_KEY + run.config.seed), run.epoch)


def epsilon_of(run: Run) -> float:
    """The chance of a random action in the run's last epoch."""
    config = run.config
    played = max(run.epoch - 1, 0)
    return max(config.epsilon * (1.0 - config.epsilon_decay) ** played, config.epsilon_min)


def save_film(
    evaluator: Evaluator, agents: "PyTree", key: "Key", path: Path, explore: float = 0.0
) -> Path:
    """Writes a GIF of one episode, whole or not at all."""
    states, scores = evaluator.film(agents, key, explore)
    images = render.frames(evaluator.env.base, states, np.diff(scores))
    path = Path(path)
    beside = path.with_name(path.name + ".part")
    render.save_gif(images, beside)
    beside.replace(path)
    return path


def film(loaded: "LoadedRun", path: Path, seed: int = 0) -> Path:
    """Writes a GIF of one greedy episode of a trained run."""
    evaluator = Evaluator(loaded.env, loaded.agent, episodes=1)
    return save_film(evaluator, loaded.agents, jax.random.key(seed), path)
