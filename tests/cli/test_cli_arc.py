"""`worldloom arc`: lists, pictures and the page, from the command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from worldloom.cli.main import main
from worldloom.suites.arc.command import COMMANDS, find_task
from worldloom.suites.arc.sources import EXAMPLES, load

NAMES = {kind.__name__.lower(): kind.__doc__ for kind in COMMANDS}


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """call("show fall"): exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(command: str) -> tuple[int, str, str]:
        code = main(["arc", *command.split()])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


# Help --------------------------------------------------------------------------------------------


def test_the_group_names_its_commands_without_anything_heavy():
    code = (
        "from worldloom.cli.main import main; main(['arc', '--help']); import sys; "
        "print(sorted({'jax', 'numpy', 'rich', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *lines, heavy = done.stdout.splitlines()
    assert heavy == "[]"
    assert all(any(line.startswith(f"  {name}") for line in lines) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_its_options(name, capsys):
    with pytest.raises(SystemExit) as end:
        main(["arc", name, "--help"])
    assert not end.value.code
    told = " ".join(capsys.readouterr().out.split())
    own = ("--set", "--split") if name in ("tasks", "show", "play") else ("--seed", "RUN")
    assert all(option in told for option in ("--json", *own))
    assert NAMES[name].split(",")[0] in told


# tasks -------------------------------------------------------------------------------------------


def test_tasks_are_listed_with_their_statistics(call):
    code, out, err = call("tasks --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    examples = load("examples")
    assert [row["task"] for row in found["tasks"]] == list(examples.ids)
    assert found["statistics"]["tasks"] == len(examples)
    rows = {row["task"]: row for row in found["tasks"]}
    assert rows["double-size"]["changed_cells"] is None
    assert rows["recolour"]["demonstrations"] == 3
    code, table, _ = call("tasks")
    assert code == 0
    assert all(task_id in table for task_id in examples.ids)
    assert f"all {len(examples)} tasks" in table


def test_a_list_can_be_cut_and_chosen_from(call, tmp_path):
    found = json.loads(call("tasks --limit 2 --json")[1])
    assert len(found["tasks"]) == 2
    assert found["statistics"]["tasks"] == len(load("examples"))
    chosen = json.loads(call("tasks --subset same-size --max-size 5 --json")[1])["tasks"]
    assert "recolour" in [row["task"] for row in chosen]
    assert all(row["changed_cells"] is not None for row in chosen)
    assert all(max(row["largest_input"]) <= 5 for row in chosen)
    name = "a_very_long_name_[bold]_that_is_to_be_typed_" + "x" * 60
    shutil.copy(EXAMPLES / "fall.json", tmp_path / f"{name}.json")
    _, table, _ = call(f"tasks --set {tmp_path}")
    assert name in table.splitlines(), "whole, to be typed"


# show --------------------------------------------------------------------------------------------


def test_a_task_is_shown_in_digits_where_there_is_no_terminal(call):
    code, out, err = call("show examples/fall")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "fall"
    assert "demonstration 3" in out
    assert "\x1b" not in out
    answer = " ".join(map(str, load("examples")["fall"].tests[0].output[-1]))
    assert answer in out
    shown = out.partition("next:")[0]
    assert call("show fall")[1].partition("next:")[0] == shown
    assert call("show fall --set examples")[1].partition("next:")[0] == shown
    hidden = call("show fall --no-answers")[1]
    assert answer not in hidden
    assert "?" in hidden


def test_a_task_is_shown_in_colour_where_it_can_be(call, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    out = call("show fall")[1]
    assert "48;2;249;60;49m" in out  # red
    monkeypatch.setenv("NO_COLOR", "1")
    assert "48;2;" not in call("show fall")[1]


def test_json_is_a_task_that_can_be_loaded_again(call, tmp_path):
    shown = json.loads(call("show fall --json")[1])
    assert (shown["task"], shown["demonstrations"], shown["file"]) == ("fall", 3, None)
    (tmp_path / "again.json").write_text(json.dumps(shown))
    again, task = find_task(str(tmp_path / "again.json")), load("examples")["fall"]
    assert again.name == "again"
    for mine, theirs in zip(again.pairs, task.pairs, strict=True):
        assert mine.input.tolist() == theirs.input.tolist()
        assert mine.output.tolist() == theirs.output.tolist()
    assert "output" not in json.loads(call("show fall --no-answers --json")[1])["test"][0]


def test_pictures_are_written(call, tmp_path):
    code, out, _ = call("show fall --out pictures/fall.svg")
    assert (code, out) == (0, "written to pictures/fall.svg\n")
    root = ET.parse(tmp_path / "pictures" / "fall.svg").getroot()
    grids = [g for g in root.iter("{http://www.w3.org/2000/svg}g") if g.get("class") == "arc-grid"]
    assert len(grids) == 8
    code, out, _ = call("show fall --out new/fall.PNG --json")
    assert (code, json.loads(out)["file"]) == (0, "new/fall.PNG")
    with Image.open(tmp_path / "new" / "fall.PNG") as image:
        assert image.format == "PNG"
        assert image.width > 400


def test_the_beginning_of_an_id_is_enough_if_there_is_one():
    assert find_task("fill-e", "examples").name == "fill-enclosed"
    with pytest.raises(ValueError, match="there is no task 'f'"):
        find_task("f", "examples")
    with pytest.raises(ValueError, match="there is no task ''"):
        find_task("examples/")


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("shwo fall", "did you mean 'show'?"),
        ("show", "TASK"),
        ("show examples/flal", "did you mean 'fall'?"),
        ("show fall --set exmaples", "did you mean 'examples'?"),
        ("show fall --set examples --split evaluation", "no split 'evaluation'"),
        ("show nowhere.json", "nowhere.json"),
        ("show fall --out fall.jpg", "must end in .svg or .png"),
        ("show fall --answer", "--answer"),
        ("tasks --set nowhere/at/all", "no folder nowhere/at/all"),
        ("tasks --limit -1", "--limit -1"),
        ("tasks --subset nix", "no subset 'nix'"),
        ("play fall --port 70000", "no port 70000"),
        ("play fall --trials 0", "max_trials=0"),
        ("play fall --max-steps 0", "max_steps=0"),
        ("play examples/flal", "did you mean 'fall'?"),
    ],
)
def test_bad_input_is_told_in_one_line(call, command, why):
    code, out, err = call(command)
    assert (code, out) == (2, "")
    assert err.startswith("worldloom arc: ")
    assert why in err
    assert err.count("\n") == 1


def test_a_broken_task_file_is_told_with_its_cell(call, tmp_path):
    content = {"train": [{"input": [[0, 11]], "output": [[0]]}], "test": []}
    (tmp_path / "bad.json").write_text(json.dumps(content))
    code, _, err = call("show bad.json")
    assert code == 2
    assert "bad.json: task bad, train pair 0, input, cell (0, 1)" in err


# play --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_play_serves_until_it_is_interrupted(tmp_path, compiled_once):
    # Tests that a shell runs in its background ignore Ctrl-C, and so would what they start.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from worldloom.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "arc", "play", "fall", "--json", "--out", "kept"]
    environment = os.environ | {"WORLDLOOM_CACHE": compiled_once}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            lines = []
            while not lines or lines[-1] != "}\n":
                lines.append(process.stdout.readline())
                assert lines[-1], process.stderr.read()
            told = json.loads("".join(lines))
            assert told["task"] == "fall"
            assert told["url"].startswith("http://127.0.0.1:")
            with urllib.request.urlopen(told["url"]) as page:
                assert b"<title>ARC, by hand</title>" in page.read()
            for path, body in (("api/step", {"operation": 1}), ("api/save", {})):
                request = urllib.request.Request(
                    told["url"] + path,
                    json.dumps(body).encode(),
                    {"Content-Type": "application/json"},
                )
                with urllib.request.urlopen(request) as answer:
                    seen = json.load(answer)
            assert seen["path"].startswith(str((tmp_path / "kept").resolve()))
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=1200)
        finally:
            process.kill()
    assert process.returncode == 0
    assert errors == "\nended\n"
