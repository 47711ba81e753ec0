"""Double IQN: implicit quantile networks (Dabney et al. 2018) with a double-Q target.

`legacy=True` is the arithmetic of Sorrel's "iRainbow" model, for parity and honest comparison:
loss averaged over everything, soft and hard target updates at once, random levels and noisy
weights in every pass, 256 random levels when acting. The memory supplies its gamma ** n_step.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from worldloom.algos import targets
from worldloom.algos.metrics import LearnMetrics
from worldloom.algos.targets import TargetLearner
from worldloom.core import draws, stack
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.iqn import IQNJAX, Noise
from worldloom.nn.values import (
    blank_observation,
    epsilon_greedy,
    flatten,
    huber,
    num_actions,
    take_action,
    weighted,
)

# Levels and weight noise of the three passes of a loss: online(s), online(s'), target(s').
Levels = dict[str, Array]
Noises = dict[str, Noise | None]
PASSES = ("online", "select", "target")
LEVELS = ("shared", "own")
ACT_LEVELS = ("midpoints", "random")


@dataclass(frozen=True)
class IQNConfig:
    """Every option of the algorithm.

    levels: "shared" draws one set of stratified quantile levels for the whole batch, "own" a
    fresh uniform set for every row (the paper's). act_levels: with the midpoints of equal strata
    greedy actions carry no noise; the original draws at random. noisy: perturb weights when
    learning. target_rate: share of the online parameters that flows into the target in each
    update.
    """

    hidden: int = 64
    num_quantiles: int = 4
    act_quantiles: int = 4
    act_levels: Literal["midpoints", "random"] = "midpoints"
    levels: Literal["shared", "own"] = "shared"
    noisy: bool = False
    learning_rate: float = 2e-3
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
            hidden=250, num_quantiles=12, act_quantiles=256, act_levels="random", levels="own",
            noisy=True, learning_rate=2.5e-4, max_grad_norm=1.0, gamma=0.99, n_step=3,
            target_rate=1e-3, sync_epochs=200, batch_size=256, legacy=True,
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
        if self.sync_epochs < 0:
            raise ValueError(f"iqn: sync_epochs={self.sync_epochs}; use 0 for never, or 1 and more")
        for name, known in (("levels", LEVELS), ("act_levels", ACT_LEVELS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"iqn: {name}={getattr(self, name)!r}; use {' or '.join(map(repr, known))}"
                )


@dataclass(frozen=True)
class IQN:
    """One agent as pure functions; `worldloom.algos.independent` lifts it over many."""

    config: IQNConfig
    num_actions: int

    @property
    def activations(self) -> int:
        """Numbers in the widest layer of one update: how much one agent asks of the caches."""
        return self.config.batch_size * self.config.num_quantiles * self.config.hidden

    @property
    def network(self) -> IQNJAX:
        return IQNJAX(self.num_actions, self.config.hidden, noisy=self.config.noisy)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return targets.clipped_adam(self.config.learning_rate, self.config.max_grad_norm)

    def init(self, key: Key, spec: EnvSpec) -> TargetLearner:
        """A learner with fresh parameters, and a target equal to them."""
        obs = flatten(blank_observation(spec))
        params = self.network.init(key, obs, midpoints(self.config.num_quantiles))
        return targets.start(params, self.optimiser)

    # Acting ------------------------------------------------------------------------------------

    def act(
        self, params: PyTree, obs: Array, key: Key, *, explore: Array | float = 0.0
    ) -> tuple[Array, Array]:
        """Actions (B,) and their values (B, actions) for obs (B, frames, *frame)."""
        explore_key, level_key = draws.split(key)
        taus = midpoints(self.config.act_quantiles)
        if self.config.act_levels == "random":
            taus = draws.uniform(level_key, (obs.shape[0], self.config.act_quantiles))
        q: Any = self.network.apply(params, flatten(obs), taus, method=IQNJAX.get_qvalues)
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

        def network(weights, obs, name, method=IQNJAX.__call__) -> Any:
            return self.network.apply(
                weights, flatten(obs), taus[name], noises[name], method=method
            )

        q = network(params, batch.next_obs, "select", IQNJAX.get_qvalues)  # (B, actions)
        best = jax.lax.stop_gradient(q).argmax(axis=-1)
        after = take_action(network(target, batch.next_obs, "target"), best)  # (B, N')
        aim = batch.reward[:, None] + batch.discount[:, None] * jax.lax.stop_gradient(after)
        now = take_action(network(params, batch.obs, "online"), batch.action)  # (B, N)
        loss = weighted(quantile_huber(now, aim, taus["online"]), batch)  # (B, N, N')
        if self.config.legacy:
            return loss.mean(), now.mean()
        return loss.mean(axis=2).sum(axis=1).mean(), now.mean()  # eq. 3 of the paper

    def draw(self, key: Key, rows: int) -> tuple[Levels, Noises]:
        """Levels and noise for one loss of a batch of `rows`."""
        config = self.config
        level_key, noise_key = draws.split(key)
        if config.levels == "own":
            shape = (len(PASSES), rows, config.num_quantiles)
            taus = draws.uniform(level_key, shape)
        else:
            jitter = draws.uniform(level_key, (len(PASSES), config.num_quantiles))
            taus = (jnp.arange(config.num_quantiles) + jitter) / config.num_quantiles
        noises: Noises = dict.fromkeys(PASSES)
        if config.noisy:
            keys = draws.split(noise_key, len(PASSES))
            drawn = jax.vmap(self.network.sample_noise)(keys)
            noises = {name: stack.index(drawn, n) for n, name in enumerate(PASSES)}
        return dict(zip(PASSES, taus, strict=True)), noises

    def update(
        self, learner: TargetLearner, batch: Batch, key: Key
    ) -> tuple[TargetLearner, LearnMetrics]:
        """One gradient step, then the target follows."""
        taus, noises = self.draw(key, batch.reward.shape[0])

        def loss(params):
            return self.loss(params, learner.target, batch, taus, noises)

        return targets.descend(learner, loss, self.optimiser, self.config.target_rate)

    def start_epoch(self, learner: TargetLearner, epoch: Array) -> TargetLearner:
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
