"""`worldloom envs`: the worlds, suite by suite."""

from dataclasses import dataclass
from typing import Any

from worldloom import suites
from worldloom.training.arguments import parse
from worldloom.training.console import print_json, table


@dataclass
class Envs:
    """list the worlds"""

    json: bool = False
    """Print JSON instead of a table."""


def command(argv: list[str]) -> int:
    """Lists every world with what is static about it."""
    args = parse(Envs, argv)
    owners = {name: suite for suite in suites.SUITES for name in suites.names(suite)}
    known = suites.names()
    rows = [_row(owners.get(n, ""), n, known[n]) for n in dict.fromkeys([*owners, *known])]
    if args.json:
        print_json(rows)
        return 0
    columns = ("name", "suite", "agents", "horizon", "actions")
    table(
        "worlds",
        ["world", "suite", "agents", "steps", "actions", "what it is"],
        [[*(r.get(c, "") for c in columns), r.get("missing", r["description"])] for r in rows],
    )
    print("also gymnax:NAME and brax:NAME, YAML files, and PATH.py:FUNCTION of your own")
    return 0


def _row(suite: str, name: str, text: str) -> dict[str, Any]:
    from worldloom.algos.algorithm import action_kind

    row: dict[str, Any] = {"name": name, "suite": suite, "description": text}
    try:
        spec = suites.make(name).spec
    except (ImportError, ValueError) as error:  # an extra that is missing
        return row | {"missing": str(error)}
    kind, space = action_kind(spec), spec.action
    count = getattr(space, "n", None) or "x".join(map(str, getattr(space, "shape", ())))
    actions = f"{count} {kind}"
    return row | {"agents": spec.num_agents, "horizon": spec.horizon, "actions": actions}
