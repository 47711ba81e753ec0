"""Brax's PPO as a trainer for the chunk driver: level 2, and level 4 where it is asked for."""

import time
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.algos.ppo import PPOConfig, PPOMetrics
from worldloom.core.types import Array, PyTree
from worldloom.envs.robot.types import Observation
from worldloom.envs.robot.world import RobotWorld
from worldloom.train.on_policy import UpdateMetrics
from worldloom.train.robot_brax import (
    BraxConfig,
    BraxResult,
    Row,
    blank_result,
    check_devices,
    train_brax,
)
from worldloom.train.robot_config import RobotTrainConfig
from worldloom.train.robot_evaluate import Act

_OURS_ALONE = (
    "anneal_updates", "final_learning_rate", "final_entropy_cost", "normalise_observations",
    "normalise_advantages",
)  # fmt: skip


def brax_config(config: RobotTrainConfig) -> BraxConfig:
    """The same settings under Brax's names.

    Brax counts minibatches in unrolls: one of ours, of num_worlds * unroll_length / num_minibatches
    steps, is num_worlds / num_minibatches of them.
    """
    ppo, usual = config.ppo, PPOConfig(normalise_observations=True)
    for name in _OURS_ALONE:
        if getattr(ppo, name) != getattr(usual, name):
            raise ValueError(
                f"biped: ppo.{name}={getattr(ppo, name)} is an option that Brax's PPO does not "
                "have; leave it out, or train with our own PPO"
            )
    if ppo.num_worlds % ppo.num_minibatches:
        raise ValueError(
            f"biped: Brax deals whole unrolls to minibatches: num_worlds={ppo.num_worlds} must be "
            f"a multiple of num_minibatches={ppo.num_minibatches}"
        )
    return BraxConfig(
        seed=config.seed,
        num_envs=ppo.num_worlds,
        unroll_length=ppo.unroll_length,
        batch_size=ppo.num_worlds // ppo.num_minibatches,
        num_minibatches=ppo.num_minibatches,
        num_updates_per_batch=ppo.num_epochs,
        learning_rate=ppo.learning_rate,
        discounting=ppo.gamma,
        gae_lambda=ppo.gae_lambda,
        clipping_epsilon=ppo.clip_epsilon,
        entropy_cost=ppo.entropy_cost,
        vf_loss_coefficient=ppo.value_cost,
        max_grad_norm=ppo.max_grad_norm,
        reward_scaling=ppo.reward_scale,
        policy_hidden=config.network.hidden,
        value_hidden=config.network.hidden,
        activation=config.network.activation,
        initial_std=float(np.exp(config.network.initial_log_std)),
        num_evals=1,
        run_evals=False,
        log_training_metrics=True,
        devices=config.devices,
    )


class BraxState(struct.PyTreeNode):
    """What Brax can restore, and how far it came."""

    params: PyTree
    steps: Array


class BraxTrainer:
    """Trains with `brax.training.agents.ppo.train`, one call of it for each chunk.

    A call compiles its program and starts new worlds: chunks should be long.
    """

    def __init__(self, config: RobotTrainConfig, env: RobotWorld):
        if jax.process_count() > 1:
            raise ValueError(
                "biped: Brax's PPO trains in one process here; use --devices, or our own PPO"
            )
        self.env, self.config = env, brax_config(config)
        check_devices(self.config)
        self._result: BraxResult | None = None
        self.compile_seconds = 0.0

    @cached_property
    def _blank(self) -> BraxResult:
        return blank_result(self.env, self.config)

    @property
    def epoch(self) -> int:
        return self._result.steps // self.config.steps_per_update if self._result else 0

    def agents(self) -> PyTree:
        return self._result.params if self._result else self._blank.params

    def state(self) -> BraxState:
        return BraxState(self.agents(), jnp.int32(self._result.steps if self._result else 0))

    def load(self, state: BraxState) -> None:
        self._result = replace(self._blank, params=state.params, steps=int(state.steps))

    def advance(self, epochs: int) -> UpdateMetrics:
        start, first = time.perf_counter(), self.epoch
        told: Row = {}
        ended: list[Row] = [{} for _ in range(epochs)]

        def note(steps: int, row: Row) -> None:
            if "training/sps" in row:
                told.update(row)
            else:  # of the episodes that ended, after an update
                ended[steps // self.config.steps_per_update - first - 1] = row

        self._result = train_brax(
            self.env,
            self.config,
            num_timesteps=epochs * self.config.steps_per_update,
            num_evals=1,
            progress=note,
            restore=self._result,
        )
        spent = time.perf_counter() - start
        rate = told.get("training/sps", 0.0)
        if rate:  # Brax times its own training, from after the compilation of its first part
            trained = epochs * self.config.steps_per_update / rate
            self.compile_seconds += max(spent - trained, 0.0)
        weights = jax.tree.leaves(self._result.params)
        sound = all(np.isfinite(np.asarray(x)).all() for x in weights)
        return _as_metrics(told, ended, self.config.steps_per_update, sound)


def _as_metrics(told: Row, ended: list[Row], steps: int, sound: bool) -> UpdateMetrics:
    """What Brax told of a chunk, in every one of its updates, and of episodes after each update.

    NaN where it tells nothing. It counts no episodes: there are as many in the `steps` of an update
    as their mean length makes of them.
    """

    def same(name: str) -> Any:
        return np.full(len(ended), told.get(f"training/{name}", np.nan), np.float32)

    def each(name: str) -> Any:
        return np.array([row.get(f"episode/{name}", np.nan) for row in ended], np.float32)

    names = {
        "loss": "total_loss", "policy_loss": "policy_loss", "value_loss": "v_loss",
        "entropy": "entropy_loss", "kl": "kl_mean",
    }  # fmt: skip
    learned: dict[str, Any] = {
        name: same(names.get(name, name)) for name in PPOMetrics.__dataclass_fields__
    }
    length = each("length")
    count: Any = np.nan_to_num(steps / length).round().astype(np.int32)
    finite: Any = np.full(len(ended), sound)
    outcomes = {
        "fell": each("fell"),
        "diverged": each("diverged"),
        "error": each("command_error_per_step"),
    }
    return UpdateMetrics(count, each("sum_reward"), length, outcomes, PPOMetrics(**learned), finite)


def brax_act(config: RobotTrainConfig, env: RobotWorld) -> Act:
    """act(params, obs): the likeliest actions of what Brax learned."""
    blank = blank_result(env, brax_config(config))

    def act(params: PyTree, obs: Observation) -> Array:
        return replace(blank, params=params).policy(obs)

    return act
