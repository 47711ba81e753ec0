"""`worldloom approve BUNDLE --key FILE`: a signature without which a server may refuse a bundle."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from worldloom.training import console
from worldloom.training.arguments import parse


@dataclass
class Approve:
    """sign a plant's policy and its constraints, for `serve --approved-by`"""

    bundle: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")] = None
    """The folder that `worldloom export` wrote."""
    key: Path | None = None
    """The private key of who approves (Ed25519, PEM)."""
    replaces: Path | None = None
    """The bundle that is served now: what changes in the constraints is shown."""
    note: str = ""
    """A reason, which is signed as well."""
    new_key: Path | None = None
    """Only write a new private key here, and the public one to FILE.pub."""
    json: bool = False
    """Print the result as JSON."""


def command(argv: list[str]) -> int:
    """Signs, or makes a key; says what was signed."""
    args = parse(Approve, argv)
    from worldloom.serving import approval

    if args.new_key is not None:
        if args.bundle is not None or args.key is not None:
            raise ValueError("--new-key stands alone: make the key first, then approve with it")
        public = approval.new_key(args.new_key)
        console.say(f"written to {args.new_key} (keep it to yourself) and {public}")
        return 0
    if args.bundle is None or args.key is None:
        raise ValueError("name a bundle and --key FILE, or make a key with --new-key FILE")
    changed = [] if args.replaces is None else approval.changes(args.replaces, args.bundle)
    made = approval.approve(args.bundle, args.key, args.replaces, args.note)
    if args.json:
        console.print_json(made | {"constraint_changes": changed})
        return 0
    if args.replaces is not None:
        console.say("\n".join(changed) or "the constraints are those of the bundle it replaces")
    console.say(f"approved policy {made['digest'][:12]} as {made['by'][:12]}")
    console.next_steps(["serve", args.bundle, "--approved-by", f"{args.key}.pub"])
    return 0
