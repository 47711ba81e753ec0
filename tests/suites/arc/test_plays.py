"""What people did as data: plays become point actions in the world to train in, and are learned."""

import json

import jax
import numpy as np
import pytest

import worldloom
from worldloom.suites.arc.game import Game, LeftOut, is_play, point_actions, replay
from worldloom.suites.arc.operations import CLEAR, RESIZE, SUBMIT, UP
from worldloom.suites.arc.problem import load_tasks, make_problem
from worldloom.suites.arc.suite import SUITE
from worldloom.suites.arc.tasks import Pair, Task
from worldloom.training.config import make_config

pytestmark = pytest.mark.usefixtures("compiled_once")


def grid(*rows):
    return np.array([[int(c) for c in row] for row in rows], np.int8)


# Whatever is 1 becomes 2; the grid loses its last row.
TASK = Task(
    "recolour",
    (
        Pair(grid("110", "000", "001"), grid("220", "000")),
        Pair(grid("010", "001", "000"), grid("020", "002")),
    ),
    (Pair(grid("001", "000", "000"), grid("002", "000")),),
)


def cells(*points, shape=(3, 3)):
    mask = np.zeros(shape, bool)
    for point in points:
        mask[point] = True
    return mask


@pytest.fixture(scope="module")
def plays(tmp_path_factory):
    """A folder with two plays of demonstrations, one of a test pair, and one with a move."""
    folder = tmp_path_factory.mktemp("plays")
    whole = np.ones((3, 3), bool)
    game = Game(TASK, folder)
    game.start(0)
    game.step(2, cells((0, 0), (0, 1)))
    game.step(RESIZE, cells((0, 0), (1, 2)))
    game.step(SUBMIT, cells())
    assert game.solved
    game.save()
    game.start(1)
    game.step(CLEAR, cells((0, 1)))
    game.step(2, cells((0, 1), (1, 2), (1, 1)))
    game.step(0, cells((1, 1)))
    game.step(RESIZE, cells((1, 2)))
    game.step(SUBMIT, whole)
    game.save()
    game.start(2)
    game.step(2, whole)
    game.save()
    game.start(0)
    game.step(UP, whole)
    game.save()
    return folder


@pytest.fixture(scope="module")
def settings(plays, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "recolour.json").write_text(json.dumps(TASK.to_json()))
    return {
        "env": "arc",
        "algo": "bc",
        "tasks": folder,
        "dataset": plays,
        "attempts": 0,
        "steps": 600,
        "bc": {"updates_per_iteration": 200, "batch_size": 16, "hidden": (32, 32)},
    }


def saved(plays, number):
    return sorted(plays.glob("*.npz"), key=lambda path: path.stat().st_mtime_ns)[number]


def test_a_fill_of_many_cells_is_as_many_points(plays, settings):
    rules = make_problem(make_config(SUITE, settings)).env.default_params()
    with np.load(saved(plays, 0)) as arrays:
        first = point_actions(dict(arrays), rules)
    assert first == [2 * 9 + 0, 2 * 9 + 1, RESIZE * 9 + 5, SUBMIT * 9]
    with np.load(saved(plays, 1)) as arrays:
        second = point_actions(dict(arrays), rules)
    fills = [0 * 9 + 1, 2 * 9 + 1, 2 * 9 + 4, 2 * 9 + 5, 0 * 9 + 4]
    assert second == [*fills, RESIZE * 9 + 5, SUBMIT * 9]


def test_a_replay_ends_solved_in_the_world_to_train_in(plays, settings):
    config = make_config(SUITE, settings)
    rules = make_problem(config).env.default_params()
    tasks = load_tasks(config.settings)
    columns = replay(saved(plays, 0), tasks, rules)
    before, after = columns["obs"], columns["next_obs"]
    assert columns["terminated"].tolist() == [False, False, False, True]
    assert not columns["truncated"].any()
    assert columns["reward"][-1] == pytest.approx(rules.success_bonus + rules.step_penalty)
    np.testing.assert_array_equal(before.grid[1:], after.grid[:-1])
    np.testing.assert_array_equal(before.step_count, [0, 1, 2, 3])
    assert before.grid.shape == (4, 3, 3)
    for number, why in ((2, "test 1 is for evaluation"), (3, "step 1, move up, is of many cells")):
        with pytest.raises(LeftOut, match=why):
            replay(saved(plays, number), tasks, rules)


@pytest.mark.slow
def test_bc_learns_what_was_played_and_says_what_it_left_out(settings, tmp_path):
    given = {name: value for name, value in settings.items() if name not in ("env", "algo")}
    run = worldloom.train("arc", algo="bc", out=tmp_path / "run", report=False, **given)
    assert run.evaluation.mean == 1.0
    about = json.loads((tmp_path / "run" / "config.json").read_text())["data"]
    assert about["plays"] == "2"
    assert "test 1 is for evaluation" in about["left out"]
    obs = jax.tree.map(
        lambda x: x[None],
        run.problem.env.reset(jax.random.key(0), run.problem.env.default_params())[1].obs,
    )
    assert run.act(obs).shape == (1,)


def test_a_folder_without_plays_is_refused_with_the_reason(plays, settings, tmp_path):
    assert is_play(saved(plays, 0))
    assert not is_play(__file__)
    with pytest.raises(ValueError, match="no play to learn from \\(there is no npz file in it\\)"):
        make_problem(make_config(SUITE, settings | {"dataset": tmp_path})).data()
    only = saved(plays, 2)
    with pytest.raises(ValueError, match="test 1 is for evaluation"):
        make_problem(make_config(SUITE, settings | {"dataset": only})).data()
    with pytest.raises(ValueError, match="bc learns from logged data"):
        worldloom.train("arc", algo="bc", out=tmp_path / "run")
