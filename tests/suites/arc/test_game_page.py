"""The page of a run in a game: shares are shares, and returns are not among them."""

import re

from report.reading import charts
from suites.arc.made_run import make_game_run
from worldloom.suites.arc.games.page import write_report


def test_levels_solved_are_in_per_cent_and_returns_in_a_chart_of_their_own(tmp_path):
    page = write_report(make_game_run(tmp_path)).read_text()
    found = charts(page)
    for over in ("steps", "seconds of training"):
        chart = found[f"levels solved over {over}"]
        assert chart["range"] == [0, 100]
        assert dict(chart["references"]) == {"random play": 20.0, "graph exploration": 100.0}
        lines = {line["name"]: line["y"] for line in chart["series"]}
        assert lines == {"greedy ± s.e.": [60.0] * 2, "with exploration ± s.e.": [50.0] * 2}
    assert max(found["Training"]["series"][0]["y"]) > 1.0
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "levels solved 60 % ± 0 random play: 20 ± 0; graph exploration: 100 ± 0" in text


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    folder = make_game_run(tmp_path)
    for name in ("metrics", "eval"):
        (folder / f"{name}.jsonl").unlink()
    assert "There is no film" in write_report(folder).read_text()
