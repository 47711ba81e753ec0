"""Brax's own PPO on a robot of ours: `brax.training.agents.ppo.train`, called as it is.

What Brax can restore are the normaliser of observations, the policy and the value: a run that is
resumed goes on from these, with a fresh optimiser and fresh worlds.
"""

import dataclasses
import functools
import json
import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.protocols import Environment, PureEnv
from worldloom.core.types import Array, PyTree
from worldloom.nn.actor_critic import ACTIVATIONS
from worldloom.track.sinks import plain

if TYPE_CHECKING:
    from worldloom.adapters.brax import BraxWildRobotWrapper

Row = dict[str, float]  # "steps" and what Brax measured
FILE = "brax.npz"


@dataclass(frozen=True)
class BraxConfig:
    """The options of Brax's PPO that matter here, under Brax's names, and the networks.

    An update learns `num_updates_per_batch` times from batch_size * num_minibatches unrolls, which
    num_envs must divide. `num_timesteps` is rounded up to whole updates. `num_evals` counts the one
    before training, which with 1 is left out; with `run_evals=False` nothing is evaluated. With
    `log_training_metrics` Brax calls the host in every update, to tell of the episodes that ended.
    episode_length: by default the horizon of the world. devices: of this process, by default all.
    """

    seed: int = 0
    num_timesteps: int = 1_000_000
    num_envs: int = 512
    unroll_length: int = 20
    batch_size: int = 128
    num_minibatches: int = 4
    num_updates_per_batch: int = 4
    learning_rate: float = 3e-4
    discounting: float = 0.97
    gae_lambda: float = 0.95
    clipping_epsilon: float = 0.2
    entropy_cost: float = 1e-3
    vf_loss_coefficient: float = 0.5
    max_grad_norm: float = 1.0
    reward_scaling: float = 1.0
    policy_hidden: tuple[int, ...] = (128, 128)
    value_hidden: tuple[int, ...] = (128, 128)
    activation: str = "elu"
    distribution: Literal["normal", "tanh_normal"] = "normal"
    initial_std: float = 0.5
    num_evals: int = 10
    num_eval_envs: int = 64
    run_evals: bool = True
    log_training_metrics: bool = False
    episode_length: int | None = None
    devices: int | None = None

    def __post_init__(self):
        for name in (
            "num_timesteps", "num_envs", "unroll_length", "batch_size", "num_minibatches",
            "num_updates_per_batch", "num_evals", "num_eval_envs",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"brax: {name}={getattr(self, name)}; it must be at least 1")
        rows = self.batch_size * self.num_minibatches
        if rows % self.num_envs:
            raise ValueError(
                f"brax: batch_size={self.batch_size} times num_minibatches={self.num_minibatches} "
                f"is {rows}, which must be a multiple of num_envs={self.num_envs}"
            )
        if self.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ValueError(f"brax: activation={self.activation!r}; use one of {known}")

    @property
    def steps_per_update(self) -> int:
        """Steps of all worlds together between two rounds of learning."""
        return self.batch_size * self.num_minibatches * self.unroll_length

    @property
    def total_steps(self) -> int:
        """How many steps a training takes: whole updates, as many between any two evaluations."""
        parts = max(self.num_evals - 1, 1)
        return parts * self.steps_per_update * math.ceil(
            self.num_timesteps / (parts * self.steps_per_update)
        )  # fmt: skip


@dataclass(frozen=True)
class BraxResult:
    """What a training came to.

    params: (normaliser, policy, value) as Brax returns and restores them. act: actions in [-1, 1],
    numpy (..., n), for observations of one world or of many, without noise.
    """

    params: PyTree
    config: BraxConfig
    sizes: Any  # of observations, as `Env.observation_size` tells them
    action_size: int
    steps: int
    history: list[Row] = field(default_factory=list)

    @functools.cached_property
    def policy(self) -> Callable[[PyTree], Array]:
        """`act` as a function for compiled programs, of observations (..., size)."""
        from brax.training.agents.ppo import networks

        made = _factory(self.config, self.sizes)(
            self.sizes, self.action_size, preprocess_observations_fn=_normalise()
        )
        deterministic = networks.make_inference_fn(made)(self.params, deterministic=True)
        nobody = jax.random.key(0)  # a policy without noise takes a key and does not look at it

        def policy(obs: PyTree) -> Array:
            return jnp.clip(deterministic(self._named(obs), nobody)[0], -1.0, 1.0)

        return policy

    @functools.cached_property
    def _compiled(self) -> Callable[[PyTree], Array]:
        return jax.jit(self.policy)

    def act(self, obs: PyTree) -> np.ndarray:
        """The actions; obs is a struct or dict of the world's, or the policy's part alone."""
        return np.asarray(self._compiled(self._named(obs)))

    def _named(self, obs: PyTree) -> PyTree:
        if not isinstance(self.sizes, Mapping):
            return obs
        seen = obs["state"] if isinstance(obs, Mapping) else getattr(obs, "state", obs)
        return {"state": seen}


def train_brax(
    world: "Environment | PureEnv | BraxWildRobotWrapper | Mapping[str, Any]",
    config: BraxConfig | None = None,
    *,
    progress: Callable[[int, Row], None] | None = None,
    keep: Callable[[BraxResult], None] | None = None,
    restore: BraxResult | None = None,
    **changes: Any,
) -> BraxResult:
    """Trains with `brax.training.agents.ppo.train`, on all devices of this process or on some.

    world: one of ours, options of the biped, or what the adapter has already wrapped. changes:
    fields of the config. progress(steps, row): called after each evaluation, or each part of the
    training where none is made. keep(result): called at the same times, for example with `save`.
    restore: what to go on from; steps are counted on, and num_timesteps more are trained.

    With `log_training_metrics`, progress is also called after each update, with means over the last
    100 episodes that ended ("episode/..."); `history` leaves these rows out.
    """
    from worldloom.adapters.brax import BraxWildRobotWrapper, wrap_for_training
    from worldloom.adapters.brax_compat import device_put_replicated, quiet_import

    with quiet_import():
        from brax.training.agents.ppo import train as ppo

    config = replace(config or BraxConfig(), **changes)
    check_devices(config)
    env = world if isinstance(world, BraxWildRobotWrapper) else BraxWildRobotWrapper(world)
    sizes, action_size, before = env.observation_size, env.action_size, 0
    history: list[Row] = []
    if restore is not None:
        _check_networks(restore, config, sizes, action_size)
        before, history = restore.steps, list(restore.history)

    def result(params: PyTree, steps: int) -> BraxResult:
        return BraxResult(params, config, sizes, action_size, steps, list(history))

    def report(steps: int, metrics: Mapping[str, Any]) -> None:
        if restore is not None and steps == 0:
            return  # what was restored has been evaluated before
        row = {name: float(np.mean(value)) for name, value in metrics.items()}
        if not all(name.startswith("episode/") for name in row):
            history.append({"steps": before + steps, **row})
        if progress is not None:
            progress(before + steps, row)

    def hand_out(steps: int, _: Any, params: PyTree) -> None:
        if keep is not None and steps > 0:
            keep(result(params, before + steps))

    with device_put_replicated(ppo):
        _, params, _ = ppo.train(
            env,
            num_timesteps=config.num_timesteps,
            max_devices_per_host=config.devices,
            num_envs=config.num_envs,
            episode_length=config.episode_length or env.world.spec.horizon or 1000,
            wrap_env_fn=wrap_for_training,
            learning_rate=config.learning_rate,
            entropy_cost=config.entropy_cost,
            discounting=config.discounting,
            unroll_length=config.unroll_length,
            batch_size=config.batch_size,
            num_minibatches=config.num_minibatches,
            num_updates_per_batch=config.num_updates_per_batch,
            normalize_observations=True,
            reward_scaling=config.reward_scaling,
            clipping_epsilon=config.clipping_epsilon,
            gae_lambda=config.gae_lambda,
            max_grad_norm=config.max_grad_norm,
            vf_loss_coefficient=config.vf_loss_coefficient,
            network_factory=_factory(config, sizes),
            seed=_seed(config.seed, before),
            num_evals=config.num_evals,
            num_eval_envs=config.num_eval_envs,
            run_evals=config.run_evals,
            deterministic_eval=True,
            log_training_metrics=config.log_training_metrics,
            progress_fn=report,
            policy_params_fn=hand_out,
            restore_params=None if restore is None else restore.params,
        )
        jax.effects_barrier()  # what Brax tells of episodes may still be on its way
    return result(params, before + config.total_steps)


def blank_result(world: Environment | PureEnv, config: BraxConfig) -> BraxResult:
    """A result before any training: its arrays are zeros."""
    from worldloom.adapters.brax import BraxWildRobotWrapper

    env = BraxWildRobotWrapper(world)
    sizes, action_size = env.observation_size, env.action_size
    shapes = _blank_params(config, sizes, action_size)
    params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return BraxResult(params, config, sizes, action_size, 0)


# Files -----------------------------------------------------------------------------------------


def save(folder: Path, result: BraxResult) -> None:
    """Writes what Brax can restore, and its settings, into a run's folder: whole or not at all.

    One file of numpy, by one process: Brax hands out its parameters in the first one alone.
    """
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "config": dataclasses.asdict(result.config),
        "sizes": result.sizes,
        "action_size": result.action_size,
        "steps": result.steps,
        "history": result.history,
    }
    leaves, _ = jax.tree_util.tree_flatten_with_path(result.params)
    arrays = {jax.tree_util.keystr(where): np.asarray(leaf) for where, leaf in leaves}
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        np.savez(file, about=np.array(json.dumps(plain(about))), **arrays)  # pyright: ignore[reportArgumentType]
    beside.replace(path)


def load(folder: Path) -> BraxResult:
    """What `save` wrote last into a folder."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise ValueError(f"{path} does not exist: {folder} is not a run of Brax's PPO")
    try:
        with path.open("rb") as file, np.load(file) as stored:
            arrays = dict(stored)
        about = json.loads(arrays["about"].item())
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged; delete it and train from the start") from error
    widths = {name: tuple(about["config"][name]) for name in ("policy_hidden", "value_hidden")}
    config = BraxConfig(**(about["config"] | widths))
    sizes, action_size = about["sizes"], about["action_size"]
    if isinstance(sizes, dict):
        sizes = {name: tuple(shape) for name, shape in sizes.items()}
    blank = _blank_params(config, sizes, action_size)
    leaves, structure = jax.tree_util.tree_flatten_with_path(blank)
    params = structure.unflatten(
        jnp.asarray(arrays[jax.tree_util.keystr(where)]) for where, _ in leaves
    )
    return BraxResult(params, config, sizes, action_size, about["steps"], about["history"])


# Pieces ----------------------------------------------------------------------------------------


def _factory(config: BraxConfig, sizes: Any) -> Callable[..., Any]:
    """Brax's networks in the sizes of ours: orthogonal weights, a policy that starts near 0."""
    from brax.training.agents.ppo import networks

    apart = isinstance(sizes, Mapping) and "privileged_state" in sizes
    orthogonal, hidden = jax.nn.initializers.orthogonal, {"scale": math.sqrt(2.0)}
    return functools.partial(
        networks.make_ppo_networks,
        policy_hidden_layer_sizes=config.policy_hidden,
        value_hidden_layer_sizes=config.value_hidden,
        activation=ACTIVATIONS[config.activation],
        value_obs_key="privileged_state" if apart else "state",
        distribution_type=config.distribution,
        noise_std_type="log",
        init_noise_std=config.initial_std,
        policy_network_kernel_init_fn=orthogonal,
        policy_network_kernel_init_kwargs=hidden,
        value_network_kernel_init_fn=orthogonal,
        value_network_kernel_init_kwargs=hidden,
        mean_kernel_init_fn=orthogonal,
        mean_kernel_init_kwargs={"scale": 0.01},
    )


def _normalise() -> Callable[..., Any]:
    from brax.training.acme import running_statistics

    return running_statistics.normalize


def _blank_params(config: BraxConfig, sizes: Any, action_size: int) -> PyTree:
    """The arrays of (normaliser, policy, value) by shape and type alone."""
    from brax.training.acme import running_statistics

    def make(key: Array) -> PyTree:
        made = _factory(config, sizes)(sizes, action_size)
        shapes = sizes if isinstance(sizes, Mapping) else (sizes,)
        seen = jax.tree.map(jnp.zeros, shapes, is_leaf=lambda x: isinstance(x, tuple))
        normaliser = running_statistics.init_state(seen, std_eps=jnp.float32(0.0))  # pyright: ignore[reportArgumentType]
        return normaliser, made.policy_network.init(key), made.value_network.init(key)

    return jax.eval_shape(make, jax.random.key(0))


def _seed(seed: int, steps: int) -> int:
    """The seed itself at the start; one of its own for each point to go on from."""
    if steps == 0:
        return seed
    return int(np.random.SeedSequence([seed, steps]).generate_state(1)[0] >> 1)


def check_devices(config: BraxConfig) -> None:
    """Raises ValueError if this process cannot give Brax the devices that are asked for."""
    have = jax.local_device_count()
    if config.devices is not None and not 1 <= config.devices <= have:
        raise ValueError(f"brax: devices={config.devices}; this process has {have}")
    used = (config.devices or have) * jax.process_count()
    if config.num_envs % used:
        raise ValueError(f"brax: num_envs={config.num_envs} cannot be split over {used} devices")
    if config.batch_size % used:
        raise ValueError(
            f"brax: minibatches of batch_size={config.batch_size} unrolls cannot be split over "
            f"{used} devices; use a multiple of that"
        )


def _check_networks(old: BraxResult, config: BraxConfig, sizes: Any, action_size: int) -> None:
    if (old.sizes, old.action_size) != (sizes, action_size):
        raise ValueError(
            f"brax: what is to be restored sees {old.sizes} and gives {old.action_size} numbers; "
            f"this world has {sizes} and {action_size}"
        )
    for name in ("policy_hidden", "value_hidden", "activation", "distribution"):
        was, wanted = getattr(old.config, name), getattr(config, name)
        if was != wanted:
            raise ValueError(f"brax: {name}={wanted} does not fit what is restored; use {was}")
