"""Workers that share a study: every point is finished once, whoever dies on the way."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from benchmarks.sweep_workers import SETTINGS, killed_worker
from oracles import guess
from worldloom import suites
from worldloom.cli import main as cli
from worldloom.training.sweeps import claims as claiming
from worldloom.training.sweeps import launch, shared_study
from worldloom.training.sweeps import sweep as sweeping
from worldloom.training.sweeps.search import Range
from worldloom.training.sweeps.source import Saved, Search

optuna = pytest.importorskip("optuna", reason="needs worldloom[sweep]")

from worldloom.training.sweeps.shared_study import (  # noqa: E402
    Shared,
    open_storage,
    without_password,
)

SUITE = suites.suite("grid")
GIVEN = {"env": "tag", "algo": "ppo", "steps": 100}
SPACE = [("ppo.gamma", [0.5, 0.7, 0.9]), ("ppo.hidden", [(8,), (8, 8)])]


@pytest.fixture
def clock(monkeypatch):
    """clock.now: seconds, as claims see them."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(claiming, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def store(request, tmp_path):
    return str(tmp_path / "study") if request.param == "folder" else f"sqlite:///{tmp_path}/s.db"


def worker(store, space=SPACE, lease=60.0, out=Path(), **search):
    return Shared(SUITE, GIVEN, space, Search(**{"batch": 2} | search), store, out, lease)


def row(value):
    return {"iqm": value, "settings": str(value)}


def test_a_worker_that_dies_while_it_writes_leaves_the_journal_to_others(tmp_path, monkeypatch):
    """Also where the folder is told by a relative path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shared_study, "LOCK_SECONDS", 3)
    dead = open_storage(optuna, "study")._backend._lock
    dead.acquire()  # and is never heard of again
    made = []

    def go_on():
        storage = open_storage(optuna, "study")
        made.append(optuna.create_study(storage=storage, study_name="goes on").study_name)

    other = threading.Thread(target=go_on, daemon=True)
    other.start()
    other.join(120)
    assert made == ["goes on"]


def test_points_are_given_to_one_worker_each_and_finished_once(store, clock, tmp_path):
    one, other = worker(store, out=tmp_path), worker(store, out=tmp_path)
    asked = [one.ask(), other.ask(), one.ask()]
    assert sorted(task.number for tasks in asked for task in tasks) == list(range(6))
    points = {task.number: task.point.values for tasks in asked for task in tasks}
    assert points[5] == {"ppo.gamma": 0.9, "ppo.hidden": (8, 8)}
    for source, tasks in zip((one, other, one), asked, strict=True):
        for task in tasks:
            source.tell(task, row(float(task.number)))
            other.tell(task, row(-1.0))  # whose it is not, or not any more
    assert one.ask() == other.ask() == []
    assert [each["iqm"] for each in one.rows()] == list(map(float, range(6)))


def test_what_a_dead_worker_had_is_taken_over_from_where_it_was_saved(store, clock, tmp_path):
    dead, alive, late = (worker(store, out=tmp_path, batch=4) for _ in range(3))
    lost = dead.ask()
    key, weights = jax.random.key(3), np.arange(3, dtype=np.float32)
    saved = Saved(7, [(key, weights), (key, weights + 1)], {"return": np.ones((2, 7))}, 2.5)
    assert dead.save(lost[1], saved)
    assert [task.number for task in alive.ask()] == [4, 5]  # nobody is known to be dead yet
    clock.now = 59.0
    assert alive._orphans(alive._trials()) == late._orphans(late._trials()) == []
    clock.now = 61.0  # the first saw it at 0, the second at 59
    assert late._orphans(late._trials()) == []
    assert [task.number for task in alive._orphans(alive._trials())] == [0, 1, 2, 3]
    clock.now = 200.0  # what has a new owner is left alone for as long again; the rest is free
    assert [task.number for task in late._orphans(late._trials())] == [4, 5]
    template = jax.eval_shape(lambda: saved.states)
    again = alive.load(lost[1], template)
    assert (again.iteration, again.seconds) == (7, 2.5)
    np.testing.assert_array_equal(again.states[1][1], weights + 1)
    np.testing.assert_array_equal(*map(jax.random.key_data, (again.states[0][0], key)))
    assert again.rows["return"].shape == (2, 7)
    assert alive.load(lost[0], template) is None, "nothing was saved of it"
    # It was only slow, and comes back: nothing of what it has counts any more.
    assert not dead.save(lost[1], saved)
    dead.tell(lost[1], row(1.0))
    assert not dead.report(lost[1], 10, 1.0)
    assert (dead.rows(), dead.values(10)) == ([], [])


def test_of_two_that_take_a_point_at_once_one_gets_it(store, clock, tmp_path, monkeypatch):
    dead, one, other = (worker(store, out=tmp_path, batch=1) for _ in range(3))
    (task,) = dead.ask()
    known = one._claims.current()
    with monkeypatch.context() as patch:  # both look before either has claimed anything
        first = claiming.Claims.current
        answers = {id(c): [known] for c in (one._claims, other._claims)}
        now = lambda self: answers[id(self)].pop() if answers.get(id(self)) else first(self)  # noqa: E731
        patch.setattr(claiming.Claims, "current", now)
        after = known[task.number]
        took = [source._claims.take(task.number, after) for source in (one, other)]
        assert took == [True, False]
    assert [s._claims.holds(task.number) for s in (dead, one, other)] == [False, True, False]


def test_a_point_is_not_taken_from_who_has_just_taken_it(store, clock, tmp_path):
    dead, one, other = (worker(store, out=tmp_path, batch=1) for _ in range(3))
    (task,) = dead.ask()
    for now in (0.0, 61.0):
        clock.now = now
        seen = [source._claims.open([task.number]) for source in (one, other)]
    for source, claims, took in zip((one, other), seen, (True, False), strict=True):
        assert source._claims.take(task.number, claims[task.number]) == took
    assert [s._claims.holds(task.number) for s in (dead, one, other)] == [False, True, False]


def orphans_after_a_death(clock, source):
    """Numbers of the points that a worker takes over once all others have fallen silent."""
    source._orphans(source._trials())
    clock.now += 61.0
    return [task.number for task in source._orphans(source._trials())]


def test_a_point_that_ends_its_workers_is_trained_alone_and_then_given_up(clock, tmp_path):
    def another():
        return worker(str(tmp_path / "study"), batch=2)

    bad, good = another().ask()
    second, third, fourth, fifth = (another() for _ in range(4))
    assert orphans_after_a_death(clock, second) == [0, 1]
    assert orphans_after_a_death(clock, third) == [0], "either may be what ended two workers"
    assert orphans_after_a_death(clock, fourth) == [1]
    (failed,) = fourth.rows()
    assert (failed["settings"], failed["error"]) == (
        "ppo.gamma=0.5 ppo.hidden=(8,)",
        "it ended 3 workers one by one",
    )
    # A worker that ends where a point got on, or as it was asked to, says nothing about the point.
    assert fourth.save(good, Saved(1, [], {}))
    assert orphans_after_a_death(clock, fifth) == [1]
    fifth._claims._pulse.start()
    fifth.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert claiming.lost_with(fifth._claims.current()[1]) == 0
    assert bad.number == 0


def test_what_a_storage_cannot_take_is_not_taken_for_finished(clock, tmp_path, monkeypatch):
    source = worker(str(tmp_path / "study"))
    task, other = source.ask()

    def refuse(*_, **__):
        raise ValueError("no such value")

    with monkeypatch.context() as patch:
        patch.setattr(source._study, "tell", refuse)
        with pytest.raises(ValueError, match="no such value"):
            source.tell(task, row(1.0))
    source.tell(task, row(2.0))
    assert [each["iqm"] for each in source.rows()] == [2.0]
    # Somebody else finished it: that is no error.
    source._study.tell(other.number, 3.0)
    source.tell(other, row(4.0))
    assert not source.report(other, 10, 1.0)
    assert [each["iqm"] for each in source.rows()] == [2.0]


class Killed(BaseException):
    """The end of a worker, who can do nothing about it."""


def dying(function, before=False):
    """`function`, in the midst of which the worker dies: before it has done anything, or after."""

    def die(*args, **options):
        if not before:
            function(*args, **options)
        raise Killed

    return die


def train(source):
    for task in source.ask():
        source.save(task, Saved(1, [np.zeros(1)], {}))
        source.tell(task, row(-1.0))


MOMENTS = {
    "asked, not claimed": ("_claims", "take", True),
    "claimed, nothing written": ("_claims", "take", False),
    "saved": ("_claims", "excuse", True),
    "row written, not finished": ("_study", "tell", True),
    "finished, claim not released": ("_claims", "release", True),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_every_point_is_finished_once_whenever_a_worker_dies(
    store, clock, tmp_path, monkeypatch, moment
):
    dead, alive = worker(store, out=tmp_path), worker(store, out=tmp_path)
    part, name, before = MOMENTS[moment]
    owner = getattr(dead, part)
    monkeypatch.setattr(owner, name, dying(getattr(owner, name), before))
    with pytest.raises(Killed):
        train(dead)
    trained = []
    while True:
        clock.now += 61.0  # nobody else is alive
        tasks = alive._orphans(alive._trials()) or alive._new(len(alive._trials()), 2)
        if not tasks and all(trial.state.is_finished() for trial in alive._trials()):
            break
        for task in tasks:
            trained.append(task.number)
            alive.tell(task, row(float(task.number)))
    done = list(range(6))
    finished = [0] if moment.startswith("finished") else []
    assert sorted(trained + finished) == done, "none is left out, none is trained again"
    trials = alive._storage.get_all_trials(alive._id)
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 6
    assert [each["iqm"] for each in alive.rows()] == [-1.0 if n in finished else n for n in done]
    assert alive.ask() == []


def test_a_worker_shows_life_while_it_trains(tmp_path):
    with worker(str(tmp_path / "study"), lease=0.2) as source:
        (number, _) = (task.number for task in source.ask())
        before = source._claims.current()[number].user_attrs["beat"]
        end = time.monotonic() + 60
        while source._claims.current()[number].user_attrs["beat"] < before + 3:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_values_of_a_rung_are_those_of_all_workers(store, clock, tmp_path):
    one, other = worker(store, out=tmp_path), worker(store, out=tmp_path)
    one.report(one.ask()[0], 10, 1.5)
    other.report(other.ask()[0], 10, 2.5)
    assert sorted(one.values(10)) == [1.5, 2.5]
    assert one.values(20) == []


@pytest.mark.slow
def test_samplers_share_what_they_learn(clock, tmp_path):
    """The score is the number itself: both workers come to large ones."""
    space = [("ppo.gamma", Range(0.1, 0.9))]
    one, other = (worker(str(tmp_path / "s"), space, points=40, batch=2) for _ in range(2))
    while tasks := one.ask() + other.ask():
        for task in tasks:
            for source in (one, other):  # one of them holds it
                source.tell(task, row(task.point.values["ppo.gamma"]))
    drawn = [each["iqm"] for each in one.rows()]
    assert len(drawn) == 40
    assert np.mean(drawn[20:]) > 0.6


def test_a_folder_with_another_sweep_is_refused(tmp_path):
    worker(str(tmp_path))
    with pytest.raises(ValueError, match="holds a sweep with other settings"):
        worker(str(tmp_path), SPACE[:1])
    with pytest.raises(ValueError, match="it cannot be opened"):
        open_storage(optuna, "sqlite:////proc/none/study.db")


def test_a_database_whose_tables_others_make_is_opened_again(monkeypatch):
    answers = [RuntimeError("(sqlite3.OperationalError) table studies already exists"), "storage"]

    def answer(*_, **__):
        now = answers.pop(0)
        if isinstance(now, Exception):
            raise now
        return now

    monkeypatch.setattr(optuna.storages, "RDBStorage", answer)
    assert open_storage(optuna, "sqlite:///new.db") == "storage"
    answers += [RuntimeError("no route to postgresql://me:secret@host/db")]
    with pytest.raises(ValueError, match=r"no route to postgresql://me:\*\*\*@host/db"):
        open_storage(optuna, "postgresql://me:secret@host/db")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:s3/cr@t@host/db", "postgresql://me:***@host/db"),
        ("--study=mysql+pymysql://me:secret@host/db", "--study=mysql+pymysql://me:***@host/db"),
        ("postgresql://host/db?user=me&password=s3", "postgresql://host/db?user=me&password=***"),
        ("sqlite:///runs/a@b.db", "sqlite:///runs/a@b.db"),
        ("runs/shared", "runs/shared"),
    ],
)
def test_a_password_is_not_shown(text, shown):
    assert without_password(text) == shown


def test_a_password_is_in_no_command_that_is_kept(tmp_path, monkeypatch):
    kept = []

    def found(*arguments):
        kept.append(arguments[-1])
        raise ValueError("far enough")

    monkeypatch.setattr(sweeping, "sweep", found)
    store = "postgresql://me:secret@host/db"
    line = [
        "sweep",
        "tag",
        "--algo",
        "ppo",
        "--ppo.gamma",
        "0.5,0.9",
        "--out",
        str(tmp_path),
        "--study",
        store,
    ]
    assert cli.main(line) == 2
    assert "--study 'postgresql://me:***@host/db'" in kept[0]


def test_a_database_is_made_before_workers_are_started_on_it(tmp_path, monkeypatch, capsys):
    def look(command, count, folder):
        storage = open_storage(optuna, f"sqlite:///{tmp_path}/s.db")
        assert len(optuna.get_all_study_names(storage)) == 2
        raise ValueError("far enough")

    monkeypatch.setattr(launch, "run_local", look)
    line = f"sweep tag --algo ppo --ppo.gamma 0.5,0.9 --out {tmp_path} --study sqlite:///{tmp_path}/s.db"
    assert cli.main([*line.split(), "--launch", "local:x"]) == 2
    assert not list(tmp_path.iterdir()), "nothing is made for a line that is wrong"
    assert cli.main([*line.split(), "--launch", "local:2"]) == 2
    assert "far enough" in capsys.readouterr().err


# Processes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), [("local:4", ("local", 4)), ("slurm", ("slurm", 1))])
def test_where_workers_start(text, expected):
    assert launch.parse_launch(text) == expected


@pytest.mark.parametrize("text", ["local:0", "slurm:x", "cloud:3", "local:"])
def test_a_launch_that_is_not_known_is_refused(text):
    with pytest.raises(ValueError, match="write local:N or slurm:N"):
        launch.parse_launch(text)


@pytest.mark.slow
def test_jobs_are_submitted_with_the_command_of_a_worker(tmp_path, monkeypatch):
    """By submitit's local executor, which starts what Slurm would; the environment is not kept."""
    pytest.importorskip("submitit", reason="needs worldloom[sweep]")
    monkeypatch.setenv("SOME_TOKEN", "the-secret-token")
    command = [sys.executable, "-c", "from pathlib import Path; print(Path.cwd())"]
    jobs = launch.submit(command, 2, tmp_path, {"timeout_min": 5}, cluster="local")
    assert [job.result().strip() for job in jobs] == [str(Path.cwd())] * 2
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"print(Path.cwd())" in content for content in written)
    assert not any(b"the-secret-token" in content for content in written)
    with pytest.raises(ValueError, match="submitit cannot do that"):
        launch.submit(command, 1, tmp_path, {"no_such_option": 1}, cluster="local")


@pytest.mark.slow
def test_one_of_four_workers_is_killed_and_nothing_is_lost(tmp_path):
    """And every score is that of a single worker."""
    found = killed_worker(tmp_path, points=6, workers=4, seed=0)
    assert found["killed"]
    assert (found["failed"], found["complete"]) == (0, True), (tmp_path / "log").read_text()
    assert (found["lost"], found["states"]) == (0, {"COMPLETE": 6})
    assert found["difference"] < 1e-3


KILLED = """
import os, signal, sys
import optuna
from worldloom.cli import main
from worldloom.training.sweeps.claims import Claims

take = Claims.take

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv.pop(1) == "claimed":
    Claims.take = lambda *args: take(*args) and die()
else:
    optuna.study.Study.tell = die
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["claimed", "row written"])
def test_what_a_killed_process_had_taken_is_finished_once_by_another(tmp_path, moment):
    shutil.copy(Path(guess.__file__), tmp_path / "guess.py")
    line = f"sweep {SETTINGS} --study shared --ppo.learning-rate 1e-3,1e-2 --steps 320 --lease 2"
    common = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    command = [sys.executable, "-c", KILLED, moment, *line.split()]
    assert subprocess.run(command, **common, timeout=600).returncode == -signal.SIGKILL
    command = [sys.executable, "-m", "worldloom", *line.split()]
    done = subprocess.run(command, **common, timeout=600)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "shared/sweep.json").read_text())
    assert result["complete"]
    assert [each["values"]["ppo.learning_rate"] for each in result["results"]] == [1e-3, 1e-2]
    storage = open_storage(optuna, str(tmp_path / "shared"))
    (name,) = (n for n in optuna.get_all_study_names(storage) if not n.endswith("/claims"))
    trials = optuna.load_study(study_name=name, storage=storage).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 2


@pytest.mark.slow
def test_scores_do_not_hang_on_how_many_points_are_one_call(tmp_path, monkeypatch):
    """But for rounding: a call of another number of runs is another program."""
    shutil.copy(Path(guess.__file__), tmp_path / "guess.py")
    monkeypatch.chdir(tmp_path)
    suite = suites.suite_of("guess.py:make", choices=2)
    given = {"env": "guess.py:make", "algo": "ppo", "steps": 320, "num_worlds": 4}
    given |= {"eval_episodes": 4, "world": {"choices": 2}}
    given |= {"ppo": {"hidden": (8,), "unroll_length": 8, "num_minibatches": 2}}
    space = [("ppo.learning_rate", [1e-3, 2e-3, 5e-3, 1e-2])]
    found = []
    for batch in (1, 4):
        place = sweeping.Place(tmp_path, str(tmp_path / f"study-{batch}"))
        rows, _ = sweeping.sweep(suite, given, space, Search(batch=batch, seeds=1), place)
        found.append(rows)
    for one, other in zip(*found, strict=True):
        assert one["values"] == other["values"]
        np.testing.assert_allclose(one["curve"], other["curve"], atol=2e-3)
        np.testing.assert_allclose(one["scores"], other["scores"], atol=1e-3)


@pytest.mark.slow
def test_workers_are_launched_and_their_results_shown(tmp_path, monkeypatch, capfd):
    shutil.copy(Path(guess.__file__), tmp_path / "guess.py")
    monkeypatch.chdir(tmp_path)
    line = f"sweep {SETTINGS} --steps 400 --ppo.gamma 0.5,0.9 --launch local:2 --json"
    assert cli.main(line.split()) == 0
    result = json.loads(capfd.readouterr().out)
    assert [row["values"] for row in result["results"]] == [{"ppo.gamma": 0.5}, {"ppo.gamma": 0.9}]
    folder = Path(result["file"]).parent
    assert {path.name for path in (folder / "workers").iterdir()} == {
        "worker-0.log",
        "worker-1.log",
    }
    assert "ppo.gamma=0.9" in Path(result["report"]).read_text()
