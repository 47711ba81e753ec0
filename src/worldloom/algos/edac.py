"""EDAC (An et al. 2021): soft actor-critic with many critics that are kept diverse.

The least of N critics is what a policy is paid by; where there are no data they disagree, and the
least is low. Without the last term of the critics' loss their slopes would align, and N would have
to be in the hundreds. (Where an action is one number, slopes are alike or opposite, and the term
moves nothing.)
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos.offline import (
    Metrics,
    Trained,
    as_arrays,
    averaged,
    bootstrapped,
    check_numbers,
    check_sizes,
    compute_gradients,
    descend,
    trained,
)
from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.nn.offline import (
    Weights,
    critic,
    critics,
    for_each,
    gaussian,
    make_critics,
    make_mlp,
    squash,
    squashed_mode,
)
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows


class EDACHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program; the paper's for locomotion."""

    actor_rate: float = 3e-4
    critic_rate: float = 3e-4
    temperature_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    diversity: float = 1.0  # eta of eq. 4
    entropy: float = -1.0  # that the policy is held to, for each dimension of the action


@dataclass(frozen=True)
class EDACConfig:
    """num_critics: N of the paper, 10 to 50 there."""

    hidden: tuple[int, ...] = (256, 256)
    num_critics: int = 10
    hyper: EDACHyper = field(default_factory=EDACHyper)

    def __post_init__(self):
        check_sizes("edac", self)
        if self.num_critics < 2:
            raise ValueError(f"edac: num_critics={self.num_critics}; it must be at least 2")
        check_numbers(
            "edac", self.hyper, positive=("actor_rate", "critic_rate", "temperature_rate"),
            at_least_0=("diversity",), shares=("gamma", "tau"),
        )  # fmt: skip


class EDACLearner(struct.PyTreeNode):
    """All that is learned."""

    actor: Trained
    critic: Trained
    log_temperature: Trained
    target_critic: Weights
    hyper: EDACHyper
    step: Array


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
class EDAC:
    """The algorithm, as pure functions."""

    config: EDACConfig = field(default_factory=EDACConfig)
    period = 1

    def init(
        self, key: Key, obs_size: int, action_size: int, hyper: EDACHyper | None = None
    ) -> EDACLearner:
        """A fresh learner for obs (B, obs_size) and actions (B, action_size)."""
        actor_key, critic_key = draws.split(key)
        hidden, count = self.config.hidden, self.config.num_critics
        actor = make_mlp(actor_key, (obs_size, *hidden, 2 * action_size))
        critic = make_critics(critic_key, count, obs_size, action_size, hidden)
        return EDACLearner(
            trained(actor), trained(critic), trained(jnp.float32(0.0)), critic,
            as_arrays(hyper or self.config.hyper), jnp.int32(0),
        )  # fmt: skip

    # Losses ------------------------------------------------------------------------------------

    def critic_loss(
        self, weights: Weights, rows: Rows, target: Array, diversity: Array
    ) -> tuple[Array, Metrics]:
        """Squared errors, summed over the critics, and how alike their slopes are (eq. 4)."""
        q, slopes = self.slopes(weights, rows.obs, rows.action)
        error = jnp.square(q - target).mean(-1).sum()
        alike = alignment(slopes)
        told = {"critic_loss": error, "alignment": alike, "q": q.mean(), "spread": q.std(0).mean()}
        return error + diversity * alike, told

    def slopes(self, weights: Weights, obs: Array, action: Array) -> tuple[Array, Array]:
        """Values (N, B), and their derivatives (N, B, m) by the actions (B, m)."""

        def one(weights: Weights) -> tuple[Array, Array]:
            q, back = jax.vjp(lambda action: critic(weights, obs, action), action)
            return q, back(jnp.ones_like(q))[0]

        return for_each(one, weights)

    def actor_loss(
        self, weights: Weights, rows: Rows, noise: Array, critic: Weights, temperature: Array
    ) -> tuple[Array, Metrics]:
        """temperature log pi(a | s) - Q(s, a), Q the least of all, a drawn by the policy."""
        action, log_prob = squash(*gaussian(weights, rows.obs), noise)
        q = critics(critic, rows.obs, action).min(0)
        loss = (temperature * log_prob - q).mean()
        return loss, {"actor_loss": loss, "entropy": -log_prob.mean()}

    # Update ------------------------------------------------------------------------------------

    def update(
        self, learner: EDACLearner, rows: Rows, key: Key, turn: int | None = None
    ) -> tuple[EDACLearner, Metrics]:
        """One step of critics, actor and temperature on rows (B, ...)."""
        hyper, actor, critic = learner.hyper, learner.actor.params, learner.critic.params
        temperature = jnp.exp(learner.log_temperature.params)
        next_noise, noise = draws.normal(key, (2, *rows.action.shape))
        next_action, next_log_prob = squash(*gaussian(actor, rows.next_obs), next_noise)
        next_value = critics(learner.target_critic, rows.next_obs, next_action).min(0)
        target = bootstrapped(rows, hyper.gamma, next_value - temperature * next_log_prob)
        critic_grads, told = compute_gradients(
            self.critic_loss, critic, rows, target, hyper.diversity
        )
        actor_grads, told_actor = compute_gradients(
            self.actor_loss, actor, rows, noise, critic, temperature
        )
        wanted = hyper.entropy * rows.action.shape[-1]
        # Of log_temperature * (entropy - wanted): it rises while the policy is too sure.
        excess = told_actor["entropy"] - wanted
        new_critic = descend(learner.critic, critic_grads, hyper.critic_rate)
        learner = learner.replace(
            actor=descend(learner.actor, actor_grads, hyper.actor_rate),
            critic=new_critic,
            log_temperature=descend(learner.log_temperature, excess, hyper.temperature_rate),
            target_critic=averaged(learner.target_critic, new_critic.params, hyper.tau),
            step=learner.step + 1,
        )
        return learner, told | told_actor | {"temperature": temperature}

    def policy(self, learner: EDACLearner, dataset: Dataset) -> PolicyState:
        """What can be executed: the middle of the policy's density."""
        return PolicyState(learner.actor.params, dataset.mean, dataset.std, squashed_mode)
