"""What on-policy agents share: rollouts, generalised advantages, minibatches.

An on-policy agent has `init(key, obs)`, `act(state, obs, key, explore=...)` that returns actions
and `Extras`, `value(state, obs)`, and `update(state, rollout, key)` that returns the new state and
metrics. T is the length of a rollout, B the number of worlds, N = T * B.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import Environment, PureEnv
from worldloom.core.rollout import unroll
from worldloom.core.sparse import update_chosen
from worldloom.core.transforms import as_pure
from worldloom.core.types import Array, Key, PyTree, TimeStep

TRUNCATED_CHUNK = 256  # how many last observations are valued at a time
MOST_INDEX_BITS = 16  # of 32 that a shuffle sorts by; the others are random


class Extras(struct.PyTreeNode):
    """What the agent computed beside its action, (B,) each."""

    log_prob: Array
    value: Array


class Rollout(struct.PyTreeNode):
    """What an update learns from: leaves (T, B, ...).

    `next_value` is the value of what the action led to, before any automatic reset: it counts
    unless the step was `terminated`. `weight` is what each step counts in the loss; None: 1.
    """

    obs: PyTree
    action: Array
    log_prob: Array
    value: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_value: Array
    weight: Array | None = None


class OnPolicyAgent(Protocol):
    """PPO, PQN and their like."""

    @property
    def config(self) -> Any: ...
    @property
    def axis_name(self) -> str | None: ...
    def init(self, key: Key, obs: PyTree) -> Any: ...
    def act(
        self, state: Any, obs: PyTree, key: Key, *, explore: Array | float = 1.0
    ) -> tuple[Array, Extras]: ...
    def value(self, state: Any, obs: PyTree) -> Array: ...
    def update(self, state: Any, rollout: Rollout, key: Key) -> tuple[Any, Any]: ...


def collect(
    agent: OnPolicyAgent,
    env: Environment | PureEnv,
    state: PyTree,
    worlds: PyTree,
    timestep: TimeStep,
    params: PyTree,
    key: Key,
) -> tuple[PyTree, TimeStep, Rollout, TimeStep]:
    """Plays `unroll_length` steps in a batched env that resets itself.

    Returns the worlds and their time step at the end, what to learn from, and all time steps
    (T, B, ...).
    """
    pure = as_pure(env)

    def step(key, worlds, action, params):  # the extras ride along and are recorded
        return pure.step(key, worlds, action[0], params)

    def choose(obs, key) -> Any:
        return agent.act(state, obs, key)

    worlds, timestep, (obs, (action, extras), steps) = unroll(
        replace(pure, step=step),
        choose,
        key,
        worlds,
        timestep,
        params,
        agent.config.unroll_length,
    )
    last_value = agent.value(state, timestep.obs)
    next_value = jnp.concatenate([extras.value[1:], last_value[None]])
    # After an automatic reset the next observation belongs to another episode.
    next_value = update_chosen(
        steps.truncated.reshape(-1),
        lambda final_obs: agent.value(state, final_obs),
        next_value.reshape(-1),
        merge_axes(steps.final_obs),
        TRUNCATED_CHUNK,
    ).reshape(next_value.shape)
    rollout = Rollout(
        obs=obs,
        action=action,
        log_prob=extras.log_prob,
        value=extras.value,
        reward=steps.reward,
        terminated=steps.terminated,
        truncated=steps.truncated,
        next_value=next_value,
    )
    return worlds, timestep, rollout, steps


def gae(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    gae_lambda: Array | float,
) -> Array:
    """Generalised advantage estimates (T, B) (Schulman et al. 2016), everything (T, B).

    A terminated step is worth its reward alone. A truncated one goes on in `next_values`, the
    value of the last observation of its episode. Beyond either, the sum takes nothing from the
    episode that follows.
    """
    errors = rewards + gamma * jnp.where(terminated, 0.0, next_values) - values
    carries = jnp.where(terminated | truncated, 0.0, gamma * gae_lambda)

    def one(after, x):
        error, carry = x
        advantage = error + carry * after
        return advantage, advantage

    return jax.lax.scan(one, jnp.zeros_like(errors[0]), (errors, carries), reverse=True)[1]


# Learning from a rollout -----------------------------------------------------------------------


def learn_in_minibatches(
    learn: Callable[[Any, Any], tuple[Any, dict[str, Array]]],
    state: Any,
    samples: Any,
    key: Key,
    config: Any,
) -> tuple[Any, dict[str, Array]]:
    """`num_epochs` passes of `learn(state, minibatch)` over samples (N, ...), shuffled each time.

    `learn` returns the new state and metrics, among which `good` says whether the step was taken.
    Returns the last state and the metrics as means over steps that were, with `skipped`: how many
    were not.
    """
    size = jax.tree.leaves(samples)[0].shape[0]
    if size % config.num_minibatches:
        raise ValueError(
            f"a rollout of {size} steps does not split into "
            f"num_minibatches={config.num_minibatches} of equal size"
        )

    def epoch(state, key):
        def one(state, rows):
            return learn(state, jax.tree.map(lambda x: x[rows], samples))

        return jax.lax.scan(one, state, shuffled(key, size, config.num_minibatches))

    state, metrics = jax.lax.scan(epoch, state, draws.split(key, config.num_epochs))
    good = metrics.pop("good")
    means = {
        name: jnp.where(good, x, 0.0).sum() / jnp.maximum(good.sum(), 1)
        for name, x in metrics.items()
    }
    return state, means | {"skipped": (~good).sum().astype(jnp.float32)}


def guarded_step(
    optimiser: optax.GradientTransformation, state: Any, grads: PyTree, loss: Array, rate: Array
) -> tuple[Any, dict[str, Array]]:
    """One step of an optimiser at a learning rate; what is not finite changes nothing.

    `state` has `params` and `opt_state`. Metrics: `grad_norm`, and `good`, whether it was taken.
    """
    # Of one flat vector, as the optimisers clip: so the compiler computes it once.
    norm = optax.tree.norm(jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(grads)]))
    good = jnp.isfinite(loss) & jnp.isfinite(norm)
    steps, opt_state = optimiser.update(grads, state.opt_state, state.params)
    params = jax.tree.map(lambda p, step: p - rate * step, state.params, steps)
    params, opt_state = jax.tree.map(
        lambda new, old: jnp.where(good, new, old),
        (params, opt_state),
        (state.params, state.opt_state),
    )
    return state.replace(params=params, opt_state=opt_state), {"grad_norm": norm, "good": good}


def anneal(start: float, end: float, updates: Array, over: int) -> Array:
    """A number that falls in a line from `start` to `end` over so many updates; 0 keeps it."""
    if not over:
        return jnp.float32(start)
    return start + jnp.minimum(updates / over, 1.0) * (end - start)


def weighted_mean(weight: Array | None) -> Callable[[Array], Array]:
    """The mean over steps (n,), each counted by its weight."""
    if weight is None:
        return jnp.mean
    total = jnp.maximum(weight.sum(), 1e-8)
    return lambda values: (values * weight).sum() / total


def shared_mean(tree: PyTree, axis_name: str | None) -> PyTree:
    """Means over the devices of `axis_name`; what there is where there is one device."""
    return tree if axis_name is None else jax.lax.pmean(tree, axis_name)


def explained_variance(returns: Array, advantage: Array, axis_name: str | None) -> Array:
    """Of returns (N,), by values that miss them by `advantage`: 1 is perfect, 0 no use."""

    def variance(values: Array) -> Array:
        centre = shared_mean(values.mean(), axis_name)
        return shared_mean(jnp.square(values - centre).mean(), axis_name)

    return 1.0 - variance(advantage) / jnp.maximum(variance(returns), 1e-8)


def shuffled(key: Key, size: int, parts: int) -> Array:
    """The numbers 0 .. size-1 in random order, (parts, size / parts)."""
    order, width = draws.bits(key, (size,)), (size - 1).bit_length()
    if width > MOST_INDEX_BITS:
        return jnp.argsort(order).reshape(parts, -1)
    # Each number in the low bits of what it is sorted by: one array to sort instead of two.
    packed = (order >> width << width) | jnp.arange(size, dtype=jnp.uint32)
    chosen = jnp.sort(packed, stable=False) & jnp.uint32(2**width - 1)
    return chosen.astype(jnp.int32).reshape(parts, -1)


def merge_axes(tree: PyTree) -> PyTree:
    """Leaves (T, B, ...) to (T * B, ...)."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)
