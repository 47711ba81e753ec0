"""Our social worlds against SocialJax's own, turn by turn, on recorded random play.

Each turn starts from the state that SocialJax was in. Turns in which agents want each other's cells
are left out: who gets them is a rule in which the worlds differ, as their modules say.
"""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.grid import beams, coins, coop_mining, harvest, prisoners_dilemma
from worldloom.suites.grid.world import OFFSETS, GridState

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_once")]

UP, DOWN, LEFT, RIGHT = range(4)
KEY = jax.random.key(0)
TURNS = ("turn_left", "turn_right")
# Their names for actions, and their headings; in most of their worlds up is a higher row.
FLIPPED = ((*TURNS, "right", "left", "down", "up", "stay"), np.array([DOWN, RIGHT, UP, LEFT]))
UPRIGHT = ((*TURNS, "left", "right", "up", "down", "stay"), np.array([UP, RIGHT, DOWN, LEFT]))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """recorded(world): arrays by name, played by SocialJax itself."""
    beside = Path(__file__).resolve().parents[3] / "SocialJax"
    checkout = Path(os.environ.get("WORLDLOOM_SOCIALJAX", beside))
    python = os.environ.get("WORLDLOOM_SOCIALJAX_PYTHON", str(checkout / ".venv/bin/python"))
    if not (checkout / "socialjax").is_dir() or not Path(python).is_file():
        pytest.skip(
            "SocialJax is not here; name a checkout in WORLDLOOM_SOCIALJAX and a Python that can "
            "run it in WORLDLOOM_SOCIALJAX_PYTHON"
        )
    out, script = tmp_path_factory.mktemp("socialjax"), Path(__file__).parent
    command = [python, str(script / "record_socialjax.py"), str(checkout), str(out)]
    clean = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "XLA_FLAGS")}
    subprocess.run(command, check=True, env=clean | {"JAX_PLATFORMS": "cpu"}, timeout=1800)

    def read(world):
        with np.load(out / f"{world}.npz") as file:
            return {name: file[name] for name in file.files}

    return read


def translated(world, names, actions):
    """Their actions as ours."""
    known = [world.actions.index(n) if n in world.actions else 99 for n in names]
    return np.array(known)[actions]


def apart(position, action):
    """(T,) bool: nobody wants a cell that another one stands on or wants, too."""
    move = (action >= 0) & (action < 4)
    target = position + np.where(move[..., None], OFFSETS[np.clip(action, 0, 3)], 0)
    same = (target[:, :, None] == target[:, None, :]).all(-1)
    taken = (target[:, :, None] == position[:, None, :]).all(-1)
    others = ~np.eye(position.shape[1], dtype=bool)
    return ~((same | taken) & others).any(axis=(1, 2))


def played(world, layers, position, extra, action):
    """What our world makes of all turns at once: states and rewards (T, ...)."""
    state = GridState(jnp.asarray(layers, jnp.int8), jnp.asarray(position, jnp.int32), extra)
    params = world.default_params()

    def one(state, action):
        return world.apply_all(KEY, state, action, params)

    return jax.device_get(jax.jit(jax.vmap(one))(state, jnp.asarray(action)))


def put_agents(top, position, kinds):
    turns = np.arange(len(top))[:, None]
    top[turns, position[..., 0], position[..., 1]] = kinds
    return top


def test_harvest(recorded):
    data = recorded("harvest")
    world = harvest.world(num_agents=7, turning=True, turn_order="simultaneous")
    names, headings = (*FLIPPED[0], "zap"), FLIPPED[1]
    grid, after = data["before_grid"], data["after_grid"]
    apple, site = grid == 3, world.start_layers[0] == world.index["Orchard"]
    assert (apple <= site).all()
    assert apple[0].sum() == site.sum() == 64
    locs = data["before_reborn_locs"]  # where who was zapped stands when the turn begins
    position, facing = locs[..., :2], headings[locs[..., 2]]
    action = translated(world, names, data["action"])
    top = np.where(apple, world.index["Apple"], 0).astype(np.int8)
    top = put_agents(top, position, world.index[beams.FACINGS[0]] + facing)
    layers = np.stack([np.broadcast_to(world.start_layers[0], top.shape), top], axis=1)
    nobody = np.zeros(facing.shape, bool)
    extra = harvest.HarvestState(jnp.asarray(facing), jnp.asarray(nobody), jnp.asarray(nobody))
    state, reward = played(world, layers, position, extra, action)
    # Apples may have grown before the moves, on bare sites with a chance, and been taken at once.
    before = GridState(jnp.asarray(layers), jnp.asarray(position), extra)
    near = np.asarray(jax.vmap(lambda state: harvest.near(world, state))(before))
    chance = np.asarray(world.default_params().extra.regrowth)[np.minimum(near, 3)]
    chance = np.where(site & (grid == 0), chance, 0.0)
    turns = np.arange(len(grid))[:, None]
    row, column = state.position[..., 0], state.position[..., 1]
    entered = chance[turns, row, column].any(axis=1)
    # There the marks that beams left in the turn before cannot be entered.
    marked = (grid[turns, row, column] == 2).any(axis=1)
    kept = apart(position, action) & ~entered & ~marked
    assert kept.mean() > 0.4
    theirs = data["after_agent_locs"]
    np.testing.assert_array_equal(state.position[kept], theirs[kept][..., :2])
    np.testing.assert_array_equal(state.extra.facing[kept], headings[theirs[kept][..., 2]])
    np.testing.assert_array_equal(reward[kept], data["reward"][kept] / 7)
    assert reward[kept].sum() > 10
    hit = (data["after_reborn_locs"] != theirs).any(axis=-1)
    on_start = world.start_layers[0][theirs[..., 0], theirs[..., 1]] == world.index["Start"]
    zapped = state.extra.zapped
    # There a beam over the edge comes back: on the other side, or on who fired it.
    end = state.position + 2 * OFFSETS[state.extra.facing]
    over = ((end < 0) | (end >= world.shape)).any(axis=-1)
    kept &= ~(over & (action == world.actions.index("zap"))).any(axis=1)
    assert (hit <= zapped)[kept].all()
    assert (zapped & ~hit & ~on_start)[kept].sum() == 0, "back to the very same cell by chance"
    assert zapped[kept].sum() > 5
    left, now = state.layers[:, 1] == world.index["Apple"], after == 3
    assert (left <= now)[kept].all()
    grown = now & ~left
    assert (chance > 0)[kept][grown[kept]].all()
    expected = chance[kept].sum()
    assert abs(grown[kept].sum() - expected) < 5 * np.sqrt(expected) + 1


def test_coins(recorded):
    data = recorded("coins")
    world = coins.world(turn_order="simultaneous")
    grid = data["before_grid"]
    kinds = {3: "RedCoin", 4: "GreenCoin"}
    top = np.zeros(grid.shape, np.int8)
    for value, name in kinds.items():
        top[grid == value] = world.index[name]
    position = data["before_agent_locs"][..., :2]
    top = put_agents(top, position, world.index["RedAgent"] + np.arange(2))
    action = translated(world, FLIPPED[0], data["action"])
    state, reward = played(world, top[:, None], position, (), action)
    kept = apart(position, action)
    assert kept.mean() > 0.9
    np.testing.assert_array_equal(state.position[kept], data["after_agent_locs"][kept][..., :2])
    np.testing.assert_array_equal(reward[kept], data["reward"][kept] / 2)
    assert (reward[kept] == 1).sum() > 5
    assert (reward[kept] < 0).sum() > 5
    for value, name in kinds.items():
        np.testing.assert_array_equal(
            state.layers[kept, 0] == world.index[name], data["after_grid"][kept] == value
        )


def test_coop_mining(recorded):
    data = recorded("mining")
    grid, locs = data["before_grid"], data["before_agent_locs"]
    walls = grid[0] == 1
    top_map = tuple("".join("#" if wall else "." for wall in row) for row in walls)
    floor_map = tuple(row.replace(".", ",").replace("#", ".") for row in top_map)
    options = {"num_agents": 10, "turning": True, "gold_pays": "last", "gold_window": 8}
    world = coop_mining.world(**options, turn_order="simultaneous")
    world = replace(world, maps=(floor_map, top_map))
    names, headings = (*UPRIGHT[0], "mine"), UPRIGHT[1]
    kinds = {2: "Soil", 3: "Soil", 4: "Iron", 5: "Gold", 6: "BegunGold", 0: "Soil"}

    def floor_of(grid):
        floor = np.zeros(grid.shape, np.int8)
        for value, name in kinds.items():
            floor[grid == value] = world.index[name]
        return floor

    facing, position = headings[locs[..., 2]], locs[..., :2]
    top = np.broadcast_to(np.where(walls, world.index["Wall"], 0), grid.shape).astype(np.int8)
    top = put_agents(top, position, world.index[beams.FACINGS[0]] + facing)
    ids = data["before_ore_miners"]  # (T, H, W, slots): agents or -1
    miners = np.moveaxis((ids[..., None] == np.arange(10)).any(axis=-2), -1, 1)
    left = data["before_partial_ore_countdown"]
    extra = coop_mining.MiningState(*map(jnp.asarray, (facing, miners, left)))
    action = translated(world, names, data["action"])
    layers = np.stack([floor_of(grid), top], axis=1)
    state, reward = played(world, layers, position, extra, action)
    params = world.default_params()
    ends = jax.jit(jax.vmap(lambda state: coop_mining.upkeep(world, KEY, state, params)[0]))
    state = jax.device_get(ends(jax.tree.map(jnp.asarray, state)))
    kept = apart(position, action)
    assert kept.mean() > 0.3
    theirs, after = data["after_agent_locs"], floor_of(data["after_grid"])
    np.testing.assert_array_equal(state.position[kept], theirs[kept][..., :2])
    np.testing.assert_array_equal(state.extra.facing[kept], headings[theirs[kept][..., 2]])
    np.testing.assert_array_equal(reward[kept], data["reward"][kept] / 10)
    assert (reward[kept] == 1).sum() > 5
    assert (reward[kept] == 8).sum() > 0
    grown = (state.layers[:, 0] == world.index["Soil"]) & (after != world.index["Soil"])
    np.testing.assert_array_equal(
        np.where(grown, after, state.layers[:, 0])[kept], after[kept], "all but ore that grew"
    )
    begun = after == world.index["BegunGold"]
    next_ids = data["after_ore_miners"]
    next_miners = np.moveaxis((next_ids[..., None] == np.arange(10)).any(axis=-2), -1, 1)
    np.testing.assert_array_equal((state.extra.miners & begun[:, None])[kept],
                                  (next_miners & begun[:, None])[kept])  # fmt: skip
    np.testing.assert_array_equal(
        np.where(begun, state.extra.left, 0)[kept],
        np.where(begun, data["after_partial_ore_countdown"], 0)[kept],
    )


def test_prisoners_dilemma(recorded):
    data = recorded("dilemma")
    grid, locs = data["before_grid"], data["before_reborn_locs"]
    agents = locs.shape[1]
    walls = grid[0] == 3
    sites = {1: (grid == 1).any(axis=0), 2: (grid == 2).any(axis=0)}
    glyphs = np.where(walls, "#", ".")
    world = prisoners_dilemma.world(num_agents=agents, turning=True, turn_order="simultaneous")
    floor_map = np.where(walls, ".", "s")
    for value, glyph in ((1, "d"), (2, "c")):
        floor_map[sites[value]] = glyph
    rows = tuple(map("".join, floor_map)), tuple(map("".join, glyphs))
    world = replace(world, maps=(rows[0], ("." * grid.shape[2],) * grid.shape[1], rows[1]))
    names, headings = (*FLIPPED[0], "interact"), FLIPPED[1]
    facing, position = headings[locs[..., 2]], locs[..., :2]
    top = np.where(walls, world.index["Wall"], 0).astype(np.int8)
    top = np.broadcast_to(top, grid.shape).copy()
    top[grid == 1], top[grid == 2] = world.index["Defect"], world.index["Cooperate"]
    top = put_agents(top, position, world.index[beams.FACINGS[0]] + facing)
    floor = np.broadcast_to(world.start_layers[0], grid.shape)
    layers = np.stack([floor, np.zeros_like(floor), top], axis=1)
    held = np.stack([data["before_coop_resources"], data["before_defect_resources"]], axis=-1)
    frozen = np.maximum(data["before_stay_time"] - 1, 0)  # they count down when a turn begins
    nobody = np.zeros(facing.shape, bool)
    extra = prisoners_dilemma.DilemmaState(*map(jnp.asarray, (facing, held, frozen, nobody)))
    action = translated(world, names, data["action"])
    acts = np.where(frozen > 0, 99, action)
    state, reward = played(world, layers, position, extra, action)
    # A resource may have come back before the moves, and been taken at once.
    turns = np.arange(len(grid))[:, None]
    row, column = state.position[..., 0], state.position[..., 1]
    moved = (state.position != position).any(axis=-1)
    is_site = (sites[1] | sites[2])[row, column] & moved
    bare = (is_site & (top[turns, row, column] == 0)).any(axis=1)
    # Of several interactions with one agent in a turn the order matters here.
    step = OFFSETS[state.extra.facing]
    strikes = acts == world.actions.index("interact")
    ahead = ((state.position + step)[:, :, None] == state.position[:, None]).all(-1)
    pairs = ahead & strikes[..., None]
    once = (pairs.sum(axis=1) + pairs.sum(axis=2)).max(axis=1) <= 1
    kept = apart(position, acts) & ~bare & once
    assert kept.mean() > 0.3
    theirs = data["after_agent_locs"]
    np.testing.assert_array_equal(state.position[kept], theirs[kept][..., :2])
    np.testing.assert_array_equal(state.extra.facing[kept], headings[theirs[kept][..., 2]])
    np.testing.assert_allclose(reward[kept], data["reward"][kept] / agents, atol=1e-5)
    after = np.stack([data["after_coop_resources"], data["after_defect_resources"]], axis=-1)
    np.testing.assert_array_equal(state.extra.held[kept], after[kept])
    met = (data["after_reborn_locs"] != theirs).any(axis=-1)
    assert (met <= state.extra.met)[kept].all()
    same_cell = (state.extra.met & ~met)[kept].sum()  # by chance
    assert same_cell <= 0.1 * met[kept].sum()
    assert met[kept].sum() > 5
    assert (reward[kept] > 0).sum() > 5
    frozen_after = data["after_stay_time"] - 1
    assert ((frozen_after >= 9) & (frozen_after <= 99))[kept][met[kept]].all()
