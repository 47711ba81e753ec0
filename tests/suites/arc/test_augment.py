"""Turned, mirrored and recoloured tasks, against numpy; and the worlds that run on them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.arc import planes
from worldloom.suites.arc.augmentation import (
    SYMMETRIES,
    _permutations,
    augment,
    permute_colours,
    symmetry,
)
from worldloom.suites.arc.environment import batch_step, make_config, similarity, start_at
from worldloom.suites.arc.operations import SUBMIT
from worldloom.suites.arc.sources import load
from worldloom.suites.arc.tasks import Pair, Task, pack_tasks
from worldloom.suites.arc.types import BoxAction

NUMPY = {
    "identity": lambda g: g,
    "flip columns": np.fliplr,
    "flip rows": np.flipud,
    "rotate 180": lambda g: np.rot90(g, 2),
    "transpose": np.transpose,
    "rotate clockwise": lambda g: np.rot90(g, -1),
    "rotate counter-clockwise": np.rot90,
    "anti-transpose": lambda g: np.rot90(g.T, 2),
}
SHAPES = [(1, 1), (1, 8), (8, 1), (3, 5), (8, 8), (6, 7), (30, 30), (30, 2), (13, 29), (32, 32)]

turn = jax.jit(symmetry)
recolour = jax.jit(permute_colours)
compiled = jax.jit(augment, static_argnums=(2, 3, 4, 5))
on_host = jax.device_get


def augmented(*arguments):
    return on_host(compiled(*arguments))


def packed(grid, words):
    return planes.pack_numpy(grid, words), np.array(grid.shape, np.int32)


def cells(grid, size):
    """The active area of a packed grid; all else must be empty."""
    height, width = size
    bits = (np.asarray(grid)[..., None] >> np.arange(planes.WORD, dtype=np.uint32)) & 1
    canvas = sum(bits[p] << p for p in range(planes.PLANES)).astype(np.int8)
    assert canvas.sum() == canvas[:height, :width].sum()
    return canvas[:height, :width]


def image(grid, size):
    """What tells grids apart: contents and shape."""
    return cells(grid, size).tobytes(), tuple(size.tolist())


def random_grid(shape, seed):
    return np.random.default_rng(seed).integers(0, 10, shape, np.int8)


@functools.cache
def examples():
    return on_host(load("examples").buffer())


def grids_of(buffer, row):
    return [cells(buffer.grids[row, side], buffer.sizes[row, side]) for side in (0, 1)]


# One grid --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_every_symmetry_is_what_numpy_makes(shape):
    grid = random_grid(shape, seed=sum(shape))
    words = planes.words_for(shape)
    plane, size = packed(grid, words)
    turned, sizes = on_host(turn(np.stack([plane] * 8), np.stack([size] * 8), np.arange(8)))
    for which, name in enumerate(SYMMETRIES):
        np.testing.assert_array_equal(
            cells(turned[which], sizes[which]), NUMPY[name](grid), err_msg=name
        )


def test_symmetries_form_a_group_of_eight():
    grid = random_grid((3, 5), seed=0)
    plane, size = packed(grid, 8)
    first = on_host(turn(np.stack([plane] * 8), np.stack([size] * 8), np.arange(8)))
    images = {image(g, s) for g, s in zip(*first, strict=True)}
    assert len(images) == 8
    # Any two after each other are one of the eight, and each has one that undoes it.
    repeated = [np.repeat(part, 8, axis=0) for part in first]
    twice = on_host(turn(*repeated, np.tile(np.arange(8), 8)))
    products = [image(g, s) for g, s in zip(*twice, strict=True)]
    assert set(products) == images
    assert [products[8 * i : 8 * i + 8].count(image(plane, size)) for i in range(8)] == [1] * 8


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (30, 30)])
def test_colours_are_replaced_inside_the_area_only(shape):
    grid = random_grid(shape, seed=3)
    plane, size = packed(grid, planes.words_for(shape))
    rng = np.random.default_rng(0)
    for permutation in (np.arange(10), rng.permutation(10), np.roll(np.arange(10), 1)):
        new = recolour(plane, size, permutation.astype(np.int32))
        np.testing.assert_array_equal(cells(new, size), permutation[grid])


# Whole tasks -----------------------------------------------------------------------------------


def find_change(before, after):
    """The symmetry that leads from one list of grids to the other up to colours, with its map."""
    for name, function in NUMPY.items():
        moved = [function(grid) for grid in before]
        if [g.shape for g in moved] != [g.shape for g in after]:
            continue
        pairs = {
            (int(a), int(b))
            for one, other in zip(moved, after, strict=True)
            for a, b in zip(one.ravel(), other.ravel(), strict=True)
        }
        mapping = dict(pairs)
        if len(mapping) == len(pairs) == len(set(mapping.values())):
            yield name, mapping


@pytest.mark.parametrize("background", [False, True])
def test_all_grids_of_a_task_change_in_the_same_way(background):
    before = examples()
    copies = 3
    after = augmented(jax.random.key(0), before, copies, True, True, background)
    assert after.num_tasks == copies * before.num_tasks
    assert after.num_pairs == copies * before.num_pairs
    names, moved_background = set(), False
    for t in range(after.num_tasks):
        original = t % before.num_tasks
        assert int(after.demos_count[t]) == int(before.demos_count[original])
        assert int(after.tests_count[t]) == int(before.tests_count[original])
        assert int(after.tests_start[t]) == int(after.demos_start[t] + after.demos_count[t])
        count = int(after.demos_count[t] + after.tests_count[t])
        rows = int(after.demos_start[t]) + np.arange(count)
        old_rows = int(before.demos_start[original]) + np.arange(count)
        assert after.task[rows].tolist() == [t] * count
        old = [grid for row in old_rows for grid in grids_of(before, row)]
        new = [grid for row in rows for grid in grids_of(after, row)]
        changes = list(find_change(old, new))
        assert changes, f"no single symmetry and permutation explains task {t}"
        names.update(name for name, _ in changes[:1])
        moved_background |= all(mapping[0] != 0 for _, mapping in changes)
    assert len(names) >= 6
    assert moved_background == background


def test_what_is_switched_off_stays_as_it_is():
    before, key = examples(), jax.random.key(1)
    same = augmented(key, before, 2, False, False, False)
    for part in ("grids", "sizes"):
        np.testing.assert_array_equal(
            getattr(same, part), np.concatenate([getattr(before, part)] * 2)
        )
    only_colours = augmented(key, before, 1, False, True, False)
    np.testing.assert_array_equal(only_colours.sizes, before.sizes)
    coloured = [np.bitwise_or.reduce(tasks.grids, axis=-2) for tasks in (only_colours, before)]
    np.testing.assert_array_equal(*coloured, err_msg="0 must stay 0")
    assert (only_colours.grids != before.grids).any()
    only_symmetries = augmented(key, before, 1, True, False, False)
    for row in range(before.num_pairs):
        for old, new in zip(grids_of(before, row), grids_of(only_symmetries, row), strict=True):
            np.testing.assert_array_equal(np.sort(old.ravel()), np.sort(new.ravel()))


def test_copies_differ_and_the_key_decides():
    before = examples()
    one = augmented(jax.random.key(0), before, 2, True, True, False)
    again = augmented(jax.random.key(0), before, 2, True, True, False)
    jax.tree.map(np.testing.assert_array_equal, one, again)
    halves = one.grids.reshape(2, -1)
    assert (halves[0] != halves[1]).any()
    other = augmented(jax.random.key(1), before, 2, True, True, False)
    assert (one.grids != other.grids).any()


def test_identity_depends_on_key_tasks_and_options():
    before, key = examples(), jax.random.key(0)
    fewer = load("examples")[:3].buffer((6, 6))
    buffers = [
        before,
        fewer,
        augmented(key, before, 1, True, True, False),
        augmented(jax.random.key(1), before, 1, True, True, False),
        augmented(key, before, 2, True, True, False),
        augmented(key, before, 1, True, False, False),
        augmented(key, fewer, 1, True, True, False),
    ]
    assert len({int(buffer.identity) for buffer in buffers}) == len(buffers)


def test_new_tasks_and_keys_need_no_new_program():
    traces = []

    @jax.jit
    def program(key, tasks):
        traces.append(key)
        return augment(key, tasks)

    before = examples()
    one = program(jax.random.key(0), before)
    other = program(jax.random.key(1), before.replace(grids=before.grids[:, ::-1]))
    assert len(traces) == 1
    assert (one.grids != other.grids).any()


def test_all_symmetries_and_colours_are_drawn_equally_often():
    # On this grid the eight symmetries look different.
    grid = random_grid((3, 3), seed=4)
    tasks = pack_tasks([Task("one", (Pair(grid, grid),), ())], (3, 3))
    after = augmented(jax.random.key(0), tasks, 1600, True, False, False)
    number = {function(grid).tobytes(): i for i, function in enumerate(NUMPY.values())}
    assert len(number) == 8
    drawn = [
        number[cells(g, s).tobytes()]
        for g, s in zip(after.grids[:, 0], after.sizes[:, 0], strict=True)
    ]
    assert np.bincount(drawn, minlength=8).min() > 0.75 * len(drawn) / 8

    permutations = np.asarray(_permutations(jax.random.key(2), (40, 60), 1))
    np.testing.assert_array_equal(
        np.sort(permutations, -1), np.broadcast_to(np.arange(10), (40, 60, 10))
    )
    assert (permutations[..., 0] == 0).all()
    for colour in range(1, 10):
        counts = np.bincount(permutations[..., colour].ravel(), minlength=10)[1:]
        assert counts.min() > 0.75 * counts.sum() / 9


def test_a_canvas_that_is_not_square_is_never_left():
    grid = random_grid((2, 5), seed=1)
    tasks = pack_tasks([Task("wide", (Pair(grid, grid),), ())], (3, 6))
    after = augmented(jax.random.key(0), tasks, 64, True, False, False)
    assert after.grid_shape == (3, 6)
    assert after.sizes.reshape(-1, 2).tolist() == [[2, 5]] * 128
    seen = {
        cells(g, s).tobytes() for g, s in zip(after.grids[:, 0], after.sizes[:, 0], strict=True)
    }
    assert seen == {NUMPY[name](grid).tobytes() for name in SYMMETRIES[:4]}


def test_no_copies_are_refused():
    with pytest.raises(ValueError, match="copies=0; there must be at least 1"):
        augment(jax.random.key(0), examples(), 0)


# Worlds ----------------------------------------------------------------------------------------


def test_a_solved_pair_is_solved_in_every_copy_and_nothing_else_is():
    after = augmented(jax.random.key(7), examples(), 2, True, True, False)
    config = make_config(after)
    pairs = jnp.arange(after.num_pairs)
    worlds = jax.jit(start_at)(pairs, jax.random.split(jax.random.key(0), len(pairs)), config)
    zeros = jnp.zeros(len(pairs), jnp.int32)
    submit = BoxAction(zeros + SUBMIT, zeros, zeros, zeros, zeros)
    right = worlds.replace(grid=after.grids[:, 1], size=after.sizes[:, 1])
    *_, done, info = batch_step(right, submit, config)
    assert info.solved.all()
    assert done.all()
    *_, info = batch_step(worlds, submit, config)
    np.testing.assert_array_equal(info.solved, [
        np.array_equal(*grids_of(after, row)) for row in range(after.num_pairs)
    ])  # fmt: skip
    assert not info.solved.any()
    # The old worlds' pair numbers mean nothing among the new tasks: their steps are refused.
    *_, info = batch_step(worlds, submit, make_config(augmented(
        jax.random.key(8), examples(), 2, True, True, False
    )))  # fmt: skip
    assert (info.operation_type == -1).all()


def test_inputs_are_as_far_from_their_answers_as_before():
    before = examples()
    after = augmented(jax.random.key(9), before, 1, True, True, False)
    same = (before.sizes[:, 0] == before.sizes[:, 1]).all(-1)

    @jax.jit
    def score(b):
        return similarity(b.grids[:, 0], b.sizes[:, 0], b.grids[:, 1], b.sizes[:, 1])

    assert same.sum() > 20
    np.testing.assert_array_equal(score(before)[same], score(after)[same])
