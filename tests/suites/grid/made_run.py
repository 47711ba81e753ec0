"""A run folder of treasure hunt as training leaves it, made up, with curves of the right shape."""

import json
import math
from types import SimpleNamespace

import numpy as np

from worldloom.suites.grid import render
from worldloom.suites.grid.treasurehunt import world as treasurehunt

ITERATIONS, AGENTS, TURNS, WORLDS = 120, 5, 50, 32
STEPS = TURNS * WORLDS  # of an iteration


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


def make_run(folder, *, iterations=ITERATIONS, films=True, seed=0):
    """A complete run, with curves of the right shape."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "env": "treasurehunt",
        "algo": "iqn",
        "seed": 3,
        "steps": iterations * STEPS,
        "num_worlds": WORLDS,
        "world": {"num_agents": AGENTS, "num_frames": 1},
        "iqn": {"learning_rate": 2.5e-4, "hidden": 128, "batch_size": 64, "n_step": 3},
        "mode": "jax_fused",
    }
    about = {
        "format": 2,
        "suite": "grid",
        "command": "worldloom train treasurehunt --mode jax_fused --seed 3",
        "config": config,
        "hash": "3f9a1c07",
        "steps_per_iteration": STEPS,
        "references": {
            "random play": {"mean": 255.0, "stderr": 2.5, "episodes": 200},
            "greedy to nearest gem": {"mean": 530.0},
        },
        "versions": {"worldloom": "0.2.0", "jax": "0.10.2"},
        "machine": {"cpu": "a small one", "cores": 2, "memory_gb": 4.1, "python": "3.11"},
    }
    (folder / "checkpoints" / str(iterations)).mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(about))
    metrics, turns = [], ["iteration,turn,agent,reward"]
    for n in range(iterations):
        rise = 1 - math.exp(-n / (iterations / 4))
        epsilon = max(0.05, 0.965**n)
        returns = (50 + 52 * rise) * (1 - 0.2 * epsilon) + rng.normal(0, 6, AGENTS)
        ready = n >= 3
        losses = [float(rng.uniform(0.8, 1.2) * 3 * 0.97**n) for _ in range(AGENTS)]
        metrics.append(
            {
                "iteration": n + 1,
                "steps": (n + 1) * STEPS,
                "return": float(returns.sum()),
                "agent_returns": returns.tolist(),
                "epsilon": epsilon,
                "loss": float(np.mean(losses)) if ready else None,
                "agent_loss": losses if ready else [None] * AGENTS,
                "grad_norm": float(rng.uniform(0.5, 2)) if ready else None,
                "q_mean": float(60 * rise) if ready else None,
                "seconds": 0.066 * (n + 1),
            }
        )
        for agent in range(AGENTS):
            shape = np.linspace(1.5, 0.8, TURNS) * returns[agent] / TURNS
            noisy = shape + rng.normal(0, 0.3, TURNS)
            turns += [f"{n + 1},{turn},{agent},{r:.4f}" for turn, r in enumerate(noisy)]
    write_lines(folder / "metrics.jsonl", metrics)
    (folder / "turns.csv").write_text("\n".join(turns) + "\n")
    evals = []
    every = max(1, iterations // 8)
    for n in range(every, iterations + 1, every):
        scores = rng.normal(255 + 275 * (1 - math.exp(-n / (iterations / 4))), 60, 200)
        error = float(scores.std() / math.sqrt(len(scores)))
        row = {"iteration": n, "steps": n * STEPS, "seconds": 0.066 * n, "eval_seconds": 0.2}
        row |= {"mean": float(scores.mean()), "stderr": error, "episodes": 200}
        evals.append({**row, "scores": scores.tolist()})
    write_lines(folder / "eval.jsonl", evals)
    timing = {
        "compile_seconds": 8.41,
        "train_seconds": 0.066 * iterations,
        "eval_seconds": 1.9,
        "iterations": iterations,
        "steps": iterations * STEPS,
        "steps_per_second": 24160.0,
    }
    (folder / "timing.json").write_text(json.dumps(timing))
    if films:
        world = treasurehunt()
        for name in ("eval", "training-000001600", "training-000096000"):
            states, rewards = random_walk(world, 12, seed=len(name))
            render.save_gif(render.frames(world, states, rewards), folder / f"{name}.gif")
    return folder
