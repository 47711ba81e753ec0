"""On-policy unrolls: play a stretch in every world, learn from it, forget it.

Pure functions of an `UpdateState` for any world of one agent; PPO does the playing and the
learning. The world's params are an argument of the compiled program, never a constant in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos.ppo import PPO, PPOMetrics, PPOState
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import autoreset_batch, episode_stats
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.track.sinks import JsonLines
from worldloom.train.programs import Jitted, Repeated


class UpdateState(struct.PyTreeNode):
    """A whole on-policy run as one pytree: what is checkpointed."""

    learner: PPOState
    worlds: PyTree
    timestep: TimeStep  # where the next unroll starts
    key: Key
    update: Array


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


@dataclass(frozen=True)
class OnPolicy:
    """The on-policy loop of one world and PPO, as pure functions.

    `outcomes(info)` names what to average over ended episodes beside return and length: from the
    world's infos (T, B) to arrays (T, B), of which the values at an episode's end count.
    """

    env: PureEnv  # one world, whose episodes end
    ppo: PPO
    outcomes: Callable[[PyTree], Mapping[str, Array]] = lambda info: {}

    @cached_property
    def worlds(self) -> PureEnv:
        return episode_stats(autoreset_batch(self.env, self.ppo.config.num_worlds))

    @property
    def steps_per_update(self) -> int:
        return self.ppo.config.num_worlds * self.ppo.config.unroll_length

    def init(self, key: Key, params: PyTree) -> UpdateState:
        """A run before its first update."""
        run_key, learner_key, world_key = jax.random.split(key, 3)
        worlds, timestep = self.worlds.reset(world_key, params)
        learner = self.ppo.init(learner_key, timestep.obs)
        return UpdateState(learner, worlds, timestep, run_key, jnp.int32(0))

    def update(self, run: UpdateState, params: PyTree) -> tuple[UpdateState, UpdateMetrics]:
        """One unroll and what is learned from it, to be compiled as one program.

        Its random choices hang on the run's key and its number alone.
        """
        learner, worlds, timestep, learned, seen = self.ppo.iteration(
            self.worlds, run.learner, run.worlds, run.timestep, params,
            jax.random.fold_in(run.key, run.update), watch=self._summary,
        )  # fmt: skip
        weights = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(learner.params)]
        config = self.ppo.config
        minibatches = config.num_epochs * config.num_minibatches
        sound = jnp.stack(weights).all() & (learned.skipped < minibatches)
        finite = seen.pop("finite") & sound
        run = UpdateState(learner, worlds, timestep, run.key, run.update + 1)
        return run, UpdateMetrics(**seen, learned=learned, finite=finite)

    def _summary(self, steps: TimeStep) -> dict[str, Any]:
        ended = steps.terminated | steps.truncated
        count = ended.sum()

        def mean(values: Array) -> Array:
            # Divided by 0, where nothing ended, it is NaN.
            return jnp.where(ended, values, 0.0).sum() / count

        return {
            "episodes": count,
            "episode_return": mean(steps.info.last_return),
            "episode_length": mean(steps.info.last_length),
            "outcomes": {n: mean(x) for n, x in self.outcomes(steps.info.inner).items()},
            "finite": jnp.isfinite(steps.reward).all(),
        }


class OnPolicyTrainer:
    """An `UpdateState` and the program that advances it, for the chunk driver."""

    def __init__(self, loop: OnPolicy, params: PyTree, seed: int, chunk: int):
        self.loop, self.params = loop, params
        self._updates = Repeated(loop.update, chunk)
        start = Jitted(loop.init)
        self.run: UpdateState = start(jax.random.key(seed), params)
        self._start_seconds = start.compile_seconds

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
        return self.run.learner

    def state(self) -> UpdateState:
        return self.run

    def load(self, state: UpdateState) -> None:
        self.run = state


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
