"""Range checks: what passes, and the one line for what does not."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from worldloom.core.checks import check_fields, check_seed


def check(value, **ranges):
    check_fields("owner", SimpleNamespace(x=value), **ranges)


@pytest.mark.parametrize(
    "value", [3, 3.0, np.float32(3), np.int64(3), (3, 4), (np.float64(3),), None]
)
def test_numbers_of_any_kind_pass(value):
    check(value, at_least={"x": 1})
    check(value, positive=("x",))


@pytest.mark.parametrize(
    ("value", "ranges", "message"),
    [
        (0, {"at_least": {"x": 1}}, "owner: x=0; it must be at least 1"),
        (-1, {"at_least": {"x": 0}}, "owner: x=-1; it must be 0 or more"),
        ((3, 0), {"at_least": {"x": 1}}, r"owner: x=\(3, 0\); it must be at least 1"),
        ((), {"at_least": {"x": 1}}, r"owner: x=\(\); it must not be empty"),
        (np.float32(0), {"positive": ("x",)}, "owner: x=0.0; it must be positive"),
        (1.5, {"fractions": ("x",)}, r"owner: x=1.5; it must be in \[0, 1\]"),
        (np.float32("nan"), {"positive": ("x",)}, "owner: x=nan; it must be a finite number"),
        (True, {"at_least": {"x": 1}}, "owner: x=True; it must be a number"),
        ("3", {"positive": ("x",)}, "owner: x='3'; it must be a number"),
        (10**400, {"fractions": ("x",)}, r"owner: x=10+ \.\.\. 0+; it must be in"),
        ((8,) * 2000, {"at_least": {"x": 1}}, "owner: x has 2000 entries; use at most 1024"),
        ("c", {"choices": {"x": ("a", "b")}}, "owner: x='c' is not known; known: a, b"),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_line(value, ranges, message):
    with pytest.raises(ValueError, match=message) as error:
        check(value, **ranges)
    assert "\n" not in str(error.value)


def test_a_traced_number_was_checked_before():
    def doubled(x):
        check(x, positive=("x",))
        return 2 * x

    assert jax.jit(doubled)(3.0) == 6.0


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_key_can_hold_is_refused(seed):
    with pytest.raises(ValueError, match=f"seed={seed}; it must be in 0"):
        check_seed(seed)


def test_sizes_that_no_memory_holds_are_refused():
    sizes = SimpleNamespace(num_worlds=10**9, hidden=(64, 10**7))
    for name in vars(sizes):
        with pytest.raises(ValueError, match=f"owner: {name}=.*; it must be at most"):
            check_fields("owner", sizes, at_least={name: 1})
