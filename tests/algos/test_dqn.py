"""Double DQN against its equations, written out in numpy for a linear network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.dqn import DQN, DQNConfig
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import Batch
from worldloom.nn.networks import Network, Networks
from worldloom.nn.values import NOT_ALLOWED, epsilon_greedy

ACTIONS, FRAMES, FEATURES, BATCH = 3, 2, 4, 16
SPEC = EnvSpec("test", Box(0, 1, (FRAMES, FEATURES), "uint8"), Discrete(ACTIONS))
LINEAR = DQN(DQNConfig(hidden=(), batch_size=BATCH, target_rate=0.25), ACTIONS)

OBS = jnp.zeros((1, FRAMES, FEATURES), jnp.uint8)

init = jax.jit(LINEAR.init)
update = jax.jit(LINEAR.update)
loss = jax.jit(LINEAR.loss)
gradient = jax.jit(jax.grad(LINEAR.loss, has_aux=True))


def random_batch(seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(
        obs=rng.integers(0, 2, (BATCH, FRAMES, FEATURES)).astype(np.uint8),
        action=rng.integers(0, ACTIONS, BATCH).astype(np.int32),
        reward=rng.normal(size=BATCH).astype(np.float32) * 2,
        discount=(rng.random(BATCH) < 0.7).astype(np.float32) * 0.9,
        next_obs=rng.integers(0, 2, (BATCH, FRAMES, FEATURES)).astype(np.uint8),
    )


def values(params, obs: np.ndarray) -> np.ndarray:
    layer = params["params"]["Linear_0"]
    return obs.reshape(len(obs), -1) @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])


def two_learners():
    """Online and target parameters that disagree about the best action."""
    online = init(jax.random.key(0), OBS).params
    return online, jax.tree.map(jnp.negative, online)


def aims(online, target, batch: Batch) -> np.ndarray:
    best = values(online, batch.next_obs).argmax(axis=1)
    return batch.reward + batch.discount * values(target, batch.next_obs)[range(BATCH), best]


def test_a_row_of_weight_zero_adds_nothing_and_the_mean_is_over_all():
    batch, (online, target) = random_batch(), two_learners()
    half = (np.arange(BATCH) < BATCH // 2).astype(np.float32)
    parts = [loss(online, target, batch.replace(weight=w))[0] for w in (half, 1 - half)]
    assert min(parts) > 0
    np.testing.assert_allclose(sum(parts), loss(online, target, batch)[0], rtol=1e-5)


def test_the_loss_is_huber_of_the_double_q_error():
    batch, (online, target) = random_batch(), two_learners()
    now = values(online, batch.obs)[range(BATCH), batch.action]
    error = aims(online, target, batch) - now
    size = np.abs(error)
    best = batch.reward + batch.discount * values(target, batch.next_obs).max(axis=1)
    assert np.abs(best - aims(online, target, batch)).max() > 0.1, "double Q must matter here"
    assert (size > 1).any(), "both parts of the loss must be met"
    assert (size < 1).any(), "both parts of the loss must be met"
    expected = np.where(size <= 1, 0.5 * error**2, size - 0.5).mean()
    found, q_mean = loss(online, target, batch)
    assert found == pytest.approx(expected, rel=1e-5)
    assert q_mean == pytest.approx(now.mean(), rel=1e-5)


def test_the_squared_loss_has_no_linear_part():
    batch, (online, target) = random_batch(), two_learners()
    error = aims(online, target, batch) - values(online, batch.obs)[range(BATCH), batch.action]
    assert (np.abs(error) > 1).any()
    squared = DQN(DQNConfig(hidden=(), loss="squared"), ACTIONS)
    found, _ = jax.jit(squared.loss)(online, target, batch)
    assert found == pytest.approx(0.5 * (error**2).mean(), rel=1e-5)


def test_the_gradient_flows_through_the_taken_action_alone():
    batch, (online, target) = random_batch(), two_learners()
    now = values(online, batch.obs)[range(BATCH), batch.action]
    slope = -np.clip(aims(online, target, batch) - now, -1, 1) / BATCH
    expected = np.zeros((FRAMES * FEATURES, ACTIONS))
    for row, action, each in zip(batch.obs.reshape(BATCH, -1), batch.action, slope, strict=True):
        expected[:, action] += each * row
    grads, _ = gradient(online, target, batch)
    np.testing.assert_allclose(grads["params"]["Linear_0"]["kernel"], expected, atol=1e-6)


def test_nothing_after_a_termination_counts():
    batch, (online, target) = random_batch(), two_learners()
    ended = batch.replace(discount=np.zeros_like(batch.discount))
    elsewhere = ended.replace(next_obs=1 - ended.next_obs)
    assert loss(online, target, ended)[0] == loss(online, target, elsewhere)[0]
    assert loss(online, target, batch)[0] != loss(online, target, ended)[0]


def test_the_target_follows_by_its_rate():
    before = init(jax.random.key(0), OBS)
    after, metrics = update(before, random_batch(), jax.random.key(0))
    assert after.updates == 1
    mixed = jax.tree.map(lambda p, t: 0.25 * p + 0.75 * t, after.params, before.target)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), after.target, mixed)
    assert not jax.tree.all(jax.tree.map(np.array_equal, after.params, before.params))
    assert all(np.isfinite(x) and x.shape == () for x in jax.tree.leaves(metrics))


def test_actions_are_greedy_without_exploration_and_uniform_with_it():
    learner = init(jax.random.key(0), OBS)
    obs = jnp.asarray(np.random.default_rng(0).integers(0, 2, (3000, FRAMES, FEATURES)), jnp.uint8)
    act = jax.jit(LINEAR.act)
    greedy, q = act(learner.params, obs, jax.random.key(1), explore=0.0)
    np.testing.assert_allclose(q, values(learner.params, np.asarray(obs)), atol=1e-5)
    np.testing.assert_array_equal(greedy, np.asarray(q).argmax(axis=1))
    anything, _ = act(learner.params, obs, jax.random.key(1), explore=1.0)
    assert np.abs(np.bincount(anything, minlength=ACTIONS) - 1000).max() < 110


# A network of the world's own ------------------------------------------------------------------


def masked_network(config) -> Network:
    """Values by a table (features, actions); obs["allowed"] says which of them there are."""
    return Network(
        init=lambda key, obs: jnp.zeros((FEATURES, ACTIONS)),
        apply=lambda params, obs: jnp.where(obs["allowed"], obs["state"] @ params, NOT_ALLOWED),
    )


MASKED = DQN(DQNConfig(), ACTIONS, Networks(q_values=masked_network, masked=True))


def masked_obs(count: int) -> dict:
    rng = np.random.default_rng(0)
    allowed = rng.random((count, ACTIONS)) < 0.5
    allowed[np.arange(count), rng.integers(0, ACTIONS, count)] = True
    state = rng.normal(size=(count, FEATURES)).astype(np.float32)
    return {"state": jnp.asarray(state), "allowed": jnp.asarray(allowed)}


@pytest.mark.parametrize("explore", [0.0, 0.5, 1.0])
def test_only_allowed_actions_are_taken_however_much_is_explored(explore):
    obs = masked_obs(3000)
    params = jax.random.normal(jax.random.key(0), (FEATURES, ACTIONS))
    action, q = jax.jit(MASKED.act)(params, obs, jax.random.key(1), explore=explore)
    assert np.asarray(obs["allowed"])[np.arange(3000), action].all()
    assert (np.asarray(action) != np.asarray(q).argmax(axis=1)).any() == (explore > 0)


def test_exploration_is_uniform_among_what_is_allowed():
    q = jnp.where(jnp.asarray([1, 0, 1, 1, 0]) > 0, 1.0, NOT_ALLOWED)
    action = epsilon_greedy(jnp.tile(q, (6000, 1)), jax.random.key(0), 1.0, masked=True)
    counts = np.bincount(action, minlength=5)
    np.testing.assert_array_equal(counts[[1, 4]], 0)
    assert np.abs(counts[[0, 2, 3]] - 2000).max() < 150
    blocked = epsilon_greedy(jnp.full((4, 5), NOT_ALLOWED), jax.random.key(0), 1.0, masked=True)
    assert ((blocked >= 0) & (blocked < 5)).all(), "something must be chosen"


def test_values_of_what_is_not_allowed_do_not_reach_the_loss():
    learner = MASKED.init(jax.random.key(0), masked_obs(1))
    obs, next_obs = masked_obs(BATCH), masked_obs(2 * BATCH)
    next_obs = jax.tree.map(lambda x: x[BATCH:], next_obs)
    action = jnp.asarray(obs["allowed"]).argmax(axis=1)
    batch = Batch(obs, action, jnp.ones(BATCH), jnp.full(BATCH, 0.9), next_obs)
    for _ in range(3):
        learner, metrics = jax.jit(MASKED.update)(learner, batch, jax.random.key(0))
        assert abs(metrics.loss) < 10
    assert metrics.loss < 0.5, "and it is learned"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hidden": (8, 0)}, r"hidden=\(8, 0\); it must be at least 1"),
        ({"loss": "l2"}, "loss='l2' is not known; known: huber, squared"),
        ({"batch_size": 0}, "batch_size=0; it must be at least 1"),
        ({"gamma": 1.5}, r"gamma=1.5; it must be in \[0, 1\]"),
        ({"learning_rate": float("nan")}, "learning_rate=nan; it must be a finite number"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        DQNConfig(**wrong)


def test_widths_read_from_a_file_are_as_good_as_a_tuple():
    assert DQNConfig(hidden=[8, 8]) == DQNConfig(hidden=(8, 8))
    one, other = (DQN.make(DQNConfig(hidden=w), SPEC, Networks()) for w in ([8], (8,)))
    assert hash(one) == hash(other)
    assert one == other
