"""What a policy would earn, and how far it leaves the data, from the logged data alone.

`worldloom.algos.fqe` learns a policy's values. Here are the estimators that learn nothing:
weighted importance sampling where the log says how likely its actions were, intervals by
resampling whole episodes, and a diagnostic of support.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Bool, Float, Int

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.replay.dataset import Dataset

RESAMPLES_AT_ONCE = 100


# Simulated, a nominal 95 % interval of weighted importance sampling holds the truth in 10 % of all
# cases at 1 effective episode, and in 95 % from about here on.
ENOUGH_EPISODES = 80


class Estimate(NamedTuple):
    """A discounted return from an episode's start on, with its interval; None where it has none."""

    value: float
    low: float | None
    high: float | None
    effective: float  # how many episodes' worth of evidence it rests on
    method: str


# Estimates and intervals -----------------------------------------------------------------------


def ratio_of_sums(
    counts: Float[Array, "R E"], numerator: Float[Array, "E T"], denominator: Float[Array, "E T"]
) -> Float[Array, " R"]:
    """sum_t (counts @ numerator)_t / (counts @ denominator)_t.

    Every estimate here is of this kind: `counts` say how often each of E episodes is in a sample,
    numerator and denominator what each adds at step t.
    """
    below = counts @ denominator
    return jnp.where(below > 0.0, counts @ numerator / jnp.maximum(below, 1e-30), 0.0).sum(-1)


def ensemble_estimate(values: Float[Array, "K E"], method: str) -> Estimate:
    """The mean of what K members say of E episodes, with an interval over members and episodes."""
    episodes = values.shape[1]
    between = values.mean(1).std(ddof=1)
    within = values.mean(0).std() / math.sqrt(episodes)
    value, half = float(values.mean()), 1.96 * float(jnp.hypot(between, within))
    return Estimate(value, value - half, value + half, float(episodes), method)


@jax.jit
def _resampled(keys: Key, numerator: Array, denominator: Array) -> Array:
    episodes = numerator.shape[0]

    def some(key: Key) -> Array:
        chosen = draws.integers(key, (RESAMPLES_AT_ONCE, episodes), episodes)
        rows = jnp.arange(RESAMPLES_AT_ONCE)[:, None]
        counts = jnp.zeros((RESAMPLES_AT_ONCE, episodes)).at[rows, chosen].add(1.0)
        return ratio_of_sums(counts, numerator, denominator)

    return jax.lax.map(some, keys).reshape(-1)


def bootstrap(
    key: Key,
    numerator: Float[Array, "E T"],
    denominator: Float[Array, "E T"],
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> tuple[float, float, float]:
    """The estimate that `ratio_of_sums` makes, and both ends of its percentile interval.

    Episodes are drawn with replacement, `resamples` times over; the same key gives the same.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"bootstrap: confidence={confidence}; it must be between 0 and 1")
    if resamples < 1:
        raise ValueError(f"bootstrap: resamples={resamples}; it must be at least 1")
    all_once = jnp.ones((1, numerator.shape[0]))
    value = float(ratio_of_sums(all_once, numerator, denominator)[0])
    keys = draws.split(key, math.ceil(resamples / RESAMPLES_AT_ONCE))
    drawn = np.asarray(_resampled(keys, numerator, denominator))[:resamples]
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(drawn, (tail, 1.0 - tail))
    return value, float(low), float(high)


# Importance sampling ---------------------------------------------------------------------------


def episode_table(dataset: Dataset) -> tuple[Int[Array, "E T"], Bool[Array, "E T"]]:
    """Row numbers of all episodes, T the longest, and which of them are rows."""
    starts = np.asarray(dataset.starts)
    lengths = np.diff(np.append(starts, dataset.size))
    steps = np.arange(lengths.max())
    there = steps < lengths[:, None]
    return jnp.asarray(np.where(there, starts[:, None] + steps, 0)), jnp.asarray(there)


def episode_bootstrap(dataset: Dataset, key: Key, count: int) -> Int[Array, "count N"]:
    """Rows of `count` bootstrap samples of whole episodes, each cut or repeated to N rows."""
    episodes = np.split(np.arange(dataset.size), np.asarray(dataset.starts)[1:])
    drawn = np.asarray(draws.integers(key, (count, 2 * len(episodes)), len(episodes)))
    samples = [np.concatenate([episodes[e] for e in sample]) for sample in drawn]
    return jnp.asarray(np.stack([np.resize(rows, dataset.size) for rows in samples]))


def discounted_returns(dataset: Dataset, gamma: float) -> Float[Array, " E"]:
    """What the data's own episodes earned."""
    # Not by a table of all episodes: one long one among thousands would make it huge.
    starts = np.asarray(dataset.starts)
    lengths = np.diff(np.append(starts, dataset.size))
    step = np.arange(dataset.size) - np.repeat(starts, lengths)
    earned = np.asarray(dataset.rows.reward, np.float64) * gamma**step
    return jnp.asarray(np.add.reduceat(earned, starts), jnp.float32)


def gaussian_log_prob(policy: PolicyState, dataset: Dataset) -> Float[Array, " N"]:
    """Log-densities of the data's actions under a policy that adds noise to what it does.

    They are of actions before these are clipped to [-1, 1]: what clipping gathers at the very ends
    has no density, and is not asked about. Logs of our own controllers have nothing there.
    """
    noise = jnp.asarray(policy.noise, jnp.float32)
    if not bool((noise > 0.0).all()):
        raise ValueError(
            f"importance sampling: the policy's noise is {noise}; a policy that never varies has "
            "no density: give it some, policy.replace(noise=0.1)"
        )
    mean = policy_step(policy, dataset.rows.obs)
    z = (dataset.rows.action - mean) / noise
    log_std = jnp.broadcast_to(jnp.log(noise), z.shape)
    return -(0.5 * z * z + log_std + 0.5 * math.log(2.0 * math.pi)).sum(-1)


def importance_weights(dataset: Dataset, log_prob: Float[Array, " N"]) -> Float[Array, "E T"]:
    """Products of ratios up to and with each step; an ended episode keeps its last.

    log_prob: of the data's actions under the policy in question. All weights of one step are
    divided by the largest of that step, which no weighted estimate can tell.
    """
    if dataset.log_prob is None:
        raise ValueError(
            f"importance sampling: {dataset.name or 'the dataset'} has no log_prob, the density of "
            "its actions when they were logged; use fitted Q evaluation (worldloom.algos.fqe)"
        )
    index, there = episode_table(dataset)
    ratio = jnp.where(there, (log_prob - dataset.log_prob)[index], 0.0)
    total = jnp.cumsum(ratio, axis=-1)
    return jnp.exp(total - total.max(0))


def weighted_importance_sampling(
    dataset: Dataset,
    log_prob: Float[Array, " N"],
    gamma: float,
    key: Key,
    *,
    per_decision: bool = True,
) -> Estimate:
    """What a policy would earn by the log's own rewards, weighted by how likely it is to do alike.

    log_prob: of the data's actions under the policy (see `gaussian_log_prob`). per_decision
    weights each reward by the steps up to it alone (Precup et al. 2000); else each episode's
    return counts by the product over all of it. Biased for few episodes, consistent for many; below
    `ENOUGH_EPISODES` effective ones there is no interval.
    """
    weights = importance_weights(dataset, log_prob)
    index, there = episode_table(dataset)
    reward = jnp.where(there, dataset.rows.reward[index], 0.0)
    discounted = reward * gamma ** jnp.arange(reward.shape[1])
    last = weights[:, -1:]
    if not per_decision:
        weights, discounted = last, discounted.sum(-1, keepdims=True)
    value, low, high = bootstrap(key, weights * discounted, weights)
    effective = float(last.sum() ** 2 / jnp.square(last).sum())
    if effective < ENOUGH_EPISODES:  # resampling one episode says nothing about the others
        low = high = None
    kind = "per decision" if per_decision else "per episode"
    return Estimate(value, low, high, effective, f"weighted importance sampling, {kind}")


# Support ---------------------------------------------------------------------------------------


class Support(struct.PyTreeNode):
    """How far a policy leaves the data, on Q states of the data.

    Distances are between (state, action) pairs, states in deviations of the data and actions in
    those of the data's actions: of the policy's pair to the nearest row, and, for comparison, of
    the logged pair to the nearest row but itself.
    """

    distance: Array  # (Q,): of the policy's
    reference: Array  # (Q,): of the data's own
    change: Array  # (Q,): root mean square between what the policy and the log did
    outside: Array  # (): the share of the policy's farther than 95 % of the data's own


@jax.jit
def _nearest(queries: Array, rows: Array, own: Array) -> Array:
    """The distance (Q,) of queries (Q, d) to the nearest of rows (P, block, d) but row `own`."""
    block = rows.shape[1]

    def one(best, part):
        k, rows = part
        # |q - r|^2 by its terms: one product instead of (Q, block, d) differences.
        square = (queries**2).sum(-1)[:, None] - 2.0 * queries @ rows.T + (rows**2).sum(-1)
        itself = jnp.arange(block) + k * block == own[:, None]
        return jnp.minimum(best, jnp.where(itself, jnp.inf, square).min(-1)), ()

    start = jnp.full(queries.shape[0], jnp.inf)
    best = jax.lax.scan(one, start, (jnp.arange(rows.shape[0]), rows))[0]
    return jnp.sqrt(jnp.maximum(best, 0.0))


def distances(
    dataset: Dataset,
    obs: Float[Array, "Q n"],
    action: Float[Array, "Q m"],
    own: Int[Array, " Q"] | int = -1,
    block: int = 4096,
) -> Float[Array, " Q"]:
    """How far pairs lie from the nearest logged one, row `own` left out."""
    rows = dataset.rows
    spread = jnp.maximum(rows.action.std(0), 1e-3)
    known = jnp.concatenate([dataset.normalise(rows.obs), rows.action / spread], -1)
    pad = -dataset.size % block
    # Far away, so that they are never the nearest; not infinite, which would make NaN of 0 * inf.
    known = jnp.pad(known, ((0, pad), (0, 0)), constant_values=1e6)
    pairs = jnp.concatenate([dataset.normalise(obs), action / spread], -1)
    own = jnp.broadcast_to(jnp.asarray(own), pairs.shape[:1])
    return _nearest(pairs, known.reshape(-1, block, known.shape[-1]), own)


def support(
    dataset: Dataset, policy: PolicyState, key: Key, *, queries: int = 1000, block: int = 4096
) -> Support:
    """Compares what the policy would do in `queries` of the data's states with all of the data."""
    rows = dataset.rows
    chosen = draws.integers(key, (queries,), dataset.size)
    obs, logged = rows.obs[chosen], rows.action[chosen]
    action = policy_step(policy, obs)
    # The row that was asked about counts for neither, or a clone would beat the data themselves.
    distance = distances(dataset, obs, action, chosen, block)
    reference = distances(dataset, obs, logged, chosen, block)
    return Support(
        distance=distance,
        reference=reference,
        change=jnp.sqrt(jnp.square(action - logged).mean(-1)),
        outside=(distance > jnp.quantile(reference, 0.95)).mean(),
    )
