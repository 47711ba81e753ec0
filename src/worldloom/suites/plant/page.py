"""The page of a run of a plant: returns, limits, estimates, and episodes."""

import json
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.replay.dataset_files import read_npz
from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.page import Fact, Part
from worldloom.report.plots import Series, line_chart
from worldloom.report.run_page import facts as common_facts
from worldloom.report.run_page import hero, inside, spread, write_page
from worldloom.report.runs import Run, column, read_run
from worldloom.suites.plant import charts, episode
from worldloom.suites.plant.charts import Log, PlantFacts, part, percent, plant_facts, words
from worldloom.suites.plant.evaluate import TRAJECTORIES_FILE, Trajectories, read_trajectories
from worldloom.suites.plant.ope import OPE_FILE
from worldloom.suites.plant.ope_page import estimates
from worldloom.suites.plant.problem import CONSTRAINTS_FILE, DATA_FILE

_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, IndexError)


def write_report(folder: str | Path) -> Path:
    """Writes `report.html` into the folder of a run of a plant and returns its path.

    A run that is incomplete gives a page that says what is missing.
    """
    run = read_run(folder)
    plant, unit = plant_facts(run), charts.unit_of_steps(run)
    content = {
        name: _readable(read, run.path / name)
        for name, read in (
            (TRAJECTORIES_FILE, _trajectories),
            (CONSTRAINTS_FILE, lambda path: path.read_text(encoding="utf-8", errors="replace")),
            (DATA_FILE, _logged),
            (OPE_FILE, _ope),
        )
    }
    both, constraints, logged, ope = content.values()
    data = Path(str(run.settings.get("dataset", ""))).stem
    return write_page(
        run,
        hero=[page.note("Mind this", _accidents(run, plant)), hero(_facts(run, plant, logged))],
        sections=[
            charts.returns(run, logged),
            _estimated(run) if no_simulator(run) else None,
            charts.limits(run, plant, logged),
            estimates(ope or {}, run),
            _truth(ope or {}, plant),
            *(_episodes(both, plant) if both else ()),
            _constraints(run, constraints),
            _data(run, logged),
            inside(run, unit=unit),
            _commands(run),
        ],
        tags=[f"{data} data"] if "data" in run.about else [],
        missing=_missing(run, content),
        unit=unit,
    )


def no_simulator(run: Run) -> bool:
    """Whether a run's plant is known from its log alone."""
    return run.about.get("simulator") is False


def _readable(read: Callable[[Path], Any], path: Path) -> Any:
    """What `read` gives; None if the file is not there, or cannot be read."""
    try:
        return read(path)
    except _UNREADABLE:
        return None


def _logged(path: Path) -> Log:
    """What data.npz says of itself."""
    columns = read_npz(path).columns
    reward = np.asarray(columns["reward"], np.float64).ravel()
    over = (columns["terminated"] > 0) | (columns["truncated"] > 0)
    starts = np.flatnonzero(np.concatenate([[True], over.ravel()[:-1]]))
    cost = columns.get("cost")
    crossed = [] if cost is None else (cost > 0).mean(0).tolist()
    return Log(np.add.reduceat(reward, starts), crossed)


def _trajectories(path: Path) -> list[Trajectories] | None:
    """The bare and the filtered ones; None if there are none of use."""
    both = [read_trajectories(path.parent, way) for way, _ in episode.WAYS]
    return both if all(each.alive.any() for each in both) else None


def _ope(path: Path) -> dict[str, Any] | None:
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) and content else None


def _missing(run: Run, content: dict[str, Any]) -> list[str]:
    lost = {
        TRAJECTORIES_FILE: "no margins over time",
        CONSTRAINTS_FILE: "no constraints to show",
    }
    if no_simulator(run):
        del lost[TRAJECTORIES_FILE]
    if "data" in run.about:
        lost[DATA_FILE] = "the return of the data is not shown"
        if run.settings.get("ope_updates", 1):
            lost[OPE_FILE] = "no off-policy estimate"
    lines = []
    for name, without in lost.items():
        if content[name] is None:
            what = "cannot be read" if (run.path / name).exists() else "is not there"
            lines.append(f"{name} {what}: {without}.")
    return lines


def _accidents(run: Run, plant: PlantFacts) -> list[str]:
    """What somebody who ships this policy must know."""
    if not run.evals:
        return []
    if no_simulator(run):
        return _without_simulator(run)
    shipped, lines = part(run.evals[-1], "filtered"), []
    for limit, share in zip(plant.limits, shipped.get("violated") or (), strict=False):
        if limit.hard and share:
            lines.append(
                f"Behind the filter the hard limit {words(limit.name)} was still crossed in "
                f"{percent(share)} % of the steps: the filter cannot undo what is under way, and "
                "knows its model of the plant, not what disturbs it. Leave it more room, or let it "
                "look further ahead."
            )
    emergencies = shipped.get("emergencies") or 0.0
    if emergencies > 0.05:
        lines.append(
            f"The emergency action was executed in {percent(emergencies)} % of the steps; after "
            "several in a row it stays until somebody resets it. The return behind the filter is "
            "then that of the emergency action."
        )
    return lines


def _without_simulator(run: Run) -> list[str]:
    stops = part(run.evals[-1], "filter").get("emergencies") or 0.0
    lines = [
        "There is no simulator of this plant: no number here is a true score. Returns are "
        "off-policy estimates, and what the filter does is told of logged situations alone."
    ]
    if run.about.get("truth"):
        lines = [
            f"The plant's simulator ({run.about['truth']}) was asked at the end alone, as the "
            "truth to compare with. Learned, estimated and chosen was by the log."
        ]
    if stops > 0.05:
        lines.append(
            f"In {percent(stops)} % of logged situations the filter finds no safe action by its "
            "learned model and takes the emergency action: give limits more room, log more, or "
            "name another emergency action."
        )
    return lines


def _estimates(run: Run) -> list[Fact]:
    """Headline numbers of a run that was never tried in a plant."""
    last = run.evals[-1]
    known, asked = part(last, "estimate"), part(last, "filter")
    low, high = (number(known.get(end)) for end in ("low", "high"))
    acts, stops = percent(asked.get("interventions")), percent(asked.get("emergencies"))
    doubts = last.get("doubts")
    said = f"from {low} to {high}; discounted, from the log alone"
    return [
        ("estimated return", number(known.get("value")), "", said),
        ("doubts", str(doubts if doubts is not None else "?"), "", "see: from the data alone"),
        ("leaves the data in", percent(last.get("outside")), "% of situations", "the log: 5 %"),
        ("filter would act in", acts, "% of situations", f"in {stops} % by the emergency action"),
    ]


def _truth(ope: dict[str, Any], plant: PlantFacts) -> Part:
    """What came out in the description's simulator, at the end."""
    title = "In the simulator"
    if ope.get("no_truth"):
        return page.section(title, page.note("It was not played in", [str(ope["no_truth"])]))
    truth = ope.get("truth")
    if not isinstance(truth, dict):
        return None
    head = ["", "return", "discounted", "steps", "filter acts in", "hard limit crossed in"]
    rows = []
    for name, way in (("bare policy", "bare"), ("behind the filter", "filtered")):
        row = part(truth, way)
        mean = f"{number(row.get('return'))} {spread(row.get('return_stderr'))}".strip()
        acts = f"{percent(row.get('interventions'))} %" if way == "filtered" else "-"
        crossed = _most_crossed(row, plant)
        shown = "-" if crossed is None else f"{percent(crossed)} % of steps"
        discounted, length = (number(row.get(n)) for n in ("discounted_return", "length"))
        rows.append([name, mean, discounted, length, acts, shown])
    text = (
        f"{truth.get('episodes')} episodes from logged starts; "
        f"{truth.get('spurious_trips')} spurious trips of the filter."
    )
    return page.section(title, page.table(head, rows), text=text)


def _estimated(run: Run) -> Part:
    """Estimated returns in the course of training."""
    rows = [row for row in run.evals if part(row, "estimate")]
    if len(rows) < 2:
        return None
    ends = [column([part(row, "estimate") for row in rows], n) for n in ("value", "low", "high")]
    line = Series("estimate, 95 %", column(rows, "steps"), *ends, color=charts.FILTERED, dots=True)
    mean = [("logged data", rows[-1]["logged_return"])] if "logged_return" in rows[-1] else []
    chart = line_chart([line], charts.unit_of_steps(run), "discounted return", references=mean)
    caption = "Estimated from the log alone, after so many updates; nothing was tried in a plant."
    return page.section("Estimated return", page.figure(chart, caption))


def _facts(run: Run, plant: PlantFacts, logged: Log | None) -> list[Fact]:
    of_evals = _estimates(run) if no_simulator(run) and run.evals else None
    items = of_evals or (_scores(run, plant) if run.evals else [])
    if logged is not None:
        best = f"of {len(logged.returns):,} episodes; the best {number(logged.returns.max())}"
        mean = number(logged.returns.mean())
        items.insert(2 if run.evals else 0, ("return, logged data", mean, "", best))
    scored = "greedy score"  # which is told in more detail here
    common = common_facts(run, charts.unit_of_steps(run), scored)
    return items + [fact for fact in common if fact[0] != scored]


def _scores(run: Run, plant: PlantFacts) -> list[Fact]:
    last = run.evals[-1]
    filtered, bare = part(last, "filtered"), part(last, "bare")
    count = run.settings.get("eval_episodes")
    items: list[Fact] = []
    for name, way, row, text in (
        ("behind the filter", "filtered", filtered, f"as it is shipped; mean of {count} episodes"),
        ("bare policy", "bare", bare, "from the same starts, nothing in between"),
    ):
        for who, outcomes in run.references().items():
            own = part(outcomes, way)
            said = f"{who}: {number(own.get('return'))} {spread(own.get('return_stderr'))}"
            text = f"{text}; {said.strip()}" if own else text
        shown = number(row.get("return")), spread(row.get("return_stderr"))
        items.append((f"return, {name}", *shown, text))
    if filtered.get("oracle_share") is not None:
        text = (
            "of the way from random actions to planning with the true plant; bare: "
            f"{percent(bare.get('oracle_share'))} %"
        )
        items.append(("oracle share, as shipped", percent(filtered["oracle_share"]), "%", text))
    if last.get("score") is not None:
        text = "of the bare policy; 0 and 100 as NeoRL-2 has them"
        items.append(("normalised score", number(last["score"]), "", text))
    acts, emergencies = percent(filtered.get("interventions")), percent(filtered.get("emergencies"))
    text = f"in {emergencies} % by the emergency action"
    items.append(("filter acts in", acts, "% of steps", text))
    with_filter, without = (_most_crossed(row, plant) for row in (filtered, bare))
    if with_filter is not None:
        text = f"the one crossed most, behind the filter; {percent(without)} % without it"
        items.append(("hard limit crossed", percent(with_filter), "% of steps", text))
    return items


def _most_crossed(row: dict[str, Any], plant: PlantFacts) -> float | None:
    """The largest share of steps in which a hard limit was crossed; None if it is not known."""
    pairs = zip(plant.limits, row.get("violated") or (), strict=False)
    shares = (share for limit, share in pairs if limit.hard and share is not None)
    return max(shares, default=None)


def _episodes(both: list[Trajectories], plant: PlantFacts) -> list[Part]:
    """Margins over time, then signals and actuators, of the episode that tells most."""
    bare, filtered = both
    number, why = episode.busiest_episode(filtered), "the filter has most to do"
    if number is None:
        number = episode.closest_episode(bare, plant)
        why = "the bare policy comes closest to a hard limit; the filter never acts"
    margins = (
        f"Lines: the episode in which {why}. Bands: all {bare.alive.shape[1]} episodes that were "
        "kept. Below the dashed line the limit is crossed. Shades: steps in which the filter "
        "changed what the policy wanted, or executed the emergency action. A line ends where the "
        "plant was lost."
    )
    signals = "The same episode: what was measured and what was done, bare and behind the filter."
    return [
        page.section("Margins over time", episode.margins(both, plant, number), text=margins),
        page.section("Signals and actuators", episode.signals(both, plant, number), text=signals),
    ]


def _constraints(run: Run, content: str | None) -> Part:
    if content is None:
        return None
    names = run.about.get("constraints")
    text = f"What the filter holds every action to, in physical units ({CONSTRAINTS_FILE})"
    if isinstance(names, list) and names:
        text += f": {len(names)} rows in all, those of the actuators' ranges among them"
    return page.section("Constraints in force", page.command(content.strip()), text=text + ".")


def _data(run: Run, logged: Log | None) -> Part:
    values = dict(run.part("data"))
    provenance = values.pop("provenance", None)
    values |= provenance if isinstance(provenance, dict) else {}
    if not values and logged is None:
        return None
    if logged is not None:
        returns: Any = logged.returns
        mean, least, most = (number(f(returns), 4) for f in (np.mean, np.min, np.max))
        spread = number(returns.std(), 2)
        values["return of an episode"] = f"{mean} ± {spread}, from {least} to {most}"
    parts = [page.group("columns", page.settings(values))]
    if (run.path / DATA_FILE).is_file():
        describe = ["worldloom", "data", "describe", str(run.path / DATA_FILE)]
        parts += [page.heading("Look into it"), page.command(shlex.join(describe))]
    return page.section("What it learned from", *parts)


def _commands(run: Run) -> Part:
    if not run.has_checkpoint:
        return None
    again = "Estimate it again" if no_simulator(run) else "Try it in the plant again"
    lines = (
        (again, ["worldloom", "eval", str(run.path)]),
        ("Ship it with its filter", ["worldloom", "export", str(run.path)]),
    )
    parts = [[page.heading(name), page.command(shlex.join(line))] for name, line in lines]
    return page.section("What to do with it", *parts)
