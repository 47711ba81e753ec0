"""What a newcomer meets: tables, lists of runs, completion, errors and help at 80 columns."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import worldloom
from worldloom import algos, suites
from worldloom.cli.completion import SCRIPTS, complete
from worldloom.cli.main import main
from worldloom.cli.settings import Schema, long_help
from worldloom.cli.train import _print_result
from worldloom.training import console
from worldloom.training.folders import is_locked, locked


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """call("runs"): exit code, standard output and standard error, at 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(command: str) -> tuple[int, str, str]:
        code = main(command.split())
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


# Tables ------------------------------------------------------------------------------------------


def test_worlds_are_one_line_each_by_suite(call):
    code, out, err = call("envs")
    assert (code, err) == (0, "")
    table, suite, listed = out[: out.index("next:")].splitlines(), "", {}
    assert max(map(len, table)) <= 80
    for line in table[2:-1]:
        suite = line if not line.startswith(" ") else suite
        if line.startswith("  "):
            name, text = line.split(maxsplit=1)
            assert suites.names(suite)[name] == text, "whole, and in its suite"
            listed[name] = text
    assert listed.keys() == suites.names().keys()


def test_tables_break_no_word_and_cut_nothing_off(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = "a long description that takes more than a line of forty"
    console.table(
        "title", ["name", "n", "text"], {"one": [["x-y-z", 1, text]], "two": [["q", 2, ""]]}
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines).split()) == (
        "title name n text one x-y-z 1 a long description that takes more than a line of forty "
        "two q 2"
    )
    assert [line.index("a long") for line in lines if "a long" in line] == [lines[1].index("text")]
    console.table("wide", ["run", "score"], [["r" * 38, "1.5"]])
    assert capsys.readouterr().out == f"wide\n{'r' * 38}\n  score  1.5\n"
    console.facts("facts", {"path": Path("/a b/" + "c" * 50), "words": text})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  path   /a b/" + "c" * 50
    assert max(map(len, lines[2:])) <= 40


# Runs --------------------------------------------------------------------------------------------


def write_run(folder: Path, steps: int, planned: int, when: float) -> None:
    (folder / "checkpoints" / "1").mkdir(parents=True)
    config = {"env": "industrial-benchmark", "algo": "iql", "steps": planned}
    (folder / "config.json").write_text(json.dumps({"format": 2, "config": config}))
    (folder / "metrics.jsonl").write_text(json.dumps({"iteration": 1, "steps": steps}) + '\n{"ha')
    (folder / "eval.jsonl").write_text(json.dumps({"iteration": 1, "mean": 510.25}) + "\n")
    for path in (*folder.iterdir(), folder):
        os.utime(path, (when, when))


def test_runs_are_listed_newest_first_also_broken_ones(call, tmp_path):
    root, now = tmp_path / "runs", time.time()
    assert call("runs")[:2] == (0, call("runs")[1])
    assert "there are no runs in runs" in call("runs")[1]
    write_run(root / "industrial-benchmark-iql-s0-20260101-120000", 64_000, 64_000, now - 50)
    write_run(root / "half way", 10, 100, now - 10)
    (root / "empty").mkdir()
    (root / "torn").mkdir()
    (root / "torn" / "config.json").write_text('{"format": 2, "conf')
    (root / "list").mkdir()
    (root / "list" / "config.json").write_text('{"format": 2, "config": [1]}')
    (root / "lost" / "checkpoints").mkdir(parents=True)
    (root / "sweep-x").mkdir()
    (root / "sweep-x" / "sweep.json").write_text('{"results": 3}')
    code, out, err = call("runs --json")
    assert (code, err) == (0, "")
    rows = {Path(row["run"]).name: row for row in json.loads(out)}
    assert [row["when"] for row in rows.values()] == sorted(
        (row["when"] for row in rows.values()), reverse=True
    )
    done = rows["industrial-benchmark-iql-s0-20260101-120000"]
    assert (done["world"], done["algorithm"]) == ("industrial-benchmark", "iql")
    assert (done["steps"], done["score"], done["go_on"]) == (64_000, 510.25, "done: eval")
    assert rows["half way"]["next"] == "worldloom train --resume 'runs/half way'"
    assert "empty" not in rows, "as nothing in it is of a run"
    assert "cannot be read" in rows["torn"]["problem"]
    assert "it has no config.json" in rows["lost"]["problem"]
    assert "problem" in rows["sweep-x"]
    code, out, err = call("runs")
    assert (code, err) == (0, "")
    assert max(map(len, out[: out.index("next:")].splitlines())) <= 80
    assert "cannot be read" in out
    assert "train --resume 'runs/half way'" in out
    with locked(root / "half way"):
        assert is_locked(root / "half way")
        assert "training now" in call("runs")[1]
    assert not is_locked(root / "half way")
    code, _, err = call("runs nowhere")
    assert (code, err.count("\n")) == (2, 1)


def test_a_closed_folder_hides_no_other(call, tmp_path, monkeypatch):
    for name in ("a", "closed", "z"):
        write_run(tmp_path / "runs" / name, 10, 10, time.time())
    exists = Path.exists

    def refuse(path: Path, **options: bool) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", refuse)
    code, out, err = call("runs --json")
    assert (code, err) == (0, "")
    assert sorted(row["run"] for row in json.loads(out)) == ["runs/a", "runs/z"]


def test_sweeps_and_what_cannot_be_resumed_are_listed(call, tmp_path):
    write_run(tmp_path / "runs" / "torch", 10, 100, time.time())
    config = {"env": "treasurehunt", "algo": "iqn", "steps": 100, "mode": "torch_sequential"}
    text = json.dumps({"format": 2, "suite": "grid", "config": config})
    (tmp_path / "runs" / "torch" / "config.json").write_text(text)
    (tmp_path / "runs" / "sweep").mkdir()
    sweep = {"config": {"env": "tag", "algo": "ppo", "steps": 5}, "results": [{"mean": 1.5}, {}]}
    (tmp_path / "runs" / "sweep" / "sweep.json").write_text(json.dumps(sweep))
    rows = {Path(row["run"]).name: row for row in json.loads(call("runs --json")[1])}
    assert rows["torch"]["next"] == "worldloom eval runs/torch"
    assert (rows["sweep"]["score"], rows["sweep"]["go_on"]) == (1.5, "sweep of 2, cut short")
    assert rows["sweep"]["next"] == "worldloom report runs/sweep/sweep.json"


def test_no_resume_is_suggested_where_there_is_none(capsys):
    config = SimpleNamespace(algorithm=SimpleNamespace(loop="turns"), env="a", algo="b", seed=0)
    timing = {"steps_per_second": 1.0, "train_seconds": 1.0, "compile_seconds": 1.0}
    run = SimpleNamespace(timing=lambda: timing, config=config, evaluation=None, steps=9)
    for run.folder, run.interrupted in ((Path("x"), True), (Path("x"), False)):
        _print_result(run, None, as_json=False)
        out = capsys.readouterr().out
        assert ("worldloom eval x" in out, "--resume" in out) == (True, False)


def test_a_tracked_run_says_how_to_look_at_it(capsys):
    run: Any = SimpleNamespace(
        timing=lambda: dict.fromkeys(("train_seconds", "compile_seconds", "steps_per_second"), 1.0),
        config=SimpleNamespace(env="tag", algo="ppo", seed=0, algorithm=SimpleNamespace(loop="on")),
        evaluation=None, folder=Path("runs/a b"), steps=10, interrupted=False,
    )  # fmt: skip
    look = [["tensorboard", "--logdir", "runs/a b"], ["wandb", "leet", "x"]]
    _print_result(run, None, as_json=False, look=look)
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("look: tensorboard --logdir 'runs/a b'")
    assert lines[at + 1] == "      wandb leet x"
    _print_result(run, None, as_json=True, look=look)
    told = json.loads(capsys.readouterr().out)["look"]
    assert told == ["tensorboard --logdir 'runs/a b'", "wandb leet x"]


def test_quiet_leaves_nothing_but_json(call):
    assert call("envs --quiet") == (0, "", "")
    assert call("runs --quiet") == (0, "", "")
    assert json.loads(call("runs --quiet --json")[1]) == []
    assert call("runs")[1], "and is over with the command"


# Completion --------------------------------------------------------------------------------------


def test_words_are_completed():
    assert complete(["tr"]) == ["train"]
    assert complete(["train", "treas"]) == ["treasurehunt"]
    assert complete(["train", "tag", "--algo", "pp"]) == ["ppo"]
    assert complete(["data", "ma"]) == ["make"]
    assert complete(["data", "make", "--qual"]) == ["--quality"]
    assert complete(["studio", "--po"]) == ["--port"]
    assert complete(["nonsense", ""]) == []
    assert complete(["train", "no-such-world", "--ste"]) == ["--steps"]


@pytest.mark.parametrize(
    ("words", "takes_run"),
    [
        (["eval"], True),
        (["export"], True),
        (["pushes"], True),
        (["arc", "scores"], True),
        (["arc", "submit"], True),
        (["arc", "show"], False),
        (["data", "make"], False),
    ],
)
def test_runs_are_completed_where_a_command_takes_one(words, takes_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/one").mkdir(parents=True)
    assert complete([*words, ""]) == ["runs/one"] * takes_run


@pytest.mark.parametrize("world", suites.names())
def test_options_are_completed_as_they_are(world):
    """They are read from the text of modules; here they are compared with the modules."""
    suite = suites.suite_of(world)
    for algo in ("", "ppo") if world == "arc" else ("",):
        algo = algo or suite.defaults(world, None)["algo"]
        schema = Schema(suite, world, algo)
        words = {*complete(["train", world, "--algo", algo, "--"])}
        flags = {option.flag for option in schema.options.values()}
        assert {flag for flag in flags if not flag.startswith("--amp.")} <= words


def test_every_algorithm_has_its_options_completed_and_explained():
    pytest.importorskip("gymnax", reason="Gymnax is not for this JAX")
    suite = suites.suite("plain")
    for algo in algos.names():
        schema = Schema(suite, "gymnax:Pendulum-v1", algo)
        group = schema.groups[algo]
        words = {*complete(["train", "tag", "--algo", algo, "--"])}
        assert {option.flag for option in group} <= words
        assert all(option.text for option in group), algo


@pytest.mark.parametrize("world", suites.names())
def test_every_option_of_a_world_is_explained_in_80_columns(world, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    suite = suites.suite_of(world)
    schema = Schema(suite, world, suite.defaults(world, None)["algo"])
    assert [option.name for option in schema.options.values() if not option.text] == []
    assert max(map(len, long_help(schema).splitlines())) <= 80


def test_completion_is_fast_and_light(tmp_path):
    code = "from worldloom.cli.main import main; import sys; main(sys.argv[1:]);"
    code += "print(*{'jax', 'numpy', 'tyro', 'rich'} & set(sys.modules), file=sys.stderr)"
    line = [sys.executable, "-c", code, "completion", "words", "--", "train", "reactor", "--iql.g"]
    before = os.times()
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=tmp_path)
    after = os.times()
    assert (done.stdout, done.stderr) == ("--iql.gamma\n", "\n")
    assert sum(after[2:4]) - sum(before[2:4]) < 0.5, "of processor time"


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_shell_completes(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "runs" / "my run").mkdir(parents=True)
    (tmp_path / "worldloom").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m worldloom "$@"\n')
    (tmp_path / "worldloom").chmod(0o755)
    ask = {
        "bash": "source <(worldloom completion bash); COMP_WORDS=(worldloom eval ''); COMP_CWORD=2;"
        ' _worldloom; printf "%s\\n" "${COMPREPLY[@]}"',
        "zsh": "compdef() { :; }; source <(worldloom completion zsh); words=(worldloom eval '');"
        ' CURRENT=3; compadd() { print -l "${(@)found}"; }; _worldloom',
        "fish": "worldloom completion fish | source; complete -C 'worldloom eval '",
    }[shell]
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([shell, "-c", ask], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.stdout.splitlines()[:1] == ["runs/my run"], done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_behind_a_colon_and_keeps_its_words(tmp_path):
    ask = f"""worldloom() {{ printf 'runs/my:one\nruns/my:other run\n'; echo "$@" >asked; }}
    COMP_WORDBREAKS=$' "=:'; {SCRIPTS["bash"]}
    COMP_WORDS=(worldloom studio runs/my : o --port); COMP_CWORD=4; _worldloom
    printf '%s\n' "${{COMPREPLY[@]}}" "$COMP_WORDBREAKS"; cat asked"""
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, cwd=tmp_path)
    said = ["one", "other run", ' "=:', "completion words -- studio runs/my:o"]
    assert done.stdout.splitlines() == said, done.stderr


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train treasurehunt --world.num-agents three", "--world.num-agents='three'"),
        ("train treasurehunt --epoch 3", "--epoch: this is now --steps, the budget"),
        ("sweep tag --out /proc/x --seeds 1", "/proc/x: no such file or directory; name another"),
        ("arc show falll", "there is no task 'falll'; did you mean 'fall'?"),
        ("report --jsn x", "--jsn: no such option; did you mean '--json'?"),
        ("report", "RUN|FOLDER|JSON is missing: A run folder"),
        ("data make reactor --steps five", "--steps five: it must be a whole number"),
        ("completion tcsh", "there is no shell 'tcsh'; known: bash, zsh, fish"),
    ],
)
def test_a_mistake_is_one_line_with_what_to_write_instead(call, command, words):
    code, out, err = call(command)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_a_broken_robot_is_one_line(call, tmp_path):
    pytest.importorskip("mujoco")
    (tmp_path / "own.xml").write_text("<mujoco><worldbody><body></worldbody></mujoco>")
    (tmp_path / "own.yaml").write_text("joints: {}\n")
    code, _, err = call("train biped --robot own.xml")
    assert (code, err.count("\n")) == (2, 1)
    assert "own.xml" in err or "own.yaml" in err


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: worldloom.train("arc", ppo={"num_worlds": 4}),
         "ppo.num_worlds is not an option of ppo; it is a setting of the run: num_worlds=4 beside"),
        (lambda: worldloom.train("treasurehunt", epoch=3), "'epoch' is now steps, the budget"),
        (lambda: worldloom.train("treasurehunt", num_agents=3), "of the world are in world="),
        (lambda: worldloom.train("treasurehunt", algo="pppo"), "did you mean 'ppo'?"),
        (lambda: worldloom.make("tresurehunt"), "did you mean 'treasurehunt'?"),
    ],
)  # fmt: skip
def test_python_answers_as_the_command_does(ask, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        ask()
    assert "\n" not in str(error.value)
