"""The implicit quantile network: its formula, its size, and the two ways to give it levels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.nn.iqn import IQNJAX

KEY = jax.random.key(0)
sample_noise = jax.jit(IQNJAX.sample_noise, static_argnums=0)
BATCH, FEATURES, ACTIONS, LEVELS, HIDDEN = 6, 10, 4, 5, 16


@pytest.fixture(scope="module")
def network():
    return IQNJAX(ACTIONS, HIDDEN)


@pytest.fixture(scope="module")
def variables(network):
    return jax.jit(network.init)(KEY, jnp.zeros((1, FEATURES)), jnp.zeros(LEVELS))


@pytest.fixture(scope="module")
def inputs():
    """States, levels of their own for each, and a draw of the noise."""
    x = jax.random.normal(jax.random.key(1), (BATCH, FEATURES))
    taus = jax.random.uniform(jax.random.key(2), (BATCH, LEVELS))
    return x, taus, sample_noise(IQNJAX(ACTIONS, HIDDEN), jax.random.key(3))


def count(variables) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


def by_formula(variables, x, taus, noise=None) -> np.ndarray:
    """The network in numpy and float64, as the paper and the original write it."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])

    def dense(name, h):
        kernel, bias = p[name]["kernel"], p[name]["bias"]
        if noise is not None and name in noise:
            kernel = kernel + p[name]["sigma_kernel"] * np.asarray(noise[name][0])
            bias = bias + p[name]["sigma_bias"] * np.asarray(noise[name][1])
        return h @ kernel + bias

    x, taus = np.asarray(x, np.float64), np.asarray(taus, np.float64)
    state = np.maximum(dense("head1", x), 0)[:, None]
    cosines = np.cos(np.pi * np.arange(1, 65) * taus[..., None])
    h = state * np.maximum(dense("cos_embedding", cosines), 0)
    h = np.maximum(dense("ff_1", h), 0)
    advantage, value = dense("advantage", h), dense("value", h)
    return value + advantage - advantage.mean(axis=-1, keepdims=True)


def test_cosines_run_from_one_to_sixty_four(network):
    taus = jnp.array([[0.0, 0.25, 0.5], [0.75, 0.9, 1.0]])
    cosines = network.apply({}, taus, method=IQNJAX.calc_cos)
    assert cosines.shape == (2, 3, 64)
    expected = np.cos(np.pi * np.arange(1, 65) * np.asarray(taus, np.float64)[..., None])
    np.testing.assert_allclose(cosines, expected, atol=3e-5)
    np.testing.assert_array_equal(cosines[0, 0], np.ones(64))
    np.testing.assert_allclose(cosines[0, 2, :4], [0, -1, 0, 1], atol=1e-6)


@pytest.mark.parametrize("noisy", [False, True], ids=["means", "noisy"])
def test_quantiles_follow_the_formula(network, variables, inputs, noisy):
    x, taus, noise = inputs
    noise = noise if noisy else None
    quantiles = jax.jit(network.apply)(variables, x, taus, noise)
    assert quantiles.shape == (BATCH, LEVELS, ACTIONS)
    np.testing.assert_allclose(quantiles, by_formula(variables, x, taus, noise), atol=1e-5)


@pytest.mark.parametrize("noisy", [False, True], ids=["means", "noisy"])
@pytest.mark.parametrize("levels", ["shared", "own"])
def test_values_are_the_mean_over_the_quantiles(network, variables, inputs, levels, noisy):
    x, taus, noise = inputs
    taus = taus[0] if levels == "shared" else taus
    noise = noise if noisy else None
    q = network.apply(variables, x, taus, noise, method=IQNJAX.get_qvalues)
    assert q.shape == (BATCH, ACTIONS)
    np.testing.assert_allclose(q, network.apply(variables, x, taus, noise).mean(axis=1), atol=1e-6)


def test_shared_levels_equal_own_levels_that_are_equal(network, variables, inputs):
    x, taus, noise = inputs
    shared = network.apply(variables, x, taus[0], noise)
    own = network.apply(variables, x, jnp.tile(taus[0], (BATCH, 1)), noise)
    np.testing.assert_allclose(shared, own, atol=1e-6)


def test_every_row_uses_its_own_levels(network, variables, inputs):
    x, taus, _ = inputs
    before = network.apply(variables, x, taus)
    after = network.apply(variables, x, taus.at[2].set(0.5))
    changed = np.abs(np.asarray(after - before)).max(axis=(1, 2)) > 0
    assert changed.tolist() == [row == 2 for row in range(BATCH)]


def test_only_differences_between_advantages_matter(network, variables, inputs):
    x, taus, _ = inputs
    shifted = jax.tree.map(jnp.copy, variables)
    shifted["params"]["advantage"]["bias"] += 7.0
    np.testing.assert_allclose(
        network.apply(shifted, x, taus), network.apply(variables, x, taus), atol=1e-5
    )


def test_the_network_of_the_original_has_300760_parameters():
    def parameters(noisy):
        network = IQNJAX(4, 250, noisy=noisy)
        shapes = jax.eval_shape(network.init, KEY, jnp.zeros((1, 625)), jnp.zeros(12))
        return count(shapes)

    noise = 250 * 250 + 250 + 250 * 4 + 4 + 250 + 1
    assert parameters(noisy=True) == 300_760
    assert parameters(noisy=False) == 300_760 - noise


def test_a_network_without_noise_equals_the_means_of_one_with_it(variables, inputs):
    x, taus, _ = inputs
    silent = IQNJAX(ACTIONS, HIDDEN, noisy=False)
    means = {
        layer: {name: leaf for name, leaf in params.items() if not name.startswith("sigma")}
        for layer, params in variables["params"].items()
    }
    np.testing.assert_array_equal(
        silent.apply({"params": means}, x, taus),
        IQNJAX(ACTIONS, HIDDEN).apply(variables, x, taus),
    )


def test_noise_has_a_draw_for_every_noisy_parameter_and_layers_share_none(network, variables):
    noise = sample_noise(network, KEY)
    assert set(noise) == {"ff_1", "advantage", "value"}
    for name, (weight, bias) in noise.items():
        assert weight.shape == variables["params"][name]["sigma_kernel"].shape
        assert bias.shape == variables["params"][name]["sigma_bias"].shape
    values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noise)])
    assert len(np.unique(values)) == len(values)


def test_gradients_reach_every_parameter_when_noise_is_on(network, variables, inputs):
    x, taus, noise = inputs

    def total(variables):
        return (network.apply(variables, x, taus, noise) ** 2).sum()

    gradients = jax.jit(jax.grad(total))(variables)
    for path, leaf in jax.tree.leaves_with_path(gradients):
        assert np.isfinite(leaf).all(), path
        assert np.any(np.asarray(leaf) != 0), path
