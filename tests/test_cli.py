"""The `worldloom` command: what it imports, prints, writes and returns."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from worldloom import __version__, cli
from worldloom.cli import main
from worldloom.train.config import TrainConfig
from worldloom.train.evaluate import Evaluation

pytestmark = pytest.mark.usefixtures("compiled_once")

TINY = (
    "--world height=6 width=6 num_agents=2 horizon=10 spawn_prob=0.1 --num-worlds 2 "
    "--updates-per-epoch 2 --memory-rows 33 --chunk 2 --eval-every 2 --eval-episodes 4 "
    "--checkpoint-every 2 --record-period 3 --epsilon-decay 0.2 --iqn.hidden 16 "
    "--iqn.num-quantiles 4 --iqn.act-quantiles 4 --iqn.batch-size 8 --epochs 6"
)  # the settings of `finished_run`


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """call("train --epochs 3"): exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(command: str) -> tuple[int, str, str]:
        code = main(command.split())
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def run_copy(finished_run, tmp_path):
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


# Help and imports --------------------------------------------------------------------------------

HEAVY = ("jax", "flax", "numpy", "torch", "tyro", "rich", "PIL", "orbax", "yaml")


@pytest.mark.parametrize(
    "code",
    [
        "import worldloom",
        "from worldloom.cli import main; main(['--help'])",
        "from worldloom.cli import main; main([])",
        "from worldloom.cli import main; main(['--version'])",
        "from worldloom.cli import main; main(['trian'])",
    ],
)
def test_help_and_import_need_nothing_heavy(code):
    code += f"\nimport sys; print(sorted(set({HEAVY}) & set(sys.modules)))"
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    after = os.times()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    # Processor time, because other tests run beside this one.
    spent = sum(after[2:4]) - sum(before[2:4])
    assert spent < 0.5


def test_help_names_every_command(call):
    code, out, _ = call("--help")
    assert code == 0
    assert all(f"  {name} " in out for name in cli.COMMANDS)
    assert call("")[1] == out
    assert call("--version") == (0, f"worldloom {__version__}\n", "")


@pytest.mark.parametrize("name", ["envs", "train", "sweep", "eval", "report", "doctor"])
def test_every_command_explains_its_options(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert not end.value.code
    told = capsys.readouterr().out
    assert "--json" in told
    assert cli.COMMANDS[name].split(",")[0] in " ".join(told.split())


def test_help_shows_the_defaults_of_the_preset(capsys):
    shown = {}
    for preset in ("default", "original"):
        with pytest.raises(SystemExit):
            main(["train", "--preset", preset, "--help"])
        shown[preset] = " ".join(capsys.readouterr().out.split())
    hidden = "--iqn.hidden INT (default: {})"
    assert hidden.format(TrainConfig().iqn.hidden) in shown["default"]
    assert hidden.format(250) in shown["original"]


# Lists and findings ------------------------------------------------------------------------------


def test_envs_lists_the_worlds(call):
    code, out, err = call("envs --json")
    assert (code, err) == (0, "")
    worlds = {row["name"]: row for row in json.loads(out)}
    assert {"treasurehunt", "tag", "cleanup", "staghunt"} <= set(worlds)
    hunt = worlds["treasurehunt"]
    assert (hunt["size"], hunt["agents"], hunt["horizon"]) == ("10x10", 5, 50)
    code, table, _ = call("envs")
    assert code == 0
    assert "treasurehunt" in table


def test_a_world_that_cannot_be_made_is_listed_with_the_reason(call, monkeypatch):
    from worldloom.envs import registry

    def sail(**options):
        raise ImportError("sailing needs a boat; pip install 'worldloom[boat]'")

    monkeypatch.setitem(registry._REGISTERED, "sea", (sail, "sail round the cape"))
    monkeypatch.setattr(registry, "_BUILT_IN", {"tag": registry._BUILT_IN["tag"]})
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = call("envs --json")
    assert (code, err) == (0, "")
    tag, sea = json.loads(out)
    assert tag["agents"] > 1
    assert sea == {
        "name": "sea", "description": "sail round the cape",
        "missing": "sailing needs a boat; pip install 'worldloom[boat]'",
    }  # fmt: skip
    code, table, _ = call("envs")
    assert code == 0
    assert "sailing needs a boat; pip install 'worldloom[boat]'" in table


def test_doctor_gives_its_findings_and_its_verdict(call, monkeypatch):
    from worldloom.track import doctor

    code, out, _ = call("doctor --json")
    assert code == 0
    assert json.loads(out)["healthy"] is True
    code, told, _ = call("doctor")
    assert code == 0
    assert "everything works" in told
    sick = doctor.examine() | {"healthy": False, "problems": ["it leaks"]}
    monkeypatch.setattr(doctor, "examine", lambda: sick)
    assert call("doctor --json")[0] == 1


# Training ----------------------------------------------------------------------------------------


def test_train_writes_a_run_and_says_where(call, tmp_path, finished_run):
    code, out, _ = call(f"train {TINY} --json --no-report --out here")
    assert code == 0
    told = json.loads(out)
    folder = Path(told["run"])
    assert [folder] == list((Path("here")).iterdir())
    assert folder.name.startswith("treasurehunt-iqn-jax_fused-s0-")
    assert told["epoch"] == told["epochs"] == 6
    assert told["interrupted"] is False
    assert told["resume"] == f"worldloom train --resume {folder}"
    assert not (folder / "report.html").exists()
    about = json.loads((folder / "config.json").read_text())
    assert about["command"] == f"worldloom train {TINY} --json --no-report --out here"
    # The same settings by command as by code: the same run.
    assert about["hash"] == json.loads((finished_run / "config.json").read_text())["hash"]
    assert (folder / "turns.csv").read_text() == (finished_run / "turns.csv").read_text()

    # And on with it, for people this time, with pictures.
    code, out, _ = call(f"train --resume {folder} --epochs 7")
    assert code == 0
    assert "greedy score" in out
    assert f"{folder}/report.html" in out, "paths are not broken over lines"
    assert (folder / "eval.gif").exists()
    rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(7))


@pytest.fixture
def asked(monkeypatch):
    """What `run` is asked for, without running it."""
    from worldloom.train import runner

    seen = SimpleNamespace(result={}, error=None)

    def pretend(config, folder, *, resume=False, hooks=(), command=""):
        seen.config, seen.folder, seen.resume, seen.hooks = config, folder, resume, hooks
        if seen.error:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text("{}")
            raise seen.error
        timing = dict.fromkeys(
            ("compile_seconds", "train_seconds", "epochs_per_second", "agent_steps_per_second"), 1.0
        )
        usual = {
            "epoch": config.epochs,
            "interrupted": False,
            "evaluation": None,
            "timing": lambda: timing,
        }
        return SimpleNamespace(**(usual | seen.result))

    monkeypatch.setattr(runner, "run", pretend)
    return seen


def test_a_resumed_run_keeps_its_settings(call, asked, run_copy, finished_run):
    from worldloom.train.runner import read_config

    kept = read_config(finished_run)
    code, _, err = call("train --resume run")
    assert (code, err) == (0, "")
    assert asked.resume
    assert asked.folder == Path("run")
    assert asked.config == kept


def test_a_resumed_run_takes_what_is_given_also_if_it_is_a_default(call, asked, run_copy):
    from worldloom.train.runner import read_config

    kept, usual = read_config(run_copy), TrainConfig()
    wanted = {"epochs": usual.epochs, "eval_every": usual.eval_every, "chunk": usual.chunk}
    assert all(getattr(kept, name) != value for name, value in wanted.items())
    for form in ("--resume run", "--resume=run"):
        call(f"train {form} --epochs {usual.epochs} --eval-every {usual.eval_every} "
             f"--chunk={usual.chunk}")  # fmt: skip
        assert asked.config == replace(kept, **wanted)


def test_presets_and_world_options_add_up(call, asked):
    call("train --preset original --epochs 3 --world num_agents=2 --no-report")
    world = {"num_frames": 5, "legacy": True, "num_agents": 2}
    assert asked.config == TrainConfig.original(epochs=3, world=world)
    assert not asked.resume
    assert len(asked.hooks) == 1, "progress, and no pictures"
    call("train tag --algo dqn --dqn.hidden 8 8 --seed 3")
    assert (asked.config.env, asked.config.algo, asked.config.seed) == ("tag", "dqn", 3)
    assert asked.config.dqn.hidden == (8, 8)
    assert asked.folder.parent == Path("runs")


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("a=3", 3),
        ("a=0.5", 0.5),
        ("a=1e-3", 1e-3),  # which YAML takes for text
        ("a=true", True),
        ("a=null", None),
        ("a=simultaneous", "simultaneous"),
        ("a=[1, 2]", [1, 2]),
        ("a=x=y", "x=y"),
    ],
)
def test_world_options_mean_what_they_look_like(pair, value):
    found = cli._world_options([pair])
    assert found == {"a": value}
    assert type(found["a"]) is type(value)
    assert cli._world_options(["num-agents=2"]) == {"num_agents": 2}


def test_a_run_stopped_by_ctrl_c_returns_130_and_says_how_to_go_on(call, asked):
    asked.result = {"interrupted": True, "epoch": 2}
    code, out, _ = call("train --out here")
    assert code == 130
    assert f"worldloom train --resume {asked.folder}" in out
    code, out, _ = call("train --out here --json")
    assert code == 130
    told = json.loads(out)
    assert told["interrupted"] is True
    assert told["resume"] == f"worldloom train --resume {asked.folder}"


def test_a_second_ctrl_c_returns_130_without_a_traceback(call, asked, monkeypatch):
    asked.error = KeyboardInterrupt()
    code, out, err = call("train --out here")
    assert (code, out) == (130, "")
    assert f"go on from the last checkpoint: worldloom train --resume {asked.folder}" in err
    monkeypatch.setattr(cli, "_doctor", lambda argv: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert call("doctor") == (130, "", "worldloom doctor: stopped at once\n")


def test_results_are_shown_with_their_error(call, asked):
    import numpy as np

    scores = np.array([500.0, 510.0, 520.0])
    asked.result = {"evaluation": Evaluation(scores, scores[:, None], 1.0)}
    code, out, err = call("train")
    assert (code, err) == (0, "")
    assert "510.0 +- 5.8 (3 episodes)" in out
    told = json.loads(call("train --json")[1])
    assert told["score"] == 510.0
    assert told["score_stderr"] == pytest.approx(5.7735, rel=1e-4)


# Looking at runs ---------------------------------------------------------------------------------


def test_eval_scores_and_films_a_run(call, run_copy):
    from PIL import Image

    code, out, _ = call("eval run --episodes 4 --seed 2 --gif film.gif --json")
    assert code == 0
    told = json.loads(out)
    assert (told["run"], told["epoch"], told["episodes"]) == ("run", 6, 4)
    assert told["mean"] == pytest.approx(sum(told["scores"]) / 4)
    assert told["gif"] == "film.gif"
    with Image.open("film.gif") as film:
        assert film.n_frames == 11
    assert not list(Path().glob("*.part"))
    code, again, _ = call("eval run --episodes 4 --seed 2")
    assert code == 0
    assert f"{told['mean']:.1f} +- {told['stderr']:.1f} (s.e.)" in again
    assert "95 % interval" in again


def test_report_writes_the_page_of_a_run(call, run_copy):
    (run_copy / "report.html").unlink()
    assert call("report run") == (0, "written to run/report.html\n", "")
    assert "<html" in (run_copy / "report.html").read_text()
    told = json.loads(call("report run --json")[1])
    assert told == {"report": "run/report.html"}


@pytest.mark.parametrize(
    "result",
    [
        {"rows": [{"mode": "jax_fused", "epochs_per_second": 3.0, "num_agents": 2}], "task": {}},
        {"ratios": {"time_to_500": 60.0}, "raw": {}, "command": "worldloom bench grid"},
    ],
    ids=["comparison", "benchmark"],
)
def test_report_writes_the_page_of_a_result_beside_it(call, tmp_path, result):
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert call("report result.json") == (0, "written to result.html\n", "")
    assert "<html" in (tmp_path / "result.html").read_text()


def test_an_extra_that_is_missing_is_one_line_with_the_remedy(call, monkeypatch):
    from worldloom.track import trackers

    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    code, _, said = call("train treasurehunt --track tensorboard")
    assert code == 2
    assert said.count("\n") == 1
    assert "pip install 'worldloom[track]'" in said


def test_output_that_nobody_reads_is_no_error():
    code = "from worldloom.cli import main; import sys; sys.exit(main(['envs', '--json']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
