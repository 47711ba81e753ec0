"""On-policy turns: several agents play whole episodes of a turn-based world and learn from them.

Independent learners with a network each, or one network for all; a centralised critic sees what
all agents see; a team's agents learn together. Pure functions of a `RunState`. An iteration is one
episode in every world.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from worldloom.algos.on_policy import Rollout, shared_mean
from worldloom.core import draws, stack
from worldloom.core.memory import as_seen
from worldloom.core.mesh import BATCH_AXIS, replicate, share_of
from worldloom.core.protocols import PureEnv
from worldloom.core.rollout import play_turns
from worldloom.core.transforms import batch, observe_all
from worldloom.core.types import Array, Key, PyTree, RunState, Turn
from worldloom.training.loops.on_policy import learned_well, of_all, sharing
from worldloom.training.loops.summary import as_dict
from worldloom.training.loops.turns import EpisodeLoop, alive


@dataclass(frozen=True)
class OnPolicyTurnLoop(EpisodeLoop):
    """The on-policy loop of one turn-based world and agent, as pure functions.

    centralised: observations are a `JointObservation`, of which critics see all. team_axis: the
    name of the axis of agents that updates are mapped over, for those that learn together. `mesh`
    spreads the worlds over devices, which do together what one does alone.
    """

    centralised: bool = False
    team_axis: str | None = None
    mesh: Mesh | None = None

    def __post_init__(self):
        super().__post_init__()
        merged = self.share_parameters and not self.team_axis
        worlds = share_of(self.num_worlds, "num_worlds", self.mesh)
        if self.mesh is not None:
            sharing(self.agent, BATCH_AXIS)
        rows = worlds * (self.env.spec.num_agents if merged else 1)
        if hasattr(self.agent.config, "check_minibatches"):
            what = f"num_worlds={worlds} times {self.horizon} turns"
            self.agent.config.check_minibatches(self.horizon, rows, what)

    @property
    def observed(self) -> PureEnv:
        return as_seen(self.env, self.centralised, getattr(self.agent.config, "memory_size", 0))

    def place(self, tree: PyTree, what: str) -> PyTree:
        return tree if self.mesh is None else replicate(tree, self.mesh)

    def init(self, key: Key) -> RunState:
        """A run before its first iteration: stacked learners."""
        run_key, agent_key, world_key = jax.random.split(key, 3)
        worlds, _ = self.worlds.reset(world_key, self.params)
        obs = self.worlds.observe_agent(worlds, 0, self.params)
        # One after the other: batched QR decompositions of orthogonal weights can hang on a CPU.
        keys = jax.random.split(agent_key, self.num_learners)
        learner = jax.lax.map(lambda key: self.agent.init(key, obs), keys)
        return RunState(learner, (), (), run_key, jnp.int32(0))

    def agents(self, run: RunState) -> PyTree:
        """The learners of all agents, stacked (A, ...)."""
        return self.for_agents(run.learner)

    def iterate(self, run: RunState) -> tuple[RunState, dict[str, Array]]:
        """One episode in every world and what is learned from it, as one program."""
        if self.mesh is None:
            return self._iterate(run)
        here = PartitionSpec()  # worlds last for an iteration: nothing is kept that could be spread
        return jax.shard_map(
            self._iterate, mesh=self.mesh, in_specs=here, out_specs=here, check_vma=False
        )(run)

    def _iterate(self, run: RunState) -> tuple[RunState, dict[str, Array]]:
        agent, env, axis = self.agent, self.worlds, None
        if self.mesh is not None:
            axis, count = BATCH_AXIS, share_of(self.num_worlds, "num_worlds", self.mesh)
            agent, env = sharing(agent, axis), batch(self.observed, count, axis)
        key = jax.random.fold_in(run.key, run.iteration)
        reset_key, play_key, learn_key = draws.split(key, 3)
        agents = self.agents(run)

        def act(learner, obs, key):
            action, extras = agent.act(learner, obs, key)
            return action, (obs, extras)

        worlds, _ = env.reset(reset_key, self.params)
        keys = draws.split(play_key, self.horizon)
        worlds, turns, _ = play_turns(env, act, keys, worlds, agents, self.params)
        last = jax.vmap(agent.value)(agents, observe_all(env, worlds, self.params))
        rollouts = of_all(self._rollouts(turns, last), axis, 2)
        learners = run.learner
        if self.team_axis:
            learners = agents
        elif self.share_parameters:  # one learner, to whom agents are so many more worlds
            rollouts = jax.tree.map(_merge_agents, rollouts)
        learn_keys = draws.split(learn_key, stack.size(learners))
        update = jax.vmap(agent.update, axis_name=self.team_axis)
        learner, learned = update(learners, rollouts, learn_keys)
        if self.team_axis and self.share_parameters:  # all took the same steps
            learner = jax.tree.map(lambda x: x[:1], learner)
        learned = as_dict(learned)
        learned_all = learned_well(self.agent.config, learner, learned)
        played = shared_mean(
            self.rewards(turns) | {"length": alive(turns.terminated).sum(axis=0).mean()}, axis
        )
        metrics = played | {
            **{name: value.mean() for name, value in learned.items()},
            "finite": jnp.isfinite(played["turn_rewards"]).all() & learned_all,
        }
        return run.replace(learner=learner, iteration=run.iteration + 1), metrics

    def _rollouts(self, turns: Turn, last: Array) -> Rollout:
        """What each agent learns from, leaves (A, T, W, ...); last (A, W): values at the end."""

        def by_agent(x: Array) -> Array:
            return jnp.swapaxes(x, 0, 1)

        obs, extras = turns.record
        value = by_agent(extras.value)
        count = self.env.spec.num_agents
        everywhere = jnp.broadcast_to(turns.terminated, (count, *turns.terminated.shape))
        out_of_time = jnp.zeros_like(everywhere).at[:, -1].set(True)
        return Rollout(
            obs=jax.tree.map(by_agent, obs),
            action=jax.tree.map(by_agent, turns.action),
            log_prob=by_agent(extras.log_prob),
            value=value,
            reward=by_agent(turns.reward),
            terminated=everywhere,
            truncated=out_of_time & ~everywhere,
            next_value=jnp.concatenate([value[:, 1:], last[:, None]], axis=1),
            # Turns after a world ended carry no action.
            weight=jnp.broadcast_to(alive(turns.terminated), everywhere.shape).astype(jnp.float32),
        )


def _merge_agents(x: Array) -> Array:
    """(A, T, W, ...) to (1, T, A * W, ...)."""
    return jnp.moveaxis(x, 0, 1).reshape(1, x.shape[1], -1, *x.shape[3:])
