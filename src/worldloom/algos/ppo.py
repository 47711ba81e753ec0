"""Proximal policy optimisation (Schulman et al. 2017), and with a critic that sees all agents.

Reads from top to bottom: configuration, state, acting, loss, update, descriptor. T is the length
of a rollout, B the number of worlds, N = T * B.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.algorithm import ANY, Algorithm
from worldloom.algos.config import at_least, choice, fraction, positive
from worldloom.algos.on_policy import (
    Extras,
    MinibatchAgent,
    OnPolicyConfig,
    Rollout,
    Samples,
    anneal,
    merge_axes,
    shared_mean,
    weighted_mean,
)
from worldloom.algos.on_policy import OnPolicyState as PPOState
from worldloom.core import draws
from worldloom.core.memory import WithMemory
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.actor_critic import ActorCritic
from worldloom.nn.distributions import Distribution
from worldloom.nn.layers import ACTIVATIONS
from worldloom.nn.networks import Network, Networks
from worldloom.nn.normaliser import clip, normalise, scales
from worldloom.nn.policy import PolicyState
from worldloom.nn.recurrent import RecurrentActorCritic


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Options of the algorithm.

    With the learning rate the entropy cost falls, to `final_entropy_cost` if that is given.
    hidden, activation and initial_log_std are of the multi-layer perceptrons that policy and value
    are where the world brings no network of its own. memory: "gru" ends either of them in
    `memory_units` gated recurrent units, which are zero where an episode begins; gradients flow
    back through `memory_steps`, which divide a rollout, or if that is 0 through all of it.
    """

    gae_lambda: float = fraction(0.95)
    clip_epsilon: float = positive(0.2)
    entropy_cost: float = at_least(0, 0.01)
    value_cost: float = at_least(0, 0.5)
    final_entropy_cost: float | None = at_least(0, None)
    normalise_advantages: bool = True
    activation: str = choice("tanh", tuple(ACTIVATIONS))
    initial_log_std: float = 0.0
    memory: str = choice("none", ("none", "gru"))
    memory_units: int = at_least(1, 64)
    memory_steps: int = at_least(0, 0)

    @property
    def memory_size(self) -> int:
        return 2 * self.memory_units if self.memory == "gru" else 0  # of policy and of value

    def sequence_length(self, steps: int) -> int:
        return (self.memory_steps or steps) if self.memory_size else 1


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


def clipped_objective(
    log_prob: Array, old_log_prob: Array, advantage: Array, clip_epsilon: float
) -> tuple[Array, Array]:
    """What the policy maximises, (n,) (Schulman et al. 2017, eq. 7), and the ratios (n,)."""
    ratio = jnp.exp(log_prob - old_log_prob)
    # Of ratio and clipped ratio the one that gives less: which it is, the sign of the advantage
    # says. The gradients of `clip` and `minimum` would be a dozen kernels more.
    bound = jnp.where(advantage > 0, 1.0 + clip_epsilon, 1.0 - clip_epsilon)
    clipped = jnp.where(advantage > 0, ratio > bound, ratio < bound)
    return jnp.where(clipped, bound, ratio) * advantage, ratio


@dataclass(frozen=True)
class PPO(MinibatchAgent):
    """The algorithm for one network, as pure functions; jit what is called repeatedly."""

    config: PPOConfig
    network: Network | nn.Module
    device_axis: str | None = None
    scaling = optax.scale_by_adam(eps=1e-5)

    @property
    def trace(self) -> float:
        return self.config.gae_lambda

    # Acting ------------------------------------------------------------------------------------

    def policy(self, state: PPOState, obs: PyTree) -> tuple[Distribution, Array]:
        """The distribution over actions and the value (B,) for obs (B, ...)."""
        return self.remembering(state, obs)[:2]

    def remembering(
        self, state: PPOState, obs: PyTree, starts: Array | None = None
    ) -> tuple[Distribution, Array, Array | None]:
        """As `policy`, and what is remembered of obs `WithMemory`; None without a memory.

        Where `starts` (n, L) is given, obs are n sequences, and B is n * L.
        """
        out: Any
        if not isinstance(obs, WithMemory):
            out = self.network.apply(state.params, normalise(state.normaliser, obs))
            return (*out, None)
        obs = obs.replace(now=normalise(state.normaliser, obs.now))
        out = self.network.apply(state.params, obs, starts)
        return out

    def value(self, state: PPOState, obs: PyTree) -> Array:
        """The value (B,) of obs (B, ...)."""
        return self.policy(state, obs)[1]

    def act(
        self, state: PPOState, obs: PyTree, key: Key, *, explore: Array | float = 1.0
    ) -> tuple[Any, Extras]:
        """Actions (B, ...) for obs (B, ...): drawn from the policy, or its mode if explore is 0.

        With a memory, `WithMemory`.
        """
        distribution, value, memory = self.remembering(state, obs)
        first = draws.first_row(value.shape[0], self.device_axis)
        if isinstance(explore, jax.Array):
            action = jnp.where(explore > 0, distribution.sample(key, first), distribution.mode())
        else:
            action = distribution.sample(key, first) if explore else distribution.mode()
        extras = Extras(distribution.log_prob(action), value)
        return action if memory is None else WithMemory(action, memory), extras

    def deterministic(self, state: PPOState) -> PolicyState:
        """The mean action in [-1, 1] for flat observations (B, n), to execute or to export."""
        size = 0
        if state.normaliser is None:
            size = state.params["params"]["policy_0"]["kernel"].shape[0]
        mean, std = scales(state.normaliser, size)

        def apply(params: PyTree, obs: Array) -> Array:
            inputs = obs if state.normaliser is None else clip(obs)
            both: Any = self.network.apply(params, inputs)
            return jnp.clip(both[0].mode(), -1.0, 1.0)

        return PolicyState(state.params, mean, std, apply)

    # Learning ----------------------------------------------------------------------------------

    def entropy_cost(self, updates: Array) -> Array:
        """The entropy cost after so many updates."""
        config = self.config
        cost, final = config.entropy_cost, config.final_entropy_cost
        return anneal(cost, cost if final is None else final, updates, config.anneal_updates)

    def loss(
        self, params: PyTree, state: PPOState, batch: Samples
    ) -> tuple[Array, dict[str, Array]]:
        """Loss (), and what it is made of; `state` gives the normaliser and the entropy cost."""
        config = self.config
        state = state.replace(params=params)
        distribution, value, _ = self.remembering(state, batch.obs, batch.starts)
        if batch.starts is not None:  # step by step again
            batch = merge_axes(batch.replace(obs=None))
        log_prob = distribution.log_prob(batch.action)
        advantage = batch.advantage
        if config.normalise_advantages:
            advantage = advantage - shared_mean(advantage.mean(), self.device_axis)
            variance = shared_mean(jnp.square(advantage).mean(), self.device_axis)
            spread = jnp.sqrt(variance)
            advantage = advantage / (spread + 1e-8)
        objective, ratio = clipped_objective(
            log_prob, batch.log_prob, advantage, config.clip_epsilon
        )
        mean = weighted_mean(batch.weight, self.device_axis)
        policy_loss = -mean(objective)
        value_loss = 0.5 * mean(jnp.square(value - batch.returns))
        entropy = mean(distribution.entropy())
        entropy_cost = self.entropy_cost(state.updates)
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

    def update(self, state: PPOState, rollout: Rollout, key: Key) -> tuple[PPOState, PPOMetrics]:
        """`num_epochs` passes over a rollout, in minibatches of another order each time."""
        state, metrics = self.learn_from(state, rollout, key)
        return state, PPOMetrics(**metrics)


def make(config: PPOConfig, spec: EnvSpec, networks: Networks) -> PPO:
    """PPO for a world of `spec`, with multi-layer perceptrons unless it brings its own network."""
    if networks.actor_critic is not None:
        return PPO(config, networks.actor_critic(config))
    space = spec.action
    sizes: dict[str, Any] = {
        "num_actions": space.n if isinstance(space, Discrete) else None,
        "action_size": space.shape[0] if isinstance(space, Box) else None,
        "hidden": config.hidden,
        "activation": config.activation,
        "initial_log_std": config.initial_log_std,
    }

    def inputs(obs: PyTree) -> dict[str, Any]:
        critic = networks.critic_encode
        return {"obs": networks.encode(obs), "critic_obs": critic(obs) if critic else None}

    if config.memory_size:
        return PPO(config, recurrent(config, sizes, inputs))
    net = ActorCritic(**sizes)
    return PPO(
        config,
        Network(
            init=lambda key, obs: net.init(key, **inputs(obs)),
            apply=lambda params, obs: net.apply(params, **inputs(obs)),
        ),
    )


def recurrent(
    config: PPOConfig, sizes: Mapping[str, Any], inputs: Callable[[PyTree], dict[str, Any]]
) -> Network:
    """Policy and value that remember, of obs `WithMemory`: one step (B, ...), or sequences."""
    net = RecurrentActorCritic(**sizes, units=config.memory_units)

    def given(obs: WithMemory, starts: Array | None) -> dict[str, Any]:
        now = obs.now if starts is None else merge_axes(obs.now)
        if starts is None:  # memories of worlds that began anew are zero already
            starts = jnp.zeros((obs.memory.shape[0], 1), bool)
        return inputs(now) | {"memory": obs.memory, "starts": starts}

    return Network(
        init=lambda key, obs: net.init(key, **given(obs, None)),
        apply=lambda params, obs, starts=None: net.apply(params, **given(obs, starts)),
    )


ABOUT = ("ppo", "clipped policy gradients from fresh rollouts", "on_policy", ANY)
ALGORITHM = Algorithm(*ABOUT, PPOConfig, make)
