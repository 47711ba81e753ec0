"""Level 1: the robots in numpy, the loops in Python; only the forward pass and the learning from a
minibatch are compiled."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from worldloom.algos.on_policy import Rollout, explained_variance, shuffled
from worldloom.core import draws
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import episode_stats
from worldloom.core.types import PyTree, RunState
from worldloom.nn.normaliser import observe
from worldloom.suites.robot.loop import RobotLoop
from worldloom.training.loops.on_policy import OnPolicyLoop, learned_well
from worldloom.training.loops.summary import episode_summary
from worldloom.training.trainer import Jitted


def _stacked(trees: list[PyTree]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


@dataclass(frozen=True)
class PythonLoop(OnPolicyLoop):
    """The on-policy loop of PPO without a compiled program around it, to repeat by calling it."""

    seed: int = 0

    @cached_property
    def worlds(self) -> PureEnv:
        """The robots in numpy, behind the interface of compiled worlds."""
        robots, env = RobotLoop(self.env.base, self.num_worlds, self.seed), self.env
        return episode_stats(
            PureEnv(
                env.spec,
                env.default_params,
                reset=lambda key, params: robots.reset(),
                step=lambda key, state, action, params: robots.step(state, np.asarray(action)),
                base=env.base,
            )
        )

    def place(self, tree: PyTree, what: str) -> PyTree:
        """Worlds in numpy, as they are stepped."""
        if what == "shared":
            return tree
        worlds, timestep = jax.tree.map(np.asarray, (tree.worlds, tree.timestep))
        return tree.replace(worlds=worlds, timestep=timestep)

    @cached_property
    def _programs(self) -> dict[str, Jitted]:
        ppo: Any = self.agent
        functions = {
            "act": ppo.act,
            "value": ppo.value,
            "samples": ppo.samples,
            "learn": ppo.learn,
            "observe": observe,
            "explained": partial(explained_variance, axis_name=None),
            "summary": lambda steps: episode_summary(steps, self.outcomes),
            "finite": partial(learned_well, ppo.config),
        }
        return {name: Jitted(function) for name, function in functions.items()}

    @property
    def compile_seconds(self) -> float:
        return sum(program.compile_seconds for program in self._programs.values())

    def __call__(self, run: RunState, count: int, *shared: PyTree) -> tuple[RunState, PyTree]:
        """The run after `count` iterations, and their metrics (count,)."""
        rows = []
        for _ in range(count):
            run, row = self.iterate(run, *shared)
            rows.append(row)
        return run, _stacked(rows)

    def iterate(self, run: RunState, params: PyTree) -> tuple[RunState, dict[str, Any]]:
        programs, config = self._programs, self.agent.config
        play_key, learn_key = draws.split(jax.random.fold_in(run.key, run.iteration))
        worlds, timestep, rows = run.worlds, run.timestep, []
        for key in draws.split(play_key, config.unroll_length):
            obs = timestep.obs
            action, extras = programs["act"](run.learner, obs, key)
            worlds, timestep = self.worlds.step(key, worlds, action, params)
            next_value = programs["value"](run.learner, timestep.final_obs)
            rows.append((obs, action, extras, next_value, timestep))
        obs, action, extras, next_value, steps = _stacked(rows)
        parts = {name: getattr(steps, name) for name in ("reward", "terminated", "truncated")}
        parts |= vars(extras) | {"obs": obs, "action": action, "next_value": next_value}
        rollout = Rollout(**parts)
        samples = jax.tree.map(np.asarray, programs["samples"](rollout))
        learner, rows, size = run.learner, [], len(samples.advantage)
        for epoch_key in draws.split(learn_key, config.num_epochs):
            for chosen in np.asarray(shuffled(epoch_key, size, config.num_minibatches)):
                batch = jax.tree.map(lambda x, chosen=chosen: x[chosen], samples)
                learner, row = programs["learn"](learner, batch)
                rows.append(row)
        learned = _stacked(rows)
        good = learned.pop("good")
        count = np.float32(max(good.sum(), 1))
        learned = {name: np.where(good, x, 0.0).sum() / count for name, x in learned.items()}
        learned |= {
            "explained_variance": programs["explained"](samples.returns, samples.advantage),
            "skipped": np.float32((~good).sum()),
        }
        normaliser = programs["observe"](learner.normaliser, obs)
        learner = learner.replace(normaliser=normaliser, updates=learner.updates + 1)
        summary = programs["summary"](steps)
        finite = summary.pop("finite") & programs["finite"](learner, learned)
        run = run.replace(
            learner=learner, worlds=worlds, timestep=timestep, iteration=run.iteration + 1
        )
        return run, summary | learned | {"finite": finite}
