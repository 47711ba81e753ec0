"""On-policy unrolls: play a stretch in every world, learn from it, forget it.

For worlds of one agent and any on-policy agent (ppo, pqn). Pure functions of a `RunState`. The
world's params are an argument of the compiled program, never a constant in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from worldloom.algos.on_policy import OnPolicyAgent, collect
from worldloom.core import draws
from worldloom.core.mesh import BATCH_AXIS, place, replicate, share_of
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import autoreset_batch, episode_stats
from worldloom.core.types import Array, Key, PyTree, RunState, TimeStep
from worldloom.training.loops.summary import as_dict, episode_summary, is_finite
from worldloom.training.trainer import Loop

PRIOR_KEY = 5_000_011  # what learns beside the policy draws from keys of its own


class Prior(Protocol):
    """Something that learns beside the policy, and pays it for how it does what it does."""

    def init(self, key: Key) -> PyTree: ...
    def reward(self, state: PyTree, steps: TimeStep, reward: Array) -> Array:
        """The rewards (T, B) that the policy learns from, given those of the world."""
        ...

    def update(
        self, state: PyTree, steps: TimeStep, key: Key
    ) -> tuple[PyTree, Mapping[str, Array]]: ...


@dataclass(frozen=True)
class OnPolicyLoop(Loop):
    """The on-policy loop of one world and agent, as pure functions.

    `outcomes(info)` names what to average over ended episodes beside return and length: from the
    world's infos (T, B) to arrays (T, B), of which the values at an episode's end count. `mesh`
    spreads the worlds over devices, which do together what one does alone, but for a prior: that
    draws its samples on each device from the worlds there.
    """

    env: PureEnv  # one world, whose episodes end
    agent: OnPolicyAgent
    num_worlds: int
    outcomes: Callable[[PyTree], Mapping[str, Array]] = lambda info: {}
    prior: Prior | None = None
    mesh: Mesh | None = None

    def __post_init__(self):
        config = self.agent.config
        worlds = share_of(self.num_worlds, "num_worlds", self.mesh)
        if self.mesh is not None:
            sharing(self.agent, BATCH_AXIS)
        if hasattr(config, "check_minibatches"):  # an agent of one's own may have none
            what = f"num_worlds={worlds} times unroll_length={config.unroll_length}"
            config.check_minibatches(config.unroll_length, worlds, what)

    @cached_property
    def worlds(self) -> PureEnv:
        """Those of all devices."""
        return episode_stats(autoreset_batch(self.env, self.num_worlds))

    @property
    def steps_per_iteration(self) -> int:
        return self.num_worlds * self.agent.config.unroll_length

    def place(self, tree: PyTree, what: str) -> PyTree:
        if self.mesh is None:
            return tree
        return place(tree, self.mesh, spread()) if what == "state" else replicate(tree, self.mesh)

    def init(self, key: Key, params: PyTree) -> RunState:
        """A run before its first iteration, the same on any number of devices."""
        run_key, learner_key, world_key = jax.random.split(key, 3)
        worlds, timestep = self.worlds.reset(world_key, params)
        learner = self.agent.init(learner_key, timestep.obs)
        prior = () if self.prior is None else self.prior.init(jax.random.fold_in(key, PRIOR_KEY))
        return RunState(learner, worlds, (), run_key, jnp.int32(0), timestep, prior)

    def iterate(self, run: RunState, params: PyTree) -> tuple[RunState, dict[str, Array]]:
        """One unroll and what is learned from it, to be compiled as one program.

        Its random choices hang on the run's key and its number alone.
        """
        if self.mesh is None:
            return self._iterate(run, params)
        everywhere = PartitionSpec()
        return jax.shard_map(
            self._iterate,
            mesh=self.mesh,
            in_specs=(spread(), everywhere),
            out_specs=(spread(), everywhere),
            check_vma=False,  # loops over chosen worlds differ in length between devices
        )(run, params)

    def _iterate(self, run: RunState, params: PyTree) -> tuple[RunState, dict[str, Array]]:
        agent, prior, here, axis = self.agent, self.prior, self.worlds, None
        if self.mesh is not None:
            axis, count = BATCH_AXIS, share_of(self.num_worlds, "num_worlds", self.mesh)
            agent = sharing(agent, axis)
            here = episode_stats(autoreset_batch(self.env, count, device_axis=axis))
        key = jax.random.fold_in(run.key, run.iteration)
        play_key, learn_key = draws.split(key)
        worlds, timestep, rollout, steps = collect(
            agent, here, run.learner, run.worlds, run.timestep, params, play_key
        )
        prior_state, prior_metrics = run.prior, {}
        if prior is not None:
            # As it was when this was played: a discriminator that learns from it first is lenient.
            reward = prior.reward(run.prior, steps, rollout.reward)
            rollout = rollout.replace(reward=reward)
            if axis is not None:
                key = jax.random.fold_in(key, jax.lax.axis_index(axis))
            prior_key = jax.random.fold_in(key, PRIOR_KEY)
            prior_state, prior_metrics = prior.update(run.prior, steps, prior_key)
        learner, learned = agent.update(run.learner, of_all(rollout, axis, 1), learn_key)
        learned = as_dict(learned)
        summary = episode_summary(steps, self.outcomes, axis)
        finite = summary.pop("finite") & learned_well(agent.config, learner, learned)
        run = RunState(learner, worlds, (), run.key, run.iteration + 1, timestep, prior_state)
        return run, summary | dict(prior_metrics) | learned | {"finite": finite}


def learned_well(config: Any, learner: PyTree, learned: Mapping[str, Array]) -> Array:
    """() bool: parameters are finite, and not every minibatch was skipped."""
    finite = is_finite(learner.params)
    if "skipped" not in learned:
        return finite
    return finite & (learned["skipped"] < config.num_epochs * config.num_minibatches).all()


def sharing(agent: Any, axis: str) -> Any:
    """The agent as one of the devices of an axis, inside of `shard_map`."""
    if "device_axis" not in getattr(agent, "__dataclass_fields__", ()):
        raise ValueError(
            f"{type(agent).__name__} trains on one device: it has no field `device_axis`"
        )
    return replace(agent, device_axis=axis)


def of_all(tree: PyTree, axis: str | None, dimension: int) -> PyTree:
    """What all devices of an axis have, one after the other along a dimension."""
    if axis is None:
        return tree
    return jax.tree.map(lambda x: jax.lax.all_gather(x, axis, axis=dimension, tiled=True), tree)


def spread() -> RunState:
    """How a run lies on devices: the worlds are spread, what is learned is everywhere."""
    spread: Any = PartitionSpec(BATCH_AXIS)
    everywhere: Any = PartitionSpec()
    return RunState(everywhere, spread, everywhere, everywhere, everywhere, spread, everywhere)
