"""Training programs lower for accelerators; what they compute there is not tested."""

import jax
import jax.export
import pytest

from worldloom import suites
from worldloom.training.config import make_config
from worldloom.training.loops import make_trainer

SMALL = {"env": "reactor", "num_worlds": 4, "world": {"horizon": 10}, "data_steps": 40}
OFF_POLICY = {"batch_size": 8, "buffer_size": 256, "learning_starts": 40, "hidden": (8,)}
PROGRAMS = {
    "on-policy": ("plant", SMALL | {"algo": "ppo", "ppo": {"unroll_length": 8, "hidden": (8,)}}),
    "off-policy": ("plant", SMALL | {"algo": "sac", "sac": OFF_POLICY}),
    "offline": ("plant", SMALL | {"algo": "iql", "iql": {"batch_size": 8, "hidden": (8,)}}),
    "turns": (
        "grid",
        {"env": "treasurehunt", "algo": "iqn", "num_worlds": 2, "iqn": {"hidden": 8}},
    ),
    "arc": (
        "arc",
        {"env": "arc", "algo": "ppo", "num_worlds": 4, "ids": ("fall",), "max_size": 8},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_iteration_lowers_for_cuda_and_tpu(name):
    suite, settings = PROGRAMS[name]
    suite = suites.suite(suite)
    config = make_config(suite, settings)
    trainer = make_trainer(config, suite.problem(config, None))
    lower = jax.export.export(jax.jit(trainer.loop.iterate), platforms=["cuda", "tpu"])
    lowered = lower(trainer.template(), *trainer.shared)
    assert lowered.platforms == ("cuda", "tpu")
    assert "callback" not in lowered.mlir_module()  # nothing asks the host
