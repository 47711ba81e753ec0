"""The filters that plants are shipped with, in ONNX: compared with the program on 4,096 rows."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import suites
from worldloom.nn.offline import deterministic, make_mlp
from worldloom.nn.policy import PolicyState
from worldloom.serving.export import export_bundle
from worldloom.suites.plant.problem import plant_facts
from worldloom.suites.plant.safety import constraints_for


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant", ["reactor", pytest.param("simglucose", marks=pytest.mark.nightly)]
)
def test_onnx_answers_as_the_program_does_or_says_why_not(plant, compiled_once, tmp_path):
    """A lookahead of an unstable plant, and a model that looks its patient up in a table."""
    pytest.importorskip("onnxruntime")
    env = suites.make(plant)
    facts, world = plant_facts(env.base), env.base
    n, m = len(world.plant.observation), len(world.plant.action)
    keys = jax.random.split(jax.random.key(0), 256)
    obs = np.asarray(jax.vmap(lambda key: env.reset(key, world.params)[1].obs)(keys))
    mean, std = obs.mean(0), np.maximum(obs.std(0), 1e-3)
    weights = make_mlp(jax.random.key(1), (n, 16, m))
    policy = PolicyState(weights, jnp.asarray(mean), jnp.asarray(std), deterministic)
    folder = export_bundle(
        tmp_path / "bundle",
        policy,
        constraints_for(world),
        signals={name: facts[name] for name in ("observation", "action")},
        batch_sizes=(8,),
    )
    compared = json.loads((folder / "manifest.json").read_text())["onnx"]
    assert (folder / "policy.onnx").stat().st_size > 0
    assert compared["rows"] == 4096
    assert compared["equal"] >= 0.99 * 4096
    assert compared["equal"] + len(compared["different"]) == 4096
    assert all("own answer changes" in row["reason"] for row in compared["different"])
