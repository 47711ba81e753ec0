"""Four offices that are heated and cooled, with people, sun and weather.

Resistances and capacities for every zone: air and furniture of temperature T, walls and floors of
temperature W, outdoors T_out (P. Bacher and H. Madsen, "Identifying suitable models for the heat
dynamics of buildings", Energy and Buildings 43, 2011, the model of interior and envelope; zones
joined by the resistance of the walls between them). With heating (or cooling, below 0) Q, sun G,
N people and gains g,

    C_air dT_i/dt = (W_i - T_i)/R_aw + (T_out - T_i)/R_leak + sum_j (T_j - T_i)/R_zone
                    + Q_i + A_window G + g N_i
    C_wall dW_i/dt = (T_i - W_i)/R_aw + (T_out - W_i)/R_out

The numbers are ours, of the order found for light buildings: zones of some 50 square metres. Heat
pumps serve them with a constant coefficient of performance. People come at eight and leave at six,
about; the weather wanders about a season that each episode draws. Filters clog as the plant drifts:
less heat for the same power.

The model is exact for temperatures and power; weather, sun and people are taken to stay as they
are, and the clock goes on.
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
from worldloom.suites.plant.types import Limit, Loop, Measured, PlantParams, measured

ZONES = 4  # in a ring: each has two neighbours
SUBSTEPS = 4  # of the integration within a step


class Building(struct.PyTreeNode):
    """The building and what is around it."""

    air: Annotated[Array, Measured("degC", 10.0, 34.0, ZONES)]
    walls: Annotated[Array, Measured("degC", 10.0, 34.0, ZONES)]
    people: Annotated[Array, Measured("1", 0.0, 8.0, ZONES)]
    power: Annotated[Array, Measured("kW", 0.0, 6.0)]  # of all heat pumps
    hour: Annotated[Array, Measured("h", 0.0, 24.0)]  # of the day
    outdoor: Annotated[Array, Measured("degC", -15.0, 40.0)]
    sun: Annotated[Array, Measured("kW/m2", 0.0, 1.0)]
    season: Array  # the day's mean outdoors
    wander: Array  # what the weather adds to that
    clouds: Array  # the share of the sun that they take


class Construction(struct.PyTreeNode):
    """Numbers of a zone; an hour is the unit of time."""

    air: Any = 0.5  # C_air, kWh/K
    walls: Any = 4.0  # C_wall, kWh/K
    inside: Any = 1.0  # R_aw, K/kW
    leak: Any = 20.0  # R_leak, K/kW
    outside: Any = 12.0  # R_out, K/kW
    between: Any = 4.0  # R_zone, K/kW
    window: Any = 2.0  # A_window, m2
    person: Any = 0.12  # kW
    team: Any = 4.0  # people in a zone at work
    performance: Any = 3.0  # of heat pumps: heat for power
    swing: Any = 5.0  # K, of the outdoor temperature within a day
    weather: Any = 0.4  # K, a step
    sky: Any = 0.08  # of the clouds, a step
    absence: Any = 0.15  # chance, a step, that a zone's number of people changes
    clogging: Any = 0.4  # of the heat, lost in an episode that drifts


@dataclass(frozen=True)
class Hvac(Plant):
    """See the module."""

    name: str = "hvac"
    observation: tuple = measured(Building)
    action: tuple = Measured("kW", -4.0, 4.0, ZONES).signals("heat")
    limits: tuple = (
        *(Limit(f"hot_{i + 1}", f"air_{i + 1}", "at_most", 26.0) for i in range(ZONES)),
        *(Limit(f"cold_{i + 1}", f"air_{i + 1}", "at_least", 18.0) for i in range(ZONES)),
        Limit("contract", "power", "at_most", 4.0, hard=False),
    )
    loops: tuple = tuple(
        Loop(f"heat_{i + 1}", f"air_{i + 1}", 22.0, 4.0, 0.5) for i in range(ZONES)
    )
    horizon: int = 192
    step_seconds: float = 900.0
    has_safe_state: bool = False  # the weather changes
    physics: ClassVar[Any] = Construction

    def start(self, key: Key, params: PlantParams) -> Building:
        """Some hour of some day, the rooms near what is wanted, the walls a little colder."""
        n: Construction = params.physics
        uniform = draws.uniform(key, (2 * ZONES + 3,))
        air = 20.0 + 4.0 * uniform[:ZONES]
        walls = air - 2.0 * uniform[ZONES : 2 * ZONES]
        season = -2.0 + 30.0 * uniform[-3]
        hour = jnp.floor(96.0 * uniform[-2]) / 4.0
        people = jnp.broadcast_to(self._planned(hour, n), (ZONES,))
        calm, clouds = jnp.float32(0.0), uniform[-1]
        outdoor, sun = self._outdoor(hour, season, calm, n), self._sun(hour, clouds)
        return Building(air, walls, people, calm, hour, outdoor, sun, season, calm, clouds)

    def advance(
        self, key: Key, x: Building, u: Array, step: Array, params: PlantParams
    ) -> Building:
        n: Construction = params.physics
        moved = self._warm(x, u, remaining(n.clogging, step, params), n)
        weather_key, people_key = draws.split(key)
        shocks = params.disturbance * draws.normal(weather_key, (2,))
        uniform = draws.uniform(people_key, (2, ZONES))
        hour, planned = moved.hour, self._planned(moved.hour, n)
        # Those who are there at other times than planned stay until their zone is thought of again.
        others = jnp.round(planned * 2.0 * uniform[1])
        changed = uniform[0] < n.absence * params.disturbance
        same_shift = (hour >= 8.0) == (x.hour >= 8.0)
        same_shift &= (hour >= 18.0) == (x.hour >= 18.0)
        # The weather wanders, but not away; clouds of an undisturbed day stay.
        wander = 0.97 * x.wander + n.weather * shocks[0]
        clouds = jnp.clip(x.clouds + n.sky * shocks[1], 0.0, 1.0)
        return moved.replace(
            people=jnp.where(changed, others, jnp.where(same_shift, x.people, planned)),
            outdoor=self._outdoor(hour, x.season, wander, n),
            sun=self._sun(hour, clouds),
            wander=wander,
            clouds=clouds,
        )

    def _warm(self, x: Building, u: Array, clean: Array | float, n: Construction) -> Building:
        """The building a step later under the same weather, with the same people in it.

        clean: the share of the heat that filters let through.
        """
        gains = clean * u + n.window * x.sun + n.person * x.people

        def slope(temperatures: tuple[Array, Array]) -> tuple[Array, Array]:
            air, walls = temperatures
            beside = jnp.roll(air, 1) + jnp.roll(air, -1) - 2.0 * air
            exchanged = (walls - air) / n.inside
            return (
                (exchanged + (x.outdoor - air) / n.leak + beside / n.between + gains) / n.air,
                ((x.outdoor - walls) / n.outside - exchanged) / n.walls,
            )

        hours = self.step_seconds / 3600.0
        air, walls = runge_kutta(slope, (x.air, x.walls), hours, SUBSTEPS)
        power, hour = jnp.abs(u).sum() / n.performance, jnp.mod(x.hour + hours, 24.0)
        return x.replace(air=air, walls=walls, power=power, hour=hour)

    def _planned(self, hour: Array, n: Construction) -> Array:
        return jnp.where((hour >= 8.0) & (hour < 18.0), n.team, 0.0)

    def _outdoor(self, hour: Array, season: Array, wander: Array, n: Construction) -> Array:
        """Warmest at three in the afternoon."""
        return season + wander + n.swing * jnp.cos(2.0 * np.pi * (hour - 15.0) / 24.0)

    def _sun(self, hour: Array, clouds: Array) -> Array:
        """On windows, in kW/m2: from six to six."""
        clear = 0.6 * jnp.maximum(jnp.sin(2.0 * np.pi * (hour - 6.0) / 24.0), 0.0)
        return clear * (1.0 - 0.8 * clouds)

    def reward(self, x: Building, u: Array, next_x: Building, params: PlantParams) -> Array:
        """1 for comfort that costs nothing: a degree off in all zones is worth half of it.

        Empty rooms count for a tenth, and 4 kW of power for as much as half a degree.
        """
        weight = jnp.where(next_x.people > 0.0, 1.0, 0.1)
        off = (weight * jnp.square(next_x.air - 22.0)).mean()
        return 1.0 / (1.0 + off + 0.25 * next_x.power / 4.0)

    def ended(self, x: Building, params: PlantParams) -> Array:
        """Pipes freeze, or nobody can stay."""
        return (x.air < 8.0).any() | (x.air > 36.0).any()

    def model(self, obs: Array, u: Array, params: PlantParams) -> Array:
        zones, unseen = obs[: 3 * ZONES].reshape(3, ZONES), jnp.float32(0.0)
        x = Building(*zones, *obs[3 * ZONES :], season=unseen, wander=unseen, clouds=unseen)
        return self.observe(self._warm(x, u, 1.0, params.physics), params)


make = partial(make_world, Hvac())  # the environment, with the options of `make_world`
