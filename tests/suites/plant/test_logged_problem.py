"""A described plant as a problem: what is refused before anything is learned, and its filter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.safety import ControlState, filter_action, initial_memory
from worldloom.suites.plant.problem import make_problem
from worldloom.suites.plant.suite import SUITE
from worldloom.training.config import make_config

TEXT = """\
name: tank
step: 10 s
horizon: 20
signals:
  level: {unit: m, low: 0, high: 5}
actuators:
  valve: {unit: "%", low: 0, high: 100}
reward: -abs(level - 2)
emergency: {valve: 50 %}
"""
LIMITS = "limits: {full: {signal: level, at_most: 4 m}}\n"


@pytest.fixture
def problem(tmp_path, monkeypatch):
    """problem(text, ...): of a tank that fills by what its valve lets in, and leaks."""
    monkeypatch.chdir(tmp_path)
    rng, level, lines = np.random.default_rng(0), 2.0, ["level,valve"]
    for _ in range(200):
        valve = rng.uniform(0.0, 100.0)
        lines.append(f"{level:.4f},{valve:.3f}")
        level = 0.9 * level + 0.004 * valve
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")

    def make(text, **settings):
        (tmp_path / "tank.yaml").write_text(text)
        given = {"env": "tank.yaml", "dataset": "log.csv", "model_updates": 300} | settings
        return make_problem(make_config(SUITE, given))

    return make


def constraints_of(problem):
    return problem.make_evaluator(None, 1).constraints


def filtered(constraints, level, wanted):
    state = ControlState(jnp.asarray([level]), initial_memory(constraints, jnp.asarray([0.0])))
    return jax.jit(filter_action)(jnp.asarray([wanted]), state, constraints)


def test_without_limits_no_model_is_learned_and_nothing_is_held_back(problem):
    constraints = constraints_of(problem(TEXT))
    assert constraints.model is None
    action, report = filtered(constraints, 4.9, 1.0)
    assert (float(action[0]), bool(report.intervened)) == (1.0, False)


@pytest.mark.slow
def test_a_hard_limit_is_kept_by_a_model_that_was_learned(problem):
    made = problem(TEXT + LIMITS)
    constraints = constraints_of(made)
    assert constraints.model is not None
    assert float(constraints.disturbance[0]) >= 0.0
    action, report = filtered(constraints, 2.0, 0.5)
    assert not bool(report.intervened)
    action, report = filtered(constraints, 3.75, 1.0)  # 0.9 * 3.75 + 0.4 = 3.775 is near the limit
    assert float(action[0]) <= 1.0
    assert bool(report.is_safe)
    assert made.config.env.startswith("tank@")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"algo": "ppo"},
            "tank is known from its log alone, and ppo learns in a simulator; use bc",
        ),
        ({"dataset": "medium"}, "tank is known from its log alone: name it by --dataset FILE"),
        ({"ope_updates": 0}, "ope_updates=0 leaves a plant without a simulator unscored"),
        ({"constraints": "none.yaml"}, "none.yaml: there is no such file"),
        ({"world": {"mass": 3}}, "tank.yaml has no option 'mass'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(problem, settings, message):
    with pytest.raises(ValueError, match=message):
        problem(TEXT, **settings)


def test_a_constraint_file_with_a_mistake_is_refused_before_anything_is_learned(problem, tmp_path):
    (tmp_path / "c.yaml").write_text(
        "emergency: {valve: 0 %}\nbarriers: {full: {signal: lvel, at_most: 4 m}}\n"
    )
    with pytest.raises(ValueError, match=r"c.yaml: .*there is no signal 'lvel'; did you mean"):
        problem(TEXT, constraints="c.yaml")


def test_a_plant_by_name_says_what_to_do_with_a_table(problem):
    made = make_problem(make_config(SUITE, {"env": "dmsd", "dataset": "log.csv"}))
    with pytest.raises(ValueError, match="a plant by name learns from npz files: convert it"):
        made.data()
