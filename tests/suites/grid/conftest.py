"""A run folder as training leaves it, made up."""

import pytest

from suites.grid.made_run import make_run, random_walk


@pytest.fixture(scope="session", name="random_walk")
def _random_walk():
    return random_walk


@pytest.fixture(scope="session", name="make_run")
def _make_run():
    return make_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """One complete run for all tests that only read."""
    return make_run(tmp_path_factory.mktemp("runs") / "treasurehunt-jax_fused-3")
