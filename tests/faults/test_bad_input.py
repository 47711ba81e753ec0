"""Bad input is answered in one line that says what is wrong and what to do; nothing is written."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from worldloom.cli import main

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys, contents):
    """refused("train --epochs 0"): the one line that was said, after all else was checked."""
    monkeypatch.chdir(tmp_path)

    def check(command: str) -> str:
        before = contents(tmp_path), sorted(tmp_path.rglob("*"))
        assert main(command.split()) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1, said.err
        assert said.err.startswith("worldloom")
        assert (contents(tmp_path), sorted(tmp_path.rglob("*"))) == before, "something was written"
        return said.err.rstrip("\n")

    return check


@pytest.mark.parametrize(
    ("command", "message"),
    [
        # Wrong sizes.
        ("train --world height=2 width=2", "train: a world of 2x2 has no room inside its walls"),
        ("train --world radius=0", "treasurehunt: radius=0; use at least 1, or None"),
        ("train --world num_agents=65", "num_agents=65 does not fit the 64 free cells of a 10x10"),
        ("train --world num_agents=0", "num_agents=0 does not fit"),
        ("train --world num_frames=0", "num_frames=0; it must be at least 1"),
        ("train --world height=ten", "mend the options {'height': 'ten'}"),
        ("train --world num_agents=1.5", "mend the options {'num_agents': 1.5}"),
        ("train --memory-rows 30", "memory_rows=30 cannot hold one epoch of 50 turns"),
        ("train --iqn.batch-size 99999", "batch_size=99999 needs as many; use a larger memory"),
        ("train --iqn.hidden 0", "iqn: hidden=0; it must be at least 1"),
        ("train --epochs 0", "epochs=0; it must be at least 1"),
        ("train --seed -1", "seed=-1; it must be in 0 .. 4294967295"),
        ("train --seed 99999999999", "seed=99999999999; it must be in 0 .. 4294967295"),
        # Unknown names, with the nearest that is known.
        ("trane", "worldloom: no command 'trane'; did you mean 'train'?"),
        ("train treasurehut", "there is no world 'treasurehut'; did you mean 'treasurehunt'?"),
        ("train nowhere", "there is no world 'nowhere'; known: treasurehunt"),
        ("train --world num_agent=3", "treasurehunt has no option 'num_agent'; did you mean"),
        ("train --algo iqm", "--algo iqm is not known; did you mean 'iqn'?"),
        ("train --mode jax_fusd", "--mode jax_fusd is not known; did you mean 'jax_fused'?"),
        ("train --preset origin", "--preset origin is not known; did you mean 'original'?"),
        ("train --epoch 3", "Unrecognized options: --epoch, 3; did you mean '--epochs'?"),
        ("train --iqn.hiden 3", "did you mean '--iqn.hidden'?"),
        ("train --epochs three", "Error parsing --epochs: invalid literal for int()"),
        ("train --epochs", "Missing value for argument '--epochs'"),
        ("train a b", "Unrecognized options: b; see --help"),
        ("sweep --grid iqn.hiden=3,4", "no setting 'iqn.hiden'; did you mean 'iqn.hidden'?"),
        ("envs --jsn", "Unrecognized options: --jsn; did you mean '--json'?"),
        ("eval", "Missing from worldloom eval: RUN"),
        # Numbers that are none.
        ("train --world gem_value=nan", "its rewards or rates are not all finite numbers"),
        ("train --world gem_value=.inf", "its rewards or rates are not all finite numbers"),
        ("train --world spawn_prob=nan", "spawn_prob=nan; it must be a chance in [0, 1]"),
        ("train --world spawn_prob=1.5", "spawn_prob=1.5; it must be a chance in [0, 1]"),
        ("train --epsilon nan", "epsilon=nan; it must be in [0, 1]"),
        ("train --iqn.learning-rate nan", "iqn: learning_rate=nan; it must be positive"),
        # Options of the world that are not written as such.
        ("train --world num_agents", "--world num_agents: write options as name=value"),
        ("train --world =3", "--world =3: write options as name=value"),
        ("train --world height=[3", "--world height=[3: '[3' is not a value that YAML knows"),
        # Files and folders that are not there.
        ("train missing.yaml", "missing.yaml"),
        ("train --resume nowhere", "nowhere is not a run folder: it has no config.json"),
        ("train --resume nowhere --preset original", "--preset starts a new run; leave it out"),
        ("eval nowhere", "nowhere is not a run folder: it has no config.json"),
        ("report nowhere", "nowhere does not exist; name a run folder, or a JSON file of"),
        # The baseline can do one thing only.
        ("train tag --mode torch_sequential", "cannot train iqn on tag: use a jax mode"),
        ("train --mode torch_sequential --algo dqn", "cannot train dqn on treasurehunt"),
        ("train --mode torch_sequential", "num_worlds=32 and updates_per_epoch=20; start from --p"),
    ],
)
def test_bad_arguments_are_refused(refused, command, message):
    assert message in refused(command)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("turn_order=simultaneous", "turn_order='simultaneous' needs a jax mode"),
        ("legacy=false", "needs legacy=true for the world; start from --preset original"),
        ("radius=null", "needs a radius; start from --preset original"),
    ],
)
def test_the_baseline_refuses_what_it_cannot_play(refused, option, message):
    pytest.importorskip("torch", reason="the PyTorch baseline needs torch")
    assert message in refused(f"train --preset original --mode torch_sequential --world {option}")


def test_the_baseline_without_pytorch_says_how_to_install_it(refused, monkeypatch):
    from worldloom.train import trainers

    monkeypatch.setattr(trainers, "find_spec", lambda name: None)
    said = refused("train --preset original --mode torch_sequential")
    assert "torch_sequential needs PyTorch, which is not installed" in said
    assert "pip install 'worldloom[torch]'" in said


def test_a_place_that_cannot_be_written_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("in the way")
    said = refused("train --epochs 1 --iqn.hidden 4 --num-worlds 2 --out file --no-report")
    assert "file" in said


# Runs that are none, or not this one -------------------------------------------------------------


@pytest.fixture
def run_copy(finished_run, tmp_path):
    """A finished run as `run` in the working folder, to be damaged."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.mark.parametrize("command", ["train --resume run", "eval run", "report run"])
def test_a_folder_that_is_no_run_is_refused(refused, tmp_path, command):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("something else")
    assert "config.json" in refused(command)


@pytest.mark.parametrize("command", ["train --resume run --epochs 9", "eval run"])
@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"config": {"epoch": 3}}', '{"config": 3}'])
def test_a_run_whose_settings_cannot_be_read_is_refused(refused, run_copy, command, text):
    (run_copy / "config.json").write_text(text)
    assert "config.json" in refused(command)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--seed 3", "(seed)"),
        ("--mode jax_parallel", "(mode)"),
        ("--world num_agents=3", "(world)"),
        ("--iqn.hidden 32", "(iqn)"),
        ("--algo dqn", "(algo, dqn, iqn)"),
    ],
)
def test_a_run_of_other_settings_is_not_resumed(refused, run_copy, options, named):
    said = refused(f"train --resume run --epochs 9 {options}")
    assert f"run was trained with other settings {named}" in said
    assert "start a new run" in said


def test_a_run_is_not_resumed_backwards(refused, run_copy):
    assert "run is at epoch 6 already" in refused("train --resume run --epochs 4")


@pytest.mark.parametrize("command", ["train --resume run --epochs 9", "eval run"])
def test_a_checkpoint_of_another_configuration_is_refused(refused, run_copy, command):
    # Somebody changed the settings beside the checkpoints.
    about = json.loads((run_copy / "config.json").read_text())
    about["config"]["iqn"]["hidden"] = 24
    (run_copy / "config.json").write_text(json.dumps(about))
    said = refused(command)
    assert "checkpoints/6 is a checkpoint of another configuration" in said


@pytest.mark.parametrize("command", ["train --resume run --epochs 9", "eval run"])
def test_a_truncated_checkpoint_is_refused(refused, run_copy, command):
    for path in (run_copy / "checkpoints" / "6").rglob("d/*"):
        path.write_bytes(path.read_bytes()[:100])
    said = refused(command)
    assert "checkpoints/6 is damaged" in said
    assert "delete it to go on from an earlier one" in said


@pytest.mark.parametrize(
    "command", ["train --resume run --epochs 9", "eval run", "eval run --gif x"]
)
@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
def test_a_run_without_checkpoints_is_refused(refused, run_copy, command, left):
    shutil.rmtree(run_copy / "checkpoints")
    if left != "nothing":
        (run_copy / "checkpoints").mkdir()
    assert "run holds no complete checkpoint" in refused(command)


def test_evaluations_of_nothing_are_refused(refused, run_copy):
    assert "episodes=0; evaluate at least 1" in refused("eval run --episodes 0")
    assert "seed=-1; it must be in" in refused("eval run --seed -1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[1]", "holds a JSON list"),
        ('{"a": 1}', "is no comparison, benchmark or sweep"),
    ],
)
def test_a_report_of_something_else_is_refused(refused, tmp_path, text, message):
    (tmp_path / "result.json").write_text(text)
    said = refused("report result.json")
    assert message in said
    assert "name a run folder" in said


# As a script sees it -----------------------------------------------------------------------------


def test_a_script_gets_exit_code_2_and_one_line(tmp_path):
    code = "import sys; from worldloom.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "train", "treasurehut"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line == (
        "worldloom train: there is no world 'treasurehut'; did you mean 'treasurehunt'?"
    )
    assert list(tmp_path.iterdir()) == []
