"""`worldloom algos`: the algorithms, and where each fits."""

from dataclasses import dataclass

from worldloom import algos
from worldloom.training.arguments import parse
from worldloom.training.console import next_steps, print_json, table


@dataclass
class Algos:
    """list the algorithms, and where each fits"""

    json: bool = False
    """Print JSON instead of a table."""


def command(argv: list[str]) -> int:
    """Lists every algorithm: its loop, its actions, what it needs, one line about it."""
    args = parse(Algos, argv)
    rows = []
    for name in algos.names():
        algorithm = algos.get(name)
        needs = "observations of one array" if algorithm.one_array else ""
        needs = "several agents" if algorithm.several_agents else needs
        row = {
            "name": name,
            "loop": algorithm.loop.replace("_", "-"),
            "actions": ", ".join(sorted(algorithm.actions)),
            "needs": "logged data" if algorithm.loop == "offline" else needs,
            "description": algorithm.description,
        }
        rows.append(row)
    if args.json:
        print_json(rows)
        return 0
    groups: dict[str, list[list[str]]] = {"on-policy": [], "off-policy": [], "offline": []}
    for row in rows:
        actions = "any" if "," in row["actions"] else row["actions"]
        needs = f"; needs {row['needs']}" if row["needs"] and row["loop"] != "offline" else ""
        line = [row["name"], actions, row["description"] + needs]
        groups.setdefault(row["loop"], []).append(line)
    groups["offline, from logged data"] = groups.pop("offline")
    table("algorithms, by loop", ["algorithm", "actions", "what it is"], groups)
    next_steps(["train", "treasurehunt", "--algo", "ppo"])
    return 0
