"""Spoiled files and options are accepted or refused in one line: a slice of the fuzzer's calls."""

import pytest

from benchmarks.faults_examples import FORMATS
from benchmarks.faults_formats import fuzz


def answered(name: str, calls: int, seed: int) -> None:
    found = fuzz(name, calls, seed)
    assert found["calls"] == calls
    assert found["accepted"] + found["refused"] == calls, found
    assert found["longest_message"] <= 300, found
    assert found["several_lines"] == 0, found
    assert found["accepted"] > 0, "nothing was read at all"


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_whatever_a_file_holds_is_answered(name):
    answered(name, 1000, seed=3)
