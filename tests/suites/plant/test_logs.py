"""Logs of described plants as datasets: names, units, pauses, dead time, and every kind of file."""

import numpy as np
import pytest

from worldloom.replay import dataset_files
from worldloom.replay.dataset import columns_of, from_columns
from worldloom.suites.plant.description import parse_description
from worldloom.suites.plant.logs import read_log
from worldloom.suites.plant.plant import make_world, plant_of

TEXT = """\
name: tank
step: 10 s
horizon: 100
log: {time: {column: Zeit, format: iso}, gap: 60 s, missing: [Bad], delimiter: ";", decimal: ","}
signals:
  level: {column: LI 1, unit: m, file_unit: cm, low: 0, high: 5}
  heat: {column: TI 2, unit: K, file_unit: degC, low: 250, high: 400}
actuators:
  valve: {column: Y3, unit: "%", low: 0, high: 100}
reward: -abs(level - 2) + 0.1 * before(level) - 0.01 * valve
limits:
  full: {signal: level, at_most: 3 m}
emergency: {valve: 50 %}
"""


def world(text=TEXT):
    return plant_of(make_world(parse_description(text, "t.yaml")))


def samples(count, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "level": rng.uniform(1.0, 4.0, count).round(3),
        "heat": rng.uniform(280.0, 380.0, count).round(3),
        "valve": rng.uniform(0.0, 100.0, count).round(2),
    }


def write_csv(path, taken, seconds, cells=None):
    """As a historian in another country would: cm, degC, semicolons and commas."""
    lines = ["Zeit;LI 1;TI 2;Y3"]
    start = np.datetime64("2026-03-01T00:00:00.000")
    for i, second in enumerate(seconds):
        row = [100 * taken["level"][i], taken["heat"][i] - 273.15, taken["valve"][i]]
        texts = [f"{x:.3f}".replace(".", ",") for x in row]
        if cells and i in cells:
            texts[0] = cells[i]
        stamp = start + np.timedelta64(round(1000 * second), "ms")
        lines.append(";".join([str(stamp), *texts]))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_rows_are_in_the_descriptions_names_and_units(tmp_path):
    taken = samples(6)
    data = read_log(write_csv(tmp_path / "a.csv", taken, 10.0 * np.arange(6)), world())
    rows = columns_of(data)
    states = np.stack([taken["level"], taken["heat"]], 1)
    np.testing.assert_allclose(rows["obs"], states[:-1], rtol=1e-5)
    np.testing.assert_allclose(rows["next_obs"], states[1:], rtol=1e-5)
    np.testing.assert_allclose(rows["action"][:, 0], taken["valve"][:-1] / 50 - 1, atol=1e-5)
    expected = -np.abs(taken["level"][1:] - 2) + 0.1 * taken["level"][:-1]
    np.testing.assert_allclose(rows["reward"], expected - 0.01 * taken["valve"][:-1], atol=1e-5)
    np.testing.assert_allclose(
        rows["cost"][:, 0], np.maximum(taken["level"][1:] - 3.0, 0.0), atol=1e-5
    )
    assert rows["truncated"].tolist() == [False] * 4 + [True]
    assert dict(data.provenance)["plant"] == world().plant.key


def test_pauses_and_missing_numbers_cut_episodes(tmp_path):
    seconds = np.asarray([0, 10, 20, 200, 210, 220, 230, 240, 250.0])
    path = write_csv(tmp_path / "a.csv", samples(9), seconds, {6: "Bad"})
    data = read_log(path, world())
    # 0-10-20 | 200-210-220 (230 is missing) | 240-250
    assert np.asarray(data.starts).tolist() == [0, 2, 4]
    assert data.size == 5
    assert dict(data.provenance)["missing"] == "1 samples cut out"


def test_an_episode_ends_where_time_goes_back(tmp_path):
    seconds = np.asarray([0, 10, 20, 0, 10, 20, 30.0])
    text = TEXT.replace("gap: 60 s, ", "")
    data = read_log(write_csv(tmp_path / "a.csv", samples(7), seconds), world(text))
    assert np.asarray(data.starts).tolist() == [0, 2]
    assert data.size == 5


def test_samples_at_other_times_are_refused_or_resampled_as_asked(tmp_path):
    taken = samples(40)
    twice = write_csv(tmp_path / "twice.csv", taken, 5.0 * np.arange(40))
    with pytest.raises(ValueError, match="samples are 5 s apart, and tank has steps of 10 s; mend"):
        read_log(twice, world())
    uneven = np.cumsum(np.where(np.arange(40) % 4, 10.0, 14.0))
    path = write_csv(tmp_path / "uneven.csv", taken, uneven)
    with pytest.raises(ValueError, match="of the steps are not of 10 s; write `resample: hold`"):
        read_log(path, world())
    hold = read_log(twice, world(TEXT.replace("gap: 60 s", "gap: 60 s, resample: hold")))
    np.testing.assert_allclose(hold.rows.obs[:, 0], taken["level"][:-2:2], rtol=1e-5)
    line = read_log(path, world(TEXT.replace("gap: 60 s", "gap: 60 s, resample: linear")))
    at = uneven[0] + 10.0 * np.arange(line.size)
    np.testing.assert_allclose(
        line.rows.obs[:, 0], np.interp(at, uneven, taken["level"]), rtol=1e-4
    )


def test_what_was_done_during_the_dead_time_is_observed(tmp_path):
    taken = samples(12)
    seconds = 10.0 * np.arange(12) + np.where(np.arange(12) < 6, 0.0, 500.0)
    late = TEXT.replace("high: 100}", "high: 100, delay: 15 s}")  # two steps
    data = read_log(write_csv(tmp_path / "a.csv", taken, seconds), world(late))
    # Two episodes of five rows, of which the first two each have no known past.
    assert data.size == 6
    at = np.asarray([2, 3, 4, 8, 9, 10])
    expected = np.stack([taken["valve"][at - 1], taken["valve"][at - 2]], 1)
    np.testing.assert_allclose(data.rows.obs[:, 2:], expected, rtol=1e-4)
    expected = np.stack([taken["valve"][at], taken["valve"][at - 1]], 1)
    np.testing.assert_allclose(data.rows.next_obs[:, 2:], expected, rtol=1e-4)
    assert np.asarray(data.starts).tolist() == [0, 3]


def test_long_stretches_are_cut_to_episodes_of_about_the_horizon(tmp_path):
    path = write_csv(tmp_path / "a.csv", samples(41), 10.0 * np.arange(41))
    data = read_log(path, world(TEXT.replace("horizon: 100", "horizon: 15")))
    lengths = np.diff(np.append(np.asarray(data.starts), data.size))
    assert data.size == 40
    assert lengths.tolist() == [13, 14, 13]
    assert not np.asarray(data.rows.terminated).any()


def test_parquet_gives_the_rows_of_csv(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    taken, seconds = samples(8), 10.0 * np.arange(8)
    csv = read_log(write_csv(tmp_path / "a.csv", taken, seconds, {3: ""}), world())
    stamps = np.datetime64("2026-03-01T00:00:00.000") + (1000 * seconds).astype("timedelta64[ms]")
    level = [None if i == 3 else 100 * x for i, x in enumerate(taken["level"])]
    columns = {"Zeit": stamps, "LI 1": level, "TI 2": taken["heat"] - 273.15, "Y3": taken["valve"]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = read_log(str(tmp_path / "a.parquet"), world())
    for name, column in columns_of(csv).items():
        np.testing.assert_allclose(columns_of(found)[name], column, rtol=1e-4, atol=1e-4)
    text = TEXT.replace("LI 1", "LI 9")
    with pytest.raises(ValueError, match=r"a.parquet: there is no column 'LI 9'; did you mean"):
        read_log(str(tmp_path / "a.parquet"), world(text))
    words = columns | {"LI 1": ["a"] * 8}
    parquet.write_table(pa.table(words), tmp_path / "words.parquet")
    with pytest.raises(ValueError, match="'LI 1' holds string, not numbers"):
        read_log(str(tmp_path / "words.parquet"), world())
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:100])
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        read_log(str(tmp_path / "torn.parquet"), world())


def test_npz_and_minari_files_are_in_the_descriptions_order_and_its_reward(tmp_path):
    taken = samples(6)
    states = np.stack([100 * taken["level"], taken["heat"] - 273.15], 1)
    ends = np.arange(5) == 4
    rows = from_columns(
        states[:-1], taken["valve"][:-1, None] / 50 - 1, np.zeros(5), states[1:], ~ends & ends, ends
    )
    dataset_files.save(rows, tmp_path / "a.npz")
    found = read_log(str(tmp_path / "a.npz"), world())
    csv = read_log(write_csv(tmp_path / "a.csv", taken, 10.0 * np.arange(6)), world())
    for name, column in columns_of(csv).items():
        np.testing.assert_allclose(columns_of(found)[name], column, rtol=1e-4, atol=1e-4)
    pytest.importorskip("minari")
    from worldloom.adapters import minari

    same = read_log(str(minari.save(rows, "tank/log-v0", root=tmp_path)), world())
    assert same.digest == found.digest
    wide = TEXT.replace("  heat:", "  more: {unit: m, low: 0, high: 1}\n  heat:")
    with pytest.raises(ValueError, match="2 signals and 1 actuators, tank has 3 and 1"):
        read_log(str(tmp_path / "a.npz"), world(wide))


def test_a_reward_that_is_not_finite_is_a_line_with_its_place(tmp_path):
    path = write_csv(tmp_path / "a.csv", samples(6), 10.0 * np.arange(6))
    text = TEXT.replace("-abs(level - 2) +", "log(level - 9) +")
    with pytest.raises(ValueError, match=r"reward is nan.*worldloom data check"):
        read_log(path, world(text))
