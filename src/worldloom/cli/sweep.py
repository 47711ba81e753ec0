"""`worldloom sweep WORLD`: settings and seeds, trained together."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from worldloom.cli.settings import flag_help, read_request, split_flags
from worldloom.training.console import print_json, table


@dataclass(frozen=True)
class Flags:
    """What the command takes beside the settings of a run."""

    grid: tuple[str, ...] = ()  # what to vary, as name=value,value,... such as ppo.gamma=0.9,0.99
    seeds: int = 5  # seeds of every point of the grid, run together
    config: str = ""  # a YAML file of settings; flags go before it
    preset: str = ""  # where settings start from, such as `original` in treasure hunt
    out: str = "runs"  # folder in which the sweep gets a folder of its own
    json: bool = False  # print the result as JSON


USAGE = """usage: worldloom sweep WORLD --grid NAME=VALUE,VALUE ... [--seeds 5] [settings]

Trains every combination with every seed and says which did best. Names are those of
`worldloom train WORLD --help`: steps=1e5,2e5 iqn.learning_rate=1e-3,2e-3 ppo.hidden=64x64,32
world.num_agents=2,4 algo=iqn,dqn. Runs that differ in numbers alone are one program."""


def command(argv: list[str]) -> int:
    """Trains over the grid, and says which settings did best."""
    if not argv or "--help" in argv or "-h" in argv:
        print(f"{USAGE}\n\n{flag_help(Flags)}")
        return 0
    named, flags, settings = split_flags(argv, Flags)
    from worldloom.cli.report import write_page
    from worldloom.training.sweep import parse_grid, sweep

    asked = read_request(named, settings, config=flags.config, preset=flags.preset)
    grid = parse_grid(asked.schema, flags.grid)
    line = shlex.join(["worldloom", "sweep", *argv])
    rows, path = sweep(asked.suite, asked.given, grid, flags.seeds, Path(flags.out), line)
    page = write_page(path)
    if flags.json:
        print_json({"results": rows, "file": str(path), "report": str(page)})
        return 0
    table(
        f"sweep of {asked.given['env']}: score over {flags.seeds} seeds",
        ["settings", "mean", "stderr", "worst seed", "seconds"],
        [
            [
                row["settings"] or "defaults",
                f"{row['mean']:.4g}",
                f"{row['stderr']:.2g}",
                f"{row['worst']:.4g}",
                f"{row['seconds']:.1f}",
            ]
            for row in rows
        ],
    )
    print(f"written to {path} and {page}")
    return 0
