"""Recovery procedures: stage after stage, as long as emergency actions follow each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safety_plants import many_rows, one_row
from test_constraint_file import TEXT, parse

from worldloom.safety import (
    ControlState,
    Stage,
    after_emergency,
    emergency_action,
    filter_action,
    filter_batch,
    initial_memory,
)
from worldloom.safety.recovery import make_recovery, recovery_target
from worldloom.serving.connect import recovery_action

STAGES = (Stage({0: 0.0}, 2), Stage({1: 0.8}, 4, ramp=True), Stage({}, 1))
BAD, GOOD = jnp.full(3, jnp.nan), jnp.zeros(3)


def oracle(stages, emergency, start, count):
    """Positions (count, m) by the letter of the procedure, without rates."""
    at, rows = np.asarray(start, np.float64), []
    plan = [(stage, step) for stage in stages for step in range(stage.steps)]
    begun = at
    for i in range(count):
        if i >= len(plan):
            at = np.asarray(emergency, np.float64)
        else:
            stage, step = plan[i]
            begun = at if step == 0 else begun
            at = at.copy()
            for index, target in stage.targets.items():
                share = (step + 1) / stage.steps if stage.ramp else 1.0
                at[index] = begun[index] + share * (target - begun[index])
        rows.append(at)
    return np.asarray(rows)


def executed(constraints, start, observations, proposed=(0.1, 0.1)):
    memory, actions, reports = initial_memory(constraints, jnp.asarray(start)), [], []
    run = jax.jit(filter_action)
    for obs in observations:
        state = ControlState(obs, memory)
        ready = emergency_action(state)
        np.testing.assert_allclose(ready, emergency_action(state, constraints), atol=1e-6)
        action, report = run(jnp.asarray(proposed), state, constraints)
        if report.emergency:
            np.testing.assert_allclose(action, ready, atol=1e-6)
        memory = report.memory
        actions.append(np.asarray(action))
        reports.append(report)
    return np.asarray(actions), reports


def test_stages_follow_each_other_and_end_at_the_emergency_action():
    made = one_row(rate={}, recovery=STAGES)
    actions, reports = executed(made, [0.4, -0.4], [BAD] * 9)
    np.testing.assert_allclose(actions, oracle(STAGES, [-0.5, 0.0], [0.4, -0.4], 9), atol=1e-6)
    assert actions[1].tolist() == pytest.approx([0.0, -0.4])  # the other one stays
    assert actions[5, 1] == np.float32(0.8)  # a ramp ends at its target, to the bit
    np.testing.assert_array_equal(actions[-1], made.emergency)
    assert all(report.emergency for report in reports)


def test_a_latched_procedure_goes_on_and_one_that_is_not_begins_anew():
    sequence = [BAD, BAD, GOOD, BAD]
    latched, _ = executed(one_row(rate={}, recovery=STAGES, latch_after=1), [0.4, -0.4], sequence)
    np.testing.assert_allclose(latched, oracle(STAGES, [-0.5, 0.0], [0.4, -0.4], 4), atol=1e-6)
    free, reports = executed(one_row(rate={}, recovery=STAGES, latch_after=0), [0.4, 0.0], sequence)
    assert not reports[2].emergency
    assert free[3].tolist() == pytest.approx([0.0, 0.1])  # the first stage, from where it was


def test_hard_rates_bound_every_step():
    made = one_row(rate={0: 0.05, 1: 0.1}, recovery=STAGES)
    actions, _ = executed(made, [0.4, -0.4], [BAD] * 30)
    steps = np.abs(np.diff(np.concatenate([[[0.4, -0.4]], actions]), axis=0))
    assert (steps <= np.asarray([0.05, 0.1]) + 1e-6).all()
    np.testing.assert_allclose(actions[-1], made.emergency, atol=1e-6)


def test_whoever_runs_out_of_time_goes_through_the_same_stages():
    made = one_row(rate={}, recovery=STAGES)
    memory, actions = initial_memory(made, jnp.asarray([0.4, -0.4])), []
    for _ in range(9):
        actions.append(np.asarray(memory.fallback))
        memory = after_emergency(memory, made)
    np.testing.assert_allclose(actions, oracle(STAGES, [-0.5, 0.0], [0.4, -0.4], 9), atol=1e-6)


@pytest.mark.slow
def test_a_batch_of_plants_is_in_different_stages():
    made = many_rows(recovery=STAGES)
    memory = jax.vmap(initial_memory, (None, 0))(made, jnp.linspace(-0.4, 0.4, 20).reshape(10, 2))
    memory = memory.replace(emergencies=jnp.arange(10), latched=jnp.arange(10) % 2 == 0)
    state = ControlState(jnp.zeros((10, 3)), memory)
    proposed = jnp.full((10, 2), 0.7)
    together, _ = jax.jit(filter_batch)(proposed, state, made)
    alone = [
        filter_action(proposed[i], jax.tree.map(lambda x, i=i: x[i], state), made)[0]
        for i in range(10)
    ]
    np.testing.assert_allclose(together, jnp.stack(alone), atol=1e-6)
    assert len({tuple(np.round(row, 4)) for row in np.asarray(together)[::2].tolist()}) == 5


def test_the_lookahead_follows_the_procedure_and_not_its_end():
    """To hold at full push before the end is not what the emergency action alone would do."""
    hold = (Stage({0: 1.0, 1: 1.0}, 3),)
    state = ControlState(jnp.asarray([0.9, 0.3, 0.0]), initial_memory(many_rows(), jnp.zeros(2)))
    rows = {}
    for name, recovery in (("at once", ()), ("held", hold)):
        made = many_rows(recovery=recovery, rate={}, searches=0)
        _, report = filter_action(jnp.zeros(2), state, made)
        rows[name] = float(report.margins_before[made.names.index("lookahead:later")])
    assert rows["held"] < rows["at once"] - 0.1


stage = st.builds(
    Stage,
    st.dictionaries(st.integers(0, 1), st.floats(-1, 1, width=32), max_size=2),
    st.integers(1, 6),
    st.booleans(),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(stage, min_size=1, max_size=4), st.tuples(*[st.floats(-1, 1, width=32)] * 2))
def test_any_procedure_is_what_its_letter_says_and_stays_in_the_box(stages, start):
    made, emergency = make_recovery(stages, 2), np.asarray([-0.5, 0.0], np.float32)
    at, rows = np.asarray(start, np.float32), []
    for count in range(26):
        at = np.asarray(recovery_target(made, emergency, at, count))
        rows.append(at)
    np.testing.assert_allclose(rows, oracle(stages, emergency, start, 26), atol=1e-5)
    assert np.abs(rows).max() <= 1.0 + 1e-6


@settings(max_examples=50, deadline=None)
@given(st.lists(stage, min_size=1, max_size=4), st.tuples(*[st.floats(-1, 1, width=32)] * 2))
def test_a_connector_alone_does_what_the_filter_would(stages, start):
    names = ("valve", "pump")
    told = [
        {"steps": s.steps, "ramp": s.ramp, "to": {names[i]: x for i, x in s.targets.items()}}
        for s in stages
    ]
    at, rows = dict(zip(names, start, strict=True)), []
    for count in range(26):
        at = recovery_action(told, {"valve": -0.5, "pump": 0.0}, at, count)
        rows.append([at[name] for name in names])
    np.testing.assert_allclose(rows, oracle(stages, [-0.5, 0.0], start, 26), atol=1e-6)
    assert recovery_action(told, {"valve": -0.5}, None, 0) == {"valve": -0.5}


def written(recovery):
    return TEXT + "recovery:\n" + recovery


def test_a_file_says_it_in_units_and_times():
    made = parse(written(
        "  - {to: {feed: 80 L/min}, for: 30 s}\n  - {to: {jacket: 300 K}, for: 3, ramp: true}\n"
    ))  # fmt: skip
    assert made.recovery is not None
    assert made.recovery.end.tolist() == [5, 8]  # steps of 6 s
    assert made.recovery.moves.tolist() == [[False, True, False], [True, False, False]]
    assert made.recovery.target[0, 1] == -1.0
    assert made.recovery.target[1, 0] == 0.0
    assert made.recovery.ramp.tolist() == [False, True]
    assert parse(TEXT).recovery is None


@pytest.mark.parametrize(
    ("recovery", "words"),
    [
        ("  - {to: {feed: 80 L/min}}\n", r"recovery\.1: for is missing"),
        ("  - {to: {fed: 80 L/min}, for: 5}\n", r"recovery\.1\.to\.fed: .*did you mean 'feed'"),
        ("  - {to: {feed: 200 L/min}, for: 5}\n", r"outside of what feed can do"),
        ("  - {to: {feed: 80 K}, for: 5}\n", r"recovery\.1\.to\.feed"),
        ("  - {for: 0}\n", r"recovery\.1\.for: 0; it must be a whole number of at least 1"),
        ("  - {for: 3 K}\n", r"recovery\.1\.for: '3 K'"),
        ("  - {for: 5, ramp: 2}\n", r"recovery\.1\.ramp: 2; it must be true or false"),
        ("  - {for: 5, until: 3}\n", r"unknown key 'until'"),
        ("  {for: 5}\n", r"is no list"),
        ("  - hold\n", r"recovery\.1: 'hold' is not"),
    ],
)
def test_mistakes_are_one_line(recovery, words):
    with pytest.raises(ValueError, match=words) as error:
        parse(written(recovery))
    assert "\n" not in str(error.value)
