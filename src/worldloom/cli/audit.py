"""`worldloom audit verify LOG [BUNDLE]`, `replay LOG BUNDLE`, `shadow LOG`, `alarms LOG BUNDLE`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from worldloom.training import console
from worldloom.training.arguments import run_group

Log = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="LOG")]


@dataclass
class Verify:
    """check that an audit log is whole and unchanged"""

    log: Log
    """An audit log of `worldloom serve`, or a segment of one, to begin with that."""
    bundle: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")] = None
    """The bundle whose policy the answers must name."""
    head: str | None = None
    """A hash that was once seen in this log, and must still be in it."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass
class Replay:
    """compute every answer in an audit log again and compare"""

    log: Log
    """An audit log of `worldloom serve`, or a segment of one, to begin with that."""
    bundle: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")]
    """The bundle that was served."""
    tolerance: float = 0.0
    """How far answers may be off, for another machine or another jax; 0: bit for bit."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass
class Shadow:
    """compare what a policy proposed in shadow mode with what was done"""

    log: Log
    """An audit log of `worldloom serve --shadow`, or a segment of one, to begin with that."""
    json: bool = False
    """Print JSON instead of tables."""


@dataclass
class Alarms:
    """count alarms and trips, demanded by the process or spurious"""

    log: Log
    """An audit log of `worldloom serve`, or a segment of one, to begin with that."""
    bundle: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")]
    """The bundle that was served."""
    json: bool = False
    """Print JSON instead of tables."""


def command(argv: Sequence[str]) -> int:
    """Hands the rest of the line to the command that it names; 1 where a log does not hold."""
    known = {Verify: _verify, Replay: _replay, Shadow: _shadow, Alarms: _alarms}
    return run_group("worldloom audit", known, argv)


def _alarms(args: Alarms) -> int:
    from worldloom.serving.alarms import alarm_report
    from worldloom.serving.audit import facts_of
    from worldloom.serving.bundle_folder import read_policy

    result, report = alarm_report(args.log, read_policy(args.bundle)[0])
    facts = facts_of(result)
    if args.json or not facts["sound"]:
        return _show(facts | {"alarms": report}, args.json, "")
    head = ["alarm", "priority", "went off", "again within a minute"]
    rows = [list(row.values()) for row in report["alarms"]]
    console.table(f"{args.log}: {report['plants']} plants, {report['hours']:.3g} hours", head, rows)
    trips = ", ".join(f"{count} by {cause}" for cause, count in report["trips"].items())
    facts = {"trips": trips or "none", "interventions": report["interventions"]}
    for name in ("demand_rate", "spurious_trip_rate"):
        facts[name] = f"{_figure(report[name])} an hour of one plant"
    console.facts("emergency actions and interventions", facts)
    return 0


def _verify(args: Verify) -> int:
    from worldloom.serving.audit import facts_of, verify_log

    policy = None
    if args.bundle is not None:
        from worldloom.serving.bundle_folder import read_policy

        policy = read_policy(args.bundle)[0]["digest"]
    result = verify_log(args.log, policy=policy, head=args.head)
    code = _show(facts_of(result), args.json, f"{args.log}: every hash and every link holds")
    if not (code or args.json or args.bundle is None):
        console.next_steps(["audit", "replay", args.log, args.bundle])
    return code


def _replay(args: Replay) -> int:
    from worldloom.serving.audit import facts_of
    from worldloom.serving.bundle import load_bundle
    from worldloom.serving.replay import replay_log
    from worldloom.training.machine import use_compilation_cache

    use_compilation_cache()
    console.phase("replaying", note=str(args.log))
    result = replay_log(args.log, load_bundle(args.bundle), tolerance=args.tolerance)
    how = "bit for bit" if not args.tolerance else f"within {args.tolerance:g}"
    facts = facts_of(result)
    if result.problem is None and result.different:
        problem = f"{result.different} records do not come out again; {result.first}"
        facts |= {"problem": problem, "sound": False}
    code = _show(facts, args.json, f"{args.log}: {result.replayed} answers come out again {how}")
    if not (code or args.json):
        console.next_steps(["audit", "alarms", args.log, args.bundle])
    return code


def _shadow(args: Shadow) -> int:
    from worldloom.serving.audit import facts_of
    from worldloom.serving.shadow import shadow_report

    result, found = shadow_report(args.log)
    facts = facts_of(result)
    if args.json or not facts["sound"]:
        return _show(facts | {"shadow": found}, args.json, "")
    if not found["answers"]:
        raise ValueError(f"{args.log}: nothing was answered in shadow mode; serve with --shadow")
    heads = ("mean", "mean_absolute", "p95", "largest", "share")
    rows = [
        [row["name"], row["unit"] or "1", row["compared"], *(_figure(row[name]) for name in heads)]
        for row in found["actuators"]
    ]
    title = f"{args.log}: proposed less executed, {found['answers']} answers in shadow mode"
    head = ["actuator", "unit", "compared", "mean", "mean size", "95 % within", "largest"]
    console.table(title, [*head, "mean size / range"], rows)
    console.facts(
        "what the filter would have done",
        {name: found[name] for name in ("intervened", "emergencies", "late")},
    )
    return 0


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _show(facts: dict[str, Any], as_json: bool, good: str) -> int:
    if as_json:
        console.print_json(facts)
    elif facts["sound"]:
        names = ("records", "answers", "filter_emergencies", "late_emergencies", "plants", "starts")
        console.facts(good, {n: facts[n] for n in names} | _extent(facts) | _heads(facts))
    else:
        print(f"{facts['path']}: {facts['problem']}", file=sys.stderr)
    return 0 if facts["sound"] else 1


def _extent(facts: dict[str, Any]) -> dict[str, str]:
    """Which part of a log was looked at, in words."""
    first, last = facts["segments"]
    if not first:
        return {"segments": f"all, 0 to {last}"}
    elsewhere = f"{first} to {last}; what came before was not looked at, and ended with the hash"
    return {"segments": f"{elsewhere} {facts['follows']}"}


def _heads(facts: dict[str, Any]) -> dict[str, str]:
    """What vouches for the end of a log, in words."""
    seq = facts["head_file"]
    missing = "none: whether records were cut off at the end is not known without --head"
    compared = missing if seq is None else f"agrees, up to record {seq}"
    return {"policy": facts["policy"], "head": facts["head"], "head_file": compared}
