"""What agents that choose by value share: networks, the value of an action, exploration."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Int32

from worldloom.core import draws
from worldloom.core.cumsum import running_count
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Discrete
from worldloom.core.types import Array, Batch, Key
from worldloom.nn.layers import Linear
from worldloom.nn.networks import Network, Networks

NOT_ALLOWED = -1e30  # the value of an action that a world forbids


class LayerNormMLP(nn.Module):
    """Values of features: dense layers, each with a layer norm before its ReLU.

    The norm bounds what a step on one state does to the values of others (Gallici et al. 2024).
    """

    hidden: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, x: Float[Array, "B n"]) -> Float[Array, "B actions"]:
        for width in self.hidden:
            x = nn.relu(nn.LayerNorm()(Linear(width)(x)))
        return Linear(self.num_actions)(x)


def make_q_network(networks: Networks, config: Any, net: nn.Module) -> Network:
    """Values (B, actions) for obs (B, ...): the world's own network, or `net` of its features."""
    if networks.q_values is not None:
        return networks.q_values(config)
    return Network(
        init=lambda key, obs: net.init(key, networks.encode(obs)),
        apply=lambda params, obs: net.apply(params, networks.encode(obs)),
    )


def num_actions(spec: EnvSpec) -> int:
    """How many actions a world offers; a ValueError where they cannot be counted."""
    if not isinstance(spec.action, Discrete):
        raise ValueError(
            f"{spec.name}: actions are a {type(spec.action).__name__}, but an agent that chooses "
            "by value needs a Discrete choice; use an agent for continuous actions"
        )
    return spec.action.n


def take_action(
    values: Float[Array, "B *rest actions"], action: Int[Array, " B"]
) -> Float[Array, " B *rest"]:
    """The values of the actions taken: a one-hot sum, whose gradient is no scatter."""
    each = action.reshape(action.shape + (1,) * (values.ndim - 1))
    return jnp.where(each == jnp.arange(values.shape[-1]), values, 0.0).sum(axis=-1)


def huber(error: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Half the square up to 1, linear beyond."""
    size = jnp.abs(error)
    return jnp.where(size <= 1.0, 0.5 * error * error, size - 0.5)


def weighted(each: Float[Array, " B *rest"], batch: Batch) -> Float[Array, " B *rest"]:
    """What each row of a batch adds, times what the row counts."""
    if batch.weight is None:
        return each
    return each * batch.weight.reshape(-1, *(1,) * (each.ndim - 1))


def epsilon_greedy(
    q: Float[Array, "B actions"],
    key: Key,
    epsilon: Float[Array, ""] | float,
    *,
    masked: bool = False,
    axis_name: str | None = None,
) -> Int32[Array, " B"]:
    """The best action of each row of values, or with chance `epsilon` any.

    masked: "any" is one of those whose value is not `NOT_ALLOWED`. `axis_name` is that of devices,
    inside of `shard_map`, each of which has as many rows.
    """
    count, choices = q.shape
    if axis_name is None:
        u = draws.uniform(key, (2, count))
    else:
        u = draws.uniform(key, (2, count * jax.lax.axis_size(axis_name)))
        u = jax.lax.dynamic_slice_in_dim(u, draws.first_row(count, axis_name), count, 1)
    if masked:
        anything = _nth_allowed(q > 0.1 * NOT_ALLOWED, u[1])
    else:
        anything = jnp.minimum((u[1] * choices).astype(jnp.int32), choices - 1)
    return jnp.where(u[0] < epsilon, anything, q.argmax(axis=-1).astype(jnp.int32))


def _nth_allowed(allowed: Array, u: Array) -> Array:
    """One of the actions that are allowed (B, actions), each as likely, for uniform u (B,)."""
    so_far = running_count(allowed.T)  # (actions, B)
    nth = jnp.minimum((u * so_far[-1]).astype(jnp.int32), so_far[-1] - 1)
    return (so_far > nth).argmax(axis=0).astype(jnp.int32)
