"""Conservative Q-learning (Kumar et al. 2020), CQL(H) on soft actor-critic.

The critics are pushed down on actions that the policy or chance might take and up on those of
the data, so that what they say of a policy is, in the limit, no more than it is worth.
"""

import math
from dataclasses import dataclass, field
from functools import partial

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
    compute_gradients_in_parts,
    descend,
    trained,
)
from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.nn.offline import (
    Weights,
    critics,
    gaussian,
    make_critics,
    make_mlp,
    squash,
    squashed_mode,
)
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows


class CQLHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program; the paper's for locomotion."""

    actor_rate: float = 1e-4
    critic_rate: float = 3e-4
    temperature_rate: float = 1e-4
    gamma: float = 0.99
    tau: float = 0.005
    conservatism: float = 5.0  # alpha of eq. 4
    entropy: float = -1.0  # that the policy is held to, for each dimension of the action


@dataclass(frozen=True)
class CQLConfig:
    """num_samples: actions drawn for each row from each of three sets.

    num_parts: the critics' gradients are summed over so many parts of a batch, which is faster on
    a CPU and the same to rounding.
    """

    hidden: tuple[int, ...] = (256, 256)
    num_samples: int = 10
    num_parts: int = 4
    hyper: CQLHyper = field(default_factory=CQLHyper)

    def __post_init__(self):
        check_sizes("cql", self, "num_samples", "num_parts")
        check_numbers(
            "cql", self.hyper, positive=("actor_rate", "critic_rate", "temperature_rate"),
            at_least_0=("conservatism",), shares=("gamma", "tau"),
        )  # fmt: skip


class CQLLearner(struct.PyTreeNode):
    """All that is learned."""

    actor: Trained
    critic: Trained
    log_temperature: Trained
    target_critic: Weights
    hyper: CQLHyper
    step: Array


@dataclass(frozen=True)
class CQL:
    """The algorithm, as pure functions."""

    config: CQLConfig = field(default_factory=CQLConfig)
    period = 1

    def init(
        self, key: Key, obs_size: int, action_size: int, hyper: CQLHyper | None = None
    ) -> CQLLearner:
        """A fresh learner for obs (B, obs_size) and actions (B, action_size)."""
        actor_key, critic_key = draws.split(key)
        hidden = self.config.hidden
        actor = make_mlp(actor_key, (obs_size, *hidden, 2 * action_size))
        critic = make_critics(critic_key, 2, obs_size, action_size, hidden)
        return CQLLearner(
            trained(actor), trained(critic), trained(jnp.float32(0.0)), critic,
            as_arrays(hyper or self.config.hyper), jnp.int32(0),
        )  # fmt: skip

    # Actions -----------------------------------------------------------------------------------

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
        densities = [
            jnp.full((batch, count), -m * math.log(2.0)),
            log_prob[:batch, :count], log_prob[batch:, :count],
        ]  # fmt: skip
        return jnp.concatenate(actions, 1), jnp.concatenate(densities, 1), drawn[batch:, count]

    # Losses ------------------------------------------------------------------------------------

    def critic_loss(
        self, conservatism: Array | float, weights: Weights, rows: Rows, target: Array,
        actions: Array, log_prob: Array,
    ) -> tuple[Array, Metrics]:  # fmt: skip
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

    def actor_loss(
        self, weights: Weights, rows: Rows, noise: Array, critic: Weights, temperature: Array
    ) -> tuple[Array, Metrics]:
        """temperature log pi(a | s) - Q(s, a), Q the lesser of two, a drawn by the policy."""
        action, log_prob = squash(*gaussian(weights, rows.obs), noise)
        q = critics(critic, rows.obs, action).min(0)
        loss = (temperature * log_prob - q).mean()
        return loss, {"actor_loss": loss, "entropy": -log_prob.mean()}

    # Update ------------------------------------------------------------------------------------

    def update(
        self, learner: CQLLearner, rows: Rows, key: Key, turn: int | None = None
    ) -> tuple[CQLLearner, Metrics]:
        """One step of critics, actor and temperature on rows (B, ...)."""
        hyper, actor, critic = learner.hyper, learner.actor.params, learner.critic.params
        propose_key, actor_key = draws.split(key)
        actions, log_prob, next_action = self.proposals(actor, rows, propose_key)
        # The paper's backup has no entropy in it.
        next_value = critics(learner.target_critic, rows.next_obs, next_action).min(0)
        target = bootstrapped(rows, hyper.gamma, next_value)
        critic_grads, told = compute_gradients_in_parts(
            self.config.num_parts, partial(self.critic_loss, hyper.conservatism), critic,
            rows, target, actions, log_prob,
        )  # fmt: skip
        temperature = jnp.exp(learner.log_temperature.params)
        noise = draws.normal(actor_key, rows.action.shape)
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

    def policy(self, learner: CQLLearner, dataset: Dataset) -> PolicyState:
        """What can be executed: the middle of the policy's density."""
        return PolicyState(learner.actor.params, dataset.mean, dataset.std, squashed_mode)
