"""Commands end with what may come next, and every such command works as it is printed."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from oracles import guess
from worldloom.cli.main import main
from worldloom.training import console

pytestmark = pytest.mark.usefixtures("compiled_once")

PPO = "--ppo.hidden 8 --ppo.unroll-length 4 --ppo.num-minibatches 1 --ppo.num-epochs 1"
IQL = "--iql.updates-per-iteration 3 --iql.batch-size 8 --iql.hidden 8 --ope-updates 3"
FEW = "--num-worlds 2 --eval-episodes 2 --eval-every 0 --checkpoint-every 0 --record-every 0"
HUNT = (
    "treasurehunt --world.height 5 --world.width 5 --world.num-agents 2 --world.horizon 4 "
    f"{FEW} --steps 16 --iqn.hidden 8 --iqn.batch-size 4 --iqn.gradient-steps 1 "
    "--iqn.buffer-size 32"
)
PLANT = f"--steps 6 {IQL} {FEW} --chunk 1"
# What begins a chain -> settings that make a suggested `train` of a new run as small.
CHAINS = {
    "grid": (f"train {HUNT}", ""),
    "sweep": (f"sweep {HUNT} --seeds 1 --grid iqn.gamma=0.5,0.9 share-parameters=true", ""),
    "plain": (f"train guess.py:make --world.choices 2 --steps 16 {FEW} {PPO} --no-report", ""),
    "arc": (f"train arc --limit 1 --attempts 0 --world.max-steps 4 --steps 16 {FEW} {PPO}", ""),
    "robot": (f"train biped --task stand --world.horizon 5 --steps 16 {FEW} {PPO} --no-report", ""),
    "plant": ("data make dmsd --steps 200 --world horizon=10", PLANT),
}
LONG = ("plant", "sweep")


def steps_in(out: str) -> list[list[str]]:
    """The commands that an output suggests, without the program's name."""
    lines = out.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith("next: ")), len(lines))
    words = [shlex.split(line.removeprefix("next:")) for line in lines[first:]]
    assert all("worldloom" in Path(line[0]).name or "worldloom" in line for line in words)
    return [line[next(n for n, w in enumerate(line) if "worldloom" in w) + 1 :] for line in words]


def serves(command: list[str]) -> str:
    """Starts a server, stops it when it is ready, and returns nothing, which is what follows."""
    line = [sys.executable, "-m", "worldloom", *command, "--port", "0", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        assert json.loads(server.stdout.readline())["url"].startswith("http://127.0.0.1")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "suite",
    [pytest.param(name, marks=pytest.mark.nightly if name in LONG else ()) for name in CHAINS],
)
def test_what_is_suggested_works(suite, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "a b"  # of which every suggestion must quote the space
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.copy(Path(guess.__file__), "guess.py")
    begin, small = CHAINS[suite]
    waiting, done = deque([begin.split()]), []
    if begin.startswith(("train", "sweep")):
        waiting[0] += ["--out", str(folder / "my runs")]
    while waiting:
        command = waiting.popleft()
        kind = " ".join(command[: 2 if command[0] in ("data", "arc") else 1])
        kind += " --resume" * ("--resume" in command)
        if kind in done:
            continue
        done.append(kind)
        if command[0] == "serve":
            serves(command)
            continue
        if kind == "train" and len(done) > 1:
            command += small.split()
        if kind == "deploy":
            command += ["--fast", "--seconds", "0.1"]
        code = main(command)
        said = capsys.readouterr()
        assert code == 0, (command, said.err)
        waiting += steps_in(said.out)
    assert {"train", "train --resume", "eval", "export"} <= {*done}, done
    (run,) = {path.parent for path in folder.rglob("config.json") if "sweep" not in str(path)}
    assert main(["compare", str(run), str(run), "--json"]) == 0, "runs of every suite"
    assert ("serve" in done) == (suite == "plant")
    assert ("deploy" in done) == (suite == "robot")
    assert ("report" in done) == (suite in ("plain", "robot")), "where there was none yet"


def test_a_csv_file_is_checked_described_and_converted_with_its_mapping(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my log.csv").write_text("t,x,u,r\n" + "".join(f"{t},{t},0,1\n" for t in range(9)))
    mapping = "time: t\nobservation: [{column: x, name: x}]\nreward: r\n"
    mapping += "action: [{column: u, name: u, low: -1, high: 1}]\n"
    (tmp_path / "columns.yaml").write_text(mapping)
    done, waiting = [], [["data", "check", "my log.csv", "--mapping", "columns.yaml"]]
    while waiting:
        command = waiting.pop(0)
        if command[1] not in done[1:]:
            assert main(command) == 0, capsys.readouterr().err
            done.append(command[1])
            waiting += steps_in(capsys.readouterr().out)
    assert done == ["check", "describe", "convert", "check"]


@pytest.mark.parametrize(
    ("command", "following"),
    [
        (["algos"], ["train", "treasurehunt", "--algo", "ppo"]),
        (["envs", "tag"], ["train", "tag"]),
        (["doctor"], ["train", "treasurehunt"]),
        (
            ["arc", "show", "fall", "--set", "examples"],
            ["arc", "play", "fall", "--set", "examples"],
        ),
    ],
)
def test_commands_that_only_tell_say_how_to_begin(command, following, capsys):
    assert main(command) == 0
    assert steps_in(capsys.readouterr().out) == [following]


def test_a_command_that_is_not_on_the_path_is_named_as_it_was_called(monkeypatch, capsys):
    monkeypatch.setattr(console.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", [".venv/bin/worldloom", "train"])
    console.next_steps(["eval", "my run"], ["report", "x"])
    expected = "next: .venv/bin/worldloom eval 'my run'\n      .venv/bin/worldloom report x\n"
    assert capsys.readouterr().out == expected
    monkeypatch.setattr(console.shutil, "which", lambda name: f"/bin/{name}")
    console.next_steps(["eval", "x"])
    assert capsys.readouterr().out == "next: worldloom eval x\n"
