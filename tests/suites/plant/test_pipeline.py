import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core.transforms import batch
from worldloom.suites.plant import pipeline

STEPS, NUM = 120, 4


@pytest.fixture(scope="module")
def run(compiled_once):
    env = batch(pipeline.make(), NUM)

    @jax.jit
    def play(key, params, actions):
        state, first = env.reset(key, params)
        keys = jax.random.split(key, STEPS)

        def one(carry, x):
            return env.step(x[0], carry, x[1], params)

        return state, first, jax.lax.scan(one, state, (keys, actions))[1]

    def run(actions, **options):
        params = pipeline.make(**options).default_params()
        return play(jax.random.key(4), params, jnp.asarray(actions, jnp.float32))

    return run


@pytest.fixture(scope="module")
def pushes():
    return np.random.default_rng(0).uniform(-1.0, 1.0, (STEPS, NUM, 1)).astype(np.float32)


def test_a_push_at_the_gate_arrives_twenty_steps_later(run):
    actions = np.zeros((STEPS, NUM, 1))
    actions[0] = 1.0
    _, first, steps = run(actions, disturbance=0.0)
    outlet = np.asarray(steps.obs)[:, :, 0] - np.asarray(first.obs)[:, 0]
    np.testing.assert_allclose(outlet[:19], 0.0, atol=1e-6)
    np.testing.assert_allclose(outlet[19:], 1.0, atol=1e-5)


def test_the_outlet_is_the_gate_of_nineteen_steps_ago(run, pushes):
    """As NeoRL-2 tells it: a queue of twenty flows, of which the gate fills the first."""
    pushes = pushes + 0.9  # so that the gate reaches its end
    _, first, steps = run(pushes, most=130.0)
    seen = np.asarray(steps.obs)
    for i in range(NUM):
        flow = float(first.obs[i, 0])
        queue = [flow] * 20
        for t in range(STEPS):
            gate = np.clip(queue[0] + np.clip(pushes[t, i, 0], -1.0, 1.0), 0.0, 130.0)
            queue = [gate, *queue[:-1]]
            np.testing.assert_allclose(seen[t, i, 0], queue[-1], atol=1e-3)
    assert seen[-1, :, 0].max() == 130.0


def test_the_histories_hold_what_was(run, pushes):
    _, first, steps = run(pushes)
    seen = np.asarray(steps.obs)
    outlets = np.concatenate([np.asarray(first.obs)[None, :, 0], seen[:, :, 0]])
    t = 60
    np.testing.assert_array_equal(seen[t, :, 2:27].T, outlets[t - 24 : t + 1][::-1])
    np.testing.assert_allclose(seen[t, :, 27:].T, pushes[t - 24 : t + 1, :, 0][::-1], atol=1e-6)


def test_the_model_knows_the_next_observation(run, pushes):
    _, _, steps = run(pushes, disturbance=0.0)
    told = jax.jit(jax.vmap(pipeline.make().base.model()))(steps.obs[50], pushes[51])
    np.testing.assert_allclose(told, steps.obs[51], atol=1e-5)


def test_targets_change_as_often_as_they_should(run, pushes):
    _, first, steps = run(pushes, change=0.2)
    targets = np.concatenate([np.asarray(first.obs)[None], np.asarray(steps.obs)])[:, :, 1]
    assert set(np.unique(targets)) <= {50.0, 80.0, 110.0, 140.0}
    changes = (targets[1:] != targets[:-1]).sum()
    expected = 0.2 * 0.75 * STEPS * NUM
    assert abs(changes - expected) < 4.0 * np.sqrt(expected)
    steady = np.asarray(run(pushes, disturbance=0.0)[2].obs)[:, :, 1]
    assert (steady == steady[0]).all()


def test_a_sticking_gate_lets_less_of_the_action_through(run):
    actions = np.full((STEPS, NUM, 1), 0.5)
    moved = np.asarray(run(actions, drift=1.0, horizon=STEPS)[2].obs)[:, :, 27]
    np.testing.assert_allclose(moved[0], 0.5, atol=1e-6)
    assert (moved[-1] < 0.36).all()
    assert (moved[-1] > 0.34).all()


def test_a_flow_on_target_pays_one():
    plant = pipeline.Pipeline()
    flow, none = jnp.float32(80.0), jnp.zeros(25)
    x = pipeline.Channel(flow, flow, none, none)
    off = x.replace(wanted=flow + 60.0)
    params = pipeline.make().default_params()
    assert float(plant.reward(x, none, x, params)) == pytest.approx(1.0)
    assert float(plant.reward(x, none, off, params)) == pytest.approx(1.4**2 - 3.0, abs=1e-6)


def test_the_release_scores_what_was_published():
    assert pipeline.normalised_score(429.0) == pytest.approx(69.25, abs=0.01)
