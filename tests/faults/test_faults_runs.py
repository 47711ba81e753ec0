"""Training runs that are killed, and checkpoints that are damaged: slices of the benchmark."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults_runs import TINY, damage, kill_chains
from worldloom import suites

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_once")]


@pytest.mark.parametrize("suite", ["grid", "plain"])
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(suite, tmp_path):
    counts = kill_chains([suite], 3, np.random.default_rng(0), tmp_path)
    assert counts == {"kills": 3, "chains": 1, "exact": 1}


def test_there_is_a_chain_for_every_suite():
    assert set(TINY) == set(suites.SUITES)


def test_no_damaged_checkpoint_is_taken_for_a_sound_one(finished_run):
    before = {path: path.read_bytes() for path in Path(finished_run).rglob("*") if path.is_file()}
    counts = damage(finished_run, 36, np.random.default_rng(0))
    assert counts["silent_wrong"] == 0
    assert counts["flips"] == sum(counts[n] for n in ("refused", "fell_back", "unharmed")) == 36
    # Where the bytes strike depends on names of files that a run draws: about a third do harm.
    assert counts["refused"] > 0
    assert counts["fell_back"] > 0
    assert {path: path.read_bytes() for path in before} == before
