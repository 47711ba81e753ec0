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
POSTS = ("/act", "/override", "/reset")
PATHS = (*OPEN, *POSTS, "/metrics", "/policy", "/openapi.json")
# Two of one of these would leave it to the reader which one counts.
ONCE = (b"authorization", b"host", b"content-type", b"idempotency-key")
CLOSE = {"connection": "close"}  # what is still on its way is not read
HEADERS = {401: {"www-authenticate": "Bearer"}, 408: CLOSE, 413: CLOSE}


@dataclass(frozen=True)
class GateRules:
    """token: what clients must send as `Authorization: Bearer TOKEN`; None: nothing."""

    token: str | None
    body_bytes: int = 64 * 1024
    body_seconds: float = 5.0


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
        refusal = self._refusal(scope, headers)
        if refusal is None and _posted(scope):
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

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        if scope["path"] in OPEN:
            return None
        names = [name for name, _ in scope["headers"]]
        twice = next((name for name in ONCE if names.count(name) > 1), None)
        if twice is not None:
            return 400, f"the header {twice.decode()} is there more than once"
        if self._token is None:
            # Without a token, a page in a browser on this machine must not get through by a name
            # that leads here.
            host = headers.get(b"host", b"").decode("latin-1").lower()
            if not is_loopback(_without_port(host)):
                return 403, f"host {host[:80]!r} is not this machine"
        else:
            given = headers.get(b"authorization", b"")
            kind, _, token = given.partition(b" ")
            # Digests are of one length, and comparing them takes as long whatever they are.
            right = hmac.compare_digest(_digest(token.strip()), self._token)
            if kind.lower() != b"bearer" or not right:
                return 401, "a token is needed: Authorization: Bearer TOKEN"
        if _posted(scope):
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind != b"application/json":
                return 415, "the body must be application/json"
        return None

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


def _posted(scope: Scope) -> bool:
    return scope["method"] == "POST" and scope["path"] in POSTS


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
