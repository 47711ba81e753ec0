"""The original's loop in PyTorch behind the face of a trainer."""

from functools import cached_property
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

from worldloom.core import stack
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key, PyTree
from worldloom.training.config import TrainConfig
from worldloom.training.loops import turn_loop
from worldloom.training.loops.turns import check_memory
from worldloom.training.suite import Problem
from worldloom.training.trainer import Metrics


class TorchTrainer:
    """The original's loop in PyTorch. Its checkpoints hold weights to evaluate, not a resume."""

    compile_seconds = 0.0
    _loaded: PyTree = None

    def __init__(self, config: TrainConfig, problem: Problem):
        if find_spec("torch") is None:
            raise ValueError(
                "torch_sequential needs PyTorch, which is not installed; "
                "pip install 'worldloom[torch]', or use a jax mode"
            )
        from worldloom.suites.grid import torch_loop

        self.settings = torch_settings(config, problem.env)
        self._config, self._problem = config, problem
        self._run_epoch = torch_loop.run_epoch
        self.env, self._agents = torch_loop.setup(self.settings, config.seed, config.settings.tuned)
        self.iteration = 0

    @property
    def steps_per_iteration(self) -> int:
        return self.settings.turns

    @cached_property
    def loop(self) -> Any:
        """The same task and network in JAX, which acts with the weights."""
        return turn_loop(self._config, self._problem)

    def act(self, params: PyTree, obs: PyTree, key: Key, *, explore: Array | float) -> Array:
        return self.loop.act(params, obs, key, explore=explore)

    def advance(self, epochs: int) -> Metrics:
        if self._loaded is not None:
            raise ValueError(
                "a torch_sequential run cannot be resumed: the original keeps neither its memory "
                "nor its generators; start it again, or resume a jax run"
            )
        records = []
        for _ in range(epochs):
            turns = self.settings.turns
            records.append(self._run_epoch(self.env, self._agents, self.iteration, turns))
            self.iteration += 1
        rewards = np.array([r["rewards"] for r in records], np.float32)
        losses = np.array([r["losses"] for r in records], np.float32)
        return {
            "return": rewards.sum(axis=1),
            "agent_returns": rewards,
            "turn_rewards": np.array([r["turn_rewards"] for r in records], np.float32),
            "epsilon": np.array([r["epsilon"] for r in records], np.float32),
            "loss": losses.mean(axis=1),
            "agent_loss": losses,
            "finite": np.asarray(np.isfinite(np.hstack([rewards, losses])).all(axis=1)),
        }

    def agents(self) -> PyTree:
        if self._loaded is not None:
            return self._loaded
        from worldloom.suites.grid.torch_weights import to_flax

        return stack.stack([to_flax(agent.local) for agent in self._agents])

    def template(self) -> PyTree:
        run = jax.eval_shape(self.loop.init, jax.random.key(0))
        return run.learner.params

    def state(self) -> PyTree:
        return self.agents()

    def load(self, state: PyTree) -> None:
        """Weights to act with; training cannot go on from them."""
        self._loaded = state


def torch_settings(config: TrainConfig, env: PureEnv) -> Any:
    """The baseline's settings (a `TorchConfig`) for the same world and sizes."""
    from worldloom.suites.grid.torch_loop import TorchConfig

    if env.base.name != "treasurehunt" or config.algo != "iqn":
        raise ValueError(
            "torch_sequential is the original's treasure hunt with IQN agents; "
            f"it cannot train {config.algo} on {config.env}: use a jax mode"
        )
    if config.num_worlds != 1 or config.hyper.gradient_steps != 1:
        raise ValueError(
            "torch_sequential plays one world and updates once an iteration, not "
            f"num_worlds={config.num_worlds} and iqn.gradient_steps={config.hyper.gradient_steps}; "
            "start from --preset original"
        )
    check_memory(env, config.hyper, config.num_worlds)
    if env.spec.turn_order != "interleaved":
        raise ValueError(
            "torch_sequential lets agents act one after the other; "
            f"turn_order={env.spec.turn_order!r} needs a jax mode"
        )
    world, iqn = env.base, config.hyper
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
        memory_size=iqn.buffer_size,
        n_frames=env.spec.num_frames,
        n_step=iqn.n_step,
        gamma=iqn.gamma,
        lr=iqn.learning_rate,
        tau=iqn.target_rate,
        sync_freq=iqn.sync_epochs,
        epsilon=iqn.epsilon,
        epsilon_decay=iqn.epsilon_decay,
        epsilon_min=iqn.epsilon_min,
    )
