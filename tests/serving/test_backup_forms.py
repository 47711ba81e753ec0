"""A filter with a backup policy in every form that is shipped: they execute the same."""

import asyncio

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.safety import ControlMemory, ControlState, StateRow, make_constraints, margins
from worldloom.safety import filter as safety_filter
from worldloom.safety.filter import safe_policy_execution
from worldloom.serving.bundle import load_bundle
from worldloom.serving.controller import Controller, Limits
from worldloom.serving.export import export_bundle
from worldloom.serving.journal import Journal
from worldloom.serving.replay import replay_log

pytestmark = pytest.mark.slow

LOST = np.asarray([2.6, 10.0, -5.0], np.float32)  # beyond what any action brings back in time


def backup(obs):
    """Both actuators by the first signal; the emergency action is at (0, -0.5)."""
    return jnp.clip(jnp.stack([-0.8 * obs[0], 0.5 - 0.5 * obs[0]]), -1.0, 1.0)


def backed(small_plant):
    return make_constraints(
        3, [0.0, -0.5], rate={0: 0.5}, model=small_plant.constraints.model, backup=backup,
        lookahead=[StateRow("first", [-1.0, 0.0, 0.0], 1.8)], horizon=4, latch_after=0,
    )  # fmt: skip


def exported(small_plant, folder, onnx):
    return export_bundle(
        folder, small_plant.policy, backed(small_plant), signals=small_plant.signals,
        statistics=small_plant.statistics, batch_sizes=(1, 8), onnx=onnx,
    )  # fmt: skip


@pytest.fixture(scope="module")
def bundle_of_backup(small_plant, compiled_once, tmp_path_factory):
    return load_bundle(exported(small_plant, tmp_path_factory.mktemp("backup") / "bundle", False))


def asked(usual, bundle, count=8):
    """Observations of plants of which some are lost and one is blind, and memories."""
    obs = usual(count, 1)
    obs[:, 0] = np.linspace(0.0, 2.6, count)
    obs[1, 2] = np.nan
    return obs, bundle.initial_memory(np.full((count, 2), 0.2, np.float32))


def in_library(small_plant, obs, memory):
    state = ControlState(jnp.asarray(obs), ControlMemory(**memory))
    return jax.jit(safe_policy_execution)(small_plant.policy, state, backed(small_plant), None)


def test_the_exported_program_falls_back_as_the_library_does(small_plant, bundle_of_backup, usual):
    obs, memory = asked(usual, bundle_of_backup)
    action, report = in_library(small_plant, obs, memory)
    answer = bundle_of_backup.act(obs, memory)
    np.testing.assert_allclose(answer.action, action, atol=1e-6)
    emergency = answer.report["emergency"]
    np.testing.assert_array_equal(emergency, report.emergency)
    assert 2 <= emergency.sum() < len(obs)
    np.testing.assert_array_equal(answer.action[1], memory["fallback"][1])  # it sees nothing
    assert emergency[-1]
    np.testing.assert_allclose(answer.action[-1], [-0.3, -0.8], atol=1e-6)  # the rate's end, loop


def test_onnxruntime_falls_back_as_the_bundle_does(small_plant, compiled_once, tmp_path, usual):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    folder = exported(small_plant, tmp_path / "bundle", True)  # compared on 4,096 rows
    bundle = load_bundle(folder)
    obs, memory = asked(usual, bundle)
    session = onnxruntime.InferenceSession(str(folder / "policy.onnx"))
    known = {entry.name for entry in session.get_inputs()}
    given = {"obs": obs} | {f"memory_{name}": x for name, x in memory.items()}
    wanted = ["action", "report_emergency"]
    action, emergency = session.run(wanted, {k: v for k, v in given.items() if k in known})
    answer = bundle.act(obs, memory)
    np.testing.assert_allclose(action, answer.action, atol=1e-5)
    np.testing.assert_array_equal(emergency, answer.report["emergency"])
    assert emergency[-1]


def logged(bundle, path, deadlines=(5.0,)):
    """The actions of a served plant that is seen to be lost, under each deadline in turn."""

    async def story(deadline):
        controller = Controller(bundle, Journal(path, "none"), Limits(deadline=deadline))
        await controller.open()
        if not len(controller.plants):  # where the plant's log begins
            controller.plants.find("p", 0.0).known = True
        out = await controller.act("p", LOST)
        await controller.close()
        return out

    return [asyncio.run(story(deadline)) for deadline in deadlines]


def test_a_server_falls_back_on_the_backup_and_in_haste_on_what_is_ready(
    bundle_of_backup, tmp_path
):
    log = tmp_path / "audit.jsonl"
    (seen, late) = logged(bundle_of_backup, log, (5.0, 1e-6))
    assert (seen["kind"], late["kind"]) == ("act", "emergency")
    assert seen["content"]["report"]["emergency"]
    np.testing.assert_allclose(seen["content"]["action"], [-0.5, -0.8], atol=1e-6)
    np.testing.assert_allclose(late["content"]["action"], [0.0, -0.5], atol=1e-6)
    found = replay_log(log, bundle_of_backup)
    assert (found.problem, found.replayed, found.different) == (None, 2, 0)
    assert (found.filter_emergencies, found.late_emergencies) == (1, 1)


def test_the_log_of_a_bundle_from_before_comes_out_again(small_plant, tmp_path, monkeypatch):
    """Its program is its own: it held the constant action, and goes on doing so."""

    def constant(previous, obs, count, latched, constraints):
        return margins.emergency_move(previous, count, constraints)

    monkeypatch.setattr(safety_filter, "takeover_move", constant)
    old = load_bundle(exported(small_plant, tmp_path / "old", False))
    monkeypatch.undo()
    (answer,) = logged(old, tmp_path / "audit.jsonl")
    np.testing.assert_allclose(answer["content"]["action"], [0.0, -0.5], atol=1e-6)
    found = replay_log(tmp_path / "audit.jsonl", old)
    assert (found.problem, found.replayed, found.different) == (None, 1, 0)
    new = load_bundle(exported(small_plant, tmp_path / "new", False))
    assert new.digest != old.digest
    problem = replay_log(tmp_path / "audit.jsonl", new).problem
    assert problem is not None
    assert "policy" in problem
