"""A suite whose trainer only counts, so that nothing is compiled: for the host's part of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from counter import Counter

from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box, Discrete
from worldloom.nn.networks import Networks
from worldloom.training.config import make_config
from worldloom.training.suite import Problem, Suite


@dataclass(frozen=True)
class Score:
    mean: float = 1.5
    seconds: float = 0.25

    def to_dict(self):
        return {"mean": self.mean, "scores": [1.0, 2.0]}

    def lines(self):
        return {"score": f"{self.mean}"}


@dataclass
class Counting:
    """The suite, and what may be changed about it before a run."""

    trainer: type = Counter
    score: object = Score
    about: Callable = lambda run: {}

    @property
    def suite(self) -> Suite:
        return Suite(
            name="counting",
            worlds={},
            defaults=lambda env, algo: {"algo": algo or "random"},
            problem=self._problem,
            page=lambda folder: Path(folder) / "report.html",
            export=lambda run, folder: folder,
        )

    def _problem(self, config, folder):
        spec = EnvSpec("counting", Box(0.0, 1.0, (1,)), Discrete(2), horizon=5)
        nothing = SimpleNamespace()
        env = PureEnv(spec, lambda: (), nothing, nothing, None)  # pyright: ignore[reportArgumentType]
        return Problem(
            env=env,
            make_evaluator=lambda trainer, episodes: lambda agents, key: self.score(),
            networks=Networks(),
            make_trainer=lambda config, problem: self.trainer(),
            about=self.about,
            references=lambda evaluator, agents: {"random play": self.score()},
        )

    def config(self, **given):
        """Six iterations of ten steps, in chunks of two, unless told otherwise."""
        usual = {"env": "counting", "steps": 60, "chunk": 2, "eval_every": 20}
        return make_config(self.suite, usual | {"checkpoint_every": 20} | given)


@pytest.fixture
def counting():
    return Counting()
