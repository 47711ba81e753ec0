"""Which trained policy of a plant to ship, judged from logged data alone, or with a few trials."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldloom.algos.policy_selection import (
    Candidate,
    Selection,
    Z,
    after_trials,
    decide,
    ranked,
    try_out,
)
from worldloom.core.checks import check_seed
from worldloom.core.files import write_json
from worldloom.replay.dataset import Dataset
from worldloom.suites.plant import ope
from worldloom.suites.plant.problem import load_data, policy_of
from worldloom.suites.plant.suite import SUITE
from worldloom.training import console
from worldloom.training.config import read_header
from worldloom.training.run import Run, load

LOGGED = "logged behaviour"
# Of what a policy wants in logged situations: beyond, most of it was never tried. 0.05 is the
# data's own.
MOST_OUTSIDE = 0.4
SELECT_KEY = 7_000_019


def select_policy(
    folders: Sequence[str | Path],
    dataset: str | Path | None = None,
    *,
    updates: int = 2_500,
    gamma: float = 0.99,
    episodes: int = 0,
    seed: int = 0,
    out: str | Path | None = None,
) -> Selection:
    """Ranks the policies of run folders of one plant, and says which one to ship, or none.

    dataset: logged data (an npz file, or a quality as in training); by default what the runs
    learned from. updates: of each network that estimates are made with. gamma: a discount, of all
    returns. episodes: how many may be tried in the plant, each of the candidate that a bandit
    chooses, behind its safety filter. out: a JSON file to write, with a page beside it.
    """
    _check(folders, updates, gamma, episodes, seed, out)
    console.phase("loading runs")
    runs = [load(SUITE, folder) for folder in folders]
    _check_one_plant(runs)
    learned_from = [read_header(run.folder).get("data", {}).get("digest") for run in runs]
    data = _data(runs, learned_from, dataset)
    if len(data.starts) < 2:
        raise ValueError(f"{data.name}: its one episode does not tell how returns vary; log more")
    key = jax.random.key(SELECT_KEY + seed)
    horizon = runs[0].problem.env.spec.horizon
    assert horizon is not None
    console.phase("learning models of the plant", note=f"{data.size:,} rows")
    learned = ope.learn(data, gamma, horizon, updates, key)
    logged = logged_behaviour(learned.logged)
    candidates = []
    for i, (name, run) in enumerate(zip(_names(runs), runs, strict=True)):
        console.phase(f"judging {name}", done=i, total=len(runs), unit="policies", note="")
        policy = policy_of(run.trainer, run.agents)
        found = ope.evaluate(learned, policy, jax.random.fold_in(key, i + 1))
        about = {"run": str(run.folder), "algo": run.config.algo, "steps": run.steps}
        candidates.append(candidate_of(name, found, **about))
    if episodes:
        console.phase("trying policies", done=0, total=episodes, unit="episodes")
        spread = float(learned.logged.std())
        trials = try_out(candidates, _player(runs, episodes, seed), episodes, spread, seed, logged)
        candidates = after_trials(candidates, trials, spread)
    origin = {"name": data.name, "digest": data.digest, "rows": data.size}
    selection = Selection(
        env=runs[0].config.env,
        candidates=ranked(candidates),
        logged=logged,
        decision=decide(candidates, logged),
        about={
            "data": origin | {"episodes": len(data.starts)},
            "gamma": gamma,
            "updates": updates,
            "episodes": episodes,
            "seed": seed,
        },
        notes=_notes(sum(digest == data.digest for digest in learned_from), len(runs), episodes),
    )
    if out is not None:
        from worldloom.suites.plant.select_page import write_selection

        write_json(out, selection.to_dict())
        write_selection(selection, Path(out).with_suffix(".html"))
    return selection


def _check(
    folders: Sequence[str | Path], updates: int, gamma: float, episodes: int, seed: int, out: Any
) -> None:
    check_seed(seed)
    for name, value, least in (("updates", updates, 1), ("episodes", episodes, 0)):
        if value < least:
            raise ValueError(f"select: {name}={value}; it must be {least} or more")
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"select: gamma={gamma}; it must be between 0 and 1")
    if out is not None and Path(out).suffix != ".json":
        raise ValueError(f"select: out={out}; the result is a .json file, with a page beside it")
    twice = [str(f) for i, f in enumerate(folders) if Path(f) in map(Path, folders[:i])]
    if twice:
        raise ValueError(f"select: {twice[0]} is named twice; name every run once")


def _check_one_plant(runs: Sequence[Run]) -> None:
    """Policies of different plants have different returns, and see different signals."""

    def task(run: Run) -> Any:
        plant = run.problem.env.base.plant
        numbers = jax.tree.leaves(run.problem.env.base.params)
        signals = (plant.name, plant.observation, plant.action, plant.limits)
        return signals, [np.asarray(x).tolist() for x in numbers]

    first = runs[0]
    for run in runs[1:]:
        if task(run) != task(first):
            raise ValueError(
                f"{run.folder} ({run.config.env}) and {first.folder} ({first.config.env}) are of "
                "different plants, or of one with different options; name runs of one plant"
            )


def _data(
    runs: Sequence[Run], learned_from: Sequence[str | None], dataset: str | Path | None
) -> Dataset:
    if dataset is not None:
        config = runs[0].config
        config = replace(config, settings=replace(config.settings, dataset=str(dataset)))
        console.phase("reading data")
        return load_data(config, runs[0].problem.env)
    known = {digest: run for digest, run in zip(learned_from, runs, strict=True) if digest}
    if len(known) != 1:
        said = "learned from different data" if known else "learned in the plant"
        raise ValueError(f"these runs {said}; name the log to judge by: --dataset FILE.npz")
    (run,) = known.values()
    assert run.problem.data is not None
    return run.problem.data()


def _names(runs: Sequence[Run]) -> list[str]:
    """Names of folders, with as much of their paths as tells them apart."""
    short = [run.folder.resolve().name for run in runs]
    return short if len({*short}) == len(runs) else [str(run.folder) for run in runs]


def logged_behaviour(returns: np.ndarray) -> Candidate:
    """What is done today: the mean return of logged episodes (E,)."""
    mean, half = float(returns.mean()), Z * float(returns.std(ddof=1)) / len(returns) ** 0.5
    return Candidate(LOGGED, mean, mean - half, mean + half, details={"episodes": len(returns)})


def candidate_of(name: str, found: dict[str, Any], **about: Any) -> Candidate:
    """A policy by what `ope.evaluate` found of it."""
    first, doubts = found["estimates"][0], list(found["doubts"])
    outside, strange = (float(found["support"][n]) for n in ("outside", "strange"))
    supported = outside <= MOST_OUTSIDE and strange <= ope.SETTLED_SHARE
    # What decides is said first.
    doubts.sort(key=lambda doubt: "nobody has been" not in doubt)
    if outside > MOST_OUTSIDE:
        doubts.insert(0, f"{outside:.0%} of what it wants in logged states was never tried")
    about |= {n: found[n] for n in ("estimates", "support")}
    ends = first["value"], first["low"], first["high"]
    return Candidate(name, *ends, supported, tuple(doubts), details=about)


def _player(runs: Sequence[Run], episodes: int, seed: int) -> Any:
    """Returns of a run's policy in the plant, behind its filter, one episode after the other."""
    played: dict[int, list[float]] = {}
    done = iter(range(1, episodes + 1))

    def play(arm: int) -> float:
        if arm not in played:
            evaluation: Any = runs[arm].evaluate(episodes, seed + arm)
            played[arm] = evaluation.filtered.discounted.tolist()[::-1]
        console.phase("trying policies", done=next(done))
        return played[arm].pop()

    return play


def _notes(seen: int, count: int, episodes: int) -> tuple[str, ...]:
    notes = []
    if seen:
        notes.append(
            f"{seen} of {count} learned from this very log, which flatters: "
            "a log that they have not seen judges better"
        )
    if episodes:
        notes.append("trials were played in the simulator, behind each run's safety filter")
    return tuple(notes)
