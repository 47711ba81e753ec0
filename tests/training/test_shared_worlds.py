"""Runs on two devices are those on one, to rounding, and go on as one another."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

from worldloom.training.loops.on_policy import sharing

# What one device learned in a few updates, what two did, and what each made of half of the other's.
CODE = """
    import sys
    from dataclasses import replace
    import jax
    import numpy as np
    from worldloom.core.mesh import split_processor
    split_processor(2)
    sys.path.insert(0, "tests")
    from worldloom import suites
    from worldloom.training.config import make_config
    from worldloom.training.loops import make_trainer
    from training.test_shared_worlds import RUNS

    def close(one, two):
        for (path, ours), theirs in zip(
            jax.tree.leaves_with_path(one), jax.tree.leaves(two), strict=True
        ):
            if jax.dtypes.issubdtype(ours.dtype, jax.dtypes.prng_key):
                ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
            ours, theirs = np.asarray(ours), np.asarray(theirs)
            if ours.dtype == np.uint32 and ours.ndim > 1:  # MuJoCo's doubles, as pairs of words
                ours, theirs = ours.view(np.float64), theirs.view(np.float64)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=str(path))

    for name in sys.argv[1:]:
        given = RUNS[name]
        suite = suites.suite_of(given["env"])
        config = make_config(suite, given)
        configs = config, replace(config, devices=2)
        one, two = (make_trainer(c, suite.problem(c, None)) for c in configs)
        close(one.advance(2), two.advance(2))
        half = two.state()
        close(one.state(), half)
        close(one.agents(), two.agents())
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(two.agents()))
        text = two._iterations._run._compiled.as_text()
        assert "all-reduce" in text and "all-gather" in text, "the devices share the work"
        began = one.state()
        one.load(jax.device_put(half, jax.devices()[0]))
        two.load(began)
        close(one.advance(1), two.advance(1))
        close(one.state(), two.state())
"""
SMALL = {"hidden": (8,), "num_minibatches": 2, "num_epochs": 2}
HUNT = {"env": "treasurehunt", "world": {"num_agents": 2, "height": 6, "width": 6, "horizon": 8}}
RUNS = {
    "ppo": HUNT | {"algo": "ppo", "num_worlds": 4, "ppo": SMALL},
    "ppo, one network": HUNT
    | {"algo": "ppo", "num_worlds": 4, "share_parameters": True, "ppo": SMALL},
    "ppo, memory": HUNT | {"algo": "ppo", "num_worlds": 4, "ppo": SMALL | {"memory": "gru"}},
    "mappo": HUNT | {"algo": "mappo", "num_worlds": 4, "mappo": SMALL},
    "pqn": HUNT | {"algo": "pqn", "num_worlds": 4, "pqn": SMALL},
    "vdn": HUNT | {"algo": "vdn", "num_worlds": 4, "share_parameters": True, "vdn": SMALL},
    "simultaneous": {"env": "coins", "algo": "ppo", "num_worlds": 4, "ppo": SMALL}
    | {"world": {"horizon": 8}},
    "cartpole": {"env": "gymnax:CartPole-v1", "algo": "ppo", "num_worlds": 8}
    | {"ppo": SMALL | {"unroll_length": 32, "normalise_observations": True}},
    "cartpole, pqn": {"env": "gymnax:CartPole-v1", "algo": "pqn", "num_worlds": 8}
    | {"pqn": SMALL | {"unroll_length": 32}},
    "plant": {"env": "reactor", "algo": "ppo", "num_worlds": 4}
    | {"ppo": SMALL | {"unroll_length": 8}},
    "arc": {"env": "arc", "algo": "ppo", "num_worlds": 4}
    | {"ppo": {"unroll_length": 8, "num_minibatches": 2, "num_epochs": 1}},
    "robot": {"env": "biped", "task": "stand", "algo": "ppo", "num_worlds": 4}
    | {"ppo": SMALL | {"unroll_length": 8}},
}
FAST = ("ppo", "cartpole")
pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")


def test_an_agent_that_knows_of_no_devices_trains_on_one():
    with pytest.raises(ValueError, match="str trains on one device: it has no field `device_axis`"):
        sharing("no agent", "batch")


def on_two_devices(*names: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE), *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def is_here(name: str) -> bool:
    """Whether what a run's world needs is installed."""
    needs = {"cartpole": "gymnax", "cartpole, pqn": "gymnax", "robot": "mujoco"}.get(name)
    return needs is None or importlib.util.find_spec(needs) is not None


@pytest.mark.slow
def test_two_devices_train_what_one_trains():
    on_two_devices(*filter(is_here, FAST))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUNS if name not in FAST])
def test_two_devices_train_what_one_trains_with_every_algorithm_and_suite(name):
    if not is_here(name):
        pytest.skip("its world needs what is not installed")
    on_two_devices(name)
