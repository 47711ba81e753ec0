"""`worldloom bench SUITE`: every suite is a module with a `command(argv)` of its own."""

import importlib
from collections.abc import Sequence

from worldloom.core.names import suggest

# name -> (module, one line for people)
SUITES: dict[str, tuple[str, str]] = {
    "algos": (
        "benchmarks.algos",
        "PPO, PQN, DQN, SAC and TD3 against rejax on the same Gymnax tasks",
    ),
    "grid": (
        "benchmarks.grid",
        "treasure hunt against the original's loop and arithmetic in PyTorch",
    ),
    "arc": (
        "benchmarks.arc",
        "grid-editing worlds against JaxARC and ARCLE, and PPO on Mini-ARC",
    ),
    "robot": (
        "benchmarks.robot",
        "a biped against mujoco.rollout, MJX and Brax's PPO, and PPO that walks",
    ),
    "plant": (
        "benchmarks.plant",
        "offline learning against d3rlpy and NeoRL-2's scores, plants, safety and serving",
    ),
}


def command(argv: Sequence[str]) -> int:
    """Hands the rest of the line to the suite that it names; returns its exit code."""
    if not argv:
        raise ValueError(f"name a suite; known: {', '.join(SUITES)}")
    name, *rest = argv
    if name in ("-h", "--help"):
        print("usage: worldloom bench SUITE [options]      (worldloom bench SUITE --help)\n")
        print("\n".join(f"  {suite:<8}{text}" for suite, (_, text) in SUITES.items()))
        return 0
    if name not in SUITES:
        raise ValueError(f"there is no suite {name!r}; {suggest(name, list(SUITES))}")
    return importlib.import_module(SUITES[name][0]).command(rest)
