"""What goes wrong in JaxARC 1.0.3 does not go wrong here: one test for each of its defects.

Each docstring says what the peer does. All worlds here have one demonstration and one test pair
on a 30x30 canvas, so that one compiled program serves all tests.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.arc import (
    BoxAction,
    MaskAction,
    Pair,
    Task,
    batch_reset,
    batch_step,
    make_config,
    pack_tasks,
)
from worldloom.suites.arc.environment import start_at, step_worlds
from worldloom.suites.arc.episodes import random_boxes
from worldloom.suites.arc.tasks import read_grid

CANVAS = (30, 30)
(UP, DOWN, LEFT, RIGHT, CLOCKWISE, COUNTER_CLOCKWISE) = range(20, 26)
COPY, PASTE, CUT, CLEAR, COPY_INPUT, RESIZE, SUBMIT = range(28, 35)


def grid_of(drawing):
    return np.array([[int(c) for c in row] for row in drawing.split()])


def config_of(given, answer, **options):
    """Demonstration and test differ in the test's input, which is turned upside down."""
    test = Pair(given[::-1], answer)
    tasks = pack_tasks([Task("peer", (Pair(given, answer),), (test,))], CANVAS)
    return make_config(tasks, **options)


def play(given, *actions, answer="9", **options):
    """One world after (operation, cells) actions: its cells, and what the last step said.

    The cells are a list of (row, column), or ... for all of the canvas.
    """
    config = config_of(grid_of(given), grid_of(answer), **options)
    states, obs = batch_reset(jax.random.key(0)[None], config)
    reward = done = info = None
    for operation, cells in actions:
        mask = np.zeros((1, *CANVAS), bool)
        if cells is ...:
            mask[:] = True
        for row, column in [] if cells is ... else cells:
            mask[0, row, column] = True
        action = MaskAction(jnp.asarray([operation]), jnp.asarray(mask))
        states, obs, reward, done, info = batch_step(states, action, config)
    obs, info = jax.tree.map(lambda x: np.asarray(x)[0], (obs, info))
    height, width = obs.size
    assert not obs.grid[height:].any()
    assert not obs.grid[:, width:].any()
    drawing = " ".join("".join(map(str, row)) for row in obs.grid[:height, :width])
    reward = None if reward is None else float(reward[0])
    done = None if done is None else bool(done[0])
    return SimpleNamespace(
        grid=drawing, obs=obs, reward=reward, done=done, info=info, state=states, config=config
    )


# Operations --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "moved"),
    [
        (UP, "050 060 000"),
        (DOWN, "000 000 050"),
        (LEFT, "000 500 600"),
        (RIGHT, "000 005 006"),
    ],
)
def test_objects_move_the_way_the_operation_says(operation, moved):
    """There, up rolls the contents of the box down, and left rolls them to the right."""
    column = [(1, 1), (2, 1)]
    assert play("000 050 060", (operation, column)).grid == moved


def test_moved_objects_do_not_wrap_around():
    """There, what leaves the box on one side comes in on the other."""
    for operation, left in ((UP, "34 00"), (DOWN, "00 12"), (LEFT, "20 40"), (RIGHT, "01 03")):
        assert play("12 34", (operation, ...)).grid == left


def test_a_single_cell_can_be_moved():
    """There, a box of one cell rolls onto itself."""
    assert play("070 000", (DOWN, [(0, 1)]), (RIGHT, [(1, 1)])).grid == "000 007"


def test_objects_rotate_where_they_are():
    """There, the whole padded canvas turns, and the object lands wherever that takes it."""
    square = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert play("120 340 000", (CLOCKWISE, square)).grid == "310 420 000"
    assert play("120 340 000", (COUNTER_CLOCKWISE, square)).grid == "240 130 000"


def test_boxes_that_are_not_square_can_be_rotated():
    """There, nothing happens."""
    row = [(0, 0), (0, 1), (0, 2)]
    assert play("123 000 000", (CLOCKWISE, row)).grid == "100 200 300"


def test_clearing_everything_touches_no_padding_and_keeps_the_size():
    """There, the padding becomes part of the canvas's colours."""
    after = play("12 34", (CLEAR, []))
    assert after.grid == "00 00"
    np.testing.assert_array_equal(after.obs.size, [2, 2])


def test_copying_the_input_brings_its_size():
    """There, the size of the area stays as it was."""
    after = play("123 456", (RESIZE, [(0, 0)]), (COPY_INPUT, []))
    assert after.grid == "123 456"


def test_a_grid_can_grow():
    """There, the selection is cut to the area first, so that resizing only shrinks."""
    assert play("12 34", (RESIZE, [(2, 3)])).grid == "1200 3400 0000"


def test_flood_fill_goes_on_to_the_end_of_the_region():
    """There, it stops 64 cells from the selected one."""
    snake = np.zeros(CANVAS, int)
    snake[::2] = 1
    snake[1::4, -1] = snake[3::4, 0] = 1
    drawing = " ".join("".join(map(str, row)) for row in snake)
    assert play(drawing, (12, [(0, 0)])).grid == drawing.replace("1", "2")


def test_flood_fill_stays_in_the_area():
    """There, only a special padding colour holds it; here 0 lies on both sides of the edge."""
    after = play("00 00", (15, [(0, 0)]))
    assert after.grid == "55 55"  # play() looks at the rest of the canvas


def test_the_clipboard_holds_the_colour_0():
    """There, 0 is nothing: it is neither copied nor pasted, and moves the corner of what is."""
    after = play("0500 1111", (COPY, [(0, 0), (0, 1)]), (PASTE, [(1, 1)]))
    assert after.grid == "0500 1051"


def test_pasting_needs_only_a_corner():
    """There, only selected cells are written."""
    after = play("12 34 00", (COPY, [(0, 0), (0, 1), (1, 0), (1, 1)]), (PASTE, [(1, 0)]))
    assert after.grid == "12 12 34"


@pytest.mark.parametrize("operation", [-1, 35, 99])
def test_unknown_operations_are_not_taken_for_the_nearest_known_one(operation):
    """There, -1 fills with 0, and 35 and more submit."""
    after = play("12 34", (operation, ...))
    assert after.grid == "12 34"
    assert not after.done
    assert after.info.operation_type == -1


# Scores and ends ---------------------------------------------------------------------------------


def test_a_grid_that_is_too_large_is_not_solved():
    """There, a 5x5 of ones for a 2x2 target of ones has similarity 1 and earns the bonus."""
    ones = " ".join(["11111"] * 5)
    after = play(ones, (SUBMIT, []), answer="11 11")
    assert not after.info.solved
    assert not after.info.size_correct
    np.testing.assert_allclose(after.info.similarity, 4 / 25)
    assert after.reward < 0
    solved = play(ones, (RESIZE, [(1, 1)]), (SUBMIT, []), answer="11 11")
    assert solved.info.solved
    assert solved.reward > 9


def test_a_wrong_submission_does_not_end_the_episode_while_trials_are_left():
    """There, every submission does; ARC allows two or three."""
    wrong = (SUBMIT, [])
    assert not play("1", wrong, wrong, max_trials=3).info.terminated
    assert play("1", wrong, wrong, wrong, max_trials=3).info.terminated
    fixed = play("1", wrong, (9, ...), wrong, max_trials=3)
    assert fixed.info.solved


def test_running_out_of_time_is_not_the_end_of_the_task():
    """There, the discount is 0 in both cases, so that values are not bootstrapped."""
    late = play("1", (0, ...), (0, ...), max_steps=2)
    assert late.done
    assert late.info.truncated
    assert not late.info.terminated
    solved = play("9", (SUBMIT, []), max_steps=2)
    assert solved.done
    assert solved.info.terminated
    assert not solved.info.truncated


def test_the_limit_on_steps_is_applied():
    """There, the limit of a registered environment never reaches it."""
    steps = [(0, ...)] * 4
    for limit, done in ((3, True), (4, True), (5, False)):
        assert play("1", *steps, max_steps=limit).done is done


# Reset and evaluation ----------------------------------------------------------------------------


@pytest.mark.parametrize("evaluation", [False, True])
def test_the_working_grid_starts_as_the_input(evaluation):
    """There, it comes from a draw of its own: another pair's input, in test mode always."""
    answer = grid_of("0")
    tasks = [
        Task(f"{c}", (Pair(grid_of(f"{c}{c}"), answer),), (Pair(grid_of(f"0{c}"), answer),))
        for c in range(1, 9)
    ]
    config = make_config(pack_tasks(tasks, CANVAS), evaluation=evaluation)
    states, obs = batch_reset(jax.random.split(jax.random.key(0), 40), config)
    np.testing.assert_array_equal(obs.grid, obs.input)
    np.testing.assert_array_equal(obs.size, obs.input_size)
    assert len(set(np.asarray(states.pair).tolist())) > 4
    first = np.asarray(obs.grid)[:, 0, 0]
    assert (first == 0).all() if evaluation else (first > 0).all()  # test pairs, or demonstrations


@pytest.mark.parametrize("start", ["blank", "target_blank", "curriculum"])
def test_every_start_keeps_to_its_area(start):
    """There, a start by permutation turns the padded canvas, and gives the padding a colour."""
    config = config_of(grid_of("123 456"), grid_of("78 78 78"), start=start, start_edits=2)
    _, obs = batch_reset(jax.random.split(jax.random.key(0), 40), config)
    expected = (2, 3) if start == "blank" else (3, 2)
    assert set(map(tuple, np.asarray(obs.size).tolist())) == {expected}
    outside = np.ones(CANVAS, bool)
    outside[: expected[0], : expected[1]] = False
    grids = np.asarray(obs.grid)
    assert not grids[:, outside].any()
    changed = (grids[:, :3, :2] != [[7, 8]] * 3).sum((1, 2))
    if start == "curriculum":
        assert set(changed.tolist()) == {0, 1, 2}  # an edit may paint what is there
    else:
        assert not grids.any()


def test_a_test_pair_can_be_solved():
    """There, the target is wiped in test mode: even the right answer counts as wrong."""
    after = play("12 34", (9, ...), (RESIZE, [(0, 0)]), (SUBMIT, []), evaluation=True)
    np.testing.assert_array_equal(after.obs.input[:2, :2], [[3, 4], [1, 2]])  # the test's input
    assert after.info.solved
    np.testing.assert_allclose(after.reward, 10 - 0.01, rtol=1e-6)
    assert not play("12 34", (SUBMIT, []), evaluation=True).info.solved


def test_similarity_pays_nothing_in_evaluation_but_is_reported():
    """There, it is always 0 in test mode."""
    after = play("19", (RESIZE, [(0, 0)]), (9, ...), evaluation=True)
    assert after.info.similarity == 1
    np.testing.assert_allclose(after.reward, -0.01, rtol=1e-6)


# Masks -------------------------------------------------------------------------------------------


def test_operations_that_are_not_allowed_are_not_carried_out():
    """There, operation 7 is executed where only 0, 1 and 34 are allowed."""
    allowed = {"operations": (0, 1, 34)}
    refused = play("22", (7, ...), **allowed)
    assert refused.grid == "22"
    assert refused.info.operation_type == -1
    assert play("22", (1, ...), **allowed).grid == "11"


def test_the_mask_is_seen():
    """There, neither observations nor extras tell what is allowed."""
    after = play("22", (0, ...), operations=(0, 1, 34))
    np.testing.assert_array_equal(np.flatnonzero(after.obs.operation_mask), [0, 1, 34])


def test_each_world_has_a_mask_of_its_own():
    config = config_of(grid_of("22"), grid_of("9"))
    states = start_at(jnp.zeros(1, jnp.int32), jax.random.key(0)[None], config)
    action = MaskAction(jnp.asarray([7]), jnp.ones((1, *CANVAS), bool))
    for allowed, colour in ((True, 7), (False, 2)):
        mask = states.operation_mask.at[0, 7].set(allowed)
        _, obs, *_ = batch_step(states.replace(operation_mask=mask), action, config)
        assert obs.grid[0, 0, 0] == colour


# Observations ------------------------------------------------------------------------------------


def test_observations_keep_to_colours_and_show_sizes():
    """There, the padding is -1 in a space that begins at 0, and no size is shown."""
    after = play("12 34", (COPY, [(0, 1), (1, 1)]), (0, []))
    for name in ("grid", "input", "clipboard"):
        cells = getattr(after.obs, name)
        assert cells.dtype == np.int8
        assert cells.min() >= 0
        assert cells.max() <= 9
    np.testing.assert_array_equal(after.obs.size, [2, 2])
    np.testing.assert_array_equal(after.obs.clipboard_size, [2, 1])
    assert after.obs.step_count == 2
    assert after.obs.trials == 3


def answers_apart(evaluation, demonstrations):
    """Two configurations whose tasks differ in the targets of the pairs that are played only."""
    rng = np.random.default_rng(0)

    def pair(answer):
        given = rng.integers(0, 10, rng.integers(1, 9, 2))
        return given, rng.integers(0, 10, rng.integers(1, 9, 2)) if answer is None else answer

    plain = [[pair(None) for _ in range(4)] for _ in range(5)]
    # Of each task, the last pair is the test. Targets shown as demonstrations must stay.
    changed = range(3, 4) if evaluation else range(4)
    configs = []
    for other in (False, True):
        tasks = []
        for number, task in enumerate(plain):
            pairs = [
                Pair(given, given[::-1] + 0 if other and i in changed else answer)
                for i, (given, answer) in enumerate(task)
            ]
            tasks.append(Task(str(number), tuple(pairs[:3]), tuple(pairs[3:])))
        options = {"evaluation": evaluation, "demonstrations": demonstrations, "max_steps": 8}
        configs.append(make_config(pack_tasks(tasks, CANVAS), **options))
    return configs


@pytest.mark.parametrize(("evaluation", "demonstrations"), [(False, 0), (True, 0), (True, 2)])
def test_observations_do_not_depend_on_the_target(evaluation, demonstrations):
    """There, the baselines' default observation has the answer as a channel."""
    configs = answers_apart(evaluation, demonstrations)
    assert not np.array_equal(configs[0].tasks.grids, configs[1].tasks.grids)
    keys = jax.random.split(jax.random.key(2), 24)
    worlds = [batch_reset(keys, config) for config in configs]
    scores = []
    for t in range(21):
        (states, obs), (other_states, other_obs) = worlds
        jax.tree.map(np.testing.assert_array_equal, obs, other_obs)
        scores.append([np.asarray(states.similarity), np.asarray(other_states.similarity)])
        action = random_boxes(jax.random.key(t), states.operation_mask, CANVAS)
        some = jnp.arange(24) % 6 == t % 6  # submissions, right ones among them
        action = action.replace(operation=jnp.where(some, SUBMIT, action.operation))
        worlds = [
            batch_step(state, action, config)[:2]
            for (state, _), config in zip(worlds, configs, strict=True)
        ]
    first, second = np.swapaxes(scores, 0, 1)
    assert (first != second).mean() > 0.5  # the targets did differ


def test_the_own_pair_is_not_among_the_demonstrations():
    """Else the answer would come in by a side door."""
    pairs = tuple(Pair(grid_of(f"{c}"), grid_of(f"{c}{c}")) for c in range(1, 5))
    config = make_config(pack_tasks([Task("own", pairs, ())], CANVAS), demonstrations=4)
    _, obs = batch_reset(jax.random.split(jax.random.key(0), 16), config)
    own, shown = np.asarray(obs.input)[:, 0, 0], obs.demonstrations
    for i in range(16):
        present = np.asarray(shown.present[i])
        colours = np.asarray(shown.input)[i, present, 0, 0]
        assert sorted([own[i], *colours]) == [1, 2, 3, 4]
        outputs = np.asarray(shown.output)[i]
        np.testing.assert_array_equal(outputs[present, 0, 1], colours)
        assert not outputs[~present].any()


# Cost --------------------------------------------------------------------------------------------


def traced_step():
    config = config_of(grid_of("12"), grid_of("9"))
    states = start_at(jnp.zeros(4, jnp.int32), jax.random.split(jax.random.key(0), 4), config)
    action = BoxAction(*(jnp.zeros(4, jnp.int32) for _ in range(5)))
    return jax.make_jaxpr(step_worlds)(states, action, config), states, config


def test_a_step_has_no_callback_and_no_branch():
    """There, checks put callbacks into the program, and five nested branches are all computed."""
    program, _, _ = traced_step()
    text = str(program)
    assert "while[" in text  # so are primitives written, within loops too
    assert "cond[" not in text
    assert "callback" not in text


def test_the_tasks_are_an_argument_of_the_program():
    """There, 45 MiB of tasks are compiled in as a constant."""
    program, _, _ = traced_step()
    assert sum(np.asarray(constant).nbytes for constant in program.consts) < 4096


def test_worlds_and_pairs_are_small():
    """There, a world takes 18.1 KB and a task 117 KB, or some 20 KB a pair."""
    _, states, config = traced_step()
    world = sum(leaf.nbytes for leaf in jax.tree.leaves(states)) / 4
    pair = sum(leaf.nbytes for leaf in jax.tree.leaves(config.tasks)) / config.tasks.num_pairs
    assert world < 1200
    assert pair < 1200


def test_colours_written_as_strings_and_missing_cells_are_read():
    """There, none of 149 such files of Mini-ARC loads."""
    np.testing.assert_array_equal(read_grid([["1", None], [0, "9"]], "here"), [[1, 0], [0, 9]])
