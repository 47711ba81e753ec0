"""Tag: one agent is "it" and passes that on by walking into another.

Being it costs a little in every turn; passing it on pays the tagger and costs the tagged. The
tag passes at most once a turn, so whoever was just tagged cannot strike back before the next.
With simultaneous turns an agent that leaves its cell in the same turn gets away.
"""

import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.grid.kinds import WALL, Kind
from worldloom.suites.grid.options import CommonOptions, Number, common_options, episodic
from worldloom.suites.grid.world import Act, GridParams, GridState, GridWorld

KINDS = (
    Kind("Empty", ".", (24, 28, 36)),
    WALL,
    Kind("Agent", "A", (64, 120, 220), passable=False),
    Kind("It", "!", (230, 70, 60), passable=False),
)


class TagParams(struct.PyTreeNode):
    tag_value: Number = 1.0  # paid to the tagger, taken from the tagged
    it_cost: Number = 0.05  # taken each turn from the agent that was it when the turn began


class TagState(struct.PyTreeNode):
    it: Array  # () int32: which agent is it
    passed: Array  # () bool: the tag has passed in this turn


@common_options("tag", TagParams, height=9, width=9, num_agents=4, radius=3)
def world(common: CommonOptions) -> GridWorld:
    """The rules without time limit or frame stack. Whoever is it is seen as the kind `It`."""
    if common.num_agents < 2:
        raise ValueError(f"tag: num_agents={common.num_agents}; it takes at least 2 to play tag")
    return common.world(
        kinds=KINDS, unseen=("Empty",), setup=setup, interact=interact, upkeep=upkeep
    )


make = episodic(world, horizon=100)


def setup(world: GridWorld, key: Key, state: GridState, params: GridParams) -> GridState:
    """Any agent, each as likely, starts as it."""
    it = draws.integers(key, (), world.num_agents)
    return draw(world, state.replace(extra=TagState(it, jnp.asarray(False))))


def interact(
    world: GridWorld, key: Key, state: GridState, act: Act, params: GridParams
) -> tuple[GridState, Array]:
    """The agent that is it tags whoever stands where it wanted to go."""
    tag, agents = state.extra, jnp.arange(world.num_agents)
    hunts = (act.agent == tag.it) & ~tag.passed
    caught = hunts & (state.position == act.target).all(axis=-1) & (agents != act.agent)
    passes = caught.any()
    tag = TagState(jnp.where(passes, caught.argmax(), tag.it), tag.passed | passes)
    value = params.extra.tag_value
    tagger = jnp.where(passes, value, 0.0) - jnp.where(hunts, params.extra.it_cost, 0.0)
    reward = jnp.where(agents == act.agent, tagger, 0.0) - jnp.where(caught, value, 0.0)
    return draw(world, state.replace(extra=tag)), reward


def upkeep(
    world: GridWorld, key: Key, state: GridState, params: GridParams
) -> tuple[GridState, Array]:
    """A new turn begins; tag never ends by itself."""
    return state.replace(extra=state.extra.replace(passed=jnp.asarray(False))), jnp.asarray(False)


def draw(world: GridWorld, state: GridState) -> GridState:
    """Shows everybody who is it."""
    is_it = jnp.arange(world.num_agents) == state.extra.it
    return world.draw_agents(state, jnp.where(is_it, world.index["It"], world.index["Agent"]))
