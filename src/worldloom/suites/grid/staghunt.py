"""Stag hunt: a hare feeds one hunter at once; a stag feeds all who hunt it, but takes two.

An agent hunts a stag by walking into it; the stag does not give way. A stag that two or more
agents walk into in the same turn is caught: each of them is paid in full, in either turn order,
and the stag is gone at the end of the turn. A lone hunter gets nothing and the stag stays. What
was taken comes back on a random free cell at the end of the turn, so that the field always holds
as many stags and hares as it started with, while there is room.
"""

import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.grid.kinds import WALL, Kind
from worldloom.suites.grid.options import CommonOptions, Number, common_options, episodic
from worldloom.suites.grid.world import Act, GridParams, GridState, GridWorld

NO_STAG = -1


class StagHuntParams(struct.PyTreeNode):
    stag_value: Number = 5.0  # paid to each agent that has a part in the catch
    num_stags: Number = 2
    num_hares: Number = 4


class StagHuntState(struct.PyTreeNode):
    hunted: Array  # (A,) int32: the cell of the stag that each agent walked into in this turn


@common_options("staghunt", StagHuntParams, height=10, width=10, num_agents=4, radius=3)
def world(common: CommonOptions, *, hare_value: float = 1.0) -> GridWorld:
    """The rules without time limit or frame stack."""
    height, width, num_agents = common.height, common.width, common.num_agents
    num_stags, num_hares = common.params.num_stags, common.params.num_hares
    if num_agents < 2:
        raise ValueError(f"staghunt: num_agents={num_agents}; it takes at least 2 to hunt a stag")
    room = max(height - 2, 0) * max(width - 2, 0) - num_agents
    if num_stags < 0 or num_hares < 0 or num_stags + num_hares > room:
        raise ValueError(
            f"staghunt: num_stags={num_stags} and num_hares={num_hares} do not fit the {room} "
            f"cells that {num_agents} agents leave free in a {height}x{width} world; use fewer"
        )
    return common.world(
        kinds=(
            Kind("Empty", ".", (34, 60, 40)),
            WALL,
            Kind("Hare", "h", (214, 190, 150), value=hare_value),
            Kind("Stag", "S", (170, 100, 50), passable=False),
            Kind("Agent", "A", (64, 120, 220), passable=False),
        ),
        unseen=("Empty",),
        setup=setup,
        interact=interact,
        upkeep=upkeep,
    )


make = episodic(world, horizon=100)


def setup(world: GridWorld, key: Key, state: GridState, params: GridParams) -> GridState:
    """Stags and hares on random free cells; nobody hunts yet."""
    hunted = jnp.full((world.num_agents,), NO_STAG, jnp.int32)
    return restock(world, key, state.replace(extra=StagHuntState(hunted)), params)


def interact(
    world: GridWorld, key: Key, state: GridState, act: Act, params: GridParams
) -> tuple[GridState, Array]:
    """Whoever walks into a stag joins its hunt; the second hunter makes the catch."""
    me = jnp.arange(world.num_agents) == act.agent
    hunts = act.met == world.index["Stag"]
    cell = jnp.where(hunts, act.target[0] * world.shape[1] + act.target[1], NO_STAG)
    hunted = jnp.where(me, cell, state.extra.hunted)
    party = hunts & (hunted == cell)
    # The second is paid together with the first, who could not know; all others as they come.
    paid = jnp.where(party.sum() == 2, party, me & (party.sum() > 2))
    reward = jnp.where(paid, params.extra.stag_value, 0.0)
    return state.replace(extra=StagHuntState(hunted)), reward


def upkeep(
    world: GridWorld, key: Key, state: GridState, params: GridParams
) -> tuple[GridState, Array]:
    """Caught stags go, what is missing comes back; the hunt never ends by itself."""
    hunted = state.extra.hunted
    hunters = ((hunted[:, None] == hunted) & (hunted != NO_STAG)).sum(axis=1)
    caught = jnp.where(hunters >= 2, hunted, NO_STAG)
    gone = (cells(world)[..., None] == caught).any(axis=-1)
    top = jnp.where(gone, jnp.int8(world.index["Empty"]), state.layers[-1])
    state = GridState(
        state.layers.at[-1].set(top), state.position, StagHuntState(jnp.full_like(hunted, NO_STAG))
    )
    return restock(world, key, state, params), jnp.asarray(False)


def restock(world: GridWorld, key: Key, state: GridState, params: GridParams) -> GridState:
    """Puts missing stags and hares on free cells, each free cell as likely."""
    top = state.layers[-1]
    stag, hare = world.index["Stag"], world.index["Hare"]
    # Each free cell draws a ticket, all different for the cell's number in it; the lowest win.
    ticket = (draws.bits(key, world.shape) & jnp.uint32(0xFFFF0000)) | cells(world).astype("uint32")
    ticket = jnp.where(top == world.index["Empty"], ticket, jnp.uint32(0xFFFFFFFF))
    ranked = jnp.sort(ticket.ravel())
    stags = jnp.maximum(params.extra.num_stags - (top == stag).sum(), 0)
    hares = jnp.maximum(params.extra.num_hares - (top == hare).sum(), 0)
    top = jnp.where(ticket < ranked[stags + hares], jnp.int8(hare), top)
    top = jnp.where(ticket < ranked[stags], jnp.int8(stag), top)
    return state.replace(layers=state.layers.at[-1].set(top))


def cells(world: GridWorld) -> Array:
    """(H, W) int32: the number of each cell, row by row."""
    height, width = world.shape
    return jnp.arange(height * width, dtype=jnp.int32).reshape(height, width)
