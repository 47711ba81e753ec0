"""One self-contained page about a run: charts, film, settings and how to repeat it."""

import base64
import math
import shlex
import struct
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, TypeGuard

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.colors import series_color
from worldloom.report.plots import Series, line_chart, with_error
from worldloom.report.results import write_bench, write_comparison
from worldloom.report.runs import Run, read_run, turn_profile

__all__ = ["write_bench", "write_comparison", "write_report"]

_POINTS = 200  # a line of more points than this is averaged
# Settings hold a block for each of these; only that of the chosen one matters.
_ALGORITHMS = ("iqn", "dqn", "qlearning", "random")
_FILMS = 3  # of the training, beside the one of the trained agents


def write_report(run_dir: str | Path) -> Path:
    """Writes `report.html` into a run folder and returns its path.

    A run that is incomplete gives a page that says what is missing; a folder that is not a run
    is a ValueError.
    """
    run = read_run(run_dir)
    title, tags = _title(run)
    body = [
        page.header(title, tags),
        page.note("This run is not complete", _missing(run)),
        _hero(run),
        _learning(run),
        _training(run),
        _agents(run),
        _turns(run),
        _films(run),
        about_run(run),
        _commands(run),
        footer(run),
    ]
    html = page.page(" · ".join(filter(None, (title, *tags))), body)
    return page.write(run.path / "report.html", html)


# What is there -----------------------------------------------------------------------------------


def _title(run: Run) -> tuple[str, list[str]]:
    settings = run.settings
    seed = settings.get("seed")
    return _name(settings.get("env")) or run.path.resolve().name, [
        _name(settings.get("algo")),
        _name(settings.get("mode") or run.timing.get("mode")),
        "" if seed is None else f"seed {seed}",
    ]


def _name(value: Any) -> str:
    """The name of a world or an algorithm, given by name, as a file or with its settings."""
    if isinstance(value, dict):
        value = value.get("name")
    name = "" if value is None else str(value)
    return Path(name).stem if name.endswith((".yaml", ".yml")) else name


def _missing(run: Run) -> list[str]:
    planned = run.settings.get("epochs")
    played = len(run.metrics)
    lines = []
    if not run.metrics:
        lines.append("No epoch has been written yet (metrics.jsonl is empty or missing).")
    elif isinstance(planned, int) and played < planned:
        lines.append(f"{played} of {planned} epochs: it was stopped, or is still running.")
    if not run.evals:
        lines.append("The agents have not been evaluated yet (eval.jsonl): no greedy score.")
    if not run.timing:
        lines.append("There are no timing results (timing.json): they are written at the end.")
    if not run.film:
        lines.append("There is no film of the trained agents (eval.gif).")
    return lines + sorted(set(run.unreadable))


def _hero(run: Run) -> str:
    """The film of the trained agents beside the headline numbers."""
    film = ""
    if run.film:
        film = film_figure(run.film, "The trained agents, playing greedily.")
    elif run.training_films:
        epoch, path = run.training_films[-1]
        film = film_figure(path, f"Training, epoch {epoch}.")
    items = []
    if run.evals:
        last = run.evals[-1]
        below = f"mean of {last['episodes']} episodes" if last.get("episodes") else ""
        for name, score in run.reference_scores()[:1]:
            below += f"; {name}: {number(score)}" if below else f"{name}: {number(score)}"
        error = last.get("stderr")
        unit = "" if error is None else f"± {number(error, 2)}"
        items.append(("greedy score", number(last.get("mean"), 4), unit, below))
    elif run.metrics:
        score = number(run.metrics[-1].get("score"), 4)
        items.append(("training score", score, "", "of the last epoch"))
    timing, rows = run.timing, run.metrics
    seconds = timing.get("train_seconds", rows[-1].get("seconds") if rows else None)
    if seconds is not None:
        epochs = timing.get("epochs", len(rows))
        items.append(("training time", number(seconds), "s", f"{page.shown(epochs)} epochs"))
    speed = timing.get("epochs_per_second")
    if speed is None and rows and seconds:
        speed = len(rows) / seconds
    if speed is not None:
        steps = timing.get("agent_steps_per_second")
        below = "" if steps is None else f"{number(steps)} agent steps per second"
        items.append(("speed", number(speed), "epochs/s", below))
    if timing.get("compile_seconds") is not None:
        compiled = number(timing["compile_seconds"])
        items.append(("compilation", compiled, "s", "not part of the training time"))
    content = film + page.facts(items)
    return f'<div class="hero">{content}</div>' if content else ""


def film_figure(path: Path, caption: str) -> str:
    data = path.read_bytes()
    size = ""
    if len(data) >= 10 and data[:3] == b"GIF":
        width, height = struct.unpack("<HH", data[6:10])
        size = f' width="{width}" height="{height}"'
    text = escape(caption)
    source = f"data:image/gif;base64,{base64.b64encode(data).decode()}"
    image = f'<img src="{source}" alt="{text}"{size}>'
    return f"<figure>{image}<figcaption>{text}</figcaption></figure>"


# Charts ------------------------------------------------------------------------------------------


def thin(
    x: Sequence[float], y: Sequence[float | None], points: int = _POINTS
) -> tuple[list[float], list[float | None]]:
    """At most about `points` points: means over equal stretches, gaps where all is missing."""
    every = max(1, math.ceil(len(x) / points))
    if every == 1:
        return list(x), list(y)
    xs: list[float] = []
    ys: list[float | None] = []
    for start in range(0, len(x), every):
        here = [v for v in y[start : start + every] if v is not None and math.isfinite(v)]
        xs.append(sum(x[start : start + every]) / len(x[start : start + every]))
        ys.append(sum(here) / len(here) if here else None)
    return xs, ys


def _column(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [row.get(name) for row in rows]


def _epochs(run: Run) -> list[float]:
    return _column(run.metrics, "epoch")


def _averaged(run: Run) -> str:
    every = math.ceil(len(run.metrics) / _POINTS)
    return f"Each point of the training is the mean of {every} epochs." if every > 1 else ""


def _learning(run: Run) -> str:
    lines = []
    if run.metrics:
        x, y = thin(_epochs(run), _column(run.metrics, "score"))
        lines.append(Series("training, with exploration", x, y, faint=True))
    if run.evals:
        columns = [_column(run.evals, name) for name in ("epoch", "mean", "stderr")]
        ink = None if lines else series_color(1)
        lines.append(with_error("greedy evaluation ± s.e.", *columns, dots=True, color=ink))
    if not lines:
        return ""

    def draw(width: int) -> str:
        return line_chart(
            lines,
            title="Learning curve",
            x_label="epoch",
            y_label="score of all agents per epoch",
            references=run.reference_scores(),
            width=width,
            height=340 if width > page.HALF else 300,
        )

    return page.section("Learning", page.figure(draw, _averaged(run)))


def _training(run: Run) -> str:
    """Small charts of what happens inside the learners."""
    charts = []
    wanted = (
        ("loss", "loss, mean of the agents", True),
        ("epsilon", "exploration: chance of a random action", False),
        ("grad_norm", "gradient norm", True),
        ("q_mean", "mean Q value of the batches", False),
    )
    for i, (name, label, log) in enumerate(wanted):
        values = _column(run.metrics, name)
        present = [v for v in values if v is not None and math.isfinite(v)]
        if not present:
            continue
        log = log and min(present) > 0 and max(present) > 20 * min(present)
        x, y = thin(_epochs(run), values)
        charts.append(
            line_chart(
                [Series(name, x, y, color=f"var(--wl-{i + 1},{series_color(i)})")],
                title=label,
                x_label="epoch",
                y_label=label + (" (log)" if log else ""),
                log_y=log,
                include_zero=name == "epsilon",
                width=page.HALF,
                height=230,
            )
        )
    return page.section("Inside the learners", page.pairs(charts))


def _agents(run: Run) -> str:
    """Each agent's reward, in the colour the agent has in the pictures."""
    rewards = [row.get("rewards") or [] for row in run.metrics]
    count = max(map(len, rewards), default=0)
    if not count:
        return ""
    epochs = _epochs(run)
    lines, rows = [], []
    last = max(1, min(50, len(rewards) // 10 or len(rewards)))
    for agent in range(count):
        own = [r[agent] if agent < len(r) else None for r in rewards]
        x, y = thin(epochs, own, 40)
        lines.append(Series(f"agent {agent}", x, y))
        recent = [v for v in own[-last:] if v is not None]
        learned = [row for row in run.agents if row.get("agent") == agent][-last:]
        means = [_mean(_column(learned, name)) for name in ("loss", "grad_norm", "q_mean")]
        rows.append([agent, _mean(recent), *means])

    def draw(width: int) -> str:
        return line_chart(
            lines,
            title="Reward of each agent",
            x_label="epoch",
            y_label="reward per epoch",
            width=width,
            height=300,
        )

    head = ["agent", "reward", "loss", "gradient norm", "mean Q"]
    return page.section(
        "Agent by agent",
        page.figure(draw, "Means over stretches of epochs; colours as in the pictures."),
        f"<h3>Means of the last {last} epochs</h3>" if last > 1 else "<h3>The last epoch</h3>",
        page.table(head, rows),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    present = [v for v in values if v is not None and math.isfinite(v)]
    return sum(present) / len(present) if present else None


def _turns(run: Run) -> str:
    profile = turn_profile(run.turns)
    if profile is None:
        return ""
    columns = (profile[name] for name in ("turn", "mean", "stderr"))
    line = with_error("reward of all agents ± s.e.", *columns)

    def draw(width: int) -> str:
        return line_chart(
            [line],
            title="Reward in each turn",
            x_label="turn",
            y_label="reward of all agents, ± s.e.",
            include_zero=True,
            width=width,
            height=260,
        )

    first, last = profile["epochs"]
    caption = f"Training epochs {first} to {last}." if first < last else f"Training epoch {last}."
    return page.section("Turn by turn", page.figure(draw, caption))


def _films(run: Run) -> str:
    """A few films of the training, first to last."""
    films = run.training_films
    if not run.film:
        films = films[:-1]  # the last one is the picture at the top
    if len(films) > _FILMS:
        steps = [round(i * (len(films) - 1) / (_FILMS - 1)) for i in range(_FILMS)]
        films = [films[i] for i in steps]
    shown = "".join(film_figure(path, f"Epoch {epoch}") for epoch, path in films)
    return page.section("On the way there", f'<div class="strip">{shown}</div>' if shown else "")


# Facts -------------------------------------------------------------------------------------------


def about_run(run: Run) -> str:
    """Settings, timing, machine and versions of any run."""
    others = [name for name in _ALGORITHMS if name != run.settings.get("algo")]
    given = run.about.get("versions")
    versions = {"worldloom": run.about.get("worldloom"), **(given if _is_dict(given) else {})}
    machine = run.about.get("machine")
    parts = [
        ("Settings", {name: v for name, v in run.settings.items() if name not in others}),
        ("Timing", run.timing),
        ("Machine", machine if _is_dict(machine) else {"machine": machine}),
        ("Versions", versions),
    ]
    left, *right = [
        f"<div><h3>{title}</h3>{page.settings(values)}</div>" if values else ""
        for title, values in parts
    ]
    columns = f'<div class="columns">{left}<div>{"".join(right)}</div></div>'
    return page.section("The run", columns)


def _is_dict(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _commands(run: Run) -> str:
    command = run.about.get("command")
    parts = ["<h3>The same run again</h3>" + page.command(str(command))] if command else []
    parts.append("<h3>Go on from its last checkpoint</h3>")
    if run.settings.get("mode") == "torch_sequential":
        parts.append("<p>Runs of torch_sequential cannot be resumed.</p>")
    elif not run.has_checkpoint:
        parts.append("<p>It has no checkpoint to go on from.</p>")
    else:
        planned = run.settings.get("epochs")
        resume = ["worldloom", "train", "--resume", str(run.path)]
        if isinstance(planned, int) and len(run.metrics) >= planned:
            resume += ["--epochs", str(2 * planned)]  # it is done: going on means going further
        parts.append(page.command(shlex.join(resume)))
    return page.section("Do it again", *parts)


def footer(run: Run) -> str:
    """The last line of a run's page."""
    digest = run.about.get("hash")
    of_settings = f" · settings {escape(str(digest))}" if digest else ""
    version = escape(str(run.about.get("worldloom", "")))
    return (
        f"<footer>worldloom {version} · run {escape(run.path.resolve().name)}{of_settings}</footer>"
    )
