"""`worldloom export RUN`: a trained policy as a bundle."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from worldloom.training.arguments import parse
from worldloom.training.console import print_json


@dataclass
class Export:
    """write a trained policy as a bundle"""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""
    out: Path | None = None
    """Where the bundle goes; RUN/bundle if not given."""
    onnx: bool = True
    """Of plants, whose policies can be ONNX: write that, too."""
    force: bool = False
    """Replace a bundle that is there."""
    json: bool = False
    """Print the result as JSON."""


def command(argv: list[str]) -> int:
    """Writes the bundle, and says where."""
    args = parse(Export, argv)
    import worldloom

    options = {} if args.onnx else {"onnx": False}
    folder = worldloom.load(args.run).export(args.out, force=args.force, **options)
    if args.json:
        print_json({"bundle": str(folder)})
    else:
        print(f"written to {folder}")
    return 0
