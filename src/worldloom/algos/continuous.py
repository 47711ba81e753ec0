"""What off-policy agents for continuous actions share: options, inputs, running statistics.

Actions are in [-1, 1]. The normaliser sees observations as the world gives them, the networks what
`Networks.encode` makes of normalised ones.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import jax.numpy as jnp
from flax import struct

from worldloom.algos.actor_critic import TrainState, init_actor_critic
from worldloom.algos.config import at_least, fraction, positive
from worldloom.algos.off_policy import OffPolicyConfig
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.networks import Networks
from worldloom.nn.normaliser import Normaliser, clip, make_normaliser, normalise, observe, scales
from worldloom.nn.offline import Weights
from worldloom.nn.policy import PolicyState


@dataclass(frozen=True, kw_only=True)
class ContinuousConfig(OffPolicyConfig):
    """Options of SAC and TD3; the papers', with a smaller memory.

    tau: share of the networks that flows into their targets in an update. reward_scale multiplies
    rewards. normalise_observations: by the running mean and deviation of what was seen.
    """

    hidden: tuple[int, ...] = at_least(1, (256, 256))
    actor_rate: float = positive(3e-4)
    critic_rate: float = positive(3e-4)
    tau: float = fraction(0.005)
    reward_scale: float = positive(1.0)
    normalise_observations: bool = False
    batch_size: int = at_least(1, 256)
    buffer_size: int = at_least(1, 200_000)
    learning_starts: int = at_least(0, 1_000)


class ActorParams(struct.PyTreeNode):
    """What acting needs; `normaliser` is None where observations are taken as they come."""

    actor: Weights
    normaliser: Normaliser | None


class ContinuousLearner(struct.PyTreeNode):
    """What is learned beside critics and targets."""

    actor: TrainState
    normaliser: Normaliser | None
    updates: Array

    @property
    def params(self) -> ActorParams:
        return ActorParams(self.actor.params, self.normaliser)


@dataclass(frozen=True)
class ContinuousAgent:
    """The part of SAC and TD3 that looks at observations, as pure functions.

    mean_action(actor, inputs (B, n)): deterministic actions (B, m) in [-1, 1].
    """

    config: Any
    action_size: int
    networks: Networks = field(default_factory=Networks)
    mean_action: ClassVar[Callable[[Weights, Array], Array]]

    @classmethod
    def make(cls, config: ContinuousConfig, spec: EnvSpec, networks: Networks) -> Self:
        """The agent for a world of `spec`; a ValueError unless actions are vectors in [-1, 1]."""
        space = spec.action
        if isinstance(space, Box) and (space.low, space.high, len(space.shape)) == (-1.0, 1.0, 1):
            return cls(config, space.shape[0], networks)
        raise ValueError(
            f"{config.name}: the actions of {spec.name} are {space}; it needs vectors in [-1, 1]: "
            "scale them in the world"
        )

    def inputs(self, normaliser: Normaliser | None, obs: PyTree) -> tuple[Array, Array]:
        """What actor and critics see of obs (B, ...): features (B, n) and (B, k)."""
        obs = normalise(normaliser, obs)
        return self.networks.encode(obs), self.networks.encode_for_critic(obs)

    def init_fields(self, key: Key, obs: PyTree, outputs: int) -> dict[str, Any]:
        """Fields of a fresh learner for observations like obs (B, ...); outputs: of the actor."""
        inputs, critic_inputs = self.inputs(None, obs)
        sizes = (inputs.shape[-1], critic_inputs.shape[-1], self.action_size)
        return init_actor_critic(key, sizes, outputs, self.config.hidden) | {
            "normaliser": make_normaliser(obs) if self.config.normalise_observations else None,
            "updates": jnp.int32(0),
        }

    def observe(self, learner: Any, obs: PyTree) -> Any:
        """The learner after observations (T, B, ...) were seen, for its normaliser."""
        return learner.replace(normaliser=observe(learner.normaliser, obs))

    def deterministic(self, params: ActorParams) -> PolicyState:
        """Deterministic policy: the mean action for flat observations (B, n)."""
        mean, std = scales(params.normaliser, params.actor[0]["kernel"].shape[0])
        return PolicyState(params.actor, mean, std, self._apply)

    def _apply(self, actor: Weights, obs: Array) -> Array:
        if self.config.normalise_observations:
            obs = clip(obs)
        return self.mean_action(actor, self.networks.encode(obs))
