"""A page on this machine, and on no other, for playing an ARC task by hand."""

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

import numpy as np

from worldloom.suites.arc.game import Game, Refused

LOOPBACK = "127.0.0.1"
_SELECTION = "selection must be null or a list of cells [row, column]"
_LARGEST_BODY = 64 * 1024  # bytes: a mask of all cells of the largest canvas takes 8 KB
# The page loads nothing and speaks to its own server alone.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


class PlayServer(ThreadingHTTPServer):
    """Serves one game; `port` 0 takes one that is free."""

    daemon_threads = True

    def __init__(self, game: Game, port: int = 0):
        self.game = game
        self.lock = threading.Lock()  # one world: actions one after the other
        self.page = files("worldloom.suites.arc").joinpath("play.html").read_bytes()
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise OSError(
                f"port {port} cannot be used ({error.strerror}); leave --port out for a free one"
            ) from None
        except OverflowError:
            raise ValueError(f"there is no port {port}; they are 1 to 65535") from None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}/"


def read_selection(cells: Any, grid_shape: tuple[int, int]) -> np.ndarray:
    """A mask (H, W) from a list of cells [row, column], or null for no cell."""
    height, width = grid_shape
    mask = np.zeros(grid_shape, bool)
    if not isinstance(cells, list | None):
        raise ValueError(_SELECTION)
    for cell in cells or ():
        if not isinstance(cell, list) or [type(x) for x in cell] != [int, int]:
            raise ValueError(_SELECTION)
        row, column = cell
        if not (0 <= row < height and 0 <= column < width):
            raise ValueError(f"selection: cell {cell} is not on the canvas of {height}x{width}")
        mask[row, column] = True
    return mask


def _integer(request: dict[str, Any], name: str) -> int:
    value = request.get(name)
    if type(value) is not int:
        raise ValueError(f"{name} must be an integer, not {json.dumps(value)[:40]}")
    return value


def _step(game: Game, request: dict[str, Any]) -> None:
    operation = _integer(request, "operation")
    if not 0 <= operation < game.num_operations:
        raise ValueError(
            f"there is no operation {operation}; they are 0 to {game.num_operations - 1}"
        )
    game.step(operation, read_selection(request.get("selection"), game.grid_shape))


def _start(game: Game, request: dict[str, Any]) -> None:
    game.start(_integer(request, "pair") if "pair" in request else game.pair)


# What a request does, and answers: the state, where it returns nothing.
ROUTES: dict[tuple[str, str], Callable[[Game, dict[str, Any]], dict[str, Any] | None]] = {
    ("GET", "/api/task"): lambda game, request: game.about(),
    ("GET", "/api/state"): lambda game, request: None,
    ("GET", "/api/similarity"): lambda game, request: {"similarity": game.similarity()},
    ("POST", "/api/step"): _step,
    ("POST", "/api/take-back"): lambda game, request: game.take_back(),
    ("POST", "/api/start"): _start,
    ("POST", "/api/save"): lambda game, request: {"path": str(game.save().resolve())},
}


class _Refusal(Exception):
    def __init__(self, status: HTTPStatus, why: str):
        super().__init__(why)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: PlayServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    server_version = "worldloom"
    sys_version = ""
    timeout = 60  # seconds: a connection that says nothing is closed

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal belongs to the person who plays."""

    def _answer(self, method: str) -> None:
        status, answer = HTTPStatus.OK, {}
        try:
            answer = self._respond(method, self.path.partition("?")[0])
        except _Refusal as refusal:
            self.close_connection = True  # what it sent may be unread
            status, answer = refusal.status, {"error": str(refusal)}
        except (ValueError, OSError) as error:
            status = HTTPStatus.CONFLICT if isinstance(error, Refused) else HTTPStatus.BAD_REQUEST
            if isinstance(error, OSError):  # a disk that is full, a folder that may not be written
                status = HTTPStatus.INTERNAL_SERVER_ERROR
            answer = {"error": str(error)}
        is_page = isinstance(answer, bytes)
        body = answer if is_page else json.dumps(answer).encode()
        headers = {
            "Content-Type": "text/html; charset=utf-8" if is_page else "application/json",
            "Content-Length": str(len(body)),
            **_HEADERS,
        }
        if self.close_connection:
            headers["Connection"] = "close"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _respond(self, method: str, path: str) -> bytes | dict[str, Any]:
        """The page, or what a route tells."""
        # Only this page: not another site whose name was made to point here.
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            raise _Refusal(HTTPStatus.FORBIDDEN, f"open the page as {self.server.url}")
        if (method, path) == ("GET", "/"):
            return self.server.page
        route = ROUTES.get((method, path))
        if route is None:
            raise _Refusal(HTTPStatus.NOT_FOUND, f"there is no {method} {path[:60]}")
        request = self._read() if method == "POST" else {}
        with self.server.lock:
            return route(self.server.game, request) or self.server.game.view()

    def _read(self) -> dict[str, Any]:
        """The JSON object that was sent. Other sites' forms cannot send this content type."""
        if self.headers.get_content_type() != "application/json":
            raise _Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, "say how long the body is")
        if int(length) > _LARGEST_BODY:
            raise _Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{length} bytes; {_LARGEST_BODY} is the most"
            )
        body = self.rfile.read(int(length))
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"the body is not JSON: {reason}") from None
        if not isinstance(request, dict):
            raise ValueError("the body must be a JSON object")
        return request
