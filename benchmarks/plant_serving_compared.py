"""A served policy beside what people would serve it with: the same requests, taken in turn.

Ours has its safety filter, its audit record and an `fsync` before each answer; the others compute
the bare policy in onnxruntime, and keep no record.
"""

import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import plant_serving_peers
from benchmarks.load import Load, ask, drive, requests
from benchmarks.plant_serving import Server, recorded, verify

PEERS = Path(".venv-peers-serving")
MOSEC = ("mosec", "mosec_workers")  # in batches of one worker, and one by one of several
OBSERVATIONS = 64  # that each plant tells in turn


class Peer:
    """A server of the peers' environment, which `make peers` sets up, while the context lasts."""

    def __init__(self, kind: str, model: Path, noise: Path, observation: Sequence[float]):
        python = PEERS / "bin/python"
        if not python.exists():
            raise ValueError(
                f"{python} is not there: `make peers` sets up what is measured against"
            )
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        with noise.open("wb") as said:
            self._process = subprocess.Popen(
                [str(python), plant_serving_peers.__file__, kind, str(port), str(model)],
                stdout=said,
                stderr=said,
                start_new_session=True,  # with workers of its own, which end with it
            )
        self.pid = self._process.pid
        body = json.dumps({"plant": "first", "observation": observation}).encode()
        for _ in range(600):
            with suppress(OSError):
                if ask(self.url, "POST", "/act", None, body)[0] == 200:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        self.close()
        raise RuntimeError(f"{kind} did not start: {noise.read_text()[-500:]}")

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def compared(
    bundle: Path,
    model: Path,
    observations: np.ndarray,
    *,
    seconds: float,
    rounds: int,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Requests a second of each server, and our latencies at half of ours.

    observations (connections, k, n): one plant each, in turn. seconds: of a round of each; rounds:
    taken in turn, another server first each time, after one that does not count.
    """
    plants = [f"plant-{i}" for i in range(len(observations))]
    loads: dict[str, list[Load]] = {}
    used: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        log = folder / "audit.jsonl"
        options = ["--rate", "1e6", "--burst", "1000000"]  # limits are not what is measured here
        ours = stack.enter_context(Server(bundle, log, options))
        policy = json.loads(ask(ours.url, "GET", "/policy", ours.token)[1])
        place = policy["emergency_action"]
        servers: dict[str, Server | Peer] = {"ours": ours}
        for kind in ("fastapi", *MOSEC):
            peer = Peer(kind, model, folder / f"{kind}.txt", observations[0, 0].tolist())
            servers[kind] = stack.enter_context(peer)

        for plant in plants:  # where its actuators are, which the others do not ask
            introduced = json.dumps({"plant": plant, "previous": place}).encode()
            ask(ours.url, "POST", "/reset", ours.token, introduced)

        def play(name: str, length: float, rate: float | None = None) -> Load:
            url, token = servers[name].url, ours.token if name == "ours" else None
            each = [
                requests(url, "/act", token, {"plant": plant}, rows)
                for plant, rows in zip(plants, observations, strict=True)
            ]
            return drive(url, each, seconds=length, rate=rate)

        names, ours_too = list(servers), []
        for name in names:
            ours_too.append(play(name, min(seconds, 1.0)))
            if ours_too[-1].errors or not ours_too[-1].seconds:
                raise RuntimeError(f"{name} answers with {ours_too[-1].errors or 'nothing'}")
        del ours_too[1:]
        for turn in range(rounds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                before = processor_seconds(servers[name].pid)
                found = play(name, seconds)
                used[name] = used.get(name, 0.0) + processor_seconds(servers[name].pid) - before
                loads.setdefault(name, []).append(found)
                note(f"  {name}: {found.rate:,.0f} requests/s")
        rates = {name: [found.rate for found in kept] for name, kept in loads.items()}
        median = {name: statistics.median(each) for name, each in rates.items()}
        half = play("ours", seconds, 0.5 * median["ours"])
        note(f"  ours at half of that: 99 % within {half.percentile(99):.1f} ms")
        code = ours.stop()
        answered: dict[int, str] = {}
        tallies = [found.tally() for found in [*ours_too, *loads["ours"], half]]
        for tally in tallies:
            answered |= tally["acknowledged"]
        verified, records = verify(log), recorded(log)
    counts = {name: sum(len(found.seconds) for found in kept) for name, kept in loads.items()}
    return {
        "requests_per_second": median,
        "rounds": rates,
        "processor_ms_a_request": {n: 1e3 * used[n] / max(counts[n], 1) for n in names},
        "p50_ms": {n: statistics.median(x.percentile(50) for x in loads[n]) for n in names},
        "p99_ms": {n: statistics.median(x.percentile(99) for x in loads[n]) for n in names},
        "errors": _errors(loads),
        "half_load": {
            "requests_per_second": half.rate,
            "p50_ms": half.percentile(50),
            "p99_ms": half.percentile(99),
            "errors": half.errors,
        },
        "late": sum(tally["late"] for tally in tallies),
        "emergencies": sum(tally["emergencies"] for tally in tallies),
        "answers": len(answered),
        "log_sound": verified["sound"] and code == 0,
        "log_complete": verified["answers"] == len(answered)
        and all(records.get(seq) == digest for seq, digest in answered.items()),
    }


def figures(result: Mapping[str, Any]) -> dict[str, float]:
    """The ratios of a comparison: to the bare endpoint, to mosec at its best, and our p99."""
    rates = result["requests_per_second"]
    return {
        "serving_vs_fastapi": rates["ours"] / rates["fastapi"],
        "serving_vs_mosec": rates["ours"] / max(rates[name] for name in MOSEC),
        "serving_p99_ms": result["half_load"]["p99_ms"],
    }


def bare_policy(folder: Path, model: Path, connections: int) -> np.ndarray:
    """Writes the policy of a run as ONNX, without its filter; observations from its data.

    They are (connections, k, n): consecutive rows of the log for each plant.
    """
    import worldloom
    from worldloom.nn.policy import policy_step
    from worldloom.serving.onnx_convert import build
    from worldloom.serving.onnx_export import OPSET
    from worldloom.suites.plant.problem import policy_of

    run = worldloom.load(folder)
    assert run.problem.data is not None
    rows = np.asarray(run.problem.data().rows.obs, np.float32)
    policy: Any = policy_of(run.trainer, run.agents)
    made = build(
        lambda obs: (policy_step(policy, obs, None),), {"obs": rows[:1]}, ["action"], OPSET
    )
    model.write_bytes(made.SerializeToString())
    picked = np.arange(connections * OBSERVATIONS) % len(rows)
    return rows[picked].reshape(connections, OBSERVATIONS, -1)


def processor_seconds(pid: int) -> float:
    """What a process, or the session that it leads, has used; 0 where the system does not tell."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(stat.parent.name) == pid or int(fields[3]) == pid:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _errors(loads: Mapping[str, Sequence[Load]]) -> dict[str, dict[str, int]]:
    return {name: found.errors for name, kept in loads.items() for found in kept if found.errors}
