"""A policy that is told the rule by demonstrations: it sees pairs and a test input, no answer.

Colours are names, so they are first renamed by what the demonstrations do with them: the colour
that most pairs gain is 1, and so on. Each pair is read cell by cell, with the neighbours beside it
and the largest of its row and column, and becomes one vector; their mean and their largest are the
context, which the reading of the working grid is told in every layer. What can be selected is
pooled from its cells, and an operation on it is worth what that and the context say.
"""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array
from worldloom.nn.actor_critic import dense, inside
from worldloom.nn.distributions import Categorical
from worldloom.suites.arc import selectors
from worldloom.suites.arc.operations import FLOOD, UP
from worldloom.suites.arc.selectors import FIRST, NAMED, Selectable
from worldloom.suites.arc.types import Demonstrations, Observation

COLOURS = 10


class Context(NamedTuple):
    """What demonstrations say, of B tasks."""

    vector: Array  # float32 (B, context)
    names: Array  # int32 (B, 10): the colours' new names


def renaming(demos: Demonstrations, test_input: Array) -> Array:
    """New names int32 (B, 10) of the colours; 0 keeps its own.

    In the order of how many pairs gain the colour, lose it, and show it in the answer; then of how
    many cells have it, those of the test input (B, H, W) among them.
    """
    colours = jnp.arange(COLOURS)[:, None, None, None]
    before = demos.input[:, None] == colours  # (B, 10, K, H, W)
    after = demos.output[:, None] == colours
    same_size = (demos.input_size == demos.output_size).all(-1)[:, None]  # (B, 1, K)
    gained = (after & ~before).any((-1, -2)) & same_size
    lost = (before & ~after).any((-1, -2)) & same_size
    shown = after.any((-1, -2))
    cells = before.sum((-1, -2, -3)) + after.sum((-1, -2, -3))
    cells = cells + (test_input[:, None] == colours[..., 0]).sum((-1, -2))
    worth = 16.0 * gained.sum(-1) + 4.0 * lost.sum(-1) + shown.sum(-1) + cells / 4096.0
    worth = worth.at[:, 0].set(1e6)
    number = jnp.arange(COLOURS)
    more = worth[:, None, :] > worth[:, :, None]
    equal = (worth[:, None, :] == worth[:, :, None]) & (number < number[:, None])
    return (more | equal).sum(-1).astype(jnp.int32)


def _one_hot(names: Array, cells: Array, there: Array) -> Array:
    """Cells (B, H, W) as colours by their new names, float32 (B, H, W, 10)."""
    flat = jnp.take_along_axis(names, cells.reshape(cells.shape[0], -1).astype(jnp.int32), axis=1)
    same = flat.reshape(cells.shape)[..., None] == jnp.arange(COLOURS)
    return (same & there[..., None]).astype(jnp.float32)


def _turned(grid: Array, size: Array) -> list[Array]:
    """Grids (B, H, W) of sizes (B, 2) under the eight symmetries, at the top left."""
    batch, height, width = grid.shape
    row, column = jnp.arange(height)[:, None], jnp.arange(width)

    def taken(cells: Array, size: Array, rows: bool, columns: bool) -> Array:
        high, wide = size[:, 0, None, None], size[:, 1, None, None]
        r = jnp.clip(high - 1 - row if rows else row + 0 * high, 0, height - 1)
        c = jnp.clip(wide - 1 - column if columns else column + 0 * wide, 0, width - 1)
        return jnp.take_along_axis(cells.reshape(batch, -1), (r * width + c).reshape(batch, -1), 1)

    ways = [(rows, columns) for rows in (False, True) for columns in (False, True)]
    made = [taken(grid, size, *way) for way in ways]
    if height == width:
        made += [taken(grid.swapaxes(1, 2), size[:, ::-1], *way) for way in ways]
    else:
        made += [jnp.full_like(made[0], -1)] * 4
    return [cells.reshape(grid.shape) for cells in made]


def pair_cells(names: Array, before: Array, size: Array, after: Array, new_size: Array) -> Array:
    """A pair of grids cell by cell, float32 (B, H, W, 39).

    Both colours, whether the cell is in either grid, how far it is from the edges of both, and in
    which symmetries of the first grid it has the colour that it has in the second.
    """
    shape = (before.shape[1], before.shape[2])
    was, there = inside(size, shape), inside(new_size, shape)
    row, column = jnp.arange(shape[0])[:, None], jnp.arange(shape[1])
    edges = []
    for sides in (size, new_size):
        high, wide = sides[:, 0, None, None], sides[:, 1, None, None]
        for distance in (row + 0 * high, column + 0 * wide, high - 1 - row, wide - 1 - column):
            edges.append(jnp.broadcast_to(distance / 10.0, before.shape))
    like = [(cells == after) & there for cells in _turned(before, size)]
    rest = jnp.stack([was, there, (before != after) & was & there, *like, *edges], axis=-1)
    both = [_one_hot(names, before, was), _one_hot(names, after, there)]
    return jnp.concatenate([*both, rest.astype(jnp.float32)], axis=-1)


def _beside(x: Array) -> Array:
    """A fifth of the channels each from the cell, and from those above, below, left and right."""
    groups = jnp.array_split(x, 5, axis=-1)
    pad = jnp.pad
    return jnp.concatenate(
        [
            groups[0],
            pad(groups[1][:, :-1], ((0, 0), (1, 0), (0, 0), (0, 0))),
            pad(groups[2][:, 1:], ((0, 0), (0, 1), (0, 0), (0, 0))),
            pad(groups[3][:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0))),
            pad(groups[4][:, :, 1:], ((0, 0), (0, 0), (0, 1), (0, 0))),
        ],
        axis=-1,
    )


class GridReader(nn.Module):
    """Features of each cell, from those given: a convolution's reach by shifts, which cost nothing.

    told (B, n): added to the channels of every cell in every layer.
    """

    channels: int
    layers: int = 3

    @nn.compact
    def __call__(self, x: Array, told: Array | None = None) -> Array:
        batch, height, width, _ = x.shape

        def layer(x: Array, name: str) -> Array:
            y = dense(self.channels, name=name)(x.reshape(-1, x.shape[-1]))
            y = y.reshape(batch, height, width, -1)
            if told is not None:
                y = y + dense(self.channels, name=f"{name}_told")(told)[:, None, None, :]
            return nn.relu(y)

        x = layer(x, "in")
        for n in range(self.layers):
            half = x[..., : self.channels // 2]
            rows = jnp.broadcast_to(half.max(2, keepdims=True), half.shape)
            columns = jnp.broadcast_to(half.max(1, keepdims=True), half.shape)
            x = x + layer(jnp.concatenate([_beside(x), rows, columns], axis=-1), f"layer_{n}")
        return x


def _pooled(x: Array) -> Array:
    """Mean and largest over the cells: (B, 2 C)."""
    return jnp.concatenate([x.mean((1, 2)), x.max((1, 2))], axis=-1)


class DemonstrationPolicy(nn.Module):
    """A policy over object actions, and the value.

    channels: of a cell; context: of what demonstrations say; token: of what can be selected.
    """

    num_operations: int
    channels: int = 40
    context_size: int = 128
    token: int = 64

    def setup(self):
        self.pair_reader = GridReader(self.channels)
        self.state_reader = GridReader(self.channels)
        self.pair_layers = [dense(self.context_size), dense(self.context_size)]
        self.context_layer = dense(self.context_size)
        self.state_layer = dense(self.context_size)
        self.kinds = self.param("kinds", nn.initializers.normal(0.3), (NAMED + 1, self.token))
        self.token_cells = dense(self.token)
        self.token_context = dense(self.token)
        self.token_layer = dense(self.token)
        self.token_gate = dense(self.token)
        self.operation_of_token = dense(self.num_operations, 0.01)
        self.operation = dense(self.num_operations, 0.01)
        self.value = dense(1, 1.0)

    def context(self, demos: Demonstrations, test_input: Array) -> Context:
        """What the demonstrations (B, K, ...) of tasks with test inputs (B, H, W) say."""
        batch, count, height, width = demos.input.shape
        names = renaming(demos, test_input)

        def flat(x: Array) -> Array:
            return x.reshape(batch * count, *x.shape[2:])

        cells = pair_cells(
            jnp.repeat(names, count, axis=0),
            flat(demos.input),
            flat(demos.input_size),
            flat(demos.output),
            flat(demos.output_size),
        )
        # Which colour becomes which, and how alike the grids are in each symmetry.
        colours = cells.reshape(batch * count, height * width, -1)
        pairs = jnp.einsum("bpi,bpj->bij", colours[..., :10], colours[..., 10:20])
        pairs = jnp.log1p(pairs).reshape(batch * count, -1)
        area = flat(demos.output_size).prod(-1, keepdims=True) + 1e-6
        alike = colours[..., 22:31].sum(1) / area
        sizes = jnp.concatenate([flat(demos.input_size), flat(demos.output_size)], -1) / 10.0
        whole = jnp.concatenate([alike, alike > 0.999, sizes, pairs * 0.3], axis=-1)
        x = jnp.concatenate([_pooled(self.pair_reader(cells)), whole], axis=-1)
        for layer in self.pair_layers:
            x = nn.relu(layer(x))
        x = x.reshape(batch, count, -1)
        there = demos.present[..., None]
        mean = (x * there).sum(1) / jnp.maximum(there.sum(1), 1)
        both = jnp.concatenate([mean, jnp.where(there, x, 0.0).max(1)], axis=-1)
        return Context(nn.relu(self.context_layer(both)), names)

    def choose(self, obs: Observation, context: Context, steps: Array) -> tuple[Categorical, Array]:
        """The policy over N * S object actions, and the value (B,); steps (B,): share used."""
        grid, names = obs.grid, context.names
        batch, height, width = grid.shape
        found = selectors.selectable(grid.astype(jnp.int32), obs.size)
        clipboard = inside(obs.clipboard_size, (height, width))
        own = pair_cells(names, obs.input, obs.input_size, grid, obs.size)
        cells = jnp.concatenate([own, _one_hot(names, obs.clipboard, clipboard)], axis=-1)
        like = own[..., 22:31].sum((1, 2)) / jnp.maximum(obs.size.prod(-1, keepdims=True), 1)
        sizes = [obs.size, obs.input_size, obs.clipboard_size]
        numbers = [like, like > 0.999, *(size / 10.0 for size in sizes), steps[:, None]]
        told = jnp.concatenate([context.vector, *numbers], axis=-1)
        cells = self.state_reader(cells, told)
        state = nn.relu(self.state_layer(jnp.concatenate([_pooled(cells), told], axis=-1)))
        # Of a cell its features and its colour; of what can be selected, their mean.
        points = jnp.concatenate([cells, own[..., 10:20]], axis=-1).reshape(
            batch, height * width, -1
        )
        tokens = self._tokens(points, found, names)
        tokens = nn.relu(tokens + self.token_context(state)[:, None])
        tokens = nn.relu(self.token_layer(tokens)) * (1.0 + self.token_gate(state)[:, None])
        logits = self.operation_of_token(tokens) + self.operation(state)[:, None]
        logits = _by_old_names(logits, names).swapaxes(1, 2).reshape(batch, -1)
        mask = selectors.object_action_mask(
            obs.operation_mask, found.usable, obs.size, (height, width)
        )
        return Categorical(logits, mask), self.value(state)[:, 0]

    def _tokens(self, points: Array, found: Selectable, names: Array) -> Array:
        """What can be selected, (B, S, token), from features of cells (B, H W, C)."""
        batch, total, _ = points.shape
        chosen = found.cells.reshape(batch, NAMED, total).astype(jnp.float32)
        count = chosen.sum(-1, keepdims=True)
        mean = (chosen @ points) / jnp.maximum(count, 1.0)
        named = jnp.concatenate([mean, count / 20.0], axis=-1)
        single = jnp.concatenate([points, jnp.full((batch, total, 1), 0.05)], axis=-1)
        # Selectors of colours go by the colours' new names.
        kind = np.arange(NAMED)
        by_colour = (kind >= FIRST["colour"]) & (kind < FIRST["enclosed"])
        first = kind - (kind - FIRST["colour"]) % COLOURS
        renamed = first + names[:, np.where(by_colour, (kind - FIRST["colour"]) % COLOURS, 0)]
        which = jnp.where(by_colour, renamed, kind)  # (B, NAMED)
        table = (which[..., None] == kind).astype(jnp.float32) @ self.kinds[:NAMED]
        last = jnp.broadcast_to(self.kinds[NAMED], (batch, total, self.token))
        given = jnp.concatenate([named, single], axis=1)
        return self.token_cells(given) + jnp.concatenate([table, last], axis=1)

    def __call__(self, obs: Observation, steps: Array) -> tuple[Categorical, Array]:
        """The policy and the value for observations (B, ...) with demonstrations."""
        assert obs.demonstrations is not None
        return self.choose(obs, self.context(obs.demonstrations, obs.input), steps)


def _by_old_names(logits: Array, names: Array) -> Array:
    """Logits (B, S, N) of fills and floods by new names, as those of the colours themselves."""
    new = (names[:, :, None] == jnp.arange(COLOURS)).astype(jnp.float32)  # (B, old, new)

    def renamed(part: Array) -> Array:
        return jnp.einsum("bsn,bon->bso", part, new)

    fills, floods = logits[..., :FLOOD], logits[..., FLOOD:UP]
    return jnp.concatenate([renamed(fills), renamed(floods), logits[..., UP:]], axis=-1)
