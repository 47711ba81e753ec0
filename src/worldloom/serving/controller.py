"""Requests on their way to an action: in turn, in batches, in time, and on record.

* **In turn.** What concerns one plant is carried out one after the other, in the order of arrival;
  two requests of a plant are never in one batch. A request that comes twice with the same
  idempotency key is answered twice and carried out once.
* **In batches.** Whatever waits when a batch is finished becomes the next one, padded to one of the
  bundle's sizes.
* **In time.** A request that has no action when its deadline comes is answered with the emergency
  action that the plant's memory holds ready. Who comes first, the deadline or the batch, decides;
  the other one's result is not executed.
* **On record.** The answer is sent, and the plant's memory advanced, after the record was written.
  If it cannot be written, no action is answered.
"""

import asyncio
import contextlib
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from worldloom.serving.bundle import Bundle, Drift
from worldloom.serving.changes import Change, Outcome, write_changes
from worldloom.serving.health import Loop, Recorder
from worldloom.serving.journal import Journal
from worldloom.serving.metrics import Metrics
from worldloom.serving.plants import (
    Limits,
    Plant,
    Plants,
    Refused,
    key_for,
    overridden,
    restarted,
)
from worldloom.serving.program import Rows, pad, stack
from worldloom.serving.records import numbers, rows_of
from worldloom.training.machine import versions

DRAIN_SECONDS = 10.0  # for answers that are under way when the server is told to stop


@dataclass(eq=False)
class _Asked:
    """A request for an action, while it waits."""

    plant: Plant
    obs: np.ndarray
    key: np.ndarray
    memory: Rows
    expires: float  # by the event loop's clock
    about: dict[str, Any]  # what its record says besides
    done: "asyncio.Future[Outcome]"
    taken: bool = False  # by the batch or by the deadline: the first decides the answer


class Controller:
    """Controls plants by a bundle's policy. `open` it in the loop that it is used in.

    Takes the plants over from the log, and notes the start in it; an OSError where it cannot.
    `failure` says why it has ended by itself, which `on_failure` is called for.
    """

    def __init__(self, bundle: Bundle, journal: Journal, limits: Limits):
        self.bundle, self.journal, self.limits = bundle, journal, limits
        self.metrics = Metrics()
        self.plants = Plants(bundle, limits)
        self.ready = False
        self.failure: str | None = None
        self.on_failure: Callable[[], None] = lambda: None
        names = [signal["name"] for signal in bundle.observation]
        self._drift = Drift(bundle.manifest["drift"], names)
        self._seed = secrets.token_hex(8)
        self._asked: deque[_Asked] = deque()  # not a queue: who has waited too long leaves it
        self._changes: asyncio.Queue[Change] = asyncio.Queue()
        self._new_asked = asyncio.Event()
        self._held: set[asyncio.Task[Outcome]] = set()  # requests under way
        self._loops: list[Loop] = []
        self._claim = threading.Lock()
        self._recorder = Recorder(journal, {"policy": bundle.digest})
        # One thread for batches, one for whatever must not wait for a batch.
        self._batcher = ThreadPoolExecutor(1, "batch")
        self._changer = ThreadPoolExecutor(1, "change")
        self.plants.recover(journal.recovered.latest)
        note = {
            "seed": self._seed,
            "batch_sizes": list(bundle.batch_sizes),
            "versions": versions(),
            "signals": bundle.manifest["signals"],  # what numbers stand for, and their order
        }
        self._recorder.note("start", note)

    # Life ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Answers from now on."""

        def loop(name: str, take: Any, work: Any) -> Loop:
            return Loop(name, take, work, restarted=self._restarted, gave_up=self._fail)

        self._loops = [
            loop("batch", self._next_batch, self._answer_batch),
            loop("record", self._next_changes, self._make_changes),
        ]
        self.ready = True

    async def close(self) -> None:
        """Answers what was asked, notes the end, and closes the log."""
        self.ready = False
        if not self._loops:
            return
        if self._held:
            await asyncio.wait(self._held, timeout=DRAIN_SECONDS)
        for loop in self._loops:
            await loop.close()
        self._loops = []
        self._batcher.shutdown()
        self._changer.shutdown()
        if self.journal.broken is None and self.failure is None:
            try:
                self._recorder.note("stop")
            except OSError as error:
                print(f"the end is not on record: {error}", file=sys.stderr, flush=True)
        self.journal.close()

    def _restarted(self, name: str) -> None:
        self.metrics.count("worldloom_loop_restarts_total", loop=name)

    def _fail(self, why: str) -> None:
        """Nothing more can be answered: everybody who waits is told, and whoever runs this."""
        self.failure, self.ready = why, False
        for task in self._held:
            task.cancel()
        self.on_failure()

    # Whether it answers --------------------------------------------------------------------------

    async def problem(self) -> str | None:
        """Why requests are not answered as they should be; None: they are."""
        stopped = [problem for loop in self._loops if (problem := loop.problem())]
        if self.failure is not None or stopped:
            return self.failure or stopped[0]
        return await self._recorder.problem()

    def gauges(self, problem: str | None) -> dict[str, float]:
        """The values of `worldloom.serving.metrics.GAUGES`; problem: the present one."""
        return {
            "worldloom_ready": float(self.ready and problem is None),
            "worldloom_plants": len(self.plants),
            "worldloom_plants_latched": self.plants.latched(),
            "worldloom_waiting": len(self._held),
            "worldloom_log_records": self.journal.seq + 1,
            "worldloom_log_bytes": self.journal.size,
        }

    # What can be asked ---------------------------------------------------------------------------

    async def act(
        self,
        name: str,
        obs: np.ndarray,
        previous: np.ndarray | None = None,
        idempotency_key: str | None = None,
    ) -> Outcome:
        """The answer for a plant that is observed as obs (n,).

        previous (m,): where the actuators of a plant are that is not known yet.
        """
        arrived = asyncio.get_running_loop().time()

        async def run(plant: Plant) -> Outcome:
            earlier = plant.answer_to(idempotency_key)
            if earlier is not None:
                if earlier["content"]["obs"] != numbers(obs):
                    text = f"plant {name}: this idempotency key was used for another observation"
                    raise Refused(409, f"{text}; use a new one")
                return earlier
            if not plant.known:
                _require(plant, previous)
                await self._reset(plant, previous)
            outcome = await self._ask(plant, obs, arrived, idempotency_key)
            plant.remember(idempotency_key, outcome)
            self.metrics.seconds.observe(asyncio.get_running_loop().time() - arrived)
            self.metrics.answered(outcome["content"])
            return outcome

        return await self._in_turn(name, run, previous is not None)

    async def override(self, name: str, action: np.ndarray | None) -> Outcome:
        """Sets an action (m,) that is asked for in place of the policy's, or clears it (None)."""

        async def run(plant: Plant) -> Outcome:
            _require(plant, None)
            after = partial(overridden, plant.memory, action)
            return await self._change("override", plant, {"action": _or_none(action)}, after)

        return await self._in_turn(name, run)

    async def reset(self, name: str, previous: np.ndarray | None) -> Outcome:
        """Lifts a latched stop; with previous (m,), forgets everything but where actuators are."""

        async def run(plant: Plant) -> Outcome:
            _require(plant, previous)
            return await self._reset(plant, previous)

        return await self._in_turn(name, run, previous is not None)

    # In turn -------------------------------------------------------------------------------------

    async def _in_turn(
        self, name: str, run: Callable[[Plant], Awaitable[Outcome]], begins: bool = False
    ) -> Outcome:
        """Runs what concerns a plant; begins: it says where the actuators of a new one are."""
        if not self.ready:
            raise Refused(503, self.failure or "the server is stopping", 5.0)
        if len(self._held) >= self.limits.waiting:
            raise Refused(503, f"{len(self._held)} requests wait already", 1.0)
        now = asyncio.get_running_loop().time()
        silent = self.plants.to_forget(name, now) if begins else None
        if silent is not None:
            await self._hold(silent, self._forget)
        return await self._hold(self.plants.find(name, now), run)

    async def _hold(self, plant: Plant, run: Callable[[Plant], Awaitable[Outcome]]) -> Outcome:
        async def held() -> Outcome:
            async with plant.turn:
                return await run(plant)

        def left(task: "asyncio.Task[Outcome]") -> None:
            self._held.discard(task)
            self.plants.leave(plant)
            if not task.cancelled():
                task.exception()  # looked at, also where nobody waits for it any more

        plant.requests += 1
        # In a task of its own: a client that goes away must not leave its plant half answered.
        task = asyncio.create_task(held())
        self._held.add(task)
        task.add_done_callback(left)
        await asyncio.wait([task])
        if task.cancelled():
            raise Refused(503, self.failure or "the server is stopping", 5.0)
        return task.result()

    async def _forget(self, plant: Plant) -> Outcome:
        """Frees the slot of a plant that was not heard of: on record, it starts anew."""
        place = np.asarray(self.bundle.manifest["emergency"], np.float32)
        outcome = await self._reset(plant, place, forgotten=True)
        plant.known = False
        return outcome

    async def _reset(self, plant: Plant, previous: np.ndarray | None, **about: Any) -> Outcome:
        after = partial(restarted, self.bundle, plant.memory, previous)
        return await self._change("reset", plant, {"previous": _or_none(previous)} | about, after)

    async def _ask(
        self, plant: Plant, obs: np.ndarray, arrived: float, idempotency_key: str | None
    ) -> Outcome:
        loop = asyncio.get_running_loop()
        key = key_for(self._seed, plant.name, int(plant.memory["step"]))
        about = {} if idempotency_key is None else {"idempotency_key": idempotency_key}
        expires = arrived + self.limits.deadline
        asked = _Asked(plant, obs, key, plant.memory, expires, about, loop.create_future())
        # For a time that is past already, uvloop gives a handle that knows no time: only cancel it.
        timer = loop.call_at(expires, self._expire, asked, "deadline")
        self._asked.append(asked)
        self._new_asked.set()
        try:
            return _advance(plant, await asked.done)
        finally:
            timer.cancel()

    async def _change(
        self, kind: str, plant: Plant, content: dict[str, Any], after: Callable[[], Rows]
    ) -> Outcome:
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._changes.put_nowait(Change(kind, plant, content, after, done))
        return _advance(plant, await done)

    # In time -------------------------------------------------------------------------------------

    def _take(self, asked: _Asked) -> bool:
        """Whether the caller is the first, who decides the answer."""
        with self._claim:
            first, asked.taken = not asked.taken, True
        return first

    def _expire(self, asked: _Asked, reason: str) -> None:
        if not self._take(asked):
            return
        with contextlib.suppress(ValueError):  # it may be in a batch already
            self._asked.remove(asked)

        content = {
            "obs": numbers(asked.obs),
            "key": numbers(asked.key),
            "reason": reason,
            "action": numbers(asked.memory["fallback"]),
        }
        after = partial(self.bundle.after_emergency, asked.memory)
        change = Change("emergency", asked.plant, content | asked.about, after, asked.done)
        self._changes.put_nowait(change)

    # In batches ----------------------------------------------------------------------------------

    async def _next_batch(self) -> list[_Asked]:
        loop, most = asyncio.get_running_loop(), max(self.bundle.batch_sizes)
        while True:
            batch: list[_Asked] = []
            while self._asked and len(batch) < most:
                asked = self._asked.popleft()
                if asked.expires <= loop.time():
                    self._expire(asked, "deadline")  # its time is up before it is asked
                elif not asked.taken:
                    batch.append(asked)
            if batch:
                return batch
            self._new_asked.clear()
            await self._new_asked.wait()

    async def _answer_batch(self, batch: list[_Asked]) -> None:
        loop = asyncio.get_running_loop()
        try:
            outcomes = await loop.run_in_executor(self._batcher, self._answer, batch)
        except Exception as error:  # whatever it is, the plants need an action
            for asked in batch:
                self._expire(asked, f"{type(error).__name__}: {error}"[:200])
            return
        for asked, outcome in zip(batch, outcomes, strict=True):
            if outcome is not None:
                self._settle(asked.done, outcome)
        self.metrics.count("worldloom_batches_total", size=self.bundle.padded(len(batch)))

    def _answer(self, batch: list[_Asked]) -> list[Outcome | OSError | None]:
        """Computes a batch and writes its records; None for rows that the deadline took."""
        size = self.bundle.padded(len(batch))
        obs, memory, key = rows = stack([(a.obs, a.memory, a.key) for a in batch])
        out = self.bundle.control(*pad(rows, size))
        strange = self._drift.strange(obs)
        now, policy = time.time(), self.bundle.digest
        inputs = rows_of({"obs": obs, "key": key, "memory": memory}, len(batch))
        out["after"] = out.pop("memory")
        results = rows_of(out, len(batch))
        mine = [self._take(asked) for asked in batch]
        try:
            records: list[tuple[str, dict[str, Any]]] = []
            for i, asked in enumerate(batch):
                content = {"plant": asked.plant.name, "time": now, "policy": policy, **inputs[i]}
                content["batch"] = [size, i]
                if mine[i]:
                    content |= results[i]
                    content["drift"] = [self._drift.names[j] for j in np.flatnonzero(strange[i])]
                    content |= asked.about
                records.append(("act" if mine[i] else "unused", content))
            written = self._recorder.write(records)
        except OSError as error:
            return [error if first else None for first in mine]
        except Exception:
            for asked, first in zip(batch, mine, strict=True):
                asked.taken = not first  # or nobody could answer with the emergency action
            raise
        return [
            {
                "record": written[i]._asdict(),
                "kind": "act",
                "content": records[i][1],
                "memory": {name: x[i] for name, x in out["after"].items()},
            }
            if mine[i]
            else None
            for i in range(len(batch))
        ]

    # On record -----------------------------------------------------------------------------------

    async def _next_changes(self) -> list[Change]:
        changes = [await self._changes.get()]
        while not self._changes.empty():
            changes.append(self._changes.get_nowait())
        return changes

    async def _make_changes(self, changes: list[Change]) -> None:
        loop = asyncio.get_running_loop()
        try:
            write = partial(write_changes, changes, self._recorder)
            outcomes = await loop.run_in_executor(self._changer, write)
        except Exception as error:  # whatever it is, those who come after are carried out
            outcomes = [error] * len(changes)
        for change, outcome in zip(changes, outcomes, strict=True):
            self._settle(change.done, outcome)

    def _settle(self, done: "asyncio.Future[Outcome]", outcome: Outcome | Exception) -> None:
        if done.done():
            return
        if isinstance(outcome, OSError):
            done.set_exception(Refused(503, f"the audit log: {outcome}", 1.0))
        elif isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)


def _advance(plant: Plant, outcome: Outcome) -> Outcome:
    plant.memory, plant.known = outcome.pop("memory"), True
    return outcome


def _require(plant: Plant, previous: np.ndarray | None) -> None:
    """Refused where nobody said where a plant's actuators are: rates count from there."""
    if not plant.known and previous is None:
        text = f"plant {plant.name} is not known: say where its actuators are"
        raise Refused(409, f"{text}, as `previous` of /reset or of /act")


def _or_none(action: np.ndarray | None) -> Any:
    return None if action is None else numbers(action)
