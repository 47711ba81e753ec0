"""The documentation is built without a warning, and its Python runs."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```(python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
    return BLOCK.findall(page.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem
)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    from worldloom import suites as registry

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    names, ran = {}, []
    for language, code in blocks(page):
        if language == "yaml":
            # A file: its name is the comment in its first line.
            (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code)
        else:
            exec(compile(code, page.name, "exec"), names)
        ran.append(code)
    assert ran == [code for _, code in blocks(page)]


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed")
def test_the_documentation_builds_without_a_warning(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        name = page.relative_to(ROOT / "docs").with_suffix("")
        html = name if name.stem == "index" else name / "index"
        assert (tmp_path / "site" / html).with_suffix(".html").exists(), f"{page} is not in the nav"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        assert str(page.relative_to(ROOT / "docs")) in navigation
