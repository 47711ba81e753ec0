"""Whole reinforcement-learning experiments compiled into one XLA program.

Everything is imported when first used: `import worldloom` itself imports no jax.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldloom.core.protocols import PureEnv
    from worldloom.train.arc import ArcRun, LoadedArcRun
    from worldloom.train.arc_evaluate import ArcEvaluation
    from worldloom.train.evaluate import Evaluation
    from worldloom.train.load import LoadedRun
    from worldloom.train.plant import LoadedPlantRun, PlantRun
    from worldloom.train.plant_evaluate import PlantEvaluation
    from worldloom.train.robot import LoadedRobotRun, RobotRun
    from worldloom.train.robot_evaluate import RobotEvaluation
    from worldloom.train.runner import Run

__version__ = "0.1.0"
__all__ = ["evaluate", "load", "make", "register", "train"]


def make(name: str, **options: Any) -> "PureEnv":
    """A world by name, with options of its own: ``make("treasurehunt", num_agents=3)``."""
    from worldloom.envs import registry

    return registry.make(name, **options)


def register(name: str, maker: "Callable[..., PureEnv]", description: str = "") -> None:
    """Makes a world of yours known by name to `make`, `train` and the command line."""
    from worldloom.envs import registry

    registry.register(name, maker, description)


def train(
    env: str = "treasurehunt",
    *,
    world: dict[str, Any] | None = None,
    out: str | Path | None = None,
    report: bool = True,
    **settings: Any,
) -> "Run | ArcRun | RobotRun | PlantRun":
    """Trains and writes a run folder: ``train("treasurehunt", epochs=100, seed=1)``.

    `settings` are those of `worldloom.train.config.TrainConfig`, for "arc" those of
    `worldloom.train.arc_config.ArcTrainConfig` and for "biped" those of
    `worldloom.train.robot_config.RobotTrainConfig`, for a plant those of
    `worldloom.train.plant_config.PlantTrainConfig`; `out` is the run's folder, by default a new
    one under runs/.
    """
    from worldloom.envs.registry import suite_of

    if suite_of(env) == "plant":
        from worldloom.report.plant_runs import train_plant

        return train_plant({"env": env, "world": world or {}} | settings, out, report)
    if env in ("arc", "biped"):
        settings |= {"world": world} if world else {}
        if env == "arc":
            from worldloom.report.arc_runs import train_arc

            return train_arc(settings, out, report)
        from worldloom.report.robot_runs import train_robot

        return train_robot(settings, out, report)
    from worldloom.report.hooks import Pictures
    from worldloom.train import runner
    from worldloom.train.config import TrainConfig

    config = TrainConfig(env=env, world=world or {}, **settings)
    folder = Path(out) if out else runner.new_folder(Path("runs"), config)
    return runner.run(config, folder, hooks=[Pictures()] if report else [])


def load(folder: str | Path) -> "LoadedRun | LoadedArcRun | LoadedRobotRun | LoadedPlantRun":
    """The trained agents of a run: ``load("runs/X").act(obs)``."""
    from worldloom.train.driver import env_of

    folder = Path(folder)
    env = env_of(folder)
    if env == "arc":
        from worldloom.train import arc

        return arc.load_run(folder)
    if env == "biped":
        from worldloom.train import robot

        return robot.load_run(folder)
    from worldloom.envs.registry import suite_of

    if suite_of(env or "") == "plant":
        from worldloom.train import plant

        return plant.load_run(folder)
    from worldloom.train.load import load_run

    return load_run(folder)


def evaluate(
    folder: str | Path, episodes: int | None = None, seed: int = 0
) -> "Evaluation | ArcEvaluation | RobotEvaluation | PlantEvaluation":
    """Greedy scores of a run's newest checkpoint in fresh worlds, by default 200 of them.

    On ARC every pair is played, and `episodes` are the sampled attempts at each. Robots play as
    many as in training, by default.
    """
    run = load(folder)
    return run.evaluate(seed=seed) if episodes is None else run.evaluate(episodes, seed)
