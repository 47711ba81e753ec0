"""A measurement on its way to a file: saved after every section, whatever happens to the others."""

import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from worldloom.core.files import write_json
from worldloom.training.machine import machine, versions


class Progress:
    """Lines on standard error, each with the time since the start."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._start = clock, clock()

    @property
    def elapsed(self) -> float:
        return self._clock() - self._start

    def __call__(self, text: str) -> None:
        print(f"[{self.elapsed:7.1f} s] {text}", file=sys.stderr, flush=True)


class Record:
    """A result that grows section by section; `complete` is false until `finish`."""

    def __init__(self, path: Path, **header: Any):
        self.path, self.note = Path(path), Progress()
        self.result: dict[str, Any] = {
            **header,
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
            "versions": versions(),
            "machine": machine(),
            "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "complete": False,
            "errors": {},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def section(self, name: str, work: Callable[[], None]) -> None:
        """Runs `work`, which writes into `result`; an error is recorded and the rest goes on."""
        start = time.perf_counter()
        self.note(f"{name}: starts")
        try:
            work()
        except KeyboardInterrupt:
            self.result["errors"][name] = "stopped by Ctrl-C"
            self.save()
            self.note(f"stopped; what was measured is in {self.path}")
            raise SystemExit(130) from None
        except Exception as error:
            self.result["errors"][name] = f"{type(error).__name__}: {error}"
            self.note(f"{name}: failed: {error}\n{traceback.format_exc()}")
        else:
            self.note(f"{name}: done in {time.perf_counter() - start:.1f} s")
        self.save()

    def save(self) -> None:
        self.result["seconds"] = round(self.note.elapsed, 1)
        write_json(self.path, self.result)

    def finish(self) -> int:
        """Marks the result complete if nothing failed; the exit code that says so."""
        self.result["complete"] = not self.result["errors"]
        self.save()
        return 0 if self.result["complete"] else 1
