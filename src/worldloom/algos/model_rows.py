"""Logged rows as model-based learners see them: with their past, their scales and what followed.

`make_model_table` solves what need not be learned by gradients: which part of a step is linear, and
by what limits episodes end.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.algos.offline import LinkedRows, Table, make_table
from worldloom.core.types import Array
from worldloom.replay.dataset import Dataset

ROOM = 0.1  # of a signal's logged range, by which a model may leave it
SMALLEST_STD = 1e-6  # of a signal, below which it is taken not to change
SMALLEST_VALUE = 1e-6  # singular, beside the largest: below, inputs say the same
SOLVED_ROWS = 20_000  # that fits are solved with: no more are needed for some hundred numbers
RIDGE = 0.01  # of a logistic fit, whose classes may be separable
NEVER = -1e30  # log-odds


class Scales(struct.PyTreeNode):
    """What the numbers of a table stand for: obs and next_obs of its rows are normalised."""

    obs_mean: Array  # (n,), in the plant's units
    obs_std: Array  # (n,)
    action_mean: Array  # (m,)
    action_std: Array  # (m,)
    change_std: Array  # (n,), of a normalised signal in a step; 0 if it never changes
    still: Array  # int32 (c,): inputs that never change in an episode, such as a patient's weight
    moving: Array  # int32 (v,): inputs that do
    linear: dict[str, Array]  # kernel (i + c v, n), bias (n,): the changes' least-squares fit
    remainder_std: Array  # (n,), of what that leaves; 0 where it leaves nothing
    low: Array  # (n,), normalised: how far a model may go
    high: Array  # (n,)
    reward_mean: Array  # (): what was taken off rewards, and what they were multiplied by then
    reward_scale: Array  # ()
    end: dict[str, Array]  # kernel (4 n,), bias (): log-odds that a step ends the episode

    def scale_action(self, action: Array) -> Array:
        return (action - self.action_mean) / self.action_std

    def fit(self, inputs: Array) -> Array:
        """What the least-squares fit takes to change, (B, n), for inputs (B, i)."""
        features = bilinear(inputs, self.still, self.moving)
        return features @ self.linear["kernel"] + self.linear["bias"]


class ModelRows(LinkedRows):
    """Rows with what came before them."""

    memory: Array  # (B, h)
    index: Array  # int32 (B,), in the table
    table: "ModelTable"

    @property
    def state(self) -> Array:
        """What a rollout starts from, (B, n + h)."""
        return jnp.concatenate([self.obs, self.memory], -1)

    @property
    def inputs(self) -> Array:
        """What models see, (B, i)."""
        return jnp.concatenate([self.state, self.table.scales.scale_action(self.action)], -1)


class Course(NamedTuple):
    """What the log has after the row that a rollout begins at; T steps of B rollouts."""

    inputs: Array  # (T, B, i)
    change: Array  # (T, B, n)
    known: Array  # (T, B): 1 until the logged episode ends, then 0
    goes_on: Array  # (T, B): 0 where it ran out of time, and the rollout with it


class ModelTable(Table):
    """A table whose rows know their past and their scales."""

    memory: Array  # (N, h)
    scales: Scales
    interval: int = struct.field(pytree_node=False)  # logged steps of a row

    def take(self, index: Array) -> ModelRows:
        rows = Table.take(self, index)
        return ModelRows(**vars(rows), memory=self.memory[index], index=index, table=self)

    def course(self, index: Array, length: int) -> Course:
        """The next `length` logged steps from rows of that index (B,)."""

        def one(known: Array, t: Array) -> tuple[Array, Course]:
            rows = self.take(jnp.minimum(index + self.interval * t, self.size - 1))
            goes_on = 1.0 - known * ~(rows.followed | rows.terminated)
            course = Course(rows.inputs, rows.next_obs - rows.obs, known, goes_on)
            return known * rows.followed, course

        return jax.lax.scan(one, jnp.ones(index.shape), jnp.arange(length))[1]


@partial(jax.jit, static_argnums=2)
def leaky_averages(x: Array, first: Array, constants: tuple[float, ...]) -> Array:
    """Averages (N, K d) of what came before each row of x (N, d), K time constants in steps.

    An episode, whose `first` row is marked (N,), begins as if it had been so for ever.
    """
    rates = 1.0 / jnp.asarray(constants, jnp.float32).reshape(-1, 1)

    def one(average: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        x, first = row
        average = jnp.where(first, x, average)
        return average + rates * (x - average), average

    blank = jnp.zeros((len(constants), x.shape[1]), x.dtype)
    return jax.lax.scan(one, blank, (x, first))[1].reshape(len(x), blank.size)


def windows(dataset: Dataset, interval: int) -> Dataset:
    """Rows that each span `interval` steps, or what is left of the episode: a row for every step.

    Actions and rewards are means, and the rest is what was there at the end.
    """
    rows, size = dataset.rows, dataset.size
    stops = np.append(np.asarray(dataset.starts)[1:], size) - 1
    lengths = np.diff(np.append(np.asarray(dataset.starts), size))
    last = np.minimum(np.arange(size) + interval - 1, np.repeat(stops, lengths))

    def mean(x: Array) -> Array:
        sums = np.concatenate(
            [np.zeros((1, *x.shape[1:])), np.cumsum(np.asarray(x, np.float64), 0)]
        )
        count = (last + 1 - np.arange(size)).reshape(-1, *[1] * (x.ndim - 1))
        return jnp.asarray((sums[last + 1] - sums[:-1]) / count, jnp.float32)

    ends = {name: getattr(rows, name)[last] for name in ("next_obs", "terminated", "truncated")}
    means = {name: mean(getattr(rows, name)) for name in ("action", "reward")}
    return dataset.replace(rows=rows.replace(**means, **ends))


def make_model_table(
    dataset: Dataset, history: tuple[float, ...] = (), interval: int = 1
) -> ModelTable:
    """The rows of a dataset; history: time constants, in steps, of averages of the past."""
    size, first = dataset.size, jnp.zeros(dataset.size, bool).at[dataset.starts].set(True)
    stepwise = dataset.rows.action.reshape(size, -1)
    if interval > 1:
        dataset = windows(dataset, interval)
    table, rows = make_table(dataset, centre=True), dataset.rows
    obs, next_obs = dataset.normalise(rows.obs), dataset.normalise(rows.next_obs)
    action = rows.action.reshape(size, -1)
    change_std, spread = (next_obs - obs).std(0), action.std(0)
    both = jnp.stack([jnp.minimum(obs, next_obs).min(0), jnp.maximum(obs, next_obs).max(0)])
    room = ROOM * (both[1] - both[0])
    ended = rows.terminated
    action_mean = action.mean(0)
    action_std = jnp.where(spread > SMALLEST_STD, spread, 1.0)
    scaled = [(x - action_mean) / action_std for x in (stepwise, action)]
    memory = leaky_averages(jnp.concatenate([obs, scaled[0]], -1), first, history)
    inputs = jnp.concatenate([obs, memory, scaled[1]], -1)
    moves = change_std > SMALLEST_STD
    seen = np.append(np.asarray(moves), np.ones(action.shape[1], bool))
    moving = np.concatenate([seen[: len(moves)], np.tile(seen, len(history)), seen[len(moves) :]])
    still = np.flatnonzero(~moves & (obs.std(0) > SMALLEST_STD))
    moving = np.flatnonzero(moving)
    changes = jnp.where(moves, next_obs - obs, 0.0)
    linear = least_squares(inputs, changes, still, moving)
    still, moving = jnp.asarray(still, jnp.int32), jnp.asarray(moving, jnp.int32)
    fit = jax.jit(lambda x: bilinear(x, still, moving) @ linear["kernel"] + linear["bias"])
    left = (changes - fit(inputs)).std(0)
    scales = Scales(
        obs_mean=dataset.mean,
        obs_std=dataset.std,
        action_mean=action_mean,
        action_std=action_std,
        still=still,
        moving=moving,
        change_std=jnp.where(moves, change_std, 0.0),
        linear=linear,
        remainder_std=jnp.where(moves & (left > SMALLEST_STD), left, 0.0),
        low=both[0] - room,
        high=both[1] + room,
        reward_mean=jnp.where(ended.any(), 0.0, rows.reward.mean()),  # as `make_table` centres them
        reward_scale=table.reward_scale,
        end=logistic(end_features(obs, next_obs), ended),
    )
    return ModelTable(**vars(table), memory=memory, scales=scales, interval=interval)


# Fits ------------------------------------------------------------------------------------------


def bilinear(inputs: Array, still: Array | np.ndarray, moving: Array | np.ndarray) -> Array:
    """Inputs (B, i), and beside them the products (B, c v) of those still with those moving.

    So each patient has a linear model of her own, as far as the rows tell her from others.
    """
    products = inputs[:, still, None] * inputs[:, None, moving]
    return jnp.concatenate([inputs, products.reshape(len(inputs), -1)], -1)


def least_squares(
    inputs: Array, targets: Array, still: np.ndarray, moving: np.ndarray
) -> dict[str, Array]:
    """Kernel (i + c v, n) and bias (n,) of least norm, for `bilinear` inputs and targets (N, n).

    Solved, not learned: a gradient never gets the last digits, and without them a rollout settles
    beside the target. In float64, since signals may say the same.
    """
    chosen = np.random.default_rng(0).permutation(len(inputs))[:SOLVED_ROWS]
    x = np.asarray(bilinear(inputs[chosen], still, moving), np.float64)
    y = np.asarray(targets[chosen], np.float64)
    x_mean, y_mean = x.mean(0), y.mean(0)
    x, y = x - x_mean, y - y_mean
    kernel = np.linalg.pinv(x.T @ x, rcond=SMALLEST_VALUE, hermitian=True) @ (x.T @ y)
    bias = y_mean - x_mean @ kernel
    return {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}


def end_features(obs: Array, next_obs: Array) -> Array:
    """(B, 4 n) for normalised obs and next_obs (B, n): limits on either side of each signal."""
    return jnp.concatenate([obs, next_obs, jnp.square(obs), jnp.square(next_obs)], -1)


def logistic(features: Array, labels: Array) -> dict[str, Array]:
    """Kernel (f,) and bias () of a ridge logistic regression of labels (N,) on features (N, f).

    Solved, like the linear fit: ends are rare, and a network that sees one in every few batches
    smears them over all that is near. All rows with a label count, and some of the others.
    """
    from scipy.optimize import minimize

    y = np.asarray(labels)
    if not y.any():
        return {"kernel": jnp.zeros(features.shape[1]), "bias": jnp.float32(NEVER)}
    others = np.flatnonzero(~y)
    step = max(len(others) // SOLVED_ROWS, 1)
    chosen = np.concatenate([np.flatnonzero(y), others[::step]])
    x = np.asarray(features[chosen], np.float64)
    y, weight = y[chosen].astype(np.float64), np.where(y[chosen], 1.0, step)

    def loss(beta: np.ndarray) -> tuple[float, np.ndarray]:
        odds = x @ beta[:-1] + beta[-1]
        wrong = weight * (0.5 * (1.0 + np.tanh(0.5 * odds)) - y)
        value = (weight * (np.logaddexp(0.0, odds) - y * odds)).sum() + 0.5 * RIDGE * beta @ beta
        return value, np.append(x.T @ wrong, wrong.sum()) + RIDGE * beta

    start = np.zeros(x.shape[1] + 1)
    beta = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 100}).x
    return {"kernel": jnp.asarray(beta[:-1], jnp.float32), "bias": jnp.float32(beta[-1])}
