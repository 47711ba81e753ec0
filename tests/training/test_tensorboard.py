"""What TensorBoard is told is read back by TensorBoard itself."""

import math

import pytest

from worldloom.training.trackers import tracker as trackers
from worldloom.training.trackers.tracker import Point, points

pytest.importorskip("tensorboard", reason="tensorboard is not installed")

from worldloom.training.trackers.tensorboard import PATTERN, TensorBoard

SETTINGS = {"env": "reactor", "seed": 3, "fast": True, "iql": {"tau": 0.7}, "sizes": [2, 3]}


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def begin(folder, step=0, settings=SETTINGS):
    tracker = TensorBoard(folder)
    tracker.write({"settings": settings, "tags": {}, "step": step})
    return tracker


def chunk(first, count, scale=1.0):
    rows = [{"steps": first + n, "loss": scale * (first + n)} for n in range(count)]
    return {"rows": rows}


def end(tracker, status="FINISHED"):
    tracker.write({"status": status, "files": []})
    tracker.close()
    assert tracker.failures == 0


def scalars(events, name):
    return [(event.step, event.value) for event in events.Scalars(name)]


def session(events, what):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    content = events.SummaryMetadata(f"_hparams_/{what}").plugin_data.content
    return getattr(HParamsPluginData.FromString(content), what)


def test_scalars_are_read_back_with_their_steps(tmp_path):
    tracker = begin(tmp_path)
    tracker.write(chunk(0, 2, 0.5))
    tracker.write(chunk(2, 1, 0.5))
    tracker.write({"rows": [{"steps": 3, "eval": {"return": -2.0}}]})
    assert scalars(read(tmp_path), "eval/return") == [(3, -2.0)], "there without waiting for more"
    end(tracker)
    events = read(tmp_path)
    assert scalars(events, "loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert events.Tags()["scalars"] == ["loss", "eval/return"]


def test_settings_and_the_end_are_what_the_hparams_page_shows(tmp_path):
    from tensorboard.plugins.hparams.api_pb2 import Status

    end(begin(tmp_path), "FAILED")
    events = read(tmp_path)
    told = session(events, "session_start_info").hparams
    assert told["env"].string_value == "reactor"
    assert told["seed"].number_value == 3
    assert told["fast"].bool_value is True
    assert told["iql/tau"].number_value == 0.7
    assert told["sizes"].string_value == "[2, 3]"
    assert len(told) == 5
    assert session(events, "session_end_info").status == Status.Value("STATUS_FAILURE")


def test_a_resumed_run_goes_on_in_the_folder_and_tells_no_step_twice(tmp_path):
    tracker = begin(tmp_path)
    tracker.write(chunk(0, 4))
    end(tracker, "KILLED")
    tracker = begin(tmp_path, step=2)  # the checkpoint was at 2
    tracker.write(chunk(2, 4, scale=10.0))
    end(tracker)
    assert len(list(tmp_path.glob(PATTERN))) == 2
    assert scalars(read(tmp_path), "loss") == [
        (0, 0.0), (1, 1.0), (2, 20.0), (3, 30.0), (4, 40.0), (5, 50.0),
    ]  # fmt: skip


def test_a_file_torn_by_a_crash_is_read_to_its_last_whole_record(tmp_path):
    tracker = begin(tmp_path)
    tracker.write(chunk(0, 3))
    tracker.close()
    (path,) = tmp_path.glob(PATTERN)
    path.write_bytes(path.read_bytes()[:-5])
    assert scalars(read(tmp_path), "loss") == [(0, 0.0), (1, 1.0)]


def test_a_full_disk_is_told_of_once_counted_and_outlived(tmp_path, capsys):
    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

        def flush(self): ...
        def close(self): ...

    tracker = begin(tmp_path)
    tracker.write(chunk(0, 1))
    file, tracker._file = tracker._file, Full()
    tracker.write(chunk(1, 1))
    tracker.write(chunk(2, 1))
    tracker._file = file
    tracker.write(chunk(3, 1))
    tracker.close()
    assert tracker.failures == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "tracking with tensorboard: OSError: [Errno 28] No space left on device; "
        "training goes on, and further failures are only counted"
    )
    assert scalars(read(tmp_path), "loss") == [(0, 0.0), (3, 3.0)]


def test_a_folder_that_appears_late_is_written_to_then(tmp_path, capsys):
    tracker = begin(tmp_path / "late")
    tracker.write(chunk(0, 1))
    assert tracker.failures == 2
    (tmp_path / "late").mkdir()
    tracker.write(chunk(1, 1))
    tracker.close()
    assert scalars(read(tmp_path / "late"), "loss") == [(1, 1.0)]
    assert session(read(tmp_path / "late"), "session_start_info").hparams["seed"].number_value == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_numbers_are_points_and_the_rest_is_left_out():
    row = {
        "steps": 4, "score": 1, "done": True, "text": "x", "gap": None, "nan": math.nan,
        "agents": [0.5, 1.5], "many": [0.0] * 17, "terms": {"upright": {"cost": 2.0}},
    }  # fmt: skip
    assert points(row, 4) == [
        Point("score", 1.0, 4), Point("done", 1.0, 4), Point("agents/0", 0.5, 4),
        Point("agents/1", 1.5, 4), Point("terms/upright/cost", 2.0, 4),
    ]  # fmt: skip


def test_what_is_not_installed_or_not_known_is_told_with_the_remedy(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no tracker 'tensorbord'; did you mean 'tensorboard'"):
        trackers.open_tracker("tensorbord", tmp_path)
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(ImportError) as told:
        trackers.open_tracker("tensorboard", tmp_path)
    assert str(told.value) == (
        "tracking with tensorboard needs tensorboard, which is not installed; "
        "pip install 'worldloom[track]'"
    )
