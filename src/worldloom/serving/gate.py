"""What every HTTP request must pass before anything looks into it: token, type, size, patience."""

import asyncio
import hashlib
import hmac
import ipaddress
from dataclasses import dataclass

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from worldloom.serving.metrics import Metrics

OPEN = ("/health", "/ready")  # for whoever watches over the server: whether it works, or why not
POSTS = ("/act", "/override", "/reset", "/shelve")
PATHS = (*OPEN, *POSTS, "/alarms", "/metrics", "/policy", "/openapi.json")
# Two of one of these would leave it to the reader which one counts.
ONCE = (b"authorization", b"host", b"content-type", b"idempotency-key")
CLOSE = {"connection": "close"}  # what is still on its way is not read
HEADERS = {401: {"www-authenticate": "Bearer"}, 408: CLOSE, 413: CLOSE}


@dataclass(frozen=True)
class GateRules:
    """Who may ask, and for how much.

    token: what clients must send as `Authorization: Bearer TOKEN`; None: nothing. cookie: where a
    browser may have it instead, which then must be on this machine and show our own pages; it
    comes to it by `/?token=TOKEN`. open, posts: paths that need no token, and that take a body;
    posts=None: all do.
    """

    token: str | None
    body_bytes: int = 64 * 1024
    body_seconds: float = 5.0
    cookie: str | None = None
    open: tuple[str, ...] = OPEN
    posts: tuple[str, ...] | None = POSTS


class Gate:
    """An ASGI application in front of another one, which finds the body as `scope["body"]`."""

    def __init__(self, app: ASGIApp, rules: GateRules, metrics: Metrics):
        self._app, self._rules, self._metrics = app, rules, metrics
        self._token = None if rules.token is None else _digest(rules.token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets here
            await send({"type": "websocket.close", "code": 1003})
            return
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.count("worldloom_requests_total", path=path, status=message["status"])
            await send(message)

        headers = dict(scope["headers"])
        refusal = self.refusal(scope, headers)
        if refusal is None and self._posted(scope):
            body = await self._body(headers, receive)
            if isinstance(body, bytes):
                scope["body"] = body
            else:
                refusal = body
        if refusal is not None:
            status, text = refusal
            response = JSONResponse({"detail": text}, status, HEADERS.get(status))
            await response(scope, receive, counted)
            return
        try:
            await self._app(scope, receive, counted)
        except Exception:  # is answered further out, where nobody counts
            self._metrics.count("worldloom_requests_total", path=path, status=500)
            raise

    def refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        """Status and text where a request may go no further, by its method, path and headers."""
        if scope["path"] in self._rules.open:
            return None
        names = [name for name, _ in scope["headers"]]
        twice = next((name for name in ONCE if names.count(name) > 1), None)
        if twice is not None:
            return 400, f"the header {twice.decode()} is there more than once"
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if (self._token is None or self._rules.cookie) and not is_loopback(_without_port(host)):
            # Where a browser needs nothing more, a page of a stranger must not get through by a
            # name that leads here.
            return 403, f"host {host[:80]!r} is not this machine"
        if self._rules.cookie and not _is_own_page(scope["method"], headers, host):
            return 403, "this was asked for by a page of another server"
        if self._token is not None and not self._is_known(scope, headers):
            where = "as in the address that was printed, or " if self._rules.cookie else ""
            return 401, f"a token is needed: {where}Authorization: Bearer TOKEN"
        if self._posted(scope):
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind != b"application/json":
                return 415, "the body must be application/json"
        return None

    def _is_known(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = [token] if kind.lower() == b"bearer" else []
        if self._rules.cookie:
            given += cookies(headers.get(b"cookie", b""), self._rules.cookie)
            if scope["path"] == "/" and scope["query_string"].startswith(b"token="):
                given.append(scope["query_string"].removeprefix(b"token="))
        # Digests are of one length, and comparing them takes as long whatever they are.
        return any(hmac.compare_digest(_digest(one.strip()), self._token or b"") for one in given)

    def _posted(self, scope: Scope) -> bool:
        posts = self._rules.posts
        return scope["method"] == "POST" and (posts is None or scope["path"] in posts)

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | tuple[int, str]:
        """The whole body, or why it is not taken."""
        most = self._rules.body_bytes
        too_large = (413, f"the body is larger than {most} bytes")
        if int(headers.get(b"content-length", b"0")) > most:  # the HTTP parser has checked it
            return too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._rules.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return 400, "the request ended before its body"
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        return too_large
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            return 408, f"the body took more than {self._rules.body_seconds:g} s"


def cookies(header: bytes, name: str) -> list[bytes]:
    """The values of a cookie in a Cookie header."""
    pairs = (part.strip().partition(b"=") for part in header.split(b";"))
    return [value for key, _, value in pairs if key == name.encode()]


def _is_own_page(method: str, headers: dict[bytes, bytes], host: str) -> bool:
    """Whether a browser says that no other page is behind a request, or says nothing.

    A link to follow may stand anywhere: what is shown then is ours, and nothing is changed by it.
    """
    origin = headers.get(b"origin", b"http://" + host.encode("latin-1")).decode("latin-1")
    followed = method == "GET" and headers.get(b"sec-fetch-dest") == b"document"
    own = headers.get(b"sec-fetch-site", b"none") in (b"same-origin", b"none")
    return origin.lower() == f"http://{host}" and (own or followed)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _without_port(host: str) -> str:
    """The address in a Host header: `[::1]:8080` is `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
