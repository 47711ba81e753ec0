"""Off-policy evaluation: a policy's return and its support in the data, from logs alone.

Three estimators that err in different ways: plants learned from the log, in which the policy is
played (`worldloom.algos.model_based_evaluation`), fitted Q evaluation, and importance sampling
where the log has densities. `combined` makes one interval of the first two, wide enough for what
their own chance does not show: see there.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos.dynamics import DynamicsConfig
from worldloom.algos.fqe import FQEConfig, FQEHyper, Values, fitted_q_evaluation
from worldloom.algos.model_based_evaluation import Rollouts, Simulators, learn_simulators, roll_out
from worldloom.algos.off_policy_evaluation import (
    Estimate,
    discounted_returns,
    distances,
    ensemble_estimate,
    gaussian_log_prob,
    support,
    weighted_importance_sampling,
)
from worldloom.core.types import Key
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset

OPE_KEY = 7_000_003  # off-policy evaluation draws from keys of its own
OPE_FILE = "ope.json"
NOISE = 0.1  # on a policy's actions, where importance sampling needs it to have a density
STARTS = 128  # logged starts from which learned plants are played
ASKED_STARTS, ASKED_STEPS = 16, 5  # of these, how many, and each how many-th step, are looked up
STRANGE = 2.0  # times as far from the log as 95 % of the log's own rows: nobody has been there
SETTLED_DRIFT = 0.05
SETTLED_SHARE = 0.1  # of strange steps; of the return, by which estimators may differ
SETTLED_WIDTH = 0.4  # of the interval, beside the return


class Learned(NamedTuple):
    """What is learned from a log before any policy is asked about."""

    data: Dataset
    gamma: float
    horizon: int
    config: FQEConfig
    plants: Simulators
    behaviour: Values  # of what logged the data
    logged: np.ndarray  # (E,): what its episodes earned


def learn(data: Dataset, gamma: float, horizon: int, updates: int, key: Key) -> Learned:
    """Models of the plant, and the values of the log's own controller, for `evaluate`.

    updates: of each network.
    """
    model_key, behaviour_key = jax.random.split(key)
    # Few updates have to come as far: see FQEHyper.
    hyper = FQEHyper(gamma=gamma, tau=float(np.clip(400.0 / updates, 0.05, 0.2)))
    config = FQEConfig(updates=updates, hyper=hyper)
    model = DynamicsConfig(updates=updates, num_members=config.num_members)
    plants = learn_simulators(data, model_key, model)
    behaviour = fitted_q_evaluation(None, data, behaviour_key, config, horizon=horizon)
    logged = np.asarray(discounted_returns(data, gamma))
    return Learned(data, gamma, horizon, config, plants, behaviour, logged)


def evaluate(learned: Learned, policy: PolicyState, key: Key) -> dict[str, Any]:
    """Estimated returns of a policy, and its support in the data, without asking the plant.

    All returns are of episodes of `horizon` steps, discounted by `gamma`. The first estimate is
    the one to go by. doubts: why not to, for people; empty where everything agrees.
    """
    data, gamma = learned.data, learned.gamma
    fqe_key, wis_key, support_key, model_key = jax.random.split(key, 4)
    values = fitted_q_evaluation(policy, data, fqe_key, learned.config, horizon=learned.horizon)
    # How wrong the method is on this log: what it says of the log's own controller is known.
    bias = float(np.mean(learned.behaviour.starts) - learned.logged.mean())
    fitted = _widened(values.estimate, abs(bias))
    starts = data.rows.obs[data.starts[:STARTS]]
    played = roll_out(learned.plants, policy, starts, model_key, horizon=learned.horizon)
    modelled = ensemble_estimate(played.returns(gamma), "learned models of the plant")
    near = support(data, policy, support_key)
    strange = _strange(data, played, float(jnp.quantile(near.reference, 0.95)))
    reward_error = _discounted(played.reward_error.mean((1, 2)), gamma)
    unknown = _unknown(data, played, strange, gamma)
    both = combined(modelled, fitted, reward_error, unknown, _possible(learned))
    estimates = [both, modelled, fitted]
    if data.log_prob is not None:
        noisy = policy.replace(noise=jnp.float32(NOISE))
        log_prob = gaussian_log_prob(noisy, data)
        estimates.append(weighted_importance_sampling(data, log_prob, gamma, wis_key))
    summary = {
        "gamma": gamma,
        "logged_return": float(learned.logged.mean()),
        "fqe_drift": values.drift,
        "fqe_bias": bias,
        "reward_error": reward_error,
        "support": {
            "distance": float(near.distance.mean()),
            "logged_distance": float(near.reference.mean()),
            "change": float(near.change.mean()),
            "outside": float(near.outside),
            "strange": float(strange.mean()),
        },
        "estimates": [estimate._asdict() for estimate in estimates],
    }
    return summary | {"doubts": doubts(summary, learned.logged)}


def combined(
    modelled: Estimate,
    fitted: Estimate,
    reward_error: float,
    unknown: tuple[float, float],
    possible: tuple[float, float],
) -> Estimate:
    """The models' estimate, with an interval that knows of more than chance.

    A sum of the models' own interval, how far fitted Q evaluation is from them, what they could not
    explain of logged rewards, which a policy may seek out or avoid, and `unknown`: what may be lost
    and won in states that were never logged. Not in quadrature, as independent errors would be: all
    of them come from the same rows and may well have one sign, as where networks smooth the peak of
    a reward that only few rows reach. The interval ends at what is `possible`.
    """
    assert modelled.low is not None
    chance, apart = modelled.value - modelled.low, abs(modelled.value - fitted.value)
    half = chance + apart + 1.96 * reward_error
    value = modelled.value
    low = value - min(half + unknown[0], max(value - possible[0], 0.0))
    high = value + min(half + unknown[1], max(possible[1] - value, 0.0))
    return Estimate(value, low, high, modelled.effective, "all evidence")


def doubts(summary: dict[str, Any], logged: np.ndarray) -> list[str]:
    """Why not to go by estimates, for people; logged (E,): returns of the log's own episodes."""
    reasons: list[str] = []
    both, modelled, fitted = summary["estimates"][:3]
    size = max(abs(modelled["value"]), abs(summary["logged_return"]), 1e-6)
    apart = abs(modelled["value"] - fitted["value"])
    if summary["fqe_drift"] > SETTLED_DRIFT:
        reasons.append(
            f"values still changed by {summary['fqe_drift']:.0%} in the last tenth of their updates"
        )
    if apart > SETTLED_SHARE * size:
        reasons.append(f"the estimators differ by {apart:.3g}")
    if abs(summary["fqe_bias"]) > SETTLED_SHARE * size:
        reasons.append(
            f"fitted Q evaluation is wrong by {summary['fqe_bias']:.3g} about the log itself"
        )
    if summary["support"]["strange"] > SETTLED_SHARE:
        share = summary["support"]["strange"]
        reasons.append(f"{share:.0%} of its steps lead to where nobody has been")
    if not logged.min() <= both["value"] <= logged.max():
        reasons.append(
            f"no logged episode earned that: theirs are {logged.min():.3g} to {logged.max():.3g}"
        )
    if both["high"] - both["low"] > SETTLED_WIDTH * size:
        reasons.append(f"the interval is wider than {SETTLED_WIDTH:.0%} of the return")
    return reasons


def off_policy_evaluation(
    policy: PolicyState, data: Dataset, gamma: float, horizon: int, updates: int, key: Key
) -> dict[str, Any]:
    """`learn` and `evaluate` for one policy."""
    learn_key, key = jax.random.split(key)
    return evaluate(learn(data, gamma, horizon, updates, learn_key), policy, key)


def _widened(estimate: Estimate, bias: float) -> Estimate:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate._replace(low=estimate.low - bias, high=estimate.high + bias)


def _discounted(steps: Any, gamma: float) -> float:
    """The discounted sum of (T,)."""
    return float((np.asarray(steps, np.float64) * gamma ** np.arange(len(steps))).sum())


def _possible(learned: Learned) -> tuple[float, float]:
    """The least and the largest logged reward in every step, or none at all after an early end."""
    least, most = np.asarray(learned.plants.rewards)
    steps = _discounted(np.ones(learned.horizon), learned.gamma)
    return steps * min(float(least), 0.0), steps * max(float(most), 0.0)


def _strange(data: Dataset, played: Rollouts, usual: float) -> np.ndarray:
    """The share (T / ASKED_STEPS,) of played steps that are far from all that was logged."""
    obs, action, alive = (
        x[::ASKED_STEPS, :, :ASKED_STARTS] for x in (played.obs, played.action, played.alive)
    )
    pairs = obs.reshape(-1, obs.shape[-1]), action.reshape(-1, action.shape[-1])
    far = distances(data, pairs[0], pairs[1]).reshape(alive.shape) > STRANGE * usual
    return np.asarray((far & alive).mean((1, 2)))


def _unknown(
    data: Dataset, played: Rollouts, strange: np.ndarray, gamma: float
) -> tuple[float, float]:
    """What may be lost and won in strange steps: rewards of 98 % of the log, or none at all.

    What none of E logged episodes has shown can still happen in 3 / E of them (the rule of three
    at 95 %), an early end above all.
    """
    reward = np.asarray(played.reward.mean((1, 2)))
    share = np.repeat(strange, ASKED_STEPS)[: len(reward)]
    share = np.minimum(share + 3.0 / len(data.starts), 1.0)
    least, most = np.quantile(np.asarray(data.rows.reward), (0.01, 0.99))
    lost = _discounted(share * np.maximum(reward - min(least, 0.0), 0.0), gamma)
    return lost, _discounted(share * np.maximum(max(most, 0.0) - reward, 0.0), gamma)
