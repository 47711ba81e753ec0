"""Between the robot benchmark and what it measures: processes that play a block when told to.

A process is told what to set up in one line of JSON on standard input. It answers when it is
compiled and has played a block that does not count, and then plays one block for each line, so that
the blocks of all can be taken in turn. Every answer is one line of JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from benchmarks import players

Setup = dict[str, Any]


class Process(players.Player):
    """A player from outside; remembers how busy it kept the processor."""

    def __init__(self, **setup: Any):
        self._wall, self._cpu = 0.0, 0.0
        super().__init__([sys.executable, "-m", "benchmarks.robot_players"], setup)

    def play(self) -> float:
        answer = self._ask("go")
        self._wall += answer["wall_seconds"]
        self._cpu += answer["cpu_seconds"]
        return answer["seconds"]

    @property
    def device_use(self) -> float | None:
        """CPU time over wall time of all blocks; the number of cores at the most."""
        return self._cpu / self._wall if self._wall else None


class Stage:
    """Where a player says what it did, and waits for its turn."""

    def __init__(self):
        self._answers, sys.stdout = sys.stdout, sys.stderr  # trainers print as they please
        self._wall = self._cpu = 0.0

    def ready(self, steps: int, **facts: Any) -> None:
        """All is compiled; `steps` of control are in a block."""
        self._answer({"steps": steps, **facts})

    def done(self, seconds: float | None = None) -> None:
        """A block is over; it took the time since its turn began unless `seconds` says better."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        own = wall if seconds is None else seconds
        self._answer({"seconds": own, "wall_seconds": wall, "cpu_seconds": cpu})

    def _answer(self, values: dict[str, Any]) -> None:
        print(json.dumps(values), file=self._answers, flush=True)
        if not sys.stdin.readline():
            raise SystemExit(0)
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def play(self, block: Callable[[], Any], steps: int, **facts: Any) -> NoReturn:
        """Plays blocks until nobody asks for more; the first does not count."""
        block()
        self.ready(steps, **facts)
        while True:
            block()
            self.done()
