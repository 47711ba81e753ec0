"""The same epochs in four ways: an object loop in PyTorch, and three grades of compilation.

python examples/02_compare_modes.py [--quick]

The work is equal in all modes (the original's network, batch and schedule), so the times may be
compared. `worldloom bench modes treasurehunt` does this with repeats, parts, memory and a report.
"""

import argparse
import time
from importlib.util import find_spec

import numpy as np

from worldloom.suites.grid.problem import new_trainer
from worldloom.suites.grid.suite import MODES, SUITE, original
from worldloom.training.config import make_config

QUICK = {
    "world": {"num_agents": 2, "horizon": 20},
    "iqn": {"hidden": 16, "batch_size": 8, "act_quantiles": 8, "buffer_size": 64},
}


def main(quick: bool) -> None:
    modes, before, epochs = MODES, 6, 10  # the memory holds a batch after six epochs
    if quick:
        modes, before, epochs = ("torch_sequential", "jax_parallel", "jax_fused"), 1, 2
    print(f"{'mode':<18}{'epochs/s':>10}{'compile, s':>12}{'return of the last epoch':>26}")
    played = {}
    for mode in modes:
        if mode == "torch_sequential" and find_spec("torch") is None:
            print(f"{mode:<18}needs PyTorch: pip install 'worldloom[torch]'")
            continue
        settings = original(mode=mode, **(QUICK if quick else {}))
        trainer = new_trainer(make_config(SUITE, settings))
        trainer.advance(before)  # compiles whatever has to be
        start = time.perf_counter()
        returns = played[mode] = trainer.advance(epochs)["return"]
        rate = epochs / (time.perf_counter() - start)
        print(f"{mode:<18}{rate:>10.2f}{trainer.compile_seconds:>12.1f}{returns[-1]:>26.1f}")
    # The JAX modes draw from the same keys: they have played the very same epochs.
    first, *others = [returns for mode, returns in played.items() if mode.startswith("jax")]
    same = all(np.allclose(first, returns) for returns in others)
    print("the JAX modes got the same in every epoch" if same else "the JAX modes differ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes; the times mean nothing")
    main(parser.parse_args().quick)
