"""Laying a batch over devices. Two CPU devices exist only in a process that asks for them first."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

from worldloom.core import mesh


def run_with_two_devices(code: str) -> str:
    """Runs `code` where jax sees two CPU devices; returns what it printed."""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_sharded_batch_of_worlds_plays_as_an_unsharded_one_does():
    out = run_with_two_devices("""
        import jax, numpy as np
        import jax.numpy as jnp
        from worldloom.core import mesh
        from worldloom.core.transforms import batch
        from worldloom.suites.grid import treasurehunt

        worlds = batch(treasurehunt.make(height=6, width=6, num_agents=2, num_frames=2), 6)
        params = worlds.default_params()
        step = jax.jit(worlds.step)
        state, _ = jax.jit(worlds.reset)(jax.random.key(0), params)
        two = mesh.device_mesh()
        assert two.devices.size == 2
        actions = jnp.arange(12, dtype=jnp.int32).reshape(6, 2) % 4

        split = jax.sharding.PartitionSpec(mesh.BATCH_AXIS)
        plain, spread = state, mesh.place(state, two, split)
        actions_spread = mesh.place(actions, two, split)
        params_spread = mesh.replicate(params, two)
        for leaf in jax.tree.leaves(spread):
            assert len(leaf.sharding.device_set) == 2
            assert leaf.addressable_shards[0].data.shape[0] == 3
        for leaf in jax.tree.leaves(params_spread):
            assert leaf.sharding.is_fully_replicated
        for seed in range(5):
            key = jax.random.key(seed)
            plain, expected = step(key, plain, actions, params)
            spread, got = step(key, spread, actions_spread, params_spread)
            jax.tree.map(np.testing.assert_array_equal, (spread, got), (plain, expected))
            assert len(got.reward.sharding.device_set) == 2, "the result stays spread"
        assert np.any(np.asarray(got.reward) != 0), "something happened in these worlds"
        keys = mesh.place(jax.random.split(jax.random.key(1), 4), two, split)
        assert keys.addressable_shards[1].data.shape == (2,)
        try:
            mesh.device_mesh(3)
        except ValueError as error:
            print(error)
    """)
    assert out.startswith("device_mesh: num_devices=3, but there are 2 cpu device(s)")


def test_too_many_devices_are_refused_with_what_cores_could_be(monkeypatch):
    count = len(jax.devices())
    monkeypatch.setattr(os, "cpu_count", lambda: count + 3)
    with pytest.raises(
        ValueError, match=rf"num_devices={count + 9}, .* for up to {count + 3} with"
    ):
        mesh.device_mesh(count + 9)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    with pytest.raises(ValueError, match=rf"ask for 1 to {count}$"):
        mesh.device_mesh(count + 9)


def test_one_device_is_a_mesh_too():
    one = mesh.device_mesh(1)
    assert one.axis_names == (mesh.BATCH_AXIS,)
    tree = {"x": jnp.arange(6).reshape(3, 2)}
    split = jax.sharding.PartitionSpec(mesh.BATCH_AXIS)
    for placed in (mesh.place(tree, one, split), mesh.replicate(tree, one)):
        assert (placed["x"] == tree["x"]).all()
        assert placed["x"].sharding.mesh == one


@pytest.mark.parametrize("count", [0, -1, 4096])
def test_only_devices_that_exist_can_be_asked_for(count):
    with pytest.raises(
        ValueError, match=f"num_devices={count}, .*ask for 1 to {len(jax.devices())}"
    ):
        mesh.device_mesh(count)


# Processes -------------------------------------------------------------------------------------

SLURM = {"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "node[1-2]"}
OURS = {"JAX_COORDINATOR_ADDRESS": "host:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}


@pytest.fixture
def join_in(monkeypatch):
    """join_in(variables, *arguments): whether there are others, and what jax was started with."""
    asked = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given: asked.append(given))
    for name in (*mesh.VARIABLES, *mesh.SCHEDULERS, *mesh.SCHEDULERS.values()):
        monkeypatch.delenv(name, raising=False)

    def join(variables, *arguments):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return mesh.join(*arguments), *asked

    return join


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (SLURM, (None, None, None)),  # jax asks Slurm itself
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, (None, None, None)),
        (OURS, ("host:1", 2, 1)),
        (SLURM | {"JAX_COORDINATOR_ADDRESS": "host:1"}, (None, None, None)),
        (SLURM | OURS, ("host:1", 2, 1)),
    ],
)
def test_variables_tell_of_other_processes(join_in, variables, told):
    assert join_in(variables) == (True, told)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURM_NTASKS": "4"},  # in the script of a job, which nothing has been started from yet
        SLURM | {"SLURM_NTASKS": "1"},
        {"JAX_COORDINATOR_ADDRESS": "host:1"},
        OURS | {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"},
    ],
)
def test_a_process_that_is_alone_waits_for_nobody(join_in, variables):
    assert join_in(variables) == (False,)


def test_arguments_are_heard_before_variables(join_in):
    assert join_in(SLURM | OURS, "other:2", 3, 0) == (True, ("other:2", 3, 0))


@pytest.mark.parametrize(
    ("variables", "arguments", "message"),
    [
        ({"JAX_NUM_PROCESSES": "2"}, (), "JAX_PROCESS_ID=None: set all three"),
        (OURS | {"JAX_PROCESS_ID": "one"}, (), "JAX_PROCESS_ID=one: .* to numbers"),
        (OURS | {"JAX_PROCESS_ID": "2"}, (), "process_id=2 of num_processes=2; .* from 0"),
        ({}, ("host:1", 2, -1), "process_id=-1 of num_processes=2"),
        ({}, ("host:1", 2), "process_id=None: several processes need all three"),
    ],
)
def test_processes_that_are_told_by_halves_are_refused(join_in, variables, arguments, message):
    with pytest.raises(ValueError, match=message):
        join_in(variables, *arguments)
