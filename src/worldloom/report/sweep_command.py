"""`worldloom sweep`: settings and seeds, trained together."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from worldloom.track.arguments import name_values, parse
from worldloom.track.console import table
from worldloom.track.sinks import plain


@dataclass
class Sweep:
    """The arguments of `worldloom sweep`."""

    env: Annotated[str, tyro.conf.Positional] = "treasurehunt"
    """A world's name or a YAML file."""
    world: tuple[str, ...] = ()
    """Options of the world, as name=value."""
    seeds: int = 5
    """Seeds 0 .. seeds-1 of every point of the grid, run together."""
    grid: tuple[str, ...] = ()
    """Settings to vary, as name=value,value,... e.g. iqn.learning_rate=1e-3,2e-3."""
    epochs: int = 40
    episodes: int = 200
    """Evaluation episodes of every run at the end."""
    out: Path = Path("runs")
    json: bool = False


def command(argv: Sequence[str]) -> int:
    """Trains over the grid, and says which settings did best."""
    args = parse(Sweep, argv, "worldloom sweep", "train over a grid of settings or seeds")
    from worldloom.report.pages import write_page
    from worldloom.track.machine import use_compilation_cache
    from worldloom.train.config import TrainConfig
    from worldloom.train.sweep import parse_grid, sweep

    use_compilation_cache()
    config = TrainConfig(env=args.env, world=name_values(args.world), epochs=args.epochs)
    rows, path = sweep(config, parse_grid(args.grid), args.seeds, args.episodes, args.out)
    page = write_page(path)
    if args.json:
        told = {"results": rows, "file": str(path), "report": str(page)}
        print(json.dumps(plain(told), indent=2))
        return 0
    table(
        f"sweep of {args.env}: greedy score over {args.seeds} seeds",
        ["settings", "mean", "stderr", "worst seed", "seconds"],
        [
            [r["settings"] or "defaults", f"{r['mean']:.1f}", f"{r['stderr']:.1f}",
             f"{r['worst']:.1f}", f"{r['seconds']:.1f}"]
            for r in rows
        ],
    )  # fmt: skip
    print(f"written to {path} and {page}")
    return 0
