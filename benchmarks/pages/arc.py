"""What `worldloom bench arc` measured, as charts and tables that can go into a paper."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.plots import Bars, Series, bar_chart, line_chart

_PLAYERS = {
    "ours": "Worldloom, {worlds} worlds, boxes",
    "ours_on_one_device": "Worldloom, the same on one device",
    "ours_points": "Worldloom, {worlds} worlds, single cells",
    "ours_single": "Worldloom, one world",
    "jaxarc": "JaxARC, {worlds} worlds, one device",
    "jaxarc_on_all_cores": "JaxARC, {worlds} worlds, all cores",
    "arcle_single": "ARCLE, one world",
    "arcle_vector": "ARCLE, a vector of worlds",
    "arcle_processes": "ARCLE, a vector of processes",
}
# what is chosen -> (steps with it, steps without it)
_CHOICES = {
    "one formulation of all operations, no switch": ("one_formulation", "switch"),
    "no callback in the loop": ("no_callback", "callback_per_step"),
    "donated states in a host's loop": ("host_loop_donating", "host_loop"),
}
_RATES = {
    "demo_pairs": "demonstration pairs",
    "demo_tasks": "tasks, all demonstrations",
    "test_pairs": "test pairs",
}


def sections(raw: Mapping[str, Any]) -> list[page.Part]:
    """The sections of a benchmark's page; those that were not measured are left out."""
    made = {"speed": _speed, "curve": _curve, "parts": _parts, "learning": _learning}
    made |= {"generalisation": _generalisation}
    return [make(raw[name]) for name, make in made.items() if raw.get(name)]


def _name(player: str, batch: Any) -> str:
    if player not in _PLAYERS:
        return player.replace("_", " ")
    worlds = f"{batch:,}" if isinstance(batch, int) else "many"
    return _PLAYERS[player].format(worlds=worlds)


def _speed(raw: Mapping[str, Any]) -> page.Part:
    """Every player's steps per second: the median of its blocks, and what it needed."""
    speeds = raw.get("steps_per_second") or {}
    timed, known = raw.get("seconds_per_step") or {}, raw.get("facts") or {}
    labels = [_name(player, raw.get("batch")) for player in speeds]
    if not labels:
        return ""
    draw = partial(
        bar_chart,
        labels,
        [Bars("", list(speeds.values()))],
        title="Steps per second",
        axis_label="environment steps per second (log)",
        log=True,
        show=_whole,
    )

    rows, blocks = [], 0
    for label, (player, speed) in zip(labels, speeds.items(), strict=True):
        seconds = (timed.get(player) or {}).get("samples") or []
        facts = known.get(player) or {}
        slowest, fastest = (1 / max(seconds), 1 / min(seconds)) if seconds else (None, None)
        blocks = max(blocks, len(seconds))
        rows.append(
            [
                label,
                facts.get("version"),
                *map(_rounded, (speed, slowest, fastest)),
                facts.get("devices"),
                facts.get("compile_seconds"),
                facts.get("bytes_per_world"),
                facts.get("scratch_mb"),
            ]
        )
    head = [
        "player",
        "version",
        "steps/s, median",
        "slowest block",
        "fastest block",
        "devices",
        "compile, s",
        "bytes a world",
        "scratch, MB",
    ]
    caption = f"Counted are {raw['unit']}." if raw.get("unit") else ""
    caption += f" Medians of {blocks} blocks, taken in turn." if blocks else ""
    return page.section(
        "Steps per second", page.figure(draw, caption), page.measured_table(head, rows)
    )


def _curve(raw: Mapping[str, Any]) -> page.Part:
    """Steps per second over the number of worlds, a line for each task set."""
    sets = {name: sorted(rows, key=lambda row: row["batch"]) for name, rows in raw.items() if rows}
    lines = [
        Series(name, _column(rows, "batch"), _column(rows, "steps_per_second"), dots=True)
        for name, rows in sets.items()
    ]
    if not lines:
        return ""
    draw = line_chart(
        lines,
        title="Steps per second over worlds",
        x_label="worlds (log)",
        y_label="environment steps per second (log)",
        log_x=True,
        log_y=True,
        height=380,
    )

    costs = {
        "steps_per_second": "Steps per second",
        "compile_seconds": "Compilation, seconds",
        "scratch_mb": "Scratch memory, MB",
        "bytes_per_world": "Bytes a world",
    }
    tables = [[page.heading(title), _by_batch(sets, name)] for name, title in costs.items()]
    return page.section("More worlds", page.figure(draw), *tables)


def _by_batch(sets: Mapping[str, Sequence[Mapping[str, Any]]], name: str) -> page.Part:
    """A row for each number of worlds, a column for each task set."""
    found = {(s, row["batch"]): row.get(name) for s, rows in sets.items() for row in rows}
    show = _rounded if name == "steps_per_second" else lambda value: value
    batches = sorted({batch for _, batch in found})
    return page.table(
        ["worlds", *sets],
        [[f"{batch:,}", *(show(found.get((s, batch))) for s in sets)] for batch in batches],
    )


def _parts(raw: Mapping[str, Any]) -> page.Part:
    """What each design choice is worth: steps per second with it and without it."""
    ablation = raw.get("ablation") or {}
    speeds = ablation.get("steps_per_second") or {}
    compiled = ablation.get("compile_seconds") or {}
    chosen = {what: pair for what, pair in _CHOICES.items() if any(name in speeds for name in pair)}
    figure = ""
    if chosen:
        draw = partial(
            bar_chart,
            list(chosen),
            [
                Bars("with it", [speeds.get(has) for has, _ in chosen.values()]),
                Bars("without it", [speeds.get(lacks) for _, lacks in chosen.values()]),
            ],
            title="What each choice is worth",
            axis_label="steps per second (log)",
            log=True,
            show=_whole,
        )

        batch = ablation.get("batch")
        figure = page.figure(draw, f"{batch:,} worlds at 30x30." if batch else "")
    rows = []
    for what, (has, lacks) in chosen.items():
        with_it, without = speeds.get(has), speeds.get(lacks)
        ratio = with_it / without if with_it and without else None
        seconds = [compiled.get(has), compiled.get(lacks)]
        rows.append([what, _rounded(with_it), _rounded(without), ratio, *seconds])
    head = [
        "choice",
        "steps/s with it",
        "without it",
        "times as fast",
        "compile with it, s",
        "without it, s",
    ]
    again = raw.get("recompilations_in_steady_state")
    said = "" if again is None else f"Recompilations in steady state: {again}."
    return page.section("What each choice is worth", figure, page.measured_table(head, rows), said)


def _learning(raw: Mapping[str, Any]) -> page.Part:
    """What PPO solves, over its training time and of each task."""
    curve: Sequence[Mapping[str, Any]] = raw.get("curve") or []
    seconds = _column(curve, "seconds")
    lines = [
        Series(name, seconds, [_percent(row.get(rate)) for row in curve], dots=len(curve) < 40)
        for rate, name in _RATES.items()
        if any(row.get(rate) is not None for row in curve)
    ]
    draw = line_chart(
        lines,
        title="Solved over training time",
        x_label="seconds of training, compilation and evaluation apart",
        y_label="solved by the greedy agent, %",
        share=True,
        height=380,
    )

    rates = raw.get("rates") or {}
    kinds = {
        "pairs": "pairs, %",
        "tasks": "tasks, %",
        "pass_at_1": "pass@1, %",
        "pass_at_k": f"pass@{rates.get('k', 'k')}, %",
        "tasks_pass_at_k": f"tasks, pass@{rates.get('k', 'k')}, %",
    }
    scores = [
        [name, *(_percent(rates.get(f"{group}_{kind}")) for kind in kinds)]
        for group, name in (("demo", "demonstrations"), ("test", "test pairs"))
    ]
    return page.section(
        "Learning",
        _learning_facts(raw),
        page.figure(draw) if lines else "",
        page.measured_table(["at the end", *kinds.values()], scores) if rates else "",
        _tasks(raw.get("per_task") or []),
    )


def _learning_facts(raw: Mapping[str, Any]) -> page.Part:
    timing, items = raw.get("timing") or {}, []
    for group, what in (("demo", "demonstrations"), ("test", "test pairs")):
        solved = raw.get(f"{group}_tasks_solved")
        if solved is not None and raw.get("tasks"):
            items.append((f"tasks, all {what}", str(solved), f"of {raw['tasks']}", "solved"))
    if timing.get("train_seconds") is not None:
        below = f"{number(timing.get('compile_seconds'))} s of compilation apart"
        items.append(("training time", number(timing["train_seconds"]), "s", below))
    if timing.get("steps_per_second") is not None:
        steps = f"{number(timing.get('steps'))} steps, learning included"
        items.append(("training speed", number(timing["steps_per_second"]), "steps/s", steps))
    return page.facts(items)


def _tasks(rows: Sequence[Mapping[str, Any]]) -> page.Part:
    if not rows:
        return ""
    cells = [
        [
            row.get("task"),
            *(_of(row, group, end) for group in ("demos", "tests") for end in ("", "_in_k")),
            row.get("steps"),
        ]
        for row in rows
    ]
    head = [
        "task",
        "demonstrations, greedy",
        "in k attempts",
        "tests, greedy",
        "in k attempts",
        "steps, mean",
    ]
    return [page.heading("Task by task"), page.measured_table(head, cells)]


def _of(row: Mapping[str, Any], group: str, end: str) -> str | None:
    solved = row.get(f"{group}_solved{end}")
    return None if solved is None else f"{solved} of {row.get(group)}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [row.get(name) for row in rows]


_AGENTS = ("policy", "policy with search")  # those that learn: a row for each seed


def _generalisation(raw: Mapping[str, Any]) -> page.Part:
    """What every agent solves of every set of tasks, means over seeds; and family by family."""
    agents = {name: raw.get(name) or {} for name in _AGENTS}
    baselines = raw.get("baselines") or {}
    agents |= {
        name: {title: [row] for title, row in rows.items()} for name, rows in baselines.items()
    }
    kinds = {
        "pass_at_1": "pass@1, %",
        "pass_at_2": "pass@2, %",
        "solved_per_cpu_minute": "solved in a minute of processor time",
    }
    table = []
    for name, sets in agents.items():
        for title, rows in sets.items():
            if rows:
                means = [_mean(rows, kind) for kind in kinds]
                shares = [_percent(mean) for mean in means[:2]]
                table.append([title, name, len(rows), rows[0]["test_pairs"], *shares, means[2]])
    if not table:
        return ""
    order = [*(raw.get("tasks") or {})]
    table.sort(key=lambda row: order.index(row[0]) if row[0] in order else len(order))
    head = ["tasks", "agent", "seeds", "test pairs", *kinds.values()]
    cells = [[*row[:-1], None if row[-1] is None else number(row[-1])] for row in table]
    seconds = raw.get("search_cpu_seconds_per_task")
    spent = (
        f"Brute force has {number(seconds)} s of processor time for a task, as much as the policy "
    )
    return page.section(
        "Generalisation",
        page.measured_table(head, cells),
        *(_families(title, agents) for title in order[:2]),
        text="" if seconds is None else f"{spent}with its training and its search.",
    )


def _mean(rows: Sequence[Mapping[str, Any]], kind: str) -> float | None:
    values = [row[kind] for row in rows if row.get(kind) is not None]
    return sum(values) / len(values) if values else None


def _families(title: str, agents: Mapping[str, Mapping[str, Any]]) -> page.Part:
    """Test pairs solved by the first attempt in each family of a set."""
    columns = {
        name: [row["families"] for row in sets.get(title) or [] if row.get("families")]
        for name, sets in agents.items()
    }
    columns = {name: rows for name, rows in columns.items() if rows}
    if not columns:
        return ""
    names = list(next(iter(columns.values()))[0])
    rows = [
        [name, *(_percent(_mean(families, name)) for families in columns.values())]
        for name in names
    ]
    head = [f"family, of {title}", *(f"{name}, pass@1 %" for name in columns)]
    return page.measured_table(head, rows)
