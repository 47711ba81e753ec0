"""ONNX: onnxruntime answers as the compiled policy with its filter does."""

import json

import jax
import numpy as np
import pytest

from worldloom.safety import Barrier, LinearRow, Stage, StateRow, make_constraints
from worldloom.safety.filter import initial_memory
from worldloom.serving import onnx_export
from worldloom.serving.artifact import as_dict
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
    """With several rows, which are swept over in a loop, a lookahead in another, and stages."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    constraints = make_constraints(
        3, [0.0, -0.5], rate={0: 0.5}, linear=[LinearRow("supply", [1.0, 1.0], 1.2)],
        barriers=[Barrier("first", [-1.0, 0.0, 0.0], 2.0, gamma=0.5)],
        lookahead=[StateRow("second", [0.0, -1.0, 0.0], 20.0)], horizon=4,
        model=small_plant.constraints.model, pivots=10,
        recovery=[Stage({0: 0.4}, 2), Stage({0: -0.2, 1: 0.5}, 3, ramp=True)],
    )  # fmt: skip
    return export_bundle(
        tmp_path_factory.mktemp("onnx") / "bundle", small_plant.policy, constraints,
        signals=small_plant.signals, statistics=small_plant.statistics, batch_sizes=(16,),
    )  # fmt: skip


def test_onnxruntime_answers_as_the_bundle_does_in_any_batch(exported, usual):
    import onnxruntime

    manifest = json.loads((exported / "manifest.json").read_text())
    compared = manifest["onnx"]
    assert compared["rows"] == 4096
    assert compared["equal"] + len(compared["different"]) == 4096
    assert compared["equal"] >= 0.99 * 4096
    assert compared["largest_difference"] < 1e-5
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


# What is compared --------------------------------------------------------------------------------


COUNT, NUDGED = 200, 7


@pytest.fixture
def answers(monkeypatch):
    """check(found, own): `check_onnx` of actions (200, 1), found by onnxruntime in place of `own`.

    own: what the program answers to observations (200, 1), all within a box.
    """
    limits = make_constraints(1, [0.0], linear=[LinearRow("top", [1.0], 0.8)])
    obs = np.linspace(0.1, 0.5, COUNT, dtype=np.float32)[:, None]
    memory = {
        name: np.repeat(np.asarray(x)[None], COUNT, axis=0)
        for name, x in as_dict(initial_memory(limits)).items()
    }

    def check(found, own, emergency=False, alone=None):
        def program(obs, memory):
            alarm = np.zeros(COUNT, bool)
            return {
                "action": own(obs),
                "memory": {},
                "report": {"emergency": alarm},
                "proposed": obs,
            }

        def run(model, inputs, names):
            alarm = np.full(COUNT, emergency)
            together = {"action": found, "proposed": obs, "report_emergency": alarm}
            first = {name: x[:3] for name, x in together.items()}
            return together, first if alone is None else first | {"action": alone}

        monkeypatch.setattr(onnx_export, "_answers", run)
        return onnx_export.check_onnx(b"", program, obs, memory, limits)

    return obs, check


def halved(obs):
    return obs * np.float32(0.5)


def test_rows_that_differ_beyond_rounding_are_refused(answers):
    obs, check = answers
    found = halved(obs)
    assert check(found, halved) == {
        "rows": COUNT, "equal": COUNT, "largest_difference": 0.0, "different": [],
    }  # fmt: skip
    found[NUDGED] += np.float32(5e-6)
    assert check(found, halved)["largest_difference"] == pytest.approx(5e-6, rel=0.1)
    found[NUDGED] += np.float32(1e-4)
    with pytest.raises(
        ValueError, match=r"action differs by 0.0001.* row 7, and rounding does not"
    ):
        check(found, halved)


def test_rows_that_rounding_decides_are_named_with_the_reason(answers):
    obs, check = answers
    edge = obs[NUDGED, 0]

    def own(x):
        return np.where(x >= edge, halved(x), np.float32(0.0))

    found = own(obs)
    found[NUDGED] = 0.0
    result = check(found, own)
    assert result["equal"] == COUNT - 1
    (row,) = result["different"]
    assert row["row"] == NUDGED
    assert "own answer changes by action by 0.057" in row["reason"]
    assert row["obs"] == obs[NUDGED]
    found[NUDGED] = -0.2  # further off than either way
    with pytest.raises(ValueError, match="rounding does not explain it"):
        check(found, own)


def test_more_than_one_in_a_hundred_is_too_many_whatever_the_reason(answers):
    obs, check = answers

    def own(x):  # every row is at an edge
        return np.where(x >= obs, halved(x), np.float32(0.0))

    found = own(obs)
    found[:2] = 0.0
    assert len(check(found, own)["different"]) == 2
    found[:3] = 0.0
    with pytest.raises(ValueError, match=r"answers 3 of 200 random rows unlike the compiled"):
        check(found, own)


def test_an_unsafe_action_is_refused_however_near_it_is(answers):
    obs, check = answers

    def own(x):
        return np.full_like(x, 0.9)  # beyond the row, in both programs

    with pytest.raises(ValueError, match="executes in row 0 crosses a hard limit"):
        check(own(obs), own)


def test_flags_must_be_the_same(answers):
    obs, check = answers
    with pytest.raises(ValueError, match=r"200 of 200 random rows .* report_emergency by inf"):
        check(halved(obs), halved, emergency=True)


def test_a_row_is_answered_alone_as_it_is_among_others(answers):
    obs, check = answers
    alone = halved(obs[:3])
    assert check(halved(obs), halved, alone=alone)["equal"] == COUNT
    alone[1] += np.float32(1e-3)
    with pytest.raises(ValueError, match=r"row 1, and rounding does not explain it"):
        check(halved(obs), halved, alone=alone)


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
