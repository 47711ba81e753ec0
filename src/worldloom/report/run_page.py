"""The page of a run of any suite, and the sections that the pages of all suites share."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.page import Fact, Part
from worldloom.report.plots import Series, line_chart, with_error
from worldloom.report.runs import Run, column, is_number

OVER = {"steps": "", "seconds": "seconds of training"}  # what curves run over, and its label
POINTS = 400  # a line of more points than this is averaged
# Of the run itself; the palette is left to agents, and to ways to act.
TRAINING, GREEDY = "soft", "ink"
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
_SHARES = ("epsilon", "clip_fraction", "solved")  # shown in per cent
# Not charts of their own: counters, and what the learning curve shows.
_NO_CHARTS = ("iteration", "steps", "seconds", "episodes", "return")


def write_page(
    run: Run,
    *,
    hero: Part = None,
    sections: Iterable[Part],
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
        page.footer(last),
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


def facts(run: Run, unit: str = "steps", score: str = "greedy score") -> list[Fact]:
    """Headline numbers: score, time and speed."""
    items: list[Fact] = []
    if run.evals:
        last = run.evals[-1]
        below = f"mean of {last['episodes']} episodes" if last.get("episodes") else ""
        below = "; ".join(filter(None, (below, beside(run))))
        items.append((score, number(last.get("mean"), 4), spread(last.get("stderr")), below))
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


def spread(error: Any) -> str:
    """± and a standard error; nothing if it is not known."""
    return f"± {number(error, 2)}" if is_number(error) else ""


def beside(run: Run, name: str = "mean", error: str = "stderr", factor: float = 1.0) -> str:
    """What agents that learned nothing came to, in words: "random play: 255 ± 3"."""
    said = []
    for who, row in run.references().items():
        if is_number(row.get(name)):
            own = factor * row[error] if is_number(row.get(error)) else None
            said.append(f"{who}: {number(factor * row[name])} {spread(own)}".strip())
    return "; ".join(said)


def hero(items: Sequence[Fact], film: Part = None) -> Part:
    """A film beside the headline numbers."""
    return page.group("hero", film, page.facts(items))


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


def learning(run: Run, y_label: str = "return of an episode", unit: str = "steps") -> Part:
    """Learning curves over steps and over seconds: training, and greedy evaluations."""
    charts = []
    for over in OVER:
        chart = learning_chart(run, over, y_label, unit)
        if chart is not None:
            charts.append(page.figure(chart, _averaged(run) if over == "steps" else ""))
    return page.section("Learning", *charts)


def learning_chart(
    run: Run, over: str = "steps", y_label: str = "return of an episode", unit: str = "steps"
) -> dict[str, Any] | None:
    """Training and greedy evaluations over steps or seconds; None if nothing was written yet."""
    lines = training_line(run, over)
    if run.evals:
        columns = [column(run.evals, name) for name in (over, "mean", "stderr")]
        lines.append(with_error("greedy evaluation ± s.e.", *columns, dots=True, color=GREEDY))
    if not lines or not any(map(is_number, [*run.column(over), *column(run.evals, over)])):
        return None
    return line_chart(
        lines,
        OVER[over] or unit,
        y_label,
        title="Learning curve" if over == "steps" else "Learning curve over time",
        references=run.reference_scores(),
        height=380 if over == "steps" else 300,
    )


def training_line(run: Run, over: str = "steps") -> list[Series]:
    """The return while it trained, as a list: empty if none was written."""
    returns = run.column("return")
    if not any(map(is_number, returns)):
        return []
    points = thin(run.column(over), returns)
    return [Series("training, with exploration", *points, faint=True, color=TRAINING)]


def _averaged(run: Run) -> str:
    every = math.ceil(len(run.metrics) / POINTS)
    return f"Each point of the training is the mean of {every} iterations." if every > 1 else ""


def inside(run: Run, names: Sequence[str] | None = None, unit: str = "steps") -> Part:
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
        share = name in _SHARES
        if share:
            values = percent(values)
        line = Series(name.replace("_", " "), *thin(run.column("steps"), values), color=TRAINING)
        look: dict[str, Any] = {"title": label, "log_y": log, "share": share, "height": 250}
        charts.append(line_chart([line], unit, label + " (log)" * log + ", %" * share, **look))
    return page.section("Inside the learners", page.pairs(charts))


def percent(shares: Iterable[Any]) -> list[float | None]:
    """Shares in per cent; None where there is no number."""
    return [100.0 * share if is_number(share) else None for share in shares]


def share_error(share: Any, count: int) -> float | None:
    """The standard error of a share of `count` independent cases; None if one is not known."""
    known = is_number(share) and 0.0 <= share <= 1.0 and count > 0
    return math.sqrt(share * (1.0 - share) / count) if known else None


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


def _about_run(run: Run) -> Part:
    """Settings, timing, machine and versions of any run."""
    machine = run.about.get("machine")
    parts = {
        "Settings": run.settings,
        "Timing": run.timing,
        "Machine": machine if isinstance(machine, dict) else {"machine": machine},
        "Versions": run.part("versions"),
    }
    left, *right = (page.titled_settings(title, values) for title, values in parts.items())
    return page.section("The run", page.group("columns", left, page.group("", *right)))


def _commands(run: Run, no_resume: str) -> Part:
    """How to repeat a run, and how to go on with it; `no_resume` says why that cannot be."""
    command = run.about.get("command")
    parts = [page.heading("The same run again"), page.command(str(command))] if command else []
    parts.append(page.heading("Go on from its last checkpoint"))
    if no_resume:
        parts.append(no_resume)
    elif not run.has_checkpoint:
        parts.append("It has no checkpoint to go on from.")
    else:
        resume = ["worldloom", "train", "--resume", str(run.path)]
        if run.planned is not None and run.steps >= run.planned:
            resume += ["--steps", str(2 * run.planned)]  # it is done: going on means going further
        parts.append(page.command(shlex.join(resume)))
    return page.section("Do it again", *parts)
