"""What agents are paid for each other's rewards: selfish, shared, or by a social preference.

A transform from world to world for training; evaluation always scores the world's own rewards.
With r_i the rewards of a turn and N agents, agent i learns from

    selfish          r_i
    shared           sum_j r_j
    svo              cos(angle) r_i + sin(angle) mean_{j != i} r_j: social value orientation
                     (Griesinger and Livingston 1973); 0 degrees is selfish, 45 prosocial, 90 gives
                     all away
    inequity_averse  r_i - alpha mean_{j != i} max(e_j - e_i, 0) - beta mean_{j != i} max(e_i - e_j, 0)
                     with smoothed rewards e_i = decay e_i + r_i (Fehr and Schmidt 1999, in time as by
                     Hughes et al. 2018; their alpha 5, beta 0.05, decay 0.99 * 0.95)
"""  # noqa: E501

import math
from dataclasses import replace
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Float

from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import TransformState, apply_in_order, step_by_turn
from worldloom.core.types import Array

Preference = Literal["selfish", "shared", "svo", "inequity_averse"]


class SocialState(TransformState):
    paid: Array  # (A,) rewards of this turn so far
    smoothed: Array  # (A,) e_i


def social_rewards(
    env: PureEnv,
    *,
    rewards: Preference = "selfish",
    svo_angle: float = 45.0,
    inequity_alpha: float = 5.0,
    inequity_beta: float = 0.05,
    inequity_decay: float = 0.9405,
) -> PureEnv:
    """A turn-based world whose agents are paid by a social preference, once a turn.

    Where agents act in turn, the whole turn is paid with its last act: preferences compare what
    all got.
    """
    name, count = env.spec.name, env.spec.num_agents
    if rewards not in get_args(Preference):
        known = ", ".join(get_args(Preference))
        raise ValueError(f"{name}: rewards={rewards!r}; use one of {known}")
    numbers = (svo_angle, inequity_alpha, inequity_beta)
    if not (all(map(math.isfinite, numbers)) and 0 <= inequity_decay < 1):
        raise ValueError(
            f"{name}: svo_angle={svo_angle}, inequity_alpha={inequity_alpha}, inequity_beta="
            f"{inequity_beta}, inequity_decay={inequity_decay}; they must be finite, the decay "
            "from 0 to below 1"
        )
    if rewards == "selfish":
        return env
    if not env.turn_based or count < 2:
        raise ValueError(
            f"{name}: rewards={rewards!r} is for turn-based worlds of several agents; "
            "leave it at 'selfish'"
        )

    def prefer(paid: Float[Array, " A"], smoothed: Float[Array, " A"]) -> Float[Array, " A"]:
        if rewards == "shared":
            return jnp.full_like(paid, paid.sum())
        if rewards == "svo":
            others = (paid.sum() - paid) / (count - 1)
            angle = math.radians(svo_angle)
            return math.cos(angle) * paid + math.sin(angle) * others
        ahead = jnp.maximum(smoothed[:, None] - smoothed[None, :], 0.0)
        envy, guilt = ahead.sum(axis=0), ahead.sum(axis=1)
        return paid - (inequity_alpha * envy + inequity_beta * guilt) / (count - 1)

    def pay(state: SocialState, paid: Array) -> tuple[SocialState, Array]:
        """Pays for a whole turn; the next one begins."""
        smoothed = inequity_decay * state.smoothed + paid
        return state.replace(paid=jnp.zeros_like(paid), smoothed=smoothed), prefer(paid, smoothed)

    def reset(key, params):
        state, timestep = env.reset(key, params)
        zero = jnp.zeros((count,), jnp.float32)
        return SocialState(state, zero, zero), timestep

    def apply_agent(key, state, i, action, params):
        inner, paid = env.apply_agent(key, state.inner, i, action, params)
        paid = state.paid + paid
        done, reward = pay(state, paid)
        last = i == count - 1
        state = SocialState(
            inner, jnp.where(last, done.paid, paid), jnp.where(last, done.smoothed, state.smoothed)
        )
        return state, jnp.where(last, reward, 0.0)

    def apply_all(key, state, action, params):
        if env.spec.interleaved:
            return apply_in_order(made, key, state, action, params)
        inner, paid = env.apply_all(key, state.inner, action, params)
        state, reward = pay(state, paid)
        return state.replace(inner=inner), reward

    def end_turn(key, state, params):
        inner, *ends = env.end_turn(key, state.inner, params)
        return (state.replace(inner=inner), *ends)

    def step(key, state, action, params):
        return step_by_turn(made, key, state, action, params)

    made = replace(
        env,
        reset=reset,
        step=step,
        reset_many=None,
        step_many=None,
        observe_agent=lambda state, i, params: env.observe_agent(state.inner, i, params),
        apply_agent=apply_agent,
        apply_all=apply_all,
        end_turn=end_turn,
    )
    return made
