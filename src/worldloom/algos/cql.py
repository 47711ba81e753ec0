"""Conservative Q-learning (Kumar et al. 2020), CQL(H) on soft actor-critic.

The critics are pushed down on actions that the policy or chance might take and up on those of
the data, so that what they say of a policy is, in the limit, no more than it is worth.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp

from worldloom.algos.actor_critic import Metrics, apply_gradients
from worldloom.algos.algorithm import CONTINUOUS, Algorithm
from worldloom.algos.config import at_least, positive
from worldloom.algos.offline import OfflineConfig, bootstrapped
from worldloom.algos.offline_actor_critic import SoftActorCritic, SoftHyper, SoftLearner
from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.offline import Weights, critics, gaussian, squash
from worldloom.replay.dataset import Rows


class CQLHyper(SoftHyper):
    """Numbers that may differ between learners of one program; the paper's for locomotion."""

    actor_rate: float = positive(1e-4)
    temperature_rate: float = positive(1e-4)
    conservatism: float = at_least(0, 5.0)  # alpha of eq. 4


@dataclass(frozen=True)
class CQLConfig(OfflineConfig):
    """num_samples: actions drawn for each row from each of three sets.

    num_parts: the critics' gradients are summed over so many parts of a batch, which is faster on
    a CPU and the same to rounding.
    """

    num_samples: int = at_least(1, 10)
    num_parts: int = at_least(1, 4)
    hyper: CQLHyper = field(default_factory=CQLHyper)


@dataclass(frozen=True)
class CQL(SoftActorCritic):
    """The algorithm, as pure functions."""

    config: CQLConfig = field(default_factory=CQLConfig)

    def proposals(self, actor: Weights, rows: Rows, key: Key) -> tuple[Array, Array, Array]:
        """Actions (B, 3 S, m) to be judged at each row's observation, their log-densities (B, 3 S),
        and one next action (B, m) for the target.

        S each are uniform, drawn by the policy for this observation, and for the next.
        """
        uniform_key, noise_key = draws.split(key)
        count, (batch, m) = self.config.num_samples, rows.action.shape
        uniform = 2.0 * draws.uniform(uniform_key, (batch, count, m)) - 1.0
        both = jnp.concatenate([rows.obs, rows.next_obs])
        mean, log_std = gaussian(actor, both)
        noise = draws.normal(noise_key, (2 * batch, count + 1, m))
        drawn, log_prob = squash(mean[:, None], log_std[:, None], noise)
        actions = [uniform, drawn[:batch, :count], drawn[batch:, :count]]
        of_uniform = jnp.full((batch, count), -m * math.log(2.0))
        densities = [of_uniform, log_prob[:batch, :count], log_prob[batch:, :count]]
        return jnp.concatenate(actions, 1), jnp.concatenate(densities, 1), drawn[batch:, count]

    def critic_loss(
        self,
        conservatism: Array | float,
        weights: Weights,
        rows: Rows,
        target: Array,
        actions: Array,
        log_prob: Array,
    ) -> tuple[Array, Metrics]:
        """Squared errors and, for both critics, log sum exp Q - Q(s, a) (eq. 4).

        Importance weights make the sum an integral over actions, estimated on 3 S of them. The
        data's action is one more of them in the forward pass, not in the sum.
        """
        q = critics(weights, rows.obs, jnp.concatenate([actions, rows.action[:, None]], 1))
        q, q_data = q[..., :-1], q[..., -1]
        integral = jax.nn.logsumexp(q - log_prob, axis=-1) - math.log(actions.shape[1])
        gap = (integral - q_data).mean(-1)
        error = jnp.square(q_data - target).mean(-1)
        loss = (error + conservatism * gap).sum()
        return loss, {"critic_loss": error.sum(), "gap": gap.mean(), "q": q_data.mean()}

    def update(
        self, learner: SoftLearner, rows: Rows, key: Key, turn: int | None = None
    ) -> tuple[SoftLearner, Metrics]:
        """One step of critics, actor and temperature on rows (B, ...)."""
        hyper = learner.hyper
        propose_key, actor_key = draws.split(key)
        actions, log_prob, next_action = self.proposals(learner.actor.params, rows, propose_key)
        # The paper's backup has no entropy in it.
        next_value = critics(learner.target_critic, rows.next_obs, next_action).min(0)
        target = bootstrapped(rows, hyper.gamma, next_value)
        grads, metrics = gradients_in_parts(
            self.config.num_parts,
            partial(self.critic_loss, hyper.conservatism),
            learner.critic.params,
            rows,
            target,
            actions,
            log_prob,
        )
        noise = draws.normal(actor_key, rows.action.shape)
        critic = apply_gradients(learner.critic, grads, hyper.critic_rate)
        return self.finish_update(learner, critic, rows, noise, metrics)


def gradients_in_parts(
    parts: int, loss: Callable[..., tuple[Array, Metrics]], params: PyTree, *rows: PyTree
) -> tuple[PyTree, Metrics]:
    """Gradients by `params`, and metrics, of a loss that is a mean over rows (B, ...).

    Part after part, of which there are `parts` if that divides B: what a network makes of
    thousands of rows would not stay in a CPU's caches on its way back.
    """
    size = jax.tree.leaves(rows)[0].shape[0]
    parts = math.gcd(parts, size)

    def split(leaf: Array) -> Array:
        # Every parts-th row, so that rows that are spread over devices stay so in each part.
        return jnp.moveaxis(leaf.reshape(size // parts, parts, *leaf.shape[1:]), 1, 0)

    def one(total: PyTree, rows: PyTree) -> tuple[PyTree, Metrics]:
        grads, metrics = jax.grad(loss, has_aux=True)(params, *rows)
        return jax.tree.map(jnp.add, total, grads), metrics

    start = jax.tree.map(jnp.zeros_like, params)
    total, metrics = jax.lax.scan(one, start, jax.tree.map(split, rows))
    return jax.tree.map(lambda x: x / parts, total), jax.tree.map(lambda x: x.mean(0), metrics)


ABOUT = ("cql", "conservative Q-learning: values that are lower bounds", "offline", CONTINUOUS)
ALGORITHM = Algorithm(*ABOUT, CQLConfig, CQL.make)
