"""Nonlinear model-predictive control with the true plant: how well a plant can be controlled.

In every step it knows the plant's whole state, what no sensor shows included, and all of its
equations, and plans the actions of a long horizon by shooting: it begins with the last plan and
with what the plant's own loops would do, changes them at random, and improves the best by gradients
through the plant. Only what chance will bring is unknown to it.
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
from worldloom.suites.plant.controllers import TUNED, loops_of
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
    rates: tuple[float, ...] = (0.2, 0.02)  # of these steps, all of them tried
    every: int = 1  # steps of a plan that are executed before the next one is made
    first: int = 6  # times as much work in the first step, which has no plan yet

    def __post_init__(self):
        least = {"scenarios": 0, "rounds": 0}
        counts = ("horizon", "samples", "knots", "refined", "gradients", "every", "first")
        check_fields("shooting", self, at_least=least | dict.fromkeys(counts, 1))


# Where the default is not what a plant needs: how late actions show, and what chance decides.
SETTINGS = {
    # Its reward is a peak of a centimetre's width.
    "dmsd": Shooting(horizon=20, gradients=40, rates=(0.3, 0.05, 0.01)),
    "reactor": Shooting(horizon=15, gradients=20, rates=(0.2, 0.05, 0.01)),
    "powergrid": Shooting(horizon=20),
    "pipeline": Shooting(horizon=60, every=2),
    # Meals are no chance, doses are rounded and have no slope, and a hundredth of the pump's range
    # is a large one.
    "simglucose": Shooting(
        horizon=80, scenarios=1, every=4, knots=10, spread=0.01, samples=48, rounds=3, gradients=1
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
) -> tuple[tuple[Any, Array], Array, Array]:
    """State and whether the episode still runs after actions (H, m), their pay, and obs (H, n)."""

    def one(now: Any, given: Any) -> tuple[Any, Any]:
        state, alive = now
        state, after = world.step(given[1], state, given[0], params)
        over = after.terminated | after.truncated
        return (state, alive & ~over), (jnp.where(alive, after.reward, 0.0), after.obs)

    end, (paid, obs) = jax.lax.scan(one, begun, (actions, draws.split(key, len(actions))))
    return end, paid.sum(), obs


def improve(settings: Shooting, objective: Objective, plans: Array, key: Key) -> Array:
    """A plan (H, m) that earns at least as much as the best of these (P, H, m)."""
    horizon, size = plans.shape[1:]
    # (H, knots): how much of each knot is in each step.
    places = np.linspace(0.0, settings.knots - 1.0, horizon)
    weights = np.maximum(1.0 - np.abs(places[:, None] - np.arange(settings.knots)), 0.0)
    constant = settings.samples // 4
    score = jax.vmap(objective)

    def best(plans: Array, count: int) -> Array:
        values = score(plans)
        values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
        return plans[jax.lax.top_k(values, min(count, len(plans)))[1]]

    def around(key: Key, plan: Array, spread: float) -> Array:
        noise_key, level_key = draws.split(key)
        shape = (settings.samples - constant, settings.knots, size)
        noise = jnp.einsum("hk,skm->shm", weights, draws.normal(noise_key, shape))
        levels = 2.0 * draws.uniform(level_key, (constant, 1, size)) - 1.0
        levels = jnp.broadcast_to(levels, (constant, horizon, size))
        return jnp.concatenate([jnp.clip(plan + spread * noise, -1.0, 1.0), levels])

    for n, round_key in enumerate(draws.split(key, max(settings.rounds, 1))[: settings.rounds]):
        tried = around(round_key, best(plans, 1)[0], settings.spread * 0.5**n)
        plans = best(jnp.concatenate([plans, tried]), settings.refined)
    return best(jnp.concatenate([plans, _ascend(settings, objective, plans)]), 1)[0]


def _ascend(settings: Shooting, objective: Objective, plans: Array) -> Array:
    """Each of the plans (P, H, m) improved by gradients at each of the rates, (R P, H, m)."""
    rates = jnp.repeat(jnp.asarray(settings.rates), len(plans))[:, None, None]
    plans = jnp.tile(plans, (len(settings.rates), 1, 1))
    slope = jax.vmap(jax.grad(objective))
    # Ever smaller steps: rewards may have sharp peaks.
    adam = optax.adam(optax.linear_schedule(1.0, 0.0, settings.gradients))

    def one(now: Any, _: None) -> tuple[Any, None]:
        plans, memory = now
        step: Any = adam.update(-jnp.nan_to_num(slope(plans)), memory)
        return (jnp.clip(plans + rates * step[0], -1.0, 1.0), step[1]), None

    return jax.lax.scan(one, (plans, adam.init(plans)), None, length=settings.gradients)[0][0]


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
    loops, every = loops_of(world), min(settings.every, settings.horizon)

    def followed(state: EnvironmentState, obs: Array, memory: Any, key: Key) -> Array:
        """What the plant's loops would do (H, m), undisturbed."""

        def one(now: Any, key: Key) -> tuple[Any, Array]:
            state, obs, memory = now
            action, _, memory = loops.act(TUNED, key, memory, obs)
            state, after = world.step(key, state, action, calm)
            return (state, after.obs, memory), action

        keys = draws.split(key, settings.horizon)
        return jax.lax.scan(one, (state, obs, memory), keys)[1]

    def planned(state: EnvironmentState, plans: Array, key: Key) -> Array:
        chance_key, improve_key = draws.split(key)

        def objective(actions: Array) -> Array:
            if not settings.scenarios:
                return earned(world, calm, state, chance_key, actions)
            keys = draws.split(chance_key, settings.scenarios)
            return jax.vmap(lambda key: earned(world, params, state, key, actions))(keys).mean()

        return improve(settings, objective, plans, improve_key)

    def block(now: Any, key: Key) -> tuple[Any, Array]:
        state, alive, obs, memory, plan = now
        loop_key, plan_key, step_key = draws.split(key, 3)
        plans = jnp.stack([plan, followed(state, obs, memory, loop_key)])
        plan = planned(state, plans, plan_key)
        now, paid, seen = _execute(world, params, (state, alive), step_key, plan[:every])
        for i in range(every):  # the loops see what comes of it
            memory = loops.act(TUNED, loop_key, memory, obs)[2]
            obs = seen[i]
        later = jnp.concatenate([plan[every:], jnp.repeat(plan[-1:], every, axis=0)])
        return (*now, obs, memory, later), paid

    state, first = world.reset(start, params)
    first_key, loop_key, key = draws.split(key, 3)
    plan = followed(state, first.obs, loops.init(), loop_key)
    plan = jax.lax.scan(
        lambda plan, key: (planned(state, plan[None], key), None),
        plan,
        draws.split(first_key, settings.first),
    )[0]
    begun = (state, jnp.asarray(True), first.obs, loops.init(), plan)
    blocks = draws.split(key, math.ceil(int(world.params.horizon) / every))
    return jax.lax.scan(block, begun, blocks)[1].sum()
