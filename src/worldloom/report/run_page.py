"""The page of a run of any suite, and the sections that the pages of all suites share."""

import base64
import math
import shlex
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from worldloom.report import page, svg
from worldloom.report.axes import number
from worldloom.report.colors import PALETTE, series_color
from worldloom.report.plots import Series, line_chart, with_error
from worldloom.report.runs import Run, column, is_number, read_run

POINTS = 200  # a line of more points than this is averaged
# Metrics as people read them; others are shown under their own names.
LABELS = {
    "epsilon": "exploration: chance of a random action",
    "grad_norm": "gradient norm",
    "q_mean": "mean Q value of the batches",
    "entropy": "entropy of the policy",
    "kl": "KL divergence of an update",
    "clip_fraction": "share of ratios that were clipped",
    "explained_variance": "explained variance of the returns",
    "length": "length of episodes",
}
# Not charts of their own: counters, and what the learning curve shows.
_NO_CHARTS = ("iteration", "steps", "seconds", "episodes", "return")


def write_page(
    run: Run,
    *,
    hero: str = "",
    sections: Iterable[str],
    tags: Sequence[str] = (),
    missing: Sequence[str] = (),
    unit: str = "steps",
    no_resume: str = "",
) -> Path:
    """Writes report.html: what is particular about a suite between what all pages have.

    tags: what sets the run apart beside algorithm and seed. missing: sentences about what the
    suite expects and is not there. no_resume: why the run cannot go on, where it cannot.
    """
    settings, versions = run.settings, run.part("versions")
    env, seed = settings.get("env"), settings.get("seed")
    name = Path(str(env)).stem if str(env).endswith((".yaml", ".yml")) else str(env or "")
    name = name or run.path.resolve().name
    tags = [str(settings.get("algo") or ""), *tags, "" if seed is None else f"seed {seed}"]
    last = [f"worldloom {versions.get('worldloom', '')}", f"run {run.path.resolve().name}"]
    last += [f"settings {run.about['hash']}"] if run.about.get("hash") else []
    body = [
        page.header(name, tags),
        page.note("This run is not complete", [*_incomplete(run, unit), *missing]),
        hero,
        *sections,
        _about_run(run),
        _commands(run, no_resume),
        f"<footer>{escape(' · '.join(last))}</footer>",
    ]
    html = page.page(" · ".join(filter(None, (name, *tags))), body)
    return page.write(run.path / "report.html", html)


def _incomplete(run: Run, unit: str) -> list[str]:
    """Sentences about what a run of any suite should have and does not have yet."""
    lines = []
    if not run.metrics:
        lines.append("Nothing has been learned yet (metrics.jsonl is empty or missing).")
    elif run.planned is not None and run.steps < run.planned:
        lines.append(
            f"{run.steps:,} of {run.planned:,} {unit}: it was stopped, or is still running."
        )
    if not run.evals:
        lines.append("It has not been evaluated yet (eval.jsonl): there is no greedy score.")
    if not run.timing:
        lines.append("There are no timing results (timing.json).")
    return lines + sorted(set(run.unreadable))


Fact = tuple[str, str, str, str]  # name, number, unit, a line below


def facts(run: Run, unit: str = "steps", score: str = "greedy score") -> list[Fact]:
    """Headline numbers: score, time and speed."""
    items: list[Fact] = []
    if run.evals:
        last = run.evals[-1]
        below = f"mean of {last['episodes']} episodes" if last.get("episodes") else ""
        for name, reference in run.reference_scores()[:1]:
            below = "; ".join(filter(None, (below, f"{name}: {number(reference)}")))
        error = last.get("stderr")
        spread = "" if error is None else f"± {number(error, 2)}"
        items.append((score, number(last.get("mean"), 4), spread, below))
    elif run.metrics and is_number(run.metrics[-1].get("return")):
        last = number(run.metrics[-1]["return"], 4)
        items.append(("training return", last, "", "of the last iteration"))
    timing = run.timing
    seconds = timing.get("train_seconds", run.metrics[-1].get("seconds") if run.metrics else None)
    if seconds is not None:
        steps = f"{page.shown(timing.get('steps', run.steps))} {unit}"
        items.append(("training time", number(seconds), "s", steps))
    rate = timing.get("steps_per_second") or (run.steps / seconds if seconds else None)
    if rate:
        items.append(("speed", number(rate), f"{unit}/s", ""))
    if timing.get("compile_seconds") is not None:
        compiled = number(timing["compile_seconds"])
        items.append(("compilation", compiled, "s", "not part of the training time"))
    return items


def hero(items: Sequence[Fact], film: str = "") -> str:
    """A film beside the headline numbers."""
    content = film + (page.facts(items) if items else "")
    return f'<div class="hero">{content}</div>' if content else ""


def film_figure(path: Path, caption: str) -> str:
    """A GIF inside the page."""
    data = path.read_bytes()
    size = ""
    if len(data) >= 10 and data[:3] == b"GIF":
        width, height = struct.unpack("<HH", data[6:10])
        size = f' width="{width}" height="{height}"'
    text = escape(caption)
    source = f"data:image/gif;base64,{base64.b64encode(data).decode()}"
    image = f'<img src="{source}" alt="{text}"{size}>'
    return f"<figure>{image}<figcaption>{text}</figcaption></figure>"


def thin(
    x: Sequence[float], y: Sequence[float | None], points: int = POINTS
) -> tuple[list[float], list[float | None]]:
    """At most about `points` points: means over equal stretches, gaps where all is missing."""
    every = max(1, math.ceil(len(x) / points))
    if every == 1:
        return list(x), list(y)
    xs: list[float] = []
    ys: list[float | None] = []
    for start in range(0, len(x), every):
        here = [v for v in y[start : start + every] if is_number(v)]
        xs.append(sum(x[start : start + every]) / len(x[start : start + every]))
        ys.append(sum(here) / len(here) if here else None)
    return xs, ys


def learning(run: Run, y_label: str = "return of an episode", unit: str = "steps") -> str:
    """The learning curve: returns while it trained, and greedy evaluations with their error."""
    lines = _learning_lines(run)
    if not lines:
        return ""
    every = math.ceil(len(run.metrics) / POINTS)
    caption = f"Each point of the training is the mean of {every} iterations." if every > 1 else ""
    labels: dict[str, Any] = {"title": "Learning curve", "x_label": unit, "y_label": y_label}
    draw = partial(learning_chart, lines, **labels, references=run.reference_scores())
    return page.section("Learning", page.figure(draw, caption))


def _learning_lines(run: Run) -> list[Series]:
    lines = []
    returns = run.column("return")
    if any(map(is_number, returns)):
        x, y = thin(run.column("steps"), returns)
        lines.append(Series("training, with exploration", x, y, faint=True))
    if run.evals:
        columns = [column(run.evals, name) for name in ("steps", "mean", "stderr")]
        ink = None if lines else series_color(1)
        lines.append(with_error("greedy evaluation ± s.e.", *columns, dots=True, color=ink))
    return lines


def summary(folder: Path, scores: Mapping[str, str]) -> str:
    """A run in a notebook: scores and times, the newest film, the learning curve."""
    run = read_run(folder)
    rows = dict(scores) | {name: f"{value} {unit}" for name, value, unit, _ in facts(run)}
    cells = (f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in rows.items())
    parts = [f"<b>{escape(str(run.path))}</b>", f"<table>{''.join(cells)}</table>"]
    films = sorted(run.path.glob("*.gif"), key=lambda path: path.stat().st_mtime)
    parts += [film_figure(films[-1], films[-1].stem)] if films else []
    lines = _learning_lines(run)
    parts += [line_chart(lines, 560, x_label="steps", y_label="return")] if lines else []
    return "".join(parts)


def learning_chart(lines: Sequence[Series], width: int, **options: Any) -> str:
    """A `line_chart` as tall as the first one of a page is, on a desk and on a phone."""
    return line_chart(lines, width, height=340 if width > page.HALF else 300, **options)


def inside(run: Run, names: Sequence[str] | None = None, unit: str = "steps") -> str:
    """Small charts of what happens inside the learners: every metric that is a number."""
    if names is None:
        written = dict.fromkeys(name for row in run.metrics for name in row)
        names = [name for name in written if name not in _NO_CHARTS]
    charts = []
    for name in names:
        values = run.column(name)
        present = [v for v in values if is_number(v)]
        if not present or min(present) == max(present) == 0.0:
            continue
        label = LABELS.get(name, name.replace("_", " "))
        log = name.endswith(("loss", "norm")) and 0 < 20 * min(present) < max(present)
        ink = svg.color(len(charts) % len(PALETTE))
        line = Series(name, *thin(run.column("steps"), values), color=ink)
        shown = label + " (log)" * log
        labels: dict[str, Any] = {"title": label, "x_label": unit, "y_label": shown}
        zero = name == "epsilon"
        charts.append(
            line_chart([line], page.HALF, **labels, log_y=log, include_zero=zero, height=230)
        )
    return page.section("Inside the learners", page.pairs(charts))


def _about_run(run: Run) -> str:
    """Settings, timing, machine and versions of any run."""
    machine = run.about.get("machine")
    parts = {
        "Settings": run.settings,
        "Timing": run.timing,
        "Machine": machine if isinstance(machine, dict) else {"machine": machine},
        "Versions": run.part("versions"),
    }
    left, *right = (page.titled_settings(title, values) for title, values in parts.items())
    columns = f'<div class="columns">{left}<div>{"".join(right)}</div></div>'
    return page.section("The run", columns)


def _commands(run: Run, no_resume: str) -> str:
    """How to repeat a run, and how to go on with it; `no_resume` says why that cannot be."""
    command = run.about.get("command")
    parts = ["<h3>The same run again</h3>" + page.command(str(command))] if command else []
    parts.append("<h3>Go on from its last checkpoint</h3>")
    if no_resume:
        parts.append(f"<p>{escape(no_resume)}</p>")
    elif not run.has_checkpoint:
        parts.append("<p>It has no checkpoint to go on from.</p>")
    else:
        resume = ["worldloom", "train", "--resume", str(run.path)]
        if run.planned is not None and run.steps >= run.planned:
            resume += ["--steps", str(2 * run.planned)]  # it is done: going on means going further
        parts.append(page.command(shlex.join(resume)))
    return page.section("Do it again", *parts)
