"""Runs of every loop that compile in seconds."""

from pathlib import Path

import numpy as np

OFF_POLICY = {"batch_size": 8, "buffer_size": 256, "gradient_steps": 1, "unroll_length": 2}
# name -> (suite, settings)
LOOPS = {
    "turns, on-policy": (
        "grid",
        {"env": "tag", "algo": "ppo", "world": {"horizon": 6, "num_agents": 2}, "num_worlds": 4,
         "ppo": {"hidden": (8,), "num_minibatches": 2, "num_epochs": 1}},
    ),
    "turns, centralised critic": (
        "grid",
        {"env": "tag", "algo": "mappo", "world": {"horizon": 6, "num_agents": 2}, "num_worlds": 4,
         "mappo": {"hidden": (8,), "num_minibatches": 2, "num_epochs": 1}},
    ),
    "turns, a team": (
        "grid",
        {"env": "coins", "algo": "vdn", "world": {"horizon": 6, "rewards": "svo"}, "num_worlds": 4,
         "share_parameters": True,
         "vdn": {"hidden": (8,), "num_minibatches": 2, "num_epochs": 1}},
    ),
    "turns, one network for all": (
        "grid",
        {"env": "tag", "algo": "dqn", "world": {"horizon": 6, "num_agents": 2}, "num_worlds": 4,
         "share_parameters": True, "dqn": {"hidden": (8,), "batch_size": 8, "buffer_size": 112}},
    ),
    "steps, off-policy, discrete": (
        "plain",
        {"env": "gymnax:CartPole-v1", "algo": "dqn", "num_worlds": 4,
         "world": {"max_steps_in_episode": 16}, "dqn": OFF_POLICY | {"hidden": (8,)}},
    ),
    "steps, off-policy, continuous": (
        "plain",
        {"env": "gymnax:Pendulum-v1", "algo": "sac", "num_worlds": 4,
         "world": {"max_steps_in_episode": 16},
         "sac": OFF_POLICY | {"hidden": (8,), "learning_starts": 40}},
    ),
    "steps, on-policy": (
        "plain",
        {"env": "gymnax:CartPole-v1", "algo": "ppo", "num_worlds": 4,
         "world": {"max_steps_in_episode": 16},
         "ppo": {"hidden": (8,), "unroll_length": 8, "num_minibatches": 2, "num_epochs": 1}},
    ),
    "steps, with a memory": (
        "plain",
        {"env": "gymnax:CartPole-v1", "algo": "ppo", "num_worlds": 4,
         "world": {"max_steps_in_episode": 10},
         "ppo": {"hidden": (8,), "unroll_length": 8, "num_minibatches": 2, "num_epochs": 1,
                 "memory": "gru", "memory_units": 4, "memory_steps": 4}},
    ),
    "offline": (
        "plain",
        {"env": "gymnax:Pendulum-v1", "algo": "iql", "world": {"max_steps_in_episode": 8},
         "dataset": "data.npz",
         "iql": {"hidden": (8,), "batch_size": 8, "updates_per_iteration": 4}},
    ),
}  # fmt: skip


def write_data(path: Path) -> None:
    """Transitions as an offline algorithm of the pendulum could be given them."""
    from worldloom.replay import dataset_files
    from worldloom.replay.dataset import from_columns

    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=(64, 3)).astype(np.float32) for name in ("obs", "next_obs")}
    columns |= {"action": rng.uniform(-1, 1, (64, 1)), "reward": rng.normal(size=64)}
    ends = np.arange(64) % 8 == 7
    data = from_columns(**columns, terminated=np.zeros(64, bool), truncated=ends, name="made up")
    dataset_files.save(data, path)
