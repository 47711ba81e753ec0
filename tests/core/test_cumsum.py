"""Running sums by products equal numpy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core.cumsum import running_count, running_sum


@pytest.mark.parametrize("count", [1, 31, 64, 65, 96, 1000, 5000])
def test_a_running_count_is_exact_for_any_length(count):
    flags = np.random.default_rng(count).random((count, 2)) < 0.5
    found = jax.jit(running_count)(flags)
    np.testing.assert_array_equal(found, np.cumsum(flags, axis=0))
    np.testing.assert_array_equal(jax.jit(running_count)(flags[:, 0]), np.cumsum(flags[:, 0]))


def test_a_running_sum_keeps_the_type_of_its_values():
    values = np.arange(100, dtype=np.float32)
    found = running_sum(jnp.asarray(values))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.cumsum(values))
