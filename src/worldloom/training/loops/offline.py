"""Offline updates: learning from a logged dataset that lies on the device, many in one program.

Pure functions of a `RunState` for any algorithm of `worldloom.algos` whose loop is offline. The
data are an argument of the compiled program, never a constant in it. A batch of seeds, or of the
algorithm's numbers, is one program as well: every leaf of the learner has a leading axis then.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from worldloom.algos.offline import OfflineAgent, Table, training_steps
from worldloom.core.checks import check_fields
from worldloom.core.mesh import BATCH_AXIS, replicate, share_of
from worldloom.core.types import Array, Key, PyTree, RunState
from worldloom.nn.networks import concatenate
from worldloom.nn.policy import policy_step
from worldloom.replay.dataset import Dataset
from worldloom.training.loops.summary import is_finite
from worldloom.training.trainer import Loop


@dataclass(frozen=True)
class OfflineLoop(Loop):
    """The offline loop of one algorithm, as pure functions.

    An iteration is `updates_per_iteration` updates from `batch_size` rows each. `mesh` spreads the
    rows of a batch over devices, which do together what one does alone: where means are over the
    batch, the compiler puts in what adds up those of all. The data are on each of them.
    """

    agent: OfflineAgent
    batch_size: int = 256
    updates_per_iteration: int = 1000
    mesh: Mesh | None = None
    dataset: Dataset | None = field(default=None, compare=False)  # whose scales policies carry
    encode: Callable[[PyTree], Array] = concatenate
    num_agents: int = 1  # of a turn-based world, who all follow the one policy

    def __post_init__(self):
        period = self.agent.period
        check_fields("offline", self, at_least={"batch_size": 1})
        if self.updates_per_iteration < 1 or self.updates_per_iteration % period:
            raise ValueError(
                f"offline: updates_per_iteration={self.updates_per_iteration}; it must be a "
                f"multiple of {period}, the algorithm's update period"
            )
        share_of(self.batch_size, "batch_size", self.mesh)
        if self.mesh is not None and not self.agent.shares_batches:
            raise ValueError(
                f"{type(self.agent).__name__} trains on one device: its models draw rows of their "
                "own from a whole batch"
            )

    @property
    def steps_per_iteration(self) -> int:
        return self.updates_per_iteration

    def place(self, tree: PyTree, what: str) -> PyTree:
        return tree if self.mesh is None else replicate(tree, self.mesh)

    def init(self, key: Key, table: Table, hyper: PyTree = None) -> RunState:
        """A run before its first iteration; `hyper` in place of the algorithm's own numbers."""
        run_key, learner_key = jax.random.split(key)
        learner = self.agent.init(learner_key, table.obs_size, table.action_size, hyper)
        return RunState(learner, (), (), run_key, jnp.int32(0))

    def init_many(self, keys: Key, table: Table, hypers: PyTree = None) -> RunState:
        """S runs with keys (S,), and with numbers (S,) each if `hypers` are given."""
        axes = (0, None if hypers is None else 0)
        runs = jax.vmap(lambda key, hyper: self.init(key, table, hyper), axes)(keys, hypers)
        return runs.replace(iteration=jnp.int32(0))

    def agents(self, run: RunState) -> PyTree:
        """The policy of the learner, with the scales of its data."""
        if self.dataset is None:
            return run.learner
        policy = self.agent.policy(run.learner, self.dataset)
        if self.num_agents == 1:
            return policy
        return jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[None], self.num_agents, 0), policy)

    def act(self, policy: PyTree, obs: PyTree, key: Key, *, explore: Array | float) -> Array:
        """Deterministic actions for obs (B, ...): vectors (B, m) in [-1, 1], or choices (B,)."""
        return policy_step(policy, self.encode(obs))

    def iterate(self, run: RunState, table: Table) -> tuple[RunState, dict[str, Array]]:
        """One iteration, to be compiled as one program.

        Its random choices hang on the run's key and its number alone.
        """

        def learn(learner: PyTree, key: Key) -> tuple[PyTree, dict[str, Array]]:
            return training_steps(
                self.agent,
                learner,
                table,
                jax.random.fold_in(key, run.iteration),
                updates=self.updates_per_iteration,
                batch_size=self.batch_size,
                spread=self._spread,
            )

        if run.key.ndim:
            learn = jax.vmap(learn)
        learner, learned = learn(run.learner, run.key)
        run = run.replace(learner=learner, iteration=run.iteration + 1)
        result = run, learned | {"finite": is_finite((learner, learned))}
        if self.mesh is None:
            return result
        # Said aloud: the next call must find what this one left where it expects it.
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        return jax.lax.with_sharding_constraint(result, everywhere)

    def _spread(self, index: Array) -> Array:
        if self.mesh is None:
            return index
        return jax.lax.with_sharding_constraint(
            index, NamedSharding(self.mesh, PartitionSpec(BATCH_AXIS))
        )
