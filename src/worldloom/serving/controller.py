"""Requests on their way to an action: in turn, in batches, in time, and on record.

* **In turn.** What concerns one plant is carried out one after the other, in the order of arrival;
  two requests of a plant are never in one batch. A request that comes twice with the same
  idempotency key is answered twice and carried out once.
* **In batches.** Whatever waits when a batch is computed becomes the next one, padded to one of the
  bundle's sizes. One batch is computed while the one before is written.
* **In time.** A request that has no action when its deadline comes is answered with the emergency
  action that the plant's memory holds ready. Who comes first, the deadline or the batch, decides;
  the other one's result is not executed.
* **On record.** The answer is sent, and the plant's memory advanced, after the record was written.
  If it cannot be written, no action is answered.

In shadow mode somebody else controls the plants and says what was executed; policy and filter are
asked all the same, what they say is on record beside it, and memories go on from what was executed.
"""

import asyncio
import contextlib
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from worldloom.serving import health
from worldloom.serving.act_texts import ActTexts
from worldloom.serving.alarms import Alarms
from worldloom.serving.batches import Asked, Outcomes, compute, unwritten, write
from worldloom.serving.bundle import Bundle
from worldloom.serving.changes import (
    Change,
    Outcome,
    Settle,
    advance,
    or_none,
    read_outcome,
    resolve,
    write_changes,
)
from worldloom.serving.deadlines import Deadlines
from worldloom.serving.health import Loop, Recorder
from worldloom.serving.journal import Journal
from worldloom.serving.metrics import Metrics
from worldloom.serving.plants import Limits, Plant, Plants, Refused, key_for, overridden, restarted
from worldloom.serving.program import Rows
from worldloom.serving.records import numbers
from worldloom.serving.shadow import gaps
from worldloom.training.machine import versions

DRAIN_SECONDS = 10.0  # for answers that are under way when the server is told to stop


class Controller:
    """Controls plants by a bundle's policy. `open` it in the loop that it is used in.

    Takes the plants over from the log, and notes the start in it; an OSError where it cannot.
    `failure` says why it has ended by itself, which `on_failure` is called for.
    """

    def __init__(
        self,
        bundle: Bundle,
        journal: Journal,
        limits: Limits,
        shadow: bool = False,
        approvals: Sequence[Mapping[str, Any]] = (),
    ):
        self.bundle, self.journal, self.limits, self.shadow = bundle, journal, limits, shadow
        self.metrics = Metrics()
        self.alarms = Alarms(bundle.manifest["constraints"])
        self.plants = Plants(bundle, limits)
        self.ready = False
        self.failure: str | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._texts = ActTexts(bundle)
        self._seed = secrets.token_hex(8)
        self._asked: deque[Asked] = deque()  # not a queue: who has waited too long leaves it
        self._changes: asyncio.Queue[Change] = asyncio.Queue()
        self._new_asked = asyncio.Event()
        self._writing: asyncio.Future[Outcomes] | None = None  # a batch
        self._since: float | None = None  # that has been written since then
        self._rows = 0  # of it
        self._held: set[asyncio.Task[Outcome]] = set()  # requests under way
        self._direct: dict[Plant, Settle] = {}  # and those of `act_now`
        self._loops: list[Loop] = []
        self._claim = threading.Lock()
        self._deadlines = Deadlines(partial(self._expire, reason="deadline"))
        self._recorder = Recorder(journal, {"policy": bundle.digest})
        # A thread to compute batches, one to write them, one for what must not wait for a batch.
        names = ("batch", "write", "change")
        self._batcher, self._writer, self._changer = (ThreadPoolExecutor(1, n) for n in names)
        self.plants.recover(journal.recovered.latest)
        note = {
            "seed": self._seed,
            "batch_sizes": list(bundle.batch_sizes),
            "versions": versions(),
            "signals": bundle.manifest["signals"],  # what numbers stand for, and their order
            "shadow": shadow,
            "approvals": list(approvals),
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._held or self._direct:
                    await asyncio.sleep(0.01)
        for loop in self._loops:
            await loop.close()
        self._loops = []
        for thread in (self._batcher, self._writer, self._changer):
            thread.shutdown()
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
        for plant in list(self._direct):
            self._left(plant, Refused(503, why, 5.0))
        self.on_failure()

    # Whether it answers --------------------------------------------------------------------------

    async def problem(self) -> str | None:
        """Why requests are not answered as they should be; None: they are."""
        stopped = [problem for loop in self._loops if (problem := loop.problem())]
        if self._since is not None and time.monotonic() - self._since > health.STUCK_SECONDS:
            stopped.append(f"a batch is being written for more than {health.STUCK_SECONDS:g} s")
        if self.failure is not None or stopped:
            return self.failure or stopped[0]
        return await self._recorder.problem()

    def gauges(self, problem: str | None) -> dict[str, float]:
        """The values of `worldloom.serving.metrics.GAUGES`; problem: the present one."""
        return {
            "worldloom_ready": float(self.ready and problem is None),
            "worldloom_plants": len(self.plants),
            "worldloom_plants_latched": self.plants.latched(),
            "worldloom_waiting": self._waiting(),
            "worldloom_alarms_active": self.alarms.ringing(time.time()),
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
        executed: np.ndarray | None = None,
    ) -> Outcome:
        """The answer for a plant that is observed as obs (n,).

        previous (m,): where the actuators of a plant are that is not known yet. executed (m,): in
        shadow mode, what the operator did; an override says it as well.
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
                plant.require(previous)
                await self._reset(plant, previous)
            done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            settle = partial(resolve, done)
            real = plant.executed(executed) if self.shadow else None
            self._ask(plant, obs, arrived, idempotency_key, settle, real)
            outcome = advance(plant, await done)
            self._answered(plant, outcome, arrived, idempotency_key)
            return read_outcome(outcome)

        return await self._in_turn(name, run, previous is not None)

    def act_now(
        self, name: str, obs: np.ndarray, tell: Settle, idempotency_key: str | None = None
    ) -> bool:
        """`act` without a task, for a plant that is known and free: `tell` hears what came of it.

        False: nothing was done; use `act`.
        """
        arrived = asyncio.get_running_loop().time()
        if self.shadow or not self.ready or self._waiting() >= self.limits.waiting:
            return False
        plant = self.plants.free(name, arrived, idempotency_key)
        if plant is None:
            return False

        def settle(outcome: Outcome | Exception) -> None:
            try:
                if isinstance(outcome, dict):
                    self._answered(plant, advance(plant, outcome), arrived, idempotency_key)
            except Exception as error:
                outcome = error
            self._left(plant, outcome)

        self._direct[plant] = tell
        self._ask(plant, obs, arrived, idempotency_key, settle)
        return True

    async def override(self, name: str, action: np.ndarray | None) -> Outcome:
        """Sets an action (m,) that is asked for in place of the policy's, or clears it (None)."""

        async def run(plant: Plant) -> Outcome:
            plant.require(None)
            after = partial(overridden, plant.memory, action)
            return await self._change("override", plant, {"action": or_none(action)}, after)

        return await self._in_turn(name, run)

    async def reset(
        self, name: str, previous: np.ndarray | None, keep_stop: bool = False
    ) -> Outcome:
        """Lifts a latched stop; with previous (m,), forgets everything but where actuators are.

        keep_stop: they were moved by others; a stop and an override stand.
        """

        async def run(plant: Plant) -> Outcome:
            plant.require(previous)
            return await self._reset(plant, previous, **({"keep_stop": True} if keep_stop else {}))

        return await self._in_turn(name, run, previous is not None)

    async def shelve(self, name: str, alarm: str, seconds: float) -> float | None:
        """Silences an alarm of a plant for so long, on record; until when, None: no longer."""
        content = {"plant": name, "alarm": alarm, "seconds": seconds}
        note = partial(self._recorder.note, "shelve", content)
        try:
            await asyncio.get_running_loop().run_in_executor(self._changer, note)
        except OSError as error:
            raise unwritten(error) from None
        return self.alarms.shelve(name, alarm, seconds, time.time())

    # In turn -------------------------------------------------------------------------------------

    async def _in_turn(
        self, name: str, run: Callable[[Plant], Awaitable[Outcome]], begins: bool = False
    ) -> Outcome:
        """Runs what concerns a plant; begins: it says where the actuators of a new one are."""
        if not self.ready:
            raise Refused(503, self.failure or "the server is stopping", 5.0)
        if self._waiting() >= self.limits.waiting:
            raise Refused(503, f"{self._waiting()} requests wait already", 1.0)
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

    def _waiting(self) -> int:
        return len(self._held) + len(self._direct)

    def _left(self, plant: Plant, outcome: Outcome | Exception) -> None:
        """Ends a request of `act_now`, once."""
        tell = self._direct.pop(plant, None)
        if tell is not None:
            plant.turn.leave()
            self.plants.leave(plant)
            tell(outcome)

    def _answered(
        self, plant: Plant, outcome: Outcome, arrived: float, idempotency_key: str | None
    ) -> None:
        if idempotency_key is not None:
            plant.remember(idempotency_key, read_outcome(outcome))
        self.metrics.took(asyncio.get_running_loop().time() - arrived)
        self.metrics.answered(outcome["counted"], outcome["drift"])
        if self.shadow:
            self.metrics.shadowed(gaps(self.bundle.action, read_outcome(outcome)["content"]))

    async def _forget(self, plant: Plant) -> Outcome:
        """Frees the slot of a plant that was not heard of: on record, it starts anew."""
        place = np.asarray(self.bundle.manifest["emergency"], np.float32)
        outcome = await self._reset(plant, place, forgotten=True)
        plant.known = False
        return outcome

    async def _reset(self, plant: Plant, previous: np.ndarray | None, **about: Any) -> Outcome:
        keep_stop = about.get("keep_stop", False)
        after = partial(restarted, self.bundle, plant.memory, previous, keep_stop)
        return await self._change("reset", plant, {"previous": or_none(previous)} | about, after)

    def _ask(
        self,
        plant: Plant,
        obs: np.ndarray,
        arrived: float,
        idempotency_key: str | None,
        settle: Settle,
        executed: np.ndarray | None = None,
    ) -> None:
        """Puts a plant's question where the next batch finds it; its deadline begins to run."""
        key = key_for(self._seed, plant.name, int(plant.memory["step"]))
        about: dict[str, Any] = {} if executed is None else {"executed": numbers(executed)}
        if idempotency_key is not None:
            about["idempotency_key"] = idempotency_key
        expires = arrived + self.limits.deadline
        asked = Asked(plant, obs, key, plant.memory, plant.text, expires, about, settle, executed)
        self._deadlines.add(asked)
        self._asked.append(asked)
        if not self._too_few():
            self._new_asked.set()

    async def _change(
        self, kind: str, plant: Plant, content: dict[str, Any], after: Callable[[], Rows]
    ) -> Outcome:
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._changes.put_nowait(Change(kind, plant, content, after, partial(resolve, done)))
        return advance(plant, await done)

    # In time -------------------------------------------------------------------------------------

    def _take(self, asked: Asked) -> bool:
        """Whether the caller is the first, who decides the answer."""
        with self._claim:
            first, asked.taken = not asked.taken, True
        return first

    def _expire(self, asked: Asked, reason: str) -> None:
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
        if asked.executed is not None:
            after = partial(self._after_executed, asked.memory, asked.executed)
        change = Change("emergency", asked.plant, content | asked.about, after, asked.settle)
        self._changes.put_nowait(change)

    def _after_executed(self, memory: Rows, executed: np.ndarray) -> Rows:
        """The memory after an answer that came too late, where somebody else acted anyway."""
        return self.bundle.after_executed(self.bundle.after_emergency(memory), executed)

    # In batches ----------------------------------------------------------------------------------

    async def _next_batch(self) -> list[Asked]:
        loop, most = asyncio.get_running_loop(), max(self.bundle.batch_sizes)
        while True:
            await self._new_asked.wait()
            if self._too_few():
                self._new_asked.clear()
                continue
            # Once round the loop: those who were answered just now ask again, and what a batch
            # costs whatever its size is paid once for all of them.
            await asyncio.sleep(0)
            batch: list[Asked] = []
            while self._asked and len(batch) < most:
                asked = self._asked.popleft()
                if asked.expires <= loop.time():
                    self._expire(asked, "deadline")  # its time is up before it is asked
                elif not asked.taken:
                    batch.append(asked)
            if not self._asked:
                self._new_asked.clear()
            if batch:
                return batch

    def _too_few(self) -> bool:  # and to wait for the disk: few rows cost as much as many
        return self._since is not None and len(self._asked) < self._rows

    async def _answer_batch(self, batch: list[Asked]) -> None:
        loop = asyncio.get_running_loop()
        try:
            made = partial(compute, batch, self.bundle, self._texts)
            computed = await loop.run_in_executor(self._batcher, made)
        except Exception as error:  # whatever it is, the plants need an action
            self._settle(batch, error)
            return
        state = computed.margins, computed.memory["latched"]
        self.alarms.watch([asked.plant.name for asked in batch], *state, self.metrics.count)
        if self._writing is not None and self._since is not None:  # to wait is a turn of the loop
            await asyncio.wait([self._writing])
        made = partial(write, computed, self._recorder, self._take)
        self._writing = loop.run_in_executor(self._writer, made)
        self._since, self._rows = time.monotonic(), len(batch)
        self._writing.add_done_callback(partial(self._written, batch))

    def _written(self, batch: list[Asked], writing: "asyncio.Future[Outcomes]") -> None:
        self._since = None
        if self._asked:
            self._new_asked.set()
        self._settle(batch, writing.exception() or writing.result())

    def _settle(self, batch: list[Asked], outcomes: Outcomes | BaseException) -> None:
        if isinstance(outcomes, BaseException):
            for asked in batch:
                self._expire(asked, f"{type(outcomes).__name__}: {outcomes}"[:200])
            return
        for asked, outcome in zip(batch, outcomes, strict=True):
            if outcome is not None:
                asked.settle(outcome)
        self._deadlines.forget()
        self.metrics.count("worldloom_batches_total", size=self.bundle.padded(len(batch)))

    # On record -----------------------------------------------------------------------------------

    async def _next_changes(self) -> list[Change]:
        changes = [await self._changes.get()]
        while not self._changes.empty():
            changes.append(self._changes.get_nowait())
        return changes

    async def _make_changes(self, changes: list[Change]) -> None:
        loop = asyncio.get_running_loop()
        try:
            made = partial(write_changes, changes, self._recorder)
            outcomes = await loop.run_in_executor(self._changer, made)
        except Exception as error:  # whatever it is, those who come after are carried out
            outcomes = [error] * len(changes)
        for change, outcome in zip(changes, outcomes, strict=True):
            change.settle(unwritten(outcome) if isinstance(outcome, OSError) else outcome)
