"""The page of anything that worldloom wrote: a run folder, a comparison, a benchmark, a sweep."""

import json
from pathlib import Path
from typing import Any

from worldloom.envs import registry
from worldloom.report.arc_report import write_arc_report
from worldloom.report.html import write_bench, write_comparison, write_report
from worldloom.report.plant_report import write_plant_report
from worldloom.report.robot_report import write_robot_report
from worldloom.report.runs import read_run
from worldloom.report.sweeps import write_sweep

_OF_SUITES = {  # the others are of grids
    "arc": write_arc_report,
    "robot": write_robot_report,
    "plant": write_plant_report,
}
_KNOWN = "name a run folder, or a JSON file of `worldloom compare`, `bench` or `sweep`"


def write_page(target: str | Path) -> Path:
    """Writes the page of `target` and returns its path.

    A run folder gets report.html inside, a JSON file a page of its name beside it. Anything else
    is a ValueError, and nothing is written.
    """
    target = Path(target)
    if target.is_dir():
        suite = registry.suite_of(str(read_run(target).settings.get("env")))
        return _OF_SUITES.get(str(suite), write_report)(target)
    result = _read(target)
    page = target.with_suffix(".html")
    if isinstance(result.get("ratios"), dict):
        return write_bench(result, page)
    if isinstance(result.get("rows"), list):
        return write_comparison(result, page)
    if result.get("kind") == "sweep":
        return write_sweep(result, page)
    raise ValueError(f"{target} is no comparison, benchmark or sweep; {_KNOWN}")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} does not exist; {_KNOWN}")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); {_KNOWN}") from error
    if not isinstance(result, dict):
        raise ValueError(f"{path} holds a JSON {type(result).__name__}, no result; {_KNOWN}")
    return result
