"""Our model in the place of the original's, for as long as it takes to learn treasure hunt.

`WORLDLOOM_SORREL` names a checkout of social-ai-uoft/sorrel with `examples/treasurehunt_mp`.
"""

import os
import random
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from worldloom.adapters.sorrel import JAXIQN
from worldloom.suites.grid.object_world import ObjectTreasureHunt

EPOCHS, TURNS, AGENTS, GREEDY_EPOCHS = 400, 50, 5, 20
SHORT = 150  # epochs, of what every run of the tests can wait for


def decay(epochs: int) -> float:
    """Of epsilon, from 1 to 0.09."""
    return 1 - 0.09 ** (1 / epochs)


# The arguments of the original's example.
ARGUMENTS = {
    "action_space": 4, "layer_size": 250, "epsilon": 1.0, "epsilon_min": 0.0, "device": "cpu",
    "n_frames": 5, "n_step": 3, "sync_freq": 200, "model_update_freq": 4, "batch_size": 256,
    "memory_size": 1024, "LR": 0.00025, "TAU": 0.001, "GAMMA": 0.99, "n_quantiles": 12,
}  # fmt: skip


def play_epoch(env: ObjectTreasureHunt, models: list, epoch: int) -> float:
    env.reset()
    for model in models:
        model.reset()
        model.start_epoch_action(epoch=epoch)
    for _ in range(TURNS):
        env.spawn()
        for i, model in enumerate(models):
            frame = env.pov(i)[None]
            action = model.take_action(np.vstack((model.memory.current_state(), frame)))
            model.memory.add(frame, action, env.act(i, action), env.is_done)
    return env.total_reward


@pytest.mark.slow
def test_the_default_learns_in_the_originals_loop_with_its_arguments():
    env = ObjectTreasureHunt(num_agents=AGENTS, tuned=True, rng=np.random.default_rng(0))
    models = [JAXIQN(input_size=(1, env.obs_size), seed=n, **ARGUMENTS) for n in range(AGENTS)]
    for epoch in range(SHORT):
        play_epoch(env, models, epoch)
        for model in models:
            model.train_step()
            model.epsilon_decay(decay(SHORT))
    for model in models:
        model.set_epsilon(0.0)
    scores = [play_epoch(env, models, epoch=1) for epoch in range(GREEDY_EPOCHS)]
    print(f"greedy score {np.mean(scores):.0f}")
    # Random play scores 255, walking to the nearest visible gem 530.
    assert np.mean(scores) > 400


@pytest.fixture
def sorrel(monkeypatch):
    """The module of Sorrel's own treasure hunt."""
    folder = os.environ.get("WORLDLOOM_SORREL")
    if folder is None:
        pytest.skip("WORLDLOOM_SORREL names no checkout of Sorrel")
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(folder)
    try:
        return import_module("sorrel.examples.treasurehunt_mp.env")
    except (ImportError, SyntaxError) as error:
        pytest.skip(f"Sorrel needs Python 3.12 and its requirements: {error}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_changed_import_scores_no_less_in_sorrel_itself(sorrel, monkeypatch, tmp_path):
    from sorrel.examples.treasurehunt_mp.entities import EmptyEntity
    from sorrel.examples.treasurehunt_mp.world import TreasurehuntWorld

    config = {
        "experiment": {"epochs": EPOCHS - 1, "max_turns": TURNS, "record_period": 1000},
        "model": {
            "agent_vision_radius": 2,
            "epsilon": 1,
            "epsilon_min": 0.0,
            "epsilon_decay": decay(EPOCHS),
            "batch_size": 256,
        },
        "world": {
            "height": 10,
            "width": 10,
            "gem_value": 10,
            "spawn_prob": 0.02,
            "num_agents": AGENTS,
        },
    }

    def run(model_class) -> tuple[float, float, float]:
        """The greedy score, its standard error, and the seconds of training."""
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the generator that Sorrel draws from
        monkeypatch.setattr(sorrel, "PyTorchIQN", model_class)
        world = TreasurehuntWorld(config=config, default_entity=EmptyEntity())
        experiment = sorrel.TreasurehuntEnv(world, config)
        start = time.perf_counter()
        experiment.run_experiment(animate=False, logging=False, output_dir=Path(tmp_path))
        seconds, scores = time.perf_counter() - start, []
        for _ in range(GREEDY_EPOCHS):
            experiment.reset()
            for agent in experiment.agents:
                agent.model.set_epsilon(0.0)
                agent.model.memory.add_empty()
            for _ in range(TURNS):
                experiment.take_turn()
            scores.append(experiment.world.total_reward)
        return np.mean(scores), np.std(scores) / GREEDY_EPOCHS**0.5, seconds

    theirs, their_error, their_seconds = run(sorrel.PyTorchIQN)
    ours, our_error, our_seconds = run(JAXIQN)
    assert ours > theirs - 2 * np.hypot(their_error, our_error)
    print(f"theirs {their_seconds:.0f} s, ours {our_seconds:.0f} s with compiling")
