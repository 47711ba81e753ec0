"""Which way agents face, the beams they fire ahead, and what becomes of those who are hit.

An agent faces the way of its last move, made or tried. In a world with the actions `turn_left` and
`turn_right` (`turning`, as in SocialJax and Melting Pot) only these two turn it, and it walks
sideways and backwards like forwards; moves are up, down, left and right on the map in either case.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.grid.kinds import WALL, Kind
from worldloom.suites.grid.options import CommonOptions
from worldloom.suites.grid.world import MOVES, OFFSETS, Act, GridState, GridWorld

FACINGS = ("FacingUp", "FacingDown", "FacingLeft", "FacingRight")  # in the order of MOVES
LEFT_OF = np.array([2, 3, 1, 0], np.int32)  # the facing after a turn to the left
RIGHT_OF = np.array([3, 2, 0, 1], np.int32)


def facing_world(
    common: CommonOptions, kinds: tuple[Kind, ...], actions: tuple[str, ...], **parts: Any
) -> GridWorld:
    """A world in which everybody can see which way an agent faces.

    `kinds` come after Empty and Wall, `actions` after the moves, and the turns of `turning`.
    """
    agents = (
        Kind(name, glyph, (64, 120, 220), passable=False)
        for name, glyph in zip(FACINGS, "^v<>", strict=True)
    )
    turns = ("stay", "turn_left", "turn_right") if common.turning else ()
    return common.world(
        kinds=(Kind("Empty", ".", (0, 0, 0)), WALL, *kinds, *agents),
        actions=(*MOVES, *turns, *actions),
        agent=FACINGS[0],
        **parts,
    )


def does(world: GridWorld, act: Act, name: str) -> Any:
    """() bool: whether an act is the action of that name; never, if the world has no such."""
    return act.action == world.actions.index(name) if name in world.actions else jnp.asarray(False)


def turn(world: GridWorld, facing: Array, act: Act) -> Array:
    """`facing` (A,) after an act."""
    mine = facing[act.agent]
    if "turn_left" in world.actions:
        mine = jnp.where(does(world, act, "turn_left"), jnp.asarray(LEFT_OF)[mine], mine)
        mine = jnp.where(does(world, act, "turn_right"), jnp.asarray(RIGHT_OF)[mine], mine)
    else:
        mine = jnp.where((act.action >= 0) & (act.action < len(MOVES)), act.action, mine)
    return jnp.where(jnp.arange(world.num_agents) == act.agent, mine, facing)


def show(world: GridWorld, state: GridState, facing: Array) -> GridState:
    """The agents drawn as they face."""
    return world.draw_agents(state, world.index[FACINGS[0]] + facing)


def beam(
    world: GridWorld, cell: Array, facing: Array, length: Array, width: Array, taper: bool = False
) -> Array:
    """(H, W) bool: the cells that a beam from `cell` (2,) reaches, whatever stands in its way.

    A rectangle, `length` cells ahead and `width` to either side; with `taper` each cell aside costs
    one ahead. SocialJax's beams are tapered: length 2 and width 1 make four cells.
    """
    height, columns = world.shape
    down, right = jnp.asarray(OFFSETS)[facing]
    rows = jnp.arange(height)[:, None] - cell[0]
    across = jnp.arange(columns)[None, :] - cell[1]
    ahead = rows * down + across * right
    aside = jnp.abs(rows * right + across * down)
    reach = ahead + aside if taper else ahead
    return (ahead >= 1) & (reach <= length) & (aside <= width)


def hit_agents(world: GridWorld, state: GridState, cells: Array, by: Array | int) -> Array:
    """(A,) bool: who stands in `cells` (H, W), but for the agent that fires."""
    there = cells[state.position[:, 0], state.position[:, 1]]
    return there & (jnp.arange(world.num_agents) != by)


def respawn(world: GridWorld, key: Key, state: GridState, who: Array) -> GridState:
    """Agents `who` (A,) bool move to free starting cells, each as likely; drawn by the caller.

    Items must not grow on starting cells, unless all cells are such: there is room for all then.
    """
    starts = np.zeros(world.shape, bool)
    starts[tuple(world.start_cells.T)] = True
    left = (world.agent_cells(state) & who[:, None, None]).any(axis=0)
    top = jnp.where(left, jnp.int8(0), state.layers[-1])
    tickets = jnp.where(starts & (top == 0), draws.uniform(key, world.shape), -1.0)
    _, chosen = jax.lax.top_k(tickets.ravel(), world.num_agents)
    cell = chosen[jnp.cumsum(who) - 1]
    there = jnp.stack([cell // world.shape[1], cell % world.shape[1]], axis=-1)
    position = jnp.where(who[:, None], there, state.position)
    return state.replace(layers=state.layers.at[-1].set(top), position=position)
