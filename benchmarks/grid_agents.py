"""What 1 to 128 independent learners cost: time and memory for each step of a world.

Treasure hunt on one field that holds the most of them, so that of all that is measured only the
number of agents differs; every agent has a network of its own. Each row is measured in a process
that does nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.modes_memory import resident_mb
from benchmarks.processes import in_fresh_process, peak_memory_mb
from worldloom.suites.grid.suite import SUITE
from worldloom.training import timer
from worldloom.training.config import make_config

RATIO = "agent_steps_128_vs_1"


@dataclass(frozen=True)
class AgentSizes:
    """A field of 22 x 22 free cells, and blocks of episodes in 16 worlds."""

    agents: tuple[int, ...] = (1, 5, 16, 64, 128)
    algos: tuple[str, ...] = ("ppo", "pqn")
    worlds: int = 16
    side: int = 24
    horizon: int = 50
    iterations: int = 5  # in a block
    repeats: int = 5


QUICK = AgentSizes(agents=(1, 3), algos=("ppo",), worlds=4, side=8, iterations=1, repeats=1)


def measure(
    sizes: AgentSizes, cache: Path, raw: dict[str, Any], note: Callable[[str], None]
) -> dict[str, float | None]:
    """Rows by algorithm and number of agents; how fast most of them are beside the fewest."""
    raw |= {"sizes": asdict(sizes), "rows": []}
    for algo in sizes.algos:
        for agents in sizes.agents:
            argument = asdict(sizes) | {"algo": algo, "agents": agents}
            row = in_fresh_process("benchmarks.grid_agents:one", argument, cache)
            raw["rows"].append({"algo": algo, "agents": agents} | row)
            per_step = 1e6 * row["seconds_per_step"]
            note(f"  {algo}, {agents} agents: {per_step:,.1f} us a step, {row['peak_mb']:,.0f} MB")
    return {RATIO: most_to_fewest(raw["rows"])}


def most_to_fewest(rows: list[dict[str, Any]]) -> float | None:
    """Agent steps/s of the first algorithm: with the most agents over with the fewest."""
    rates = {
        row["agents"]: row["agents"] / row["seconds_per_step"]
        for row in rows
        if row["algo"] == rows[0]["algo"]
    }
    return timer.ratio(rates[max(rates)], rates[min(rates)])


def one(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of a world's step with all its agents and their learning, and what that holds."""
    import jax

    from worldloom.suites.grid.problem import new_trainer

    field = {"height": argument["side"], "width": argument["side"], "horizon": argument["horizon"]}
    world = field | {"num_agents": argument["agents"]}
    given = {"env": "treasurehunt", "algo": argument["algo"], "world": world}
    config = make_config(SUITE, given | {"num_worlds": argument["worlds"]})
    jax.devices()
    before = resident_mb() or 0.0
    trainer = new_trainer(config)
    trainer.advance(1)  # compiles
    block = argument["iterations"]
    taken = timer.measure(lambda: trainer.advance(block), repeats=argument["repeats"], warmup=1)
    per_step = taken.per(block * trainer.steps_per_iteration)
    learned = jax.tree.leaves(trainer.run.learner)
    after = resident_mb()
    return {
        "seconds_per_step": per_step.median,
        "seconds": per_step.to_dict(),
        "steps_in_a_block": block * trainer.steps_per_iteration,
        "compile_seconds": trainer.compile_seconds,
        "learner_mb": sum(leaf.nbytes for leaf in learned) / 2**20,
        "resident_mb": None if after is None else after - before,
        "peak_mb": peak_memory_mb() - before,
    }
