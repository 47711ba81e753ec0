"""CSV exports of a historian: what the mapping makes of them, and what is wrong in one line."""

import numpy as np
import pytest

from worldloom.replay.dataset_csv import read_csv
from worldloom.replay.dataset_mapping import read_mapping

YAML = """
name: line 4
time: {column: at, format: iso}
gap: 120
missing: [Bad]
observation:
  - {column: TI101, name: temperature, unit: K, offset: 273.15, low: 280, high: 420}
  - {column: LI7, name: level, unit: m, scale: 0.01}
action:
  - {column: FC7.OP, name: valve, unit: "%", low: 0, high: 100}
reward: profit
terminated: tripped
cost: [over]
"""
HEAD = "at,TI101,LI7,FC7.OP,profit,tripped,over"
LINES = [
    "2024-05-01T10:00:00,50,100,0,1,0,0",
    "2024-05-01T10:01:00,51,110,50,2,0,0.5",
    "2024-05-01T10:02:00,52,120,100,3,0,0",
    "2024-05-01T11:00:00,60,200,25,4,0,0",  # after a pause
    "2024-05-01T11:01:00,61,210,75,5,0,0",
    "2024-05-01T11:02:00,90,220,75,6,1,9",  # it tripped
    "2024-05-01T11:03:00,20,220,75,6,1,9",  # and stood still
    "2024-05-01T11:04:00,30,100,10,7,0,0",  # started again
    "2024-05-01T11:05:00,31,110,20,8,0,0",
]


@pytest.fixture
def write(tmp_path):
    """write(lines, yaml): the CSV file and its mapping."""

    def write(lines=LINES, yaml=YAML, head=HEAD):
        (tmp_path / "map.yaml").write_text(yaml)
        (tmp_path / "log.csv").write_text("\n".join([head, *lines]) + "\n")
        return tmp_path / "log.csv", read_mapping(tmp_path / "map.yaml")

    return write


def test_samples_become_steps_with_units_ends_and_episodes(write):
    found = read_csv(*write())
    columns = found.columns
    np.testing.assert_allclose(columns["obs"][:, 0], np.array([50, 51, 60, 61, 30]) + 273.15)
    np.testing.assert_allclose(columns["obs"][:, 1], [1.0, 1.1, 2.0, 2.1, 1.0])
    np.testing.assert_allclose(columns["next_obs"][:, 1], [1.1, 1.2, 2.1, 2.2, 1.1])
    np.testing.assert_allclose(columns["action"][:, 0], [-1, 0, -0.5, 0.5, -0.8])
    assert columns["reward"].tolist() == [1, 2, 4, 5, 7]
    assert columns["terminated"].tolist() == [0, 0, 0, 1, 0]
    assert columns["truncated"].tolist() == [False, True, False, False, True]
    assert columns["cost"][:, 0].tolist() == [0, 0.5, 0, 0, 0]
    assert np.diff(columns["time"]).tolist() == [60, 3540, 60, 180]
    assert found.lines.tolist() == [2, 3, 5, 6, 9]
    assert found.check().sound
    dataset = read_csv(*write()).dataset()
    assert (dataset.name, dataset.starts.tolist()) == ("line 4", [0, 2, 4])
    assert dict(dataset.provenance)["signals"] == "temperature [K], level [m], valve [%]"


def test_the_reward_may_stand_in_the_line_it_leads_to(write):
    path, rules = write(yaml=YAML.replace("reward: profit", "reward: {column: profit, at: next}"))
    assert read_csv(path, rules).columns["reward"].tolist() == [2, 3, 5, 6, 8]


def test_the_reward_may_be_a_function(write):
    path, rules = write(yaml=YAML.replace("reward: profit", ""))
    with pytest.raises(ValueError, match="the mapping names no reward; add its column"):
        read_csv(path, rules)
    found = read_csv(path, rules, reward=lambda obs, action, after: after[:, 1] - obs[:, 1])
    np.testing.assert_allclose(found.columns["reward"], 0.1, atol=1e-9)


def test_an_episode_column_parts_episodes(write):
    yaml = YAML.replace("gap: 120", "episode: over")
    found = read_csv(*write(yaml=yaml, lines=LINES[:3] + LINES[3:5]))
    # over is 0, 0.5, 0, 0, 0: the second sample is an episode without a step, as is the first.
    assert found.columns["reward"].tolist() == [3, 4]
    assert [(d.kind, d.message) for d in found.check().defects()] == [
        ("empty_episode", "line 2: an episode of one sample has no step"),
        ("empty_episode", "line 3: an episode of one sample has no step"),
    ] + [(d.kind, d.message) for d in found.check().defects() if d.kind == "uneven"]


def test_european_numbers_and_marks_of_spreadsheets_are_read(write, tmp_path):
    path, rules = write(yaml=YAML + 'delimiter: ";"\ndecimal: ","\n')
    text = path.read_text().replace(",", ";").replace("0.5", "0,5")
    path.write_text("\ufeff" + text, encoding="utf-8")
    assert read_csv(path, rules).columns["cost"][1, 0] == 0.5


def test_missing_numbers_are_defects_with_their_line(write):
    lines = [*LINES]
    lines[3] = lines[3].replace(",60,", ",Bad,")
    lines[4] = lines[4].replace(",75,", ",,")
    told = [d.message for d in read_csv(*write(lines)).check().defects()]
    assert told == ["row 2 (line 5): temperature is nan", "row 3 (line 6): valve is nan"]


def test_ranges_of_the_mapping_are_checked(write):
    lines = [line.replace(",51,", ",500,") for line in LINES]
    (defect,) = read_csv(*write(lines)).check().defects()
    assert (defect.kind, defect.row, defect.column) == ("out_of_range", 1, "temperature")
    assert "(line 3)" in defect.message


def test_time_that_goes_back_is_a_defect_also_at_the_end_of_an_episode(write):
    lines = [LINES[1], LINES[0], LINES[2], LINES[3]]
    found = read_csv(*write(lines))
    (defect,) = [d for d in found.check().defects() if d.kind == "time"]
    assert (defect.row, "line 3" in defect.message) == (1, True)
    found = read_csv(*write([LINES[0], LINES[2], LINES[1]]))
    (defect,) = [d for d in found.check().defects() if d.kind == "time"]
    assert (defect.row, "line 4" in defect.message) == (1, True)


# What is wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",52,", ",hot,", r"log\.csv, line 4, column TI101: 'hot' is not a number"),
        ("2024-05-01T10:01:00", "yesterday", r"line 3, column at: 'yesterday' is not a time of"),
        (",52,", ",", r"log\.csv, line 4: 6 cells for 7 columns; is ',' the delimiter"),
    ],
)
def test_a_bad_cell_is_named_by_line_and_column(write, old, new, message):
    with pytest.raises(ValueError, match=message):
        read_csv(*write([line.replace(old, new) for line in LINES]))


def test_bad_columns_are_named(write):
    with pytest.raises(ValueError, match="there is no column 'LI7'; did you mean 'LI77'"):
        read_csv(*write(head=HEAD.replace("LI7", "LI77")))
    with pytest.raises(ValueError, match="2 columns are named 'TI101'; rename them"):
        read_csv(*write(head=HEAD.replace("LI7", "TI101"), yaml=YAML.replace("LI7", "over")))
    with pytest.raises(ValueError, match="there are no rows"):
        read_csv(*write([]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("low: 0, high: 100", "low: 0", "action valve needs low and high"),
        ("low: 0, high: 100", "low: 9, high: 1", "signal valve: low=9 is not below high=1"),
        ("low: 0,", "low: zero,", "action 1.low: 'zero' is not a finite number"),
        ("gap: 120", "gap: -1", "gap=-1.0; it is a time above 0"),
        ("gap: 120", "gaps: 120", "unknown key 'gaps'; did you mean 'gap'"),
        ("scale: 0.01", "scale: 0", "a scale of 0 keeps nothing"),
        ("unit: m,", "units: m,", "observation 2: unknown key 'units'; did you mean 'unit'"),
        ("name: level", "name: temperature", "two observation columns are named 'temperature'"),
        (
            "reward: profit",
            "reward: {column: profit, at: noon}",
            "reward.at: 'noon'; it must be this or next",
        ),
        ("name: line 4", "name: [", "not a YAML file"),
        ("missing: [Bad]", "missing: {a: 1}", "it must be a list of texts"),
    ],
)
def test_a_wrong_mapping_is_told_in_one_line(write, old, new, message):
    with pytest.raises(ValueError, match=r"map\.yaml") as error:
        write(yaml=YAML.replace(old, new))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("action: [{column: a, low: 0, high: 1}]", "observation must be a list of columns"),
        ("[1]", "is not a list of keys with values"),
    ],
)
def test_a_mapping_needs_observations_and_actions(write, yaml, message):
    with pytest.raises(ValueError, match=message):
        write(yaml=yaml)


def test_numbers_are_read_to_the_last_digit(write):
    numbers = np.random.default_rng(0).normal(size=1000) * 100
    lines = [f"{i},{x!r},1,50,{x!r},0,0" for i, x in enumerate(numbers.tolist())]
    yaml = YAML.replace("{column: at, format: iso}", "at").replace("offset: 273.15, ", "")
    columns = read_csv(*write(lines, yaml)).columns
    np.testing.assert_array_equal(columns["obs"][:, 0], numbers[:-1])
    np.testing.assert_array_equal(columns["reward"], numbers[:-1])


# Samples that were not taken at even times -------------------------------------------------------

PLAIN = YAML.replace("time: {column: at, format: iso}", "time: at").replace("gap: 120\n", "")


def sampled(*seconds, trip=None):
    """A line for each time: temperature follows it, the valve counts the samples."""
    return [f"{t},{50 + t / 10},100,{10 * i},{i},{int(i == trip)},0" for i, t in enumerate(seconds)]


UNEVEN = sampled(0, 60, 330, 331, 540)


def test_uneven_steps_are_defects_with_their_line(write):
    found = read_csv(*write(UNEVEN, PLAIN)).check()
    assert found.counts == {"uneven": 4}
    told = [defect.message for defect in found.defects()]
    assert any(t.startswith("row 1 (line 3): a step of 270 s, where others take") for t in told)
    assert any(t.startswith("row 3 (line 5): a step of 209 s, where others take") for t in told)
    assert all("data convert --resample" in t for t in told)


def test_a_jitter_of_the_clock_is_no_defect(write):
    assert read_csv(*write(sampled(0, 60, 121, 179, 240), PLAIN)).check().sound


def test_a_log_is_resampled_between_its_samples_and_actions_are_held(write):
    path, rules = write(UNEVEN, PLAIN)
    found = read_csv(path, rules, seconds=60)
    assert found.columns["time"].tolist() == [0, 60, 120, 180, 240, 300, 360, 420, 480]
    np.testing.assert_allclose(found.columns["obs"][:, 0], 323.15 + found.columns["time"] / 10)
    np.testing.assert_allclose(found.columns["next_obs"][-1, 0], 323.15 + 54)
    valve = 50 * (found.columns["action"][:, 0] + 1)
    np.testing.assert_allclose(valve, [0, 10, 10, 10, 10, 10, 30, 30, 30], atol=1e-9)
    assert found.check().sound
    assert dict(found.provenance)["resampled"] == "every 60 s, linear"
    held = read_csv(path, rules, seconds=60, method="hold").columns["obs"][:, 0] - 273.15
    np.testing.assert_allclose(held, [50, 56, 56, 56, 56, 56, 83.1, 83.1, 83.1])


def test_long_gaps_begin_an_episode_and_ends_are_kept(write):
    lines = sampled(0, 50, 100, 5000, 5060, 5110, trip=5)
    found = read_csv(*write(lines, PLAIN), seconds=60)
    assert found.columns["time"].tolist() == [0, 5000, 5060]
    assert found.columns["terminated"].tolist() == [0, 0, 1]
    assert found.columns["truncated"].tolist() == [True, False, False]
    assert found.dataset().starts.tolist() == [0, 1]


def test_what_cannot_be_resampled_is_told(write):
    path, rules = write(sampled(0, 60, 30), PLAIN)
    with pytest.raises(ValueError, match=r"log\.csv, line 4: time is 30, which does not go forwar"):
        read_csv(path, rules, seconds=60)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="it must be seconds"):
            read_csv(*write(UNEVEN, PLAIN), seconds=seconds)
    with pytest.raises(ValueError, match="the mapping names no time"):
        read_csv(*write(UNEVEN, PLAIN.replace("time: at\n", "")), seconds=60)
