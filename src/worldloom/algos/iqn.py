"""Double IQN: implicit quantile networks (Dabney et al. 2018) with a double-Q target.

`legacy=True` is the arithmetic of Sorrel's "iRainbow" model, for parity and honest comparison:
loss averaged over everything, soft and hard target updates at once, random levels and noisy
weights in every pass, 256 random levels when acting. The memory supplies its gamma ** n_step.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.metrics import LearnMetrics
from worldloom.core import draws
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.iqn import IQNJAX, Noise
from worldloom.nn.values import epsilon_greedy, flatten, huber, num_actions, take_action

# Levels and weight noise of the three passes of a loss: online(s), online(s'), target(s').
Levels = dict[str, Array]
Noises = dict[str, Noise | None]
PASSES = ("online", "select", "target")


@dataclass(frozen=True)
class IQNConfig:
    """Every option of the algorithm.

    levels: "shared" draws one set of stratified quantile levels for the whole batch, "own" a
    fresh uniform set for every row (the paper's). noisy: perturb weights when learning.
    target_rate: share of the online parameters that flows into the target in each update.
    """

    hidden: int = 64
    num_quantiles: int = 8
    act_quantiles: int = 8
    levels: Literal["shared", "own"] = "shared"
    noisy: bool = False
    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    gamma: float = 0.9
    n_step: int = 1
    target_rate: float = 0.05
    sync_epochs: int = 0  # also copy online to target every so many epochs; 0: never
    batch_size: int = 64
    legacy: bool = False

    @classmethod
    def original(cls) -> "IQNConfig":
        """The configuration of the original treasure hunt."""
        return cls(
            hidden=250, num_quantiles=12, act_quantiles=256, levels="own", noisy=True,
            learning_rate=2.5e-4, max_grad_norm=1.0, gamma=0.99, n_step=3, target_rate=1e-3,
            sync_epochs=200, batch_size=256, legacy=True,
        )  # fmt: skip

    def __post_init__(self):
        for name in ("hidden", "num_quantiles", "act_quantiles", "n_step", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"iqn: {name}={getattr(self, name)}; it must be at least 1")
        for name in ("gamma", "target_rate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"iqn: {name}={getattr(self, name):g}; it must be in [0, 1]")
        for name in ("learning_rate", "max_grad_norm"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"iqn: {name}={getattr(self, name):g}; it must be positive")


class IQNLearner(struct.PyTreeNode):
    params: PyTree
    target: PyTree
    opt_state: PyTree
    updates: Array


@dataclass(frozen=True)
class IQN:
    """One agent as pure functions; `worldloom.algos.independent` lifts it over many."""

    config: IQNConfig
    num_actions: int

    @property
    def network(self) -> IQNJAX:
        return IQNJAX(self.num_actions, self.config.hidden, noisy=self.config.noisy)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        # One flat vector instead of a dozen small arrays: a quarter of the kernels to compile.
        return optax.flatten(
            optax.chain(
                optax.clip_by_global_norm(self.config.max_grad_norm),
                optax.adam(self.config.learning_rate),
            )
        )

    def init(self, key: Key, spec: EnvSpec) -> IQNLearner:
        obs = jnp.zeros((1, *spec.observation.shape), spec.observation.dtype)
        params = self.network.init(key, flatten(obs), midpoints(self.config.num_quantiles))
        # The target starts equal, in buffers of its own, so that both can be donated.
        target = jax.tree.map(jnp.copy, params)
        return IQNLearner(params, target, self.optimiser.init(params), jnp.int32(0))

    # Acting ------------------------------------------------------------------------------------

    def act(
        self, params: PyTree, obs: Array, key: Key, *, explore: Array | float = 0.0
    ) -> tuple[Array, Array]:
        """Actions (B,) and their values (B, actions) for obs (B, frames, *frame).

        Levels are the midpoints of equal strata, so that greedy actions carry no noise.
        """
        explore_key, level_key = jax.random.split(key)
        taus = midpoints(self.config.act_quantiles)
        if self.config.legacy:
            taus = draws.uniform(level_key, (obs.shape[0], self.config.act_quantiles))
        q = self.network.apply(params, flatten(obs), taus, method=IQNJAX.get_qvalues)
        return epsilon_greedy(q, explore_key, explore), q

    # Learning ----------------------------------------------------------------------------------

    def loss(
        self,
        params: PyTree,
        target: PyTree,
        batch: Batch,
        taus: Levels,
        noises: Noises,
    ) -> tuple[Array, Array]:
        """Quantile Huber loss with a double-Q target, and the mean value of the actions taken."""

        def quantiles(weights, obs, name):  # (B, N, actions)
            return self.network.apply(weights, flatten(obs), taus[name], noises[name])

        best = jax.lax.stop_gradient(
            self.network.apply(
                params, flatten(batch.next_obs), taus["select"], noises["select"],
                method=IQNJAX.get_qvalues,
            )
        ).argmax(axis=-1)  # fmt: skip
        after = take_action(quantiles(target, batch.next_obs, "target"), best)  # (B, N')
        aim = batch.reward[:, None] + batch.discount[:, None] * jax.lax.stop_gradient(after)
        now = take_action(quantiles(params, batch.obs, "online"), batch.action)  # (B, N)
        loss = quantile_huber(now, aim, taus["online"])  # (B, N, N')
        if self.config.legacy:
            return loss.mean(), now.mean()
        return loss.mean(axis=2).sum(axis=1).mean(), now.mean()  # eq. 3 of the paper

    def draw(self, key: Key) -> tuple[Levels, Noises]:
        """Levels and noise for one loss."""
        config = self.config
        level_key, noise_key = jax.random.split(key)
        if config.levels == "own":
            shape = (len(PASSES), config.batch_size, config.num_quantiles)
            taus = draws.uniform(level_key, shape)
        else:
            jitter = draws.uniform(level_key, (len(PASSES), config.num_quantiles))
            taus = (jnp.arange(config.num_quantiles) + jitter) / config.num_quantiles
        noises: Noises = dict.fromkeys(PASSES)
        if config.noisy:
            keys = jax.random.split(noise_key, len(PASSES))
            noises = {n: self.network.sample_noise(k) for n, k in zip(PASSES, keys, strict=True)}
        return dict(zip(PASSES, taus, strict=True)), noises

    def update(
        self, learner: IQNLearner, batch: Batch, key: Key
    ) -> tuple[IQNLearner, LearnMetrics]:
        """One gradient step, then the target follows."""
        taus, noises = self.draw(key)
        grad = jax.value_and_grad(self.loss, has_aux=True)
        (loss, q_mean), grads = grad(learner.params, learner.target, batch, taus, noises)
        steps, opt_state = self.optimiser.update(grads, learner.opt_state, learner.params)
        params = optax.apply_updates(learner.params, steps)
        target = optax.incremental_update(params, learner.target, self.config.target_rate)
        metrics = LearnMetrics(loss, optax.tree.norm(grads), q_mean)
        return IQNLearner(params, target, opt_state, learner.updates + 1), metrics

    def start_epoch(self, learner: IQNLearner, epoch: Array) -> IQNLearner:
        """The hard target copy, where the configuration asks for one."""
        if not self.config.sync_epochs:
            return learner
        sync = epoch % self.config.sync_epochs == 0
        target = jax.tree.map(lambda p, t: jnp.where(sync, p, t), learner.params, learner.target)
        return learner.replace(target=target)


def midpoints(n: int) -> Array:
    """The middles of n equal parts of [0, 1]."""
    return (jnp.arange(n, dtype=jnp.float32) + 0.5) / n


def quantile_huber(now: Array, aim: Array, taus: Array) -> Array:
    """|tau - 1{aim < now}| huber(aim - now), (B, N, N'), for now (B, N) and aim (B, N')."""
    error = aim[:, None, :] - now[:, :, None]
    taus = jnp.broadcast_to(taus, now.shape)[:, :, None]
    return jnp.abs(taus - (error < 0.0)) * huber(error)


def make(config: IQNConfig, spec: EnvSpec) -> IQN:
    """The agent for a world of `spec`."""
    return IQN(config, num_actions(spec))
