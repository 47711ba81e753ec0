"""Fitted Q evaluation (Le et al. 2019): what a fixed policy is worth, learned from logged data.

The policy is asked once for what it would do after each row. From then on this is regression:
Q(s, a) towards r + gamma Q'(s', pi(s')), with Q' a slow average of Q.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
from worldloom.algos.off_policy_evaluation import (
    Estimate,
    discounted_returns,
    ensemble_estimate,
    episode_bootstrap,
)
from worldloom.algos.offline import (
    LinkedRows,
    OfflineConfig,
    OfflineLearner,
    OfflineLearning,
    Table,
    bootstrapped,
    make_table,
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

    learning_rate: float = positive(1e-3)
    gamma: float = fraction(0.99)
    tau: float = fraction(0.05)


@dataclass(frozen=True)
class FQEConfig(OfflineConfig):
    """num_members: networks, each learned from a bootstrap sample of the episodes."""

    hidden: tuple[int, ...] = at_least(1, (64, 64))
    num_members: int = at_least(2, 4)
    updates: int = at_least(1, 10_000)  # of each member
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

    def table(self, dataset: Dataset, policy: PolicyState | None) -> Table:
        """The rows to learn from, with what the policy would do after each.

        None is what logged the data: its next action is known, but for the last of an episode,
        which it is taken to repeat.
        """
        if policy is not None:
            return make_table(dataset, next_action=_in_parts(policy, dataset.rows.next_obs))
        action = dataset.rows.action
        over = dataset.rows.terminated | dataset.rows.truncated
        after = jnp.where(over[:, None], action, jnp.roll(action, -1, axis=0))
        return make_table(dataset, next_action=after)

    def networks(self, key: Key, obs_size: int, action_size: int) -> dict[str, Any]:
        critic = make_critics(key, obs_size, action_size, self.config.hidden, count=1, norm=True)
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


class Values(NamedTuple):
    """What K members say of the E episodes of a log."""

    starts: Array  # (K, E): returns from their starts on, of `horizon` steps
    drift: float  # the share by which values still changed in the last tenth of the updates
    metrics: Metrics  # (updates,), of the mean member

    @property
    def estimate(self) -> Estimate:
        """The discounted return from the data's starts on.

        The interval is by chance in the log and in learning: it does not know of what all members
        get wrong alike. What they say of the log's own controller shows some of that.
        """
        return ensemble_estimate(self.starts, "fitted Q evaluation")


def fitted_q_evaluation(
    policy: PolicyState | None,
    dataset: Dataset,
    key: Key,
    config: FQEConfig | None = None,
    *,
    horizon: int | None = None,
) -> Values:
    """Discounted returns from the data's starts on, by an ensemble; None: of what logged them.

    horizon: of episodes of so many steps, as returns are measured; None: of a plant that goes on.
    Values are of the latter, as logs that were cut are bootstrapped from; what follows the horizon
    is then taken off, as much as the ends of those logs are worth, gamma^horizon times.
    """
    fqe = FQE(config or FQEConfig())
    gamma, members = fqe.config.hyper.gamma, fqe.config.num_members
    learn_key, sample_key = draws.split(key)
    table, rows = fqe.table(dataset, policy), dataset.rows
    # Values begin where the log's own are, and have less far to go than from 0.
    logged = discounted_returns(dataset, gamma).mean() * table.reward_scale
    samples = episode_bootstrap(dataset, sample_key, members)
    weights, metrics = _learn(fqe, table, logged, draws.split(learn_key, members), samples)

    def worth(obs: Array, logged_action: Array) -> Array:
        action = logged_action if policy is None else policy_step(policy, obs)
        obs = dataset.normalise(obs)
        q = jax.lax.map(lambda member: critics(member, obs, action)[0], weights)
        return q / table.reward_scale

    values = worth(rows.obs[dataset.starts], rows.action[dataset.starts])
    cut = jnp.flatnonzero(rows.truncated)
    if horizon is not None and len(cut):
        later = worth(rows.next_obs[cut], rows.action[cut]).sum(-1, keepdims=True)
        values = values - gamma**horizon * later / values.shape[1]
    metrics = jax.tree.map(lambda curve: curve.mean(0), metrics)
    return Values(values, _drift(np.asarray(metrics["q"])), metrics)


@partial(jax.jit, static_argnums=0)
def _learn(
    fqe: FQE, table: Table, value: Array, keys: Key, samples: Array
) -> tuple[Weights, Metrics]:
    """Critics (K, ...) and curves (K, updates); values begin at `value` ()."""

    def member(given: tuple[Key, Array]) -> tuple[Weights, Metrics]:
        key, own = given
        init_key, learn_key = draws.split(key)
        learner = fqe.init(init_key, table.obs_size, table.action_size)
        critic = learner.critic.params
        last = critic[-1] | {"bias": critic[-1]["bias"] + value}
        critic = (*critic[:-1], last)
        learner = learner.replace(critic=init_train_state(critic), target_critic=critic)

        def one(learner, key):
            index = own[draws.integers(key, (fqe.config.batch_size,), table.size)]
            return fqe.update(learner, table.take(index), key)

        learner, metrics = jax.lax.scan(one, learner, draws.split(learn_key, fqe.config.updates))
        return learner.critic.params, metrics

    # One after the other: as products with a batch axis they would be slower on a CPU.
    return jax.lax.map(member, (keys, samples))


@jax.jit
def _in_parts(policy: PolicyState, obs: Array) -> Array:
    """The policy's actions (N, m) for obs (N, n), without hidden layers (N, width) in memory."""
    return jax.lax.map(lambda row: policy_step(policy, row), obs, batch_size=4096)


def _drift(values: np.ndarray) -> float:
    """The share by which a curve (updates,) changed in its last tenth, by means of hundredths."""
    tenth, hundredth = (max(len(values) // n, 1) for n in (10, 100))
    before, end = values[-tenth:][:hundredth].mean(), values[-hundredth:].mean()
    return float(abs(end - before) / max(abs(end), 1e-6))
