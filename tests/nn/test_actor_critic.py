"""Actor-critic networks: what they may see, where they start, and what they can remember."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from worldloom.nn import actor_critic
from worldloom.nn.actor_critic import (
    ActorCritic,
    Convolution,
    GridActorCritic,
    GridInputs,
    inside,
    point_action_mask,
)
from worldloom.nn.distributions import Categorical, DiagonalGaussian

KEY = jax.random.key(0)
OBS = jax.random.normal(jax.random.key(1), (16, 2, 3))


def test_a_discrete_policy_starts_near_uniform():
    network = ActorCritic(num_actions=4, hidden=(32, 32))
    params = jax.jit(network.init)(KEY, OBS)
    distribution, value = jax.jit(network.apply)(params, OBS)
    assert isinstance(distribution, Categorical)
    np.testing.assert_allclose(distribution.probs, 0.25, atol=0.01)
    assert value.shape == (16,)
    assert value.std() > 0.1, "the value's last layer is not small"


def test_hidden_weights_start_orthogonal_with_the_gain_of_relu():
    params = jax.jit(ActorCritic(num_actions=4, hidden=(32, 32)).init)(KEY, OBS)["params"]
    kernel = np.asarray(params["policy_1"]["kernel"])
    np.testing.assert_allclose(kernel.T @ kernel, 2 * np.eye(32), atol=1e-4)
    assert (np.asarray(params["policy_1"]["bias"]) == 0).all()


def test_a_continuous_policy_has_a_spread_of_its_own():
    network = ActorCritic(action_size=3, hidden=(8,), initial_log_std=-0.5)
    params = jax.jit(network.init)(KEY, OBS)
    distribution, _ = jax.jit(network.apply)(params, OBS)
    assert isinstance(distribution, DiagonalGaussian)
    assert distribution.mean.shape == (16, 3)
    np.testing.assert_allclose(distribution.log_std, -0.5)
    assert np.abs(distribution.mean).max() < 0.05
    assert params["params"]["log_std"].shape == (3,)


@pytest.mark.parametrize("shared", [True, False])
def test_torsos_are_shared_only_where_asked_for(shared):
    network = ActorCritic(num_actions=4, hidden=(8,), shared_torso=shared)
    params = jax.jit(network.init)(KEY, OBS)
    slope = jax.jit(jax.grad(lambda p: network.apply(p, OBS)[1].sum()))(params)["params"]
    policy = {name: slope[name] for name in slope if name.startswith(("policy", "torso"))}
    moved = {name for name, x in policy.items() if np.abs(x["kernel"]).max() > 0}
    assert moved == ({"torso_0"} if shared else set())


def test_what_the_critic_alone_sees_does_not_reach_the_policy():
    network = ActorCritic(action_size=2, hidden=(8,), value_hidden=(16, 8))
    wide = jax.random.normal(KEY, (16, 10))
    params = jax.jit(network.init)(KEY, OBS, critic_obs=wide)
    apply = jax.jit(network.apply)
    one, value = apply(params, OBS, critic_obs=wide)
    two, other = apply(params, OBS, critic_obs=wide + 1)
    np.testing.assert_array_equal(one.mean, two.mean)
    assert not np.array_equal(value, other)
    assert params["params"]["value_0"]["kernel"].shape == (10, 16)


def test_networks_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="give num_actions for a discrete choice or action_size"):
        ActorCritic()
    with pytest.raises(ValueError, match="not both"):
        ActorCritic(num_actions=2, action_size=2)
    with pytest.raises(ValueError, match="activation='sin'; use one of tanh, relu"):
        ActorCritic(num_actions=2, activation="sin")
    shared = ActorCritic(num_actions=2, shared_torso=True)
    with pytest.raises(ValueError, match="shared_torso=False"):
        jax.eval_shape(lambda: shared.init(KEY, OBS, critic_obs=OBS))
    with pytest.raises(ValueError, match="a mask is for discrete actions"):
        jax.eval_shape(lambda: ActorCritic(action_size=2).init(KEY, OBS, jnp.ones((16, 2), bool)))


# Grids -----------------------------------------------------------------------------------------

SHAPE, OPERATIONS = (5, 4), 6
NETWORK = GridActorCritic(OPERATIONS, SHAPE, channels=8, context=16, anywhere=(4,), nowhere=(5,))


def random_inputs(count, seed=0, shape=SHAPE, operations=OPERATIONS) -> GridInputs:
    rng = np.random.default_rng(seed)

    def grid():
        size = rng.integers(1, np.asarray(shape) + 1, (count, 2)).astype(np.int32)
        cells = rng.integers(0, 10, (count, *shape)) * np.asarray(inside(size, shape))
        return jnp.asarray(cells, jnp.int8), jnp.asarray(size)

    return GridInputs(
        *grid(),
        *grid(),
        *grid(),
        jnp.asarray(rng.random((count, 2)), jnp.float32),
        jnp.asarray(rng.random((count, operations)) < 0.7).at[:, 0].set(True),
    )


def test_a_convolution_as_one_matrix_is_a_convolution(monkeypatch):
    layer, x = Convolution(7), jax.random.normal(KEY, (3, *SHAPE, 5))
    params = jax.jit(layer.init)(KEY, x)
    params["params"]["bias"] += jnp.arange(7.0)
    one = jax.jit(layer.apply)(params, x)
    monkeypatch.setattr(actor_critic, "SMALL_GRID", 0)
    two = jax.jit(lambda *args: layer.apply(*args))(params, x)
    np.testing.assert_allclose(one, two, atol=1e-5)


@pytest.fixture(scope="module")
def grids():
    """Parameters moved away from their small start, and the compiled network."""
    params = jax.jit(NETWORK.init)(KEY, random_inputs(2))
    params["params"]["policy"]["kernel"] *= 100.0
    return params, jax.jit(NETWORK.apply)


def test_flat_actions_are_operation_row_and_column(grids):
    params, apply = grids
    inputs = random_inputs(32)
    distribution, value = apply(params, inputs)
    assert value.shape == (32,)
    probs = np.asarray(distribution.probs).reshape(32, OPERATIONS, *SHAPE)
    area = np.asarray(inside(inputs.size, SHAPE))
    allowed = np.asarray(inputs.operation_mask)
    for world in range(32):
        for operation in range(OPERATIONS):
            cells = area[world] if operation < 4 else np.ones(SHAPE, bool)
            if operation == 5:
                cells = np.arange(20).reshape(SHAPE) == 0
            expected = cells & allowed[world, operation]
            np.testing.assert_array_equal(probs[world, operation] > 0, expected)


def test_the_mask_of_points_is_that_of_a_plain_loop():
    inputs = random_inputs(8, seed=1)
    mask = np.asarray(point_action_mask(inputs.operation_mask, inputs.size, SHAPE))
    for world, (height, width) in enumerate(np.asarray(inputs.size)):
        for flat in range(OPERATIONS * 20):
            operation, row, column = flat // 20, flat // 4 % 5, flat % 4
            inside_area = row < height and column < width
            assert mask[world, flat] == (inputs.operation_mask[world, operation] and inside_area)


def test_a_logit_belongs_to_its_cell(grids):
    # With the context silenced, a change of one cell reaches its neighbours and nothing else.
    params, apply = grids
    params = jax.tree.map(jnp.copy, params)
    params["params"]["tell"] = jax.tree.map(jnp.zeros_like, params["params"]["tell"])
    inputs = random_inputs(1)
    full = jnp.full((1, 2), 5, jnp.int32).at[:, 1].set(4)
    inputs = inputs._replace(size=full, input_size=full)
    changed = inputs._replace(grid=inputs.grid.at[0, 0, 3].add(1) % 10)
    one, two = (np.asarray(apply(params, x)[0].logits) for x in (inputs, changed))
    moved = np.abs(one - two).reshape(OPERATIONS, *SHAPE).max(axis=0) > 1e-6
    near = np.zeros(SHAPE, bool)
    near[:3, 1:] = True  # two layers of 3 x 3 reach two cells
    assert moved[0, 3]
    assert not (moved & ~near).any()


@pytest.mark.parametrize(
    "name", ["grid", "input", "clipboard", "size", "input_size", "clipboard_size", "features"]
)
def test_every_input_matters(grids, name):
    params, apply = grids
    inputs = random_inputs(64)
    old = getattr(inputs, name)
    new = (old + 1) % 10 if old.ndim == 3 else old - (1 if old.dtype == jnp.int32 else 0.5)
    one, two = apply(params, inputs), apply(params, inputs._replace(**{name: new}))
    assert np.abs(one[0].logits - two[0].logits).max() > 1e-3
    assert np.abs(one[1] - two[1]).max() > 1e-3


def test_a_hundred_pairs_can_be_remembered():
    shape, count = (5, 5), 100
    network = GridActorCritic(12, shape)
    inputs = random_inputs(count, seed=3, shape=shape, operations=12)
    full = jnp.full((count, 2), 5, jnp.int32)
    # Working grids that differ from one another in a single cell are the hard case.
    inputs = inputs._replace(
        size=full,
        input_size=full,
        operation_mask=jnp.ones((count, 12), bool),
        input=inputs.input.at[50:].set(inputs.input[:50]),
    )
    inputs = inputs._replace(grid=inputs.input.at[50:, 2, 2].add(1) % 10)
    answers = jnp.asarray(np.random.default_rng(4).integers(0, 300, count))
    optimiser = optax.adam(3e-3)

    @jax.jit
    def memorise(key):
        def one(carry, _):
            params, opt_state = carry
            grads = jax.grad(lambda p: -network.apply(p, inputs)[0].log_prob(answers).mean())(
                params
            )
            steps, opt_state = optimiser.update(grads, opt_state)
            return (optax.apply_updates(params, steps), opt_state), None

        params = network.init(key, inputs)
        params = jax.lax.scan(one, (params, optimiser.init(params)), None, 120)[0][0]
        return network.apply(params, inputs)[0].probs

    probs = np.asarray(memorise(KEY))
    assert (probs.argmax(-1) == answers).all()
    assert probs[range(count), answers].min() > 0.5


def test_a_grid_of_another_canvas_is_refused():
    with pytest.raises(ValueError, match=r"made for grids of \(5, 4\), got \(5, 5\)"):
        NETWORK.init(KEY, random_inputs(1, shape=(5, 5)))


def test_the_last_layer_is_small():
    params = jax.jit(NETWORK.init)(KEY, random_inputs(2))["params"]
    assert np.linalg.norm(params["policy"]["kernel"]) < 0.01 * math.sqrt(OPERATIONS) + 1e-6
