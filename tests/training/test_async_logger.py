"""Whoever logs never waits; what is accepted is written, and what is not is counted."""

import json
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.training.sinks import JsonLines, read_json_lines
from worldloom.training.trackers.async_logger import MinimalAsyncLogger


class Gate:
    """A sink that holds each row until it is let through."""

    def __init__(self):
        self.rows, self.closed = [], False
        self.entered, self.open = threading.Event(), threading.Event()

    def write(self, row):
        self.entered.set()
        assert self.open.wait(20)
        self.rows.append(row)

    def close(self):
        self.closed = True


class Failing:
    """A sink that fails on every second row, and on being closed."""

    def __init__(self):
        self.rows, self.calls = [], 0

    def write(self, row):
        self.calls += 1
        if self.calls % 2:
            raise OSError("the disk\nis full")
        self.rows.append(row)

    def close(self):
        raise OSError("the disk is still full")


def test_rows_are_written_in_order_with_numbers_of_any_kind(tmp_path):
    path = tmp_path / "rows.jsonl"
    step = jax.jit(lambda x: x * 2)
    with MinimalAsyncLogger(path) as logger:
        for i in range(50):
            row = {"i": i, "jax": step(jnp.float32(i)), "numpy": np.int64(i), "all": jnp.arange(2)}
            assert logger.log(row)
        assert logger.log({"nan": np.float32("nan"), "text": "done", "inner": {"x": (1, None)}})
    rows = read_json_lines(path)
    assert rows[:-1] == [{"i": i, "jax": 2.0 * i, "numpy": i, "all": [0, 1]} for i in range(50)]
    assert rows[-1] == {"nan": None, "text": "done", "inner": {"x": [1, None]}}
    assert (logger.written, logger.dropped, logger.errors) == (51, 0, 0)


def test_a_full_queue_drops_and_counts_without_waiting():
    sink = Gate()
    logger = MinimalAsyncLogger(sink, capacity=4)
    assert logger.log({"i": 0})
    assert sink.entered.wait(20)  # the thread holds row 0: the queue is empty again
    begin = time.perf_counter()
    accepted = [logger.log({"i": i}) for i in range(1, 1001)]
    assert time.perf_counter() - begin < 5  # a sink that never answers does not hold up anybody
    assert accepted == [True] * 4 + [False] * 996
    assert logger.dropped == 996
    assert not logger.flush(timeout=0.01)
    sink.open.set()
    assert logger.flush(timeout=600)
    assert [row["i"] for row in sink.rows] == [0, 1, 2, 3, 4]
    assert logger.log({"i": 1001})  # there is room again
    logger.close()
    assert sink.rows[-1] == {"i": 1001}
    assert sink.closed
    assert logger.dropped == 996


def test_rows_are_counted_exactly_when_many_threads_log():
    sink = Gate()
    sink.open.set()
    with MinimalAsyncLogger(sink, capacity=8) as logger:
        taken = []

        def work():
            taken.append(sum(logger.log({"x": 1}) for _ in range(500)))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(taken) + logger.dropped == 2000
    assert len(sink.rows) == logger.written == sum(taken)


def test_a_row_is_what_it_was_when_it_was_logged():
    sink = Gate()
    logger = MinimalAsyncLogger(sink)
    values = np.zeros(2)
    row = {"values": values}
    logger.log(row)
    values[:] = 7
    row["more"] = 1
    sink.open.set()
    logger.close()
    assert sink.rows == [{"values": [0.0, 0.0]}]


def test_a_failing_sink_is_counted_told_of_once_and_outlived(capfd):
    sink = Failing()
    logger = MinimalAsyncLogger(sink)
    for i in range(6):
        logger.log({"i": i})
    assert logger.flush(timeout=600)
    assert [row["i"] for row in sink.rows] == [1, 3, 5]
    assert (logger.errors, logger.written, logger.dropped) == (3, 3, 0)
    logger.close()
    assert logger.errors == 4
    told = capfd.readouterr().err.splitlines()
    assert told == [
        "MinimalAsyncLogger: OSError: the disk is full; further errors are only counted"
    ]


def test_a_row_that_json_does_not_know_costs_that_row_only(tmp_path, capfd):
    path = tmp_path / "rows.jsonl"
    with MinimalAsyncLogger(JsonLines(path)) as logger:
        logger.log({"iteration": 0})
        logger.log({"iteration": object()})
        logger.log({"iteration": 2})
    assert path.read_text() == '{"iteration": 0}\n{"iteration": 2}\n'
    assert logger.errors == 1
    assert "TypeError" in capfd.readouterr().err


def test_a_path_keeps_what_is_in_the_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    for run in range(2):
        with MinimalAsyncLogger(path) as logger:
            logger.log({"run": run})
            logger.log({"iteration": np.nan})
    assert read_json_lines(path) == [
        {"run": 0},
        {"iteration": None},
        {"run": 1},
        {"iteration": None},
    ]


def test_flush_leaves_rows_that_others_can_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    logger = MinimalAsyncLogger(path)
    for i in range(20):
        logger.write({"i": i})  # as a sink
        assert logger.flush(timeout=600)
        assert len(read_json_lines(path)) == i + 1
    logger.close()


def test_closing_twice_is_fine_and_logging_after_it_is_an_error(tmp_path):
    logger = MinimalAsyncLogger(tmp_path / "rows.jsonl")
    logger.close()
    logger.close()
    with pytest.raises(ValueError, match=r"it is closed; log before close\(\)"):
        logger.log({"i": 0})


def test_closing_gives_up_on_a_sink_that_hangs_and_says_what_is_lost(capfd):
    sink = Gate()
    logger = MinimalAsyncLogger(sink)
    for i in range(3):
        logger.log({"i": i})
    assert sink.entered.wait(20)
    logger.close(timeout=0.01)
    assert logger.dropped == 3
    assert "3 rows could not be written within 0.01 s" in capfd.readouterr().err
    sink.open.set()
    logger._thread.join(20)
    assert not logger._thread.is_alive()


def test_an_exception_inside_the_block_still_writes_everything(tmp_path):
    path = tmp_path / "rows.jsonl"

    def fail():
        with MinimalAsyncLogger(path) as logger:
            for i in range(100):
                logger.log({"i": i})
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fail()
    assert len(read_json_lines(path)) == 100


PROGRAM = """
import sys, time
from worldloom.training.trackers.async_logger import MinimalAsyncLogger
from worldloom.training.sinks import JsonLines
class Slow(JsonLines):
    def write(self, row):
        time.sleep(0.002)
        super().write(row)
logger = MinimalAsyncLogger(Slow(sys.argv[1]))
for i in range(100):
    logger.log({"i": i})
assert "jax" not in sys.modules
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_what_waits_is_written_when_the_program_ends(tmp_path, code):
    path = tmp_path / "rows.jsonl"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path), str(code)], timeout=1200)
    assert done.returncode == code
    assert [json.loads(line)["i"] for line in path.read_text().splitlines()] == list(range(100))


def test_a_capacity_below_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match="capacity=0; it must be at least 1"):
        MinimalAsyncLogger(tmp_path / "rows.jsonl", capacity=0)
