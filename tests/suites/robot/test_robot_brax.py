"""Brax's PPO, as it is, trains our worlds through the adapter; what it can restore is restored."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import worldloom
from worldloom import suites
from worldloom.core import draws
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box
from worldloom.core.types import Array, TimeStep
from worldloom.nn.networks import Networks
from worldloom.training.config import make_config
from worldloom.training.suite import Problem

pytest.importorskip("brax", reason="needs worldloom[robot]")

from worldloom.adapters import brax_ppo
from worldloom.suites.robot.brax_trainer import BraxTrainer, as_metrics, brax_options, seed_at

pytestmark = pytest.mark.usefixtures("compiled_once")
SUITE = suites.suite("robot")
GAMMA, LIMIT, UPDATES = 0.8, 5, 60


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


def settings(num_worlds=64, seed=0, **ppo):
    """Settings of a run of Brax's PPO; `ppo` differs from those that learn to guess."""
    options = {
        "unroll_length": 10,
        "num_epochs": 4,
        "num_minibatches": 2,
        "learning_rate": 3e-3,
        "gamma": GAMMA,
        "hidden": (16,),
    }
    given = {"env": "biped", "level": 2, "num_worlds": num_worlds, "seed": seed}
    return make_config(SUITE, given | {"ppo": options | ppo})


def trainer_of(env, config):
    return BraxTrainer(config, Problem(env, lambda *_: None, Networks()))


TINY = {"num_worlds": 4, "unroll_length": 5, "num_epochs": 1, "num_minibatches": 2}


@pytest.fixture(scope="module")
def training():
    """A trainer that has learned to guess, what it was told, and its state."""
    trainer = trainer_of(guessing(), settings())
    metrics = trainer.advance(UPDATES)
    return trainer, metrics, trainer.state()


@pytest.fixture(scope="module")
def biped_run():
    """A few updates on the biped with MuJoCo's C engine: its world, the trainer and its metrics."""
    world = worldloom.make("biped", task="stand", physics="c", threads=1, horizon=10)
    trainer = trainer_of(world, settings(**TINY, seed=3))
    return world, trainer, trainer.advance(6)


# Learning -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_brax_learns_what_can_be_known(training):
    trainer, _, state = training
    numbers = jnp.linspace(-1, 1, 9)[:, None]
    action = trainer.act(state.params, numbers, jax.random.key(0), explore=0.0)
    np.testing.assert_allclose(action, 0.5 * numbers, atol=0.15)


@pytest.mark.slow
def test_the_episodes_of_training_are_counted_after_each_update(training):
    _, metrics, _ = training
    assert all(len(values) == UPDATES for values in metrics.values())
    np.testing.assert_array_equal(metrics["length"], LIMIT)
    np.testing.assert_array_equal(metrics["episodes"], 640 / LIMIT)
    assert (
        metrics["return"][-1] > 0.85 * LIMIT > metrics["return"][0]
    )  # with the noise of exploring
    assert metrics["finite"].all()
    assert np.isfinite(metrics["loss"]).all()


def test_worlds_that_diverge_are_counted_in_the_updates_they_diverged_in():
    ended = {"length": 5.0, "sum_reward": 3.0, "fell": 0.5, "diverged": 0.25}
    rows = [{}, {f"episode/{name}": value for name, value in ended.items()}]
    metrics = as_metrics({"training/v_loss": 2.0}, rows, steps=40, finite=True)
    np.testing.assert_array_equal(metrics["episodes"], [0, 8])
    np.testing.assert_array_equal(metrics["return"], [np.nan, 3.0])
    np.testing.assert_array_equal(metrics["diverged"], [np.nan, 0.25])
    np.testing.assert_array_equal(metrics["value_loss"], [2.0, 2.0])


@pytest.mark.slow
def test_time_running_out_is_not_the_end_of_the_world(training):
    """Of 1 a step for ever the value is 1 / (1 - gamma); if the clock were a fall, a good half."""
    trainer, _, state = training
    normaliser, _, value = state.params
    numbers = jnp.linspace(-1, 1, 9)[:, None]
    values = trainer._networks.value_network.apply(normaliser, value, numbers)
    for_ever = 1 / (1 - GAMMA)
    until_the_clock = np.mean([(1 - GAMMA**n) / (1 - GAMMA) for n in range(1, LIMIT + 1)])
    assert np.mean(values) > 0.9 * for_ever > 1.5 * until_the_clock


@pytest.mark.slow
def test_a_run_goes_on_from_what_was_learned(training):
    learned = training[2]
    trainer = trainer_of(guessing(), settings(learning_rate=1e-6))
    trainer.load(learned)
    metrics = trainer.advance(1)
    assert trainer.iteration == UPDATES + 1
    assert metrics["return"][0] > 0.85 * LIMIT
    counts = [int(state.params[0].count.to_numpy()) for state in (learned, trainer.state())]
    assert counts[1] == counts[0] + trainer.steps_per_iteration
    for old, new in zip(
        jax.tree.leaves(learned.params[1:]), jax.tree.leaves(trainer.agents()[1:]), strict=True
    ):
        np.testing.assert_allclose(old, new, atol=1e-4)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_policy():
    both = [trainer_of(guessing(), settings(**TINY, seed=1)) for _ in range(2)]
    for trainer in both:
        trainer.advance(3)
    jax.tree.map(np.testing.assert_array_equal, both[0].agents(), both[1].agents())
    spread = both[0].agents()[1]["params"]["std_logparam"]["log_value"]
    assert (np.asarray(spread) != -1.0).all()


def test_a_run_that_goes_on_does_not_replay_its_noise():
    assert seed_at(3, 0) == 3
    assert len({seed_at(seed, iteration) for seed in (3, 4) for iteration in (0, 1, 2)}) == 6


# The biped ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_biped_trains_in_braxs_ppo(biped_run):
    _, trainer, metrics = biped_run
    assert (trainer.iteration, trainer.steps_per_iteration) == (6, 20)
    for name in ("return", "length", "fell", "error", "diverged", "loss", "entropy"):
        assert np.isfinite(metrics[name][-1]), name
    assert metrics["loss"][-1] != 0.0
    assert (trainer.agents()[1]["params"]["std_logparam"]["log_value"] != -1.0).any()


@pytest.mark.slow
def test_the_critic_alone_sees_what_is_privileged(biped_run):
    world, trainer, _ = biped_run
    sizes = {name: box.shape[0] for name, box in world.spec.observation.items}
    _, policy, value = trainer.agents()
    kernels = [jax.tree.leaves(tree) for tree in (policy, value)]
    widths = [{leaf.shape[0] for leaf in leaves if leaf.ndim == 2} for leaves in kernels]
    assert sizes["state"] in widths[0]
    assert sizes["privileged_state"] not in widths[0]
    assert sizes["privileged_state"] in widths[1]


@pytest.mark.slow
def test_a_policy_acts_on_whatever_form_an_observation_has(biped_run):
    world, trainer, _ = biped_run
    keys = jax.random.split(jax.random.key(0), 3)
    _, timestep = jax.jit(world.reset_many)(keys, world.default_params())
    obs, key, params = timestep.obs, jax.random.key(1), trainer.agents()
    act = jax.jit(trainer.act, static_argnames="explore")
    forms = (obs, {"state": obs.state, "privileged_state": obs.privileged_state}, obs.state)
    acts = [act(params, form, key, explore=0.0) for form in forms]
    assert acts[0].shape == (3, world.spec.action.shape[0])
    for other in acts[1:]:
        np.testing.assert_array_equal(acts[0], other)
    np.testing.assert_allclose(act(params, obs.state[1], key, explore=0.0), acts[0][1], atol=1e-5)
    assert (np.abs(act(params, 1e6 * obs.state, key, explore=0.0)) <= 1).all()
    drawn = act(params, obs, key, explore=1.0)
    assert (drawn != acts[0]).all()
    traced = jax.jit(trainer.act)(params, obs, key, explore=jnp.float32(1.0))
    np.testing.assert_allclose(traced, drawn, atol=1e-6)


@pytest.mark.slow
def test_nothing_is_left_in_jax(biped_run):
    assert not hasattr(jax, "device_put_replicated")


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_worlds": 3}, r"num_worlds=3 must be a multiple of num_minibatches=2"),
        ({"normalise_advantages": False}, "normalise_advantages=False is an option that Brax's"),
        ({"anneal_updates": 5}, "anneal_updates=5 is an option that Brax's PPO does not have"),
    ],
)
def test_settings_that_brax_does_not_have_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        brax_options(settings(**changes))


def test_our_settings_are_braxs_settings():
    options = brax_options(settings(seed=5))
    assert (options["num_envs"], options["batch_size"], options["num_minibatches"]) == (64, 32, 2)
    assert (options["discounting"], options["num_updates_per_batch"]) == (GAMMA, 4)
    assert set(options) <= set(brax_ppo.ppo.train.__annotations__)


def test_brax_is_imported_when_it_is_used():
    code = "import sys, worldloom.suites.robot.problem; assert 'brax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
