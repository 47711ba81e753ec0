"""Network factories: how a world's observations enter the networks of an algorithm."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from worldloom.core.types import Array, Key, PyTree


class Network(NamedTuple):
    """A network as two pure functions of observations (B, ...).

    init(key, obs) -> params; apply(params, obs) -> whatever the network is for.
    """

    init: Callable[[Key, PyTree], PyTree]
    apply: Callable[..., Any]


def concatenate(obs: PyTree) -> Array:
    """Features (B, n) float32: every array of an observation (B, ...), flattened, side by side."""
    leaves = [x.reshape(x.shape[0], -1).astype(jnp.float32) for x in jax.tree.leaves(obs)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


@dataclass(frozen=True)
class Networks:
    """What a world has to say about networks; the defaults suit any world of plain arrays.

    encode(obs (B, ...)) -> (B, n): what a policy, or a value of actions, is computed from.
    critic_encode: the same for a critic, which may know more than the policy; `encode` if None.
    actor_critic(config) and q_values(config): networks of the world's own, for observations that
    no multi-layer perceptron should be asked to understand. The first gives (distribution, values
    (B,)), the second values (B, actions), -1e30 for actions that are not allowed. masked: whether
    there are such actions.
    """

    encode: Callable[[PyTree], Array] = concatenate
    critic_encode: Callable[[PyTree], Array] | None = None
    actor_critic: Callable[[Any], Network] | None = None
    q_values: Callable[[Any], Network] | None = None
    masked: bool = False

    def encode_for_critic(self, obs: PyTree) -> Array:
        """Features (B, n) for a critic."""
        return (self.critic_encode or self.encode)(obs)
