"""The Industrial Benchmark: a machine that is steered by three knobs and hides half of its state.

D. Hein and others, "A benchmark environment motivated by industrial control problems", 2017, arXiv
1709.09480 (numbers of equations are those of the paper; code by Siemens under
the MIT licence, github.com/siemens/industrialbenchmark). Velocity v, gain g and shift h, all 0 to
100, are moved by at most 1, 10 and 5.75 a step. Under the load p (the "set point") they cause

- operational cost exp((2 p + 4 v + 2.5 g) / 100), felt five to nine steps later;
- miscalibration: a Goldstone potential over the effective shift, whose hidden angle turns away
  while the shift is on one side of its safe zone, then back;
- fatigue 30000 / (5 v + 100) - 0.01 g^2, made worse by spikes that, let loose, amplify themselves
  until velocity or gain is pulled back.

Only p, v, g, h, fatigue and consumption are seen; reward is -(3 fatigue + consumption). A later
revision of Siemens' Python code mixes up the two hidden states of fatigue; here they follow the
paper, as the Java code does.

`transition` takes its random numbers as an argument, so that any other implementation can be fed
the same ones.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.plant.controllers import Tuning
from worldloom.suites.plant.plant import Plant, make_world, remaining
from worldloom.suites.plant.types import Limit, Loop, Measured, PlantParams, Signal, measured

TURN = 24  # steps of the hidden angle in a full turn
QUARTER = TURN // 4
STEP = math.sin(math.radians(15.0))  # the largest move that the best policy needs
SAFE_ZONE = STEP / 2.0  # of the effective shift: within it the angle returns to 0
BOUND = 1.5  # of the effective shift
LOAD_SHIFT = 0.02  # by which a unit of load displaces it
SCALE = 2.0 * BOUND + 100.0 * LOAD_SHIFT
SHIFT_STEP = STEP / 0.9 * 100.0 / SCALE
DELAYED = np.asarray([1, 2, 3, 2, 1, 0, 0, 0, 0, 0], np.float32) * np.float32(0.11111)
TOLERANCE, RUNAWAY, WORST, AMPLIFIED = 0.05, 1.2, 5.0, 1.1  # of hidden fatigue
Percent = Annotated[Array, Measured("%", 0.0, 100.0)]


class Machine(struct.PyTreeNode):
    """The benchmark's whole state."""

    load: Percent
    velocity: Percent
    gain: Percent
    shift: Percent
    fatigue: Annotated[Array, Measured("1", 0.0, 100.0)]
    consumption: Annotated[Array, Measured("1", 0.0, 500.0)]
    costs: Array  # (10,): operational costs, oldest first
    domain: Array  # int32, -1 or 1: the side of the safe zone the shift was on last
    response: Array  # int32, -1 or 1: whether the angle turns with the shift or against it
    angle: Array  # int32, -6 .. 6, in 24ths of a turn
    hidden_velocity: Array
    hidden_gain: Array
    load_change: Array  # a step
    load_steps: Array  # int32: until another change is drawn


class Draws(struct.PyTreeNode):
    """The random numbers of a step: uniform in [0, 1) and standard normal."""

    uniform: Array  # (10,)
    normal: Array  # (2,)


class Wear(struct.PyTreeNode):
    """Numbers of the benchmark."""

    load: Any = 70.0  # the set point to begin with
    wander: Any = 0.0  # 1: the set point changes as in the benchmark's harder setting; 0: it stays
    fatigue_weight: Any = 3.0
    consumption_weight: Any = 1.0
    miscalibration_weight: Any = 25.0
    ageing: Any = 0.3  # of fatigue, added by the end of an episode that drifts


@dataclass(frozen=True)
class IndustrialBenchmark(Plant):
    """See the module."""

    name: str = "industrial-benchmark"
    observation: tuple = measured(Machine)
    action: tuple = (
        Signal("velocity_change", "%", -1.0, 1.0),
        Signal("gain_change", "%", -10.0, 10.0),
        Signal("shift_change", "%", -SHIFT_STEP, SHIFT_STEP),
    )
    limits: tuple = (
        Limit("worn", "fatigue", "at_most", 60.0),
        Limit("wearing", "fatigue", "at_most", 40.0, hard=False),
        Limit("wasteful", "consumption", "at_most", 250.0, hard=False),
    )
    loops: tuple = (
        # Knobs that are cheap under the usual load, the shift well inside of its safe zone.
        Loop("velocity_change", "velocity", 40.0, 4.0),
        Loop("gain_change", "gain", 47.0, 0.4),
        Loop("shift_change", "shift", 59.5, 0.7),
    )
    # Knobs come to where they belong by half of the gain as well: only noise keeps them away.
    medium_tuning: ClassVar[Tuning] = Tuning(0.5, 1.0, False)
    horizon: int = 1000
    step_seconds: float = 1.0
    physics: ClassVar[Any] = Wear

    def start(self, key: Key, params: PlantParams) -> Machine:
        """Everything at 50, as if nothing had changed for long, and one idle step."""
        half, zero, none, one = jnp.float32(50.0), jnp.float32(0.0), jnp.int32(0), jnp.int32(1)
        load = jnp.clip(jnp.asarray(params.physics.load, jnp.float32), 0.0, 100.0)
        costs = jnp.broadcast_to(operational_cost(load, half, half), DELAYED.shape)
        shown, hidden = (load, half, half, half, zero, zero), (costs, one, one, none, zero, zero)
        idle = Machine(*shown, *hidden, load_change=zero, load_steps=none)
        return self.transition(idle, jnp.zeros(3, jnp.float32), none, draw(key), params)

    def advance(self, key: Key, x: Machine, u: Array, step: Array, params: PlantParams) -> Machine:
        return self.transition(x, u, step, draw(key), params)

    def transition(
        self, x: Machine, u: Array, step: Array, random: Draws, params: PlantParams
    ) -> Machine:
        """One step with given random numbers; u (3,) are the changes of velocity, gain, shift."""
        numbers: Wear = params.physics
        load, load_change, load_steps = self._load(x, random.uniform[6:], params)
        velocity, gain, shift = _steer(x.velocity, x.gain, x.shift, u)
        worn = basic_fatigue(velocity, gain) * remaining(-numbers.ageing, step, params)
        hidden_velocity, hidden_gain, spike = _fatigue(
            x, effective_velocity(velocity, gain, load), effective_gain(gain, load), random, params
        )
        fatigue = worn * (1.0 + 2.0 * spike) / 3.0
        costs = jnp.concatenate([x.costs[1:], operational_cost(load, velocity, gain)[None]])
        effective = effective_shift(shift, load)
        domain, response, angle = turn(x.domain, x.response, x.angle, effective)
        wrong = miscalibration(angle, effective) + 1.0
        mean = (costs * DELAYED).sum() + numbers.miscalibration_weight * wrong
        consumption = mean - random.normal[1] * (1.0 + 0.005 * mean) * params.disturbance
        shown = (load, velocity, gain, shift, fatigue, consumption)
        hidden = (costs, domain, response, angle, hidden_velocity, hidden_gain)
        return Machine(*shown, *hidden, load_change=load_change, load_steps=load_steps)

    def _load(self, x: Machine, random: Array, params: PlantParams) -> tuple[Array, Array, Array]:
        """The load walks straight for 1 to 99 steps; at its ends it turns round by chance."""
        numbers: Wear = params.physics
        over = x.load_steps <= 0
        steps = jnp.where(over, 1 + jnp.floor(99.0 * random[0]).astype(jnp.int32), x.load_steps)
        drawn = jnp.where(random[2] < 0.1, 0.0, 2.0 * random[1] - 1.0)
        change = jnp.where(over, drawn, x.load_change)
        moved = x.load + change * numbers.wander * params.disturbance
        outside = (moved > 100.0) | (moved < 0.0)
        change = jnp.where(outside & (random[3] > 0.5), -change, change)
        return jnp.clip(moved, 0.0, 100.0), change, steps - 1

    def reward(self, x: Machine, u: Array, next_x: Machine, params: PlantParams) -> Array:
        numbers: Wear = params.physics
        wear = numbers.fatigue_weight * next_x.fatigue
        return -(wear + numbers.consumption_weight * next_x.consumption)

    def model(self, obs: Array, u: Array, params: PlantParams) -> Array:
        """Exact for load and knobs. Fatigue is as much above its floor as now, and consumption as
        now: what decides them is hidden, and no action shows in consumption before five steps."""
        load, velocity, gain, shift, fatigue, consumption = obs
        floor = basic_fatigue(velocity, gain)
        velocity, gain, shift = _steer(velocity, gain, shift, u)
        above = jnp.where(floor > 0.0, 3.0 * fatigue / jnp.maximum(floor, 1e-6), 1.0)
        fatigue = basic_fatigue(velocity, gain) * jnp.clip(above, 1.0, 3.0) / 3.0
        return jnp.stack([load, velocity, gain, shift, fatigue, consumption])


def draw(key: Key) -> Draws:
    """The random numbers of a step."""
    key, other = draws.split(key)
    return Draws(draws.uniform(key, (10,)), draws.normal(other, (2,)))


def _steer(velocity: Array, gain: Array, shift: Array, u: Array) -> tuple[Array, Array, Array]:
    """The knobs, moved and kept in their ranges."""
    knobs = (velocity + u[0], gain + u[1], shift + u[2])
    velocity, gain, shift = (jnp.clip(knob, 0.0, 100.0) for knob in knobs)
    return velocity, gain, shift


# Consumption -----------------------------------------------------------------------------------


def operational_cost(load: Array, velocity: Array, gain: Array) -> Array:
    """Eq. 6, without delay."""
    return jnp.exp((2.0 * load + 4.0 * velocity + 2.5 * gain) / 100.0)


def effective_shift(shift: Array, load: Array) -> Array:
    """Eq. 8."""
    return jnp.clip(SCALE * shift / 100.0 - LOAD_SHIFT * load - BOUND, -BOUND, BOUND)


def turn(
    domain: Array, response: Array, angle: Array, effective: Array
) -> tuple[Array, Array, Array]:
    """The hidden side, direction and angle after an effective shift."""
    safe = jnp.abs(effective) <= SAFE_ZONE
    side = jnp.sign(effective).astype(jnp.int32)
    new_domain = jnp.where(safe, domain, side)
    response = jnp.where(new_domain != domain, 1, response)
    away = jnp.where(angle == -new_domain * QUARTER, 0, response * side)
    angle = angle + jnp.where(safe, -jnp.sign(angle), away)
    far = jnp.abs(angle) >= QUARTER
    response = jnp.where(far, -1, response)
    angle = jnp.where(far, 2 * QUARTER - (angle + TURN) % TURN, angle)
    home = safe & (angle == 0)
    return jnp.where(home, 1, new_domain), jnp.where(home, 1, response), angle


def _goldstone() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every angle: its sine, the shift that is best, and the potential's own minimum."""
    sine = np.sin(2.0 * np.pi / TURN * np.arange(-QUARTER, QUARTER + 1))
    best = np.maximum(np.abs(sine), STEP)
    # The minimum is the largest root of r^3 - r - 2 q, where the potential's slope vanishes.
    depth = math.sqrt(2.0 / 27.0) * np.abs(sine)
    lowest = np.asarray([np.roots([1.0, 0.0, -1.0, -2.0 * q]).real.max() for q in depth])
    return sine.astype(np.float32), best.astype(np.float32), lowest.astype(np.float32)


SINE, BEST, LOWEST = _goldstone()
DEEPEST = float(np.roots([1.0, 0.0, -1.0, -2.0 * math.sqrt(2.0 / 27.0)]).real.max())
TILT = 8.0 * math.sqrt(2.0 / 27.0)
NORM = 2.0 * DEEPEST**2 - DEEPEST**4 + TILT * DEEPEST  # makes the deepest point -1


def miscalibration(angle: Array, effective: Array) -> Array:
    """The Goldstone potential: -1 where the shift is the best for the angle."""
    row = angle + QUARTER
    sine, best, lowest = (jnp.asarray(table)[row] for table in (SINE, BEST, LOWEST))
    size = jnp.abs(effective)
    power = (2.0 - best) / (2.0 - lowest)
    beyond = lowest + (2.0 - lowest) * (jnp.maximum(size - best, 0.0) / (2.0 - best)) ** power
    radius = jnp.sign(effective) * jnp.where(size <= best, size * lowest / best, beyond)
    square = radius * radius
    return (square * square - 2.0 * square - TILT * sine * radius) / NORM


# Fatigue ---------------------------------------------------------------------------------------


def basic_fatigue(velocity: Array, gain: Array) -> Array:
    """Before spikes."""
    return jnp.maximum(30000.0 / (5.0 * velocity + 100.0) - 0.01 * gain * gain, 0.0)


def effective_velocity(velocity: Array, gain: Array, load: Array) -> Array:
    """Eqs. 24 and 26: 0 at full velocity without gain, 1 at full gain without velocity."""

    def raw(v: Array | float, g: Array | float) -> Array:
        return (g + load + 2.0) / (v - load + 101.0)

    least, most = raw(100.0, 0.0), raw(0.0, 100.0)
    return (raw(velocity, gain) - least) / (most - least)


def effective_gain(gain: Array, load: Array) -> Array:
    """Eqs. 25 and 27: 0 at full gain, 1 without."""
    least, most = 1.0 / (load + 101.0), 1.0 / (load + 1.0)
    return (1.0 / (gain + load + 1.0) - least) / (most - least)


def _fatigue(
    x: Machine, velocity: Array, gain: Array, random: Draws, params: PlantParams
) -> tuple[Array, Array, Array]:
    """Hidden velocity and gain, and the spike in 0 .. 1 (eqs. 28, 29)."""
    calm = params.disturbance

    def noise(effective: Array, three: Array) -> Array:
        base = jnp.tanh(-0.05 * calm * jnp.log1p(-three[0]))  # exponential, of mean 0.1
        chance = jnp.clip(effective, 0.001, 0.999)
        spike = jnp.where(three[2] < chance, three[1] * effective * calm, 0.0)
        return base + (1.0 - base) * spike

    def hidden(now: Array, effective: Array, noise: Array) -> Array:
        runaway = jnp.minimum(WORST, AMPLIFIED * now)
        moved = jnp.where(now >= RUNAWAY, runaway, 0.9 * now + noise / 3.0)
        return jnp.where(effective <= TOLERANCE, effective, moved)

    gain_noise = noise(gain, random.uniform[0:3])
    velocity_noise = noise(velocity, random.uniform[3:6])
    hidden_velocity = hidden(x.hidden_velocity, velocity, velocity_noise)
    hidden_gain = hidden(x.hidden_gain, gain, gain_noise)
    at_worst = jnp.maximum(hidden_velocity, hidden_gain) >= WORST
    broken = jax.nn.sigmoid(2.4 + 0.4 * calm * random.normal[0])
    spike = jnp.where(at_worst, broken, jnp.maximum(velocity_noise, gain_noise))
    return hidden_velocity, hidden_gain, spike


make = partial(make_world, IndustrialBenchmark())  # with the options of `make_world`
