"""Nonlinear model-predictive control with the true plant: how well a plant can be controlled.

In every step it knows the plant's whole state, what no sensor shows included, and all of its
equations, and plans the actions of a long horizon by shooting: random changes of the last plan, the
best of them improved by gradients through the plant. Only what chance will bring is unknown to it.
No controller that has to learn or to measure does better for long, so that its return is what
others are a share of (`worldloom.suites.plant.references`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from worldloom.core import draws
from worldloom.core.checks import check_fields
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key
from worldloom.suites.plant.controllers import without_memory
from worldloom.suites.plant.plant import PlantWorld, plant_of
from worldloom.suites.plant.types import EnvironmentState, PlantParams

Objective = Callable[[Array], Array]  # from a plan (H, m) to what it earns ()


@dataclass(frozen=True)
class Shooting:
    """How a plan is found.

    scenarios: draws of chance that a plan is to earn most in, on average; 0: none, it is planned as
    if nothing disturbed the plant.
    """

    horizon: int = 40  # steps
    scenarios: int = 0
    samples: int = 32  # changes of a plan in a round, a quarter of them constant actions
    rounds: int = 2  # each of half the size of the one before
    spread: float = 0.5  # of the first round's changes
    knots: int = 6  # of a change over the horizon, straight lines in between
    refined: int = 2  # plans that gradients improve
    gradients: int = 8  # steps of each
    learning_rate: float = 0.05
    every: int = 1  # steps of a plan that are executed before the next one is made
    first: int = 6  # times as much work in the first step, which has no plan yet

    def __post_init__(self):
        least = {"scenarios": 0, "rounds": 0, "gradients": 0}
        counts = ("horizon", "samples", "knots", "refined", "every", "first")
        check_fields("shooting", self, at_least=least | dict.fromkeys(counts, 1))


# Where the default is not what a plant needs: how late actions show, and what chance decides.
SETTINGS = {
    "pipeline": Shooting(horizon=60, every=2),
    # Meals are no chance, doses are rounded and have no slope, and a hundredth of the pump's range
    # is a large one.
    "simglucose": Shooting(
        horizon=80, scenarios=1, every=4, knots=10, spread=0.01, samples=48, rounds=3, gradients=0
    ),
    "industrial-benchmark": Shooting(scenarios=4, every=2),  # wear comes by chance alone
    "water": Shooting(horizon=60),
}


def settings_of(plant: str) -> Shooting:
    return SETTINGS.get(plant, Shooting())


def earned(
    world: PlantWorld, params: PlantParams, state: EnvironmentState, key: Key, actions: Array
) -> Array:
    """The rewards of a plan (H, m) from a state on, to the end of the episode at most."""
    return _execute(world, params, (state, jnp.asarray(True)), key, actions)[1]


def _execute(
    world: PlantWorld, params: PlantParams, begun: tuple[Any, Array], key: Key, actions: Array
) -> tuple[tuple[Any, Array], Array]:
    """State and whether the episode still runs after actions (H, m), and what they earned."""

    def one(now: Any, given: Any) -> tuple[Any, Array]:
        state, alive = now
        state, after = world.step(given[1], state, given[0], params)
        over = after.terminated | after.truncated
        return (state, alive & ~over), jnp.where(alive, after.reward, 0.0)

    end, paid = jax.lax.scan(one, begun, (actions, draws.split(key, len(actions))))
    return end, paid.sum()


def improve(settings: Shooting, objective: Objective, actions: Array, key: Key) -> Array:
    """A plan (H, m) that earns at least as much as this one."""
    horizon, size = actions.shape
    # (H, knots): how much of each knot is in each step.
    places = np.linspace(0.0, settings.knots - 1.0, horizon)
    weights = np.maximum(1.0 - np.abs(places[:, None] - np.arange(settings.knots)), 0.0)
    constant = settings.samples // 4
    score = jax.vmap(objective)

    def around(key: Key, plan: Array, spread: float) -> Array:
        noise_key, level_key = draws.split(key)
        shape = (settings.samples - constant, settings.knots, size)
        noise = jnp.einsum("hk,skm->shm", weights, draws.normal(noise_key, shape))
        levels = 2.0 * draws.uniform(level_key, (constant, 1, size)) - 1.0
        levels = jnp.broadcast_to(levels, (constant, horizon, size))
        return jnp.concatenate([plan[None], jnp.clip(plan + spread * noise, -1.0, 1.0), levels])

    best = actions[None]
    for n, round_key in enumerate(draws.split(key, max(settings.rounds, 1))[: settings.rounds]):
        plans = around(round_key, best[0], settings.spread * 0.5**n)
        best = plans[jax.lax.top_k(_finite(score(plans)), settings.refined)[1]]
    optimiser = optax.adam(settings.learning_rate)

    def ascend(now: Any, _: None) -> tuple[Any, None]:
        plans, memory = now
        slope = jax.tree.map(jnp.nan_to_num, jax.vmap(jax.grad(objective))(plans))
        change, memory = optimiser.update(-slope, memory)
        return (jnp.clip(plans + change, -1.0, 1.0), memory), None

    start = (best, optimiser.init(best))
    refined = jax.lax.scan(ascend, start, None, length=settings.gradients)[0][0]
    plans = jnp.concatenate([best, refined])
    return plans[_finite(score(plans)).argmax()]


def _finite(values: Array) -> Array:
    return jnp.where(jnp.isfinite(values), values, -jnp.inf)


def oracle_returns(env: PureEnv, episodes: int, seed: int = 0, settings: Any = None) -> np.ndarray:
    """Returns (episodes,), undiscounted, of episodes under model-predictive control."""
    world = plant_of(env)
    settings = settings or settings_of(world.plant.name)
    starts, play = draws.split(jax.random.key(seed))
    # Side by side: operations on the few samples of one plan cost more to start than to do.
    run = jax.jit(jax.vmap(partial(_episode, world, settings), in_axes=(0, 0, None)))
    keys = draws.split(starts, episodes), draws.split(play, episodes)
    return np.asarray(run(*keys, env.default_params()), np.float64)


def _episode(world: PlantWorld, settings: Shooting, start: Key, key: Key, params: Any) -> Array:
    """The return () of one episode."""
    calm = replace(params, disturbance=jnp.float32(0.0))
    state, first = world.reset(start, params)
    held = without_memory(world)(first.obs)  # what the plant's loops would do now
    loops = jnp.broadcast_to(held, (settings.horizon, *held.shape))

    def planned(state: EnvironmentState, plan: Array, key: Key) -> Array:
        chance_key, improve_key = draws.split(key)

        def objective(actions: Array) -> Array:
            if not settings.scenarios:
                return earned(world, calm, state, chance_key, actions)
            keys = draws.split(chance_key, settings.scenarios)
            return jax.vmap(lambda key: earned(world, params, state, key, actions))(keys).mean()

        return improve(settings, objective, plan, improve_key)

    def block(now: Any, key: Key) -> tuple[Any, Array]:
        state, alive, plan = now
        plan_key, step_key = draws.split(key)
        plan = planned(state, plan, plan_key)
        now, paid = _execute(world, params, (state, alive), step_key, plan[:every])
        later = jnp.concatenate([plan[every:], jnp.repeat(plan[-1:], every, axis=0)])
        return (*now, later), paid

    every, (first_key, key) = min(settings.every, settings.horizon), draws.split(key)
    plan = jax.lax.scan(
        lambda plan, key: (planned(state, plan, key), None),
        loops,
        draws.split(first_key, settings.first),
    )[0]
    blocks = draws.split(key, math.ceil(int(world.params.horizon) / every))
    return jax.lax.scan(block, (state, jnp.asarray(True), plan), blocks)[1].sum()
