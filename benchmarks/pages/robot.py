"""What `worldloom bench robot` measured, as charts and tables that can go into a paper."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.plots import Bars, Series, bar_chart, line_chart

_PLAYERS = {
    "rollout": "mujoco.rollout, open loop",
    "batch": "mujoco.batch, open loop",
    "numpy": "a loop in Python over MuJoCo",
    "c_in_jit": "Worldloom, MuJoCo in jit",
    "mjx_in_jit": "MJX in jit",
    "mjx_in_jit_on_all_cores": "MJX in jit, a device for each core",
    "level4": "Worldloom, level 4",
    "level4_on_all_cores": "Worldloom, level 4, a device for each core",
    "brax_mjx": "Brax PPO over MJX",
    "brax_mjx_on_all_cores": "Brax PPO over MJX, a device for each core",
}
_COMPILED = {
    "mjx": "MJX, cold",
    "c": "MuJoCo in C, cold",
    "mjx_cached": "MJX, compiled before",
}
_TRAINED = {"walk": "PPO", "walk_amp": "PPO with a motion prior", "stand": "PPO, standing"}


def sections(raw: Mapping[str, Any]) -> list[page.Part]:
    """The sections of a benchmark's page; those that were not measured are left out."""
    made = {
        "physics": _physics,
        "levels": _levels,
        "brax": _brax,
        "compile": _compile,
        "learning": _learning,
        "tracking": _tracking,
        "ground": _ground,
    }
    return [make(raw[name]) for name, make in made.items() if raw.get(name)]


# Speed -------------------------------------------------------------------------------------------


def _name(player: str) -> str:
    return _PLAYERS.get(player, player.replace("_", " "))


def _physics(raw: Mapping[str, Any]) -> page.Part:
    """Every engine's steps of control per second."""
    return page.section(
        "Physics alone", _bars(raw, "Physics alone", "steps of control per second (log)"), _all(raw)
    )


def _brax(raw: Mapping[str, Any]) -> page.Part:
    """Training steps per second beside Brax's PPO."""
    axis = "environment steps per second (log)"
    return page.section("Training beside Brax", _bars(raw, "Training", axis), _all(raw))


def _bars(raw: Mapping[str, Any], title: str, axis: str) -> page.Part:
    speeds = raw.get("steps_per_second") or {}
    if not speeds:
        return ""
    draw = partial(
        bar_chart,
        [_name(name) for name in speeds],
        [Bars("", list(speeds.values()))],
        title=title,
        axis_label=axis,
        log=True,
        show=_whole,
    )

    caption = f"Counted are {raw['unit']}." if raw.get("unit") else ""
    if isinstance(raw.get("batch"), int):
        caption += f" {raw['batch']:,} robots."
    blocks = max((len(_samples(raw, name)) for name in speeds), default=0)
    caption += f" Medians of {blocks} blocks, taken in turn." if blocks else ""
    return page.figure(draw, caption.strip())


def _all(raw: Mapping[str, Any]) -> page.Part:
    """Every player with its spread, and what it needed."""
    rows = []
    for name, speed in (raw.get("steps_per_second") or {}).items():
        seconds, facts = _samples(raw, name), (raw.get("facts") or {}).get(name) or {}
        slowest, fastest = (1 / max(seconds), 1 / min(seconds)) if seconds else (None, None)
        rows.append(
            [
                _name(name),
                *map(_rounded, (speed, slowest, fastest)),
                facts.get("threads"),
                facts.get("devices"),
                (raw.get("device_use") or {}).get(name),
                facts.get("compile_seconds"),
                facts.get("way"),
            ]
        )
    head = [
        "player",
        "steps/s, median",
        "slowest block",
        "fastest block",
        "threads",
        "devices",
        "CPU / wall time",
        "compile, s",
        "called by",
    ]
    return page.measured_table(head, rows)


def _samples(raw: Mapping[str, Any], name: str) -> list[float]:
    return ((raw.get("seconds_per_step") or {}).get(name) or {}).get("samples") or []


def _levels(raw: Mapping[str, Any]) -> page.Part:
    """The level table: what each level is and how fast it trains, slower ones too."""
    rows: Sequence[Mapping[str, Any]] = raw.get("table") or []
    if not rows:
        return ""
    counts = sorted({int(n) for row in rows for n in row["steps_per_second"]})
    lines = [
        Series(
            f"level {row['level']}",
            counts,
            [row["steps_per_second"].get(str(n)) for n in counts],
            dots=True,
        )
        for row in rows
    ]
    draw = line_chart(
        lines,
        title="Training speed over robots",
        x_label="robots (log)",
        y_label="environment steps per second (log)",
        log_x=True,
        log_y=True,
        height=380,
    )

    head = [
        "level",
        "environment",
        "trainer",
        *(f"steps/s, {n:,} robots" for n in counts),
        "compiled",
        "CPU / wall time",
    ]
    cells = [
        [
            f"{row['level']}",
            row["environment"],
            row["trainer"],
            *(_rounded(row["steps_per_second"].get(str(n))) for n in counts),
            row["compiled"],
            row.get("device_use"),
        ]
        for row in rows
    ]
    same = page.settings(raw["same"]) if raw.get("same") else ""
    text = "Same networks, unrolls and passes everywhere; learning is included."
    figure = page.figure(draw) if len(counts) > 1 else ""
    return page.section("Four levels", page.measured_table(head, cells), figure, same, text=text)


def _compile(raw: Mapping[str, Any]) -> page.Part:
    """Seconds to the first step, with what was wanted."""
    rows = []
    for name, taken in (raw.get("seconds") or {}).items():
        parts = (raw.get("parts") or {}).get(name) or {}
        bar = (raw.get("bars") or {}).get(name)
        cells = [parts.get(part) for part in ("world", "reset", "step")]
        rows.append([_COMPILED.get(name, name), taken.get("median"), bar, *cells])
    head = ["engine", "seconds, median", "wanted below", "world", "reset", "step"]
    batch = raw.get("batch")
    title = f"To the first step of {batch:,} robots" if isinstance(batch, int) else "First step"
    return page.section(title, page.measured_table(head, rows), text=str(raw.get("unit") or ""))


# Learning ----------------------------------------------------------------------------------------


def _learning(raw: Mapping[str, Any]) -> page.Part:
    """What was learned, over its training time and in the end."""
    runs = {name: raw[name] for name in _TRAINED if raw.get(name)}
    walks = {name: run for name, run in runs.items() if name != "stand"}
    rows = []
    for name, run in runs.items():
        final, timing = run.get("final") or {}, run.get("timing") or {}
        rows.append(
            [
                _TRAINED[name],
                timing.get("iterations"),
                timing.get("steps"),
                timing.get("train_seconds"),
                run.get("seconds_to_good") if name != "stand" else None,
                _percent(final.get("good")) if name != "stand" else None,
                _percent(final.get("survived")),
                final.get("error") if name != "stand" else None,
                final.get("gait_distance"),
            ]
        )
    head = [
        "run",
        "iterations",
        "steps",
        "training, s",
        "s to 90 % good",
        "good, %",
        "survived, %",
        "speed error, m/s",
        "gait distance, rad",
    ]
    return page.section(
        "Learning",
        _curves(walks, "good", "Good walks over training time", "good episodes, %"),
        _curves(runs, "survived", "Episodes survived over training time", "without a fall, %"),
        page.measured_table(head, rows),
        _ladder((raw.get("stand") or {}).get("ladder") or []),
        _walks(walks),
        text="A walk is good that does not fall in 20 s and keeps its speed within 0.075 m/s.",
    )


def _curves(runs: Mapping[str, Any], share: str, title: str, label: str) -> page.Part:
    lines = []
    for name, run in runs.items():
        curve: Sequence[Mapping[str, Any]] = run.get("curve") or []
        seconds = [row.get("seconds") for row in curve]
        values = [_percent(row.get(share)) for row in curve]
        if values:
            lines.append(Series(_TRAINED[name], seconds, values, dots=len(curve) < 40))
    if not lines:
        return ""
    draw = line_chart(
        lines,
        title=title,
        x_label="seconds of training, compilation and evaluation apart",
        y_label=label,
        share=True,
        height=380,
    )

    return page.figure(draw)


def _ladder(rungs: Sequence[Mapping[str, Any]]) -> page.Part:
    """The pushes that the trained robot takes, and one that holds its home pose."""
    if not rungs:
        return ""
    rows = [
        [rung["newtons"], rung["steps"], _percent(rung["survived"]), _percent(rung["held"])]
        for rung in rungs
    ]
    head = ["push, N", "steps of control", "survived, %", "holding the home pose, %"]
    return [page.heading("Pushes"), page.table(head, rows)]


def _walks(walks: Mapping[str, Any]) -> page.Part:
    """Tracking of both kinds of training, over what was asked for."""
    lines = [
        Series(
            _TRAINED[name],
            [one["command"] for one in run["episodes"]],
            [one["speed"] for one in run["episodes"]],
            dots=True,
        )
        for name, run in walks.items()
        if run.get("episodes")
    ]
    if not lines:
        return ""
    draw = line_chart(
        lines,
        title="Speed walked over speed asked for",
        x_label=f"command, m/s ({number(len(lines[0].x))} episodes each)",
        y_label="mean forward speed, m/s",
        height=380,
    )

    return page.figure(draw)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _tracking(raw: Mapping[str, Any]) -> page.Part:
    """How closely commands are followed, beside the policies of MuJoCo Playground; every run."""
    measured = raw.get("error_share")
    beside = [["Worldloom, this run", measured, raw.get("falls")]]
    beside += [[name, share, 0] for name, share in (raw.get("peers") or {}).items()]
    runs = [
        [
            " ".join(f"{x:+.2f}" for x in run["command"]),
            *(number(run[name], 3) for name in ("tracking_error", "yaw_error")),
            run["stopped"] or "",
        ]
        for run in raw.get("runs") or ()
    ]
    text = f"Of ours, {raw.get('unit')}. The others: {raw.get('peers_source')}."
    return page.section(
        "Following commands",
        page.measured_table(["policy", "mean error over the greatest command", "falls"], beside),
        page.measured_table(["command", "m/s off", "rad/s off", "stopped by"], runs),
        text=text,
    )


def _ground(raw: Mapping[str, Any]) -> page.Part:
    """Who gets over uneven ground, level by level, of a walk trained on it and of one that was not;
    and what the ground costs."""
    rows = []
    for name, who in (("uneven", "trained on uneven ground"), ("flat", "trained on a flat floor")):
        for row in (raw.get(name) or {}).get("traversals") or ():
            part = (row["level"], row["kind"], row["traversed"], row["episodes"])
            rows.append([who, *part, number(row["way"], 2)])
    speeds = (raw.get("speed") or {}).get("steps_per_second") or {}
    rates = [[name, rate] for name, rate in speeds.items()]
    text = f"Of each level, {raw.get('unit')}. Training steps a second of both stand below."
    return page.section(
        "Uneven ground",
        page.measured_table(["policy", "level", "kind", "5 m ahead", "of", "m, on average"], rows),
        page.measured_table(["training", "steps a second"], rates),
        text=text,
    )
