"""Constraints put together, and the margins of rows that need a model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safety_plants import FIRST, curved_model, ensemble_model, learned, linear_model, many_rows

from worldloom.safety import (
    Barrier,
    ControlState,
    LinearRow,
    StateRow,
    initial_memory,
    make_constraints,
    validate_constraints,
)
from worldloom.safety.margins import linearise, model_margins

OBS, ACTION = jnp.asarray([0.4, -0.2, 0.3]), jnp.asarray([0.5, -0.6])


def test_absent_parts_have_no_rows():
    bare = make_constraints(3, [0.0, 0.0])
    assert bare.names == ("box:u0", "box:u1")
    state = ControlState(OBS, initial_memory(bare))
    margins = validate_constraints(state, ACTION, bare).margins
    np.testing.assert_allclose(margins, [0.5, 0.4], atol=1e-7)
    assert bare.linear.weights.shape == (0, 2)
    assert bare.barrier.weights.shape == (0, 3)


def test_rows_come_in_the_order_of_their_kinds_with_their_names():
    made = many_rows(actuators=["valve", "pump"])
    assert made.names == (
        "box:valve", "box:pump", "rate:pump", "linear:total", "linear:gap", "state:trip",
        "barrier:first", "barrier:sum", "lookahead:later",
    )  # fmt: skip
    assert len(made.kinds) == len(made.hard) == made.scale.shape[0] == 9


def test_a_linear_row_counts_what_is_left_below_its_bound():
    made = make_constraints(3, [0.0, 0.0], linear=[LinearRow("sum", [1.0, 2.0], 0.25)])
    state = ControlState(OBS, initial_memory(made))
    found = validate_constraints(state, ACTION, made).margins
    np.testing.assert_allclose(found[2], 0.25 - (0.5 - 1.2), atol=1e-6)


def test_a_barrier_compares_the_next_observation_with_this_one():
    made = make_constraints(3, [0.0, 0.0], barriers=[FIRST], model=linear_model)
    following = linear_model(OBS, ACTION)
    expected = (1.0 - following[0]) - 0.02 - 0.6 * (1.0 - OBS[0])
    margins, deviation = model_margins(OBS, ACTION, made)
    np.testing.assert_allclose(margins, [expected], atol=1e-6)
    assert deviation.tolist() == [0.0]


def test_an_ensemble_counts_as_its_mean_less_its_deviations():
    made = learned()
    members = np.asarray(ensemble_model(OBS, ACTION), np.float64)
    h = 1.0 - members[:, 0]
    expected = h.mean() - 1.5 * h.std() - 0.02 - 0.6 * (1.0 - float(OBS[0]))
    margins, deviation = model_margins(OBS, ACTION, made)
    np.testing.assert_allclose(margins, [expected], atol=2e-5)
    np.testing.assert_allclose(deviation, [h.std()], atol=2e-5)


def test_members_that_agree_have_a_slope_that_is_a_number():
    agreed = make_constraints(
        3, [0.0, 0.0], barriers=[FIRST], model=lambda x, u: jnp.tile(linear_model(x, u), (4, 1))
    )
    _, slope, _ = linearise(OBS, ACTION, agreed)
    np.testing.assert_allclose(slope, [[-0.3, -0.1]], atol=1e-5)


def test_looking_ahead_follows_the_backup_policy_at_the_speed_of_its_actuators():
    def backup(obs):
        return jnp.asarray([-1.0, 0.0]) - 0.1 * obs[:2]

    made = many_rows(backup=backup, rate={0: 0.25}, horizon=6)
    x, u = curved_model(OBS, ACTION), np.asarray(ACTION)
    least = 1.2 - float(x[0])
    for _ in range(5):
        wanted = np.clip(np.asarray(backup(x)), [-0.9, -1.0], [1.0, 0.8])
        u = np.asarray([np.clip(wanted[0], u[0] - 0.25, u[0] + 0.25), wanted[1]], np.float32)
        x = curved_model(x, jnp.asarray(u))
        least = min(least, 1.2 - float(x[0]))
    assert abs(float(model_margins(OBS, ACTION, made)[0][2]) - least) < 1e-5
    assert float(jnp.abs(least - (1.2 - curved_model(OBS, ACTION)[0]))) > 1e-3


def test_slopes_are_those_of_finite_differences():
    made = many_rows()
    value, slope, _ = linearise(OBS, ACTION, made)
    np.testing.assert_allclose(value, model_margins(OBS, ACTION, made)[0], atol=1e-6)
    for i in range(2):
        step = 1e-2 * jnp.eye(2)[i]
        ends = [model_margins(OBS, ACTION + s, made)[0] for s in (step, -step)]
        np.testing.assert_allclose(slope[:, i], (ends[0] - ends[1]) / 2e-2, atol=2e-3)


def test_weights_of_a_learned_model_are_leaves():
    model = jax.tree_util.Partial(lambda w, x, u: linear_model(x, u) * w["gain"], {"gain": 1.0})
    made = make_constraints(3, [0.0, 0.0], barriers=[FIRST], model=model)
    doubled = jax.tree.map(lambda x: x, made).replace(
        model=jax.tree_util.Partial(model.func, {"gain": 2.0})
    )
    run = jax.jit(lambda c: model_margins(OBS, ACTION, c)[0])
    assert run(made)[0] > run(doubled)[0]
    assert run._cache_size() == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"emergency": [2.0, 0.0]}, "emergency of u0: 2"),
        ({"emergency": [np.nan, 0.0]}, "emergency: .*finite"),
        ({"emergency": []}, "emergency: has no numbers"),
        ({"low": [0.5, -1.0], "high": [0.5, 1.0], "emergency": [0.5, 0.0]}, "low must be below"),
        ({"rate": {0: 0.0}}, "rate of u0: 0"),
        ({"rate": {5: 1.0}}, "rate: actuator 5"),
        ({"soft_rates": [1]}, "soft_rates: actuator 1"),
        ({"linear": [LinearRow("x", [1.0], 0.0)]}, "row x: 1 weights; there are 2 actuators"),
        ({"state": [StateRow("y", [1.0], 0.0)]}, "row y: 1 weights; there are 3 signals"),
        ({"state": [StateRow("y", [1.0, 0.0, np.inf], 0.0)]}, "row y: .*not finite"),
        ({"state": [StateRow("y", [1.0, 0.0, 0.0], 0.0, scale=0.0)]}, "scale=0"),
        ({"linear": [LinearRow("x", [1e39, 0.0], 0.0)]}, "row x: .*not finite.*float32"),
        ({"linear": [LinearRow("x", [1.0, 0.0], -1e39)]}, "row x: .*not finite"),
        ({"linear": [LinearRow("x", [1e-50, 0.0], -1e-60)]}, "row x: .*float32"),
        ({"linear": [LinearRow("x", [3e38, 3e38], 0.0)]}, "row x: scale=6e.38"),
        ({"state": [StateRow("y", [1.0, 0.0, 0.0], 0.0, scale=1e39)]}, "row y: scale=1e.39"),
        ({"rate": {0: 1e39}}, "rate of u0: 1e.39"),
        ({"deviations": 1e39}, "deviations: 1e.39"),
        ({"barriers": [Barrier("b", [1, 0, 0], 1.0, disturbance=1e39)], "model": linear_model},
         "disturbance=1e.39"),
        ({"barriers": [FIRST]}, "model: None"),
        ({"barriers": [Barrier("b", [1, 0, 0], 1.0, gamma=0.0)], "model": linear_model}, "gamma=0"),
        ({"barriers": [Barrier("b", [1, 0, 0], 1.0, disturbance=-1.0)], "model": linear_model},
         "disturbance=-1"),
        ({"barriers": [FIRST, FIRST], "model": linear_model}, "barrier:first; each needs a name"),
        ({"lookahead": [StateRow("l", [1, 0, 0], 1.0)], "model": linear_model}, "horizon: 0"),
        ({"horizon": 3}, "horizon: 3"),
        ({"passes": 0}, "passes: 0"),
        ({"pivots": 0}, "pivots: 0"),
        ({"latch_after": -1}, "latch_after: -1"),
        ({"deviations": -1.0}, "deviations: -1"),
        ({"actuators": ["one"]}, "actuators: 1 names"),
    ],
)  # fmt: skip
def test_constraints_that_make_no_sense_are_refused_in_one_line(changes, words):
    options = {"emergency": [0.0, 0.0]} | changes
    with pytest.raises(ValueError, match=words) as caught:
        make_constraints(3, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("safety constraints: ")


def test_a_row_of_tiny_numbers_is_held_as_exactly_as_any():
    """u <= 0 in another unit: the tolerance is a share of the row, and not of 1."""
    made = make_constraints(1, [0.0], linear=[LinearRow("x", [1e-12], 0.0)])
    state = ControlState(jnp.zeros(1), initial_memory(made))
    assert not validate_constraints(state, jnp.ones(1), made).is_safe
    assert validate_constraints(state, -jnp.ones(1), made).is_safe
