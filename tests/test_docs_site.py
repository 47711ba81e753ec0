"""The documentation's pages in a real browser: whole, legible, reached by keys, from one host."""

import contextlib
import functools
import http.server
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from report.looking import assert_legible, assert_reachable, screens

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
PAGES = ("", "gallery/", "tutorial/", "command-line/", "api/", "benchmarks/", "arc/", "plant/")


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
    wrong = []
    view = browser.new_page()
    view.on("console", lambda message: wrong.append(message.text))
    view.on("pageerror", lambda error: wrong.append(str(error)))
    own = (site, "data:")
    view.on("request", lambda asked: asked.url.startswith(own) or wrong.append(asked.url))
    view.goto(site + page, wait_until="networkidle")
    for viewport, scheme in screens(view):
        view.evaluate("localStorage.clear()")  # a reader who has chosen no colours yet
        view.reload(wait_until="networkidle")
        chosen = view.evaluate("document.body.dataset.mdColorScheme")
        assert chosen == ("slate" if scheme == "dark" else "default")
        assert_legible(view, page, viewport, scheme, ignored=BESIDE)
    view.set_viewport_size({"width": 1280, "height": 900})
    assert_reachable(view, page, ignored=ASIDE)
    assert wrong == []
    with contextlib.suppress(Exception):
        view.close()
