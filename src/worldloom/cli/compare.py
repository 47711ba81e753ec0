"""`worldloom compare RUN RUN ...`: runs in the same world side by side."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from worldloom.training.arguments import parse
from worldloom.training.console import print_json, table


@dataclass
class Compare:
    """compare runs in the same world: scores, learning curves, and what was set differently"""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Two run folders or more, of any algorithms."""
    out: Path = Path("comparison.html")
    """The page to write."""
    json: bool = False
    """Print the result as JSON."""


def command(argv: list[str]) -> int:
    """Writes the page, and prints the table of it."""
    from worldloom.report import comparison

    args = parse(Compare, argv)
    if args.out.suffix != ".html":
        raise ValueError(f"--out {args.out}: the page is an .html file")
    rows = comparison.compare(args.runs)
    page = comparison.write_comparison(rows, args.out)
    if args.json:
        print_json({"runs": [row.to_dict() for row in rows], "report": page})
        return 0
    table(
        f"{rows[0].run.settings['env']}, best first",
        comparison.COLUMNS,
        [row.cells() for row in rows],
    )
    print(f"written to {page}")
    return 0
