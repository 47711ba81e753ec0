"""Requests for an action that are answered without a framework, and what makes them plain.

A framework costs more than filter, record and disk together. So a request is taken here that has
nothing unusual about it, and is for a plant that is known and free. The gate judges its head as it
judges every other; whatever is not taken, or would be refused, goes the way of all other requests,
which is where the refusals are.
"""

import re
import sys
import traceback
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from worldloom.serving import answers
from worldloom.serving.controller import Controller
from worldloom.serving.gate import Gate, GateRules
from worldloom.serving.plants import Refused

HEAD_BYTES, HEADS = 2048, 1024  # of a plain head at most; heads whose judgement is remembered
# Nothing here that two parsers of HTTP could read in two ways.
_HEAD = re.compile(
    rb"(GET|POST) (/[a-z.]{0,20}) HTTP/1\.1\r\n"
    rb"(?:[A-Za-z0-9-]{1,40}: [!-~]+(?: [!-~]+)*\r\n){1,40}\r\n"
)
_UNUSUAL = {b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"}


class Head(NamedTuple):
    """What the head of a plain request says."""

    length: int  # of the body
    accepted: bool  # it asks for an action, and the gate has nothing against it
    idempotency_key: str | None = None


class Direct:
    """The plain way to a controller's actions, past the framework but not past the gate."""

    def __init__(self, controller: Controller, rules: GateRules):
        self._controller, self._rules = controller, rules
        self._gate = Gate(None, rules, controller.metrics)  # pyright: ignore[reportArgumentType]
        # Clients send the same heads again and again, and a head decides all that is decided of it.
        self._judge = lru_cache(HEADS)(self._judged)

    def read(self, data: bytes) -> tuple[Head, bytes] | None:
        """A plain request and its body, or what is there of it; None where it is anything else."""
        end = data.find(b"\r\n\r\n") + 4
        if not 4 <= end <= HEAD_BYTES:
            return None
        head = self._judge(data[:end])
        if head is None or len(data) - end > head.length:
            return None
        return head, data[end:]

    def take(self, request: tuple[Head, bytes], answer: Callable[[bytes], None]) -> bool:
        """Asks for the action, and calls `answer` with the whole response later; or leaves it."""
        head, body = request
        if not head.accepted:
            return False
        bundle, controller = self._controller.bundle, self._controller
        try:
            content = orjson.loads(body)
            plant, observation = content["plant"], content["observation"]
            previous = content.get("previous")
            parts = [content, *(x for x in (observation, previous) if type(x) is dict)]
            # Each pair has one colon outside of strings: were a name there twice, there were more.
            if body.count(b":") != sum(map(len, parts)):
                return False
            if len(content) != 2 + ("previous" in content):
                return False
            obs = answers.read_observation(observation, bundle.observation)
            if previous is not None:
                answers.read_action("previous", previous, bundle.action)
        except (ValueError, LookupError, TypeError, AttributeError):
            return False  # to be told what is wrong with it

        def told(outcome: Any) -> None:
            try:
                response = self._response(outcome)
            except Exception as error:
                response = self._response(error)
            try:
                answer(response)
            except Exception:  # of one connection, which must not cost the others their answers
                traceback.print_exc(file=sys.stderr)

        # A name that is none is that of no plant.
        return type(plant) is str and controller.act_now(plant, obs, told, head.idempotency_key)

    def _response(self, outcome: Any) -> bytes:
        status, more = 200, b""
        if isinstance(outcome, dict) and "answer" in outcome:
            body = outcome["answer"]
        elif isinstance(outcome, Refused):
            status, body = outcome.status, orjson.dumps({"detail": outcome.message})
            more = b"".join(f"{n}: {x}\r\n".encode() for n, x in outcome.headers.items())
        elif isinstance(outcome, Exception):
            traceback.print_exception(outcome, file=sys.stderr)
            status, body = 500, b'{"detail":"Internal Server Error"}'
        else:
            body = orjson.dumps(answers.outcome_answer(self._controller.bundle, outcome))
        self._controller.metrics.count("worldloom_requests_total", path="/act", status=status)
        phrase = b"OK" if status == 200 else HTTPStatus(status).phrase.encode()
        return (
            b"HTTP/1.1 %d %b\r\ncontent-length: %d\r\ncontent-type: application/json\r\n%b\r\n%b"
            % (status, phrase, len(body), more, body)
        )

    def _judged(self, head: bytes) -> Head | None:
        """What a head says; None: it is not plain."""
        match = _HEAD.fullmatch(head)
        if match is None:
            return None
        lines = [line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2]]
        headers = {name.lower(): value for name, value in lines}
        length = headers.get(b"content-length", b"0")
        if (
            len(headers) != len(lines)
            or b"host" not in headers
            or headers.keys() & _UNUSUAL
            or headers.get(b"connection", b"keep-alive").lower() != b"keep-alive"
            or not re.fullmatch(rb"[0-9]{1,9}", length)
        ):
            return None
        method, path = match[1].decode(), match[2].decode()
        scope = {"method": method, "path": path, "headers": list(headers.items())}
        key = headers.get(b"idempotency-key")
        accepted = (
            (method, path) == ("POST", "/act")
            and int(length) <= self._rules.body_bytes
            and self._gate.refusal(scope, headers) is None
            and (key is None or re.fullmatch(answers.IDEMPOTENCY_KEY, key.decode()) is not None)
        )
        return Head(int(length), accepted, None if key is None else key.decode().strip('"'))
