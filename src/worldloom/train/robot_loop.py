"""Level 1: the robots in numpy, the loops in Python; only the forward pass and the learning from a
minibatch are compiled."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos.ppo import PPO, PPOMetrics, PPOState, Rollout, Samples, shuffled
from worldloom.core import draws
from worldloom.core.types import PyTree
from worldloom.nn.normaliser import observe
from worldloom.reference.robot import RobotLoop
from worldloom.train.on_policy import UpdateMetrics, UpdateState

TOLD = ("return", "length", "fell", "error", "diverged")  # of the episodes that ended


class LoopTrainer:
    """A trainer for the chunk driver. Same algorithm, same settings, other loops."""

    def __init__(self, robots: RobotLoop, ppo: PPO, seed: int):
        self.robots, self.ppo = robots, ppo
        self._act = jax.jit(ppo.act)
        self._value = jax.jit(lambda learner, obs: ppo.policy(learner, obs)[1])
        self._samples = jax.jit(ppo.samples)
        self._learn = jax.jit(ppo.learn)
        self._observe = jax.jit(observe)
        run_key, learner_key, _ = jax.random.split(jax.random.key(seed), 3)
        worlds, timestep = robots.reset()
        learner = jax.jit(ppo.init)(learner_key, timestep.obs)
        # Beside the worlds: returns and lengths of the running episodes, of which means are told.
        counts = (np.zeros(robots.num_worlds, np.float32), np.zeros(robots.num_worlds, np.int32))
        self.run = UpdateState(learner, (worlds, counts), timestep, run_key, jnp.int32(0))
        self.compile_seconds = self._warm_up()

    def _warm_up(self) -> float:
        """Seconds that the compiled pieces take to compile, ahead of their first use."""
        start = time.perf_counter()
        config, obs = self.ppo.config, self.run.timestep.obs
        learner = self.run.learner
        action, extras = self._act(learner, obs, self.run.key)
        steps = config.unroll_length

        def long(x: Any) -> Any:
            return np.repeat(np.asarray(x)[None], steps, axis=0)

        flags: Any = np.zeros((steps, self.robots.num_worlds), bool)
        value = long(extras.value)
        rollout = Rollout(
            jax.tree.map(long, obs), long(action), long(extras.log_prob), value, value, flags,
            flags, value,
        )  # fmt: skip
        samples = self._samples(rollout)
        rows = shuffled(self.run.key, len(samples.advantage), config.num_minibatches)[0]
        jax.block_until_ready(self._learn(learner, _rows(samples, np.asarray(rows))))
        return time.perf_counter() - start

    @property
    def epoch(self) -> int:
        return int(self.run.update)

    def agents(self) -> PPOState:
        return self.run.learner

    def state(self) -> UpdateState:
        return self.run

    def load(self, state: UpdateState) -> None:
        host = jax.tree.map(np.asarray, (state.worlds, state.timestep))
        self.run = state.replace(worlds=host[0], timestep=host[1])

    def advance(self, epochs: int) -> UpdateMetrics:
        rows = [self._update() for _ in range(epochs)]
        return jax.tree.map(lambda *x: np.stack([np.asarray(y) for y in x]), *rows)

    def _update(self) -> UpdateMetrics:
        config, run, robots = self.ppo.config, self.run, self.robots
        play_key, learn_key = draws.split(jax.random.fold_in(run.key, run.update))
        (worlds, (returns, lengths)), timestep = run.worlds, run.timestep
        steps: list[dict[str, Any]] = []
        ended: dict[str, list[np.ndarray]] = {name: [] for name in TOLD}
        for key in draws.split(play_key, config.unroll_length):
            obs = timestep.obs
            action, extras = self._act(run.learner, obs, key)
            worlds, timestep = robots.step(worlds, np.asarray(action))
            done = np.asarray(timestep.terminated | timestep.truncated)
            next_value = np.asarray(self._value(run.learner, timestep.final_obs))
            steps.append(
                {
                    "obs": obs,
                    "action": action,
                    "log_prob": extras.log_prob,
                    "value": extras.value,
                    "reward": timestep.reward,
                    "terminated": timestep.terminated,
                    "truncated": timestep.truncated,
                    "next_value": next_value,
                }
            )
            returns, lengths = returns + timestep.reward, lengths + 1
            info = timestep.info
            ended["return"].append(returns[done])
            ended["length"].append(lengths[done])
            ended["fell"].append(np.asarray(info.fell)[done])
            ended["diverged"].append(np.asarray(info.diverged)[done])
            ended["error"].append(np.abs(np.asarray(info.velocity - info.command))[done])
            returns, lengths = np.where(done, 0.0, returns), np.where(done, 0, lengths)
        rollout = Rollout(**jax.tree.map(lambda *x: np.stack([np.asarray(y) for y in x]), *steps))
        learner, learned = self._learn_from(rollout, learn_key)
        worlds = (worlds, (returns.astype(np.float32), lengths.astype(np.int32)))
        self.run = run.replace(
            learner=learner, worlds=worlds, timestep=timestep, update=run.update + 1
        )
        means: dict[str, Any] = {name: _mean(np.concatenate(x)) for name, x in ended.items()}
        count: Any = np.int32(sum(map(len, ended["return"])))
        finite: Any = np.isfinite(rollout.reward).all() & np.isfinite(np.asarray(learned.loss))
        total, length = means.pop("return"), means.pop("length")
        return UpdateMetrics(count, total, length, means, learned, finite)

    def _learn_from(self, rollout: Rollout, key: jax.Array) -> tuple[PPOState, PPOMetrics]:
        config, learner = self.ppo.config, self.run.learner
        samples = jax.tree.map(np.asarray, self._samples(rollout))
        told: list[dict[str, Any]] = []
        for epoch_key in draws.split(key, config.num_epochs):
            size = len(samples.advantage)
            for rows in np.asarray(shuffled(epoch_key, size, config.num_minibatches)):
                learner, parts = self._learn(learner, _rows(samples, rows))
                told.append(parts)
        means: dict[str, Any] = {
            name: np.float32(np.mean([part[name] for part in told if part["good"]] or [0.0]))
            for name in told[0]
            if name != "good"
        }
        spread = max(float(np.var(samples.returns)), 1e-8)
        means["explained_variance"] = np.float32(1.0 - np.var(samples.advantage) / spread)
        means["skipped"] = np.float32(sum(not part["good"] for part in told))
        normaliser = self._observe(learner.normaliser, rollout.obs)
        return learner.replace(normaliser=normaliser, updates=learner.updates + 1), PPOMetrics(
            **means
        )


def _rows(samples: Samples, rows: np.ndarray) -> PyTree:
    return jax.tree.map(lambda x: np.asarray(x)[rows], samples)


def _mean(values: np.ndarray) -> np.float32:
    return np.float32(values.mean()) if len(values) else np.float32(np.nan)
