"""Every kind of page in a real browser: nothing broken, loaded, cut or hard to read, any screen."""

import json
import shutil

import pytest

from benchmarks.pages.modes import write_comparison as write_modes
from benchmarks.pages.results import write_bench
from report.looking import DESK, PHONE, assert_legible, assert_reachable, screens
from report.reading import charts
from report.test_sweeps import POPULATION, drawn, sweep
from suites.arc.made_run import make_game_run
from suites.arc.made_run import make_run as make_arc_run
from suites.grid.made_run import make_run as make_grid_run
from suites.plant.made_run import make_dataset
from suites.plant.made_run import make_run as make_plant_run
from suites.robot.made_run import make_walk
from worldloom.report import comparison
from worldloom.report.index_page import write_index
from worldloom.report.populations import write_population
from worldloom.report.sweeps import write_sweep
from worldloom.suites.arc.games.page import write_report as game_report
from worldloom.suites.arc.page import write_report as arc_report
from worldloom.suites.grid.page import write_report as grid_report
from worldloom.suites.plain.page import write_report as plain_report
from worldloom.suites.plant.data_figures import contents
from worldloom.suites.plant.data_page import write_page as write_data
from worldloom.suites.plant.page import write_report as plant_report
from worldloom.suites.robot.page import write_report as robot_report

pytestmark = pytest.mark.slow

# How many charts are drawn by the script, and how many pictures are SVG, on a screen.
KINDS = {
    "grid": (8, 0),
    "rivals": (9, 1),
    "plain": (6, 0),
    "plant": (12, 2),
    "data": (20, 0),
    "arc": (8, 4),
    "robot": (19, 2),
    "comparison": (2, 1),
    "game": (4, 0),
    "index": (4, 0),
    "sweep": (1, 1),
    "space": (1, 3),
    "population": (2, 0),
    "modes": (1, 2),
    "bench": (0, 1),
}

CROSSPLAY = {
    "runs": ["one", "another"], "partners": ["one", "another", "random play"], "episodes": 8,
    "mean": [[1.0, 2.0, 0.5], [2.0, 3.0, 0.7]], "stderr": [[0.1] * 3, [0.2] * 3],
    "mixed": {"another": {"own": [1.0, 2.0, 3.0], "theirs": [2.0, 1.0, 0.5]}},
}  # fmt: skip


def made_pages(run_folder, folder):
    """A page of every kind, from files that are made up; the path of each by its kind."""
    rivals = make_grid_run(folder / "rivals", iterations=8, films=False)
    for name, column in (("metrics", "return"), ("eval", "mean")):
        rows = [json.loads(line) for line in (rivals / f"{name}.jsonl").read_text().splitlines()]
        more = {column: -5.0}
        if name == "eval":
            more |= {"agents": [1, -2, -1, -4, 1], "agents_stderr": [0.1] * 5, "paid": 9.5}
            more |= {"paid_stderr": 0.5, "against_random": 0.7, "against_random_stderr": 0.2}
        text = "".join(json.dumps(row | more) + "\n" for row in rows)
        (rivals / f"{name}.jsonl").write_text(text)
    (rivals / "crossplay.json").write_text(json.dumps(CROSSPLAY))
    plain = shutil.copytree(run_folder, folder / "plain")
    game = make_game_run(_new(folder / "game"))
    shutil.copy(run_folder / "eval.gif", game / "eval.gif")
    space = sweep()
    walk = folder / "walk"
    walk.mkdir()
    shutil.copy(run_folder / "eval.gif", walk / "robot.gif")
    config = {"env": "biped", "algo": "ppo", "seed": 0, "level": 4, "amp": {}}
    about = {"format": 2, "suite": "robot", "config": config, "robot": "biped"}
    (walk / "config.json").write_text(json.dumps(about))
    make_walk(walk)
    rungs = [{"newtons": 5.0 * n, "steps": 10, "survived": 1.0, "held": 0.5 / n} for n in (1, 2)]
    (walk / "ladder.json").write_text(json.dumps(rungs))
    compared = comparison.compare([run_folder, plain], lambda run: run.settings["world"])
    modes = ("torch_sequential", "jax_sequential", "jax_parallel", "jax_fused")
    rows = [
        {"mode": mode, "num_agents": n, "epochs_per_second": 10.0**i / n, "speedup": 10.0**i,
         "act_ms": 5.0, "train_ms": 9.0 * n, "compile_seconds": 7.0, "memory_mb": 500.0 + n,
         "epoch_ms": 20.0, "observe_ms": 1.0, "sample_ms": 2.0, "loss_ms": 3.0}
        for n in (1, 16) for i, mode in enumerate(modes)
    ]  # fmt: skip
    points = [
        {"settings": f"iqn.learning_rate=0.00{n}", "scores": [n, n + 1.0], "mean": n + 0.5,
         "stderr": 0.5, "worst": n, "diverged": 0, "curve": [1.0, n], "steps_per_iteration": 50,
         "seconds": 2.0, "program": 0}
        for n in range(1, 6)
    ]  # fmt: skip
    ratios = {"epochs_per_second_same_arithmetic": 2.9, "world_steps_per_second": 2600.0}
    raw = {"rows": [{f"column number {i}": i for i in range(12)}]}
    return {
        "grid": grid_report(run_folder),
        "rivals": grid_report(rivals),
        "plain": plain_report(plain),
        "plant": plant_report(make_plant_run(folder / "reactor")),
        "data": write_data(folder / "data.html", contents(make_dataset()), None, "data/a.npz"),
        "arc": arc_report(make_arc_run(_new(folder / "arc"))),
        "robot": robot_report(walk),
        "game": game_report(game),
        "index": write_index(folder),
        "comparison": comparison.write_comparison(compared, folder / "comparison.html"),
        "sweep": write_sweep({"results": points, "seeds": 2, "complete": True}, folder / "s.html"),
        "space": write_sweep(space | {"results": drawn(12)}, folder / "space.html"),
        "population": write_population(space | POPULATION, folder / "population.html"),
        "modes": write_modes({"task": {"env": "tag"}, "rows": rows}, folder / "modes.html"),
        "bench": write_bench({"ratios": ratios, "raw": raw}, folder / "bench.html"),
    }


def _new(folder):
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def pages(run_folder, tmp_path_factory):
    return made_pages(run_folder, tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def visit(browser, pages):
    """visit(kind) opens a page; at the end nothing may have gone wrong in any."""
    opened, wrong = {}, []

    def visit(kind):
        if kind not in opened:
            view = opened[kind] = browser.new_page(viewport=DESK)
            view.on("console", lambda message: wrong.append(f"{kind}: {message.text}"))
            view.on("pageerror", lambda error: wrong.append(f"{kind}: {error}"))
            view.on("requestfailed", lambda request: wrong.append(f"failed: {request.url[:80]}"))
            view.on("request", lambda request: _local(request.url) or wrong.append(request.url))
            view.goto(pages[kind].as_uri())
        assert wrong == []
        return opened[kind]

    yield visit
    for view in opened.values():
        view.close()
    assert wrong == []


def _local(url):
    return url.startswith(("data:", "file:"))


def wait_for(view, condition):
    """Waits in the test: where it must wait, playwright would have the page evaluate text."""
    for _ in range(600):
        if view.evaluate(condition):
            return
        view.wait_for_timeout(100)
    raise AssertionError(f"not within a minute: {condition}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_and_legible_on_any_screen(visit, pages, kind):
    view = visit(kind)
    assert pages[kind].stat().st_size < 2_000_000
    for viewport, scheme in screens(view):
        wait_for(
            view,
            "[...document.querySelectorAll('.plot')].every(box => box.clientWidth === "
            "box.querySelector('.u-wrap').clientWidth)",
        )
        seen = assert_legible(view, kind, viewport, scheme)
        assert seen["scroll"] <= viewport["width"]
        assert (len(seen["plots"]), seen["drawings"]) == KINDS[kind]
        assert seen["small"] == 0 or kind == "arc"  # grids of tasks have no text
        assert all(height > 80 for _, _, height in seen["plots"])
        # On a desk only figures of many columns need to be scrolled.
        assert viewport == PHONE or seen["wide"] == 0 or kind in ("bench", "modes", "sweep")
        if scheme == "light":
            view.wait_for_timeout(100)  # for what is told of a new size
            assert_reachable(view, kind, viewport)


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_has_the_same_colour_in_every_chart_of_a_page(pages, kind):
    inks = {}
    for chart in charts(pages[kind].read_text()).values():
        for line in chart["series"]:
            name = line["name"].removesuffix(" ± s.e.")
            if "bars" not in chart:  # of a histogram, whose title says what is counted
                inks.setdefault(name, set()).add(line["color"])
    assert {name: colors for name, colors in inks.items() if len(colors) > 1} == {}


def test_all_images_are_loaded(visit):
    sizes = visit("grid").evaluate(
        "[...document.images].map(image => [image.complete, image.naturalWidth])"
    )
    assert len(sizes) == 3
    assert all(complete and width > 100 for complete, width in sizes)


PAPER_AND_INK = """() => {
    const canvas = document.querySelector('.plot canvas');
    const copy = new OffscreenCanvas(canvas.width, canvas.height);
    const context = copy.getContext('2d', {willReadFrequently: true});
    context.drawImage(canvas, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
    let darkest = 255, lightest = 0;
    for (let i = 0; i < pixels.length; i += 4) {
        if (pixels[i + 3] < 250) continue;
        darkest = Math.min(darkest, pixels[i]);
        lightest = Math.max(lightest, pixels[i]);
    }
    return [getComputedStyle(document.body).backgroundColor, darkest, lightest];
}"""


def test_dark_mode_turns_page_and_charts_dark_and_paper_is_white(visit):
    view = visit("plain")
    view.set_viewport_size(DESK)
    looks = []
    for media, scheme in (("screen", "light"), ("screen", "dark"), ("print", "dark")):
        view.emulate_media(media=media, color_scheme=scheme)
        view.wait_for_timeout(100)
        looks.append(view.evaluate(PAPER_AND_INK))
    view.emulate_media(media="screen")
    (day, ink, _), (night, _, light), (paper, printed, _) = looks
    assert (day, paper) == ("rgb(255, 255, 255)",) * 2
    assert night == "rgb(20, 22, 28)"
    assert ink < 60
    assert light > 200
    assert printed < 60


def test_a_chart_is_read_and_zoomed_by_keys(visit):
    view = visit("grid")
    view.emulate_media(color_scheme="light")
    view.set_viewport_size(DESK)
    plot = view.locator(".plot").first
    assert "Arrow keys" in plot.get_attribute("aria-label")
    assert "random play: 255" in plot.get_attribute("aria-label")
    plot.focus()
    view.keyboard.press("End")
    said = plot.locator(".said").inner_text()
    assert said.startswith("steps 192,000")
    assert "greedy evaluation ± s.e.: 5" in said
    view.keyboard.press("Home")
    assert plot.locator(".said").inner_text().startswith("steps 1,600")
    whole = plot.locator(".whole")
    assert not whole.is_visible()
    view.keyboard.press("+")
    whole.wait_for(state="visible")
    view.keyboard.press("Escape")
    whole.wait_for(state="hidden")


def test_a_drag_zooms_and_the_legend_says_what_is_under_the_mouse(visit):
    view = visit("grid")
    view.set_viewport_size(DESK)
    plot = view.locator(".plot").first
    over = plot.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    middle = box["y"] + box["height"] / 2
    view.mouse.move(box["x"] + 2, middle)
    first = plot.locator(".u-legend .u-value").first
    start = first.inner_text()
    assert start == "1,600"
    view.mouse.move(box["x"] + 0.25 * box["width"], middle)
    view.mouse.down()
    view.mouse.move(box["x"] + 0.5 * box["width"], middle, steps=4)
    assert first.inner_text() != start
    view.mouse.up()
    plot.locator(".whole").click()
    plot.locator(".whole").wait_for(state="hidden")
    switch = plot.locator(".u-legend th[role=switch]").first
    switch.press("Enter")
    wait_for(view, "document.querySelector('.u-legend [aria-checked=false]') !== null")
    switch.press("Enter")


def test_a_band_that_is_no_error_is_told_by_its_ends(visit):
    view = visit("plant")
    plot = view.locator(".plot", has_text="runaway: margin, K")
    plot.focus()
    view.keyboard.press("End")
    assert "filtered: 5 (5 to 25)" in plot.locator(".said").inner_text()


LISTEN = """
const own = CanvasRenderingContext2D.prototype, {fillText, lineTo} = own;
window.drawn = new Map();
const of = context => window.drawn.get(context.canvas)
    || window.drawn.set(context.canvas, {names: [], lines: []}).get(context.canvas);
own.fillText = function (text, x, y) {
    const wide = this.measureText(text).width, left = this.textAlign === 'right' ? x - wide : x;
    if (/[a-z]{4}/.test(text) && this.textAlign !== 'center')
        of(this).names.push([text, left, left + wide, y]);
    return fillText.apply(this, arguments);
};
own.lineTo = function (x, y) {
    if (this.getLineDash().length) of(this).lines.push(y);
    return lineTo.apply(this, arguments);
};
"""


def test_no_name_of_a_reference_lies_over_another_reference_or_name(browser, pages):
    for viewport in (DESK, PHONE):
        view = browser.new_page(viewport=viewport)
        view.add_init_script(LISTEN)
        view.goto(pages["plant"].as_uri())
        charts_drawn = view.evaluate("[...window.drawn.values()]")
        view.close()
        assert sum(len(chart["names"]) for chart in charts_drawn) >= 6
        for chart in charts_drawn:
            names = {tuple(name) for name in chart["names"]}
            for name, left, right, base in names:
                assert not [y for y in chart["lines"] if base - 11 < y < base + 2], name
                for other, start, end, below in names - {(name, left, right, base)}:
                    apart = right <= start or end <= left or abs(base - below) >= 14
                    assert apart, (name, other)


def test_tables_are_sorted_by_any_column(visit):
    view = visit("sweep")
    rows = "[...document.querySelectorAll('.scroll tr')].slice(1, 6)"
    means = f"{rows}.map(row => row.cells[1].textContent)"
    button = view.locator("thead th button").nth(1)
    button.click()
    assert view.evaluate(means) == ["1.5", "2.5", "3.5", "4.5", "5.5"]
    button.click()
    assert view.evaluate(means) == ["5.5", "4.5", "3.5", "2.5", "1.5"]
    assert view.locator("th[aria-sort=descending]").count() == 1


def test_without_scripts_a_chart_is_told_in_words(browser, pages):
    view = browser.new_page(viewport=PHONE, java_script_enabled=False)
    view.goto(pages["grid"].as_uri())
    assert "greedy evaluation ± s.e.: 8 points from" in view.locator(".plot").first.inner_text()
    view.close()
