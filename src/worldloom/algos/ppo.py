"""Proximal policy optimisation (Schulman et al. 2017), and with a critic that sees all agents.

Reads from top to bottom: configuration, state, acting, loss, update, descriptor. T is the length
of a rollout, B the number of worlds, N = T * B.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.algorithm import Algorithm
from worldloom.algos.on_policy import (
    Extras,
    Rollout,
    anneal,
    collect,
    explained_variance,
    gae,
    guarded_step,
    learn_in_minibatches,
    merge_axes,
    shared_mean,
    weighted_mean,
)
from worldloom.core import draws
from worldloom.core.checks import check_fields
from worldloom.core.protocols import Environment, EnvSpec, PureEnv
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.nn.actor_critic import ACTIVATIONS, ActorCritic
from worldloom.nn.distributions import Distribution
from worldloom.nn.networks import Network, Networks
from worldloom.nn.normaliser import (
    LIMIT,
    Normaliser,
    make_normaliser,
    mean_and_std,
    normalise,
    observe,
)
from worldloom.nn.policy import PolicyState


@dataclass(frozen=True)
class PPOConfig:
    """Options of the algorithm.

    An update learns `num_epochs` times from num_worlds * unroll_length steps, shuffled into
    `num_minibatches` each time. anneal_updates: over so many updates the learning rate falls in
    a line to `final_learning_rate`, and the entropy cost to `final_entropy_cost` if that is
    given; 0 keeps both. reward_scale multiplies rewards before anything else sees them. hidden,
    activation and initial_log_std are of the multi-layer perceptrons that policy and value are
    where the world brings no network of its own.
    """

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
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    initial_log_std: float = 0.0

    def __post_init__(self):
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a list, when read from a file
        check_fields(
            "ppo",
            self,
            at_least={
                "unroll_length": 1,
                "num_epochs": 1,
                "num_minibatches": 1,
                "hidden": 1,
                "entropy_cost": 0,
                "value_cost": 0,
                "final_learning_rate": 0,
                "final_entropy_cost": 0,
                "anneal_updates": 0,
            },
            positive=("clip_epsilon", "learning_rate", "max_grad_norm", "reward_scale"),
            fractions=("gamma", "gae_lambda"),
            choices={"activation": tuple(ACTIVATIONS)},
        )


# State -----------------------------------------------------------------------------------------


class PPOState(struct.PyTreeNode):
    """All that is learned; `normaliser` is None where observations are taken as they come."""

    params: PyTree
    opt_state: PyTree
    normaliser: Normaliser | None
    updates: Array


class Samples(struct.PyTreeNode):
    """What the loss is computed on, (n, ...): the order of time no longer matters."""

    obs: PyTree
    action: Array
    log_prob: Array
    advantage: Array
    returns: Array
    weight: Array | None = None


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


# Loss ---------------------------------------------------------------------------


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
    network: Network | nn.Module
    axis_name: str | None = None

    def shared(self, tree: PyTree) -> PyTree:
        """Means over the devices; what there is where there is one."""
        return shared_mean(tree, self.axis_name)

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

    def value(self, state: PPOState, obs: PyTree) -> Array:
        """The value (B,) of obs (B, ...)."""
        return self.policy(state, obs)[1]

    def act(
        self, state: PPOState, obs: PyTree, key: Key, *, explore: Array | float = 1.0
    ) -> tuple[Array, Extras]:
        """Actions (B, ...) for obs (B, ...): drawn from the policy, or its mode if explore is 0."""
        distribution, value = self.policy(state, obs)
        if isinstance(explore, jax.Array):
            action = jnp.where(explore > 0, distribution.sample(key), distribution.mode())
        else:
            action = distribution.sample(key) if explore else distribution.mode()
        return action, Extras(distribution.log_prob(action), value)

    def deterministic(self, state: PPOState) -> PolicyState:
        """The mean action in [-1, 1] for flat observations (B, n), to execute or to export."""
        if state.normaliser is None:
            size = state.params["params"]["policy_0"]["kernel"].shape[0]
            mean, std = jnp.zeros(size), jnp.ones(size)
        else:
            mean, std = mean_and_std(state.normaliser)

        def apply(params: PyTree, obs: Array) -> Array:
            clipped = obs if state.normaliser is None else jnp.clip(obs, -LIMIT, LIMIT)
            both: Any = self.network.apply(params, clipped)
            return jnp.clip(both[0].mode(), -1.0, 1.0)

        return PolicyState(state.params, mean, std, apply)

    # Learning ----------------------------------------------------------------------------------

    def annealed(self, updates: Array) -> tuple[Array, Array]:
        """Learning rate and entropy cost after so many updates."""
        config = self.config
        cost, over = config.entropy_cost, config.anneal_updates
        final_cost = cost if config.final_entropy_cost is None else config.final_entropy_cost
        return (
            anneal(config.learning_rate, config.final_learning_rate, updates, over),
            anneal(cost, final_cost, updates, over),
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
        mean = weighted_mean(batch.weight)
        policy_loss = -mean(objective)
        value_loss = 0.5 * mean(jnp.square(value - batch.returns))
        entropy = mean(distribution.entropy())
        entropy_cost = self.annealed(state.updates)[1]
        loss = policy_loss + config.value_cost * value_loss - entropy_cost * entropy
        return loss, {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            # An estimate of KL(old || new) that is never negative (Schulman 2020).
            "kl": mean(ratio - 1.0 - (log_prob - batch.log_prob)),
            "clip_fraction": mean(jnp.abs(ratio - 1.0) > config.clip_epsilon),
        }

    def samples(self, rollout: Rollout) -> Samples:
        """A rollout (T, B, ...) with its advantages, as N samples in the order of time."""
        config = self.config
        advantage = gae(
            rollout.reward * config.reward_scale,
            rollout.value,
            rollout.next_value,
            rollout.terminated,
            rollout.truncated,
            config.gamma,
            config.gae_lambda,
        )
        samples = Samples(
            obs=rollout.obs,
            action=rollout.action,
            log_prob=rollout.log_prob,
            advantage=advantage,
            returns=advantage + rollout.value,
            weight=rollout.weight,
        )
        return merge_axes(samples)

    def learn(self, state: PPOState, batch: Samples) -> tuple[PPOState, dict[str, Array]]:
        """One gradient step on one minibatch; what is not finite changes nothing.

        The parts of the loss, `grad_norm`, and `good`: whether the step was taken.
        """
        (_, parts), grads = jax.value_and_grad(self.loss, has_aux=True)(state.params, state, batch)
        parts, grads = self.shared((parts, grads))
        rate = self.annealed(state.updates)[0]
        state, step = guarded_step(self.optimiser, state, grads, parts["loss"], rate)
        return state, parts | step

    def update(self, state: PPOState, rollout: Rollout, key: Key) -> tuple[PPOState, PPOMetrics]:
        """`num_epochs` passes over a rollout, in minibatches of another order each time."""
        samples = self.samples(rollout)
        new, means = learn_in_minibatches(self.learn, state, samples, key, self.config)
        metrics = PPOMetrics(
            **means,
            explained_variance=explained_variance(
                samples.returns, samples.advantage, self.axis_name
            ),
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
        worlds, timestep, rollout, steps = collect(
            self, env, state, worlds, timestep, params, play_key
        )
        state, metrics = self.update(state, rollout, learn_key)
        return state, worlds, timestep, metrics, watch(steps)


# Descriptors -----------------------------------------------------------------------------------


def make(config: PPOConfig, spec: EnvSpec, networks: Networks, axis_name: str | None = None) -> PPO:
    """PPO for a world of `spec`, with multi-layer perceptrons unless it brings its own network."""
    if networks.actor_critic is not None:
        return PPO(config, networks.actor_critic(config), axis_name)
    space = spec.action
    net = ActorCritic(
        num_actions=space.n if isinstance(space, Discrete) else None,
        action_size=space.shape[0] if isinstance(space, Box) else None,
        hidden=config.hidden,
        activation=config.activation,
        initial_log_std=config.initial_log_std,
    )

    def inputs(obs: PyTree) -> dict[str, Any]:
        apart = networks.critic_encode is not None
        return {
            "obs": networks.encode(obs),
            "critic_obs": networks.encode_for_critic(obs) if apart else None,
        }

    return PPO(
        config,
        Network(
            init=lambda key, obs: net.init(key, **inputs(obs)),
            apply=lambda params, obs: net.apply(params, **inputs(obs)),
        ),
        axis_name,
    )


ALGORITHM = Algorithm(
    name="ppo",
    description="clipped policy gradients from fresh rollouts",
    loop="on_policy",
    actions=frozenset({"discrete", "continuous"}),
    config=PPOConfig,
    make=make,
)
