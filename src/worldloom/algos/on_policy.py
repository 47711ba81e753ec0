"""What on-policy agents share: options, rollouts, generalised advantages, minibatches.

An on-policy agent has `init(key, obs)`, `act(state, obs, key, explore=...)` that returns actions
and `Extras`, `value(state, obs)`, and `update(state, rollout, key)` that returns the new state and
metrics. T is the length of a rollout, B the number of worlds, N = T * B.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Bool, Float, Int

from worldloom.algos.config import Config, at_least, fraction, positive
from worldloom.core import draws
from worldloom.core.memory import WithMemory, without_memory
from worldloom.core.protocols import Environment, PureEnv
from worldloom.core.rollout import unroll
from worldloom.core.sparse import update_chosen
from worldloom.core.transforms import as_pure
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.nn.normaliser import Normaliser, make_normaliser, observe

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
    action: PyTree
    log_prob: Array
    value: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_value: Array
    weight: Array | None = None


class OnPolicyAgent(Protocol):
    """PPO, PQN and their like.

    For several devices a dataclass with a field `device_axis`, as `MinibatchAgent` has.
    """

    @property
    def config(self) -> Any: ...
    def init(self, key: Key, obs: PyTree) -> Any: ...
    def act(
        self, state: Any, obs: PyTree, key: Key, *, explore: Array | float = 1.0
    ) -> tuple[Any, Extras]: ...
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

    extras: Any
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
        # Few at a time where there are few steps: no more than are cut short are worth valuing.
        min(TRUNCATED_CHUNK, max(16, steps.truncated.size // 16)),
    ).reshape(next_value.shape)
    played = (obs, action, extras.log_prob, extras.value, steps.reward)
    rollout = Rollout(*played, steps.terminated, steps.truncated, next_value)
    return worlds, timestep, rollout, steps


Steps = Float[Array, "T B"]  # T steps of B worlds
Number = Float[Array, ""] | float


def gae(
    rewards: Steps,
    values: Steps,
    next_values: Steps,
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    gamma: Number,
    gae_lambda: Number,
) -> Steps:
    """Generalised advantage estimates (Schulman et al. 2016).

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


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(Config):
    """Options of algorithms that learn from minibatches of rollouts.

    An update learns `num_epochs` times from num_worlds * unroll_length steps, shuffled into
    `num_minibatches` each time. anneal_updates: over so many updates the learning rate falls in
    a line to `final_learning_rate`; 0 keeps it. reward_scale multiplies rewards before anything
    else sees them. hidden: widths of the layers where the world brings no network of its own.
    """

    unroll_length: int = at_least(1, 32)
    num_epochs: int = at_least(1, 4)
    num_minibatches: int = at_least(1, 4)
    gamma: float = fraction(0.99)
    normalise_observations: bool = False
    hidden: tuple[int, ...] = at_least(1, (64, 64))
    reward_scale: float = positive(1.0)
    learning_rate: float = positive(3e-4)
    anneal_updates: int = at_least(0, 0)
    final_learning_rate: float = at_least(0, 0.0)
    max_grad_norm: float = positive(0.5)

    @property
    def memory_size(self) -> int:
        """Numbers that an agent keeps from step to step; 0 if it remembers nothing."""
        return 0

    def sequence_length(self, steps: int) -> int:
        """Steps of a rollout of so many that are shuffled as one."""
        return 1

    def check_minibatches(self, steps: int, rows: int, what: str) -> None:
        """Raises ValueError unless rollouts of so many steps in so many rows can be learned from.

        what: says how many those are.
        """
        length, parts = self.sequence_length(steps), self.num_minibatches
        if steps % length:
            raise ValueError(
                f"{self.name}.memory_steps={length} does not divide the {steps} steps of a "
                "rollout; use a divisor, or 0 for all of it"
            )
        if steps // length * rows % parts:
            many = f"{steps * rows} steps"
            many += f" in sequences of {length}" if length > 1 else ""
            raise ValueError(f"{what} is {many}, which num_minibatches={parts} does not divide")


class OnPolicyState(struct.PyTreeNode):
    """All that is learned; `normaliser` is None where observations are taken as they come."""

    params: PyTree
    opt_state: PyTree
    normaliser: Normaliser | None
    updates: Array


class Samples(struct.PyTreeNode):
    """What a loss is computed on, (n, ...): the order of time no longer matters.

    Of agents with a memory n sequences (n, L, ...), of which the memory (n, size) is that before
    the first step; `starts` says where an episode begins.
    """

    obs: PyTree
    action: Any
    log_prob: Array
    advantage: Array
    returns: Array
    weight: Array | None = None
    starts: Array | None = None


class MinibatchAgent:
    """The learning of PPO and PQN, as pure functions; jit what is called repeatedly.

    `device_axis` is that of the devices that share the worlds, inside of `shard_map`: they act as
    one device would in all worlds, and are given the rollouts of all, of which each learns from its
    part of every minibatch. `axis_name` is that of learners with rollouts of their own. On the mean
    of their gradients all take the same steps. `scaling` is the optimiser between clipping and
    learning rate, `trace` the lambda of the returns, and `loss(params, state, samples)` returns the
    loss and its parts.
    """

    config: Any
    network: Any
    axis_name: str | None = None
    device_axis: str | None
    scaling: optax.GradientTransformation
    loss: Callable[..., tuple[Array, dict[str, Array]]]

    @property
    def trace(self) -> float:
        raise NotImplementedError

    @property
    def optimiser(self) -> optax.GradientTransformation:
        # One flat vector instead of many small arrays: fewer kernels to compile. The learning rate
        # is applied where the number of updates is known.
        clip = optax.clip_by_global_norm(self.config.max_grad_norm)
        return optax.flatten(optax.chain(clip, self.scaling))

    def init(self, key: Key, obs: PyTree) -> OnPolicyState:
        """A fresh state for observations like obs (B, ...)."""
        params = self.network.init(key, obs)
        scaled = self.config.normalise_observations
        normaliser = make_normaliser(without_memory(obs)) if scaled else None
        return OnPolicyState(params, self.optimiser.init(params), normaliser, jnp.int32(0))

    def learning_rate(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        """The learning rate after so many updates."""
        config = self.config
        rate, final = config.learning_rate, config.final_learning_rate
        return anneal(rate, final, updates, config.anneal_updates)

    def samples(self, rollout: Rollout) -> Samples:
        """A rollout (T, B, ...) with its advantages, as N samples in the order of time.

        Of an agent with a memory, as sequences of its config's `sequence_length`.
        """
        advantage = gae(
            rollout.reward * self.config.reward_scale,
            rollout.value,
            rollout.next_value,
            rollout.terminated,
            rollout.truncated,
            self.config.gamma,
            self.trace,
        )
        returns = advantage + rollout.value
        acted = (rollout.obs, rollout.action, rollout.log_prob)
        samples = Samples(*acted, advantage, returns, rollout.weight)
        if not isinstance(rollout.obs, WithMemory):
            return merge_axes(samples)
        ended = rollout.terminated | rollout.truncated
        return sequences(samples, ended, self.config.sequence_length(ended.shape[0]))

    def learn(self, state: OnPolicyState, batch: Samples) -> tuple[OnPolicyState, dict[str, Array]]:
        """One gradient step on one minibatch; what is not finite changes nothing.

        The parts of the loss, `grad_norm`, and `good`: whether the step was taken.
        """
        (_, parts), grads = jax.value_and_grad(self.loss, has_aux=True)(state.params, state, batch)
        parts, grads = shared_mean((parts, grads), self.axis_name)
        parts, grads = shared_mean((parts, grads), self.device_axis)
        rate = self.learning_rate(state.updates)
        state, step = guarded_step(self.optimiser, state, grads, parts["loss"], rate)
        return state, parts | step

    def learn_from(
        self, state: OnPolicyState, rollout: Rollout, key: Key
    ) -> tuple[OnPolicyState, dict[str, Array]]:
        """`num_epochs` passes over a rollout, in minibatches of another order each time.

        Metrics are means over minibatches, but for `skipped`, those whose loss or gradient was not
        finite, which change nothing, and `explained_variance`, of the returns by the values that
        the rollout was played with.
        """
        config, samples = self.config, self.samples(rollout)
        size = samples.advantage.shape[0]
        if size % config.num_minibatches:
            what = "steps" if samples.starts is None else "sequences"
            raise ValueError(
                f"a rollout of {size} {what} does not split into "
                f"num_minibatches={config.num_minibatches} of equal size"
            )

        names: list[str] = []

        def epoch(state, key):
            def one(state, rows):
                state, parts = self.learn(state, jax.tree.map(lambda x: x[rows], samples))
                names[:] = parts
                # One vector: the scans then store one array, not one for each metric.
                return state, jnp.stack([x.astype(jnp.float32) for x in parts.values()])

            rows = shuffled(key, size, config.num_minibatches)
            return jax.lax.scan(one, state, own_part(rows, self.device_axis))

        new, parts = jax.lax.scan(epoch, state, draws.split(key, config.num_epochs))
        parts = dict(zip(names, jnp.moveaxis(parts, -1, 0), strict=True))
        explained = explained_variance(samples.returns, samples.advantage, self.axis_name)
        metrics = mean_of_good(parts) | {"explained_variance": explained}
        # Only now: ratios compare policies that see the world alike.
        seen = without_memory(rollout.obs)
        normaliser = observe(state.normaliser, seen, self.axis_name)
        return new.replace(normaliser=normaliser, updates=state.updates + 1), metrics


def guarded_step(
    optimiser: optax.GradientTransformation,
    state: Any,
    grads: PyTree,
    loss: Float[Array, ""],
    rate: Float[Array, ""] | float,
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


def mean_of_good(metrics: dict[str, Array]) -> dict[str, Array]:
    """Means over steps that were taken, as `good` says, with `skipped`: how many were not."""
    good = metrics.pop("good").astype(bool)
    count = jnp.maximum(good.sum(), 1)
    means = {name: jnp.where(good, x, 0.0).sum() / count for name, x in metrics.items()}
    return means | {"skipped": (~good).sum().astype(jnp.float32)}


def anneal(start: float, end: float, updates: Int[Array, ""], over: int) -> Float[Array, ""]:
    """A number that falls in a line from `start` to `end` over so many updates; 0 keeps it."""
    if not over:
        return jnp.float32(start)
    return start + jnp.minimum(updates / float(over), 1.0) * (end - start)


def weighted_mean(
    weight: Float[Array, " n"] | None, device_axis: str | None = None
) -> Callable[[Array], Array]:
    """The mean over steps, each counted by its weight.

    Of devices that have a part of the steps each, the mean of what they get is that over all.
    """
    if weight is None:
        return jnp.mean
    total = jnp.maximum(shared_mean(weight.sum(), device_axis), 1e-8)
    return lambda values: (values * weight).sum() / total


def shared_mean(tree: PyTree, axis_name: str | None) -> PyTree:
    """Means over the devices of `axis_name`; what there is where there is one device."""
    return tree if axis_name is None else jax.lax.pmean(tree, axis_name)


def explained_variance(
    returns: Float[Array, "*N"], advantage: Float[Array, "*N"], axis_name: str | None
) -> Float[Array, ""]:
    """Of returns, by values that miss them by `advantage`: 1 is perfect, 0 no use."""

    def variance(values: Array) -> Array:
        centre = shared_mean(values.mean(), axis_name)
        return shared_mean(jnp.square(values - centre).mean(), axis_name)

    return 1.0 - variance(advantage) / jnp.maximum(variance(returns), 1e-8)


def shuffled(key: Key, size: int, parts: int) -> Int[Array, "{parts} {size//parts}"]:
    """The numbers 0 .. size-1 in random order."""
    order, width = draws.bits(key, (size,)), (size - 1).bit_length()
    if width > MOST_INDEX_BITS:
        return jnp.argsort(order).reshape(parts, -1)
    # Each number in the low bits of what it is sorted by: one array to sort instead of two.
    packed = (order >> width << width) | jnp.arange(size, dtype=jnp.uint32)
    chosen = jnp.sort(packed, stable=False) & jnp.uint32(2**width - 1)
    return chosen.astype(jnp.int32).reshape(parts, -1)


def own_part(rows: Int[Array, "parts n"], device_axis: str | None) -> Int[Array, "parts own"]:
    """Of every minibatch, what a device of `device_axis` learns from; all of it on one alone."""
    if device_axis is None:
        return rows
    devices, size = jax.lax.axis_size(device_axis), rows.shape[1]
    if size % devices:
        raise ValueError(f"minibatches of {size} cannot be shared by {devices} devices equally")
    own = size // devices
    return jax.lax.dynamic_slice_in_dim(rows, draws.first_row(own, device_axis), own, 1)


def sequences(samples: Samples, ended: Bool[Array, "T B"], length: int) -> Samples:
    """Samples (T, B, ...) as T / length * B sequences (length, ...).

    Gradients end where a sequence begins: it goes on from the memory that was played with.
    """

    def cut(x: Array) -> Array:
        x = jnp.swapaxes(x.reshape(-1, length, *x.shape[1:]), 1, 2)
        return x.reshape(-1, length, *x.shape[3:])

    starts = jnp.concatenate([jnp.zeros_like(ended[:1]), ended[:-1]])
    samples = samples.replace(action=samples.action.now, starts=starts)
    cuts = jax.tree.map(cut, samples)
    return cuts.replace(obs=cuts.obs.replace(memory=cuts.obs.memory[:, 0]))


def merge_axes(tree: PyTree) -> PyTree:
    """Leaves (T, B, ...) to (T * B, ...)."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)
