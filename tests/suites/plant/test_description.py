"""Descriptions of plants: what they say, and every mistake in one line."""

import numpy as np
import pytest

import worldloom
from worldloom import suites
from worldloom.suites.plant.description import load, parse_description
from worldloom.suites.plant.plant import make_world, plant_of
from worldloom.suites.plant.safety import constraint_text, constraints_in

TEXT = """\
name: boiler
step: 1 min
horizon: 50
log:
  time: {column: stamp, format: iso}
  gap: 10 min
  missing: [Bad]
signals:
  temperature: {column: TI101, unit: K, file_unit: degF, low: 280, high: 420}
  pressure: {unit: bar, file_unit: psi, low: 0, high: 10}
actuators:
  valve: {column: FC7.OP, unit: "%", low: 0, high: 100, rate: 600 %/h, delay: 90 s}
  fan: {unit: krpm, low: 0, high: 3, rate: {at_most: 1 krpm, hard: false}}
reward: -abs(temperature - 350) / 10 - 0.01 * valve
limits:
  overheat: {signal: temperature, at_most: 400}
  cold: {signal: temperature, at_least: 20 degC, hard: false}
emergency: {valve: 0 %, fan: 1.5}
"""


def described(text=TEXT):
    return parse_description(text, "b.yaml")


def test_a_description_says_all_that_a_plant_has():
    plant = described()
    assert [(s.name, s.unit) for s in plant.observation] == [
        ("temperature", "K"), ("pressure", "bar"), ("valve_1_ago", "%"), ("valve_2_ago", "%"),
    ]  # fmt: skip
    assert [(s.name, s.low, s.high) for s in plant.action] == [("valve", 0, 100), ("fan", 0, 3)]
    assert (plant.horizon, plant.step_seconds, plant.delays) == (50, 60.0, (2, 0))
    assert plant.response > 2
    assert dict(plant.emergency) == {"valve": 0.0, "fan": 1.5}
    limits = {limit.name: limit for limit in plant.limits}
    assert limits["overheat"].hard
    assert not limits["cold"].hard
    assert limits["cold"].bound == pytest.approx(293.15)
    assert limits["valve_rate"].bound == pytest.approx(10.0)  # % in a step of a minute
    assert (limits["fan_rate"].bound, limits["fan_rate"].hard) == (1.0, False)
    columns = {c.name: c for c in (*plant.mapping.observation, *plant.mapping.action)}
    hot = columns["temperature"]
    assert 212.0 * hot.scale + hot.offset == pytest.approx(373.15)
    assert (hot.column, columns["valve"].column, columns["pressure"].column) == (
        "TI101", "FC7.OP", "pressure",
    )  # fmt: skip
    assert (plant.mapping.time, plant.mapping.gap, plant.mapping.missing) == (
        "stamp", 600.0, ("Bad",),
    )  # fmt: skip


def test_units_of_operators_are_pints():
    pytest.importorskip("pint")
    bar = next(c for c in described().mapping.observation if c.name == "pressure")
    assert 14.5038 * bar.scale + bar.offset == pytest.approx(1.0, rel=1e-5)


def test_a_unit_that_nobody_knows_is_a_label_that_must_match():
    same = TEXT.replace("unit: bar, file_unit: psi", "unit: wibbles, file_unit: wibbles")
    column = next(c for c in described(same).mapping.observation if c.name == "pressure")
    assert (column.unit, column.scale, column.offset) == ("wibbles", 1.0, 0.0)
    other = TEXT.replace("unit: bar, file_unit: psi", "unit: wibbles, file_unit: wobbles")
    with pytest.raises(ValueError, match=r"pressure.file_unit: wobbles is no unit of .* wibbles"):
        described(other)


def test_its_world_goes_by_name_and_content():
    plant = described()
    assert plant.key.startswith("boiler@")
    assert plant.key == described().key
    assert plant.key != described(TEXT + "# a comment\n").key


def test_a_yaml_file_is_the_world_of_the_suite_that_it_describes(tmp_path):
    path = tmp_path / "boiler.yaml"
    path.write_text(TEXT)
    assert suites.suite_of(str(path)).name == "plant"
    env = worldloom.make(str(path))
    assert env.spec.observation.shape == (4,)
    assert plant_of(env).plant.name == "boiler"
    assert load(path).spec == env.spec
    grid = tmp_path / "berries.yaml"
    grid.write_text("num_agents: 1\n")
    assert suites.suite_of(str(grid)).name == "grid"  # which says that kinds are missing


def test_a_world_that_a_run_keeps_is_not_known_by_its_name():
    with pytest.raises(ValueError, match="name the run, or its YAML file"):
        worldloom.make(described().key)


def test_whoever_wants_to_play_is_told_that_there_is_no_simulator(tmp_path):
    import jax

    path = tmp_path / "boiler.yaml"
    path.write_text(TEXT)
    env = worldloom.make(str(path))
    params = env.default_params()
    for ask in (
        lambda: env.reset(jax.random.key(0), params),
        lambda: jax.jit(env.reset)(jax.random.key(0), params),
        lambda: plant_of(env).model()(np.zeros(4), np.zeros(2)),
    ):
        with pytest.raises(ValueError, match="known from its log alone: there is no simulator"):
            ask()


def change(old, new):
    assert old in TEXT
    return TEXT.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("signals: 3", "b.yaml: step is missing; say how far"),
        (change("reward: -abs(temperature - 350) / 10 - 0.01 * valve\n", "reward:\n"),
         "b.yaml: reward is missing; say what is worth having"),
        (change("emergency: {valve: 0 %, fan: 1.5}\n", ""), "b.yaml: emergency is missing"),
        (change("step: 1 min", "step: 1 K"), "b.yaml: step: '1 K': K is no unit of .* it in s"),
        (change("name: boiler\n", ""), "b.yaml: name is missing; say what the plant is called"),
        (change("step: 1 min", "step: -3"), "b.yaml: step: -3; it must be a time"),
        (change("low: 280,", ""), "signals.temperature: low is missing; `worldloom data describe`"),
        (change("low: 280", "low: 500"), "signals.temperature: .*low=500 is not below high=420"),
        (change("low: 280", "low: wide"), "signals.temperature.low: 'wide'.* not a number"),
        (change("unit: K", "unti: K"), "signals.temperature: unknown key 'unti'; did you mean"),
        (change("file_unit: degF", "file_unit: kg"), "temperature.file_unit: kg is no unit"),
        (change("  pressure:", "  max:"), "signals.max: max cannot stand in an expression"),
        (change("  pressure:", "  2x:"), "signals.2x: '2x' is no name"),
        (change("  pressure:", "  fan:"), "actuators: fan is a signal as well"),
        (change("600 %/h", "600 K"), "actuators.valve.rate: '600 K' is no change of %"),
        (change("600 %/h", "-5 %"), "actuators.valve.rate: '-5 %'; a change must be above 0"),
        (change("90 s", "90 h"), "actuators.valve.delay: '90 h' is 5400 steps; from 0 to 100"),
        (change("0.01 * valve", "0.01 * vavle"), "reward: there is no signal 'vavle'; did you"),
        (change("-abs(temperature - 350)", "-abs(temperature - )"), "reward: .* is no expression"),
        (change("at_most: 400", "at_most: 400 bar"), "overheat.at_most: '400 bar': bar is no"),
        (change("at_most: 400", "hard: true"), "limits.overheat: give either at_most or at_least"),
        (change("signal: temperature, at_most", "signal: valve, at_most"),
         "limits.overheat: valve is an actuator: its low, high and rate"),
        (change("signal: temperature, at_most", "signal: temp, at_most"),
         "limits.overheat: there is no signal 'temp'"),
        (change("{valve: 0 %, fan: 1.5}", "{valve: 0 %}"), "emergency: fan is missing"),
        (change("{valve: 0 %, fan: 1.5}", "{valve: 120 %, fan: 1}"),
         "emergency.valve: 120 % is outside of what valve can do"),
        (change("  gap: 10 min", "  gap: 10 min\n  resample: cubic"), "log.resample: 'cubic'"),
        (change("time: {column: stamp, format: iso}\n  gap: 10 min", "resample: hold"),
         "log.resample: there is no time column"),
        (change("  gap: 10 min", "  gapp: 10 min"), "log: unknown key 'gapp'; did you mean 'gap'"),
        (change("horizon: 50", "horizon: 0"), "horizon: 0; it must be a whole number of at"),
        (TEXT + "stp: 3\n", "b.yaml: unknown key 'stp'; did you mean 'step'"),
        (change("name: boiler", "name: ../boiler"), "name: '../boiler' is no name"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place_and_what_to_do(text, message):
    with pytest.raises(ValueError, match=message) as refusal:
        described(text)
    assert str(refusal.value).startswith("b.yaml")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) <= 300


def test_recovery_and_alarms_reach_the_constraints_in_their_units():
    text = """
name: boiler
step: 30 s
signals: {temperature: {unit: K, low: 280, high: 420}}
actuators: {valve: {unit: "%", low: 0, high: 100}, pump: {unit: "%", low: 0, high: 100}}
reward: -abs(temperature - 350)
limits:
  overheat: {signal: temperature, at_most: 400 K}
  warm: {signal: temperature, at_least: 300 K, hard: false, alarm: high, deadband: 9 degF}
emergency: {valve: 0 %, pump: 50 %}
recovery:
  - {to: {valve: 20 %}, for: 2 min, ramp: true}
  - {for: 3}
"""
    world = plant_of(make_world(parse_description(text, "boiler.yaml")))
    written = constraint_text(world, emergency=dict(world.plant.emergency))
    made = constraints_in(written, "boiler", world, model=lambda obs, action: obs)
    assert made.recovery is not None
    assert made.recovery.end.tolist() == [4, 7]
    assert made.recovery.moves.tolist() == [[True, False], [False, False]]
    assert made.recovery.target[0, 0] == pytest.approx(-0.6)
    alarms = dict(zip(made.names, made.alarms, strict=True))
    assert alarms["state:warm"] == ("high", pytest.approx(5.0))
    assert alarms["state:overheat"] == ("medium", 0.0)
