"""Cooperative mining: iron pays one miner at once; gold pays more, but takes two miners.

After Melting Pot's coop_mining and SocialJax's. Ore appears in the ground, on which agents walk.
The action `mine` works on the first ore within `mining_range` cells straight ahead; walls stop it,
agents do not. Iron is taken at once. Gold is begun by the first miner and taken when
`gold_miners` different ones have worked on it; if that does not happen in time (`gold_window` turns
from the first blow, that turn included) it closes again and all begin anew.

`gold_pays="all"` pays every agent that had a part (Melting Pot); "last" only the one that completes
it (SocialJax's code). Different from SocialJax: the map has its walls in other places; iron and
gold appear with exclusive chances, where there gold has its chance only if iron has not come;
agents start on any free cell, facing up; windows are centred and not rotated; conflicts of moves
are decided by turns, or nobody moves, not by lot.
"""

from functools import partial
from typing import Literal

import jax.numpy as jnp
from flax import struct

from worldloom.core.types import Array, Key
from worldloom.suites.grid import beams
from worldloom.suites.grid.kinds import Kind, Map, bordered
from worldloom.suites.grid.options import CommonOptions, Number, common_options, episodic
from worldloom.suites.grid.world import OFFSETS, Act, GridParams, GridState, GridWorld

FLOOR = 0


class MiningParams(struct.PyTreeNode):
    iron_value: Number = 1.0
    gold_value: Number = 8.0  # paid to each that it pays
    mining_range: Number = 3  # cells ahead
    gold_miners: Number = 2  # so many different ones take it
    gold_window: Number = 3  # turns


class MiningState(struct.PyTreeNode):
    facing: Array  # (A,) int32
    miners: Array  # (A, H, W) bool: who has worked on which begun gold
    left: Array  # (H, W) int32: turns until begun gold closes


@common_options(
    "coop_mining", MiningParams, height=21, width=27, num_agents=6, radius=5, turning=False
)
def world(
    common: CommonOptions,
    *,
    iron_rate: float = 0.0002,
    gold_rate: float = 0.00008,
    gold_pays: Literal["all", "last"] = "all",
) -> GridWorld:
    """The rules without time limit or frame stack: a field with a few walls to mine around."""
    common.check_chances(iron_rate=iron_rate, gold_rate=gold_rate)
    miners, reach, window = (
        getattr(common.params, name) for name in ("gold_miners", "mining_range", "gold_window")
    )
    if not 1 <= miners <= common.num_agents or min(reach, window) < 1:
        raise ValueError(
            f"coop_mining: gold_miners={miners}, mining_range={reach}, gold_window={window}; use "
            f"1 to num_agents={common.num_agents} miners, and 1 or more for the others"
        )
    top = walls(common.height, common.width)
    ore = (("Iron", iron_rate), ("Gold", gold_rate))
    return beams.facing_world(
        common,
        kinds=(
            Kind("Soil", ",", (150, 120, 90), becomes=ore),
            Kind("Iron", "i", (150, 150, 160)),
            Kind("Gold", "g", (236, 190, 60)),
            Kind("BegunGold", "b", (250, 230, 150)),
        ),
        maps=(tuple(row.replace(".", ",").replace("#", ".") for row in top), top),
        actions=("mine",),
        unseen=("Empty", "Soil"),
        setup=setup,
        interact=partial(interact, pays_all=gold_pays == "all"),
        upkeep=upkeep,
    )


make = episodic(world, horizon=1000)


def walls(height: int, width: int) -> Map:
    """A border, and inside short walls of four cells, lying and standing in turn, six apart."""
    rows = [list(row) for row in bordered(height, width, "#", ".")]
    for down in range(4, height - 4, 6):
        for right in range(4, width - 4, 6):
            standing = (down + right) // 6 % 2
            for n in range(4):
                rows[down + n * standing][right + n * (1 - standing)] = "#"
    return tuple("".join(row) for row in rows)


def setup(world: GridWorld, key: Key, state: GridState, params: GridParams) -> GridState:
    """No ore yet, but for what the first turn brings; everybody faces up."""
    facing = jnp.zeros((world.num_agents,), jnp.int32)
    miners = jnp.zeros((world.num_agents, *world.shape), bool)
    return state.replace(extra=MiningState(facing, miners, jnp.zeros(world.shape, jnp.int32)))


def interact(
    world: GridWorld, key: Key, state: GridState, act: Act, params: GridParams, *, pays_all: bool
) -> tuple[GridState, Array]:
    """A move or turn changes where the agent faces; `mine` works on the first ore ahead."""
    old, numbers = state.extra, params.extra
    me = jnp.arange(world.num_agents) == act.agent
    facing = beams.turn(world, old.facing, act)
    mine = first_ore(world, state, act.agent, facing[act.agent], numbers.mining_range)
    mine = mine & beams.does(world, act, "mine")
    floor = state.layers[FLOOR]
    iron = mine & (floor == world.index["Iron"])
    fresh = mine & (floor == world.index["Gold"])
    gold = fresh | (mine & (floor == world.index["BegunGold"]))
    miners = old.miners | (me[:, None, None] & gold)
    taken = gold & (miners.sum(axis=0) >= numbers.gold_miners)
    parts = (miners & taken).any(axis=(1, 2))
    paid = parts if pays_all else me & taken.any()
    reward = jnp.where(paid, numbers.gold_value, 0.0)
    reward = reward + jnp.where(me & iron.any(), numbers.iron_value, 0.0)
    floor = jnp.where(gold, jnp.int8(world.index["BegunGold"]), floor)
    floor = jnp.where(iron | taken, jnp.int8(world.index["Soil"]), floor)
    left = jnp.where(fresh, numbers.gold_window, old.left)
    extra = MiningState(facing, miners & ~taken, jnp.where(taken, 0, left))
    state = state.replace(layers=state.layers.at[FLOOR].set(floor), extra=extra)
    return beams.show(world, state, facing), reward


def upkeep(
    world: GridWorld, key: Key, state: GridState, params: GridParams
) -> tuple[GridState, Array]:
    """Gold whose time is over closes; the world never ends by itself."""
    left = jnp.maximum(state.extra.left - 1, 0)
    floor = state.layers[FLOOR]
    late = (floor == world.index["BegunGold"]) & (left == 0)
    floor = jnp.where(late, jnp.int8(world.index["Gold"]), floor)
    extra = state.extra.replace(miners=state.extra.miners & ~late, left=left)
    return state.replace(layers=state.layers.at[FLOOR].set(floor), extra=extra), jnp.asarray(False)


def first_ore(world: GridWorld, state: GridState, i: Array | int, facing: Array, reach: Array):
    """(H, W) bool: true in the cell of the ore that agent `i` would work on, if there is one."""
    height, width = world.shape
    step = jnp.asarray(OFFSETS)[facing]
    longest = jnp.arange(1, max(height, width))
    cells = state.position[i] + longest[:, None] * step
    inside = (cells >= 0).all(axis=1) & (cells[:, 0] < height) & (cells[:, 1] < width)
    row, column = cells[:, 0].clip(0, height - 1), cells[:, 1].clip(0, width - 1)
    floor, top = state.layers[FLOOR, row, column], state.layers[-1, row, column]
    ores = [world.index[name] for name in ("Iron", "Gold", "BegunGold")]
    is_ore = (floor[:, None] == jnp.array(ores)).any(axis=1)
    stops = ~inside | (top == world.index["Wall"]) | is_ore
    first = stops.argmax()
    found = is_ore[first] & inside[first] & (longest[first] <= reach)
    number = jnp.arange(height * width).reshape(height, width)
    return (number == row[first] * width + column[first]) & found
