"""Episodes become data that offline algorithms learn from."""

import jax
import numpy as np
import pytest

import worldloom
from worldloom import suites
from worldloom.replay import dataset_files
from worldloom.training.recording import record_episodes, recorded_data
from worldloom.training.run import load

pytestmark = pytest.mark.usefixtures("compiled_once")
SMALL = {"height": 6, "width": 6, "num_agents": 2, "horizon": 10, "spawn_prob": 0.1}


@pytest.fixture(scope="module")
def recorded(finished_run, tmp_path_factory):
    """A finished run, and four of its episodes in a file."""
    run = load(suites.suite("grid"), finished_run)
    data = record_episodes(run, episodes=4, seed=1)
    path = tmp_path_factory.mktemp("data") / "recorded.npz"
    dataset_files.save(data, path)
    return run, data, path


def test_every_agent_of_every_world_leaves_an_episode(recorded):
    _, data, _ = recorded
    assert data.size == 4 * 2 * 10
    assert len(data.starts) == 4 * 2
    assert not np.asarray(data.rows.terminated).any()
    ends = np.flatnonzero(data.rows.truncated)
    np.testing.assert_array_equal(ends, np.arange(9, 80, 10))


def test_the_actions_are_what_the_agents_choose_for_what_they_saw(recorded):
    run, data, _ = recorded
    env = run.problem.env
    shape = jax.eval_shape(env.reset, jax.random.key(0), env.default_params())[1].obs.shape
    rows = np.asarray(data.rows.obs).reshape(2, 40, 1, *shape[1:])  # agents, their rows, frames
    for agent in range(2):
        params = jax.tree.map(lambda x, i=agent: x[i], run.agents)
        obs = rows[agent].reshape(40, *shape[1:])
        chosen = run.trainer.act(params, obs, jax.random.key(0), explore=0.0)
        np.testing.assert_array_equal(
            chosen, np.asarray(data.rows.action)[:, 0].reshape(2, 40)[agent]
        )


@pytest.mark.slow
def test_play_with_a_centralised_critic_is_refused(tmp_path):
    settings = {"world": SMALL, "num_worlds": 2, "chunk": 1, "eval_episodes": 1, "record_every": 0}
    options = {"unroll_length": 10, "num_minibatches": 1, "num_epochs": 1, "hidden": (8,)}
    run = worldloom.train(
        "treasurehunt", algo="mappo", steps=20, mappo=options, out=tmp_path / "run", **settings
    )
    with pytest.raises(ValueError, match="episodes of mappo cannot be recorded yet"):
        record_episodes(run, episodes=1)


def test_what_follows_is_what_was_seen_next(recorded):
    _, data, _ = recorded
    inner = ~np.asarray(data.rows.truncated)
    inner[-1] = False
    at = np.flatnonzero(inner)
    np.testing.assert_array_equal(data.rows.next_obs[at], data.rows.obs[at + 1])


def test_a_clone_of_recorded_play_does_what_was_recorded(recorded, tmp_path):
    _, _, path = recorded
    run = worldloom.train(
        "treasurehunt",
        algo="bc",
        dataset=str(path),
        steps=600,
        eval_episodes=4,
        world=SMALL,
        bc={"hidden": (64,), "updates_per_iteration": 300, "learning_rate": 3e-3, "tau": 1.0},
        out=tmp_path / "clone",
        report=False,
    )
    assert run.metrics()["accuracy"][-1] > 0.9
    assert np.isfinite(run.evaluation.mean)


def test_data_of_another_world_are_refused(recorded):
    _, _, path = recorded
    other = worldloom.make("treasurehunt", radius=1)
    from worldloom.nn.networks import Networks

    load_data = recorded_data(str(path), other, Networks())
    with pytest.raises(ValueError, match=r"rows of 125 features and 1 actions are not those of"):
        load_data()
