"""Our models in the object loop of the original."""

import copy
import dataclasses
import os
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest

from worldloom.adapters.sorrel import JAXIQN, JAXiRainbowModel, JAXModel
from worldloom.adapters.sorrel_parallel import parallel_take_actions, parallel_train_agents
from worldloom.algos.dqn import DQN, DQNConfig
from worldloom.algos.iqn import IQNConfig
from worldloom.algos.qlearning import QLearning, QLearningConfig
from worldloom.algos.random import Random, RandomConfig
from worldloom.core.spaces import Discrete
from worldloom.suites.grid.object_world import ObjectTreasureHunt

FRAMES = 2
SMALL = {
    "action_space": 4, "layer_size": 24, "epsilon": 1.0, "epsilon_min": 0.05, "device": "cpu",
    "n_frames": FRAMES, "n_step": 1, "sync_freq": 200, "model_update_freq": 4, "batch_size": 32,
    "memory_size": 512, "LR": 3e-3, "TAU": 0.05, "GAMMA": 0.7, "n_quantiles": 4,
}  # fmt: skip


def world(seed: int = 0) -> ObjectTreasureHunt:
    return ObjectTreasureHunt(
        height=7, width=7, num_agents=2, radius=1, spawn_prob=0.1, gem_value=1.0, tuned=True,
        rng=np.random.default_rng(seed),
    )  # fmt: skip


def model(env: ObjectTreasureHunt, seed: int = 0, **changes) -> JAXiRainbowModel:
    return JAXiRainbowModel(input_size=(1, env.obs_size), seed=seed, **(SMALL | changes))


def play_epoch(env, models, epoch: int, turns: int = 20, train_steps: int = 1):
    """The original's epoch, call for call; returns the score and the losses."""
    env.reset()
    for each in models:
        each.reset()
        each.start_epoch_action(epoch=epoch)
    for _ in range(turns):
        env.spawn()
        for i, each in enumerate(models):
            state = env.pov(i)[None]  # (1, features), as Sorrel's agents see it
            stacked = np.vstack((each.memory.current_state(), state)).reshape(1, -1)
            action = each.take_action(stacked)
            assert isinstance(action, int)
            each.memory.add(state, action, env.act(i, action), float(env.is_done))
    losses = [each.train_step() for each in models for _ in range(train_steps)]
    for each in models:
        each.end_epoch_action(epoch=epoch)
        each.epsilon *= 0.9
    return env.total_reward, losses


def params_of(each: JAXModel) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(each.learner)]


@pytest.mark.parametrize("legacy", [False, True])
def test_an_object_loop_learns_with_our_model(legacy):
    env = world()
    models = [model(env, seed, legacy=legacy) for seed in range(2)]
    scores, losses = [], []
    for epoch in range(40):
        score, loss = play_epoch(env, models, epoch, train_steps=8)
        scores.append(score)
        losses.append(loss)
    assert all(loss == 0.0 for loss in losses[0]), "20 rows are too few for a batch of 32"
    learned = np.array(losses[3:])
    assert np.isfinite(learned).all()
    assert learned[-10:].mean() < 0.85 * learned[:5].mean()
    assert np.mean(scores[-10:]) > np.mean(scores[:10]) + 10


def test_the_pytorch_model_is_swapped_for_ours_in_the_same_loop():
    torch_iqn = pytest.importorskip("worldloom.suites.grid.torch_iqn", reason="needs torch")
    env = world()

    class TorchModel(torch_iqn.TorchIQN):
        """The reference under the names of the original's interface."""

        def reset(self):
            pass

        def end_epoch_action(self, **kwargs):
            pass

        def take_action(self, state):
            return super().take_action(state[0])

    sizes = {"hidden": 24, "num_quantiles": 4, "batch_size": 32, "buffer_size": 512, "n_step": 1}
    config = dataclasses.replace(IQNConfig.original(), **sizes)
    theirs = TorchModel(config, env.obs_size, FRAMES, seed=1)
    ours = model(env, legacy=True)
    for epoch in range(4):
        _, losses = play_epoch(env, [theirs, ours], epoch)
    assert len(theirs.memory) == len(ours.memory) == 80
    assert all(loss > 0 for loss in losses)


def test_the_same_seed_plays_and_learns_the_same():
    runs = []
    for seed in (3, 3, 4):
        env = world()
        models = [model(env, seed)]
        runs.append(([play_epoch(env, models, e) for e in range(4)], params_of(models[0])))
    (first, params), (same, same_params), (other, _) = runs
    assert first == same
    for a, b in zip(params, same_params, strict=True):
        np.testing.assert_array_equal(a, b)
    assert first != other


def test_epsilon_decays_by_a_share_down_to_its_minimum():
    ours = model(world(), epsilon=0.5, epsilon_min=0.4)
    ours.epsilon_decay(0.1)
    assert ours.epsilon == pytest.approx(0.45)
    for _ in range(3):
        ours.epsilon_decay(0.1)
    assert ours.epsilon == 0.4
    ours.set_epsilon(1.0)
    counts = np.bincount(
        [ours.take_action(np.zeros(ours.features * FRAMES)) for _ in range(400)], minlength=4
    )
    assert counts.min() > 60, "with epsilon 1 every action is as likely"


def test_greedy_actions_are_the_best_of_the_local_network():
    env = world()
    ours = model(env, epsilon=0.0)
    rng = np.random.default_rng(0)
    states = rng.random((20, FRAMES * env.obs_size), dtype=np.float32)
    quantiles, taus = ours.qnetwork_local(states)
    assert quantiles.shape == (20, 4, 4)
    assert taus.shape == (4,)
    values = np.asarray(ours.qnetwork_local.get_qvalues(states))
    np.testing.assert_allclose(values, np.asarray(quantiles).mean(axis=1), rtol=1e-5, atol=1e-6)
    assert [ours.take_action(state) for state in states] == values.argmax(axis=1).tolist()


def test_the_target_is_synced_in_the_epochs_that_sync_freq_names():
    ours = model(world(), sync_freq=3)
    apart = jax.tree.map(lambda x: x + 1, ours.local_params)
    for epoch, synced in ((1, False), (2, False), (3, True), (4, False), (0, True)):
        ours.target_params = apart
        ours.start_epoch_action(epoch=epoch)
        equal = jax.tree.map(np.array_equal, ours.target_params, ours.local_params)
        assert all(jax.tree.leaves(equal)) == synced, f"epoch {epoch}"


def test_an_epoch_starts_from_zeros_unless_legacy():
    env = world()
    ours, original = model(env), model(env, legacy=True)
    for each in (ours, original):
        for _ in range(3):
            each.memory.add(np.ones(env.obs_size), 0, 0.0, False)
        each.reset()
    assert not ours.memory.current_state().any()
    assert original.memory.current_state().all()


@pytest.mark.parametrize(
    "agent",
    [
        DQN(DQNConfig(hidden=(16,), batch_size=8), 4),
        QLearning(QLearningConfig(table_size=64, batch_size=8), 4),
        Random(RandomConfig(), Discrete(4)),
    ],
    ids=lambda agent: type(agent).__name__,
)
def test_any_agent_can_be_the_model(agent, tmp_path):
    env = world()
    ours = JAXModel(env.obs_size, 4, agent, memory_size=64, n_frames=FRAMES, epsilon=0.5)
    for epoch in range(2):
        _, losses = play_epoch(env, [ours], epoch)
    assert np.isnan(losses[0]) == isinstance(agent, Random)
    ours.save(tmp_path / "model")
    again = JAXModel(env.obs_size, 4, agent, memory_size=64, n_frames=FRAMES, seed=9)
    again.load(tmp_path / "model")
    for a, b in zip(params_of(ours), params_of(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_agents_that_share_a_model_act_and_learn_one_after_the_other():
    env = world()
    alone, shared = model(env, epsilon=0.5), model(env, epsilon=0.5)
    states = np.random.default_rng(0).random((6, FRAMES * env.obs_size), dtype=np.float32)
    one_by_one = [alone.take_action(state) for state in states]
    assert parallel_take_actions([shared] * 6, states).tolist() == one_by_one
    for each in (alone, shared):
        for number in range(40):
            each.memory.add(np.full(env.obs_size, number % 3), number % 4, float(number % 4), False)
    losses = [alone.train_step() for _ in range(3)]
    assert float(parallel_train_agents([shared] * 3)) == pytest.approx(sum(losses), rel=1e-4)
    assert int(shared.learner.updates) == 3


def test_agents_with_different_observations_act_and_learn_together():
    models = [JAXiRainbowModel(size, seed=size, **SMALL) for size in (3, 5, 3)]
    for each in models:
        for number in range(40):
            each.memory.add(np.full(each.features, number % 3), number % 4, 1.0, False)
    states = [np.ones(FRAMES * each.features) for each in models]
    assert parallel_take_actions(models, states).shape == (3,)
    assert float(parallel_train_agents(models)) > 0
    assert [int(each.learner.updates) for each in models] == [1, 1, 1]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copied_model_goes_on_like_the_first(copied):
    env = world()
    first = model(env, 1)
    play_epoch(env, [first], 0)
    again = copied(first)
    assert again.device == first.device == jax.devices("cpu")[0]
    results = [[play_epoch(world(5), [each], epoch) for epoch in (1, 2)] for each in (first, again)]
    assert results[0] == results[1]


def test_positional_arguments_are_in_the_order_of_the_original():
    ours = JAXiRainbowModel((3,), 4, 8, 0.6, "cpu", 7, 2, 1, 50, 4, 16, 64, 0.1, 0.2, 0.3, 5)
    config = ours.agent.config
    assert (ours.epsilon, ours.n_frames, ours.sync_freq, ours.memory.capacity) == (0.6, 2, 50, 64)
    assert (config.hidden, config.n_step, config.batch_size, config.num_quantiles) == (8, 1, 16, 5)
    assert (config.learning_rate, config.target_rate, config.gamma) == (0.1, 0.2, 0.3)


def test_n_step_and_batch_size_mean_what_they_mean_in_the_original():
    """n_step is a power of gamma and sums no rewards; 256 rows serve a call, in steps of 64."""
    ours = model(world(), n_step=3, batch_size=256, GAMMA=0.5)
    assert (ours.n_step, ours.batch_size, ours.GAMMA) == (3, 256, 0.5)
    for number in range(300):
        ours.memory.add(np.full(ours.features, number), 0, float(number), False)
        if number == 255:
            assert ours.train_step() == 0.0, "255 windows are too few for a batch of 256"
    samples = ours.memory.sample(64)
    np.testing.assert_array_equal(samples.rewards[:, 0], samples.states[:, -1])
    np.testing.assert_array_equal(samples.next_states[:, -1], samples.states[:, -1] + 1)
    assert ours.memory.ring.gamma == 0.5**3
    assert ours.train_step() > 0.0
    assert int(ours.learner.updates) == 4


# Files -------------------------------------------------------------------------------------------


def test_a_loaded_model_goes_on_bit_for_bit(tmp_path):
    path = tmp_path / "new folder" / "agent.model"
    env = world()
    saved = model(env, 1)
    for epoch in range(4):
        play_epoch(env, [saved], epoch)
    saved.save(path)
    loaded = model(env, seed=2)
    loaded.load(path)
    assert loaded.epsilon == saved.epsilon
    results = [
        [play_epoch(world(5), [each], epoch) for epoch in (4, 5)] for each in (saved, loaded)
    ]
    assert results[0] == results[1]
    for a, b in zip(params_of(saved), params_of(loaded), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_file_of_another_configuration_is_refused_and_named(tmp_path):
    path = tmp_path / "agent.model"
    env = world()
    model(env).save(path)
    other = model(env, layer_size=16, LR=0.5)
    before = params_of(other)
    with pytest.raises(
        ValueError, match=r"hidden=24 \(here 16\), learning_rate=0.003 \(here 0.5\)"
    ):
        other.load(path)
    for a, b in zip(before, params_of(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("keep", [0, 100, -38, -32, -1])  # 38: the mark and the digest
def test_a_truncated_file_is_refused_and_changes_nothing(tmp_path, keep):
    path = tmp_path / "agent.model"
    ours = model(world())
    ours.save(path)
    path.write_bytes(path.read_bytes()[:keep])
    before = params_of(ours)
    with pytest.raises(ValueError, match="not a saved model, or cut off"):
        ours.load(path)
    for a, b in zip(before, params_of(ours), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_damaged_file_is_refused(tmp_path):
    ours, path = model(world()), tmp_path / "agent.model"
    ours.save(path)
    sound = path.read_bytes()
    for place in range(0, len(sound), len(sound) // 40):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 2]) + sound[place + 1 :])
        with pytest.raises(ValueError, match="cut off or damaged"):
            ours.load(path)
    path.write_bytes(sound)
    ours.load(path)


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "agent.model"
    ours = model(world())
    ours.save(path)
    before = path.read_bytes()

    def full(path, content):
        Path.open(path, "wb").close()
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        ours.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name], "nothing half written is left"


# Bad input ---------------------------------------------------------------------------------------


def test_states_of_a_wrong_size_or_with_nan_are_refused():
    ours = model(world())
    with pytest.raises(ValueError, match=r"state has 45 numbers; .* 2 frames of 45"):
        ours.take_action(np.zeros(45))
    with pytest.raises(ValueError, match="not finite throughout"):
        ours.take_action(np.full(90, np.nan))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "abacus"}, "device='abacus' is not here; JAX sees cpu:0"),
        ({"device": "cpu:99"}, "device='cpu:99' is not here"),
        ({"epsilon": 1.5}, r"epsilon=1.5; it must be in \[0, 1\]"),
        ({"GAMMA": 2.0}, r"gamma=2.0; it must be in \[0, 1\]"),
        ({"memory_size": 2}, "capacity=2 cannot hold one window"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        model(world(), **changes)


def test_seeds_of_64_bits_and_the_alias_are_taken():
    assert JAXIQN is JAXiRainbowModel
    low, high = (model(world(), seed=seed).rng_key for seed in (5, 5 + 2**63))
    assert not np.array_equal(jax.random.key_data(low), jax.random.key_data(high))
    assert str(model(world())) == "JAXiRainbowModel(input_size=90, action_space=4)"
