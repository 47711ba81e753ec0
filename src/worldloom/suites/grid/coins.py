"""Coins: everybody is paid for any coin, but taking one of the other's colour costs the other more.

The coin game (Lerer and Peysakhovich 2017) as in Melting Pot and SocialJax: a red and a green
agent; coins of either colour appear on empty cells. A coin pays whoever takes it 1, and if it is of
the other's colour the other loses 2: together they lose 1 by every such coin.

Different from SocialJax: either colour appears with chance `coin_rate`, where there red has its
chance only if green has not come (a difference of a quarter of a millionth); agents start on random
cells, red first, where there they start in two corners; there are no turns, which there only rotate
what is seen; two agents that want one coin both stay (simultaneous) or the first has it
(interleaved), where there one of them gets it by lot.
"""

import jax.numpy as jnp
from flax import struct

from worldloom.core.types import Array, Key
from worldloom.suites.grid.kinds import WALL, Kind
from worldloom.suites.grid.options import CommonOptions, Number, common_options, episodic
from worldloom.suites.grid.world import MOVES, Act, GridParams, GridState, GridWorld


class CoinsParams(struct.PyTreeNode):
    harm: Number = 2.0  # what the other loses when a coin of its colour is taken


@common_options("coins", CoinsParams, height=16, width=11, radius=5)
def world(
    common: CommonOptions,
    *,
    coin_value: float = 1.0,
    coin_rate: float = 0.0005,
) -> GridWorld:
    """The rules without time limit or frame stack; a field for two without walls."""
    height, width = common.height, common.width
    common.check_chances(coin_rate=coin_rate)
    if min(height, width) < 1 or height * width < 2:
        raise ValueError(f"coins: {height}x{width} has no room for two agents; use 2 cells or more")
    appear = (("RedCoin", coin_rate), ("GreenCoin", coin_rate))
    return common.world(
        kinds=(
            Kind("Empty", ".", (34, 38, 46), becomes=appear),
            WALL,
            Kind("RedCoin", "r", (224, 72, 64), value=coin_value),
            Kind("GreenCoin", "g", (72, 186, 92), value=coin_value),
            Kind("RedAgent", "R", (224, 72, 64), passable=False),
            Kind("GreenAgent", "G", (72, 186, 92), passable=False),
        ),
        maps=(("." * width,) * height,),
        num_agents=2,
        actions=(*MOVES, "stay"),
        agent="RedAgent",
        unseen=("Empty",),
        setup=setup,
        interact=interact,
    )


make = episodic(world, horizon=1000)


def setup(world: GridWorld, key: Key, state: GridState, params: GridParams) -> GridState:
    """Agent 0 is red, agent 1 is green."""
    return show(world, state)


def interact(
    world: GridWorld, key: Key, state: GridState, act: Act, params: GridParams
) -> tuple[GridState, Array]:
    """Whose colour was taken by the other loses; the value itself is paid by the walk."""
    agents = jnp.arange(2)
    here = (state.position[act.agent] == act.target).all()  # it went there, and nobody stopped it
    taken = here & (act.met == world.index["RedCoin"] + agents)
    reward = jnp.where(taken & (agents != act.agent), -params.extra.harm, 0.0)
    return show(world, state), reward


def show(world: GridWorld, state: GridState) -> GridState:
    """Everybody in its colour."""
    return world.draw_agents(state, world.index["RedAgent"] + jnp.arange(2))
