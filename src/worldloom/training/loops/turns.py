"""Off-policy turns: agents play whole episodes, remember them, and learn from memory.

For turn-based worlds of several agents, each with a network and a memory of its own, or all with
one network. Everything here is a pure function of a `RunState`. An iteration is always

    start -> horizon turns -> remember -> gradient_steps updates of every agent
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos import independent
from worldloom.core import draws, stack
from worldloom.core.cumsum import running_count
from worldloom.core.protocols import PureEnv
from worldloom.core.rollout import newest_frame, play_turn, play_turns
from worldloom.core.transforms import batch, observe_all
from worldloom.core.types import Array, Key, PyTree, RunState, Transition, Turn
from worldloom.replay.legacy import LegacyRing
from worldloom.replay.ring import Ring
from worldloom.training.loops.summary import as_dict, is_finite
from worldloom.training.trainer import Loop


@struct.dataclass
class IterationKeys:
    """Every random choice of an iteration hangs on one of these."""

    reset: Key  # ()
    turns: Key  # (T,)
    updates: Key  # (U,)


@dataclass(frozen=True)
class EpisodeLoop(Loop):
    """Whole episodes of one turn-based world; the agents have a network each, or one for all."""

    env: PureEnv  # one world, which ends
    agent: Any
    params: PyTree  # the world's numbers
    num_worlds: int
    share_parameters: bool = False

    def __post_init__(self):
        if self.env.spec.horizon is None:
            raise ValueError(
                f"{self.env.spec.name}: training in whole episodes needs a world that ends; "
                "wrap it in time_limit"
            )

    @property
    def observed(self) -> PureEnv:
        """One world, as its agents and their critics see it."""
        return self.env

    @property
    def worlds(self) -> PureEnv:
        return batch(self.observed, self.num_worlds)

    @property
    def horizon(self) -> int:
        assert self.env.spec.horizon is not None
        return self.env.spec.horizon

    @property
    def steps_per_iteration(self) -> int:
        return self.num_worlds * self.horizon

    @property
    def num_learners(self) -> int:
        return 1 if self.share_parameters else self.env.spec.num_agents

    def for_agents(self, learned: PyTree) -> PyTree:
        """What learners hold (L, ...), for every agent (A, ...)."""
        if not self.share_parameters:
            return learned
        return jax.tree.map(lambda x: jnp.repeat(x, self.env.spec.num_agents, 0), learned)

    def rewards(self, turns: Turn) -> dict[str, Array]:
        """Rewards averaged over worlds: of all agents, of each (A,), and turn by turn (T, A)."""
        turn_rewards = (turns.reward * alive(turns.terminated)[:, None, :]).mean(axis=2)
        agent_returns = turn_rewards.sum(axis=0)
        return {
            "return": agent_returns.sum(),
            "agent_returns": agent_returns,
            "turn_rewards": turn_rewards,
        }


@dataclass(frozen=True)
class TurnLoop(EpisodeLoop):
    """The off-policy loop of one turn-based world and agent; it observes stacks of frames."""

    def __post_init__(self):
        super().__post_init__()
        check_memory(self.env, self.agent.config, self.num_worlds)
        assert self.ring.lanes == self.num_worlds  # made here, where it checks itself

    @property
    def ring(self) -> Any:
        """The memory of one agent; its lanes are the parallel worlds."""
        config = self.agent.config
        kind = LegacyRing if getattr(config, "legacy", False) else Ring
        return kind(
            capacity=config.buffer_size // self.num_worlds,
            lanes=self.num_worlds,
            num_frames=self.env.spec.num_frames,
            n_step=config.n_step,
            gamma=config.gamma,
        )

    def init(self, key: Key) -> RunState:
        """A run before its first iteration: stacked learners, empty memories."""
        run_key, agent_key, world_key = jax.random.split(key, 3)
        worlds, timestep = self.worlds.reset(world_key, self.params)
        obs = jax.tree.map(lambda x: jnp.zeros_like(x[:1, 0]), timestep.obs)
        learner = independent.init(self.agent, agent_key, obs, self.num_learners)
        no = jnp.asarray(False)
        example = Transition(obs[0, 0], jnp.int32(0), jnp.float32(0), no, no, no)
        blank, count = self.ring.init(example), self.env.spec.num_agents
        copies = jax.tree.map(lambda x: jnp.repeat(x[None], count, 0), blank)
        return RunState(learner, worlds, copies, run_key, jnp.int32(0))

    def agents(self, run: RunState) -> PyTree:
        """The parameters of every agent, stacked (A, ...)."""
        return self.for_agents(run.learner.params)

    # One iteration, in pieces --------------------------------------------------------------------

    def keys(self, run: RunState) -> IterationKeys:
        """The keys of the next iteration: a function of the run's key and its number alone."""
        reset, turns, updates = jax.random.split(jax.random.fold_in(run.key, run.iteration), 3)
        return IterationKeys(
            reset,
            jax.random.split(turns, self.horizon),
            jax.random.split(updates, self.agent.config.gradient_steps),
        )

    def exploration(self, iteration: Array) -> Array:
        """How much agents explore in an iteration."""
        steps = iteration.astype(jnp.float32) * self.steps_per_iteration
        return self.agent.config.exploration(iteration, steps)

    def exploring(self, iteration: Array):
        """How one agent, given as its parameters, chooses in the turn loop, and what is kept."""
        explore = self.exploration(iteration)

        def act(params, obs, key):
            return self.act(params, obs, key, explore=explore), newest_frame(self.env.spec, obs)

        return act

    def start(self, run: RunState, keys: IterationKeys) -> RunState:
        """Fresh worlds, and whatever the agents do at the start of an iteration."""
        worlds, _ = self.worlds.reset(keys.reset, self.params)
        learner = run.learner
        if hasattr(self.agent, "start_epoch"):
            learner = jax.vmap(self.agent.start_epoch, (0, None))(learner, run.iteration)
        return run.replace(worlds=worlds, learner=learner)

    def turn(
        self, worlds: PyTree, agents: PyTree, key: Key, iteration: Array
    ) -> tuple[PyTree, Turn]:
        """One turn of every agent, given as stacked parameters, in every world."""
        act = self.exploring(iteration)
        return play_turn(self.worlds, act, key, worlds, agents, self.params)

    def remember(self, run: RunState, turns: Turn) -> RunState:
        """Writes the turns (T, ...) and the last observation into every agent's memory."""
        last = jax.vmap(partial(newest_frame, self.env.spec))(
            observe_all(self.worlds, run.worlds, self.params)
        )
        rows = jax.vmap(memory_rows, (1, 1, 1, None, 0))(
            turns.record, turns.action, turns.reward, turns.terminated, last
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
        if self.share_parameters:
            size = -(-size // self.env.spec.num_agents)
        batches = jax.vmap(lambda r, k: self.ring.sample(r, k, size))(run.replay, sample_keys)
        if self.share_parameters:  # one batch, of which every agent remembers a part
            merged = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batches)
            batches, learn_keys, ready = merged, learn_keys[:1], ready.all(keepdims=True)
        learner, metrics = independent.parallel_train_agents(
            self.agent, run.learner, batches, learn_keys, ready=ready
        )
        return run.replace(learner=learner), metrics

    def finish(
        self, run: RunState, turns: Turn, learned: PyTree
    ) -> tuple[RunState, dict[str, Array]]:
        """Counts the iteration and sums it up; `learned` has leaves (U, L) of L learners.

        return: rewards of all agents in one world, averaged over worlds. Losses are NaN as long as
        memories hold too little to learn from.
        """
        learned = as_dict(learned)
        means = {name: value.mean(axis=0) for name, value in learned.items()}
        # A loss that is NaN may mean "did not learn", so the parameters must tell.
        learned_well = is_finite(run.learner.params) & ~jnp.isinf(learned["loss"]).any()
        metrics = self.rewards(turns) | {
            "epsilon": self.exploration(run.iteration),
            **{name: value.mean() for name, value in means.items()},
            **{f"agent_{name}": value for name, value in means.items()},
            "finite": jnp.isfinite(turns.reward).all() & learned_well,
        }
        return run.replace(iteration=run.iteration + 1), metrics

    def gather(self, learned: Sequence[PyTree], run: RunState) -> PyTree:
        """The metrics (U, L) of an iteration's updates, (L,) each; U may be 0."""
        if learned:
            return stack.stack(learned)
        shapes = jax.eval_shape(self.learn, run, jax.random.split(run.key, 0))[1]
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    # One iteration, whole ------------------------------------------------------------------------

    def play(self, run: RunState, keys: Key) -> tuple[RunState, Turn]:
        """All turns of an iteration in one scan."""
        act, agents = self.exploring(run.iteration), self.agents(run)
        if independent.is_large(self.agent):
            agents = stack.unstack(agents)
        worlds, turns, _ = play_turns(self.worlds, act, keys, run.worlds, agents, self.params)
        return run.replace(worlds=worlds), turns

    def learn(self, run: RunState, keys: Key) -> tuple[RunState, PyTree]:
        """All updates of an iteration in one scan; metrics (U, L)."""
        ready = self.ready(run)
        return jax.lax.scan(lambda r, k: self.update(r, k, ready), run, keys)

    def iterate(self, run: RunState) -> tuple[RunState, dict[str, Array]]:
        """A whole iteration, to be compiled as one program."""
        keys = self.keys(run)
        run, turns = self.play(self.start(run, keys), keys.turns)
        run, learned = self.learn(self.remember(run, turns), keys.updates)
        return self.finish(run, turns, learned)


def check_memory(env: PureEnv, config: Any, num_worlds: int) -> None:
    """Raises ValueError if the memory cannot hold an iteration, or never a batch."""
    horizon, frames = env.spec.horizon or 0, env.spec.num_frames
    rows, size = config.buffer_size // num_worlds, config.batch_size
    if rows < horizon + 1:
        raise ValueError(
            f"{config.name}.buffer_size={config.buffer_size} cannot hold an episode of {horizon} "
            f"turns in each of {num_worlds} worlds; use at least {num_worlds * (horizon + 1)}"
        )
    if getattr(config, "legacy", False):
        windows = rows - frames - 1
    else:
        # Whole episodes, and of the oldest one what is left with complete frame stacks.
        episodes, rest = divmod(rows, horizon + 1)
        windows = (episodes * horizon + max(0, rest - frames)) * num_worlds
    if windows < size:
        raise ValueError(
            f"{config.name}.buffer_size={config.buffer_size} with num_worlds={num_worlds} never "
            f"holds more than {windows} steps to learn from, and {config.name}.batch_size={size} "
            "needs as many; use a larger buffer or a smaller batch"
        )


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
