"""Work for the few worlds that need it gives what working on all and choosing would give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core.sparse import lift, update_chosen

SIZE = 13


def grow(args):
    """Uses both arguments; rows are told apart."""
    x, y = args
    return {"sum": x + 10 * y, "rows": jnp.stack([y, -y], axis=-1)}


@pytest.fixture(scope="module")
def batch():
    x = jnp.arange(SIZE) ** 2
    y = jnp.arange(SIZE) + 100
    out = {"sum": -x, "rows": jnp.full((SIZE, 2), 7)}
    return out, (x, y)


# Dividing the batch and not, larger than it, and one row at a time.
@pytest.mark.parametrize("chunk", [1, 4, 5, 13, 64])
def test_chosen_rows_are_replaced_and_no_others(batch, chunk):
    out, args = batch
    update = jax.jit(lambda chosen: update_chosen(chosen, grow, out, args, chunk))
    rng = np.random.default_rng(0)
    some = [rng.random(SIZE) < share for share in (0.1, 0.3, 0.5, 0.8)]
    edges = [np.arange(SIZE) == i for i in (0, SIZE - 1)]
    for chosen in [np.zeros(SIZE, bool), np.ones(SIZE, bool), *edges, *some]:
        new = grow(args)
        found = update(jnp.asarray(chosen))
        np.testing.assert_array_equal(found["sum"], np.where(chosen, new["sum"], out["sum"]))
        rows = np.where(chosen[:, None], new["rows"], out["rows"])
        np.testing.assert_array_equal(found["rows"], rows)


def test_nothing_is_computed_when_none_is_chosen(batch):
    out, args = batch
    calls = []

    def counted(rows):
        jax.debug.callback(lambda _: calls.append(1), rows[0])
        return grow(rows)

    for chosen, least in ((jnp.zeros(SIZE, bool), 0), (jnp.arange(SIZE) < 3, 1)):
        calls.clear()
        jax.block_until_ready(update_chosen(chosen, counted, out, args, 4))
        jax.effects_barrier()
        assert len(calls) == least


# lift ------------------------------------------------------------------------------------------


@pytest.fixture
def lifted():
    """A batched function that records the batches it is traced for."""
    shapes = []

    def scaled(items, shared):
        shapes.append(items["x"].shape)
        return {"y": items["x"] * shared + items["z"][:, None]}

    return lift(scaled), shapes


def test_without_vmap_a_lifted_function_takes_one_item(lifted):
    function, shapes = lifted
    out = function({"x": jnp.arange(3.0), "z": jnp.float32(1)}, jnp.float32(2))
    np.testing.assert_array_equal(out["y"], [1, 3, 5])
    assert set(shapes) == {(1, 3)}


def test_under_vmap_a_lifted_function_sees_the_batch(lifted):
    function, shapes = lifted
    x, z = jnp.arange(12.0).reshape(4, 3), jnp.arange(4.0)
    out = jax.vmap(function, (0, None))({"x": x, "z": z}, jnp.float32(2))
    np.testing.assert_array_equal(out["y"], x * 2 + z[:, None])
    assert shapes[-1] == (4, 3)


def test_under_two_vmaps_a_lifted_function_sees_one_flat_batch(lifted):
    function, shapes = lifted
    x, z = jnp.arange(30.0).reshape(2, 5, 3), jnp.arange(10.0).reshape(2, 5)
    twice = jax.vmap(jax.vmap(function, (0, None)), (0, None))
    out = twice({"x": x, "z": z}, jnp.float32(2))
    np.testing.assert_array_equal(out["y"], x * 2 + z[..., None])
    assert shapes[-1] == (10, 3)


def test_items_that_a_vmap_does_not_map_are_repeated(lifted):
    function, _ = lifted
    x, z = jnp.arange(3.0), jnp.arange(4.0)
    out = jax.vmap(lambda z: function({"x": x, "z": z}, jnp.float32(2)))(z)
    np.testing.assert_array_equal(out["y"], x * 2 + z[:, None])


def test_a_mapped_shared_argument_gives_what_vmap_gives(lifted):
    function, _ = lifted
    x, z, scale = jnp.arange(12.0).reshape(4, 3), jnp.arange(4.0), jnp.arange(4.0)
    out = jax.vmap(function)({"x": x, "z": z}, scale)
    np.testing.assert_array_equal(out["y"], x * scale[:, None] + z[:, None])
    only_shared = jax.vmap(function, (None, 0))({"x": x[1], "z": z[1]}, scale)
    np.testing.assert_array_equal(only_shared["y"], x[1] * scale[:, None] + z[1])


def test_vmap_over_another_axis_of_the_items(lifted):
    function, _ = lifted
    x = jnp.arange(12.0).reshape(3, 4)
    out = jax.vmap(function, ({"x": 1, "z": None}, None))({"x": x, "z": jnp.float32(1)}, 2.0)
    np.testing.assert_array_equal(out["y"], x.T * 2 + 1)
