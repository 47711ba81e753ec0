"""Proximal policy optimisation (Schulman et al. 2017): rollout and update in one program.

Reads from top to bottom: configuration, state, acting, rollout, advantages, loss, update,
iteration. T is the length of a rollout, B the number of worlds, N = T * B.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import flax.linen as nn
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
from worldloom.nn.distributions import Distribution
from worldloom.nn.normaliser import Normaliser, make_normaliser, normalise, observe

TRUNCATED_CHUNK = 256  # how many last observations are valued at a time


@dataclass(frozen=True)
class PPOConfig:
    """Every option of the algorithm.

    An update learns `num_epochs` times from num_worlds * unroll_length steps, shuffled into
    `num_minibatches` each time. anneal_updates: over so many updates the learning rate falls in
    a line to `final_learning_rate`, and the entropy cost to `final_entropy_cost` if that is
    given; 0 keeps both. reward_scale multiplies rewards before anything else sees them.
    """

    num_worlds: int = 256
    unroll_length: int = 32
    num_epochs: int = 4
    num_minibatches: int = 4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    entropy_cost: float = 0.01
    value_cost: float = 0.5
    learning_rate: float = 3e-4
    anneal_updates: int = 0
    final_learning_rate: float = 0.0
    final_entropy_cost: float | None = None
    max_grad_norm: float = 0.5
    reward_scale: float = 1.0
    normalise_observations: bool = False
    normalise_advantages: bool = True

    def __post_init__(self):
        for name in ("num_worlds", "unroll_length", "num_epochs", "num_minibatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"ppo: {name}={getattr(self, name)}; it must be at least 1")
        for name in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"ppo: {name}={getattr(self, name):g}; it must be in [0, 1]")
        for name in ("clip_epsilon", "learning_rate", "max_grad_norm", "reward_scale"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"ppo: {name}={getattr(self, name):g}; it must be positive")
        costs = ("entropy_cost", "value_cost", "final_learning_rate", "anneal_updates")
        for name in (*costs, *(["final_entropy_cost"] if self.final_entropy_cost else [])):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"ppo: {name}={getattr(self, name):g}; it must be 0 or more")
        steps = self.num_worlds * self.unroll_length
        if steps % self.num_minibatches:
            raise ValueError(
                f"ppo: num_worlds={self.num_worlds} times unroll_length={self.unroll_length} is "
                f"{steps} steps, which num_minibatches={self.num_minibatches} does not divide"
            )


class Apart(NamedTuple):
    """A network as two functions, for obs (B, ...).

    init(key, obs) -> params; apply(params, obs) -> (distribution over actions, values (B,)).
    """

    init: Callable[..., PyTree]
    apply: Callable[..., Any]


Network = nn.Module | Apart


# State -----------------------------------------------------------------------------------------


class PPOState(struct.PyTreeNode):
    """All that is learned; `normaliser` is None where observations are taken as they come."""

    params: PyTree
    opt_state: PyTree
    normaliser: Normaliser | None
    updates: Array


class Extras(struct.PyTreeNode):
    """What was thought of an action when it was taken, (B,) each."""

    log_prob: Array
    value: Array


class Rollout(struct.PyTreeNode):
    """What an update learns from: leaves (T, B, ...).

    `next_value` is the value of what the action led to, before any automatic reset: it counts
    unless the step was `terminated`.
    """

    obs: PyTree
    action: Array
    log_prob: Array
    value: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_value: Array


class Samples(struct.PyTreeNode):
    """What the loss is computed on, (n, ...): the order of time no longer matters."""

    obs: PyTree
    action: Array
    log_prob: Array
    advantage: Array
    returns: Array


class PPOMetrics(struct.PyTreeNode):
    """() float32 each: means over an update's minibatches, but for the last two.

    kl: how far the policy moved from the one that acted. clip_fraction: the share of steps whose
    ratio was cut. grad_norm: before clipping. explained_variance: of the returns, by the values
    the rollout was played with; 1 is perfect, 0 no better than a constant. skipped: minibatches
    whose loss or gradient was not finite; they change nothing.
    """

    loss: Array
    policy_loss: Array
    value_loss: Array
    entropy: Array
    kl: Array
    clip_fraction: Array
    grad_norm: Array
    explained_variance: Array
    skipped: Array


# Advantages and loss ---------------------------------------------------------------------------


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


def clipped_objective(
    log_prob: Array, old_log_prob: Array, advantage: Array, clip_epsilon: float
) -> tuple[Array, Array]:
    """What the policy maximises, (n,) (Schulman et al. 2017, eq. 7), and the ratios (n,)."""
    ratio = jnp.exp(log_prob - old_log_prob)
    cut = jnp.clip(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon)
    return jnp.minimum(ratio * advantage, cut * advantage), ratio


# The agent -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PPO:
    """The algorithm for one network, as pure functions; jit what is called repeatedly.

    `axis_name` is that of the devices that share the worlds, inside of `shard_map`: each learns
    from its own, and all take the same steps, on the mean of their gradients.
    """

    config: PPOConfig
    network: Network
    axis_name: str | None = None

    def shared(self, tree: PyTree) -> PyTree:
        """Means over the devices; what there is where there is one."""
        return tree if self.axis_name is None else jax.lax.pmean(tree, self.axis_name)

    def variance(self, values: Array) -> Array:
        """Of all values (n,) that the devices have, ()."""
        return self.shared(jnp.square(values - self.shared(values.mean())).mean())

    @property
    def optimiser(self) -> optax.GradientTransformation:
        # One flat vector instead of many small arrays: fewer kernels to compile. The learning rate
        # is applied where the number of updates is known.
        clip = optax.clip_by_global_norm(self.config.max_grad_norm)
        return optax.flatten(optax.chain(clip, optax.scale_by_adam(eps=1e-5)))

    def init(self, key: Key, obs: PyTree) -> PPOState:
        """A fresh state for observations like obs (B, ...)."""
        params = self.network.init(key, obs)
        normaliser = make_normaliser(obs) if self.config.normalise_observations else None
        return PPOState(params, self.optimiser.init(params), normaliser, jnp.int32(0))

    # Acting ------------------------------------------------------------------------------------

    def policy(self, state: PPOState, obs: PyTree) -> tuple[Distribution, Array]:
        """The distribution over actions and the value (B,) for obs (B, ...)."""
        both: Any = self.network.apply(state.params, normalise(state.normaliser, obs))
        return both

    def act(
        self, state: PPOState, obs: PyTree, key: Key, *, explore: bool = True
    ) -> tuple[Array, Extras]:
        """Actions (B, ...) for obs (B, ...): drawn from the policy, or its likeliest."""
        distribution, value = self.policy(state, obs)
        action = distribution.sample(key) if explore else distribution.mode()
        return action, Extras(distribution.log_prob(action), value)

    def rollout(
        self,
        env: Environment | PureEnv,
        state: PPOState,
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
            return self.act(state, obs, key)

        worlds, timestep, (obs, (action, extras), steps) = unroll(
            replace(pure, step=step), choose, key, worlds, timestep, params,
            self.config.unroll_length,
        )  # fmt: skip
        last_value = self.policy(state, timestep.obs)[1]
        next_value = jnp.concatenate([extras.value[1:], last_value[None]])
        # After an automatic reset the next observation belongs to another episode.
        next_value = update_chosen(
            steps.truncated.reshape(-1),
            lambda final_obs: self.policy(state, final_obs)[1],
            next_value.reshape(-1),
            merge_axes(steps.final_obs),
            TRUNCATED_CHUNK,
        ).reshape(next_value.shape)
        return worlds, timestep, Rollout(
            obs, action, extras.log_prob, extras.value,
            steps.reward, steps.terminated, steps.truncated, next_value,
        ), steps  # fmt: skip

    # Learning ----------------------------------------------------------------------------------

    def annealed(self, updates: Array) -> tuple[Array, Array]:
        """Learning rate and entropy cost after so many updates."""
        config = self.config
        rate, cost = config.learning_rate, config.entropy_cost
        if not config.anneal_updates:
            return jnp.float32(rate), jnp.float32(cost)
        done = jnp.minimum(updates / config.anneal_updates, 1.0)
        final_cost = cost if config.final_entropy_cost is None else config.final_entropy_cost
        return (
            rate + done * (config.final_learning_rate - rate),
            cost + done * (final_cost - cost),
        )

    def loss(
        self, params: PyTree, state: PPOState, batch: Samples
    ) -> tuple[Array, dict[str, Array]]:
        """Loss (), and what it is made of; `state` gives the normaliser and the entropy cost."""
        config = self.config
        distribution, value = self.policy(state.replace(params=params), batch.obs)
        log_prob = distribution.log_prob(batch.action)
        advantage = batch.advantage
        if config.normalise_advantages:
            advantage = advantage - self.shared(advantage.mean())
            spread = jnp.sqrt(self.shared(jnp.square(advantage).mean()))
            advantage = advantage / (spread + 1e-8)
        objective, ratio = clipped_objective(
            log_prob, batch.log_prob, advantage, config.clip_epsilon
        )
        policy_loss = -objective.mean()
        value_loss = 0.5 * jnp.square(value - batch.returns).mean()
        entropy = distribution.entropy().mean()
        entropy_cost = self.annealed(state.updates)[1]
        loss = policy_loss + config.value_cost * value_loss - entropy_cost * entropy
        return loss, {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            # An estimate of KL(old || new) that is never negative (Schulman 2020).
            "kl": (ratio - 1.0 - (log_prob - batch.log_prob)).mean(),
            "clip_fraction": (jnp.abs(ratio - 1.0) > config.clip_epsilon).mean(),
        }

    def samples(self, rollout: Rollout) -> Samples:
        """A rollout (T, B, ...) with its advantages, as N samples in the order of time."""
        config = self.config
        advantage = gae(
            rollout.reward * config.reward_scale, rollout.value, rollout.next_value,
            rollout.terminated, rollout.truncated, config.gamma, config.gae_lambda,
        )  # fmt: skip
        return merge_axes(
            Samples(
                rollout.obs, rollout.action, rollout.log_prob, advantage, advantage + rollout.value
            )
        )

    def learn(self, state: PPOState, batch: Samples) -> tuple[PPOState, dict[str, Array]]:
        """One gradient step on one minibatch; what is not finite changes nothing.

        The parts of the loss, `grad_norm`, and `good`: whether the step was taken.
        """
        (_, parts), grads = jax.value_and_grad(self.loss, has_aux=True)(state.params, state, batch)
        parts, grads = self.shared((parts, grads))
        norm = optax.tree.norm(grads)
        good = jnp.isfinite(parts["loss"]) & jnp.isfinite(norm)
        steps, opt_state = self.optimiser.update(grads, state.opt_state, state.params)
        rate = self.annealed(state.updates)[0]
        params = jax.tree.map(lambda p, step: p - rate * step, state.params, steps)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(good, new, old),
            (params, opt_state), (state.params, state.opt_state),
        )  # fmt: skip
        parts = parts | {"grad_norm": norm, "good": good}
        return state.replace(params=params, opt_state=opt_state), parts

    def update(self, state: PPOState, rollout: Rollout, key: Key) -> tuple[PPOState, PPOMetrics]:
        """`num_epochs` passes over a rollout, in minibatches of another order each time."""
        config = self.config
        samples = self.samples(rollout)
        size = samples.advantage.shape[0]
        if size % config.num_minibatches:
            raise ValueError(
                f"ppo: a rollout of {size} steps does not split into "
                f"num_minibatches={config.num_minibatches} of equal size"
            )

        def epoch(state, key):
            def one(state, rows):
                return self.learn(state, jax.tree.map(lambda x: x[rows], samples))

            return jax.lax.scan(one, state, shuffled(key, size, config.num_minibatches))

        new, parts = jax.lax.scan(epoch, state, draws.split(key, config.num_epochs))
        good = parts.pop("good")
        means = {
            name: jnp.where(good, x, 0.0).sum() / jnp.maximum(good.sum(), 1)
            for name, x in parts.items()
        }
        spread = self.variance(samples.returns)
        missed = self.variance(samples.advantage)  # returns less values
        metrics = PPOMetrics(
            **means,
            explained_variance=1.0 - missed / jnp.maximum(spread, 1e-8),
            skipped=(~good).sum().astype(jnp.float32),
        )
        # Only now: the ratios above compare policies that see the world alike.
        normaliser = observe(state.normaliser, rollout.obs, self.axis_name)
        return new.replace(normaliser=normaliser, updates=state.updates + 1), metrics

    def iteration(
        self,
        env: Environment | PureEnv,
        state: PPOState,
        worlds: PyTree,
        timestep: TimeStep,
        params: PyTree,
        key: Key,
        watch: Callable[[TimeStep], PyTree] = lambda steps: (),
    ) -> tuple[PPOState, PyTree, TimeStep, PPOMetrics, PyTree]:
        """A rollout and the update from it: one program, `jax.jit(partial(ppo.iteration, env))`.

        `env` is batched and resets itself; `params` are its parameters. `watch` sums up the time
        steps (T, B, ...) inside of the program. Returns the new state, the worlds and their time
        step, the metrics, and what `watch` made.
        """
        play_key, learn_key = draws.split(key)
        worlds, timestep, rollout, steps = self.rollout(
            env, state, worlds, timestep, params, play_key
        )
        state, metrics = self.update(state, rollout, learn_key)
        return state, worlds, timestep, metrics, watch(steps)


def shuffled(key: Key, size: int, parts: int) -> Array:
    """The numbers 0 .. size-1 in random order, (parts, size / parts)."""
    return jnp.argsort(draws.bits(key, (size,))).reshape(parts, -1)


def merge_axes(tree: PyTree) -> PyTree:
    """Leaves (T, B, ...) to (T * B, ...)."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)
