"""`worldloom algos`: the algorithms, and where each fits."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldloom.training.arguments import parse

if TYPE_CHECKING:
    from worldloom.algos.algorithm import Algorithm


@dataclass
class Algos:
    """The arguments of `worldloom algos`."""

    json: bool = False
    """Print JSON instead of a table."""


def command(argv: list[str]) -> int:
    """Lists every algorithm: its loop, its actions, what it needs, one line about it."""
    from worldloom import algos

    args = parse(Algos, argv, "worldloom algos", "list the algorithms, and where each fits")
    rows = []
    for name in algos.names():
        algorithm = algos.get(name)
        rows.append(
            {
                "name": name,
                "loop": algorithm.loop.replace("_", "-"),
                "actions": ", ".join(sorted(algorithm.actions)),
                "needs": _needs(algorithm),
                "description": algorithm.description,
            }
        )
    if args.json:
        from worldloom.cli.output import print_json

        print_json(rows)
        return 0
    from worldloom.training.console import table

    shown = []
    for row in rows:
        actions = "any" if "," in row["actions"] else row["actions"]
        needs = f"; needs {row['needs']}" if row["needs"] and row["loop"] != "offline" else ""
        shown.append([row["name"], row["loop"], actions, row["description"] + needs])
    table("algorithms", ["algorithm", "loop", "actions", "what it is"], shown)
    return 0


def _needs(algorithm: "Algorithm") -> str:
    """What a world must have beside the right actions, in words."""
    if algorithm.loop == "offline":
        return "logged data"
    if algorithm.centralised:
        return "several agents"
    return "observations of one array" if algorithm.one_array else ""
