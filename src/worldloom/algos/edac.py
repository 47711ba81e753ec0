"""EDAC (An et al. 2021): soft actor-critic with many critics that are kept diverse.

The least of N critics is what a policy is paid by; where there are no data they disagree, and the
least is low. Without the last term of the critics' loss their slopes would align, and N would have
to be in the hundreds. (Where an action is one number, slopes are alike or opposite, and the term
moves nothing.)
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from worldloom.algos.actor_critic import Metrics, gradient_step, soft_value
from worldloom.algos.algorithm import CONTINUOUS, Algorithm
from worldloom.algos.config import at_least
from worldloom.algos.offline import OfflineConfig, bootstrapped
from worldloom.algos.offline_actor_critic import SoftActorCritic, SoftHyper, SoftLearner
from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.nn.offline import Weights, critic, for_each
from worldloom.replay.dataset import Rows


class EDACHyper(SoftHyper):
    """Numbers that may differ between learners of one program; the paper's for locomotion."""

    diversity: float = at_least(0, 1.0)  # eta of eq. 4


@dataclass(frozen=True)
class EDACConfig(OfflineConfig):
    """num_critics: N of the paper, 10 to 50 there."""

    num_critics: int = at_least(2, 10)
    hyper: EDACHyper = field(default_factory=EDACHyper)


def alignment(slopes: Array) -> Array:
    """How alike the critics' slopes (N, B, m) are, (): the mean over rows of the sum of their
    cosines with each other, divided by N - 1 (eq. 4)."""
    norm = jnp.sqrt(jnp.square(slopes).sum(-1, keepdims=True) + 1e-12)
    unit = slopes / norm
    total = unit.sum(0)
    # All pairs at once: the square of the sum, without each with itself.
    pairs = jnp.square(total).sum(-1) - jnp.square(unit).sum((0, -1))
    return pairs.mean() / (slopes.shape[0] - 1)


@dataclass(frozen=True)
class EDAC(SoftActorCritic):
    """The algorithm, as pure functions."""

    config: EDACConfig = field(default_factory=EDACConfig)

    def critic_loss(
        self, weights: Weights, rows: Rows, target: Array, diversity: Array
    ) -> tuple[Array, Metrics]:
        """Squared errors, summed over the critics, and how alike their slopes are (eq. 4)."""
        q, slopes = self.slopes(weights, rows.obs, rows.action)
        error = jnp.square(q - target).mean(-1).sum()
        alike = alignment(slopes)
        return error + diversity * alike, {
            "critic_loss": error,
            "alignment": alike,
            "q": q.mean(),
            "spread": q.std(0).mean(),
        }

    def slopes(self, weights: Weights, obs: Array, action: Array) -> tuple[Array, Array]:
        """Values (N, B), and their derivatives (N, B, m) by the actions (B, m)."""

        def one(weights: Weights) -> tuple[Array, Array]:
            q, back = jax.vjp(lambda action: critic(weights, obs, action), action)
            return q, back(jnp.ones_like(q))[0]

        return for_each(one, weights)

    def update(
        self, learner: SoftLearner, rows: Rows, key: Key, turn: int | None = None
    ) -> tuple[SoftLearner, Metrics]:
        """One step of critics, actor and temperature on rows (B, ...)."""
        hyper, obs = learner.hyper, rows.next_obs
        next_noise, noise = draws.normal(key, (2, *rows.action.shape))
        next_value, _ = soft_value(
            learner.actor.params, learner.target_critic, learner.temperature, obs, obs, next_noise
        )
        target = bootstrapped(rows, hyper.gamma, next_value)
        critic, metrics = gradient_step(
            learner.critic, hyper.critic_rate, self.critic_loss, rows, target, hyper.diversity
        )
        return self.finish_update(learner, critic, rows, noise, metrics)


ABOUT = ("edac", "soft actor-critic with an ensemble of diverse critics", "offline", CONTINUOUS)
ALGORITHM = Algorithm(*ABOUT, EDACConfig, EDAC.make)
