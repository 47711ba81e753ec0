"""Learning in the plant: with the safety filter in the loop, and from an offline run on."""

import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import worldloom
from suites.plant.own_plant import make
from worldloom import suites
from worldloom.nn.offline import critics
from worldloom.serving.bundle import load_bundle
from worldloom.suites.plant.filtering import behind_filter
from worldloom.suites.plant.problem import make_problem
from worldloom.suites.plant.safety import constraints_in
from worldloom.suites.plant.suite import SUITE
from worldloom.suites.plant.warm_start import _in_plant_rewards
from worldloom.training.config import make_config
from worldloom.training.loops import make_trainer
from worldloom.training.run import train

pytestmark = pytest.mark.usefixtures("compiled_once")

WORLD = {"horizon": 10}
LIGHT = """emergency: {pump: 0 m3/h}
barriers: {overflow: {signal: level, at_most: 4.25 m, gamma: 1}}
"""  # without lookahead: it is compiled in a tenth of the time
OFFLINE = {"updates_per_iteration": 10, "batch_size": 8, "hidden": (8, 8)}
ONLINE = {
    "unroll_length": 256,
    "gradient_steps": 2,
    "batch_size": 8,
    "hidden": (8, 8),
    "buffer_size": 4096,
    "learning_starts": 2048,
    "normalise_observations": True,
}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    worldloom.register("mine", make, suite="plant")
    yield
    suites._REGISTERED.pop("mine")


@pytest.fixture(scope="module")
def config_of(tmp_path_factory):
    """config_of(algo, steps, options): settings that compile in seconds."""
    file = tmp_path_factory.mktemp("constraints") / "light.yaml"
    file.write_text(LIGHT)

    def make_one(algo, steps, options, **settings):
        common = {"env": "mine", "algo": algo, "steps": steps, "world": WORLD, "eval_episodes": 2}
        common |= {"num_worlds": 8, "data_steps": 100, "ope_updates": 0, "eval_every": 0}
        common |= {"checkpoint_every": 0, "constraints": str(file), algo: options}
        return make_config(SUITE, common | settings)

    return make_one


def light_constraints(env):
    return constraints_in(LIGHT, "light", env.base)


# The filter in the loop ------------------------------------------------------------------------


def test_behind_the_filter_no_action_leaves_the_hard_limits():
    """The plant without disturbance is its own model: a pump at full speed never overflows it."""
    env = make(disturbance=0.0, horizon=40)
    bare, kept = env, behind_filter(env, light_constraints(env))
    full = jnp.ones(1)

    def play(env):
        def one(carry, key):
            state, timestep = env.step(key, carry, full, env.default_params())
            return state, timestep

        state, _ = env.reset(jax.random.key(0), env.default_params())
        return jax.jit(lambda: jax.lax.scan(one, state, jax.random.split(jax.random.key(1), 40)))()[
            1
        ]

    assert play(bare).obs[:, 0].max() > 4.5
    steps = play(kept)
    assert steps.obs[:, 0].max() <= 4.5
    assert 0.0 < steps.info.interventions[-1] <= 1.0
    assert not steps.info.plant.safety.violated.any()


def test_the_filters_memory_starts_anew_with_every_episode():
    env = behind_filter(make(horizon=3), light_constraints(make()))
    params, step = env.default_params(), jax.jit(env.step)
    state, first = env.reset(jax.random.key(0), params)
    assert (int(state.memory.step), float(first.info.interventions)) == (0, 0.0)
    for n in range(3):
        state, timestep = step(jax.random.key(n), state, jnp.full(1, jnp.nan), params)
    assert int(state.memory.step) == 3
    assert float(timestep.info.emergencies) == 1.0  # NaN is answered by the emergency action
    assert bool(state.memory.latched)
    assert not bool(env.reset(jax.random.key(9), params)[0].memory.latched)


@pytest.fixture(scope="module")
def online(config_of, tmp_path_factory):
    config = config_of("sac", 4096, ONLINE, filter_training=True)
    return train(SUITE, config, tmp_path_factory.mktemp("online") / "run")


def test_what_the_filter_does_while_it_learns_is_in_the_metrics(online, read_rows):
    rows = read_rows(online.folder / "metrics.jsonl")
    assert len(rows) == 2
    assert all(0.0 <= row["interventions"] <= 1.0 for row in rows)
    assert not (online.folder / "data.npz").exists()
    assert not (online.folder / "ope.json").exists()


def test_an_online_run_has_a_complete_page(online):
    page = (online.folder / "report.html").read_text()
    assert "not complete" not in page
    for words in ("training, with exploration", "Margins over time", "Constraints in force"):
        assert words in page, words
    assert "data alone" not in page


def test_an_online_policy_is_exported_with_its_normaliser(online, tmp_path):
    bundle = load_bundle(online.export(tmp_path / "bundle", onnx=False))
    obs = np.float32([[2.0, 5.0], [3.0, 4.0]])
    memory = bundle.initial_memory(np.zeros((2, 1)))
    np.testing.assert_allclose(bundle.act(obs, memory).proposed, online.act(obs), atol=1e-5)
    assert bundle.manifest["drift"]["count"] > 0
    assert worldloom.load(online.folder).act(obs).shape == (2, 1)


@pytest.mark.parametrize("algo", ["ppo", "random"])
def test_any_policy_can_be_evaluated(config_of, algo):
    options = {"unroll_length": 2, "num_minibatches": 2, "hidden": (8,)} if algo == "ppo" else {}
    config = config_of(algo, 16, options)
    problem = make_problem(config)
    trainer = make_trainer(config, problem)
    evaluation = problem.make_evaluator(trainer, 2)(trainer.agents(), jax.random.key(0))
    assert np.isfinite(evaluation.mean)


# Offline to online -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def offline(config_of, tmp_path_factory):
    """offline(algo): a tiny run, trained once."""
    runs = {}

    def make_run(algo):
        if algo not in runs:
            config = config_of(algo, 20, OFFLINE)
            runs[algo] = train(SUITE, config, tmp_path_factory.mktemp(algo) / "run", report=False)
        return runs[algo]

    return make_run


@pytest.mark.parametrize(
    ("source", "algo", "critics_too"),
    [
        ("td3bc", "td3", True),
        ("iql", "sac", True),
        pytest.param("rebrac", "td3", False, marks=pytest.mark.slow),
    ],
)
def test_the_first_evaluation_is_that_of_the_offline_policy(
    config_of, offline, source, algo, critics_too
):
    before = offline(source)
    config = config_of(algo, 2048, ONLINE, init_from=before.folder)
    problem = make_problem(config)
    trainer = make_trainer(config, problem)
    first = problem.make_evaluator(trainer, 2)(trainer.agents(), jax.random.key(4))
    expected = before.evaluate(2, seed=4)
    np.testing.assert_allclose(first.bare.returns, expected.bare.returns, rtol=1e-4)
    np.testing.assert_allclose(first.filtered.returns, expected.filtered.returns, rtol=1e-4)
    learner, old = trainer.run.learner, before.trainer.run.learner
    fresh = make_trainer(config, replace(problem, make_trainer=None)).run.learner
    kernel = learner.critic.params[0]["obs"]
    origin = old.critic.params if critics_too else fresh.critic.params
    np.testing.assert_array_equal(kernel, origin[0]["obs"])
    trainer.advance(1)  # in which nothing moves the scales that the networks know
    mean = before.problem.data().mean
    np.testing.assert_allclose(trainer.run.learner.normaliser.mean, mean, rtol=1e-6)


def test_critics_are_brought_to_the_rewards_of_the_plant(config_of, offline):
    before = offline("td3bc")
    data, old = before.problem.data(), before.trainer.run.learner.critic.params
    config = config_of("td3", 2048, ONLINE | {"reward_scale": 3.0}).hyper
    new = _in_plant_rewards(old, data, 0.99, config)
    obs, action = data.normalise(data.rows.obs[:4]), data.rows.action[:4]
    scale = 1.0 / float(data.rows.reward.std())
    ends = bool(data.rows.terminated.any())
    middle = 0.0 if ends else float(data.rows.reward.mean())
    expected = 3.0 * (critics(old, obs, action) / scale + middle / 0.01)
    np.testing.assert_allclose(critics(new, obs, action), expected, rtol=1e-3)


def test_a_run_that_began_offline_goes_on_without_its_origin(config_of, offline, tmp_path):
    origin = tmp_path / "origin"
    shutil.copytree(offline("td3bc").folder, origin)
    config = config_of("td3", 2048, ONLINE, init_from=str(origin))
    train(SUITE, config, tmp_path / "run", report=False)
    shutil.rmtree(origin)
    further = config_of("td3", 4096, ONLINE, init_from=str(origin))
    assert train(SUITE, further, tmp_path / "run", resume=True, report=False).steps == 4096
    assert worldloom.load(tmp_path / "run").steps == 4096


@pytest.mark.parametrize(
    ("source", "algo", "options", "words"),
    [
        ("iql", "td3", {}, "td3 cannot start from iql; what can: td3 from td3bc, rebrac, bc"),
        ("td3bc", "td3", {"hidden": (4,)}, r"its actor has hidden layers of \[8, 8\]"),
        ("td3bc", "td3", {"normalise_observations": False}, "set td3.normalise_observations"),
    ],
)
def test_what_does_not_fit_is_refused(config_of, offline, tmp_path, source, algo, options, words):
    config = config_of(algo, 2048, ONLINE | options, init_from=offline(source).folder)
    with pytest.raises(ValueError, match=words):
        train(SUITE, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
