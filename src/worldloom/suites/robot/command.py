"""`worldloom pushes RUN`: what pushes a trained robot takes."""

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
