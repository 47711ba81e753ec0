"""What the runner drives: a run that advances by epochs, in any of the four modes."""

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

from worldloom.core import stack
from worldloom.core.types import PyTree, RunState
from worldloom.train.build import build_env, build_loop, check_memory
from worldloom.train.config import TrainConfig
from worldloom.train.driver import Trainer
from worldloom.train.modes import Jitted, make_driver
from worldloom.train.online import EpochMetrics


class JaxTrainer:
    """A `RunState` and the driver that advances it."""

    def __init__(self, config: TrainConfig):
        self.loop = build_loop(config)
        self._driver = make_driver(self.loop, config.mode, config.chunk)
        start = Jitted(self.loop.init)
        self.run: RunState = start(jax.random.key(config.seed))
        self._start_seconds = start.compile_seconds

    @property
    def epoch(self) -> int:
        return int(self.run.epoch)

    @property
    def compile_seconds(self) -> float:
        return self._start_seconds + self._driver.compile_seconds

    def advance(self, epochs: int) -> EpochMetrics:
        self.run, metrics = self._driver.advance(self.run, epochs)
        return metrics

    def agents(self) -> PyTree:
        return self.run.learner.params

    def state(self) -> PyTree:
        return self.run

    def load(self, state: PyTree) -> None:
        self.run = state


class TorchTrainer:
    """The original's loop in PyTorch. Its checkpoints hold weights to evaluate, not a resume."""

    compile_seconds = 0.0

    def __init__(self, config: TrainConfig):
        if find_spec("torch") is None:
            raise ValueError(
                "torch_sequential needs PyTorch, which is not installed; "
                "pip install 'worldloom[torch]', or use a jax mode"
            )
        from worldloom.reference import torch_loop

        self.settings = torch_settings(config)
        self._run_epoch = torch_loop.run_epoch
        self.env, self._agents = torch_loop.setup(self.settings, config.seed, config.tuned)
        self.epoch = 0

    def advance(self, epochs: int) -> EpochMetrics:
        records = []
        for _ in range(epochs):
            turns = self.settings.turns
            records.append(self._run_epoch(self.env, self._agents, self.epoch, turns))
            self.epoch += 1
        rewards = np.array([r["rewards"] for r in records], np.float32)
        losses = np.array([r["losses"] for r in records], np.float32)
        unknown = np.full_like(losses, np.nan)
        measured: dict[str, Any] = {
            "score": rewards.sum(axis=1),
            "reward": rewards,
            "turn_reward": np.array([r["turn_rewards"] for r in records], np.float32),
            "epsilon": np.array([r["epsilon"] for r in records], np.float32),
            "loss": losses,
            "grad_norm": unknown,
            "q_mean": unknown,
            "finite": np.isfinite(np.concatenate([rewards, losses], axis=1)).all(axis=1),
        }
        return EpochMetrics(**measured)

    def agents(self) -> PyTree:
        from worldloom.reference.weights import to_flax

        return stack.stack([to_flax(agent.local) for agent in self._agents])

    def state(self) -> PyTree:
        return self.agents()

    def load(self, state: PyTree) -> None:
        raise ValueError(
            "a torch_sequential run cannot be resumed: the original keeps neither its memory nor "
            "its generators; start it again, or resume a jax run"
        )


def torch_settings(config: TrainConfig) -> Any:
    """The baseline's settings (a `TorchConfig`) for the same world and sizes."""
    from worldloom.reference.torch_loop import TorchConfig

    env = build_env(config)
    check_memory(config, env)
    if env.spec.turn_order != "interleaved":
        raise ValueError(
            "torch_sequential lets agents act one after the other; "
            f"turn_order={env.spec.turn_order!r} needs a jax mode"
        )
    world, iqn = env.base, config.iqn
    height, width = world.shape
    value = {kind.name: kind.value for kind in world.kinds}
    # Where the baseline has no choice, another wish must not be passed over in silence.
    fixed = {
        "view=onehot": world.view == "onehot",
        "a radius": world.radius is not None,
        "legacy=true for the world": bool(config.world.get("legacy")) or "Bone" in value,
        "iqn.legacy": iqn.legacy,
        "iqn.noisy": iqn.noisy,
        "iqn.levels=own": iqn.levels == "own",
        "iqn.act_levels=random": iqn.act_levels == "random",
        "iqn.max_grad_norm=1": iqn.max_grad_norm == 1.0,
        "iqn.sync_epochs of 1 or more": iqn.sync_epochs > 0,
    }
    missing = [name for name, holds in fixed.items() if not holds]
    if missing:
        raise ValueError(
            f"torch_sequential plays the original's task with its arithmetic and needs "
            f"{', '.join(missing)}; start from --preset original, or use a jax mode"
        )
    return TorchConfig(
        height=height,
        width=width,
        num_agents=env.spec.num_agents,
        radius=world.radius,
        spawn_prob=sum(rate for _, rate in world.kinds[0].becomes),
        items="mixed" if "Bone" in value else "gems",
        gem_value=value["Gem"],
        food_value=value.get("Food", 5.0),
        bone_value=value.get("Bone", -10.0),
        turns=env.spec.horizon or 50,
        layer_size=iqn.hidden,
        n_quantiles=iqn.num_quantiles,
        act_quantiles=iqn.act_quantiles,
        batch_size=iqn.batch_size,
        memory_size=config.memory_rows,
        n_frames=env.spec.num_frames,
        n_step=iqn.n_step,
        gamma=iqn.gamma,
        lr=iqn.learning_rate,
        tau=iqn.target_rate,
        sync_freq=iqn.sync_epochs,
        epsilon=config.epsilon,
        epsilon_decay=config.epsilon_decay,
        epsilon_min=config.epsilon_min,
    )


def make_trainer(config: TrainConfig) -> Trainer:
    """The trainer of the configured mode, before its first epoch."""
    return TorchTrainer(config) if config.mode == "torch_sequential" else JaxTrainer(config)


def evaluation_agent(config: TrainConfig) -> Any:
    """The agent as it is evaluated: greedy, and without the original's random levels."""
    if config.algo == "iqn" and config.iqn.act_levels == "random":
        levels = config.iqn.num_quantiles
        iqn = replace(config.iqn, act_levels="midpoints", act_quantiles=levels)
        config = replace(config, iqn=iqn)
    return build_loop(config).agent
