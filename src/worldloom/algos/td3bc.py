"""TD3+BC (Fujimoto & Gu 2021): TD3 whose actor is held to the data by a cloning term."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos import actor_critic
from worldloom.algos.actor_critic import Metrics, smoothed_action
from worldloom.algos.algorithm import Algorithm
from worldloom.algos.offline import OfflineConfig, bootstrapped
from worldloom.algos.offline_actor_critic import DelayedActorCritic, DelayedLearner
from worldloom.core.checks import check_fields
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.offline import Weights, critic, critics, deterministic, member
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows


class TD3BCHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program; the paper's."""

    actor_rate: float = 3e-4
    critic_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    alpha: float = 2.5  # how much values count beside the data's actions
    policy_noise: float = 0.2  # on the target's actions, of range [-1, 1]
    noise_clip: float = 0.5


@dataclass(frozen=True)
class TD3BCConfig(OfflineConfig):
    """The actor and all targets move once in `policy_delay` updates."""

    policy_delay: int = 2
    hyper: TD3BCHyper = field(default_factory=TD3BCHyper)

    def __post_init__(self):
        super().__post_init__()
        check_fields("td3bc", self, at_least={"policy_delay": 1})
        check_fields(
            "td3bc",
            self.hyper,
            at_least={"alpha": 0, "policy_noise": 0, "noise_clip": 0},
            positive=("actor_rate", "critic_rate"),
            fractions=("gamma", "tau"),
        )


@dataclass(frozen=True)
class TD3BC(DelayedActorCritic):
    """The algorithm, as pure functions."""

    config: TD3BCConfig = field(default_factory=TD3BCConfig)

    def target(self, learner: DelayedLearner, rows: Rows, key: Key) -> Array:
        """What the critics shall say of rows, (B,): clipped double Q with smoothed actions."""
        hyper = learner.hyper
        action = smoothed_action(
            learner.target_actor, rows.next_obs, key, hyper.policy_noise, hyper.noise_clip
        )
        next_value = critics(learner.target_critic, rows.next_obs, action).min(0)
        return bootstrapped(rows, hyper.gamma, next_value)

    def critic_loss(self, weights: Weights, rows: Rows, target: Array) -> tuple[Array, Metrics]:
        """Squared errors, summed over both critics."""
        return actor_critic.critic_loss(weights, rows.obs, rows.action, target)

    def actor_loss(
        self, weights: Weights, rows: Rows, first_critic: Weights, alpha: Array
    ) -> tuple[Array, Metrics]:
        """-lambda Q(s, pi(s)) + (pi(s) - a)^2 with lambda = alpha / mean |Q| (eq. 3 and 5)."""
        action = deterministic(weights, rows.obs)
        q = critic(first_critic, rows.obs, action)
        scale = alpha / jax.lax.stop_gradient(jnp.abs(q).mean() + 1e-8)
        clone = jnp.square(action - rows.action).mean()
        loss = clone - scale * q.mean()
        return loss, {"actor_loss": loss, "clone_error": clone}

    def actor_inputs(self, learner: DelayedLearner, metrics: Metrics) -> tuple[PyTree, ...]:
        """The first critic and alpha."""
        return member(learner.critic.params, 0), learner.hyper.alpha

    def policy(self, learner: DelayedLearner, dataset: Dataset) -> PolicyState:
        """Deterministic policy: the actor."""
        return PolicyState(learner.actor.params, dataset.mean, dataset.std, deterministic)


ALGORITHM = Algorithm(
    name="td3bc",
    description="TD3 with a cloning term in the actor",
    loop="offline",
    actions=frozenset({"continuous"}),
    config=TD3BCConfig,
    make=lambda config, spec=None, networks=None: TD3BC(config),
)
