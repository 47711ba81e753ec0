"""Charts hold the data they were given, on axes that cover it."""

import itertools
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldloom.report import axes, svg
from worldloom.report.colors import PALETTE, rgb, series_color
from worldloom.report.plots import Bars, Series, bar_chart, line_chart, with_error

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('x')</script> & \"more\""


def parse(text):
    return ElementTree.fromstring(text)


def all_text(root, tag="text"):
    return ["".join(node.itertext()) for node in root.iter(SVG + tag)]


def group(root, name):
    return [node for node in root.iter(SVG + "g") if node.get("class") == name]


def number_of(text):
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    text = text.replace(",", "").replace(axes.MINUS, "-")
    return float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)


def axis_map(root, name, log=False):
    """From pixels back to values, read from the axis as a person would: its ticks and labels."""
    (axis,) = group(root, name)
    along, across = ("y1", "y2") if name == "y-axis" else ("x1", "x2")
    pixels = [
        float(line.get(along))
        for line in axis.iter(SVG + "line")
        if line.get(along) == line.get(across)
    ]
    labels = [number_of(text) for text in all_text(axis)[: len(pixels)]]
    values = np.log10(labels) if log else np.array(labels)
    slope, start = np.polyfit(pixels, values, 1)
    return lambda pixel: (10 ** (slope * pixel + start)) if log else slope * pixel + start


# Axes --------------------------------------------------------------------------------------------


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 12))
def test_nice_ticks_cover_the_data_in_equal_round_steps(low, spread, count):
    high = low + spread
    if high - low < 1e-9 * max(abs(low), abs(high)):
        return  # closer together than any axis could show
    ticks = axes.nice_ticks(low, high, count)
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low + 1e-6 * step
    assert ticks[-1] >= high - 1e-6 * step
    assert np.allclose(np.diff(ticks), step, rtol=1e-3)
    assert 2 <= len(ticks) <= 2 * count + 2
    assert float(f"{step:.1e}") == pytest.approx(step, rel=1e-3)  # at most two digits


@given(st.floats(1e-8, 1e8), st.floats(1, 1e9), st.integers(2, 10))
def test_a_log_axis_covers_the_data_with_few_round_ticks(low, factor, count):
    high = low * factor
    start, end = axes.log_limits(low, high)
    assert start <= low * 1.000001
    assert end >= high * 0.999999
    assert start < end
    ticks = axes.log_ticks(start, end, count)
    assert len(ticks) >= 1
    assert all(f"{tick:.0e}"[0] in "125" for tick in ticks)
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= count + 3


def test_ticks_of_a_constant_and_of_nothing():
    assert axes.nice_ticks(5, 5)[0] < 5 < axes.nice_ticks(5, 5)[-1]
    assert axes.nice_ticks(0, 0)[0] < 0 < axes.nice_ticks(0, 0)[-1]
    empty = axes.scale([math.nan], 0, 100)
    assert (empty.low, empty.high) == (0, 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12345.6, "12,346"),
        (4.567, "4.57"),
        (0.00123, "0.00123"),
        (1.2e-7, "1.2e\u22127"),
        (-3.5, "\u22123.5"),
        (100.0, "100"),
        (2e9, "2e9"),
        (None, "\u2013"),
        (math.nan, "\u2013"),
        (math.inf, "\u2013"),
    ],
)
def test_numbers_read_well(value, text):
    assert axes.number(value) == text


def test_tick_labels_tell_neighbours_apart():
    for ticks in ([0, 2500, 5000], [0, 10000, 20000], [0, 2.5e6, 5e6], [0.001, 0.0015, 0.002]):
        labels = axes.tick_labels(ticks)
        assert len(set(labels)) == len(labels)
        assert [number_of(label) for label in labels] == pytest.approx(ticks)


# Line charts -------------------------------------------------------------------------------------


def spec(*series, **options):
    return line_chart(series, **options)["spec"]


def test_a_line_holds_every_point_in_the_order_of_x():
    chart = spec(Series("loss", [2, 0, None, 1], [30.0, 10.0, 99.0, 20.0]))
    assert chart["series"][0]["x"] == [0, 1, 2]
    assert chart["series"][0]["y"] == [10, 20, 30]
    assert chart["range"] == [10, 30]


def test_none_and_nan_are_gaps():
    assert spec(Series("a", range(3), [1, None, math.nan]))["series"][0]["y"] == [1, None, None]


def test_a_band_surrounds_its_line_and_ends_where_the_error_is_unknown():
    chart = spec(with_error("greedy", [0, 1, 2, 3], [10, 20, 30, 40], [1, 2, 3, None]))
    (line,) = chart["series"]
    assert line["low"] == [9, 18, 27, None]
    assert line["high"] == [11, 22, 33, None]
    assert chart["range"][0] <= 9


def test_a_log_axis_leaves_out_what_it_cannot_show():
    chart = spec(Series("loss", range(4), [1, 0, -2, 100]), log_y=True, references=[("none", 0.0)])
    assert chart["series"][0]["y"] == [1, None, None, 100]
    assert chart["range"] == [1, 100]
    assert chart["references"] == []


def test_an_axis_is_never_shorter_than_the_noise_of_what_it_shows():
    rounding = spec(Series("sum", range(3), [-5.000001, -5.0, -4.999999]))
    assert rounding["range"][0] <= -5
    assert rounding["range"][1] == 0
    low, high = spec(Series("sum", range(2), [0.0, 1e-6]), noise=0.1)["range"]
    assert high - low >= 0.1
    constant = spec(Series("c", range(2), [0.0, 0.0]))["range"]
    assert constant[0] < 0 < constant[1]


def test_shares_run_from_0_to_100_per_cent():
    assert spec(Series("solved", range(2), [3.0, 4.0]), share=True)["range"] == [0, 100]
    root = parse(bar_chart(["a"], [Bars("", [3.0])], share=True))
    assert {"0", "100"} <= set(all_text(root))


def test_a_reference_is_named_and_on_the_axis():
    chart = spec(Series("a", [0, 1], [300, 500]), references=[("random play", 255)])
    assert chart["references"] == [["random play", 255]]
    assert chart["range"][0] <= 255


def test_a_reference_far_away_is_named_but_does_not_flatten_the_lines():
    chart = spec(Series("a", [0, 1], [300, 500]), references=[("random play", -90_000)])
    assert chart["references"] == [["random play", -90_000]]
    assert chart["range"] == [300, 500]
    # One that is several spans away belongs to the picture.
    near = spec(Series("a", [0, 1], [520, 530]), references=[("random play", 255)])
    assert near["range"][0] <= 255


def test_nobody_can_zoom_below_the_error_of_what_is_shown():
    chart = spec(with_error("greedy", [0, 1, 2], [10, 20, 30], [1, 2, 3]))
    assert chart["noise"] == 4  # the median of the bands
    assert spec(Series("a", [0, 1], [10, 20]))["noise"] < 0.01


def test_several_series_have_colours_of_their_own():
    chart = spec(*(Series(f"agent {i}", [0, 1], [i, i]) for i in range(12)))
    assert len({line["color"] for line in chart["series"]}) == 12
    with pytest.raises(ValueError, match="use a place in the palette"):
        spec(Series("a", [0], [1], color='red" onload="alert(1)'))


def test_a_chart_is_told_in_words_for_those_who_do_not_see_it():
    said = line_chart(
        [Series("training", [0, 10, 20], [250.0, None, 300.5])],
        x_label="epoch",
        y_label="return",
        references=[("random play", 255)],
    )["summary"]
    assert said == (
        "return: return over epoch. training: 2 points from 250 to 300.5, all in 250 to 300.5. "
        "random play: 255."
    )


def test_empty_charts_are_charts():
    assert spec()["range"] == [0, 1]
    assert spec(Series("nothing", [], []))["series"][0]["x"] == []
    assert spec(Series("unknown", [0, 1], [None, math.nan]), log_y=True)["range"] == [1, 10]
    for chart in (
        bar_chart([], []),
        bar_chart(["a"], [Bars("", [None])], log=True),
        bar_chart(["a"], [Bars("", [1.0], errors=[math.nan])]),
    ):
        assert parse(chart).tag == SVG + "svg"
        assert "nan" not in chart


def test_columns_of_different_lengths_are_refused_by_name():
    with pytest.raises(ValueError, match=r"series 'loss': y has 1 values for 2 x"):
        Series("loss", [0, 1], [1])
    with pytest.raises(ValueError, match=r"bars 'fused': 2 values for 1 labels"):
        bar_chart(["a"], [Bars("fused", [1, 2])])


@pytest.mark.parametrize("width", [340, 880])
def test_text_stays_inside_the_picture(width):
    labels = ["epochs per second, same arithmetic", "b"]
    charts = (
        bar_chart(["x"], [Bars("a", [3e5], 0, [1e4])], width, references=[("random play", 2e5)]),
        bar_chart(labels, [Bars("", [0.0001, 123456])], log=True, baseline=1, width=width),
        bar_chart(["x", "y"], [Bars("one", [3, 4])], width=width),
    )
    for root in map(parse, charts):
        for node in root.iter(SVG + "text"):
            size = svg.text_width(node.text)
            x = float(node.get("x"))
            start = x - {"start": 0, "middle": 0.5, "end": 1}[node.get("text-anchor")] * size
            assert start > -6, node.text
            assert start + size < width + 12, node.text
            assert 0 < float(node.get("y")) <= float(root.get("height"))


# Bars --------------------------------------------------------------------------------------------


def bars_of(root):
    return [node for node in root.iter(SVG + "rect") if node.get("class") == "bar"]


def test_lying_bars_are_as_long_as_their_values_and_say_them():
    root = parse(bar_chart(["fused", "torch"], [Bars("", [300, 75])], axis_label="epochs/s"))
    long, short = (float(bar.get("width")) for bar in bars_of(root))
    assert long / short == pytest.approx(4, rel=0.01)
    assert {"300", "75", "fused", "torch", "epochs/s"} <= set(all_text(root))
    assert all_text(root, "title") == ["fused: 300", "torch: 75"]


def test_ratios_below_one_point_the_other_way():
    chart = bar_chart(["slower", "faster"], [Bars("", [0.1, 10])], log=True, baseline=1.0)
    slower, faster = bars_of(parse(chart))
    assert float(slower.get("x")) < float(faster.get("x"))
    end_of_slower = float(slower.get("x")) + float(slower.get("width"))
    assert end_of_slower == pytest.approx(float(faster.get("x")), abs=0.2)
    assert float(slower.get("width")) == pytest.approx(float(faster.get("width")), rel=0.01)


def test_a_log_bar_grows_by_the_same_length_for_each_factor_of_ten():
    chart = bar_chart(list("abc"), [Bars("", [10, 100, 1000])], log=True, baseline=1.0)
    lengths = [float(bar.get("width")) for bar in bars_of(parse(chart))]
    assert np.diff(lengths) == pytest.approx([lengths[0]] * 2, rel=0.01)


def test_errors_and_references_stand_where_their_values_say():
    bars = Bars("", [100.0, 50.0], [3, 4], errors=[10.0, None])
    root = parse(bar_chart(["a", "b"], [bars], references=[("random play", 50.0)]))
    long, short = bars_of(root)
    end = float(long.get("x")) + float(long.get("width"))
    scale = float(long.get("width")) / 100.0
    whisker = [n for n in root.iter(SVG + "line") if n.get("stroke-width") == "1.6"]
    assert len(whisker) == 1
    ends = [float(whisker[0].get(name)) for name in ("x1", "x2")]
    assert ends == pytest.approx([end - 10 * scale, end + 10 * scale], abs=0.2)
    assert long.get("style") != short.get("style")
    assert {"100 ± 10", "50", "random play 50"} <= set(all_text(root))
    (reference,) = group(root, "reference")
    place = float(reference.find(SVG + "line").get("x1"))
    assert place == pytest.approx(float(short.get("x")) + float(short.get("width")), abs=0.2)


def test_a_missing_value_is_no_bar_and_says_so():
    root = parse(bar_chart(["a", "b"], [Bars("", [None, 2])]))
    assert len(bars_of(root)) == 1
    assert "not measured" in all_text(root)


# Looks -------------------------------------------------------------------------------------------


def test_hostile_names_stay_text():
    chart = bar_chart(
        [HOSTILE, "b"], [Bars(HOSTILE, [1, 2]), Bars("b", [1, 2])], axis_label=HOSTILE
    )
    root = parse(chart)
    assert "<script" not in chart
    assert any(HOSTILE in text for text in all_text(root))


def test_drawings_load_nothing_and_follow_the_colour_of_the_page():
    chart = bar_chart(["a"], [Bars("", [1.0])])
    assert not re.search(r"href|url\(|@import|<script|<image", chart)
    assert 'fill="currentColor"' in chart
    assert "prefers-color-scheme:dark" in chart
    assert f"var(--wl-1,{PALETTE[0]})" in chart


# Machado, Oliveira and Fernandes (2009), severity 1, in linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def linear(color):
    share = np.array(rgb(color)) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(light):
    """CIE L*a*b* of linear sRGB."""
    to_xyz = [[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]]
    x, y, z = (np.array(to_xyz) @ light.clip(0, 1)) / [0.9505, 1.0, 1.0888]
    fx, fy, fz = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_stay_apart_for_colour_blind_readers(vision):
    seen = [lab(np.array(VISIONS[vision]) @ linear(color)) for color in PALETTE]
    apart = [math.dist(a, b) for a, b in itertools.combinations(seen, 2)]
    first = [math.dist(a, b) for a, b in itertools.combinations(seen[:5], 2)]
    assert min(apart) > 15
    assert min(first) > 25  # five agents are the usual number


@pytest.mark.parametrize(("page", "contrast"), [("#ffffff", 2.2), ("#14161c", 3.0)])
def test_colours_are_legible_on_light_and_dark_pages(page, contrast):
    def luminance(color):
        return float(linear(color) @ [0.2126, 0.7152, 0.0722])

    for color in PALETTE:
        dark, light = sorted([luminance(color), luminance(page)])
        assert (light + 0.05) / (dark + 0.05) >= contrast


def test_agents_beyond_the_palette_have_colours_of_their_own():
    colors = [series_color(i) for i in range(40)]
    assert len(set(colors)) == 40
    assert all(re.fullmatch(r"#[0-9a-f]{6}", color) for color in colors)
