"""From settings to the pure loop that they describe."""

import math

import jax

from worldloom.algos import registry as algos
from worldloom.core.protocols import PureEnv
from worldloom.envs import registry as envs
from worldloom.replay.legacy import LegacyRing
from worldloom.replay.ring import Ring
from worldloom.train.config import TrainConfig
from worldloom.train.online import Loop


def build_env(config: TrainConfig) -> PureEnv:
    """The world that the settings name."""
    env = envs.make(config.env, **config.world)
    values = [x for x in jax.tree.leaves(env.default_params()) if x.size]
    if not all(math.isfinite(float(v)) for x in values for v in x.ravel()):
        raise ValueError(
            f"{config.env}: its rewards or rates are not all finite numbers; "
            f"mend the options {dict(config.world)}"
        )
    return env


def build_loop(config: TrainConfig, env: PureEnv | None = None) -> Loop:
    """World, agent and memory put together."""
    env = env or build_env(config)
    settings = config.agent
    agent = algos.make(config.algo, settings, env.spec)
    horizon = env.spec.horizon or 0
    if config.memory_rows < horizon + 1:
        raise ValueError(
            f"memory_rows={config.memory_rows} cannot hold one epoch of {horizon} turns and its "
            f"last observation; use at least {horizon + 1}"
        )
    shape = {
        "capacity": config.memory_rows,
        "lanes": config.num_worlds,
        "num_frames": env.spec.num_frames,
        "n_step": getattr(settings, "n_step", 1),
        "gamma": getattr(settings, "gamma", 0.99),
    }
    ring = LegacyRing(**shape) if getattr(settings, "legacy", False) else Ring(**shape)
    return Loop(
        env=env,
        agent=agent,
        ring=ring,
        params=env.default_params(),
        updates_per_epoch=config.updates_per_epoch,
        epsilon=config.epsilon,
        epsilon_decay=config.epsilon_decay,
        epsilon_min=config.epsilon_min,
    )
