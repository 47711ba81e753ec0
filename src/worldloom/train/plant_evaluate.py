"""How a policy does in the plant itself, as it is and behind the safety filter."""

import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws, rollout
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.safety import (
    ControlState,
    SafetyConstraints,
    initial_memory,
    safe_policy_execution,
)


class Course(struct.PyTreeNode):
    """What happened in E episodes of T steps; rows after an episode's end are not `alive`."""

    alive: Array  # bool (T, E)
    reward: Array  # (T, E)
    margins: Array  # (T, E, C): of the plant's limits
    obs: Array  # (T, E, n)
    action: Array  # (T, E, m)
    intervened: Array  # bool (T, E)
    emergency: Array  # bool (T, E)


@dataclass(frozen=True)
class Outcome:
    """Episodes of one way to control the plant, in numbers."""

    returns: np.ndarray  # (E,)
    discounted: np.ndarray  # (E,)
    lengths: np.ndarray  # (E,)
    violated: np.ndarray  # (C,): the share of steps in which each limit was crossed
    worst: np.ndarray  # (C,): the smallest margin
    interventions: float  # the share of steps
    emergencies: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "return": float(self.returns.mean()),
            "return_stderr": float(self.returns.std() / np.sqrt(len(self.returns))),
            "discounted_return": float(self.discounted.mean()),
            "length": float(self.lengths.mean()),
            "violated": self.violated.tolist(),
            "worst_margin": self.worst.tolist(),
            "interventions": self.interventions,
            "emergencies": self.emergencies,
        }


@dataclass(frozen=True)
class PlantEvaluation:
    """The policy by itself, and with the filter that it is shipped with; from the same starts."""

    bare: Outcome
    filtered: Outcome
    course: Course  # of the filtered, in numpy
    bare_course: Course
    score: float | None  # of the bare policy, as NeoRL-2 normalises it, where it has the plant
    seconds: float

    @property
    def mean(self) -> float:
        """The return of what is shipped."""
        return float(self.filtered.returns.mean())

    def to_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "return": self.mean, "bare": self.bare.to_dict(), "filtered": self.filtered.to_dict(),
        }  # fmt: skip
        return told if self.score is None else told | {"score": self.score}


class PlantEvaluator:
    """Plays whole episodes of a plant in one compiled program.

    gamma: of the discounted returns, by which off-policy estimates are measured.
    """

    def __init__(self, env: PureEnv, constraints: SafetyConstraints, episodes: int, gamma: float):
        self.env, self.constraints, self.episodes, self.gamma = env, constraints, episodes, gamma
        self._play = jax.jit(partial(_play, env, episodes), static_argnames="filtered")

    def __call__(self, policy: PolicyState, key: Key) -> PlantEvaluation:
        start = time.perf_counter()
        params = self.env.default_params()
        courses = {
            filtered: jax.device_get(
                self._play(policy, self.constraints, key, params, filtered=filtered)
            )
            for filtered in (False, True)
        }
        bare, filtered = (outcome(courses[way], self.gamma) for way in (False, True))
        score = normalised_score(self.env, float(bare.returns.mean()))
        seconds = time.perf_counter() - start
        return PlantEvaluation(bare, filtered, courses[True], courses[False], score, seconds)


def normalised_score(env: PureEnv, mean_return: float) -> float | None:
    """100 (R - min) / (max - min) with NeoRL-2's figures, where it has this plant."""
    home = sys.modules[type(env.base.plant).__module__]
    function = getattr(home, "normalised_score", None)
    return None if function is None else float(function(mean_return))


def outcome(course: Course, gamma: float) -> Outcome:
    """The numbers of a course."""
    alive = np.asarray(course.alive)
    reward = np.where(alive, course.reward, 0.0).astype(np.float64)
    steps = max(int(alive.sum()), 1)
    crossed = (course.margins < 0.0) & alive[..., None]
    worst = np.where(alive[..., None], course.margins, np.inf).min((0, 1))
    return Outcome(
        returns=reward.sum(0),
        discounted=(reward * gamma ** np.arange(len(reward))[:, None]).sum(0),
        lengths=alive.sum(0),
        violated=np.asarray(crossed.sum((0, 1)) / steps),
        worst=worst,
        interventions=float((course.intervened & alive).sum() / steps),
        emergencies=float((course.emergency & alive).sum() / steps),
    )


def _play(
    env: PureEnv,
    episodes: int,
    policy: PolicyState,
    constraints: SafetyConstraints,
    key: Key,
    params: PyTree,
    *,
    filtered: bool,
) -> Course:
    worlds = batch(env, episodes)
    start_key, play_key = draws.split(key)
    state, first = worlds.reset(start_key, params)
    memory = jax.vmap(lambda place: initial_memory(constraints, place))(state.action)

    def choose(world: PyTree, memory: PyTree, _: Key) -> tuple[PyTree, PyTree]:
        obs = world[1]  # no key: the policy as it is shipped does not explore
        if not filtered:
            never = jnp.zeros(episodes, bool)
            return (policy_step(policy, obs), never, never), memory
        action, report = safe_policy_execution(policy, ControlState(obs, memory), constraints)
        return (action, report.intervened, report.emergency), report.memory

    def step(world: PyTree, chosen: PyTree, key: Key) -> tuple[PyTree, Course]:
        (state, obs, alive), (action, intervened, emergency) = world, chosen
        state, after = worlds.step(key, state, action, params)
        row = Course(
            alive, after.reward, after.info.safety.margins, obs, action, intervened, emergency
        )
        return (state, after.obs, alive & ~(after.terminated | after.truncated)), row

    world = (state, first.obs, jnp.ones(episodes, bool))
    horizon = int(env.default_params().horizon)
    return rollout.play_steps(choose, step, play_key, world, memory, horizon)[2]
