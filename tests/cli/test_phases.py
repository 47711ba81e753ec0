"""Commands that take long say what they are doing, from before the first heavy import on."""

import json
import subprocess
import sys

import pytest

from suites.grid.made_run import make_run
from worldloom.cli.main import main
from worldloom.training import console


@pytest.fixture
def phases(monkeypatch):
    """What a terminal would be told, in order."""
    said = []
    monkeypatch.setattr(console, "phase", lambda name, **state: said.append(name))
    return said


def test_compare_and_report_say_what_they_are_doing(phases, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "other"):
        make_run(tmp_path / name, iterations=10, films=False)
    assert main(["compare", "one", "other"]) == 0
    assert phases == ["reading the runs", "writing the page"]
    phases.clear()
    assert main(["report", "one"]) == 0
    assert phases == ["writing the page"]


def test_the_studio_says_that_it_starts_until_it_is_ready(phases, tmp_path, monkeypatch, capsys):
    pytest.importorskip("fastapi")
    from worldloom.serving import studio

    ends = []
    monkeypatch.setattr(console, "end", lambda: ends.append("end"))

    def run_studio(made, token, ready, port, host):
        assert ends == []
        ready("http://127.0.0.1:1/?token=x")

    monkeypatch.setattr(studio, "run_studio", run_studio)
    assert main(["studio", str(tmp_path), "--no-open"]) == 0
    assert (phases, ends[:1]) == (["starting"], ["end"])
    assert capsys.readouterr().out.startswith(f"{tmp_path} is shown at http://127.0.0.1:1/?token=x")


def test_a_server_says_what_it_loads_compiles_and_reads(phases, tmp_path, monkeypatch):
    pytest.importorskip("fastapi")
    from types import SimpleNamespace

    from worldloom.serving import serve

    def no_log(*_):
        raise ValueError("enough")

    bundle = SimpleNamespace(warm=lambda told: None, folder=tmp_path, digest="", batch_sizes=(1, 2))
    monkeypatch.setattr(serve, "load_bundle", lambda folder: bundle)
    monkeypatch.setattr(serve, "Journal", no_log)
    monkeypatch.setattr(serve, "phase", console.phase)
    words = ["serve", str(tmp_path), "--no-token", "--port", "0"]
    assert main(words) == 2
    assert phases == ["loading", "compiling", "reading the log"]


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "treasurehunt", "--grid", "iqn.gamma=0.5"],
        ["export", "nowhere"],
        ["eval", "nowhere"],
        ["serve", "nowhere", "--no-token"],
        ["studio", "."],
        ["compare", "one", "other"],
        ["report", "nowhere"],
        ["doctor"],
        ["select", "one", "other"],
        ["data", "check", "log.npz"],
        ["arc", "tasks"],
        ["envs", "tag"],
        ["pushes", "nowhere"],
    ],
    ids=lambda words: words[0],
)
def test_the_first_phase_is_said_before_anything_heavy_is_imported(words, tmp_path):
    """Importing jax alone takes a second or two on a slow machine."""
    code = (
        "import json, sys\n"
        "from worldloom.cli.main import main\n"
        "from worldloom.training import console\n"
        "def phase(name, **state):\n"
        "    heavy = [n for n in ('jax', 'fastapi') if n in sys.modules]\n"
        "    print(json.dumps([name, heavy]))\n"
        "    raise SystemExit(0)\n"
        "console.phase = phase\n"
        f"main({words!r})\n"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    name, heavy = json.loads(done.stdout)
    assert (bool(name), heavy) == (True, []), done.stderr
