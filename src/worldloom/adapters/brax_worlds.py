"""Brax environments as pure worlds that run inside jit, as our own do.

``make("ant")`` gives a `PureEnv` without any of Brax's wrappers: the time limit and the automatic
reset are our transforms. The other direction, our worlds for Brax's trainers, is
`worldloom.adapters.brax`.
"""

import copy
import inspect
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.adapters.brax_compat import quiet_import
from worldloom.adapters.single_agent import strongly_typed
from worldloom.core.names import suggest
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box, Dict, Space
from worldloom.core.transforms import normalise_actions, time_limit
from worldloom.core.types import Array, Key, PyTree, TimeStep

try:
    with quiet_import():
        from brax import envs
        from brax.envs.base import Env, State
except ModuleNotFoundError as error:
    raise ImportError(
        f"brax worlds need {error.name}, which is not installed; pip install 'worldloom[robot]'"
    ) from error

BACKENDS = ("generalized", "positional", "spring", "mjx")


class BraxInfo(struct.PyTreeNode):
    """Brax's metrics of a step by name, float32: mostly the terms of the reward."""

    metrics: dict[str, Array]


def make(name: str, *, episode_length: int = 1000, **options: Any) -> PureEnv:
    """The Brax environment `name` as a world called ``brax:<name>``.

    Args:
        name: as `brax.envs.get_environment` takes it, also one added by `register_environment`.
        episode_length: steps until the episode is truncated.
        options: what else `get_environment` takes: `backend`, `n_frames`, and those of the
            environment itself, such as ant's `terminate_when_unhealthy`.

    `done` is termination. Actions are in [-1, 1], as everywhere in Brax, and clipped to it.
    Observations are float32 without bounds. The params are Brax's `System`, so masses or friction
    can be vmapped over; an environment without one has none.
    """
    known = envs._envs
    if name not in known:
        raise ValueError(f"brax has no environment {name!r}; {suggest(name, known)}")
    _check_options(name, known[name], options)
    with _quiet():
        world = BraxWorld(name, envs.get_environment(name, **options))
    return normalise_actions(time_limit(world, episode_length))


class BraxWorld:
    """A Brax environment without a time limit; `make` is the way to get one."""

    def __init__(self, name: str, env: Env) -> None:
        self.env = env
        self._params = strongly_typed(getattr(env, "sys", ()))
        _, first = jax.eval_shape(self.reset, jax.random.key(0), self._params)
        self.spec = EnvSpec(
            name=f"brax:{name}",
            observation=_unbounded(first.obs),
            action=Box(-1.0, 1.0, (env.action_size,)),
        )

    def default_params(self) -> PyTree:
        """Brax's `System` with every leaf an array."""
        return self._params

    def reset(self, key: Key, params: PyTree) -> tuple[State, TimeStep]:
        """A new episode."""
        with _quiet():
            state = strongly_typed(self._with(params).reset(key))
        return state, _time_step(state)

    def step(self, key: Key, state: State, action: Array, params: PyTree) -> tuple[State, TimeStep]:
        """One step. Brax draws no random numbers here, so `key` is not used."""
        # Brax's environments update these dicts in place, which must not reach the caller's state.
        own: Any = state
        own = own.replace(metrics=dict(state.metrics), info=dict(state.info))
        with _quiet():
            state = strongly_typed(self._with(params).step(own, jnp.asarray(action, jnp.float32)))
        return state, _time_step(state)

    def _with(self, params: PyTree) -> Any:
        """The environment with `params` for its system."""
        env: Any = copy.copy(self.env)
        if hasattr(env, "sys"):
            env.sys = params
        return env


def _time_step(state: State) -> TimeStep:
    obs = jax.tree.map(_float32, state.obs)
    info = BraxInfo({name: _float32(x) for name, x in state.metrics.items()})
    return TimeStep(
        obs=obs,
        reward=_float32(state.reward),
        terminated=jnp.asarray(state.done, bool),
        truncated=jnp.asarray(False),
        final_obs=obs,
        info=info,
    )


def _unbounded(obs: PyTree) -> Space:
    """The space of observations of these shapes."""
    if isinstance(obs, Mapping):
        return Dict(tuple((name, _unbounded(part)) for name, part in obs.items()))
    return Box(-math.inf, math.inf, obs.shape)


def _float32(x: Any) -> Array:
    return jnp.asarray(x, jnp.float32)


def _check_options(name: str, env_class: type, options: Mapping[str, Any]) -> None:
    """A ValueError for an option that no constructor of `env_class` takes."""
    known = {
        parameter.name
        for part in env_class.__mro__
        if "__init__" in vars(part) and part is not object
        for parameter in list(inspect.signature(part.__init__).parameters.values())[1:]
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.name != "sys"
    }
    for option in options:
        if option not in known:
            raise ValueError(f"brax:{name} has no option {option!r}; {suggest(option, known)}")
    backend = options.get("backend", BACKENDS[0])
    if backend not in BACKENDS:
        raise ValueError(f"brax:{name} has no backend {backend!r}; {suggest(backend, BACKENDS)}")


@contextmanager
def _quiet() -> Iterator[None]:
    """While Brax 0.14.2 makes or traces an environment: it warns that its physics is unmaintained,
    and MJX that Brax reads fields from where they used to be.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Brax System, piplines and environments", UserWarning)
        warnings.filterwarnings(
            "ignore", r"Accessing `\w+` directly from `(Data|Model)`", DeprecationWarning
        )
        yield
