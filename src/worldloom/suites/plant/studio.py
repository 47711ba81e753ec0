"""A plant in the studio, run by its operator: set points, actuators by hand, the filter's alarms.

The safety filter stands before the plant whoever controls it: see `worldloom.safety.filter`.
"""

import math
from collections.abc import Mapping, Sized
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array
from worldloom.nn.policy import policy_step
from worldloom.safety import ControlState, SafetyReport, filter_action, initial_memory
from worldloom.safety.filter import clear_override, reset_latch, with_override
from worldloom.suites.plant.controllers import TUNINGS, loops_of
from worldloom.suites.plant.plant import FAR, plant_of
from worldloom.suites.plant.problem import plant_facts
from worldloom.suites.plant.safety import constraints_for

PERIOD = 0.2  # seconds that a step is shown


class PlantSession:
    """A `worldloom.training.suite.Session`.

    Messages: {"control": "loops"}, "policy" or "hand"; {"hand": [300.0]}, {"setpoints": [350.0]},
    in physical units; {"speed": 2} steps at a time, 0 to wait; {"reset_stop": true}.
    """

    def __init__(self, target: Any):
        if isinstance(target, PureEnv):
            self.env, self.world, policy = target, plant_of(target), None
            self.constraints = constraints_for(self.world)
        else:
            evaluator = target.evaluator
            self.env, self.constraints = evaluator.env, evaluator.constraints
            self.world, policy = plant_of(self.env), evaluator.to_policy(target.agents)
        plant, tuning = self.world.plant, TUNINGS["expert"].replace(noise=1e-3)
        fixed = [None if isinstance(loop.setpoint, str) else loop.setpoint for loop in plant.loops]
        gains = [(loop.proportional, loop.integral, loop.derivative) for loop in plant.loops]
        # A loop without gains only holds its actuator: no set point changes anything.
        self._points = [i for i, at in enumerate(fixed) if at is not None and any(gains[i])]
        self._usual = np.asarray([point or 0.0 for point in fixed], np.float32)
        self.controls = ["policy"] * (policy is not None) + ["loops"] * bool(fixed) + ["hand"]
        loops, params = loops_of(self.world), self.env.default_params()

        def step(key: Any, state: Any, loop: Any, asked: ControlState, points: Array, own: Any):
            by_loops, _, loop = loops.act(tuning, key, loop, asked.obs, points)
            learned = by_loops if policy is None else policy_step(policy, asked.obs)
            proposed = jnp.where(own, by_loops, learned)
            action, report = filter_action(proposed, asked, self.constraints)
            return *self.env.step(key, state, action, params), loop, report

        self._loops, self._step = loops, jax.jit(step)
        self._start = jax.jit(lambda key: self.env.reset(key, params))

    def describe(self) -> dict[str, Any]:
        facts, plant = plant_facts(self.world), self.world.plant
        for name in ("observation", "action"):
            ends = [{end: _finite(row[end]) for end in ("low", "high")} for row in facts[name]]
            facts[name] = [row | end for row, end in zip(facts[name], ends, strict=True)]
        loops = [vars(plant.loops[i]) for i in self._points]
        more = {"name": plant.name, "period": PERIOD, "controls": self.controls, "loops": loops}
        return facts | more

    def reset(self, seed: int) -> dict[str, Any]:
        self._key = jax.random.key(seed)
        self._state, first = self._start(self._key)
        self._memory = initial_memory(self.constraints, self._state.action)
        self._obs, self._reports, self._speed, self._over = first.obs, [], 1, False
        self._setpoints = self._usual.copy()
        self._u, self._total = np.asarray(self.world.control(self._state.action)), 0.0
        self._take(self.controls[0])
        asked = ControlState(self._obs, self._memory)  # the first time, the step is compiled here
        self._step(self._key, self._state, self._loop, asked, self._setpoints, False)
        return self.state()

    def act(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if "control" in message:
            self._take(message["control"])
        elif "hand" in message:
            action = self.world.action(jnp.asarray(_numbers(message["hand"], "hand", self._u)))
            self._take("hand")
            self._memory = with_override(self._memory, jnp.clip(action, -1.0, 1.0))
        elif "setpoints" in message:
            points = _numbers(message["setpoints"], "setpoints", self._points)
            self._setpoints[self._points] = points
        elif "speed" in message:
            (self._speed,) = _numbers([message["speed"]], "speed", [1]).astype(int).clip(0, 20)
        elif "reset_stop" in message:
            self._memory = reset_latch(self._memory)
        else:
            self._reports = []
            while not self._over and len(self._reports) < self._speed:
                self._reports.append(self._advance())
        return self.state()

    def _take(self, control: Any) -> None:
        if control not in self.controls:
            raise ValueError(f"control must be one of {', '.join(self.controls)}")
        self._control, memory = control, self._memory
        by_hand = control == "hand"  # which takes over from where the actuators are
        self._memory = with_override(memory, memory.previous) if by_hand else clear_override(memory)
        self._loop = self._loops.init()  # what the loops summed up meanwhile is not theirs

    def _advance(self) -> SafetyReport:
        self._key, key = draws.split(self._key)
        asked, own = ControlState(self._obs, self._memory), self._control == "loops"
        self._state, after, self._loop, report = self._step(
            key, self._state, self._loop, asked, self._setpoints, own
        )
        self._memory, self._obs = report.memory, after.obs
        self._u, self._total = np.asarray(after.info.control), self._total + float(after.reward)
        self._over |= bool(after.terminated | after.truncated)
        return report

    def state(self) -> dict[str, Any]:
        names, reports = self.constraints.names, self._reports
        rows = {int(i) for report in reports for i in np.flatnonzero(report.margins_after < 0.0)}
        causes = {int(report.active) for report in reports} - {-1}
        return {
            "step": int(self._state.step),
            "signals": [_finite(x) for x in np.asarray(self._obs).tolist()],
            "actuators": self._u.tolist(),
            "setpoints": self._setpoints[self._points].tolist(),
            "control": self._control,
            "speed": int(self._speed),
            "alarms": [names[i] for i in sorted(rows)],
            "causes": [names[i] for i in sorted(causes)],
            "total": self._total,
            "over": self._over,
            "stopped": bool(self._memory.latched),
            "intervened": any(bool(report.intervened) for report in reports),
            "emergency": any(bool(report.emergency) for report in reports),
        }


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _numbers(values: Any, name: str, like: Sized) -> np.ndarray:
    is_list = isinstance(values, list) and len(values) == len(like)
    if not is_list or not all(type(v) in (int, float) and abs(v) < FAR for v in values):
        raise ValueError(f"{name} must be a list of {len(like)} numbers")
    return np.asarray(values, np.float32)
