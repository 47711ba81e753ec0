"""`worldloom bench`: how fast a world is here, or a suite against its peers.

Measurements against peers are apart from the library, in the folder `benchmarks` of the project.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldloom import suites
from worldloom.core.checks import check_fields
from worldloom.core.lazy import resolve
from worldloom.core.names import suggest
from worldloom.training import console
from worldloom.training.arguments import parse

ROOT = Path(__file__).resolve().parents[3]  # of the project, where the install is editable
AGAINST_PEERS = {
    "grid": "treasure hunt against the original's loop and arithmetic in PyTorch",
    "arc": "grid-editing worlds against JaxARC and ARCLE, and PPO on Mini-ARC",
    "robot": "a biped against MuJoCo, MJX and Brax's PPO; walking and steering",
    "plant": "offline learning against d3rlpy and NeoRL-2, safety, serving",
    "algos": "PPO, SAC, DQN, PQN and TD3 against rejax, on the same Gymnax tasks",
    "faults": "kills, damaged files, fuzzed inputs, overload: what goes wrong of it",
    "sweep": "seeds in one program, killed workers, populations",
    "modes": "the grid suite's execution modes on equal work",
}


def command(argv: Sequence[str]) -> int:
    """Measures what is named first: a suite against its peers, or a world."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: worldloom bench SUITE|WORLD [options]\n")
        print("\n".join(f"  {name:<8}{text}" for name, text in AGAINST_PEERS.items()))
        print("  WORLD   steps a second of random play on this machine, compile time apart")
        return 0
    name, *rest = argv
    if name in AGAINST_PEERS:
        project_benchmarks()
        return resolve(f"benchmarks.{name}:command")(rest)
    return _world(name, rest)


def project_benchmarks() -> None:
    """Makes the project's folder `benchmarks` importable; a ValueError where it is not there."""
    roots = [root for root in (Path.cwd(), ROOT) if (root / "benchmarks" / "__init__.py").is_file()]
    if not roots:
        raise ValueError(
            "measurements against peers are in the folder benchmarks of the project, which is not "
            "here; run this in a checkout of it, or name a world"
        )
    for path in (str(roots[0]), str(roots[0] / "tests")):
        if path not in sys.path:
            sys.path.append(path)


@dataclass
class Bench:
    """how fast a world is on this machine"""

    num_worlds: int = 256
    """Worlds that are played at once."""
    num_steps: int = 200
    """Steps in each of them, in one compiled call."""
    repeats: int = 5
    """Calls that are timed, of which the median counts."""
    json: bool = False
    """Print the result as JSON."""


def _world(name: str, argv: Sequence[str]) -> int:
    args = parse(Bench, argv, f"worldloom bench {name}")
    try:
        suites.maker(name)
    except ValueError as error:
        hint = suggest(name, [*AGAINST_PEERS, *suites.names()])
        raise ValueError(f"there is no suite or world {name!r}; {hint}") from error
    check_fields("bench", args, at_least={"num_worlds": 1, "num_steps": 1, "repeats": 1})
    console.phase("measuring", note=name)
    result = random_play(name, args.num_worlds, args.num_steps, args.repeats)
    if args.json:
        console.print_json(result)
        return 0
    console.facts(
        f"{name}, {args.num_worlds} worlds, random play",
        {
            "steps a second": f"{result['steps_per_second']:,.0f} (median of {args.repeats})",
            "compiling": f"{result['compile_seconds']:.1f} s",
        },
    )
    return 0


def random_play(name: str, num_worlds: int, num_steps: int, repeats: int) -> dict[str, Any]:
    """Environment steps a second under random actions; compile time apart."""
    import jax

    from worldloom.core import draws
    from worldloom.core.transforms import autoreset_batch
    from worldloom.training import timer
    from worldloom.training.machine import machine, versions

    env = suites.make(name)
    worlds, params, space = autoreset_batch(env, num_worlds), env.default_params(), env.spec.action
    agents = (env.spec.num_agents,) if env.turn_based or env.spec.num_agents > 1 else ()
    shape = (num_worlds, *agents)

    def sample(key):
        keys = draws.split(key, math.prod(shape)).reshape(shape)
        act = space.sample
        for _ in shape:
            act = jax.vmap(act)
        return act(keys)

    def play(key, state):
        def one(state, key):
            act_key, step_key = draws.split(key)
            state, timestep = worlds.step(step_key, state, sample(act_key), params)
            return state, timestep.reward.sum()

        state, rewards = jax.lax.scan(one, state, draws.split(key, num_steps))
        return state, rewards.sum()

    state, _ = jax.jit(worlds.reset)(jax.random.key(0), params)
    program, compile_seconds = timer.compiled(play, jax.random.key(1), state)
    timing = timer.measure(program, jax.random.key(1), state, repeats=repeats)
    return {
        "world": name,
        "num_worlds": num_worlds,
        "num_steps": num_steps,
        "steps_per_second": num_worlds * num_steps / timing.median,
        "seconds": list(timing.samples),
        "compile_seconds": compile_seconds,
        "versions": versions(),
        "machine": machine(),
    }
