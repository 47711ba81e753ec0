"""A continuous stirred-tank reactor that runs away when it is cooled too late.

An exothermic reaction A -> B of the first order in a jacketed tank (Seborg, Edgar, Mellichamp,
"Process Dynamics and Control", example 2.5): with q the feed, V the volume, c the concentration
of A, T the temperature and k = k0 exp(-E / (R T)),

    V dc/dt = q (c_feed - c) - V k c
    V rho cp dT/dt = q rho cp (T_feed - T) + (-dH) V k c + UA (T_jacket - T)

At its usual working point (0.5 mol/L at 350 K) the reactor is unstable without control. The wanted
concentration changes now and then; the temperature of the feed wanders; fouling lowers UA as the
plant drifts. The jacket follows its set point with a lag.

The model is exact: undisturbed, the feed returns to its usual temperature and what is wanted stays.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.plant.plant import Plant, make_world, remaining, runge_kutta
from worldloom.suites.plant.types import Limit, Loop, Measured, PlantParams, Signal, measured

SUBSTEPS = 8  # of the integration within a step of control
HOTTEST = 430.0  # K: far beyond what ends an episode; the reaction gets no faster, nor too stiff


class Tank(struct.PyTreeNode):
    """The reactor's state."""

    concentration: Annotated[Array, Measured("mol/L", 0.0, 1.0)]  # of A
    temperature: Annotated[Array, Measured("K", 300.0, 400.0)]
    jacket: Annotated[Array, Measured("K", 280.0, 320.0)]
    feed_temperature: Annotated[Array, Measured("K", 340.0, 360.0)]
    wanted: Annotated[Array, Measured("mol/L", 0.0, 1.0)]


class Chemistry(struct.PyTreeNode):
    """Numbers of the example; a minute is the unit of time."""

    volume: Any = 100.0  # L
    feed_concentration: Any = 1.0  # mol/L
    feed_temperature: Any = 350.0  # K
    heat_capacity: Any = 239.0  # rho cp, J/(L K)
    heat: Any = 5.0e4  # -dH, J/mol
    activation: Any = 8750.0  # E/R, K
    rate: Any = 7.2e10  # k0, 1/min
    cooling: Any = 5.0e4  # UA, J/(min K)
    jacket_lag: Any = 0.3  # min
    feed_wander: Any = 0.6  # K, a step
    change: Any = 0.01  # chance, a step, that something else is wanted
    fouling: Any = 0.25  # of UA, lost in an episode that drifts


@dataclass(frozen=True)
class Reactor(Plant):
    """See the module."""

    name: str = "reactor"
    observation: tuple = measured(Tank)
    action: tuple = (
        Signal("jacket_setpoint", "K", 280.0, 320.0),
        Signal("feed", "L/min", 80.0, 120.0),
    )
    limits: tuple = (
        Limit("runaway", "temperature", "at_most", 375.0),
        Limit("quench", "temperature", "at_least", 320.0, hard=False),
        Limit("thermal_shock", "jacket_setpoint", "rate", 10.0, hard=False),
    )
    loops: tuple = (
        # The jacket answers to the temperature first, and to its change above all: that alone
        # keeps the reactor where it is.
        Loop("jacket_setpoint", "temperature", 350.0, 9.0, 0.0, 45.0),
        # Less of A needs a hotter reactor: ahead of the error, and for what is left of it.
        Loop("jacket_setpoint", "wanted", 0.5, 1.0),
        Loop("jacket_setpoint", "concentration", "wanted", -1.0, -0.2),
        Loop("feed", "temperature", 350.0, 0.0, bias=0.5),
    )
    horizon: int = 200
    step_seconds: float = 6.0
    physics: ClassVar[Any] = Chemistry

    def start(self, key: Key, params: PlantParams) -> Tank:
        """Near the working point: far from it no jacket would be cold enough."""
        uniform = draws.uniform(key, (4,))
        c = 0.45 + 0.1 * uniform[0]
        return Tank(
            concentration=c,
            temperature=350.0 - 60.0 * (c - 0.5) + 4.0 * (uniform[1] - 0.5),
            jacket=298.0 + 4.0 * uniform[2],
            feed_temperature=params.physics.feed_temperature + 0.0 * c,
            wanted=self._target(uniform[3]),
        )

    def _target(self, uniform: Array) -> Array:
        return 0.4 + 0.2 * uniform

    def advance(self, key: Key, x: Tank, u: Array, step: Array, params: PlantParams) -> Tank:
        n: Chemistry = params.physics
        fouled = n.replace(cooling=n.cooling * remaining(n.fouling, step, params))
        moved = self._react(x, u, fouled)
        key, other = draws.split(key)
        shock = draws.normal(key) * params.disturbance * n.feed_wander
        uniform = draws.uniform(other, (2,))
        changed = uniform[0] < n.change * params.disturbance
        return moved.replace(
            feed_temperature=moved.feed_temperature + shock,
            wanted=jnp.where(changed, self._target(uniform[1]), x.wanted),
        )

    def _react(self, tank: Tank, u: Array, n: Chemistry) -> Tank:
        """The reactor a step later, undisturbed: the feed's temperature returns to its usual."""
        setpoint, feed = u[0], u[1]

        def slope(x: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            c, temperature, jacket = x
            k = n.rate * jnp.exp(-n.activation / jnp.clip(temperature, 250.0, HOTTEST))
            turned = k * c
            through = feed / n.volume
            return (
                through * (n.feed_concentration - c) - turned,
                through * (tank.feed_temperature - temperature)
                + n.heat / n.heat_capacity * turned
                + n.cooling / (n.volume * n.heat_capacity) * (jacket - temperature),
                (setpoint - jacket) / n.jacket_lag,
            )

        start = (tank.concentration, tank.temperature, tank.jacket)
        c, temperature, jacket = runge_kutta(slope, start, self.step_seconds / 60.0, SUBSTEPS)
        feed_temperature = n.feed_temperature + 0.95 * (tank.feed_temperature - n.feed_temperature)
        return Tank(c, temperature, jacket, feed_temperature, tank.wanted)

    def reward(self, x: Tank, u: Array, next_x: Tank, params: PlantParams) -> Array:
        """What is fed, beside 100 L/min; half of it where the product is 0.05 mol/L off."""
        off = (next_x.concentration - next_x.wanted) / 0.05
        return u[1] / 100.0 / (1.0 + off * off)

    def ended(self, x: Tank, params: PlantParams) -> Array:
        """The relief valve opens far above the limit, and the batch is lost."""
        return x.temperature > 400.0

    def model(self, obs: Array, u: Array, params: PlantParams) -> Array:
        return self.observe(self._react(Tank(*obs), u, params.physics), params)


make = partial(make_world, Reactor())  # the environment, with the options of `make_world`
