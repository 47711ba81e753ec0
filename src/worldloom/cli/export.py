"""`worldloom export RUN`: a trained policy as a bundle."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from worldloom.training import console
from worldloom.training.arguments import parse


@dataclass
class Export:
    """write a trained policy as a bundle, of any suite (`serve` takes plants')"""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""
    out: Path | None = None
    """Where the bundle goes; RUN/bundle if not given."""
    onnx: bool = True
    """Leave out ONNX, which is written where a policy can be that."""
    force: bool = False
    """Replace a bundle that is there."""
    json: bool = False
    """Print the result as JSON."""


def command(argv: list[str]) -> int:
    """Writes the bundle, and says where."""
    args = parse(Export, argv)
    import worldloom

    options = {} if args.onnx else {"onnx": False}
    console.phase("loading the run")
    run = worldloom.load(args.run)
    console.phase("writing the bundle")
    folder = run.export(args.out, force=args.force, **options)
    if args.json:
        console.print_json({"bundle": str(folder)})
        return 0
    from worldloom.core.files import read_json
    from worldloom.serving.bundle_folder import PLANT_POLICY
    from worldloom.serving.policy_runtime import KIND as ROBOT_POLICY

    console.say(f"written to {folder}")
    kind = read_json(folder / "manifest.json").get("kind")
    if kind == PLANT_POLICY:
        console.next_steps(["serve", folder, "--no-token"])
    elif kind == ROBOT_POLICY:
        console.next_steps(["deploy", folder, "--sim"])
    return 0
