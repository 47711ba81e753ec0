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

from worldloom.train.build import build_loop
from worldloom.train.config import TrainConfig


def main(quick: bool) -> None:
    config = TrainConfig(num_worlds=16, updates_per_epoch=10, memory_rows=204)
    seeds, epochs = 4, 40
    rates = jnp.array([0.005, 0.01, 0.02, 0.04])
    if quick:
        world = {"num_agents": 2, "horizon": 10}
        config = TrainConfig(num_worlds=2, updates_per_epoch=2, memory_rows=44, world=world)
        seeds, epochs, rates = 2, 2, rates[1:3]
    loop = build_loop(config)

    def experiment(seed, rate):
        """The score of every epoch, (epochs,), of one run in a world of its own spawn rate."""
        # What a world leaves open are its params; here the chance of a gem on an empty cell.
        own = replace(loop, params=loop.params.replace(rate=rate[None]))
        run = own.init(jax.random.key(seed))
        _, metrics = jax.lax.scan(lambda run, _: own.epoch(run), run, None, epochs)
        return metrics.score

    over_seeds = jax.vmap(experiment, (0, None))
    study = jax.jit(jax.vmap(over_seeds, (None, 0)))
    start = time.perf_counter()
    program = study.lower(jnp.arange(seeds), rates).compile()
    compiled = time.perf_counter()
    scores = jax.block_until_ready(program(jnp.arange(seeds), rates))  # (rates, seeds, epochs)
    done = time.perf_counter()

    print(f"{scores[..., 0].size} experiments of {epochs} epochs: compiled in")
    print(f"{compiled - start:.1f} s, run in {done - compiled:.1f} s")
    last = scores[..., -max(1, epochs // 10) :].mean(axis=-1)
    for rate, row in zip(rates, last, strict=True):
        shown = "  ".join(f"{score:6.1f}" for score in row)
        print(f"spawn rate {rate:.3f}: {shown}   mean {row.mean():.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    main(parser.parse_args().quick)
