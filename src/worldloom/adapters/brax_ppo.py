"""Brax's PPO, `brax.training.agents.ppo.train`, called as it is: on any JAX, and on our worlds.

    from worldloom.adapters import brax_ppo as ppo
    make_policy, params, metrics = ppo.train(environment=BraxEnv(world), num_timesteps=1_000_000)

With `restore_params` Brax restores normaliser, policy and value: a training that goes on has a new
optimiser and new worlds.
"""

import math
from typing import Any

import jax

from worldloom.adapters.brax import BraxEnv, Env, wrap_for_training
from worldloom.adapters.brax_compat import device_put_replicated, quiet_import
from worldloom.core.types import PyTree

with quiet_import():
    from brax.training.agents.ppo import train as ppo

BATCH_SIZE, NUM_MINIBATCHES = 32, 16  # Brax's own defaults


def train(
    environment: Env,
    num_timesteps: int,
    *,
    num_envs: int = 1,
    batch_size: int | None = None,
    num_minibatches: int = NUM_MINIBATCHES,
    max_devices_per_host: int | None = None,
    **options: Any,
) -> tuple[Any, PyTree, Any]:
    """`brax.training.agents.ppo.train` with all of its options: policy maker, params, metrics.

    A `BraxEnv` is wrapped by `wrap_for_training` unless `wrap_env_fn` says otherwise, and its
    episodes are as long as the world's unless `episode_length` does. Brax needs batch_size *
    num_minibatches unrolls to be a multiple of num_envs: a batch_size that is not given is made so.
    """
    if batch_size is None:
        fits = BATCH_SIZE * num_minibatches % num_envs == 0
        batch_size = BATCH_SIZE if fits else num_envs // math.gcd(num_envs, num_minibatches)
    check_sizes(num_envs, batch_size, num_minibatches, max_devices_per_host)
    if isinstance(environment, BraxEnv):
        horizon = environment.world.spec.horizon or 1000
        options = {"wrap_env_fn": wrap_for_training, "episode_length": horizon} | options
    with device_put_replicated(ppo):
        result = ppo.train(
            environment,
            num_timesteps,
            num_envs=num_envs,
            batch_size=batch_size,
            num_minibatches=num_minibatches,
            max_devices_per_host=max_devices_per_host,
            **options,
        )
        jax.effects_barrier()  # metrics of episodes may still be on their way
    return result


def check_sizes(num_envs: int, batch_size: int, num_minibatches: int, devices: int | None) -> None:
    """Raises ValueError where Brax would fail an assertion, or use fewer devices than asked for."""
    rows = batch_size * num_minibatches
    if rows % num_envs:
        raise ValueError(
            f"brax: batch_size={batch_size} times num_minibatches={num_minibatches} is {rows}, "
            f"which must be a multiple of num_envs={num_envs}"
        )
    have = jax.local_device_count()
    if devices is not None and not 1 <= devices <= have:
        raise ValueError(f"brax: devices={devices}; this process has {have}")
    used = (devices or have) * jax.process_count()
    if num_envs % used:
        raise ValueError(f"brax: num_envs={num_envs} cannot be split over {used} devices")
    if batch_size % used:
        raise ValueError(
            f"brax: minibatches of batch_size={batch_size} unrolls cannot be split over "
            f"{used} devices; use a multiple of that"
        )
