"""Brax's PPO as a trainer for the chunk driver: level 2, and level 4 where it is asked for."""

import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.adapters import brax_ppo
from worldloom.adapters.brax_compat import quiet_import
from worldloom.algos.ppo import PPOConfig, PPOMetrics
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.layers import ACTIVATIONS
from worldloom.suites.robot.brax_env import BraxWildRobotWrapper
from worldloom.training.config import TrainConfig
from worldloom.training.suite import Problem
from worldloom.training.trainer import Metrics

with quiet_import():
    from brax.training.acme import running_statistics
    from brax.training.agents.ppo import networks

Row = dict[str, float]
_OURS_ALONE = (
    "anneal_updates",
    "final_learning_rate",
    "final_entropy_cost",
    "normalise_observations",
    "normalise_advantages",
)


def brax_options(config: TrainConfig) -> dict[str, Any]:
    """The settings of a run of our PPO under Brax's names, for `brax_ppo.train`.

    Brax counts minibatches in unrolls: one of ours, of num_worlds * unroll_length / num_minibatches
    steps, is num_worlds / num_minibatches of them.
    """
    ppo, usual = config.hyper, PPOConfig(normalise_observations=True)
    for name in _OURS_ALONE:
        if getattr(ppo, name) != getattr(usual, name):
            raise ValueError(
                f"{config.env}: ppo.{name}={getattr(ppo, name)} is an option that Brax's PPO does "
                "not have; leave it out, or train with our own PPO"
            )
    if config.num_worlds % ppo.num_minibatches:
        raise ValueError(
            f"{config.env}: Brax deals whole unrolls to minibatches: "
            f"num_worlds={config.num_worlds} must be a multiple of "
            f"num_minibatches={ppo.num_minibatches}"
        )
    return {
        "seed": config.seed,
        "num_envs": config.num_worlds,
        "max_devices_per_host": config.devices,
        "unroll_length": ppo.unroll_length,
        "batch_size": config.num_worlds // ppo.num_minibatches,
        "num_minibatches": ppo.num_minibatches,
        "num_updates_per_batch": ppo.num_epochs,
        "learning_rate": ppo.learning_rate,
        "discounting": ppo.gamma,
        "gae_lambda": ppo.gae_lambda,
        "clipping_epsilon": ppo.clip_epsilon,
        "entropy_cost": ppo.entropy_cost,
        "vf_loss_coefficient": ppo.value_cost,
        "max_grad_norm": ppo.max_grad_norm,
        "reward_scaling": ppo.reward_scale,
        "normalize_observations": True,
        "network_factory": network_factory(ppo),
    }


def network_factory(ppo: PPOConfig) -> Callable[..., Any]:
    """Brax's networks as ours are: orthogonal weights, a policy that starts near 0.

    The value sees what is privileged, where there is such a thing.
    """
    orthogonal, hidden = jax.nn.initializers.orthogonal, math.sqrt(2.0)

    def make(sizes: Any, action_size: int, **options: Any) -> Any:
        apart = isinstance(sizes, Mapping) and "privileged_state" in sizes
        for part in ("policy_network", "value_network", "mean"):
            options[f"{part}_kernel_init_fn"] = orthogonal
            options[f"{part}_kernel_init_kwargs"] = {"scale": 0.01 if part == "mean" else hidden}
        return networks.make_ppo_networks(
            sizes,
            action_size,
            policy_hidden_layer_sizes=ppo.hidden,
            value_hidden_layer_sizes=ppo.hidden,
            activation=ACTIVATIONS[ppo.activation],
            value_obs_key="privileged_state" if apart else "state",
            distribution_type="normal",
            noise_std_type="log",
            init_noise_std=math.exp(ppo.initial_log_std),
            **options,
        )

    return make


class BraxState(struct.PyTreeNode):
    """What Brax can restore, (normaliser, policy, value), and how far it came."""

    params: PyTree
    iteration: Array


class BraxTrainer:
    """Trains with `brax.training.agents.ppo.train`, one call of it for each chunk.

    A call compiles its program and starts new worlds: chunks should be long.
    """

    def __init__(self, config: TrainConfig, problem: Problem):
        if jax.process_count() > 1:
            raise ValueError(
                f"{config.env}: Brax's PPO trains in one process here; use --devices, or our own"
            )
        self.env = BraxWildRobotWrapper(problem.env)
        self.options = brax_options(config)
        sizes = ("num_envs", "batch_size", "num_minibatches", "max_devices_per_host")
        brax_ppo.check_sizes(*(self.options[name] for name in sizes))
        self.steps_per_iteration = config.num_worlds * config.hyper.unroll_length
        self.compile_seconds = 0.0
        # At first for its shapes alone: Brax makes its own when it starts.
        zeros: Any = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.template())
        self._state: BraxState = zeros

    @property
    def iteration(self) -> int:
        return int(self._state.iteration)

    def agents(self) -> PyTree:
        return self._state.params

    def template(self) -> BraxState:
        return jax.eval_shape(lambda: self._initial(jax.random.key(0)))

    def state(self) -> BraxState:
        return self._state

    def load(self, state: BraxState) -> None:
        self._state = state

    def advance(self, iterations: int) -> Metrics:
        """Trains; metrics (iterations,), those of the learner the same in all of them."""
        start, first = time.perf_counter(), self.iteration
        steps = iterations * self.steps_per_iteration
        learned: Row = {}
        ended: list[Row] = [{} for _ in range(iterations)]

        def progress(done: int, metrics: Mapping[str, Any]) -> None:
            row = {name: float(np.mean(value)) for name, value in metrics.items()}
            if "training/sps" in row:
                learned.update(row)
            elif done > 0:  # of the episodes that ended, after an update
                ended[done // self.steps_per_iteration - 1] = row

        _, params, _ = brax_ppo.train(
            self.env,
            steps,
            **self.options | {"seed": seed_at(self.options["seed"], first)},
            num_evals=1,
            run_evals=False,
            log_training_metrics=True,
            progress_fn=progress,
            restore_params=self._state.params if first else None,
        )
        self._state = BraxState(params, jnp.int32(first + iterations))
        # Brax times its own training, from after the compilation of its first part.
        if rate := learned.get("training/sps", 0.0):
            self.compile_seconds += max(time.perf_counter() - start - steps / rate, 0.0)
        finite = all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(params))
        return as_metrics(learned, ended, self.steps_per_iteration, finite)

    # Acting ------------------------------------------------------------------------------------

    @functools.cached_property
    def _networks(self) -> Any:
        sizes = self.env.observation_size, self.env.action_size
        options = {"preprocess_observations_fn": running_statistics.normalize}
        return self.options["network_factory"](*sizes, **options)

    def _initial(self, key: Key) -> BraxState:
        sizes = self.env.observation_size
        shapes = sizes if isinstance(sizes, Mapping) else (sizes,)
        obs = jax.tree.map(jnp.zeros, shapes, is_leaf=lambda x: isinstance(x, tuple))
        normaliser = running_statistics.init_state(obs, std_eps=jnp.float32(0.0))  # pyright: ignore[reportArgumentType]
        policy, value = self._networks.policy_network, self._networks.value_network
        return BraxState((normaliser, policy.init(key), value.init(key)), jnp.int32(0))

    def act(self, params: PyTree, obs: PyTree, key: Key, *, explore: Array | float = 0.0) -> Array:
        """Actions (..., n) in [-1, 1]: drawn from the policy, or its mode if explore is 0.

        obs: of the world, as a struct or a dict, or the policy's part alone.
        """
        make_policy = networks.make_inference_fn(self._networks)
        if isinstance(self.env.observation_size, Mapping):
            state = obs["state"] if isinstance(obs, Mapping) else getattr(obs, "state", obs)
            obs = {"state": state}

        def draw(deterministic: bool) -> Array:
            action = make_policy(params, deterministic=deterministic)(obs, key)[0]
            return jnp.clip(action, -1.0, 1.0)

        if isinstance(explore, jax.Array):
            return jnp.where(explore > 0, draw(False), draw(True))
        return draw(not explore)


def as_metrics(learned: Row, ended: list[Row], steps: int, finite: bool) -> Metrics:
    """What Brax measured in a chunk, and of episodes after each of its updates.

    NaN where it tells nothing. It counts no episodes: there are as many in the `steps` of an update
    as their mean length makes of them.
    """

    def same(name: str) -> np.ndarray:
        return np.full(len(ended), learned.get(f"training/{name}", np.nan), np.float32)

    def each(name: str) -> np.ndarray:
        return np.array([row.get(f"episode/{name}", np.nan) for row in ended], np.float32)

    names = {
        "loss": "total_loss",
        "value_loss": "v_loss",
        "entropy": "entropy_loss",
        "kl": "kl_mean",
    }
    length = each("length")
    return {
        "episodes": np.nan_to_num(steps / length).round().astype(np.int32),
        "return": each("sum_reward"),
        "length": length,
        "fell": each("fell"),
        "diverged": each("diverged"),
        "error": each("command_error_per_step"),
        **{name: same(names.get(name, name)) for name in PPOMetrics.__dataclass_fields__},
        "finite": np.full(len(ended), finite),
    }


def seed_at(seed: int, iteration: int) -> int:
    """The seed itself at the start; one of its own for each point to go on from."""
    if iteration == 0:
        return seed
    return int(np.random.SeedSequence([seed, iteration]).generate_state(1)[0] >> 1)
