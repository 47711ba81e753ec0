"""Three areas of a power grid that keep 60 Hz together, each with its own turbines and loads.

The swing equation with governor and turbine for every area, and tie lines between them (O. Elgerd
and C. Fosha, "Optimum Megawatt-Frequency Control of Multiarea Electric Energy Systems", IEEE
Transactions on Power Apparatus and Systems 89, 1970, whose numbers these are; P. Kundur, "Power
System Stability and Control", chapter 11). With f the deviation of the frequency, d the angle,
P_m the turbine's power, P_v that of its valve, P_L the load and P_ref what the operator asks for,
all of them deviations from the schedule and powers in shares of an area's base,

    d(d_i)/dt = 2 pi f_i
    (2 H / f0) df_i/dt = P_m,i - P_L,i - D f_i - sum_j T_ij sin(d_i - d_j)
    T_t dP_m,i/dt = P_v,i - P_m,i
    T_g dP_v,i/dt = P_ref,i - f_i / R - P_v,i

Two things that the paper leaves out and steam turbines have are options: `rate_limit`, the most by
which a turbine's power changes (0.0017 of the base a second is a usual 10 % a minute), and
`dead_band`, deviations of the frequency that governors do not see (0.036 Hz is a usual one).

Lines are not linearised, so areas that swing too far apart fall out of step. Loads wander and, now
and then, jump. As the grid drifts it loses inertia: turbines give way to inverters.

The model is exact: everything is measured, and undisturbed loads return to their schedule.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.plant.plant import Plant, make_world, remaining, runge_kutta
from worldloom.suites.plant.types import Limit, Loop, Measured, PlantParams, Signal

AREAS = 3
SUBSTEPS = 16  # of the integration within a step: governors are fast
# Every area is tied to both others. Line i runs from area i to area i + 1.
TO = np.asarray([1, 2, 0])
LINES = ("flow_12", "flow_23", "flow_31")


class Grid(struct.PyTreeNode):
    """The state of all areas (3,), as deviations from the schedule."""

    angle: Array  # rad, of which only differences matter: that of area 1 is always 0
    frequency: Array  # Hz
    power: Array  # of turbines, in shares of the base
    valve: Array  # likewise
    load: Array  # likewise


class Network(struct.PyTreeNode):
    """Numbers of the paper, one for all areas or one for each (3,)."""

    base: Any = 2000.0  # MW, an area
    nominal: Any = 60.0  # Hz
    inertia: Any = 5.0  # H, s
    damping: Any = 8.33e-3  # D, 1/Hz
    droop: Any = 2.4  # R, Hz
    governor: Any = 0.08  # T_g, s
    turbine: Any = 0.3  # T_t, s
    tie: Any = 0.1  # T_ij, the most that a line carries: 200 MW
    load_return: Any = 0.02  # of a load's deviation, lost in a step
    load_wander: Any = 0.004  # in a step
    jump_chance: Any = 0.01  # a step and area
    jump: Any = 0.06  # at most, either way
    lost_inertia: Any = 0.5  # of H, in an episode that drifts
    rate_limit: Any = 1e3  # of turbines, shares of the base a second; as it is, none
    dead_band: Any = 0.0  # Hz, either way, of governors


def _loops() -> tuple[Loop, ...]:
    """Each area answers for its own control error: its frequency, and what it sends abroad."""
    loops = []
    for i in range(AREAS):
        actuator = f"reference_{i + 1}"
        loops += [
            Loop(actuator, f"frequency_{i + 1}", 0.0, 0.3, 0.9),
            Loop(actuator, LINES[i], 0.0, 0.0, 0.2),
            Loop(actuator, LINES[i - 1], 0.0, 0.0, -0.2),
        ]
    return tuple(loops)


@dataclass(frozen=True)
class PowerGrid(Plant):
    """See the module."""

    name: str = "powergrid"
    observation: tuple = (
        *(Signal(f"angle_{i}", "rad", -1.0, 1.0) for i in (2, 3)),
        *Measured("Hz", -0.5, 0.5, AREAS).signals("frequency"),
        *Measured("MW", -300.0, 300.0, AREAS).signals("power"),
        *Measured("MW", -300.0, 300.0, AREAS).signals("valve"),
        *Measured("MW", -300.0, 300.0, AREAS).signals("load"),
        *(Signal(line, "MW", -200.0, 200.0) for line in LINES),
    )
    action: tuple = Measured("MW", -300.0, 300.0, AREAS).signals("reference")
    limits: tuple = (
        *(Limit(f"over_{i}", f"frequency_{i}", "at_most", 0.2) for i in (1, 2, 3)),
        *(Limit(f"under_{i}", f"frequency_{i}", "at_least", -0.2) for i in (1, 2, 3)),
        *(Limit(f"{line}_most", line, "at_most", 120.0, hard=False) for line in LINES),
        *(Limit(f"{line}_least", line, "at_least", -120.0, hard=False) for line in LINES),
    )
    loops: tuple = _loops()
    horizon: int = 200
    step_seconds: float = 1.0
    physics: ClassVar[Any] = Network

    def start(self, key: Key, params: PlantParams) -> Grid:
        """Loads are off their schedule, and turbines have followed them in part."""
        uniform = 2.0 * draws.uniform(key, (2, AREAS)) - 1.0
        load = 0.04 * uniform[0]
        power = load + 0.01 * uniform[1]
        zeros = jnp.zeros(AREAS, jnp.float32)
        return Grid(zeros, zeros, power, power, load)

    def advance(self, key: Key, x: Grid, u: Array, step: Array, params: PlantParams) -> Grid:
        n: Network = params.physics
        worn = n.replace(inertia=n.inertia * remaining(n.lost_inertia, step, params))
        wander_key, jump_key = draws.split(key)
        wander = n.load_wander * draws.normal(wander_key, (AREAS,))
        uniform = draws.uniform(jump_key, (2, AREAS))
        jump = jnp.where(uniform[0] < n.jump_chance, n.jump * (2.0 * uniform[1] - 1.0), 0.0)
        moved = self._swing(x, u, worn)
        return moved.replace(load=moved.load + params.disturbance * (wander + jump))

    def _swing(self, x: Grid, u: Array, n: Network) -> Grid:
        """The grid a step later, undisturbed."""
        asked = u / n.base

        def slope(x: Grid) -> Grid:
            sent = n.tie * jnp.sin(x.angle - x.angle[TO])
            balance = x.power - x.load - n.damping * x.frequency - sent
            received = jnp.zeros(AREAS, jnp.float32).at[TO].add(sent)
            seen = x.frequency - jnp.clip(x.frequency, -n.dead_band, n.dead_band)
            return Grid(
                2.0 * jnp.pi * x.frequency,
                n.nominal / (2.0 * n.inertia) * (balance + received),
                jnp.clip((x.valve - x.power) / n.turbine, -n.rate_limit, n.rate_limit),
                (asked - seen / n.droop - x.valve) / n.governor,
                jnp.zeros(AREAS, jnp.float32),
            )

        moved = runge_kutta(slope, x, self.step_seconds, SUBSTEPS)
        return moved.replace(
            angle=moved.angle - moved.angle[0], load=(1.0 - n.load_return) * x.load
        )

    def observe(self, x: Grid, params: PlantParams) -> Array:
        n: Network = params.physics
        flow = n.base * n.tie * jnp.sin(x.angle - x.angle[TO])
        powers = n.base * jnp.stack([x.power, x.valve, x.load])
        return jnp.concatenate([x.angle[1:], x.frequency, powers.ravel(), flow])

    def reward(self, x: Grid, u: Array, next_x: Grid, params: PlantParams) -> Array:
        """1 when nothing deviates; 0.05 Hz or 60 MW on the lines are worth half of it."""
        n: Network = params.physics
        flow = n.base * n.tie * jnp.sin(next_x.angle - next_x.angle[TO])
        off = jnp.square(next_x.frequency / 0.05).mean() + jnp.square(flow / 60.0).mean()
        return 1.0 / (1.0 + off)

    def ended(self, x: Grid, params: PlantParams) -> Array:
        """Loads are shed at 1 Hz off, and areas beyond a right angle are out of step."""
        apart = jnp.abs(x.angle - x.angle[TO]).max()
        return (jnp.abs(x.frequency).max() > 1.0) | (apart > 0.5 * jnp.pi)

    def model(self, obs: Array, u: Array, params: PlantParams) -> Array:
        power, valve, load = obs[5:14].reshape(3, AREAS) / params.physics.base
        angle = jnp.concatenate([jnp.zeros(1, jnp.float32), obs[:2]])
        grid = Grid(angle, obs[2:5], power, valve, load)
        return self.observe(self._swing(grid, u, params.physics), params)


make = partial(make_world, PowerGrid())  # the environment, with the options of `make_world`
