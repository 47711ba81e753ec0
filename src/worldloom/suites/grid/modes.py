"""Three ways to execute the same iterations; they differ only in how much XLA sees at once.

jax_sequential: Python loops over turns and agents, one small jitted call each.
jax_parallel: Python loops over turns, one call for all agents; one call for all updates.
jax_fused: whole iterations, as many as asked, in one XLA program.

All are made of the pure functions of `TurnLoop` and draw from the same keys, so with equal
parameters they choose equal actions. Each owns the `RunState` it is given: its buffers are
donated to the next iteration.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos.independent import nothing_learned
from worldloom.core import draws, stack
from worldloom.core.rollout import agent_turn, turn_keys
from worldloom.core.types import Array, Key, PyTree, RunState, Turn
from worldloom.suites.grid.suite import JAX_MODES
from worldloom.training.config import TrainConfig
from worldloom.training.loops import turn_loop
from worldloom.training.loops.turns import TurnLoop, agent_keys
from worldloom.training.suite import Problem
from worldloom.training.trainer import Jitted, Repeated, Trainer


class ModeTrainer(Trainer):
    """A `Trainer` that executes iterations in one of the JAX modes."""

    def __init__(self, config: TrainConfig, problem: Problem):
        loop: Any = turn_loop(config, problem)
        if config.share_parameters:
            raise ValueError("share_parameters is trained as one program; use mode='jax_fused'")
        repeat = make_repeat(loop, config.settings.mode, config.chunk)
        super().__init__(loop, seed=config.seed, chunk=config.chunk, repeat=repeat)


def make_repeat(loop: TurnLoop, mode: str, chunk: int = 10) -> Any:
    """How a JAX mode executes iterations; `chunk` bounds those of one fused program."""
    if mode == "jax_fused":
        return Repeated(loop.iterate, chunk)
    if mode == "jax_parallel":
        return Parallel(loop)
    if mode == "jax_sequential":
        return Sequential(loop)
    raise ValueError(f"mode={mode!r}; use one of {', '.join(JAX_MODES)}")


class Parallel:
    """Python over turns; all agents of a turn, and all updates, in one call each."""

    def __init__(self, loop: TurnLoop):
        self.loop = loop
        self._keys = Jitted(loop.keys)
        self._start = Jitted(loop.start, donate=(0,))
        self._remember = Jitted(lambda run, turns: loop.remember(run, stack.stack(turns)), (0,))
        self._ready = Jitted(loop.ready)
        self._turn = Jitted(loop.turn, donate=(0,))
        self._update = Jitted(loop.update, donate=(0,))
        self._finish = Jitted(
            lambda run, turns, learned: loop.finish(
                run, stack.stack(turns), loop.gather(learned, run)
            ),
            donate=(0,),
        )

    @property
    def compile_seconds(self) -> float:
        return sum(f.compile_seconds for f in vars(self).values() if isinstance(f, Jitted))

    def __call__(self, run: RunState, count: int) -> tuple[RunState, dict[str, np.ndarray]]:
        rows = []
        for _ in range(count):
            keys = self._keys(run)
            run = self._start(run, keys)
            learners, worlds, turns = self.learners(run), run.worlds, []
            for key in keys.turns:
                worlds, turn = self.turn(worlds, learners, key, run.iteration)
                turns.append(turn)
            run = self._remember(run.replace(worlds=worlds), turns)
            run, row = self.learn(run, learners, turns, keys.updates)
            rows.append(row)
        return run, jax.tree.map(lambda *leaves: np.stack(list(map(np.asarray, leaves))), *rows)

    def learners(self, run: RunState) -> Any:
        """The learners in the form that `turn` and `learn` take them."""
        return run.learner

    def turn(self, worlds: PyTree, learners: Any, key: Key, iteration: Array) -> Any:
        """One turn of all agents: the worlds, and what happened."""
        return self._turn(worlds, learners.params, key, iteration)

    def learn(self, run: RunState, learners: Any, turns: list[Turn], keys: Key) -> Any:
        """All updates of an iteration: the run, and its row of metrics."""
        ready, learned = self._ready(run), []
        for key in keys:
            run, metrics = self._update(run, key, ready)
            learned.append(metrics)
        return self._finish(run, turns, learned)


class Sequential(Parallel):
    """Python over turns and over agents, as an object loop would, with jitted calls inside."""

    def __init__(self, loop: TurnLoop):
        super().__init__(loop)
        env, params = loop.worlds, loop.params
        self._turn_keys = Jitted(lambda key: turn_keys(key, env.spec.num_agents))

        # Keys are split as in `play_turn`, so that the same turn gets the same draws.
        def look_and_act(worlds, i, agent, key, iteration):
            return agent_turn(env, loop.exploring(iteration), key, worlds, i, agent, params)

        def end(worlds, turns, key):
            worlds, terminated, truncated = env.end_turn(draws.split(key)[1], worlds, params)
            frame, action, reward = stack.stack(turns)
            return worlds, Turn(frame, action, reward.sum(axis=0).T, terminated, truncated)

        def look(worlds, i, agent, key, iteration):
            obs = env.observe_agent(worlds, i, params)
            return loop.exploring(iteration)(agent, obs, draws.split(key)[0])

        def act_and_end(worlds, turns, key):
            apply_key, end_key = draws.split(key)
            action, frame = stack.stack(turns)
            worlds, reward = env.apply_all(apply_key, worlds, action.T, params)
            worlds, terminated, truncated = env.end_turn(end_key, worlds, params)
            return worlds, Turn(frame, action, reward.T, terminated, truncated)

        self._look_and_act = Jitted(look_and_act, donate=(0,))
        self._end = Jitted(end, donate=(0,))
        self._look = Jitted(look)
        self._act_and_end = Jitted(act_and_end, donate=(0,))
        self._agent_keys = Jitted(lambda key: agent_keys(key, env.spec.num_agents))
        size = loop.agent.config.batch_size
        self._sample = Jitted(
            lambda replay, i, key: loop.ring.sample(stack.index(replay, i), key, size)
        )
        self._update = Jitted(loop.agent.update, donate=(0,))
        self._finish = Jitted(loop.finish, donate=(0,))
        self._no_metrics: PyTree = None

    def learners(self, run: RunState) -> list[PyTree]:
        return stack.unstack(run.learner)

    def turn(self, worlds: PyTree, learners: list, key: Key, iteration: Array) -> Any:
        keys, world_key = self._turn_keys(key)
        agents = [
            (jnp.int32(i), learner.params, key)
            for i, (learner, key) in enumerate(zip(learners, keys, strict=True))
        ]
        if not self.loop.env.spec.interleaved:
            turns = [self._look(worlds, *agent, iteration) for agent in agents]
            return self._act_and_end(worlds, turns, world_key)
        turns = []
        for agent in agents:
            worlds, done = self._look_and_act(worlds, *agent, iteration)
            turns.append(done)
        return self._end(worlds, turns, world_key)

    def learn(self, run: RunState, learners: list, turns: list[Turn], keys: Key) -> Any:
        ready = np.asarray(self._ready(run))
        learned = []
        for key in keys:
            sample_keys, learn_keys = self._agent_keys(key)
            metrics = []
            for i, learner in enumerate(learners):
                batch = self._sample(run.replay, jnp.int32(i), sample_keys[i])
                if ready[i]:
                    learners[i], one = self._update(learner, batch, learn_keys[i])
                else:
                    one = self._nothing(learner, batch, key)
                metrics.append(one)
            learned.append(stack.stack(metrics))
        run = run.replace(learner=stack.stack(learners))
        return self._finish(run, stack.stack(turns), self.loop.gather(learned, run))

    def _nothing(self, learner: PyTree, batch: PyTree, key: Key) -> PyTree:
        """Metrics of an agent that did not learn."""
        if self._no_metrics is None:  # traced once: that takes longer than an update
            shapes = jax.eval_shape(self.loop.agent.update, learner, batch, key)[1]
            self._no_metrics = nothing_learned(shapes)
        return self._no_metrics
