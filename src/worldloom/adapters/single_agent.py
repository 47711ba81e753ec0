"""What the shells for one agent share: worlds without an agent axis, structs as dicts."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.protocols import Environment, PureEnv
from worldloom.core.spaces import Dict
from worldloom.core.transforms import as_pure
from worldloom.core.types import Key, PyTree, TimeStep


def as_single(env: Environment | PureEnv, params: PyTree, shell: str) -> PureEnv:
    """`env` as a world of one agent: observations, actions and rewards without an agent axis.

    Worlds that are made for any number of agents have that axis, also with one agent in them.
    """
    made = as_pure(env)
    if made.spec.num_agents != 1:
        raise ValueError(
            f"{shell}: {made.spec.name} has {made.spec.num_agents} agents and this interface is "
            "for one; use worldloom.adapters.pettingzoo, or num_agents=1"
        )
    _, timestep = jax.eval_shape(made.reset, jax.random.key(0), params)
    if timestep.reward.ndim == 0:
        return made

    def without_axis(timestep):
        first = jax.tree.map(lambda x: x[0], (timestep.obs, timestep.reward, timestep.final_obs))
        return timestep.replace(obs=first[0], reward=first[1], final_obs=first[2])

    def reset(key: Key, params: PyTree):
        state, timestep = made.reset(key, params)
        return state, without_axis(timestep)

    def step(key: Key, state: PyTree, action: PyTree, params: PyTree):
        action = jax.tree.map(lambda x: jnp.asarray(x)[None], action)
        state, timestep = made.step(key, state, action, params)
        return state, without_axis(timestep)

    return PureEnv(made.spec, made.default_params, reset, step, made.base)


def carry_key(function: Callable, split: Callable = draws.split) -> Callable:
    """`reset` or `step` that uses half of the key it is given, and returns the other half first.

    Inside of the compiled function: splitting keys outside costs as much as a step.
    """

    def call(key: Key, *arguments: PyTree) -> tuple:
        key, own_key = split(key)
        return key, *function(own_key, *arguments)

    return call


def strongly_typed(tree: PyTree) -> PyTree:
    """Python numbers and weakly typed arrays as arrays of a fixed type.

    Otherwise the types of a state change from the first step to the second, and JAX compiles twice.
    """
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def policy_view(env: PureEnv) -> PureEnv:
    """`env` as its policy sees it, for interfaces that know no critic.

    Of an observation of `state` and `privileged_state`, the first is what is seen, and the second
    goes to the info, which becomes a dict. Other worlds are returned as they are.
    """
    parts = dict(env.spec.observation.items) if isinstance(env.spec.observation, Dict) else {}
    if set(parts) != {"state", "privileged_state"}:
        return env

    def without_critic(state: PyTree, timestep: TimeStep) -> tuple[PyTree, TimeStep]:
        obs, last = as_dict(timestep.obs), as_dict(timestep.final_obs)
        info = as_dict(timestep.info) | {"privileged_state": obs["privileged_state"]}
        return state, timestep.replace(obs=obs["state"], final_obs=last["state"], info=info)

    def reset(key: Key, params: PyTree):
        return without_critic(*env.reset(key, params))

    def step(key: Key, state: PyTree, action: PyTree, params: PyTree):
        return without_critic(*env.step(key, state, action, params))

    spec = dataclasses.replace(env.spec, observation=parts["state"])
    return PureEnv(spec, env.default_params, reset, step, env.base)


def as_dict(tree: PyTree) -> Any:
    """Structs, at any depth, as dicts of their fields; fields that are empty are left out."""
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        tree = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    if isinstance(tree, Mapping):
        return {name: as_dict(value) for name, value in tree.items() if not _empty(value)}
    return {} if _empty(tree) else tree


def _empty(tree: PyTree) -> bool:
    return tree is None or (isinstance(tree, tuple) and not tree)
