"""The same epochs in four ways: an object loop in PyTorch, and three grades of compilation.

python examples/02_compare_modes.py [--quick]

The work is equal in all modes (the original's network, batch and schedule), so the times may be
compared. `worldloom compare treasurehunt` does this with repeats, parts, memory and a report.
"""

import argparse
import time
from dataclasses import replace
from importlib.util import find_spec

import numpy as np

from worldloom.train.config import TrainConfig
from worldloom.train.modes import MODES
from worldloom.train.trainers import make_trainer


def main(quick: bool) -> None:
    config = TrainConfig.original()
    modes, before, epochs = MODES, 6, 10  # the memory holds a batch after six epochs
    if quick:
        world = dict(config.world) | {"num_agents": 2, "horizon": 20}
        iqn = replace(config.iqn, hidden=16, batch_size=8, act_quantiles=8)
        config = replace(config, world=world, iqn=iqn, memory_rows=64)
        modes, before, epochs = ("torch_sequential", "jax_parallel", "jax_fused"), 1, 2
    print(f"{'mode':<18}{'epochs/s':>10}{'compile, s':>12}{'score of the last epoch':>26}")
    played = {}
    for mode in modes:
        if mode == "torch_sequential" and find_spec("torch") is None:
            print(f"{mode:<18}needs PyTorch: pip install 'worldloom[torch]'")
            continue
        trainer = make_trainer(replace(config, mode=mode))
        trainer.advance(before)  # compiles whatever has to be
        start = time.perf_counter()
        metrics = trainer.advance(epochs)
        rate = epochs / (time.perf_counter() - start)
        played[mode] = metrics.score
        print(f"{mode:<18}{rate:>10.2f}{trainer.compile_seconds:>12.1f}{metrics.score[-1]:>26.1f}")
    # The JAX modes draw from the same keys: they have played the very same epochs.
    first, *others = [scores for mode, scores in played.items() if mode.startswith("jax")]
    same = all(np.allclose(first, scores) for scores in others)
    print("the JAX modes scored the same in every epoch" if same else "the JAX modes differ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes; the times mean nothing")
    main(parser.parse_args().quick)
