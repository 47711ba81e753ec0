"""A run folder as the trainer leaves it, made up, and a real browser to look at pages."""

import json
import math
import shutil
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from worldloom.envs.grid.treasurehunt import world as treasurehunt
from worldloom.report import render
from worldloom.report.arc_play import PlayServer

EPOCHS, AGENTS, TURNS = 120, 5, 50
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def random_walk(world, turns, seed=0):
    """States (T + 1, ...) and rewards (T, A) of agents that stumble about among some gems."""
    rng = np.random.default_rng(seed)
    agent, gem = world.index[world.agent], world.index["Gem"]
    layers, cells = np.array(world.start_layers), rng.permutation(world.start_cells)
    position = cells[: world.num_agents].copy()
    layers[-1][tuple(cells[world.num_agents : world.num_agents + 12].T)] = gem
    layers[-1][tuple(position.T)] = agent
    seen, places, rewards = [layers.copy()], [position.copy()], []
    for _ in range(turns):
        paid = np.zeros(world.num_agents)
        for i in range(world.num_agents):
            target = position[i] + np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])[rng.integers(4)]
            met = world.kinds[layers[-1][tuple(target)]]
            paid[i] = met.value
            if met.passable:
                layers[-1][tuple(position[i])] = 0
                layers[-1][tuple(target)] = agent
                position[i] = target
        seen.append(layers.copy())
        places.append(position.copy())
        rewards.append(paid)
    states = SimpleNamespace(layers=np.stack(seen), position=np.stack(places))
    return states, np.array(rewards)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_run(folder, *, epochs=EPOCHS, films=True, seed=0):
    """A complete run of treasure hunt, with curves of the right shape."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "env": "treasurehunt",
        "world": {"num_agents": AGENTS, "num_frames": 1},
        "algo": "iqn",
        "mode": "jax_fused",
        "seed": 3,
        "epochs": epochs,
        "num_worlds": 32,
        "iqn": {"learning_rate": 2.5e-4, "hidden": 128, "batch_size": 64, "n_step": 3},
        "dqn": {"hidden": 77},
        "reference_scores": {"random": 255.0, "greedy to nearest gem": 530.0},
    }
    about = {
        "worldloom": "0.1.0",
        "command": "worldloom train treasurehunt --mode jax_fused --seed 3",
        "config": config,
        "machine": {"cpu": "a small one", "cores": 2, "memory_gb": 4.1, "python": "3.11"},
        "versions": {"worldloom": "0.1.0", "jax": "0.10.2"},
        "hash": "3f9a1c07",
    }
    (folder / "checkpoints" / str(epochs)).mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(about))
    metrics, agents, turns = [], ["epoch,agent,reward,loss,grad_norm,q_mean"], []
    turns.append("epoch,turn,agent,reward")
    for epoch in range(epochs):
        rise = 1 - math.exp(-epoch / (epochs / 4))
        epsilon = max(0.05, 0.965**epoch)
        rewards = (50 + 52 * rise) * (1 - 0.2 * epsilon) + rng.normal(0, 6, AGENTS)
        ready = epoch >= 3
        losses = [float(rng.uniform(0.8, 1.2) * 3 * 0.97**epoch) for _ in range(AGENTS)]
        metrics.append(
            {
                "epoch": epoch,
                "score": float(rewards.sum()),
                "epsilon": epsilon,
                "loss": float(np.mean(losses)) if ready else None,
                "grad_norm": float(rng.uniform(0.5, 2)) if ready else None,
                "q_mean": float(60 * rise) if ready else None,
                "seconds": 0.066 * (epoch + 1),
                "rewards": rewards.tolist(),
                "losses": losses if ready else [None] * AGENTS,
            }
        )
        for agent in range(AGENTS):
            loss = losses[agent] if ready else ""
            agents.append(f"{epoch},{agent},{rewards[agent]:.4f},{loss},{1.0},{60 * rise:.3f}")
            shape = np.linspace(1.5, 0.8, TURNS) * rewards[agent] / TURNS
            noisy = shape + rng.normal(0, 0.3, TURNS)
            turns += [f"{epoch},{turn},{agent},{r:.4f}" for turn, r in enumerate(noisy)]
    write_lines(folder / "metrics.jsonl", metrics)
    (folder / "agents.csv").write_text("\n".join(agents) + "\n")
    (folder / "turns.csv").write_text("\n".join(turns) + "\n")
    evals = []
    for epoch in range(0, epochs + 1, max(1, epochs // 8)):
        scores = rng.normal(255 + 275 * (1 - math.exp(-epoch / (epochs / 4))), 60, 200)
        error = float(scores.std() / math.sqrt(len(scores)))
        row = {"epoch": epoch, "seconds": 0.066 * epoch, "mean": float(scores.mean())}
        evals.append({**row, "stderr": error, "episodes": 200, "scores": scores.tolist()})
    write_lines(folder / "eval.jsonl", evals)
    timing = {"mode": "jax_fused", "compile_seconds": 8.41, "train_seconds": 0.066 * epochs}
    timing |= {"eval_seconds": 1.9, "epochs": epochs, "epochs_per_second": 15.1}
    timing["agent_steps_per_second"] = 120800.0
    (folder / "timing.json").write_text(json.dumps(timing))
    if films:
        world = treasurehunt()
        for name in ("eval", "training-epoch-0", "training-epoch-60"):
            states, rewards = random_walk(world, 12, seed=len(name))
            render.save_gif(render.frames(world, states, rewards), folder / f"{name}.gif")
    return folder


@pytest.fixture(scope="session", name="random_walk")
def _random_walk():
    return random_walk


@pytest.fixture(scope="session", name="make_run")
def _make_run():
    return make_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """One complete run for all tests that only read."""
    return make_run(tmp_path_factory.mktemp("runs") / "treasurehunt-jax_fused-3")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("the browser tests need Debian's chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the browser tests need the playwright package"
    )
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@contextmanager
def _serving(game):
    with PlayServer(game) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="session", name="serving")
def _serving_fixture():
    """serving(game): a server of a game of ARC, running in a thread of its own."""
    return _serving
