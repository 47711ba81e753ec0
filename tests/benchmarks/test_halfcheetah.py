import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import halfcheetah
from worldloom.nn.policy import PolicyState


def step(metres, torque=0.0):
    """A step over some metres."""
    obs, after = np.zeros(18), np.zeros(18)
    obs[0], after[0] = 3.0, 3.0 + metres
    return obs, np.full(6, torque), after


def test_speed_is_paid_and_effort_costs():
    obs, action, after = step(0.1, torque=0.5)
    assert float(halfcheetah.speed(obs, after)) == pytest.approx(2.0)
    assert float(halfcheetah.reward(obs, action, after)) == pytest.approx(2.0 - 0.1 * 6 * 0.25)


@pytest.mark.parametrize(("metres", "cost", "reward"), [(0.16, 0.0, 3.2), (0.161, 1.0, -100.0)])
def test_what_is_faster_than_the_limit_is_fined(metres, cost, reward):
    obs, action, after = step(metres)
    assert float(halfcheetah.cost(obs, after)) == cost
    assert float(halfcheetah.reward(obs, action, after)) == pytest.approx(reward, abs=1e-4)
    margin = float(halfcheetah.speed_margin(obs, after))
    assert margin == pytest.approx(3.2096 - metres / 0.05, abs=1e-4)


def test_batches_of_rows_are_taken_whole():
    obs, action, after = (np.stack([row] * 5) for row in step(0.2))
    assert halfcheetah.reward(obs, action, after).shape == (5,)
    assert (np.asarray(halfcheetah.cost(obs, after)) == 1.0).all()


def test_scores_run_from_the_published_least_to_the_most():
    assert halfcheetah.normalised_score(-283.0) == 0.0
    assert halfcheetah.normalised_score(2507.0) == 100.0


def test_episodes_are_played_from_the_same_starts_and_paid_by_the_rule():
    pytest.importorskip("mujoco")
    pytest.importorskip("gymnasium")
    scorer = halfcheetah.Scorer(2, horizon=4)
    policy = PolicyState(jnp.full(6, 0.5), jnp.zeros(18), jnp.ones(18), still)
    found = scorer(policy)
    assert scorer(policy) == found
    paid = []
    for start in scorer._starts:
        body = mujoco_data()
        halfcheetah.set_state(body, start)
        obs = start
        for _ in range(4):
            after = halfcheetah.step(body, np.full(6, 0.5))
            paid.append(float(halfcheetah.reward(obs, np.full(6, 0.5), after)))
            obs = after
    assert found == pytest.approx(sum(paid) / 2, abs=1e-3)


def still(params, obs):
    return jnp.broadcast_to(params, (obs.shape[0], 6))


def mujoco_data():
    import mujoco

    return mujoco.MjData(halfcheetah.load())
