"""`worldloom audit verify LOG [BUNDLE]` and `worldloom audit replay LOG BUNDLE`."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from worldloom.core.names import suggest
from worldloom.track.arguments import parse

COMMANDS = {
    "verify": "check that an audit log is whole and unchanged",
    "replay": "compute every answer in an audit log again and compare",
}


def command(argv: Sequence[str]) -> int:
    """Hands the rest of the line to the command that it names; 1 where a log does not hold."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: worldloom audit COMMAND [options]      (worldloom audit COMMAND --help)\n")
        print("\n".join(f"  {name:<10}{text}" for name, text in COMMANDS.items()))
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        raise ValueError(f"there is no command {name!r}; {suggest(name, list(COMMANDS))}")
    run: Callable[[list[str]], int] = globals()[f"_{name}"]
    return run(rest)


def _verify(argv: list[str]) -> int:
    import tyro

    @dataclass
    class Verify:
        log: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="LOG")]
        """An audit log of `worldloom serve`."""
        bundle: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")] = None
        """The bundle whose policy the answers must name."""
        head: str | None = None
        """A hash that was once seen in this log, and must still be in it."""
        json: bool = False

    args = parse(Verify, argv, "worldloom audit verify", COMMANDS["verify"])
    from worldloom.deploy.audit import facts_of, verify_log

    policy = None
    if args.bundle is not None:
        from worldloom.deploy.bundle_folder import read_policy

        policy = read_policy(args.bundle)[0]["digest"]
    found = verify_log(args.log, policy=policy, head=args.head)
    return _tell(facts_of(found), args.json, f"{args.log}: every hash and every link holds")


def _replay(argv: list[str]) -> int:
    import tyro

    @dataclass
    class Replay:
        log: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="LOG")]
        """An audit log of `worldloom serve`."""
        bundle: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")]
        """The bundle that was served."""
        tolerance: float = 0.0
        """How far answers may be off, for another machine or another jax; 0: bit for bit."""
        json: bool = False

    args = parse(Replay, argv, "worldloom audit replay", COMMANDS["replay"])
    from worldloom.deploy.audit import facts_of
    from worldloom.deploy.bundle import load_bundle
    from worldloom.deploy.replay import replay_log
    from worldloom.track.machine import use_compilation_cache

    use_compilation_cache()
    found = replay_log(args.log, load_bundle(args.bundle), tolerance=args.tolerance)
    how = "bit for bit" if not args.tolerance else f"within {args.tolerance:g}"
    facts = facts_of(found)
    if found.problem is None and found.different:
        facts |= {
            "problem": f"{found.different} records do not come out again; {found.first}",
            "sound": False,
        }
    return _tell(facts, args.json, f"{args.log}: {found.replayed} answers come out again {how}")


def _tell(facts: dict[str, Any], as_json: bool, good: str) -> int:
    if as_json:
        print(json.dumps(facts, indent=2))
    elif facts["sound"]:
        from worldloom.track.console import facts as show

        shown = ("records", "answers", "emergencies", "plants", "starts", "policy", "head")
        show(good, {name: facts[name] for name in shown})
    else:
        print(f"{facts['path']}: {facts['problem']}", file=sys.stderr)
    return 0 if facts["sound"] else 1


if __name__ == "__main__":
    try:
        sys.exit(command(sys.argv[1:]))
    except ValueError as problem:
        print(f"worldloom audit: {problem}", file=sys.stderr)
        sys.exit(2)
