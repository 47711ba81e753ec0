"""Every example runs, in quick mode, as a newcomer would run it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
# example -> the package it needs, and the extra that brings it
NEEDS = {
    "06_pettingzoo.py": ("pettingzoo", "adapters"),
    "10_arc_gymnasium.py": ("gymnasium", "adapters"),
    "11_brax_ppo.py": ("brax", "robot"),
    "12_walk.py": ("mujoco", "robot"),
}
# Whose way the tests of the same commands go as well.
LONG = ("02_compare_modes.py", "11_brax_ppo.py", "13_plant_from_data_to_server.py")


def test_there_are_examples():
    assert len(EXAMPLES) >= 7


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_enough_to_read(path):
    assert len(path.read_text().splitlines()) <= 80


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.nightly if p.name in LONG else ()) for p in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_an_example_runs(path, tmp_path, compiled_once):
    needed, extra = NEEDS.get(path.name, (None, None))
    if needed and find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: pip install 'worldloom[{extra}]'")
    cache = {
        "JAX_COMPILATION_CACHE_DIR": compiled_once,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", path, "--quick"],
        cwd=tmp_path,
        env=os.environ | cache,
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "nan" not in done.stdout.lower()
