"""The documentation's pages in a real browser: whole, legible, reached by keys, from one host."""

import functools
import http.server
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from report.looking import DESK, PHONE, assert_legible, assert_reachable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed"),
]
ROOT = Path(__file__).parent.parent
# A page of each kind: prose with pictures, tables, tabs, code, an API reference, charts.
# Drawers, beyond the screen of a phone until they are asked for.
BESIDE = ".md-sidebar, .md-search"
# A search that nobody has begun yet has nothing to clear; tabs are chosen by the keys of a choice.
ASIDE = ".md-search, .tabbed-labels"
PAGES = (
    "",
    "gallery/",
    "gallery/harvest/",
    "gallery/glide/",
    "games/",
    "studio/",
    "tutorial/",
    "command-line/",
    "api/",
    "benchmarks/",
    "arc/",
    "plant/",
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the documentation, built and served on this machine."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.strip("/") or "index")
def test_a_page_is_legible_and_reached_by_keys(browser, site, page):
    wrong, own = [], (site, "data:")
    for scheme, name in (("light", "default"), ("dark", "slate")):
        # A reader who has chosen no colours yet: the theme remembers which it began with.
        context = browser.new_context(color_scheme=scheme, viewport=DESK)
        view = context.new_page()
        view.on("console", lambda message: wrong.append(message.text))
        view.on("pageerror", lambda error: wrong.append(str(error)))
        view.on("request", lambda asked: asked.url.startswith(own) or wrong.append(asked.url))
        view.goto(site + page, wait_until="networkidle")
        assert view.evaluate("document.body.dataset.mdColorScheme") == name
        view.add_style_tag(content="* { transition: none !important }")  # what fades is faint
        for viewport in (PHONE, DESK):
            view.set_viewport_size(viewport)
            assert_legible(view, page, viewport, scheme, ignored=BESIDE)
        if scheme == "light":
            assert_reachable(view, page, ignored=ASIDE)
        context.close()
    assert wrong == []
