"""Greedy scores with their error, and episodes to look at."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import social
from oracles.countdown import countdown
from worldloom.suites.grid.evaluate import (
    GridEvaluation,
    GridEvaluator,
    gini,
    is_constant_sum,
    sustainability,
)
from worldloom.suites.grid.problem import new_trainer

pytestmark = pytest.mark.usefixtures("compiled_once")


def test_mean_error_and_interval_are_those_of_the_scores():
    per_agent = np.array([[1.0, 2.0], [4.0, 1.0], [0.0, 1.0], [3.0, 4.0]])
    found = GridEvaluation(per_agent.sum(axis=1), per_agent, 0.5)
    assert found.mean == 4.0  # of 3, 5, 1, 7
    assert found.stderr == pytest.approx(math.sqrt((1 + 1 + 9 + 9) / 3) / 2)
    low, high = found.interval
    assert (low + high) / 2 == pytest.approx(4.0)
    assert high - low == pytest.approx(2 * 1.96 * found.stderr)
    assert found.to_dict() == {
        "mean": 4.0,
        "stderr": found.stderr,
        "episodes": 4,
        "scores": [3.0, 5.0, 1.0, 7.0],
        "agents": [2.0, 2.0],
    }


def test_one_episode_has_a_score_but_no_error():
    found = GridEvaluation(np.array([3.0]), np.array([[1.0, 2.0]]), 0.1)
    assert found.mean == 3.0
    assert math.isnan(found.stderr)


@pytest.mark.parametrize(
    ("scores", "known"),
    [
        ([3.0, 3.0, 3.0], 0.0),
        ([0.0, 0.0, 6.0], 2 / 3),  # all is one's: 1 - 1/N
        ([1.0, 3.0], 0.25),
        ([0.0, 0.0], math.nan),
        ([-1.0, 3.0], math.nan),
    ],
)
def test_the_gini_coefficient_of_known_spreads(scores, known):
    np.testing.assert_allclose(gini(np.array([scores])), [known])


def test_gini_coefficients_are_those_of_a_slow_oracle():
    scores = np.random.default_rng(0).integers(0, 20, (30, 7)).astype(np.float32)
    np.testing.assert_allclose(gini(scores), [social.gini(row) for row in scores])


def test_sustainability_is_the_mean_turn_of_what_pays():
    rewards = np.zeros((6, 3, 2), np.float32)  # turns, agents, episodes
    rewards[[0, 3], 0, 0] = 1.0  # turns 1 and 4
    rewards[5, 1, 0] = 9.0  # turn 6, however much it pays
    rewards[2, 2, 0] = -1.0  # pays nobody
    found = np.asarray(sustainability(jnp.asarray(rewards)))
    assert found[0] == pytest.approx((2.5 + 6) / 2)
    assert math.isnan(found[1]), "nobody was paid"


def test_measures_leave_out_episodes_that_have_none():
    per_agent = np.array([[1.0, 3.0], [0.0, 0.0]])
    found = GridEvaluation(
        per_agent.sum(axis=1), per_agent, 0.5, gini=gini(per_agent), peace=np.array([1.0, 0.5])
    )
    row = found.to_dict()
    assert row["gini"] == 0.25
    assert row["equality"] == 0.75
    assert row["peace"] == 0.75
    assert "sustainability" not in row
    assert found.lines()["gini"] == "0.25"
    nothing = GridEvaluation(np.zeros(1), np.zeros((1, 2)), 0.5, gini=gini(np.zeros((1, 2))))
    assert "gini" not in nothing.to_dict()


def test_peace_counts_the_turns_in_which_agents_were_harmed():
    """Two agents, one cell apart: the lower one zaps in every turn, the upper one stays."""
    from worldloom.suites.grid import harvest

    env = harvest.make(num_agents=2, horizon=8)

    def zap(params, obs, key, *, explore):
        return jnp.full(obs.shape[0], jnp.where(params == 0, 4, 99), jnp.int32)

    evaluate = GridEvaluator(env, zap, episodes=64)
    found = evaluate(jnp.arange(2), jax.random.key(0))
    assert found.peace.shape == (64,)
    assert found.peace.min() < 1.0
    # Only one of the two is ever hit: at worst in every turn.
    assert found.peace.min() >= 0.5
    calm = GridEvaluator(env, stay, episodes=4)(jnp.arange(2), jax.random.key(0))
    assert calm.peace.tolist() == [1.0] * 4


def stay(params, obs, key, *, explore):
    """Agents that always choose action 0."""
    return jnp.zeros(obs.shape[0], jnp.int32)


def test_no_episodes_are_refused():
    with pytest.raises(ValueError, match="episodes=0; evaluate at least 1"):
        GridEvaluator(countdown(2, 9), stay, episodes=0)


@pytest.fixture(scope="module")
def greedy(tiny):
    """An evaluator of four treasure hunts, and untrained agents for it."""
    trainer = new_trainer(tiny(seed=1))
    return GridEvaluator(trainer.loop.env, trainer.act, episodes=4), trainer.agents()


def test_greedy_scores_depend_on_the_key_alone(greedy):
    evaluate, agents = greedy
    first, again = (evaluate(agents, jax.random.key(3)) for _ in range(2))
    other = evaluate(agents, jax.random.key(4))
    np.testing.assert_array_equal(first.agent_scores, again.agent_scores)
    assert first.agent_scores.shape == (4, 2)
    np.testing.assert_allclose(first.scores, first.agent_scores.sum(axis=1))
    assert len(set(first.scores)) > 1, "every episode has a world of its own"
    assert not np.array_equal(first.scores, other.scores)


def test_a_film_shows_every_turn_and_the_end(greedy):
    evaluate, agents = greedy
    states, paid = evaluate.film(agents, jax.random.key(3))
    horizon, world = evaluate.env.spec.horizon, evaluate.env.base
    assert paid.shape == (horizon,)
    assert states.layers.shape == (horizon + 1, 2, *world.shape)
    for layers, position in zip(states.layers, states.position, strict=True):
        rows, columns = position.T
        assert (layers[-1, rows, columns] == world.index["Agent"]).all()
    steps = np.abs(np.diff(states.position, axis=0)).sum(axis=-1)
    assert steps.max() == 1, "agents move by one cell a turn"
    # What is paid is what lies where they go: a wall costs 1, a gem gives 10.
    assert set(paid % 1) == {0.0}


def test_a_film_can_show_exploration(greedy):
    evaluate, agents = greedy
    tame, _ = evaluate.film(agents, jax.random.key(3))
    again, _ = evaluate.film(agents, jax.random.key(3))
    wild, _ = evaluate.film(agents, jax.random.key(3), explore=1.0)
    assert np.array_equal(tame.layers, again.layers)
    assert np.array_equal(tame.layers[0], wild.layers[0])
    assert not np.array_equal(tame.layers, wild.layers)


def test_nothing_is_scored_after_a_world_has_ended():
    agents = jnp.zeros(2)
    evaluate = GridEvaluator(countdown(num_agents=2, horizon=9), stay, episodes=16)
    found = evaluate(agents, jax.random.key(1))
    # Every turn pays each agent 1; worlds last 2 to 7 turns.
    assert 2 <= found.agent_scores.min() < found.agent_scores.max() <= 7
    states, paid = evaluate.film(agents, jax.random.key(2))
    assert paid.tolist() == [2.0 * (turn < states.length[0]) for turn in range(9)]


def test_where_one_wins_what_another_loses_half_of_the_agents_play_against_random_ones():
    from worldloom.suites.grid import tag

    env = tag.make(num_agents=4, height=5, width=5, horizon=12)
    evaluate = GridEvaluator(env, stay, episodes=16, rivals=True)
    found = evaluate(jnp.zeros(4), jax.random.key(0))
    assert np.ptp(found.scores) < 1e-4
    assert found.against_random.shape == (16,)
    row = found.to_dict()
    # Random agents tag those that stand in their way, or come by; some difference there is.
    assert np.ptp(found.against_random) > 0.1
    assert row["against_random"] == pytest.approx(found.against_random.mean())
    assert row["paid"] == pytest.approx(found.paid.mean())
    assert len(row["agents_stderr"]) == 4
    others = GridEvaluator(countdown(2, 9), stay, episodes=4, rivals=True)
    assert "against_random" not in others(jnp.zeros(2), jax.random.key(0)).to_dict()
    # Agents that stand still are tagged where they stand, random ones all over the field.
    random = evaluate(jnp.zeros(4), jax.random.key(0), at_random=True)
    assert random.against_random is None
    assert not np.array_equal(random.agent_scores, found.agent_scores)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (np.zeros((4, 3)), False),  # nobody earned anything
        (np.ones((4, 3)), False),  # all earned the same, whoever played how
        (np.array([[1.0, -1.0], [-2.0, 2.0], [0.5, -0.5]]), True),
        (np.array([[1.0, -1.0], [-2.0, 2.5], [0.5, -0.5]]), False),
        (np.array([[1.0, -1.0]]), False),  # a single episode tells nothing
    ],
)
def test_a_sum_is_constant_where_one_wins_what_another_loses(scores, expected):
    assert is_constant_sum(scores) == expected
