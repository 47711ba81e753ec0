"""Level 1: the robots in numpy, the loops in Python; only the forward pass and the learning from a
minibatch are compiled."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos.on_policy import Rollout, shuffled
from worldloom.algos.ppo import PPO, PPOMetrics, PPOState, Samples
from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree, RunState
from worldloom.nn.normaliser import observe
from worldloom.suites.robot.loop import RobotLoop
from worldloom.training.trainer import Metrics

OUTCOMES = ("return", "length", "fell", "error", "diverged")  # of the episodes that ended


class LoopTrainer:
    """A trainer for the chunk driver. Same algorithm, same settings, other loops."""

    def __init__(self, robots: RobotLoop, ppo: PPO, seed: int):
        self.robots, self.ppo = robots, ppo
        self._act = jax.jit(ppo.act)
        self._value = jax.jit(ppo.value)
        self._samples = jax.jit(ppo.samples)
        self._learn = jax.jit(ppo.learn)
        self._observe = jax.jit(observe)
        self._seed, self._state = seed, None
        self.compile_seconds = 0.0

    @property
    def run(self) -> RunState:
        """The state; made from the seed when it is first asked for."""
        if self._state is None:
            run_key, learner_key, _ = jax.random.split(jax.random.key(self._seed), 3)
            worlds, timestep = self.robots.reset()
            learner = jax.jit(self.ppo.init)(learner_key, timestep.obs)
            # Beside the worlds: returns and lengths of the running episodes.
            count = self.robots.num_worlds
            counts = (np.zeros(count, np.float32), np.zeros(count, np.int32))
            self._state = RunState(learner, (worlds, counts), (), run_key, jnp.int32(0), timestep)
        return self._state

    @property
    def iteration(self) -> int:
        return int(self.run.iteration)

    @property
    def steps_per_iteration(self) -> int:
        return self.robots.num_worlds * self.ppo.config.unroll_length

    def agents(self) -> PPOState:
        return self.run.learner

    def act(self, learner: PPOState, obs: PyTree, key: Key, *, explore: Array | float) -> Array:
        return self.ppo.act(learner, obs, key, explore=explore)[0]

    def template(self) -> RunState:
        return self.run

    def state(self) -> RunState:
        return self.run

    def load(self, state: RunState) -> None:
        worlds, timestep = jax.tree.map(np.asarray, (state.worlds, state.timestep))
        self._state = state.replace(worlds=worlds, timestep=timestep)

    def advance(self, iterations: int) -> Metrics:
        if not self.compile_seconds:
            self.compile_seconds = self._warm_up()
        rows = [self._update() for _ in range(iterations)]
        return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}

    def _warm_up(self) -> float:
        """Seconds that the compiled pieces take to compile, ahead of their first use."""
        start = time.perf_counter()
        config, run = self.ppo.config, self.run
        obs, learner = run.timestep.obs, run.learner
        action, extras = self._act(learner, obs, run.key)
        steps = config.unroll_length

        def repeated(x: Any) -> Any:
            return np.repeat(np.asarray(x)[None], steps, axis=0)

        flags: Any = np.zeros((steps, self.robots.num_worlds), bool)
        value = repeated(extras.value)
        rollout = Rollout(
            obs=jax.tree.map(repeated, obs),
            action=repeated(action),
            log_prob=repeated(extras.log_prob),
            value=value,
            reward=value,
            terminated=flags,
            truncated=flags,
            next_value=value,
        )
        samples = self._samples(rollout)
        rows = shuffled(run.key, len(samples.advantage), config.num_minibatches)[0]
        jax.block_until_ready(self._learn(learner, _rows(samples, np.asarray(rows))))
        return time.perf_counter() - start

    def _update(self) -> dict[str, Any]:
        config, run, robots = self.ppo.config, self.run, self.robots
        play_key, learn_key = draws.split(jax.random.fold_in(run.key, run.iteration))
        (worlds, (returns, lengths)), timestep = run.worlds, run.timestep
        steps: list[dict[str, Any]] = []
        ended: dict[str, list[np.ndarray]] = {name: [] for name in OUTCOMES}
        for key in draws.split(play_key, config.unroll_length):
            obs = timestep.obs
            action, extras = self._act(run.learner, obs, key)
            worlds, timestep = robots.step(worlds, np.asarray(action))
            done = np.asarray(timestep.terminated | timestep.truncated)
            steps.append(
                {
                    "obs": obs,
                    "action": action,
                    "log_prob": extras.log_prob,
                    "value": extras.value,
                    "reward": timestep.reward,
                    "terminated": timestep.terminated,
                    "truncated": timestep.truncated,
                    "next_value": self._value(run.learner, timestep.final_obs),
                }
            )
            returns, lengths = returns + timestep.reward, lengths + 1
            info = timestep.info
            outcomes = (returns, lengths, info.fell, abs(info.velocity - info.command))
            for name, values in zip(OUTCOMES, (*outcomes, info.diverged), strict=True):
                ended[name].append(np.asarray(values)[done])
            returns, lengths = np.where(done, 0.0, returns), np.where(done, 0, lengths)
        rollout = Rollout(**jax.tree.map(lambda *x: np.stack([np.asarray(y) for y in x]), *steps))
        learner, learned = self._learn_from(rollout, learn_key)
        self._state = run.replace(
            learner=learner,
            worlds=(worlds, (returns.astype(np.float32), lengths.astype(np.int32))),
            timestep=timestep,
            iteration=run.iteration + 1,
        )
        finite = np.isfinite(rollout.reward).all() & np.isfinite(learned["loss"])
        return {
            "episodes": np.int32(sum(map(len, ended["return"]))),
            **{name: _mean(np.concatenate(values)) for name, values in ended.items()},
            **learned,
            "finite": finite,
        }

    def _learn_from(self, rollout: Rollout, key: Key) -> tuple[PPOState, dict[str, np.float32]]:
        config, learner = self.ppo.config, self.run.learner
        samples = jax.tree.map(np.asarray, self._samples(rollout))
        parts: list[dict[str, Any]] = []
        for epoch_key in draws.split(key, config.num_epochs):
            size = len(samples.advantage)
            for rows in np.asarray(shuffled(epoch_key, size, config.num_minibatches)):
                learner, part = self._learn(learner, _rows(samples, rows))
                parts.append(part)
        means = {
            name: np.float32(np.mean([part[name] for part in parts if part["good"]] or [0.0]))
            for name in PPOMetrics.__dataclass_fields__
            if name in parts[0]
        }
        variance = max(float(np.var(samples.returns)), 1e-8)
        means["explained_variance"] = np.float32(1.0 - np.var(samples.advantage) / variance)
        means["skipped"] = np.float32(sum(not part["good"] for part in parts))
        normaliser = self._observe(learner.normaliser, rollout.obs)
        return learner.replace(normaliser=normaliser, updates=learner.updates + 1), means


def _rows(samples: Samples, rows: np.ndarray) -> PyTree:
    return jax.tree.map(lambda x: np.asarray(x)[rows], samples)


def _mean(values: np.ndarray) -> np.float32:
    return np.float32(values.mean()) if len(values) else np.float32(np.nan)
