"""The host's part of a run alone: its trainer only counts, so nothing is compiled."""

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from worldloom import suites
from worldloom.training import driver, run
from worldloom.training.checkpoint import Checkpoints
from worldloom.training.config import make_config
from worldloom.training.driver import Hook, Plan, plan_of
from worldloom.training.run import Run, load, train


def newest(folder: Path) -> int | None:
    checkpoints = Checkpoints(folder / "checkpoints")
    try:
        return checkpoints.latest
    finally:
        checkpoints.close()


class Interrupt(Hook):
    """Presses Ctrl-C at one of the occasions of a hook."""

    def __init__(self, occasion: str, number: int = signal.SIGINT):
        setattr(self, occasion, lambda *_: os.kill(os.getpid(), number))


class Watch(Hook):
    """Notes what it is told."""

    def __init__(self):
        self.noted = []

    def on_start(self, run):
        self.noted.append("start")

    def on_iterations(self, run, rows):
        self.noted.append([row["iteration"] for row in rows])

    def on_evaluation(self, run, evaluation):
        self.noted.append(f"evaluation at {run.steps}")

    def on_record(self, run):
        self.noted.append(f"record at {run.steps}")

    def on_end(self, run):
        self.noted.append("end")

    def close(self):
        self.noted.append("close")


# Plans -------------------------------------------------------------------------------------------


def test_periods_in_steps_become_whole_iterations(counting):
    config = counting.config(steps=501, eval_every=14, checkpoint_every=16, record_every=4, chunk=3)
    assert plan_of(config, 10) == Plan(51, 3, 1, 2, 1)  # the budget is reached, never missed
    assert plan_of(counting.config(eval_every=0, checkpoint_every=0), 10) == Plan(6, 2, 0, 0, 0)


def test_the_next_stop_is_whatever_comes_first():
    plan, stops, now = Plan(total=50, chunk=10, eval_every=20, checkpoint_every=7), [], 0
    while now < plan.total:
        now = plan.next_stop(now)
        stops.append(now)
    assert stops == [7, 10, 14, 20, 21, 28, 30, 35, 40, 42, 49, 50]


def test_hooks_are_told_what_happens_in_order(counting, tmp_path):
    watch = Watch()
    config = counting.config(steps=50, eval_every=40, record_every=20)
    train(counting.suite, config, tmp_path / "run", hooks=[watch])
    assert watch.noted == [
        "start", [1, 2], "record at 20", [3, 4], "evaluation at 40", "record at 40", [5],
        "evaluation at 50", "end", "close",
    ]  # fmt: skip


def test_hooks_see_tables_that_the_metrics_leave_out(counting, tmp_path, read_rows):
    shapes = []

    class Tables(Hook):
        def on_iterations(self, run, rows):
            shapes.extend(row["turn_rewards"].shape for row in rows)

    train(counting.suite, counting.config(), tmp_path / "run", hooks=[Tables()])
    assert shapes == [(3, 2)] * 6
    row = read_rows(tmp_path / "run" / "metrics.jsonl")[2]
    assert row.pop("seconds") >= 0
    assert row == {"iteration": 3, "steps": 30, "return": 2.0, "agent_returns": [2.0, 2.5]}


# Ends before the end -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("occasion", "iteration"),
    [("on_start", 0), ("on_iterations", 2), ("on_evaluation", 2), ("on_record", 3)],
)
def test_ctrl_c_between_chunks_loses_nothing(
    counting, tmp_path, capsys, read_rows, occasion, iteration
):
    config, folder = counting.config(checkpoint_every=0, record_every=30), tmp_path / "stopped"
    before = signal.getsignal(signal.SIGINT)
    result = train(counting.suite, config, folder, hooks=[Interrupt(occasion)])
    assert signal.getsignal(signal.SIGINT) is before
    assert "Ctrl-C again to stop at once" in capsys.readouterr().err
    assert result.interrupted
    assert result.iteration == newest(folder) == iteration
    assert json.loads((folder / "timing.json").read_text())["iterations"] == iteration
    resumed = train(counting.suite, config, folder, resume=True)
    assert not resumed.interrupted
    assert resumed.iteration == 6
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == list(range(1, 7))


def test_sigterm_ends_a_run_as_ctrl_c_does(counting, tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    hooks = [Interrupt("on_iterations", signal.SIGTERM)]
    result = train(counting.suite, counting.config(), tmp_path / "run", hooks=hooks)
    assert signal.getsignal(signal.SIGTERM) is before
    assert "stopping after this chunk" in capsys.readouterr().err
    assert (result.interrupted, result.iteration, newest(result.folder)) == (True, 2, 2)
    assert train(counting.suite, counting.config(), result.folder, resume=True).iteration == 6


def test_ctrl_c_while_a_header_is_written_loses_nothing(counting, tmp_path):
    """Suites score random play for it, which may take a while."""

    def interrupted(run):
        os.kill(os.getpid(), signal.SIGINT)
        return {"turn_order": None}

    counting.about, usual = interrupted, counting.about
    result = train(counting.suite, counting.config(), tmp_path / "stopped")
    assert result.interrupted
    assert newest(tmp_path / "stopped") == 0
    counting.about = usual
    assert train(counting.suite, counting.config(), tmp_path / "stopped", resume=True).steps == 60


def test_ctrl_c_in_a_process_that_follows_waits_for_what_the_leader_says(
    counting, tmp_path, monkeypatch, capsys
):
    class Interrupted(counting.trainer):
        def advance(self, iterations):
            if self.iteration == 0:
                os.kill(os.getpid(), signal.SIGINT)
            return super().advance(iterations)

    answers = iter([False, False, True])
    monkeypatch.setattr(driver, "leads", lambda: False)
    monkeypatch.setattr(driver, "agreed", lambda flag: next(answers))
    before, config = signal.getsignal(signal.SIGINT), counting.config()
    problem = counting.suite.problem(config, None)
    follower = Run(counting.suite, config, tmp_path / "run", problem, Interrupted())
    driver.drive(follower, hooks=[Watch()])
    assert (follower.iteration, follower.interrupted) == (4, True)
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err == ""
    assert not follower.folder.exists(), "a follower writes nothing"


def test_a_run_that_diverges_stops_and_keeps_its_last_good_checkpoint(
    counting, tmp_path, monkeypatch, read_rows
):
    monkeypatch.setattr(counting.trainer, "fails_at", 3)
    watch, folder = Watch(), tmp_path / "run"
    with pytest.raises(ValueError, match="step 40: rewards or losses are no longer finite; lower"):
        train(counting.suite, counting.config(), folder, hooks=[watch])
    assert newest(folder) == 2
    assert len(read_rows(folder / "metrics.jsonl")) == 4, "the rows that show what went wrong"
    assert watch.noted[-1] == "close"
    assert "end" not in watch.noted


def test_a_run_whose_hook_fails_closes_the_others_and_keeps_its_checkpoint(counting, tmp_path):
    class Fails(Hook):
        def on_end(self, run):
            raise RuntimeError("no picture")

    watch = Watch()
    with pytest.raises(RuntimeError, match="no picture"):
        train(counting.suite, counting.config(), tmp_path / "run", hooks=[Fails(), watch])
    assert watch.noted[-1] == "close"
    assert newest(tmp_path / "run") == 6


def test_a_full_disk_says_what_was_kept(counting, tmp_path, contents):
    """Whatever fails first; what is closed afterwards may fail once more."""

    class Full(Hook):
        def on_iterations(self, run, rows):
            if run.iteration == full_at:
                raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    for full_at, kept in ((2, "holds no checkpoint yet"), (4, "keeps its checkpoint of step 20:")):
        watch, folder = Watch(), tmp_path / str(full_at)
        with pytest.raises(OSError, match=kept) as told:
            train(counting.suite, counting.config(), folder, hooks=[Full(), watch])
        assert told.value.errno == errno.ENOSPC
        assert "\n" not in str(told.value)
        assert str(told.value).count("No space left on device") == 1
        assert watch.noted[-1] == "close"
        assert not (folder / ".lock").exists()
    assert train(counting.suite, counting.config(), folder, resume=True).iteration == 6


# Damage ------------------------------------------------------------------------------------------


def harm(step: Path) -> None:
    for path in step.rglob("d/*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    counting, tmp_path, capsys, read_rows
):
    folder = tmp_path / "run"
    train(counting.suite, counting.config(), folder)
    harm(folder / "checkpoints" / "6")
    assert load(counting.suite, folder).iteration == 4
    assert newest(folder) == 6, "who only reads changes nothing"
    assert "checkpoints/6 is damaged" in capsys.readouterr().err
    result = train(counting.suite, counting.config(steps=80), folder, resume=True)
    assert capsys.readouterr().err.count("\n") == 1
    assert result.iteration == newest(folder) == 8
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {"6", "8", "6.damaged-1"}
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == list(range(1, 9))
    for step in ("6", "8"):
        harm(folder / "checkpoints" / step)
    with pytest.raises(ValueError, match=r"8 is damaged .*train from the start") as told:
        load(counting.suite, folder)
    assert "\n" not in str(told.value)


def test_a_changed_config_is_refused_in_one_line(counting, tmp_path, contents):
    folder = tmp_path / "run"
    train(counting.suite, counting.config(), folder)
    path = folder / "config.json"
    whole = path.read_text()
    for old, new in (('"seed": 0', '"seed": 1'), ('"steps": 60', '"steps": 90')):
        assert old in whole
        path.write_text(whole.replace(old, new))
        before = contents(folder)
        for read in (
            lambda: load(counting.suite, folder),
            lambda: train(counting.suite, counting.config(), folder, resume=True),
        ):
            with pytest.raises(ValueError, match=r"config\.json was changed after") as told:
                read()
            assert len(str(told.value)) - len(str(path)) < 250
            assert "\n" not in str(told.value)
        assert contents(folder) == before
    # Taken as it is by those who say so, and by runs that are older than the sum.
    header = json.loads(whole)
    assert header.pop("sha256")
    path.write_text(json.dumps(header))
    assert load(counting.suite, folder).iteration == 6
    path.write_text(whole)
    assert load(counting.suite, folder).iteration == 6


def test_a_bad_byte_in_the_metrics_costs_its_line_alone(counting, tmp_path, capsys, read_rows):
    folder = tmp_path / "run"
    train(counting.suite, counting.config(), folder)
    for name in ("metrics.jsonl", "eval.jsonl"):
        path = folder / name
        path.write_bytes(path.read_bytes().replace(b'{"iteration": 2', b'{"iteration\xfe: 2'))
    train(counting.suite, counting.config(steps=80), folder, resume=True)
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [1, 3, 4, 5, 6, 7, 8]
    assert [row["iteration"] for row in read_rows(folder / "eval.jsonl")] == [4, 6, 8]
    told = capsys.readouterr().err
    assert "metrics.jsonl: 1 of 6 lines are damaged" in told
    assert told.count("\n") == 2
    assert (folder / "metrics.jsonl.damaged-1").read_bytes().count(b"\n") == 6


# Folders -----------------------------------------------------------------------------------------


def test_a_run_turns_the_compilation_cache_on(counting, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(run, "use_compilation_cache", lambda: asked.append(True))
    train(counting.suite, counting.config(), tmp_path / "run")
    assert asked == [True]


def test_pictures_and_the_page_are_made_only_where_they_are_asked_for(counting, tmp_path):
    from dataclasses import replace

    pages, watches = [], []

    def problem(config, folder):
        watches.append(Watch())
        made = counting.suite.problem(config, folder)
        return replace(made, hooks=[watches[-1]], pictures=[watches[-1]])

    suite = replace(counting.suite, problem=problem, page=pages.append)
    train(suite, counting.config(), tmp_path / "quiet", report=False)
    train(suite, counting.config(), tmp_path / "shown")
    assert [watch.noted.count("end") for watch in watches] == [1, 2]
    assert pages == [tmp_path / "shown"]


WORLD = """
name: meadow
num_agents: 2
horizon: 10
map: |
  #####
  #...#
  #...#
  #####
kinds:
  Empty: {glyph: ".", color: [0, 0, 0], becomes: {Berry: 0.1}}
  Wall: {glyph: "#", color: [88, 92, 108], value: -1, passable: false}
  Berry: {glyph: "o", color: [214, 60, 90], value: 1}
  Agent: {glyph: "A", color: [64, 120, 220], passable: false}
"""


def test_a_run_keeps_the_file_of_its_world(counting, tmp_path):
    from dataclasses import replace

    grid = suites.suite("grid")

    def problem(config, folder):
        made = counting.suite.problem(config, folder)
        own = grid.problem(config, folder)
        return replace(made, env=own.env, files=own.files, check_resume=own.check_resume)

    suite = replace(counting.suite, problem=problem, settings=grid.settings)
    path, folder = tmp_path / "meadow.yaml", tmp_path / "run"
    path.write_text(WORLD)

    def config(steps):
        return make_config(suite, {"env": str(path), "steps": steps, "num_worlds": 2})

    train(suite, config(20), folder)
    assert (folder / "world.yaml").read_text() == WORLD
    assert train(suite, config(40), folder, resume=True).steps == 40
    # Gone: the run goes on in the world that it knows.
    path.unlink()
    assert train(suite, config(60), folder, resume=True).steps == 60
    assert load(suite, folder).problem.env.spec.name == "meadow"
    # Edited since the start: that is another world.
    path.write_text(WORLD.replace("value: 1}", "value: 5}"))
    with pytest.raises(ValueError, match=r"was trained in another world: .* has changed since"):
        train(suite, config(80), folder, resume=True)


def test_a_half_written_checkpoint_is_ignored(counting, tmp_path):
    folder = tmp_path / "run"
    train(counting.suite, counting.config(), folder)
    half = folder / "checkpoints" / "8.orbax-checkpoint-tmp-1234"
    (half / "default").mkdir(parents=True)
    (half / "default" / "_METADATA").write_text("{")
    assert newest(folder) == 6
    result = train(counting.suite, counting.config(steps=80), folder, resume=True)
    assert result.iteration == newest(folder) == 8


def test_a_run_killed_before_its_first_checkpoint_says_so(counting, tmp_path, contents):
    folder = tmp_path / "run"
    train(counting.suite, counting.config(), folder)
    shutil.rmtree(folder / "checkpoints")
    before = contents(folder)
    with pytest.raises(ValueError, match="holds no complete checkpoint: it was stopped before"):
        train(counting.suite, counting.config(steps=90), folder, resume=True)
    (folder / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="holds no complete checkpoint: it was stopped before"):
        load(counting.suite, folder)
    assert contents(folder) == before


def test_a_run_folder_is_for_one_process(counting, tmp_path, contents):
    folder, told = tmp_path / "run", []

    class Second(Hook):
        def on_record(self, run):
            before = contents(folder)
            for options in ({"resume": True}, {}):
                second = Run(run.suite, run.config, folder, run.problem, counting.trainer())
                with pytest.raises(ValueError, match="is being trained by process") as error:
                    driver.drive(second, **options)
                told.append(str(error.value))
            assert contents(folder) == before
            assert load(counting.suite, folder).iteration in (2, 6), "others may read"

    train(counting.suite, counting.config(record_every=30), folder, hooks=[Second()])
    assert len(told) == 4
    assert all(f"by process {os.getpid()};" in line for line in told)
    assert not (folder / ".lock").exists()
    # What a killed process leaves behind holds nobody up.
    (folder / ".lock").write_text("1")
    assert train(counting.suite, counting.config(steps=80), folder, resume=True).iteration == 8


def test_a_run_is_not_resumed_backwards(counting, tmp_path, contents):
    folder = tmp_path / "run"
    train(counting.suite, counting.config(), folder)
    before = contents(folder)
    with pytest.raises(ValueError, match="is at step 60 already; steps=40 is behind it"):
        train(counting.suite, counting.config(steps=40), folder, resume=True)
    assert contents(folder) == before


def test_a_run_of_the_first_version_is_refused_in_one_line(counting, tmp_path):
    about = {"worldloom": "0.1.0", "config": {"env": "treasurehunt", "epochs": 80}, "versions": {}}
    (tmp_path / "config.json").write_text(json.dumps(about))
    for read in (
        lambda: load(counting.suite, tmp_path),
        lambda: train(counting.suite, counting.config(), tmp_path, resume=True),
    ):
        with pytest.raises(
            ValueError, match=r"was written by worldloom 0\.1.*train again"
        ) as error:
            read()
        assert "\n" not in str(error.value)


def test_the_clock_of_a_loaded_run_is_that_of_its_files(counting, tmp_path):
    folder = tmp_path / "run"
    trained = train(counting.suite, counting.config(), folder)
    loaded = load(counting.suite, folder)
    assert loaded.train_seconds == pytest.approx(trained.train_seconds, abs=1e-3)
    assert loaded.eval_seconds == trained.eval_seconds == 3 * 0.25
    names = ("iterations", "steps", "eval_seconds")
    assert {n: loaded.timing()[n] for n in names} == {n: trained.timing()[n] for n in names}


def test_metrics_come_by_column(counting, tmp_path):
    run = train(counting.suite, counting.config(), tmp_path / "run")
    metrics = run.metrics()
    assert metrics["steps"].tolist() == [10, 20, 30, 40, 50, 60]
    assert metrics["agent_returns"].shape == (6, 2)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 7, "return": null, "agent_returns": [null, 1.0]}\n')
    metrics = run.metrics()
    assert metrics["return"].shape == (7,)
    assert str(metrics["agent_returns"][-1].tolist()) == "[nan, 1.0]"
