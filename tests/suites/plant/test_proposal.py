"""Descriptions proposed from files that nobody prepared."""

import numpy as np
import pytest

from worldloom.suites.plant.data_command import command
from worldloom.suites.plant.description import parse_description
from worldloom.suites.plant.logs import read_log
from worldloom.suites.plant.plant import make_world, plant_of
from worldloom.suites.plant.proposal import propose


def foreign_csv(path, uneven=False, actuators=True):
    """Two stretches of a tank's log, with a pause, a bad value, decimal commas and a set point."""
    rng, rows = np.random.default_rng(0), 120
    seconds = 10.0 * np.arange(rows) + 900.0 * (np.arange(rows) >= 70)
    if uneven:
        seconds += np.cumsum(np.where(np.arange(rows) % 5 == 0, 4.0, 0.0))
    lines = ["Zeit;FIC-7 SP [m3/h];LI 101 (cm);TI 2;Bemerkung"]
    setpoint = np.repeat(rng.uniform(1.0, 9.0, rows // 10), 10)
    for i in range(rows):
        stamp = np.datetime64("2026-03-01T00:00:00") + np.timedelta64(round(seconds[i]), "s")
        moved = setpoint[i] if actuators else setpoint[i] + 0.01 * i
        level, heat = 150 + 20 * np.sin(i / 9), 20 + rng.normal()
        cells = [f"{x:.2f}".replace(".", ",") for x in (moved, level, heat)]
        cells[2] = "Bad" if i == 5 else cells[2]
        lines.append(";".join([str(stamp).replace("T", " "), *cells, "ok" if i % 7 else "neu"]))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_file_nobody_prepared_is_described(tmp_path):
    text, guesses = propose(foreign_csv(tmp_path / "a.csv"), [], "tank")
    assert guesses == text.count("# guess") >= 4
    assert "step: 10 s\n" in text
    assert "time: {column: Zeit, format: iso}" in text
    assert "gap: 50 s  # guess: pauses of up to 910 s" in text
    assert "missing: [Bad]" in text
    assert 'fic_7_sp: {column: "FIC-7 SP [m3/h]", unit: "m3/h"' in text
    assert "# guess: it moves in steps" in text
    assert 'li_101: {column: "LI 101 (cm)", unit: cm' in text
    assert "resample" not in text
    with pytest.raises(ValueError, match="reward is missing; say what is worth having"):
        parse_description(text, "p.yaml")
    ready = text.replace("reward:  #", "reward: -abs(li_101 - 150)  #")
    plant = parse_description(ready, "p.yaml")
    assert [s.name for s in plant.observation] == ["li_101", "ti_2"]
    data = read_log(str(tmp_path / "a.csv"), plant_of(make_world(plant)))
    assert data.size == 120 - 3 - 1  # three stretches of samples, and one that is missing
    assert len(data.starts) == 3


def test_uneven_samples_are_resampled_in_the_proposal(tmp_path):
    text, _ = propose(foreign_csv(tmp_path / "a.csv", uneven=True), [], "tank")
    assert "resample: linear  # guess: steps take from 10 to 14 s" in text


def test_actuators_are_named_where_none_can_be_guessed(tmp_path):
    path = foreign_csv(tmp_path / "a.csv", actuators=False)
    with pytest.raises(ValueError, match="no column looks like an actuator; name what is moved"):
        propose(path, [], "tank")
    text, _ = propose(path, ["FIC-7 SP [m3/h]", "TI 2"], "tank")
    actuators = text.partition("actuators:")[2].partition("reward")[0]
    assert "fic_7_sp" in actuators
    assert "ti_2" in actuators
    assert "it moves in steps" not in text
    with pytest.raises(ValueError, match="--actuators TI 3: no such column; did you mean 'TI 2'"):
        propose(path, ["TI 3"], "tank")


def test_the_command_writes_one_and_never_over_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    foreign_csv(tmp_path / "a.csv")
    assert command(["describe", "a.csv", "--plant", "tank.yaml"]) == 0
    before = (tmp_path / "tank.yaml").read_text()
    assert "tank.yaml" in capsys.readouterr().out
    with pytest.raises(FileExistsError, match="is never replaced; name another file"):
        command(["describe", "a.csv", "--plant", "tank.yaml"])
    assert (tmp_path / "tank.yaml").read_text() == before
    with pytest.raises(ValueError, match=r"must end in .yaml"):
        command(["describe", "a.csv", "--plant", "tank.txt"])
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        command(["describe", "b.csv", "--plant", "b.yaml"])
    with pytest.raises(ValueError, match="--actuators is for --plant"):
        command(["describe", "a.csv", "--actuators", "TI 2"])
