"""`worldloom bench faults`: a little of every attack, and the counts that it writes."""

import json

import pytest

from benchmarks import faults


def test_a_little_of_every_attack_is_counted(tmp_path, capsys):
    out = tmp_path / "faults.json"
    assert faults.command(["--quick", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["complete"], result["errors"]
    clean = dict.fromkeys(faults.RATIOS, 0) | {"kill_chains_exact": 1.0}
    assert result["ratios"] == clean
    assert result["raw"]["runs"]["kills"] == result["raw"]["runs"]["chains"] == 5
    assert "how many went wrong" in capsys.readouterr().out


def test_an_unknown_section_is_refused():
    with pytest.raises(ValueError, match="did you mean 'damage'"):
        faults.command(["--only", "damages"])
