"""Pages of data: parts of a page as plain values, which templates turn into one HTML file.

A part is a string (a paragraph), a list of parts, nothing (None or ""), or a dictionary that the
functions here make and `templates/parts.html` shows. All text is escaped there.
"""

import base64
import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from worldloom.core.files import write_text
from worldloom.report.axes import NONE, number
from worldloom.report.colors import palette_css

Part = dict[str, Any] | str | list[Any] | None
Fact = tuple[str, str, str, str]  # name, number, unit, a line below
Draw = Callable[[int], str]  # from a width in pixels to SVG

WIDE, NARROW, HALF = 880, 340, 390  # pixels an SVG is drawn for: desk, phone, half a column
_HERE = Path(__file__).parent


def page(title: str, body: Iterable[Part]) -> str:
    """A whole HTML document: no request to anywhere, no script but those of this package."""
    shell, scripts, styles = _kit()
    return shell.render(title=title, body=list(body), scripts=scripts, styles=styles)


@cache
def _kit() -> tuple[Any, dict[str, tuple[Any, str]], dict[str, Any]]:
    """The template of a page; scripts with the hashes that let them run; stylesheets."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["shown"] = shown
    paths = {"uplot": "vendor/uPlot.iife.min.js", "page": "templates/page.js"}
    texts = {name: (_HERE / path).read_text(encoding="utf-8") for name, path in paths.items()}
    scripts = {name: (Markup(text), _hash(text)) for name, text in texts.items()}
    styles = {"uplot": "vendor/uPlot.min.css", "page": "templates/page.css"}
    sheets = {n: Markup((_HERE / path).read_text(encoding="utf-8")) for n, path in styles.items()}
    sheets["palette"] = Markup(palette_css())
    return environment.get_template("page.html"), scripts, sheets


def frame(part: Part, height: int = 420) -> str:
    """A part of a page as an element of another one, such as the output of a notebook's cell."""
    from markupsafe import escape

    text = escape(page("", [part]))
    return f'<iframe srcdoc="{text}" style="width:100%;height:{height}px;border:0"></iframe>'


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def write(path: str | Path, html: str) -> Path:
    """Writes a page whole or not at all, and returns its path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return write_text(path, html)


# Parts -------------------------------------------------------------------------------------------


def header(title: str, tags: Iterable[str] = ()) -> Part:
    """The name of the thing and what sets it apart."""
    return {"kind": "header", "title": title, "tags": " · ".join(filter(None, tags))}


def section(title: str, *parts: Part, text: str = "") -> Part:
    """A part of the page with its title; nothing if it has no content."""
    shown = [part for part in parts if part]
    return {"kind": "section", "title": title, "text": text, "parts": shown} if shown else None


def group(style: str, *parts: Part) -> Part:
    """Parts in a box of a CSS class, such as columns or strip; nothing if there are none."""
    shown = [part for part in parts if part]
    return {"kind": "group", "class": style, "parts": shown} if shown else None


def heading(title: str, level: int = 3) -> Part:
    """A title within a section."""
    return {"kind": "heading", "title": title, "level": level}


def soft(text: str) -> Part:
    """A remark."""
    return {"kind": "soft", "text": text} if text else None


def link(address: str, text: str) -> Part:
    """A link to a file beside the page."""
    return {"kind": "link", "address": address, "text": text}


def footer(words: Iterable[str]) -> Part:
    return {"kind": "footer", "text": " · ".join(words)}


def figure(chart: Draw | Part, caption: str = "") -> Part:
    """A chart over the whole width; SVG is drawn twice, so that text keeps its size on phones."""
    if not callable(chart):
        return {"kind": "figure", "parts": [chart], "caption": caption} if chart else None
    drawn = [raw(chart(width), name) for width, name in ((WIDE, "wide"), (NARROW, "narrow"))]
    return {"kind": "figure", "parts": drawn, "caption": caption}


def pairs(charts: Sequence[Part]) -> Part:
    """Charts side by side, SVG of HALF a column; below each other where there is no room."""
    shown = [raw(chart) if isinstance(chart, str) else chart for chart in charts if chart]
    return group("pairs", *({"kind": "figure", "parts": [c], "caption": ""} for c in shown))


def raw(text: str, style: str = "") -> Part:
    """Markup that this package made, such as SVG: the only text that is not escaped."""
    from markupsafe import Markup

    return {"kind": "raw", "markup": Markup(text), "class": style}


def film(path: Path, caption: str) -> Part:
    """A GIF inside the page."""
    data = path.read_bytes()
    is_gif = len(data) >= 10 and data[:3] == b"GIF"
    size = struct.unpack("<HH", data[6:10]) if is_gif else None
    return {
        "kind": "film",
        "source": f"data:image/gif;base64,{base64.b64encode(data).decode()}",
        "size": size,
        "caption": caption,
    }


def facts(items: Iterable[Fact]) -> Part:
    """Headline numbers."""
    entries = list(items)
    return {"kind": "facts", "entries": entries} if entries else None


def note(title: str, lines: Sequence[str]) -> Part:
    """What the reader should know before anything else; nothing if there is nothing to say."""
    return {"kind": "note", "title": title, "lines": lines} if lines else None


def command(text: str) -> Part:
    """A command to copy; one click selects all of it."""
    return {"kind": "command", "text": text}


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Part:
    """A table; numbers are rounded for people and set to the right, parts are shown as such."""
    rows = [list(row) for row in rows]
    if not rows:
        return None
    right = [
        any(_is_number(row[i]) for row in rows)
        and all(_is_number(row[i]) or row[i] is None for row in rows)
        for i in range(len(rows[0]))
    ]
    return {"kind": "table", "head": list(head), "rows": rows, "right": right}


def measured_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Part:
    """A table without the columns in which nothing was measured."""
    kept = [i for i in range(len(head)) if any(row[i] is not None for row in rows)]
    return table([head[i] for i in kept], [[row[i] for i in kept] for row in rows])


def settings(values: Mapping[str, Any]) -> Part:
    """A table of names and values; nested settings get dotted names."""
    return table((), [[name, shown(value)] for name, value in flat(values).items()])


def titled_settings(title: str, values: Mapping[str, Any]) -> Part:
    """`settings` under a title, as a column; nothing if there are none."""
    return group("", heading(title), settings(values)) if values else None


# Values ------------------------------------------------------------------------------------------


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, Mapping) and value
        out |= flat(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return out


def shown(value: Any) -> str:
    """Any value as text for people."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return number(value, 4)
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value)
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
