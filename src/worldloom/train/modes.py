"""Three ways to execute the same epochs; they differ only in how much XLA sees at once.

jax_sequential: Python loops over turns and agents, one small jitted call each.
jax_parallel: Python loops over turns, one call for all agents; one call for all updates.
jax_fused: whole epochs, as many as asked, in one XLA program.

All are made of the pure functions of `Loop` and draw from the same keys, so with equal
parameters they choose equal actions. A driver owns the `RunState` it is given: its buffers are
donated to the next epoch.
"""

from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos.metrics import LearnMetrics
from worldloom.core import draws, stack
from worldloom.core.rollout import agent_turn, newest_frame, turn_keys
from worldloom.core.types import PyTree, RunState, Turn
from worldloom.train.online import EpochMetrics, Loop, agent_keys
from worldloom.train.programs import Jitted, Repeated

Mode = Literal["torch_sequential", "jax_sequential", "jax_parallel", "jax_fused"]
JAX_MODES: tuple[Mode, ...] = ("jax_sequential", "jax_parallel", "jax_fused")
MODES: tuple[Mode, ...] = ("torch_sequential", *JAX_MODES)


class Driver(Protocol):
    """Advances a run by some epochs, and knows how long it spent compiling."""

    @property
    def compile_seconds(self) -> float: ...

    def advance(self, run: RunState, epochs: int) -> tuple[RunState, EpochMetrics]:
        """Plays and learns `epochs` epochs; metrics (epochs, ...) on the host."""
        ...


def make_driver(loop: Loop, mode: Mode, chunk: int = 10) -> Driver:
    """The driver of one of the JAX modes; `chunk` bounds the epochs of one fused program."""
    if mode == "jax_fused":
        return Fused(loop, chunk)
    if mode == "jax_parallel":
        return Parallel(loop)
    if mode == "jax_sequential":
        return Sequential(loop)
    raise ValueError(f"make_driver: mode={mode!r}; use one of {', '.join(JAX_MODES)}")


def _to_host(rows: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *rows)


class Fused:
    """Whole epochs in one program. How many is an argument, so any number compiles once."""

    def __init__(self, loop: Loop, chunk: int = 10):
        self.loop, self.chunk = loop, chunk
        self._epochs = Repeated(loop.epoch, chunk)

    @property
    def compile_seconds(self) -> float:
        return self._epochs.compile_seconds

    def advance(self, run: RunState, epochs: int) -> tuple[RunState, EpochMetrics]:
        return self._epochs(run, epochs)


class Parallel:
    """Python over turns; all agents of a turn, and all updates, in one call each."""

    def __init__(self, loop: Loop):
        self.loop = loop
        self._keys = Jitted(loop.keys)
        self._start = Jitted(loop.start, donate=(0,))
        self._turn = Jitted(loop.turn, donate=(0,))
        self._remember = Jitted(lambda run, turns: loop.remember(run, stack.stack(turns)), (0,))
        self._ready = Jitted(loop.ready)
        self._update = Jitted(loop.update, donate=(0,))
        self._finish = Jitted(
            lambda run, turns, learned: loop.finish(run, stack.stack(turns), loop.gather(learned)),
            donate=(0,),
        )

    @property
    def compile_seconds(self) -> float:
        return sum(f.compile_seconds for f in vars(self).values() if isinstance(f, Jitted))

    def advance(self, run: RunState, epochs: int) -> tuple[RunState, EpochMetrics]:
        rows = []
        for _ in range(epochs):
            keys = self._keys(run)
            run = self._start(run, keys)
            worlds, turns = run.worlds, []
            for key in keys.turns:
                worlds, turn = self._turn(worlds, run.learner.params, key, run.epoch)
                turns.append(turn)
            run = self._remember(run.replace(worlds=worlds), turns)
            ready = self._ready(run)
            learned = []
            for key in keys.updates:
                run, metrics = self._update(run, key, ready)
                learned.append(metrics)
            run, row = self._finish(run, turns, learned)
            rows.append(row)
        return run, _to_host(rows)


class Sequential:
    """Python over turns and over agents, as an object loop would, with jitted calls inside."""

    def __init__(self, loop: Loop):
        self.loop = loop
        env, params = loop.worlds, loop.params
        self._keys = Jitted(loop.keys)
        self._turn_keys = Jitted(lambda key: turn_keys(key, env.spec.num_agents))
        self._start = Jitted(loop.start, donate=(0,))

        # Keys are split as in `play_turn`, so that the same turn gets the same draws.
        def look_and_act(worlds, i, agent, key, epoch):
            act = loop.act(loop.epsilon_at(epoch))
            return agent_turn(env, act, key, worlds, i, agent, params)

        def end(worlds, seen, key):
            worlds, terminated, truncated = env.end_turn(draws.split(key)[1], worlds, params)
            frame, action, paid = stack.stack(seen)
            return worlds, Turn(frame, action, paid.sum(axis=0).T, terminated, truncated)

        def look(worlds, i, agent, key, epoch):
            obs = env.observe_agent(worlds, i, params)
            act = loop.act(loop.epsilon_at(epoch))
            return newest_frame(env.spec, obs), act(agent, obs, draws.split(key)[0])

        def act_and_end(worlds, seen, key):
            apply_key, end_key = draws.split(key)
            frame, action = stack.stack(seen)
            worlds, paid = env.apply_all(apply_key, worlds, action.T, params)
            worlds, terminated, truncated = env.end_turn(end_key, worlds, params)
            return worlds, Turn(frame, action, paid.T, terminated, truncated)

        self._look_and_act = Jitted(look_and_act, donate=(0,))
        self._end = Jitted(end, donate=(0,))
        self._look = Jitted(look)
        self._act_and_end = Jitted(act_and_end, donate=(0,))
        self._remember = Jitted(lambda run, turns: loop.remember(run, stack.stack(turns)), (0,))
        self._ready = Jitted(loop.ready)
        self._agent_keys = Jitted(lambda key: agent_keys(key, env.spec.num_agents))
        size = loop.agent.config.batch_size
        self._sample = Jitted(
            lambda replay, i, key: loop.ring.sample(stack.index(replay, i), key, size)
        )
        self._learn = Jitted(loop.agent.update, donate=(0,))
        self._finish = Jitted(loop.finish, donate=(0,))

    @property
    def compile_seconds(self) -> float:
        return sum(f.compile_seconds for f in vars(self).values() if isinstance(f, Jitted))

    def _play_turn(self, worlds: PyTree, agents: list, key, epoch) -> tuple[PyTree, Turn]:
        keys, world_key = self._turn_keys(key)
        numbered = [(jnp.int32(i), *pair) for i, pair in enumerate(zip(agents, keys, strict=True))]
        if not self.loop.env.spec.interleaved:
            seen = [self._look(worlds, *one, epoch) for one in numbered]
            return self._act_and_end(worlds, seen, world_key)
        seen = []
        for one in numbered:
            worlds, done = self._look_and_act(worlds, *one, epoch)
            seen.append(done)
        return self._end(worlds, seen, world_key)

    def advance(self, run: RunState, epochs: int) -> tuple[RunState, EpochMetrics]:
        rows = []
        for _ in range(epochs):
            keys = self._keys(run)
            run = self._start(run, keys)
            learners = stack.unstack(run.learner)
            agents = [learner.params for learner in learners]
            worlds, turns = run.worlds, []
            for key in keys.turns:
                worlds, turn = self._play_turn(worlds, agents, key, run.epoch)
                turns.append(turn)
            run = self._remember(run.replace(worlds=worlds), turns)
            ready = np.asarray(self._ready(run))
            learned = []
            for key in keys.updates:
                sample_keys, learn_keys = self._agent_keys(key)
                metrics = []
                for i, learner in enumerate(learners):
                    batch = self._sample(run.replay, jnp.int32(i), sample_keys[i])
                    if ready[i]:
                        learners[i], one = self._learn(learner, batch, learn_keys[i])
                    else:
                        nan = jnp.float32(jnp.nan)
                        one = LearnMetrics(nan, nan, nan)
                    metrics.append(one)
                learned.append(stack.stack(metrics))
            run = run.replace(learner=stack.stack(learners))
            run, row = self._finish(run, stack.stack(turns), self.loop.gather(learned))
            rows.append(row)
        return run, _to_host(rows)
