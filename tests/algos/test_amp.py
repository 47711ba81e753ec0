"""Adversarial motion priors: what the discriminator learns, pays, remembers and must not touch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.amp import AMP, AMPConfig, StylePrior
from worldloom.algos.on_policy import collect
from worldloom.algos.ppo import PPO, PPOConfig
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box
from worldloom.core.transforms import autoreset_batch
from worldloom.core.types import TimeStep
from worldloom.nn.actor_critic import ActorCritic

SIZE, ROWS = 5, 256
GOAL = 0.6  # where a policy has to go that starts at 0
SMALL = AMPConfig(
    hidden=(32, 16),
    learning_rate=1e-3,
    updates=5,
    batch_size=64,
    replay_rows=128,
    replay_adds=32,
    gradient_penalty=1.0,
    weight=2.0,
)
PRIOR = AMP(SMALL)


def gaussian(seed, mean, count=ROWS):
    noise = np.random.default_rng(seed).normal(0.0, 1.0, (count, SIZE))
    return jnp.asarray(noise + mean, jnp.float32)


REAL, FAKE = gaussian(0, 1.0), gaussian(1, -1.0)


@pytest.fixture(scope="module")
def update():
    return jax.jit(PRIOR.update)


@pytest.fixture(scope="module")
def style():
    return jax.jit(PRIOR.style)


@pytest.fixture(scope="module")
def init():
    return jax.jit(PRIOR.init)


@pytest.fixture(scope="module")
def initial(init):
    return init(jax.random.key(0), REAL)


@pytest.fixture(scope="module")
def trained(update, initial):
    state, history = initial, []
    for i in range(40):
        state, metrics = update(state, FAKE, REAL, jax.random.key(i))
        history.append(metrics)
    return state, history


# Telling apart ---------------------------------------------------------------------------------


def test_two_gaussians_are_told_apart(trained, style):
    state, history = trained
    assert float(history[-1]["real_accuracy"]) > 0.9
    assert float(history[-1]["fake_accuracy"]) > 0.9
    assert float(history[-1]["loss"]) < 0.5 * float(history[0]["loss"])
    # Samples it has not seen.
    assert float(style(state, gaussian(7, 1.0)).mean()) > 0.6
    assert float(style(state, gaussian(8, -1.0)).mean()) < 0.25


def test_the_same_distribution_cannot_be_told_apart(update, initial):
    state, metrics = initial, None
    for i in range(40):
        state, metrics = update(state, gaussian(100 + i, 1.0), REAL, jax.random.key(i))
    assert metrics is not None
    assert abs(float(metrics["real_score"]) - float(metrics["fake_score"])) < 0.2
    assert float(metrics["real_score"]) == pytest.approx(0.5, abs=0.2)


def test_the_loss_is_least_squares_with_a_penalty_on_the_slope(initial):
    """Against plain sums, and the slope by finite differences in the network's units."""
    real, fake = np.asarray(REAL[:8]), np.asarray(FAKE[:8])
    loss, parts = jax.jit(PRIOR.loss)(initial.params, initial, REAL[:8], FAKE[:8])
    score = jax.jit(lambda x: PRIOR.score(initial, x))
    squares = 0.5 * (np.square(score(real) - 1).mean() + np.square(score(fake)).mean())
    slopes = []
    for i in range(SIZE):
        nudge = np.zeros(SIZE, np.float32)
        nudge[i] = 1e-2 * float(initial.std[i])
        slopes.append((np.asarray(score(real + nudge)) - np.asarray(score(real - nudge))) / 2e-2)
    penalty = np.square(slopes).sum(0).mean()
    assert float(parts["penalty"]) == pytest.approx(penalty, rel=1e-2)
    assert float(loss) == pytest.approx(squares + 0.5 * SMALL.gradient_penalty * penalty, rel=1e-3)


def test_the_penalty_does_not_touch_fakes(initial):
    @jax.jit
    def penalty(real, fake):
        return PRIOR.loss(initial.params, initial, real, fake)[1]["penalty"]

    by_real, by_fake = jax.jit(jax.grad(penalty, (0, 1)))(REAL, FAKE)
    assert float(jnp.abs(by_real).max()) > 0.0
    np.testing.assert_array_equal(by_fake, 0.0)
    assert float(penalty(REAL, FAKE)) == float(penalty(REAL, 5.0 * FAKE))
    assert float(penalty(REAL, FAKE)) != float(penalty(2.0 * REAL, FAKE))


# Reward ----------------------------------------------------------------------------------------


def test_what_is_called_a_fake_earns_nothing(trained, style):
    state, _ = trained
    spread = gaussian(3, 0.0, 4096) * 3.0
    score, reward = jax.jit(PRIOR.score)(state, spread), style(state, spread)
    assert float(score.min()) < 0.0 < 1.0 < float(score.max())
    np.testing.assert_array_equal(reward[score <= 0.0], 0.0)
    np.testing.assert_array_equal(reward[score >= 1.0], 1.0)
    between = (score > 0.0) & (score < 1.0)
    np.testing.assert_allclose(reward[between], score[between], atol=1e-6)


def test_features_that_are_not_finite_earn_nothing_and_spoil_nothing(update, style, initial):
    broken = FAKE.at[::3].set(jnp.nan).at[1, 2].set(jnp.inf)
    assert float(style(initial, broken)[0]) == 0.0
    state, metrics = update(initial, broken, REAL, jax.random.key(0))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state, metrics)))
    assert float(metrics["skipped"]) == 0.0


def test_a_reference_that_is_not_finite_changes_nothing(update, initial):
    state, metrics = update(initial, FAKE, jnp.full_like(REAL, jnp.nan), jax.random.key(0))
    assert float(metrics["skipped"]) == SMALL.updates
    jax.tree.map(np.testing.assert_array_equal, state.params, initial.params)


def test_features_are_centred_as_the_reference_is_but_not_told_apart_too_finely(init):
    narrow = REAL.at[:, 0].set(3.0)
    state = init(jax.random.key(0), narrow)
    np.testing.assert_allclose(state.mean, narrow.mean(0), rtol=1e-5)
    np.testing.assert_allclose(state.std[1:], narrow.std(0)[1:], rtol=1e-5)
    assert float(state.std[0]) == SMALL.least_std


# Memory ----------------------------------------------------------------------------------------


def test_fakes_mix_what_is_remembered_with_what_is_new(initial):
    old, new = jnp.full((ROWS, SIZE), -7.0), jnp.full((ROWS, SIZE), 7.0)
    fakes = jax.jit(PRIOR.fakes)
    # With an empty memory all are new.
    np.testing.assert_array_equal(fakes(initial, new, jax.random.key(0)), 7.0)
    memory = jax.jit(PRIOR.remember)(initial.memory, old, jax.random.key(1))
    state = initial.replace(memory=memory)
    drawn = jnp.concatenate([fakes(state, new, jax.random.key(i))[:, 0] for i in range(20)])
    # Never a row that was not written yet, which holds zeros.
    assert set(np.unique(drawn)) == {-7.0, 7.0}
    assert float((drawn < 0).mean()) == pytest.approx(SMALL.replay_share, abs=0.05)


def test_the_oldest_rows_are_forgotten_first(initial):
    remember = jax.jit(PRIOR.remember)
    memory = initial.memory
    for i in range(23):  # far beyond the ring's end: 4 additions fill it
        memory = remember(memory, jnp.full((ROWS, SIZE), float(i)), jax.random.key(i))
        kept = set(np.unique(memory.rows)) - ({0.0} if i < 4 else set())
        assert kept == set(map(float, range(max(0, i - 3), i + 1))) - ({0.0} if i < 4 else set())
    assert SMALL.replay_rows <= int(memory.written) < 2 * SMALL.replay_rows


def test_a_rollout_is_learned_from_before_it_is_remembered(update, initial):
    state, _ = update(initial, FAKE, REAL, jax.random.key(0))
    assert int(state.memory.written) == SMALL.replay_adds
    rows = np.asarray(state.memory.rows[: SMALL.replay_adds])
    assert all((row == np.asarray(FAKE)).all(1).any() for row in rows)
    np.testing.assert_array_equal(state.memory.rows[SMALL.replay_adds :], 0.0)


# Compiled --------------------------------------------------------------------------------------


def test_the_same_key_gives_the_same_update_and_one_program_serves(update, initial):
    one, two, other = (update(initial, FAKE, REAL, jax.random.key(k)) for k in (3, 3, 4))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert any(
        not np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (one, other)), strict=True)
    )
    update(one[0], REAL, FAKE, jax.random.key(5))
    assert update._cache_size() == 1


def test_devices_that_share_the_worlds_learn_and_remember_the_same(initial):
    """In a scan, with a mapped axis in the place of devices."""
    prior = AMP(SMALL, axis_name="devices")
    keys = jax.random.split(jax.random.key(0), (3, 2))

    @partial(jax.vmap, in_axes=(None, 0, 1), axis_name="devices")
    def train(state, features, keys):
        def one(state, key):
            return prior.update(state, features, REAL, key)

        return jax.lax.scan(one, state, keys)

    state, metrics = jax.jit(train)(initial, jnp.stack([FAKE, FAKE + 20.0]), keys)
    assert metrics["loss"].shape == (2, 3)
    for x in jax.tree.leaves((state, metrics)):
        np.testing.assert_array_equal(x[0], x[1])
    far = np.asarray(state.memory.rows[0, : 3 * SMALL.replay_adds, 0] > 10.0)
    assert far.mean() == 0.5
    with pytest.raises(ValueError, match="3 devices cannot share replay_adds=32"):
        jax.eval_shape(train, initial, jnp.stack([FAKE] * 3), jnp.stack([keys[:, 0]] * 3, 1))


# With PPO --------------------------------------------------------------------------------------


class Slider:
    """A point that the action sets; the task pays nothing, and every third step ends an episode."""

    spec = EnvSpec("slider", Box(-9.0, 9.0, (SIZE,)), Box(-9.0, 9.0, (SIZE,)))

    def default_params(self):
        return ()

    def _now(self, place, step):
        no = jnp.zeros((), bool)
        obs = jnp.zeros(SIZE)
        return TimeStep(obs, jnp.float32(0.0), no, step % 3 == 0, obs, place)

    def reset(self, key, params):
        state = (jnp.full(SIZE, 99.0, jnp.float32), jnp.int32(0))  # a place no step leads to
        return state, self._now(*state).replace(truncated=jnp.zeros((), bool))

    def step(self, key, state, action, params):
        step = state[1] + 1
        return (action, step), self._now(action, step)


@pytest.fixture(scope="module")
def play(init):
    """The state before, and a round of training; it also shows where the steps led and its pay."""
    config = PPOConfig(unroll_length=8, num_minibatches=2, learning_rate=3e-3)
    ppo = PPO(config, ActorCritic(action_size=SIZE, hidden=(16,), initial_log_std=-1.0))
    env = autoreset_batch(Slider(), 32)
    worlds, timestep = jax.jit(env.reset)(jax.random.key(1), ())
    learner = jax.jit(ppo.init)(jax.random.key(2), timestep.obs)
    reference = np.asarray(0.3 * gaussian(5, 0.0) + GOAL)
    prior = StylePrior(PRIOR, reference, features_of=lambda steps: steps.info)

    @jax.jit
    def step(carry, key):
        learner, style, worlds, timestep = carry
        keys = jax.random.split(key, 3)
        worlds, timestep, rollout, steps = collect(ppo, env, learner, worlds, timestep, (), keys[0])
        paid = prior.reward(style, steps, rollout.reward)
        style, metrics = prior.update(style, steps, keys[1])
        learner, _ = ppo.update(learner, rollout.replace(reward=paid), keys[2])
        return (learner, style, worlds, timestep), metrics, steps.info, paid

    return (learner, init(jax.random.key(0), reference), worlds, timestep), step


def test_the_style_is_paid_by_the_discriminator_from_before_its_update(play, style):
    before, step = play
    after, metrics, places, paid = step(before, jax.random.key(3))
    places = places.reshape(-1, SIZE)
    was, would_be = (style(carry[1], places) for carry in (before, after))
    np.testing.assert_allclose(paid.reshape(-1), SMALL.weight * was, atol=1e-5)
    assert float(metrics["prior_style"]) == pytest.approx(float(was.mean()), abs=1e-6)
    assert float(jnp.abs(would_be - was).max()) > 1e-3


def test_features_are_those_of_before_an_automatic_reset(play):
    before, step = play
    places = step(before, jax.random.key(3))[2]
    assert places.shape == (8, 32, SIZE)
    assert float(jnp.abs(places).max()) < 20.0  # a reset would show 99


def test_a_policy_paid_for_style_alone_comes_to_the_reference(play):
    carry, step = play
    gaps = []
    for i in range(80):
        carry, _, places, _ = step(carry, jax.random.key(10 + i))
        gaps.append(float(jnp.abs(places.mean((0, 1)) - GOAL).mean()))
    assert gaps[0] > 0.9 * GOAL
    assert max(gaps[-5:]) < 0.4 * GOAL
    assert step._cache_size() == 1


# Options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"weight": -1.0}, "weight=-1"),
        ({"learning_rate": 0.0}, "learning_rate=0"),
        ({"replay_share": 1.5}, "replay_share=1.5"),
        ({"replay_rows": 100, "replay_adds": 30}, "does not divide"),
    ],
)
def test_options_out_of_range_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        AMPConfig(**changes)
