"""How many requests a served policy answers, what stops it, and what a kill leaves of its log.

The server is another process; requests come from this one, over kept-alive connections on loopback.
"""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from worldloom.serving.segments import groups, segments_of

WORLDLOOM = (sys.executable, "-m", "worldloom")
# Shares of the rate that clients who ask again at once reach; the first that a server sustains
# without an error, an answer too late for its deadline or a queue that grows is its capacity.
SHARES = (0.95, 0.9, 0.8, 0.7, 0.5)


class Server:
    """`worldloom serve` in a process of its own; a context in which it runs."""

    def __init__(self, bundle: str | Path, log: str | Path, options: Sequence[str] = ()):
        self.log, self.token = Path(log), secrets.token_hex(16)
        self.noise = self.log.with_name(self.log.name + ".stderr")
        command = [*WORLDLOOM, "serve", str(bundle), "--log", str(log), "--port", "0"]
        with self.noise.open("ab") as noise:
            self._process = subprocess.Popen(
                [*command, "--json", *options],
                stdout=subprocess.PIPE,
                stderr=noise,
                env=os.environ | {"WORLDLOOM_TOKEN": self.token},
            )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        if not told:
            self._end()
            raise RuntimeError(f"the server did not start: {self.noise.read_text()[-2000:]}")
        self.url = json.loads(told)["url"]

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Ends it at once, whatever it is doing."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._end()

    def stop(self) -> int:
        """Asks it to end, waits, and gives its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        code = self._process.wait(timeout=30)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


# Clients -----------------------------------------------------------------------------------------


@dataclass
class Load:
    """What clients saw."""

    seconds: list[float] = field(default_factory=list)  # of every answer
    acknowledged: dict[int, str] = field(default_factory=dict)  # record's number -> its hash
    errors: dict[str, int] = field(default_factory=dict)
    late: int = 0  # answers that are emergency actions because time ran out
    emergencies: int = 0  # emergency actions for whatever reason
    took: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.seconds) / self.took if self.took else 0.0

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share of the answers came."""
        return 1e3 * float(np.percentile(self.seconds, share)) if self.seconds else float("nan")

    def wrong(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1


class Connection:
    """One kept-alive HTTP connection."""

    def __init__(self, url: str, token: str):
        address = urlsplit(url)
        self._host, self._port = address.hostname, address.port
        self._head = f"Host: {address.netloc}\r\nAuthorization: Bearer {token}\r\n"

    async def open(self) -> "Connection":
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def send(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """The status and the body of the answer to a request."""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        length = 0
        for line in answer.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        return status, await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


async def load(
    url: str,
    token: str,
    *,
    connections: int,
    seconds: float,
    rate: float | None = None,
    into: Load | None = None,
    to_a_plant: int = 1,
) -> Load:
    """Asks for actions for a while; ends early when the server does.

    rate: requests a second of all together, at times that do not wait for answers, from which
    latencies then count; None: each asks again as soon as it is answered. into: where what is seen
    is noted while it happens. to_a_plant: connections that ask for one plant, in turn.
    """
    first = await Connection(url, token).open()
    status, body = await first.send("GET", "/policy")
    if status != 200:
        raise RuntimeError(f"{url}/policy answers {status}: {body[:200]!r}")
    first.close()
    policy = json.loads(body)
    signals = policy["signals"]["observation"]
    clients = [await Connection(url, token).open() for _ in range(connections)]
    found = Load() if into is None else into
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def ask(number: int) -> None:
        plant = {"plant": f"plant-{number // to_a_plant}", "previous": policy["emergency_action"]}
        luck = np.random.default_rng(number)
        low, high = (np.asarray([s[end] for s in signals]) for end in ("low", "high"))
        middle, wide = (low + high) / 2.0, (high - low) / 20.0
        bodies = [
            json.dumps(plant | {"observation": row.tolist()}).encode()
            for row in middle + wide * luck.uniform(-1.0, 1.0, (64, len(signals)))
        ]
        sent = 0
        while True:
            now = loop.time()
            if rate is None:
                due = now
            else:
                due = start + (number + sent * connections) / rate
                if due > now:
                    await asyncio.sleep(due - now)
            if due >= start + seconds:
                return
            try:
                status, body = await clients[number].send("POST", "/act", bodies[sent % 64])
            except (OSError, asyncio.IncompleteReadError):
                found.wrong("connection lost")
                return
            sent += 1
            if status != 200:
                found.wrong(f"status {status}")
                continue
            answer = json.loads(body)
            found.seconds.append(loop.time() - due)
            found.acknowledged[answer["record"]["seq"]] = answer["record"]["hash"]
            found.late += answer["late"]
            found.emergencies += answer["emergency"]

    await asyncio.gather(*(ask(number) for number in range(connections)))
    found.took = loop.time() - start
    for client in clients:
        client.close()
    return found


# Logs --------------------------------------------------------------------------------------------


def verify(log: Path, *more: str) -> dict[str, Any]:
    """What `worldloom audit verify LOG` finds."""
    command = [*WORLDLOOM, "audit", "verify", str(log), *more, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"{log} could not be verified: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def recorded(log: Path) -> dict[int, str]:
    """Number and hash of every record of a log that is not torn."""
    return {line.seq: line.hash for _, group in groups(segments_of(log)) for line, _ in group}


# Measurements ------------------------------------------------------------------------------------


def capacity(
    bundle: str | Path,
    *,
    connections: int = 32,
    seconds: float = 10.0,
    fsync: str = "batch",
    folder: Path | None = None,
) -> dict[str, Any]:
    """The rate that a server sustains, its latencies there, and whether its log is complete.

    connections: plants that ask at a time. folder: where the log goes; on another disk `fsync`
    costs something else.
    """
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        log = Path(temporary) / "audit.jsonl"
        answered: dict[int, str] = {}
        # Limits are not what is measured here.
        options = ["--fsync", fsync, "--rate", "1e6", "--burst", "1000000"]
        with Server(bundle, log, options) as server:

            def run(rate: float | None, length: float) -> Load:
                found = asyncio.run(
                    load(
                        server.url, server.token, connections=connections, seconds=length, rate=rate
                    )
                )
                answered.update(found.acknowledged)
                return found

            run(None, 1.0)  # the first requests are no measure
            peak = run(None, seconds)
            best, sustained = peak, False
            for share in SHARES:
                best = run(share * peak.rate, seconds)
                kept_up = best.rate > 0.98 * share * peak.rate
                sustained = kept_up and not best.errors and not best.late
                if sustained:
                    break
            code = server.stop()
        found = verify(log)
        records = recorded(log)
        return {
            "requests_per_second": best.rate,
            "p50_ms": best.percentile(50),
            "p99_ms": best.percentile(99),
            "errors": best.errors,
            "late": best.late,
            "emergencies": best.emergencies,
            "sustained": sustained,
            "closed_loop": {
                "requests_per_second": peak.rate,
                "p50_ms": peak.percentile(50),
                "p99_ms": peak.percentile(99),
                "errors": peak.errors,
                "late": peak.late,
            },
            "connections": connections,
            "fsync": fsync,
            "exit_code": code,
            "answers": len(answered),
            "answers_on_record": found["answers"],
            "log_complete": found["answers"] == len(answered)
            and all(records.get(seq) == digest for seq, digest in answered.items()),
            "log_sound": found["sound"],
            "log_bytes_an_answer": sum(s.path.stat().st_size for s in segments_of(log))
            / max(found["answers"], 1),
        }


def killed(
    bundle: str | Path,
    *,
    times: int = 20,
    connections: int = 16,
    seconds: tuple[float, float] = (0.2, 1.0),
    fsync: str = "none",
    seed: int = 0,
) -> dict[str, Any]:
    """Kills a server under load, again and again on one log: what was lost, and what is unsound.

    seconds: of load before a kill, drawn between these. fsync: `none` is the hardest case, in which
    nothing but the write itself stands between an answer and its loss.
    """
    luck = np.random.default_rng(seed)
    acknowledged: dict[int, str] = {}
    unsound: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "audit.jsonl"
        for _ in range(times):
            with Server(bundle, log, ["--fsync", fsync]) as server:
                if acknowledged:
                    _judge(log, unsound)
                found = asyncio.run(_load_and_kill(server, connections, luck.uniform(*seconds)))
            acknowledged.update(found.acknowledged)
        with Server(bundle, log) as server:
            code = server.stop()
        found = _judge(log, unsound)
        records = recorded(log)
        lost = [s for s, digest in acknowledged.items() if records.get(s) != digest]
        torn = list(log.parent.glob(f"{log.name}.torn-*"))
        return {
            "kills": times,
            "acknowledged": len(acknowledged),
            "answers_on_record": found["answers"],
            "lost": len(lost),
            "unsound": unsound,
            "torn_tails": len(torn),
            "starts": found["starts"],
            "exit_code": code,
            "fsync": fsync,
        }


def wedged(
    bundle: str | Path,
    *,
    rounds: int = 3,
    clients: int = 24,
    to_a_plant: int = 4,
    seconds: float = 2.0,
    deadline: float = 0.02,
    fsync: str = "batch",
) -> dict[str, Any]:
    """Several clients to a plant, so that deadlines pass while they wait: what works afterwards.

    dead_loops: that failed, whether they were started again or not. unready, unanswered: rounds
    after which the server did not call itself ready, or answered a single client by its deadline
    alone.
    """
    total, unready, unanswered = Load(), 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "audit.jsonl"
        options = ["--fsync", fsync, "--deadline", str(deadline), "--rate", "1e6"]
        with Server(bundle, log, [*options, "--burst", "1000000"]) as server:
            for _ in range(rounds):
                ask = {"connections": clients, "seconds": seconds, "to_a_plant": to_a_plant}
                asyncio.run(load(server.url, server.token, into=total, **ask))
                alone = asyncio.run(
                    load(server.url, server.token, connections=1, seconds=0.5, to_a_plant=1)
                )
                unanswered += len(alone.seconds) == alone.late
                unready += asyncio.run(_get(server, "/ready"))[0] != 200
            text = asyncio.run(_get(server, "/metrics"))[1].decode()
            restarts = [line for line in text.splitlines() if "loop_restarts_total{" in line]
            code = server.stop()
        sound = verify(log)
        return {
            "rounds": rounds,
            "answers": len(total.seconds),
            "late": total.late,
            "errors": total.errors,
            "dead_loops": sum(float(line.rsplit(" ", 1)[1]) for line in restarts),
            "unready": unready,
            "unanswered": unanswered,
            "exit_code": code,
            "log_sound": sound["sound"],
        }


async def _get(server: Server, path: str) -> tuple[int, bytes]:
    connection = await Connection(server.url, server.token).open()
    try:
        return await connection.send("GET", path)
    finally:
        connection.close()


def _judge(log: Path, unsound: list[str]) -> dict[str, Any]:
    found = verify(log)
    if not found["sound"]:
        unsound.append(found["problem"])
    return found


async def _load_and_kill(server: Server, connections: int, after: float) -> Load:
    """Asks until the server dies, which it does `after` seconds after its first answer."""
    found = Load()
    asking = asyncio.create_task(
        load(server.url, server.token, connections=connections, seconds=60.0, into=found)
    )
    start = time.perf_counter()
    while time.perf_counter() - start < after and not asking.done():
        await asyncio.sleep(0.01)
        if not found.seconds:
            start = time.perf_counter()
    # In another thread: this one goes on taking in answers until the connections break.
    await asyncio.to_thread(server.kill)
    await asking
    return found
