"""The parts charts are made of, as SVG text."""

from collections.abc import Iterable, Sequence
from html import escape

from worldloom.report.axes import Scale, tick_labels
from worldloom.report.colors import Color, css_color, palette_css, series_color

TEXT_SIZE = 12.5  # pixels: charts are drawn at the size at which they are shown
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# Pictures in a README stand alone: what a page's stylesheet has, they bring along.
_STYLE = (
    palette_css().replace(":root", ".wl-chart")
    + ".wl-chart{color:#20242e;--soft:#5d6472;--good:#1b7a3b;--bad:#c0392b}"
    "@media screen and (prefers-color-scheme:dark){.wl-chart{color:#e4e6ec;--soft:#9ba2b0;"
    "--good:#4fc37a;--bad:#f2867a}}.wl-chart .bar:hover{opacity:.75}"
)


def chart(parts: Iterable[str], width: float, height: float, title: str) -> str:
    """A whole SVG document of the given parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="wl-chart" viewBox="0 0 {width:g} '
        f'{height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(title)}" font-family="{FONT}" font-size="{TEXT_SIZE}" '
        f'fill="currentColor"><style>{_STYLE}</style>{"".join(parts)}</svg>'
    )


def color(given: Color) -> str:
    """A colour as CSS, for an SVG within a page or alone."""
    if given == "ink":
        return "inherit"
    fallback = "#5d6472" if isinstance(given, str) else series_color(given)
    name = css_color(given)
    return f"var({name},{fallback})" if name.startswith("--") else fallback


def text_width(text: str) -> float:
    """About how many pixels a text takes; a little too many rather than too few."""
    narrow = sum(letter in "iljtf.,:;|!'1 ()[]r" for letter in text)
    wide = sum(letter in "mwMW@%—…" for letter in text)
    return TEXT_SIZE * (0.58 * len(text) - 0.22 * narrow + 0.3 * wide)


def text(x: float, y: float, words: str, anchor: str = "start", dim: bool = False) -> str:
    faded = ' opacity=".68"' if dim else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{faded}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, opacity: float, extra: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="currentColor" opacity="{opacity:g}"{extra}/>'
    )


def rect(
    x: float, y: float, width: float, height: float, color: str, title: str, extra: str = ""
) -> str:
    """A filled rectangle that says `title` where the mouse is on it."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'style="color:{color}" fill="currentColor"{extra}><title>{escape(title)}</title></rect>'
    )


def x_axis(across: Scale, top: float, bottom: float, label: str) -> str:
    """Grid lines from top to bottom, labelled below."""
    parts = []
    for value, words in zip(across.ticks, tick_labels(across.ticks), strict=True):
        x = float(across(value))
        parts.append(line(x, top, x, bottom, 0.14))
        # The outermost labels must not leave the picture.
        anchor = "start" if x < text_width(words) / 2 else "middle"
        parts.append(text(x, bottom + 17, words, anchor, dim=True))
    if label:
        parts.append(text((across.start + across.end) / 2, bottom + 36, label, "middle", dim=True))
    return f'<g class="x-axis">{"".join(parts)}</g>'


def legend(names: Sequence[str], colors: Sequence[str], width: float) -> tuple[str, float]:
    """Names beside dots of their colours, in as many rows as they need, and the height of that.

    One name alone needs no legend.
    """
    if len(names) < 2:
        return "", 0.0
    parts, x, y = [], 0.0, 14.0
    for name, ink in zip(names, colors, strict=True):
        needs = 17 + text_width(name) + 18
        if x and x + needs > width:
            x, y = 0.0, y + 20
        parts.append(
            f'<circle cx="{x + 6:.1f}" cy="{y - 4:.1f}" r="5" style="color:{ink}" '
            'fill="currentColor"/>' + text(x + 17, y, name)
        )
        x += needs
    return f'<g class="legend">{"".join(parts)}</g>', y + 10
