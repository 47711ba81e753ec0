"""A policy that can be executed: its network, its weights and how its observations are scaled.

`policy_step` and `vectorized_env_step`, in turn, are what any closed loop is made of.
"""

from collections.abc import Callable

import jax.numpy as jnp
from flax import struct
from jaxtyping import Float, Int32, Shaped

from worldloom.core import draws
from worldloom.core.protocols import Environment, PureEnv
from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.nn.distributions import Categorical


class PolicyState(struct.PyTreeNode):
    """`apply(params, obs)` gives actions (B, m) in [-1, 1] for normalised obs (B, n).

    Of a `discrete` policy it gives the logits (B, actions) of a choice.
    """

    params: PyTree
    mean: Array  # (n,)
    std: Array  # (n,)
    apply: Callable[[PyTree, Array], Array] = struct.field(pytree_node=False)
    noise: Array | float = 0.0  # standard deviation of what is added when a key is given
    discrete: bool = struct.field(pytree_node=False, default=False)


def policy_step(
    policy: PolicyState, obs: Float[Array, "*rows n"], key: Key | None = None
) -> Float[Array, "*rows m"] | Int32[Array, "*rows"]:
    """Actions in [-1, 1] for observations in the plant's units.

    Of a discrete policy numbers of actions: the likeliest, or drawn where a key is given.
    """
    scaled = (obs - policy.mean) / policy.std
    action = policy.apply(policy.params, scaled.reshape(-1, scaled.shape[-1]))
    action = action.reshape(*obs.shape[:-1], -1)
    if policy.discrete:
        choice = Categorical(action)
        return choice.mode() if key is None else choice.sample(key)
    if key is not None:
        action = action + policy.noise * draws.normal(key, action.shape)
    return jnp.clip(action, -1.0, 1.0)


def vectorized_env_step(
    env: Environment | PureEnv,
    key: Key,
    state: PyTree,
    action: Shaped[Array, "B ..."],
    params: PyTree,
) -> tuple[PyTree, TimeStep]:
    """One step of B worlds of `env`, whose state and action have a leading axis.

    A world whose episode ended is not reset: that is a transform of the environment.
    """
    return batch(env, action.shape[0]).step(key, state, action, params)
