"""What agents that choose by value share: inputs, the value of a taken action, exploration."""

import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Dict, Discrete
from worldloom.core.types import Array, Batch, Key


def num_actions(spec: EnvSpec) -> int:
    """How many actions a world offers; a ValueError where they cannot be counted."""
    if not isinstance(spec.action, Discrete):
        raise ValueError(
            f"{spec.name}: actions are a {type(spec.action).__name__}, but an agent that chooses "
            "by value needs a Discrete choice; use an agent for continuous actions"
        )
    return spec.action.n


def blank_observation(spec: EnvSpec) -> Array:
    """A batch of one observation, (1, *shape) of zeros; a ValueError where it is not one array."""
    space = spec.observation
    if isinstance(space, Dict):
        raise ValueError(
            f"{spec.name}: observations are a Dict, but an agent that chooses by value needs one "
            "array; flatten them in the world"
        )
    return jnp.zeros((1, *space.shape), space.dtype)


def flatten(obs: Array) -> Array:
    """(B, ...) to (B, features) float32."""
    return obs.reshape(obs.shape[0], -1).astype(jnp.float32)


def take_action(values: Array, action: Array) -> Array:
    """(B, ...) of (B, ..., actions): a one-hot sum, whose gradient is no scatter."""
    each = action.reshape(action.shape + (1,) * (values.ndim - 1))
    return jnp.where(each == jnp.arange(values.shape[-1]), values, 0.0).sum(axis=-1)


def huber(error: Array) -> Array:
    """Half the square up to 1, linear beyond."""
    size = jnp.abs(error)
    return jnp.where(size <= 1.0, 0.5 * error * error, size - 0.5)


def weighted(each: Array, batch: Batch) -> Array:
    """What each row of a batch adds, (B, ...), times what the row counts."""
    if batch.weight is None:
        return each
    return each * batch.weight.reshape(-1, *(1,) * (each.ndim - 1))


def epsilon_greedy(q: Array, key: Key, epsilon: Array | float) -> Array:
    """The best action of each row of q (B, actions), or with chance `epsilon` any."""
    count, choices = q.shape
    u = draws.uniform(key, (2, count))
    anything = jnp.minimum((u[1] * choices).astype(jnp.int32), choices - 1)
    return jnp.where(u[0] < epsilon, anything, q.argmax(axis=-1).astype(jnp.int32))
