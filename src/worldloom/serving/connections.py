"""HTTP connections that end: limits on silence, on one request, and on how many there are.

uvicorn closes a connection that is kept alive and silent; one that begins a request and never ends
its headers, or does not read its answer, it keeps for ever.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from worldloom.serving.direct import Direct

BODY_SECONDS = 0.02  # that a body may come after its head


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections there may be, and how long each may take over what it does."""

    connections: int = 1_000  # when there are more, those without a request are closed first
    idle_seconds: float = 10.0  # from its beginning, or its last answer, to the end of headers
    request_seconds: float = 60.0  # from there until the client has the answer
    header_bytes: int = 32 * 1024


def limited(
    base: Any, limits: ConnectionLimits, direct: Direct | None = None
) -> type[asyncio.Protocol]:
    """A protocol of uvicorn's (h11's or httptools') that keeps these limits.

    direct: answers plain requests, which uvicorn's parser then never sees. A connection on which
    anything came that was not one plain request, in one piece or its head and its body apart, is
    uvicorn's from then on: only so is it certain that the parser is not in the middle of something.
    """

    class Limited(base):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._last: tuple[Any, int, bool] = (None, 0, False)  # request, and whether idle
            self._since, self._bytes = self.loop.time(), 0
            self._plain, self._asking, self._ending = direct is not None, False, False
            self._answers, self._later, self._part = 0, list[bytes](), b""
            self._watch()
            if len(self.connections) > limits.connections:
                idle = [other for other in self.connections if other.idle()]
                first = min(idle, key=lambda c: (c.has_asked(), c._since), default=self)
                first.end()

        def data_received(self, data: bytes) -> None:
            if self._asking:  # for after the answer
                self._later.append(data)
                self.transport.pause_reading()
                return
            data = self._part + data
            if self._plain and self._taken(data):
                return
            self._part = b""
            super().data_received(data)
            if not self.idle():
                self._bytes = 0
                return
            self._bytes += len(data)
            if self._bytes > limits.header_bytes:
                self.end()

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def shutdown(self) -> None:
            if self._asking:
                self._ending = True
            else:
                super().shutdown()

        def idle(self) -> bool:
            """Whether no request is under way, or none whose headers are there."""
            return not self._asking and (self.cycle is None or self.cycle.response_complete)

        def has_asked(self) -> bool:
            """Whether there ever was a request."""
            return self.cycle is not None or self._answers > 0

        def end(self) -> None:
            self.connections.discard(self)  # now, and not when the transport gets round to it
            self.transport.abort()

        def _taken(self, data: bytes) -> bool:
            """Whether these bytes are answered without uvicorn, or may be with those to come."""
            assert direct is not None
            request, free = direct.read(data), self.idle() and not self.flow.write_paused
            if request is None:
                self._plain = False
            elif len(request[1]) < request[0].length:
                self._plain = free and request[0].accepted and not self._part
                if self._plain:
                    self._part = data
                    self.loop.call_later(BODY_SECONDS, self._give_up, data)
                return self._plain
            if request is None or not free:
                return False
            self._part = b""
            self._asking = direct.take(request, self._answer)
            if self._asking:
                self._unset_keepalive_if_required()
            return self._asking

        def _give_up(self, part: bytes) -> None:
            """Leaves a request whose body has not come to uvicorn."""
            if self._part is part and not self.transport.is_closing():
                self._plain = False
                self.data_received(b"")

        def _answer(self, response: bytes) -> None:
            self._asking, self._answers = False, self._answers + 1
            if self.transport.is_closing():
                return
            self.transport.write(response)
            if self._ending:
                self.transport.close()
            elif self._later:
                self.transport.resume_reading()
                later, self._later = self._later, []
                for data in later:
                    self.data_received(data)

        def _watch(self) -> None:
            idle, now = self.idle(), self.loop.time()
            # A request is known by its object, so that a few bytes now and then do not help.
            state = (self.cycle, self._answers, idle)
            if state != self._last:
                self._last, self._since = state, now
            limit = limits.idle_seconds if idle else limits.request_seconds
            if now - self._since >= limit:
                self.end()
                return
            self._timer = self.loop.call_later(limits.idle_seconds / 4.0, self._watch)

    return Limited
