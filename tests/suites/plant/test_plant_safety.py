"""Constraints from a plant's limits, and the filter in the plant's loop."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core import draws
from worldloom.safety import ControlState, filter_action, initial_memory, validate_constraints
from worldloom.suites.plant import hvac, pipeline, reactor
from worldloom.suites.plant.controllers import without_memory
from worldloom.suites.plant.plant import make_world
from worldloom.suites.plant.safety import (
    constraint_text,
    constraints_for,
    constraints_in,
    safest_action,
)

EMERGENCY = {"jacket_setpoint": 280.0, "feed": 80.0}


@pytest.fixture(scope="module")
def world():
    return reactor.make().base


@pytest.fixture(scope="module")
def constraints(world):
    return constraints_for(world, emergency=EMERGENCY)


def test_every_limit_of_the_plant_has_its_rows(constraints):
    rows = dict(zip(constraints.names, constraints.hard, strict=True))
    assert rows == {
        "box:jacket_setpoint": True, "box:feed": True, "rate:jacket_setpoint": False,
        "state:runaway": False, "state:quench": False,
        "barrier:runaway": True, "barrier:quench": False, "lookahead:runaway": True,
    }  # fmt: skip
    np.testing.assert_allclose(constraints.rate, [0.5])  # 10 K of a range of 40 K, which spans 2


def test_margins_are_those_of_the_plant(world, constraints):
    obs = jnp.asarray([0.5, 362.0, 300.0, 350.0, 0.5])
    state = ControlState(obs, initial_memory(constraints, jnp.zeros(2)))
    margins = validate_constraints(state, jnp.asarray([0.5, 0.0]), constraints).margins
    found = dict(zip(constraints.names, np.asarray(margins), strict=True))
    following = world.model()(obs, jnp.asarray([0.5, 0.0]))
    assert found["state:runaway"] == pytest.approx(375.0 - 362.0, abs=1e-3)
    assert found["barrier:runaway"] == pytest.approx(
        370.0 - float(following[1]),
        abs=1e-3,  # 5 K, a twentieth of the range, are kept back
    )


def test_bounds_that_were_changed_in_the_world_count(world):
    other = constraints_for(reactor.make(runaway=366.0).base, emergency=EMERGENCY, reserve=0.0)
    assert float(other.barrier.offset[0]) == 366.0


def test_options_become_rows(world):
    made = constraints_for(world, emergency=EMERGENCY, trip=True, lookahead=5, gamma=0.5)
    rows = dict(zip(made.names, made.hard, strict=True))
    assert rows["state:runaway"] is True
    assert rows["state:quench"] is False
    assert rows["lookahead:runaway"] is True
    assert made.horizon == 5
    np.testing.assert_allclose(made.gamma, 0.5)


def test_the_text_is_that_of_a_file_with_the_same_constraints(world, constraints):
    text = constraint_text(world, emergency=EMERGENCY)
    again = constraints_in(text, "reactor.yaml", world)
    assert again.names == constraints.names
    mine, others = (jax.tree.leaves(x.replace(model=None)) for x in (again, constraints))
    for a, b in zip(mine, others, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_lookahead_sees_further_than_the_plant_takes_to_respond(world):
    channel = pipeline.make().base  # what the gate lets in arrives after 19 steps
    text = constraint_text(channel)
    assert "  steps: 28\n" in text
    assert text.endswith("latch_after: 28\n")
    with pytest.raises(ValueError, match=r"pipeline: lookahead=19; .* use 20 or more"):
        constraint_text(channel, lookahead=19)
    short = text.replace("steps: 28", "steps: 10")
    with pytest.raises(ValueError, match=r"mine.yaml: lookahead.steps=10; .* use 20 or more"):
        constraints_in(short, "mine.yaml", channel)
    assert (
        constraints_in(text.replace("steps: 28", "steps: 20"), "mine.yaml", channel).horizon == 20
    )


def test_a_stop_latches_only_where_the_plant_can_be_left_alone():
    office = hvac.make().base
    given = dict.fromkeys([signal.name for signal in office.plant.action], 0.0)
    text = constraint_text(office, emergency=given, lookahead=0)
    assert text.endswith("latch_after: 0\n")
    with pytest.raises(
        ValueError, match=r"mine.yaml: latch_after=3; no constant action keeps hvac"
    ):
        constraints_in(text.replace("latch_after: 0", "latch_after: 3"), "mine.yaml", office)


def test_the_text_is_a_file_with_any_numbers(world):
    made = constraints_for(world, emergency=EMERGENCY, gamma=1e-5, lookahead=0)
    np.testing.assert_allclose(made.gamma, 1e-5)


def test_the_safest_action_of_the_reactor_cools(world):
    assert safest_action(world)[0] == -1.0


def test_an_emergency_that_leaves_an_actuator_out_is_refused(world):
    with pytest.raises(ValueError, match="reactor: emergency: feed is missing"):
        constraints_for(world, emergency={"jacket_setpoint": 280.0})
    with pytest.raises(ValueError, match="'fed'; did you mean 'feed'"):
        constraints_for(world, emergency=EMERGENCY | {"fed": 1.0})


@pytest.fixture(scope="module")
def play(world):
    """play(constraints, params, filtered): the margin (256, 100) to the limit, and emergencies.

    256 reactors under a policy that heats as much as it can.
    """

    def one(key, constraints, params, filtered):
        first, key = draws.split(key)
        state, step = world.reset(first, params)
        memory = initial_memory(constraints, jnp.zeros(2))

        def go(carry, key):
            state, obs, memory = carry
            wanted = jnp.asarray([1.0, 1.0])
            action, report = filter_action(wanted, ControlState(obs, memory), constraints)
            action = jnp.where(filtered, action, wanted)
            state, step = world.step(key, state, action, params)
            out = (step.info.safety.margins[0], report.emergency)
            return (state, step.obs, report.memory), out

        return jax.lax.scan(go, (state, step.obs, memory), draws.split(key, 100))[1]

    run = jax.jit(jax.vmap(one, (0, None, None, None)))
    return lambda *args: [np.asarray(x) for x in run(draws.split(jax.random.key(0), 256), *args)]


@pytest.mark.slow
def test_what_is_promised_under_the_model_holds_when_the_plant_is_the_model(
    world, constraints, play
):
    calm = reactor.make(disturbance=0.0).base.default_params()
    alone, _ = play(constraints, calm, False)
    assert (alone.min(axis=1) < 0.0).mean() > 0.9  # without the filter they run away
    margin, emergency = play(constraints, calm, True)
    assert emergency.sum() == 0
    tolerance = float(constraints.tolerance[constraints.names.index("lookahead:runaway")])
    assert margin.min() >= 5.0 - tolerance  # the reserve is kept
    assert margin.min() < 5.1  # and no more than that


@pytest.mark.slow
def test_disturbed_reactors_need_the_reserve(world, constraints, play):
    """The feed's temperature wanders, which the model knows nothing of."""
    params = world.default_params()
    larger = constraints.replace(
        barrier=constraints.barrier.replace(offset=constraints.barrier.offset - 5.0),
        lookahead=constraints.lookahead.replace(offset=constraints.lookahead.offset - 5.0),
    )
    none = constraints.replace(
        barrier=constraints.barrier.replace(offset=constraints.barrier.offset + 5.0),
        lookahead=constraints.lookahead.replace(offset=constraints.lookahead.offset + 5.0),
    )
    crossed = [(play(c, params, True)[0].min(axis=1) < 0.0).mean() for c in (none, larger)]
    assert crossed[0] > 0.1
    assert crossed[1] < 0.05


@pytest.mark.slow
def test_what_takes_over_is_what_keeps_the_plant(world):
    """An office needs heat in winter and cold in summer: no one action will do."""
    assert "  backup: emergency\n" in constraint_text(world, emergency=EMERGENCY)
    office = hvac.make().base
    text = constraint_text(office)
    assert "  backup: loops\n" in text
    keys = jax.random.split(jax.random.key(1), 64)
    obs = jax.vmap(lambda key: office.reset(key, office.params)[1].obs)(keys)
    wanted = jax.vmap(without_memory(office))(obs)

    def emergencies(text):
        made = constraints_in(text, "office.yaml", office)
        memory = jax.vmap(initial_memory, (None, 0))(made, wanted)
        filtered = jax.jit(jax.vmap(filter_action, (0, 0, None)))
        return float(filtered(wanted, ControlState(obs, memory), made)[1].emergency.mean())

    assert emergencies(text) < 0.02
    assert emergencies(text.replace("backup: loops", "backup: emergency")) > 0.1


@pytest.mark.slow
def test_a_plant_with_a_recovery_procedure_has_no_other_backup():
    @dataclass(frozen=True)
    class Office(hvac.Hvac):
        recovery: tuple = ("{for: 2}",)

    office = make_world(Office()).base
    text = constraint_text(office)
    assert "  backup: emergency\n" in text
    made = constraints_in(text, "office.yaml", office)
    assert made.backup is None
    assert made.recovery is not None
