"""Worlds of one agent for Gymnasium, singly and as a vector: shells over the compiled step.

Importing this module registers every known world, such as ``worldloom/Reactor-v0``; gridworlds
are made with ``num_agents=1``. Gymnasium imports it by itself for
``gymnasium.make("worldloom.adapters.gymnasium:worldloom/Reactor-v0")``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import worldloom
from worldloom.adapters.single_agent import as_dict, as_single, carry_key, policy_view
from worldloom.core import stack
from worldloom.core.protocols import Environment, PureEnv
from worldloom.core.transforms import as_pure, base_state
from worldloom.core.types import Array, Key, PyTree

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space

    from worldloom.adapters.gymnasium_values import (
        checked_action,
        gym_space,
        like,
        masked_infos,
        plain_info,
    )
except ImportError as error:
    raise ImportError(
        "worldloom.adapters.gymnasium needs gymnasium 1.1 or newer; "
        "pip install 'worldloom[adapters]'"
    ) from error

# renderer(state, params): a picture uint8 (height, width, 3) for "rgb_array", text for "ansi".
Renderers = Mapping[str, Callable[[PyTree, PyTree], Any]]


def make_env(
    world: str, *, render_mode: str | None = None, physical_units: bool = False, **options: Any
) -> "GymEnv":
    """The registered world of this name as a `gymnasium.Env`, with its own options.

    physical_units: of a plant, observations as they are logged and not normalised.
    """
    env = worldloom.make(world, **options)
    return GymEnv(env, render_mode=render_mode, physical_units=physical_units)


def make_vector_env(
    world: str,
    num_envs: int = 1,
    *,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    render_mode: str | None = None,
    **options: Any,
) -> "GymVectorEnv":
    """`num_envs` worlds of this name as a `gymnasium.vector.VectorEnv`."""
    env = worldloom.make(world, **options)
    return GymVectorEnv(env, num_envs, autoreset_mode=autoreset_mode, render_mode=render_mode)


class _Shell:
    """What one world and many have in common: the world as it is shown, its spaces and pictures."""

    render_mode: str | None

    def _prepare(
        self,
        env: Environment | PureEnv,
        params: PyTree,
        render_mode: str | None,
        renderers: Renderers | None,
        unit_actions: bool,
        physical_units: bool = False,
    ) -> tuple[gymnasium.Space, gymnasium.Space]:
        """Sets what both have, and returns the spaces of observations and actions of one world.

        A world may have `gymnasium_view(env)`, of an env that it is the base of, and
        `gymnasium_metadata(env)`.
        """
        # On the device: numbers of Python would be carried there in every step.
        self.params = jax.device_put(as_pure(env).default_params() if params is None else params)
        shown = policy_view(as_single(env, self.params, type(self).__name__))
        view = None if physical_units else getattr(shown.base, "gymnasium_view", None)
        self.env = view(shown) if view else shown
        known = getattr(self.env.base, "renderers", {}) if renderers is None else renderers
        if render_mode is not None and render_mode not in known:
            raise ValueError(
                f"{self.env.spec.name} cannot be rendered as {render_mode!r}; "
                f"{'it has ' + ', '.join(known) if known else 'give renderers for it'}"
            )
        self._renderers, self.render_mode = known, render_mode
        self.metadata = {"render_modes": list(known), "render_fps": 4}
        self.metadata |= getattr(self.env.base, "gymnasium_metadata", lambda env: {})(self.env)
        self.unit_actions = unit_actions
        spec = self.env.spec
        return gym_space(spec.observation), gym_space(spec.action, unit_actions)

    def _draw(self, state: PyTree) -> Any:
        """A state drawn in the render mode."""
        return self._renderers[str(self.render_mode)](base_state(state), self.params)


# One world -------------------------------------------------------------------------------------


class GymEnv(_Shell, gymnasium.Env):
    """One world. `reset(seed=s)` starts the episode that the key `jax.random.key(s)` leads to.

    Args:
        env: a world of one agent, without automatic reset.
        params: its parameters, by default its own.
        render_mode: one of the names in `renderers`.
        renderers: how to draw a state; by default what the world itself offers.
        unit_actions: actions of a finite box of floats are given in [-1, 1], and stretched.
        physical_units: what a plant measures comes in its units.

    What only a critic may see is in ``info["privileged_state"]``. What a plant measures comes
    normalised (see `worldloom.suites.plant.gymnasium`); in its units it is in
    ``info["measured"]``, and ``metadata["signals"]`` has the units.
    """

    def __init__(
        self,
        env: Environment | PureEnv,
        params: PyTree = None,
        *,
        render_mode: str | None = None,
        renderers: Renderers | None = None,
        unit_actions: bool = False,
        physical_units: bool = False,
    ) -> None:
        spaces = self._prepare(env, params, render_mode, renderers, unit_actions, physical_units)
        self.observation_space, self.action_space = spaces
        self._key: Key | None = None
        self._state: Any = None
        self._over = True
        self._reset, self._step = (
            jax.jit(carry_key(function)) for function in (self.env.reset, self.env.step)
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode; without a seed, the next one of a row. `options` are not used."""
        super().reset(seed=seed)
        if seed is None and self._key is None:
            seed = int(self.np_random.integers(2**32))
        if seed is not None:
            self._key = jax.random.key(_word(seed))
        self._key, self._state, timestep = self._reset(self._key, self.params)
        self._over = False
        obs, info = jax.device_get((as_dict(timestep.obs), as_dict(timestep.info)))
        return like(self.observation_space, obs), plain_info(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; an action that is not in the action space is an error."""
        if self._over:
            raise ValueError(f"{self}: the episode is over, or has not begun; call reset() first")
        taken = checked_action(self.env.spec.action, action, (), self.unit_actions, str(self))
        self._key, self._state, timestep = self._step(self._key, self._state, taken, self.params)
        obs, reward, terminated, truncated, info = jax.device_get(_parts(timestep))
        self._over = bool(terminated or truncated)
        obs = like(self.observation_space, obs)
        return obs, float(reward), bool(terminated), bool(truncated), plain_info(info)

    def render(self) -> Any:
        """The state drawn in the render mode; nothing without one."""
        if self.render_mode is None:
            return None
        if self._state is None:
            raise ValueError(f"{self}: there is nothing to draw yet; call reset() first")
        return self._draw(self._state)


# Many worlds -----------------------------------------------------------------------------------


class GymVectorEnv(_Shell, VectorEnv):
    """`num_envs` worlds in one compiled step.

    World i plays as a `GymEnv` that is reset with seed + i. `autoreset_mode` says what happens
    at an episode's end, as Gymnasium defines it: "NextStep" (the next step resets), "SameStep"
    (the observation is already the new episode's, the last one is in ``info["final_obs"]``, and
    its info in ``info["final_info"]``), or "Disabled" (the caller resets, with
    ``options={"reset_mask": mask}``).

    The other arguments are those of `GymEnv`.
    """

    def __init__(
        self,
        env: Environment | PureEnv,
        num_envs: int,
        params: PyTree = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        renderers: Renderers | None = None,
        unit_actions: bool = False,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"GymVectorEnv: num_envs={num_envs}; it must be at least 1")
        self.num_envs = num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        spaces = self._prepare(env, params, render_mode, renderers, unit_actions)
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space, self.action_space = (batch_space(s, num_envs) for s in spaces)
        self.metadata["autoreset_mode"] = self.autoreset_mode
        self._worlds: Any = None  # keys (B,), states and time steps
        self._over = np.zeros(num_envs, bool)
        self._reset, self._renew, self._step = _batched(self.env, self.autoreset_mode)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """New episodes, of all worlds or of those in ``options["reset_mask"]`` (B,).

        One seed gives the worlds seed, seed + 1 and so on; a list gives each its own, and None in
        it lets that world go on to the next of its row.
        """
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
            seed = range(int(seed), int(seed) + self.num_envs)
        mask = self._mask((options or {}).get("reset_mask"))
        keys = self._keys(seed, mask)
        if self._worlds is None:
            self._worlds = self._reset(keys, self.params)
        else:
            self._worlds = self._renew(mask, keys, self._worlds, self.params)
        self._over = self._over & ~mask
        timestep = self._worlds[2]
        obs, info = jax.device_get((as_dict(timestep.obs), as_dict(timestep.info)))
        return like(self.observation_space, obs), masked_infos(info, mask)

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step of all worlds: observations, rewards, terminations, truncations, infos."""
        if self._worlds is None:
            raise ValueError(f"{self}: there are no worlds yet; call reset() first")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            raise ValueError(
                f"{self}: the episodes of worlds {np.flatnonzero(self._over).tolist()} are over; "
                "reset them first, with options={'reset_mask': mask}"
            )
        lead = (self.num_envs,)
        taken = checked_action(self.env.spec.action, actions, lead, self.unit_actions, str(self))
        self._worlds, ended = self._step(self._worlds, taken, self._over, self.params)
        now = self._worlds[2]
        shown, ended = jax.device_get(((as_dict(now.obs), as_dict(now.info)), _parts(ended)))
        last_obs, reward, terminated, truncated, last_info = ended
        self._over = terminated | truncated
        infos = masked_infos(shown[1], np.ones(self.num_envs, bool))
        if self.autoreset_mode is AutoresetMode.SAME_STEP and self._over.any():
            infos |= self._final(last_obs, last_info, self._over)
        obs = like(self.observation_space, shown[0])
        return obs, reward.astype(np.float64), terminated.copy(), truncated.copy(), infos

    def render(self) -> tuple[Any, ...] | None:
        """Each world drawn in the render mode; nothing without one."""
        if self.render_mode is None:
            return None
        if self._worlds is None:
            raise ValueError(f"{self}: there is nothing to draw yet; call reset() first")
        return tuple(map(self._draw, stack.unstack(self._worlds[1])))

    def _mask(self, mask: Any) -> NDArray[np.bool_]:
        if mask is None:
            return np.ones(self.num_envs, bool)
        mask = np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
            raise ValueError(
                f"{self}: reset_mask must be bool ({self.num_envs},) with a True in it, "
                f"not {mask.dtype} {mask.shape}"
            )
        if self._worlds is None and not mask.all():
            raise ValueError(f"{self}: the first reset is of all worlds; leave reset_mask out")
        return mask

    def _keys(self, seeds: Sequence[int | None] | None, mask: NDArray[np.bool_]) -> Key:
        """The keys (B,) to reset with: those of the seeds, and where there is none, the worlds'."""
        if seeds is None:
            seeds = [None] * self.num_envs
        if len(seeds) != self.num_envs:
            raise ValueError(f"{self}: {len(seeds)} seeds for {self.num_envs} worlds")
        words = self.np_random.integers(2**32, size=self.num_envs, dtype=np.uint32)
        given = np.array([seed is not None for seed in seeds]) & mask
        words[given] = [_word(s) for s, use in zip(seeds, given, strict=True) if use]  # pyright: ignore[reportArgumentType]
        keys = jax.vmap(jax.random.key)(words)
        return (
            keys if self._worlds is None else stack.where(jnp.asarray(given), keys, self._worlds[0])
        )

    def _final(self, obs: PyTree, info: PyTree, over: NDArray[np.bool_]) -> dict[str, Any]:
        """What the worlds that are over saw last, as Gymnasium hands it out: an object each."""
        last = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(over):
            last[i] = like(self.single_observation_space, stack.index(obs, int(i)))
        final = {"final_obs": last, "final_info": masked_infos(info, over)}
        return final | {f"_{name}": over.copy() for name in final}


# The compiled functions ------------------------------------------------------------------------


def _batched(env: PureEnv, mode: AutoresetMode) -> tuple[Callable, Callable, Callable]:
    """Compiled reset, renewal of some worlds, and step; worlds are (keys, states, time steps)."""
    reset = jax.vmap(carry_key(env.reset), (0, None))
    step_all = jax.vmap(carry_key(env.step), (0, 0, 0, None))

    def renew(mask: Array, keys: Key, worlds: PyTree, params: PyTree) -> PyTree:
        """`worlds`, with those in `mask` reset from `keys`; costs nothing where there is none."""

        def some(worlds):
            return stack.where(mask, reset(keys, params), worlds)

        return jax.lax.cond(mask.any(), some, lambda worlds: worlds, worlds)

    def step(worlds: PyTree, action: PyTree, over: Array, params: PyTree) -> tuple:
        """The worlds after the step, and the time step before any reset in it."""
        keys, state, _ = worlds
        worlds = step_all(keys, state, action, params)
        if mode is AutoresetMode.NEXT_STEP:
            worlds = renew(over, keys, worlds, params)
        ended = worlds[2]
        if mode is AutoresetMode.SAME_STEP:
            worlds = renew(ended.terminated | ended.truncated, worlds[0], worlds, params)
        return worlds, ended

    return jax.jit(reset), jax.jit(renew), jax.jit(step)


def _word(seed: int) -> np.uint32:
    return np.uint32(seed % 2**32)


def _parts(timestep: PyTree) -> tuple:
    ended = timestep.terminated, timestep.truncated
    return as_dict(timestep.obs), timestep.reward, *ended, as_dict(timestep.info)


# Names that gymnasium.make knows ---------------------------------------------------------------


def gym_name(world: str) -> str:
    """What Gymnasium calls a world: "industrial-benchmark" is worldloom/IndustrialBenchmark-v0."""
    words = re.findall(r"[A-Za-z0-9]+", world)
    return f"worldloom/{''.join(word.capitalize() for word in words)}-v0"


def register_worlds() -> None:
    """Tells Gymnasium of every known world; again after `worldloom.register` of one of yours."""
    for world in worldloom.worlds():
        if gym_name(world) not in gymnasium.registry:
            gymnasium.register(
                gym_name(world),
                entry_point=f"{__name__}:make_env",
                vector_entry_point=f"{__name__}:make_vector_env",
                kwargs={"world": world},
            )


register_worlds()
