"""Cleanup: apples grow only while somebody keeps the river clean, and cleaning pays nothing.

The commons dilemma in the style of Melting Pot's Clean Up. Water turns foul by itself. Apples
regrow in the orchard at a rate that falls in a straight line with the polluted share of the
river and reaches zero at the share `depletion`. The action `clean` turns foul water in a beam
ahead of the agent into water again; the beam reaches over agents, apples and walls. Everybody can
see which way an agent faces.

SocialJax's Clean Up by options: `num_agents=7, height=21, width=30, horizon=1000, turning=True,
zap=True, fouling="one", pollution_rate=0.5, fouling_delay=50, beam_length=2, beam_taper=True`.
With `fouling="one"` a turn fouls at most one cell of the river; `zap` sends whoever stands in the
beam back to a starting cell at the end of the turn. What stays different: river and orchard lie
left and right of a path instead of above and below; every cell of the river can be foul (there a
channel of 21 cells cannot), the start is drawn instead of fixed, agents start anywhere and face up,
windows are centred and not rotated, and two agents that want one cell both stay (simultaneous) or
take turns (interleaved), where there one of them gets it by lot.
"""

from functools import partial
from typing import Literal

import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.grid import beams
from worldloom.suites.grid.kinds import Kind, bordered
from worldloom.suites.grid.options import CommonOptions, common_options, episodic
from worldloom.suites.grid.world import Act, GridParams, GridState, GridWorld

FLOOR = 0


class CleanupParams(struct.PyTreeNode):
    apple_rate: Array  # () chance per turn of an apple on a bare orchard cell, river all clean
    depletion: Array  # () polluted share of the river from which on nothing grows
    start_pollution: Array  # () chance of each river cell to be foul at the start
    beam_length: Array  # () cells ahead
    beam_width: Array  # () cells to either side of those
    one_rate: Array  # () chance per turn that one cell of the river turns foul
    fouling_delay: Array  # () turns before which it does not


class CleanupState(struct.PyTreeNode):
    facing: Array  # (A,) int32: which way each agent faces
    zapped: Array  # (A,) bool: hit in this turn
    restarted: Array  # (A,) bool: hit in the turn before
    turn: Array  # () int32


@common_options("cleanup", height=12, width=16, num_agents=5, radius=3, turning=False)
def world(
    common: CommonOptions,
    *,
    apple_value: float = 1.0,
    apple_rate: float = 0.05,
    pollution_rate: float = 0.02,
    start_pollution: float = 0.5,
    depletion: float = 0.4,
    beam_length: int = 3,
    beam_width: int = 1,
    beam_taper: bool = False,
    zap: bool = False,
    fouling: Literal["each", "one"] = "each",
    fouling_delay: int = 0,
) -> GridWorld:
    """The rules without time limit or frame stack: river on the left, orchard on the right."""
    height, width = common.height, common.width
    common.check_chances(
        apple_rate=apple_rate,
        pollution_rate=pollution_rate,
        start_pollution=start_pollution,
        depletion=depletion,
    )
    if depletion == 0:
        raise ValueError("cleanup: depletion=0; it must be a share above 0")
    if width < 5:
        raise ValueError(f"cleanup: width={width} has no room for river, path and orchard; use 5")
    third = (width - 2) // 3
    row = "." + "~" * third + "," * (width - 2 - 2 * third) + "%" * third + "."
    under_wall = "." * width
    every = (("Pollution", pollution_rate),) if fouling == "each" else ()
    one_rate = pollution_rate if fouling == "one" else 0.0
    numbers = (apple_rate, depletion, start_pollution, beam_length, beam_width)
    numbers += (one_rate, fouling_delay)
    return beams.facing_world(
        common,
        kinds=(
            Kind("Sand", ",", (226, 202, 150)),
            Kind("Water", "~", (60, 130, 210), becomes=every),
            Kind("Pollution", "&", (96, 92, 60)),
            Kind("Orchard", "%", (60, 140, 70)),
            Kind("Apple", "o", (214, 60, 60), value=apple_value),
        ),
        maps=(
            (under_wall, *[row] * (height - 2), under_wall),
            bordered(height, width, "#", "."),
        ),
        actions=("clean", *(("zap",) if zap else ())),
        unseen=("Empty", "Sand"),
        setup=setup,
        interact=partial(interact, taper=beam_taper),
        upkeep=upkeep,
        at_peace=(lambda state: ~state.extra.restarted) if zap else None,
        extra_params=lambda: CleanupParams(*map(jnp.float32, numbers)),
    )


make = episodic(world, horizon=200)


def setup(world: GridWorld, key: Key, state: GridState, params: GridParams) -> GridState:
    """Fouls a part of the river; everybody faces up."""
    floor = state.layers[FLOOR]
    foul = draws.uniform(key, world.shape) < params.extra.start_pollution
    floor = jnp.where(
        foul & (floor == world.index["Water"]), jnp.int8(world.index["Pollution"]), floor
    )
    nobody = jnp.zeros((world.num_agents,), bool)
    extra = CleanupState(nobody.astype(jnp.int32), nobody, nobody, jnp.int32(0))
    return state.replace(layers=state.layers.at[FLOOR].set(floor), extra=extra)


def interact(
    world: GridWorld, key: Key, state: GridState, act: Act, params: GridParams, *, taper: bool
) -> tuple[GridState, Array]:
    """A move or turn changes where the agent faces; `clean` and `zap` fire a beam ahead of it."""
    facing = beams.turn(world, state.extra.facing, act)
    reach = params.extra.beam_length, params.extra.beam_width
    ahead = beams.beam(world, state.position[act.agent], facing[act.agent], *reach, taper)
    cleaned = ahead & beams.does(world, act, "clean")
    floor = state.layers[FLOOR]
    floor = jnp.where(
        cleaned & (floor == world.index["Pollution"]), jnp.int8(world.index["Water"]), floor
    )
    hit = beams.hit_agents(world, state, ahead & beams.does(world, act, "zap"), act.agent)
    extra = state.extra.replace(facing=facing, zapped=state.extra.zapped | hit)
    state = state.replace(layers=state.layers.at[FLOOR].set(floor), extra=extra)
    return beams.show(world, state, facing), jnp.zeros((world.num_agents,), jnp.float32)


def upkeep(
    world: GridWorld, key: Key, state: GridState, params: GridParams
) -> tuple[GridState, Array]:
    """Apples grow, water turns foul, who was zapped starts anew; the world never ends by itself."""
    extra = state.extra.replace(turn=state.extra.turn + 1)
    grow_key, foul_key, spawn_key = draws.split(key, 3)
    state = world.grow(grow_key, state, "Orchard", "Apple", growth(world, state, params))
    if not any(source == world.index["Water"] for source, _ in world.changes):
        state = foul_one(world, foul_key, state, params)
    if "zap" in world.actions:
        state = beams.respawn(world, spawn_key, state, extra.zapped)
        state = beams.show(world, state, extra.facing)
        extra = extra.replace(zapped=jnp.zeros_like(extra.zapped), restarted=extra.zapped)
    return state.replace(extra=extra), jnp.asarray(False)


def foul_one(world: GridWorld, key: Key, state: GridState, params: GridParams) -> GridState:
    """One cell of clean water, each as likely, turns foul with chance `one_rate`."""
    floor = state.layers[FLOOR]
    chance_key, cell_key = draws.split(key)
    late = state.extra.turn >= params.extra.fouling_delay
    happens = late & (draws.uniform(chance_key) < params.extra.one_rate)
    tickets = jnp.where(floor == world.index["Water"], draws.uniform(cell_key, world.shape), -1.0)
    number = jnp.arange(tickets.size).reshape(world.shape)
    chosen = (number == tickets.argmax()) & (tickets >= 0) & happens
    floor = jnp.where(chosen, jnp.int8(world.index["Pollution"]), floor)
    return state.replace(layers=state.layers.at[FLOOR].set(floor))


def growth(world: GridWorld, state: GridState, params: GridParams) -> Array:
    """() the chance of an apple on each bare orchard cell in this turn."""
    foul = (state.layers[FLOOR] == world.index["Pollution"]).sum()
    water = (state.layers[FLOOR] == world.index["Water"]).sum()
    share = foul / (foul + water)
    return params.extra.apple_rate * jnp.maximum(0.0, 1.0 - share / params.extra.depletion)
