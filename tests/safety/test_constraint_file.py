"""Constraint files: what they say in physical units, and what is refused."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.safety import ControlState, initial_memory, read_constraints, validate_constraints
from worldloom.safety.constraint_file import parse_constraints


@dataclass(frozen=True)
class Sensor:
    name: str
    unit: str
    low: float
    high: float


SEEN = (Sensor("temperature", "K", 300.0, 400.0), Sensor("wall", "K", 280.0, 380.0),
        Sensor("level", "%", 0.0, 100.0))  # fmt: skip
MOVED = (Sensor("jacket", "K", 280.0, 320.0), Sensor("feed", "L/min", 80.0, 120.0),
         Sensor("bypass", "L/min", 0.0, 40.0))  # fmt: skip
TEXT = """
emergency: {jacket: 280 K, feed: 4.8 m3/h, bypass: 0 L/min}
box:
  jacket: {low: 6.85 degC, high: 315 K}
rate:
  jacket: {at_most: 100 K/min, hard: false}
  feed: {at_most: 2 L/min}
linear:
  supply: {of: {feed: 1, bypass: 1}, at_most: 7.8 m3/h}
  least: {signal: feed, at_least: 85 L/min, hard: false}
state:
  relief: {signal: temperature, at_most: 126.85 degC}
barriers:
  runaway: {signal: temperature, at_most: 375 K, gamma: 0.3, disturbance: 0.9 degF}
  gradient: {of: {temperature: 1, wall: -1}, at_most: 30 degC, hard: false}
  dry: {signal: level, at_least: 20 %}
lookahead:
  steps: 4
  rows:
    runaway: {signal: temperature, at_most: 375 K}
deviations: 1.5
latch_after: 5
"""


def model(obs, action):
    return obs + jnp.asarray([1.0, 0.5, 0.0]) * action[0]


def parse(text, **options):
    options = {"step_seconds": 6.0} | options
    return parse_constraints(text, "plant.yaml", SEEN, MOVED, model, **options)


def test_margins_are_in_physical_units():
    made = parse(TEXT)
    obs = jnp.asarray([360.0, 340.0, 50.0])
    # 310 K, 104 L/min and 10 L/min after 300 K, 100 L/min and 10 L/min
    action = jnp.asarray([0.5, 0.2, -0.5])
    memory = initial_memory(made, jnp.asarray([0.0, 0.0, -0.5]))
    margins = validate_constraints(ControlState(obs, memory), action, made).margins
    found = dict(zip(made.names, np.asarray(margins).tolist(), strict=True))
    expected = {
        "box:jacket": 0.25, "box:feed": 0.8, "box:bypass": 0.5,  # shares of half a range
        "rate:jacket": 0.0, "rate:feed": 0.1 - 0.2,
        "linear:supply": 130.0 - 114.0, "linear:least": 104.0 - 85.0,
        "state:relief": 400.0 - 360.0,
        "barrier:runaway": 375.0 - 360.5 - 0.5 - 0.7 * 15.0,
        "barrier:gradient": 30.0 - 20.25 - 0.8 * 10.0,
        "barrier:dry": 30.0 - 0.8 * 30.0,
        # the backup is the emergency action, which cools
        "lookahead:runaway": 375.0 - 360.5,
    }  # fmt: skip
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=2e-4), name
    soft = {name for name, hard in zip(made.names, made.hard, strict=True) if not hard}
    assert soft == {"rate:jacket", "linear:least", "barrier:gradient"}
    np.testing.assert_allclose(made.emergency, [-1.0, -1.0, -1.0], atol=1e-6)
    assert made.latch_after == 5
    assert made.deviations == 1.5
    assert made.horizon == 4


def test_a_file_says_what_takes_over():
    def loops(obs):
        return jnp.zeros(3)

    def other(obs):
        return jnp.ones(3)

    named = TEXT.replace("steps: 4", "steps: 4\n  backup: loops")
    assert parse(TEXT, loops=loops).backup is None
    assert parse(named, loops=loops).backup.func is loops
    assert parse(named, loops=loops, backup=other).backup.func is other


def test_a_change_of_a_share_needs_its_unit_too():
    share = (Sensor("valve", "%", 0.0, 100.0),)
    text = "emergency: {valve: 50 %}\nrate: {valve: {at_most: 5}}\n"
    with pytest.raises(ValueError, match=r"rate\.valve\.at_most: 5 has no unit.*write '5 %'"):
        parse_constraints(text, "plant.yaml", SEEN, share)
    made = parse_constraints(text.replace("5}", "5 %}"), "plant.yaml", SEEN, share)
    np.testing.assert_allclose(made.rate, [0.1])


def test_a_file_is_read_from_its_path(tmp_path):
    path = tmp_path / "plant.yaml"
    path.write_text("emergency: {jacket: 300 K, feed: 100 L/min, bypass: 0 L/min}\n")
    made = read_constraints(path, SEEN, MOVED)
    assert made.names == ("box:jacket", "box:feed", "box:bypass")
    np.testing.assert_allclose(made.emergency, [0.0, 0.0, -1.0])
    with pytest.raises(ValueError, match=r"gone\.yaml: there is no such file"):
        read_constraints(tmp_path / "gone.yaml", SEEN, MOVED)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"plant\.yaml: cannot be read as a text file"):
        read_constraints(path, SEEN, MOVED)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("emergency: {jacket: 280 K,", "emergency: {", r"emergency\.jacket is missing"),
        ("emergency:", "emergencies:", "unknown key 'emergencies'; did you mean 'emergency'"),
        ("jacket: 280 K", "jacket: 280", r"emergency\.jacket: 280: a number without a unit"),
        ("jacket: 280 K", "jacket: 280 L", r"emergency\.jacket: '280 L': L is no unit of .* K"),
        ("jacket: 280 K", "jacket: cold", r"emergency\.jacket: 'cold' is not a number"),
        ("jacket: 280 K", "jacket: 250 K", r"emergency\.jacket: 250 K is outside .* 280"),
        ("jacket: 280 K", "jacket: 318 K", r"emergency of jacket: 0\.9; it must lie in"),
        ("jacket: 280 K", "jackett: 280 K", r"no actuator 'jackett'; did you mean 'jacket'"),
        ("low: 6.85 degC", "lowest: 300 K", r"box\.jacket: unknown key 'lowest'"),
        ("low: 6.85 degC", "low: 319 K", "box of jacket: .*low must be below high"),
        ("at_most: 100 K/min", "at_most: 100 L/min", r"rate\.jacket\.at_most: '100 L/min'"),
        ("at_most: 100 K/min", "at_most: 0 K", "rate of jacket: 0; it must be above 0"),
        ("at_most: 100 K/min", "least: 1 K", r"rate\.jacket: unknown key 'least'"),
        ("at_most: 100 K/min, hard: false", "hard: false", r"rate\.jacket\.at_most is missing"),
        ("hard: false}\n  feed", "hard: maybe}\n  feed", r"rate\.jacket\.hard: 'maybe'"),
        ("{feed: 1, bypass: 1}", "{feed: 1, jacket: 1}", r"supply\.of: adds up .* K, L/min"),
        ("{feed: 1, bypass: 1}", "{feed: x}", r"linear\.supply\.of\.feed: 'x' is not a finite"),
        ("{feed: 1, bypass: 1}", "{feed: 0}", r"linear\.supply\.of: every factor is 0"),
        ("relief: {signal: temperature,", "relief: {", r"state\.relief: give either signal"),
        ("relief: {signal: temperature,", "relief: {signal: [a],", r"state\.relief\.signal: there"),
        ("relief: {signal: temperature,", "relief: {signal: temperatur,", "'temperatur'; did"),
        ("at_most: 126.85 degC", "hard: true", r"state\.relief: give either at_most or at_least"),
        ("gamma: 0.3", "gamma: 3", r"barriers\.runaway\.gamma: 3"),
        ("gamma: 0.3", "gamma: .nan", r"barriers\.runaway\.gamma: nan is not a finite number"),
        ("disturbance: 0.9 degF", "disturbance: -1 K", r"barriers\.runaway\.disturbance: -1 K"),
        ("disturbance: 0.9 degF", "disturbance: 1 L", r"barriers\.runaway\.disturbance: '1 L'"),
        ("{temperature: 1, wall: -1}", "{temperature: 1, wall: 1}", "no zero of its own"),
        ("at_least: 20 %", "at_least: 20", r"dry\.at_least: 20 has no unit.*write '20 %'"),
        ("steps: 4", "steps: 4\n  backup: luck", r"lookahead\.backup: 'luck'; it must be"),
        ("steps: 4", "steps: 4\n  backup: loops", r"lookahead\.backup: loops, of which none"),
        ("steps: 4", "steps: 0", r"lookahead\.steps: 0; it must be a whole number"),
        ("steps: 4", "steps: 1.5", r"lookahead\.steps: 1\.5"),
        ("latch_after: 5", "latch_after: -1", "latch_after: -1"),
        ("deviations: 1.5", "deviations: many", "deviations: 'many'"),
        ("latch_after: 5", "latch_after: 5\nlatch_after: 6", "latch_after is written twice"),
        ("latch_after: 5", "latch_after: [", "not a YAML file"),
        ("latch_after: 5", "7: 5", "the key 7 is not a name"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_one_line_with_file_and_key(old, new, words):
    assert old in TEXT
    with pytest.raises(ValueError, match=words) as caught:
        parse(TEXT.replace(old, new, 1))
    assert str(caught.value).startswith("plant.yaml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "just words", "- a\n- list", "emergency: 3", "box: {}"])
def test_a_file_of_another_kind_is_refused(text):
    with pytest.raises(ValueError, match=r"^plant\.yaml: "):
        parse(text)


def test_numbers_may_be_written_with_an_exponent_and_no_point():
    """YAML itself takes 1e-3 for a text."""
    text = TEXT.replace("gamma: 0.3", "gamma: 3e-1").replace("deviations: 1.5", "deviations: 1e0")
    made = parse(text)
    np.testing.assert_allclose(made.gamma[0], 0.3)
    assert made.deviations == 1.0


def test_a_rate_in_time_needs_the_length_of_a_step():
    with pytest.raises(ValueError, match=r"rate\.jacket\.at_most: .*length of a step is unknown"):
        parse(TEXT, step_seconds=None)


def test_barriers_need_a_model():
    with pytest.raises(ValueError, match=r"plant\.yaml: .*model: None"):
        parse_constraints(TEXT, "plant.yaml", SEEN, MOVED, step_seconds=6.0)
