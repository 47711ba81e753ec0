"""The gallery is that of the registry, and every picture that it shows is there."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import gallery, gallery_scores
from worldloom import suites

ROOT = Path(__file__).parents[2]


def test_the_pages_are_what_the_registry_says():
    docs = ROOT / "docs"
    written = gallery.written(ROOT)
    published = {path: docs / path for path in written}
    for path, file in published.items():
        assert file.read_text() == written[path], f"{path}: python -m benchmarks.gallery"
    worlds = {name for suite in gallery.PAGES for name in suites.suite(suite).worlds}
    assert {file.stem for file in (docs / "gallery").glob("*.md")} == worlds, "no page too many"
    for name in worlds:
        assert f"(gallery/{name}.md)" in written["gallery.md"]
        scores = f"`worldloom train {name} --algo "
        text = written[f"gallery/{name}.md"]
        assert scores in text or f"gallery --measure {name}`" in text
    for path, text in written.items():
        for picture in re.findall(r"\(((?:\.\./)?images/[^)]+)\)", text):
            assert (docs / path).parent.joinpath(picture).is_file()


def test_every_world_has_scores_of_two_algorithms():
    raw = json.loads((ROOT / gallery_scores.RESULT).read_text())["raw"]
    for suite in gallery.PAGES:
        for name in suites.suite(suite).worlds:
            assert raw[name]["algos"].keys() == gallery_scores.budgets(suite, name).keys(), name


def test_pictures_are_drawn_from_the_worlds_themselves(tmp_path):
    gallery.grid_picture(suites.make("tag"), tmp_path / "tag.png")
    assert (tmp_path / "tag.png").read_bytes()[1:4] == b"PNG"
    picture = gallery.plant_picture("reactor", suites.make("reactor"))
    ElementTree.fromstring(picture)
    assert "temperature, K" in picture
    assert "runaway 375" in picture


@pytest.mark.nightly
def test_scores_are_measured_beside_random_play(tmp_path, compiled_once):
    path = tmp_path / "gallery.json"
    small = {"steps": 100, "num_worlds": 2, "eval_episodes": 4, "world": {"horizon": 5}}
    names = ["tag:iqn", "cleanup:iqn"]
    assert gallery_scores.measure(path, names, tmp_path / "films", **small) == 0
    assert (tmp_path / "films/tag.gif").read_bytes()[:3] == b"GIF"
    result = json.loads(path.read_text())
    assert result["raw"].keys() == {"tag", "cleanup"}
    assert result["complete"]
    cleanup = result["raw"]["cleanup"]
    assert cleanup["algos"].keys() == {"iqn"}
    assert cleanup["algos"]["iqn"]["steps"] == 100
    table = gallery_scores.table("cleanup", cleanup)
    assert "| algorithm | return of all agents together | trained for | again |" in table
    assert f"| random play | {cleanup['random']['mean']:.4g}" in table
    assert "| 100 steps | `worldloom train cleanup --algo iqn --steps 100` |" in table
    assert "ahead of random ones" in gallery_scores.table("tag", result["raw"]["tag"])
    assert gallery_scores.measure(path, ["cleanup:iqn"], **small | {"steps": 200}) == 0
    again = json.loads(path.read_text())["raw"]
    assert again["tag"] == result["raw"]["tag"], "what is not named stays"
    assert again["cleanup"]["algos"]["iqn"]["steps"] == 200


def entry(mean, steps=7, offline=False, **more):
    score = {"mean": mean, "stderr": 0.05, "episodes": 16} | more
    return {"steps": steps, "offline": offline, "score": score}


def test_scores_of_puzzles_are_in_per_cent_and_budgets_of_logs_in_updates():
    row = {"mean": 0.01, "episodes": 16}
    about = {"suite": "arc", "random": row, "algos": {"ppo": entry(0.25), "dqn": entry(0.5)}}
    table = gallery_scores.table("arc", about)
    assert "| random play | 1, of 16 pairs | | |" in table
    assert "| `ppo` | 25 ± 5, of 16 pairs | 7 steps |" in table
    assert gallery_scores.headline(about).startswith("`dqn` 50 ± 5, of 16 pairs, random 1")
    logged = {"suite": "plant", "random": {"mean": None}, "algos": {"iql": entry(3.0, 7, True)}}
    table = gallery_scores.table("reactor", logged)
    assert "| 7 updates |" in table
    assert "| random play | not measured | | |" in table


def test_a_world_in_which_nothing_was_learned_says_so():
    about = {"suite": "grid", "random": {"mean": 4.0}, "algos": {"iqn": entry(3.0)}}
    says = "None of them does better than random play"
    assert says not in gallery_scores.table("cleanup", about), "of one nothing follows for others"
    about["algos"]["ppo"] = entry(4.0)
    assert says in gallery_scores.table("cleanup", about)
    about["algos"]["ppo"] = entry(4.1)
    assert says not in gallery_scores.table("cleanup", about)


def test_the_better_of_rivals_is_who_beats_random_play():
    rivals = {
        "iqn": entry(-5.0, against_random=0.1, against_random_stderr=0.02),
        "ppo": entry(-5.0, against_random=0.7, against_random_stderr=0.02),
    }
    about = {"suite": "grid", "random": {"mean": -5.0}, "algos": rivals}
    assert gallery_scores.headline(about) == "`ppo` 0.7 ± 0.02 ahead of random play"
