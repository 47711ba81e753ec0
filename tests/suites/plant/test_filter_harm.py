"""The filter is never worse than no filter: controllers of all kinds in every plant, bare and
behind what the plant is shipped with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import suites
from worldloom.core import draws
from worldloom.safety import ControlState, filter_action, filter_batch, initial_memory
from worldloom.suites.plant.controllers import TUNINGS, Tuning, loops_of, without_memory
from worldloom.suites.plant.evaluate import Trajectories, spurious_trips, unsafe_steps
from worldloom.suites.plant.plant import play_episodes
from worldloom.suites.plant.safety import constraints_for

PLANTS = (
    "reactor", "powergrid", "hvac", "water", "pipeline", "industrial-benchmark", "dmsd",
    "simglucose",
)  # fmt: skip
LONG = ("powergrid", "simglucose", "hvac", "water")
# As the data are logged; and too eager, too weak, shaky, and the wrong way round.
CONTROLLERS = TUNINGS | {
    "eager": Tuning(2.0, 0.03, False), "wild": Tuning(4.0, 0.1, False),
    "weak": Tuning(0.3, 0.05, False), "shaky": Tuning(1.0, 0.6, False),
    "reversed": Tuning(-1.0, 0.1, False),
}  # fmt: skip
LOSS = 0.05  # of the return, where the bare controller crosses nothing


def player(env, constraints, episodes, seed=1000):
    """play(tuning, filtered=...): trajectories of the plant's loops, from the same starts."""
    loops, never = loops_of(env.base), jnp.zeros(episodes, bool)

    def run(tuning, constraints, filtered):
        def init(state):
            memory = jax.vmap(initial_memory, (None, 0))(constraints, state.action)
            return memory, jax.vmap(lambda _: loops.init())(never)

        def choose(obs, memory, key):
            keys = draws.split(key, episodes)
            proposed, _, mine = jax.vmap(loops.act, (None, 0, 0, 0))(tuning, keys, memory[1], obs)

            def behind_filter():
                action, report = filter_batch(proposed, ControlState(obs, memory[0]), constraints)
                return (action, report.intervened, report.emergency), report.memory

            def bare():
                return (proposed, never, never), memory[0]

            chosen, remembered = jax.lax.cond(filtered, behind_filter, bare)
            return chosen, (remembered, mine)

        def record(obs, alive, chosen, after):
            return Trajectories(alive, after.reward, after.info.safety.margins, obs, *chosen)

        keys = draws.split(jax.random.key(seed))
        params = env.default_params()
        return play_episodes(env, params, (keys[0], keys[1]), episodes, init, choose, record)

    compiled = jax.jit(run)  # both ways in one program, which takes long to compile
    return lambda tuning, filtered: jax.device_get(
        compiled(jax.tree.map(jnp.asarray, tuning), constraints, filtered=filtered)
    )


def harm(plant, controllers, episodes, seed=1000, **options):
    """What the filter made worse: a line for each controller of which it did."""
    env = suites.make(plant, **options)
    hard = np.asarray([limit.hard for limit in env.base.plant.limits], bool)
    play = player(env, constraints_for(env.base), episodes, seed)
    worse = []
    for name in controllers:
        bare, filtered = (play(CONTROLLERS[name], filtered=way) for way in (False, True))
        unsafe = [int(unsafe_steps(x, hard).sum()) for x in (bare, filtered)]
        returns = [float(np.where(x.alive, x.reward, 0.0).sum(0).mean()) for x in (bare, filtered)]
        line = (
            f"{plant} {name}: {unsafe[0]} -> {unsafe[1]} unsafe steps, return {returns[0]:.1f} -> "
            f"{returns[1]:.1f}, {filtered.emergency.mean():.2%} emergencies, "
            f"{spurious_trips(bare, filtered, hard)} spurious trips of {episodes}"
        )
        print(line)
        costly = unsafe[0] == 0 and returns[1] < returns[0] - LOSS * abs(returns[0])
        if unsafe[1] > unsafe[0] or costly:
            worse.append(line)
    return worse


def test_the_controller_of_an_unstable_plant_is_not_throttled():
    """Its soft rate used to hold the jacket back until nothing but the emergency was left."""
    assert harm("reactor", ["expert", "eager"], episodes=8, horizon=100) == []


@pytest.mark.slow
def test_a_burst_main_is_met_by_the_loops_and_by_no_constant():
    """Two hours from nearly empty tanks: what is taken is more than any constant action is for."""
    world = suites.make("water").base
    constraints, model, loops = constraints_for(world), world.model(), without_memory(world)
    start, half = jnp.asarray([0.7, 1.3, 1.0, 1.0, 180.0, 2.0, 18.0]), jnp.zeros(3)

    def unsafe(filtered):
        def step(carry, _):
            obs, memory = carry
            if filtered:
                action, report = filter_action(half, ControlState(obs, memory), constraints)
                memory = report.memory
            else:
                action = loops(obs)
            obs = model(obs, action)
            return (obs, memory), (obs[0] < 0.5) | (obs[1] < 1.0)

        first = (start, initial_memory(constraints, half))
        return int(jax.jit(lambda: jax.lax.scan(step, first, None, length=24))()[1].sum())

    assert unsafe(filtered=True) == unsafe(filtered=False) == 0  # 21 with the pump held at half


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [pytest.param(name, marks=pytest.mark.nightly if name in LONG else ()) for name in PLANTS],
)
def test_no_controller_is_worse_off_behind_the_filter(plant):
    assert harm(plant, CONTROLLERS, episodes=32) == []


@pytest.mark.nightly
@pytest.mark.slow
def test_patients_that_nothing_was_set_on_are_no_worse_off():
    """All but those of a controller that gives insulin when there is too little sugar: they are
    lost to high glucose, which no hard limit is about, a little earlier or later."""
    controllers = [name for name in CONTROLLERS if name != "reversed"]
    assert harm("simglucose", controllers, episodes=32, seed=2001, mode="test") == []
