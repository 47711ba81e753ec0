"""The observation normaliser against numpy over all that was seen."""

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.nn.normaliser import LIMIT, make_normaliser, normalise, observe

RNG = np.random.default_rng(0)
ROLLOUTS = [
    {
        "joints": (RNG.normal(size=(7, 4, 3)) * [1, 5, 0.1] + [0, 50, i]).astype(np.float32),
        "mask": RNG.random((7, 4, 2)) < 0.5,
    }
    for i in range(5)
]


def after(rollouts):
    normaliser = make_normaliser(jax.tree.map(lambda x: jnp.asarray(x[0]), rollouts[0]))
    watch = jax.jit(observe)
    for rollout in rollouts:
        normaliser = watch(normaliser, rollout)
    return normaliser


def test_mean_and_variance_are_those_of_everything_seen():
    normaliser = after(ROLLOUTS)
    everything = np.concatenate([r["joints"].reshape(-1, 3) for r in ROLLOUTS]).astype(np.float64)
    assert normaliser.count == 140
    np.testing.assert_allclose(normaliser.mean["joints"], everything.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(normaliser.var["joints"], everything.var(0), rtol=1e-3)


def test_floating_leaves_are_centred_and_scaled_and_others_left_alone():
    normaliser = after(ROLLOUTS[:1])
    seen = normalise(normaliser, ROLLOUTS[0])
    np.testing.assert_allclose(seen["joints"].mean((0, 1)), 0.0, atol=1e-4)
    np.testing.assert_allclose(seen["joints"].std((0, 1)), 1.0, rtol=1e-3)
    assert seen["mask"] is ROLLOUTS[0]["mask"]
    far = {"joints": jnp.full((1, 3), 1e9), "mask": ROLLOUTS[0]["mask"][0]}
    np.testing.assert_array_equal(normalise(normaliser, far)["joints"], LIMIT)


def test_one_that_has_seen_nothing_changes_nothing_within_the_limit():
    fresh = make_normaliser(jax.tree.map(lambda x: jnp.asarray(x[0]), ROLLOUTS[0]))
    x = {"joints": jnp.asarray([[1.0, -2.0, 0.5]]), "mask": jnp.ones((1, 2), bool)}
    np.testing.assert_allclose(normalise(fresh, x)["joints"], x["joints"], rtol=1e-5)
    assert normalise(None, x) is x
    assert observe(None, x) is None


def test_what_is_not_finite_teaches_nothing():
    good = after(ROLLOUTS[:2])
    broken = {**ROLLOUTS[2], "joints": ROLLOUTS[2]["joints"].copy()}
    broken["joints"][0, 0, 1] = np.nan
    new = observe(good, broken)
    assert new.mean["joints"][1] == good.mean["joints"][1]
    assert new.var["joints"][1] == good.var["joints"][1]
    assert new.mean["joints"][2] != good.mean["joints"][2], "the others are learned from"
