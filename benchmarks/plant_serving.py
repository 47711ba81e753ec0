"""How many requests a served policy answers, what stops it, and what a kill leaves of its log.

The server is another process; requests come from this one, over kept-alive connections on loopback.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load import Load, ask, drive, requests
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
        self.url, self.pid = json.loads(told)["url"], self._process.pid

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


def load(
    server: Server,
    *,
    connections: int,
    seconds: float,
    rate: float | None = None,
    into: Load | None = None,
    to_a_plant: int = 1,
) -> Load:
    """Asks a server of ours for actions for a while; ends early when the server does.

    Observations are near the middle of their ranges. to_a_plant: connections that ask for one
    plant, in turn. The rest as in `drive`.
    """
    status, body = ask(server.url, "GET", "/policy", server.token)
    if status != 200:
        raise RuntimeError(f"{server.url}/policy answers {status}: {body[:200]!r}")
    policy = json.loads(body)
    observations = _middling(policy["signals"]["observation"], connections)
    plants = [
        requests(
            server.url,
            "/act",
            server.token,
            {"plant": f"plant-{number // to_a_plant}", "previous": policy["emergency_action"]},
            observations[number],
        )
        for number in range(connections)
    ]
    return drive(server.url, plants, seconds=seconds, rate=rate, into=into)


def _middling(signals: Sequence[Mapping[str, Any]], connections: int) -> np.ndarray:
    low, high = (np.asarray([s[end] for s in signals]) for end in ("low", "high"))
    noise = np.random.default_rng(0).uniform(-1.0, 1.0, (connections, 64, len(signals)))
    return (low + high) / 2.0 + (high - low) / 20.0 * noise


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

            def run(rate: float | None, length: float) -> tuple[Load, dict[str, Any]]:
                found = load(server, connections=connections, seconds=length, rate=rate)
                tally = found.tally()
                answered.update(tally["acknowledged"])
                return found, tally

            run(None, 1.0)  # the first requests are no measure
            peak, of_peak = run(None, seconds)
            best, tally, sustained = peak, of_peak, False
            for share in SHARES:
                best, tally = run(share * peak.rate, seconds)
                kept_up = best.rate > 0.98 * share * peak.rate
                sustained = kept_up and not best.errors and not tally["late"]
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
            "late": tally["late"],
            "emergencies": tally["emergencies"],
            "sustained": sustained,
            "closed_loop": {
                "requests_per_second": peak.rate,
                "p50_ms": peak.percentile(50),
                "p99_ms": peak.percentile(99),
                "errors": peak.errors,
                "late": of_peak["late"],
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
                found = load_and_kill(server, connections, luck.uniform(*seconds))
            acknowledged.update(found.tally()["acknowledged"])
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
                load(
                    server,
                    connections=clients,
                    seconds=seconds,
                    to_a_plant=to_a_plant,
                    into=total,
                )
                alone = load(server, connections=1, seconds=0.5)
                unanswered += len(alone.seconds) == alone.tally()["late"]
                unready += ask(server.url, "GET", "/ready")[0] != 200
            text = ask(server.url, "GET", "/metrics", server.token)[1].decode()
            restarts = [line for line in text.splitlines() if "loop_restarts_total{" in line]
            code = server.stop()
        sound = verify(log)
        return {
            "rounds": rounds,
            "answers": len(total.seconds),
            "late": total.tally()["late"],
            "errors": total.errors,
            "dead_loops": sum(float(line.rsplit(" ", 1)[1]) for line in restarts),
            "unready": unready,
            "unanswered": unanswered,
            "exit_code": code,
            "log_sound": sound["sound"],
        }


def _judge(log: Path, unsound: list[str]) -> dict[str, Any]:
    found = verify(log)
    if not found["sound"]:
        unsound.append(found["problem"])
    return found


def load_and_kill(server: Server, connections: int, after: float) -> Load:
    """Asks until the server dies, which it does `after` seconds after its first answer."""
    found = Load()
    asking = threading.Thread(
        target=load,
        args=[server],
        kwargs={"connections": connections, "seconds": 60.0, "into": found},
    )
    asking.start()
    start = time.perf_counter()
    while time.perf_counter() - start < after and asking.is_alive():
        time.sleep(0.01)
        if not found.seconds:
            start = time.perf_counter()
    server.kill()  # the other thread takes in answers until the connections break
    asking.join()
    return found
