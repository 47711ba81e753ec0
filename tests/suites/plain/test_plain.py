"""Any world of one agent as a problem: what is made of it, how it is scored, what is refused."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import guess
from worldloom import suites
from worldloom.core.spaces import Box
from worldloom.core.transforms import as_pure
from worldloom.suites.grid import treasurehunt
from worldloom.training.config import make_config
from worldloom.training.evaluate import (
    EpisodeEvaluator,
    random_play,
    ratio_error,
    reference_lines,
    reference_rows,
)
from worldloom.training.run import check_fit

PLAIN = suites.suite("plain")


@pytest.fixture
def problem(monkeypatch):
    """problem(make, **settings): the settings, and what the suite makes of a world."""
    monkeypatch.setattr(suites, "_REGISTERED", {})

    def made(make, **settings):
        suites.register("own", make, suite="plain")
        config = make_config(PLAIN, {"env": "own"} | settings)
        return config, PLAIN.problem(config, None)

    return made


def push(low, high, dtype="float32"):
    """Guess with an action that is a number, which is what it is paid."""
    env = as_pure(guess.make())

    def step(key, state, action, params):
        state, timestep = env.step(key, state, jnp.int32(0), params)
        return state, timestep.replace(reward=action[0].astype(jnp.float32))

    return replace(env, spec=replace(env.spec, action=Box(low, high, (1,), dtype)), step=step)


def test_continuous_actions_are_scaled_to_the_bounds_of_the_world(problem):
    _, made = problem(lambda: push(-2.0, 6.0), algo="sac")
    env = made.env
    assert (env.spec.action.low, env.spec.action.high) == (-1.0, 1.0)

    @jax.jit
    def paid(action):
        params = env.default_params()
        state, _ = env.reset(jax.random.key(0), params)
        return env.step(jax.random.key(1), state, action[None], params)[1].reward

    for action, reward in ((-1.0, -2.0), (0.0, 2.0), (1.0, 6.0), (9.0, 6.0)):
        assert float(paid(jnp.float32(action))) == reward


def test_an_agent_axis_of_one_is_left_out(problem):
    _, made = problem(lambda: treasurehunt.make(num_agents=1, height=5, width=5, horizon=4))
    _, first = jax.eval_shape(made.env.reset, jax.random.key(0), made.env.default_params())
    assert first.reward.shape == ()
    assert first.obs.shape == made.env.spec.observation.shape


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (lambda: treasurehunt.world(num_agents=1), {}, "own: training needs a world whose episod"),
        (guess.make, {"world": {"horizon": "long"}}, "own: an option is not known or of the wron"),
        (guess.make, {"world": {"chices": 3}}, "own has no option 'chices'; did you mean 'choi"),
        (lambda: push(-np.inf, 1.0), {"algo": "sac"}, "give the box finite bounds"),
    ],
)
def test_worlds_that_cannot_be_trained_in_are_refused(problem, make, settings, message):
    with pytest.raises(ValueError, match=message) as error:
        problem(make, **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "algo", "message"),
    [
        (guess.make, "sac", "sac needs continuous actions, and those of guess are discrete; use"),
        (guess.make, "mappo", "mappo is for several agents, and guess has one; use dqn"),
        (guess.make, "bc", "bc learns from logged data, and none are named"),
        (lambda: push(0, 3, "int32"), "ppo", "ppo needs .* actions, and those of guess are a Box"),
        (lambda: push(-1.0, 1.0), "dqn", "dqn needs discrete actions, .* continuous; use .*sac"),
    ],
)
def test_algorithms_that_do_not_fit_are_refused_with_those_that_do(problem, make, algo, message):
    config, made = problem(make, algo=algo)
    with pytest.raises(ValueError, match=message):
        check_fit(config, made)


def test_several_agents_without_turns_are_refused(problem):
    env = as_pure(guess.make())
    several = replace(env, spec=replace(env.spec, num_agents=2))
    config, made = problem(lambda: several)
    with pytest.raises(ValueError, match="several agents and is not turn-based; wrap it for one"):
        check_fit(config, made)


def test_defaults_follow_the_loop_of_the_algorithm():
    assert PLAIN.defaults("x", None)["algo"] == "ppo"
    assert PLAIN.defaults("x", "iql")["steps"] < PLAIN.defaults("x", "sac")["steps"]
    with pytest.raises(ValueError, match="there is no algorithm 'iqm'"):
        PLAIN.defaults("x", "iqm")


# Scores ------------------------------------------------------------------------------------------


def ending(env):
    """The world ends when 0 is shown after a step; every step until then pays 1."""

    def step(key, state, action, params):
        state, timestep = env.step(key, state, action, params)
        return state, timestep.replace(reward=jnp.float32(1.0), terminated=state[0] == 0)

    return replace(env, step=step)


def test_episodes_are_scored_to_their_end_and_no_further():
    env = ending(as_pure(guess.make(horizon=6)))

    def act(agents, obs, key, *, explore):
        assert explore == 0.0
        return jnp.zeros(obs.shape[0], jnp.int32)

    scores = EpisodeEvaluator(env, act, 64)((), jax.random.key(0))
    np.testing.assert_array_equal(scores.returns, scores.lengths)
    assert scores.lengths.min() == 1
    assert scores.lengths.max() == 6
    assert len(set(scores.lengths.tolist())) >= 5
    error = scores.returns.std(ddof=1) / 8
    assert scores.to_dict()["stderr"] == pytest.approx(error)
    assert scores.lines()["return"].startswith(f"{scores.mean:.4g} +- {error:.2g} (s.e.), 64")
    assert "+-" not in EpisodeEvaluator(env, act, 1)((), jax.random.key(0)).lines()["return"]


def test_random_play_is_scored_by_the_same_program():
    env, traced = as_pure(guess.make(horizon=6)), []

    def act(agents, obs, key, *, explore):
        traced.append(obs)
        return obs[:, 0].astype(jnp.int32)  # the right guess

    evaluator = EpisodeEvaluator(env, act, 256)
    learned = evaluator((), jax.random.key(0))
    beside = random_play(evaluator, ())
    choices = env.spec.action.n
    assert learned.mean == 6.0
    assert beside["random play"].mean == pytest.approx(6.0 / choices, abs=0.4)
    assert len(traced) == 1, "compiled once"
    rows = reference_rows(beside)
    assert rows["random play"]["episodes"] == 256
    assert "scores" not in rows["random play"]
    assert reference_lines(rows)["random play"].endswith("(s.e.)")
    damaged = {"nobody": {"mean": None}, "damaged": 3, "words": {"mean": "x"}}
    assert reference_lines(damaged) == {}
    endless = replace(env, spec=replace(env.spec, action=Box(-math.inf, math.inf, (1,))))
    assert random_play(EpisodeEvaluator(endless, act, 2), ()) == {}


def test_the_error_of_a_rate_is_that_of_its_episodes():
    rng = np.random.default_rng(0)
    steps = rng.integers(20, 60, (400, 64))
    crossed = rng.binomial(steps, rng.beta(2, 8, (400, 64)))  # steps of an episode are alike
    rates = crossed.sum(1) / steps.sum(1)
    errors = [ratio_error(c, s) for c, s in zip(crossed, steps, strict=True)]
    assert np.mean(errors) == pytest.approx(rates.std(), rel=0.1)
    both = ratio_error(np.stack([crossed[0], 0 * crossed[0]], -1), steps[0])
    np.testing.assert_allclose(both, [errors[0], 0.0])
    assert np.isnan(ratio_error(np.ones((1, 3)), np.ones(1))).all()
