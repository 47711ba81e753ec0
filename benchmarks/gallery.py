"""docs/gallery.md and docs/gallery/: every world that comes with the library, from the registry.

python -m benchmarks.gallery             the pages
python -m benchmarks.gallery --draw      their pictures and that of the safety filter, too (minutes)
python -m benchmarks.gallery --measure   their scores, and films of gridworlds and games (an
                                         hour); of some, if it names them: WORLD or WORLD:ALGORITHM
"""

import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks import gallery_scores
from worldloom import suites
from worldloom.core.protocols import PureEnv
from worldloom.core.spaces import Dict, Discrete
from worldloom.suites.arc.suite import GAMES

IMAGES = Path("docs/images")
# Worlds that other pages have a film or a drawing of.
PICTURES = {"treasurehunt": "treasurehunt.gif", "arc": "arc-episode.svg", "biped": "biped.gif"}
TURNS = 25  # of random play before a gridworld's picture is taken
PAGES = {"grid": "grid.md", "arc": "arc.md", "robot": "robot.md", "plant": "plant.md"}
SIGN = "<!-- Written by `python -m benchmarks.gallery` from the registry of worlds. -->"


# The pages ---------------------------------------------------------------------------------------


def pages(scripted: Mapping[str, str], baselines: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Markdown by its path in docs/: all worlds at a glance, and one page for each of them.

    scripted: lines that have been measured by world; baselines: scores by world.
    """
    worlds = {suite: tuple(suites.suite(suite).worlds) for suite in PAGES}
    parts = [
        "# Gallery",
        SIGN,
        "Every world that comes with the library, each with a page: film, spaces, options, scores. "
        "The score here is that of the better of two short trainings. "
        "`worldloom.make(NAME, **options)` makes one, "
        "`worldloom train NAME --world.OPTION VALUE` trains in it.",
    ]
    written = {}
    for suite, about in PAGES.items():
        cards = []
        for name in worlds[suite]:
            picture, page = small_picture(suite, name, root), f"gallery/{name}.md"
            lines = [f"- [![{name}](images/{picture})]({page})", f"[**{name}**]({page})"]
            lines += [suites.names(suite)[name]]
            lines += [gallery_scores.headline(baselines[name])] if name in baselines else []
            cards.append("\n\n    ".join(lines))
            written[f"gallery/{name}.md"] = entry(
                suite, name, scripted.get(name, ""), baselines.get(name), root
            )
        parts += [f"## {suite.capitalize()}", f"[About the suite]({about})."]
        parts += ['<div class="cards" markdown>', *cards, "</div>"]
    return {"gallery.md": "\n\n".join(parts) + "\n"} | written


def entry(suite: str, name: str, score: str, baseline: Mapping[str, Any] | None, root: Path) -> str:
    """The page of a world: picture, description, spaces, options, and scores if there are any."""
    env, text = suites.make(name), suites.names(suite)[name]
    seen, done = space_text(env.spec.observation), space_text(env.spec.action)
    if suite == "plant":
        seen, done = signals_text(env.base.plant.observation), signals_text(env.base.plant.action)
    rows = {
        "agents": env.spec.num_agents,
        "observation": seen,
        "action": done + (" each" if env.spec.num_agents > 1 else ""),
        "steps of an episode": env.spec.horizon or "no fixed number",
        "options": options_text(suite, name, env),
    }
    rows |= {"scripted controllers": score} if score else {}
    facts = [f"- **{key}**: {value}" for key, value in rows.items()]
    missing = f"Not measured yet: `{gallery_scores.COMMAND} {name}`."
    parts = [
        f"# {name}",
        SIGN,
        text[0].upper() + text[1:] + f". A world of the [{suite} suite](../{PAGES[suite]}).",
        f"![{name}](../images/{picture_name(suite, name, root)}){{ width=480 }}",
        f"```console\n$ worldloom train {name}\n```",
        "\n".join(facts),
        "## Scores",
        gallery_scores.table(name, baseline) if baseline else missing,
        f"{gallery_scores.NOTE} `{gallery_scores.COMMAND} {name}` measures them again.",
    ]
    return "\n\n".join(parts) + "\n"


def picture_name(suite: str, name: str, root: Path = Path(".")) -> str:
    """A film of a gridworld or a game where one was made; else its picture."""
    if name not in PICTURES and (root / IMAGES / f"worlds/{name}.gif").is_file():
        return f"worlds/{name}.gif"
    return small_picture(suite, name, root)


def small_picture(suite: str, name: str, root: Path = Path(".")) -> str:
    """A picture that keeps still, where there is one."""
    still = f"worlds/{name}.{'svg' if suite == 'plant' else 'png'}"
    return still if (root / IMAGES / still).is_file() else PICTURES.get(name, still)


def space_text(space: Any) -> str:
    """A space in words."""
    if isinstance(space, Dict):
        return ", ".join(f"`{name}`: {space_text(inner)}" for name, inner in space.items)
    shape = " x ".join(map(str, space.shape))
    if isinstance(space, Discrete):
        return f"{shape} of {space.n:,} values" if shape else f"one of {space.n:,}"
    ends = f"[{space.low:g}, {space.high:g}]"
    return f"{shape or 'one'} {space.dtype} in {ends}"


def signals_text(signals: Sequence[Any]) -> str:
    """A plant's signals with their units and ranges."""
    ends = [f"{s.low:g} to {s.high:g}{'' if s.unit == '1' else ' ' + s.unit}" for s in signals]
    return ", ".join(f"`{s.name}` {end}" for s, end in zip(signals, ends, strict=True))


def options_text(suite: str, name: str, env: PureEnv) -> str:
    """The options of a world, with defaults where they are short."""
    if suite == "plant":
        numbers = [*vars(env.base.params.physics), *(limit.name for limit in env.base.plant.limits)]
        named = "`disturbance=1.0`, `drift=0.0`, `horizon`, and its numbers and limits: "
        return named + ", ".join(f"`{n}`" for n in dict.fromkeys(numbers))
    rules = suites.suite(suite).rules_of(name)
    if rules:
        known = {field.name: field.default for field in fields(rules)}
    else:
        parameters = suites.world_parameters(name) or {}
        known = {n: p.default for n, p in parameters.items()}
    return ", ".join(f"`{n}={value!r}`" if short(value) else f"`{n}`" for n, value in known.items())


def short(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) and len(repr(value)) < 20


def measured_scores(result: Mapping[str, Any]) -> dict[str, str]:
    """Mean returns of the scripted controllers of each plant, as `bench plant` measured them."""
    returns: dict[str, dict[str, float]] = {}
    for row in result["raw"].get("plants", []):
        returns.setdefault(row["plant"], {})[row["quality"]] = row["data"]
    return {
        name: "mean return with logged data of each quality: "
        + ", ".join(f"{q} {by[q]:,.0f}" for q in ("random", "medium", "expert") if q in by)
        for name, by in returns.items()
    }


# Pictures ----------------------------------------------------------------------------------------


def grid_picture(env: PureEnv, path: Path) -> None:
    """A gridworld after some turns of random play."""
    import jax

    from worldloom.core.transforms import base_state
    from worldloom.suites.grid.render import frames

    params, key = env.default_params(), jax.random.key(1)
    state, _ = jax.jit(env.reset)(key, params)
    step, states = jax.jit(env.step), [base_state(state)]
    for turn in range(TURNS):
        act, now = jax.random.split(jax.random.fold_in(key, turn))
        actions = jax.random.randint(act, (env.spec.num_agents,), 0, env.spec.action.n)
        state, _ = step(now, state, actions, params)
        states.append(base_state(state))
    stacked = jax.tree.map(lambda *x: jax.numpy.stack(x), *states)
    frames(env.base, stacked, caption=False)[-1].save(path, optimize=True)


def game_picture(env: PureEnv, path: Path) -> None:
    """The first frame of a game."""
    import numpy as np
    from PIL import Image

    Image.fromarray(np.asarray(env.render())).save(path, optimize=True)


def plant_picture(name: str, env: PureEnv) -> str:
    """An episode of a plant's first limited signal under its scripted controller, as SVG."""
    from worldloom.report.plots import Series, line_chart
    from worldloom.suites.plant.datasets import make_data
    from worldloom.suites.plant.episode import Clock

    plant, steps = env.base.plant, int(env.default_params().horizon)
    data = make_data(name, "expert", steps)
    steps = int(data.starts[1]) if len(data.starts) > 1 else data.size
    limited = next(limit.signal for limit in plant.limits if limit.kind != "rate")
    signals = {signal.name: i for i, signal in enumerate(plant.observation)}
    clock = Clock(steps, plant.step_seconds)
    values = data.rows.obs[:steps, signals[limited]][clock.starts]
    references = [
        (limit.name.replace("_", " "), limit.bound)
        for limit in plant.limits
        if limit.signal == limited and limit.kind != "rate"
    ]
    label = f"{limited.replace('_', ' ')}, {plant.observation[signals[limited]].unit}"
    line = Series("scripted controller", clock.edges[:-1], values.tolist())
    return still(line_chart([line], f"time, {clock.unit}", label, references=references), 480, 260)


def still(chart: Mapping[str, Any], width: int, height: int) -> str:
    """A page's line chart as SVG, for an image that stands alone; without bands and shades."""
    from worldloom.report import svg
    from worldloom.report.axes import number, scale, tick_labels

    spec = chart["spec"]
    inks = [f"var({line['color']})" for line in spec["series"]]
    legend, used = svg.legend([line["name"] for line in spec["series"]], inks, width)
    top, bottom, left = used + 26, height - 44, 46
    across = scale([x for line in spec["series"] for x in line["x"]], left, width - 12)
    up = scale(spec["range"], bottom, top)
    parts = [legend, svg.text(0, used + 14, spec["y_label"], dim=True)]
    parts.append(svg.x_axis(across, top, bottom, spec["x_label"]))
    for y, words in zip(map(float, up(up.ticks)), tick_labels(up.ticks), strict=True):
        parts += [
            svg.line(left, y, width - 12, y, 0.14),
            svg.text(left - 6, y + 4, words, "end", True),
        ]
    for name, value in spec["references"]:
        y = float(up(value))
        parts.append(svg.line(left, y, width - 12, y, 0.6, ' stroke-dasharray="5 4"'))
        parts.append(svg.text(width - 14, y - 5, f"{name} {number(value)}", "end"))
    for line, ink in zip(spec["series"], inks, strict=True):
        ys = up([math.nan if y is None else y for y in line["y"]])
        points = zip(across(line["x"]), ys, strict=True)
        runs = " ".join(f"{x:.1f},{y:.1f}" if math.isfinite(y) else "|" for x, y in points)
        parts += [
            f'<polyline points="{run.strip()}" fill="none" style="stroke:{ink}" stroke-width="2"/>'
            for run in runs.split("|")
            if run.strip()
        ]
    return svg.chart(parts, width, height, chart["title"])


def arc_picture() -> str:
    """A task solved in five operations, as they would be done by hand: copy, and mirror it."""
    import numpy as np

    from worldloom.suites.arc.command import find_task
    from worldloom.suites.arc.draw import Shot, episode_picture
    from worldloom.suites.arc.environment import NAMES

    pair = find_task("mirror-beside", "examples", None).tests[0]
    start, target = (np.asarray(grid) for grid in (pair.input, pair.output))
    height, width = start.shape
    wide = np.hstack([start, np.zeros_like(start)])
    everywhere = np.argwhere(np.ones_like(start, bool))
    steps = [
        (start, "copy", everywhere),
        (start, "resize", [[height - 1, 2 * width - 1]]),
        (wide, "paste", [[0, width]]),
        (np.hstack([start, start]), "flip columns", everywhere + np.array([0, width])),
        (target, "submit", None),
    ]
    shots = [Shot(grid, NAMES["edit"].index(name), where) for grid, name, where in steps]
    picture = episode_picture([*shots, Shot(target)], target=target, solved=True, width=480)
    return picture.svg("episode")


def filter_picture() -> str:
    """A reactor under a policy cloned from a mediocre controller, bare and behind its filter."""
    import numpy as np

    import worldloom
    from worldloom.report.plots import Series
    from worldloom.suites.plant import charts, episode

    with tempfile.TemporaryDirectory() as folder:
        sizes = {"steps": 1_000, "data_steps": 20_000, "ope_updates": 0, "eval_episodes": 32}
        out = Path(folder) / "run"
        run = worldloom.train(
            "reactor", algo="bc", dataset="medium", report=False, out=out, **sizes
        )
    plant, result = run.problem.env.base.plant, run.evaluation
    both = result.bare_trajectories, result.filtered_trajectories
    facts = charts.PlantFacts(plant.observation, plant.action, plant.limits, plant.step_seconds)
    chosen = episode.closest_episode(both[0], facts)
    clock = episode.Clock(len(both[0].alive), plant.step_seconds)
    index = [signal.name for signal in plant.observation].index("temperature")
    lines = []
    for (name, ink), played in zip(episode.WAYS, both, strict=True):
        y = np.where(played.alive[:, chosen], played.obs[:, chosen, index], np.nan)
        label = {"bare": "policy alone", "filtered": "policy behind the filter"}[name]
        lines.append(Series(label, clock.edges[:-1], y[clock.starts].tolist(), color=ink))
    bound = next(limit.bound for limit in plant.limits if limit.name == "runaway")
    label, limit = "reactor temperature, K", [("limit", bound)]
    return still(episode.over_time(lines, clock, both[1], chosen, label, limit), 560, 300)


def draw(images: Path) -> None:
    """All pictures that no other page has."""
    from worldloom.core.files import write_text

    (images / "worlds").mkdir(parents=True, exist_ok=True)
    for suite in PAGES:
        for name in suites.suite(suite).worlds:
            if suite == "grid":
                grid_picture(suites.make(name), images / f"worlds/{name}.png")
            elif name in GAMES:
                game_picture(suites.make(name), images / f"worlds/{name}.png")
            elif suite == "plant":
                picture = plant_picture(name, suites.make(name))
                write_text(images / f"worlds/{name}.svg", picture)
    write_text(images / "arc-episode.svg", arc_picture())
    write_text(images / "plant-filter.svg", filter_picture())


def main(argv: list[str], root: Path = Path(".")) -> int:
    from worldloom.core.files import write_text

    if "--measure" in argv:
        names = [word for word in argv if not word.startswith("-")]
        films = root / IMAGES / "worlds"
        return gallery_scores.measure(root / gallery_scores.RESULT, names, films)
    if "--draw" in argv:
        draw(root / IMAGES)
    for path, text in written(root).items():
        (root / "docs" / path).parent.mkdir(exist_ok=True)
        write_text(root / "docs" / path, text)
    return 0


def written(root: Path) -> dict[str, str]:
    """The pages as the results of a checkout have them."""
    plants = json.loads((root / "benchmarks/results/plant.json").read_text())
    scores = json.loads((root / gallery_scores.RESULT).read_text())
    return pages(measured_scores(plants), scores["raw"], root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
