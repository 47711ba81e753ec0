"""The folder of a walk that learned, made up."""

import json

STEPS = 12  # of an iteration


def make_walk(folder):
    """Makes the folder of a run one of 300 iterations that learned, beside a motion prior."""
    terms = {"alive": 0.5, "track": 2.0, "slip": 0.5}
    about = json.loads((folder / "config.json").read_text())
    about["config"] |= {"task": "walk", "steps": 300 * STEPS}
    about["config"]["amp"]["weight"] = 0.05
    random = {"mean": 3.0, "stderr": 0.25, "episodes": 64, "survived": 0.0, "tracked": 0.0}
    random |= {"speed_error": 0.35, "speed_error_stderr": 0.01}
    about |= {"terms": terms, "task": "walk", "references": {"random play": random}}
    (folder / "config.json").write_text(json.dumps(about))
    rows = []
    for n in range(300):
        row = {
            "iteration": n + 1, "steps": STEPS * (n + 1), "episodes": 20, "seconds": 1.0 * n,
            "return": n / 3, "length": 60 + 3 * n, "fell": 1 - n / 300, "error": 0.5,
            "diverged": 0.05 if n < 2 else 0.0, "skipped": 0.0, "kl": 0.01, "clip_fraction": 0.1,
            "entropy": 5 - n / 50, "explained_variance": 0.9, "prior_style": n / 600,
            "prior_real_score": 0.9, "prior_fake_score": 0.2, "prior_real_accuracy": 0.97,
            "prior_fake_accuracy": 0.98, "prior_penalty": 0.01,
        }  # fmt: skip
        if n % 7 == 3:  # no episode ended in this update
            row |= {"return": None, "length": None, "fell": None, "error": None}
        rows.append(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evals = [
        {"iteration": n, "steps": STEPS * n, "seconds": 60.0 * n, "survived": n / 300,
         "tracked": n / 400, "speed_error": 0.3 - n / 1500, "mean": n / 2, "stderr": 1.0,
         "episodes": 64,
         "length": 3.0 * n, "gait_distance": 0.25, "yaw": 0.25, "drift": 0.125,
         "gait": {"foot_gap": 12.5, "knee_reversals": 8.25},
         "terms": {"alive": 1.0, "track": n / 300, "slip": -0.125}, "speed_error_stderr": 0.01,
         "terms_stderr": {"alive": 0.0, "track": 0.05, "slip": 0.01}}
        for n in (100, 200, 300)
    ]  # fmt: skip
    (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    return folder
