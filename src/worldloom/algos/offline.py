"""What offline learners share: the rows they draw, one gradient step, and the table of them.

An algorithm is a frozen object of pure functions: `init(key, obs_size, action_size)` makes a
learner, `update(learner, rows, key)` moves it and tells metrics, `policy(learner, dataset)` is
what can be executed. Sizes are in its config. Numbers that may differ between learners of one
program are in the config's `hyper`, of which each learner carries a copy of its own: a batch of
learners, of seeds or of numbers, is a `jax.vmap` over learners.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows

Metrics = dict[str, Array]


# Rows ------------------------------------------------------------------------------------------


class LinkedRows(Rows):
    """Rows that know what was done after them."""

    next_action: Array  # float32 (B, m)
    followed: Array  # bool (B,): the log goes on after this row, and next_action is from it


class Table(struct.PyTreeNode):
    """A dataset as learners draw from it: one array, so that a batch is one gather.

    Observations are normalised by the data's own mean and deviation, rewards multiplied by
    `reward_scale`, and centred if that was asked for.
    """

    packed: Array  # (N, 2 n + 2 m + 4)
    reward_scale: Array  # ()
    obs_size: int = struct.field(pytree_node=False)
    action_size: int = struct.field(pytree_node=False)

    @property
    def size(self) -> int:
        return self.packed.shape[0]

    def take(self, index: Array) -> LinkedRows:
        """The rows (B,) of that index (B,)."""
        n, m = self.obs_size, self.action_size
        ends = (n, 2 * n, 2 * n + m, 2 * n + 2 * m, 2 * n + 2 * m + 1)
        obs, next_obs, action, next_action, reward, flags = jnp.split(
            self.packed[index], ends, axis=-1
        )
        terminated, truncated, followed = (flags > 0.5).T
        return LinkedRows(
            obs, action, reward[:, 0], next_obs, terminated, truncated, next_action, followed
        )


def make_table(
    dataset: Dataset,
    reward_scale: float | None = None,
    next_action: Array | None = None,
    *,
    centre: bool = False,
) -> Table:
    """The table of a dataset.

    reward_scale: None makes rewards of standard deviation 1. centre: whether they are moved to a
    mean of 0 as well, so that values need not climb for long to where they belong. That is done
    only where no row is terminated: if an episode can end early, a shift changes what is best.
    next_action (N, m): what follows each row, in place of what the log has there.
    """
    rows, size = dataset.rows, dataset.size
    if reward_scale is None:
        spread = rows.reward.std()
        scale = jnp.where(spread > 1e-6, 1.0 / jnp.maximum(spread, 1e-6), 1.0)
    else:
        scale = jnp.float32(reward_scale)
    middle = jnp.where(centre & ~rows.terminated.any(), rows.reward.mean(), 0.0)
    followed = ~(rows.terminated | rows.truncated) & (jnp.arange(size) < size - 1)
    if next_action is None:
        next_action = jnp.where(followed[:, None], jnp.roll(rows.action, -1, axis=0), 0.0)
    columns = (
        dataset.normalise(rows.obs), dataset.normalise(rows.next_obs), rows.action, next_action,
        ((rows.reward - middle) * scale)[:, None],
        jnp.stack([rows.terminated, rows.truncated, followed], -1).astype(jnp.float32),
    )  # fmt: skip
    return Table(
        jnp.concatenate(columns, axis=-1), scale, rows.obs.shape[-1], rows.action.shape[-1]
    )


# Learning --------------------------------------------------------------------------------------


class Trained(struct.PyTreeNode):
    """Weights, and what Adam remembers of their gradients."""

    params: PyTree
    opt_state: PyTree


# The learning rate is applied afterwards: it may differ between learners of one program.
ADAM = optax.scale_by_adam()


def trained(params: PyTree) -> Trained:
    """Weights before their first step."""
    return Trained(params, ADAM.init(params))


def descend(trained: Trained, grads: PyTree, rate: Array | float) -> Trained:
    """One step of Adam."""
    steps, opt_state = ADAM.update(grads, trained.opt_state)
    params = jax.tree.map(lambda p, step: p - rate * step, trained.params, steps)
    return Trained(params, opt_state)


def averaged(target: PyTree, params: PyTree, tau: Array | float) -> PyTree:
    """The target's weights, moved by the share `tau` towards those that are learned."""
    return jax.tree.map(lambda old, new: old + tau * (new - old), target, params)


def compute_gradients(
    loss: Callable[..., tuple[Array, Metrics]], params: PyTree, *args: Any
) -> tuple[PyTree, Metrics]:
    """The gradients of `loss(params, *args)`, which is a pair of the loss () and metrics."""
    grads, metrics = jax.grad(loss, has_aux=True)(params, *args)
    return grads, metrics


def compute_gradients_in_parts(
    parts: int, loss: Callable[..., tuple[Array, Metrics]], params: PyTree, *rows: PyTree
) -> tuple[PyTree, Metrics]:
    """As `compute_gradients`, of a loss and metrics that are means over rows (B, ...).

    Part after part, of which there are `parts` if that divides B: what a network makes of
    thousands of rows would not stay in a CPU's caches on its way back.
    """
    size = jax.tree.leaves(rows)[0].shape[0]
    parts = math.gcd(parts, size)

    def split(leaf: Array) -> Array:
        # Every parts-th row, so that rows that are spread over devices stay so in each part.
        return jnp.moveaxis(leaf.reshape(size // parts, parts, *leaf.shape[1:]), 1, 0)

    def one(total: PyTree, rows: PyTree) -> tuple[PyTree, Metrics]:
        grads, metrics = compute_gradients(loss, params, *rows)
        return jax.tree.map(jnp.add, total, grads), metrics

    start = jax.tree.map(jnp.zeros_like, params)
    total, metrics = jax.lax.scan(one, start, jax.tree.map(split, rows))
    return jax.tree.map(lambda x: x / parts, total), jax.tree.map(lambda x: x.mean(0), metrics)


def bootstrapped(rows: Rows, gamma: Array | float, next_value: Array) -> Array:
    """What a row is worth, (B,): nothing follows a terminated one, a truncated one goes on."""
    return rows.reward + gamma * jnp.where(rows.terminated, 0.0, next_value)


class Updates(Protocol):
    """What learns from rows: a policy, or what one is worth."""

    @property
    def config(self) -> Any: ...
    @property
    def period(self) -> int:
        """After so many updates the same things are done again; 1 where all are alike."""
        ...

    def init(self, key: Key, obs_size: int, action_size: int, hyper: Any = None) -> Any:
        """A learner; `hyper` in place of the config's."""
        ...

    def update(
        self, learner: Any, rows: LinkedRows, key: Key, turn: int | None = None
    ) -> tuple[Any, Metrics]:
        """One update; `turn` is its number modulo `period`, if the program knows it."""
        ...


class Algorithm(Updates, Protocol):
    """One of `OFFLINE`."""

    def policy(self, learner: Any, dataset: Dataset) -> PolicyState: ...


def training_step(
    algorithm: Updates,
    learner: PyTree,
    table: Table,
    key: Key,
    *,
    batch_size: int = 256,
    turn: int | None = None,
    spread: Callable[[Array], Array] = lambda index: index,
) -> tuple[PyTree, Metrics]:
    """One update from rows drawn at random; `spread` may lay their index over devices."""
    index_key, update_key = draws.split(key)
    index = spread(draws.integers(index_key, (batch_size,), table.size))
    return algorithm.update(learner, table.take(index), update_key, turn)


# Settings --------------------------------------------------------------------------------------

Hyper = TypeVar("Hyper")


def as_arrays(hyper: Hyper) -> Hyper:
    """The numbers as float32, for a learner to carry."""
    return jax.tree.map(jnp.float32, hyper)


def check_numbers(
    name: str,
    hyper: Any,
    *,
    positive: tuple[str, ...] = (),
    at_least_0: tuple[str, ...] = (),
    shares: tuple[str, ...] = (),
) -> None:
    """Raises ValueError if one of an algorithm's numbers is out of its range."""
    for names, fits, words in (
        (positive, lambda x: 0.0 < x < float("inf"), "be positive"),
        (at_least_0, lambda x: 0.0 <= x < float("inf"), "be 0 or more"),
        (shares, lambda x: 0.0 <= x <= 1.0, "be in [0, 1]"),
    ):
        for field in names:
            value = getattr(hyper, field)
            if not fits(value):
                raise ValueError(f"{name}: {field}={value}; it must {words}")


def check_sizes(name: str, config: Any, *sizes: str) -> None:
    """Raises ValueError unless `hidden` and the other sizes are 1 or more."""
    if not config.hidden or min(config.hidden) < 1:
        raise ValueError(f"{name}: hidden={config.hidden}; name one layer of width 1 at least")
    for field in sizes:
        if getattr(config, field) < 1:
            raise ValueError(f"{name}: {field}={getattr(config, field)}; it must be at least 1")


class _Algorithms(Mapping[str, type]):
    """Classes by name, imported on access: their files import this one."""

    _classes: Mapping[str, str] = {
        "bc": "BC", "td3bc": "TD3BC", "iql": "IQL", "cql": "CQL", "rebrac": "ReBRAC",
        "edac": "EDAC",
    }  # fmt: skip

    def __getitem__(self, name: str) -> type:
        kind = self._classes[name]
        return getattr(importlib.import_module(f"worldloom.algos.{name}"), kind)

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


OFFLINE: Mapping[str, Any] = _Algorithms()
"""Offline algorithms by name: `OFFLINE["iql"]()`, or with a config of its own."""
