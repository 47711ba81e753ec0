"""What becomes of points: who is compared with whom, taken over, named as wrong, or put down."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from counter import Counter

from worldloom import suites
from worldloom.report.sweeps import write_sweep
from worldloom.training import driver
from worldloom.training.config import make_config, merge
from worldloom.training.run import Run
from worldloom.training.sweeps import study
from worldloom.training.sweeps.search import Range, grid_points
from worldloom.training.sweeps.source import Listed, Search
from worldloom.training.sweeps.sweep import Place, sweep
from worldloom.training.sweeps.together import static_settings
from worldloom.training.sweeps.worker import Worker


def counting_suite(counting, wrong=()):
    """Iterations of ten steps in each world; some numbers of worlds cannot be trained."""

    class Steps(Counter):
        def __init__(self, config):
            super().__init__()
            self.steps_per_iteration = 10 * config.num_worlds

    def problem(config, folder):
        if config.num_worlds in wrong:
            raise ValueError(f"{config.num_worlds} worlds are wrong")
        made = counting.suite.problem(config, folder)
        return replace(made, make_trainer=lambda config, problem: Steps(config))

    return replace(counting.suite, problem=problem)


@pytest.fixture
def down(monkeypatch):
    """Points score the number of their worlds; here are the numbers of those that are put down."""
    found = []
    score = lambda self, point, agents, seed: SimpleNamespace(mean=point.config.num_worlds)  # noqa: E731
    monkeypatch.setattr(Worker, "evaluate", score)
    monkeypatch.setattr(Worker, "_put_down", lambda self, point: found.append(point.task.number))
    return found


GIVEN = {"env": "counting", "steps": 640, "chunk": 100}


def test_points_whose_iterations_differ_in_size_are_compared_at_the_same_steps(
    counting, down, tmp_path
):
    """80 steps are four iterations of the first, and eight of the second."""
    space, search = [("num_worlds", [2, 1])], Search(seeds=1, halving=2)
    rows, path = sweep(counting_suite(counting), GIVEN, space, search, Place(tmp_path))
    assert [row.get("stopped_at") for row in rows] == [None, 80]
    assert down == [1]
    # What the file says of all points does not hang on who wrote it.
    written = json.loads(path.read_text())
    assert (written["config"]["num_worlds"], written["programs"]) == (2, 2)


class Kept(Listed):
    """Points whose worker ends before it can say what they score at a rung."""

    keeps = True

    def __init__(self, points):
        super().__init__(points)
        self.saved, self.rungs, self.ends = {}, [], True

    def stops(self, total):
        return [2]

    def load(self, task, template):
        return self.saved.get(task.number)

    def save(self, task, saved):
        self.saved[task.number] = saved
        return True

    def report(self, task, rung, value):
        if self.ends:
            raise KeyboardInterrupt
        self.rungs.append(rung)
        return super().report(task, rung, value)

    def values(self, rung):
        return [*super().values(rung), 9.0]


def test_a_point_that_is_taken_over_at_a_rung_is_judged_there(counting, down):
    suite, search = counting_suite(counting), Search(seeds=1, halving=2)
    source = Kept(grid_points(suite, GIVEN | {"steps": 80}, [("num_worlds", [1])]))
    tasks = source.ask()

    def rows():
        worker = Worker(suite, search, source)
        return [row for _, row in worker.train(worker.prepare(tasks))]

    with pytest.raises(KeyboardInterrupt):
        rows()
    assert source.saved[0].iteration == 2
    source.ends, source.saved[0] = False, replace(source.saved[0], seconds=100.0)
    (row,) = rows()
    assert (row["stopped_at"], source.rungs, down) == (40, [40], [0])
    assert row["seconds"] >= 100.0, "those of whoever had it before count as well"
    assert len(row["curve"]) == 4


def test_points_that_cannot_be_trained_are_named_and_the_others_trained(
    counting, down, tmp_path, monkeypatch
):
    """Some are no settings, of others only the world knows; a sampler comes to both."""
    pytest.importorskip("optuna", reason="needs worldloom[sweep]")
    make = study.make_point

    def checked(suite, given, values):
        if values["num_worlds"] == 2:
            raise ValueError("never two")
        return make(suite, given, values)

    monkeypatch.setattr(study, "make_point", checked)
    suite, space = counting_suite(counting, wrong=(3,)), [("num_worlds", Range(1, 4, whole=True))]
    search = Search(points=20, seeds=1)
    rows, path = sweep(suite, GIVEN, space, search, Place(tmp_path))
    assert len(rows) == 20
    reasons = {2: "never two", 3: "3 worlds are wrong"}
    assert {row["values"]["num_worlds"] for row in rows} == {1, 2, 3, 4}
    for row in rows:
        assert row.get("error") == reasons.get(row["values"]["num_worlds"])
    written = json.loads(path.read_text())
    assert written["complete"]
    assert (
        "num_worlds=3: not trained: 3 worlds are wrong"
        in write_sweep(written, tmp_path / "sweep.html").read_text()
    )
    none = counting_suite(counting, wrong=(1, 2, 3, 4))
    with pytest.raises(ValueError, match="no point can be trained: "):
        sweep(none, GIVEN, space, search, Place(tmp_path))


def test_runs_that_learn_from_other_logs_are_other_programs():
    """A number of the world is an argument of a program; what was logged under it is not."""
    suite = suites.suite("plant")

    def key(**changes):
        config = make_config(suite, merge({"env": "reactor", "algo": "bc", "steps": 8}, changes))
        return static_settings(config)

    assert key(world={"disturbance": 0.5}) != key(world={"disturbance": 2.0})
    assert key(seed=5, bc={"learning_rate": 0.5}) == key()


def test_a_run_that_is_put_down_is_there_whole_or_not_at_all(counting, tmp_path, monkeypatch):
    class Dies:
        def __init__(self, folder):
            pass

        def close(self):
            pass

        def save(self, iteration, state):
            raise KeyboardInterrupt

    suite, config = counting.suite, counting.config()
    problem = suite.problem(config, None)

    def write():
        run = Run(suite, config, tmp_path / "best", problem, Counter())
        driver.write_stopped(run, {}, {})
        return run

    monkeypatch.setattr(driver, "Checkpoints", Dies)
    with pytest.raises(KeyboardInterrupt):
        write()
    assert not (tmp_path / "best").exists()
    monkeypatch.setattr(Dies, "save", lambda *_: None)
    assert write().folder == tmp_path / "best"
    assert {path.name for path in tmp_path.iterdir()} == {"best"}
    assert (tmp_path / "best" / "config.json").is_file()
