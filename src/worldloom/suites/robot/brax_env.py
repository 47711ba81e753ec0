"""Robots as environments of Brax.

Importing this registers the biped with Brax:
`brax.envs.get_environment("worldloom_biped", task="stand")`.
"""

from typing import Any

import jax.numpy as jnp

from worldloom.adapters.brax import BraxEnv, Metrics, quiet_import
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import as_pure
from worldloom.core.types import Array, PyTree, TimeStep
from worldloom.suites.robot.engines import MjxEngine
from worldloom.suites.robot.world import RobotWorld, make

with quiet_import():
    from brax.envs import register_environment


class BraxWildRobotWrapper(BraxEnv):
    """A robot as a `brax.envs.Env`, for Brax's trainers and wrappers.

    Args:
        env_cfg: options of `worldloom.make("biped", ...)` by name, in a dict or a ConfigDict; or a
            world of one agent.
        params, metrics: see `BraxEnv`; metrics are by default `metrics_of(world)`.
    """

    def __init__(
        self, env_cfg: Any = None, params: PyTree = None, metrics: Metrics | None = None
    ) -> None:
        options = getattr(env_cfg or {}, "items", None)
        env = as_pure(env_cfg) if options is None else make(**dict(options()))
        super().__init__(env, params, metrics or metrics_of(env))

    @property
    def backend(self) -> str:
        """The engine of a robot, c or mjx; jax for other worlds."""
        if not isinstance(self.world.base, RobotWorld):
            return super().backend
        return "mjx" if isinstance(self.world.base.engine, MjxEngine) else "c"


class Biped(BraxWildRobotWrapper):
    """The biped by options of `worldloom.make("biped", ...)`, as Brax's registry makes it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(options)


register_environment("worldloom_biped", Biped)


def metrics_of(env: PureEnv) -> Metrics | None:
    """Metrics of a robot: the parts of its reward, which add up to it, and its gait."""
    robot = env.base
    if not isinstance(robot, RobotWorld):
        return None

    seconds = robot.robot.control_seconds

    def metrics(timestep: TimeStep, params: PyTree) -> dict[str, Array]:
        info = timestep.info
        paid = jnp.where(info.diverged[..., None], 0.0, params.rules.weights * info.terms * seconds)
        terms = {f"reward/{name}": paid[..., i] for i, name in enumerate(robot.task.terms)}
        return terms | {
            "velocity_per_step": info.velocity,
            "command_error_per_step": jnp.abs(info.velocity - info.command),
            "height_per_step": info.height,
            "fell": info.fell,
            "diverged": info.diverged,
        }

    return metrics
