"""Bad input is answered in one line that says what is wrong and what to do; nothing is written."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from worldloom.cli.main import main

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys, contents):
    """refused("train tag --steps 0"): the one line that was said, after all else was checked."""
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


HUNT = "train treasurehunt"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        # Wrong sizes.
        (f"{HUNT} --world.height 2 --world.width 2", "train: a world of 2x2 has no room inside"),
        (f"{HUNT} --world.radius 0", "treasurehunt: radius=0; it must be at least 1"),
        (f"{HUNT} --world.num-agents 65", "num_agents=65 does not fit the 64 free cells of a 10x1"),
        (f"{HUNT} --world.num-agents 0", "num_agents=0 does not fit"),
        (f"{HUNT} --world.num-frames 0", "num_frames=0; it must be at least 1"),
        (f"{HUNT} --world.height ten", "--world.height='ten'; it must be a number"),
        (f"{HUNT} --world.num-agents 1.5", "--world.num-agents=1.5; it must be a whole number"),
        (f"{HUNT} --iqn.buffer-size 30", "iqn.buffer_size=30 cannot hold an episode of 50 turns"),
        (f"{HUNT} --iqn.batch-size 99999", "batch_size=99999 needs as many; use a larger buffer"),
        (f"{HUNT} --num-worlds 99999999", "num_worlds=99999999; it must be at most 16777216"),
        (f"{HUNT} --iqn.hidden 99999999", "hidden=99999999; it must be at most 16384"),
        (f"{HUNT} --iqn.buffer-size 4000000000", "GiB of numbers, where this machine can take"),
        (f"{HUNT} --iqn.hidden 0", "iqn: hidden=0; it must be at least 1"),
        (f"{HUNT} --steps 0", "steps=0; it must be at least 1"),
        (f"{HUNT} --seed -1", "seed=-1; it must be in 0 .. 4294967295"),
        (f"{HUNT} --seed 99999999999", "seed=99999999999; it must be in 0 .. 4294967295"),
        (f"{HUNT} --seed {'9' * 400}", "it must be in 0 .. 4294967295"),
        (f"{HUNT} --processes 0", "--processes 0: it must be at least 1"),
        (f"{HUNT} --processes 2 --process-id 1", "--processes starts all of them on this machine"),
        (f"{HUNT} --devices 64", "devices=64: iqn trains on one device, where its memory lies"),
        ("train gymnax:CartPole-v1 --ppo.num-minibatches 7", "num_minibatches=7 does not divide"),
        ("train gymnax:CartPole-v1 --algo dqn --dqn.n-step 3", "dqn.n_step=3; returns over sever"),
        ("train reactor --iql.updates-per-iteration 0", "updates_per_iteration=0; it must be at"),
        # Unknown names, with the nearest that is known.
        ("trane", "worldloom: no command 'trane'; did you mean 'train'?"),
        ("train treasurehut", "there is no world 'treasurehut'; did you mean 'treasurehunt'?"),
        ("train nowhere", "there is no world 'nowhere'; known: treasurehunt"),
        ("train gymnax:CartPole-v9", "gymnax has no environment 'CartPole-v9'"),
        ("train gymnax:CartPole-v1 --world.gravty 3", "has no parameter 'gravty'"),
        (f"{HUNT} --world.num-agent 3", "--world.num-agent: no such option; did you mean '--world"),
        (f"{HUNT} --algo iqm", "there is no algorithm 'iqm'; did you mean 'iqn'?"),
        (f"{HUNT} --mode jax_fusd", "mode='jax_fusd' is not known; did you mean 'jax_fused'?"),
        (f"{HUNT} --preset origin", "--preset origin: treasurehunt has original"),
        ("train reactor --preset original", "--preset original: reactor has none"),
        (f"{HUNT} --step 3", "--step: no such option; did you mean '--steps'?"),
        (f"{HUNT} --iqn.hiden 3", "did you mean '--iqn.hidden'?"),
        (f"{HUNT} --steps three", "--steps='three'; it must be a number"),
        (f"{HUNT} --steps", "--steps needs a value"),
        (f"{HUNT} --epochs 80", "--epochs: this is now --steps"),
        (f"{HUNT} --no-report 3", "--no-report: there is nothing to switch off"),
        (f"{HUNT} --track comet", "there is no tracker 'comet'; known: mlflow, tensorboard, wandb"),
        ("train a b", "'b' is not expected here; the world comes first, then options"),
        ("train --steps 3", "name a world first, as in: worldloom train treasurehunt"),
        ("sweep tag --grid iqn.hiden=3,4", "did you mean '--iqn.hidden'?"),
        ("sweep tag --grid iqn.gamma=0.5 --seeds 0", "seeds=0; use at least 1"),
        ("sweep tag --iqn.gamma 0.9..0.5", "iqn.gamma=0.9..0.5: it must go up"),
        ("sweep tag --iqn.gamma 0.5,0.9 --search annealing", "there are grid, random, tpe"),
        ("sweep tag --iqn.gamma 0.5..0.9 --search grid", "say how many, as in 0.5..0.9:5"),
        ("sweep tag --search random --points 0", "points=0; use at least 1"),
        ("sweep tag --iqn.gamma 0.5,0.9 --halving 1", "halving=1; use 2 or more"),
        ("sweep tag --iqn.gamma 0.5,0.9 --launch cloud:3", "write local:N or slurm:N"),
        ("sweep tag --iqn.hidden 8..16 --population 4", "iqn.hidden cannot change while runs"),
        ("sweep tag --population 1", "members=1; use 2 or more"),
        ("sweep --resume nowhere", "nowhere: it holds no population"),
        ("sweep tag --grid iqn.hidden=3,0", "iqn: hidden=0; it must be at least 1"),
        ("envs --jsn", "--jsn: no such option; did you mean '--json'?"),
        ("eval --episodes 3", "name a run folder first"),
        ("eval nowhere --episode 3", "--episode: no such option; did you mean '--episodes'?"),
        ("bench nowhere", "there is no suite or world 'nowhere'; known: grid, arc"),
        ("bench tag --repeats 0", "bench: repeats=0; it must be at least 1"),
        # Numbers that are none.
        (f"{HUNT} --world.gem-value nan", "its rewards or rates are not all finite numbers"),
        (f"{HUNT} --world.gem-value .inf", "its rewards or rates are not all finite numbers"),
        (f"{HUNT} --world.spawn-prob nan", "spawn_prob=nan; it must be a chance in [0, 1]"),
        (f"{HUNT} --world.spawn-prob 1.5", "spawn_prob=1.5; it must be a chance in [0, 1]"),
        (f"{HUNT} --iqn.epsilon nan", "iqn: epsilon=nan; it must be a finite number"),
        (f"{HUNT} --iqn.learning-rate nan", "iqn: learning_rate=nan; it must be a finite number"),
        # Options of the world that are not written as such.
        (f"{HUNT} --world num_agents=3", "--world num_agents=3: options are written --world.NAME"),
        (f"{HUNT} --world.height [3", "--world.height: '[3' is not a value that YAML knows"),
        # Algorithms that do not fit, with those that do.
        (f"{HUNT} --algo sac", "sac needs continuous actions, and those of treasurehunt are discr"),
        (
            f"{HUNT} --algo bc",
            "bc learns from logged data, and none are named (dataset=FILE.npz",
        ),
        ("train gymnax:Pendulum-v1 --algo dqn", "dqn needs discrete actions"),
        ("train gymnax:Pendulum-v1 --algo mappo", "mappo is for several agents"),
        ("train reactor --algo dqn", "dqn needs discrete actions"),
        # Files and folders that are not there.
        ("train missing.yaml", "missing.yaml"),
        ("train missing.py:make", "missing.py does not exist"),
        (f"{HUNT} --config missing.yaml", "--config missing.yaml:"),
        ("train --resume nowhere", "nowhere is not a run folder: it has no config.json"),
        ("train --resume nowhere --preset original", "--preset and --config start a new run"),
        ("eval nowhere", "nowhere is not a run folder: it has no config.json"),
        ("export nowhere", "nowhere is not a run folder: it has no config.json"),
        ("serve nowhere --no-token", "it has no manifest.json; `worldloom export RUN` writes one"),
        ("data check nowhere.csv", "nowhere.csv: there is no such file; check the path"),
        ("--hlep", "worldloom: no command '--hlep'; did you mean '--help'?"),
        (
            "report nowhere",
            "nowhere does not exist; name a run folder, a folder of runs, or a JSON file of",
        ),
        # The baseline can do one thing only.
        ("train tag --mode torch_sequential", "torch_sequential"),
        (f"{HUNT} --mode torch_sequential --algo dqn", "torch_sequential"),
        (f"{HUNT} --mode torch_sequential", "start from --preset original"),
        (f"{HUNT} --mode jax_parallel --algo ppo", "use mode='jax_fused'"),
    ],
)
def test_bad_arguments_are_refused(refused, command, message):
    if "gymnax" in command:
        pytest.importorskip("gymnax", reason="needs worldloom[gymnax]")
    if message.endswith("--preset original"):
        pytest.importorskip("torch", reason="the PyTorch baseline needs torch")
    assert message in refused(command)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--world.turn-order simultaneous", "turn_order='simultaneous' needs a jax mode"),
        ("--world.legacy false", "needs legacy=true for the world; start from --preset original"),
        ("--world.radius null", "needs a radius; start from --preset original"),
    ],
)
def test_the_baseline_refuses_what_it_cannot_play(refused, option, message):
    pytest.importorskip("torch", reason="the PyTorch baseline needs torch")
    assert message in refused(f"{HUNT} --preset original --mode torch_sequential {option}")


def test_the_baseline_without_pytorch_says_how_to_install_it(refused, monkeypatch):
    from worldloom.suites.grid import torch_trainer

    monkeypatch.setattr(torch_trainer, "find_spec", lambda name: None)
    said = refused(f"{HUNT} --preset original --mode torch_sequential")
    assert "torch_sequential needs PyTorch, which is not installed" in said
    assert "pip install 'worldloom[torch]'" in said


def test_a_place_that_cannot_be_written_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("in the way")
    said = refused(f"{HUNT} --steps 1 --iqn.hidden 4 --num-worlds 2 --out file --no-report")
    assert "file" in said


OWN = """
def nothing():
    pass

def needs(size):
    return size

def endless():
    from worldloom.suites.grid import tag
    return tag.world()
"""


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ("own.py:nothing", "own.py:nothing made a NoneType, which is no world"),
        ("own.py:needs", "own.py:needs needs the option 'size'; give it as world.size"),
        ("own.py:needs --world.size 3", "own.py:needs made a int, which is no world"),
        ("own.py:nothing --world.size 3", "own.py:nothing has no option 'size'"),
        ("own.py:noting", "own.py has no function 'noting'; did you mean 'nothing'?"),
        ("own.py", "own.py has no function 'make'"),
        ("own.py:endless", "training needs a turn-based world that ends"),
    ],
)
def test_a_file_that_makes_no_world_is_refused(refused, tmp_path, world, message):
    (tmp_path / "own.py").write_text(OWN)
    assert message in refused(f"train {world}")


# Runs that are none, or not this one -------------------------------------------------------------


@pytest.fixture
def run_copy(finished_run, tmp_path):
    """A finished run as `run` in the working folder, to be damaged."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.mark.parametrize("command", ["train --resume run", "eval run", "report run", "export run"])
def test_a_folder_that_is_no_run_is_refused(refused, tmp_path, command):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("something else")
    line = refused(command)
    assert ("holds no run; name a run folder" if command == "report run" else "config.json") in line


UNREADABLE = [
    "{",
    "[]",
    "{}",
    "null",
    '{"config": 3}',
    '{"format": 2, "config": {}}',
    '{"format": 2, "suite": "nowhere", "config": {"env": "tag", "algo": "iqn"}}',
    '{"format": 2, "suite": "grid", "config": {"env": "tag", "algo": "iqn", "step": 3}}',
]


@pytest.mark.parametrize("command", ["train --resume run --steps 180", "eval run"])
@pytest.mark.parametrize("text", UNREADABLE)
def test_a_run_whose_settings_cannot_be_read_is_refused(refused, run_copy, command, text):
    (run_copy / "config.json").write_text(text)
    said = refused(command)
    assert "config.json" in said or "no suite 'nowhere'" in said or "'step'" in said


@pytest.mark.parametrize("command", ["train --resume run --steps 180", "eval run", "report run"])
def test_a_run_of_the_first_version_is_refused(refused, run_copy, command):
    about = {"config": {"env": "treasurehunt", "epochs": 80}, "hash": "x",
             "versions": {"worldloom": "0.1.0"}}  # fmt: skip
    (run_copy / "config.json").write_text(json.dumps(about))
    said = refused(command)
    assert "run was written by worldloom 0.1.0, whose runs this version cannot read" in said


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--seed 3", "was trained with other settings (seed)"),
        ("--mode jax_parallel", "was trained with other settings (mode)"),
        ("--world.num-agents 3", "was trained with other settings (world.num_agents)"),
        ("--iqn.hidden 32", "was trained with other settings (iqn.hidden)"),
        ("--algo dqn", "learns with iqn; to use dqn"),
    ],
)
def test_a_run_of_other_settings_is_not_resumed(refused, run_copy, options, named):
    said = refused(f"train --resume run --steps 180 {options}")
    assert f"run {named}" in said
    assert "start a new run" in said


def test_a_run_is_not_resumed_backwards_or_elsewhere(refused, run_copy):
    assert "run is at step 120 already" in refused("train --resume run --steps 80")
    assert "run is a run in treasurehunt, not in tag" in refused("train tag --resume run")


@pytest.mark.parametrize("command", ["train --resume run --steps 180", "eval run"])
def test_a_checkpoint_of_another_configuration_is_refused(refused, run_copy, command):
    # Somebody changed the settings beside the checkpoints.
    about = json.loads((run_copy / "config.json").read_text())
    about["config"]["iqn"]["hidden"] = 24
    (run_copy / "config.json").write_text(json.dumps(about))
    assert "config.json was changed after the run wrote it" in refused(command)
    del about["sha256"]
    (run_copy / "config.json").write_text(json.dumps(about))
    assert "checkpoints/6 is a checkpoint of another configuration" in refused(command)


@pytest.mark.parametrize("command", ["train --resume run --steps 180", "eval run"])
def test_checkpoints_of_which_none_is_sound_are_refused(refused, run_copy, command):
    for path in (run_copy / "checkpoints").rglob("d/*"):
        path.write_bytes(path.read_bytes()[:100])
    said = refused(command)
    assert "checkpoints/6 is damaged" in said
    assert "and so are 1 before it; copy it from elsewhere, or train from the start" in said


@pytest.mark.parametrize(
    "command", ["train --resume run --steps 180", "eval run", "eval run --gif x"]
)
@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
def test_a_run_without_checkpoints_is_refused(refused, run_copy, command, left):
    shutil.rmtree(run_copy / "checkpoints")
    if left != "nothing":
        (run_copy / "checkpoints").mkdir()
    assert "run holds no complete checkpoint" in refused(command)


def test_bundles_are_not_written_over_what_is_there(refused, run_copy):
    assert "run exists and is no bundle; name another folder" in refused("export run --out run")
    (run_copy / "bundle").mkdir()
    (run_copy / "bundle" / "manifest.json").write_text("{}")
    assert "holds a bundle already; force=True (--force) replaces it" in refused("export run")


def test_evaluations_of_nothing_are_refused(refused, run_copy):
    assert "episodes=0; evaluate at least 1" in refused("eval run --episodes 0")
    assert "seed=-1; it must be in" in refused("eval run --seed -1")


def test_what_a_suite_does_not_have_is_refused(refused, run_copy):
    assert "--human: reactor is not a world that people can play" in refused("eval reactor --human")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[1]", "holds a JSON list"),
        ('{"a": 1}', "is no comparison, benchmark or sweep"),
        ('{"kind": ["sweep"]}', "is no comparison, benchmark or sweep"),
    ],
)
def test_a_report_of_something_else_is_refused(refused, tmp_path, text, message):
    (tmp_path / "result.json").write_text(text)
    said = refused("report result.json")
    assert message in said
    assert "name a run folder" in said


# As a script sees it -----------------------------------------------------------------------------


def test_a_script_gets_exit_code_2_and_one_line(tmp_path):
    command = [sys.executable, "-m", "worldloom", "train", "treasurehut"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line == (
        "worldloom train: there is no world 'treasurehut'; did you mean 'treasurehunt'?"
    )
    assert list(tmp_path.iterdir()) == []
