"""Runs of the robot for people: films, replays, and what `worldloom train biped` says."""

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from worldloom.core import mesh
from worldloom.envs.robot.recording import Recording, record_episode
from worldloom.envs.robot.world import RobotWorld
from worldloom.report.robot_film import film
from worldloom.report.robot_page import write_replay
from worldloom.report.robot_report import write_robot_report
from worldloom.track.sinks import plain
from worldloom.train import robot
from worldloom.train.driver import Hook
from worldloom.train.progress import RobotProgress
from worldloom.train.robot_config import RobotRules, RobotTrainConfig
from worldloom.train.robot_evaluate import COMMANDS, TOLERANCE, RobotEvaluation, Rung
from worldloom.train.tracking import tracking_hooks

FILM_SECONDS = 10


# Pictures ----------------------------------------------------------------------------------------


def shown_world(world: RobotWorld) -> RobotWorld:
    """The world to film: a walk in the middle of what is evaluated, and never standing still."""
    if world.task.command == (0.0, 0.0):
        return world
    middle = np.float32(sum(COMMANDS) / 2)
    rules = world.params.rules.replace(command=np.array([middle, middle]), still=np.float32(0.0))
    return robot.replace_rules(world, rules)


def pictures(
    world: RobotWorld, act: Callable[[Any], Any], folder: Path, title: str, seed: int
) -> Recording:
    """robot.gif (and .mp4 where it can be made) and replay.html of one episode, in `folder`."""
    shown = shown_world(world)
    recording = record_episode(shown, act, seed, round(FILM_SECONDS / 0.02))
    write_replay(folder / "replay.html", shown.robot, recording, title=title)
    film(shown.robot, recording.qpos, folder / "robot.gif")
    return recording


class RobotPictures(Hook):
    """robot.gif, replay.html and report.html at the end of a run."""

    def on_end(self, run: robot.RobotRun) -> None:
        # Who pressed Ctrl-C wants to leave.
        if run.evaluation is not None and not run.interrupted:
            act = robot.see_state_alone(run.config, run.trainer.agents(), run.evaluator.world)
            title = f"{run.config.task}, update {run.epoch}"
            pictures(run.evaluator.world, act, run.folder, title, run.config.seed)
        write_robot_report(run.folder)


# From Python -------------------------------------------------------------------------------------


def train_robot(
    settings: Mapping[str, Any], out: str | Path | None = None, report: bool = True
) -> robot.RobotRun:
    """Trains with the settings of a `RobotTrainConfig`, of which `world` may be a dict."""
    settings = dict(settings)
    if isinstance(settings.get("world"), Mapping):
        settings["world"] = RobotRules(**settings["world"])
    config = RobotTrainConfig(**settings)
    folder = Path(out) if out else robot.new_folder(Path("runs"), config)
    return robot.run(config, folder, hooks=[RobotPictures()] if report else [])


# Commands ----------------------------------------------------------------------------------------


def train_command(argv: list[str]) -> int:
    """`worldloom train biped ...`: trains, and says how it went."""
    import tyro

    from worldloom.track.arguments import parse

    @dataclass(frozen=True)
    class Train:
        env: Annotated[str, tyro.conf.Positional] = "biped"
        """The world: biped."""
        out: Path = Path("runs")
        """Folder in which the run gets a folder of its own."""
        resume: Path | None = None
        """Go on with this run folder from its newest checkpoint, to --updates."""
        coordinator: str | None = None
        """host:port of the first of several processes, each started with the same arguments."""
        num_processes: int | None = None
        """How many there are; a scheduler such as Slurm tells this by itself."""
        process_id: int | None = None
        """Which of them this is, from 0."""
        track: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
        """Also show the run in mlflow or tensorboard."""
        report: bool = True
        """Film the robot, and write replay.html and report.html."""
        json: bool = False
        """Print the result as JSON."""
        settings: Annotated[RobotTrainConfig, tyro.conf.arg(name="")] = field(
            default_factory=lambda: _starting_point(argv)
        )

    args = parse(Train, argv, "worldloom train biped", "teach the robot to stand or to walk")
    config = args.settings
    if config.devices > 1:
        mesh.split_processor(config.devices)
    if mesh.join(args.coordinator, args.num_processes, args.process_id):
        import jax

        config = replace(config, devices=jax.device_count())
    folder = args.resume or robot.new_folder(args.out, config)
    again = shlex.join(["worldloom", "train", "--resume", str(folder)])
    hooks: list[Hook] = [RobotProgress(), *([RobotPictures()] if args.report else [])]
    hooks += tracking_hooks(args.track, folder)
    command = shlex.join(["worldloom", "train", *argv])
    try:
        result = robot.run(
            config, folder, resume=args.resume is not None, hooks=hooks, command=command
        )
    except KeyboardInterrupt:
        if not (folder / "config.json").exists():
            raise
        print(f"stopped at once; go on from the last checkpoint: {again}", file=sys.stderr)
        return 130
    if mesh.leads():
        _tell(result, folder, again, args.json)
    return 130 if result.interrupted else 0


def _starting_point(argv: list[str]) -> RobotTrainConfig:
    """The settings that arguments change: a resumed run's own, or the defaults."""
    for n, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name == "--resume" and (equals or n + 1 < len(argv)):
            return robot.read_config(Path(value if equals else argv[n + 1]))
    return RobotTrainConfig()


def _tell(result: robot.RobotRun, folder: Path, again: str, as_json: bool) -> None:
    timing = result.timing()
    summary: dict[str, Any] = {"run": str(folder), "update": result.epoch} | timing
    if result.evaluation is not None:
        summary |= result.evaluation.to_dict()
    if as_json:
        summary |= {"interrupted": result.interrupted, "resume": again}
        print(json.dumps(plain(summary), indent=2))
        return
    from worldloom.track.console import facts

    shown = {"scores": "not evaluated yet"}
    if result.evaluation is not None:
        shown = scores_of(result.evaluation)
    ladder = folder / "ladder.json"
    if ladder.exists():
        shown |= pushes_of([Rung(**rung) for rung in json.loads(ladder.read_text())])
    shown["training"] = (
        f"{timing['train_seconds']:.1f} s for {result.steps:,} steps in {result.epoch} updates "
        f"({timing['steps_per_second']:,.0f} steps/s)"
    )
    shown["compiling"] = f"{timing['compile_seconds']:.1f} s"
    shown["run folder"] = str(folder)
    for name, file in (
        ("film", "robot.gif"), ("replay", "replay.html"), ("report", "report.html"),
    ):  # fmt: skip
        if (folder / file).exists():
            shown[name] = str(folder / file)
    if result.interrupted:
        shown["go on with"] = again
    config = result.config
    facts(f"biped, {config.task}, level {config.level}, seed {config.seed}", shown)


def scores_of(evaluation: RobotEvaluation) -> dict[str, str]:
    """What the episodes came to, in lines for people."""
    count = len(evaluation.fell)
    lines = {"stays up": f"{(~evaluation.fell).sum()} of {count} episodes to the end"}
    if evaluation.command.any():
        lines["as fast as asked"] = (
            f"{evaluation.good.sum()} of {count}, within {TOLERANCE:g} m/s; "
            f"{evaluation.error.mean():.3f} m/s off on average"
        )
    lines["return"] = f"{evaluation.mean:.1f}"
    if evaluation.gait_distance is not None:
        lines["from the reference gait"] = f"{evaluation.gait_distance:.3f} rad"
    return lines


def pushes_of(rungs: list[Rung]) -> dict[str, str]:
    """The ladder of pushes, in lines for people."""
    return {
        f"pushed by {rung.newtons:g} N for {rung.steps * 20} ms": (
            f"{rung.survived:.0%} stay up; {rung.held:.0%} if it only holds its pose"
        )
        for rung in rungs
    }


def eval_command(argv: list[str]) -> int:
    """`worldloom eval RUN` for a run of the robot: whole episodes, pushes, and a film."""
    import tyro

    from worldloom.track.arguments import parse

    @dataclass
    class Eval:
        target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
        """The folder of a run of the biped."""
        episodes: int | None = None
        """How many to play; by default as many as in training."""
        seed: int = 0
        pushes: bool = False
        """Also climb the ladder of pushes."""
        video: bool = False
        """Also film an episode, and write an interactive replay and the report with the film."""
        json: bool = False

    args = parse(Eval, argv, "worldloom eval", "score a run of the biped")
    loaded = robot.load_run(args.target)
    result = loaded.evaluate(args.episodes, args.seed)
    summary: dict[str, Any] = {"run": str(args.target), "update": loaded.update}
    summary |= result.to_dict()
    rungs = loaded.ladder(args.episodes, args.seed) if args.pushes else []
    if rungs:
        summary["pushes"] = [rung.to_dict() for rung in rungs]
    if args.video:
        act = robot.see_state_alone(loaded.config, loaded.agents, loaded.world)
        title = f"{loaded.config.task}, update {loaded.update}"
        pictures(loaded.world, act, args.target, title, args.seed)
        write_robot_report(args.target)  # which shows the film
        summary["replay"] = str(args.target / "replay.html")
    if args.json:
        print(json.dumps(plain(summary), indent=2))
        return 0
    from worldloom.track.console import facts

    shown = scores_of(result) | pushes_of(rungs)
    if args.video:
        shown["film"] = str(args.target / "robot.gif")
        shown["replay"] = str(args.target / "replay.html")
    facts(f"{args.target}, update {loaded.update}", shown)
    return 0
