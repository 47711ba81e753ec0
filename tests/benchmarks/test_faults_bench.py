"""`worldloom bench faults`: a little of every attack, and the counts that it writes."""

import json

import pytest

from benchmarks import faults


def test_a_little_of_every_attack_is_counted(tmp_path, capsys):
    out = tmp_path / "faults.json"
    # Kills of trainings and of servers have tests of their own, which go further.
    sections = ["damage", "formats", "safety"]
    assert faults.command(["--quick", "--out", str(out), "--only", *sections]) == 0
    result = json.loads(out.read_text())
    assert result["complete"], result["errors"]
    assert set(result["raw"]) == set(sections)
    counted = {name: value for name, value in result["ratios"].items() if value is not None}
    names = ("silent_wrong_loads", "tracebacks", "hangs", "broken_promises", "needless_emergencies")
    assert counted == dict.fromkeys(names, 0)
    assert "how many went wrong" in capsys.readouterr().out


def test_an_unknown_section_is_refused():
    with pytest.raises(ValueError, match="did you mean 'damage'"):
        faults.command(["--only", "damages"])
