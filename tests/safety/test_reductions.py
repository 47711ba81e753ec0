"""Reductions of a short last axis agree with JAX's own."""

import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.safety.reductions import SHORT, argmin_last


@pytest.mark.parametrize("length", [1, 2, SHORT, SHORT + 1])
def test_the_place_of_the_smallest_is_argmin(length):
    rng = np.random.default_rng(length)
    values = jnp.asarray(rng.integers(0, 3, (64, length)), jnp.float32)  # many ties
    values = values.at[0].set(jnp.inf)
    place = argmin_last(values)
    assert place.dtype == jnp.int32
    np.testing.assert_array_equal(place, jnp.argmin(values, axis=-1))
