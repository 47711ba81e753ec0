"""Spoiled files and options are accepted or refused in one line: a slice of the fuzzer's calls."""

import gc
import signal
import warnings

import pytest

from benchmarks import faults_formats
from benchmarks.faults_examples import FORMATS
from benchmarks.faults_formats import fuzz


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_whatever_a_file_holds_is_answered(name):
    found = fuzz(name, 1000, seed=3)
    assert found["calls"] == 1000
    assert found["accepted"] + found["refused"] == 1000, found
    assert found["longest_message"] <= 300, found
    assert found["several_lines"] == 0, found
    assert found["accepted"] > 0, "nothing was read at all"


def answer(rng):
    """One of every kind, by the number that the generator gives first."""
    kind = rng.randrange(5)
    if kind == 1:
        raise ValueError("x" * 400)
    if kind == 2:
        raise OSError("two\nlines")
    if kind == 3:
        raise KeyError("key")
    while kind == 4:
        pass


def test_the_fuzzer_tells_answers_from_tracebacks_and_hangs(monkeypatch):
    monkeypatch.setattr(faults_formats, "MOST_SECONDS", 0.01)
    before = signal.signal(signal.SIGPROF, faults_formats.hang)
    try:
        job = {"format": "x", "seed": 0, "first": 0, "stop": 50, "skip": [7]}
        found = faults_formats.play(answer, job, bytearray(8))
    finally:
        signal.signal(signal.SIGPROF, before)
    kinds = ("accepted", "refused", "tracebacks", "hangs", "several_lines")
    assert all(found[kind] > 0 for kind in kinds), found
    assert found["calls"] == 49 == sum(found[kind] for kind in kinds[:4])
    assert found["longest_message"] == 400
    assert any(words.startswith("KeyError | ") for words in found["examples"])


def test_the_reader_leaves_no_open_files():
    gc.collect()  # what other tests left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        worker = faults_formats.Worker()
        worker.close()
        del worker
        gc.collect()
    assert not [str(w.message) for w in caught if issubclass(w.category, ResourceWarning)]
