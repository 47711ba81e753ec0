"""The studio: a web page for this machine, with all runs of a folder and worlds to play in.

The page and this module know no suite. A suite gives `Session`s, which compute here, and a script
beside them that shows their states in the browser.
"""

import asyncio
import json
import math
import re
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Protocol

from worldloom.core.names import one_line
from worldloom.serving.serve import (  # which says what to install
    ConnectionLimits,
    address_of,
    is_loopback,
    listen,
    run_until_signal,
    settings,
    uvicorn,
)
from worldloom.training.suite import Session, Suite

LOOPBACK = "127.0.0.1"
LOOK_SECONDS = 0.5  # from one look at a run's files to the next
SESSIONS = 4  # the one that was played longest ago ends when there is another
MOVED = "this session goes on in another tab"
_ASSET = re.compile(r"[a-zA-Z][\w.]*\.(js|css|html)")
_KINDS = {"js": "text/javascript", "css": "text/css", "html": "text/html; charset=utf-8"}
# Our page loads what is served here and nothing else; that of a suite, in a frame of it, nothing at
# all. One that a run has written is a stranger: its own scripts may run, and can reach nobody.
_OWN = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' "
_OWN += "data:; connect-src 'self'; frame-src 'self'; frame-ancestors 'self'; form-action 'none'"
_FRAME = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
)
_FRAME += "frame-ancestors 'self'; form-action 'none'"
_RUN = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
_RUN += "style-src 'unsafe-inline'; img-src data: 'self'; media-src 'self'; frame-ancestors 'self'"


class Runs(Protocol):
    """Runs of a folder: see `worldloom.report.run_list.RunList`, which is not for us to import."""

    folder: Path

    def path(self, name: str) -> Path: ...
    def rows(self) -> list[dict[str, Any]]: ...
    def curves(self, name: str) -> dict[str, Any]: ...
    def file(self, name: str, file: str) -> Path: ...
    def follow(self, name: str, metrics: int, evals: int) -> Any: ...


@dataclass(frozen=True)
class Studio:
    """What is shown.

    suites: by name, of which those with a `studio` can be played. worlds(suite): its worlds by
    name, with a line about each. load(folder), make(env): a run, and a world. assets(suite): where
    its scripts lie. vendor: where uPlot lies.
    """

    runs: Runs
    suites: Mapping[str, Suite]
    worlds: Callable[[str], Mapping[str, str]]
    load: Callable[[Path], Any]
    make: Callable[[str], Any]
    assets: Callable[[str], Traversable]
    vendor: Traversable
    palette: tuple[str, ...] = ()

    def about(self) -> dict[str, Any]:
        """What the page needs to know before anything else."""
        playable = [name for name, suite in self.suites.items() if suite.studio]
        return {
            "folder": str(self.runs.folder.resolve()),
            "palette": self.palette,
            "suites": {name: dict(self.worlds(name)) for name in playable},
        }

    def open(self, suite: str, run: str | None, world: str | None) -> Session:
        """A session in a world by name, or in that of a run, with what it learned."""
        known = self.suites.get(suite)
        if known is None or known.studio is None:
            raise ValueError(f"there is nothing to play in the suite {suite[:80]!r}")
        if (run is None) == (world is None):
            raise ValueError("name a run or a world to play in, and not both")
        if world is not None:
            if world not in self.worlds(suite):
                raise ValueError(f"{suite} has no world {world[:80]!r}")
            return known.studio(self.make(world))
        return known.studio(self.load(self.runs.path(run or "")))


class Moved(ValueError):
    """Another tab of the browser has taken the session over."""


@dataclass
class _Open:
    """A session that somebody plays in one tab of a browser, one call after the other.

    Whoever opens it later takes it over: `tab` is the one that may play, `stream` the number of the
    one stream that moves its world on. Two of them would make time run twice as fast.
    """

    session: Session
    tab: str = ""
    stream: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, name: str, *args: Any) -> dict[str, Any]:
        """Gives the session to a tab, which gets its name here, with what it is and its state."""
        with self.lock:
            state = getattr(self.session, name)(*args)
            self.tab = secrets.token_hex(8)
            return {"tab": self.tab, "about": self.session.describe(), "state": state}

    def call(self, tab: str, name: str, *args: Any, stream: int | None = None) -> Any:
        with self.lock:
            if tab != self.tab or stream not in (None, self.stream):
                raise Moved(MOVED)
            return getattr(self.session, name)(*args)


def run_studio(
    studio: Studio,
    token: str,
    ready: Callable[[str], None],
    port: int = 0,
    host: str = LOOPBACK,
) -> None:
    """Shows the studio until SIGTERM or Ctrl-C. ready: told the whole address.

    It answers to names of this machine alone, also where `host` can be reached from others.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"--port {port}: ports are numbers from 0 (any that is free) to 65535")
    if len(token) < 16:
        raise ValueError(f"the token has {len(token)} characters; use at least 16")
    listener = listen(host, port)
    try:
        server = make_server(studio, token, listener)
        at = address_of(listener)
        at = at if is_loopback(host) else f"http://{LOOPBACK}:{at.rpartition(':')[2]}"
        ready(f"{at}/?token={token}")
        run_until_signal(server, listener)
    finally:
        listener.close()


def make_server(studio: Studio, token: str, listener: socket.socket) -> Any:
    """A server of uvicorn's with the studio, for a socket that listens."""
    server: Any = None
    cookie = f"worldloom-{listener.getsockname()[1]}"  # to a cookie, all ports are one server
    app = make_app(studio, token, cookie, lambda: server is not None and server.should_exit)
    limits = ConnectionLimits(request_seconds=math.inf)  # a stream takes as long as one looks
    server = uvicorn.Server(settings(app, limits, lifespan="off"))
    return server


def make_app(studio: Studio, token: str, cookie: str, stopping: Callable[[], bool]) -> Any:
    """The application; its streams end when `stopping` says so. cookie: the name of the token's."""
    from fastapi import FastAPI, Request
    from fastapi.responses import FileResponse, Response, StreamingResponse

    from worldloom.serving.gate import Gate, GateRules
    from worldloom.serving.metrics import Metrics

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    sessions: OrderedDict[str, _Open] = OrderedDict()
    app.state.streams = 0  # that are open

    def answer(content: Any, status: int = 200, kind: str = "", **headers: str) -> Response:
        if not kind:
            content, kind = json.dumps(content, allow_nan=False), "application/json"
        fixed = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        return Response(content, status, fixed | headers, kind)

    def stream(next_event: Callable[[], Any], seconds: float) -> Response:
        """Events, one each time that so many seconds have passed, while somebody listens."""

        async def events() -> AsyncIterator[str]:
            app.state.streams += 1
            clock = asyncio.get_running_loop().time
            due = clock()
            try:
                yield "retry: 1000\n\n"
                while not stopping():
                    try:
                        event = await asyncio.to_thread(next_event)
                        news = ": nothing new" if event is None else f"data: {_compact(event)}"
                    except Moved as error:
                        yield f"event: moved\ndata: {json.dumps(str(error))}\n\n"
                        return
                    except Exception as error:  # of any kind: the browser would ask for ever
                        yield f"event: problem\ndata: {json.dumps(one_line(error))}\n\n"
                        return
                    yield f"{news}\n\n"
                    due = max(due + seconds, clock())  # what was late is not made up for
                    await asyncio.sleep(due - clock())
            finally:
                app.state.streams -= 1

        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        return StreamingResponse(events(), headers=headers, media_type="text/event-stream")

    async def body_of(request: Request) -> dict[str, Any]:
        try:
            content = json.loads(request.scope["body"] or b"{}")
        except (ValueError, RecursionError):
            raise ValueError("the body is not JSON") from None
        if not isinstance(content, dict):
            raise ValueError("the body must be a JSON object")
        return content

    def opened(request: Request) -> tuple[_Open, str]:
        """A session that was begun, and the tab that asks for it."""
        name = request.path_params["name"]
        session = sessions.get(name)
        if session is None:
            raise ValueError("this session has ended; start another")
        with suppress(KeyError):  # it has ended this very moment
            sessions.move_to_end(name)
        return session, request.query_params.get("tab", "")

    async def start(request: Request) -> Response:
        content = await body_of(request)
        suite, seed = str(content.get("suite")), _seed(content)
        named = [content.get(name) for name in ("run", "world")]
        if any(not isinstance(name, str | None) for name in named):
            raise ValueError("a run and a world are given by their names")
        session = _Open(await asyncio.to_thread(studio.open, suite, *named))
        begun = await asyncio.to_thread(session.enter, "reset", seed)
        name = secrets.token_hex(8)
        sessions[name] = session
        while len(sessions) > SESSIONS:
            sessions.popitem(last=False)
        return answer(begun | {"id": name})

    async def join(request: Request) -> Response:
        session, _ = opened(request)
        entered = await asyncio.to_thread(session.enter, "state")
        return answer(entered | {"id": request.path_params["name"]})

    async def act(request: Request) -> Response:
        session, tab = opened(request)
        content = await body_of(request)
        return answer(await asyncio.to_thread(session.call, tab, "act", content))

    async def reset(request: Request) -> Response:
        session, tab = opened(request)
        seed = _seed(await body_of(request))
        return answer(await asyncio.to_thread(session.call, tab, "reset", seed))

    async def play(request: Request) -> Response:
        session, tab = opened(request)
        period = session.session.describe().get("period")
        if not period:
            raise ValueError("this world waits for what you do; there is nothing to stream")
        session.stream += tab == session.tab  # one that was there before ends
        number = session.stream

        def step() -> Any:
            opened(request)  # or it has ended
            return session.call(tab, "act", {}, stream=number)

        return stream(step, period)

    async def live(request: Request) -> Response:
        query = request.query_params
        known = [int(query.get(name, "0")) for name in ("metrics", "evals")]
        follower = await asyncio.to_thread(studio.runs.follow, query.get("run", ""), *known)
        return stream(follower.news, LOOK_SECONDS)

    async def runs(request: Request) -> Response:
        return answer(await asyncio.to_thread(studio.runs.rows))

    async def curves(request: Request) -> Response:
        name = request.query_params.get("run", "")
        return answer(await asyncio.to_thread(studio.runs.curves, name))

    async def run_file(request: Request) -> Response:
        run, _, file = request.path_params["path"].rpartition("/")
        headers = {"content-security-policy": _RUN, "x-content-type-options": "nosniff"}
        path = await asyncio.to_thread(studio.runs.file, run or ".", file)
        return FileResponse(path, headers=headers | {"cache-control": "no-store"})

    async def index(request: Request) -> Response:
        if "token" in request.query_params:  # the gate has looked at it
            kept = f"{cookie}={token}; Path=/; HttpOnly; SameSite=Lax"
            return answer(b"", 303, "text/plain", location="/", **{"set-cookie": kept})
        return asset(files("worldloom.serving") / "studio", "studio.html")

    def asset(folder: Traversable, name: str) -> Response:
        path = folder / name
        if not path.is_file():
            raise ValueError(f"there is no {name[:80]!r}")
        policy = _OWN if name == "studio.html" else _FRAME
        own = {"content-security-policy": policy, "referrer-policy": "no-referrer"}
        return answer(path.read_bytes(), 200, _KINDS[name.rpartition(".")[2]], **own)

    async def static(request: Request) -> Response:
        kind, name = request.path_params["kind"], request.path_params["name"]
        playable = kind in studio.suites and studio.suites[kind].studio
        if not _ASSET.fullmatch(name) or not (playable or kind in ("studio", "vendor")):
            raise ValueError(f"there is no {name[:80]!r}")
        own = {"studio": files("worldloom.serving") / "studio", "vendor": studio.vendor}
        return asset(own[kind] if kind in own else studio.assets(kind), name)

    async def refuse(request: Request, error: Exception) -> Response:
        status = 404 if request.method == "GET" else 422
        status = 409 if isinstance(error, Moved) else status
        return answer({"detail": one_line(error)}, status)

    async def about(request: Request) -> Response:
        return answer(studio.about())

    for path, handler in {
        "/": index,
        "/api/about": about,
        "/api/runs": runs,
        "/api/curves": curves,
        "/api/live": live,
        "/api/sessions/{name}/stream": play,
        "/static/{kind}/{name}": static,
        "/files/{path:path}": run_file,
    }.items():
        app.add_route(path, handler, ["GET"])
    for path, handler in {
        "/api/sessions": start,
        "/api/sessions/{name}/act": act,
        "/api/sessions/{name}/join": join,
        "/api/sessions/{name}/reset": reset,
    }.items():
        app.add_route(path, handler, ["POST"])
    for kind in (ValueError, OSError, ImportError):
        app.add_exception_handler(kind, refuse)
    rules = GateRules(token, cookie=cookie, open=(), posts=None)
    app.add_middleware(Gate, rules=rules, metrics=Metrics())  # pyright: ignore[reportArgumentType]
    return app


def _seed(content: Mapping[str, Any]) -> int:
    seed = content.get("seed", 0)
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to {2**32 - 1}")
    return seed


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
