"""From settings to the pure loop that they describe."""

import jax
import numpy as np

from worldloom.algos import registry as algos
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import as_pure
from worldloom.envs import registry as envs
from worldloom.replay.legacy import LegacyRing
from worldloom.replay.ring import Ring
from worldloom.train.config import TrainConfig
from worldloom.train.online import Loop


def build_env(config: TrainConfig) -> PureEnv:
    """The world that the settings name; whatever is wrong with it is a ValueError."""
    options = dict(config.world)
    try:
        env = as_pure(envs.make(config.env, **options))
        params = env.default_params()
        jax.eval_shape(env.reset, jax.random.key(0), params)
    except (TypeError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{config.env}: an option is not known or of the wrong type ({reason}); "
            f"mend the options {options}"
        ) from error
    numbers = [np.asarray(x) for x in jax.tree.leaves(params)]
    if not all(np.isfinite(x).all() for x in numbers):
        raise ValueError(
            f"{config.env}: its rewards or rates are not all finite numbers; "
            f"mend the options {options}"
        )
    if env.spec.horizon is None or not env.turn_based:
        raise ValueError(
            f"{config.env}: training needs a turn-based world that ends; "
            "wrap it in frame_stack and time_limit"
        )
    return env


def check_memory(config: TrainConfig, env: PureEnv) -> None:
    """Raises ValueError if the memory cannot hold an epoch, or never a batch."""
    horizon, frames = env.spec.horizon or 0, env.spec.num_frames
    rows, batch_size = config.memory_rows, config.agent.batch_size
    if rows < horizon + 1:
        raise ValueError(
            f"memory_rows={rows} cannot hold one epoch of {horizon} turns and its "
            f"last observation; use at least {horizon + 1}"
        )
    if getattr(config.agent, "legacy", False):
        windows = rows - frames - 1
    else:
        # Whole epochs, and of the oldest one what is left with complete frame stacks.
        epochs, rest = divmod(rows, horizon + 1)
        windows = (epochs * horizon + max(0, rest - frames)) * config.num_worlds
    if windows < batch_size:
        raise ValueError(
            f"memory_rows={rows} with num_worlds={config.num_worlds} never holds more than "
            f"{windows} steps to learn from, and batch_size={batch_size} needs as many; "
            "use a larger memory or a smaller batch"
        )


def build_loop(config: TrainConfig, env: PureEnv | None = None) -> Loop:
    """World, agent and memory put together."""
    env = env or build_env(config)
    settings = config.agent
    agent = algos.make(config.algo, settings, env.spec)
    check_memory(config, env)
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
