"""Plants as Gymnasium shows them: signals normalised at the border, their units beside."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from worldloom.adapters.single_agent import as_dict
from worldloom.core.protocols import PureEnv
from worldloom.core.spaces import Box
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.suites.plant.plant import plant_of

# Normalised observations are clipped here: a signal's usual range is [-1, 1], and one that has
# left it by twice its width tells no more by going farther.
CLIP = 5.0


def normalised(env: PureEnv) -> PureEnv:
    """A plant with its signals' ranges mapped to [-1, 1], and clipped to [-`CLIP`, `CLIP`].

    The info becomes a dict with the observation in physical units as `measured`. Actions are in
    [-1, 1] already.
    """
    world = plant_of(env)

    def scaled(obs: Array) -> Array:
        return jnp.clip(world.normalise(obs), -CLIP, CLIP)

    def shown(state: PyTree, timestep: TimeStep) -> tuple[PyTree, TimeStep]:
        info = as_dict(timestep.info) | {"measured": timestep.obs}
        obs, last = scaled(timestep.obs), scaled(timestep.final_obs)
        return state, timestep.replace(obs=obs, final_obs=last, info=info)

    def reset(key: Key, params: PyTree):
        return shown(*env.reset(key, params))

    def step(key: Key, state: PyTree, action: PyTree, params: PyTree):
        return shown(*env.step(key, state, action, params))

    box = Box(-CLIP, CLIP, (len(world.plant.observation),))
    return PureEnv(
        replace(env.spec, observation=box, reward=None), env.default_params, reset, step, env.base
    )


def metadata(env: PureEnv) -> dict[str, Any]:
    """Name, unit and the physical range that is [-1, 1] of each signal, and seconds of a step."""
    plant = plant_of(env).plant
    parts = {"observation": plant.observation, "action": plant.action}
    return {
        "signals": {name: [dict(vars(one)) for one in part] for name, part in parts.items()},
        "step_seconds": plant.step_seconds,
    }
