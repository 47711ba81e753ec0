"""Spaces: what they sample they contain, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core.spaces import Box, Dict, Discrete, brief

SPACES = [
    Discrete(4),
    Discrete(300, (3,)),
    Box(-2.0, 3.0, (2, 5)),
    Box(0, 2, (4,), "uint8"),
    Box(-3, 3, (), "int8"),
    Box(0, 1, (3,), "bool"),
    Dict((("where", Box(0.0, 1.0, (2,))), ("what", Discrete(3)))),
    Dict((("outer", Dict((("inner", Discrete(2)),))),)),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_contains_its_own_samples_inside_jit(space):
    def draw_and_check(key):
        sample = space.sample(key)
        return sample, space.contains(sample)

    keys = jax.random.split(jax.random.key(0), 200)
    samples, inside = jax.jit(jax.vmap(draw_and_check))(keys)
    assert inside.shape == (200,)
    assert inside.all()
    for leaf in jax.tree.leaves(samples):
        assert len(np.unique(np.asarray(leaf))) > 1, "samples vary"


def test_samples_have_the_declared_shape_and_type():
    key = jax.random.key(1)
    for space in SPACES[:6]:
        sample = space.sample(key)
        assert sample.shape == space.shape
        assert sample.dtype == space.dtype


def test_every_integer_of_a_range_is_sampled_equally_often():
    keys = jax.random.split(jax.random.key(2), 7000)
    for space, low in ((Discrete(7), 0), (Box(-3, 3, (), "int8"), -3)):
        values = np.asarray(jax.vmap(space.sample)(keys), int) - low
        counts = np.bincount(values, minlength=7)
        assert len(counts) == 7
        assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_discrete_bounds():
    space = Discrete(4)
    assert space.contains(jnp.int32(0))
    assert space.contains(jnp.int32(3))
    assert not space.contains(jnp.int32(4))
    assert not space.contains(jnp.int32(-1))


def test_box_bounds_are_inclusive_and_nan_is_outside():
    space = Box(-1.0, 1.0, (2,))
    assert space.contains(jnp.array([-1.0, 1.0]))
    assert not space.contains(jnp.array([-1.0, 1.001]))
    assert not space.contains(jnp.array([jnp.nan, 0.0]))
    assert not space.contains(jnp.array([jnp.inf, 0.0]))


def test_a_wrong_shape_or_kind_of_number_is_not_contained():
    assert not Discrete(4).contains(jnp.array([1]))
    assert not Discrete(4).contains(jnp.float32(1))
    assert not Box(0.0, 1.0, (2,)).contains(jnp.zeros(3))
    assert not Box(0, 3, (), "uint8").contains(jnp.float32(1.5))
    assert not Box(0.0, 1.0, ()).contains(jnp.asarray(True))
    assert not Box(0, 1, (), "bool").contains(jnp.int32(1))
    assert not Box(0, 1, (), "int8").contains(jnp.asarray(True))


def test_narrow_integers_are_compared_without_overflow():
    # 300 and -1 do not fit uint8: compared as uint8 they would be 44 and 255.
    assert Discrete(300).contains(jnp.uint8(200))
    assert Box(-1.0, 1.0, ()).contains(jnp.uint8(1))
    assert Box(-1, 1, (), "int8").contains(jnp.uint8(1))
    assert not Discrete(4).contains(jnp.uint32(2**32 - 1))


def test_a_dict_wants_exactly_its_names():
    space = Dict((("a", Discrete(2)), ("b", Box(0.0, 1.0, ()))))
    good = {"a": jnp.int32(1), "b": jnp.float32(0.5)}
    assert space.contains(good)
    assert not space.contains({**good, "c": jnp.int32(0)})
    assert not space.contains({"a": good["a"]})
    assert not space.contains({**good, "a": jnp.int32(2)})
    assert not space.contains(jnp.int32(1))


def test_parts_of_a_dict_are_drawn_from_keys_of_their_own():
    space = Dict((("a", Box(0.0, 1.0, (50,))), ("b", Box(0.0, 1.0, (50,)))))
    sample = space.sample(jax.random.key(3))
    assert not np.any(np.asarray(sample["a"]) == np.asarray(sample["b"]))


def test_spaces_are_hashable_values():
    assert len({Discrete(4), Discrete(4), Discrete(5)}) == 2
    for space in SPACES:
        assert hash(space) == hash(space)


def test_empty_spaces_are_refused():
    with pytest.raises(ValueError, match="Discrete: n=0"):
        Discrete(0)
    with pytest.raises(ValueError, match="low=2 is not below high=1"):
        Box(2.0, 1.0, ())
    with pytest.raises(ValueError, match="low=nan"):
        Box(float("nan"), 1.0, ())


def test_an_unbounded_box_contains_but_cannot_sample():
    space = Box(-float("inf"), float("inf"), (2,))
    assert space.contains(jnp.array([1e30, -1e30]))
    with pytest.raises(ValueError, match="finite bounds"):
        space.sample(jax.random.key(0))


def test_a_space_is_named_in_a_few_characters():
    assert brief(Discrete(4)) == "Discrete(4)"
    assert brief(Box(0.0, 1.0, (3, 2))) == "Box(3, 2)"
    assert brief(Dict((("grid", Discrete(2)), ("size", Discrete(3))))) == "Dict(grid, size)"
