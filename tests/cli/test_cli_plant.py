"""`worldloom train dmsd` and what follows it, from the command line, in seconds."""

import json
import shutil

import pytest

from worldloom.cli.main import main

SMALL = (
    "--data-steps 400 --iql.updates-per-iteration 3 --iql.batch-size 8 --iql.hidden 8 --chunk 1 "
    "--eval-every 0 --eval-episodes 2 --checkpoint-every 3 --ope-updates 3 --world.horizon 10"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compiled_once):
    """The folder of a run of two iterations, without pictures. Look, do not touch."""
    root = tmp_path_factory.mktemp("runs")
    line = f"train dmsd --algo iql --dataset medium --steps 6 {SMALL} --no-report --out {root}"
    assert main(line.split()) == 0
    (folder,) = root.iterdir()
    return folder


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """call("eval X"): exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def called(command: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(command.split())
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


def test_a_run_keeps_its_command_its_constraints_and_what_it_is_worth(trained, read_rows):
    about = json.loads((trained / "config.json").read_text())
    assert about["command"].startswith("worldloom train dmsd --algo iql --dataset medium")
    assert about["config"]["world"] == {"horizon": 10}
    assert (trained / "constraints.yaml").read_text().startswith("emergency:")
    assert json.loads((trained / "ope.json").read_text())["estimates"]
    assert [row["steps"] for row in read_rows(trained / "metrics.jsonl")] == [3, 6]


def test_a_run_goes_on_from_where_it_stopped(trained, call, tmp_path, read_rows):
    folder = shutil.copytree(trained, tmp_path / "again")
    code, out, _ = call(f"train --resume {folder} --steps 9")
    assert code == 0
    assert [row["steps"] for row in read_rows(folder / "metrics.jsonl")] == [3, 6, 9]
    assert "report.html" in out
    assert (folder / "report.html").stat().st_size > 10_000


def test_a_run_is_scored_bare_and_filtered(trained, call):
    code, out, err = call(f"eval {trained} --episodes 3 --json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["run"], result["steps"]) == (str(trained), 6)
    assert result["mean"] == result["filtered"]["return"]
    code, out, _ = call(f"eval {trained} --episodes 3")
    assert code == 0
    assert "never crossed" in out or "crossed:" in out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train dmsd --algo iq", "there is no algorithm 'iq'"),
        ("train dmsd --dataset nowhere.npz", "nowhere.npz"),
        ("train dmsd --iql.alpa 1", "alpa"),
        ("train dmsd --world.horizon 0", "horizon"),
        ("train dmsd --constraints nowhere.yaml", "nowhere.yaml"),
        ("eval nowhere", "nowhere"),
        ("data make raector", "there is no plant 'raector'; did you mean 'reactor'?"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(call, tmp_path, command, words):
    code, _, err = call(command)
    assert code == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.slow
def test_a_run_is_exported_once_unless_it_is_forced(trained, call, tmp_path):
    line = f"export {trained} --out {tmp_path / 'bundle'} --no-onnx"
    assert call(line)[0] == 0
    assert (tmp_path / "bundle" / "manifest.json").is_file()
    code, _, err = call(line)
    assert code == 2
    assert "(--force) replaces it" in err
    assert call(f"{line} --force --json")[0] == 0
