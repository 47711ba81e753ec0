"""Networks of actor-critic methods: a distribution over actions, and a value; of grids Q, too."""

import functools
import itertools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.core.types import Array
from worldloom.nn.distributions import Categorical, DiagonalGaussian, Distribution
from worldloom.nn.layers import ACTIVATIONS
from worldloom.nn.networks import concatenate
from worldloom.nn.values import NOT_ALLOWED

COLOURS = 10  # of grid cells
SMALL_GRID = 36  # cells, up to which a convolution is one matrix


def orthogonal(scale: float) -> nn.initializers.Initializer:
    """Random orthogonal rows or columns, whichever are fewer, times `scale`.

    flax's own, but for the random numbers, which take three times as long to compile there.
    """

    def init(key, shape, dtype=jnp.float32):
        rows, columns = math.prod(shape[:-1]), shape[-1]
        q, r = jnp.linalg.qr(draws.normal(key, (max(rows, columns), min(rows, columns))))
        q = q * jnp.sign(jnp.diagonal(r))  # without it the draw would not be uniform
        return scale * (q if rows >= columns else q.T).reshape(shape).astype(dtype)

    return init


def dense(features: int, scale: float = math.sqrt(2.0), name: str | None = None) -> nn.Dense:
    """A layer with orthogonal weights of gain `scale`, and a bias of 0."""
    return nn.Dense(features, kernel_init=orthogonal(scale), name=name)


class ActorCritic(nn.Module):
    """Layers of `hidden` widths over a flattened observation, for one array of inputs.

    Exactly one of `num_actions` (a `Categorical`) and `action_size` (a `DiagonalGaussian` whose
    log_std is a parameter of its own) is given. Policy and value have a torso each, unless
    `shared_torso`. The policy starts near its neutral point: the last layer is small.
    """

    num_actions: int | None = None
    action_size: int | None = None
    hidden: tuple[int, ...] = (64, 64)
    value_hidden: tuple[int, ...] | None = None  # like `hidden` where not given
    shared_torso: bool = False
    activation: str = "tanh"
    initial_log_std: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if (self.num_actions is None) == (self.action_size is None):
            raise ValueError(
                f"ActorCritic: num_actions={self.num_actions} and action_size={self.action_size}; "
                "give num_actions for a discrete choice or action_size for a vector, not both"
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"ActorCritic: activation={self.activation!r}; use one of {', '.join(ACTIVATIONS)}"
            )
        if self.shared_torso and self.value_hidden is not None:
            raise ValueError("ActorCritic: a shared torso has no value_hidden of its own")

    def _torso(self, x: Array, widths: tuple[int, ...], name: str) -> Array:
        for i, width in enumerate(widths):
            x = ACTIVATIONS[self.activation](dense(width, name=f"{name}_{i}")(x))
        return x

    @nn.compact
    def __call__(
        self, obs: Array, mask: Array | None = None, critic_obs: Array | None = None
    ) -> tuple[Distribution, Array]:
        """The policy and the value (B,) for obs (B, ...).

        mask (B, num_actions): which actions are allowed. critic_obs (B, ...): what the value
        alone may see, in the place of obs.
        """
        x = concatenate(obs)
        if self.shared_torso:
            if critic_obs is not None:
                raise ValueError("ActorCritic: critic_obs needs torsos apart: shared_torso=False")
            h = v = self._torso(x, self.hidden, "torso")
        else:
            h = self._torso(x, self.hidden, "policy")
            widths = self.hidden if self.value_hidden is None else self.value_hidden
            v = self._torso(x if critic_obs is None else concatenate(critic_obs), widths, "value")
        value = dense(1, 1.0, "value")(v)[:, 0]
        return self._distribution(h, mask), value

    def _distribution(self, h: Array, mask: Array | None = None) -> Distribution:
        """The policy (B,), from the last hidden layer."""
        if self.num_actions is not None:
            return Categorical(dense(self.num_actions, 0.01, "policy")(h), mask)
        assert self.action_size is not None
        if mask is not None:
            raise ValueError("ActorCritic: a mask is for discrete actions")
        mean = dense(self.action_size, 0.01, "policy")(h)
        constant = nn.initializers.constant(self.initial_log_std)
        log_std = self.param("log_std", constant, (self.action_size,))
        return DiagonalGaussian(mean, jnp.broadcast_to(log_std, mean.shape))


# Grids -----------------------------------------------------------------------------------------


class GridInputs(NamedTuple):
    """What a network that edits grids sees, of B worlds. Cells outside of a grid's area are 0."""

    grid: Array  # integers (B, H, W): the working grid
    size: Array  # int32 (B, 2): height and width of its area, at the top left
    input: Array
    input_size: Array
    clipboard: Array
    clipboard_size: Array
    features: Array  # float32 (B, F): the share of steps used, and whatever else matters
    operation_mask: Array  # bool (B, N)


def inside(size: Array, shape: tuple[int, int]) -> Array:
    """Which cells (B, H, W) of a canvas of `shape` lie in areas of `size` (B, 2)."""
    rows, columns = jnp.arange(shape[0]), jnp.arange(shape[1])
    high, wide = size[:, 0, None] > rows, size[:, 1, None] > columns
    return high[:, :, None] & wide[:, None, :]


def point_action_mask(
    operation_mask: Array,
    size: Array,
    shape: tuple[int, int],
    anywhere: tuple[int, ...] = (),
    nowhere: tuple[int, ...] = (),
) -> Array:
    """Which flat actions op * H * W + r * W + c make sense, (B, N * H * W).

    operation_mask (B, N); size (B, 2): an operation is offered at the cells of the area. Those
    in `anywhere` (such as a resize) are offered on the whole canvas, and those in `nowhere`
    (such as a submission), which do the same wherever they point, at the first cell alone.
    """
    operations = jnp.arange(operation_mask.shape[-1])
    area = inside(size, shape).reshape(size.shape[0], 1, -1)
    first = jnp.arange(math.prod(shape)) == 0
    cells = area | jnp.isin(operations, jnp.asarray(anywhere, jnp.int32))[:, None]
    cells = jnp.where(jnp.isin(operations, jnp.asarray(nowhere, jnp.int32))[:, None], first, cells)
    return (operation_mask[:, :, None] & cells).reshape(size.shape[0], -1)


@functools.cache
def _neighbours(height: int, width: int) -> np.ndarray:
    """1 where cell p is neighbour n of cell q: (cells p, cells q, 9)."""
    is_neighbour = np.zeros((height, width, height, width, 3, 3), np.float32)
    for r, c, i, j in itertools.product(range(height), range(width), range(3), range(3)):
        row, column = r + i - 1, c + j - 1
        if 0 <= row < height and 0 <= column < width:
            is_neighbour[row, column, r, c, i, j] = 1.0
    return is_neighbour.reshape(height * width, height * width, 9)


class Convolution(nn.Module):
    """3 x 3, zeros beyond the edge: (B, H, W, C) to (B, H, W, features).

    Small grids are multiplied with the convolution's whole matrix, cells by cells. That is more
    work than XLA's own convolution, which is faster alone but slow inside of a compiled loop: with
    it, PPO's update on 5 x 5 cells took 5 to 8 times as long on a CPU.
    """

    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        batch, height, width, channels = x.shape
        shape = (3, 3, channels, self.features)
        kernel = self.param("kernel", orthogonal(math.sqrt(2.0)), shape)
        if height * width <= SMALL_GRID:
            cells = height * width
            matrix = jnp.einsum(
                "pqn,nio->piqo", _neighbours(height, width), kernel.reshape(9, channels, -1)
            ).reshape(cells * channels, cells * self.features)
            y = (x.reshape(batch, -1) @ matrix).reshape(batch, height, width, self.features)
        else:
            y = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        if self.use_bias:
            y = y + self.param("bias", nn.initializers.zeros, (self.features,))
        return y


def one_hot_cells(inputs: GridInputs) -> Array:
    """Working grid, input and clipboard as one-hot colours, and two flags: float32 (B, H, W, 32).

    Cells outside of a grid's area have no colour. The flags: in the working grid's area, and
    whether its colour differs from the input's.
    """
    _, height, width = inputs.grid.shape
    shape = (height, width)
    area = inside(inputs.size, shape)
    layers = [
        (inputs.grid, area),
        (inputs.input, inside(inputs.input_size, shape)),
        (inputs.clipboard, inside(inputs.clipboard_size, shape)),
    ]
    planes = [
        (cells[..., None] == jnp.arange(COLOURS)) & there[..., None] for cells, there in layers
    ]
    differs = (inputs.grid != inputs.input)[..., None]
    return jnp.concatenate([*planes, area[..., None], differs], axis=-1).astype(jnp.float32)


class GridNetwork(nn.Module):
    """What networks that choose an operation and a cell to point at share, and their sizes.

    Cells: `one_hot_cells`, and `convolutions` 3 x 3 layers of `channels` over them, the first with
    a bias for each position.
    Context: two dense layers over all cells, which can tell grids apart that no neighbourhood
    can, and what they say to each cell, added to that cell's channels. `anywhere` and `nowhere`
    are those of `point_action_mask`.
    """

    num_operations: int
    shape: tuple[int, int]
    channels: int = 16
    convolutions: int = 2
    context: int = 128
    anywhere: tuple[int, ...] = ()
    nowhere: tuple[int, ...] = ()

    def _features(self, inputs: GridInputs) -> tuple[Array, Array]:
        """Of each cell (B, H, W, channels), and of the whole (B, context)."""
        batch, (height, width) = inputs.grid.shape[0], self.shape
        if inputs.grid.shape[1:] != self.shape:
            raise ValueError(
                f"{type(self).__name__}: made for grids of {self.shape}, got "
                f"{inputs.grid.shape[1:]}; give it the canvas of the worlds as its shape"
            )
        pixels = one_hot_cells(inputs)
        x = pixels
        for i in range(self.convolutions):
            layer = Convolution(self.channels, use_bias=i > 0, name=f"convolution_{i}")
            x = layer(x)
            if i == 0:
                zeros = nn.initializers.zeros
                x = x + self.param("position", zeros, (height, width, self.channels))
            x = nn.relu(x)

        everything = jnp.concatenate([pixels.reshape(batch, -1), inputs.features], axis=-1)
        h = nn.relu(dense(self.context, name="context_0")(everything))
        h = nn.relu(dense(self.context, name="context_1")(h))
        broadcast = dense(height * width * self.channels, name="tell")(h)
        return nn.relu(x + broadcast.reshape(batch, height, width, -1)), h

    def _actions(self, cells: Array, name: str) -> Array:
        """A number for each flat action, (B, N * H * W), small at first."""
        batch = cells.shape[0]
        rows = cells.reshape(-1, self.channels)  # a matrix is faster than a stack of rows
        each = dense(self.num_operations, 0.01, name)(rows)
        return each.reshape(batch, -1, self.num_operations).swapaxes(1, 2).reshape(batch, -1)

    def _value(self, cells: Array, context: Array) -> Array:
        """(B,)"""
        pooled = jnp.concatenate([context, cells.mean(axis=(1, 2))], axis=-1)
        return dense(1, 1.0, "value")(pooled)[:, 0]

    def _mask(self, inputs: GridInputs) -> Array:
        return point_action_mask(
            inputs.operation_mask, inputs.size, self.shape, self.anywhere, self.nowhere
        )


class GridActorCritic(GridNetwork):
    """A policy over flat actions on a grid, and the value."""

    @nn.compact
    def __call__(self, inputs: GridInputs) -> tuple[Categorical, Array]:
        """The policy over N * H * W actions, and the value (B,)."""
        cells, context = self._features(inputs)
        logits = self._actions(cells, "policy")
        return Categorical(logits, self._mask(inputs)), self._value(cells, context)


class GridQValues(GridNetwork):
    """Values of flat actions on a grid: that of the whole, and what each action adds to it."""

    @nn.compact
    def __call__(self, inputs: GridInputs) -> Array:
        """Values (B, N * H * W), `NOT_ALLOWED` where the mask forbids an action."""
        cells, context = self._features(inputs)
        values = self._actions(cells, "advantage") + self._value(cells, context)[:, None]
        return jnp.where(self._mask(inputs), values, NOT_ALLOWED)
