"""The shell of a page: everything in one file, no script, nothing to load."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from worldloom.core.files import write_text
from worldloom.report.axes import NONE, number

WIDE, NARROW, HALF = 880, 340, 390  # pixels a chart is drawn for: desk, phone, half a column

# Nothing from elsewhere can be loaded, whatever a name or a setting may contain.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#20242e;--soft:#5d6472;--line:#e3e6ec;
--tint:#f5f6f9;--accent:#1560f2;--warn:#8a5a00;--warn-tint:#fff6e0}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14161c;--ink:#e4e6ec;--soft:#9ba2b0;
--line:#2b2f3a;--tint:#1c1f27;--accent:#7aa5ff;--warn:#f2c35c;--warn-tint:#2a2415}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:912px;margin:0 auto;padding:clamp(1.25rem,4vw,3.5rem) 16px 3rem}
h1{font-size:clamp(1.9rem,5vw,2.7rem);line-height:1.1;letter-spacing:-.02em;margin:0}
.tags{color:var(--soft);margin:.5rem 0 0;font-size:1.05rem;overflow-wrap:anywhere}
h2{font-size:1.3rem;letter-spacing:-.01em;margin:3.2rem 0 .4rem}
h3{font-size:1rem;margin:1.6rem 0 .3rem}
p{margin:.4rem 0 1rem;max-width:44rem}
.soft,figcaption{color:var(--soft);font-size:.9rem}
.hero{display:flex;flex-wrap:wrap;gap:2rem 3rem;align-items:center;margin:2.2rem 0 0}
.hero figure{margin:0}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(45%,190px),1fr));
gap:1.5rem 1rem;margin:0;flex:1 1 300px}
.facts dt{color:var(--soft);font-size:.9rem}
.facts dd{margin:0;font-size:clamp(1.5rem,6vw,2rem);white-space:nowrap;line-height:1.2;
font-weight:650;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.facts dd small{font-size:.95rem;font-weight:400;color:var(--soft);letter-spacing:0}
.facts .more{font-size:.85rem;color:var(--soft);font-weight:400;letter-spacing:0;display:block;
margin-top:.2rem;white-space:normal;line-height:1.4}
.note{background:var(--warn-tint);border-left:4px solid var(--warn);padding:.8rem 1.1rem;
margin:1.6rem 0 0;border-radius:0 6px 6px 0}
.note ul{margin:.3rem 0 0;padding-left:1.2rem}
figure{margin:1rem 0}
img{display:block;max-width:100%;height:auto;border-radius:8px}
svg.wl-chart{display:block;max-width:100%;height:auto;color:inherit;overflow:visible}
.narrow{display:none}
.pairs{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));
gap:.5rem 2.5rem}
.pairs svg.wl-chart{width:100%}
.strip{display:flex;flex-wrap:wrap;gap:1rem 1.5rem}
.strip figure{margin:.6rem 0;flex:0 1 250px}
.scroll{overflow-x:auto;margin:.6rem 0 1rem}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{padding:.3rem 1.4rem .3rem 0;text-align:left;border-bottom:1px solid var(--line);
vertical-align:top}
th{font-weight:600;color:var(--soft)}
td.n,th.n{text-align:right}
td{overflow-wrap:break-word}
.columns td:first-child{color:var(--soft);padding-right:1rem;width:55%}
figcaption{margin-top:.45rem}
thead th{border-bottom-width:2px}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));
gap:0 3rem}
.columns table{width:100%}
pre{background:var(--tint);padding:.8rem 1rem;border-radius:8px;white-space:pre-wrap;
overflow-wrap:anywhere;font:.88rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
user-select:all;margin:.4rem 0 1rem}
footer{margin-top:3.5rem;padding-top:1rem;border-top:1px solid var(--line);color:var(--soft);
font-size:.85rem;overflow-wrap:anywhere}
@media screen and (max-width:700px){.wide{display:none}.narrow{display:block}
.narrow svg.wl-chart{width:100%}}
@media print{body{font-size:11pt}main{padding:0;max-width:none}h2{margin-top:1.8rem}
h1,h2,h3{break-after:avoid}figure,tr,.facts,pre,.note{break-inside:avoid}
pre{border:1px solid var(--line)}}
"""


def page(title: str, body: Iterable[str]) -> str:
    """A whole HTML document."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head>\n"
        f"<body><main>\n{chr(10).join(filter(None, body))}\n</main></body></html>\n"
    )


def write(path: str | Path, html: str) -> Path:
    """Writes a page whole or not at all, and returns its path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return write_text(path, html)


def header(title: str, tags: Iterable[str] = ()) -> str:
    """The name of the thing and what sets it apart."""
    said = " · ".join(escape(tag) for tag in tags if tag)
    below = f'<p class="tags">{said}</p>' if said else ""
    return f"<header><h1>{escape(title)}</h1>{below}</header>"


def section(title: str, *parts: str, text: str = "") -> str:
    """A part of the page with its title; nothing if it has no content."""
    content = "".join(filter(None, parts))
    if not content:
        return ""
    intro = f"<p>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2>{intro}{content}</section>"


def figure(draw: Callable[[int], str], caption: str = "") -> str:
    """A chart drawn twice, for wide screens and for phones, so that text keeps its size."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><div class="wide">{draw(WIDE)}</div>'
        f'<div class="narrow">{draw(NARROW)}</div>{below}</figure>'
    )


def pairs(charts: Sequence[str]) -> str:
    """Charts of HALF a column side by side, below each other where there is no room."""
    figures = "".join(f"<figure>{chart}</figure>" for chart in charts if chart)
    return f'<div class="pairs">{figures}</div>' if figures else ""


def facts(items: Iterable[tuple[str, str, str, str]]) -> str:
    """Headline numbers: (name, number, unit, a line below)."""
    entries = []
    for name, value, unit, more in items:
        after = f" <small>{escape(unit)}</small>" if unit else ""
        below = f'<span class="more">{escape(more)}</span>' if more else ""
        entries.append(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}{after}{below}</dd></div>")
    return f'<dl class="facts">{"".join(entries)}</dl>' if entries else ""


def note(title: str, lines: Sequence[str]) -> str:
    """What the reader should know before anything else; nothing if there is nothing to say."""
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<aside class="note"><strong>{escape(title)}</strong><ul>{items}</ul></aside>'


def command(text: str) -> str:
    """A command to copy; one click selects all of it."""
    return f"<pre>{escape(text)}</pre>"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; numbers are rounded for people and set to the right."""
    rows = [list(row) for row in rows]
    if not rows:
        return ""
    right = [
        any(_is_number(row[i]) for row in rows)
        and all(_is_number(row[i]) or row[i] is None for row in rows)
        for i in range(len(rows[0]))
    ]

    def cells(tag: str, values: Sequence[Any]) -> str:
        marks = (' class="n"' if at_right else "" for at_right in right)
        return "".join(
            f"<{tag}{mark}>{escape(shown(value))}</{tag}>"
            for mark, value in zip(marks, values, strict=True)
        )

    top = f"<thead><tr>{cells('th', head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{top}<tbody>{body}</tbody></table></div>'


def settings(values: Mapping[str, Any]) -> str:
    """A table of names and values; nested settings get dotted names."""
    return table((), [[name, shown(value)] for name, value in flat(values).items()])


def titled_settings(title: str, values: Mapping[str, Any]) -> str:
    """`settings` under a title, as a column; nothing if there are none."""
    return f"<div><h3>{title}</h3>{settings(values)}</div>" if values else ""


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
