"""`fit`: an offline algorithm as a user calls it, from data to actions and back from a file."""

import jax
import numpy as np
import pytest

from worldloom.algos import BC, IQL, TD3BC, BCConfig, BCHyper, IQLConfig, IQLHyper
from worldloom.algos.learned_policy import load_policy
from worldloom.replay import dataset_files
from worldloom.replay.dataset import from_columns


@pytest.fixture(scope="module")
def cloner():
    return BC(BCConfig(hidden=(16,), batch_size=32))


@pytest.fixture(scope="module")
def learned(bandit):
    """A policy for a reward of 1 - (a - 0.5)^2, and what was reported of learning it."""
    rates = dict.fromkeys(("actor_rate", "critic_rate", "value_rate"), 3e-3)
    agent = IQL(
        IQLConfig(hidden=(16,), batch_size=32, updates_per_iteration=500, hyper=IQLHyper(**rates))
    )
    reports = []
    policy = agent.fit(bandit(), 1250, report=lambda done, metrics: reports.append((done, metrics)))
    return policy, reports


def test_a_learned_policy_takes_the_best_action(learned):
    """The data's actions are uniform: the cloner's answer would be 0."""
    policy, reports = learned
    assert [done for done, _ in reports] == [500, 1000, 1250]
    assert reports[-1][1]["critic_loss"] < reports[0][1]["critic_loss"]
    assert policy.act(np.zeros(2)).shape == (1,)
    assert policy.act(np.zeros((5, 3, 2))).shape == (5, 3, 1)
    assert 0.2 < policy.act(np.zeros(2))[0] < 0.7


def test_the_same_seed_gives_the_same_policy_and_another_another(cloner, bandit):
    data = bandit(rows=128)
    one, same, other = (cloner.fit(data, 5, seed=seed).act(np.ones(2)) for seed in (1, 1, 2))
    assert one == same != other


def test_a_saved_policy_acts_as_it_did(learned, tmp_path):
    policy, _ = learned
    path = policy.save(tmp_path / "policy")
    assert path == tmp_path / "policy.npz"
    assert [file.name for file in tmp_path.iterdir()] == ["policy.npz"]
    loaded = load_policy(path)
    assert loaded.agent == policy.agent
    obs = np.random.default_rng(0).normal(size=(5, 3, 2))
    np.testing.assert_array_equal(loaded.act(obs), policy.act(obs))
    assert jax.tree.structure(loaded.state) == jax.tree.structure(policy.state)


def test_a_policy_of_choices_is_saved_with_their_number(tmp_path):
    obs = np.linspace(-1.0, 1.0, 200)[:, None]
    no = np.zeros(200, bool)
    data = from_columns(obs, (obs[:, 0] > 0) * 2, np.zeros(200), obs, no, no)
    policy = BC(BCConfig(hidden=(16,), hyper=BCHyper(learning_rate=1e-2)), num_actions=3).fit(
        data, 200
    )
    np.testing.assert_array_equal(policy.act([[-0.9], [0.9]]), [0, 2])
    loaded = load_policy(policy.save(tmp_path / "choice.npz"))
    np.testing.assert_array_equal(loaded.act([[-0.9], [0.9]]), [0, 2])


def test_data_may_be_a_file(cloner, bandit, tmp_path):
    data = bandit(rows=128)
    path = dataset_files.save(data, tmp_path / "data.npz")
    read, given = (cloner.fit(source, 5).act(np.ones(2)) for source in (str(path), data))
    np.testing.assert_array_equal(read, given)


def test_what_cannot_be_fitted_or_loaded_is_refused(cloner, bandit, tmp_path):
    data = bandit(rows=64)
    with pytest.raises(ValueError, match="td3bc: updates=5; it must be a positive multiple of 2"):
        TD3BC().fit(data, 5)
    with pytest.raises(ValueError, match="seed=-1"):
        cloner.fit(data, 5, seed=-1)
    np.savez(tmp_path / "other.npz", x=np.zeros(1))
    with pytest.raises(ValueError, match=r"other.npz: this is no policy"):
        load_policy(tmp_path / "other.npz")


def test_a_damaged_policy_is_refused_or_unharmed(cloner, bandit, tmp_path):
    import jax

    policy = cloner.fit(bandit(rows=64), 5)
    path = policy.save(tmp_path / "policy")
    sound = path.read_bytes()
    rng, refused = np.random.default_rng(0), 0
    for _ in range(150):
        data = bytearray(sound)
        data[rng.integers(len(data))] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            loaded = load_policy(path)
        except ValueError as error:
            refused += "\n" not in str(error)
            continue
        jax.tree.map(np.testing.assert_array_equal, loaded.state, policy.state)
    assert refused > 50
