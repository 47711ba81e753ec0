"""Compiler options are taken by the XLA that is installed, and change nothing but the compile."""

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import compiling
from worldloom.core.compiling import quick_compile


def collatz(n):
    return jnp.where(n % 2 == 0, n // 2, 3 * n + 1)


def test_a_program_compiles_with_the_options_and_computes_the_same():
    numbers = jnp.arange(1, 257)
    plain = jax.jit(collatz)(numbers)
    for options in (quick_compile(), quick_compile(xla_backend_optimization_level=1)):
        quick = jax.jit(collatz, compiler_options=options)(numbers)
        np.testing.assert_array_equal(quick, plain)


def test_an_option_that_this_xla_does_not_know_is_not_set():
    assert compiling._is_known("xla_cpu_enable_fast_math")
    assert not compiling._is_known("xla_cpu_read_minds")
