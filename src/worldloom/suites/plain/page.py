"""The page of a run in a world that belongs to no other suite: curves and settings."""

from pathlib import Path

from worldloom.report.run_page import facts, hero, inside, learning, write_page
from worldloom.report.runs import read_run


def write_report(folder: str | Path) -> Path:
    """Writes `report.html` into a run folder and returns its path."""
    run = read_run(folder)
    return write_page(run, hero=hero(facts(run)), sections=[learning(run, "return"), inside(run)])
