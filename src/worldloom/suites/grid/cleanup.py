"""Cleanup: apples grow only while somebody keeps the river clean, and cleaning pays nothing.

The commons dilemma in the style of Melting Pot's Clean Up. Water turns foul by itself. Apples
regrow in the orchard at a rate that falls in a straight line with the polluted share of the
river and reaches zero at the share `depletion`. The action `clean` turns foul water in a beam
ahead of the agent into water again; the beam reaches over agents, apples and walls. An agent
faces the way of its last move, made or tried, and everybody can see which way that is.
"""

from typing import Literal

import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import PureEnv, TurnOrder
from worldloom.core.transforms import frame_stack, time_limit
from worldloom.core.types import Array, Key
from worldloom.suites.grid.kinds import Kind, bordered
from worldloom.suites.grid.world import MOVES, OFFSETS, Act, GridParams, GridState, GridWorld

FACINGS = ("FacingUp", "FacingDown", "FacingLeft", "FacingRight")  # in the order of MOVES
CLEAN = len(MOVES)
FLOOR, TOP = 0, 1


class CleanupParams(struct.PyTreeNode):
    apple_rate: Array  # () chance per turn of an apple on a bare orchard cell, river all clean
    depletion: Array  # () polluted share of the river from which on nothing grows
    start_pollution: Array  # () chance of each river cell to be foul at the start
    beam_length: Array  # () cells ahead
    beam_width: Array  # () cells to either side of those


class CleanupState(struct.PyTreeNode):
    facing: Array  # (A,) int32: the last move of each agent


def world(
    *,
    height: int = 12,
    width: int = 16,
    num_agents: int = 5,
    radius: int | None = 3,
    apple_value: float = 1.0,
    apple_rate: float = 0.05,
    pollution_rate: float = 0.02,
    start_pollution: float = 0.5,
    depletion: float = 0.4,
    beam_length: int = 3,
    beam_width: int = 1,
    turn_order: TurnOrder = "interleaved",
    view: Literal["onehot", "rgb"] = "onehot",
) -> GridWorld:
    """The rules without time limit or frame stack: river on the left, orchard on the right."""
    chances = {
        "apple_rate": apple_rate,
        "pollution_rate": pollution_rate,
        "start_pollution": start_pollution,
        "depletion": depletion,
    }
    for name, chance in chances.items():
        if not 0 <= chance <= 1 or (name == "depletion" and chance == 0):
            raise ValueError(f"cleanup: {name}={chance:g}; it must be a share or chance up to 1")
    if width < 5:
        raise ValueError(f"cleanup: width={width} has no room for river, path and orchard; use 5")
    third = (width - 2) // 3
    row = "." + "~" * third + "," * (width - 2 - 2 * third) + "%" * third + "."
    under_wall = "." * width
    agents = [
        Kind(name, glyph, (64, 120, 220), passable=False)
        for name, glyph in zip(FACINGS, "^v<>", strict=True)
    ]
    return GridWorld(
        name="cleanup",
        kinds=(
            Kind("Empty", ".", (0, 0, 0)),
            Kind("Wall", "#", (88, 92, 108), passable=False),
            Kind("Sand", ",", (226, 202, 150)),
            Kind("Water", "~", (60, 130, 210), becomes=(("Pollution", pollution_rate),)),
            Kind("Pollution", "&", (96, 92, 60)),
            Kind("Orchard", "%", (60, 140, 70)),
            Kind("Apple", "o", (214, 60, 60), value=apple_value),
            *agents,
        ),
        maps=(
            (under_wall, *[row] * (height - 2), under_wall),
            bordered(height, width, "#", "."),
        ),
        num_agents=num_agents,
        radius=radius,
        turn_order=turn_order,
        view=view,
        actions=(*MOVES, "clean"),
        agent=FACINGS[0],
        unseen=("Empty", "Sand"),
        setup=setup,
        interact=interact,
        upkeep=upkeep,
        extra_params=lambda: CleanupParams(
            *map(jnp.float32, (apple_rate, depletion, start_pollution, beam_length, beam_width))
        ),
    )


def make(*, horizon: int = 200, num_frames: int = 1, **rules) -> PureEnv:
    """Cleanup with frame stacks that start from zeros and a truncation at `horizon`."""
    return time_limit(frame_stack(world(**rules), num_frames), horizon)


def setup(world: GridWorld, key: Key, state: GridState, params: GridParams) -> GridState:
    """Fouls a part of the river; everybody faces up."""
    floor = state.layers[FLOOR]
    foul = draws.uniform(key, world.shape) < params.extra.start_pollution
    floor = jnp.where(
        foul & (floor == world.index["Water"]), jnp.int8(world.index["Pollution"]), floor
    )
    facing = jnp.zeros((world.num_agents,), jnp.int32)
    return state.replace(layers=state.layers.at[FLOOR].set(floor), extra=CleanupState(facing))


def interact(
    world: GridWorld, key: Key, state: GridState, act: Act, params: GridParams
) -> tuple[GridState, Array]:
    """A move turns the agent; `clean` clears the beam ahead of it."""
    me = jnp.arange(world.num_agents) == act.agent
    turned = (act.action >= 0) & (act.action < CLEAN)
    facing = jnp.where(me & turned, act.action, state.extra.facing)
    ahead = beam(world, state.position[act.agent], facing[act.agent], params)
    hit = ahead & (act.action == CLEAN)
    floor = state.layers[FLOOR]
    floor = jnp.where(
        hit & (floor == world.index["Pollution"]), jnp.int8(world.index["Water"]), floor
    )
    state = state.replace(layers=state.layers.at[FLOOR].set(floor), extra=CleanupState(facing))
    state = world.draw_agents(state, world.index[FACINGS[0]] + facing)
    return state, jnp.zeros((world.num_agents,), jnp.float32)


def upkeep(
    world: GridWorld, key: Key, state: GridState, params: GridParams
) -> tuple[GridState, Array]:
    """Apples grow on bare orchard cells; the world never ends by itself."""
    floor, top = state.layers
    ripe = draws.uniform(key, world.shape) < growth(world, state, params)
    bare = (floor == world.index["Orchard"]) & (top == world.index["Empty"])
    top = jnp.where(ripe & bare, jnp.int8(world.index["Apple"]), top)
    return state.replace(layers=state.layers.at[TOP].set(top)), jnp.asarray(False)


def growth(world: GridWorld, state: GridState, params: GridParams) -> Array:
    """() the chance of an apple on each bare orchard cell in this turn."""
    foul = (state.layers[FLOOR] == world.index["Pollution"]).sum()
    water = (state.layers[FLOOR] == world.index["Water"]).sum()
    share = foul / (foul + water)
    return params.extra.apple_rate * jnp.maximum(0.0, 1.0 - share / params.extra.depletion)


def beam(world: GridWorld, cell: Array, facing: Array, params: GridParams) -> Array:
    """(H, W) bool: the cells that a beam from `cell` (2,) reaches."""
    height, width = world.shape
    down, right = jnp.asarray(OFFSETS)[facing]
    rows = jnp.arange(height)[:, None] - cell[0]
    columns = jnp.arange(width)[None, :] - cell[1]
    ahead = rows * down + columns * right
    aside = jnp.abs(rows * right + columns * down)
    reach, spread = params.extra.beam_length, params.extra.beam_width
    return (ahead >= 1) & (ahead <= reach) & (aside <= spread)
