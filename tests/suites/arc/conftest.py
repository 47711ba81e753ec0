"""A server of a game of ARC."""

import threading
from contextlib import contextmanager

import pytest

from worldloom.suites.arc.play import PlayServer


@contextmanager
def _serving(game):
    with PlayServer(game) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="session", name="serving")
def _serving_fixture():
    """serving(game): a server of a game, running in a thread of its own."""
    return _serving
