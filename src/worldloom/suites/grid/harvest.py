"""Commons harvest: apples regrow only near other apples, so a patch that is eaten bare stays bare.

The rules of Melting Pot's commons_harvest and SocialJax's harvest_common. An apple pays 1. A site
without an apple grows one with a chance that depends on the apples within two steps of it: none,
one, two, or three and more. The action `zap` sends whoever stands in the tapered beam ahead back
to a starting cell at the end of the turn; it neither pays nor costs. `map` is open, or closed: two
rooms, each of which one agent can guard at its door.

Different from SocialJax: apples grow at the end of a turn instead of the beginning of the next
(the same order of events); agents start on the starting cells below, facing up, where there two of
them start between the patches; who was zapped keeps its heading; windows are centred and not
rotated; the cells of a beam can be entered, where there they are marked and blocked for a turn; a
beam ends at the edge, where there it comes back on the other side or on who fired it; two agents
that want one cell both stay (simultaneous) or take turns (interleaved), where there one of them
gets it by lot. Melting Pot keeps who was zapped out of the world for a while.
"""

from functools import reduce
from itertools import product
from typing import Literal

import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.grid import beams
from worldloom.suites.grid.kinds import Kind, Map, drawn
from worldloom.suites.grid.options import CommonOptions, common_options, episodic
from worldloom.suites.grid.world import Act, GridParams, GridState, GridWorld

HEIGHT, WIDTH, REACH = 16, 22, 2  # apples within REACH steps count, and patches reach as far
PATCHES = ((0, 0), (0, 21), (2, 7), (2, 14), (7, 2), (7, 19))
# Rows and columns, first and last, of the walls of the closed map, and its two doors.
WALLS = ((0, 12, 10, 11), (8, 8, 6, 15), (10, 10, 0, 21), (12, 12, 2, 19))
DOORS = ((10, 9), (10, 12))


class HarvestParams(struct.PyTreeNode):
    regrowth: Array  # (4,) chance per turn with 0, 1, 2, 3 and more apples near by
    beam_length: Array  # ()
    beam_width: Array  # ()


class HarvestState(struct.PyTreeNode):
    facing: Array  # (A,) int32
    zapped: Array  # (A,) bool: hit in this turn
    restarted: Array  # (A,) bool: hit in the turn before


@common_options("harvest", num_agents=7, radius=5, turning=False)
def world(
    common: CommonOptions,
    *,
    map: Literal["open", "closed"] = "open",
    apple_value: float = 1.0,
    regrowth: tuple[float, ...] = (0.0, 0.001, 0.005, 0.025),
    beam_length: int = 2,
    beam_width: int = 1,
) -> GridWorld:
    """The rules without time limit or frame stack."""
    if len(regrowth) != 4:
        raise ValueError(
            f"harvest: regrowth={regrowth}; give 4 chances, for 0, 1, 2 and more apples near by"
        )
    common.check_chances(**{f"regrowth[{n}]": rate for n, rate in enumerate(regrowth)})
    return beams.facing_world(
        common,
        kinds=(
            Kind("Sand", ",", (226, 202, 150)),
            Kind("Start", "s", (210, 190, 150)),
            Kind("Orchard", "%", (60, 140, 70)),
            Kind("Apple", "o", (214, 60, 60), value=apple_value),
        ),
        maps=maps(closed=map == "closed"),
        actions=("zap",),
        unseen=("Empty", "Sand", "Start"),
        start_on="Start",
        setup=setup,
        interact=interact,
        upkeep=upkeep,
        at_peace=lambda state: ~state.extra.restarted,
        extra_params=lambda: HarvestParams(
            jnp.asarray(regrowth, jnp.float32), jnp.float32(beam_length), jnp.float32(beam_width)
        ),
    )


make = episodic(world, horizon=1000)


def maps(closed: bool) -> tuple[Map, ...]:
    """Floor and top: round patches in the upper half, starting cells in a field below."""

    def glyphs(row: int, column: int) -> tuple[str, str]:
        walled = any(a <= row <= b and c <= column <= d for a, b, c, d in WALLS)
        if closed and walled and (row, column) not in DOORS:
            return ".", "#"
        if any(abs(row - y) + abs(column - x) <= REACH for y, x in PATCHES):
            return "%", "o"
        margin = HEIGHT - 1 - row
        return "s" if row >= HEIGHT - 3 and margin <= column < WIDTH - margin else ",", "."

    return drawn(HEIGHT, WIDTH, glyphs)


def setup(world: GridWorld, key: Key, state: GridState, params: GridParams) -> GridState:
    """All apples are there; everybody faces up."""
    nobody = jnp.zeros((world.num_agents,), bool)
    return state.replace(extra=HarvestState(nobody.astype(jnp.int32), nobody, nobody))


def interact(
    world: GridWorld, key: Key, state: GridState, act: Act, params: GridParams
) -> tuple[GridState, Array]:
    """A move or turn changes where the agent faces; `zap` hits who stands in the beam."""
    facing = beams.turn(world, state.extra.facing, act)
    reach = params.extra.beam_length, params.extra.beam_width
    ahead = beams.beam(world, state.position[act.agent], facing[act.agent], *reach, taper=True)
    hit = beams.hit_agents(world, state, ahead & beams.does(world, act, "zap"), act.agent)
    extra = state.extra.replace(facing=facing, zapped=state.extra.zapped | hit)
    state = state.replace(extra=extra)
    return beams.show(world, state, facing), jnp.zeros((world.num_agents,), jnp.float32)


def upkeep(
    world: GridWorld, key: Key, state: GridState, params: GridParams
) -> tuple[GridState, Array]:
    """Apples grow, who was zapped starts anew; the world never ends by itself."""
    grow_key, spawn_key = draws.split(key)
    chance = params.extra.regrowth[jnp.minimum(near(world, state), 3)]
    state = world.grow(grow_key, state, "Orchard", "Apple", chance)
    hit = state.extra.zapped
    state = beams.show(world, beams.respawn(world, spawn_key, state, hit), state.extra.facing)
    extra = state.extra.replace(zapped=jnp.zeros_like(hit), restarted=hit)
    return state.replace(extra=extra), jnp.asarray(False)


def near(world: GridWorld, state: GridState) -> Array:
    """(H, W) int32: the apples within two steps of each cell, its own left out."""
    height, width = world.shape
    apples = jnp.pad((state.layers[-1] == world.index["Apple"]).astype(jnp.int32), REACH)
    offsets = product(range(-REACH, REACH + 1), repeat=2)
    shifted = [
        apples[REACH + y : REACH + y + height, REACH + x : REACH + x + width]
        for y, x in offsets
        if 0 < abs(y) + abs(x) <= REACH
    ]
    return reduce(jnp.add, shifted)
