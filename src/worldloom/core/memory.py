"""What an agent remembers, as a part of the world: policies stay functions of what they are given.

`remember` puts a memory beside every observation and takes another one with every action, so that
whatever plays, records, resets, vmaps or checkpoints a world does so with memories, too: they are
zero where an episode begins, and a run that goes on goes on with them.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.core.protocols import Environment, PureEnv
from worldloom.core.transforms import TransformState, as_pure, joint_observations
from worldloom.core.types import Array, PyTree, TimeStep


class WithMemory(struct.PyTreeNode):
    """An observation with the memory that goes with it, or an action with what is remembered."""

    now: PyTree  # (...): the observation or the action itself
    memory: Array  # (..., size)


class MemoryState(TransformState):
    memory: Array  # (size,), in turn-based worlds (A, size)


def remember(env: Environment | PureEnv, size: int) -> PureEnv:
    """A world whose agents keep `size` numbers each; its spec is that of the world itself.

    Observations and actions are `WithMemory`. Inside of `autoreset`, which begins with none.
    """
    inner = as_pure(env)
    agents = (inner.spec.num_agents,) if inner.turn_based else ()

    def seen(timestep: TimeStep, memory: Array) -> TimeStep:
        obs, final_obs = WithMemory(timestep.obs, memory), WithMemory(timestep.final_obs, memory)
        return timestep.replace(obs=obs, final_obs=final_obs)

    def begin(function: Any) -> Any:
        def reset(key, params):
            state, timestep = function(key, params)
            memory = jnp.zeros((*key.shape, *agents, size), jnp.float32)
            return MemoryState(state, memory), seen(timestep, memory)

        return reset

    def begin_again(function: Any) -> Any:
        def restart(keys, ended, params):
            return begin(lambda keys, params: function(keys, ended.inner, params))(keys, params)

        return restart

    def go_on(function: Any) -> Any:
        def step(key, state, action, params):
            new, timestep = function(key, state.inner, action.now, params)
            return MemoryState(new, action.memory), seen(timestep, action.memory)

        return step

    def apply_agent(key, state, i, action, params):
        new, reward = inner.apply_agent(key, state.inner, i, action.now, params)
        return MemoryState(new, state.memory.at[i].set(action.memory)), reward

    def apply_all(key, state, action, params):
        new, reward = inner.apply_all(key, state.inner, action.now, params)
        return MemoryState(new, action.memory), reward

    def end_turn(key, state, params):
        new, *ends = inner.end_turn(key, state.inner, params)
        return (state.replace(inner=new), *ends)

    made = replace(
        inner,
        reset=begin(inner.reset),
        step=go_on(inner.step),
        reset_many=inner.reset_many and begin(inner.reset_many),
        step_many=inner.step_many and go_on(inner.step_many),
        restart_many=inner.restart_many and begin_again(inner.restart_many),
    )
    if not inner.turn_based:
        return made
    return replace(
        made,
        observe_agent=lambda state, i, params: WithMemory(
            inner.observe_agent(state.inner, i, params), state.memory[i]
        ),
        apply_agent=apply_agent,
        apply_all=apply_all,
        end_turn=end_turn,
    )


def as_seen(env: PureEnv, centralised: bool, memory_size: int) -> PureEnv:
    """A world as agents see it: with what all see if critics may, and with their memories."""
    env = joint_observations(env) if centralised else env
    return remember(env, memory_size) if memory_size else env


def without_memory(tree: PyTree) -> PyTree:
    """The observation or action itself."""
    return tree.now if isinstance(tree, WithMemory) else tree


def blank(obs: PyTree, size: int) -> PyTree:
    """Observations (B, ...) with nothing remembered; as they are where `size` is 0."""
    if not size:
        return obs
    return WithMemory(obs, jnp.zeros((jax.tree.leaves(obs)[0].shape[0], size), jnp.float32))


def carried(obs: PyTree, action: PyTree) -> PyTree:
    """Observations with what the action before them remembered, if it did."""
    return WithMemory(obs, action.memory) if isinstance(action, WithMemory) else obs
