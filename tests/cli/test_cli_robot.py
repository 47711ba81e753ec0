"""`worldloom train biped` and what follows it, from the command line, in seconds."""

import json
import shutil
import sys

import pytest

from worldloom.cli.main import main

STEPS = 12  # of an iteration
# Level 1: most of it is compiled once for all tests, as programs that call MuJoCo are not.
SMALL = (
    f"--level 1 --chunk 1 --eval-every 0 --eval-episodes 2 --checkpoint-every {STEPS} "
    "--world.horizon 5 --num-worlds 4 --ppo.hidden 8 --ppo.unroll-length 3 --ppo.num-minibatches 2 "
    "--ppo.num-epochs 1"
)


def run(command: str) -> int:
    return main(command.split())


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compiled_once):
    """The folder of a run of two iterations, without pictures. Look, do not touch."""
    root = tmp_path_factory.mktemp("runs")
    assert (
        run(f"train biped --task stand --steps {2 * STEPS} {SMALL} --no-report --out {root}") == 0
    )
    (folder,) = root.iterdir()
    return folder


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """call("eval X"): exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def called(command: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(command)
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


def test_a_run_is_a_folder_named_for_what_ran(trained, contents):
    assert trained.name.startswith("biped-ppo-s0-")
    files = {name for name in contents(trained) if "/" not in name}
    assert files == {"config.json", "metrics.jsonl", "eval.jsonl", "timing.json", "ladder.json"}
    about = json.loads((trained / "config.json").read_text())
    assert about["command"].startswith("worldloom train biped --task stand --steps 24")
    assert about["config"]["world"]["horizon"] == 5


def test_a_run_goes_on_films_and_reports_at_its_end(trained, call, tmp_path, read_rows):
    folder = shutil.copytree(trained, tmp_path / "again")
    code, out, _ = call(f"train --resume {folder} --steps {3 * STEPS}")
    assert code == 0
    assert [row["iteration"] for row in read_rows(folder / "metrics.jsonl")] == [1, 2, 3]
    for words in ("biped, ppo, seed 0", "stays up", "of 2 episodes to the end",
                  "pushed by 5 N for 200 ms", "steps/s", "report.html"):  # fmt: skip
        assert words in out, words
    for name in ("robot.gif", "replay.html", "report.html"):
        assert (folder / name).stat().st_size > 10_000, name
    assert "data:image/gif" in (folder / "report.html").read_text()


def test_a_run_is_scored_pushed_and_filmed_again(trained, call, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "again")
    code, out, err = call(f"eval {folder} --gif {folder / 'robot.gif'} --episodes 3 --json")
    assert (code, err) == (0, "")
    scores = json.loads(out)
    assert (scores["steps"], scores["survived"]) == (24, 1.0)  # of a tenth of a second
    for name in ("robot.gif", "replay.html"):
        assert (folder / name).exists(), name
    code, out, err = call(f"pushes {folder} --episodes 3 --json")
    assert (code, err) == (0, "")
    rungs = json.loads(out)["pushes"]
    expected = {"newtons": 5.0, "steps": 10, "survived": 1.0, "held": 1.0, "seconds": 0.02}
    assert rungs[0] == expected


def test_the_page_of_a_run_is_written_again(trained, call, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "again")
    code, out, _ = call(f"report {folder}")
    assert (code, out.splitlines()[0]) == (0, f"written to {folder / 'report.html'}")
    assert "stand · level 1" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--task wlak", "there is no task 'wlak'; did you mean 'walk'?"),
        ("--robot nowhere.xml", "there is no MJCF file nowhere.xml"),
        ("--motion nowhere.npz", "there is no reference motion nowhere.npz"),
        (f"--task stand --motion {__file__}", "has no use for a motion; leave 'test_cli"),
        ("--devices 64", "device(s); ask for 1 to"),
        ("--level 1 --devices 2", "level 4"),
        ("--level 3 --physics c", "level 3 is trained with physics='mjx', not 'c'"),
        ("--physics numpy", "level 1"),
        ("--task stand --amp.weight 0.1", "the motion prior is a gait"),
        ("--level 3 --trainer brax", "trainer='brax' is for levels 2 and 4"),
        ("--steps 0", "steps=0; it must be at least 1"),
        ("--ppo.num-minibatches 7", "num_minibatches=7"),
        ("--ppo.activation gelu2", "gelu2"),
        ("--algo sac --level 1", "sac at level 1, which is PPO in a loop"),
        ("--algo dqn", "dqn needs discrete actions"),
        ("--updates 3", "--steps"),
        ("--resume nowhere", "nowhere is not a run folder"),
    ],
)
def test_bad_input_is_told_in_one_line_and_nothing_is_written(call, tmp_path, options, why):
    code, out, err = call(f"train biped {options}")
    assert (code, out) == (2, "")
    assert err.startswith("worldloom train: ")
    assert why in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_missing_mujoco_is_told_in_one_line(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)  # as if it were not installed
    code, out, err = call("train biped")
    assert (code, out) == (2, "")
    why = 'the robot suite needs MuJoCo, which is not installed; pip install "worldloom[robot]"'
    assert err == f"worldloom train: {why}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_robot_without_its_sensors_is_refused_with_their_names(call, tmp_path):
    from worldloom.suites.robot.model import ASSETS

    (tmp_path / "own.xml").write_text(
        (ASSETS / "biped.xml").read_text().replace('name="gyro"', 'name="spin"')
    )
    shutil.copy(ASSETS / "biped.yaml", tmp_path / "own.yaml")
    code, _, err = call("train biped --robot own.xml")
    assert code == 2
    assert "there is no sensor 'gyro' for gyro" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_run_is_exported(trained, call, tmp_path):
    code, out, err = call(f"export {trained} --out bundle --json")
    assert (code, err) == (0, "")
    assert json.loads(out)["bundle"] == "bundle"
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["network"]["layers"] == [48, 8, 13]
    assert (tmp_path / "bundle" / "policy_runtime.py").is_file()


def test_a_finished_run_of_other_settings_is_not_resumed(trained, call, contents):
    before = contents(trained)
    code, _, err = call(f"train --resume {trained} --seed 1 --steps 48")
    assert (code, err.count("\n")) == (2, 1)
    assert "other settings (seed)" in err
    assert contents(trained) == before


def test_python_opens_the_run_too(trained):
    import worldloom

    loaded = worldloom.load(trained)
    assert (loaded.steps, loaded.config.settings.task) == (24, "stand")
