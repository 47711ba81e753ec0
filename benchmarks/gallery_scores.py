"""Baseline scores of the gallery: in every world, random play and its suite's usual algorithm."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import Record
from worldloom import suites
from worldloom.core.files import read_json
from worldloom.report.axes import number
from worldloom.report.runs import RANDOM_PLAY

RESULT = Path("benchmarks/results/gallery.json")
COMMAND = "python -m benchmarks.gallery --measure"
# Of each suite's usual algorithm: what trains all worlds within a few minutes on two cores, not
# what it takes to learn them. Offline algorithms: updates.
BUDGETS: Mapping[str, Mapping[str, Any]] = {
    "grid": {"steps": 64_000},
    "arc": {"tasks": "mini-arc", "subset": "same-size-5-edits", "limit": 5, "steps": 614_400},
    "robot": {"steps": 491_520},
    "plant": {"steps": 3_000, "ope_updates": 0},
}
# What a score is, for people; of worlds in which one wins what another loses, the last.
MEANING = {
    "grid": "return of all agents together",
    "arc": "% of demonstrations solved",
    "robot": "return of an episode",
    "plant": "return behind the safety filter",
    "rivals": "return of an agent ahead of random ones",
}
NOTE = (
    "Baselines: one seed, scored without exploration; ± is the standard error over episodes. "
    "Budgets are small: they show how far a minute goes, not where learning ends."
)


def measure(path: Path = RESULT, names: Sequence[str] = (), **changes: Any) -> int:
    """Trains once in every world, or in those that are named; writes all scores, exit code.

    Worlds that are not named keep the scores that the file has. changes: settings in the place of
    the budgets.
    """
    known = read_json(path) if names and path.is_file() else {"raw": {}, "measured": {}}
    record = Record(path, command=COMMAND, raw=known["raw"])
    record.result["measured"] |= known["measured"]
    for suite, budget in BUDGETS.items():
        for name in suites.suite(suite).worlds:
            if not names or name in names:
                given = (suite, name, {**budget, **changes})
                record.section(name, lambda g=given: record.result["raw"].update(_scores(*g)))
    return record.finish()


def _scores(suite: str, name: str, budget: Mapping[str, Any]) -> dict[str, Any]:
    """What a run of that budget came to, and what random play does."""
    import jax

    import worldloom

    rarely = dict.fromkeys(("eval_every", "checkpoint_every", "record_every"), 0)
    with tempfile.TemporaryDirectory() as folder:
        run = worldloom.train(name, out=Path(folder) / "run", report=False, **rarely | dict(budget))
        random = run.references()[RANDOM_PLAY]
    assert run.evaluation is not None
    row = {n: v for n, v in run.evaluation.to_dict().items() if n != "scores"}
    jax.clear_caches()  # of programs that no other world has
    return {
        name: {
            "suite": suite,
            "algo": run.config.algo,
            "steps": run.steps,
            "offline": run.config.algorithm.loop == "offline",
            "train_seconds": round(run.train_seconds, 1),
            "score": row,
            "random": random,
        }
    }


def table(name: str, measured: Mapping[str, Any]) -> str:
    """The scores of a world as a Markdown table."""
    suite, learned, random = (measured[key] for key in ("suite", "score", "random"))
    unit = "updates" if measured["offline"] else "steps"
    rivals = "against_random" in learned
    what = MEANING["rivals" if rivals else suite]
    if rivals:
        scores = ["0, by definition", _score(learned, "against_random", "against_random_stderr")]
    else:
        factor = 100.0 if suite == "arc" else 1.0
        scores = [_score(row, "mean", "stderr", factor) for row in (random, learned)]
    if suite == "arc":  # a share of nothing has no error, but a size
        scores = [f"{score}, of {learned.get('episodes')} pairs" for score in scores]
    steps = f"{measured['steps']:,} {unit}"
    rows = [
        f"| algorithm | {what} | trained for |",
        "|---|---|---|",
        f"| `random` | {scores[0]} | |",
        f"| `{measured['algo']}` | {scores[1]} | {steps} |",
    ]
    asked = {**BUDGETS[suite], "steps": measured["steps"]}
    flags = " ".join(f"--{n.replace('_', '-')} {value}" for n, value in asked.items())
    return "\n".join([*rows, "", f"Again: `worldloom train {name} {flags}`."])


def _score(row: Mapping[str, Any], mean: str, error: str, factor: float = 1.0) -> str:
    if row.get(mean) is None:
        return "not measured"
    spread = "" if row.get(error) is None else f" ± {number(factor * row[error], 2)}"
    return f"{number(factor * row[mean], 4)}{spread}"
