"""Worlds of one agent in the Stoa interface, the one that Stoix trains on.

Still pure: the functions may be jitted, vmapped and wrapped in Stoa's own wrappers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.adapters.brax_compat import quiet_import
from worldloom.adapters.single_agent import as_dict, as_single
from worldloom.core import spaces as core
from worldloom.core.draws import as_key
from worldloom.core.protocols import Environment, PureEnv
from worldloom.core.transforms import as_pure, base_state
from worldloom.core.types import Array, Key, PyTree
from worldloom.core.types import TimeStep as PureTimeStep

try:
    with quiet_import():  # of Brax, which stoa imports where it is installed
        import stoa
        from stoa.env_adapters.base import AdapterStateWithKey
except ImportError as error:
    raise ImportError(
        "worldloom.adapters.stoa needs stoa-env; pip install 'worldloom[stoa]'"
    ) from error


class StoaEnv(stoa.Environment):
    """One world. Truncation leaves the discount at 1; only the task's end sets it to 0.

    Args:
        env: a world of one agent, without automatic reset.
        params: its parameters, by default its own; those given to a call replace them there.
            Stoa's AutoResetWrapper resets with these, whatever its step was given.
        action_mask: gives the mask (num_actions,) of what an observation allows, which then is in
            ``extras["action_mask"]``, where Stoa's AddActionMaskWrapper looks for it.

    Observations and infos that are structs become dicts of their fields; the info is `extras`.
    Keys may be of the new or of the old kind.
    """

    def __init__(
        self,
        env: Environment | PureEnv,
        params: PyTree = None,
        action_mask: Callable[[PyTree], Array] | None = None,
    ) -> None:
        self.params = as_pure(env).default_params() if params is None else params
        self.env = as_single(env, self.params, "StoaEnv")
        self._action_mask = action_mask

    def __repr__(self) -> str:
        return f"StoaEnv({self.env.spec.name})"

    def reset(
        self, rng_key: Key, env_params: PyTree = None
    ) -> tuple[AdapterStateWithKey, stoa.TimeStep]:
        """A new episode."""
        reset_key, state_key = jax.random.split(rng_key)
        state, timestep = self.env.reset(as_key(reset_key), self._given(env_params))
        return self._answer(state, state_key, timestep, stoa.StepType.FIRST)

    def step(
        self, state: AdapterStateWithKey, action: PyTree, env_params: PyTree = None
    ) -> tuple[AdapterStateWithKey, stoa.TimeStep]:
        """One step, with the key that the state carries."""
        step_key, state_key = jax.random.split(state.rng_key)
        inner, timestep = self.env.step(
            as_key(step_key), state.base_env_state, action, self._given(env_params)
        )
        over = jnp.where(timestep.truncated, stoa.StepType.TRUNCATED, stoa.StepType.MID)
        kind = jnp.where(timestep.terminated, stoa.StepType.TERMINATED, over)
        return self._answer(inner, state_key, timestep, kind)

    def observation_space(self, env_params: PyTree = None) -> stoa.Space:
        """What the agent sees."""
        return stoa_space(self.env.spec.observation)

    def action_space(self, env_params: PyTree = None) -> stoa.Space:
        """What the agent can do."""
        return stoa_space(self.env.spec.action)

    def state_space(self, env_params: PyTree = None) -> stoa.Space:
        """The arrays of the world's state, without bounds."""
        shapes = jax.eval_shape(self.env.reset, jax.random.key(0), self._given(env_params))
        return _unbounded(shapes[0])

    def render(self, state: PyTree, env_params: PyTree = None) -> np.ndarray:
        """A picture uint8 (height, width, 3), of worlds that can draw themselves."""
        renderers = getattr(self.env.base, "renderers", {})
        if "rgb_array" not in renderers:
            raise ValueError(f"{self}: this world has no picture of itself")
        return renderers["rgb_array"](base_state(state.base_env_state), self._given(env_params))

    def _given(self, env_params: PyTree) -> PyTree:
        return self.params if env_params is None else env_params

    def _answer(
        self, state: PyTree, key: Key, timestep: PureTimeStep, kind: Array
    ) -> tuple[AdapterStateWithKey, stoa.TimeStep]:
        extras = as_dict(timestep.info)
        if self._action_mask is not None:
            extras = extras | {"action_mask": self._action_mask(timestep.obs)}
        answer = stoa.TimeStep(
            step_type=jnp.asarray(kind, jnp.int8),  # pyright: ignore[reportArgumentType]
            reward=timestep.reward,
            discount=1.0 - timestep.terminated.astype(jnp.float32),
            observation=as_dict(timestep.obs),
            extras=extras,
        )
        return AdapterStateWithKey(base_env_state=state, rng_key=key), answer


# Spaces ----------------------------------------------------------------------------------------


class BinarySpace(stoa.BoundedArraySpace):
    """Arrays of bool, which Stoa's own spaces cannot sample."""

    def __init__(self, shape: tuple[int, ...], name: str = "") -> None:
        super().__init__(shape, jnp.bool_, False, True, name)

    def sample(self, rng_key: Key) -> Array:
        return jax.random.bernoulli(rng_key, 0.5, self.shape)


def stoa_space(space: core.Space, name: str = "") -> stoa.Space:
    """Stoa's word for a space."""
    if isinstance(space, core.Dict):
        return stoa.DictSpace({part: stoa_space(s, part) for part, s in space.items}, name)
    if isinstance(space, core.Discrete):
        if space.shape:
            return stoa.MultiDiscreteSpace(np.full(space.shape, space.n), space.dtype, name)
        return stoa.DiscreteSpace(space.n, space.dtype, name)
    if space.dtype == "bool":
        return BinarySpace(space.shape, name)
    return stoa.BoundedArraySpace(space.shape, space.dtype, space.low, space.high, name)


def _unbounded(shapes: PyTree, name: str = "") -> stoa.Space:
    """The space of all arrays of these shapes and types."""
    shapes = as_dict(shapes)
    if isinstance(shapes, Mapping):
        return stoa.DictSpace({part: _unbounded(s, part) for part, s in shapes.items()}, name)
    if isinstance(shapes, tuple | list):
        parts: list[Any] = [_unbounded(s) for s in shapes]
        return stoa.TupleSpace(parts, name)
    return stoa.ArraySpace(shapes.shape, shapes.dtype, name)
