"""Tables of single sections of a benchmark's result, as Markdown for the docs."""

import re
import statistics
from collections.abc import Mapping
from typing import Any

FILTER_LOSS = 0.05  # of the return, where a controller crosses no hard limit


def three_figures(value: float) -> str:
    """1475.04 as 1,480."""
    return f"{float(f'{value:.3g}'):,g}"


def when(result: Mapping[str, Any], only: str | None = None) -> str:
    """The day and, where it is known, the commit of each section of a result, or of one of them."""
    days: dict[str, list[str]] = {}
    origins = {name: {"date": result["date"]} for name in result.get("sections", ())}
    origins |= result.get("measured") or {}
    for name, facts in origins.items():
        if only in origins and name != only:
            continue
        commit = re.sub(r"^([0-9a-f]{7})[0-9a-f]{33}", r"\1", facts.get("commit") or "")
        days.setdefault(facts["date"][:10] + f" at {commit}" * bool(commit), []).append(name)
    if len(days) < 2:
        return next(iter(days), result["date"][:10])
    return "; ".join(f"{', '.join(names)}: {day}" for day, names in days.items())


def modes(result: dict[str, Any]) -> str:
    """The rows of a `worldloom bench modes` as a Markdown table: epochs, and their parts in ms."""
    heads = {"num_agents": "agents", "mode": "mode"}
    heads |= {"epochs_per_second": "epochs/s", "speedup": "speed-up"}
    heads |= {f"{part}_ms": f"{part}, ms" for part in result["parts"]}
    heads |= {"compile_seconds": "compile, s", "memory_mb": "memory, MB"}
    rows = [" | ".join(heads.values()), " | ".join(["---"] * len(heads))]
    for row in result["rows"]:
        cells = [row.get(name) for name in heads]
        rows.append(" | ".join(three_figures(x) if isinstance(x, float) else str(x) for x in cells))
    notes = [f"- {note}" for note in result["notes"]]
    notes += [f"- {section} failed: {error}" for section, error in result["errors"].items()]
    machine, versions = result["machine"], result["versions"]
    named = "".join(f", {n} {versions[n]}" for n in ("python", "jax", "torch") if n in versions)
    end = f"{machine['cpu']}, {machine['cores']} cores{named}; `{result['command']}`; "
    end += f"{when(result)}."
    return "\n".join([f"| {row} |" for row in rows] + ["", *notes, "", end]).replace("None", "-")


def faults(result: Mapping[str, Any]) -> str:
    """How many attacks of each kind there were, and how many went wrong."""
    raw, ratios = result["raw"], result["ratios"]
    calls = sum(counts["calls"] for counts in raw["formats"].values())
    chains = raw["runs"]["chains"]
    attacks = {
        f"kills of training runs, in {chains} chains": (
            raw["runs"],
            "kills",
            "not resumed exactly",
        ),
        "bytes changed in checkpoints": (raw["damage"], "flips", "taken for sound"),
        "spoiled files and options": ({"calls": calls}, "calls", "not answered in a line"),
        "kills of servers under load": (raw["killed"], "kills", "answers without a record"),
        "rounds of overload": (raw["wedged"], "rounds", "loops that ended"),
        "filtered actions, against an exact solver": (raw["safety"], "cases", "limits crossed"),
        "the same": (raw["safety"], "cases", "needless emergencies"),
    }
    wrong = [
        chains - raw["runs"]["exact"],
        ratios["silent_wrong_loads"],
        ratios["tracebacks"] + ratios["hangs"],
        ratios["lost_records"],
        ratios["dead_loops"],
        ratios["broken_promises"],
        ratios["needless_emergencies"],
    ]
    rows = [
        f"| {what} | {counts[name]:,} | {count} {how} |"
        for (what, (counts, name, how)), count in zip(attacks.items(), wrong, strict=True)
    ]
    heads = ["| attack | how many | what went wrong |", "|---|---|---|"]
    return "\n".join([*heads, *rows, "", f"Measured {when(result)}."])


def scores(result: Mapping[str, Any]) -> str:
    """Normalised scores on released data: of what learns, of what learns nothing, published."""

    def cell(mean: float | None, std: float | None) -> str:
        return "-" if mean is None else f"{mean:.1f}" + ("" if std is None else f" ± {std:.1f}")

    heads = ("data", "controller", "score", "published", "how it was chosen")
    rows = [f"| {' | '.join(heads)} |", "|---|---|---|---|---|"]
    rows += [
        f"| {row['dataset']} | {row['algo']} | {cell(row['mean'], row.get('std'))} | "
        f"{cell(row.get('published'), row.get('published_std'))} | {row['how']} |"
        for row in result["raw"]["scores"]
    ]
    best = {
        name: max(table.items(), key=lambda entry: entry[1][0])
        for name, table in result["raw"]["published_scores"].items()
    }
    peers = [f"{name} {algo} {mean:g} ± {std:g}" for name, (algo, (mean, std)) in best.items()]
    return "\n".join(
        [*rows, "", f"The best published: {', '.join(peers)}. Measured {when(result, 'scores')}."]
    )


def plants(result: Mapping[str, Any]) -> str:
    """Mean returns on our own plants, and what their filters changed."""
    table: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in result["raw"]["plants"]:
        table.setdefault((row["plant"], row["quality"]), {})[row["algo"]] = row
    algos = list(dict.fromkeys(row["algo"] for row in result["raw"]["plants"]))
    heads = ["plant", "data", "logged", "control loops", *algos]
    heads += [f"{algo}, filtered" for algo in algos]
    rows = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for (plant, quality), entries in table.items():
        one = next(iter(entries.values()))
        values = [one["data"], one["loops"]]
        for way in ("return", "filtered"):
            values += [entries[algo][way] if algo in entries else None for algo in algos]
        cells = ["-" if x is None else three_figures(x) for x in values]
        rows.append(f"| {plant} | {quality} | {' | '.join(cells)} |")
    every = result["raw"]["plants"]
    crossed = [row for row in every if row["violated_filtered"] > row["violated_bare"]]
    safe = [row for row in every if row["violated_bare"] == 0.0]
    costly = [r for r in safe if r["filtered"] < r["return"] - FILTER_LOSS * abs(r["return"])]
    rows += [
        "",
        f"Of {len(every)} controllers, {len(crossed)} cross hard limits in more steps behind the "
        f"filter; of the {len(safe)} that cross none without it, {len(costly)} lose more than "
        f"{FILTER_LOSS:.0%} of their return to it. Measured {when(result, 'plants')}.",
    ]
    return "\n".join(rows)


def agents(result: Mapping[str, Any]) -> str:
    """What a step of a world costs by the number of its agents, each with a network of its own."""
    measured = result["raw"]["agents"]
    heads = ("algorithm", "agents", "agent steps/s", "learners, MB", "peak, MB", "compile, s")
    rows = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in measured["rows"]:
        rate = row["agents"] / row["seconds_per_step"]
        cells = (rate, row["learner_mb"], row["peak_mb"], row["compile_seconds"])
        shown = " | ".join(map(three_figures, cells))
        rows.append(f"| `{row['algo']}` | {row['agents']} | {shown} |")
    sizes = measured["sizes"]
    worlds = f"{sizes['worlds']} treasure hunts of {sizes['side']} x {sizes['side']} cells"
    return "\n".join([*rows, "", f"{worlds}; measured {when(result, 'agents')}."])


def generalisation(result: Mapping[str, Any]) -> str:
    """Test pairs solved by the first attempt (and within two), of agents and of baselines."""
    measured = result["raw"]["generalisation"]
    names = list(measured["tasks"])
    rows = [f"| test pairs solved | {' | '.join(names)} |", f"|{'---|' * (1 + len(names))}"]
    agents = {way: measured[way] for way in ("policy", "policy with search")}
    agents |= {
        way: {name: [row] for name, row in found.items()}
        for way, found in measured["baselines"].items()
    }
    for way, found in agents.items():
        cells = []
        for name in names:
            first, second = (
                statistics.fmean(row[key] for row in found[name])
                for key in ("pass_at_1", "pass_at_2")
            )
            cells.append(f"{first:.1%} ({second:.1%})")
        rows.append(f"| {way} | {' | '.join(cells)} |")
    pairs = [measured["policy"][name][0]["test_pairs"] for name in names]
    rows.append(f"| of so many | {' | '.join(map(str, pairs))} |")
    note = (
        f"By the first attempt, and within two; means over {len(measured['policy'][names[0]])} "
        f"seeds. Brute force has {measured['search_cpu_seconds_per_task']:.2f} s of processor time "
        f"a task, training counted; measured {when(result, 'generalisation')}."
    )
    return "\n".join([*rows, "", note])


def cleanup(result: Mapping[str, Any]) -> str:
    """Welfare in Clean Up, and how it is spread, by what agents learned from."""
    measured = result["raw"]["cleanup"]
    rows = ["| learned from | welfare, mean | of each seed | Gini |", "|---|---|---|---|"]
    for rewards, welfare in measured["welfare"].items():
        each = [row["welfare"] for row in measured["rows"] if row["rewards"] == rewards]
        seeds = ", ".join(f"{x:.0f}" for x in each)
        gini = measured["gini"][rewards]
        spread = "-" if gini is None else f"{gini:.2f}"
        rows.append(f"| {rewards} rewards | {welfare:.0f} | {seeds} | {spread} |")
    random = f"Random play: {measured['rows'][0]['random_play']:.0f}"
    return "\n".join([*rows, "", f"{random}; measured {when(result, 'cleanup')}."])


def population(result: Mapping[str, Any]) -> str:
    """Scores of populations and of random searches at equal steps."""
    heads = ("world", "population", "random search", "random play", "ratio of what is gained")
    rows = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for world, found in result["raw"]["population"].items():
        cells = []
        for way in ("population", "random search"):
            low, high = found["interval"][way]
            cells.append(f"{found['iqm'][way]:.1f} ({low:.1f} to {high:.1f})")
        cells += [f"{found['random play']:.1f}", f"{found['ratio']:.3f}"]
        rows.append(f"| `{world}` | {' | '.join(cells)} |")
    seeds = len(next(iter(result["raw"]["population"].values()))["scores"]["population"])
    means = f"Interquartile means over {seeds} seeds, with intervals of 95 %"
    return "\n".join([*rows, "", f"{means}; measured {when(result, 'population')}."])


def levels(result: Mapping[str, Any]) -> str:
    """The robot's levels: training steps a second by number of worlds, and seconds to compile."""
    sizes, compiled = result["raw"]["levels"]["sizes"], result["raw"]["compile"]["seconds"]
    heads = [f"{int(size):,} worlds" for size in sizes]
    rows = [f"| level | {' | '.join(heads)} |", f"|{'---|' * (1 + len(heads))}"]
    for level in (1, 2, 3, 4):
        rates = [sizes[size]["steps_per_second"].get(f"level{level}") for size in sizes]
        cells = ["-" if rate is None else three_figures(rate) for rate in rates]
        rows.append(f"| {level} | {' | '.join(cells)} |")
    c, mjx, kept = (three_figures(compiled[n]["median"]) for n in ("c", "mjx", "mjx_cached"))
    batch = result["raw"]["compile"]["batch"]
    rows += [
        "",
        f"Seconds to the first step of {batch} robots: {c} with the C engine, {mjx} with "
        f"MJX, {kept} with MJX in a second process, which finds the program kept.",
    ]
    return "\n".join(rows)
