"""Model-based evaluation: what a fixed policy earns in plants that are learned from the log.

An ensemble of networks learns the change of the observation in a step; a second one reward and
end of an episode. Each member learns from a bootstrap sample of whole episodes and is a plant of
its own: what its networks could not explain is drawn again from its residuals, as noise. How far
the members' returns lie apart is how little the log says about the policy (Chua et al. 2018).

The models do not depend on the policy: they are learned once and roll out as many as one likes.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos.dynamics import DynamicsConfig, fit_ensemble, gaussian_change
from worldloom.algos.off_policy_evaluation import episode_bootstrap
from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.nn.offline import Weights
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.replay.dataset import Dataset

KEPT_RESIDUALS = 4096  # of each member
ROOM = 0.1  # of a signal's logged range, by which a model may leave it


class Scale(struct.PyTreeNode):
    """Centre and deviation of columns (n,)."""

    mean: Array
    std: Array

    def apply(self, x: Array) -> Array:
        return (x - self.mean) / self.std

    def undo(self, x: Array) -> Array:
        return self.mean + self.std * x


class Simulators(struct.PyTreeNode):
    """E learned plants; weights and residuals have a leading axis (E, ...)."""

    change: Weights  # obs, action -> change of obs
    outcome: Weights  # obs, action, next obs -> reward, terminated
    residuals: Array  # (E, KEPT_RESIDUALS, n), in predicted deviations
    obs: Scale
    changes: Scale
    outcomes: Scale
    low: Array  # (n,): how far observations may go
    high: Array
    rewards: Array  # (2,): the least and the largest that were logged
    ends_above: Array  # (E,): of `terminated`, as predicted, where an episode ends


class Rollouts(NamedTuple):
    """Steps of E plants from S starts, (T, E, S, ...)."""

    obs: Array
    action: Array
    reward: Array
    reward_error: Array  # the deviation of logged rewards from what was learned of them there
    alive: Array  # bool

    def returns(self, gamma: float) -> Array:
        """Discounted returns (E, S)."""
        return (self.reward * gamma ** jnp.arange(len(self.reward))[:, None, None]).sum(0)


def _scale(x: Array) -> Scale:
    std = x.std(0)
    return Scale(x.mean(0), jnp.where(std > 1e-6 * jnp.abs(x).max(0), std, 1.0))  # in any unit


def learn_simulators(
    dataset: Dataset, key: Key, config: DynamicsConfig | None = None
) -> Simulators:
    """An ensemble of plants that could have written the log."""
    config, rows = config or DynamicsConfig(), dataset.rows
    change = rows.next_obs - rows.obs
    result = jnp.stack([rows.reward, rows.terminated.astype(jnp.float32)], -1)
    obs = Scale(dataset.mean, dataset.std)
    changes, outcomes = _scale(change), _scale(result)
    sample_key, change_key, outcome_key, keep_key = draws.split(key, 4)
    samples = episode_bootstrap(dataset, sample_key, config.num_members)
    before = jnp.concatenate([obs.apply(rows.obs), rows.action], -1)
    after = jnp.concatenate([before, changes.apply(change)], -1)
    keys = draws.split(change_key, config.num_members)
    moved, _ = fit_ensemble(config, before, changes.apply(change), keys, samples, True)
    keys = draws.split(outcome_key, config.num_members)
    outcome, _ = fit_ensemble(config, after, outcomes.apply(result), keys, samples, True)
    kept = draws.integers(keep_key, (min(KEPT_RESIDUALS, dataset.size),), dataset.size)

    def standardised(weights: Weights) -> Array:
        mean, log_std = gaussian_change(weights, before[kept])
        return (changes.apply(change[kept]) - mean) * jnp.exp(-log_std)

    both = jnp.concatenate([rows.obs, rows.next_obs])
    low, high = both.min(0), both.max(0)
    room = ROOM * (high - low)
    rewards = jnp.stack([rows.reward.min(), rows.reward.max()])
    residuals = jax.lax.map(standardised, moved)
    ended = jax.lax.map(
        lambda weights: outcomes.undo(gaussian_change(weights, after)[0])[:, 1], outcome
    )
    # As often as in the log: small errors of a probability would end every long episode.
    share = rows.terminated.mean()
    above = jnp.where(share > 0.0, jnp.quantile(ended, 1.0 - share, axis=-1), jnp.inf)
    return Simulators(
        moved, outcome, residuals, obs, changes, outcomes, low - room, high + room, rewards, above
    )


@partial(jax.jit, static_argnames="horizon")
def roll_out(
    plants: Simulators, policy: PolicyState, starts: Array, key: Key, *, horizon: int
) -> Rollouts:
    """What the policy does in each plant from starts (S, n), for `horizon` steps."""
    members, kept = plants.residuals.shape[:2]
    starts = jnp.broadcast_to(starts, (members, *starts.shape))

    def one(state, key):
        obs, alive = state
        action = policy_step(policy, obs)
        before = jnp.concatenate([plants.obs.apply(obs), action], -1)
        mean, log_std = jax.vmap(gaussian_change)(plants.change, before)
        which = draws.integers(key, obs.shape[:2], kept)
        noise = jnp.take_along_axis(plants.residuals, which[..., None], 1)
        change = plants.changes.undo(mean + jnp.exp(log_std) * noise)
        after = jnp.clip(obs + change, plants.low, plants.high)
        inputs = jnp.concatenate([before, plants.changes.apply(after - obs)], -1)
        mean, log_std = jax.vmap(gaussian_change)(plants.outcome, inputs)
        outcome, error = (
            plants.outcomes.undo(mean),
            plants.outcomes.std[0] * jnp.exp(log_std[..., 0]),
        )
        reward = jnp.where(alive, jnp.clip(outcome[..., 0], *plants.rewards), 0.0)
        ends = outcome[..., 1] > plants.ends_above[:, None]
        return (after, alive & ~ends), Rollouts(
            obs, action, reward, jnp.where(alive, error, 0.0), alive
        )

    alive = jnp.ones(starts.shape[:2], bool)
    return jax.lax.scan(one, (starts, alive), draws.split(key, horizon))[1]
