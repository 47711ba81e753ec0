"""Each defect that is put into sound data is found, at its row, and nothing else is."""

import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldloom.replay.dataset import from_columns
from worldloom.replay.dataset_checks import KINDS, check, columns_of


@dataclass(frozen=True)
class Span:
    name: str
    low: float
    high: float


def sound(rows=40, every=10, width=3, seed=0):
    rng = np.random.default_rng(seed)
    episodes = -(-rows // every)
    states = rng.normal(size=(rows + episodes, width)).astype(np.float32)
    at = np.arange(rows) + np.arange(rows) // every
    last = (np.arange(rows) % every == every - 1) | (np.arange(rows) == rows - 1)
    return {
        "obs": states[at], "action": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "reward": rng.normal(size=rows).astype(np.float32), "next_obs": states[at + 1],
        "terminated": np.zeros(rows, bool), "truncated": last, "time": at.astype(float),
    }  # fmt: skip


def places(report):
    return [(defect.kind, defect.row, defect.column) for defect in report.defects()]


def test_sound_data_have_no_defects():
    report = check(sound(), observation=[Span(name, -9, 9) for name in "abc"])
    assert report.sound
    assert (report.rows, report.total, report.counts, report.first()) == (40, 0, {}, [])
    assert report.fatal() is None


def test_switches_that_do_not_follow_each_other_are_a_broken_link():
    data = sound()
    data |= {key: data[key] > 0 for key in ("obs", "next_obs")}
    assert "broken_link" not in check(data).counts
    data["next_obs"][4, 1] ^= True
    assert ("broken_link", 4, "obs[1]") in places(check(data))


def test_the_unit_of_a_signal_does_not_decide_whether_it_is_seen():
    data = {key: value for key, value in sound().items() if key != "time"}
    for key in ("obs", "next_obs"):
        data[key] = data[key] * np.float32([1.0, 1e-6, 0.0]) + np.float32([0.0, 2e-6, 7.0])
    made = from_columns(**data)
    scaled = np.asarray(made.normalise(made.rows.obs))
    np.testing.assert_allclose(scaled.std(0)[:2], 1.0, rtol=1e-3)
    assert float(made.std[2]) == 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("key", "column"),
    [("action", "action[1]"), ("reward", "reward"), ("cost", "cost[1]"), ("log_prob", "log_prob")],
)
def test_what_is_not_finite_is_found(key, column, bad):
    data = sound() | {"cost": np.zeros((40, 2)), "log_prob": np.zeros(40)}
    data[key][(17, 1) if data[key].ndim == 2 else 17] = bad
    report = check(data)
    assert places(report) == [("not_finite", 17, column)]
    assert report.first()[0].message == f"row 17: {column} is {bad:g}"
    assert report.fatal() is not None


def test_what_is_too_large_for_a_learner_is_not_finite():
    data = sound()
    data["reward"] = data["reward"].astype(float)
    data["reward"][17] = 1e39
    report = check(data)
    assert report.fatal().message == "row 17: reward is 1e+39"


def test_a_nan_observation_is_told_once_and_not_as_a_broken_link():
    data = sound()
    data["obs"][17, 0] = np.nan
    assert places(check(data)) == [("not_finite", 17, "obs[0]")]


def test_a_broken_link_is_found_inside_episodes_only():
    data = sound()
    data["next_obs"][4, 2] += 0.5
    data["next_obs"][9, 2] += 0.5  # the last of its episode leads nowhere
    report = check(data)
    assert places(report) == [("broken_link", 4, "obs[2]")]
    assert "but the next row has" in report.first()[0].message
    assert report.fatal() is None


def test_links_may_be_rounded_but_not_wrong():
    data = sound()
    data["next_obs"] = (data["next_obs"] * np.float32(1 + 2e-6)).astype(np.float32)
    assert check(data).sound
    data["next_obs"] = (data["next_obs"] * np.float32(1 + 1e-3)).astype(np.float32)
    assert set(check(data).counts) == {"broken_link"}


def test_signals_out_of_their_range_are_found_by_name():
    data = sound()
    data["obs"][21] = data["next_obs"][20] = [0.0, 7.0, 0.0]
    ranges = [Span("flow", -9, 9), Span("level", -6, 6), Span("heat", -9, 9)]
    report = check(data, observation=ranges)
    assert places(report) == [("out_of_range", 21, "level")]
    assert report.first()[0].message == "row 21: level is 7, outside of [-6, 6]"


def test_where_an_episode_ended_is_checked_too():
    data = sound()
    data["next_obs"][[9, 39], 1] = 7.0
    ranges = [Span("flow", -9, 9), Span("level", -6, 6), Span("heat", -9, 9)]
    found = places(check(data, observation=ranges))
    assert found == [("out_of_range", 9, "next level"), ("out_of_range", 39, "next level")]


def test_actions_outside_of_the_box_are_found():
    data = sound()
    data["action"][3, 0], data["action"][8, 1] = 1.01, -2.0
    data["action"][5, 0] = 1.0
    report = check(data)
    assert places(report) == [("action_range", 3, "action[0]"), ("action_range", 8, "action[1]")]
    assert report.fatal() is not None


def test_time_must_go_forward_within_an_episode():
    data = sound()
    data["time"][15] = data["time"][14]
    data["time"][30:] = np.arange(10)  # a new episode may begin at any time
    assert places(check(data)) == [("time", 15, "time")]


def test_a_repeated_row_is_found_with_its_original():
    data = sound()
    del data["time"]
    for key in ("obs", "action", "reward", "next_obs"):
        data[key][29] = data[key][9]  # both are the last of their episodes
    data["next_obs"][28] = data["obs"][29]
    report = check(data)
    assert places(report) == [("duplicate", 29, "row")]
    assert report.first()[0].message == "row 29: the same as row 9"


def test_a_plant_at_rest_repeats_itself_but_not_its_clock():
    data = sound()
    for key in ("obs", "next_obs", "action", "reward"):
        data[key][:] = 0.25
    assert check(data).sound
    del data["time"]
    assert check(data).counts == {"duplicate": 39}


def test_flags_are_0_or_1():
    data = sound()
    data["terminated"] = data["terminated"].astype(np.float32)
    data["terminated"][19] = 0.5
    assert places(check(data)) == [("flag", 19, "terminated")]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("obs", np.zeros(40), "obs has shape (40,); it must be (rows, columns)"),
        ("reward", np.zeros((40, 3)), "reward has shape (40, 3); it must be (rows,)"),
        ("action", np.zeros((39, 2)), "action has 39 rows, obs has 40"),
        ("next_obs", np.zeros((40, 4)), "next_obs has shape (40, 4), obs has (40, 3)"),
        ("reward", np.full(40, "x"), "reward holds <U1, not numbers"),
        ("obs", np.zeros((0, 3)), "there are no rows"),
    ],
)
def test_wrong_shapes_are_told_and_end_the_check(key, value, message):
    report = check(sound() | {key: value})
    assert next(report.defects()).message == message
    assert set(report.counts) == {"shape"}


def test_missing_columns_are_told():
    data = sound()
    del data["reward"]
    assert [d.message for d in check(data).defects()] == ["there is no column reward"]


def test_the_number_of_signals_must_fit():
    report = check(sound(), observation=[Span("flow", 0, 1)])
    assert report.first()[0].message == "3 observation columns for 1 signals: flow"


def test_empty_episodes_of_a_dataset_are_told():
    data = sound()
    del data["time"]
    whole = from_columns(**data)
    assert check(whole).sound
    broken = whole.replace(starts=np.asarray([0, 10, 10, 20, 30], np.int32))
    assert places(check(broken)) == [("empty_episode", 10, "starts")]


def test_every_defect_is_counted_and_only_the_first_are_shown():
    data = sound(rows=1000, every=1000)
    data["reward"][100:] = np.nan
    report = check(data)
    assert report.counts == {"not_finite": 900}
    assert [defect.row for defect in report.first(3)] == [100, 101, 102]
    assert [defect.row for defect in report.defects()] == list(range(100, 1000))


def test_lines_of_a_text_file_are_named():
    data = sound()
    data["reward"][7] = np.nan
    report = check(data, lines=np.arange(40) + 2)
    assert report.first()[0].message == "row 7 (line 9): reward is nan"


def test_nothing_is_repaired():
    data = sound()
    data["obs"][3, 0], data["action"][4, 1] = np.nan, 5.0
    before = {key: value.copy() for key, value in data.items()}
    check(data)
    for key, value in before.items():
        np.testing.assert_array_equal(data[key], value)


@settings(max_examples=60)
@given(st.data())
def test_defects_at_any_rows_are_all_found_and_no_others(data):
    rows = st.integers(0, 38)
    columns = sound(seed=data.draw(st.integers(0, 5)))
    reward = data.draw(st.sets(rows, max_size=6))
    action = data.draw(st.sets(rows, max_size=6))
    columns["reward"][list(reward)] = np.nan
    columns["action"][list(action), 0] = 3.0
    found = {(kind, row) for kind, row, _ in places(check(columns))}
    assert found == {("not_finite", r) for r in reward} | {("action_range", r) for r in action}


def test_a_hundred_thousand_rows_take_well_under_a_second():
    data = sound(rows=100_000, every=480, width=31)
    ranges = [Span(f"s{i}", -9, 9) for i in range(31)]
    taken = []
    for _ in range(3):
        begin = time.process_time()
        assert check(data, observation=ranges).sound
        taken.append(time.process_time() - begin)
    assert min(taken) < 1.0


def test_released_data_are_sound_but_for_rows_that_repeat(neorl2):
    from worldloom.replay.dataset_files import read_npz

    for path in sorted(neorl2.glob("*-train.npz")):
        assert set(read_npz(path).check().counts) <= {"duplicate"}, path.name


def test_kinds_are_explained():
    assert all(text and "\n" not in text for text in KINDS.values())
    data = sound()
    del data["time"]
    assert set(columns_of(from_columns(**data))) == set(data)
