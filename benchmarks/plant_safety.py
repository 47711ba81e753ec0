"""What the safety filter costs beside a policy, and what it stops."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.plant_adversaries import ADVERSARIES, attack, violation_bound
from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.nn.actor_critic import dense
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.safety.constraints import Barrier, SafetyConstraints, make_constraints
from worldloom.safety.filter import (
    ControlState,
    filter_batch,
    initial_memory,
    safe_policy_execution,
)
from worldloom.safety.reductions import sum_last
from worldloom.training.timer import interleave

HIDDEN = (256, 256)
REPEATS = 200


class _Actor(nn.Module):
    """Two layers of 256 and an action in [-1, 1], as the offline agents have."""

    action_size: int

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        x = obs
        for width in HIDDEN:
            x = nn.relu(dense(width)(x))
        return jnp.tanh(dense(self.action_size, 1.0)(x))


def random_policy(key: Key, constraints: SafetyConstraints, obs: Array) -> PolicyState:
    """A policy with random weights, for observations like obs (B, n)."""
    actor = _Actor(constraints.action_size)
    params = actor.init(key, obs[:1])
    return PolicyState(params, obs.mean(axis=0), obs.std(axis=0) + 1e-3, actor.apply)  # pyright: ignore[reportArgumentType]


def linear_plant() -> tuple[SafetyConstraints, Any]:
    """Box, rates and one barrier on a linear plant of 6 signals and 2 actuators; and its starts."""
    luck = np.random.default_rng(0)
    a = jnp.asarray(0.9 * np.eye(6) + 0.05 * luck.standard_normal((6, 6)), jnp.float32)
    b = jnp.asarray(0.3 * luck.standard_normal((6, 2)), jnp.float32)

    def model(obs: Array, action: Array) -> Array:
        return sum_last(a * obs) + sum_last(b * action)

    barrier = Barrier("first", [-1.0, 0.0, 0.0, 0.0, 0.0, 0.0], 1.0, gamma=0.3, disturbance=0.01)
    constraints = make_constraints(
        6, [0.0, 0.0], rate={0: 0.2, 1: 0.2}, barriers=[barrier], model=model
    )
    return constraints, lambda key: 2.0 * draws.uniform(key, (6,)) - 1.0


def reactor_plant() -> tuple[SafetyConstraints, Any]:
    """Box, rates and one barrier on the reactor, whose model is integrated; and its starts."""
    from worldloom.suites.plant.reactor import Reactor, make

    world = make().base
    weights = [0.0, -1.0, 0.0, 0.0, 0.0]
    barrier = Barrier("runaway", weights, 375.0, scale=775.0, disturbance=0.2)
    constraints = make_constraints(
        5, [-1.0, -1.0], rate={0: 0.5, 1: 0.5}, barriers=[barrier], model=world.model()
    )
    return constraints, _anywhere(Reactor())


def shipped_plant() -> tuple[SafetyConstraints, Any]:
    """The reactor behind what it is exported with, soft rows and a lookahead among it."""
    from worldloom.suites.plant.reactor import Reactor, make
    from worldloom.suites.plant.safety import constraints_for

    return constraints_for(make().base), _anywhere(Reactor())


def accepted_plant() -> tuple[SafetyConstraints, Any]:
    """The same where episodes start, and where no proposal is to be changed."""
    from worldloom.suites.plant.reactor import make

    world = make().base
    constraints, _ = shipped_plant()
    return constraints, lambda key: world.reset(key, world.params)[1].obs


def _anywhere(plant: Any) -> Any:
    low = jnp.asarray([s.low for s in plant.observation], jnp.float32)
    high = jnp.asarray([s.high for s in plant.observation], jnp.float32)
    return lambda key: low + (high - low) * draws.uniform(key, low.shape)


PLANTS = {
    "linear": linear_plant,
    "reactor": reactor_plant,
    "shipped": shipped_plant,
    "accepted": accepted_plant,
}
CLOSED_LOOP = "closed_loop"


def situation(plant: str, batch: int) -> tuple[SafetyConstraints, PolicyState, ControlState]:
    """Constraints, a policy, and what both are asked about: plants (batch, ...).

    Of `PLANTS`, where they start, with a policy of random weights and actuators in their middle.
    """
    if plant == CLOSED_LOOP:
        return closed_loop(batch)
    constraints, start = PLANTS[plant]()
    obs = jax.vmap(start)(draws.split(jax.random.key(0), batch))
    where = jnp.zeros((batch, constraints.action_size), jnp.float32)
    memory = jax.vmap(initial_memory, (None, 0))(constraints, where)
    policy = random_policy(jax.random.key(1), constraints, obs)
    return constraints, policy, ControlState(obs, memory)


def closed_loop(
    batch: int, rows: int = 20_000, updates: int = 2_000
) -> tuple[SafetyConstraints, PolicyState, ControlState]:
    """The reactor as it is shipped, at moments of episodes that policy and filter control.

    The policy is cloned from `rows` of the plant's medium log. Each of `batch` disturbed plants is
    played behind the filter from a start of its own to its end, and stands still at one of its
    steps, all of them equally likely, with the filter's memory of that step: after interventions,
    emergencies and latched stops, as often as they happen.
    """
    from worldloom.algos.bc import BC
    from worldloom.suites.plant.datasets import make_data
    from worldloom.suites.plant.plant import play_episodes
    from worldloom.suites.plant.reactor import make
    from worldloom.suites.plant.safety import constraints_for

    env = make()
    constraints = constraints_for(env.base)
    policy = BC().fit(make_data("reactor", "medium", rows), updates).state

    def choose(obs: Array, memory: Any, key: Key) -> tuple[Any, Any]:
        action, report = filter_batch(
            policy_step(policy, obs), ControlState(obs, memory), constraints
        )
        return (action, memory), report.memory

    def play(key: Key) -> ControlState:
        start, steps, moment = draws.split(key, 3)
        alive, states = play_episodes(
            env,
            env.default_params(),
            (start, steps),
            batch,
            lambda state: jax.vmap(initial_memory, (None, 0))(constraints, state.action),
            choose,
            lambda obs, alive, chosen, _: (alive, ControlState(obs, chosen[1])),
        )
        step = (draws.uniform(moment, (batch,)) * alive.sum(0)).astype(jnp.int32)
        return jax.tree.map(lambda x: x[step, jnp.arange(batch)], states)

    return constraints, policy, jax.jit(play)(jax.random.key(0))


def filter_cost(plant: str = "linear", batch: int = 1024, repeats: int = REPEATS) -> dict[str, Any]:
    """Seconds of a policy's forward pass at a batch, alone and with the filter behind it.

    `overhead` is the filter's share of the bare policy's time: (filtered - policy) / policy, of
    medians of interleaved repeats, the constraints compiled in as a bundle has them; of
    `overhead_traced` they are arguments, which may change without compiling again.
    """
    constraints, policy, state = situation(plant, batch)
    obs = state.obs
    bare = jax.jit(policy_step)
    traced = jax.jit(safe_policy_execution)
    safe = jax.jit(lambda policy, state: safe_policy_execution(policy, state, constraints))
    _, report = safe(policy, state)
    # Two at a time: a third program would push the first ones out of the processor's caches.
    ways = {
        "filtered": lambda: safe(policy, state),
        "traced": lambda: traced(policy, state, constraints),
    }
    taken = {
        name: interleave({"policy": lambda: bare(policy, obs), name: way}, repeats, warmup=5)
        for name, way in ways.items()
    }
    alone, both = taken["filtered"]["policy"].median, taken["filtered"]["filtered"].median
    with_arguments = taken["traced"]["traced"].median / taken["traced"]["policy"].median
    return {
        "plant": plant,
        "batch": batch,
        "repeats": repeats,
        "rows": list(constraints.names),
        "policy_seconds": alone,
        "filtered_seconds": both,
        "overhead": both / alone - 1.0,
        "overhead_traced": with_arguments - 1.0,
        "intervened": float(report.intervened.mean()),
        "emergency": float(report.emergency.mean()),
        "latched": float(report.latched.mean()),
    }


def attacks(plant: str = "linear", cases: int = 1_000_000, seed: int = 0) -> dict[str, Any]:
    """Every adversary against a plant's filter: counts, and a bound on the rate of violations."""
    constraints, start = PLANTS[plant]()
    rows = {}
    for i, (name, adversary) in enumerate(ADVERSARIES.items()):
        key = jax.random.fold_in(jax.random.key(seed), i)
        found = attack(adversary, constraints, start, key, cases)
        rows[name] = {key: np.asarray(value).item() for key, value in vars(found).items()}
        rows[name]["violation_rate_at_most"] = violation_bound(
            rows[name]["violations"], rows[name]["cases"]
        )
    return rows
