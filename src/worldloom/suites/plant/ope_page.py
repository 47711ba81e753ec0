"""What the data alone said of a policy, beside the truth; and whether it leaves the data."""

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from typing import Any, NamedTuple

from worldloom.algos.off_policy_evaluation import ENOUGH_EPISODES
from worldloom.report import page, svg
from worldloom.report.axes import Scale, number, scale
from worldloom.report.runs import Run, is_number
from worldloom.suites.plant.charts import BARE, LOGGED, percent
from worldloom.suites.plant.ope import NOISE

_OFTEN, _MOSTLY = 0.15, 0.4  # of the policy's wishes outside of the data; 0.05 is the data's own
_TITLE = "From the data alone"


class Interval(NamedTuple):
    """An estimate and both ends of its interval; None where there is no number."""

    name: str
    value: float | None
    low: float | None
    high: float | None

    def holds(self, truth: float | None) -> str | None:
        """Whether the truth is inside, for people; None if that cannot be said."""
        if truth is None or self.low is None or self.high is None:
            return None
        return "yes" if self.low <= truth <= self.high else "no"


def estimates(ope: Mapping[str, Any], run: Run) -> page.Part:
    """What could be known before the plant was touched, beside what then came out."""
    if "data" not in run.about:
        return None  # it learned in the plant
    given = ope.get("estimates")
    given = [row for row in given if isinstance(row, dict)] if isinstance(given, list) else []
    support = _support(ope.get("support"))
    if not given and not support:
        none = "No off-policy estimate was asked for (ope_updates is 0)."
        return None if run.settings.get("ope_updates", 1) else page.section(_TITLE, none)
    truth, logged = _number(ope.get("true_return")), _number(ope.get("logged_return"))
    named = (("in truth", truth, BARE), ("logged data", logged, LOGGED))
    marks = [(name, value, ink) for name, value, ink in named if value is not None]
    intervals = [
        Interval(str(row.get("method")), *(_number(row.get(n)) for n in ("value", "low", "high")))
        for row in given
    ]
    title = "Estimates beside the truth" if truth is not None else "Estimates"
    label = "discounted return of an episode"
    draw = partial(interval_chart, intervals, marks, title=title, axis_label=label)
    rows = [
        [*interval, _number(row.get("effective")), interval.holds(truth)]
        for interval, row in zip(intervals, given, strict=True)
    ]
    head = ["estimator", "estimate", "from", "to", "episodes' worth", "truth inside"]
    if truth is None:  # of a plant that nobody can simulate
        head, rows = head[:-1], [row[:-1] for row in rows]
    text = (
        "Learned from the log, without touching the plant: what the bare policy would earn in an "
        f"episode, rewards discounted by {number(_number(ope.get('gamma')))} a step. Go by the "
        "first interval, nominally of 95 %: as wide as learned models vary, estimators differ, "
        "logged rewards stay unexplained and states that were never logged may pay, all added up, "
        "but no wider than logged rewards allow."
    )
    notes = [_verdict(ope, intervals, truth)] if intervals else []
    if run.evals and ope.get("steps") not in (None, run.evals[-1].get("steps")):
        steps = page.shown(ope["steps"])
        notes.append(f"These are of update {steps}; the run has gone on since.")
    noise = None
    if any("importance" in interval.name for interval in intervals):
        noise = page.soft(
            f"Importance sampling judges the policy with noise of {NOISE:g} on its "
            f"actions, as it needs one that varies. Below {ENOUGH_EPISODES} episodes' worth of "
            "evidence it has no interval: its value is a guess."
        )
    shown = [page.figure(draw), *notes, page.table(head, rows), noise] if intervals else []
    return page.section(_TITLE, *shown, support, text=text)


def _verdict(
    ope: Mapping[str, Any], intervals: Sequence[Interval], truth: float | None
) -> page.Part:
    """Whether to go by the estimates: all doubts, and what the simulator says of them."""
    doubts = ope.get("doubts")
    if not isinstance(doubts, list):
        said = "Whether the estimates are settled is not known."
    elif doubts:
        said = f"<b>The estimates are not settled</b>: {escape('; '.join(map(str, doubts)))}."
    else:
        said = (
            "<b>The estimates are settled</b>: estimators agree, the log has such states and such "
            "returns, and the interval is narrow. That nothing speaks against them is no proof."
        )
    if intervals[0].holds(truth) == "no":
        said += " <b>They are wrong all the same</b>: the truth is outside of the first interval."
    return page.raw(f"<p>{said}</p>")


def _support(support: Any) -> page.Part:
    """How far the policy leaves the data, for somebody who has to decide."""
    outside = _number(support.get("outside")) if isinstance(support, dict) else None
    if outside is None:
        return None
    verdict = (
        "Much of what it wants was never tried, and the estimates are guesses there: log such "
        "actions first, or try it under supervision."
    )
    if outside <= _OFTEN:
        verdict = "In logged situations it stays where there are data."
    elif outside <= _MOSTLY:
        verdict = "It leaves the data now and then: take the estimates with care."
    said = (
        f"In {percent(outside)} % of logged situations the policy wants something that is further "
        "from all that was logged than usual within the log (of the log itself: 5 %)."
    )
    change = _number(support.get("change"))
    if change is not None:  # actions span from -1 to 1
        said += f" On average it differs from what was logged by {percent(0.5 * change)} % of an "
        said += "actuator's range."
    verdict = page.raw(f"<p>{said} <b>{verdict}</b></p>")
    return [page.heading("Does the policy leave the data?"), verdict]


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None


def interval_chart(
    rows: Sequence[Interval],
    marks: Sequence[tuple[str, float, int]],
    width: int,
    *,
    title: str,
    axis_label: str,
) -> str:
    """Estimates with their intervals; `marks` are vertical lines: name, value, colour."""
    head, slot = 20.0 * len(marks) + 6, 46.0
    bottom = head + slot * len(rows) + 4
    covered = [v for _, *values in rows for v in values if v is not None]
    left, right = 8.0, width - 16.0
    count = max(3, int((right - left) // 110))
    across = scale([*covered, *(at for _, at, _ in marks)], left, right, count=count)
    parts = [svg.x_axis(across, head, bottom, axis_label)]
    for n, (name, at, ink) in enumerate(marks):
        x, y, said = float(across(at)), 20.0 * n + 13, f"{name} {number(at, 4)}"
        # Beside its line, on the side where there is room.
        after = x + 6 + svg.text_width(said) < width
        words = svg.text(x + 6 if after else x - 6, y, said, "start" if after else "end")
        dashed = svg.line(x, y - 10, x, bottom, 1.0, ' stroke-width="2" stroke-dasharray="6 4"')
        parts.append(f'<g class="reference" style="color:{svg.color(ink)}">{dashed}</g>{words}')
    for n, row in enumerate(rows):
        y = head + slot * n
        fits = svg.text_width(row.name) < right - left
        parts.append(svg.text(left, y + 15, row.name if fits else row.name.split(",")[0]))
        parts.append(_interval(row, across, y + 31))
    return svg.chart(parts, width, bottom + (46 if axis_label else 26), title)


def _interval(row: Interval, across: Scale, y: float) -> str:
    known = [v for v in (row.low, row.value, row.high) if v is not None]
    if not known:
        return svg.text(across.start, y + 4, "no estimate", dim=True)
    start, end = float(across(min(known))), float(across(max(known)))
    drawn = [svg.line(start, y, end, y, 1.0, ' stroke-width="4" stroke-linecap="round"')]
    drawn += [svg.line(x, y - 7, x, y + 7, 1.0, ' stroke-width="2"') for x in (start, end)]
    if row.value is not None:
        x = float(across(row.value))
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="currentColor"/>')
    value, low, high = (number(v, 4) for v in row[1:])
    words = f"from {low} to {high}" if row.low is not None else "no interval"
    said = f"<title>{escape(f'{row.name}: {value}, {words}')}</title>"
    return f'<g class="interval">{said}{"".join(drawn)}</g>'
