"""Models for Sorrel's object loops: stateful shells over the pure agents and memories.

An experiment that builds `iRainbowModel` of Sorrel builds `JAXiRainbowModel` with the same
arguments instead; nothing else of its loop changes. What runs is the corrected algorithm (see
`mended`), with stacks that never mix epochs. `legacy=True` restores the original's arithmetic.
"""

import copyreg
import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from numpy.typing import ArrayLike, NDArray

from worldloom.algos.iqn import IQN, IQNConfig, midpoints
from worldloom.core.files import with_digest, without_digest, write_bytes
from worldloom.core.lazy import resolve
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.iqn import IQNJAX
from worldloom.replay.buffer import JAXBuffer

FORMAT = "worldloom model 2"
# What the original calls an option of `IQNConfig`.
IQN_NAMES = {
    "layer_size": "hidden",
    "n_quantiles": "num_quantiles",
    "n_step": "n_step",
    "batch_size": "batch_size",
    "LR": "learning_rate",
    "TAU": "target_rate",
    "GAMMA": "gamma",
}
_LOOP_NAMES = ("memory_size", "n_frames", "sync_freq", "device", "seed", "legacy")
_LOOP_NAMES += ("epsilon", "epsilon_min")
MINIBATCH = 64  # rows of a gradient step: a batch of so many times more serves so many steps
# Options of an algorithm that an object loop decides by itself, or names otherwise.
_OF_THE_LOOP = {"legacy", "epsilon", "epsilon_decay", "epsilon_min", "buffer_size"}
_OF_THE_LOOP |= {"gradient_steps", "unroll_length", "learning_starts", "epsilon_steps"}


def mended(config: IQNConfig) -> IQNConfig:
    """What the original's `config` asks for, without its faults.

    `n_step` stays what it is there, a power of gamma: the value after one step is discounted by
    gamma ** n_step, and no rewards are summed. Sums over random actions blur what the first of
    them is worth: with one gradient step an epoch, 400 epochs of them taught next to nothing. A
    large batch serves several gradient steps of `MINIBATCH` rows instead of one. Weights are not
    perturbed, which explores nothing where acting is without noise.
    """
    steps = 1 if config.batch_size % MINIBATCH else config.batch_size // MINIBATCH
    return dataclasses.replace(
        config,
        gamma=config.gamma**config.n_step,
        n_step=1,
        batch_size=config.batch_size // steps,
        gradient_steps=config.gradient_steps * steps,
        act_quantiles=config.num_quantiles,
        act_levels="midpoints",
        levels="shared",
        noisy=False,
        legacy=False,
    )


def _options(config: Any) -> dict[str, Any]:
    """An algorithm's own options, as JSON has them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(config).items()
        if name not in _OF_THE_LOOP
    }


def _learner_part(name: str, missing: Callable[[Any], PyTree] = lambda learner: None) -> Any:
    """A part of a model's learner, to read and to replace; `missing` where an agent has none."""

    def read(model: "JAXModel") -> PyTree:
        return getattr(model.learner, name, missing(model.learner))

    def write(model: "JAXModel", value: PyTree) -> None:
        model.learner = model.learner.replace(**{name: value})

    return property(read, write)


class JAXModel:
    """Any agent of `worldloom.algos` as a model that an object loop can drive.

    Args:
        input_size: features of one frame, or its shape.
        action_space: how many actions there are.
        agent: the algorithm; its config also decides batch size, n_step and gamma.
        sync_freq: epochs between hard copies of the local to the target parameters; 0: never.
        updates: gradient steps in one `train_step`, each from a batch of its own.
        device: None for JAX's default, "cpu", "cuda", "cuda:1", or a jax.Device.
        seed: decides everything random about the model; None is 0.

    Attributes:
        memory: a `JAXBuffer` of the model's own frames.
        epsilon: the chance of a random action.
        learner: the agent's whole learning state; `local_params`, `target_params` and
            `opt_state` are its parts.
        rng_key: the typed key that the next random choice is drawn from.
    """

    def __init__(
        self,
        input_size: int | Sequence[int],
        action_space: int,
        agent: Any,
        *,
        memory_size: int = 1024,
        n_frames: int = 1,
        legacy: bool = False,
        device: Any = None,
        epsilon: float = 0.0,
        epsilon_min: float = 0.0,
        seed: int | None = 0,
        sync_freq: int = 0,
        updates: int = 1,
    ) -> None:
        for name, chance in (("epsilon", epsilon), ("epsilon_min", epsilon_min)):
            if not 0.0 <= chance <= 1.0:
                raise ValueError(f"{self.model_name}: {name}={chance:g}; it must be in [0, 1]")
        self.input_size, self.action_space = input_size, int(action_space)
        self.agent, self.n_frames, self.legacy = agent, n_frames, legacy
        self.epsilon, self.epsilon_min, self.sync_freq = epsilon, epsilon_min, sync_freq
        self.updates = updates
        self.device = _device(device)
        self.features = int(np.prod(input_size))
        config = agent.config
        init_key, self.rng_key, memory_key = jax.device_put(
            tuple(jax.random.split(_key(seed), 3)), self.device
        )
        blank = jnp.zeros((1, n_frames, self.features), jnp.float32)
        self.learner: Any = jax.device_put(_init(agent, init_key, blank), self.device)
        sizes = memory_size, self.features, n_frames, config.n_step, config.gamma, legacy
        self.memory = JAXBuffer(*sizes, device=self.device)
        self.memory.key = memory_key

    # What an object loop calls -------------------------------------------------------------------

    def take_action(self, state: ArrayLike) -> int:
        """An epsilon-greedy action for a stack of frames, oldest first, the present one last.

        Any shape with n_frames * features numbers, such as `memory.current_state()` and the
        present frame put together.
        """
        self.rng_key, action = _act(
            self.agent, self.learner.params, self.frames(state), self.rng_key, self.epsilon
        )
        return int(action)

    def frames(self, state: ArrayLike) -> NDArray[np.float32]:
        """A stack of frames as the network takes it, (1, n_frames, features)."""
        numbers = np.asarray(state, np.float32)
        if numbers.size != self.n_frames * self.features:
            raise ValueError(
                f"{self.model_name}.take_action: the state has {numbers.size} numbers; this model "
                f"takes {self.n_frames} frames of {self.features}, the present one last"
            )
        if not np.isfinite(numbers).all():
            raise ValueError(f"{self.model_name}.take_action: the state is not finite throughout")
        return numbers.reshape(1, self.n_frames, self.features)

    def train_step(self) -> float:
        """`updates` from memory; their mean loss, or 0.0 while the memory holds too little."""
        if not self.can_train():
            return 0.0
        self.learner, self.rng_key, loss = _learn(
            *self.form[:3], self.learner, self.memory.state, self.rng_key
        )
        return float(loss)

    def can_train(self) -> bool:
        """Whether the memory holds as many different windows as a `train_step` takes."""
        return self.memory.can_sample(self.agent.config.batch_size * self.updates)

    @property
    def form(self) -> tuple[Any, ...]:
        """What models must share to be served by one compiled call."""
        return self.agent, self.memory.ring, self.updates, self.features, self.device

    def start_epoch_action(self, **kwargs: Any) -> None:
        """Closes the last epoch in memory, and syncs the target if `epoch` says it is time."""
        self.memory.add_empty()
        if self.sync_freq and kwargs.get("epoch", 1) % self.sync_freq == 0:
            self.sync_target()

    def end_epoch_action(self, **kwargs: Any) -> None:
        """Nothing is left to do when an epoch ends."""

    def reset(self) -> None:
        """A new world begins: what was remembered stays, but no stack reaches back into it."""
        if not self.legacy:
            self.memory.add_empty()

    def epsilon_decay(self, decay_rate: float) -> None:
        """Lowers epsilon by a share of itself, down to `epsilon_min`."""
        self.epsilon = max(self.epsilon * (1.0 - decay_rate), self.epsilon_min)

    def set_epsilon(self, new_epsilon: float) -> None:
        """Replaces epsilon."""
        self.epsilon = new_epsilon

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A pickled or copied model, back on its device."""
        vars(self).update(state)
        self.learner, self.rng_key, self.memory.state, self.memory.key = jax.device_put(
            (self.learner, self.rng_key, self.memory.state, self.memory.key), self.device
        )

    # Parts of the learner ------------------------------------------------------------------------

    @property
    def model_name(self) -> str:
        return type(self).__name__

    local_params = params = _learner_part("params")
    target_params = _learner_part("target", lambda learner: learner.params)
    opt_state = _learner_part("opt_state", lambda learner: ())

    def sync_target(self) -> None:
        """The hard copy of the local parameters to the target, where there is one."""
        if hasattr(self.learner, "target"):
            self.target_params = self.local_params

    # Files ---------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """What a file must agree with to be loaded; epsilon, seed and device may differ."""
        return {
            "algorithm": type(self.agent).__name__,
            "input_size": np.atleast_1d(self.input_size).tolist(),
            "action_space": self.action_space,
            "n_frames": self.n_frames,
            "memory_size": self.memory.capacity,
            "sync_freq": self.sync_freq,
            "legacy": self.legacy,
            "updates": self.updates,
        } | _options(self.agent.config)

    def save(self, file_path: str | os.PathLike[str]) -> None:
        """Writes everything that decides what comes next: learner, memory, keys and epsilon.

        The file appears whole or not at all.
        """
        content = {
            "format": FORMAT,
            "settings": self.settings(),
            "epsilon": float(self.epsilon),
            "opens": self.memory.opens,
            "keys": [np.asarray(jax.random.key_data(k)) for k in (self.rng_key, self.memory.key)],
            "learner": serialization.to_state_dict(self.learner),
            "memory": serialization.to_state_dict(self.memory.state),
        }
        path = Path(file_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, with_digest(serialization.msgpack_serialize(content)))

    def load(self, file_path: str | os.PathLike[str]) -> None:
        """Takes up a saved model bit for bit; a file that does not fit changes nothing."""
        data = Path(file_path).read_bytes()
        try:
            content: Any = serialization.msgpack_restore(without_digest(data))
            known = content["format"] == FORMAT
        except Exception as error:
            raise ValueError(
                f"{file_path}: not a saved model, or cut off or damaged since; save it again"
            ) from error
        if not known:
            raise ValueError(f"{file_path}: format {content['format']!r}; {FORMAT!r} is known here")
        # What is newer than the file was as it is by default.
        saved = {"updates": 1} | _options(type(self.agent.config)()) | content["settings"]
        ours = self.settings()
        names = [n for n in sorted({**saved, **ours}) if saved.get(n) != ours.get(n)]
        if names:
            differences = ", ".join(f"{n}={saved.get(n)} (here {ours.get(n)})" for n in names)
            raise ValueError(
                f"{file_path}: saved with {differences}; build the model with the saved settings"
            )
        learner = serialization.from_state_dict(self.learner, content["learner"])
        memory = serialization.from_state_dict(self.memory.state, content["memory"])
        keys = [jax.random.wrap_key_data(k) for k in content["keys"]]
        self.learner, self.memory.state, (self.rng_key, self.memory.key) = jax.device_put(
            (jax.tree.map(jnp.asarray, learner), jax.tree.map(jnp.asarray, memory), keys),
            self.device,
        )
        self.memory.opens, self.epsilon = content["opens"], content["epsilon"]

    def __str__(self) -> str:
        return (
            f"{self.model_name}(input_size={self.features * self.n_frames}, "
            f"action_space={self.action_space})"
        )


class JAXiRainbowModel(JAXModel):
    """Sorrel's "iRainbow": double IQN with noisy, dueling heads.

    The arguments are the original's and mean what they mean there, but for what `mended` says.
    `model_update_freq` is kept and, as there, never read: the loop decides how often to call
    `train_step`. `legacy=True` learns and acts as the original does (see `worldloom.algos.iqn` and
    `worldloom.replay.legacy`). For returns that sum the rewards of several steps, give a
    `JAXModel` an agent `IQN(IQNConfig(n_step=3, ...), actions)`.
    """

    def __init__(
        self,
        input_size: int | Sequence[int],
        action_space: int,
        layer_size: int = 250,
        epsilon: float = 1.0,
        device: Any = None,
        seed: int | None = 0,
        n_frames: int = 5,
        n_step: int = 3,
        sync_freq: int = 200,
        model_update_freq: int = 4,
        batch_size: int = 64,
        memory_size: int = 1024,
        LR: float = 0.001,
        TAU: float = 0.001,
        GAMMA: float = 0.99,
        n_quantiles: int = 12,
        *,
        epsilon_min: float = 0.0,
        legacy: bool = False,
    ) -> None:
        given = locals()
        options = {name: given[original] for original, name in IQN_NAMES.items()}
        config = dataclasses.replace(IQNConfig.original(), sync_epochs=0, **options)
        config = config if legacy else mended(config)
        super().__init__(
            input_size,
            action_space,
            IQN(config, int(action_space)),
            updates=config.gradient_steps,
            **{n: given[n] for n in _LOOP_NAMES},
        )
        self.layer_size, self.n_step, self.n_quantiles = layer_size, n_step, n_quantiles
        self.batch_size, self.model_update_freq = batch_size, model_update_freq
        self.LR, self.TAU, self.GAMMA = LR, TAU, GAMMA

    @property
    def qnetwork_local(self) -> "QNetwork":
        return QNetwork(self.agent.network, self.local_params, self.n_quantiles)

    @property
    def qnetwork_target(self) -> "QNetwork":
        return dataclasses.replace(self.qnetwork_local, params=self.target_params)


JAXIQN = JAXiRainbowModel


@dataclasses.dataclass(frozen=True)
class QNetwork:
    """A network with the parameters it had when it was asked for, noise off."""

    module: IQNJAX
    params: PyTree
    n_quantiles: int

    def __call__(self, states: ArrayLike, taus: ArrayLike | None = None) -> tuple[Array, Array]:
        """Quantiles (B, N, actions) of states (B, features), and their levels (N,) or (B, N)."""
        levels = midpoints(self.n_quantiles) if taus is None else jnp.asarray(taus)
        return _apply(self.module, self.params, jnp.asarray(states, jnp.float32), levels), levels

    def get_qvalues(self, states: ArrayLike, taus: ArrayLike | None = None) -> Array:
        """Expected returns (B, actions): the mean over the levels."""
        return self(states, taus)[0].mean(axis=1)


# Compiled once for each configuration, shared by all models of it. --------------------------------


@partial(jax.jit, static_argnums=0)
def _init(agent: Any, key: Key, obs: Array) -> PyTree:
    return agent.init(key, obs)


def act_once(agent: Any, params: PyTree, obs: Array, key: Key, epsilon: Array) -> tuple[Key, Array]:
    """The next key, and one model's action () for obs (1, frames, features)."""
    key, act_key = jax.random.split(key)
    return key, agent.act(params, obs, act_key, explore=epsilon)[0][0]


def learn_once(
    agent: Any, ring: Any, updates: int, learner: PyTree, memory: PyTree, key: Key
) -> tuple[PyTree, Key, Array]:
    """One model's learner after `updates` from its memory, the next key, and the mean loss."""

    def update(learner: PyTree, key: Key) -> tuple[PyTree, Array]:
        sample_key, update_key = jax.random.split(key)
        batch = ring.sample(memory, sample_key, agent.config.batch_size)
        learner, metrics = agent.update(learner, batch, update_key)
        return learner, metrics.loss

    key, *update_keys = jax.random.split(key, 1 + updates)
    learner, losses = jax.lax.scan(update, learner, jnp.stack(update_keys))
    return learner, key, losses.mean()


_act = jax.jit(act_once, static_argnums=0)
_learn = jax.jit(learn_once, static_argnums=(0, 1, 2))


@partial(jax.jit, static_argnums=0)
def _apply(module: IQNJAX, params: PyTree, states: Array, levels: Array) -> Array:
    quantiles: Any = module.apply(params, states, levels)
    return quantiles


def _key(seed: int | None) -> Key:
    """A key for any whole number: Sorrel passes seeds of 64 bits."""
    low, high = (seed or 0) % 2**32, (seed or 0) // 2**32 % 2**32
    return jax.random.fold_in(jax.random.key(low), high)


def _device(device: Any) -> Any:
    """The jax.Device of that name; None stays JAX's own choice."""
    if device is None or isinstance(device, jax.Device):
        return device
    platform, _, number = str(device).partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        here = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
        raise ValueError(f"device={str(device)!r} is not here; JAX sees {here}") from error


# A device is pickled by its name, and found again by it.
copyreg.pickle(jax.Device, lambda device: (_device, (f"{device.platform}:{device.id}",)))

# What the original's users find beside its models, imported when it is first asked for: the
# experiment trains and draws, which are layers above this one.
_LATER = {
    "parallel_take_actions": "worldloom.adapters.sorrel_parallel:parallel_take_actions",
    "parallel_train_agents": "worldloom.adapters.sorrel_parallel:parallel_train_agents",
    "TreasurehuntExperiment": "worldloom.suites.grid.experiment:TreasurehuntExperiment",
    "TreasurehuntEnv": "worldloom.suites.grid.experiment:TreasurehuntEnv",
    "TreasurehuntWorld": "worldloom.suites.grid.experiment:TreasurehuntWorld",
    "EmptyEntity": "worldloom.suites.grid.object_world:EmptyEntity",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve(_LATER[name])
