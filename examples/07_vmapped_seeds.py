"""Many whole experiments in one program: every seed with every spawn rate, side by side.

python examples/07_vmapped_seeds.py [--quick]

A run is a pure function of its key and its numbers, so `jax.vmap` makes a study of it: one
compilation, one call. `worldloom sweep` does the same for settings, and writes the results.
"""

import argparse
import time
from dataclasses import replace

import jax
import jax.numpy as jnp

from worldloom.suites.grid.problem import make_problem
from worldloom.suites.grid.suite import SUITE
from worldloom.training.config import make_config
from worldloom.training.loops import turn_loop

STUDY = {
    "env": "treasurehunt",
    "num_worlds": 16,
    "iqn": {"gradient_steps": 10, "buffer_size": 16 * 204},
}
QUICK = {
    "num_worlds": 2,
    "world": {"num_agents": 2, "horizon": 10},
    "iqn": {"gradient_steps": 2, "buffer_size": 2 * 44},
}


def main(quick: bool) -> None:
    seeds, iterations = 4, 40
    rates = jnp.array([0.005, 0.01, 0.02, 0.04])
    if quick:
        seeds, iterations, rates = 2, 2, rates[1:3]
    config = make_config(SUITE, STUDY | (QUICK if quick else {}))
    loop = turn_loop(config, make_problem(config))

    def experiment(seed, rate):
        """Returns (iterations,) of one run in a world of its own spawn rate."""
        # What a world leaves open are its params; here the chance of a gem on an empty cell.
        own = replace(loop, params=loop.params.replace(rate=rate[None]))
        run = own.init(jax.random.key(seed))
        _, metrics = jax.lax.scan(lambda run, _: own.iterate(run), run, None, iterations)
        return metrics["return"]

    over_seeds = jax.vmap(experiment, (0, None))
    study = jax.jit(jax.vmap(over_seeds, (None, 0)))
    start = time.perf_counter()
    program = study.lower(jnp.arange(seeds), rates).compile()
    compiled = time.perf_counter()
    returns = jax.block_until_ready(program(jnp.arange(seeds), rates))  # (rates, seeds, iterations)
    done = time.perf_counter()

    steps = iterations * loop.steps_per_iteration
    print(f"{returns[..., 0].size} experiments of {steps:,} steps: compiled in")
    print(f"{compiled - start:.1f} s, run in {done - compiled:.1f} s")
    last = returns[..., -max(1, iterations // 10) :].mean(axis=-1)
    for rate, row in zip(rates, last, strict=True):
        shown = "  ".join(f"{each:6.1f}" for each in row)
        print(f"spawn rate {rate:.3f}: {shown}   mean {row.mean():.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    main(parser.parse_args().quick)
