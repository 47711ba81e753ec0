"""Figures for the README and the docs, read from a benchmark's JSON and from nowhere else."""

import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import algos as algos_bench
from benchmarks import sweep as sweep_bench
from benchmarks import tables
from benchmarks.tables import three_figures, when

MEANING = {
    "algos": algos_bench.RATIOS,
    "sweep": sweep_bench.RATIOS,
    "grid": {
        "time_to_500": "training time to a greedy score of 500, original / ours",
        "time_to_500_tuned": "the same, against the original without its useless work",
        "time_to_500_with_compile": "the same as the first, our compile time included, cold cache",
        "epochs_per_second_same_arithmetic": "epochs/s with the original's training arithmetic, "
        "ours / its; it acts with 256 random levels, we with 12 midpoints",
        "world_steps_per_second": "agent steps/s without learning, ours / object loop",
        "train_step_matmul_share": "train step's FLOP rate as a share of plain matmul's",
        "agent_steps_128_vs_1": "agent steps/s of independent PPO, 128 agents / one",
        "ippo_vs_jaxmarl": "training steps/s of PPO with one network for 7 agents, cleanup, ours / "
        "JaxMARL's loop on SocialJax's",
        "ippo_treasurehunt_500_share": "of 5 seeds of independent PPO, those that reach 500",
        "cleanup_shared_vs_selfish": "welfare of 7 agents in cleanup, learned from shared rewards "
        "/ from their own, counted as 1 where it is less",
    },
    "arc": {
        "steps_vs_jaxarc_30x30_1024": "steps/s of 1,024 worlds at 30x30, ours / JaxARC's best",
        "steps_vs_arcle_batched": "steps/s, our 1,024 worlds / ARCLE's best",
        "steps_vs_arcle_single": "steps/s, one world of ours in a scan / one of ARCLE's",
        "point_mix_vs_box_mix": "our steps/s with single cells and flood fills / with boxes",
        "games_vs_arcengine": "frames/s of 1,024 games, ours / arcengine's best, least of 3",
        "demo_tasks_solved_share": "of 20 Mini-ARC tasks, those whose demonstrations PPO solves",
        "heldout_instances_solved": "test pairs solved at once, new tasks of trained rule families",
        "heldout_families_solved": "test pairs solved at once, rule families not trained on",
    },
    "robot": {
        "c_in_jit_vs_rollout": "physics of 512 robots, MuJoCo in our jit / mujoco.rollout",
        "c_in_jit_vs_mjx_512": "physics of 512 robots, MuJoCo in our jit / MJX in jit, its best",
        "ppo_level4_vs_level1": "training steps/s of 512 robots, level 4 / level 1",
        "ppo_vs_brax_mjx": "training steps/s of 512 robots, level 4 / Brax PPO over MJX, its best",
        "walk_good_share": "of 64 walks of 20 s, those without a fall and within 0.075 m/s",
        "stand_push_share": "episodes survived under pushes that fell a robot holding its pose",
        "amp_gait_distance_share": "distance of the gait from the reference, with AMP / without",
        "joystick_error_share": "mean error of a steered walk over its greatest command / that of "
        "Apollo's policy in MuJoCo Playground, 0.059",
        "joystick_falls": "falls in 18 runs of 20 s with commands to the ends of the range",
        "ground_traversed_share": "of 64 walks over unseen ground of level 3, those that get 5 m "
        "ahead",
        "ground_flat_traversed_share": "the same of a walk that was trained on a flat floor",
        "ground_speed_share": "training steps/s of 512 robots, on uneven ground / on a flat floor",
    },
    "plant": {
        "td3bc_vs_d3rlpy": "updates/s of TD3+BC, batch 256, 2x256, ours / d3rlpy's best",
        "iql_vs_d3rlpy": "the same of IQL",
        "cql_vs_d3rlpy": "the same of CQL with 30 sampled actions a row",
        "td3bc_matmul_share": "arithmetic/s of our TD3+BC update's products / that of its largest "
        "layer's product alone",
        "iql_matmul_share": "the same of IQL",
        "cql_matmul_share": "the same of CQL",
        "dmsd_steps_vs_loop": "plant steps/s, our 4,096 masses on springs / a loop in numpy",
        "dmsd_best_score_share": "score on DMSD of what the data speak for / the best published",
        "simglucose_best_score_share": "the same on Simglucose, where constants beat both",
        "safetyhalfcheetah_best_score_share": "the same on SafetyHalfCheetah",
        "ope_coverage_95": "nominal 95 % intervals of off-policy estimates that hold the truth",
        "ope_relative_width": "their mean width / the spread of true returns within a plant",
        "ope_rank_correlation": "Spearman's, of estimated and true returns of policies",
        "select_sound_share": "policies recommended from a log that earn more than the log did",
        "select_regret_vs_uniform": "regret after 16 trials of 6 policies, a bandit with "
        "off-policy estimates as priors / trials shared out evenly",
        "pid_oracle_share": "of the way from random actions to planning with the true plant, what "
        "the plants' own PID loops go, mean over plants",
        "filter_time_share": "box, rates and one linear barrier: the safety filter's time / that "
        "of a 2x256 policy, batch 1,024",
        "closed_loop_filter_time_share": "the same of all that a reactor's bundle holds, lookahead "
        "included, at steps of episodes that a cloned policy and the filter control",
        "shipped_filter_time_share": "the same at states from the whole range of all signals, of "
        "which four in ten have no safe action",
        "accepted_filter_time_share": "the same where episodes start and all proposals are safe",
        "serving_vs_fastapi": "requests/s of 32 plants, served with filter, audit record and fsync "
        "/ the bare policy behind FastAPI and onnxruntime",
        "serving_vs_mosec": "the same / the bare policy behind mosec and onnxruntime, its best",
        "serving_p99_ms": "milliseconds within which 99 % of answers come, at half that load",
    },
}
# The README's: suite and figure, what is measured, against what. Where the first word is not
# "cost", more is better and 1 is a tie: these are the bars of its chart.
HEADLINES = {
    ("grid", "time_to_500"): ("training to the same score", "Sorrel's treasure hunt, PyTorch"),
    ("grid", "time_to_500_with_compile"): (
        "the same, our compile time included",
        "Sorrel's treasure hunt, PyTorch",
    ),
    ("arc", "steps_vs_jaxarc_30x30_1024"): ("ARC steps a second, 1,024 worlds", "JaxARC"),
    ("arc", "steps_vs_arcle_batched"): ("ARC steps a second, 1,024 worlds", "ARCLE"),
    ("robot", "ppo_vs_brax_mjx"): ("training 512 robots on a CPU", "Brax's PPO over MJX"),
    ("plant", "iql_vs_d3rlpy"): ("offline updates a second, IQL", "d3rlpy"),
    ("algos", "ppo_vs_rejax"): ("training CartPole with PPO", "rejax"),
    ("plant", "shipped_filter_time_share"): (
        "cost of the reactor's whole safety filter",
        "its policy network alone",
    ),
}


def markdown(suite: str, result: dict[str, Any]) -> str:
    """The ratios of a result as a Markdown table, with machine and versions under it."""
    rows = ["| figure | measured | what it is |", "|---|---|---|"]
    for name, meaning in MEANING[suite].items():
        value = result["ratios"].get(name)
        shown = "not measured" if value is None else three_figures(value)
        rows.append(f"| `{name}` | {shown} | {meaning} |")
    machine, versions = result["machine"], result["versions"]
    rows += [
        "",
        f"{machine['cpu']}, {machine['cores']} cores; Python {versions['python']}, "
        f"jax {versions['jax']}, {against(suite, result)}; `{result['command']}`; {when(result)}.",
    ]
    return "\n".join(rows)


def against(suite: str, result: dict[str, Any]) -> str:
    """What the suite is measured against, with its version where the result tells it."""
    if suite == "grid":
        return f"torch {result['versions'].get('torch', 'none')}"
    if suite == "robot":
        names = ("mujoco", "mujoco-mjx", "brax")
        return ", ".join(f"{name} {result['versions'].get(name, '')}" for name in names)
    if suite == "algos":
        peer = result["raw"].get("ppo", {}).get("rejax_runs", {}).get("facts", {})
        return f"rejax {peer.get('version', 'none')} on jax {peer.get('jax', 'none')}"
    if suite == "sweep":
        return "ours on both sides"
    facts = result["raw"].get("speed", {}).get("facts", {})
    if suite == "plant":
        peer = facts.get("td3bc", {}).get("d3rlpy_1", {})
        return f"d3rlpy {peer.get('version', 'none')} on torch {peer.get('torch', 'none')}"
    peers = {"JaxARC": "jaxarc", "ARCLE": "arcle_single"}
    return ", ".join(f"{n} {facts.get(key, {}).get('version', '')}" for n, key in peers.items())


def headlines(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The README's table, from the results of all suites."""
    rows = ["| what is measured | compared with | times |", "|---|---|---|"]
    for (suite, name), (what, peer) in HEADLINES.items():
        value = results.get(suite, {"ratios": {}})["ratios"].get(name)
        rows.append(f"| {what} | {peer} | {'not measured' if value is None else times(value)} |")
    return "\n".join(rows)


def times(value: float) -> str:
    return f"{three_figures(value)}x"


def fill(text: str, name: str, filling: str) -> str:
    """`text` with what stands between the markers of that name replaced."""
    pattern = rf"(<!-- figures:{name} -->\n).*?(<!-- /figures:{name} -->)"
    return re.sub(pattern, lambda m: m[1] + filling + "\n" + m[2], text, flags=re.S)


def fill_words(text: str, words: Mapping[str, str]) -> str:
    """`text` with every `<!-- n:NAME -->...<!-- /n -->` in it filled; a KeyError for a new name."""
    return re.sub(
        r"(<!-- n:(\w+) -->).*?(<!-- /n -->)", lambda m: m[1] + words[m[2]] + m[3], text, flags=re.S
    )


def words(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Counts and times within sentences, from the registries and the results."""
    from worldloom import algos, suites
    from worldloom.suites.arc.suite import GAMES

    known = {name: [*suites.suite(name).worlds] for name in ("grid", "arc", "robot", "plant")}
    loops: dict[str, list[str]] = {}
    for name in algos.names():
        if name != "random":
            loops.setdefault(algos.get(name).loop, []).append(f"`{name}`")
    titles = {"on_policy": "on-policy", "off_policy": "off-policy", "offline": "from logged data"}
    listed = [f"{title} {', '.join(loops[loop])}" for loop, title in titles.items()]
    return {
        "algorithms": "; ".join(listed),
        "offline": ", ".join(loops["offline"]),
        "worlds": str(sum(map(len, known.values()))),
        "gridworlds": str(len(known["grid"])),
        "games": str(len(GAMES)),
        "plants": str(len(known["plant"])),
        "hunt_seconds": _hunt_seconds(results.get("grid")),
        "walk_minutes": _walk_minutes(results.get("robot")),
    }


def _hunt_seconds(grid: Mapping[str, Any] | None) -> str:
    """Of treasure hunt to a score of 500, compiling included, with nothing kept from before."""
    cold = (grid or {}).get("raw", {}).get("time_to_500", {}).get("median_seconds", {}).get("cold")
    return "some" if cold is None else str(round(cold))


def _walk_minutes(robot: Mapping[str, Any] | None) -> str:
    """Of `worldloom train biped`: its steps at the measured rate."""
    from worldloom.suites.robot.suite import defaults

    usual = defaults("biped", "ppo")
    sizes = (robot or {}).get("raw", {}).get("levels", {}).get("sizes", {})
    rate = sizes.get(str(usual["num_worlds"]), {}).get("steps_per_second", {}).get("level4")
    return "some" if rate is None else str(math.ceil(usual["steps"] / rate / 60))


def chart(bars: Mapping[str, float | None]) -> str:
    """Speed ratios by label as an SVG bar chart on a log axis."""
    from worldloom.report.plots import Bars, bar_chart

    values = [Bars("", list(bars.values()))]
    options = {"axis_label": "times as fast (1: the same)", "log": True, "baseline": 1.0}
    return bar_chart(list(bars), values, **options, show=times, width=560)


def charts(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Pictures by name: the README's, and that of the algorithms."""
    bars = {
        f"{what}, against {peer}": results[suite]["ratios"].get(name)
        for (suite, name), (what, peer) in HEADLINES.items()
        if suite in results and not what.startswith("cost")
    }
    drawn = {"speed.svg": chart(bars)} if bars else {}
    if "algos" in results:
        ratios = results["algos"]["ratios"]
        labels = {name: name.replace("_vs_", " against ").replace("_", " on ") for name in ratios}
        drawn["speed-algos.svg"] = chart({labels[name]: ratios[name] for name in ratios})
    return drawn


def main(root: Path = Path(".")) -> int:
    """Fills every page under `root` that has a marker, and draws the charts."""
    from worldloom.core.files import write_text

    folder = root / "benchmarks/results"
    found = {suite: folder / f"{suite}.json" for suite in MEANING}
    results = {s: json.loads(path.read_text()) for s, path in found.items() if path.is_file()}
    drawn = {suite: markdown(suite, result) for suite, result in results.items()}
    drawn["headlines"] = headlines(results)
    if results.get("robot", {}).get("raw", {}).keys() >= {"levels", "compile"}:
        drawn["levels"] = tables.levels(results["robot"])
    for suite, section, table in (
        ("arc", "generalisation", tables.generalisation),
        ("grid", "agents", tables.agents),
        ("grid", "cleanup", tables.cleanup),
        ("sweep", "population", tables.population),
    ):
        if section in results.get(suite, {}).get("raw", {}):
            drawn[section] = table(results[suite])
    plant = results.get("plant", {}).get("raw", {})
    # Rows without references beside what learns are of an earlier rule of choice.
    if all("how" in row for row in plant.get("scores") or [{}]):
        drawn["scores"] = tables.scores(results["plant"])
    if all("loops" in row for row in plant.get("plants") or [{}]):
        drawn["plants"] = tables.plants(results["plant"])
    modes = folder / "modes.json"
    if modes.is_file():
        drawn["modes"] = tables.modes(json.loads(modes.read_text()))
    faults = folder / "faults.json"
    if faults.is_file():
        drawn["faults"] = tables.faults(json.loads(faults.read_text()))
    for name, drawing in charts(results).items():
        (root / "docs/images").mkdir(parents=True, exist_ok=True)
        write_text(root / "docs/images" / name, drawing)
    inline = words(results)
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = filled = page.read_text()
        for name, table in drawn.items():
            filled = fill(filled, name, table)
        filled = fill_words(filled, inline)
        if filled != text:
            write_text(page, filled)
            print(f"filled {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
