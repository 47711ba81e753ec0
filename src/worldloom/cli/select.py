"""`worldloom select RUN ... --dataset D`: which trained policy to use, judged from logged data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from worldloom.training import console
from worldloom.training.arguments import parse


@dataclass
class Select:
    """say which of several trained policies the data speak for, or none"""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folders of one plant, of any algorithms."""
    dataset: str | None = None
    """Logged data to judge by, as train takes them; by default what the runs learned from."""
    updates: int = 2_500
    """Of each network that estimates are made with."""
    gamma: float = 0.99
    """The discount of all returns."""
    episodes: int = 0
    """Episodes that may be tried in the plant; a bandit says of whom."""
    seed: int = 0
    """Of estimates and trials."""
    out: Path = Path("select.json")
    """The file to write; a page of its name goes beside it."""
    json: bool = False
    """Print the result as JSON."""


def command(argv: list[str]) -> int:
    """Writes the result and its page, and prints table, answer and reason."""
    args = parse(Select, argv)
    import worldloom

    selection = worldloom.select(
        args.runs,
        args.dataset,
        updates=args.updates,
        gamma=args.gamma,
        episodes=args.episodes,
        seed=args.seed,
        out=args.out,
    )
    page = args.out.with_suffix(".html")
    if args.json:
        console.print_json(selection.to_dict() | {"report": str(page)})
        return 0
    from worldloom.report.axes import number

    every = sorted([*selection.candidates, selection.logged], key=lambda c: -c.low)
    rows = []
    for one in every:
        ends = f"{number(one.low)} to {number(one.high)}"
        supported = "yes" if one.supported else "no"
        tried = [len(one.trials) or "-"] if args.episodes else []
        rows.append([one.name, number(one.value), ends, supported, *tried])
    head = ["candidate", "estimate", "95 % interval", "supported", *["tried"] * (args.episodes > 0)]
    console.table(f"{selection.env}: returns, discounted by {args.gamma:g}", head, rows)
    doubts = {one.name: "; ".join(one.doubts) for one in every if one.doubts}
    if doubts:
        console.facts("doubts", doubts)
    chosen, reason = selection.decision
    said = {"because": reason, "mind": "; ".join(selection.notes)}
    said = {name: text for name, text in said.items() if text}
    console.facts(f"recommended: {chosen or 'none, keep what you have'}", said)
    console.say(f"written to {args.out} and {page}")
    best = selection.candidates[0].details["run"]
    if chosen:
        best = next(c.details["run"] for c in selection.candidates if c.name == chosen)
        bundle = (Path(best) / "bundle" / "manifest.json").is_file()
        console.next_steps(["export", best, *(["--force"] if bundle else [])])
    elif args.episodes:
        console.next_steps(["eval", best])
    else:
        data = ["--dataset", args.dataset] if args.dataset else []
        console.next_steps(["select", *args.runs, *data, "--episodes", 8 * len(args.runs)])
    return 0
