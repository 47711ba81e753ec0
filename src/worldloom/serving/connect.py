"""A plant on a field bus under a served policy: reads signals, asks the server, writes actuators.

    server: http://127.0.0.1:8080     # `worldloom serve`; the token is in WORLDLOOM_TOKEN
    plant: unit-3                     # its id there
    bus: opc.tcp://10.0.0.7:4840      # or modbus://HOST:502/DEVICE
    period: 1.0                       # seconds from one action to the next
    stale_after: 5.0                  # seconds after which a signal is no longer believed
    signals: {temperature: ns=2;s=TI101, level: ns=2;s=LI7}
    actuators: {valve: ns=2;s=FC7.SP}
    positions: {valve: ns=2;s=FC7.PV} # where actuators are; without it, what was written last
    enable: ns=2;s=WL.Enable          # the operator's switch: true puts the policy in control
    alive: ns=2;s=PLC.Beat            # changes as long as the plant's side is alive
    heartbeat: ns=2;s=WL.Beat         # counted up with every action that is written
    status: ns=2;s=WL.Status          # 0 the operator, 1 the policy, 2 an emergency action

* **On record.** A signal that is old, of bad quality or lost is sent as null, and the server's
  filter answers with the emergency action: what was written, and why, is in its log.
* **Without the server** the emergency action that it named at the start is written, by way of its
  recovery procedure, until it answers again; it is then told where the actuators are, and goes on
  from there, a stop included. Without the bus nothing can be written: the heartbeat stops, and the
  plant's own watchdog has to act.
* **In shadow mode** of the server no actuator is ever written: where they are is what the operator
  executed, and is sent along to be compared with.
* **Bumpless.** Where the operator switches the policy on (or `take_over` is given), it begins at
  the positions that the actuators have, and a latched stop is lifted. Any other start goes on with
  what the server remembers, a stop included.

This is no safety instrumented function: it belongs below one.
"""

import asyncio
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from worldloom.core.names import listed, shown
from worldloom.core.yaml_nodes import Node, parse_yaml, read_text
from worldloom.serving.client import NoAnswer, Server
from worldloom.serving.field_bus import Bus, BusError, Reading, make_bus, parse_register
from worldloom.serving.records import PLANT

MOST_VALUE = 2**15 - 1  # of the heartbeat, which may be a register of 16 bits


class Status(IntEnum):
    """Who decides what the actuators do."""

    OPERATOR = 0
    POLICY = 1
    EMERGENCY = 2


@dataclass(frozen=True)
class Connection:
    """What a connection file says: see the module."""

    server: str
    plant: str
    bus: str
    period: float
    stale_after: float
    signals: Mapping[str, str]
    actuators: Mapping[str, str]
    positions: Mapping[str, str] = field(default_factory=dict)
    enable: str | None = None
    alive: str | None = None
    heartbeat: str | None = None
    status: str | None = None

    @property
    def reads(self) -> list[str]:
        """All places that are read in a step."""
        more = [place for place in (self.enable, self.alive) if place]
        return [*self.signals.values(), *self.positions.values(), *more]


_TEXTS = ("server", "plant", "bus")
_TIMES = ("period", "stale_after")
_TABLES = ("signals", "actuators", "positions")


def read_connection(path: str | Path) -> Connection:
    """The connection in a YAML file; a ValueError of one line if something is wrong with it."""
    node = parse_yaml(read_text(path), str(path))
    entries = node.entries(Connection.__dataclass_fields__)
    for name in (*_TEXTS, *_TIMES, "signals", "actuators"):
        if name not in entries:
            raise node.error(f"{name} is missing")
    bus = entries["bus"].text()
    values: dict[str, Any] = {}
    for name, entry in entries.items():
        if name in _TABLES:
            values[name] = {key: _place(one, bus) for key, one in entry.entries().items()}
            if not values[name]:
                raise entry.error("nothing is listed")
        elif name in _TIMES:
            values[name] = entry.number()
            if not 0.001 <= values[name] <= 86_400.0:
                raise entry.error(f"{shown(entry.value)}; it is a time in seconds, 0.001 to 86400")
        elif name in _TEXTS:
            values[name] = entry.text()
        else:
            values[name] = _place(entry, bus)
    strange = set(values.get("positions", ())) - set(values["actuators"])
    if strange:
        raise entries["positions"].error(f"{shown(min(strange))} is not one of the actuators")
    if not re.fullmatch(PLANT, values["plant"]):
        text = f"{shown(values['plant'])}; use letters, digits, '.', '_' and '-', 64 at most"
        raise entries["plant"].error(text)
    if urlsplit(values["server"]).scheme != "http":
        raise entries["server"].error(f"{shown(values['server'])}; write http://HOST:PORT")
    return Connection(**values)


_NODE_ID = re.compile(r"((ns=\d+|nsu=[^;]+);)?[isgb]=.+")


def _place(node: Node, bus: str) -> str:
    place = node.text()
    if bus.startswith("opc.tcp:") and not _NODE_ID.fullmatch(place):
        raise node.error(f"{shown(place)} is no node id of OPC UA; write ns=2;s=NAME or ns=2;i=7")
    if bus.startswith("modbus:"):
        try:
            parse_register(place)
        except ValueError as error:
            raise node.error(str(error)) from None
    return place


class Connector:
    """Steps a plant: see the module. `say` is told, in a line, whatever changes."""

    def __init__(
        self,
        connection: Connection,
        bus: Bus,
        server: Server,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.connection, self.bus, self.server, self.say = connection, bus, server, say
        self.counts: Counter[str] = Counter()  # steps by what came of them
        self.state: Status | None = None
        self._clock, self._open, self._beats = clock, False, 0
        self._session, self._number = secrets.token_hex(4), 0  # for idempotency keys
        self._emergency: dict[str, float] = {}
        self._ranges: dict[str, tuple[float, float]] = {}  # of actuators
        self._recovery: list[Mapping[str, Any]] = []  # stages on the way there
        self._alone = 0  # emergency actions in a row that the server knows nothing of
        self._written: dict[str, float] = {}
        self._alive: tuple[float | None, float] = (None, clock())  # last value, when it changed
        self._shadow = False  # whether the server only looks on
        self._hand_over = False  # whether the policy begins anew, where the actuators are
        self._said: str | None = None

    async def check(self) -> list[tuple[str, str, str]]:
        """Compares file, server and bus, and writes nothing: (name, place, what is there) each.

        A ValueError where the file does not fit the policy; `NoAnswer` and `BusError` where
        somebody is not there.
        """
        policy = await asyncio.to_thread(self.server.ask, "/policy")
        for kind, places in (
            ("observation", self.connection.signals),
            ("action", self.connection.actuators),
        ):
            expected = {signal["name"] for signal in policy["signals"][kind]}
            for names, text in (
                (expected - set(places), "has no place"),
                (set(places) - expected, "is not known to the policy"),
            ):
                if names:
                    raise ValueError(f"{kind}: {listed(sorted(names), 120)} {text}")
        self._emergency, self._recovery = policy["emergency_action"], policy.get("recovery", [])
        self._shadow = policy["shadow"]
        actuators = policy["signals"]["action"]
        self._ranges = {one["name"]: (one["low"], one["high"]) for one in actuators}
        if not self._open:
            await self.bus.open()
            self._open = True
        connection = self.connection
        roles = {
            **connection.signals,
            **{f"{name} (written)": place for name, place in connection.actuators.items()},
            **{f"{name} (position)": place for name, place in connection.positions.items()},
        }
        for name in ("enable", "alive", "heartbeat", "status"):
            if getattr(connection, name):
                roles[name] = getattr(connection, name)
        readings = await self.bus.read(list(roles.values()))
        return [
            (name, place, "bad or missing" if reading.value is None else f"{reading.value:g}")
            for (name, place), reading in zip(roles.items(), readings, strict=True)
        ]

    async def run(self, stop: asyncio.Event, *, take_over: bool = False) -> None:
        """Steps once a period until `stop` is set; `check` comes first."""
        self._hand_over = take_over
        start, number = self._clock(), 0
        while not stop.is_set():
            await self.step()
            # By the clock, not by pauses: steps that were missed are left out, not made up for.
            period = self.connection.period
            number = max(number + 1, int((self._clock() - start) / period) + 1)
            pause = start + number * period - self._clock()
            try:
                await asyncio.wait_for(stop.wait(), max(pause, 0.0))
            except TimeoutError:
                continue

    async def step(self) -> None:
        """Reads, asks and writes once; whatever goes wrong is counted and said."""
        try:
            if not self._open:
                await self.bus.open()
                self._open = True
            await self._step()
        except BusError as error:
            self.counts["no bus"] += 1
            self._tell(f"nothing can be read or written: {error}")
            if self._open:
                self._open = False
                try:
                    await self.bus.close()
                except BusError:
                    return  # it is gone already

    async def _step(self) -> None:
        connection = self.connection
        places = connection.reads
        found = dict(zip(places, await self.bus.read(places), strict=True))
        if connection.enable and not found[connection.enable].value:  # bad counts as off
            self._hand_over, self._written = True, {}
            await self._become(Status.OPERATOR, "the operator has control")
            return
        obs, doubt = self._observe(found)
        if self._shadow:
            self._written = {}
        positions = await self._positions(found)
        if self._shadow:
            await self._look_on(obs, positions)
            return
        if self._hand_over and not await self._take_over(positions):
            return
        try:
            if self._alone and positions is not None:
                await self._reset(positions, keep_stop=True)
            action, state, reason = await self._ask(obs, positions)
            self._alone = 0
        except NoAnswer as error:
            if error.status == 409 and await self._looks_on():
                return
            action = recovery_action(self._recovery, self._emergency, positions, self._alone)
            state, reason = Status.EMERGENCY, str(error)
            self._alone += 1
        await self.bus.write({connection.actuators[name]: x for name, x in action.items()})
        self._written = dict(action)
        emergency = state is Status.EMERGENCY
        text = f"an emergency action: {doubt or reason}" if emergency else "the policy has control"
        await self._become(state, text)

    async def _look_on(
        self, obs: Mapping[str, float | None], positions: Mapping[str, float] | None
    ) -> None:
        """Tells a server in shadow mode what the operator did; no actuator is written."""
        try:
            if positions is None:
                raise NoAnswer("where the actuators are cannot be read")
            content = {"plant": self.connection.plant, "observation": obs}
            content |= {"previous": positions, "executed": positions}
            await asyncio.to_thread(self.server.ask, "/act", content, self._new_key())
            text = "the operator has control, and the policy is compared"
        except NoAnswer as error:
            text = f"the operator has control, and nothing is compared: {error}"
        await self._become(Status.OPERATOR, text)

    async def _looks_on(self) -> bool:
        """Whether the server was started anew in shadow mode: then nothing may be written."""
        try:
            self._shadow = (await asyncio.to_thread(self.server.ask, "/policy"))["shadow"]
        except NoAnswer:
            return False
        return self._shadow

    async def _take_over(self, positions: dict[str, float] | None) -> bool:
        """Tells the server where the policy begins; nothing is moved before it knows."""
        try:
            if positions is None:
                raise NoAnswer("where the actuators are cannot be read")
            await self._reset(positions)
        except NoAnswer as error:
            await self._become(Status.OPERATOR, f"the policy cannot take over: {error}")
            return False
        self._hand_over, self._alone = False, 0
        return True

    async def _reset(self, positions: Mapping[str, float], **more: bool) -> None:
        start = {"plant": self.connection.plant, "previous": positions, **more}
        await asyncio.to_thread(self.server.ask, "/reset", start)

    def _observe(self, found: Mapping[str, Reading]) -> tuple[dict[str, float | None], str | None]:
        """Observations by name, None where one is not to be believed, and why."""
        connection, now = self.connection, self._clock()
        silent = False
        if connection.alive:
            beat = found[connection.alive].value
            if beat is not None and beat != self._alive[0]:
                self._alive = (beat, now)
            silent = now - self._alive[1] > connection.stale_after
        obs: dict[str, float | None] = {}
        lost = []
        for name, place in connection.signals.items():
            reading = found[place]
            fresh = reading.value is not None and reading.age <= connection.stale_after
            obs[name] = reading.value if fresh and not silent else None
            if obs[name] is None:
                lost.append(name)
        if silent:
            return obs, f"the plant's side is silent ({connection.alive})"
        return obs, f"no fresh value of {listed(lost, 100)}" if lost else None

    async def _positions(self, found: Mapping[str, Reading]) -> dict[str, float] | None:
        """Where the actuators are; None where somebody does not say."""
        connection = self.connection
        positions = dict(self._written)
        if missing := [n for n in connection.actuators if n not in positions]:
            places = [connection.actuators[name] for name in missing]
            readings = await self.bus.read(places)
            found_now = zip(missing, readings, strict=True)
            positions |= {n: r.value for n, r in found_now if r.value is not None}
        for name, place in connection.positions.items():
            value = found[place].value
            if value is not None:
                positions[name] = value
        for name, (low, high) in self._ranges.items():  # a sensor may see 100.2 %
            if name in positions:
                positions[name] = min(max(positions[name], low), high)
        return positions if len(positions) == len(connection.actuators) else None

    async def _ask(
        self, obs: Mapping[str, float | None], positions: Mapping[str, float] | None
    ) -> tuple[dict[str, float], Status, str | None]:
        content: dict[str, Any] = {"plant": self.connection.plant, "observation": obs}
        if positions is not None:
            content["previous"] = positions
        answer = await asyncio.to_thread(self.server.ask, "/act", content, self._new_key())
        if answer["emergency"]:
            reason = "the filter stopped it" if answer["stopped"] else answer["reason"]
            return answer["action"], Status.EMERGENCY, reason or "an observation is missing"
        return answer["action"], Status.POLICY, None

    def _new_key(self) -> str:
        self._number += 1
        return f"{self._session}-{self._number}"

    async def _become(self, state: Status, text: str) -> None:
        """Counts a step, says what is new, and shows it on the bus."""
        self.counts[state.name.lower()] += 1
        self.state = state
        self._tell(text)
        connection, values = self.connection, {}
        if connection.status:
            values[connection.status] = float(state)
        if connection.heartbeat and state is not Status.OPERATOR:
            self._beats = (self._beats + 1) % MOST_VALUE
            values[connection.heartbeat] = float(self._beats)
        if values:
            await self.bus.write(values)

    def _tell(self, text: str) -> None:
        """Says what is new, once."""
        if text != self._said:
            self._said = text
            self.say(text)


def recovery_action(
    stages: Sequence[Mapping[str, Any]],
    emergency: Mapping[str, float],
    positions: Mapping[str, float] | None,
    count: int,
) -> dict[str, float]:
    """What to write after `count` emergency actions in a row without the server, in units.

    As `worldloom.safety.recovery` has it, but for rates, which only the server knows; the emergency
    action, where nobody says where the actuators are.
    """
    for stage in stages if positions is not None else ():
        left = stage["steps"] - count
        if left > 0:
            share = 1.0 / left if stage["ramp"] else 1.0
            start = dict(positions or {})
            return start | {n: start[n] + share * (x - start[n]) for n, x in stage["to"].items()}
        count -= stage["steps"]
    return dict(emergency)


async def connect(
    connection: Connection,
    token: str | None,
    say: Callable[[str], None],
    stop: asyncio.Event,
    *,
    take_over: bool = False,
) -> Counter[str]:
    """Controls a plant until `stop` is set; steps by what came of them."""
    connector = make_connector(connection, token, say)
    try:
        await connector.check()
        await connector.run(stop, take_over=take_over)
    finally:
        await close(connector)
    return connector.counts


def make_connector(
    connection: Connection, token: str | None, say: Callable[[str], None]
) -> Connector:
    """A connector of a file's bus and server; each has half a period to answer."""
    wait = max(connection.period / 2, 0.05)
    bus = make_bus(connection.bus, max(wait, 1.0))
    return Connector(connection, bus, Server(connection.server, token, wait), say)


async def close(connector: Connector) -> None:
    """Leaves bus and server; a bus that is gone is left all the same."""
    connector.server.close()
    try:
        await connector.bus.close()
    except BusError:
        return
