"""The cheap random numbers: their range, their distribution and their independence.

The statistics use fixed keys, so a test passes or fails for good. Bounds are four to five standard
errors wide: a sound generator under another key would pass them just as well.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from worldloom.core import draws

N = 1 << 18
bits = jax.jit(draws.bits, static_argnums=1)
uniform = jax.jit(draws.uniform, static_argnums=1)
integers = jax.jit(draws.integers, static_argnums=(1, 2))
normal = jax.jit(draws.normal, static_argnums=1)


@pytest.fixture(scope="module")
def keys():
    """Four unrelated keys."""
    return jax.random.split(jax.random.key(2024), 4)


@pytest.fixture(scope="module")
def stream(keys):
    """(4, N) uniform numbers, one row for each key."""
    return np.asarray(jax.jit(jax.vmap(lambda k: draws.uniform(k, (N,))))(keys), np.float64)


def correlation(a, b) -> float:
    return float(np.corrcoef(np.ravel(a), np.ravel(b))[0, 1])


def flipped_share(a, b) -> np.ndarray:
    """(32,) how often each output bit differs."""
    changed = np.asarray(a, np.uint32) ^ np.asarray(b, np.uint32)
    return np.array([np.mean((changed >> bit) & 1) for bit in range(32)])


# The same key ------------------------------------------------------------------------------------


def test_the_same_key_gives_the_same_numbers_and_other_keys_others(keys):
    first, again, other = uniform(keys[0], (64,)), uniform(keys[0], (64,)), uniform(keys[1], (64,))
    np.testing.assert_array_equal(first, again)
    assert not np.any(np.asarray(first) == np.asarray(other))


def test_the_shape_only_arranges_the_numbers(keys):
    flat = np.asarray(bits(keys[0], (60,)))
    np.testing.assert_array_equal(bits(keys[0], (3, 4, 5)), flat.reshape(3, 4, 5))
    np.testing.assert_array_equal(bits(keys[0], (7,)), flat[:7])
    assert bits(keys[0], ()) == flat[0]
    assert bits(keys[0], (0,)).shape == (0,)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_vmap_over_keys_equals_one_key_at_a_time(impl):
    keys = jax.random.split(jax.random.key(3, impl=impl), 5)

    def all_kinds(key):
        return (
            draws.bits(key, (4,)),
            draws.uniform(key, (2, 3)),
            draws.integers(key, (6,), 7),
            draws.normal(key, (5,)),
        )

    together = jax.jit(jax.vmap(all_kinds))(keys)
    one = jax.jit(all_kinds)
    for i, key in enumerate(keys):
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), together, one(key))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_any_implementation_of_keys_gives_uniform_numbers(impl):
    first, second = jax.random.split(jax.random.key(11, impl=impl))
    u, v = np.asarray(uniform(first, (N,))), np.asarray(uniform(second, (N,)))
    assert abs(u.mean() - 0.5) < 5 / np.sqrt(12 * N)
    assert abs(correlation(u, v)) < 5 / np.sqrt(N)


def test_a_batch_of_keys_is_refused(keys):
    with pytest.raises(ValueError, match=r"keys of shape \(4,\); use jax.vmap"):
        draws.uniform(keys, (4,))


@pytest.mark.parametrize("n", [0, -3, 2**24 + 1])
def test_integers_refuse_a_range_they_cannot_fill(keys, n):
    with pytest.raises(ValueError, match=rf"n={n}"):
        draws.integers(keys[0], (2,), n)


# One stream --------------------------------------------------------------------------------------


def test_types_and_ranges(keys, stream):
    assert bits(keys[0], (3,)).dtype == jnp.uint32
    assert uniform(keys[0], (3,)).dtype == jnp.float32
    assert integers(keys[0], (3,), 5).dtype == jnp.int32
    assert normal(keys[0], (3,)).dtype == jnp.float32
    assert stream.min() >= 0.0
    assert stream.max() < 1.0
    assert stream.min() < 1e-5, "the whole range is used"
    assert stream.max() > 1 - 1e-5, "the whole range is used"


def test_uniform_numbers_are_multiples_of_two_to_the_minus_24(stream):
    scaled = stream * 2**24
    np.testing.assert_array_equal(scaled, np.round(scaled))
    assert np.mean(scaled % 2) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(scaled.size))


def test_uniform_mean_and_variance(stream):
    n = stream.size
    assert abs(stream.mean() - 1 / 2) < 4 / np.sqrt(12 * n)
    assert abs(stream.var() - 1 / 12) < 4 * np.sqrt(1 / 180 / n)


@pytest.mark.parametrize("cells", [10, 256, 4096])
def test_uniform_histogram_is_flat(stream, cells):
    counts = np.bincount((stream * cells).astype(int).ravel(), minlength=cells)
    assert 1e-4 < stats.chisquare(counts).pvalue < 1 - 1e-4, "neither uneven nor too even"


def test_pairs_and_triples_fill_the_square_and_the_cube(stream):
    row = stream[0]
    for dimension, side in ((2, 32), (3, 12)):
        points = (row[: N // dimension * dimension].reshape(-1, dimension) * side).astype(int)
        counts = np.bincount(
            np.ravel_multi_index(points.T, (side,) * dimension), minlength=side**dimension
        )
        assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("lag", [1, 2, 3, 5, 64, 250, 1024])
def test_numbers_of_one_key_are_serially_uncorrelated(stream, lag):
    for row in stream:
        assert abs(correlation(row[:-lag], row[lag:])) < 4.5 / np.sqrt(N)


def test_every_bit_is_fair_and_a_fair_predictor_of_none(keys):
    words = np.asarray(bits(keys[0], (N,)))
    columns = (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    signs = columns.astype(np.float64) * 2 - 1
    assert np.abs(signs.mean(axis=0)).max() < 4.5 / np.sqrt(N)
    between = signs.T @ signs / N - np.eye(32)
    assert np.abs(between).max() < 5 / np.sqrt(N)


def test_runs_up_and_down_have_the_expected_number(stream):
    row = stream[0]
    turns = np.sum((np.diff(row)[1:] > 0) != (np.diff(row)[:-1] > 0))
    expected, variance = 2 * (N - 2) / 3, (16 * N - 29) / 90
    assert abs(turns - expected) < 4.5 * np.sqrt(variance)


@pytest.mark.parametrize("n", [1, 2, 4, 5, 7, 100])
def test_integers_are_uniform_on_their_range(keys, n):
    values = np.asarray(integers(keys[1], (N,), n))
    counts = np.bincount(values, minlength=n)
    assert len(counts) == n
    assert values.min() >= 0
    assert n == 1 or stats.chisquare(counts).pvalue > 1e-4


def test_integers_reach_both_ends_of_the_widest_range(keys):
    values = np.asarray(integers(keys[1], (N,), 2**24), np.int64)
    assert 0 <= values.min() < 1000
    assert 2**24 - 1000 < values.max() < 2**24


# Normal numbers ----------------------------------------------------------------------------------


def test_normal_moments_and_distribution(keys):
    x = np.asarray(jax.jit(jax.vmap(lambda k: draws.normal(k, (N,))))(keys), np.float64)
    n = x.size
    assert abs(x.mean()) < 4 / np.sqrt(n)
    assert abs(x.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs(stats.skew(x.ravel())) < 4 * np.sqrt(6 / n)
    assert abs(stats.kurtosis(x.ravel())) < 4 * np.sqrt(24 / n)
    assert stats.kstest(x.ravel()[:N], "norm").pvalue > 1e-4


def test_normal_tails_are_as_heavy_as_they_should_be(keys):
    x = np.abs(np.asarray(jax.jit(jax.vmap(lambda k: draws.normal(k, (N,))))(keys)))
    for bound in (2.0, 3.0, 4.0):
        expected = 2 * stats.norm.sf(bound) * x.size
        assert abs(np.sum(x > bound) - expected) < 5 * np.sqrt(expected)


def test_no_normal_number_is_infinite(keys, monkeypatch):
    # The two ends of the range come once in 2**24 numbers each; here they come first.
    ends = jnp.array([0x00000000, 0x000001FF, 0xFFFFFE00, 0xFFFFFFFF], jnp.uint32)
    monkeypatch.setattr(draws, "bits", lambda key, shape, first: ends)
    x = np.asarray(draws.normal(keys[0], (4,)), np.float64)
    assert np.isfinite(x).all()
    np.testing.assert_allclose(x[0], stats.norm.ppf(2.0**-25), rtol=1e-5)
    np.testing.assert_allclose(x, -x[::-1], err_msg="the two tails mirror each other")
    assert (np.diff(x) > 0).all(), "the last step is not lost to rounding"


# Many streams ------------------------------------------------------------------------------------


def test_streams_of_split_keys_are_uncorrelated(stream):
    for i in range(4):
        for j in range(i):
            for lag in (0, 1, 7):
                a, b = stream[i][lag:], stream[j][: N - lag]
                assert abs(correlation(a, b)) < 4.5 / np.sqrt(N)


def test_the_first_numbers_of_many_keys_are_uniform_and_uncorrelated():
    # How worlds use the generator: many keys, few numbers of each.
    def first_two(key):
        return draws.uniform(key, (2,))

    keys = jax.random.split(jax.random.key(5), N)
    u = np.asarray(jax.jit(jax.vmap(first_two))(keys), np.float64)
    for column in u.T:
        counts = np.bincount((column * 256).astype(int), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
        assert abs(correlation(column[:-1], column[1:])) < 4.5 / np.sqrt(N)
    assert abs(correlation(u[:, 0], u[:, 1])) < 4.5 / np.sqrt(N)


def test_collisions_between_keys_are_those_of_chance():
    keys = jax.random.split(jax.random.key(9), 1 << 16)
    words = np.asarray(jax.jit(jax.vmap(lambda k: draws.bits(k, (2,))))(keys)).ravel()
    expected = words.size**2 / 2 / 2**32
    repeats = words.size - len(np.unique(words))
    assert abs(repeats - expected) < 5 * np.sqrt(expected)


def test_adjacent_counters_differ_in_half_of_their_bits(keys):
    words = np.asarray(bits(keys[0], (N,)))
    shares = flipped_share(words[:-1], words[1:])
    np.testing.assert_allclose(shares, 0.5, atol=5 * 0.5 / np.sqrt(N))


def test_neighbours_of_a_key_differ_in_half_of_their_bits():
    # Keys as data: one flipped bit in either word must change everything.
    bases = jax.random.key_data(jax.random.split(jax.random.key(1), 4096))  # (4096, 2)
    words = jax.jit(jax.vmap(lambda d: draws.bits(jax.random.wrap_key_data(d), (4,))))
    before = words(bases)
    for word in (0, 1):
        for bit in (0, 1, 7, 15, 16, 24, 31):
            changed = bases.at[:, word].set(bases[:, word] ^ jnp.uint32(1 << bit))
            shares = flipped_share(before, words(changed))
            np.testing.assert_allclose(shares, 0.5, atol=5 * 0.5 / np.sqrt(4 * 4096))


def test_counting_seeds_give_unrelated_streams():
    def numbers(seed):
        return draws.uniform(jax.random.key(seed), (64,))

    u = np.asarray(jax.jit(jax.vmap(numbers))(jnp.arange(4096, dtype=jnp.uint32)), np.float64)
    assert abs(correlation(u[:-1], u[1:])) < 4.5 / np.sqrt(u.size)
    assert abs(correlation(u[:-1, 1:], u[1:, :-1])) < 4.5 / np.sqrt(u.size)
    counts = np.bincount((u * 256).astype(int).ravel(), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4


# Splitting by the hash ---------------------------------------------------------------------------


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_split_makes_different_keys_of_the_same_kind(impl):
    key = jax.random.key(5, impl=impl)
    children = draws.split(key, 1000)
    assert children.shape == (1000,)
    assert children.dtype == key.dtype
    words = np.asarray(jax.random.key_data(children))
    assert len({tuple(row) for row in words}) == 1000
    np.testing.assert_array_equal(words, jax.random.key_data(draws.split(key, 1000)))


def test_streams_of_hash_split_keys_are_uncorrelated_also_with_their_parents():
    parent = jax.random.key(17)
    family = [parent]
    for key in draws.split(parent, 3):
        family += [key, *draws.split(key, 2)]  # ten keys of three generations
    numbers = np.stack([np.asarray(uniform(key, (N,))) for key in family])
    matrix = np.corrcoef(numbers)
    np.fill_diagonal(matrix, 0.0)
    assert np.abs(matrix).max() < 5 / np.sqrt(N)


def test_first_numbers_along_a_long_chain_of_splits_are_uniform():
    def link(key, _):
        key, used = draws.split(key)
        return key, draws.uniform(used)

    _, numbers = jax.jit(lambda key: jax.lax.scan(link, key, None, N))(jax.random.key(0))
    numbers = np.asarray(numbers)
    counts = np.histogram(numbers, bins=64, range=(0, 1))[0]
    expected = N / 64
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * np.sqrt(2 * 63)
    assert abs(correlation(numbers[1:], numbers[:-1])) < 5 / np.sqrt(N)


@pytest.mark.parametrize("draw", [draws.bits, draws.uniform, draws.normal])
def test_rows_of_a_larger_draw_can_be_drawn_by_themselves(draw):
    key = jax.random.key(3)
    whole = draw(key, (7, 2, 3))
    np.testing.assert_array_equal(draw(key, (4, 2, 3), 3), whole[3:])
    some = jax.jit(lambda first: draw(key, (4, 2, 3), first))
    np.testing.assert_array_equal(some(jnp.int32(2)), whole[2:6])
    words = jax.random.key_data(draws.split(key, 5))
    np.testing.assert_array_equal(jax.random.key_data(draws.split(key, 2, 3)), words[3:])
