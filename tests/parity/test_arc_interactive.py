"""Our games against ARC-Interactive's own under arcengine: every frame of recorded random play."""

import hashlib
import os
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.arc_community import GAMES
from worldloom.suites.arc.games import camera, engine
from worldloom.suites.arc.games.levels import read_levels, tabulate

pytestmark = pytest.mark.slow

BESIDE = Path(__file__).resolve().parents[3] / "arc-interactive" / "traces"
TRACES = Path(os.environ.get("WORLDLOOM_ARC_TRACES", BESIDE))
CHUNK = 100  # plays at once


def perform(game, levels, state, action):
    """One action as arcengine takes it: the state, both frames, and how many of them it shows."""
    number, pixel = action[0], action[1:]
    resets = number == engine.RESET
    played = state.status == engine.PLAYING
    move = camera.move_at(levels.at(state.level), number, pixel)
    acted, outcome = engine.act(game, levels, state, move)
    after, moved_on = engine.advance(game, levels, acted, outcome)
    again = engine.reset(game, levels, state)
    acted, after = (engine.stack.where(resets, again, one) for one in (acted, after))
    # A level that is lost is not begun again by itself: there is one life.
    count = jnp.where(resets, 1, jnp.where(played, 1 + moved_on, 0))
    frames = jnp.stack([camera.frame(game, levels, one) for one in (acted, after)])
    return after, (frames, count, after.status, after.level)


@pytest.mark.parametrize("name", list(GAMES))
def test_every_frame_is_that_of_the_original(name):
    if not (TRACES / f"{name}.npz").is_file():
        pytest.skip(
            f"{TRACES} holds no {name}.npz; record it from a checkout of ARC-Interactive with "
            "tests/parity/record_arc_interactive.py, and name its folder in WORLDLOOM_ARC_TRACES"
        )
    game = GAMES[name]
    levels = tabulate(read_levels(TRACES / f"{name}.json", game.kinds), game.kinds)
    with np.load(TRACES / f"{name}.npz") as file:
        theirs = {key: file[key] for key in file.files}

    @jax.jit
    @jax.vmap
    def play(start, actions):
        state = engine.begin(game, levels, start)
        return jax.lax.scan(partial(perform, game, levels), state, actions)[1]

    compared = 0
    for first in range(0, len(theirs["start"]), CHUNK):
        part = {key: value[first : first + CHUNK] for key, value in theirs.items()}
        frames, count, status, level = jax.device_get(play(part["start"], part["actions"]))
        assert np.array_equal(count, part["frames"])
        assert np.array_equal(status, part["status"])
        assert np.array_equal(level, part["level"])
        for n, t in np.argwhere(count):
            ours = [digest(frame) for frame in frames[n, t, : count[n, t]]]
            assert ours == part["digests"][n, t, : count[n, t]].tolist(), (first + n, t)
            compared += len(ours)
    assert compared > 30 * len(theirs["start"])
    assert (theirs["level"] > theirs["start"][:, None]).any()  # levels were solved, too


def digest(frame):
    """As the script that recorded theirs."""
    content = np.ascontiguousarray(frame, np.int8).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
