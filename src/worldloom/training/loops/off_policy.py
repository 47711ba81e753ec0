"""Off-policy steps: play some steps in every world, remember them, learn from what is remembered.

For worlds of one agent, discrete actions (dqn, iqn) or continuous ones (sac, td3). Pure functions
of a `RunState`. The world's params are an argument of the compiled program, never a constant.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.protocols import PureEnv
from worldloom.core.rollout import unroll
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import autoreset_batch, episode_stats
from worldloom.core.types import Array, Key, PyTree, RunState, TimeStep
from worldloom.replay.uniform import UniformBuffer
from worldloom.training.loops.summary import as_dict, episode_summary, is_finite
from worldloom.training.trainer import Loop

STEPS_PER_ITERATION = 2048  # at least, over all worlds: so that metrics come at a readable rate


@dataclass(frozen=True)
class StepLoop(Loop):
    """The off-policy loop of one world and agent, as pure functions.

    An iteration is as many rounds of `unroll_length` steps in every world and `gradient_steps`
    updates as come to about `STEPS_PER_ITERATION`. `outcomes(info)` names what to average over
    ended episodes beside return and length.
    """

    env: PureEnv  # one world, whose episodes end
    agent: Any
    num_worlds: int
    outcomes: Callable[[PyTree], Mapping[str, Array]] = lambda info: {}

    def __post_init__(self):
        config = self.agent.config
        if config.n_step != 1:
            raise ValueError(
                f"{config.name}.n_step={config.n_step}; returns over several steps are for "
                "turn-based worlds: use 1"
            )
        if config.buffer_size < self.num_worlds * config.unroll_length:
            raise ValueError(
                f"{config.name}.buffer_size={config.buffer_size} cannot hold one unroll of "
                f"{config.unroll_length} steps in {self.num_worlds} worlds; use a larger one"
            )

    @cached_property
    def worlds(self) -> PureEnv:
        return episode_stats(autoreset_batch(self.env, self.num_worlds))

    @property
    def buffer(self) -> UniformBuffer:
        return UniformBuffer(self.agent.config.buffer_size, self.agent.config.gamma)

    @property
    def steps_per_round(self) -> int:
        return self.num_worlds * self.agent.config.unroll_length

    @property
    def rounds(self) -> int:
        return max(1, STEPS_PER_ITERATION // self.steps_per_round)

    @property
    def steps_per_iteration(self) -> int:
        return self.rounds * self.steps_per_round

    def agents(self, run: RunState) -> PyTree:
        return run.learner.params

    def init(self, key: Key, params: PyTree) -> RunState:
        """A run before its first iteration: a fresh learner, an empty memory."""
        run_key, agent_key, world_key = jax.random.split(key, 3)
        worlds, timestep = self.worlds.reset(world_key, params)
        learner = self.agent.init(agent_key, timestep.obs)
        action = self._random_actions(run_key)
        row = jax.tree.map(lambda x: x[0], (timestep.obs, action, timestep.reward))
        replay = self.buffer.init(*row)
        return RunState(learner, worlds, replay, run_key, jnp.int32(0), timestep)

    def _random_actions(self, key: Key) -> Array:
        space = self.env.spec.action
        if isinstance(space, Discrete):
            return draws.integers(key, (self.num_worlds,), space.n)
        assert isinstance(space, Box)
        return 2.0 * draws.uniform(key, (self.num_worlds, *space.shape)) - 1.0

    def exploration(self, iteration: Array) -> Array:
        """How much the agent explores at the end of an iteration."""
        played = (iteration.astype(jnp.float32) + 1.0) * self.steps_per_iteration
        return self.agent.config.exploration(iteration, played - self.steps_per_round)

    def iterate(self, run: RunState, params: PyTree) -> tuple[RunState, dict[str, Array]]:
        """`rounds` rounds of playing and learning, to be compiled as one program."""
        keys = draws.split(jax.random.fold_in(run.key, run.iteration), self.rounds)
        before = run.iteration.astype(jnp.float32) * self.steps_per_iteration

        def one(run, x):
            key, number = x
            played = before + number * self.steps_per_round
            explore = self.agent.config.exploration(run.iteration, played)
            run, round_ = self._round(run, params, key, explore, played)
            return run, (*round_, explore)

        run, (steps, learned, explore) = jax.lax.scan(one, run, (keys, jnp.arange(self.rounds)))
        steps = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)
        summary = episode_summary(steps, self.outcomes)
        means = {name: jnp.nanmean(value) for name, value in learned.items()}
        finite = summary.pop("finite") & is_finite(run.learner.params)
        metrics = summary | {"explore": explore[-1]} | means | {"finite": finite}
        return run.replace(iteration=run.iteration + 1), metrics

    def _round(
        self, run: RunState, params: PyTree, key: Key, explore: Array, played: Array
    ) -> tuple[RunState, tuple[TimeStep, dict[str, Array]]]:
        config = self.agent.config
        play_key, learn_key = draws.split(key)
        warming_up = played < config.learning_starts

        def choose(obs, key):
            act_key, random_key = draws.split(key)
            action = self.act(run.learner.params, obs, act_key, explore=explore)
            if not config.learning_starts:
                return action
            return jnp.where(warming_up, self._random_actions(random_key), action)

        worlds, timestep, (obs, action, steps) = unroll(
            self.worlds, choose, play_key, run.worlds, run.timestep, params, config.unroll_length
        )
        rows = (obs, action, steps.reward, steps.final_obs, steps.terminated)
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        replay = self.buffer.add(run.replay, *rows)
        learner = run.learner
        if hasattr(self.agent, "observe"):
            learner = self.agent.observe(learner, obs)
        learner, learned = self._learn(learner, replay, learn_key, warming_up)
        run = run.replace(learner=learner, worlds=worlds, replay=replay, timestep=timestep)
        # Of the time steps only what is summed up: observations would fill the memory.
        kept = steps.replace(obs=(), final_obs=())
        return run, (kept, learned)

    def _learn(
        self, learner: PyTree, replay: PyTree, key: Key, warming_up: Array
    ) -> tuple[PyTree, dict[str, Array]]:
        config = self.agent.config

        def one(learner, key):
            sample_key, update_key = draws.split(key)
            batch = self.buffer.sample(replay, sample_key, config.batch_size)
            learner, metrics = self.agent.update(learner, batch, update_key)
            return learner, as_dict(metrics)

        def updates(learner):
            keys = draws.split(key, max(config.gradient_steps, 1))
            learner, metrics = jax.lax.scan(one, learner, keys)
            return learner, jax.tree.map(lambda x: x.mean(0), metrics)

        shapes = jax.eval_shape(updates, learner)[1]
        nothing = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), shapes)
        if not config.gradient_steps:
            return learner, nothing
        ready = self.buffer.can_sample(replay, config.batch_size) & ~warming_up
        return jax.lax.cond(ready, updates, lambda learner: (learner, nothing), learner)
