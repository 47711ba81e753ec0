"""A client of `worldloom serve`, without any dependency."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from worldloom.core.names import one_line


class NoAnswer(Exception):
    """The server is not there, is late, or refuses (with an HTTP status)."""

    def __init__(self, message: str, status: int | None = None):
        super().__init__(message)
        self.status = status


class Server:
    """A client of `worldloom serve`, over one connection that is kept."""

    def __init__(self, url: str, token: str | None, timeout: float):
        parts = urlsplit(url)
        host = parts.hostname or "127.0.0.1"
        self._http = http.client.HTTPConnection(host, parts.port or 80, timeout=timeout)
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def ask(self, path: str, content: Any = None, key: str | None = None) -> dict[str, Any]:
        """The answer to a GET, or to a POST of JSON.

        With an idempotency key it is asked again where the connection breaks: the server carries
        it out once.
        """
        for attempt in range(2):
            try:
                return self._once(path, content, key)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._http.close()  # an answer that comes now belongs to nobody
                late = isinstance(error, TimeoutError)
                if attempt or late or (content is not None and key is None):
                    reason = "no answer in time" if late else str(error) or type(error).__name__
                    raise NoAnswer(one_line(f"the server: {reason}", 200)) from None
        raise AssertionError

    def _once(self, path: str, content: Any, key: str | None) -> dict[str, Any]:
        headers = self._headers | ({"Idempotency-Key": key} if key else {})
        method, body = ("GET", None) if content is None else ("POST", json.dumps(content))
        self._http.request(method, path, body, headers)
        response = self._http.getresponse()
        text = response.read()
        if response.status != 200:
            detail = text[:150].decode("utf-8", "replace")
            text = one_line(f"{path} answers {response.status}: {detail}", 250)
            raise NoAnswer(text, response.status)
        return json.loads(text)

    def close(self) -> None:
        self._http.close()
