import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles.plant import CHANGE_STEP, HORIZON, DmsdLoop
from worldloom.core.transforms import batch
from worldloom.suites.plant import dmsd

NUM = 8


@pytest.fixture(scope="module")
def runs(compiled_once):
    """Eight episodes under random actions, a little beyond their range: states and steps."""
    env = batch(dmsd.make(), NUM)
    actions = jax.random.uniform(jax.random.key(2), (HORIZON, NUM, 2), minval=-1.2, maxval=1.2)

    @jax.jit
    def play(key, params, actions):
        state, first = env.reset(key, params)

        def one(carry, action):
            return env.step(key, carry, action, params)

        return state, first, jax.lax.scan(one, state, actions)[1]

    def run(key=0, **options):
        params = dmsd.make(**options).default_params()
        return play(jax.random.key(key), params, actions)

    return run, np.asarray(actions)


def test_compiled_episodes_are_those_of_the_plain_loop(runs):
    run, actions = runs
    state, first, steps = jax.tree.map(np.asarray, run())
    changes = 0
    for i in range(NUM):
        x = jax.tree.map(lambda leaf, i=i: leaf[i], state.x)
        targets = np.where(np.arange(HORIZON)[:, None] < CHANGE_STEP, x.target, x.later)
        changes += (x.target != x.later).sum()
        loop = DmsdLoop()
        np.testing.assert_array_equal(loop.begin(x.position, x.velocity, targets), first.obs[i])
        for t in range(HORIZON):
            out = loop.step(actions[t, i])
            np.testing.assert_allclose(steps.obs[t, i], out.obs, atol=1e-5)
            np.testing.assert_allclose(steps.reward[t, i], out.reward, atol=1e-3)
            np.testing.assert_allclose(steps.info.safety.margins[t, i], out.margins, atol=1e-4)
            np.testing.assert_allclose(steps.info.safety.cost[t, i], out.cost, atol=1e-4)
            assert bool(steps.truncated[t, i]) == out.truncated
            assert bool(steps.terminated[t, i]) == out.terminated
    assert 4 <= changes <= 12  # half of sixteen targets change


def test_the_loop_draws_its_own_episodes():
    loop = DmsdLoop(3)
    firsts = np.asarray([loop.reset() for _ in range(200)])
    assert (np.abs(firsts).max(0) <= [0.25, 0.25, 0.1, 0.1, 1.5, 1.5]).all()
    assert len(np.unique(firsts[:, 0])) == 200


def test_a_step_is_not_a_matter_of_luck(runs):
    env, state = dmsd.make(), runs[0]()[0]
    one = jax.tree.map(lambda leaf: leaf[0], state)
    step = jax.jit(env.step)
    outs = [
        step(jax.random.key(k), one, jnp.ones(2), env.default_params())[1].obs for k in range(2)
    ]
    np.testing.assert_array_equal(*outs)


def test_the_model_knows_the_next_observation(runs):
    run, actions = runs
    _, first, steps = run()
    model = jax.jit(jax.vmap(dmsd.make().base.model()))
    seen = np.concatenate([np.asarray(first.obs)[None], np.asarray(steps.obs)[:-1]])
    told = model(seen[10], np.clip(actions[10], -1.0, 1.0))
    np.testing.assert_allclose(told, steps.obs[10], atol=1e-6)


def test_heavier_masses_of_the_test_mode_answer_less(runs):
    light, heavy = runs[0]()[2], runs[0](mode="test")[2]
    assert dmsd.make(mode="test").default_params().physics.mass == 30.0
    # From the same start, the first push gives 2/3 of the velocity it gives to the lighter one.
    state = runs[0]()[0].x
    gained = [np.asarray(steps.obs[0, :, 2:4]) - state.velocity for steps in (light, heavy)]
    np.testing.assert_allclose(gained[1], np.asarray(gained[0]) * 2.0 / 3.0, atol=1e-5)


def test_springs_that_weaken_change_the_end_of_an_episode_only(runs):
    calm, worn = runs[0]()[2].obs, runs[0](drift=1.0)[2].obs
    np.testing.assert_array_equal(calm[0], worn[0])
    assert np.abs(np.asarray(calm[-1] - worn[-1]))[:, :2].max() > 0.01


def test_without_disturbance_targets_stay(runs):
    state = runs[0](disturbance=0.0)[0]
    np.testing.assert_array_equal(state.x.target, state.x.later)


def test_a_mode_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="mode='tset'; use 'train'"):
        dmsd.make(mode="tset")  # pyright: ignore[reportArgumentType]


def test_scores_run_from_the_published_least_to_the_most():
    assert dmsd.normalised_score(30.6) == 0.0
    assert dmsd.normalised_score(849.51) == pytest.approx(100.0)
