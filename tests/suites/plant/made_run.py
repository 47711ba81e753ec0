"""A run folder of a plant, and a dataset, made up."""

import json

import numpy as np

from worldloom.replay.dataset import from_columns
from worldloom.suites.plant.evaluate import Trajectories

T, E = 60, 3  # of the trajectories that are made up
PLANT = {
    "observation": [
        {"name": "temperature", "unit": "K", "low": 300.0, "high": 400.0},
        {"name": "patient_weight", "unit": "kg", "low": 40.0, "high": 120.0},
    ],
    "action": [{"name": "feed", "unit": "L/min", "low": 80.0, "high": 120.0}],
    "limits": [
        {"name": "runaway", "signal": "temperature", "kind": "at_most", "bound": 375.0,
         "hard": True},
        {"name": "feed_shock", "signal": "feed", "kind": "rate", "bound": 10.0, "hard": False},
    ],
    "step_seconds": 60.0,
    "horizon": T,
}  # fmt: skip


def outcome(mean, violated, acts=0.0, emergencies=0.0):
    return {
        "return": mean, "return_stderr": 1.5, "discounted_return": mean / 2, "length": 60.0,
        "violated": violated, "violated_stderr": [0.02 * (v > 0) for v in violated],
        "worst_margin": [-4.25, None], "interventions": acts,
        "emergencies": emergencies,
    }  # fmt: skip


def made_up_trajectories():
    """Episode 1 runs away when it is bare; behind the filter it is held back, then stopped."""
    alive = np.ones((T, E), bool)
    hot = np.full((T, E), 350.0)
    hot[:, 1] = np.linspace(350.0, 379.0, T)
    obs = np.stack([hot, np.full((T, E), 70.0)], -1)
    base = {
        "alive": alive, "reward": np.ones((T, E)), "obs": obs, "action": np.zeros((T, E, 1)),
        "margins": np.stack([375.0 - hot, np.full((T, E), 10.0)], -1),
        "intervened": np.zeros((T, E), bool), "emergency": np.zeros((T, E), bool),
    }  # fmt: skip
    ended = alive.copy()
    ended[50:, 1] = False
    bare = base | {"alive": ended}
    cool = np.minimum(hot, 370.0)
    acts, stop = np.zeros((T, E), bool), np.zeros((T, E), bool)
    acts[20:30, 1], stop[40:, 1] = True, True
    filtered = base | {
        "obs": np.stack([cool, obs[..., 1]], -1), "intervened": acts | stop, "emergency": stop,
        "margins": np.stack([375.0 - cool, np.full((T, E), 10.0)], -1),
    }  # fmt: skip
    return Trajectories(**bare), Trajectories(**filtered)


def write_trajectories(folder, bare, filtered):
    kept = {
        f"{way}_{name}": value
        for way, trajectories in (("bare", bare), ("filtered", filtered))
        for name, value in vars(trajectories).items()
    }
    np.savez(folder / "trajectories.npz", **kept)


def make_run(folder):
    """A run of 40 iterations as training leaves it, made up."""
    (folder / "checkpoints" / "40").mkdir(parents=True)
    config = {
        "env": "reactor",
        "algo": "iql",
        "dataset": "medium",
        "seed": 3,
        "steps": 40_000,
        "eval_episodes": 64,
        "ope_updates": 500,
        "world": {},
    }
    provenance = {"env": "reactor", "quality": "medium", "seed": "11"}
    data = {"name": "reactor-medium", "digest": "ab12" * 16, "rows": 4, "episodes": 2}
    about = {
        "format": 2,
        "suite": "plant",
        "command": "worldloom train reactor",
        "config": config,
        "steps_per_iteration": 1000,
        "plant": PLANT,
        "data": data | {"provenance": provenance},
        "constraints": ["box feed", "runaway"],
        "references": {
            "random play": {
                "mean": 60.0,
                "bare": outcome(70.0, [0.5, 0.0]),
                "filtered": outcome(60.0, [0.0, 0.0], 0.9),
            }
        },
    }
    (folder / "config.json").write_text(json.dumps(about))
    metrics = [
        {
            "iteration": n + 1,
            "steps": 1000 * (n + 1),
            "critic_loss": 0.9**n,
            "q": n / 10,
            "novel": 1.0,
            "seconds": n / 2,
        }
        for n in range(40)
    ]
    evals = [
        {
            "iteration": n,
            "steps": 1000 * n,
            "seconds": n / 2,
            "mean": 90.0 + n,
            "score": 60.0 + n / 10,
            "bare": outcome(100.0 + n, [0.25, 0.0]),
            "filtered": outcome(90.0 + n, [0.0, 0.0], 0.125, 0.02),
        }
        for n in (10, 20, 30, 40)
    ]
    for name, rows in (("metrics", metrics), ("eval", evals)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "timing.json").write_text(json.dumps({"train_seconds": 20.0, "steps": 40_000}))
    fitted = {"value": 65.0, "low": 61.0, "high": 69.0, "effective": 25.0}
    sampled = {"value": 50.0, "low": 48.0, "high": 52.0, "effective": 1.25}
    ope = {
        "gamma": 0.99,
        "logged_return": 41.0,
        "true_return": 66.5,
        "steps": 40_000,
        "estimates": [
            {"method": "fitted Q evaluation", **fitted},
            {"method": "weighted importance sampling, per decision", **sampled},
        ],
        "support": {"distance": 1.0, "logged_distance": 0.9, "change": 0.3, "outside": 0.1},
    }
    (folder / "ope.json").write_text(json.dumps(ope))
    bare, filtered = made_up_trajectories()
    kept = {f"bare_{n}": v for n, v in vars(bare).items()}
    np.savez(
        folder / "trajectories.npz",
        **kept,
        **{f"filtered_{n}": v for n, v in vars(filtered).items()},
    )
    (folder / "constraints.yaml").write_text(
        "emergency:\n  feed: 80 L/min\nlatch_after: 3 # <now>\n"
    )
    rows = np.zeros((4, 2), np.float32)
    np.savez(
        folder / "data.npz", obs=rows, next_obs=rows, action=rows[:, :1], done=[0, 0, 0, 0],
        truncated=[0, 1, 0, 1], reward=[1.0, 2.0, 30.0, 4.0],
        cost=[[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
    )  # fmt: skip
    return folder


def make_dataset():
    """Twelve episodes of 50 steps around the reactor's working point."""
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.normal(size=(12, 51, 5)), 1) * [0.02, 1.5, 1.0, 0.5, 0.01]
    states = (walks + np.asarray([0.5, 350.0, 300.0, 350.0, 0.5])).astype(np.float32)
    last = np.tile(np.arange(50) == 49, 12)
    action = np.clip(rng.normal(0, 0.4, (600, 2)), -1, 1)
    return from_columns(
        states[:, :-1].reshape(-1, 5), action, rng.normal(1, 1, 600),
        states[:, 1:].reshape(-1, 5), np.zeros(600, bool), last, name="<b>walks & co",
        provenance=(("env", "reactor"), ("quality", "medium"), ("seed", "0")),
    )  # fmt: skip
