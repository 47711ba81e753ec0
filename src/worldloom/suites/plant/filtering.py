"""A plant behind its safety filter, as an environment to learn in: the filter is in the loop."""

from dataclasses import replace

import jax.numpy as jnp
from flax import struct

from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import TransformState
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.safety import ControlMemory, ControlState, filter_action, initial_memory
from worldloom.safety.constraints import SafetyConstraints
from worldloom.suites.plant.types import PlantInfo


class FilterState(TransformState):
    """The plant, what it shows, and what its filter remembers."""

    obs: Array
    memory: ControlMemory
    interventions: Array  # float32 (): in this episode
    emergencies: Array


class FilterInfo(struct.PyTreeNode):
    """The plant's info, and what its filter did: shares of the episode's steps up to now."""

    plant: PlantInfo
    interventions: Array
    emergencies: Array


def behind_filter(env: PureEnv, constraints: SafetyConstraints) -> PureEnv:
    """The plant in which every action is passed through the safety filter before it is executed.

    What is learned from is the action that was proposed. The filter's memory, and a stop that has
    latched, last until the episode ends.
    """

    def wrapped(state: FilterState, timestep: TimeStep) -> tuple[FilterState, TimeStep]:
        steps = jnp.maximum(state.memory.step, 1)
        shares = (state.interventions / steps, state.emergencies / steps)
        return state, timestep.replace(info=FilterInfo(timestep.info, *shares))

    def reset(key: Key, params: PyTree) -> tuple[FilterState, TimeStep]:
        inner, timestep = env.reset(key, params)
        memory, none = initial_memory(constraints, inner.action), jnp.float32(0.0)
        return wrapped(FilterState(inner, timestep.obs, memory, none, none), timestep)

    def step(
        key: Key, state: FilterState, action: Array, params: PyTree
    ) -> tuple[FilterState, TimeStep]:
        control = ControlState(state.obs, state.memory)
        executed, report = filter_action(jnp.clip(action, -1.0, 1.0), control, constraints)
        inner, timestep = env.step(key, state.inner, executed, params)
        interventions = state.interventions + report.intervened
        emergencies = state.emergencies + report.emergency
        after = FilterState(inner, timestep.obs, report.memory, interventions, emergencies)
        return wrapped(after, timestep)

    return replace(env, reset=reset, step=step, reset_many=None, step_many=None)


def filter_outcomes(info: FilterInfo) -> dict[str, Array]:
    """What training reports of the filter: shares of an episode's steps."""
    return {"interventions": info.interventions, "emergencies": info.emergencies}
