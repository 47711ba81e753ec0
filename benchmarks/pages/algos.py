"""What `worldloom bench algos` measured: speeds and scores of both sides, task by task."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from worldloom.report import page
from worldloom.report.plots import Bars, bar_chart

_PLAYERS = {
    "ours": "Worldloom",
    "rejax": "rejax",
    "rejax_with_our_network": "rejax, our network",
}


def sections(raw: Mapping[str, Any]) -> list[page.Part]:
    """The sections of a benchmark's page; tasks that were not measured are left out."""
    tasks = {name: runs for name, task in raw.items() if (runs := _runs(task))}
    if not tasks:
        return []
    draw = partial(
        bar_chart,
        [name.replace("_", " ") for name in tasks],
        [
            Bars(name, [runs.get(player, {}).get("steps_per_second") for runs in tasks.values()])
            for player, name in _PLAYERS.items()
        ],
        title="Training",
        axis_label="environment steps per second, learning included (log)",
        log=True,
        show=lambda value: f"{value:,.0f}",
    )

    rows = [
        [
            f"{name.replace('_', ' ')}, {raw[name].get('env', '')}",
            _PLAYERS[player],
            round(run["steps_per_second"]),
            run["score"],
            ", ".join(f"{score:.4g}" for score in run["scores"]),
            run["facts"].get("compile_seconds"),
        ]
        for name, runs in tasks.items()
        for player, run in runs.items()
    ]
    head = ["task", "side", "steps/s", "mean score", "scores by seed", "compile, s"]
    return [page.section("Training", page.figure(draw), page.table(head, rows))]


def _runs(task: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {player: task[f"{player}_runs"] for player in _PLAYERS if task.get(f"{player}_runs")}
