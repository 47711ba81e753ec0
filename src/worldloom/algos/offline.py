"""What offline learners share: the rows they draw, their options, the loop of `fit`.

An algorithm is a frozen object of pure functions: `init(key, obs_size, action_size)` makes a
learner, `update(learner, rows, key)` moves it and returns metrics, `policy(learner, dataset)` is
what can be executed. Sizes are in its config. Numbers that may differ between learners of one
program are in the config's `hyper`, of which each learner carries a copy of its own: a batch of
learners, of seeds or of numbers, is a `jax.vmap` over learners.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos.actor_critic import Metrics
from worldloom.algos.config import Config, at_least, fraction, positive
from worldloom.algos.learned_policy import LearnedPolicy
from worldloom.core import draws, stack
from worldloom.core.checks import check_seed
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.policy import PolicyState
from worldloom.replay import dataset_files
from worldloom.replay.dataset import Dataset, Rows

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
    action = rows.action.reshape(size, -1)  # a log of choices may have (N,)
    if reward_scale is None:
        spread = rows.reward.std()
        scale = jnp.where(spread > 1e-6, 1.0 / jnp.maximum(spread, 1e-6), 1.0)
    else:
        scale = jnp.float32(reward_scale)
    middle = jnp.where(centre & ~rows.terminated.any(), rows.reward.mean(), 0.0)
    followed = ~(rows.terminated | rows.truncated) & (jnp.arange(size) < size - 1)
    if next_action is None:
        next_action = jnp.where(followed[:, None], jnp.roll(action, -1, axis=0), 0.0)
    columns = (
        dataset.normalise(rows.obs),
        dataset.normalise(rows.next_obs),
        action,
        next_action,
        ((rows.reward - middle) * scale)[:, None],
        jnp.stack([rows.terminated, rows.truncated, followed], -1).astype(jnp.float32),
    )
    return Table(jnp.concatenate(columns, axis=-1), scale, rows.obs.shape[-1], action.shape[-1])


def bootstrapped(rows: Rows, gamma: Array | float, next_value: Array) -> Array:
    """What a row is worth, (B,): nothing follows a terminated one, a truncated one goes on."""
    return rows.reward + gamma * jnp.where(rows.terminated, 0.0, next_value)


# Options and numbers ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(Config):
    """Options of every offline algorithm.

    hidden: widths of the layers of all networks. An iteration is `updates_per_iteration` updates
    from `batch_size` rows each.
    """

    hidden: tuple[int, ...] = at_least(1, (256, 256))
    batch_size: int = at_least(1, 256)
    updates_per_iteration: int = at_least(1, 1000)


class ActorCriticHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program."""

    actor_rate: float = positive(3e-4)
    critic_rate: float = positive(3e-4)
    gamma: float = fraction(0.99)
    tau: float = fraction(0.005)


class OfflineLearner(struct.PyTreeNode):
    """What every offline learner carries beside its networks."""

    hyper: Any
    step: Array


# Learning --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfflineLearning:
    """Something that learns from rows, a policy or what one is worth, as pure functions.

    period: update period, e.g. TD3's policy delay; 1 where all updates are alike.
    shares_batches: whether several devices can have some rows of each batch.
    """

    config: Any
    period = 1
    shares_batches: ClassVar[bool] = True
    learner: ClassVar[type[OfflineLearner]]

    def networks(self, key: Key, obs_size: int, action_size: int) -> dict[str, Any]:
        """The fields of a fresh learner that are learned."""
        raise NotImplementedError

    def init(self, key: Key, obs_size: int, action_size: int, hyper: Any = None) -> Any:
        """A fresh learner for obs (B, obs_size) and actions (B, action_size).

        hyper: in place of the config's.
        """
        numbers = jax.tree.map(jnp.float32, hyper or self.config.hyper)
        networks = self.networks(key, obs_size, action_size)
        return self.learner(**networks, hyper=numbers, step=jnp.int32(0))

    def update(
        self, learner: Any, rows: Any, key: Key, turn: int | None = None
    ) -> tuple[Any, Metrics]:
        """One update on rows (B, ...); `turn` is its number modulo `period`, if known."""
        raise NotImplementedError


def training_step(
    agent: OfflineLearning,
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
    return agent.update(learner, table.take(index), update_key, turn)


def training_steps(
    agent: OfflineLearning,
    learner: PyTree,
    table: Table,
    key: Key,
    *,
    updates: int,
    batch_size: int = 256,
    spread: Callable[[Array], Array] = lambda index: index,
) -> tuple[PyTree, Metrics]:
    """A multiple of `period` updates in one scan, and the means of their metrics."""
    keys = draws.split(key, updates).reshape(-1, agent.period)

    def one_period(learner: PyTree, keys: Key) -> tuple[PyTree, Metrics]:
        metrics = []
        for turn in range(agent.period):
            learner, one = training_step(
                agent, learner, table, keys[turn], batch_size=batch_size, turn=turn, spread=spread
            )
            metrics.append(one)
        return learner, jax.tree.map(lambda x: x.mean(0), stack.stack(metrics))

    learner, metrics = jax.lax.scan(one_period, learner, keys)
    return learner, jax.tree.map(lambda x: x.mean(0), metrics)


@functools.partial(jax.jit, static_argnames=("agent", "updates"), donate_argnames="learner")
def _iteration(
    agent: "OfflineAgent", learner: PyTree, table: Table, key: Key, number: Array, updates: int
) -> tuple[PyTree, Metrics]:
    key, size = jax.random.fold_in(key, number), agent.config.batch_size
    return training_steps(agent, learner, table, key, updates=updates, batch_size=size)


@dataclass(frozen=True)
class OfflineAgent(OfflineLearning):
    """An offline algorithm as pure functions, and `fit`, which runs them."""

    @classmethod
    def make(cls, config: Any, spec: Any = None, networks: Any = None) -> Self:
        """The agent, with what it takes from the world of `spec`, if there is one."""
        return cls(config, **({} if spec is None else cls.from_spec(spec)))

    @classmethod
    def from_spec(cls, spec: Any) -> dict[str, Any]:
        """Fields that depend on the world; none by default."""
        return {}

    def table(self, dataset: Dataset) -> Table:
        """What rows are drawn from."""
        return make_table(dataset, centre=True)

    def policy(self, learner: Any, dataset: Dataset) -> PolicyState:
        """Deterministic policy, with the scales of its data."""
        raise NotImplementedError

    def fit(
        self,
        dataset: Dataset | str | Path,
        updates: int,
        *,
        seed: int = 0,
        report: Callable[[int, dict[str, float]], None] = lambda done, metrics: None,
    ) -> LearnedPolicy:
        """Learns from a dataset, or from an npz file of one, in so many updates.

        report(done, metrics): called after each iteration with the updates done and mean metrics.
        """
        check_seed(seed)
        if updates < 1 or updates % self.period:
            raise ValueError(
                f"{self.config.name}: updates={updates}; it must be a positive multiple of "
                f"{self.period}, the update period"
            )
        data = dataset if isinstance(dataset, Dataset) else dataset_files.load(dataset)
        table = self.table(data)
        run_key, learner_key = jax.random.split(jax.random.key(seed))
        # Compiled for its outputs: each in a buffer of its own, which can be donated.
        start = jax.jit(lambda key: self.init(key, table.obs_size, table.action_size))
        learner = start(learner_key)
        each = max(self.config.updates_per_iteration // self.period, 1) * self.period
        for number, done in enumerate(range(0, updates, each)):
            count = min(each, updates - done)
            learner, metrics = _iteration(self, learner, table, run_key, number, count)
            report(done + count, {name: float(x) for name, x in metrics.items()})
        return LearnedPolicy(self, self.policy(learner, data), table.action_size)
