"""What pages about measurements share: ratios, warnings, and where figures come from."""

from collections.abc import Mapping
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.page import Part


def times(value: float) -> str:
    """A ratio for people, with a multiplication sign."""
    return f"{number(value)}\u00d7"


def warnings(result: Mapping[str, Any], content: str) -> Part:
    """What to know before reading: nothing measured, a quick run, parts left out or failed."""
    lines = [] if result.get(content) else [f"The result has no {content}."]
    if result.get("quick"):
        lines.append("A quick run, to see that it works: its figures mean nothing.")
    for name, reason in dict(result.get("skipped") or {}).items():
        lines.append(f"{name} is left out: {reason}")
    for name, reason in dict(result.get("errors") or {}).items():
        lines.append(f"{name} failed: {reason}")
    return page.note("Before you read on", lines)


def origin(result: Mapping[str, Any], title: str = "How it was measured") -> Part:
    """How and where the figures were made: command, notes, machine and versions."""
    command = page.command(str(result["command"])) if result.get("command") else None
    tables = []
    for heading, name in (("Machine", "machine"), ("Versions", "versions")):
        given = result.get(name) or {}
        values = given if isinstance(given, Mapping) else {name: given}
        tables.append(page.titled_settings(heading, values))
    notes = [str(note) for note in result.get("notes") or ()]
    return page.section(title, command, notes, page.group("columns", *tables))


def is_nested(value: Any) -> bool:
    """Whether a value is an object, or a list of objects: a table of its own."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(row, Mapping) for row in value)
    return isinstance(value, Mapping) and bool(value)
