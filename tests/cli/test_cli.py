"""The `worldloom` command: what it imports, prints, writes and returns."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from oracles import guess
from worldloom import __version__, suites
from worldloom.cli import main as cli
from worldloom.cli.main import main
from worldloom.training.config import make_config
from worldloom.training.run import read_config

pytestmark = pytest.mark.usefixtures("compiled_once")

GRID = suites.suite("grid")
TINY = (
    "treasurehunt --world.height 6 --world.width 6 --world.num-agents 2 --world.horizon 10 "
    "--world.spawn-prob 0.1 --num-worlds 2 --chunk 2 --eval-every 40 --eval-episodes 4 "
    "--checkpoint-every 40 --record-every 60 --iqn.hidden 16 --iqn.num-quantiles 4 "
    "--iqn.act-quantiles 4 --iqn.batch-size 8 --iqn.gradient-steps 2 --iqn.buffer-size 66 "
    "--iqn.epsilon-decay 0.2 --steps 120"
)  # the settings of `finished_run`


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """call("train tag --steps 3"): exit code, standard output and standard error."""
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
        "import worldloom; worldloom.worlds(); worldloom.algorithms()",
        "from worldloom.cli.main import main; main(['--help'])",
        "from worldloom.cli.main import main; main([])",
        "from worldloom.cli.main import main; main(['--version'])",
        "from worldloom.cli.main import main; main(['trian'])",
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
    assert all(f"  {name} " in out for name in cli.commands())
    assert {"arc", "data"} <= cli.commands().keys() - cli.COMMANDS.keys()
    assert call("")[1] == out
    assert call("--version") == (0, f"worldloom {__version__}\n", "")


@pytest.mark.parametrize("name", ["envs", "algos", "report", "export", "doctor"])
def test_every_command_explains_its_options(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert not end.value.code
    out = capsys.readouterr().out
    assert "--json" in out
    assert cli.COMMANDS[name].split(",")[0] in " ".join(out.split())


GROUPS = {
    "arc": ("tasks", "show", "play", "scores", "submit"),
    "audit": ("verify", "replay", "shadow", "alarms"),
    "data": ("make", "check", "describe", "convert"),
}
HELPS = ["", *cli.commands(), *(f"{group} {name}" for group in GROUPS for name in GROUPS[group])]


@pytest.mark.parametrize("line", HELPS)
def test_help_fits_80_columns(line, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        assert main([*line.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: worldloom {line}".rstrip())
    assert [text for text in lines if len(text) > 80] == []
    assert not re.search(r"--no-(json|no-)|{None}", "".join(lines)), "no negation of what is off"
    assert "default: True" not in "".join(lines), "which behind --no-open says the contrary"
    words = [text.split()[0] for text in lines[2:] if re.match(r"  [a-z]+  ", text)]
    assert line not in GROUPS or tuple(words) == GROUPS[line]


@pytest.mark.parametrize("name", ["sweep", "eval"])
def test_commands_with_settings_explain_their_options(name, call):
    for line in (name, f"{name} --help", f"{name} x -h"):
        code, out, err = call(line)
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: worldloom {name} ")
        assert "--json" in out


def test_train_says_what_can_be_trained(call):
    code, out, err = call("train")
    assert (code, err) == (0, "")
    assert all(name in out for name in suites.names())
    assert call("train --help")[1] == out


def test_help_shows_the_defaults_of_a_preset(call):
    for preset, hidden in (("", 64), ("--preset original", 250)):
        code, out, _ = call(f"train treasurehunt {preset} --help-all")
        assert code == 0
        assert f" --iqn.hidden {hidden} " in " ".join(out.split())


# Lists and findings ------------------------------------------------------------------------------


def test_envs_lists_the_worlds(call):
    code, out, err = call("envs --json")
    assert (code, err) == (0, "")
    worlds = {row["name"]: row for row in json.loads(out)}
    assert worlds.keys() == suites.names().keys()
    hunt = worlds["treasurehunt"]
    assert (hunt["suite"], hunt["agents"], hunt["horizon"]) == ("grid", 5, 50)
    assert hunt["actions"] == "4 discrete"
    assert worlds["reactor"]["actions"] == "2 continuous"
    code, table, _ = call("envs")
    assert code == 0
    assert "industrial-benchmark" in table, "names are whole"


def test_a_world_that_cannot_be_made_is_listed_with_the_reason(call, monkeypatch):
    def sail(**options):
        raise ImportError("sailing needs a boat; pip install 'worldloom[boat]'")

    monkeypatch.setattr(suites, "_REGISTERED", {})
    monkeypatch.setattr(suites, "SUITES", ("grid",))
    suites.register("sea", sail, "sail round the cape")
    monkeypatch.setenv("COLUMNS", "150")
    code, out, err = call("envs --json")
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert rows[0]["agents"] > 1
    assert rows[-1] == {
        "name": "sea",
        "suite": "",
        "description": "sail round the cape",
        "missing": "sailing needs a boat; pip install 'worldloom[boat]'",
    }
    assert "sail round the cape" in call("envs")[1]
    code, _, err = call("envs sea")
    assert (code, err) == (
        2,
        "worldloom envs: sailing needs a boat; pip install 'worldloom[boat]'\n",
    )


def test_algos_lists_the_algorithms_and_where_they_fit(call):
    from worldloom import algos

    code, out, err = call("algos --json")
    assert (code, err) == (0, "")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows.keys() == algos.names().keys()
    assert rows["mappo"]["needs"] == "several agents"
    assert (rows["iql"]["loop"], rows["iql"]["needs"]) == ("offline", "logged data")
    assert (rows["sac"]["loop"], rows["sac"]["actions"]) == ("off-policy", "continuous")
    assert "mappo" in call("algos")[1]


def test_doctor_gives_its_findings_and_its_verdict(call, monkeypatch):
    from worldloom.cli import doctor

    code, out, _ = call("doctor --json")
    assert code == 0
    assert json.loads(out)["healthy"] is True
    code, out, _ = call("doctor")
    assert code == 0
    assert "everything works" in out
    sick = doctor.examine() | {"healthy": False, "problems": ["it leaks"]}
    monkeypatch.setattr(doctor, "examine", lambda: sick)
    assert call("doctor --json")[0] == 1


def test_bench_measures_a_world(call, tmp_path):
    (tmp_path / "own.py").write_text(
        "from worldloom.suites.grid import tag\n"
        "def make(horizon=5):\n"
        "    return tag.make(num_agents=2, horizon=horizon)\n"
    )
    code, out, err = call("bench own.py:make --num-worlds 2 --num-steps 3 --repeats 2 --json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["world"] == "own.py:make"
    assert len(result["seconds"]) == 2
    assert result["steps_per_second"] > 0
    code, out, err = call("bench")
    assert (code, err) == (0, "")
    assert all(f"  {name}" in out for name in ("grid", "algos", "WORLD"))


# Training ----------------------------------------------------------------------------------------


def test_train_writes_a_run_and_says_where(call, tmp_path, finished_run):
    code, out, _ = call(f"train {TINY} --json --no-report --out here")
    assert code == 0
    result = json.loads(out)
    folder = Path(result["run"])
    assert [folder] == list((Path("here")).iterdir())
    assert folder.name.startswith("treasurehunt-iqn-s0-")
    assert (result["iterations"], result["steps"], result["interrupted"]) == (6, 120, False)
    assert result["resume"] == f"worldloom train --resume {folder}"
    assert not (folder / "report.html").exists()
    about = json.loads((folder / "config.json").read_text())
    assert about["command"] == f"worldloom train {TINY} --json --no-report --out here"
    # The same settings by command as by code: the same run.
    assert about["hash"] == json.loads((finished_run / "config.json").read_text())["hash"]
    assert (folder / "turns.csv").read_text() == (finished_run / "turns.csv").read_text()

    # And on with it, for people this time, with pictures.
    code, out, _ = call(f"train --resume {folder} --steps 140")
    assert code == 0
    assert "greedy score" in out
    assert f"{folder}/report.html" in out, "paths are not broken over lines"
    assert (folder / "eval.gif").exists()
    rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(1, 8))


@pytest.mark.nightly
@pytest.mark.slow
def test_a_profile_is_in_the_run_folder_and_nowhere_if_the_run_is_refused(call):
    assert call(f"train {TINY} --profile --no-report --out here")[0] == 0
    (folder,) = Path("here").iterdir()
    assert list((folder / "profile").rglob("*.xplane.pb"))
    code, _, said = call(f"train {TINY} --iqn.buffer-size 3 --profile --out there")
    assert code == 2
    assert "buffer_size=3 cannot hold an episode" in said
    assert not Path("there").exists()


@pytest.fixture
def asked(monkeypatch):
    """What `train` is asked for, without training."""
    from worldloom.training import run

    seen = SimpleNamespace(result={}, error=None)

    def pretend(suite, config, folder, *, resume=False, report=True, hooks=(), command=""):
        seen.config, seen.folder, seen.resume, seen.hooks = config, folder, resume, hooks
        seen.suite, seen.report, seen.command = suite, report, command
        if seen.error:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text("{}")
            raise seen.error
        names = ("compile_seconds", "train_seconds", "steps_per_second")
        usual = {
            "config": config,
            "folder": folder,
            "steps": config.steps,
            "interrupted": False,
            "evaluation": None,
            "timing": lambda: dict.fromkeys(names, 1.0),
            "references": lambda: {"random play": {"mean": 100.0, "stderr": 2.5}},
        }
        return SimpleNamespace(**(usual | seen.result))

    monkeypatch.setattr(run, "train", pretend)
    return seen


def test_a_resumed_run_keeps_its_settings(call, asked, run_copy, finished_run):
    kept = read_config(finished_run, GRID)
    code, _, err = call("train --resume run")
    assert (code, err) == (0, "")
    assert asked.resume
    assert asked.folder == Path("run")
    assert asked.config == kept


def test_a_resumed_run_takes_what_is_given_also_if_it_is_a_default(call, asked, run_copy):
    kept, usual = read_config(run_copy, GRID), make_config(GRID, {"env": "treasurehunt"})
    given = {name: getattr(usual, name) for name in ("steps", "eval_every", "chunk")}
    assert all(getattr(kept, name) != value for name, value in given.items())
    for form in ("--resume run", "--resume=run", "treasurehunt --resume run"):
        call(
            f"train {form} --steps {usual.steps} --eval-every {usual.eval_every} "
            f"--chunk={usual.chunk}"
        )
        assert asked.config == replace(kept, **given)


def test_presets_and_world_options_add_up(call, asked):
    call("train treasurehunt --preset original --steps 3 --world.num-agents 2 --no-report")
    from worldloom.suites.grid.suite import original

    world = {"num_frames": 5, "legacy": True, "num_agents": 2}
    assert asked.config == make_config(GRID, original(steps=3, world=world))
    assert not asked.resume
    assert not asked.report
    assert len(asked.hooks) == 1, "progress"
    call("train tag --algo dqn --dqn.hidden 8 8 --seed 3 --quiet")
    assert (asked.config.env, asked.config.algo, asked.config.seed) == ("tag", "dqn", 3)
    assert asked.config.hyper.hidden == (8, 8)
    assert asked.folder.parent == Path("runs")
    assert (asked.report, len(asked.hooks)) == (True, 0)
    assert asked.command == "worldloom train tag --algo dqn --dqn.hidden 8 8 --seed 3"


def test_a_run_stopped_by_ctrl_c_returns_130_and_says_how_to_go_on(call, asked):
    asked.result = {"interrupted": True, "steps": 40}
    code, out, _ = call("train tag --out here")
    assert code == 130
    assert f"worldloom train --resume {asked.folder}" in out
    code, out, _ = call("train tag --out here --json --quiet")
    assert code == 130
    result = json.loads(out)
    assert result["interrupted"] is True
    assert result["resume"] == f"worldloom train --resume {asked.folder}"


def test_a_second_ctrl_c_returns_130_without_a_traceback(call, asked, monkeypatch):
    from worldloom.cli import doctor

    asked.error = KeyboardInterrupt()
    code, out, err = call("train tag --out here")
    assert (code, out) == (130, "")
    assert f"go on from the last checkpoint: worldloom train --resume {asked.folder}" in err

    def stopped(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "command", stopped)
    assert call("doctor") == (130, "", "worldloom doctor: stopped at once\n")


def test_results_are_shown_with_their_error(call, asked):
    import numpy as np

    from worldloom.suites.grid.evaluate import GridEvaluation

    scores = np.array([500.0, 510.0, 520.0])
    asked.result = {"evaluation": GridEvaluation(scores, scores[:, None], 1.0)}
    code, out, err = call("train tag")
    assert (code, err) == (0, "")
    assert "510.0 +- 5.8 (s.e.), 3 episodes" in out
    assert "100.0 +- 2.5 (s.e.)" in out
    result = json.loads(call("train tag --json")[1])
    assert result["score"] == result["mean"] == 510.0
    assert result["stderr"] == pytest.approx(5.7735, rel=1e-4)


def test_where_one_wins_what_another_loses_the_sum_is_no_score(call, asked):
    import numpy as np

    from worldloom.suites.grid.evaluate import GridEvaluation

    sums, each = np.full(3, -5.0), np.array([[-5.0, 0.0], [-2.0, -3.0], [0.0, -5.0]])
    ahead = np.array([0.5, 0.6, 0.7])
    rivals = GridEvaluation(sums, each, 1.0, paid=np.array([1.0, 2.0, 3.0]), against_random=ahead)
    asked.result = {
        "evaluation": rivals,
        "references": lambda: {"random play": {"mean": -5.0, "stderr": 4.2e-8}},
    }
    code, out, err = call("train tag")
    assert (code, err) == (0, "")
    assert "ahead of random  0.6 +- 0.058 (s.e.)" in out
    assert "-5.0" not in out.split("each agent")[0]
    assert "e-08" not in out
    assert json.loads(call("train tag --json")[1])["score"] == pytest.approx(0.6)


@pytest.mark.slow
def test_a_sweep_is_run_shown_and_written(call):
    command = f"sweep {TINY} --steps 20 --grid iqn.gamma=0.5,0.9 --seeds 2 --out here"
    code, out, err = call(f"{command} --json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert [row["settings"] for row in result["results"]] == ["iqn.gamma=0.5", "iqn.gamma=0.9"]
    assert "iqn.gamma=0.9" in Path(result["report"]).read_text()
    code, out, _ = call(command)
    assert code == 0
    assert "iqn.gamma=0.5" in out
    assert "sweep.html" in out


# Worlds of one's own -----------------------------------------------------------------------------


def test_a_world_in_a_file_trains_resumes_and_is_scored(call, tmp_path):
    shutil.copy(Path(guess.__file__), tmp_path / "guess.py")
    settings = "--num-worlds 4 --eval-episodes 4 --ppo.unroll-length 8 --ppo.hidden 8"
    code, out, err = call(f"train guess.py:make --world.choices 2 --steps 32 {settings} --json")
    assert (code, err) == (0, "")
    folder = Path(json.loads(out)["run"])
    assert folder.name.startswith("guess-ppo-s0-")
    about = json.loads((folder / "config.json").read_text())
    assert (about["suite"], about["config"]["world"]) == ("plain", {"choices": 2})
    assert (folder / "report.html").stat().st_size > 1000
    code, out, _ = call(f"train --resume {folder} --steps 64 --json --no-report")
    assert (code, json.loads(out)["steps"]) == (0, 64)
    code, out, _ = call(f"eval {folder} --json --record data.npz")
    assert code == 0
    assert json.loads(out)["length"] == 4.0
    # What was recorded can be learned from.
    cloned = f"train guess.py:make --algo bc --dataset data.npz --steps 2 {settings}"
    code, out, err = call(cloned.replace("ppo.unroll-length 8", "bc.batch-size 4")
                          .replace("ppo.hidden", "bc.hidden")
                          + " --bc.updates-per-iteration 1 --json --no-report")  # fmt: skip
    assert (code, err) == (0, "")
    assert json.loads(out)["steps"] == 2


# Looking at runs ---------------------------------------------------------------------------------


def test_eval_scores_and_films_a_run(call, run_copy):
    from PIL import Image

    code, out, _ = call("eval run --episodes 4 --seed 2 --gif film.gif --json")
    assert code == 0
    result = json.loads(out)
    assert (result["run"], result["steps"], result["episodes"]) == ("run", 120, 4)
    assert result["mean"] == pytest.approx(sum(result["scores"]) / 4, abs=1e-3)
    assert result["gif"] == "film.gif"
    with Image.open("film.gif") as film:
        assert film.n_frames == 11
    assert call("eval run --gif film.mp4")[::2] == (
        2,
        "worldloom eval: --gif film.mp4: the film is a .gif file\n",
    )
    assert not list(Path().glob("*.part"))
    code, again, _ = call("eval run --episodes 4 --seed 2")
    assert code == 0
    assert f"{result['mean']:.1f} +- {result['stderr']:.1f} (s.e.)" in again
    assert "95 % interval" in again
    known = json.loads(Path("run/config.json").read_text())["references"]
    assert result["references"] == known
    random = known["random play"]
    assert f"random play {random['mean']:.4g} +- {random['stderr']:.2g} (s.e.)" in " ".join(
        again.split()
    )


def test_people_play_a_world_or_against_a_run(call, run_copy, monkeypatch):
    played = []
    monkeypatch.setattr(
        suites, "suite", lambda name: replace(GRID, play=lambda *args: played.append(args))
    )
    assert call("eval tag --human --seed 3 --world.num-agents 2") == (0, "", "")
    assert call("eval run --human") == (0, "", "")
    (world, seed), (run, _) = played
    assert (world.spec.name, world.spec.num_agents, seed) == ("tag", 2, 3)
    assert run.steps == 120


def test_report_writes_the_page_of_a_run(call, run_copy):
    (run_copy / "report.html").unlink()
    code, out, err = call("report run")
    assert (code, out.splitlines()[0], err) == (0, "written to run/report.html", "")
    assert "<html" in (run_copy / "report.html").read_text()
    assert json.loads(call("report run --json")[1]) == {"report": "run/report.html"}


@pytest.mark.parametrize(
    "result",
    [
        {"kind": "compare", "rows": [{"mode": "jax_fused", "epochs_per_second": 3.0,
                                      "num_agents": 2}], "task": {}},
        {"kind": "sweep", "config": {"env": "tag"}, "results": [], "complete": True},
        {"ratios": {"time_to_500": 60.0}, "raw": {}, "command": "worldloom bench grid"},
    ],
    ids=["comparison", "sweep", "benchmark"],
)  # fmt: skip
def test_report_writes_the_page_of_a_result_beside_it(call, tmp_path, result):
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert call("report result.json") == (0, "written to result.html\n", "")
    assert "<html" in (tmp_path / "result.html").read_text()


def test_an_extra_that_is_missing_is_one_line_with_the_remedy(call, monkeypatch):
    from worldloom.training.trackers import tracker as trackers

    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    code, _, err = call("train treasurehunt --track tensorboard")
    assert code == 2
    assert err.count("\n") == 1
    assert "pip install 'worldloom[track]'" in err


def test_output_that_nobody_reads_is_no_error():
    code = "from worldloom.cli.main import main; import sys; sys.exit(main(['envs', '--json']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
