"""`worldloom envs`: the worlds, suite by suite."""

from dataclasses import dataclass
from typing import Any

from worldloom.training.arguments import parse


@dataclass
class Envs:
    """The arguments of `worldloom envs`."""

    json: bool = False
    """Print JSON instead of a table."""


def command(argv: list[str]) -> int:
    """Lists every world with what is static about it."""
    args = parse(Envs, argv, "worldloom envs", "list the worlds")
    rows = [_row(suite, name, text) for suite, name, text in _worlds()]
    if args.json:
        from worldloom.cli.output import print_json

        print_json(rows)
        return 0
    from worldloom.training.console import table

    table(
        "worlds",
        ["world", "suite", "agents", "steps", "actions", "what it is"],
        [
            [
                r["name"],
                r["suite"],
                r.get("agents", ""),
                r.get("horizon", ""),
                r.get("actions", ""),
                r.get("missing", r["description"]),
            ]
            for r in rows
        ],
    )
    print("also gymnax:NAME and brax:NAME, YAML files, and PATH.py:FUNCTION of your own")
    return 0


def _worlds() -> list[tuple[str, str, str]]:
    from worldloom import suites

    named = [(s, n, text) for s in suites.SUITES for n, text in suites.names(s).items()]
    known = {name for _, name, _ in named}
    return named + [("", n, text) for n, text in suites.names().items() if n not in known]


def _row(suite: str, name: str, text: str) -> dict[str, Any]:
    from worldloom import suites
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
