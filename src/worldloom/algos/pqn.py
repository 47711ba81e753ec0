"""Parallelised Q-network, PQN (Gallici et al. 2024): Q-learning without replay or target network.

Many worlds are played at once, returns Q(lambda) are made from fresh rollouts, and layer norm in
the network takes over what a target network is for: keeping bootstrapped values from diverging.
Section numbers are those of arXiv:2407.04811. T is the length of a rollout, B the number of
worlds.
"""

from dataclasses import dataclass, field
from typing import Self

import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from worldloom.algos.algorithm import DISCRETE, Algorithm
from worldloom.algos.config import at_least, fraction, positive
from worldloom.algos.on_policy import (
    Extras,
    MinibatchAgent,
    OnPolicyConfig,
    OnPolicyState,
    Rollout,
    Samples,
    anneal,
    weighted_mean,
)
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.networks import Network, Networks
from worldloom.nn.normaliser import normalise
from worldloom.nn.values import (
    LayerNormMLP,
    epsilon_greedy,
    make_q_network,
    num_actions,
    take_action,
)


@dataclass(frozen=True)
class PQNConfig(OnPolicyConfig):
    """Options of the algorithm.

    The chance of a random action falls in a line from `epsilon` to `epsilon_min` over
    `epsilon_updates` updates; 0 keeps it. q_lambda: 0 bootstraps from the next step, 1 from the
    end of the rollout.
    """

    num_epochs: int = at_least(1, 2)
    q_lambda: float = fraction(0.65)
    epsilon: float = fraction(1.0)
    epsilon_min: float = fraction(0.05)
    epsilon_updates: int = at_least(0, 100)
    hidden: tuple[int, ...] = at_least(1, (128, 128))
    learning_rate: float = positive(5e-4)
    max_grad_norm: float = positive(10.0)


@dataclass(frozen=True)
class PQN(MinibatchAgent):
    """The algorithm as pure functions; jit what is called repeatedly.

    Its returns are Q(lambda) of section 4, r_t + gamma ((1 - lambda) max_a Q_t+1 + lambda R_t+1):
    the recursion of generalised advantages with max_a Q in the place of values.
    """

    config: PQNConfig
    num_actions: int
    networks: Networks = field(default_factory=Networks)
    axis_name: str | None = None
    device_axis: str | None = None
    scaling = optax.scale_by_radam()

    @classmethod
    def make(
        cls, config: PQNConfig, spec: EnvSpec, networks: Networks, axis_name: str | None = None
    ) -> Self:
        """The agent for a world of `spec`."""
        return cls(config, num_actions(spec), networks, axis_name)

    @property
    def trace(self) -> float:
        return self.config.q_lambda

    @property
    def network(self) -> Network:
        net = LayerNormMLP(self.config.hidden, self.num_actions)
        return make_q_network(self.networks, self.config, net)

    # Acting ------------------------------------------------------------------------------------

    def values(self, state: OnPolicyState, obs: PyTree) -> Float[Array, "B actions"]:
        """Expected returns of obs (B, ...)."""
        return self.network.apply(state.params, normalise(state.normaliser, obs))

    def value(self, state: OnPolicyState, obs: PyTree) -> Float[Array, " B"]:
        """max_a Q(s, a) of obs (B, ...)."""
        return self.values(state, obs).max(axis=-1)

    def epsilon(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        """The chance of a random action after so many updates."""
        config = self.config
        return anneal(config.epsilon, config.epsilon_min, updates, config.epsilon_updates)

    def act(
        self,
        state: OnPolicyState,
        obs: PyTree,
        key: Key,
        *,
        explore: Float[Array, ""] | float = 1.0,
    ) -> tuple[Int[Array, " B"], Extras]:
        """Actions for obs (B, ...): random with chance explore * epsilon, or the best."""
        q = self.values(state, obs)
        epsilon = explore * self.epsilon(state.updates)
        masked = self.networks.masked
        action = epsilon_greedy(q, key, epsilon, masked=masked, axis_name=self.device_axis)
        value = q.max(axis=-1)
        return action, Extras(jnp.zeros_like(value), value)

    # Learning ----------------------------------------------------------------------------------

    def loss(
        self, params: PyTree, state: OnPolicyState, batch: Samples
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Half the squared error of the actions taken, and what it is made of."""
        own = take_action(self.values(state.replace(params=params), batch.obs), batch.action)
        q = self.fitted_value(own)
        mean = weighted_mean(batch.weight, self.device_axis)
        loss = 0.5 * mean(jnp.square(q - batch.returns))
        return loss, {"loss": loss, "q_mean": mean(q)}

    def fitted_value(self, own: Float[Array, " B"]) -> Float[Array, " B"]:
        """What is fitted to returns, of the values of the actions taken."""
        return own

    def update(
        self, state: OnPolicyState, rollout: Rollout, key: Key
    ) -> tuple[OnPolicyState, dict[str, Array]]:
        """`num_epochs` passes over a rollout; one more metric is the epsilon it was played with."""
        epsilon = self.epsilon(state.updates)
        state, metrics = self.learn_from(state, rollout, key)
        return state, metrics | {"epsilon": epsilon}


ABOUT = ("pqn", "parallel Q-learning without memory or target network", "on_policy", DISCRETE)
ALGORITHM = Algorithm(*ABOUT, PQNConfig, PQN.make)
