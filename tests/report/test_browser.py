"""The pages in a real browser: nothing broken, nothing loaded, everything on a phone's screen."""

import pytest

from benchmarks.pages.modes import write_comparison
from benchmarks.pages.results import write_bench
from worldloom.suites.grid.page import write_report

pytestmark = pytest.mark.slow

PHONE, DESK = {"width": 360, "height": 740}, {"width": 1200, "height": 900}


@pytest.fixture(scope="module")
def pages(run_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    modes = ("torch_sequential", "jax_sequential", "jax_parallel", "jax_fused")
    rows = [
        {"mode": mode, "num_agents": n, "epochs_per_second": 10.0**i / n, "speedup": 10.0**i,
         "act_ms": 5.0, "train_ms": 9.0 * n, "compile_seconds": 7.0, "memory_mb": 500.0 + n,
         "epoch_ms": 20.0, "observe_ms": 1.0, "sample_ms": 2.0, "loss_ms": 3.0}
        for n in (1, 16) for i, mode in enumerate(modes)
    ]  # fmt: skip
    ratios = {"epochs_per_second_same_arithmetic": 2.9, "world_steps_per_second": 2600.0}
    raw = {"rows": [{f"column number {i}": i for i in range(12)}]}
    return {
        "report": write_report(run_folder),
        "comparison": write_comparison(
            {"task": {"env": "treasurehunt"}, "rows": rows}, folder / "compare.html"
        ),
        "bench": write_bench({"ratios": ratios, "raw": raw}, folder / "bench.html"),
    }


@pytest.fixture
def visit(browser, pages):
    """visit(name, viewport) opens a page; at the end nothing may have gone wrong in any."""
    opened, wrong = [], []

    def visit(name, viewport, **options):
        view = browser.new_page(viewport=viewport, **options)
        opened.append(view)
        view.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
        view.on("pageerror", lambda error: wrong.append(str(error)))
        view.on("requestfailed", lambda request: wrong.append(f"failed: {request.url[:80]}"))
        view.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("data:", "file:"))
                else wrong.append(f"loads {request.url}")
            ),
        )
        view.goto(pages[name].as_uri())
        return view

    yield visit
    for view in opened:
        view.close()
    assert wrong == []


def visible_charts(view):
    return view.evaluate(
        """() => [...document.querySelectorAll('svg.wl-chart')]
            .map(svg => svg.getBoundingClientRect())
            .filter(box => box.width > 0 && box.height > 0)
            .map(box => [box.left, box.right, box.height])"""
    )


@pytest.mark.parametrize("name", ["report", "comparison", "bench"])
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_charts_are_on_screen_and_the_page_does_not_scroll_sideways(visit, name, viewport):
    view = visit(name, viewport)
    assert view.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    boxes = visible_charts(view)
    assert len(boxes) >= {"report": 7, "comparison": 3, "bench": 1}[name]
    for left, right, height in boxes:
        assert left >= 0
        assert right <= viewport["width"]
        assert height > 80


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_chart_text_is_large_enough_to_read(visit, viewport):
    sizes = visit("report", viewport).evaluate(
        """() => [...document.querySelectorAll('svg.wl-chart')]
            .filter(svg => svg.getBoundingClientRect().width > 0)
            .map(svg => parseFloat(getComputedStyle(svg).fontSize)
                * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"""
    )
    assert min(sizes) >= 10


def test_all_images_are_loaded(visit):
    sizes = visit("report", DESK).evaluate(
        "[...document.images].map(image => [image.complete, image.naturalWidth])"
    )
    assert len(sizes) == 3
    assert all(complete and width > 100 for complete, width in sizes)


def test_dark_mode_turns_page_and_charts_dark(visit):
    program = """() => {
        const light = color => color.match(/[0-9]+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 3;
        const style = selector => getComputedStyle(document.querySelector(selector));
        return [light(style('body').backgroundColor), light(style('svg.wl-chart').color)];
    }"""
    paper, ink = visit("report", DESK, color_scheme="light").evaluate(program)
    assert paper > 240
    assert ink < 60
    paper, ink = visit("report", DESK, color_scheme="dark").evaluate(program)
    assert paper < 40
    assert ink > 200


def test_hovering_a_chart_shows_a_guide(visit):
    view = visit("report", DESK)
    column = view.locator(".wide svg .at").nth(30)
    assert column.evaluate("node => getComputedStyle(node).opacity") == "0"
    column.hover(force=True)
    assert column.evaluate("node => getComputedStyle(node).opacity") == "1"


def test_paper_is_white_also_for_readers_in_dark_mode(visit):
    view = visit("report", {"width": 720, "height": 1000}, color_scheme="dark")
    view.emulate_media(media="print", color_scheme="dark")
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(visible_charts(view)) >= 7
