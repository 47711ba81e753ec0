"""Brax's PPO, as it is, trains our worlds through the adapter; what it can restore is restored."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box
from worldloom.core.types import Array, TimeStep
from worldloom.envs import registry
from worldloom.train.robot_brax import BraxConfig, _factory, _seed, load, save, train_brax
from worldloom.train.robot_brax_trainer import _as_metrics

pytest.importorskip("brax", reason="needs worldloom[robot]")

pytestmark = pytest.mark.usefixtures("compiled_once")
GAMMA, LIMIT = 0.8, 5


class Guess(struct.PyTreeNode):
    number: Array
    count: Array


def guessing() -> PureEnv:
    """Half of the number that is seen is the right action: 1 a step, for ever but for the clock."""

    def see(state, reward, late):
        obs = state.number[None]
        return TimeStep(obs, reward, jnp.asarray(False), late, obs, ())

    def reset(key, params):
        state = Guess(2 * draws.uniform(key) - 1, jnp.int32(0))
        return state, see(state, jnp.float32(0), jnp.asarray(False))

    def step(key, state, action, params):
        reward = 1.0 - (jnp.clip(action[0], -1, 1) - 0.5 * state.number) ** 2
        state = Guess(2 * draws.uniform(key) - 1, state.count + 1)
        return state, see(state, reward, state.count >= LIMIT)

    spec = EnvSpec("guessing", Box(-1.0, 1.0, (1,)), Box(-1.0, 1.0, (1,)), horizon=LIMIT)
    return PureEnv(spec, dict, reset, step, None)


PROBE = BraxConfig(
    num_timesteps=64 * 10 * 60, num_envs=64, unroll_length=10, batch_size=32, num_minibatches=2,
    num_updates_per_batch=4, learning_rate=3e-3, discounting=GAMMA, entropy_cost=0.0,
    policy_hidden=(16,), value_hidden=(16,), num_evals=2, num_eval_envs=32,
)  # fmt: skip
TINY = BraxConfig(
    num_timesteps=100, num_envs=4, unroll_length=5, batch_size=4, num_minibatches=2,
    num_updates_per_batch=1, policy_hidden=(16,), value_hidden=(8,), num_evals=1, num_eval_envs=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def training():
    """The result of a training that learns, and all that was told on the way."""
    told = []
    result = train_brax(
        guessing(), PROBE, log_training_metrics=True,
        progress=lambda steps, row: told.append((steps, row)),
    )  # fmt: skip
    return result, told


@pytest.fixture(scope="module")
def learned(training):
    return training[0]


@pytest.fixture(scope="module")
def biped_run(tmp_path_factory):
    """A few updates on the biped with MuJoCo's C engine: the result, its folder, what was told."""
    world = registry.make("biped", task="stand", physics="c", threads=1, horizon=10)
    folder, told = tmp_path_factory.mktemp("runs") / "brax", []
    result = train_brax(
        world, TINY, seed=3, progress=lambda steps, row: told.append((steps, row)),
        keep=lambda result: save(folder, result),
    )  # fmt: skip
    return world, result, folder, told


# Learning -----------------------------------------------------------------------------------------


def test_brax_learns_what_can_be_known(learned):
    first, last = learned.history
    assert last["eval/episode_reward"] > 0.98 * LIMIT > first["eval/episode_reward"]
    seen = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
    np.testing.assert_allclose(learned.act(seen), 0.5 * seen, atol=0.15)


def test_the_episodes_of_training_are_told_after_each_update(training):
    result, told = training
    of_episodes = [(steps, row) for steps, row in told if "episode/length" in row]
    assert [steps for steps, _ in of_episodes] == [640 * (n + 1) for n in range(60)]
    assert all(row["episode/length"] == LIMIT for _, row in of_episodes)
    returns = [row["episode/sum_reward"] for _, row in of_episodes]
    assert returns[-1] > 0.85 * LIMIT > returns[0]  # with the noise of exploring
    others = [{"steps": steps, **row} for steps, row in told if "episode/length" not in row]
    assert result.history == others
    assert len(others) == 2


def test_worlds_that_diverge_are_counted_in_the_updates_they_diverged_in():
    ended = {"length": 5.0, "sum_reward": 3.0, "fell": 0.5, "diverged": 0.25}
    rows = [{}, {f"episode/{name}": value for name, value in ended.items()}]
    metrics = _as_metrics({"training/v_loss": 2.0}, rows, steps=40, sound=True)
    np.testing.assert_array_equal(metrics.episodes, [0, 8])
    np.testing.assert_array_equal(metrics.episode_return, [np.nan, 3.0])
    np.testing.assert_array_equal(metrics.outcomes["diverged"], [np.nan, 0.25])
    np.testing.assert_array_equal(metrics.learned.value_loss, [2.0, 2.0])


def test_time_running_out_is_not_the_end_of_the_world(learned):
    """Of 1 a step for ever the value is 1 / (1 - gamma); if the clock were a fall, a good half."""
    normaliser, _, value = learned.params
    from brax.training.acme import running_statistics

    made = _factory(PROBE, 1)(1, 1, preprocess_observations_fn=running_statistics.normalize)
    values = made.value_network.apply(normaliser, value, jnp.linspace(-1, 1, 9)[:, None])
    for_ever = 1 / (1 - GAMMA)
    until_the_clock = np.mean([(1 - GAMMA**n) / (1 - GAMMA) for n in range(1, LIMIT + 1)])
    assert np.mean(values) > 0.9 * for_ever > 1.5 * until_the_clock


def test_a_run_goes_on_from_what_was_learned(learned, tmp_path):
    save(tmp_path, learned)
    restored = load(tmp_path)
    rows = []
    resumed = train_brax(
        guessing(), PROBE, num_timesteps=1, learning_rate=1e-6, restore=restored,
        progress=lambda steps, row: rows.append((steps, row["eval/episode_reward"])),
    )  # fmt: skip
    assert resumed.steps == learned.steps + PROBE.steps_per_update
    assert [steps for steps, _ in rows] == [resumed.steps]
    assert rows[0][1] > 0.98 * LIMIT
    assert resumed.history[:-1] == learned.history
    counts = [int(r.params[0].count.to_numpy()) for r in (learned, resumed)]
    assert counts[1] == counts[0] + PROBE.steps_per_update
    for old, new in zip(
        jax.tree.leaves(learned.params[1:]), jax.tree.leaves(resumed.params[1:]), strict=True
    ):
        np.testing.assert_allclose(old, new, atol=1e-4)


def test_the_same_seed_gives_the_same_policy():
    a, b = (train_brax(guessing(), TINY, seed=1, run_evals=False) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, a.params, b.params)
    assert (np.asarray(a.params[1]["params"]["std_logparam"]["log_value"]) != np.log(0.5)).all()


def test_a_run_that_goes_on_does_not_replay_its_luck():
    assert _seed(3, 0) == 3
    assert len({_seed(seed, steps) for seed in (3, 4) for steps in (0, 640, 1280)}) == 6


# The biped ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_biped_trains_in_braxs_ppo(biped_run):
    world, result, _, told = biped_run
    assert result.steps == TINY.total_steps == 120
    ((steps, row),) = told
    assert steps == result.steps
    assert result.history == [{"steps": steps, **row}]
    assert all(np.isfinite(value) for value in row.values())
    terms = {f"eval/episode_reward/{term}" for term in world.base.task.terms}
    assert terms <= set(row)
    total = sum(row[term] for term in terms)
    np.testing.assert_allclose(total, row["eval/episode_reward"], rtol=1e-4)
    assert 0.3 < row["eval/episode_height_per_step"] < 0.6  # a mean, not a sum
    assert row["training/total_loss"] != 0.0


@pytest.mark.slow
def test_the_critic_alone_sees_what_is_privileged(biped_run):
    world, result, *_ = biped_run
    sizes = {name: box.shape[0] for name, box in world.spec.observation.items}
    _, policy, value = result.params
    kernels = [jax.tree.leaves(tree) for tree in (policy, value)]
    widths = [{leaf.shape[0] for leaf in leaves if leaf.ndim == 2} for leaves in kernels]
    assert sizes["state"] in widths[0]
    assert sizes["privileged_state"] not in widths[0]
    assert sizes["privileged_state"] in widths[1]


@pytest.mark.slow
def test_a_policy_acts_on_whatever_form_an_observation_has(biped_run):
    world, result, *_ = biped_run
    keys = jax.random.split(jax.random.key(0), 3)
    _, timestep = jax.jit(world.reset_many)(keys, world.default_params())
    obs = timestep.obs
    forms = (obs, {"state": obs.state, "privileged_state": obs.privileged_state}, obs.state)
    acts = [result.act(form) for form in forms]
    assert acts[0].shape == (3, world.spec.action.shape[0])
    for other in acts[1:]:
        np.testing.assert_array_equal(acts[0], other)
    np.testing.assert_allclose(result.act(obs.state[1]), acts[0][1], atol=1e-5)
    assert (np.abs(result.act(1e6 * obs.state)) <= 1).all()


@pytest.mark.slow
def test_what_is_kept_is_what_was_learned(biped_run):
    _, result, folder, _ = biped_run
    kept = load(folder)
    assert (kept.config, kept.sizes, kept.steps) == (result.config, result.sizes, result.steps)
    jax.tree.map(np.testing.assert_array_equal, kept.params, result.params)
    obs = np.ones(result.sizes["state"], np.float32)
    np.testing.assert_array_equal(kept.act(obs), result.act(obs))


@pytest.mark.slow
def test_nothing_is_left_in_jax(biped_run):
    assert not hasattr(jax, "device_put_replicated")


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_envs": 3}, r"batch_size=4 times num_minibatches=2 is 8, .* num_envs=3"),
        ({"num_timesteps": 0}, "num_timesteps=0; it must be at least 1"),
        ({"activation": "sine"}, "activation='sine'; use one of tanh"),
        ({"devices": 64}, "devices=64; this process has"),
    ],
)
def test_impossible_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        train_brax(guessing(), TINY, **wrong)


@pytest.mark.slow
def test_other_networks_cannot_be_restored(biped_run):
    _, result, *_ = biped_run
    with pytest.raises(ValueError, match=r"sees .*privileged_state.*this world has 1 and 1"):
        train_brax(guessing(), TINY, restore=result)
    with pytest.raises(ValueError, match=r"policy_hidden=\(9,\) does not fit .* use \(16,\)"):
        train_brax(biped_run[0], TINY, policy_hidden=(9,), restore=result)


def test_a_folder_of_something_else_is_no_run(tmp_path):
    with pytest.raises(ValueError, match=r"brax\.npz does not exist"):
        load(tmp_path)


def test_a_file_that_was_cut_off_is_named(learned, tmp_path):
    save(tmp_path, learned)
    path = tmp_path / "brax.npz"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"brax\.npz is damaged; delete it"):
        load(tmp_path)


def test_brax_is_imported_when_it_is_used():
    code = "import sys, worldloom.train.robot_brax; assert 'brax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
