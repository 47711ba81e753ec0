"""What off-policy agents for continuous actions share: options, inputs, running statistics.

Actions are in [-1, 1]. The normaliser sees observations as the world gives them, the networks what
`Networks.encode` makes of normalised ones.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos.off_policy import OffPolicyConfig
from worldloom.core.checks import check_fields
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box
from worldloom.core.types import Array, PyTree
from worldloom.nn.networks import Networks
from worldloom.nn.normaliser import (
    LIMIT,
    Normaliser,
    make_normaliser,
    mean_and_std,
    normalise,
    observe,
)
from worldloom.nn.offline import Weights
from worldloom.nn.policy import PolicyState


@dataclass(frozen=True, kw_only=True)
class ContinuousConfig(OffPolicyConfig):
    """Options of SAC and TD3.

    tau: share of the networks that flows into their targets in an update. reward_scale multiplies
    rewards. normalise_observations: by the running mean and deviation of what was seen.
    """

    hidden: tuple[int, ...] = (256, 256)
    actor_rate: float = 3e-4
    critic_rate: float = 3e-4
    tau: float = 0.005
    reward_scale: float = 1.0
    normalise_observations: bool = False
    batch_size: int = 256
    buffer_size: int = 200_000
    learning_starts: int = 1_000

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a list, when read from a file
        check_fields(
            self.name,
            self,
            at_least={"hidden": 1},
            positive=("actor_rate", "critic_rate", "reward_scale"),
            fractions=("tau",),
        )


class ActorParams(struct.PyTreeNode):
    """What acting needs; `normaliser` is None where observations are taken as they come."""

    actor: Weights
    normaliser: Normaliser | None


@dataclass(frozen=True)
class ContinuousAgent:
    """The part of SAC and TD3 that looks at observations, as pure functions.

    A learner has `normaliser`, and `params`, the `ActorParams` of its own.
    """

    config: Any
    action_size: int
    networks: Networks = field(default_factory=Networks)

    def inputs(self, normaliser: Normaliser | None, obs: PyTree) -> tuple[Array, Array]:
        """What actor and critics see of obs (B, ...): features (B, n) and (B, k)."""
        obs = normalise(normaliser, obs)
        return self.networks.encode(obs), self.networks.encode_for_critic(obs)

    def make_normaliser(self, obs: PyTree) -> Normaliser | None:
        """One that has seen nothing, for observations like obs (B, ...)."""
        return make_normaliser(obs) if self.config.normalise_observations else None

    def observe(self, learner: Any, obs: PyTree) -> Any:
        """The learner after observations (T, B, ...) were seen, for its normaliser."""
        return learner.replace(normaliser=observe(learner.normaliser, obs))

    def mean_action(self, actor: Weights, inputs: Array) -> Array:
        """Deterministic actions (B, m) in [-1, 1] for the actor's inputs (B, n)."""
        raise NotImplementedError

    def deterministic(self, params: ActorParams) -> PolicyState:
        """Deterministic policy: the mean action for flat observations (B, n)."""
        if params.normaliser is None:
            size = params.actor[0]["kernel"].shape[0]
            mean, std = jnp.zeros(size), jnp.ones(size)
        else:
            mean, std = mean_and_std(params.normaliser)
        return PolicyState(params.actor, mean, std, self._apply)

    def _apply(self, actor: Weights, obs: Array) -> Array:
        if self.config.normalise_observations:
            obs = jnp.clip(obs, -LIMIT, LIMIT)
        return self.mean_action(actor, self.networks.encode(obs))


def own_buffers(tree: PyTree) -> PyTree:
    """A copy, for target networks: so that both they and the networks can be donated."""
    return jax.tree.map(jnp.copy, tree)


def action_size(name: str, spec: EnvSpec) -> int:
    """Entries of an action of a world; a ValueError unless actions are vectors in [-1, 1]."""
    space = spec.action
    if isinstance(space, Box) and (space.low, space.high, len(space.shape)) == (-1.0, 1.0, 1):
        return space.shape[0]
    raise ValueError(
        f"{name}: the actions of {spec.name} are {space}; it needs vectors in [-1, 1]: "
        "scale them in the world"
    )
