"""`worldloom envs`: the worlds, suite by suite; `worldloom envs WORLD`: one of them in numbers."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from worldloom import suites
from worldloom.training import console
from worldloom.training.arguments import parse


@dataclass
class Envs:
    """list the worlds"""

    world: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")] = None
    """One world, to see its agents, steps and actions."""
    json: bool = False
    """Print JSON instead of a table."""


def command(argv: list[str]) -> int:
    """Lists every world, or what is static about one."""
    args = parse(Envs, argv)
    known = suites.names()
    groups = {name: list(suites.names(name)) for name in suites.SUITES}
    owners = {name: suite for suite, names in groups.items() for name in names}
    groups["your own"] = [name for name in known if name not in owners]
    owners |= dict.fromkeys(groups["your own"], "")
    if args.world is not None:
        return _show(_row(owners.get(args.world, ""), args.world, known), args.json)
    if args.json:
        console.print_json([_row(owners[name], name, known) for name in owners])
        return 0
    rows = {title: [[n, known[n]] for n in names] for title, names in groups.items() if names}
    console.table("worlds, by suite", ["world", "what it is"], rows)
    console.say("also gymnax:NAME and brax:NAME, YAML files, and PATH.py:FUNCTION of your own")
    console.next_steps(["envs", "treasurehunt"], ["train", "treasurehunt", "--help"])
    return 0


def _show(row: dict[str, Any], as_json: bool) -> int:
    if "missing" in row:
        raise ValueError(row["missing"])
    if as_json:
        console.print_json(row)
        return 0
    name = row.pop("name")
    console.facts(name, {key: value for key, value in row.items() if value})
    console.next_steps(["train", name])
    return 0


def _row(suite: str, name: str, known: dict[str, str]) -> dict[str, Any]:
    from worldloom.algos.algorithm import action_kind

    row: dict[str, Any] = {"name": name, "suite": suite, "description": known.get(name, "")}
    try:
        spec = suites.make(name).spec
    except (ImportError, ValueError) as error:  # an extra that is missing
        return row | {"missing": str(error)}
    kind, space = action_kind(spec), spec.action
    count = getattr(space, "n", None) or "x".join(map(str, getattr(space, "shape", ())))
    actions = f"{count} {kind}"
    return row | {"agents": spec.num_agents, "horizon": spec.horizon, "actions": actions}
