"""What is executed in which case, and what the report says of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safety_plants import many_rows, mixed_rows, one_row, oracle_margins

from worldloom.nn.policy import PolicyState, policy_step
from worldloom.safety import (
    Barrier,
    ControlState,
    StateRow,
    after_emergency,
    clear_override,
    emergency_action,
    filter_action,
    initial_memory,
    reset_latch,
    safe_policy_execution,
    validate_constraints,
    with_override,
)

run = jax.jit(filter_action)
ORIGIN = jnp.zeros(3)
NEAR = jnp.asarray([0.9, 0.0, 0.0])  # h = 0.1: little may be pushed


@pytest.fixture(scope="module")
def constraints():
    return one_row()


@pytest.fixture
def memory(constraints):
    return initial_memory(constraints, jnp.zeros(2))


def test_a_safe_action_passes_bit_by_bit(constraints, memory):
    proposed = jnp.asarray([0.1234567, -0.33333334])
    action, report = run(proposed, ControlState(ORIGIN, memory), constraints)
    assert np.asarray(action).tobytes() == np.asarray(proposed).tobytes()
    assert report.is_safe
    assert not report.intervened | report.projected | report.infeasible | report.emergency
    assert report.active == -1
    assert report.distance == 0.0
    np.testing.assert_array_equal(report.margins_before, report.margins_after)
    np.testing.assert_array_equal(report.memory.previous, proposed)
    assert report.memory.step == 1


def test_margins_are_those_of_the_rows_written_out(constraints, memory):
    action = jnp.asarray([0.35, -0.2])
    found = validate_constraints(ControlState(NEAR, memory), action, constraints).margins
    expected = oracle_margins(constraints, NEAR, action, [0.0, 0.0])
    np.testing.assert_allclose(found, expected, atol=3e-7)
    assert constraints.names == ("box:u0", "box:u1", "rate:u0", "rate:u1", "barrier:first")
    assert len(expected) == 5


def test_an_action_outside_of_the_rate_is_moved_to_its_edge(constraints, memory):
    action, report = run(jnp.asarray([-0.9, 0.1]), ControlState(ORIGIN, memory), constraints)
    np.testing.assert_allclose(action, [-0.4, 0.1], atol=1e-7)
    assert report.projected & report.intervened & report.is_safe
    assert constraints.names[int(report.active)] == "rate:u0"
    np.testing.assert_allclose(report.distance, 0.5, atol=1e-6)


def test_a_barrier_bends_the_action_to_the_nearest_that_keeps_it(constraints, memory):
    proposed = jnp.asarray([0.39, 0.1])
    action, report = run(proposed, ControlState(NEAR, memory), constraints)
    assert constraints.names[int(report.active)] == "barrier:first"
    assert report.projected & report.is_safe
    assert report.margins_before[4] < 0.0
    assert abs(float(report.margins_after[4])) < 1e-6  # not farther than needed
    # The row is 0.3 u0 + 0.1 u1 <= b: the nearest point lies along its weights.
    moved = np.asarray(proposed - action)
    np.testing.assert_allclose(moved[1] / moved[0], 0.1 / 0.3, rtol=1e-4)


def test_a_limit_that_cannot_be_kept_leads_to_the_emergency_action(constraints, memory):
    far = jnp.asarray([0.99, 3.0, 0.0])  # the second signal pushes the first beyond its limit
    action, report = run(jnp.asarray([0.1, 0.1]), ControlState(far, memory), constraints)
    assert report.infeasible & report.emergency & report.intervened
    assert not report.is_safe | report.projected
    np.testing.assert_allclose(action, [-0.4, 0.0])  # as near to the target as the rate allows
    assert report.memory.emergencies == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["obs", "action", "previous", "override"])
def test_anything_that_is_not_finite_leads_to_a_finite_emergency_action(
    constraints, memory, where, bad
):
    obs, proposed = ORIGIN, jnp.asarray([0.1, 0.1])
    if where == "obs":
        obs = obs.at[1].set(bad)
    elif where == "action":
        proposed = proposed.at[0].set(bad)
    elif where == "previous":
        memory = memory.replace(previous=memory.previous.at[1].set(bad))
    else:
        memory = with_override(memory, jnp.asarray([bad, 0.0]))
    action, report = run(proposed, ControlState(obs, memory), constraints)
    assert report.emergency & ~report.input_finite
    np.testing.assert_allclose(action, [-0.4, 0.0], atol=1e-7)
    assert np.isneginf(report.margins_before).all()
    assert np.isposinf(report.distance)
    assert report.active == -1
    remembered = jax.tree.leaves(report.memory.replace(override=ORIGIN))
    assert all(np.isfinite(x).all() for x in remembered)
    assert bool(report.is_safe) == (where != "obs")  # of an unknown state nothing is known


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight", [1.0, -1.0, 0.0])
def test_a_prediction_that_is_not_finite_is_a_crossed_row(memory, bad, weight):
    """An infinity is no room, whatever its sign and wherever in the lookahead it appears."""
    far = Barrier("far", [weight, 0.0, -1.0], 9.0, gamma=1.0)
    at_once = one_row(model=lambda obs, u: obs.at[0].set(bad), barriers=[far])
    later = one_row(
        model=lambda obs, u: jnp.stack([jnp.where(obs[1] > 1.5, bad, 0.0), obs[1] + 1.0, obs[2]]),
        barriers=[], lookahead=[StateRow("far", [weight, 0.0, -1.0], 9.0)], horizon=4,
    )  # fmt: skip
    for made in (at_once, later):
        action, report = run(jnp.asarray([0.1, 0.1]), ControlState(ORIGIN, memory), made)
        assert report.emergency & report.infeasible & ~report.is_safe
        np.testing.assert_allclose(action, [-0.4, 0.0], atol=1e-7)
        assert np.isneginf(report.margins_after[-1])


def test_a_state_too_large_for_a_hard_row_is_no_room(memory):
    trip = one_row(state=[StateRow("trip", [0.0, 0.0, 100.0], 1.0)])
    state = ControlState(jnp.asarray([0.0, 0.0, 3e38]), memory)
    _, report = run(jnp.asarray([0.1, 0.1]), state, trip)
    assert report.emergency & report.input_finite & ~report.is_safe


def test_the_stop_latches_after_emergencies_in_a_row_and_stays_until_it_is_reset(
    constraints, memory
):
    bad, good = jnp.full(3, jnp.nan), ORIGIN
    calm = jnp.asarray([-0.45, 0.0])
    for obs in (bad, bad, good, bad, bad):
        _, report = run(calm, ControlState(obs, memory), constraints)
        memory = report.memory
    assert not memory.latched  # there was a good one in between
    _, report = run(calm, ControlState(bad, memory), constraints)
    assert report.memory.latched & ~report.latched
    for _ in range(2):
        action, report = run(calm, ControlState(good, report.memory), constraints)
        assert report.emergency & report.latched & report.input_finite & ~report.infeasible
        np.testing.assert_array_equal(action, constraints.emergency)
    memory = reset_latch(report.memory)
    np.testing.assert_array_equal(memory.previous, report.memory.previous)
    action, report = run(calm, ControlState(good, memory), constraints)
    assert not report.emergency | report.intervened
    np.testing.assert_array_equal(action, calm)


def test_without_latching_every_emergency_stands_alone(memory):
    never = one_row(latch_after=0)
    for _ in range(5):
        _, report = run(jnp.zeros(2), ControlState(jnp.full(3, jnp.nan), memory), never)
        memory = report.memory
    assert memory.emergencies == 5
    assert not memory.latched


def test_an_override_takes_the_place_of_the_policy_until_it_is_cleared(constraints, memory):
    human = with_override(memory, jnp.asarray([0.05, -0.25]))
    action, report = run(jnp.asarray([0.3, 0.3]), ControlState(ORIGIN, human), constraints)
    np.testing.assert_array_equal(action, jnp.asarray([0.05, -0.25]))
    assert report.overridden & report.is_safe & ~report.intervened
    action, report = run(
        jnp.asarray([0.3, -0.1]), ControlState(ORIGIN, clear_override(report.memory)), constraints
    )
    np.testing.assert_array_equal(action, jnp.asarray([0.3, -0.1]))
    assert not report.overridden


def test_an_unsafe_override_is_clipped_and_projected_like_any_proposal(constraints, memory):
    human = with_override(memory, jnp.asarray([9.0, 0.5]))
    action, report = run(jnp.zeros(2), ControlState(NEAR, human), constraints)
    assert report.overridden & report.projected & report.is_safe
    assert constraints.names[int(report.active)] == "barrier:first"
    assert action[0] < 0.4  # the rate alone would have allowed that much
    far = ControlState(jnp.asarray([0.99, 3.0, 0.0]), human)
    _, report = run(jnp.zeros(2), far, constraints)
    assert report.emergency & ~report.overridden


def test_an_override_does_not_lift_the_stop(constraints, memory):
    human = with_override(memory.replace(latched=jnp.asarray(True)), jnp.zeros(2))
    action, report = run(jnp.zeros(2), ControlState(ORIGIN, human), constraints)
    assert report.emergency & report.latched
    np.testing.assert_allclose(action, [-0.4, 0.0])


def test_a_hard_state_row_trips_and_a_soft_one_only_reports():
    hot = jnp.asarray([0.0, 0.0, 1.8])
    hard, soft = many_rows(), mixed_rows()
    memory = initial_memory(hard, jnp.zeros(2))
    _, report = run(jnp.zeros(2), ControlState(hot, memory), hard)
    assert report.emergency & ~report.infeasible & ~report.is_safe
    assert hard.names[int(report.active)] == "state:trip"
    _, report = run(jnp.asarray([0.1, 0.0]), ControlState(hot, memory), soft)
    assert not report.emergency | report.intervened
    assert report.is_safe
    assert report.margins_after[soft.names.index("state:alarm")] < 0.0
    assert report.active == -1


def test_a_soft_row_is_an_alarm_and_changes_no_action():
    soft = mixed_rows()
    memory = initial_memory(soft, jnp.asarray([0.3, 0.3]))
    proposed = jnp.asarray([0.75, 0.65])
    action, report = run(proposed, ControlState(ORIGIN, memory), soft)
    np.testing.assert_array_equal(action, proposed)
    assert report.is_safe & ~report.intervened & ~report.emergency
    assert report.active == -1
    crossed = {name for name, m in zip(soft.names, report.margins_after, strict=True) if m < 0.0}
    assert crossed == {"rate:u0", "linear:total"}


def test_a_soft_row_gives_way_to_a_hard_one():
    soft = mixed_rows()
    memory = initial_memory(soft, jnp.asarray([1.0, 0.0]))
    # The barrier needs u0 far below what the soft rate of 0.3 allows.
    state = ControlState(jnp.asarray([0.95, 0.0, 0.0]), memory)
    _, report = run(jnp.asarray([0.9, 0.0]), state, soft)
    assert report.projected & report.is_safe
    assert report.margins_after[soft.names.index("rate:u0")] < 0.0
    assert report.margins_after[soft.names.index("barrier:first")] >= -1e-5
    assert not report.emergency


def test_what_only_soft_rows_speak_against_and_cannot_be_kept_passes_as_it_is():
    soft = mixed_rows()
    memory = initial_memory(soft, jnp.zeros(2))
    # Below its soft lower limit, and to come back fast enough no rate is enough.
    state = ControlState(jnp.asarray([-3.0, -3.0, 0.0]), memory)
    proposed = jnp.asarray([0.1, 0.1])
    action, report = run(proposed, state, soft)
    np.testing.assert_array_equal(action, proposed)
    assert report.is_safe & ~report.intervened & ~report.emergency


def test_a_box_that_the_rate_cannot_reach_is_an_emergency_on_the_way_to_it(constraints):
    narrow = constraints.replace(
        low=jnp.asarray([0.5, -1.0]), emergency=jnp.asarray([0.6, 0.0])
    )  # fmt: skip
    memory = initial_memory(narrow, jnp.asarray([-0.8, 0.0]))
    action, report = run(jnp.asarray([0.6, 0.0]), ControlState(ORIGIN, memory), narrow)
    assert report.emergency & report.infeasible & ~report.is_safe
    np.testing.assert_allclose(action, [-0.4, 0.0], atol=1e-7)


def test_the_emergency_action_is_ready_without_constraints_and_counts_when_it_is_used(
    constraints, memory
):
    state = ControlState(jnp.full(3, jnp.nan), memory)
    np.testing.assert_array_equal(emergency_action(state), emergency_action(state, constraints))
    executed, report = run(jnp.zeros(2), state, constraints)
    np.testing.assert_array_equal(emergency_action(state), executed)
    for mine, other in zip(
        jax.tree.leaves(after_emergency(memory, constraints)),
        jax.tree.leaves(report.memory), strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(mine, other)
    broken = ControlState(ORIGIN, memory.replace(previous=jnp.full(2, jnp.nan)))
    np.testing.assert_array_equal(emergency_action(broken, constraints), constraints.emergency)


def test_a_curved_model_is_projected_to_its_edge():
    hard = many_rows()
    memory = initial_memory(hard, jnp.zeros(2))
    state = ControlState(jnp.asarray([0.85, 0.4, 0.1]), memory)
    action, report = run(jnp.asarray([0.95, 0.2]), state, hard)
    assert report.projected & report.is_safe
    modelled = np.isin(hard.kinds, ("barrier", "lookahead"))
    least = float(np.asarray(report.margins_after)[modelled].min())
    assert float(np.asarray(report.margins_before)[modelled].min()) < -0.1
    assert -1e-5 <= least < 2e-2
    assert action[0] < 0.95


def test_the_policy_is_filtered_one_by_one_and_in_a_batch(constraints):
    policy = PolicyState(
        {"w": jnp.ones((3, 2))}, jnp.zeros(3), jnp.ones(3), lambda p, x: jnp.tanh(x @ p["w"])
    )
    obs = jax.random.normal(jax.random.key(0), (6, 3))
    memories = jax.vmap(initial_memory, (None, 0))(constraints, jnp.zeros((6, 2)))
    batch = ControlState(obs, memories)
    execute = jax.jit(safe_policy_execution)
    actions, reports = execute(policy, batch, constraints, jax.random.key(1))
    assert actions.shape == (6, 2)
    assert reports.margins_after.shape == (6, 5)
    for i in range(3):
        state = jax.tree.map(lambda x, i=i: x[i], batch)
        action, report = execute(policy, state, constraints, None)
        np.testing.assert_allclose(action, actions[i], atol=1e-6)
        np.testing.assert_allclose(report.margins_after, reports.margins_after[i], atol=1e-6)
        expected, _ = run(policy_step(policy, state.obs), state, constraints)
        np.testing.assert_allclose(action, expected, atol=1e-6)


def test_a_noisy_policy_needs_its_key(constraints, memory):
    policy = PolicyState(
        jnp.zeros((3, 2)), jnp.zeros(3), jnp.ones(3), lambda p, x: x @ p, noise=0.1
    )
    state = ControlState(ORIGIN, memory)
    one, _ = safe_policy_execution(policy, state, constraints, jax.random.key(1))
    two, _ = safe_policy_execution(policy, state, constraints, jax.random.key(2))
    still, _ = safe_policy_execution(policy, state, constraints)
    assert not np.array_equal(one, two)
    np.testing.assert_array_equal(still, jnp.zeros(2))
