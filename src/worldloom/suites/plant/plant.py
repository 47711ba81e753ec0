"""A plant as an environment of pure functions: what all of them have in common.

A plant computes in physical units. Actions come as numbers in [-1, 1], the share of each actuator's
range, which is what agents and files speak of; observations are in the units of its signals.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import rollout
from worldloom.core.lazy import lazy
from worldloom.core.names import suggest
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box
from worldloom.core.transforms import as_pure, batch
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.suites.plant.types import (
    EnvironmentState,
    Limit,
    Loop,
    PlantInfo,
    PlantParams,
    SafetyMetrics,
    Signal,
    measured_fields,
)

FAR = 1e6  # no observation of a plant is as large
RESPONSE = 4  # steps, of a plant that says nothing of it


class Plant(Protocol):
    """The physics of one plant; `x` is its state, any pytree, and `u` (m,) in physical units.

    `physics` is a struct of numbers. Randomness comes from `key` alone and is scaled by
    `params.disturbance`; what wears out does so by `params.drift`, as a function of `step`. A class
    need not inherit from this one; ours do, and have what is not different with them from here.
    Where what is seen decides the reward, `observed_reward(obs, u, next_obs, params)` may say how:
    model-based learners ask for it.
    """

    @property
    def name(self) -> str: ...
    @property
    def observation(self) -> tuple[Signal, ...]: ...
    @property
    def action(self) -> tuple[Signal, ...]: ...
    @property
    def limits(self) -> tuple[Limit, ...]: ...
    @property
    def loops(self) -> tuple[Loop, ...]: ...
    @property
    def horizon(self) -> int: ...
    @property
    def step_seconds(self) -> float: ...
    @property
    def response(self) -> int:
        """Steps until an action shows in the limited signals, dead time and lag together.

        The safety filter looks further ahead than that.
        """
        return RESPONSE

    @property
    def has_safe_state(self) -> bool:
        """Whether some constant action holds the plant in a safe state; else no stop may latch."""
        return True

    def physics(self) -> PyTree: ...
    def start(self, key: Key, params: PlantParams) -> PyTree: ...
    def advance(
        self, key: Key, x: PyTree, u: Array, step: Array, params: PlantParams
    ) -> PyTree: ...
    def observe(self, x: PyTree, params: PlantParams) -> Array:
        """What is measured (n,), in the order and units of `observation`.

        Here: the fields of the state that are marked as `Measured`.
        """
        fields = [jnp.atleast_1d(getattr(x, name)) for name in measured_fields(type(x))]
        return jnp.concatenate(fields)

    def reward(self, x: PyTree, u: Array, next_x: PyTree, params: PlantParams) -> Array: ...
    def ended(self, x: PyTree, params: PlantParams) -> Array:
        """Whether the task is over; here it never is."""
        return jnp.asarray(False)

    def model(self, obs: Array, u: Array, params: PlantParams) -> Array:
        """The next observation (n,) as far as one can be known from this one, undisturbed.

        Of a plant that has `hidden(obs, params)` (k,), what its model needs beside an observation,
        also (n + k,) of as many: a state that whoever asks for several steps carries along.
        """
        ...


def make_world(
    plant: Plant,
    *,
    disturbance: float = 1.0,
    drift: float = 0.0,
    horizon: int | None = None,
    **numbers: float,
) -> PureEnv:
    """The environment of a plant.

    disturbance, drift: factors, 0 for none. horizon: steps of an episode. numbers: those of its
    physics by name, and bounds of its limits by name.
    """
    for name, value in (("disturbance", disturbance), ("drift", drift)):
        if not (_finite(value) and value >= 0.0):
            raise ValueError(f"{plant.name}: {name}={value}; it is a factor of 0 or more")
    horizon = plant.horizon if horizon is None else horizon
    if not (_finite(horizon) and horizon >= 1 and horizon == int(horizon)):
        raise ValueError(f"{plant.name}: horizon={horizon}; an episode has at least 1 step, whole")
    physics = plant.physics()
    bounds = {limit.name: limit.bound for limit in plant.limits}
    for name, value in numbers.items():
        known = ["disturbance", "drift", "horizon", *vars(physics), *bounds]
        if name not in known:
            raise ValueError(f"{plant.name} has no option {name!r}; {suggest(name, known)}")
        if not _finite(value):
            raise ValueError(f"{plant.name}: {name}={value!r}; it must be a finite number")
        if name in bounds:
            bounds[name] = value
        else:
            physics = physics.replace(**{name: value})
    params = PlantParams(
        physics=jax.tree.map(lambda x: jnp.asarray(x, getattr(x, "dtype", jnp.float32)), physics),
        bounds=jnp.asarray(list(bounds.values()), jnp.float32),
        disturbance=jnp.float32(disturbance),
        drift=jnp.float32(drift),
        horizon=jnp.int32(horizon),
    )
    return as_pure(PlantWorld(plant, params))


@dataclass(frozen=True, eq=False)
class PlantWorld:
    """A plant with its numbers; `step` never resets itself."""

    plant: Plant
    params: PlantParams
    suite = "plant"  # that trains it, wherever it is defined

    @property
    def simulated(self) -> bool:
        """Whether it can be played in; a plant that is known from its log alone cannot."""
        return getattr(self.plant, "simulated", True)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            name=self.plant.name,
            observation=Box(-FAR, FAR, (len(self.plant.observation),)),
            action=Box(-1.0, 1.0, (len(self.plant.action),)),
            horizon=int(self.params.horizon),
            reward=self.observed_reward if hasattr(self.plant, "observed_reward") else None,
        )

    @property
    def renderers(self) -> Mapping[str, Callable[[EnvironmentState, PlantParams], Any]]:
        """How to draw a state: gauges."""
        return {"rgb_array": partial(lazy("worldloom.suites.plant.gauges:pixels"), self)}

    def observed_reward(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """The reward () of a step between observations (n,), by an action (m,) in [-1, 1]."""
        plant: Any = self.plant
        return plant.observed_reward(obs, self.control(action), next_obs, self.params)

    def default_params(self) -> PlantParams:
        return self.params

    def reset(self, key: Key, params: PlantParams) -> tuple[EnvironmentState, TimeStep]:
        x = self.plant.start(key, params)
        obs = self.plant.observe(x, params)
        idle = jnp.zeros(len(self.plant.action), jnp.float32)
        no = jnp.asarray(False)
        u = self.control(idle)
        info = PlantInfo(self.safety(obs, u, u, params), u, ~no, no)
        state = EnvironmentState(x, jnp.int32(0), idle)
        return state, TimeStep(obs, jnp.float32(0.0), no, no, obs, info)

    def step(
        self, key: Key, state: EnvironmentState, action: Array, params: PlantParams
    ) -> tuple[EnvironmentState, TimeStep]:
        finite = jnp.isfinite(action).all()
        action = jnp.clip(jnp.where(finite, action, state.action), -1.0, 1.0)
        u, last = self.control(action), self.control(state.action)
        moved = self.plant.advance(key, state.x, u, state.step, params)
        is_finite = jnp.asarray(True)
        for leaf in jax.tree.leaves(moved):
            is_finite &= jnp.isfinite(leaf).all()
        # What is no longer finite is taken back, and ends the episode.
        x = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), moved, state.x)
        obs = self.plant.observe(x, params)
        reward = self.plant.reward(state.x, u, x, params)
        ended = self.plant.ended(x, params) | ~is_finite
        step = state.step + 1
        # The first step of an episode has nothing to have changed from.
        last = jnp.where(state.step == 0, u, last)
        info = PlantInfo(self.safety(obs, u, last, params), u, finite, ~is_finite)
        out = TimeStep(obs, reward, ended, (step >= params.horizon) & ~ended, obs, info)
        return EnvironmentState(x, step, action), out

    # Signals -----------------------------------------------------------------------------------

    def control(self, action: Array) -> Array:
        """Actions (..., m) of [-1, 1] in physical units."""
        low, high = _ranges(self.plant.action)
        return low + 0.5 * (action + 1.0) * (high - low)

    def action(self, control: Array) -> Array:
        """The actions (..., m) that stand for physical ones; outside of [-1, 1] if out of range."""
        low, high = _ranges(self.plant.action)
        return 2.0 * (control - low) / (high - low) - 1.0

    def normalise(self, obs: Array) -> Array:
        """Observations (..., n) with their signals' ranges mapped to [-1, 1]."""
        low, high = _ranges(self.plant.observation)
        return 2.0 * (obs - low) / (high - low) - 1.0

    # Safety ------------------------------------------------------------------------------------

    def safety(self, obs: Array, u: Array, last: Array, params: PlantParams) -> SafetyMetrics:
        """Margins of every limit for an observation (n,) and the last two controls (m,)."""
        plant = self.plant
        if not plant.limits:
            none = jnp.zeros(0, jnp.float32)
            return SafetyMetrics(none, none, none < 0.0)
        measured, moved = ([s.name for s in part] for part in (plant.observation, plant.action))
        rate = np.asarray([limit.kind == "rate" for limit in plant.limits])
        sign = np.asarray([-1.0 if limit.kind == "at_least" else 1.0 for limit in plant.limits])
        where = [
            len(measured) + moved.index(limit.signal)
            if limit.kind == "rate"
            else measured.index(limit.signal)
            for limit in plant.limits
        ]
        # One lookup for all limits: margins computed one by one would be as many small arrays.
        value: Array = jnp.concatenate([obs, u - last])[np.asarray(where)]
        value = jnp.where(rate, jnp.abs(value), value)
        margin = jnp.asarray(sign, jnp.float32) * (params.bounds - value)
        return SafetyMetrics(margin, jnp.maximum(-margin, 0.0), margin < 0.0)

    def model(self, params: PlantParams | None = None) -> Callable[[Array, Array], Array]:
        """The nominal next observation as a function of obs (n,) and action (m,) in [-1, 1]."""
        numbers = self.params if params is None else params
        calm = replace(numbers, disturbance=jnp.float32(0.0), drift=jnp.float32(0.0))
        return lambda obs, action: self.plant.model(obs, self.control(action), calm)

    def hidden(self) -> Callable[[Array], Array] | None:
        """What the model's state has beside an observation (n,), if anything, at the start."""
        hidden = getattr(self.plant, "hidden", None)
        return hidden and (lambda obs: hidden(obs, self.params))

    # As `worldloom.adapters.gymnasium` shows it: see `worldloom.suites.plant.gymnasium`.
    gymnasium_view = staticmethod(lazy("worldloom.suites.plant.gymnasium:normalised"))
    gymnasium_metadata = staticmethod(lazy("worldloom.suites.plant.gymnasium:metadata"))


def plant_of(env: PureEnv, name: str = "") -> PlantWorld:
    """The plant under all transforms of an environment; a ValueError if it is none."""
    if not isinstance(env.base, PlantWorld):
        raise ValueError(
            f"{name or env.spec.name} is not a plant; worldloom.suites.plant.make_world makes one"
        )
    return env.base


def _finite(value: Any) -> bool:
    """Whether a value is a number, or numbers, and all of them are finite."""
    numbers = np.asarray(value)
    return numbers.dtype.kind in "biuf" and bool(np.isfinite(numbers).all())


def _ranges(signals: tuple[Signal, ...]) -> Any:
    """What -1 and 1 stand for, in numpy (2, n)."""
    return np.asarray([(signal.low, signal.high) for signal in signals], np.float32).T


def play_episodes(
    env: PureEnv,
    params: PlantParams,
    keys: tuple[Key, Key],
    episodes: int,
    init: Callable[[EnvironmentState], PyTree],
    choose: Callable[[Array, PyTree, Key], tuple[tuple[Array, ...], PyTree]],
    record: Callable[[Array, Array, tuple[Array, ...], TimeStep], PyTree],
) -> PyTree:
    """Whole episodes of a plant side by side, (T, episodes, ...), in one loop.

    keys: of the starts, and of the steps. `init` gives a controller's memory for the first states,
    `choose(obs, memory, key)` actions with what goes with them, and the new memory. Recorded is
    `record(obs, alive, chosen, timestep)`; where an episode is over it is not `alive` any more.
    """
    worlds = batch(env, episodes)
    state, first = worlds.reset(keys[0], params)

    def act(world: PyTree, memory: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        return choose(world[1], memory, key)

    def step(world: PyTree, chosen: Any, key: Key) -> tuple[PyTree, PyTree]:
        state, obs, alive = world
        state, after = worlds.step(key, state, chosen[0], params)
        row = record(obs, alive, chosen, after)
        return (state, after.obs, alive & ~(after.terminated | after.truncated)), row

    world = (state, first.obs, jnp.ones(episodes, bool))
    horizon = int(env.default_params().horizon)
    return rollout.play_steps(act, step, keys[1], world, init(state), horizon)[2]


def score_between(low: float, high: float, mean_return: float) -> float:
    """NeoRL-2's score of a mean return over episodes: 0 at `low` and 100 at `high`."""
    return 100.0 * (mean_return - low) / (high - low)


def remaining(loss: Array, step: Array, params: PlantParams) -> Array:
    """The share that is left of what has lost `loss` by the end of an episode that drifts."""
    used = step.astype(jnp.float32) / params.horizon.astype(jnp.float32)
    return 1.0 - params.drift * loss * used


def runge_kutta(
    slope: Callable[[PyTree], PyTree], x: PyTree, seconds: float | Array, steps: int
) -> PyTree:
    """x after `seconds` by `steps` steps of the classical fourth-order method."""
    h = seconds / steps

    def plus(a: PyTree, b: PyTree, factor: Any) -> PyTree:
        return jax.tree.map(lambda p, q: p + factor * q, a, b)

    def one(x: PyTree, _: None) -> tuple[PyTree, None]:
        k1 = slope(x)
        k2 = slope(plus(x, k1, 0.5 * h))
        k3 = slope(plus(x, k2, 0.5 * h))
        k4 = slope(plus(x, k3, h))
        mean = jax.tree.map(lambda a, b, c, d: (a + 2.0 * (b + c) + d) / 6.0, k1, k2, k3, k4)
        return plus(x, mean, h), None

    return jax.lax.scan(one, x, None, length=steps)[0]
