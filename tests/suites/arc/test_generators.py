"""Rule families: their solutions lead to their answers, and rules can be seen in demonstrations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core import stack
from worldloom.suites.arc import make_config, planes, selectors
from worldloom.suites.arc.environment import start_at, step_worlds
from worldloom.suites.arc.generators.drawing import (
    FAMILIES,
    HELD_OUT,
    TRAINED,
    draw_examples,
    family_names,
    generate,
    to_buffer,
)
from worldloom.suites.arc.generators.grids import MOST_EDITS, Level
from worldloom.suites.arc.types import ObjectAction

PAIRS = 4
SOME = (
    "flip rows",
    "repair columns",
    "colour by size",
    "fill gaps",
    "connect two",
    "copy to marker",
    "count in a column",
)


def ends(examples, grid_shape):
    """Plays the solutions as object actions: solved (T, P), and whether all were selectable."""
    buffer = to_buffer(examples, PAIRS)
    rules = make_config(buffer, extended=True, max_trials=1)
    total = selectors.count_selectors(grid_shape)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), examples)
    pairs = jnp.arange(buffer.num_pairs)

    @jax.jit
    def play(rules, operations, selections):
        def one(state, edit):
            operation, cells = edit
            grid = planes.unpack(state.grid, grid_shape).astype(jnp.int32)
            found = selectors.selectable(grid, state.size)
            action = operation * total + selectors.selector_of(operation, cells, found)
            mask = selectors.object_action_mask(
                state.operation_mask, found.usable, state.size, grid_shape
            )
            offered = jnp.take_along_axis(mask, action[:, None], axis=1)[:, 0]
            over = state.trials == 0
            new = step_worlds(state, ObjectAction(action), rules)[0]
            return stack.where(over, state, new), offered | over

        start = start_at(pairs, jax.random.split(jax.random.key(0), len(pairs)), rules)
        return jax.lax.scan(one, start, (operations, selections))

    state, offered = play(rules, flat.operations.swapaxes(0, 1), flat.selections.swapaxes(0, 1))
    return np.asarray(state.solved).reshape(-1, PAIRS), np.asarray(offered).all(0)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SOME, id="some"),
        pytest.param(
            tuple(n for n in FAMILIES if n not in SOME), id="rest", marks=pytest.mark.nightly
        ),
    ],
)
def test_solutions_in_object_actions_give_the_answers(names):
    examples = draw_examples(jax.random.key(3), names, 2, PAIRS, Level())
    solved, offered = ends(examples, (10, 10))
    by_family = solved.reshape(len(names), -1).all(1)
    assert by_family.all(), [n for n, all_ in zip(names, by_family, strict=True) if not all_]
    assert offered.all()
    # Few decisions, and every input is a grid within its canvas.
    assert (np.asarray(examples.operations) != 34).sum(-1).max() < MOST_EDITS
    rows, columns = np.indices((10, 10))
    size = np.asarray(examples.input_size)[..., None, None]
    outside = (rows >= size[:, :, 0]) | (columns >= size[:, :, 1])
    assert not np.asarray(examples.input)[outside].any()


@pytest.fixture(scope="module")
def drawn():
    """Tasks of families whose rule numpy can state."""
    names = ("flip rows", "turn clockwise", "swap", "count in a column", "mirror beside")
    return generate(names, per_family=2, seed=5, tests=1)


def test_answers_follow_the_rule_as_numpy_states_it(drawn):
    def counted(a):
        return np.full((np.count_nonzero(a), 1), a.max())

    rules = {
        "flip rows": np.flipud,
        "turn clockwise": lambda a: np.rot90(a, -1),
        "count in a column": counted,
        "mirror beside": lambda a: np.hstack([a, np.fliplr(a)]),
    }
    for name, rule in rules.items():
        for task in drawn.subset(name):
            for pair in task.pairs:
                np.testing.assert_array_equal(pair.output, rule(pair.input), err_msg=task.name)


def test_pairs_of_a_task_share_its_colours_and_differ_in_their_cells(drawn):
    for task in drawn.subset("swap"):
        maps = [dict(zip(p.input.ravel(), p.output.ravel(), strict=True)) for p in task.pairs]
        assert all(one == maps[0] for one in maps)
        assert len({p.input.tobytes() for p in task.pairs}) == len(task.pairs)
    first, second = (task.pairs[0].input for task in drawn.subset("swap"))
    assert first.shape != second.shape or (first != second).any()


def test_a_key_decides_what_is_drawn():
    same, again = (generate(("fall",), per_family=1, seed=2) for _ in range(2))
    other = generate(("fall",), per_family=1, seed=3)
    assert same.to_json() == again.to_json() != other.to_json()


def test_families_of_one_program_are_compiled_once():
    def length(names):
        draw = jax.jit(lambda key: draw_examples(key, names, 1, 2, Level()))
        return len(draw.lower(jax.random.key(0)).as_text())

    relatives = [n for n in FAMILIES if FAMILIES[n].draw is FAMILIES["flip rows"].draw]
    assert len(relatives) > 5
    assert length(relatives) < 1.2 * length(relatives[:1])


def test_an_object_that_crosses_the_largest_grid_has_a_solution():
    """As far as one can move is as many edits as a solution can have."""
    level = Level(side=14)
    examples = draw_examples(jax.random.key(1), ("fall", "slide right"), 16, PAIRS, level)
    solved, offered = ends(examples, (14, 14))
    assert solved.all()
    assert offered.all()


def test_families_are_forty_and_more_and_those_held_out_are_not_trained():
    assert len(FAMILIES) >= 40
    assert not set(HELD_OUT) & set(TRAINED)
    assert set(family_names(("all",))) == set(HELD_OUT) | set(TRAINED)
    with pytest.raises(ValueError, match=r"no family 'flop rows'.*flip rows"):
        family_names(("flop rows",))
    with pytest.raises(ValueError, match="side=40"):
        Level(side=40)
