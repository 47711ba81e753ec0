"""Gridworlds as integer layers and a table of kinds.

A world is data: kinds of things (`Kind`), a map for each layer, and how many agents live in it.
Layer 0 is the floor; the top layer holds what agents meet: walls, items, each other. Walking
into a cell pays the value of what stands there, whether or not the move succeeds. Rules that
the table cannot say are four optional functions, the hooks:

    setup(world, key, state, params) -> state
        once, after the agents were placed; lays out things and fills `state.extra`
    interact(world, key, state, act, params) -> (state, rewards (A,))
        after the agent of an `Act` moved or failed to. With simultaneous turns all agents move
        first, then each interacts, in agent order.
    upkeep(world, key, state, params) -> (state, terminated ())
        at the end of a turn, after spontaneous changes
    can_act(world, state, params) -> (A,) bool
        which agents may act now; whatever the others choose does nothing

A world in which agents can harm each other says with `at_peace(state) -> (A,) bool` whom nobody
harmed in the turn that led to a state: evaluation counts them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws
from worldloom.core.checks import check_fields
from worldloom.core.lazy import lazy
from worldloom.core.protocols import EnvSpec, TurnOrder
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import apply_in_order, first_step, step_by_turn
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.suites.grid import views
from worldloom.suites.grid.kinds import Kind, Map, check_kinds, check_maps, check_solid

MOVES = ("up", "down", "left", "right")
OFFSETS = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)
NO_ACTION = -1


class GridParams(struct.PyTreeNode):
    """The numbers of a world, traced, so that they can be swept with vmap."""

    value: Array  # (K,) reward for walking into each kind
    rate: Array  # (R,) chance of each spontaneous change, in the order of GridWorld.changes
    extra: PyTree = ()  # numbers that a world's own rules need


class GridState(struct.PyTreeNode):
    layers: Array  # (L, H, W) int8 kinds
    position: Array  # (A, 2) int32 row and column
    extra: PyTree = ()  # what a world's own rules must remember


class Act(struct.PyTreeNode):
    """What one agent did, for `interact`."""

    agent: Array | int  # () int32
    action: Array  # () int32
    target: Array  # (2,) int32: the cell it wanted; its own cell if the action is no move
    met: Array  # () int32: the kind that stood there before the move


@dataclass(frozen=True)
class GridWorld:
    """A turn-based world over integer layers. See `worldloom.suites.grid.treasurehunt`."""

    name: str
    kinds: tuple[Kind, ...]
    maps: tuple[Map, ...]  # one for each layer; floor first
    num_agents: int
    radius: int | None = 2  # None: the whole map
    turn_order: TurnOrder = "interleaved"
    view: Literal["onehot", "rgb"] = "onehot"
    actions: tuple[str, ...] = MOVES  # the first four move; `interact` gives meaning to others
    agent: str = "Agent"
    outside: str = "Wall"
    channels: tuple[str, ...] = ()  # kinds with a channel of their own; all kinds by default
    unseen: tuple[str, ...] = ()  # kinds whose channel stays zero
    start_on: str = ""  # the kind of floor on which agents start; "" for any empty cell
    setup: Callable[..., GridState] | None = None
    interact: Callable[..., tuple[GridState, Array]] | None = None
    upkeep: Callable[..., tuple[GridState, Array]] | None = None
    can_act: Callable[..., Array] | None = None
    at_peace: Callable[[GridState], Array] | None = None
    extra_params: Callable[[], PyTree] = field(default=tuple)

    def __post_init__(self):
        mentioned = (self.agent, self.outside, *self.channels, *self.unseen)
        mentioned += (self.start_on,) if self.start_on else ()
        check_kinds(self.name, self.kinds, mentioned)
        for role in ("agent", "outside"):
            check_solid(self.name, role, self.kinds[self.index[getattr(self, role)]])
        check_maps(self.name, self.kinds, self.maps)
        if (self.start_layers == self.index[self.agent]).any():
            raise ValueError(
                f"{self.name}: a map shows the kind {self.agent!r}; leave agents out of maps, they "
                "start on random empty cells"
            )
        if any(self.index[self.agent] in change for change in self.changes):
            raise ValueError(
                f"{self.name}: {self.agent!r} is part of a spontaneous change; agents neither "
                "appear nor vanish by themselves, name another kind in `becomes`"
            )
        if self.actions[:4] != MOVES:
            raise ValueError(
                f"{self.name}: actions={self.actions}; the first four must be {MOVES}, "
                "actions of the world's own come after them"
            )
        choices = {"turn_order": ("interleaved", "simultaneous"), "view": ("onehot", "rgb")}
        check_fields(self.name, self, at_least={"radius": 1}, choices=choices)
        room = len(self.start_cells)
        if not 1 <= self.num_agents <= room:
            height, width = self.shape
            raise ValueError(
                f"{self.name}: num_agents={self.num_agents} does not fit the {room} free cells "
                f"of a {height}x{width} world; use 1 to {room} or a larger world"
            )

    # Static facts ------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.maps[0]), len(self.maps[0][0])

    @property
    def renderers(self) -> Mapping[str, Callable[[GridState, GridParams], Any]]:
        """How to draw a state, by the names that Gymnasium gives to the ways of drawing."""
        return {"rgb_array": partial(lazy("worldloom.suites.grid.render:pixels"), self)}

    @cached_property
    def index(self) -> dict[str, int]:
        """The number of each kind."""
        return {kind.name: i for i, kind in enumerate(self.kinds)}

    @cached_property
    def start_layers(self) -> np.ndarray:
        """(L, H, W) int8: the maps as numbers."""
        number = {kind.glyph: i for i, kind in enumerate(self.kinds)}
        return np.array([[[number[g] for g in row] for row in rows] for rows in self.maps], np.int8)

    @cached_property
    def start_cells(self) -> np.ndarray:
        """(cells, 2): where agents may start, the empty cells of the top layer."""
        floor, top = self.start_layers[0], self.start_layers[-1]
        ground = floor == self.index[self.start_on] if self.start_on else True
        return np.argwhere((top == 0) & ground).astype(np.int32)

    @cached_property
    def passable(self) -> np.ndarray:
        return np.array([kind.passable for kind in self.kinds])

    @cached_property
    def changes(self) -> tuple[tuple[int, int], ...]:
        """(from, to) kinds of every spontaneous change; GridParams.rate has their chances."""
        return tuple(
            (i, self.index[to]) for i, kind in enumerate(self.kinds) for to, _ in kind.becomes
        )

    @cached_property
    def changing_layers(self) -> tuple[int, ...]:
        """Layers on which something could ever change by itself; the others need no draws."""
        sources = {source for source, _ in self.changes}
        top = len(self.maps) - 1
        # A hook may bring any kind to any layer; without hooks only agents move, on the top one.
        hooks = self.setup or self.interact or self.upkeep
        layers = []
        for layer, start in enumerate(self.start_layers):
            kinds = set(range(len(self.kinds))) if hooks else set(np.unique(start)) | {0}
            if sources & (kinds if layer == top else kinds - {0}):
                layers.append(layer)
        return tuple(layers)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """The kind that each channel of a one-hot view is for."""
        return self.channels or tuple(kind.name for kind in self.kinds)

    @cached_property
    def channel_kinds(self) -> np.ndarray:
        """(C,) the kind that lights each channel of a one-hot view, -1 for a dead channel."""
        numbers = [-1 if n in self.unseen else self.index[n] for n in self.channel_names]
        return np.array(numbers, np.int8)

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        channels = 3 if self.view == "rgb" else len(self.channel_kinds)
        if self.radius is None:
            return (channels + 1, *self.shape)
        side = 2 * self.radius + 1
        return channels, side, side

    @property
    def spec(self) -> EnvSpec:
        onehot = self.view == "onehot"
        high, dtype = (len(self.maps), "uint8") if onehot else (1.0, "float32")
        return EnvSpec(
            name=self.name,
            observation=Box(0, high, self.frame_shape, dtype),
            action=Discrete(len(self.actions)),
            num_agents=self.num_agents,
            turn_order=self.turn_order,
        )

    def default_params(self) -> GridParams:
        return GridParams(
            value=jnp.array([kind.value for kind in self.kinds], jnp.float32),
            rate=jnp.array([rate for kind in self.kinds for _, rate in kind.becomes], jnp.float32),
            extra=self.extra_params(),
        )

    # The turn ----------------------------------------------------------------------------------

    def reset(self, key: Key, params: GridParams) -> tuple[GridState, TimeStep]:
        """Agents on distinct free cells, then the world's first move of its own."""
        place_key, setup_key, change_key = draws.split(key, 3)
        cells = jnp.asarray(self.start_cells)
        # The cells of the A largest draws: sampling without replacement.
        _, chosen = jax.lax.top_k(draws.uniform(place_key, (len(cells),)), self.num_agents)
        position = cells[chosen]
        layers = jnp.asarray(self.start_layers)
        layers = layers.at[-1, position[:, 0], position[:, 1]].set(self.index[self.agent])
        state = GridState(layers, position)
        if self.setup is not None:
            state = self.setup(self, setup_key, state, params)
        state = self.change(change_key, state, params)
        return state, first_step(self, state, params)

    def observe_agent(self, state: GridState, i: Array | int, params: GridParams) -> Array:
        """What agent `i` sees, `frame_shape`; own cell in the middle, never rotated."""
        return views.frame(self, state, i)

    def apply_agent(
        self, key: Key, state: GridState, i: Array | int, action: Array, params: GridParams
    ) -> tuple[GridState, Array]:
        """Agent `i` takes `action`; rewards (A,). A number that is no action does nothing."""
        if self.can_act is not None:
            action = jnp.where(self.can_act(self, state, params)[i], action, NO_ACTION)
        here = state.position[i]
        target = here + self._offset(action)
        met = self._kind_at(state, target)
        moves = _is_move(action)
        goes = moves & jnp.asarray(self.passable)[met]
        paid = jnp.where(moves, self.pay(params, met), 0.0)
        there = jnp.where(goes, target, here)
        top = self.write(state.layers[-1], here, 0)
        top = self.write(top, there, self.index[self.agent])
        state = state.replace(
            layers=state.layers.at[-1].set(top),
            position=jnp.where((jnp.arange(self.num_agents) == i)[:, None], there, state.position),
        )
        reward = jnp.where(jnp.arange(self.num_agents) == i, paid, 0.0)
        if self.interact is not None:
            act = Act(i, action, target, met)
            state, more = self.interact(self, key, state, act, params)
            reward = reward + more
        return state, reward

    def apply_all(
        self, key: Key, state: GridState, action: Array, params: GridParams
    ) -> tuple[GridState, Array]:
        """All agents take their `action` (A,); rewards (A,).

        Simultaneous moves fail into a cell that somebody stood on when the turn began, a swap
        among them, and into a cell that two or more want. An item that two want stays and pays
        nobody; walls cost as ever.
        """
        if self.turn_order == "interleaved":
            return apply_in_order(self, key, state, action, params)
        if self.can_act is not None:
            action = jnp.where(self.can_act(self, state, params), action, NO_ACTION)
        here = state.position
        target = here + jax.vmap(self._offset)(action)
        met = jax.vmap(self._kind_at, (None, 0))(state, target)
        moves = _is_move(action)
        same = (target[:, None] == target[None, :]).all(-1) & moves[None, :]
        contested = moves & (same.sum(axis=1) > 1)
        goes = moves & jnp.asarray(self.passable)[met] & ~contested
        blocked = contested & jnp.asarray(self.passable)[met]
        reward = jnp.where(moves & ~blocked, self.pay(params, met), 0.0)
        there = jnp.where(goes[:, None], target, here)
        top = state.layers[-1].at[here[:, 0], here[:, 1]].set(0)
        top = top.at[there[:, 0], there[:, 1]].set(self.index[self.agent])
        state = state.replace(layers=state.layers.at[-1].set(top), position=there)
        interact = self.interact
        if interact is None:
            return state, reward

        def one(carry, x):
            (state, reward), (act, k) = carry, x
            state, more = interact(self, k, state, act, params)
            return (state, reward + more), None

        acts = Act(jnp.arange(self.num_agents), action, target, met)
        keys = draws.split(key, self.num_agents)
        (state, reward), _ = jax.lax.scan(one, (state, reward), (acts, keys))
        return state, reward

    def end_turn(
        self, key: Key, state: GridState, params: GridParams
    ) -> tuple[GridState, Array, Array]:
        """The world's own move: spontaneous changes, then `upkeep`."""
        change_key, upkeep_key = draws.split(key)
        state = self.change(change_key, state, params)
        terminated = jnp.asarray(False)
        if self.upkeep is not None:
            state, terminated = self.upkeep(self, upkeep_key, state, params)
        return state, terminated, jnp.asarray(False)

    def step(
        self, key: Key, state: GridState, action: Array, params: GridParams
    ) -> tuple[GridState, TimeStep]:
        """All actions (A,) at once; with interleaved turns they are applied in agent order."""
        return step_by_turn(self, key, state, action, params)

    # Pieces that worlds with rules of their own may use ----------------------------------------

    def change(self, key: Key, state: GridState, params: GridParams) -> GridState:
        """Things turn into other things by themselves: one uniform draw for each cell."""
        if not self.changing_layers:
            return state
        chances = draws.uniform(key, (len(self.changing_layers), *self.shape))
        return self.change_with(chances, state, params)

    def change_with(self, chances: Array, state: GridState, params: GridParams) -> GridState:
        """`change` for given draws in [0, 1) (changing layers, H, W)."""
        layers, top = state.layers, len(self.maps) - 1
        for draw, layer in zip(chances, self.changing_layers, strict=True):
            old = new = layers[layer]
            reached = {source: jnp.float32(0.0) for source, _ in self.changes}
            for rate, (source, becomes) in zip(params.rate, self.changes, strict=True):
                if source == 0 and layer != top:
                    continue
                low, high = reached[source], reached[source] + rate
                hit = (old == source) & (draw >= low) & (draw < high)
                new = jnp.where(hit, jnp.int8(becomes), new)
                reached[source] = high
            layers = layers.at[layer].set(new)
        return state.replace(layers=layers)

    def grow(self, key: Key, state: GridState, site: str, kind: str, chance: Array) -> GridState:
        """Lets `kind` appear on empty cells whose floor is `site`; chance () or (H, W)."""
        bare = (state.layers[0] == self.index[site]) & (state.layers[-1] == 0)
        grown = bare & (draws.uniform(key, self.shape) < chance)
        top = jnp.where(grown, jnp.int8(self.index[kind]), state.layers[-1])
        return state.replace(layers=state.layers.at[-1].set(top))

    def pay(self, params: GridParams, kind: Array) -> Array:
        """The value of a kind (...,)."""
        return jnp.where(kind[..., None] == jnp.arange(len(self.kinds)), params.value, 0.0).sum(-1)

    def write(self, layer: Array, cell: Array, kind: Array | int) -> Array:
        """A layer (H, W) with one cell changed.

        A comparison over the whole layer instead of a scatter: in a batch of worlds the
        comparison is vectorised and the scatter is a loop.
        """
        return jnp.where(self._at(cell), jnp.int8(kind), layer)

    def draw_agents(self, state: GridState, kinds: Array) -> GridState:
        """The agents drawn as `kinds` (A,), for worlds whose agents do not all look the same.

        A move draws an agent as `agent`, so such a world calls this in `setup` and `interact`.
        """
        drawn = jnp.where(self.agent_cells(state), kinds[:, None, None], -1).max(axis=0)
        top = jnp.where(drawn >= 0, drawn.astype(jnp.int8), state.layers[-1])
        return state.replace(layers=state.layers.at[-1].set(top))

    def agent_cells(self, state: GridState) -> Array:
        """(A, H, W) bool: true in the cell of each agent."""
        return jax.vmap(self._at)(state.position)

    def _at(self, cell: Array) -> Array:
        """(H, W): true in one cell."""
        height, width = self.shape
        number = jnp.arange(height * width, dtype=jnp.int32).reshape(height, width)
        return number == cell[0] * width + cell[1]

    def _offset(self, action: Array) -> Array:
        return jnp.where(_is_move(action), jnp.asarray(OFFSETS)[action.clip(0, 3)], 0)

    def _kind_at(self, state: GridState, cell: Array) -> Array:
        """The kind on the top layer; off the map it is `outside`."""
        height, width = self.shape
        inside = (cell >= 0).all() & (cell[0] < height) & (cell[1] < width)
        kind = state.layers[-1, cell[0].clip(0, height - 1), cell[1].clip(0, width - 1)]
        return jnp.where(inside, kind, jnp.int8(self.index[self.outside])).astype(jnp.int32)


def _is_move(action: Array) -> Array:
    return (action >= 0) & (action < len(MOVES))
