"""Off-policy turns: agents play an epoch, remember it, and learn from memory.

Everything here is a pure function of a `RunState`. The execution modes in `modes.py` differ only
in how much of it they hand to XLA at once; an epoch is always

    start -> horizon turns -> remember -> updates_per_epoch updates of every agent
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos import independent
from worldloom.algos.metrics import LearnMetrics
from worldloom.core import draws, stack
from worldloom.core.protocols import PureEnv
from worldloom.core.rollout import newest_frame, play_turn, play_turns
from worldloom.core.sums import running_count
from worldloom.core.transforms import batch, observe_all
from worldloom.core.types import Array, Key, PyTree, RunState, Transition, Turn
from worldloom.nn.values import blank_observation


@struct.dataclass
class EpochKeys:
    """Every random choice of an epoch hangs on one of these."""

    reset: Key  # ()
    turns: Key  # (T,)
    updates: Key  # (U,)


@struct.dataclass
class EpochMetrics:
    """What an epoch came to; with a leading axis of epochs, and in numpy, on the host."""

    score: Array  # () rewards of all agents in one world, averaged over worlds
    reward: Array  # (A,) the same for each agent
    turn_reward: Array  # (T, A) the same for each turn
    epsilon: Array  # ()
    loss: Array  # (A,) mean over the epoch's updates; NaN if the memory was not ready
    grad_norm: Array  # (A,)
    q_mean: Array  # (A,)
    finite: Array  # () rewards and losses were finite, and all that was learned is


@dataclass(frozen=True)
class Loop:
    """The off-policy loop of one task, agent and memory, as pure functions."""

    env: PureEnv  # one world
    agent: Any
    ring: Any  # its lanes are the parallel worlds
    params: PyTree  # the world's numbers
    updates_per_epoch: int
    epsilon: float
    epsilon_decay: float
    epsilon_min: float

    @property
    def worlds(self) -> PureEnv:
        return batch(self.env, self.ring.lanes)

    @property
    def horizon(self) -> int:
        assert self.env.spec.horizon is not None
        return self.env.spec.horizon

    def init(self, key: Key) -> RunState:
        """A run before its first epoch: stacked learners, empty memories."""
        run_key, agent_key, world_key = jax.random.split(key, 3)
        spec = self.env.spec
        learner = independent.init(self.agent, agent_key, spec)
        worlds, _ = self.worlds.reset(world_key, self.params)
        frame = blank_observation(spec)[0, 0]
        no = jnp.asarray(False)
        example = Transition(frame, jnp.int32(0), jnp.float32(0), no, no, no)
        blank = self.ring.init(example)
        copies = jax.tree.map(lambda x: jnp.repeat(x[None], spec.num_agents, 0), blank)
        return RunState(learner, worlds, copies, run_key, jnp.int32(0))

    # One epoch, in pieces ------------------------------------------------------------------------

    def keys(self, run: RunState) -> EpochKeys:
        """The keys of the run's next epoch: a function of the run's key and its epoch alone."""
        reset, turns, updates = jax.random.split(jax.random.fold_in(run.key, run.epoch), 3)
        return EpochKeys(
            reset,
            jax.random.split(turns, self.horizon),
            jax.random.split(updates, self.updates_per_epoch),
        )

    def epsilon_at(self, epoch: Array) -> Array:
        """The chance of a random action, falling by a fixed share each epoch."""
        decayed = self.epsilon * (1.0 - self.epsilon_decay) ** epoch.astype(jnp.float32)
        return jnp.maximum(decayed, self.epsilon_min)

    def act(self, epsilon: Array):
        """How one agent, given as its parameters, chooses in the turn loop."""

        def choose(params, obs, key):
            return self.agent.act(params, obs, key, explore=epsilon)[0]

        return choose

    def start(self, run: RunState, keys: EpochKeys) -> RunState:
        """Fresh worlds, and whatever the agents do at the start of an epoch."""
        worlds, _ = self.worlds.reset(keys.reset, self.params)
        learner = run.learner
        if hasattr(self.agent, "start_epoch"):
            learner = jax.vmap(self.agent.start_epoch, (0, None))(learner, run.epoch)
        return run.replace(worlds=worlds, learner=learner)

    def turn(self, worlds: PyTree, agents: PyTree, key: Key, epoch: Array) -> tuple[PyTree, Turn]:
        """One turn of every agent, given as stacked parameters, in every world."""
        act = self.act(self.epsilon_at(epoch))
        return play_turn(self.worlds, act, key, worlds, agents, self.params)

    def remember(self, run: RunState, turns: Turn) -> RunState:
        """Writes the turns (T, ...) and the last observation into every agent's memory."""
        last = jax.vmap(partial(newest_frame, self.env.spec))(
            observe_all(self.worlds, run.worlds, self.params)
        )
        rows = jax.vmap(memory_rows, (1, 1, 1, None, 0))(
            turns.frame, turns.action, turns.reward, turns.terminated, last
        )
        return run.replace(replay=jax.vmap(self.ring.extend)(run.replay, rows))

    def ready(self, run: RunState) -> Array:
        """(A,) whose memory holds enough for a batch."""
        size = self.agent.config.batch_size
        return jax.vmap(lambda replay: self.ring.can_sample(replay, size))(run.replay)

    def update(self, run: RunState, key: Key, ready: Array) -> tuple[RunState, PyTree]:
        """One update of every agent that is ready."""
        sample_keys, learn_keys = agent_keys(key, self.env.spec.num_agents)
        size = self.agent.config.batch_size
        batches = jax.vmap(lambda r, k: self.ring.sample(r, k, size))(run.replay, sample_keys)
        learner, metrics = independent.parallel_train_agents(
            self.agent, run.learner, batches, learn_keys, ready=ready
        )
        return run.replace(learner=learner), metrics

    def finish(self, run: RunState, turns: Turn, learned: PyTree) -> tuple[RunState, EpochMetrics]:
        """Counts the epoch and sums it up; `learned` has leaves (U, A)."""
        turn_reward = (turns.reward * alive(turns.terminated)[:, None, :]).mean(axis=2)
        reward = turn_reward.sum(axis=0)
        metrics = EpochMetrics(
            score=reward.sum(),
            reward=reward,
            turn_reward=turn_reward,
            epsilon=self.epsilon_at(run.epoch),
            loss=learned.loss.mean(axis=0),
            grad_norm=learned.grad_norm.mean(axis=0),
            q_mean=learned.q_mean.mean(axis=0),
            finite=jnp.isfinite(turns.reward).all() & self._sound(run.learner.params, learned),
        )
        return run.replace(epoch=run.epoch + 1), metrics

    def _sound(self, params: PyTree, learned: PyTree) -> Array:
        # A loss that is NaN may mean "did not learn", so the parameters must tell.
        weights = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]
        return jnp.stack(weights).all() & ~jnp.isinf(learned.loss).any()

    def gather(self, learned: Sequence[LearnMetrics]) -> LearnMetrics:
        """The metrics (U, A) of an epoch's updates, (A,) each; U may be 0."""
        if not learned:
            none = jnp.zeros((0, self.env.spec.num_agents), jnp.float32)
            return LearnMetrics(none, none, none)
        return stack.stack(learned)

    # One epoch, whole ----------------------------------------------------------------------------

    def play(self, run: RunState, keys: Key) -> tuple[RunState, Turn]:
        """All turns of an epoch in one scan."""
        act = self.act(self.epsilon_at(run.epoch))
        agents = run.learner.params
        if independent.is_large(self.agent):
            agents = stack.unstack(agents)
        worlds, turns, _ = play_turns(self.worlds, act, keys, run.worlds, agents, self.params)
        return run.replace(worlds=worlds), turns

    def learn(self, run: RunState, keys: Key) -> tuple[RunState, PyTree]:
        """All updates of an epoch in one scan; metrics (U, A)."""
        ready = self.ready(run)
        return jax.lax.scan(lambda r, k: self.update(r, k, ready), run, keys)

    def epoch(self, run: RunState) -> tuple[RunState, EpochMetrics]:
        """A whole epoch, to be compiled as one program."""
        keys = self.keys(run)
        run, turns = self.play(self.start(run, keys), keys.turns)
        run, learned = self.learn(self.remember(run, turns), keys.updates)
        return self.finish(run, turns, learned)


def agent_keys(key: Key, num_agents: int) -> tuple[Key, Key]:
    """Keys (A,) to sample memory with, and keys (A,) to learn with."""
    keys = draws.split(key, 2 * num_agents)
    return keys[:num_agents], keys[num_agents:]


def alive(terminated: Array) -> Array:
    """(T, W): the world had not ended before this turn."""
    return running_count(terminated) == terminated


def memory_rows(
    frame: Array, action: Array, reward: Array, terminated: Array, last: Array
) -> Transition:
    """One agent's epoch as T + 1 memory rows: frames (T, W, ...) and the last one (W, ...).

    Turns after a world ended carry no action: they are marked final and never sampled.
    """
    live = alive(terminated)
    nothing = jnp.zeros_like(action[:1])
    no = jnp.zeros_like(live[:1])
    first = jnp.concatenate([~no, jnp.zeros_like(live)])
    return Transition(
        frame=jnp.concatenate([frame, last[None]]),
        action=jnp.concatenate([action, nothing]),
        reward=jnp.concatenate([reward, nothing.astype(reward.dtype)]),
        terminated=jnp.concatenate([terminated & live, no]),
        first=first,
        final=jnp.concatenate([~live, ~no]),
    )
