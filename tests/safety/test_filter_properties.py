"""What holds for any input: by hypothesis one by one, and in batches of random cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safety_plants import CONSTRAINTS, many_rows, one_row, oracle_margins

from worldloom.core import draws
from worldloom.safety import (
    TOLERANCE,
    ControlState,
    filter_action,
    filter_batch,
    initial_memory,
    reset_latch,
    validate_constraints,
)
from worldloom.safety.filter import CHUNK, _ask
from worldloom.safety.margins import reach
from worldloom.safety.search import out_of_reach

MADE = {name: make() for name, make in CONSTRAINTS.items()}
one = jax.jit(filter_action)
many = jax.jit(jax.vmap(filter_action, (0, 0, None)))
SLOW = pytest.mark.slow
validate_many = jax.jit(jax.vmap(validate_constraints, (0, 0, None)))


def margins_of_many(state, action, constraints):
    return validate_many(state, action, constraints).margins


BATCH = 20_000

anything = st.floats(width=32, allow_nan=True, allow_infinity=True)
vectors = lambda size: st.lists(anything, min_size=size, max_size=size)  # noqa: E731


def cases(constraints, batch=BATCH, seed=0, reach=1.5):
    """Random proposals (batch, 2) and states in and near the limits."""
    keys = draws.split(jax.random.key(seed), 3)
    obs = 2.4 * draws.uniform(keys[0], (batch, 3)) - 1.2
    span = constraints.high - constraints.low
    previous = constraints.low + span * draws.uniform(keys[1], (batch, 2))
    proposed = reach * (2.0 * draws.uniform(keys[2], (batch, 2)) - 1.0)
    memory = jax.vmap(initial_memory, (None, 0))(constraints, previous)
    return proposed, ControlState(obs, memory)


@settings(max_examples=300)
@given(st.sampled_from(list(MADE)), vectors(3), vectors(2), vectors(2), st.booleans())
@example("many_rows", [3.4e38, -3.4e38, 3.4e38], [3.4e38, -3.4e38], [0.0, 0.0], False)
@example("learned", [0.0, 0.0, 0.0], [float("nan"), 0.0], [0.0, 0.0], True)
def test_whatever_comes_in_a_finite_action_within_box_and_rate_comes_out(
    name, obs, proposed, previous, latched
):
    c = MADE[name]
    previous = np.asarray(previous, np.float32)
    memory = initial_memory(c, previous).replace(latched=jnp.asarray(latched))
    obs, proposed = (np.asarray(x, np.float32) for x in (obs, proposed))
    action, report = one(proposed, ControlState(obs, memory), c)
    assert np.isfinite(action).all()
    finite = all(np.isfinite(x).all() for x in (obs, proposed, previous))
    assert bool(report.input_finite) == finite
    assert bool(report.emergency) or (finite and not latched and bool(report.is_safe))
    inside = (previous >= c.low) & (previous <= c.high)
    if inside.all():
        assert ((action >= c.low) & (action <= c.high)).all()
        for k, i in enumerate(c.rated):
            if c.hard[2 + k]:
                assert abs(float(action[i]) - float(previous[i])) <= float(c.rate[k]) + TOLERANCE


@pytest.mark.parametrize(
    "name",
    ["mixed_rows", "learned", *(pytest.param(n, marks=SLOW) for n in ("one_row", "many_rows"))],
)
def test_every_action_that_is_no_emergency_satisfies_every_hard_row(name):
    c = MADE[name]
    proposed, state = cases(c)
    action, report = many(proposed, state, c)
    margins = np.asarray(margins_of_many(state, action, c))
    hard = np.asarray(c.hard)
    worst = (margins / np.asarray(c.scale))[:, hard].min(-1)[~np.asarray(report.emergency)]
    assert worst.min() >= -TOLERANCE
    assert np.asarray(report.is_safe)[~np.asarray(report.emergency)].all()
    # The paths are all taken: passed, projected, and given up.
    shares = [float(x.mean()) for x in (report.intervened, report.projected, report.emergency)]
    assert 0.2 < shares[0] < 1.0
    assert shares[1] > 0.1
    # Without a hard rate on its strongest actuator the mixed plant can always be kept.
    assert (shares[2] > 0.0) == (name != "mixed_rows")
    assert shares[2] < 0.5


def test_an_oracle_in_double_precision_finds_the_same():
    c = MADE["one_row"]
    proposed, state = cases(c, 500, seed=4)
    action, report = many(proposed, state, c)
    previous = state.memory.previous
    for i in range(500):
        before = oracle_margins(c, state.obs[i], proposed[i], previous[i])
        after = oracle_margins(c, state.obs[i], action[i], previous[i])
        np.testing.assert_allclose(report.margins_before[i], before, atol=1e-6)
        np.testing.assert_allclose(report.margins_after[i], after, atol=1e-6)
        assert bool(report.emergency[i]) or after.min() >= -TOLERANCE
        if before.min() >= 0.0:
            assert np.array_equal(action[i], proposed[i])


@pytest.mark.parametrize("name", list(MADE))
def test_safe_actions_pass_bit_by_bit(name):
    c = MADE[name]
    proposed, state = cases(c, seed=1, reach=0.9)
    action, report = many(proposed, state, c)
    safe = (np.asarray(report.margins_before)[:, np.asarray(c.hard)] >= 0.0).all(-1)
    assert safe.sum() > 500
    same = np.asarray(action).view(np.uint32) == np.asarray(proposed).view(np.uint32)
    assert same[safe].all()


@pytest.mark.parametrize("name", ["one_row", "many_rows", "learned"])
def test_filtering_again_changes_nothing(name):
    c = MADE[name]
    proposed, state = cases(c, seed=2)
    action, report = many(proposed, state, c)
    again, second = many(action, state, c)
    settled = ~np.asarray(report.emergency)
    assert np.array_equal(np.asarray(again)[settled], np.asarray(action)[settled])
    assert not np.asarray(second.intervened)[settled].any()


def test_one_barrier_row_is_projected_to_the_nearest_action():
    """No sampled action that satisfies everything is nearer by more than 1e-4."""
    c = MADE["one_row"]
    proposed, state = cases(c, 5000, seed=3)
    action, report = many(proposed, state, c)
    for seed in range(60):
        luck = draws.uniform(jax.random.key(100 + seed), action.shape)
        other = 2.0 * luck - 1.0 if seed % 2 else action + 0.1 * (luck - 0.5)
        feasible = np.asarray(margins_of_many(state, other, c) >= 0.0).all(-1)
        far = np.linalg.norm(other - proposed, axis=-1)
        beaten = feasible & (far < np.asarray(report.distance) - 1e-4)
        assert not beaten[~np.asarray(report.emergency)].any()
        # What was given up really had no answer.
        assert not feasible[np.asarray(report.infeasible)].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MADE))
def test_one_by_one_compiled_or_not_and_in_a_batch_are_the_same(name):
    c = MADE[name].replace(pivots=6)  # a loop that is not compiled takes its time
    proposed, state = cases(c, 64, seed=5)
    actions, reports = many(proposed, state, c)
    for i in range(24):
        row = jax.tree.map(lambda x, i=i: x[i], state)
        action, report = one(proposed[i], row, c)
        np.testing.assert_allclose(action, actions[i], atol=1e-5)
        assert bool(report.emergency) == bool(reports.emergency[i])
        assert int(report.active) == int(reports.active[i])
    for i in range(1 if len(c.names) > 5 else 4):
        row = jax.tree.map(lambda x, i=i: x[i], state)
        with jax.disable_jit():
            action, report = filter_action(proposed[i], row, c)
        np.testing.assert_allclose(action, actions[i], atol=1e-5)
        np.testing.assert_allclose(report.margins_after, reports.margins_after[i], atol=1e-5)


def test_the_program_branches_for_the_whole_batch_alone_and_calls_nobody():
    c = MADE["one_row"]
    proposed, state = cases(c, 8)
    rows = jax.vmap(filter_action, (0, 0, None))
    for run, branches, loops in ((rows, 0, 0), (filter_batch, 1, 2)):
        text = str(jax.make_jaxpr(lambda p, s, run=run: run(p, s, c))(proposed, state))
        assert "callback" not in text
        assert text.count("cond[") == branches
        # Over the rows that are not accepted, and over those that get the emergency action.
        assert text.count("while[") == loops


@pytest.mark.parametrize("name", ["mixed_rows", pytest.param("many_rows", marks=SLOW)])
def test_a_batch_gets_what_every_row_would_get_alone(name):
    """Whichever branch is taken: all accepted, one that is not, one that is stopped; and where
    more are not than another action is looked for at a time."""
    c, size = MADE[name], 4 * CHUNK
    proposed, state = cases(c, size, seed=8, reach=0.9)
    expected = many(proposed, state, c)
    batched = jax.jit(filter_batch)
    settled = np.flatnonzero(~np.asarray(expected[1].intervened | expected[1].emergency))[:4]
    assert len(settled) == 4
    changed = np.flatnonzero(np.asarray(expected[1].intervened))
    assert len(changed) > CHUNK
    for rows in (settled, [*settled[:3], changed[0]], np.arange(size)):
        for latched in (False, True):
            rows = np.asarray(rows)
            part = jax.tree.map(lambda x, rows=rows: x[rows], (proposed, state))
            stop = part[1].memory.latched.at[1].set(latched)
            held = part[1].replace(memory=part[1].memory.replace(latched=stop))
            one_by_one, together = (run(part[0], held, c) for run in (many, batched))
            assert bool(together[1].emergency[1]) or not latched
            for mine, other in zip(*map(jax.tree.leaves, (together, one_by_one)), strict=True):
                np.testing.assert_allclose(mine, other, atol=1e-6)


@pytest.mark.slow
def test_a_barrier_is_out_of_reach_only_where_no_action_keeps_it():
    c = MADE["many_rows"]
    proposed, state = cases(c, 5000, seed=9)
    state = state.replace(obs=3.0 * state.obs)  # far outside as well, where no action helps
    asked = jax.vmap(_ask, (0, 0, None))(proposed, state, c)
    lost = np.asarray(jax.jit(jax.vmap(out_of_reach, (0, 0, None)))(asked, state.obs, c))
    assert 0.01 < lost.mean() < 0.5
    low, high = jax.vmap(reach, (0, None))(state.memory.previous, c)
    for seed in range(60):
        uniform = draws.uniform(jax.random.key(100 + seed), proposed.shape)
        # The corners as well, where what is nearly linear is largest.
        share = jnp.round(uniform) if seed % 2 else uniform
        margins = margins_of_many(state, low + share * (high - low), c)
        kept = np.asarray(margins[:, np.asarray(c.kinds) == "barrier"] >= 0.0).all(-1)
        assert not kept[lost].any()
    _, report = jax.jit(filter_batch)(proposed, state, c)
    stopped = lost & ~np.asarray(asked.choice.fits) & np.asarray(asked.calm)
    assert np.asarray(report.emergency)[stopped].all()


@pytest.mark.parametrize("tightened", ["box", "rate", "barrier"])
def test_tighter_constraints_never_let_more_through(tightened):
    loose = MADE["one_row"]
    tight = {
        "box": loose.replace(low=0.7 * loose.low, high=0.7 * loose.high),
        "rate": loose.replace(rate=0.6 * loose.rate),
        "barrier": loose.replace(barrier=loose.barrier.replace(offset=loose.barrier.offset - 0.1)),
    }[tightened]  # fmt: skip
    proposed, state = cases(tight, seed=6)
    _, wide = many(proposed, state, loose)
    _, narrow = many(proposed, state, tight)
    assert (np.asarray(narrow.margins_before) <= np.asarray(wide.margins_before) + 1e-6).all()
    passed = ~np.asarray(narrow.intervened | narrow.emergency)
    assert not np.asarray(wide.intervened | wide.emergency)[passed].any()
    assert not np.asarray(wide.infeasible & ~narrow.infeasible).any()
    both = ~np.asarray(wide.emergency | narrow.emergency)
    assert (np.asarray(wide.distance) <= np.asarray(narrow.distance) + 1e-4)[both].all()
    assert passed.sum() < np.asarray(~(wide.intervened | wide.emergency)).sum()


def test_rates_hold_across_emergencies_latches_and_resets():
    c = one_row(latch_after=2)

    def step(memory, key):
        a, b, d, e = draws.split(key, 4)
        obs = jnp.where(draws.uniform(a) < 0.3, jnp.nan, 2.4 * draws.uniform(b, (3,)) - 1.2)
        proposed = 3.0 * (2.0 * draws.uniform(d, (2,)) - 1.0)
        action, report = filter_action(proposed, ControlState(obs, memory), c)
        lifted = reset_latch(report.memory)
        lift = draws.uniform(e) < 0.5
        after = jax.tree.map(lambda x, y: jnp.where(lift, x, y), lifted, report.memory)
        return after, (action, report.emergency, report.latched)

    @jax.jit
    def play(key):
        return jax.lax.scan(step, initial_memory(c, jnp.zeros(2)), draws.split(key, 3000))[1]

    action, emergency, latched = play(jax.random.key(0))
    change = np.abs(np.diff(np.concatenate([np.zeros((1, 2)), action]), axis=0))
    assert (change <= np.asarray(c.rate) + TOLERANCE).all()
    assert (change > 0.99 * np.asarray(c.rate)).any(0).all()
    assert emergency.mean() > 0.2
    assert latched.mean() > 0.02


def test_values_of_constraints_can_be_changed_without_compiling_again():
    wider = many_rows().replace(high=jnp.asarray([0.5, 0.5]))
    before = one._cache_size()
    _, state = cases(wider, 1)
    row = jax.tree.map(lambda x: x[0], state)
    first, _ = one(jnp.ones(2), row, MADE["many_rows"])
    count = one._cache_size()
    second, _ = one(jnp.ones(2), row, wider.replace(model=MADE["many_rows"].model))
    assert one._cache_size() == count >= before
    assert (second <= 0.5).all()
    assert not np.array_equal(first, second)
