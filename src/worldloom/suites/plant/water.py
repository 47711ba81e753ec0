"""A waterworks of two tanks: raw water is chlorinated in the first, the second supplies a town.

Balances of water and of chlorine (levels with Torricelli's outflow as in K. H. Johansson, "The
quadruple-tank process", IEEE Transactions on Control Systems Technology 8, 2000; chlorine as it
decays in bulk and is mixed in tanks, L. Rossman, "EPANET 2 Users Manual", 2000). With h levels, A
areas, s the depth of sumps, c concentrations of chlorine, m its dose, q the pump's flow, v the
valve's opening, d what the town takes and o the organic matter that chlorine oxidises,

    A1 dh1/dt = q - q12,   q12 = v K sqrt(h1)
    A2 dh2/dt = q12 - d
    A1 (h1 + s) dc1/dt = m - q c1 - k1 o A1 (h1 + s) c1
    A2 (h2 + s) dc2/dt = q12 (c1 - c2) - k2 A2 (h2 + s) c2

The numbers are ours: a town of some ten thousand. Its demand has a day's course, wanders, and rises
when a main bursts; organic matter wanders. The pump wears as the plant drifts.

The model is exact: undisturbed, demand and organic matter return to their usual course.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.plant.plant import Plant, make_world, remaining, runge_kutta
from worldloom.suites.plant.types import Limit, Loop, Measured, PlantParams, Signal, measured

SUBSTEPS = 8  # of the integration within a step: a tank that is nearly empty changes fast
FADING = 0.96  # of an unplanned demand, left after a step: a burst main is closed off within hours
SHALLOW = 0.02  # m: below, outflows fade instead of ending at once
Level = Annotated[Array, Measured("m", 0.0, 5.0)]
Concentration = Annotated[Array, Measured("mg/L", 0.0, 5.0)]


class Works(struct.PyTreeNode):
    """The state of the waterworks."""

    level_1: Level
    level_2: Level
    chlorine_1: Concentration
    chlorine_2: Concentration
    demand: Annotated[Array, Measured("m3/h", 0.0, 200.0)]
    organic: Concentration
    hour: Annotated[Array, Measured("h", 0.0, 24.0)]  # of the day
    unplanned: Array  # m3/h: what the demand deviates from its course by


class Hydraulics(struct.PyTreeNode):
    """Numbers of the works; an hour is the unit of time, mg/L are g/m3."""

    area_1: Any = 30.0  # m2
    area_2: Any = 60.0  # m2
    valve: Any = 130.0  # K, m3/h at a level of 1 m
    brim: Any = 5.0  # m, of both tanks
    sump: Any = 0.1  # m, below the outlets: water that only mixes
    decay_1: Any = 0.2  # k1, L/(mg h)
    decay_2: Any = 0.05  # k2, 1/h
    demand: Any = 100.0  # m3/h, the day's mean
    swing: Any = 0.35  # of that, within a day
    organic: Any = 2.0  # mg/L, its mean
    demand_wander: Any = 4.0  # m3/h, a step
    burst_chance: Any = 0.004  # a step
    burst: Any = 40.0  # m3/h
    organic_wander: Any = 0.1  # mg/L, a step
    wear: Any = 0.3  # of the pump's flow, lost in an episode that drifts


@dataclass(frozen=True)
class Water(Plant):
    """See the module."""

    name: str = "water"
    observation: tuple = measured(Works)
    action: tuple = (
        Signal("pump", "m3/h", 0.0, 200.0),
        Signal("opening", "1", 0.0, 1.0),
        Signal("dose", "g/h", 0.0, 500.0),
    )
    limits: tuple = (
        Limit("overflow_1", "level_1", "at_most", 4.5),
        Limit("overflow_2", "level_2", "at_most", 4.5),
        Limit("pump_dry", "level_1", "at_least", 0.5),
        Limit("reserve", "level_2", "at_least", 1.0),
        Limit("disinfected", "chlorine_2", "at_least", 0.2),
        Limit("drinkable", "chlorine_2", "at_most", 4.0),
        Limit("water_hammer", "pump", "rate", 60.0, hard=False),
    )
    loops: tuple = (
        # The valve keeps the town's tank, the pump the tank that the valve empties.
        Loop("opening", "level_2", 3.0, 2.0, 0.03, bias=0.0),
        Loop("pump", "level_1", 2.5, 2.0, 0.05),
        Loop("dose", "chlorine_2", 1.0, 1.5, 0.01, 3.0, bias=-0.4),
    )
    horizon: int = 288
    step_seconds: float = 300.0
    response: int = 9  # chlorine is mixed in the first tank for three quarters of an hour
    has_safe_state: bool = False  # what the town takes changes
    physics: ClassVar[Any] = Hydraulics

    def start(self, key: Key, params: PlantParams) -> Works:
        uniform = draws.uniform(key, (6,))
        hour, calm = jnp.floor(24.0 * uniform[4]), jnp.float32(0.0)
        n: Hydraulics = params.physics
        return Works(
            level_1=2.0 + uniform[0],
            level_2=2.5 + uniform[1],
            chlorine_1=0.8 + 0.8 * uniform[2],
            chlorine_2=0.7 + 0.6 * uniform[3],
            demand=self._demand(hour, calm, n),
            organic=n.organic * (0.7 + 0.6 * uniform[5]),
            hour=hour,
            unplanned=calm,
        )

    def advance(self, key: Key, x: Works, u: Array, step: Array, params: PlantParams) -> Works:
        n: Hydraulics = params.physics
        moved = self._flow(x, u.at[0].multiply(remaining(n.wear, step, params)), n)
        wander_key, burst_key = draws.split(key)
        shocks = params.disturbance * draws.normal(wander_key, (2,))
        burst = draws.uniform(burst_key) < n.burst_chance * params.disturbance
        unplanned = moved.unplanned + n.demand_wander * shocks[0] + n.burst * burst
        return moved.replace(
            demand=self._demand(moved.hour, unplanned, n),
            organic=jnp.maximum(moved.organic + n.organic_wander * shocks[1], 0.0),
            unplanned=unplanned,
        )

    def _flow(self, works: Works, u: Array, n: Hydraulics) -> Works:
        """The works a step later, undisturbed; what stands above the brim has run over."""
        pump, opening, dose = u[0], u[1], u[2]

        def slope(x: tuple[Array, ...]) -> tuple[Array, ...]:
            h1, h2, c1, c2 = x
            h1, h2 = jnp.maximum(h1, 0.0), jnp.maximum(h2, 0.0)
            through = opening * n.valve * h1 / jnp.sqrt(h1 + SHALLOW)
            taken = works.demand * h2 / (h2 + SHALLOW)
            volume_1 = n.area_1 * (h1 + n.sump)
            volume_2 = n.area_2 * (h2 + n.sump)
            return (
                (pump - through) / n.area_1,
                (through - taken) / n.area_2,
                (dose - pump * c1) / volume_1 - n.decay_1 * works.organic * c1,
                through * (c1 - c2) / volume_2 - n.decay_2 * c2,
            )

        start = (works.level_1, works.level_2, works.chlorine_1, works.chlorine_2)
        hours = self.step_seconds / 3600.0
        h1, h2, c1, c2 = runge_kutta(slope, start, hours, SUBSTEPS)
        h1, h2 = jnp.clip(h1, 0.0, n.brim), jnp.clip(h2, 0.0, n.brim)
        hour, unplanned = jnp.mod(works.hour + hours, 24.0), FADING * works.unplanned
        organic = n.organic + 0.98 * (works.organic - n.organic)  # it wanders, but not away
        demand = self._demand(hour, unplanned, n)
        return Works(h1, h2, c1, c2, demand, organic, hour, unplanned)

    def _demand(self, hour: Array, unplanned: Array, n: Hydraulics) -> Array:
        """Most at seven in the evening, and a smaller peak at seven in the morning."""
        day = 0.6 * jnp.cos(2.0 * np.pi * (hour - 19.0) / 24.0)
        half = 0.4 * jnp.cos(4.0 * np.pi * (hour - 19.0) / 24.0)
        return jnp.maximum(n.demand * (1.0 + n.swing * (day + half)) + unplanned, 0.0)

    def reward(self, x: Works, u: Array, next_x: Works, params: PlantParams) -> Array:
        """1 at 3 m and 1 mg/L; 1 m or 0.3 mg/L off is worth half of it, and pumping costs."""
        level = jnp.square(next_x.level_2 - 3.0)
        chlorine = jnp.square((next_x.chlorine_2 - 1.0) / 0.3)
        return 1.0 / (1.0 + level + chlorine + 0.5 * (u[0] / 200.0) ** 3)

    def ended(self, x: Works, params: PlantParams) -> Array:
        """A tank runs over, or the town is without water."""
        brim = params.physics.brim
        return (x.level_1 >= brim) | (x.level_2 >= brim) | (x.level_2 < 0.1)

    def model(self, obs: Array, u: Array, params: PlantParams) -> Array:
        unplanned = obs[4] - self._demand(obs[6], jnp.float32(0.0), params.physics)
        return self.observe(self._flow(Works(*obs, unplanned=unplanned), u, params.physics), params)


make = partial(make_world, Water())  # the environment, with the options of `make_world`
