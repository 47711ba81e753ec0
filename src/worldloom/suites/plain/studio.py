"""A world of one agent in the studio: actions by hand or by the policy, observations as numbers."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from worldloom.algos.algorithm import action_kind
from worldloom.core import draws
from worldloom.core.protocols import PureEnv
from worldloom.suites.plain.problem import usual_form

MOST_VALUES = 64  # of an observation that are shown
STEPS = 50  # that the policy may be asked for at once


class PlainSession:
    """A `worldloom.training.suite.Session`.

    Messages: {"action": 1}, or {"action": [0.5]} with numbers in [-1, 1]; {"policy": 10}: so many
    steps as the run's policy would take them.
    """

    def __init__(self, target: Any):
        is_world = isinstance(target, PureEnv)
        self.env = usual_form(target, target.spec.name) if is_world else target.problem.env
        spec = self.env.spec
        if spec.num_agents != 1:
            raise ValueError(f"{spec.name} has {spec.num_agents} agents; here one agent is played")
        self._space: Any = spec.action
        self._discrete = action_kind(spec) == "discrete"
        axes = {"discrete": 0, "continuous": 1}.get(action_kind(spec))
        if axes is None or len(self._space.shape) != axes:
            raise ValueError(f"{spec.name}: such actions cannot be chosen by hand: {spec.action}")
        self._policy = None if is_world else target.act
        params = self.env.default_params()
        self._begin = jax.jit(lambda key: self.env.reset(key, params))
        self._step = jax.jit(lambda key, state, action: self.env.step(key, state, action, params))
        self.reset(0)  # a step: everything is compiled now
        self._advance(np.zeros(self._space.shape, self._space.dtype))

    def describe(self) -> dict[str, Any]:
        spec = self.env.spec
        shown = {"choices": self._space.n} if self._discrete else {"inputs": self._space.shape[0]}
        return shown | {
            "name": spec.name,
            "horizon": spec.horizon,
            "policy": self._policy is not None,
            "most": MOST_VALUES,
        }

    def reset(self, seed: int) -> dict[str, Any]:
        self._key, key = draws.split(jax.random.key(seed))
        self._state, self._now = self._begin(key)
        self._turn, self._total, self._last = 0, 0.0, None
        return self.state()

    def act(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if "policy" not in message:
            self._advance(self._read(message.get("action")))
            return self.state()
        if self._policy is None:
            raise ValueError("there is no policy here; choose a run to play in")
        steps = message["policy"]
        if type(steps) is not int or not 1 <= steps <= STEPS:
            raise ValueError(f"policy must be a number of steps from 1 to {STEPS}")
        for n in range(steps):
            if n and self._over:
                break
            self._advance(self._chosen())
        return self.state()

    @property
    def _over(self) -> bool:
        return bool(self._now.terminated | self._now.truncated)

    def _chosen(self) -> np.ndarray:
        """What the policy would do now."""
        assert self._policy is not None
        return np.asarray(self._policy(jax.tree.map(lambda x: x[None], self._now.obs)))[0]

    def _read(self, action: Any) -> np.ndarray:
        if self._discrete:
            if type(action) is not int or not 0 <= action < self._space.n:
                raise ValueError(f"action must be a whole number from 0 to {self._space.n - 1}")
            return np.asarray(action, self._space.dtype)
        count = self._space.shape[0]
        fits = isinstance(action, list) and len(action) == count
        if not fits or not all(type(x) in (int, float) and abs(x) <= 1 for x in action):
            raise ValueError(f"action must be a list of {count} numbers from -1 to 1")
        return np.asarray(action, np.float32)

    def _advance(self, action: np.ndarray) -> None:
        if self._over:
            raise ValueError("the episode is over; begin another")
        self._key, key = draws.split(self._key)
        self._state, self._now = self._step(key, self._state, action)
        self._turn, self._total = self._turn + 1, self._total + float(self._now.reward)
        self._last = action.tolist()

    def state(self) -> dict[str, Any]:
        leaves = [np.asarray(leaf, float).ravel() for leaf in jax.tree.leaves(self._now.obs)]
        values = np.concatenate(leaves)
        return {
            "values": [_finite(value) for value in values[:MOST_VALUES].tolist()],
            "left_out": max(0, len(values) - MOST_VALUES),
            "turn": self._turn,
            "reward": _finite(float(self._now.reward)),
            "total": _finite(self._total),
            "last": self._last,
            "would": None if self._policy is None or self._over else self._chosen().tolist(),
            "over": self._over,
        }


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
