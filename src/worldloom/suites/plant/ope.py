"""Off-policy evaluation: a policy's return and its support in the data, from logs alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos.fqe import FQEConfig, FQEHyper, fitted_q_evaluation
from worldloom.algos.off_policy_evaluation import (
    Estimate,
    discounted_returns,
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


def off_policy_evaluation(
    policy: PolicyState, data: Dataset, gamma: float, horizon: int | None, updates: int, key: Key
) -> dict[str, Any]:
    """Estimated returns of a policy, and its support in the data, without asking the plant.

    All returns are of episodes of `horizon` steps, discounted by `gamma`. fqe_drift: the share by
    which learned values still changed in the last tenth of the updates; far from 0, there were too
    few of them.
    """
    fqe_key, wis_key, support_key = jax.random.split(key, 3)
    config = FQEConfig(updates=updates, hyper=FQEHyper(gamma=gamma))
    fitted, learned = fitted_q_evaluation(policy, data, fqe_key, config, horizon=horizon)
    estimates: list[Estimate] = [fitted]
    if data.log_prob is not None:
        noisy = policy.replace(noise=jnp.float32(NOISE))
        log_prob = gaussian_log_prob(noisy, data)
        estimates.append(weighted_importance_sampling(data, log_prob, gamma, wis_key))
    near = support(data, policy, support_key)
    return {
        "gamma": gamma,
        "logged_return": float(discounted_returns(data, gamma).mean()),
        "estimates": [estimate._asdict() for estimate in estimates],
        "fqe_drift": _drift(np.asarray(learned["q"])),
        "support": {
            "distance": float(near.distance.mean()),
            "logged_distance": float(near.reference.mean()),
            "change": float(near.change.mean()),
            "outside": float(near.outside),
        },
    }


def _drift(values: np.ndarray) -> float:
    """The share by which a curve (updates,) changed in its last tenth, by means of hundredths."""
    tenth, hundredth = (max(len(values) // n, 1) for n in (10, 100))
    before, end = values[-tenth:][:hundredth].mean(), values[-hundredth:].mean()
    return float(abs(end - before) / max(abs(end), 1e-6))
