"""Parallelised Q-network, PQN (Gallici et al. 2024): Q-learning without replay or target network.

Many worlds are played at once, returns Q(lambda) are made from fresh rollouts, and layer norm in
the network takes over what a target network is for: keeping bootstrapped values from diverging.
Section numbers are those of arXiv:2407.04811. T is the length of a rollout, B the number of
worlds.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.algorithm import Algorithm
from worldloom.algos.on_policy import (
    Extras,
    Rollout,
    anneal,
    explained_variance,
    gae,
    guarded_step,
    learn_in_minibatches,
    merge_axes,
    shared_mean,
    weighted_mean,
)
from worldloom.core.checks import check_fields
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.networks import Network, Networks
from worldloom.nn.normaliser import Normaliser, make_normaliser, normalise, observe
from worldloom.nn.values import (
    LayerNormMLP,
    epsilon_greedy,
    make_q_network,
    num_actions,
    take_action,
)


@dataclass(frozen=True)
class PQNConfig:
    """Options of the algorithm.

    An update learns `num_epochs` times from num_worlds * unroll_length steps, shuffled into
    `num_minibatches` each time. The chance of a random action falls in a line from `epsilon` to
    `epsilon_min` over `epsilon_updates` updates, the learning rate to `final_learning_rate` over
    `anneal_updates`; 0 keeps either. q_lambda: 0 bootstraps from the next step, 1 from the
    end of the rollout. hidden: widths of the layers where the world brings no network of its own.
    """

    unroll_length: int = 32
    num_epochs: int = 2
    num_minibatches: int = 4
    gamma: float = 0.99
    q_lambda: float = 0.65
    epsilon: float = 1.0
    epsilon_min: float = 0.05
    epsilon_updates: int = 100
    learning_rate: float = 5e-4
    anneal_updates: int = 0
    final_learning_rate: float = 0.0
    max_grad_norm: float = 10.0
    reward_scale: float = 1.0
    normalise_observations: bool = False
    hidden: tuple[int, ...] = (128, 128)

    def __post_init__(self):
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a list, when read from a file
        check_fields(
            "pqn",
            self,
            at_least={
                "unroll_length": 1,
                "num_epochs": 1,
                "num_minibatches": 1,
                "hidden": 1,
                "epsilon_updates": 0,
                "anneal_updates": 0,
                "final_learning_rate": 0,
            },
            positive=("learning_rate", "max_grad_norm", "reward_scale"),
            fractions=("gamma", "q_lambda", "epsilon", "epsilon_min"),
        )


# State -----------------------------------------------------------------------------------------


class PQNState(struct.PyTreeNode):
    """All that is learned; `normaliser` is None where observations are taken as they come."""

    params: PyTree
    opt_state: PyTree
    normaliser: Normaliser | None
    updates: Array


class QSamples(struct.PyTreeNode):
    """What the loss is computed on, (n, ...): the order of time no longer matters."""

    obs: PyTree
    action: Array
    returns: Array
    weight: Array | None


class PQNMetrics(struct.PyTreeNode):
    """() float32 each: means over an update's minibatches, but for the last three.

    explained_variance: of the returns, by the values the rollout was played with. epsilon: of the
    rollout. skipped: minibatches whose loss or gradient was not finite; they change nothing.
    """

    loss: Array
    q_mean: Array
    grad_norm: Array
    explained_variance: Array
    epsilon: Array
    skipped: Array


# The agent -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PQN:
    """The algorithm as pure functions; jit what is called repeatedly.

    `axis_name` is that of the devices that share the worlds, inside of `shard_map`.
    """

    config: PQNConfig
    num_actions: int
    networks: Networks = field(default_factory=Networks)
    axis_name: str | None = None

    @property
    def network(self) -> Network:
        net = LayerNormMLP(self.config.hidden, self.num_actions)
        return make_q_network(self.networks, self.config, net)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        # The learning rate is applied where the number of updates is known.
        clip = optax.clip_by_global_norm(self.config.max_grad_norm)
        return optax.flatten(optax.chain(clip, optax.scale_by_radam()))

    def init(self, key: Key, obs: PyTree) -> PQNState:
        """A fresh state for observations like obs (B, ...)."""
        params = self.network.init(key, obs)
        normaliser = make_normaliser(obs) if self.config.normalise_observations else None
        return PQNState(params, self.optimiser.init(params), normaliser, jnp.int32(0))

    # Acting ------------------------------------------------------------------------------------

    def values(self, state: PQNState, obs: PyTree) -> Array:
        """Expected returns (B, actions) of obs (B, ...)."""
        return self.network.apply(state.params, normalise(state.normaliser, obs))

    def value(self, state: PQNState, obs: PyTree) -> Array:
        """max_a Q(s, a), (B,), of obs (B, ...)."""
        return self.values(state, obs).max(axis=-1)

    def epsilon(self, updates: Array) -> Array:
        """The chance of a random action after so many updates."""
        config = self.config
        return anneal(config.epsilon, config.epsilon_min, updates, config.epsilon_updates)

    def act(
        self, state: PQNState, obs: PyTree, key: Key, *, explore: Array | float = 1.0
    ) -> tuple[Array, Extras]:
        """Actions (B,) for obs (B, ...): random with chance explore * epsilon, or the best."""
        q = self.values(state, obs)
        epsilon = explore * self.epsilon(state.updates)
        action = epsilon_greedy(q, key, epsilon, masked=self.networks.masked)
        value = q.max(axis=-1)
        return action, Extras(jnp.zeros_like(value), value)

    # Learning ----------------------------------------------------------------------------------

    def returns(self, rollout: Rollout) -> Array:
        """Q(lambda) of section 4, (T, B): r_t + gamma ((1 - lambda) max_a Q_t+1 + lambda R_t+1).

        The recursion is that of generalised advantages with max_a Q in the place of values.
        """
        config = self.config
        advantage = gae(
            rollout.reward * config.reward_scale,
            rollout.value,
            rollout.next_value,
            rollout.terminated,
            rollout.truncated,
            config.gamma,
            config.q_lambda,
        )
        return rollout.value + advantage

    def loss(
        self, params: PyTree, state: PQNState, batch: QSamples
    ) -> tuple[Array, dict[str, Array]]:
        """Half the squared error of the actions taken, and what it is made of."""
        q = take_action(self.values(state.replace(params=params), batch.obs), batch.action)
        mean = weighted_mean(batch.weight)
        loss = 0.5 * mean(jnp.square(q - batch.returns))
        return loss, {"loss": loss, "q_mean": mean(q)}

    def learn(self, state: PQNState, batch: QSamples) -> tuple[PQNState, dict[str, Array]]:
        """One gradient step on one minibatch; what is not finite changes nothing."""
        (_, parts), grads = jax.value_and_grad(self.loss, has_aux=True)(state.params, state, batch)
        parts, grads = shared_mean((parts, grads), self.axis_name)
        state, step = guarded_step(
            self.optimiser, state, grads, parts["loss"], self.learning_rate(state.updates)
        )
        return state, parts | step

    def learning_rate(self, updates: Array) -> Array:
        """The learning rate after so many updates."""
        config = self.config
        rate, final = config.learning_rate, config.final_learning_rate
        return anneal(rate, final, updates, config.anneal_updates)

    def update(self, state: PQNState, rollout: Rollout, key: Key) -> tuple[PQNState, PQNMetrics]:
        """`num_epochs` passes over a rollout, in minibatches of another order each time."""
        returns = self.returns(rollout)
        samples = merge_axes(QSamples(rollout.obs, rollout.action, returns, rollout.weight))
        new, means = learn_in_minibatches(self.learn, state, samples, key, self.config)
        metrics = PQNMetrics(
            **means,
            explained_variance=explained_variance(
                returns.reshape(-1), (returns - rollout.value).reshape(-1), self.axis_name
            ),
            epsilon=self.epsilon(state.updates),
        )
        normaliser = observe(state.normaliser, rollout.obs, self.axis_name)
        return new.replace(normaliser=normaliser, updates=state.updates + 1), metrics


def make(config: PQNConfig, spec: EnvSpec, networks: Networks, axis_name: str | None = None) -> PQN:
    """The agent for a world of `spec`."""
    return PQN(config, num_actions(spec), networks, axis_name)


ALGORITHM = Algorithm(
    name="pqn",
    description="parallel Q-learning from fresh rollouts, with layer norm for a target network",
    loop="on_policy",
    actions=frozenset({"discrete"}),
    config=PQNConfig,
    make=make,
)
