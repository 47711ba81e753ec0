"""Distributions against their formulas in numpy, and what a mask must guarantee."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core import draws
from worldloom.nn.distributions import Categorical, DiagonalGaussian

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 5)).astype(np.float32) * 3
MASK = np.asarray([[1, 0, 1, 1, 0]] * 5 + [[0, 0, 0, 1, 0]], bool)


def softmax(logits, mask=True):
    weights = np.exp(logits - logits.max(-1, keepdims=True)) * mask
    return weights / weights.sum(-1, keepdims=True)


def counts(distribution, times=40_000):
    sample = jax.jit(jax.vmap(lambda key: distribution.sample(key)))
    found = sample(jax.random.split(jax.random.key(1), times))
    assert found.dtype == jnp.int32
    return np.stack([(found == i).mean(0) for i in range(5)], axis=-1)


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_a_categorical_is_the_softmax_of_its_logits(mask):
    distribution, probs = Categorical(LOGITS, mask), softmax(LOGITS, 1 if mask is None else mask)
    np.testing.assert_allclose(distribution.probs, probs, atol=1e-6)
    np.testing.assert_array_equal(distribution.mode(), probs.argmax(-1))
    action = jnp.asarray(probs.argmax(-1))
    np.testing.assert_allclose(
        distribution.log_prob(action), np.log(probs[range(6), action]), atol=1e-6
    )
    terms = np.where(probs > 0, probs * np.log(np.maximum(probs, 1e-30)), 0)
    np.testing.assert_allclose(distribution.entropy(), -terms.sum(-1), atol=1e-5)
    np.testing.assert_allclose(counts(distribution), probs, atol=0.012)


def test_masked_actions_have_no_probability_at_all_and_are_never_drawn():
    distribution = Categorical(jnp.asarray(LOGITS) + 1000.0 * ~MASK, MASK)
    assert (np.asarray(distribution.probs)[~MASK] == 0.0).all()
    assert (counts(distribution)[~MASK] == 0.0).all()
    assert MASK[range(6), distribution.mode()].all()
    assert (np.asarray(distribution.log_prob(jnp.full(6, 1))) < -1e29).all()


@pytest.mark.parametrize("shown", [0.0, 1.0 - 2.0**-24], ids=["smallest", "largest"])
def test_a_lone_allowed_action_is_drawn_whatever_the_dice(monkeypatch, shown):
    monkeypatch.setattr(draws, "uniform", lambda key, shape, first=0: jnp.full(shape, shown))
    mask = np.asarray([[False, True, False]])
    assert Categorical(jnp.zeros((1, 3)), mask).sample(jax.random.key(0)) == 1


def test_where_nothing_is_allowed_everything_is():
    none = Categorical(LOGITS, np.zeros_like(MASK))
    np.testing.assert_allclose(none.probs, softmax(LOGITS), atol=1e-6)
    assert np.isfinite(none.entropy()).all()


def test_gradients_through_a_mask_are_finite_and_leave_masked_logits_alone():
    action = jnp.asarray([0, 2, 3, 0, 2, 3])

    def objective(logits):
        distribution = Categorical(logits, MASK)
        log_prob = distribution.log_prob(action)
        terms = jnp.exp(log_prob - 1.0), distribution.entropy()
        return sum(term.sum() for term in terms)

    slope = np.asarray(jax.jit(jax.grad(objective))(jnp.asarray(LOGITS)))
    assert np.isfinite(slope).all()
    assert (slope[~MASK] == 0.0).all()
    assert (np.abs(slope[:5][MASK[:5]]) > 0).all()


def test_batches_may_have_any_number_of_axes():
    flat, deep = (
        Categorical(LOGITS, MASK),
        Categorical(LOGITS.reshape(2, 3, 5), MASK.reshape(2, 3, 5)),
    )
    action = flat.mode()
    np.testing.assert_array_equal(deep.mode(), action.reshape(2, 3))
    np.testing.assert_allclose(
        deep.log_prob(action.reshape(2, 3)), flat.log_prob(action).reshape(2, 3)
    )
    assert deep.sample(jax.random.key(0)).shape == (2, 3)
    assert deep.entropy().shape == (2, 3)


MEAN = jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32)
LOG_STD = jnp.asarray(RNG.normal(size=3), jnp.float32) * 0.5


def test_a_gaussian_is_a_product_of_normal_densities():
    distribution = DiagonalGaussian(MEAN, LOG_STD)
    action = jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32)
    std = np.exp(LOG_STD)
    density = np.exp(-0.5 * ((action - MEAN) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(
        distribution.log_prob(action), np.log(density).sum(-1), rtol=1e-5, atol=1e-5
    )
    entropy = (0.5 * np.log(2 * np.pi * np.e) + LOG_STD).sum()
    np.testing.assert_allclose(distribution.entropy(), np.full(4, entropy), rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(), MEAN)


def test_gaussian_draws_have_its_mean_and_spread():
    keys = jax.random.split(jax.random.key(0), 40_000)
    drawn = np.asarray(jax.jit(jax.vmap(DiagonalGaussian(MEAN, LOG_STD).sample))(keys))
    np.testing.assert_allclose(drawn.mean(0), MEAN, atol=0.04)
    np.testing.assert_allclose(drawn.std(0), np.broadcast_to(np.exp(LOG_STD), (4, 3)), rtol=0.02)
