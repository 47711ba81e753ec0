"""Layers: where their parameters start, and the equations they compute."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.nn.layers import MLP, Linear, NoisyLinear, layer_noise, symmetric_uniform

KEY = jax.random.key(0)


def leaves(variables: dict) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf, np.float64) for name, leaf in variables["params"].items()}


def test_symmetric_uniform_fills_its_bounds_around_zero():
    values = np.asarray(symmetric_uniform(0.25)(KEY, (400, 500)), np.float64)
    assert values.min() >= -0.25
    assert values.max() <= 0.25
    np.testing.assert_allclose([values.min(), values.max()], [-0.25, 0.25], atol=1e-4)
    assert abs(values.mean()) < 4 * 0.25 / math.sqrt(3 * values.size)
    np.testing.assert_allclose(values.var(), 0.25**2 / 3, rtol=0.01)


@pytest.mark.parametrize(
    ("layer", "bound"),
    [(Linear(80), 1 / math.sqrt(625)), (NoisyLinear(80), math.sqrt(3 / 625))],
    ids=["linear", "noisy"],
)
def test_kernel_and_bias_start_in_the_bounds_of_the_original(layer, bound):
    params = leaves(jax.jit(layer.init)(KEY, jnp.zeros((1, 625))))
    for name in ("kernel", "bias"):
        size = np.abs(params[name])
        assert size.max() <= bound * (1 + 1e-6)
        assert size.max() > 0.95 * bound
        assert abs(params[name].mean()) < 4.5 * bound / math.sqrt(3 * size.size)
    assert params["kernel"].shape == (625, 80)
    assert not np.array_equal(params["kernel"].ravel()[:80], params["bias"]), "own keys"


def test_noise_starts_at_one_constant_size():
    params = leaves(NoisyLinear(4, sigma=0.25).init(KEY, jnp.zeros((1, 3))))
    assert (params["sigma_kernel"] == 0.25).all()
    assert (params["sigma_bias"] == 0.25).all()
    assert params["sigma_kernel"].shape == (3, 4)
    default = leaves(NoisyLinear(4).init(KEY, jnp.zeros((1, 3))))
    np.testing.assert_allclose(default["sigma_bias"], 0.017, rtol=1e-6)


def test_a_linear_layer_is_x_w_plus_b():
    layer = Linear(4)
    x = jax.random.normal(KEY, (5, 3))
    variables = jax.jit(layer.init)(KEY, x)
    p = leaves(variables)
    np.testing.assert_allclose(
        layer.apply(variables, x), np.asarray(x) @ p["kernel"] + p["bias"], atol=1e-6
    )


def test_a_noisy_layer_perturbs_weights_by_sigma_times_noise():
    layer = NoisyLinear(4)
    x = jax.random.normal(KEY, (2, 5, 3))
    variables = jax.jit(layer.init)(KEY, x)
    sigmas = jax.random.uniform(jax.random.key(5), (4, 4))  # unequal, so that a mix-up shows
    variables = {
        "params": variables["params"] | {"sigma_kernel": sigmas[:3], "sigma_bias": sigmas[3]}
    }
    noise = layer_noise(jax.random.key(1), 3, 4)
    p = leaves(variables)
    kernel = p["kernel"] + p["sigma_kernel"] * np.asarray(noise[0])
    bias = p["bias"] + p["sigma_bias"] * np.asarray(noise[1])
    np.testing.assert_allclose(
        layer.apply(variables, x, noise), np.asarray(x) @ kernel + bias, atol=1e-5
    )


def test_no_noise_means_the_means():
    layer = NoisyLinear(4)
    x = jax.random.normal(KEY, (5, 3))
    variables = jax.jit(layer.init)(KEY, x)
    zero = (jnp.zeros((3, 4)), jnp.zeros(4))
    np.testing.assert_array_equal(layer.apply(variables, x), layer.apply(variables, x, zero))


def test_a_layer_without_sigma_has_no_parameters_for_it():
    x = jnp.ones((1, 3))
    silent, noisy = NoisyLinear(4, sigma=None), NoisyLinear(4)
    variables = silent.init(KEY, x)
    assert set(variables["params"]) == {"kernel", "bias"}
    means = {n: p for n, p in noisy.init(KEY, x)["params"].items() if n in ("kernel", "bias")}
    np.testing.assert_array_equal(silent.apply(variables, x), silent.apply({"params": means}, x))


def test_noise_for_a_layer_that_carries_none_is_refused():
    silent, x = NoisyLinear(4, sigma=None), jnp.ones((1, 3))
    with pytest.raises(ValueError, match="sigma=None makes a layer that carries no noise"):
        silent.init(KEY, x, layer_noise(KEY, 3, 4))


def test_layer_noise_is_standard_normal_with_a_draw_for_every_parameter():
    weight, bias = layer_noise(KEY, 300, 200)
    assert weight.shape == (300, 200)
    assert bias.shape == (200,)
    values = np.concatenate([np.ravel(weight), np.ravel(bias)])
    assert len(np.unique(values)) > 0.99 * len(values), "independent, not factorised"
    assert abs(values.mean()) < 4 / math.sqrt(len(values))
    assert abs(values.var() - 1) < 4 * math.sqrt(2 / len(values))
    assert np.linalg.matrix_rank(np.asarray(weight)) == 200


def test_an_mlp_has_relu_between_its_layers_and_none_after_the_last():
    network = MLP((8, 8, 2))
    x = jax.random.normal(KEY, (64, 3))
    variables = jax.jit(network.init)(KEY, x)
    h = np.asarray(x, np.float64)
    for i in range(3):
        p = leaves({"params": variables["params"][f"Linear_{i}"]})
        h = h @ p["kernel"] + p["bias"]
        h = np.maximum(h, 0) if i < 2 else h
    out = network.apply(variables, x)
    np.testing.assert_allclose(out, h, atol=1e-5)
    assert (np.asarray(out) < 0).any()
