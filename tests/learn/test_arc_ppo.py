"""PPO learns to edit grids: a tiny set of tasks is solved from nothing in seconds."""

import json

import numpy as np

from worldloom.algos.ppo import PPOConfig
from worldloom.train import arc
from worldloom.train.arc_config import ArcRules, ArcTrainConfig, NetworkSizes, load_tasks


def test_ppo_learns_to_recolour_a_cell_and_submit(tmp_path):
    def pair(place, before, after):
        cells = np.zeros((2, 9), int)
        cells[:, place] = before, after
        grids = cells.reshape(2, 3, 3).tolist()
        return {"input": grids[0], "output": grids[1]}

    for before, after in ((1, 2), (3, 1)):
        train = [pair(place, before, after) for place in (0, 4, 8)]
        task = {"train": train, "test": [pair(2, before, after)]}
        (tmp_path / f"{before}.json").write_text(json.dumps(task))
    config = ArcTrainConfig(
        tasks=str(tmp_path),
        ppo=PPOConfig(
            num_worlds=256, unroll_length=16, num_epochs=2, num_minibatches=4,
            learning_rate=2e-3, gamma=0.95, entropy_cost=0.05,
        ),
        world=ArcRules(max_steps=6, operations=(0, 1, 2, 34), wrong_penalty=0.0),
        network=NetworkSizes(channels=16, convolutions=1, context=32),
    )  # fmt: skip
    loop, rules = arc.make_loop(config, load_tasks(config))
    trainer = arc.OnPolicyTrainer(loop, rules, seed=0, chunk=10)
    solved = np.zeros(1)
    for _ in range(6):
        if solved[-1] > 0.99:
            break
        metrics = trainer.advance(10)
        solved = np.concatenate([solved, metrics.outcomes["solved"]])
    assert solved[1] < 0.05, "it was too easy: random play solves it"
    assert solved[-1] > 0.99
    assert metrics.episode_length[-1] < 2.5, "one fill and one submission are enough"
