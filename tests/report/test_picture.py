"""Learning curves as pictures: what they show, and how they are saved and shown."""

import io
import json
import shutil
from itertools import combinations
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from worldloom.report import svg
from worldloom.report.picture import picture, plot
from worldloom.report.plots import Series, line_chart, with_error
from worldloom.training.run import Run

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn):
    root = ElementTree.fromstring(drawn.svg)
    return ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]


def lines(drawn, width="2"):
    """The points of lines of data, in pixels."""
    drawn = ElementTree.fromstring(drawn.svg).iter(f"{SVG}polyline")
    found = [node.get("points").split() for node in drawn if node.get("stroke-width") == width]
    return [[tuple(map(float, point.split(","))) for point in points] for points in found]


def test_a_line_goes_through_its_points_between_the_ticks_of_its_axes():
    chart = line_chart([Series("a", [0, 5, 10], [0.0, 50.0, 100.0])], "steps", "return")
    drawn = picture(chart)
    (points,) = lines(drawn)
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2) != 0
    assert {"steps", "return", "0", "100"} <= set(texts(drawn))
    assert all(0 <= x <= drawn.width and 0 <= y <= drawn.height for x, y in points)


@pytest.mark.parametrize("metric", [None, "agent_returns", "loss", "epsilon"])
def test_nothing_leaves_the_picture_or_lies_on_other_words(run_folder, metric):
    drawn = plot(run_folder, metric)
    boxes = []
    for mark in drawn.marks:
        assert all(0 <= x <= drawn.width and 0 <= y <= drawn.height for x, y in mark.points)
        if mark.kind == "text":
            (x, y), wide = mark.points[0], svg.text_width(mark.text)
            start = x - {"start": 0.0, "middle": wide / 2, "end": wide}[mark.anchor]
            assert start >= 0
            assert start + wide <= drawn.width
            boxes.append((start, y - svg.TEXT_SIZE, start + wide, y))
    for one, other in combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)


def test_gaps_part_a_line_and_errors_are_drawn():
    rows = with_error("e", [1, 2, 3, 4], [1, None, 3, 4], [0.5, None, 0.5, 0.5], dots=True)
    band = Series("b", [1, 2, 3], [1, 2, 3], [0, 1, 2], [2, 3, 4])
    drawn = picture(line_chart([rows, band], "x", "y", references=[("random play", 2.5)]))
    assert [len(points) for points in lines(drawn)] == [1, 2, 3]
    root = ElementTree.fromstring(drawn.svg)
    assert len(list(root.iter(f"{SVG}polygon"))) == 1
    assert len(lines(drawn, "1.4")) == 3, "an error bar for each dot"
    assert {"e", "b", "random play 2.5"} <= set(texts(drawn)), "a legend, and what to compare with"


def test_a_run_draws_its_learning_curve(run_folder):
    drawn = plot(run_folder)
    assert {"training, with exploration", "greedy evaluation ± s.e.", "steps"} <= set(texts(drawn))
    assert any(text.startswith("random play") for text in texts(drawn))
    over_time = plot(run_folder, over="seconds")
    assert "seconds of training" in texts(over_time)


def test_any_metric_is_drawn_with_a_line_for_each_agent(run_folder):
    assert len(lines(plot(run_folder, "agent_returns"))) == 5
    assert {"agent 0", "agent 4"} <= set(texts(plot(run_folder, "agent_returns")))
    (points,) = lines(plot(run_folder, "loss"))
    assert len(points) > 20
    with pytest.raises(ValueError, match="no metric 'los'; did you mean 'loss'"):
        plot(run_folder, "los")
    with pytest.raises(ValueError, match="over='days': curves are drawn over steps or"):
        plot(run_folder, over="days")


def test_a_run_without_a_curve_says_so(run_folder, tmp_path):
    shutil.copy(run_folder / "config.json", tmp_path)
    with pytest.raises(ValueError, match="has no curve yet"):
        plot(tmp_path)


def test_hostile_names_are_text(run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "run")
    name = "<script>alert(1)</script> & more"
    row = {"iteration": 1, "steps": 1, name: 2.0}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    drawn = plot(tmp_path / "run", name)
    assert "<script" not in drawn.svg
    assert name in texts(drawn)


def test_it_is_saved_as_svg_and_as_png_of_the_same_shape(run_folder, tmp_path):
    drawn = plot(run_folder)
    assert drawn.save(tmp_path / "curve.svg").read_text() == drawn.svg == drawn._repr_svg_()
    image = Image.open(drawn.save(tmp_path / "curve.png"))
    assert image.size == (2 * drawn.width, 2 * drawn.height)
    pixels = np.asarray(image.convert("L"))
    assert (pixels[0, 0], pixels[-1, -1]) == (255, 255), "on white paper"
    assert (pixels < 100).mean() > 0.001
    with pytest.raises(ValueError, match=r"curve.jpg: a picture is saved as .svg or .png"):
        drawn.save(tmp_path / "curve.jpg")


def test_a_png_has_ink_where_the_svg_has_its_line():
    drawn = picture(line_chart([Series("a", [0, 1, 2], [0.0, 1.0, 0.5])], "x", "y"))
    pixels = np.asarray(Image.open(io.BytesIO(drawn.png())).convert("RGB")).astype(int)
    (points,) = lines(drawn)
    for x, y in points:
        red, _, blue = pixels[round(2 * y), round(2 * x)]
        assert blue - red > 100, "the palette's first colour is blue"


@pytest.mark.parametrize(("loop", "unit"), [("offline", "updates"), ("on_policy", "steps")])
def test_a_run_has_it_as_a_method(run_folder, loop, unit):
    config = SimpleNamespace(algorithm=SimpleNamespace(loop=loop))
    drawn = Run.plot(SimpleNamespace(folder=run_folder, config=config))
    assert unit in texts(drawn)
