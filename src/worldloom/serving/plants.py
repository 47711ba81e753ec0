"""The plants that a server controls: each with a memory, a turn to wait for, and a rate limit.

A plant is known, and has a slot, once somebody said where its actuators are. It keeps the slot
until another needs it and it has not been heard of for long; a stop or an override is never
forgotten.
"""

import asyncio
import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.safety.filter import ControlMemory, clear_override, reset_latch, with_override
from worldloom.serving.artifact import as_dict
from worldloom.serving.bundle import Bundle
from worldloom.serving.program import Rows
from worldloom.serving.records import memory_array


@dataclass(frozen=True)
class Limits:
    """What a server puts up with."""

    deadline: float = 0.2  # seconds from a request to the emergency action
    rate: float = 1000.0  # requests a second of one plant
    burst: float = 100.0  # of them at once
    plants: int = 10_000
    waiting: int = 2_000  # requests at once
    forget_after: float = 7 * 86_400.0  # seconds of silence that may cost a plant its slot


class Refused(Exception):
    """A request that is not carried out, as an HTTP status, one line, and when to try again."""

    def __init__(self, status: int, message: str, retry_after: float | None = None):
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after

    @property
    def headers(self) -> dict[str, str]:
        """When to try again, in whole seconds, as HTTP has it: clients give up on anything else."""
        wait = self.retry_after
        return {} if wait is None else {"retry-after": str(max(1, math.ceil(wait)))}


@dataclass
class Bucket:
    """Lets `rate` requests a second pass, and `burst` of them at once."""

    rate: float
    burst: float
    left: float
    at: float

    def wait(self, now: float) -> float:
        """Takes one, and gives 0; or the seconds until there is one to take."""
        self.left = min(self.burst, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1.0:
            return (1.0 - self.left) / self.rate
        self.left -= 1.0
        return 0.0


class Turn:
    """First come, first served; like `asyncio.Lock`, and can be taken without an `await`."""

    def __init__(self):
        self._taken, self._waiting = False, deque[asyncio.Future[None]]()

    def take(self) -> bool:
        """Takes it if it is free."""
        taken, self._taken = self._taken, True
        return not taken

    def leave(self) -> None:
        """Hands it to who waits for longest."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._taken = False

    async def __aenter__(self) -> None:
        if self.take():
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it had come already
                self.leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.leave()


KEYS = 8  # idempotency keys that a plant remembers the answers to


@dataclass(eq=False)
class Plant:
    """One controlled plant. Its memory changes only when the record of the change is written."""

    name: str
    memory: Rows
    bucket: Bucket
    known: bool  # whether its memory says where its actuators are
    heard: float  # when, by the event loop's clock
    requests: int = 0  # under way
    # What concerns one plant happens in the order it arrived in.
    turn: Turn = field(default_factory=Turn)
    text: bytes | None = None  # its memory as the last record has it, where that is known
    _answers: dict[str, str] = field(default_factory=dict)  # idempotency key -> JSON, newest last

    def remember(self, key: str | None, outcome: Mapping[str, Any]) -> None:
        """Keeps what a request with an idempotency key led to."""
        if key is not None:
            self._answers[key] = json.dumps(outcome)
            if len(self._answers) > KEYS:
                del self._answers[next(iter(self._answers))]

    def answer_to(self, key: str | None) -> dict[str, Any] | None:
        """What an earlier request with this key led to."""
        return json.loads(self._answers[key]) if key in self._answers else None

    def has_answer_to(self, key: str | None) -> bool:
        """Whether there was an earlier request with this key."""
        return key in self._answers

    def require(self, previous: np.ndarray | None) -> None:
        """Refused where nobody said where its actuators are: rates count from there."""
        if not self.known and previous is None:
            text = f"plant {self.name} is not known: say where its actuators are"
            raise Refused(409, f"{text}, as `previous` of /reset or of /act")

    def executed(self, action: np.ndarray | None) -> np.ndarray:
        """In shadow mode, what the operator did: as a request says, or else the override."""
        if action is not None:
            return action
        if not self.memory["overriding"]:
            text = f"plant {self.name}: in shadow mode, say what the operator did"
            raise Refused(409, f"{text}, as `executed` of /act or by /override")
        return self.memory["override"]


class Plants:
    """Plants by their ids. One that is not known starts with the bundle's initial memory."""

    def __init__(self, bundle: Bundle, limits: Limits):
        self._start, self._limits = bundle.initial_memory(), limits
        self._plants: dict[str, Plant] = {}
        # Compiled now: an operator's first wish must not hold up another plant's emergency action.
        wished = overridden(self._start, self._start["previous"])
        restarted(bundle, overridden(wished, None), None)

    def recover(self, latest: Mapping[str, bytes]) -> None:
        """Takes over what the last records of a log, by plant, leave behind.

        A plant was heard of when its record was written: a restart does not make it speak.
        """
        now, clock = time.monotonic(), time.time()
        for name, line in latest.items():
            try:
                content = json.loads(line)
                after, age = memory_array(content["after"]), clock - content["time"]
                record = {key: content[key] for key in ("seq", "hash")}
                outcome = {"kind": content["kind"], "content": content, "record": record}
                if any(np.shape(x) != np.shape(after[key]) for key, x in self._start.items()):
                    raise ValueError("a memory of another size")
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"the log's last record of plant {name} lacks or garbles something "
                    f"({error!r:.120}); run `worldloom audit verify`, or start another log"
                ) from None
            plant = self._plants[name] = self._make(name, after, now - max(age, 0.0))
            plant.known = True
            plant.remember(content.get("idempotency_key"), outcome)

    def free(self, name: str, now: float, key: str | None) -> Plant | None:
        """A plant that is known, free, and may ask: its turn is taken. None: `find` it.

        key: the request's idempotency key, which must be new to it.
        """
        plant = self._plants.get(name)
        if plant is None or plant.requests or not plant.known or plant.has_answer_to(key):
            return None
        if plant.bucket.wait(now) > 0.0:
            return None
        plant.heard, plant.requests = now, 1
        plant.turn.take()
        return plant

    def find(self, name: str, now: float) -> Plant:
        """The plant with this id; Refused where it asks too often or is one too many."""
        plant = self._plants.get(name)
        if plant is None:
            most = self._limits.plants
            if len(self._plants) >= most:
                text = f"plant {name}: {most} plants are controlled already"
                raise Refused(429, f"{text}; raise --plants or use an id that is known")
            plant = self._plants[name] = self._make(name, self._start, now)
        wait = plant.bucket.wait(now)
        if wait > 0.0:
            rate = self._limits.rate
            raise Refused(429, f"plant {name} asks more than {rate:g} times a second", wait)
        plant.heard = now
        return plant

    def leave(self, plant: Plant) -> None:
        """Notes the end of a request. A plant that is not known then has no slot."""
        plant.requests -= 1
        if not plant.requests and not plant.known:
            del self._plants[plant.name]

    def to_forget(self, name: str, now: float) -> Plant | None:
        """The plant whose slot one with this id needs: silent for longest, and for long enough."""
        if name in self._plants or len(self._plants) < self._limits.plants:
            return None
        silent = [
            plant
            for plant in self._plants.values()
            if now - plant.heard >= self._limits.forget_after
            and not (plant.requests or plant.memory["latched"] or plant.memory["overriding"])
        ]
        return min(silent, key=lambda plant: plant.heard, default=None)

    def __len__(self) -> int:
        return len(self._plants)

    def latched(self) -> int:
        """How many plants are stopped."""
        return sum(bool(plant.memory["latched"]) for plant in self._plants.values())

    def _make(self, name: str, memory: Rows, now: float) -> Plant:
        rate, burst = self._limits.rate, self._limits.burst
        return Plant(name, memory, Bucket(rate, burst, burst, now), known=False, heard=now)


def key_for(seed: str, plant: str, step: int) -> np.ndarray:
    """Key data uint32 (2,) of one step of one plant, from a server's seed."""
    digest = hashlib.sha256(f"{seed}/{plant}/{step}".encode()).digest()
    return np.frombuffer(digest, "<u4", 2).astype(np.uint32, copy=False)


# Memories ----------------------------------------------------------------------------------------


def overridden(memory: Rows, action: np.ndarray | None) -> Rows:
    """A plant's memory with a human's action (m,), or without one (None)."""
    before = ControlMemory(**memory)
    after = clear_override(before) if action is None else with_override(before, jnp.asarray(action))
    return jax.device_get(as_dict(after))


def restarted(
    bundle: Bundle, memory: Rows, previous: np.ndarray | None, keep_stop: bool = False
) -> Rows:
    """A plant's memory with its stop lifted; or that of a start with actuators at previous (m,).

    keep_stop: only where the actuators are is new; a stop and an override stand.
    """
    if previous is not None:
        kept = ("override", "overriding", "latched", "step") if keep_stop else ()
        return bundle.initial_memory(previous) | {name: memory[name] for name in kept}
    lifted = jax.device_get(as_dict(reset_latch(ControlMemory(**memory))))
    # The next emergency is the first of its kind: a recovery procedure begins anew.
    return lifted | {"fallback": bundle.initial_memory(memory["previous"])["fallback"]}
