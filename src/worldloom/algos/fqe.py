"""Fitted Q evaluation (Le et al. 2019): what a fixed policy is worth, learned from logged data.

The policy is asked once for what it would do after each row. From then on this is regression:
Q(s, a) towards r + gamma Q'(s', pi(s')), with Q' a slow average of Q.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.actor_critic import (
    Metrics,
    TrainState,
    critic_loss,
    gradient_step,
    init_train_state,
)
from worldloom.algos.config import at_least, fraction, positive
from worldloom.algos.off_policy_evaluation import Estimate, bootstrap
from worldloom.algos.offline import (
    LinkedRows,
    OfflineConfig,
    OfflineLearner,
    OfflineLearning,
    Table,
    bootstrapped,
    make_table,
    training_step,
)
from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.nn.offline import Weights, critics, make_critics
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.replay.dataset import Dataset


class FQEHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program.

    What is missing of a value shrinks as exp(-tau (1 - gamma) updates): at a discount of 0.99 the
    usual tau of control, 0.005, would leave two fifths of it after 20,000 updates. A policy that
    does not change can do with a faster one.
    """

    learning_rate: float = positive(3e-4)
    gamma: float = fraction(0.99)
    tau: float = fraction(0.05)


@dataclass(frozen=True)
class FQEConfig(OfflineConfig):
    """num_critics: the mean of so many is the estimate."""

    num_critics: int = at_least(1, 2)
    updates: int = at_least(1, 20_000)
    hyper: FQEHyper = field(default_factory=FQEHyper)


class FQELearner(OfflineLearner):
    """All that is learned."""

    critic: TrainState
    target_critic: Weights


@dataclass(frozen=True)
class FQE(OfflineLearning):
    """The evaluation, as pure functions; its rows' `next_action` is the policy's."""

    config: FQEConfig = field(default_factory=FQEConfig)
    learner = FQELearner

    def table(self, dataset: Dataset, policy: PolicyState) -> Table:
        """The rows to learn from, with what the policy would do after each."""
        return make_table(dataset, next_action=_in_parts(policy, dataset.rows.next_obs))

    def networks(self, key: Key, obs_size: int, action_size: int) -> dict[str, Any]:
        count = self.config.num_critics
        critic = make_critics(key, obs_size, action_size, self.config.hidden, count=count)
        return {"critic": init_train_state(critic), "target_critic": critic}

    def update(
        self, learner: FQELearner, rows: LinkedRows, key: Key, turn: int | None = None
    ) -> tuple[FQELearner, Metrics]:
        """One step of the critics on rows (B, ...), each to its own target; nothing is drawn."""
        hyper = learner.hyper
        next_value = critics(learner.target_critic, rows.next_obs, rows.next_action)
        target = bootstrapped(rows, hyper.gamma, next_value)
        critic, metrics = gradient_step(
            learner.critic, hyper.learning_rate, critic_loss, rows.obs, rows.action, target
        )
        target_critic = optax.incremental_update(critic.params, learner.target_critic, hyper.tau)
        learner = learner.replace(critic=critic, target_critic=target_critic, step=learner.step + 1)
        return learner, metrics

    def values(
        self,
        learner: FQELearner,
        dataset: Dataset,
        policy: PolicyState,
        obs: Array,
        scale: Array | float,
    ) -> Array:
        """What observations (B, n) are worth under the policy, (B,), in the data's rewards.

        scale: the `reward_scale` of the table that was learned from.
        """
        action = policy_step(policy, obs)
        q = critics(learner.critic.params, dataset.normalise(obs), action)
        return q.mean(0) / scale


def fitted_q_evaluation(
    policy: PolicyState,
    dataset: Dataset,
    key: Key,
    config: FQEConfig | None = None,
    *,
    horizon: int | None = None,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> tuple[Estimate, Metrics]:
    """The policy's discounted return from the data's starts on, and the curves of learning it.

    horizon: of episodes of so many steps, as returns are measured; None: of a plant that goes on.
    Values are of the latter, as logs that were cut are bootstrapped from; what follows the horizon
    is then taken off, as much as the ends of those logs are worth, gamma^horizon times. The
    interval is over starts alone: it does not know how wrong the learned values are.
    """
    fqe = FQE(config or FQEConfig())
    init_key, learn_key, bootstrap_key = draws.split(key, 3)
    table = fqe.table(dataset, policy)
    learner = fqe.init(init_key, table.obs_size, table.action_size)
    learner, metrics = _learn(fqe, learner, table, learn_key)
    rows, worth = dataset.rows, partial(fqe.values, learner, dataset, policy)
    values = worth(rows.obs[dataset.starts], table.reward_scale)[:, None]
    cut = jnp.flatnonzero(rows.truncated)
    if horizon is not None and len(cut):
        later = worth(rows.next_obs[cut], table.reward_scale).mean() * len(cut) / len(values)
        values = values - fqe.config.hyper.gamma**horizon * later
    value, low, high = bootstrap(
        bootstrap_key, values, jnp.ones_like(values), resamples=resamples, confidence=confidence
    )
    return Estimate(value, low, high, float(len(values)), "fitted Q evaluation"), metrics


@partial(jax.jit, static_argnums=0)
def _learn(fqe: FQE, learner: FQELearner, table: Table, key: Key) -> tuple[FQELearner, Metrics]:
    def one(learner, key):
        return training_step(fqe, learner, table, key, batch_size=fqe.config.batch_size)

    return jax.lax.scan(one, learner, draws.split(key, fqe.config.updates))


@jax.jit
def _in_parts(policy: PolicyState, obs: Array) -> Array:
    """The policy's actions (N, m) for obs (N, n), without hidden layers (N, width) in memory."""
    return jax.lax.map(lambda row: policy_step(policy, row), obs, batch_size=4096)
