"""Double IQN: implicit quantile networks (Dabney et al. 2018) with a double-Q target.

`legacy=True` is the arithmetic of Sorrel's "iRainbow" model, for parity and honest comparison:
loss averaged over everything, soft and hard target updates at once, random levels and noisy
weights in every pass, 256 random levels when acting. The memory supplies its gamma ** n_step.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from worldloom.algos.algorithm import DISCRETE, Algorithm
from worldloom.algos.config import at_least, choice, positive
from worldloom.algos.off_policy import (
    LearnMetrics,
    TargetLearner,
    TargetNetworkAgent,
    TargetNetworkConfig,
)
from worldloom.core import draws, stack
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.iqn import IQNJAX, Noise, Taus
from worldloom.nn.networks import Networks
from worldloom.nn.values import epsilon_greedy, huber, take_action, weighted

# Levels and weight noise of the three passes of a loss: online(s), online(s'), target(s').
Levels = dict[str, Taus]
Noises = dict[str, Noise | None]
PASSES = ("online", "select", "target")


@dataclass(frozen=True)
class IQNConfig(TargetNetworkConfig):
    """Options of the algorithm.

    levels: "shared" draws one set of stratified quantile levels for the whole batch, "own" a
    fresh uniform set for every row (the paper's). act_levels: with the midpoints of equal strata
    greedy actions carry no noise; the original draws at random. noisy: perturb weights when
    learning. sync_epochs: also copy online to target every so many iterations; 0: never.
    """

    hidden: int = at_least(1, 64)
    num_quantiles: int = at_least(1, 4)
    act_quantiles: int = at_least(1, 4)
    act_levels: Literal["midpoints", "random"] = choice("midpoints", ("midpoints", "random"))
    levels: Literal["shared", "own"] = choice("shared", ("shared", "own"))
    noisy: bool = False
    learning_rate: float = positive(2e-3)
    sync_epochs: int = at_least(0, 0)
    legacy: bool = False

    @classmethod
    def original(cls) -> "IQNConfig":
        """The configuration of the original treasure hunt, for one world."""
        return cls(
            hidden=250,
            num_quantiles=12,
            act_quantiles=256,
            act_levels="random",
            levels="own",
            noisy=True,
            learning_rate=2.5e-4,
            max_grad_norm=1.0,
            gamma=0.99,
            n_step=3,
            target_rate=1e-3,
            sync_epochs=200,
            batch_size=256,
            buffer_size=1024,
            gradient_steps=1,
            epsilon_decay=0.001,
            epsilon_min=0.0,
            legacy=True,
        )


@dataclass(frozen=True)
class IQN(TargetNetworkAgent):
    """One agent as pure functions; `worldloom.algos.independent` lifts it over many."""

    @classmethod
    def make(cls, config: IQNConfig, spec: EnvSpec, networks: Networks) -> Self:
        """The agent for a world of `spec`."""
        if networks.masked or networks.q_values is not None:
            raise ValueError(
                f"iqn: {spec.name} brings a network of its own or forbids actions, and the "
                "quantile network can use neither; use dqn"
            )
        return super().make(config, spec, networks)

    @property
    def activations(self) -> int:
        """Numbers in the widest layer of one update: how much one agent asks of the caches."""
        return self.config.batch_size * self.config.num_quantiles * self.config.hidden

    @property
    def network(self) -> IQNJAX:
        return IQNJAX(self.num_actions, self.config.hidden, noisy=self.config.noisy)

    def init(self, key: Key, obs: PyTree) -> TargetLearner:
        """A learner for observations like obs (B, ...), with a target equal to its parameters."""
        inputs = self.networks.encode(obs)
        params = self.network.init(key, inputs, midpoints(self.config.num_quantiles))
        return self.start(params)

    # Acting ------------------------------------------------------------------------------------

    def act(
        self, params: PyTree, obs: PyTree, key: Key, *, explore: Float[Array, ""] | float = 0.0
    ) -> tuple[Int[Array, " B"], Float[Array, "B actions"]]:
        """Actions and their values for obs (B, ...)."""
        explore_key, level_key = draws.split(key)
        inputs = self.networks.encode(obs)
        taus = midpoints(self.config.act_quantiles)
        if self.config.act_levels == "random":
            taus = draws.uniform(level_key, (inputs.shape[0], self.config.act_quantiles))
        q: Any = self.network.apply(params, inputs, taus, method=IQNJAX.get_qvalues)
        return epsilon_greedy(q, explore_key, explore), q

    # Learning ----------------------------------------------------------------------------------

    def loss(
        self, params: PyTree, target: PyTree, batch: Batch, taus: Levels, noises: Noises
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Quantile Huber loss with a double-Q target, and the mean value of the actions taken."""

        def network(weights, obs, name, method=IQNJAX.__call__) -> Any:
            inputs = self.networks.encode(obs)
            return self.network.apply(weights, inputs, taus[name], noises[name], method=method)

        q = network(params, batch.next_obs, "select", IQNJAX.get_qvalues)  # (B, actions)
        best = jax.lax.stop_gradient(q).argmax(axis=-1)
        after = take_action(network(target, batch.next_obs, "target"), best)  # (B, N')
        td_target = batch.reward[:, None] + batch.discount[:, None] * jax.lax.stop_gradient(after)
        quantiles = take_action(network(params, batch.obs, "online"), batch.action)  # (B, N)
        loss = weighted(quantile_huber(quantiles, td_target, taus["online"]), batch)  # (B, N, N')
        if self.config.legacy:
            return loss.mean(), quantiles.mean()
        return loss.mean(axis=2).sum(axis=1).mean(), quantiles.mean()  # eq. 3 of the paper

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
        return self.gradient_step(learner, batch, *self.draw(key, batch.reward.shape[0]))

    def start_epoch(self, learner: TargetLearner, epoch: Int[Array, ""]) -> TargetLearner:
        """The hard target copy, where the configuration asks for one."""
        if not self.config.sync_epochs:
            return learner
        sync = epoch % self.config.sync_epochs == 0
        target = jax.tree.map(lambda p, t: jnp.where(sync, p, t), learner.params, learner.target)
        return learner.replace(target=target)


def midpoints(n: int) -> Float[Array, " n"]:
    """The middles of n equal parts of [0, 1]."""
    return (jnp.arange(n, dtype=jnp.float32) + 0.5) / n


def quantile_huber(
    quantiles: Float[Array, "B N"], td_target: Float[Array, "B M"], taus: Taus
) -> Float[Array, "B N M"]:
    """|tau - 1{error < 0}| huber(error) of each quantile to each target."""
    error = td_target[:, None, :] - quantiles[:, :, None]
    taus = jnp.broadcast_to(taus, quantiles.shape)[:, :, None]
    return jnp.abs(taus - (error < 0.0)) * huber(error)


ABOUT = ("iqn", "double IQN: learns the spread of returns", "off_policy", DISCRETE)
ALGORITHM = Algorithm(*ABOUT, IQNConfig, IQN.make)
