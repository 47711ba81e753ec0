"""d3rlpy, the peer of the plant benchmark, driven in a process of an environment of its own.

This file is run by its path there and imports nothing of Worldloom. It is told what to set up in
one line of JSON on standard input, and makes one block of updates for each line after that, so
that the blocks of all sides can be taken in turn. Every line is answered with one line of JSON.
"""

import json
import sys
import time
from importlib.metadata import version
from typing import Any

EPISODE = 1000  # rows of an episode of the made-up data


def serve() -> None:
    """Sets up the learner that the first line asks for, then makes a block for every line."""
    setup = json.loads(sys.stdin.readline())
    answers, sys.stdout = sys.stdout, sys.stderr  # d3rlpy logs as it pleases

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    start = time.perf_counter()
    block = learner(setup)
    block()
    answer(
        {
            "steps": setup["updates"],
            "threads": setup["threads"],
            "setup_seconds": time.perf_counter() - start,
            "version": version("d3rlpy"),
            "torch": version("torch"),
        }
    )
    for _ in sys.stdin:
        start = time.perf_counter()
        block()
        answer({"seconds": time.perf_counter() - start})


def random_data(rows: int, obs_size: int, action_size: int) -> dict[str, Any]:
    """Made-up columns of `rows` transitions, the same for all who are measured."""
    import numpy as np

    luck = np.random.default_rng(0)
    obs = luck.standard_normal((rows, obs_size), np.float32)
    action = luck.uniform(-1.0, 1.0, (rows, action_size)).astype(np.float32)
    reward = luck.standard_normal(rows, np.float32)
    truncated = np.arange(1, rows + 1) % min(EPISODE, rows) == 0
    truncated[-1] = True
    terminated = np.zeros(rows, bool)
    return {
        "obs": obs,
        "action": action,
        "reward": reward,
        "next_obs": np.roll(obs, -1, 0),
        "terminated": terminated,
        "truncated": truncated,
    }


def learner(setup: dict[str, Any]) -> Any:
    """A block of updates as d3rlpy's own loop makes them, sampling included, logging left out.

    Of CQL's variants the one with a fixed weight is taken, which is ours, and the less work. The
    rest are d3rlpy's defaults, which are the papers' and ours: an actor in every second update of
    TD3+BC and in each of the others, two critics, a slow average of them in each.
    """
    import torch

    torch.set_num_threads(setup["threads"])
    import d3rlpy

    columns = random_data(setup["rows"], setup["obs_size"], setup["action_size"])
    dataset = d3rlpy.dataset.MDPDataset(
        columns["obs"],
        columns["action"],
        columns["reward"].reshape(-1, 1),
        columns["terminated"],
        columns["truncated"],
        action_space=d3rlpy.ActionSpace.CONTINUOUS,
    )
    scaler = d3rlpy.preprocessing.StandardObservationScaler()
    batch, layers = setup["batch"], d3rlpy.models.VectorEncoderFactory(list(setup["hidden"]))
    shared: dict[str, Any] = {
        "batch_size": batch,
        "actor_encoder_factory": layers,
        "critic_encoder_factory": layers,
        "observation_scaler": scaler,
    }
    algos = d3rlpy.algos
    configs = {
        "td3bc": lambda: algos.TD3PlusBCConfig(**shared),
        "iql": lambda: algos.IQLConfig(value_encoder_factory=layers, **shared),
        "cql": lambda: algos.CQLConfig(
            n_action_samples=setup["samples"], alpha_learning_rate=0.0, **shared
        ),
    }
    scaler.fit_with_transition_picker(dataset.episodes, dataset.transition_picker)
    made = configs[setup["algo"]]().create(device=False)
    made.build_with_dataset(dataset)

    def block() -> None:
        for _ in range(setup["updates"]):
            made.update(dataset.sample_transition_batch(batch))

    return block


if __name__ == "__main__":
    serve()
