"""Two masses between two walls, joined by three springs and dampers, pushed to their targets.

The task DMSD of NeoRL-2 (arXiv 2503.19267): with x the positions, v the velocities, F the forces,
and springs k and dampers c from wall to mass, mass to mass and mass to wall, by explicit Euler
steps of 0.2 s

    x_i' = x_i + dt v_i
    v_i' = v_i + dt / m (F_i - k (2 x_i - x_j) - c (2 v_i - v_j))

The wanted positions are told; half of the time one changes in the middle of the episode, each mass
on its own. The reward -sum log(|x - target| + 0.01) pays for the last centimetre.

NeoRL-2 draws its data and computes its published scores in mode "train", with masses of 20 kg (its
environments are registered that way, and its benchmark asks for nothing else). Mode "test", with
masses of 30 kg, is there for those who want to know what a change of the plant does.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key
from worldloom.suites.plant.plant import make_world
from worldloom.suites.plant.types import Limit, Loop, PlantParams, Signal

SCORE_MIN, SCORE_MAX = 30.6, 849.51  # mean returns that NeoRL-2 maps to 0 and 100
MASSES = {"train": 20.0, "test": 30.0}  # kg, by mode


def normalised_score(mean_return: float) -> float:
    """NeoRL-2's score of a mean return over episodes."""
    return 100.0 * (mean_return - SCORE_MIN) / (SCORE_MAX - SCORE_MIN)


class Masses(struct.PyTreeNode):
    """The plant's state; all (2,)."""

    position: Array  # m, from rest
    velocity: Array  # m/s
    target: Array  # m
    later: Array  # m: the target of the episode's second half


class Springs(struct.PyTreeNode):
    """Numbers of the task."""

    mass: Any = MASSES["train"]  # kg, each
    stiffness: Any = 2.0  # N/m, of each spring
    damping: Any = 4.0  # N s/m, of each damper
    reach: Any = 1.5  # m: targets lie within it, either way
    start_position: Any = 0.25  # m, likewise
    start_velocity: Any = 0.1  # m/s, likewise
    change: Any = 0.5  # chance that a target changes
    change_step: Any = 50.0
    weakening: Any = 0.25  # of the stiffness, lost in an episode that drifts


@dataclass(frozen=True)
class DoubleMassSpringDamper:
    """See the module."""

    name: str = "dmsd"
    observation: tuple[Signal, ...] = (
        Signal("position_1", "m", -2.0, 2.0),
        Signal("position_2", "m", -2.0, 2.0),
        Signal("velocity_1", "m/s", -2.0, 2.0),
        Signal("velocity_2", "m/s", -2.0, 2.0),
        Signal("target_1", "m", -2.0, 2.0),
        Signal("target_2", "m", -2.0, 2.0),
    )
    action: tuple[Signal, ...] = (
        Signal("force_1", "N", -30.0, 30.0),
        Signal("force_2", "N", -30.0, 30.0),
    )
    limits: tuple[Limit, ...] = (
        Limit("right_1", "position_1", "at_most", 2.0),
        Limit("left_1", "position_1", "at_least", -2.0),
        Limit("right_2", "position_2", "at_most", 2.0),
        Limit("left_2", "position_2", "at_least", -2.0),
        Limit("jerk_1", "force_1", "rate", 30.0, hard=False),
        Limit("jerk_2", "force_2", "rate", 30.0, hard=False),
    )
    loops: tuple[Loop, ...] = (
        Loop("force_1", "position_1", "target_1", 5.0, 0.2, 14.0),
        Loop("force_2", "position_2", "target_2", 5.0, 0.2, 14.0),
    )
    horizon: int = 100
    step_seconds: float = 0.2

    def physics(self) -> Springs:
        return Springs()

    def start(self, key: Key, params: PlantParams) -> Masses:
        numbers: Springs = params.physics
        uniform = draws.uniform(key, (5, 2))
        around = 2.0 * uniform[:4] - 1.0
        first = numbers.reach * around[2]
        changes = uniform[4] < numbers.change * params.disturbance
        return Masses(
            position=numbers.start_position * around[0],
            velocity=numbers.start_velocity * around[1],
            target=first,
            later=jnp.where(changes, numbers.reach * around[3], first),
        )

    def advance(self, key: Key, x: Masses, u: Array, step: Array, params: PlantParams) -> Masses:
        numbers: Springs = params.physics
        used = step.astype(jnp.float32) / params.horizon.astype(jnp.float32)
        stiffness = numbers.stiffness * (1.0 - params.drift * numbers.weakening * used)
        position, velocity = self._move(x.position, x.velocity, u, stiffness, numbers)
        changed = (step + 1).astype(jnp.float32) >= numbers.change_step
        return Masses(position, velocity, jnp.where(changed, x.later, x.target), x.later)

    def _move(
        self, position: Array, velocity: Array, force: Array, stiffness: Array, numbers: Springs
    ) -> tuple[Array, Array]:
        springs = stiffness * (2.0 * position - position[::-1])
        dampers = numbers.damping * (2.0 * velocity - velocity[::-1])
        pushed = (force - springs - dampers) / numbers.mass
        return position + self.step_seconds * velocity, velocity + self.step_seconds * pushed

    def observe(self, x: Masses, params: PlantParams) -> Array:
        return jnp.concatenate([x.position, x.velocity, x.target])

    def reward(self, x: Masses, u: Array, next_x: Masses, params: PlantParams) -> Array:
        """Of the distances that are left, with the targets as they are then."""
        off = jnp.abs(next_x.position - next_x.target) + 0.01
        return -jnp.log(off[0] * off[1])  # one logarithm of the product is twice as fast as two

    def ended(self, x: Masses, params: PlantParams) -> Array:
        return jnp.asarray(False)

    def model(self, obs: Array, u: Array, params: PlantParams) -> Array:
        """Exact but for a target that changes in this step, which nobody can know."""
        position, velocity = self._move(
            obs[:2], obs[2:4], u, params.physics.stiffness, params.physics
        )
        return jnp.concatenate([position, velocity, obs[4:]])


def make(mode: Literal["train", "test"] = "train", **options: Any) -> PureEnv:
    """The environment; see the module for `mode` and `make_world` for the options."""
    if mode not in MASSES:
        raise ValueError(f"dmsd: mode={mode!r}; use 'train' (which scores are of) or 'test'")
    options.setdefault("mass", MASSES[mode])
    return make_world(DoubleMassSpringDamper(), **options)
