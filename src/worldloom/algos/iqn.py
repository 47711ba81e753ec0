"""Double IQN: implicit quantile networks (Dabney et al. 2018) with a double-Q target.

`legacy=True` is the arithmetic of Sorrel's "iRainbow" model, for parity and honest comparison:
loss averaged over everything, soft and hard target updates at once, random levels and noisy
weights in every pass, 256 random levels when acting. The memory supplies its gamma ** n_step.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from worldloom.algos import targets
from worldloom.algos.algorithm import Algorithm
from worldloom.algos.metrics import LearnMetrics
from worldloom.algos.off_policy import EpsilonGreedyConfig
from worldloom.algos.targets import TargetLearner
from worldloom.core import draws, stack
from worldloom.core.checks import check_fields
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.iqn import IQNJAX, Noise
from worldloom.nn.networks import Networks
from worldloom.nn.values import epsilon_greedy, huber, num_actions, take_action, weighted

# Levels and weight noise of the three passes of a loss: online(s), online(s'), target(s').
Levels = dict[str, Array]
Noises = dict[str, Noise | None]
PASSES = ("online", "select", "target")
LEVELS = ("shared", "own")
ACT_LEVELS = ("midpoints", "random")


@dataclass(frozen=True)
class IQNConfig(EpsilonGreedyConfig):
    """Options of the algorithm; the defaults learn treasure hunt in seconds.

    levels: "shared" draws one set of stratified quantile levels for the whole batch, "own" a
    fresh uniform set for every row (the paper's). act_levels: with the midpoints of equal strata
    greedy actions carry no noise; the original draws at random. noisy: perturb weights when
    learning. target_rate: share of the online parameters that flows into the target in each
    update. sync_epochs: also copy online to target every so many iterations; 0: never.
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
    target_rate: float = 0.05
    sync_epochs: int = 0
    buffer_size: int = 13_056
    gradient_steps: int = 20
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

    def __post_init__(self):
        super().__post_init__()
        check_fields(
            "iqn",
            self,
            at_least={"hidden": 1, "num_quantiles": 1, "act_quantiles": 1, "sync_epochs": 0},
            positive=("learning_rate", "max_grad_norm"),
            fractions=("target_rate",),
            choices={"levels": LEVELS, "act_levels": ACT_LEVELS},
        )


@dataclass(frozen=True)
class IQN:
    """One agent as pure functions; `worldloom.algos.independent` lifts it over many."""

    config: IQNConfig
    num_actions: int
    networks: Networks = field(default_factory=Networks)

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

    def init(self, key: Key, obs: PyTree) -> TargetLearner:
        """A learner for observations like obs (B, ...), with a target equal to its parameters."""
        inputs = self.networks.encode(obs)
        params = self.network.init(key, inputs, midpoints(self.config.num_quantiles))
        return targets.start(params, self.optimiser)

    # Acting ------------------------------------------------------------------------------------

    def act(
        self, params: PyTree, obs: PyTree, key: Key, *, explore: Array | float = 0.0
    ) -> tuple[Array, Array]:
        """Actions (B,) and their values (B, actions) for obs (B, ...)."""
        explore_key, level_key = draws.split(key)
        inputs = self.networks.encode(obs)
        taus = midpoints(self.config.act_quantiles)
        if self.config.act_levels == "random":
            taus = draws.uniform(level_key, (inputs.shape[0], self.config.act_quantiles))
        q: Any = self.network.apply(params, inputs, taus, method=IQNJAX.get_qvalues)
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
            inputs = self.networks.encode(obs)
            return self.network.apply(weights, inputs, taus[name], noises[name], method=method)

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

        return targets.gradient_step(learner, loss, self.optimiser, self.config.target_rate)

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


def make(config: IQNConfig, spec: EnvSpec, networks: Networks) -> IQN:
    """The agent for a world of `spec`."""
    if networks.masked or networks.q_values is not None:
        raise ValueError(
            f"iqn: {spec.name} brings a network of its own or forbids actions, and the quantile "
            "network can use neither; use dqn"
        )
    return IQN(config, num_actions(spec), networks)


ALGORITHM = Algorithm(
    name="iqn",
    description="double IQN: learns the spread of returns",
    loop="off_policy",
    actions=frozenset({"discrete"}),
    config=IQNConfig,
    make=make,
)
