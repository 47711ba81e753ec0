"""Two masses between two walls, joined by three springs and dampers, pushed to their targets.

The task DMSD of NeoRL-2 (arXiv 2503.19267): with x the positions, v the velocities, F the forces,
and springs k and dampers c from wall to mass, mass to mass and mass to wall, by explicit Euler
steps of 0.2 s

    x_i' = x_i + dt v_i
    v_i' = v_i + dt / m (F_i - k (2 x_i - x_j) - c (2 v_i - v_j))

The targets are observed; half of the time one changes in the middle of the episode, each mass on
its own. The reward -sum log(|x - target| + 0.01) pays for the last centimetre.

NeoRL-2 draws its data and computes its published scores in mode "train", with masses of 20 kg (its
environments are registered that way, and its benchmark asks for nothing else). Mode "test", with
masses of 30 kg, is there for those who want to know what a change of the plant does.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key
from worldloom.suites.plant.plant import Plant, make_world, remaining, score_between
from worldloom.suites.plant.types import Limit, Loop, Measured, PlantParams, measured

MASSES = {"train": 20.0, "test": 30.0}  # kg, by mode
normalised_score = partial(score_between, 30.6, 849.51)


class Masses(struct.PyTreeNode):
    """The plant's state; all (2,)."""

    position: Annotated[Array, Measured("m", -2.0, 2.0, 2)]  # from rest
    velocity: Annotated[Array, Measured("m/s", -2.0, 2.0, 2)]
    target: Annotated[Array, Measured("m", -2.0, 2.0, 2)]
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
class DoubleMassSpringDamper(Plant):
    """See the module."""

    name: str = "dmsd"
    observation: tuple = measured(Masses)
    action: tuple = Measured("N", -30.0, 30.0, 2).signals("force")
    limits: tuple = (
        Limit("right_1", "position_1", "at_most", 2.0),
        Limit("left_1", "position_1", "at_least", -2.0),
        Limit("right_2", "position_2", "at_most", 2.0),
        Limit("left_2", "position_2", "at_least", -2.0),
        *(Limit(f"jerk_{i}", f"force_{i}", "rate", 30.0, hard=False) for i in (1, 2)),
    )
    loops: tuple = tuple(
        Loop(f"force_{i}", f"position_{i}", f"target_{i}", 5.0, 0.2, 14.0) for i in (1, 2)
    )
    horizon: int = 100
    step_seconds: float = 0.2
    physics: ClassVar[Any] = Springs

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
        stiffness = numbers.stiffness * remaining(numbers.weakening, step, params)
        moved = self._move(x, u, numbers.replace(stiffness=stiffness))
        changed = (step + 1).astype(jnp.float32) >= numbers.change_step
        return moved.replace(target=jnp.where(changed, x.later, x.target))

    def _move(self, x: Masses, force: Array, numbers: Springs) -> Masses:
        """The masses a step later, with the same targets."""
        springs = numbers.stiffness * (2.0 * x.position - x.position[::-1])
        dampers = numbers.damping * (2.0 * x.velocity - x.velocity[::-1])
        pushed = (force - springs - dampers) / numbers.mass
        return x.replace(
            position=x.position + self.step_seconds * x.velocity,
            velocity=x.velocity + self.step_seconds * pushed,
        )

    def reward(self, x: Masses, u: Array, next_x: Masses, params: PlantParams) -> Array:
        """Of the distances that are left, with the targets as they are then."""
        return closeness(next_x.position, next_x.target)

    def observed_reward(self, obs: Array, u: Array, next_obs: Array, params: PlantParams) -> Array:
        return closeness(next_obs[:2], next_obs[4:])

    def model(self, obs: Array, u: Array, params: PlantParams) -> Array:
        """Exact but for a target that changes in this step, which nobody can know."""
        x = Masses(obs[:2], obs[2:4], obs[4:], obs[4:])
        return self.observe(self._move(x, u, params.physics), params)


def closeness(position: Array, target: Array) -> Array:
    """-sum log(|x - target| + 0.01) of both masses (2,)."""
    off = jnp.abs(position - target) + 0.01
    return -jnp.log(off[0] * off[1])  # one logarithm of the product is twice as fast as two


def make(mode: Literal["train", "test"] = "train", **options: Any) -> PureEnv:
    """The environment; see the module for `mode` and `make_world` for the options."""
    if mode not in MASSES:
        raise ValueError(f"dmsd: mode={mode!r}; use 'train' (which scores are of) or 'test'")
    options.setdefault("mass", MASSES[mode])
    return make_world(DoubleMassSpringDamper(), **options)
