"""Rewards as expressions of signals: what they are worth, and what may not stand in them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.plant.expression import parse_expression

SIGNALS, ACTUATORS = ("level", "heat"), ("valve",)
ROWS = {
    "level": np.asarray([0.0, 1.5, -2.0, 7.0], np.float32),
    "heat": np.asarray([3.0, 0.5, 1.0, 2.0], np.float32),
    "valve": np.asarray([10.0, 20.0, 0.0, 90.0], np.float32),
    "before(level)": np.asarray([1.0, 1.0, 1.0, 1.0], np.float32),
}


def parse(text):
    return parse_expression(text, SIGNALS, ACTUATORS)


@pytest.mark.parametrize(
    ("text", "oracle"),
    [
        ("-abs(level - 2)/10 - valve", lambda r: -abs(r["level"] - 2) / 10 - r["valve"]),
        ("level**2 + 2*heat", lambda r: r["level"] ** 2 + 2 * r["heat"]),
        ("max(level, heat, 1)", lambda r: max(r["level"], r["heat"], 1.0)),
        ("min(level, 0) * (valve > 50)", lambda r: min(r["level"], 0.0) * (r["valve"] > 50)),
        ("0 < level <= 1.5", lambda r: float(0 < r["level"] <= 1.5)),
        ("(level == 7) - (level != 7)", lambda r: 1.0 if r["level"] == 7 else -1.0),
        ("exp(-heat) + log(heat) - sqrt(heat)",
         lambda r: math.exp(-r["heat"]) + math.log(r["heat"]) - math.sqrt(r["heat"])),
        ("level - before(level)", lambda r: r["level"] - r["before(level)"]),
        ("+1.5", lambda r: 1.5),
    ],
)  # fmt: skip
def test_an_expression_is_worth_what_python_says(text, oracle):
    rows = [{name: float(values[i]) for name, values in ROWS.items()} for i in range(4)]
    expected = [oracle(row) for row in rows]
    found = parse(text)
    np.testing.assert_allclose(found(ROWS), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jit(found)(ROWS), expected, rtol=1e-5, atol=1e-6)
    assert found(ROWS).dtype == jnp.float32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('true')", "cannot stand here"),
        ("().__class__", "cannot stand here; use"),
        ("level.real", "cannot stand here"),
        ("(lambda: 1)()", "cannot stand here"),
        ("[level][0]", "cannot stand here"),
        ("open(level)", "there is no function open"),
        ("level if heat else 1", "cannot stand here"),
        ("level and heat", "cannot stand here"),
        ("level // 2", "cannot stand here"),
        ("not level", "cannot stand here"),
        ("'level'", "cannot stand here"),
        ("True", "cannot stand here"),
        ("1j", "cannot stand here"),
        ("max(level, key=abs)", "cannot stand here"),
        ("max(*level)", "cannot stand here"),
        ("max(level)", "max takes two values or more"),
        ("abs(level, heat)", "abs takes one value"),
        ("abs", "abs is a function; write abs"),
        ("before(level + 1)", "write before"),
        ("before(valve)", "there is no signal 'valve'"),
        ("levl + 1", "there is no signal 'levl'; did you mean 'level'"),
        ("profit", "{column: NAME}"),
        ("level +", "is no expression"),
        ("x = 1", "is no expression"),
        ("", "is no expression"),
        ("1" + "0" * 400, "cannot be held"),
        ("(" * 300 + "1" + ")" * 300, "nested too deeply|no expression"),
        ("-" * 1900 + "1", "nested too deeply|no expression"),
        ("1+" * 1500 + "1", "at most 2,000"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=message) as refusal:
        parse(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) <= 300
