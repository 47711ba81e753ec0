"""On-policy unrolls: play a stretch in every world, learn from it, forget it.

Pure functions of an `UpdateState` for any world of one agent; PPO does the playing and the
learning. The world's params are an argument of the compiled program, never a constant in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh, PartitionSpec

from worldloom.algos.ppo import PPO, PPOMetrics, PPOState
from worldloom.core import draws
from worldloom.core.mesh import BATCH_AXIS, place, replicate, to_host
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import autoreset_batch, episode_stats
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.track.sinks import JsonLines
from worldloom.train.programs import Jitted, Repeated

PRIOR_KEY = 5_000_011  # what learns beside the policy draws from keys of its own


class UpdateState(struct.PyTreeNode):
    """A whole on-policy run as one pytree: what is checkpointed."""

    learner: PPOState
    worlds: PyTree
    timestep: TimeStep  # where the next unroll starts
    key: Key
    update: Array
    prior: PyTree = ()


class UpdateMetrics(struct.PyTreeNode):
    """What an update came to: () each; with a leading axis of updates, in numpy, on the host.

    Means are over the episodes that ended during the unroll, and NaN if none did.
    """

    episodes: Array
    episode_return: Array
    episode_length: Array
    outcomes: Mapping[str, Array]
    learned: PPOMetrics
    finite: Array  # rewards and all that was learned are, and not every minibatch was skipped


class Prior(Protocol):
    """Something that learns beside the policy, and pays it for how it does what it does."""

    def init(self, key: Key) -> PyTree: ...
    def reward(self, state: PyTree, steps: TimeStep, reward: Array) -> Array:
        """The rewards (T, B) that the policy learns from, given those of the world."""
        ...

    def update(
        self, state: PyTree, steps: TimeStep, key: Key
    ) -> tuple[PyTree, Mapping[str, Array]]: ...


@dataclass(frozen=True)
class OnPolicy:
    """The on-policy loop of one world and PPO, as pure functions.

    `outcomes(info)` names what to average over ended episodes beside return and length: from the
    world's infos (T, B) to arrays (T, B), of which the values at an episode's end count. `mesh`
    spreads the worlds over devices, which then learn the same from all.
    """

    env: PureEnv  # one world, whose episodes end
    ppo: PPO
    outcomes: Callable[[PyTree], Mapping[str, Array]] = lambda info: {}
    prior: Prior | None = None
    mesh: Mesh | None = None

    def __post_init__(self):
        if self.mesh is None:
            return
        worlds, devices = self.ppo.config.num_worlds, self.mesh.devices.size
        if worlds % devices:
            raise ValueError(
                f"num_worlds={worlds} cannot be shared by {devices} devices; use a multiple of that"
            )

    def _worlds(self, count: int) -> PureEnv:
        return episode_stats(autoreset_batch(self.env, count))

    @cached_property
    def worlds(self) -> PureEnv:
        """Those of one device."""
        devices = 1 if self.mesh is None else self.mesh.devices.size
        return self._worlds(self.ppo.config.num_worlds // devices)

    @property
    def steps_per_update(self) -> int:
        return self.ppo.config.num_worlds * self.ppo.config.unroll_length

    def init(self, key: Key, params: PyTree) -> UpdateState:
        """A run before its first update, the same on any number of devices."""
        run_key, learner_key, world_key = jax.random.split(key, 3)
        worlds, timestep = self._worlds(self.ppo.config.num_worlds).reset(world_key, params)
        learner = self.ppo.init(learner_key, timestep.obs)
        prior = () if self.prior is None else self.prior.init(jax.random.fold_in(key, PRIOR_KEY))
        return UpdateState(learner, worlds, timestep, run_key, jnp.int32(0), prior)

    def update(self, run: UpdateState, params: PyTree) -> tuple[UpdateState, UpdateMetrics]:
        """One unroll and what is learned from it, to be compiled as one program.

        Its random choices hang on the run's key and its number alone.
        """
        if self.mesh is None:
            return self._update(run, params)
        everywhere = PartitionSpec()
        return jax.shard_map(
            self._update,
            mesh=self.mesh,
            in_specs=(spread_over(self.mesh), everywhere),
            out_specs=(spread_over(self.mesh), everywhere),
            check_vma=False,  # loops over chosen worlds differ in length between devices
        )(run, params)

    def _update(self, run: UpdateState, params: PyTree) -> tuple[UpdateState, UpdateMetrics]:
        ppo, prior = self.ppo, self.prior
        key = jax.random.fold_in(run.key, run.update)
        if ppo.axis_name is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(ppo.axis_name))
        play_key, learn_key = draws.split(key)
        worlds, timestep, rollout, steps = ppo.rollout(
            self.worlds, run.learner, run.worlds, run.timestep, params, play_key
        )
        prior_state, learned_prior = run.prior, {}
        if prior is not None:
            # By what it knew when this was played: a judge that learns from it first is lenient.
            reward = prior.reward(run.prior, steps, rollout.reward)
            rollout = rollout.replace(reward=reward)
            prior_key = jax.random.fold_in(key, PRIOR_KEY)
            prior_state, learned_prior = prior.update(run.prior, steps, prior_key)
        learner, learned = ppo.update(run.learner, rollout, learn_key)
        seen = self._summary(steps)
        weights = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(learner.params)]
        minibatches = ppo.config.num_epochs * ppo.config.num_minibatches
        sound = jnp.stack(weights).all() & (learned.skipped < minibatches)
        finite = seen.pop("finite") & sound
        seen["outcomes"] |= learned_prior
        run = UpdateState(learner, worlds, timestep, run.key, run.update + 1, prior_state)
        return run, UpdateMetrics(**seen, learned=learned, finite=finite)

    def _summary(self, steps: TimeStep) -> dict[str, Any]:
        ended = steps.terminated | steps.truncated

        def total(values: Array) -> Array:
            values = values.sum()
            if self.ppo.axis_name is None:
                return values
            return jax.lax.psum(values, self.ppo.axis_name)

        count = total(ended.astype(jnp.int32))

        def mean(values: Array) -> Array:
            # Divided by 0, where nothing ended, it is NaN.
            return total(jnp.where(ended, values, 0.0)) / count

        return {
            "episodes": count,
            "episode_return": mean(steps.info.last_return),
            "episode_length": mean(steps.info.last_length),
            "outcomes": {n: mean(x) for n, x in self.outcomes(steps.info.inner).items()},
            "finite": total((~jnp.isfinite(steps.reward)).astype(jnp.int32)) == 0,
        }


def spread_over(mesh: Mesh) -> UpdateState:
    """How a run lies on devices: the worlds are spread, what is learned is everywhere."""
    spread: Any = PartitionSpec(BATCH_AXIS)
    everywhere: Any = PartitionSpec()
    return UpdateState(everywhere, spread, spread, everywhere, everywhere, everywhere)


class OnPolicyTrainer:
    """An `UpdateState` and the program that advances it, for the chunk driver."""

    def __init__(
        self,
        loop: OnPolicy,
        params: PyTree,
        seed: int,
        chunk: int,
        compiler_options: dict[str, Any] | None = None,
    ):
        self.loop = loop
        self.params = params if loop.mesh is None else replicate(params, loop.mesh)
        self._updates = Repeated(loop.update, chunk, compiler_options)
        start = Jitted(loop.init)
        self.run: UpdateState = self._spread(start(jax.random.key(seed), params))
        self._start_seconds = start.compile_seconds

    def _spread(self, run: UpdateState) -> UpdateState:
        mesh = self.loop.mesh
        if mesh is None:
            return run
        return place(run, mesh, spread_over(mesh))

    @property
    def epoch(self) -> int:
        return int(self.run.update)

    @property
    def compile_seconds(self) -> float:
        return self._start_seconds + self._updates.compile_seconds

    def advance(self, epochs: int) -> UpdateMetrics:
        self.run, metrics = self._updates(self.run, epochs, self.params)
        return metrics

    def agents(self) -> PPOState:
        # On the host: on several devices, whatever it is used in would be a program on all of them.
        return jax.tree.map(np.asarray, to_host(self.run.learner))

    def state(self) -> UpdateState:
        return to_host(self.run)

    def load(self, state: UpdateState) -> None:
        self.run = self._spread(state)


class UpdateTables:
    """metrics.jsonl with a row for each update."""

    def __init__(self, folder: Path, update: int, steps_per_update: int):
        self._steps = steps_per_update
        self._metrics = JsonLines(Path(folder) / "metrics.jsonl", update, "update")

    def write(
        self, metrics: UpdateMetrics, first: int, start: float, end: float
    ) -> list[dict[str, Any]]:
        count = len(metrics.finite)
        named = {
            "episodes": metrics.episodes,
            "return": metrics.episode_return,
            "length": metrics.episode_length,
            **metrics.outcomes,
            **{name: getattr(metrics.learned, name) for name in PPOMetrics.__dataclass_fields__},
        }
        rows = []
        for n in range(count):
            row: dict[str, Any] = {"update": first + n, "steps": (first + n + 1) * self._steps}
            row |= {name: values[n].item() for name, values in named.items()}
            row["seconds"] = round(start + (end - start) * (n + 1) / count, 4)
            self._metrics.write(row)
            rows.append(row)
        return rows

    def close(self) -> None:
        self._metrics.close()
