"""Per-agent pytrees on one leading axis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core import stack


def make_tree(i: int) -> dict:
    return {
        "weight": jnp.full((2, 3), float(i)),
        "count": jnp.int32(i),
        "key": jax.random.key(i),
        "nested": (jnp.arange(2) + i, ()),
    }


def plain(tree) -> list[np.ndarray]:
    """The leaves as numpy arrays, typed keys as their data."""

    def as_numpy(leaf):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return [as_numpy(leaf) for leaf in jax.tree.leaves(tree)]


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(plain(a), plain(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def trees():
    return [make_tree(i) for i in range(4)]


def test_unstack_undoes_stack(trees):
    stacked = stack.stack(trees)
    assert stack.size(stacked) == 4
    assert stacked["weight"].shape == (4, 2, 3)
    for tree, back in zip(trees, stack.unstack(stacked), strict=True):
        assert_equal(tree, back)


def test_index_by_a_traced_number(trees):
    pick = jax.jit(stack.index)
    for i in range(4):
        assert_equal(pick(stack.stack(trees), jnp.int32(i)), trees[i])


def test_put_replaces_one_agent_and_no_other(trees):
    put = jax.jit(stack.put)
    stacked, new = stack.stack(trees), make_tree(99)
    for i in range(4):
        expected = [new if j == i else tree for j, tree in enumerate(trees)]
        assert_equal(put(stacked, jnp.int32(i), new), stack.stack(expected))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_where_chooses_agent_by_agent_also_among_keys(trees, impl):
    def with_keys(seed):
        return {"x": jnp.arange(12.0).reshape(4, 3) + seed, "key": keys(seed)}

    def keys(seed):
        return jax.random.split(jax.random.key(seed, impl=impl), 4)

    new, old = with_keys(1), with_keys(2)
    mask = jnp.array([True, False, False, True])
    chosen = jax.jit(stack.where)(mask, new, old)
    expected = [stack.index(new if m else old, i) for i, m in enumerate(mask)]
    assert_equal(chosen, stack.stack(expected))
    assert jax.random.key_impl(chosen["key"]) == jax.random.key_impl(new["key"])


def test_where_with_one_answer_for_everything(trees):
    for answer in (True, False):
        chosen = jax.jit(stack.where)(jnp.asarray(answer), trees[1], trees[2])
        assert_equal(chosen, trees[1] if answer else trees[2])


def test_where_over_several_leading_axes():
    mask = jnp.array([[True, False], [False, True]])
    new, old = jnp.ones((2, 2, 3)), jnp.zeros((2, 2, 3))
    np.testing.assert_array_equal(stack.where(mask, new, old)[..., 0], mask.astype(float))


def test_where_refuses_a_mask_that_would_change_a_shape():
    # jnp.where would broadcast: a () counter would silently become one of shape (4,).
    mask = jnp.array([True, False, True, False])
    with pytest.raises(ValueError, match=r"mask of shape \(4,\).* leaf of shape \(\)"):
        stack.where(mask, {"count": jnp.int32(1)}, {"count": jnp.int32(0)})
    with pytest.raises(ValueError, match=r"leaf of shape \(3, 4\)"):
        stack.where(mask, jnp.ones((3, 4)), jnp.zeros((3, 4)))


def test_stacking_nothing_or_unlike_things_is_an_error(trees):
    with pytest.raises(ValueError, match="nothing to stack"):
        stack.stack([])
    with pytest.raises(ValueError, match=r"(?i)structure|dict"):
        stack.stack([{"a": jnp.zeros(2)}, {"b": jnp.zeros(2)}])
