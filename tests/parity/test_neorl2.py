"""Our plants against the rows that NeoRL-2 released."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import halfcheetah
from worldloom.suites.plant import dmsd, pipeline, simglucose
from worldloom.suites.plant.patients import SHOWN
from worldloom.suites.plant.types import EnvironmentState

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def rows(neorl2):
    """rows(task): the released arrays by name."""

    def read(task):
        with np.load(neorl2 / f"{task}-high-100000-train.npz") as file:
            return {name: file[name] for name in file.files}

    return read


def episodes(data):
    """First row and end (exclusive) of every episode."""
    over = (data["done"].ravel() > 0) | (data["truncated"].ravel() > 0)
    ends = np.flatnonzero(over) + 1
    return np.concatenate([[0], ends[:-1]]), ends


def returns(data):
    starts, ends = episodes(data)
    return np.asarray([data["reward"][a:b].sum() for a, b in zip(starts, ends, strict=True)])


def world_at(x, count):
    """States of worlds in the middle of an episode."""
    return EnvironmentState(x, jnp.zeros(count, jnp.int32), jnp.zeros((count, 2), jnp.float32))


# DMSD --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masses(rows):
    return rows("DMSD")


def test_every_row_of_dmsd_follows_from_the_one_before(masses):
    env = dmsd.make(change_step=0.0)  # the next row's targets are the later ones
    obs, action = jnp.asarray(masses["obs"]), jnp.asarray(masses["action"])
    later = jnp.asarray(masses["next_obs"][:, 4:])

    @jax.jit
    def step(obs, later, action):
        x = dmsd.Masses(obs[:, :2], obs[:, 2:4], obs[:, 4:], later)
        state, key = world_at(x, len(obs)), jax.random.key(0)
        move = jax.vmap(env.step, (None, 0, 0, None))
        return move(key, state, action, env.default_params())[1]

    out = step(obs, later, action)
    np.testing.assert_allclose(out.obs, masses["next_obs"], atol=1e-5, rtol=0)
    # Where a mass is on its target, 1e-7 m are 1e-5 of reward.
    np.testing.assert_allclose(out.reward, masses["reward"].ravel(), atol=5e-5, rtol=0)
    assert not np.asarray(out.terminated).any()


def test_the_reward_of_dmsd_is_that_of_every_released_row(masses):
    plant, params = dmsd.DoubleMassSpringDamper(), dmsd.make().default_params()
    seen = jnp.asarray(masses["next_obs"])
    x = dmsd.Masses(seen[:, :2], seen[:, 2:4], seen[:, 4:], seen[:, 4:])
    paid = jax.jit(jax.vmap(lambda x: plant.reward(x, x.position, x, params)))(x)
    np.testing.assert_allclose(paid, masses["reward"].ravel(), atol=1e-5, rtol=0)


def test_whole_episodes_of_dmsd_are_replayed_with_their_change_of_target(masses):
    env = dmsd.make()
    starts, ends = episodes(masses)
    assert set(ends - starts) == {100}
    first, last = masses["obs"][starts], masses["next_obs"][ends - 1]
    action = masses["action"].reshape(-1, 100, 2).swapaxes(0, 1)

    @jax.jit
    def replay(first, last, action):
        x = dmsd.Masses(first[:, :2], first[:, 2:4], first[:, 4:], last[:, 4:])
        move = jax.vmap(env.step, (None, 0, 0, None))

        def one(state, action):
            state, out = move(jax.random.key(0), state, action, env.default_params())
            return state, (out.obs, out.truncated)

        return jax.lax.scan(one, world_at(x, len(first)), action)[1]

    seen, truncated = replay(first, last, action)
    wanted = masses["next_obs"].reshape(-1, 100, 6).swapaxes(0, 1)
    np.testing.assert_allclose(seen, wanted, atol=2e-5, rtol=0)
    assert np.asarray(truncated)[-1].all()
    assert not np.asarray(truncated)[:-1].any()


def test_our_starts_of_dmsd_are_drawn_as_theirs(masses):
    env = dmsd.make()
    state, out = jax.jit(jax.vmap(env.reset, (0, None)))(
        jax.random.split(jax.random.key(1), 4000), env.default_params()
    )
    theirs = masses["obs"][::100]
    ours = np.asarray(out.obs)
    np.testing.assert_allclose(ours.std(0), theirs.std(0), rtol=0.1)
    assert (np.abs(ours).max(0) <= [0.25, 0.25, 0.1, 0.1, 1.5, 1.5]).all()
    changed = masses["obs"][::100, 4:] != masses["next_obs"][99::100, 4:]
    assert abs((np.asarray(state.x.later) != ours[:, 4:]).mean() - changed.mean()) < 0.05


# Pipeline ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flows(rows):
    return rows("Pipeline")


def test_histories_shift_and_water_travels_as_in_every_row_of_pipeline(flows):
    env = pipeline.make()

    @jax.jit
    def step(obs, action):
        x = pipeline.Channel(obs[:, 0], obs[:, 1], obs[:, 2:27], obs[:, 27:])
        state = EnvironmentState(x, jnp.zeros(len(obs), jnp.int32), jnp.zeros_like(action))
        move = jax.vmap(env.step, (None, 0, 0, None))
        return move(jax.random.key(0), state, action, env.default_params())[1]

    out = step(jnp.asarray(flows["obs"]), jnp.asarray(flows["action"]))
    known = np.arange(52) != 1  # the target changes by chance
    np.testing.assert_allclose(
        np.asarray(out.obs)[:, known], flows["next_obs"][:, known], atol=1e-4, rtol=0
    )


def test_the_reward_of_pipeline_is_that_of_every_row(flows):
    plant, params = pipeline.Pipeline(), pipeline.make().default_params()
    seen = jnp.asarray(flows["next_obs"])
    x = pipeline.Channel(seen[:, 0], seen[:, 1], seen[:, 2:27], seen[:, 27:])
    paid = jax.jit(jax.vmap(lambda x: plant.reward(x, x.changes, x, params)))(x)
    np.testing.assert_allclose(paid, flows["reward"].ravel(), atol=1e-5, rtol=0)


def test_targets_of_pipeline_are_those_of_the_rows(flows):
    assert set(np.unique(flows["obs"][:, 1])) == {50.0, 80.0, 110.0, 140.0}
    changes = (flows["obs"][:, 1] != flows["next_obs"][:, 1]).mean()
    assert abs(changes - 0.75 * 0.003) < 4e-4


# Simglucose --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(rows):
    return rows("Simglucose")


def test_the_reward_of_simglucose_is_that_of_every_released_row(people):
    paid = jax.jit(simglucose.reward)(people["obs"][:, 0], people["next_obs"][:, 0])
    np.testing.assert_allclose(paid, people["reward"].ravel(), atol=1e-5, rtol=0)


def test_every_row_shows_the_figures_of_one_of_the_training_patients(people):
    table = simglucose.Simglucose().physics().patients[:, : len(SHOWN)]
    shown = np.unique(people["obs"][:, 1:], axis=0)
    assert len(shown) == 15
    for figures in shown:
        assert (np.abs(table - figures) <= 1e-6 * np.abs(figures)).all(1).sum() == 1


def test_released_episodes_follow_from_patient_start_hour_and_actions(people):
    """Neither the hour nor the states are in the files: one hour of 24 must explain each day."""
    plant = simglucose.Simglucose()
    env = simglucose.make()
    params = env.default_params()
    starts, ends = episodes(people)
    table = np.asarray(params.physics.patients)
    chosen = np.linspace(0, len(starts) - 1, 24).astype(int)
    actions = np.zeros((len(chosen), 480, 1), np.float32)
    for i, e in enumerate(chosen):
        actions[i, : ends[e] - starts[e]] = people["action"][starts[e] : ends[e]]
    weights = people["obs"][starts[chosen], 1]
    patients = np.abs(table[:, 0] - weights[:, None]).argmin(1)

    def day(patient, hour, actions):
        state = EnvironmentState(
            plant.begin(patient, hour, params), jnp.int32(0), jnp.zeros(1, jnp.float32)
        )

        def one(state, action):
            state, out = env.step(jax.random.key(0), state, action, params)
            return state, (out.obs[0], out.terminated)

        return jax.lax.scan(one, state, actions)[1]

    every = jax.jit(jax.vmap(jax.vmap(day, (None, 0, None)), (0, None, 0)))
    seen, ended = every(jnp.asarray(patients), jnp.arange(24), jnp.asarray(actions))
    seen, ended = np.asarray(seen), np.asarray(ended)  # (episodes, hours, steps)
    for i, e in enumerate(chosen):
        length = ends[e] - starts[e]
        wanted = people["next_obs"][starts[e] : ends[e], 0]
        errors = np.abs(seen[i, :, :length] - wanted).max(1)
        best = errors.argmin()
        assert errors[best] < 0.01, (e, errors[best])
        done = people["done"][starts[e] : ends[e]].ravel() > 0
        np.testing.assert_array_equal(ended[i, best, :length], done)


# SafetyHalfCheetah -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(rows):
    return rows("SafetyHalfCheetah")


def test_the_reward_of_the_half_cheetah_is_that_of_every_released_row(runs):
    paid = jax.jit(halfcheetah.reward)(runs["obs"], runs["action"], runs["next_obs"])
    np.testing.assert_allclose(paid, runs["reward"].ravel(), atol=2e-4, rtol=0)


def test_no_released_row_breaks_the_speed_limit(runs):
    assert np.asarray(halfcheetah.cost(runs["obs"], runs["next_obs"])).sum() == 0.0
    margin = np.asarray(halfcheetah.speed_margin(runs["obs"], runs["next_obs"]))
    assert 0.0 < margin.min() < 0.01  # they were made to run as fast as they may


def test_one_step_of_mujoco_leads_from_a_released_row_to_the_next(runs):
    mujoco = pytest.importorskip("mujoco")
    pytest.importorskip("gymnasium")
    body, off = mujoco.MjData(halfcheetah.load()), []
    for row in range(0, 18_000, 180):
        halfcheetah.set_state(body, runs["obs"][row])
        after = halfcheetah.step(body, runs["action"][row])
        off.append(np.abs(after - runs["next_obs"][row]).max())
    # In contact, rounding to float32 makes more of a difference.
    assert np.median(off) < 1e-4
    assert np.quantile(off, 0.9) < 1e-2


# Scores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "module", "published"),
    [
        ("DMSD", dmsd, 56.64),
        ("Simglucose", simglucose, 73.87),
        ("SafetyHalfCheetah", halfcheetah, 73.56),
    ],
)
def test_the_data_score_what_was_published_of_them(rows, task, module, published):
    assert abs(module.normalised_score(returns(rows(task)).mean()) - published) < 0.05
