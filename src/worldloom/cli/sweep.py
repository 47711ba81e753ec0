"""`worldloom sweep WORLD`: settings and seeds, trained together."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from worldloom import algos
from worldloom.cli.settings import (
    Option,
    Schema,
    flag_help,
    flags_of,
    read_request,
    read_value,
    split_flags,
)
from worldloom.training import console
from worldloom.training.config import CADENCE


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

Trains every combination with every seed, in a world of any suite, and says which
did best. Names are those of `worldloom train WORLD --help`: steps=1e5,2e5
iqn.learning_rate=1e-3,2e-3 ppo.hidden=64x64,32 world.num_agents=2,4 algo=iqn,dqn.
Runs that differ in numbers alone are one program."""


def command(argv: list[str]) -> int:
    """Trains over the grid, and says which settings did best."""
    if not argv or "--help" in argv or "-h" in argv:
        print(f"{USAGE}\n\n{flag_help(Flags)}")
        return 0
    named, flags, settings = split_flags(argv, Flags)
    console.phase("preparing")
    from worldloom.cli.report import write_page
    from worldloom.report.sweeps import reference
    from worldloom.training.sweep import sweep

    asked = read_request(named, settings, config=flags.config, preset=flags.preset)
    grid = parse_grid(asked.schema, flags.grid)
    line = shlex.join(["worldloom", "sweep", *argv])
    rows, path = sweep(asked.schema.suite, asked.given, grid, flags.seeds, Path(flags.out), line)
    console.phase("writing the page")
    page = write_page(path)
    if flags.json:
        console.print_json({"results": rows, "file": str(path), "report": str(page)})
        return 0
    beside = [reference(row) for row in rows]
    title = f"sweep of {asked.given['env']}: score over {flags.seeds} seeds"
    head = ["settings", "mean", "stderr", "worst seed", "random play", "seconds"]
    lines = [
        [
            row["settings"] or "defaults",
            f"{row['mean']:.4g}",
            f"{row['stderr']:.2g}",
            f"{row['worst']:.4g}",
            f"{random['mean']:.4g}" if random else "-",
            f"{row['seconds']:.1f}",
        ]
        for row, random in zip(rows, beside, strict=True)
    ]
    console.table(title, head, lines)
    console.say(f"written to {path} and {page}")
    best = max(rows, key=lambda row: row["mean"] if math.isfinite(row["mean"]) else -math.inf)
    start = [named] if named else []
    start += [w for n in ("config", "preset") if (v := getattr(flags, n)) for w in (f"--{n}", v)]
    console.next_steps(["train", *start, *chosen_flags(asked.schema, settings, best["values"])])
    return 0


def chosen_flags(
    schema: Schema, settings: Sequence[str], values: Mapping[str, Any]
) -> Iterator[str]:
    """The flags of `train` for one point of a grid; options of other algorithms are left out."""
    others = {*algos.names()} - {algos.get(values.get("algo", schema.algo)).name}
    for flag, words in flags_of(settings):
        if flag.removeprefix("--").partition(".")[0] not in others:
            yield from (flag, *words)
    for name, value in values.items():
        yield f"--{name.replace('_', '-')}"
        for word in value if isinstance(value, list | tuple) else [value]:
            yield str(word).lower() if isinstance(word, bool) else str(word)


def parse_grid(schema: Schema, texts: Sequence[str]) -> list[tuple[str, list[Any]]]:
    """(name, values) for texts like "ppo.learning_rate=1e-3,3e-4" or "world.num_agents=2,4".

    Entries of a tuple are joined by x: "ppo.hidden=64x64,128".
    """
    words: dict[str, list[str]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        name, listed = name.strip().replace("-", "_"), [w.strip() for w in listed.split(",")]
        if not equals or not name or not all(listed):
            raise ValueError(
                f"--grid {text}: write name=value,value,... such as ppo.learning_rate=1e-3,3e-4"
            )
        if name in words or len(set(listed)) < len(listed):
            raise ValueError(f"--grid {text}: {name} or one of its values is given twice")
        if name in CADENCE and name != "steps":
            raise ValueError(
                f"--grid {text}: {name} changes how a run is watched, not what it learns; "
                "vary another setting"
            )
        words[name] = listed
    chosen = words.get("algo", [schema.algo])
    schemas = [Schema(schema.suite, schema.env, algo) for algo in chosen]
    return [(name, _values(_find(schemas, name), listed)) for name, listed in words.items()]


def _find(schemas: Sequence[Schema], name: str) -> Option:
    """The setting of that name, in the runs of whichever algorithm has it."""
    for schema in schemas[:-1]:
        try:
            return schema.find(f"--{name}")
        except ValueError:
            continue
    return schemas[-1].find(f"--{name}")


def _values(option: Option, words: Sequence[str]) -> list[Any]:
    kinds = (option.kind, *get_args(option.kind))
    is_tuple = any(get_origin(kind) is tuple for kind in kinds)
    typed = [word.split("x") if is_tuple else [word] for word in words]
    return [read_value(f"--grid {option.name}", each, option.kind) for each in typed]
