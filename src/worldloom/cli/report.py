"""`worldloom report`: the page of anything that worldloom wrote."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from worldloom import suites
from worldloom.core.lazy import resolve
from worldloom.report.run_list import MARKS
from worldloom.training import console
from worldloom.training.arguments import parse

KNOWN = "name a run folder, a folder of runs, or a JSON file of `worldloom bench` or `sweep`"
# kind of a JSON result -> what writes its page
WRITERS = {
    "sweep": "worldloom.report.sweeps:write_sweep",
    "population": "worldloom.report.populations:write_population",
    "bench": "benchmarks.pages.results:write_bench",
    "compare": "benchmarks.pages.modes:write_comparison",
    "compare-runs": "benchmarks.pages.modes:write_comparison",
}


@dataclass
class Report:
    """write the page of a run of any suite, of a folder of runs, or of a sweep"""

    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FOLDER|JSON")]
    """A run folder, a folder of runs, or a JSON file of `bench` or `sweep`."""
    json: bool = False
    """Print the result as JSON."""


def command(argv: list[str]) -> int:
    """Writes the page, and says where."""
    args = parse(Report, argv)
    console.phase("writing the page")
    page = write_page(args.target)
    if args.json:
        console.print_json({"report": str(page)})
        return 0
    console.say(f"written to {page}")
    if (args.target / "checkpoints").is_dir():
        console.next_steps(["eval", args.target])
    elif args.target.is_dir():
        console.next_steps(["studio", args.target])
    return 0


def write_page(target: str | Path) -> Path:
    """Writes the page of `target` and returns its path.

    A run folder gets report.html inside, a folder of runs index.html, a JSON file a page of its
    name beside it. Anything else is a ValueError, and nothing is written.
    """
    target = Path(target)
    if target.is_dir() and not any((target / name).exists() for name in MARKS):
        from worldloom.report.index_page import write_index

        return write_index(target)
    if target.is_dir():
        from worldloom.training.config import read_header  # which imports jax

        return suites.suite(read_header(target)["suite"]).page(target)
    result = _read(target)
    kind = "bench" if isinstance(result.get("ratios"), dict) else str(result.get("kind"))
    if kind not in WRITERS:
        raise ValueError(f"{target} is no comparison, benchmark or sweep; {KNOWN}")
    if WRITERS[kind].startswith("benchmarks."):
        from worldloom.cli.bench import project_benchmarks

        project_benchmarks()
    return resolve(WRITERS[kind])(result, target.with_suffix(".html"))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} does not exist; {KNOWN}")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); {KNOWN}") from error
    if not isinstance(result, dict):
        raise ValueError(f"{path} holds a JSON {type(result).__name__}, no result; {KNOWN}")
    return result
