"""What commands print: tables and facts for people, JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from worldloom.core.files import plain


def print_json(value: Any) -> None:
    """Prints a value as JSON."""
    print(json.dumps(plain(value), indent=2), flush=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints a table; columns of numbers are aligned right."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    out = Table(title=title, title_justify="left", header_style="bold")
    for n, column in enumerate(columns):
        cells = [str(row[n]) for row in rows]
        is_text = not all(map(_is_number, cells))
        whole = max(map(len, cells), default=0) if n == 0 else None  # names are not broken
        out.add_column(column, justify="left" if is_text else "right", min_width=whole)
    for row in rows:
        out.add_row(*[escape(str(cell)) for cell in row])
    Console().print(out)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return not text
    return True


def facts(title: str, values: Mapping[str, Any]) -> None:
    """Prints names and values side by side, each in one line: paths stay whole."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(f"[italic]{escape(title)}", soft_wrap=True)
    width = max(map(len, values), default=0)
    for name, value in values.items():
        console.print(f"  [dim]{name:<{width}}[/]  {escape(str(value))}", soft_wrap=True)
