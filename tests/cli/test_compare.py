"""`worldloom compare RUN RUN ...`: runs in one world side by side, or a refusal."""

import json
import shutil

import pytest

from report.reading import charts
from worldloom.cli.main import main


@pytest.fixture
def two_runs(finished_run, tmp_path):
    """A run, and a copy of it that learned with another rate and scored one more."""
    other = tmp_path / "other"
    shutil.copytree(finished_run, other)
    _change(other, lambda config: config["iqn"].update(learning_rate=0.5))
    rows = [json.loads(line) for line in (other / "eval.jsonl").read_text().splitlines()]
    lines = [json.dumps(row | {"mean": row["mean"] + 1.0}) for row in rows]
    (other / "eval.jsonl").write_text("\n".join(lines) + "\n")
    return finished_run, other


def _change(folder, change):
    about = json.loads((folder / "config.json").read_text())
    change(about["config"])
    (folder / "config.json").write_text(json.dumps(about))


def test_runs_are_listed_best_first_with_what_was_set_differently(two_runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["compare", *map(str, two_runs), "--out", str(page), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    best, other = result["runs"]
    assert best["run"] == str(two_runs[1])
    assert best["mean"] == other["mean"] + 1.0
    assert best["differs"].keys() == {"iqn.learning_rate"}
    assert best["differs"]["iqn.learning_rate"] == 0.5
    html = page.read_text()
    known = json.loads((two_runs[0] / "config.json").read_text())["references"]
    assert result["references"] == known
    assert charts(html)["evaluation score ± s.e."]["references"] == [
        ["random play", known["random play"]["mean"]]
    ]
    assert "<td>random play</td>" in html.replace(' class="n"', "")
    assert "Score over steps" in html
    assert html.count("iqn.learning_rate=") == 2


def test_an_option_at_its_default_is_the_same_task(two_runs, tmp_path):
    _change(two_runs[1], lambda config: config["world"].update(turn_order="interleaved"))
    page = tmp_path / "page.html"
    assert main(["compare", *map(str, two_runs), "--out", str(page)]) == 0


def test_what_a_suite_calls_its_task_is_part_of_it():
    from worldloom.cli.compare import task_of
    from worldloom.report.runs import Run

    def run(task):
        settings = {"env": "biped", "world": {}, "task": task, "robot": None}
        return Run(None, {"suite": "robot", "config": settings}, [], [], {}, False)

    assert task_of(run("walk")) == task_of(run("walk")) != task_of(run("stand"))


def test_the_table_fits_a_terminal(two_runs, tmp_path, capsys):
    assert main(["compare", *map(str, two_runs), "--out", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert "treasurehunt, best first" in said
    assert "random play" in said


def test_runs_of_different_tasks_are_refused(two_runs, tmp_path, capsys):
    _change(two_runs[1], lambda config: config["world"].update(turn_order="simultaneous"))
    page = tmp_path / "page.html"
    assert main(["compare", *map(str, two_runs), "--out", str(page)]) == 2
    assert "learned different tasks (world.turn_order)" in capsys.readouterr().err
    assert not page.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nowhere elsewhere", "nowhere is not a folder"),
        ("treasurehunt", "`worldloom bench modes treasurehunt` times"),
        ("nowhere", "compare needs two run folders or more"),
        ("a b --out page.png", "--out page.png: the page is an .html file"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(words, message, capsys):
    assert main(["compare", *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
