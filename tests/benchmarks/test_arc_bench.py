"""`worldloom bench arc`: players that take turns, what is consumed, and what is written."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import arc, arc_games, arc_parts, arc_worlds, players
from worldloom.core import draws
from worldloom.suites.arc.environment import batch_reset
from worldloom.suites.arc.episodes import random_boxes
from worldloom.suites.arc.sources import load
from worldloom.suites.arc.world import world
from worldloom.training.timer import Timing

ECHO = """
import json, sys
setup = json.loads(sys.stdin.readline())
print(json.dumps({"steps": setup["batch"] * 2, "heard": setup}), flush=True)
for line in sys.stdin:
    print(json.dumps({"seconds": 0.5}), flush=True)
"""


def echo(**setup):
    return players.Player([sys.executable, "-c", ECHO], {"player": "echo", "batch": 4} | setup)


def test_players_are_told_their_setup_and_play_when_asked():
    with echo(side=5) as player:
        assert player.facts["heard"] == {"player": "echo", "batch": 4, "side": 5}
        assert player.play() == 0.5
        timed = players.take_turns({"a": player}, repeats=3)
    assert timed == {"a": Timing((0.0625,) * 3)}  # half a second for 8 steps


def test_a_player_that_ends_is_named_with_its_last_words():
    dying = [sys.executable, "-c", "raise SystemExit('no such peer')"]
    with pytest.raises(RuntimeError, match=r"echo \(4 worlds\) ended: no such peer"):
        players.Player(dying, {"player": "echo", "batch": 4})


def test_without_the_peers_environment_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(players, "PEERS", tmp_path)
    with pytest.raises(ValueError, match="make peers"):
        players.peer("jaxarc", batch=1)


@pytest.fixture(scope="module")
def small_world():
    return world(load("examples").buffer(), action="box", max_steps=3, max_trials=1)


def test_random_play_consumes_the_grid_that_agents_see(small_world):
    config = small_world.default_params()
    start, _ = batch_reset(jax.random.split(jax.random.key(0), 16), config)
    play = jax.jit(lambda key: arc_worlds.random_play(small_world, start, config, key, 20, "box"))
    states, (seen, reward) = play(jax.random.key(0))
    assert states.grid.shape == start.grid.shape
    assert seen.max() == 9  # over 320 random steps some cell was painted in the highest colour
    # The step penalty is the least that a step pays; similarity comes on top.
    assert np.isfinite(reward).all()
    assert reward.max() > 0.0


@pytest.mark.slow
def test_one_formulation_equals_a_switch_over_operations(small_world):
    config = small_world.default_params()
    state, _ = batch_reset(jax.random.split(jax.random.key(0), 35), config)
    boxes = random_boxes(jax.random.key(1), state.operation_mask, config.grid_shape)
    action = boxes.replace(operation=jnp.arange(35))
    state = state.replace(  # something to paste
        clipboard=state.grid, clipboard_size=jnp.full_like(state.clipboard_size, 2)
    )
    few = [0, 13, 20, 24, 26, 28, 29, 30, 31, 32, 33]
    cut = jax.tree.map(lambda x: x[jnp.asarray(few)], (state, action))
    one = jax.jit(arc_parts._grids)(*cut, config)
    switched = jax.jit(arc_parts.switch_step)(*cut, config)
    for a, b in zip(one, switched, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_ratios_compare_with_the_best_of_each_peer(monkeypatch, tmp_path):
    rates = {
        "ours": 1000.0, "ours_on_one_device": 600.0, "ours_points": 500.0, "ours_single": 80.0,
        "jaxarc": 8.0, "jaxarc_on_all_cores": 10.0, "arcle_single": 20.0, "arcle_vector": 25.0,
        "arcle_processes": 5.0,
    }  # fmt: skip

    class Fake:
        facts = {"steps": 1}  # noqa: RUF012
        steps = 1

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(players, "ours", lambda **_: Fake())
    monkeypatch.setattr(players, "peer", lambda name, **_: Fake())
    monkeypatch.setattr(arc, "write_tasks", lambda path: path.write_text("[]"))
    monkeypatch.setattr(
        players, "take_turns", lambda ready, _: {name: Timing((1 / rates[name],)) for name in ready}
    )
    out = tmp_path / "arc.json"
    record = arc.run(arc.QUICK, ["speed"], out, "worldloom bench arc", quick=True)
    ratios = json.loads(out.read_text())["ratios"]
    assert ratios["steps_vs_jaxarc_30x30_1024"] == pytest.approx(100.0)
    assert ratios["steps_vs_arcle_batched"] == pytest.approx(40.0)
    assert ratios["steps_vs_arcle_single"] == pytest.approx(4.0)
    assert ratios["point_mix_vs_box_mix"] == pytest.approx(0.5)
    assert ratios["demo_tasks_solved_share"] is None
    assert record.result["complete"]


def test_an_unknown_section_is_an_error_with_the_nearest_name():
    with pytest.raises(ValueError, match="speed"):
        arc.command(["--only", "sped"])


def test_devices_share_the_worlds(small_world):
    start, play, devices = arc_worlds.spread_play(small_world, 8, 4, "point")
    config = small_world.default_params()
    keys = draws.split(jax.random.key(0), devices)
    assert devices == np.gcd(jax.device_count(), 8)
    states, (seen, reward) = play(keys, start(keys, config), config)
    assert states.grid.shape[0] == 8
    assert seen.shape == reward.shape == (devices, 4)
    assert np.isfinite(reward).all()


def test_a_game_is_told_to_both_sides_in_the_same_words():
    told = arc_games.described("lights")
    assert told["choices"][0] == [6, 8, 8], "the middle of the first of 5 x 5 cells of 12 pixels"
    assert told["check"] == [told["choices"][n] for n in told["order"]]
    assert told["levels"][0]["kinds"]["lamp"] == [[1, 2], [2, 1], [2, 2], [2, 3], [3, 2]]
    steps = arc_games.described("crates")
    assert [choice[0] for choice in steps["choices"]] == steps["actions"] == [1, 2, 3, 4, 7]


def test_games_are_compared_by_the_frames_they_show(tmp_path, monkeypatch):
    """The least ratio counts, against the better of their ways; other frames are a fault."""
    pace = {"ours": 1e-6, "arcengine": 3e-4, "arcengine_processes": 2e-4}
    shown = {"arcengine": "same"}

    class Stub:
        steps = 1

        def __init__(self, argv, setup):
            self.who = setup["player"] + ("_processes" if "processes" in setup else "")
            self.facts = {"digest": shown.get(self.who, "same")}
            self.slow = 2.0 if setup["game"] == "lights" and self.who == "ours" else 1.0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def play(self):
            return pace[self.who] * self.slow

    monkeypatch.setattr(arc_games, "Player", Stub)
    monkeypatch.setattr(arc_games, "PEERS", tmp_path)
    with pytest.raises(ValueError, match="make peers"):
        arc_games.peer(game="glide")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    line = "worldloom bench arc"
    record = arc.run(arc.QUICK, ["games"], tmp_path / "arc.json", line, quick=True)
    assert record.result["ratios"]["games_vs_arcengine"] == pytest.approx(100.0)
    shown["arcengine"] = "other"
    record = arc.run(arc.QUICK, ["games"], tmp_path / "arc.json", line, quick=True)
    assert "do not show the same frames" in record.result["errors"]["games"]
