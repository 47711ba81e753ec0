"""Requests on their way to an action: in turn, in batches, in time, and on record.

* **In turn.** What concerns one plant is carried out one after the other, in the order of arrival;
  two requests of a plant are never in one batch.
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
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from worldloom.serving.bundle import Bundle, Drift
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
from worldloom.serving.records import memory_numbers, numbers, rows_of
from worldloom.training.machine import versions

T = TypeVar("T")


@dataclass(eq=False)
class _Asked:
    """A request for an action, while it waits."""

    plant: Plant
    obs: np.ndarray
    key: np.ndarray
    memory: Rows
    done: "asyncio.Future[dict[str, Any]]"
    timer: asyncio.TimerHandle | None = None
    taken: bool = False  # by the batch or by the deadline: the first decides the answer


@dataclass(eq=False)
class _Change:
    """Something that happens to a plant without the policy: kind of record, content, memory after.

    `make` computes the last two; it runs in a thread.
    """

    kind: str
    plant: Plant
    make: Callable[[], tuple[dict[str, Any], Rows]]
    done: "asyncio.Future[dict[str, Any]]"


class Controller:
    """Controls plants by a bundle's policy. `open` it in the loop that it is used in."""

    def __init__(self, bundle: Bundle, journal: Journal, limits: Limits):
        self.bundle, self.journal, self.limits = bundle, journal, limits
        self.metrics = Metrics()
        self.plants = Plants(bundle, limits)
        self.ready = False
        names = [signal["name"] for signal in bundle.observation]
        self._drift = Drift(bundle.manifest["drift"], names)
        self._seed = secrets.token_hex(8)
        self._asked: deque[_Asked] = deque()  # not a queue: who has waited too long leaves it
        self._changes: asyncio.Queue[_Change] = asyncio.Queue()
        self._waiting = 0
        self._claim = threading.Lock()
        # One thread for batches, one for whatever must not wait for a batch.
        self._batcher = ThreadPoolExecutor(1, "batch")
        self._changer = ThreadPoolExecutor(1, "change")

    # Life ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Recovers the plants from the log, notes the start in it, and answers from now on."""
        self.plants.recover(self.journal.recovered.latest)
        note = {
            "time": time.time(),
            "policy": self.bundle.digest,
            "seed": self._seed,
            "batch_sizes": list(self.bundle.batch_sizes),
            "versions": versions(),
            "signals": self.bundle.manifest["signals"],  # what numbers stand for, and their order
        }
        self.journal.append([("start", note)])
        self._new_asked, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._loops = [
            asyncio.create_task(self._answer_batches()),
            asyncio.create_task(self._make_changes()),
        ]
        self.ready = True

    async def close(self) -> None:
        """Answers what was asked, notes the end, and closes the log."""
        if not self.ready:
            return
        self.ready = False
        await self._idle.wait()
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._batcher.shutdown()
        self._changer.shutdown()
        if self.journal.broken is None:
            self.journal.append([("stop", {"time": time.time(), "policy": self.bundle.digest})])
        self.journal.close()

    # What can be asked ---------------------------------------------------------------------------

    async def act(self, name: str, obs: np.ndarray) -> dict[str, Any]:
        """The answer for a plant that is observed as obs (n,)."""
        arrived = asyncio.get_running_loop().time()
        answer = await self._in_turn(name, lambda plant: self._ask(plant, obs, arrived))
        self.metrics.seconds.observe(asyncio.get_running_loop().time() - arrived)
        self.metrics.answered(answer["content"])
        return answer

    async def override(self, name: str, action: np.ndarray | None) -> dict[str, Any]:
        """Sets an action (m,) that is asked for in place of the policy's, or clears it (None)."""

        def make(plant: Plant) -> tuple[dict[str, Any], Rows]:
            return {"action": _or_none(action)}, overridden(plant.memory, action)

        return await self._in_turn(name, lambda plant: self._change("override", plant, make))

    async def reset(self, name: str, previous: np.ndarray | None) -> dict[str, Any]:
        """Lifts a latched stop; with previous (m,), forgets everything but where actuators are."""

        def make(plant: Plant) -> tuple[dict[str, Any], Rows]:
            return {"previous": _or_none(previous)}, restarted(self.bundle, plant.memory, previous)

        return await self._in_turn(name, lambda plant: self._change("reset", plant, make))

    def gauges(self) -> dict[str, float]:
        """The values of `worldloom.serving.metrics.GAUGES`."""
        return {
            "worldloom_ready": float(self.ready and self.journal.broken is None),
            "worldloom_plants": len(self.plants),
            "worldloom_plants_latched": self.plants.latched(),
            "worldloom_waiting": self._waiting,
            "worldloom_log_records": self.journal.seq + 1,
            "worldloom_log_bytes": self.journal.size,
        }

    # In turn -------------------------------------------------------------------------------------

    async def _in_turn(self, name: str, run: Callable[[Plant], Any]) -> dict[str, Any]:
        if not self.ready:
            raise Refused(503, "the server is stopping", 5.0)
        if self._waiting >= self.limits.waiting:
            raise Refused(503, f"{self._waiting} requests wait already", 1.0)
        plant = self.plants.find(name, asyncio.get_running_loop().time())
        self._waiting += 1
        self._idle.clear()
        # In a task of its own: a client that goes away must not leave its plant half answered.
        task = asyncio.ensure_future(self._hold(plant, run))
        task.add_done_callback(self._left)
        return await asyncio.shield(task)

    def _left(self, task: "asyncio.Task[Any]") -> None:
        self._waiting -= 1
        if not self._waiting:
            self._idle.set()
        if not task.cancelled():
            task.exception()  # looked at, also where nobody waits for it any more

    async def _hold(self, plant: Plant, run: Callable[[Plant], Any]) -> dict[str, Any]:
        async with plant.turn:
            outcome = await run(plant)
            plant.memory = outcome.pop("memory")
            return outcome

    async def _ask(self, plant: Plant, obs: np.ndarray, arrived: float) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        key = key_for(self._seed, plant.name, int(plant.memory["step"]))
        asked = _Asked(plant, obs, key, plant.memory, loop.create_future())
        asked.timer = loop.call_at(arrived + self.limits.deadline, self._expire, asked, "deadline")
        self._asked.append(asked)
        self._new_asked.set()
        try:
            return await asked.done
        finally:
            asked.timer.cancel()

    async def _change(
        self, kind: str, plant: Plant, make: Callable[[Plant], tuple[dict[str, Any], Rows]]
    ) -> dict[str, Any]:
        done = asyncio.get_running_loop().create_future()
        self._changes.put_nowait(_Change(kind, plant, lambda: make(plant), done))
        return await done

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

        def make() -> tuple[dict[str, Any], Rows]:
            content = {
                "obs": numbers(asked.obs),
                "key": numbers(asked.key),
                "reason": reason,
                "action": numbers(asked.memory["fallback"]),
            }
            return content, self.bundle.after_emergency(asked.memory)

        self._changes.put_nowait(_Change("emergency", asked.plant, make, asked.done))

    # In batches ----------------------------------------------------------------------------------

    async def _answer_batches(self) -> None:
        loop = asyncio.get_running_loop()
        most = max(self.bundle.batch_sizes)
        while True:
            batch: list[_Asked] = []
            while self._asked and len(batch) < most:
                asked = self._asked.popleft()
                if asked.timer is not None and asked.timer.when() <= loop.time():
                    self._expire(asked, "deadline")  # its time is up before it is asked
                elif not asked.taken:
                    batch.append(asked)
            if not batch:
                self._new_asked.clear()
                await self._new_asked.wait()
                continue
            try:
                outcomes = await loop.run_in_executor(self._batcher, self._answer, batch)
            except Exception as error:  # whatever it is, the plants need an action
                for asked in batch:
                    self._expire(asked, f"{type(error).__name__}: {error}"[:200])
                continue
            self.metrics.count("worldloom_batches_total", size=self.bundle.padded(len(batch)))
            for asked, outcome in zip(batch, outcomes, strict=True):
                if outcome is not None:
                    self._settle(asked.done, outcome)

    def _answer(self, batch: list[_Asked]) -> list[dict[str, Any] | OSError | None]:
        """Computes a batch and writes its records; None for rows that the deadline took."""
        size = self.bundle.padded(len(batch))
        obs, memory, key = rows = stack([(a.obs, a.memory, a.key) for a in batch])
        out = self.bundle.control(*pad(rows, size))
        strange = self._drift.strange(obs)
        now, policy = time.time(), self.bundle.digest
        inputs = rows_of({"obs": obs, "key": key, "memory": memory}, len(batch))
        said = {"proposed": out["proposed"], "action": out["action"], "after": out["memory"]}
        results = rows_of(said | {"report": out["report"]}, len(batch))
        mine = [self._take(asked) for asked in batch]
        try:
            records: list[tuple[str, dict[str, Any]]] = []
            for i, asked in enumerate(batch):
                content = {"plant": asked.plant.name, "time": now, "policy": policy, **inputs[i]}
                content["batch"] = [size, i]
                if mine[i]:
                    content |= results[i]
                    content["drift"] = [self._drift.names[j] for j in np.flatnonzero(strange[i])]
                records.append(("act" if mine[i] else "unused", content))
            written = self.journal.append(records)
        except OSError as error:
            return [error if first else None for first in mine]
        except Exception:
            for asked, first in zip(batch, mine, strict=True):
                asked.taken = not first  # or nobody could answer with the emergency action
            raise
        return [
            {
                "record": written[i],
                "kind": "act",
                "content": records[i][1],
                "memory": {name: x[i] for name, x in out["memory"].items()},
            }
            if mine[i]
            else None
            for i in range(len(batch))
        ]

    async def _make_changes(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            changes = await _next(self._changes)
            try:
                outcomes = await loop.run_in_executor(self._changer, self._write_changes, changes)
            except Exception as error:  # whatever it is, those who come after are carried out
                outcomes = [error] * len(changes)
            for change, outcome in zip(changes, outcomes, strict=True):
                self._settle(change.done, outcome)

    def _write_changes(self, changes: list[_Change]) -> list[dict[str, Any] | Exception]:
        """Carries changes of different plants out and writes their records as one group."""
        outcomes: list[dict[str, Any] | Exception] = []
        for change in changes:
            try:
                content, after = change.make()
            except Exception as error:
                outcomes.append(error)
                continue
            about = {
                "plant": change.plant.name,
                "time": time.time(),
                "policy": self.bundle.digest,
                "memory": memory_numbers(change.plant.memory),
            }
            content = about | content | {"after": memory_numbers(after)}
            outcomes.append({"kind": change.kind, "content": content, "memory": after})
        made = [outcome for outcome in outcomes if isinstance(outcome, dict)]
        try:
            places = self.journal.append([(x["kind"], x["content"]) for x in made])
        except OSError as error:
            return [error] * len(changes)
        for outcome, place in zip(made, places, strict=True):
            outcome["record"] = place
        return outcomes

    def _settle(
        self, done: "asyncio.Future[dict[str, Any]]", outcome: dict[str, Any] | Exception
    ) -> None:
        if done.done():
            return
        if isinstance(outcome, OSError):
            done.set_exception(Refused(503, f"the audit log: {outcome}", 1.0))
        elif isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)


def _or_none(action: np.ndarray | None) -> Any:
    return None if action is None else numbers(action)


async def _next(queue: "asyncio.Queue[T]", most: float = float("inf")) -> list[T]:
    """Whatever waits in a queue, at least one and at most so many."""
    taken = [await queue.get()]
    while len(taken) < most and not queue.empty():
        taken.append(queue.get_nowait())
    return taken
