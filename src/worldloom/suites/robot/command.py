"""`worldloom pushes RUN`: what a trained robot takes; `worldloom deploy BUNDLE`: its loop."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from worldloom.training import console
from worldloom.training.arguments import parse


def pushes(argv: list[str]) -> int:
    """Pushes the robot of a run with growing force, and says how often it stays up."""
    import tyro

    @dataclass
    class Pushes:
        run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
        """The folder of a run of a robot."""
        episodes: int | None = None
        """How many to play for each push; by default as many as in training."""
        seed: int = 0
        """Of the episodes."""
        json: bool = False
        """Print the result as JSON."""

    args = parse(Pushes, argv, "worldloom pushes", "push a trained robot with growing force")
    import worldloom
    from worldloom.suites.robot.evaluate import push_ladder

    console.phase("loading the run")
    run = worldloom.load(args.run)
    console.phase("pushing")
    rungs = push_ladder(run, args.episodes, args.seed)
    if args.json:
        summary = {"run": str(args.run), "steps": run.steps}
        console.print_json(summary | {"pushes": [asdict(rung) for rung in rungs]})
        return 0
    console.facts(f"{args.run}, step {run.steps:,}", dict(rung.line() for rung in rungs))
    console.next_steps(["report", args.run])
    return 0


def deploy(argv: list[str]) -> int:
    """Runs the control loop of an exported robot on MuJoCo; 0, or 1 if it was stopped."""
    import tyro

    @dataclass
    class Deploy:
        bundle: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")]
        """The folder that `worldloom export` wrote for a robot."""
        sim: bool = False
        """Run it in MuJoCo's C engine."""
        seconds: float = 20.0
        """How long the policy is in charge, after the ramp to home."""
        command: tuple[float, ...] = (0.0,)
        """Forward speed, m/s; where it is steered, also speed to the left, m/s, and yaw, rad/s."""
        latency: int = 0
        """Steps of control until a target reaches the servos."""
        onnx: bool = False
        """Run policy.onnx by onnxruntime, not the weights by numpy."""
        fast: bool = False
        """As fast as it goes, not in real time: without deadlines and watchdog."""
        seed: int = 0
        """Of the pose that the robot starts in, a little off home."""
        json: bool = False
        """Print the result as JSON."""

    about = "run an exported robot's control loop in MuJoCo"
    args = parse(Deploy, argv, "worldloom deploy", about)
    if not args.sim:
        raise ValueError(
            f"deploy runs robots in simulation: add --sim. For hardware copy {args.bundle}/"
            "control_loop.py, fill in its class Hardware, and run it"
        )
    from worldloom.serving.control_loop import simulate

    console.phase("running", note=str(args.bundle))
    summary = simulate(
        args.bundle,
        command=args.command,
        seconds=args.seconds,
        latency=args.latency,
        onnx=args.onnx,
        realtime=not args.fast,
        seed=args.seed,
    )
    if args.json:
        console.print_json({"bundle": str(args.bundle)} | asdict(summary))
    else:
        asked = " ".join(f"{x:g}" for x in summary.command)
        console.facts(f"{args.bundle}, command {asked}", summary.lines())
    return 1 if summary.stopped else 0
