"""ONNX: onnxruntime answers as the compiled policy with its filter does."""

import json

import jax
import numpy as np
import pytest

from worldloom.safety import Barrier, LinearRow, StateRow, make_constraints
from worldloom.serving import onnx_export
from worldloom.serving.bundle import load_bundle
from worldloom.serving.export import export_bundle


def test_without_the_extra_the_remedy_is_named(small_plant, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "PACKAGES", ("onnx_that_is_not_there",))
    with pytest.raises(ValueError, match=r"pip install 'worldloom\[onnx\]', or .* --no-onnx"):
        export_bundle(
            tmp_path / "bundle", small_plant.policy, small_plant.constraints,
            signals=small_plant.signals,
        )  # fmt: skip
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def exported(small_plant, compiled_once, tmp_path_factory):
    """With several rows, which are swept over in a loop, and a lookahead, which is another."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    constraints = make_constraints(
        3, [0.0, -0.5], rate={0: 0.5}, linear=[LinearRow("supply", [1.0, 1.0], 1.2)],
        barriers=[Barrier("first", [-1.0, 0.0, 0.0], 2.0, gamma=0.5)],
        lookahead=[StateRow("second", [0.0, -1.0, 0.0], 20.0)], horizon=4,
        model=small_plant.constraints.model, pivots=10,
    )  # fmt: skip
    return export_bundle(
        tmp_path_factory.mktemp("onnx") / "bundle", small_plant.policy, constraints,
        signals=small_plant.signals, statistics=small_plant.statistics, batch_sizes=(16,),
    )  # fmt: skip


def test_onnxruntime_answers_as_the_bundle_does_in_any_batch(exported, usual):
    import onnxruntime

    manifest = json.loads((exported / "manifest.json").read_text())
    assert manifest["onnx"]["rows"] == 4096
    assert manifest["onnx"]["largest_difference"] < 1e-5
    bundle = load_bundle(exported)
    session = onnxruntime.InferenceSession(
        str(exported / "policy.onnx"), providers=["CPUExecutionProvider"]
    )
    names = [entry.name for entry in session.get_outputs()]
    acted = 0
    for count in (1, 5, 16):
        obs = usual(count, count)
        obs[:, 0] += np.linspace(1.0, 4.0, count)
        memory = bundle.initial_memory(np.zeros((count, 2), np.float32))
        asked = {"obs": obs} | {f"memory_{name}": x for name, x in memory.items()}
        known = {entry.name for entry in session.get_inputs()}
        answers = session.run(names, {k: v for k, v in asked.items() if k in known})
        found = dict(zip(names, answers, strict=True))
        answer = bundle.act(obs, memory)
        assert np.abs(found["action"] - answer.action).max() < 1e-5
        assert np.array_equal(found["report_emergency"], answer.report["emergency"])
        assert np.array_equal(found["next_step"], answer.memory["step"])
        acted += int(answer.report["projected"].sum())
    assert acted > 3  # or the loops would have had nothing to do


def test_a_model_that_differs_is_refused(exported, small_plant):
    bundle = load_bundle(exported)
    asked = {"obs": bundle.cases["obs"]} | {
        name.replace(".", "_"): x for name, x in bundle.cases.items() if name.startswith("memory.")
    }
    wanted = {"action": bundle.cases["out.action"] + np.float32(1e-4)}
    model = (exported / "policy.onnx").read_bytes()
    with pytest.raises(ValueError, match="onnxruntime's action differs by"):
        onnx_export.check_onnx(model, asked, wanted, bundle.manifest["constraints"])


def test_what_cannot_be_converted_says_so(small_plant, compiled_once, tmp_path):
    pytest.importorskip("onnxruntime")

    def strange(params, obs):
        return jax.lax.lgamma(obs[:, :2] ** 2 + 1.0)

    policy = small_plant.policy.replace(apply=strange)
    with pytest.raises(ValueError, match=r"cannot be written as ONNX .ONNX has no counterpart"):
        export_bundle(
            tmp_path / "bundle", policy, small_plant.constraints, signals=small_plant.signals
        )
    assert not list(tmp_path.iterdir())
