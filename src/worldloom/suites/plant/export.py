"""The policy of a run, with its safety filter, as a bundle to serve."""

from pathlib import Path
from typing import Any

import numpy as np

from worldloom.serving.export import export_bundle, observation_statistics
from worldloom.serving.policy_export import provenance
from worldloom.suites.plant.plant import plant_of
from worldloom.suites.plant.problem import CONSTRAINTS_FILE, plant_facts, policy_of
from worldloom.training.run import Run


def export_run(run: Run, folder: Path, **options: Any) -> Path:
    """Writes the bundle of a run's policy, learned offline or online; returns its folder.

    options: those of `export_bundle`, such as `onnx`.
    """
    evaluator, origin = run.evaluator, provenance(run)
    known = plant_facts(plant_of(run.problem.env))
    if run.config.algorithm.loop == "offline":
        assert run.problem.data is not None
        data = run.problem.data()
        obs = data.rows.obs
        origin |= {"data": data.name, "data_digest": data.digest}
    else:  # what it met in the plant stands for the data that it was not trained on
        met: Any = run.evaluate().filtered_trajectories  # pyright: ignore[reportAttributeAccessIssue]
        obs = np.asarray(met.obs)[np.asarray(met.alive)]
    return export_bundle(
        folder,
        policy_of(run.trainer, run.agents),
        evaluator.constraints,  # pyright: ignore[reportAttributeAccessIssue]
        signals={name: known[name] for name in ("observation", "action")},
        statistics=observation_statistics(obs),
        constraint_text=(run.folder / CONSTRAINTS_FILE).read_text(encoding="utf-8"),
        provenance=origin,
        **options,
    )
