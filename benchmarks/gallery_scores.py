"""Baseline scores of the gallery: in every world, random play and two algorithms."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import Record
from worldloom import suites
from worldloom.core.files import read_json
from worldloom.report.axes import number
from worldloom.report.runs import RANDOM_PLAY
from worldloom.suites.arc.suite import GAMES
from worldloom.suites.grid.suite import LONG

RESULT = Path("benchmarks/results/gallery.json")
COMMAND = "python -m benchmarks.gallery --measure"
# Two algorithms of each suite, the usual one first: what trains all worlds within minutes on two
# cores, not what it takes to learn them. Offline algorithms: updates.
_ARC = {"tasks": "mini-arc", "subset": "same-size-5-edits", "limit": 5}
_PLANT = {"steps": 3_000, "ope_updates": 0}
BUDGETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "grid": {"iqn": {"steps": 64_000}, "ppo": {"steps": 640_000}},
    "arc": {"ppo": {**_ARC, "steps": 614_400}, "dqn": {**_ARC, "steps": 51_200}},
    "robot": {"ppo": {"steps": 491_520}, "sac": {"steps": 98_304}},
    "plant": {"iql": _PLANT, "td3bc": _PLANT},
}
# Of worlds with episodes of 1,000 turns.
LONG_BUDGETS = {"iqn": {"steps": 256_000}, "ppo": {"steps": 256_000}}
GAME_BUDGETS = {"pqn": {"steps": 256_000}, "ppo": {"steps": 256_000}}
# What a score is, for people; of worlds in which one wins what another loses, the last.
MEANING = {
    "grid": "return of all agents together",
    "arc": "% of demonstrations solved",
    "games": "% of levels solved",
    "robot": "return of an episode",
    "plant": "return behind the safety filter",
    "rivals": "return of an agent ahead of random ones",
}
NOTE = (
    "Baselines: one seed, scored without exploration; ± is the standard error over episodes. "
    "Budgets are small: they show how far a minute goes, not where learning ends."
)


def budgets(suite: str, name: str) -> Mapping[str, Mapping[str, Any]]:
    """The settings of a world's baselines by algorithm."""
    if name in GAMES:
        return GAME_BUDGETS
    return LONG_BUDGETS if name in LONG else BUDGETS[suite]


def measure(
    path: Path = RESULT, names: Sequence[str] = (), films: Path | None = None, **changes: Any
) -> int:
    """Trains in every world, or in those that are named; writes all scores, exit code.

    A name is that of a world, or WORLD:ALGORITHM. What is not named keeps the scores that the file
    has. films: a folder for a film of the better algorithm, in gridworlds and games; changes:
    settings in the place of the budgets.
    """
    known = read_json(path) if names and path.is_file() else {"raw": {}, "measured": {}}
    record = Record(path, command=COMMAND, raw=known["raw"])
    record.result["measured"] |= known["measured"]
    for suite in BUDGETS:
        for name in suites.suite(suite).worlds:
            for algo, budget in budgets(suite, name).items():
                label = f"{name}:{algo}"
                if not names or name in names or label in names:
                    filmed = films and (suite == "grid" or name in GAMES)
                    film = films / f"{name}.gif" if filmed else None
                    given = (record.result["raw"], suite, name, algo, {**budget, **changes}, film)
                    record.section(label, lambda g=given: _train(*g))
    return record.finish()


def _train(
    raw: dict[str, Any], suite: str, name: str, algo: str, budget: Mapping[str, Any],
    film: Path | None,
) -> None:  # fmt: skip
    """Adds to the scores what a run of that budget came to, and what random play does."""
    import jax

    import worldloom

    rarely = dict.fromkeys(("eval_every", "checkpoint_every", "record_every"), 0)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"algo": algo, "out": Path(folder) / "run", "report": False}
        run = worldloom.train(name, **settings, **rarely | dict(budget))
        random = run.references()[RANDOM_PLAY]
        assert run.evaluation is not None
        row = {n: v for n, v in run.evaluation.to_dict().items() if n != "scores"}
        kind = "games" if name in GAMES else suite
        world = raw.setdefault(name, {"suite": kind, "random": random, "algos": {}})
        others = [rank(entry["score"]) for other, entry in world["algos"].items() if other != algo]
        if film is not None and all(rank(row) >= best for best in others):
            film.parent.mkdir(parents=True, exist_ok=True)
            suites.suite(suite).film(run, film)
    jax.clear_caches()  # of programs that no other world has
    world["algos"][algo] = {
        "steps": run.steps,
        "offline": run.config.algorithm.loop == "offline",
        "score": row,
    }


def rank(score: Mapping[str, Any]) -> float:
    """What a score is compared by; of worlds where agents win what others lose, against random."""
    return score["against_random"] if "against_random" in score else score["mean"]


def table(name: str, measured: Mapping[str, Any]) -> str:
    """The scores of a world as a Markdown table, and the commands that come to them."""
    suite, random, algos = (measured[key] for key in ("suite", "random", "algos"))
    rivals = any("against_random" in entry["score"] for entry in algos.values())
    what = MEANING["rivals" if rivals else suite]
    untrained = "0, by definition" if rivals else _score(suite, random)
    rows = [
        f"| algorithm | {what} | trained for | again |",
        "|---|---|---|---|",
        f"| random play | {untrained} | | |",
    ]
    for algo, entry in algos.items():
        asked = {**budgets(suite, name)[algo], "steps": entry["steps"]}
        flags = " ".join(f"--{n.replace('_', '-')} {value}" for n, value in asked.items())
        again = f"`worldloom train {name} --algo {algo} {flags}`"
        budget = f"{entry['steps']:,} {'updates' if entry['offline'] else 'steps'}"
        score = _score(suite, entry["score"], "against_random" if rivals else "mean")
        rows.append(f"| `{algo}` | {score} | {budget} | {again} |")
    if not rivals and len(algos) > 1 and beaten_by_chance(measured):
        rows += ["", "None of them does better than random play within its budget."]
    return "\n".join(rows)


def beaten_by_chance(measured: Mapping[str, Any]) -> bool:
    """Whether random play scores at least as well as every algorithm."""
    random = measured["random"].get("mean")
    return random is not None and all(
        entry["score"]["mean"] <= random for entry in measured["algos"].values()
    )


def headline(measured: Mapping[str, Any]) -> str:
    """The better of the algorithms and random play, on one line."""
    suite, random, algos = (measured[key] for key in ("suite", "random", "algos"))
    algo, entry = max(algos.items(), key=lambda item: rank(item[1]["score"]))
    if "against_random" in entry["score"]:
        return f"`{algo}` {_score(suite, entry['score'], 'against_random')} ahead of random play"
    return f"`{algo}` {_score(suite, entry['score'])}, random {_score(suite, random)}"


def _score(suite: str, row: Mapping[str, Any], mean: str = "mean") -> str:
    """A score with its error; of puzzles in per cent, with how many there were."""
    if row.get(mean) is None:
        return "not measured"
    factor = 100.0 if suite in ("arc", "games") else 1.0
    error = row.get("stderr" if mean == "mean" else f"{mean}_stderr")
    spread = "" if error is None else f" ± {number(factor * error, 2)}"
    pairs = f", of {row.get('episodes')} pairs" if suite == "arc" else ""
    return f"{number(factor * row[mean], 4)}{spread}{pairs}"
