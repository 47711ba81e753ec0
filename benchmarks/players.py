"""Players in processes of their own that take turns: each plays a block when it is told to."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import arc_peers
from worldloom.training.timer import Timing

PEERS = Path(".venv-peers-jax")


class Player:
    """A process that answers each line with a line; `facts` is what it said when it was ready."""

    def __init__(self, argv: Sequence[str], setup: Mapping[str, Any]):
        self._name = f"{setup['player']} ({setup['batch']} worlds)"
        # Not a pipe: nobody reads along, so it would fill up.
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
            env=os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "0"},
        )  # fmt: skip
        self.facts = self._ask(json.dumps(setup))
        self.steps = self.facts["steps"]

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            self._said.seek(0)
            words = self._said.read().strip().splitlines() or ["it said nothing"]
            self.close()
            raise RuntimeError(f"{self._name} ended: {words[-1]}")
        return json.loads(answer)

    def play(self) -> float:
        """Seconds of one block."""
        return self._ask("go")["seconds"]

    def __enter__(self) -> "Player":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()  # closes the pipes
        self._said.close()


def ours(**setup: Any) -> Player:
    return Player([sys.executable, "-m", "benchmarks.arc_worlds"], {"player": "ours"} | setup)


def peer(name: str, **setup: Any) -> Player:
    """A player of the peers' environment, which `make peers` sets up."""
    python = PEERS / "bin/python"
    if not python.exists():
        raise ValueError(f"{python} is not there: `make peers` sets up what is measured against")
    return Player([str(python), arc_peers.__file__], {"player": name} | setup)


def take_turns(players: Mapping[str, Player], repeats: int) -> dict[str, Timing]:
    """Seconds per step of every player, blocks taken in turn, another one first each round."""
    names = list(players)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(repeats):
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(players[name].play() / players[name].steps)
    return {name: Timing(tuple(taken)) for name, taken in samples.items()}
