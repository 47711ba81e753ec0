"""Gymnax environments as pure worlds that run inside jit, as our own do.

``make("CartPole-v1")`` gives a `PureEnv` that trains, batches and resets like a built-in world.
Gymnax's params pytree is the world's `params`, so gravity or a torque limit can be vmapped over.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.adapters.single_agent import strongly_typed
from worldloom.core import spaces
from worldloom.core.names import suggest
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.transforms import as_pure, normalise_actions
from worldloom.core.types import Array, Key, PyTree, TimeStep

try:
    import gymnax
    from gymnax.environments import spaces as gymnax_spaces
except ModuleNotFoundError as error:  # gymnax 1.0.1 imports six and does not ask for it
    raise ImportError(
        f"gymnax worlds need {error.name}, which is not installed; pip install 'worldloom[gymnax]'"
    ) from error

# Environments whose observations leave the bounds that Gymnax 1.0.1 declares: negative rewards in
# [0, 100], a context of -1 in [0, 2], pixels read as int8 in [0, 1], and -1.5e-8 in [0, 1].
WRONG_BOUNDS = frozenset(
    {"GaussianBandit-misc", "MemoryChain-bsuite", "MNISTBandit-bsuite", "UmbrellaChain-bsuite"}
)


def make(name: str, **params: Any) -> PureEnv:
    """The Gymnax environment `name` as a world called ``gymnax:<name>``.

    Args:
        name: an id of `gymnax.registered_envs`, which includes those added by `gymnax.register`.
        params: fields of the environment's params, such as ``max_steps_in_episode=200``. They are
            the defaults: the pytree given to `reset` and `step` is what counts, except for what
            is static in the spec, the action bounds and the horizon.

    Observations are float32: integers are cast, and a Discrete observation becomes a one-hot
    vector. The bounds of the observation Box are the widest of all entries. Box actions are in
    [-1, 1] and scaled to the real bounds, which `env.base.spec.action` holds. Reaching
    `max_steps_in_episode` is truncation, and termination goes before it where both coincide.
    Gymnax's `info` is dropped: it repeats what `terminated` says.
    """
    if name not in gymnax.registered_envs:
        raise ValueError(
            f"gymnax has no environment {name!r}; {suggest(name, gymnax.registered_envs)}"
        )
    env, defaults = gymnax.make(name)
    world = as_pure(GymnaxWorld(name, env, _with_values(name, defaults, params)))
    return normalise_actions(world) if isinstance(world.spec.action, spaces.Box) else world


class GymnaxWorld:
    """A Gymnax environment with its real action bounds; `make` is the way to get one."""

    def __init__(self, name: str, env: Any, params: PyTree) -> None:
        self.env = env
        self._params = params
        observed = env.observation_space(params)
        self._categories = observed.n if isinstance(observed, gymnax_spaces.Discrete) else None
        action = _action_space(name, env.action_space(params))
        self._action_dtype = action.dtype
        self.spec = EnvSpec(
            name=f"gymnax:{name}",
            observation=_observation_box(name, observed),
            action=action,
            horizon=int(params.max_steps_in_episode),
        )

    def default_params(self) -> PyTree:
        """Gymnax's params with every field an array."""
        return self._params

    def reset(self, key: Key, params: PyTree) -> tuple[PyTree, TimeStep]:
        """A new episode."""
        obs, state = self.env.reset_env(key, params)
        obs, no = self._encode(obs), jnp.asarray(False)
        return strongly_typed(state), TimeStep(obs, jnp.float32(0.0), no, no, obs, ())

    def step(
        self, key: Key, state: PyTree, action: Array, params: PyTree
    ) -> tuple[PyTree, TimeStep]:
        """One step, as Gymnax's `step` takes it but for the automatic reset."""
        action = jnp.asarray(action, self._action_dtype)
        obs, state, reward, terminated, _ = self.env.step_env(key, state, action, params)
        terminated = jnp.asarray(terminated, bool)
        truncated = jnp.asarray(self.env.is_truncated(state, params), bool) & ~terminated
        obs, reward = self._encode(obs), jnp.asarray(reward, jnp.float32)
        return strongly_typed(state), TimeStep(obs, reward, terminated, truncated, obs, ())

    def _encode(self, obs: Array) -> Array:
        if self._categories is None:
            return jnp.asarray(obs, jnp.float32)
        return jax.nn.one_hot(obs, self._categories, dtype=jnp.float32)


# Parameters --------------------------------------------------------------------------------------


def _with_values(name: str, defaults: Any, values: dict[str, Any]) -> PyTree:
    """`defaults` as arrays, with the fields in `values` replaced by them, type and shape kept."""
    params = strongly_typed(defaults)
    known = [field.name for field in dataclasses.fields(defaults)]
    for field, value in values.items():
        if field not in known:
            raise ValueError(f"gymnax:{name} has no parameter {field!r}; {suggest(field, known)}")
        old, new = getattr(params, field), np.asarray(value)
        if new.shape != old.shape or not np.can_cast(new.dtype, old.dtype, "same_kind"):
            raise ValueError(
                f"gymnax:{name}: {field}={value!r} does not fit; it must be {old.dtype} of shape "
                f"{old.shape}, by default {getattr(defaults, field)}"
            )
        params = params.replace(**{field: jnp.asarray(new, old.dtype)})
    if params.max_steps_in_episode < 1:
        raise ValueError(
            f"gymnax:{name}: max_steps_in_episode={params.max_steps_in_episode}; "
            "it must be at least 1"
        )
    return params


# Spaces ------------------------------------------------------------------------------------------


def _observation_box(name: str, space: Any) -> spaces.Box:
    if isinstance(space, gymnax_spaces.Discrete):
        return spaces.Box(0.0, 1.0, (space.n,))
    _check_box(name, "observations", space)
    if name in WRONG_BOUNDS:
        return spaces.Box(-math.inf, math.inf, tuple(space.shape))
    low, high = np.min(_bounds(space.low)), np.max(_bounds(space.high))
    return spaces.Box(float(low), float(high), tuple(space.shape))


def _action_space(name: str, space: Any) -> spaces.Discrete | spaces.Box:
    if isinstance(space, gymnax_spaces.Discrete):
        return spaces.Discrete(space.n)
    _check_box(name, "actions", space)
    low, high = _bounds(space.low), _bounds(space.high)
    if np.ptp(low) or np.ptp(high):
        raise ValueError(
            f"gymnax:{name}: the bounds of {space} differ between its entries; "
            "only a Box with the same bounds for all is supported"
        )
    return spaces.Box(float(np.min(low)), float(np.max(high)), tuple(space.shape))


def _check_box(name: str, what: str, space: Any) -> None:
    if not isinstance(space, gymnax_spaces.Box):
        raise ValueError(
            f"gymnax:{name}: {what} of {space} have no counterpart here; "
            "only Box and Discrete are supported"
        )


def _bounds(bound: Any) -> np.ndarray:
    """Bounds as float32, of which the largest number is Gymnax's word for infinity."""
    values = np.asarray(bound, np.float32)
    infinite = np.abs(values) >= np.finfo(np.float32).max
    return np.where(infinite, np.copysign(np.float32(np.inf), values), values)
