"""Progress: the phases of one bar, from the first preparation to the page."""

from types import SimpleNamespace

import pytest

from worldloom.training import console
from worldloom.training.progress import ShowProgress
from worldloom.training.run import train


@pytest.fixture
def phases(monkeypatch):
    """(phase, done) in order, as a terminal would show them."""
    shown: list[tuple[str, int]] = []

    def update(task, *, description, completed, **others):
        shown.append((description, completed))

    bar = SimpleNamespace(update=update, stop=lambda: shown.append(("stopped", 0)))
    monkeypatch.setattr(console, "_new_bar", lambda: bar)
    monkeypatch.setattr(console.sys.stderr, "isatty", lambda: True, raising=False)
    return shown


def test_a_run_shows_all_it_does_in_one_bar(counting, tmp_path, phases):
    config = counting.config(record_every=40)
    run = train(counting.suite, config, tmp_path / "run", hooks=[ShowProgress()])
    names = [name for name, _ in phases]
    once = ["preparing", "playing at random", "compiling", "training"]
    once += ["evaluating", "filming", "writing the page"]
    assert list(dict.fromkeys(names)) == [*once, "stopped"]
    assert ("training", 20) in phases[phases.index(("evaluating", 20)) :], "goes on at once"
    assert names.count("stopped") == 1
    assert dict(phases)["writing the page"] == run.steps
    console.phase("more")
    assert phases[-1] == ("stopped", 0), "nothing is shown where nobody watches"


def test_nothing_is_shown_of_a_quiet_command(phases, capsys):
    console.begin(quiet=True)
    console.phase("working")
    console.say("done")
    console.begin()
    console.end()
    assert phases == []
    assert capsys.readouterr().out == ""
    console.phase("working in Python")
    assert phases == []
