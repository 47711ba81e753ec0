"""Reward and speed limit of NeoRL-2's SafetyHalfCheetah, as functions of what its files hold.

The task is MuJoCo's half cheetah with its own position as the first of 18 observations (arXiv
2503.19267): it is paid for its speed along x less a tenth of its squared action, and fined 100
where it is faster than 3.2096 m/s. It never ends but by its 1,000 steps. The dynamics are not
here; rewards of logged rows, of other rules, and the cost that a limit on speed stands for, are.

Speed is a difference of positions of over 100 m divided by 0.05 s. Rows in float32 hold it to
about 2e-4 m/s, and rewards likewise.
"""

import jax.numpy as jnp

from worldloom.core.types import Array

SCORE_MIN, SCORE_MAX = -283.0, 2507.0  # mean returns that NeoRL-2 maps to 0 and 100
SPEED_LIMIT = 3.2096  # m/s
FINE = -100.0  # the reward of a step that is too fast
STEP_SECONDS = 0.05
ACTION_COST = 0.1
HORIZON = 1000


def normalised_score(mean_return: float) -> float:
    """NeoRL-2's score of a mean return over episodes."""
    return 100.0 * (mean_return - SCORE_MIN) / (SCORE_MAX - SCORE_MIN)


def speed(obs: Array, next_obs: Array) -> Array:
    """Along x in m/s (...,), from observations (..., 18) before and after a step."""
    return (next_obs[..., 0] - obs[..., 0]) / STEP_SECONDS


def speed_margin(obs: Array, next_obs: Array) -> Array:
    """How far below the limit in m/s (...,); below 0 where it is broken."""
    return SPEED_LIMIT - speed(obs, next_obs)


def cost(obs: Array, next_obs: Array) -> Array:
    """1 where the limit is broken, else 0 (...,)."""
    return (speed(obs, next_obs) > SPEED_LIMIT).astype(jnp.float32)


def reward(obs: Array, action: Array, next_obs: Array) -> Array:
    """(...,) for observations (..., 18) and actions (..., 6)."""
    fast = speed(obs, next_obs)
    effort = ACTION_COST * jnp.square(action).sum(-1)
    return jnp.where(fast > SPEED_LIMIT, FINE, fast - effort)
