"""Gridworlds as integer layers and a table of kinds.

A world is data: kinds of things (`Kind`), a map for each layer, and how many agents live in it.
Layer 0 is the floor; the top layer holds what agents meet: walls, items, each other. Walking
into a cell pays the value of what stands there, whether or not the move succeeds. Rules that
the table cannot say are three optional functions: `setup`, `interact` and `upkeep`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import EnvSpec, TurnOrder
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import apply_in_order, first_step, step_by_turn
from worldloom.core.types import Array, Key, PyTree, TimeStep

MOVES = ("up", "down", "left", "right")
_OFFSETS = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)


@dataclass(frozen=True)
class Kind:
    """One kind of thing. Kind 0 of a world is its empty cell.

    `becomes` names what a thing of this kind may turn into by itself at the end of a turn, with
    the chance of each per turn.
    """

    name: str
    glyph: str
    color: tuple[int, int, int]
    value: float = 0.0
    passable: bool = True
    becomes: tuple[tuple[str, float], ...] = ()


@struct.dataclass
class GridParams:
    """The numbers of a world, traced, so that they can be swept with vmap."""

    value: Array  # (K,) reward for walking into each kind
    rate: Array  # (R,) chance of each spontaneous change, in the order of GridWorld.changes
    extra: PyTree = ()  # numbers that a world's own rules need


@struct.dataclass
class GridState:
    layers: Array  # (L, H, W) int8 kinds
    position: Array  # (A, 2) int32 row and column
    extra: PyTree = ()  # what a world's own rules must remember


# interact(world, key, state, i, action, target, met, params) -> (state, rewards (A,))
#   after agent i moved (or failed to): `target` (2,) is the cell it wanted, `met` the kind there
Interact = Callable[..., tuple[GridState, Array]]


@dataclass(frozen=True)
class GridWorld:
    """A turn-based world over integer layers. See `worldloom.envs.grid.treasurehunt`."""

    name: str
    kinds: tuple[Kind, ...]
    maps: tuple[tuple[str, ...], ...]  # per layer, rows of glyphs; floor first
    num_agents: int
    radius: int | None = 2  # None: the whole map
    turn_order: TurnOrder = "interleaved"
    view: Literal["onehot", "rgb"] = "onehot"
    actions: tuple[str, ...] = MOVES  # the first four move; `interact` gives meaning to others
    agent: str = "Agent"
    outside: str = "Wall"
    channels: tuple[str, ...] = ()  # kinds with a channel of their own; all kinds by default
    unseen: tuple[str, ...] = ()  # kinds whose channel stays zero
    setup: Callable[..., GridState] | None = None  # (world, key, state, params) -> state
    interact: Interact | None = None
    upkeep: Callable[..., tuple[GridState, Array]] | None = None
    extra_params: Callable[[], PyTree] = field(default=tuple)

    def __post_init__(self):
        self._check_kinds()
        shapes = {(len(rows), len(row)) for rows in self.maps for row in rows}
        if len(shapes) != 1:
            raise ValueError(
                f"{self.name}: the maps have rows of sizes {sorted(shapes)}; every layer must be "
                "a rectangle of one size"
            )
        glyphs = {kind.glyph for kind in self.kinds}
        unknown = sorted({g for rows in self.maps for row in rows for g in row} - glyphs)
        if unknown:
            raise ValueError(f"{self.name}: no kind has the glyph {unknown[0]!r} used in a map")
        if self.turn_order not in ("interleaved", "simultaneous"):
            raise ValueError(
                f"{self.name}: turn_order={self.turn_order!r}; use 'interleaved' or 'simultaneous'"
            )
        if self.view not in ("onehot", "rgb"):
            raise ValueError(f"{self.name}: view={self.view!r}; use 'onehot' or 'rgb'")
        if self.radius is not None and self.radius < 1:
            raise ValueError(f"{self.name}: radius={self.radius}; use at least 1, or None")
        room = len(self.start_cells)
        if not 1 <= self.num_agents <= room:
            height, width = self.shape
            raise ValueError(
                f"{self.name}: num_agents={self.num_agents} does not fit the {room} free cells "
                f"of a {height}x{width} world; use 1 to {room} or a larger world"
            )

    def _check_kinds(self):
        names = [kind.name for kind in self.kinds]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.name}: two kinds share a name in {names}")
        glyphs = [kind.glyph for kind in self.kinds]
        if any(len(g) != 1 for g in glyphs) or len(set(glyphs)) != len(glyphs):
            raise ValueError(f"{self.name}: each kind needs a glyph of its own, got {glyphs}")
        targets = [target for kind in self.kinds for target, _ in kind.becomes]
        for name in (self.agent, self.outside, *self.channels, *self.unseen, *targets):
            if name not in names:
                raise ValueError(f"{self.name}: there is no kind {name!r} among {names}")
        for kind in self.kinds:
            total = sum(rate for _, rate in kind.becomes)
            if not 0 <= total <= 1 or any(rate < 0 for _, rate in kind.becomes):
                raise ValueError(
                    f"{self.name}: the chances of {kind.name} turning into something add up to "
                    f"{total:g}; they must be chances between 0 and 1"
                )

    # Static facts ------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.maps[0]), len(self.maps[0][0])

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
        return np.argwhere(self.start_layers[-1] == 0).astype(np.int32)

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
        return tuple(
            layer
            for layer in range(len(self.maps))
            if sources
            & (set(np.unique(self.start_layers[layer])) | ({0} if layer == top else set()))
        )

    @cached_property
    def channel_kinds(self) -> np.ndarray:
        """(C,) the kind that lights each channel of a one-hot view, -1 for a dead channel."""
        names = self.channels or tuple(kind.name for kind in self.kinds)
        return np.array([-1 if n in self.unseen else self.index[n] for n in names], np.int8)

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        channels = 3 if self.view == "rgb" else len(self.channel_kinds)
        if self.radius is None:
            return (channels + 1, *self.shape)
        side = 2 * self.radius + 1
        return channels, side, side

    @cached_property
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
        place_key, setup_key, change_key = jax.random.split(key, 3)
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

    def observe_agent(self, state: GridState, i: Array, params: GridParams) -> Array:
        """What agent `i` sees, `frame_shape`; own cell in the middle, never rotated."""
        from worldloom.envs.grid import views

        return views.frame(self, state, i)

    def apply_agent(
        self, key: Key, state: GridState, i: Array, action: Array, params: GridParams
    ) -> tuple[GridState, Array]:
        here = state.position[i]
        target = here + self._offset(action)
        met = self._kind_at(state, target)
        moves = action < 4
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
            state, more = self.interact(self, key, state, i, action, target, met, params)
            reward = reward + more
        return state, reward

    def apply_all(
        self, key: Key, state: GridState, action: Array, params: GridParams
    ) -> tuple[GridState, Array]:
        if self.turn_order == "interleaved":
            return apply_in_order(self, key, state, action, params)
        here = state.position
        target = here + jax.vmap(self._offset)(action)
        met = jax.vmap(self._kind_at, (None, 0))(state, target)
        moves = action < 4
        same = (target[:, None] == target[None, :]).all(-1) & moves[None, :]
        contested = moves & (same.sum(axis=1) > 1)
        goes = moves & jnp.asarray(self.passable)[met] & ~contested
        # Walls cost as ever; a contested thing that could have been taken pays nothing.
        blocked = contested & jnp.asarray(self.passable)[met]
        reward = jnp.where(moves & ~blocked, self.pay(params, met), 0.0)
        there = jnp.where(goes[:, None], target, here)
        top = state.layers[-1].at[here[:, 0], here[:, 1]].set(0)
        top = top.at[there[:, 0], there[:, 1]].set(self.index[self.agent])
        state = state.replace(layers=state.layers.at[-1].set(top), position=there)
        if self.interact is None:
            return state, reward

        def one(carry, x):
            state, reward = carry
            i, k = x
            state, more = self.interact(self, k, state, i, action[i], target[i], met[i], params)
            return (state, reward + more), None

        agents = (jnp.arange(self.num_agents), jax.random.split(key, self.num_agents))
        (state, reward), _ = jax.lax.scan(one, (state, reward), agents)
        return state, reward

    def end_turn(
        self, key: Key, state: GridState, params: GridParams
    ) -> tuple[GridState, Array, Array]:
        change_key, upkeep_key = jax.random.split(key)
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

    # Pieces that worlds with rules of their own may use --------------------------------------------

    def change(self, key: Key, state: GridState, params: GridParams) -> GridState:
        """Things turn into other things by themselves: one uniform draw for each cell."""
        if not self.changing_layers:
            return state
        chances = draws.uniform(key, (len(self.changing_layers), *self.shape))
        return self.change_with(chances, state, params)

    def change_with(self, chances: Array, state: GridState, params: GridParams) -> GridState:
        """`change` for given draws in [0, 1) (changing layers, H, W)."""
        layers = state.layers
        for draw, layer in zip(chances, self.changing_layers, strict=True):
            old = new = layers[layer]
            reached = {source: jnp.float32(0.0) for source, _ in self.changes}
            for rate, (source, becomes) in zip(params.rate, self.changes, strict=True):
                low, high = reached[source], reached[source] + rate
                hit = (old == source) & (draw >= low) & (draw < high)
                new = jnp.where(hit, jnp.int8(becomes), new)
                reached[source] = high
            layers = layers.at[layer].set(new)
        return state.replace(layers=layers)

    def pay(self, params: GridParams, kind: Array) -> Array:
        """The value of a kind (...,)."""
        return jnp.where(kind[..., None] == jnp.arange(len(self.kinds)), params.value, 0.0).sum(-1)

    def write(self, layer: Array, cell: Array, kind: Array | int) -> Array:
        """A layer (H, W) with one cell changed.

        A comparison over the whole layer instead of a scatter: in a batch of worlds the
        comparison is vectorised and the scatter is a loop.
        """
        height, width = self.shape
        at = jnp.arange(height * width, dtype=jnp.int32).reshape(height, width)
        return jnp.where(at == cell[0] * width + cell[1], jnp.int8(kind), layer)

    def _offset(self, action: Array) -> Array:
        is_move = action < 4
        return jnp.where(is_move, jnp.asarray(_OFFSETS)[jnp.minimum(action, 3)], 0)

    def _kind_at(self, state: GridState, cell: Array) -> Array:
        """The kind on the top layer; off the map it is `outside`."""
        height, width = self.shape
        inside = (cell >= 0).all() & (cell[0] < height) & (cell[1] < width)
        kind = state.layers[-1, cell[0].clip(0, height - 1), cell[1].clip(0, width - 1)]
        return jnp.where(inside, kind, jnp.int8(self.index[self.outside])).astype(jnp.int32)


def bordered(height: int, width: int, wall: str, inside: str) -> tuple[str, ...]:
    """A map of `inside` with a border of `wall`."""
    if height < 3 or width < 3:
        raise ValueError(
            f"a world of {height}x{width} has no room inside its walls; use 3x3 or more"
        )
    full, row = wall * width, wall + inside * (width - 2) + wall
    return (full, *[row] * (height - 2), full)


def describe(world: GridWorld) -> dict[str, Any]:
    """A world's static facts, for tables and reports."""
    height, width = world.shape
    return {
        "name": world.name,
        "size": f"{height}x{width}",
        "agents": world.num_agents,
        "actions": list(world.actions),
        "kinds": [kind.name for kind in world.kinds],
        "turn_order": world.turn_order,
    }
