"""Offline epochs: updates from a logged dataset that lies on the device, many in one program.

Pure functions of an `OfflineState` for any algorithm of `worldloom.algos.offline`. The data are an
argument of the compiled program, never a constant in it. A batch of seeds, or of the algorithm's
numbers, is one program as well: every leaf of the learner has a leading axis then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from worldloom.algos.offline import Algorithm, Metrics, Table, training_step
from worldloom.core import draws, stack
from worldloom.core.mesh import BATCH_AXIS, replicate, to_host
from worldloom.core.types import Array, Key, PyTree
from worldloom.track.sinks import JsonLines
from worldloom.train.programs import Jitted, Repeated


class OfflineState(struct.PyTreeNode):
    """A whole offline run as one pytree: what is checkpointed. S seeds have learners (S, ...)."""

    learner: PyTree
    key: Key  # () or (S,)
    epoch: Array


class OfflineMetrics(struct.PyTreeNode):
    """Of one epoch; with a leading axis of epochs, in numpy, on the host."""

    learned: Mapping[str, Array]  # means over its updates, () or (S,) each
    finite: Array  # (): those and all weights are


@dataclass(frozen=True)
class Offline:
    """The offline loop of one algorithm, as pure functions.

    An epoch is `updates_per_epoch` updates from `batch_size` rows each. `mesh` spreads the rows of
    a batch over devices, which then learn the same from all of them; the data are on each.
    """

    algorithm: Algorithm
    batch_size: int = 256
    updates_per_epoch: int = 1000
    mesh: Mesh | None = None

    def __post_init__(self):
        period = self.algorithm.period
        if self.batch_size < 1:
            raise ValueError(f"offline: batch_size={self.batch_size}; it must be at least 1")
        if self.updates_per_epoch < 1 or self.updates_per_epoch % period:
            raise ValueError(
                f"offline: updates_per_epoch={self.updates_per_epoch}; "
                f"it must be a multiple of {period}, after which the algorithm repeats itself"
            )
        if self.mesh is not None and self.batch_size % self.mesh.devices.size:
            raise ValueError(
                f"offline: batch_size={self.batch_size} cannot be shared by "
                f"{self.mesh.devices.size} devices; use a multiple of that"
            )

    def init(self, key: Key, table: Table, hyper: PyTree = None) -> OfflineState:
        """A run before its first epoch; `hyper` in place of the algorithm's own numbers."""
        run_key, learner_key = jax.random.split(key)
        learner = self.algorithm.init(learner_key, table.obs_size, table.action_size, hyper)
        return OfflineState(learner, run_key, jnp.int32(0))

    def init_many(self, keys: Key, table: Table, hypers: PyTree = None) -> OfflineState:
        """S runs with keys (S,), and with numbers (S,) each if `hypers` are given."""
        axes = (0, None if hypers is None else 0)
        runs = jax.vmap(lambda key, hyper: self.init(key, table, hyper), axes)(keys, hypers)
        return runs.replace(epoch=jnp.int32(0))

    def epoch(self, run: OfflineState, table: Table) -> tuple[OfflineState, OfflineMetrics]:
        """One epoch, to be compiled as one program.

        Its random choices hang on the run's key and its number alone.
        """

        def learn(learner: PyTree, key: Key) -> tuple[PyTree, Metrics]:
            return self._learn(learner, jax.random.fold_in(key, run.epoch), table)

        if run.key.ndim:
            learn = jax.vmap(learn)
        learner, learned = learn(run.learner, run.key)
        sound = [
            jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((learner, learned))
            if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]  # fmt: skip
        run = OfflineState(learner, run.key, run.epoch + 1)
        metrics = OfflineMetrics(learned, jnp.stack(sound).all())
        if self.mesh is None:
            return run, metrics
        # Said aloud: the next call must find what this one left where it expects it.
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        return jax.lax.with_sharding_constraint((run, metrics), everywhere)

    def _learn(self, learner: PyTree, key: Key, table: Table) -> tuple[PyTree, Metrics]:
        period = self.algorithm.period
        keys = draws.split(key, self.updates_per_epoch).reshape(-1, period)

        def one_round(learner: PyTree, keys: Key) -> tuple[PyTree, Metrics]:
            told = []
            for turn in range(period):
                learner, metrics = training_step(
                    self.algorithm, learner, table, keys[turn],
                    batch_size=self.batch_size, turn=turn, spread=self._spread,
                )  # fmt: skip
                told.append(metrics)
            return learner, jax.tree.map(lambda x: x.mean(0), stack.stack(told))

        learner, told = jax.lax.scan(one_round, learner, keys)
        return learner, jax.tree.map(lambda x: x.mean(0), told)

    def _spread(self, index: Array) -> Array:
        if self.mesh is None:
            return index
        return jax.lax.with_sharding_constraint(
            index, NamedSharding(self.mesh, PartitionSpec(BATCH_AXIS))
        )


class OfflineTrainer:
    """An `OfflineState` and the program that advances it, for the chunk driver.

    seed: one run, or S of them in one program. hyper: the algorithm's numbers in place of those of
    its config, with leaves (S,) where there are S seeds. chunk: the most epochs in one call.
    """

    def __init__(
        self,
        loop: Offline,
        table: Table,
        seed: int | Sequence[int] = 0,
        chunk: int = 1,
        hyper: PyTree = None,
    ):
        self.loop = loop
        self.table = table if loop.mesh is None else replicate(table, loop.mesh)
        self._epochs = Repeated(loop.epoch, chunk)
        many = not isinstance(seed, int)
        start = Jitted(loop.init_many if many else loop.init)
        keys = stack.stack([jax.random.key(s) for s in seed]) if many else jax.random.key(seed)
        self.run: OfflineState = self._placed(start(keys, table, hyper))
        self._start_seconds = start.compile_seconds

    def _placed(self, run: OfflineState) -> OfflineState:
        return run if self.loop.mesh is None else replicate(run, self.loop.mesh)

    @property
    def epoch(self) -> int:
        return int(self.run.epoch)

    @property
    def updates(self) -> int:
        return self.epoch * self.loop.updates_per_epoch

    @property
    def compile_seconds(self) -> float:
        return self._start_seconds + self._epochs.compile_seconds

    def advance(self, epochs: int) -> OfflineMetrics:
        self.run, metrics = self._epochs(self.run, epochs, self.table)
        return metrics

    def agents(self) -> PyTree:
        return to_host(self.run.learner)

    def state(self) -> OfflineState:
        return to_host(self.run)

    def load(self, state: OfflineState) -> None:
        self.run = self._placed(state)


class EpochTables:
    """metrics.jsonl with a row for each epoch; of S seeds, each metric is a list of S."""

    def __init__(self, folder: Path, epoch: int, updates_per_epoch: int):
        self._updates = updates_per_epoch
        self._metrics = JsonLines(Path(folder) / "metrics.jsonl", epoch, "epoch")

    def write(
        self, metrics: OfflineMetrics, first: int, start: float, end: float
    ) -> list[dict[str, Any]]:
        count = len(metrics.finite)
        rows = []
        for n in range(count):
            row: dict[str, Any] = {"epoch": first + n, "updates": (first + n + 1) * self._updates}
            row |= {name: values[n].tolist() for name, values in metrics.learned.items()}
            row["seconds"] = round(start + (end - start) * (n + 1) / count, 4)
            self._metrics.write(row)
            rows.append(row)
        return rows

    def close(self) -> None:
        self._metrics.close()
