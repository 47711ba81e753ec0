"""Prisoner's dilemma in the matrix: what agents have gathered decides how they play each other.

After Melting Pot's prisoners_dilemma_in_the_matrix__arena and SocialJax's pd_arena. Resources of
two kinds lie about, `Cooperate` and `Defect`, and are gathered by walking over them. The action
`interact` plays the agent on the cell ahead: each plays the mixed strategy of the shares of what it
holds, both are paid by the matrix, and both lose what they hold. Who holds nothing gets and gives
nothing. Who was met, the partner, starts anew on a starting cell at the end of the turn and cannot
act for a number of turns, drawn from `freeze_min` to `freeze_max`. Resources come back on their
sites with chance `regrowth`. Everybody sees which way an agent faces, and under it the resource of
which it holds more.

As in SocialJax the partner's freeze is drawn, whoever interacts is not frozen (its penalty of 5
turns is overwritten there before it is used), and a frozen agent can be met again. Different from
it: the map has its size, but sites and walls of its own; interactions of a turn happen in the order
of agents, where there two that meet each other in one turn are both paid twice; the view is centred
and not rotated, and shows what others hold as one of two kinds; conflicts of moves are decided by
turns, or nobody moves, not by lot. Melting Pot plays with 8 agents, freezes both for 16 frames, and
lets nobody be met who has gathered nothing.
"""

import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.grid import beams
from worldloom.suites.grid.kinds import Kind, Map, drawn
from worldloom.suites.grid.options import CommonOptions, common_options, episodic
from worldloom.suites.grid.world import Act, GridParams, GridState, GridWorld

HEIGHT, WIDTH, CORNER = 24, 25, 4
RESOURCES = ("Cooperate", "Defect")
# Rows and columns, first and last, of the sites of either resource, and of the walls inside.
SITES = {"c": ((9, 9, 14, 16), (13, 13, 11, 13)), "d": ((10, 10, 14, 16), (14, 14, 11, 13))}
WALLS = ((1, 1, 11, 11), (6, 6, 5, 6), (9, 10, 11, 11), (12, 12, 21, 22), (17, 17, 15, 16))


class DilemmaParams(struct.PyTreeNode):
    payoff: Array  # (2, 2) paid to the agent of the row: [own resource, the partner's]
    regrowth: Array  # () chance per turn of a resource on its bare site
    freeze: Array  # (2,) int32: turns without acting for who was met, least and most


class DilemmaState(struct.PyTreeNode):
    facing: Array  # (A,) int32
    held: Array  # (A, 2) int32: resources of either kind
    frozen: Array  # (A,) int32: turns left without acting
    met: Array  # (A,) bool: was met in this turn


@common_options("prisoners_dilemma", num_agents=4, radius=5, turning=False)
def world(
    common: CommonOptions,
    *,
    payoff: tuple[float, ...] = (3.0, -1.0, 5.0, 1.0),
    regrowth: float = 0.1,
    freeze_min: int = 9,
    freeze_max: int = 99,
) -> GridWorld:
    """The rules without time limit or frame stack; payoff: CC, CD, DC, DD for who acts."""
    common.check_chances(regrowth=regrowth)
    if len(payoff) != 4:
        raise ValueError(f"prisoners_dilemma: payoff={payoff}; give 4 numbers: CC, CD, DC, DD")
    if common.num_agents < 2 or not 0 <= freeze_min <= freeze_max:
        raise ValueError(
            f"prisoners_dilemma: num_agents={common.num_agents}, freeze_min={freeze_min}, "
            f"freeze_max={freeze_max}; it takes 2 agents or more, and 0 <= freeze_min <= freeze_max"
        )
    return beams.facing_world(
        common,
        kinds=(
            Kind("Sand", ",", (206, 192, 160)),
            Kind("Start", "s", (190, 176, 146)),
            Kind("CooperateSite", "c", (150, 190, 160)),
            Kind("DefectSite", "d", (200, 160, 150)),
            Kind("Cooperate", "C", (60, 170, 90)),
            Kind("Defect", "D", (214, 70, 60)),
        ),
        maps=maps(),
        actions=("interact",),
        unseen=("Empty", "Sand", "Start"),
        start_on="Start",
        setup=setup,
        interact=interact,
        upkeep=upkeep,
        can_act=lambda world, state, params: state.extra.frozen == 0,
        at_peace=lambda state: state.extra.frozen == 0,
        extra_params=lambda: DilemmaParams(
            jnp.asarray(payoff, jnp.float32).reshape(2, 2),
            jnp.float32(regrowth),
            jnp.array([freeze_min, freeze_max], jnp.int32),
        ),
    )


make = episodic(world, horizon=1000)


def maps() -> tuple[Map, ...]:
    """Floor, what agents hold (nothing), and top; starting cells are in the four corners."""

    def glyphs(row: int, column: int) -> str:
        def within(boxes):
            return any(a <= row <= b and c <= column <= d for a, b, c, d in boxes)

        edge = row in (0, HEIGHT - 1) or column in (0, WIDTH - 1)
        corner = min(row, HEIGHT - 1 - row) <= CORNER and min(column, WIDTH - 1 - column) <= CORNER
        ground = next((site for site, boxes in SITES.items() if within(boxes)), ",")
        if edge or within(WALLS):
            return "..#"
        # Resources lie on all sites at the start.
        return "s.." if corner else f"{ground}.{ground.upper() if ground in SITES else '.'}"

    return drawn(HEIGHT, WIDTH, glyphs)


def setup(world: GridWorld, key: Key, state: GridState, params: GridParams) -> GridState:
    """Nobody holds anything; everybody faces up."""
    zero = jnp.zeros((world.num_agents,), jnp.int32)
    held = jnp.zeros((world.num_agents, 2), jnp.int32)
    return state.replace(extra=DilemmaState(zero, held, zero, zero > 0))


def interact(
    world: GridWorld, key: Key, state: GridState, act: Act, params: GridParams
) -> tuple[GridState, Array]:
    """A resource walked over is held; `interact` plays the matrix with the agent ahead."""
    old, me = state.extra, jnp.arange(world.num_agents) == act.agent
    facing = beams.turn(world, old.facing, act)
    here = (state.position[act.agent] == act.target).all()
    gathered = here & (act.met == world.index["Cooperate"] + jnp.arange(2))
    held = old.held + (me[:, None] & gathered)
    ahead = beams.beam(
        world, state.position[act.agent], facing[act.agent], jnp.float32(1), jnp.float32(0)
    )
    partner = beams.hit_agents(world, state, ahead & beams.does(world, act, "interact"), act.agent)
    shares = held / jnp.maximum(held.sum(axis=1, keepdims=True), 1)
    mine = shares[act.agent]
    to_me = jnp.where(partner, shares @ params.extra.payoff.T @ mine, 0.0).sum()
    to_partner = jnp.where(partner, shares @ params.extra.payoff @ mine, 0.0)
    played = partner | (me & partner.any())
    held = jnp.where(played[:, None], 0, held)
    extra = DilemmaState(facing, held, old.frozen, old.met | partner)
    return show(world, state.replace(extra=extra)), jnp.where(me, to_me, to_partner)


def upkeep(
    world: GridWorld, key: Key, state: GridState, params: GridParams
) -> tuple[GridState, Array]:
    """Resources come back, who was met starts anew, frozen; the world never ends by itself."""
    keys, old = draws.split(key, 4), state.extra
    for resource, grow_key in zip(RESOURCES, keys, strict=False):
        state = world.grow(grow_key, state, f"{resource}Site", resource, params.extra.regrowth)
    state = beams.respawn(world, keys[2], state, old.met)
    least, most = params.extra.freeze
    turns = draws.uniform(keys[3], (world.num_agents,)) * (most - least + 1)
    frozen = jnp.where(old.met, least + turns.astype(jnp.int32), jnp.maximum(old.frozen - 1, 0))
    extra = old.replace(frozen=frozen, met=jnp.zeros_like(old.met))
    return show(world, state.replace(extra=extra)), jnp.asarray(False)


def show(world: GridWorld, state: GridState) -> GridState:
    """Agents as they face, and under each the resource of which it holds more."""
    cooperate, defect = state.extra.held.T
    kinds = jnp.where(cooperate > defect, world.index["Cooperate"], world.index["Defect"])
    kinds = jnp.where(cooperate == defect, 0, kinds)[:, None, None]
    marks = jnp.where(world.agent_cells(state), kinds, 0).max(axis=0)
    state = state.replace(layers=state.layers.at[1].set(marks.astype(jnp.int8)))
    return beams.show(world, state, state.extra.facing)
