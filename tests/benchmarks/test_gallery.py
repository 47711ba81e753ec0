"""The gallery is that of the registry, and every picture that it shows is there."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from benchmarks import gallery
from worldloom import suites

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_registry_says():
    result = json.loads((ROOT / "benchmarks/results/plant.json").read_text())
    published = (ROOT / "docs/gallery.md").read_text()
    assert gallery.page(gallery.measured_scores(result)) == published, (
        "python -m benchmarks.gallery"
    )
    for suite in gallery.PAGES:
        for name in suites.suite(suite).worlds:
            assert f"### {name}\n" in published
    for picture in re.findall(r"\((images/[^)]+)\)", published):
        assert (ROOT / "docs" / picture).is_file()


def test_pictures_are_drawn_from_the_worlds_themselves(tmp_path):
    gallery.grid_picture(suites.make("tag"), tmp_path / "tag.png")
    assert (tmp_path / "tag.png").read_bytes()[1:4] == b"PNG"
    picture = gallery.plant_picture("reactor", suites.make("reactor"))
    ElementTree.fromstring(picture)
    assert "temperature, K" in picture
    assert "runaway 375" in picture
