"""The gallery is that of the registry, and every picture that it shows is there."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from benchmarks import gallery, gallery_scores
from worldloom import suites

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_registry_says():
    published = (ROOT / "docs/gallery.md").read_text()
    assert gallery.written(ROOT) == published, "python -m benchmarks.gallery"
    for suite in gallery.PAGES:
        for name in suites.suite(suite).worlds:
            assert f"### {name}\n" in published
            scores = f"Again: `worldloom train {name} --"
            assert scores in published or f"gallery --measure {name}`" in published
    for picture in re.findall(r"\((images/[^)]+)\)", published):
        assert (ROOT / "docs" / picture).is_file()


def test_pictures_are_drawn_from_the_worlds_themselves(tmp_path):
    gallery.grid_picture(suites.make("tag"), tmp_path / "tag.png")
    assert (tmp_path / "tag.png").read_bytes()[1:4] == b"PNG"
    picture = gallery.plant_picture("reactor", suites.make("reactor"))
    ElementTree.fromstring(picture)
    assert "temperature, K" in picture
    assert "runaway 375" in picture


def test_scores_are_measured_beside_random_play(tmp_path, compiled_once):
    path = tmp_path / "gallery.json"
    small = {"steps": 100, "num_worlds": 2, "eval_episodes": 4, "world": {"horizon": 5}}
    assert gallery_scores.measure(path, ["tag", "cleanup"], **small) == 0
    result = json.loads(path.read_text())
    assert result["raw"].keys() == {"tag", "cleanup"}
    assert result["complete"]
    cleanup = result["raw"]["cleanup"]
    assert (cleanup["algo"], cleanup["steps"]) == ("iqn", 100)
    table = gallery_scores.table("cleanup", cleanup)
    assert "| algorithm | return of all agents together | trained for |" in table
    assert f"| `random` | {cleanup['random']['mean']:.4g}" in table
    assert "| 100 steps |" in table
    assert "ahead of random ones" in gallery_scores.table("tag", result["raw"]["tag"])
    assert gallery_scores.measure(path, ["cleanup"], **small | {"steps": 200}) == 0
    again = json.loads(path.read_text())["raw"]
    assert again["tag"] == result["raw"]["tag"], "what is not named stays"
    assert again["cleanup"]["steps"] == 200


def test_scores_of_puzzles_are_in_per_cent_and_budgets_of_logs_in_updates():
    row = {"mean": 0.25, "stderr": 0.05, "episodes": 16}
    about = {"suite": "arc", "algo": "ppo", "steps": 7, "offline": False}
    table = gallery_scores.table("arc", about | {"score": row, "random": {"mean": 0.01}})
    assert "| `random` | 1, of 16 pairs | |" in table
    assert "| `ppo` | 25 ± 5, of 16 pairs | 7 steps |" in table
    logged = about | {"suite": "plant", "offline": True, "score": row, "random": {"mean": None}}
    assert "| 7 updates |" in gallery_scores.table("reactor", logged)
    assert "not measured" in gallery_scores.table("reactor", logged)
