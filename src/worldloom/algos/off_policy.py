"""What off-policy agents share: options of memory, updates and exploration; target networks.

An off-policy agent has `init(key, obs)` that makes a learner, `act(learner.params, obs, key,
explore=...)` that returns actions and what they were chosen by, and `update(learner, batch, key)`
that returns the new learner and metrics. Options: `agent.config`, an `OffPolicyConfig`.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Float, Int

from worldloom.algos.config import Config, at_least, fraction, positive
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.networks import Networks
from worldloom.nn.values import num_actions


class OffPolicyAgent(Protocol):
    """DQN, SAC and their like."""

    @property
    def config(self) -> Any: ...
    def init(self, key: Key, obs: PyTree) -> Any: ...
    def act(
        self, params: PyTree, obs: PyTree, key: Key, *, explore: Array | float = 0.0
    ) -> tuple[Array, Any]: ...
    def update(self, learner: Any, batch: Batch, key: Key) -> tuple[Any, Any]: ...


class LearnMetrics(struct.PyTreeNode):
    """Metrics of one update, () float32 each; NaN throughout means "did not learn".

    loss: what the update lowered. grad_norm: the size of the step it asked for, before clipping
    and learning rate. q_mean: the mean value of the actions in the batch.
    """

    loss: Array
    grad_norm: Array
    q_mean: Array


# Options ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(Config):
    """Options of every off-policy algorithm.

    An iteration plays `unroll_length` steps in every world (turn-based worlds play whole episodes
    instead) and then takes `gradient_steps` updates, each from `batch_size` transitions of the
    newest `buffer_size`. Until `learning_starts` steps have been played, actions are random and
    nothing is learned. `n_step` returns are for worlds that are played in whole episodes.
    """

    gamma: float = fraction(0.99)
    n_step: int = at_least(1, 1)
    batch_size: int = at_least(1, 64)
    buffer_size: int = at_least(1, 10_000)
    gradient_steps: int = at_least(0, 1)
    unroll_length: int = at_least(1, 1)
    learning_starts: int = at_least(0, 0)

    def exploration(self, iteration: Int[Array, ""], steps: Float[Array, ""]) -> Float[Array, ""]:
        """How much an agent explores after so many iterations and steps: 1, all it ever does."""
        return jnp.float32(1.0)


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedyConfig(OffPolicyConfig):
    """Options of algorithms that explore by a random action with chance epsilon.

    `epsilon` falls to `epsilon_min`: in a line over `epsilon_steps` environment steps, or if that
    is 0, by the share `epsilon_decay` in every iteration. The defaults are for treasure hunt.
    """

    epsilon: float = fraction(1.0)
    epsilon_decay: float = fraction(0.1)
    epsilon_min: float = fraction(0.05)
    epsilon_steps: int = at_least(0, 0)
    gamma: float = fraction(0.9)
    buffer_size: int = at_least(1, 13_056)
    gradient_steps: int = at_least(0, 20)

    def exploration(self, iteration: Int[Array, ""], steps: Float[Array, ""]) -> Float[Array, ""]:
        """The chance of a random action after so many iterations and steps."""
        if self.epsilon_steps:
            gone = jnp.minimum(steps / float(self.epsilon_steps), 1.0)
            return self.epsilon + gone * (self.epsilon_min - self.epsilon)
        decayed = self.epsilon * (1.0 - self.epsilon_decay) ** iteration.astype(jnp.float32)
        return jnp.maximum(decayed, self.epsilon_min)


@dataclass(frozen=True, kw_only=True)
class TargetNetworkConfig(EpsilonGreedyConfig):
    """Options of DQN and IQN; the defaults learn treasure hunt in seconds.

    target_rate: share of the online parameters that flows into the target in each update.
    """

    learning_rate: float = positive(1e-3)
    max_grad_norm: float = positive(10.0)
    target_rate: float = fraction(0.05)


# Agents that choose by value -------------------------------------------------------------------


@dataclass(frozen=True)
class ValueAgent:
    """One agent as pure functions; `worldloom.algos.independent` lifts it over many."""

    config: Any
    num_actions: int
    networks: Networks = field(default_factory=Networks)

    @classmethod
    def make(cls, config: Any, spec: EnvSpec, networks: Networks) -> Self:
        """The agent for a world of `spec`."""
        return cls(config, num_actions(spec), networks)


class TargetLearner(struct.PyTreeNode):
    """Online and target parameters, the optimiser's state and the number of updates ()."""

    params: PyTree
    target: PyTree
    opt_state: PyTree
    updates: Array


class TargetNetworkAgent(ValueAgent):
    """An agent with a target network that follows the online one.

    `loss(params, target, batch, ...)` returns the loss and the mean value of the batch's actions.
    """

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam on gradients of at most `max_grad_norm`."""
        # One flat vector instead of a dozen small arrays: a quarter of the kernels to compile.
        clip = optax.clip_by_global_norm(self.config.max_grad_norm)
        return optax.flatten(optax.chain(clip, optax.adam(self.config.learning_rate)))

    def start(self, params: PyTree) -> TargetLearner:
        """A learner before its first update, with a target equal to `params`."""
        # In buffers of its own, so that both can be donated.
        target = jax.tree.map(jnp.copy, params)
        return TargetLearner(params, target, self.optimiser.init(params), jnp.int32(0))

    def loss(self, params: PyTree, target: PyTree, *args: Any) -> tuple[Array, Array]:
        raise NotImplementedError

    def gradient_step(
        self, learner: TargetLearner, *args: Any
    ) -> tuple[TargetLearner, LearnMetrics]:
        """One step on `loss(params, target, *args)`, then the target follows by `target_rate`."""
        (loss, q_mean), grads = jax.value_and_grad(self.loss, has_aux=True)(
            learner.params, learner.target, *args
        )
        steps, opt_state = self.optimiser.update(grads, learner.opt_state, learner.params)
        params = optax.apply_updates(learner.params, steps)
        target = optax.incremental_update(params, learner.target, self.config.target_rate)
        metrics = LearnMetrics(loss, optax.tree.norm(grads), q_mean)
        return TargetLearner(params, target, opt_state, learner.updates + 1), metrics
