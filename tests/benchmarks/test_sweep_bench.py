"""`worldloom bench sweep`: a little of every section, and the ratios that it writes."""

import json

import pytest

from benchmarks import sweep


@pytest.mark.nightly
def test_a_little_of_every_section_is_measured(tmp_path, capsys):
    pytest.importorskip("gymnax", reason="needs worldloom[gymnax]")
    out = tmp_path / "sweep.json"
    # The killed worker has a test of its own, which goes further.
    assert sweep.command(["--quick", "--out", str(out), "--only", "vmapped", "population"]) == 0
    result = json.loads(out.read_text())
    assert result["complete"], result["errors"]
    assert result["ratios"]["sweep_vmapped_vs_sequential"] > 0
    (found,) = result["raw"]["vmapped"].values()
    assert found["seconds"].keys() == {"together", "in turn"}
    (found,) = result["raw"]["population"].values()
    assert found["scores"].keys() == {"population", "random search"}
    assert "pbt_vs_random" in capsys.readouterr().out


def test_gains_are_measured_from_random_play():
    scores = {"population": [8.0] * 4, "random search": [6.0] * 4}
    assert sweep.compared(scores, by_chance=4.0)["ratio"] == 2.0
    assert sweep.compared(scores, by_chance=7.0)["ratio"] is None, "nothing to compare with"


def test_an_unknown_section_is_refused():
    with pytest.raises(ValueError, match="did you mean 'workers'"):
        sweep.command(["--only", "worker"])
