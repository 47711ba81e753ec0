"""What `make newcomer` would type: the README's commands in order, small, no stale excuse."""

import re
import shutil
import subprocess
import sys

import pytest

import newcomer

ALL = "pip install -e '.[arc,robot,serve,onnx,gymnax]'"
PAGES = [newcomer.ROOT / "README.md", *sorted((newcomer.ROOT / "docs").rglob("*.md"))]


def test_the_readme_s_commands_come_in_their_order():
    commands = newcomer.printed(newcomer.ROOT / "README.md")
    assert commands[:3] == ["pip install -e .", ALL, "make demo"]
    trained = [command for command in commands if command.startswith("worldloom train ")]
    assert trained[0] == "worldloom train treasurehunt"
    assert any(command.startswith("worldloom compare") for command in commands)


def test_every_excuse_is_that_of_a_printed_command():
    commands = [command for page in PAGES for command in newcomer.printed(page)]
    for pattern in newcomer.NOT_RUN:
        assert any(re.search(pattern, command) for command in commands), pattern
    run = [command for command in commands if newcomer.not_run(command) is None]
    assert len(run) > 0.6 * len(commands)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "worldloom train tag --steps 64000 --seed 1",
            "worldloom train tag --seed 1 --steps 1 --eval-episodes 2",
        ),
        ("worldloom envs", "worldloom envs"),
        (
            "worldloom sweep tag --seeds 5 --grid algo=ppo,dqn",
            "worldloom sweep tag --grid algo=ppo,dqn --steps 1 --eval-episodes 2 --seeds 2",
        ),
        (
            "worldloom train reactor --algo iql --dataset medium",
            "worldloom train reactor --algo iql --dataset medium --steps 1 --eval-episodes 2 "
            "--ope-updates 50 --data-steps 5000",
        ),
    ],
)
def test_commands_are_made_small(command, expected, tmp_path):
    assert newcomer.small(command.split(), tmp_path) == expected.split()


def test_a_run_takes_the_place_of_its_name(tmp_path):
    for name in ("treasurehunt-1", "reactor-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text('{"steps_per_iteration": 50}')
    words = ["worldloom", "eval", "runs/RUN", "--episodes", "5"]
    assert newcomer.resolved(words, tmp_path)[2] in ("runs/treasurehunt-1", "runs/reactor-2")
    resumed = newcomer.resolved(["worldloom", "train", "--resume", "runs/RUN"], tmp_path)
    assert newcomer.small(resumed, tmp_path)[-4:-2] == ["--steps", "100"], "a little further"
    shipped = newcomer.resolved(["worldloom", "serve", "BUNDLE"], tmp_path)
    assert shipped[2] == "runs/reactor-2/bundle"
    shutil.copytree(tmp_path / "runs/reactor-2", tmp_path / "runs/reactor-3")
    compared = newcomer.resolved(["worldloom", "select", "RUN", "RUN"], tmp_path)
    assert sorted(compared[2:]) == ["runs/reactor-2", "runs/reactor-3"], "no run twice"


def test_no_page_finds_the_data_sets_of_a_page_before(tmp_path, monkeypatch):
    monkeypatch.setattr(newcomer, "ROOT", _project(tmp_path / "project"))
    for _ in range(2):
        reader = newcomer.Newcomer(tmp_path / "home", sys.executable)
        (tmp_path / "home/minari/rig/plant-v0").mkdir(parents=True)
        reader.follow("docs/page.md")
        assert not (tmp_path / "home/minari").exists()


def _project(folder):
    """A project with a page that says nothing."""
    (folder / "docs").mkdir(parents=True)
    (folder / "docs/page.md").write_text("A page.")
    git = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "A page"]):
        subprocess.run([*git, *words], check=True)
    return folder


def test_a_failure_is_counted():
    outcomes = [("ok", 2.0), ("failed (1)", 1.0), ("is played by a person", 0.0)]
    rows = [newcomer.Row("README.md", "command", *each) for each in outcomes]
    assert newcomer.summary(rows).splitlines()[1].split() == ["README.md", "2", "1", "1", "3"]
