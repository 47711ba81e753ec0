"""Bundles of plant policies: what was exported is what runs, and nothing else does."""

import hashlib
import json
import shutil
from contextlib import suppress

import jax
import numpy as np
import pytest

from worldloom.core import files as module
from worldloom.safety import ControlMemory, ControlState, initial_memory, safe_policy_execution
from worldloom.serving import export as bundle_export
from worldloom.serving.bundle import difference, differences, load_bundle
from worldloom.serving.bundle_folder import read_policy, with_manifest, write_folder
from worldloom.serving.export import export_bundle, observation_statistics
from worldloom.serving.policy_runtime import digest_of
from worldloom.serving.program import Columns


def export(small_plant, folder, **changes):
    settings = {
        "signals": small_plant.signals, "statistics": small_plant.statistics, "onnx": False,
    }  # fmt: skip
    return export_bundle(
        folder, small_plant.policy, small_plant.constraints, **(settings | changes)
    )


def in_library(small_plant, obs, memory):
    """What the library itself says, compiled for this batch."""
    state = ControlState(obs, ControlMemory(**memory))
    return jax.jit(safe_policy_execution)(small_plant.policy, state, small_plant.constraints, None)


def test_a_bundle_answers_as_the_library_does_over_many_steps(small_plant, bundle, usual):
    memory = bundle.initial_memory(np.zeros((8, 2), np.float32))
    for step in range(10):
        obs = usual(8, step)
        obs[step % 8, 0] += 3.0  # over the barrier: the filter has something to do
        action, report = in_library(small_plant, obs, memory)
        answer = bundle.act(obs, memory)
        assert difference(answer.action, np.asarray(action)) < 1e-6
        assert np.array_equal(answer.report["emergency"], report.emergency)
        assert np.array_equal(answer.report["intervened"], report.intervened)
        gap = difference(answer.report["margins_after"], np.asarray(report.margins_after), 30.0)
        assert gap < 1e-6
        memory = answer.memory
    assert memory["step"].tolist() == [10] * 8


def test_the_first_memory_is_the_librarys(small_plant, bundle):
    wanted = initial_memory(small_plant.constraints)
    for name, value in bundle.initial_memory().items():
        assert np.array_equal(value, getattr(wanted, name)), name


def test_batches_agree_with_single_rows(bundle, usual):
    obs = usual(12)
    memory = bundle.initial_memory(np.zeros((12, 2), np.float32))
    together = bundle.act(obs, memory)
    for i in range(12):
        alone = bundle.act(obs[i], {name: x[i] for name, x in memory.items()})
        assert alone.action.shape == (2,)
        assert difference(alone.action, together.action[i]) < 1e-6
        assert bool(alone.report["projected"]) == bool(together.report["projected"][i])


def test_more_rows_than_the_largest_batch_are_answered_in_parts(bundle, usual):
    obs = usual(20)
    memory = bundle.initial_memory(np.zeros((20, 2), np.float32))
    first = {name: x[:16] for name, x in memory.items()}
    whole, part = bundle.act(obs, memory), bundle.act(obs[:16], first)
    assert whole.action.shape == (20, 2)
    assert np.array_equal(whole.action[:16], part.action)


def test_a_reading_that_is_not_finite_gets_the_emergency_action_alone(bundle, usual):
    obs = usual(2)
    memory = bundle.initial_memory(np.zeros((2, 2), np.float32))
    fine = bundle.act(obs, memory)
    obs[1, 2] = np.nan
    answer = bundle.act(obs, memory)
    assert answer.report["emergency"].tolist() == [False, True]
    assert np.array_equal(answer.action[1], memory["fallback"][1])
    assert np.array_equal(answer.action[0], fine.action[0])


def test_the_emergency_program_is_what_a_failed_sensor_leads_to(bundle):
    memory = bundle.initial_memory(np.asarray([1.0, 0.0], np.float32))
    blind = bundle.act(np.full(3, np.nan, np.float32), memory)
    after = bundle.after_emergency(memory)
    for name, value in blind.memory.items():
        assert np.array_equal(after[name], value), name
    assert np.array_equal(after["previous"], memory["fallback"])


def test_exploration_depends_on_a_rows_own_key(small_plant, compiled_once, tmp_path, usual):
    noisy = small_plant.policy.replace(noise=0.1)
    folder = export_bundle(
        tmp_path / "noisy", noisy, small_plant.constraints, signals=small_plant.signals,
        onnx=False, batch_sizes=(4,),
    )  # fmt: skip
    loaded = load_bundle(folder)
    obs = np.repeat(usual(1), 4, axis=0)
    memory = loaded.initial_memory(np.zeros((4, 2), np.float32))
    key = np.asarray([[1, 2], [3, 4], [1, 2], [0, 0]], np.uint32)
    proposed = loaded.act(obs, memory, key).proposed
    assert np.array_equal(proposed[0], proposed[2])
    assert not np.array_equal(proposed[0], proposed[1])
    assert loaded.manifest["explores"]


def test_the_manifest_says_what_is_in_the_bundle(small_plant, bundle_folder, bundle):
    manifest = json.loads((bundle_folder / "manifest.json").read_text())
    assert manifest["signals"] == small_plant.signals
    assert manifest["provenance"] == {"algo": "none"}
    assert manifest["platforms"] == ["cpu", "cuda", "tpu"]
    assert bundle.rows == list(small_plant.constraints.names)
    assert set(manifest["files"]) == {
        "control.jax", "emergency.jax", "start.jax", "self_test.npz", "constraints.json",
        "constraints.yaml", "normaliser.json",
    }  # fmt: skip
    assert np.allclose(manifest["drift"]["mean"], small_plant.statistics["mean"])


def test_the_constraint_file_is_kept_as_it_is(bundle_folder):
    text = (bundle_folder / "constraints.yaml").read_text()
    assert text == "# by the operator\nemergency: {valve: 50 %, pump: 750 rpm}\n"


def test_columns_hold_every_kind_of_number_bit_for_bit():
    luck = np.random.default_rng(0)
    leaves = [
        luck.integers(0, 2**32, (4, 3), dtype=np.uint32).view(np.float32),
        luck.integers(-(2**31), 2**31, 4).astype(np.int32),
        luck.random((4, 2)) < 0.5,
        np.zeros((4, 0), np.float32),
        luck.integers(0, 2**32, (4, 2), dtype=np.uint32),
    ]
    columns = Columns(leaves)
    words = columns.pack(leaves)
    assert words.shape == (4, 8)
    through = np.asarray(jax.jit(lambda x: columns.join(columns.split(x)))(words))
    for found, wanted in zip(columns.split(through), leaves, strict=True):
        assert found.tobytes() == wanted.tobytes()
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    with pytest.raises(ValueError, match="the program takes rows of float32"):
        columns.pack([leaves[0].astype(np.float64), *leaves[1:]])


# Refusals ----------------------------------------------------------------------------------------


@pytest.fixture
def broken(bundle_folder, tmp_path):
    return shutil.copytree(bundle_folder, tmp_path / "broken")


def edit_manifest(folder, **changes):
    """By somebody who knows of the digest, if that is not what is changed."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(manifest | {"digest": digest_of(manifest)} | changes))


@pytest.mark.parametrize("name", ["control.jax", "self_test.npz", "normaliser.json"])
def test_a_file_that_was_changed_is_refused(broken, name):
    content = bytearray((broken / name).read_bytes())
    content[len(content) // 2] ^= 1
    (broken / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is not the file that was exported"):
        load_bundle(broken)


def test_a_file_that_is_missing_is_named(broken):
    (broken / "emergency.jax").unlink()
    with pytest.raises(ValueError, match=r"emergency\.jax is missing; copy the whole bundle"):
        load_bundle(broken)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 1}, "is of version 1, this worldloom reads 3"),
        ({"kind": "worldloom robot policy"}, "not the manifest of a worldloom plant policy"),
        ({"digest": "0" * 64}, "names policy 000000000000, what it says is that of"),
        ({"digest": None}, "has no digest"),
        ({"memory": ["previous"]}, "remembers or reports other things"),
        ({"batch_sizes": None}, "has no batch_sizes"),
        ({"batch_sizes": []}, "lacks something or garbles it"),
        ({"batch_sizes": ["8"]}, "lacks something or garbles it .TypeError"),
        ({"signals": {"observation": []}}, "lacks something or garbles it .KeyError.'action'"),
        ({"constraints": [{"name": "box"}]}, "lacks something or garbles it .KeyError.'scale'"),
        ({"drift": {}}, "lacks something or garbles it .KeyError.'mean'"),
        ({"self_test": {}}, "lacks something or garbles it .KeyError.'tolerance'"),
        ({"files": {"../../etc/passwd": "0"}}, "is no name of a file in a bundle"),
        ({"files": {}}, "does not list control.jax"),
        ({"files": None}, "lists no files"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(broken, changes, message):
    edit_manifest(broken, **changes)
    with pytest.raises(ValueError, match=message):
        load_bundle(broken)


def changed(value):
    """Everything that a value of JSON can become by one change at one place."""
    if isinstance(value, dict):
        yield value | {"another": 0}
        for name, inner in value.items():
            yield {other: x for other, x in value.items() if other != name}
            yield from (value | {name: x} for x in changed(inner))
    elif isinstance(value, list):
        yield [*value, *value[-1:], 0][: len(value) + 1]
        if value != value[::-1]:
            yield value[::-1]
        for i, inner in enumerate(value):
            yield from ([*value[:i], x, *value[i + 1 :]] for x in changed(inner))
    elif isinstance(value, str):
        yield value + "x"
    else:
        yield not value if isinstance(value, bool) else (value or 0) + 1


def test_whatever_is_changed_in_a_manifest_is_refused(bundle, broken):
    path, refused = broken / "manifest.json", 0
    for manifest in changed(bundle.manifest):
        path.write_text(json.dumps(manifest))
        if manifest.get("created") != bundle.manifest["created"]:
            read_policy(broken)  # says when, and is used for nothing
            continue
        with pytest.raises(ValueError, match=r"names policy|of kind|of version|no digest"):
            read_policy(broken)
        refused += 1
    assert refused > 100


def test_a_manifest_that_is_no_json_is_refused(broken):
    (broken / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        load_bundle(broken)


def test_a_program_that_computes_something_else_fails_the_self_test(bundle, broken):
    cases = dict(bundle.cases)
    cases["out.action"] = cases["out.action"] + np.float32(2e-5)
    np.savez(broken / "self_test.npz", **cases)
    known = hashlib.sha256((broken / "self_test.npz").read_bytes()).hexdigest()
    edit_manifest(broken, files=bundle.manifest["files"] | {"self_test.npz": known})
    with pytest.raises(ValueError, match="the self-test fails: action is off by 2e-05"):
        load_bundle(broken)


def test_nothing_is_written_over_a_folder_that_is_no_bundle(small_plant, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("1")
    with pytest.raises(ValueError, match="exists and is no bundle"):
        export(small_plant, tmp_path / "thesis")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter"]
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


def test_a_log_kept_in_a_bundle_is_not_lost(small_plant, bundle_folder, tmp_path, contents):
    folder = shutil.copytree(bundle_folder, tmp_path / "bundle")
    (folder / "audit.jsonl").write_text("{}")
    before = contents(folder)
    with pytest.raises(ValueError, match=r"also holds audit\.jsonl, which is not of the bundle"):
        export(small_plant, folder)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "manifest", ["{", "[]", '{"name": "a web page"}', '{"kind": 1, "files": []}']
)
def test_what_lies_beside_a_manifest_that_is_not_ours_is_not_lost(
    small_plant, tmp_path, contents, manifest
):
    (tmp_path / "audit.jsonl").write_text("{}")
    (tmp_path / "manifest.json").write_text(manifest)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"also holds audit\.jsonl"):
        export(small_plant, tmp_path)
    assert contents(tmp_path) == before


def test_a_bundle_that_cannot_be_replaced_stays_as_it_was(
    bundle_folder, tmp_path, contents, monkeypatch
):
    folder = shutil.copytree(bundle_folder, tmp_path / "bundle")
    before = contents(folder)
    real = module.os.replace

    def full(source, target):
        if source != folder and not str(source).endswith(".former"):
            raise OSError("no space left")
        real(source, target)

    monkeypatch.setattr(module, "_exchange", lambda one, other: False)
    monkeypatch.setattr(module.os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_folder(folder, {"manifest.json": b"{}"})
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


class Killed(BaseException):
    """What a process that is killed does, as seen by whoever comes after it."""


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_bundle_whole(
    bundle_folder, tmp_path, monkeypatch, in_one_step
):
    manifest, files = read_policy(bundle_folder)
    old, folder = manifest["provenance"], tmp_path / "bundle"
    new = with_manifest(manifest | {"provenance": {"algo": "another"}}, files)
    exchange = module._exchange if in_one_step else lambda one, other: False
    found = []
    for alive in range(20):  # the number of steps until the kill
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(bundle_folder, folder)
        steps = iter(range(alive))

        def mortal(step, steps=steps):
            def call(*args, **options):
                if next(steps, None) is None:
                    raise Killed
                return step(*args, **options)

            return call

        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(module, "_exchange", mortal(exchange))
            patch.setattr(module.os, "replace", mortal(module.os.replace))
            patch.setattr(module.shutil, "rmtree", mortal(module.shutil.rmtree))
            write_folder(folder, new)
            alive = None
        found.append(read_policy(folder)[0]["provenance"])
        if alive is None:
            break
    assert alive is None
    assert found[0] == old
    assert found[-1] == {"algo": "another"}
    assert all(x in (found[0], found[-1]) for x in found)
    write_folder(folder, new)  # whatever was left lying about is in nobody's way
    assert read_policy(folder)[0]["provenance"] == found[-1]
    assert not (tmp_path / ".bundle.former").exists()


def test_a_link_to_a_bundle_stays_one(bundle_folder, tmp_path):
    manifest, files = read_policy(bundle_folder)
    shutil.copytree(bundle_folder, tmp_path / "first")
    (tmp_path / "current").symlink_to(tmp_path / "first")
    written = write_folder(tmp_path / "current", with_manifest(manifest | {"agents": 7}, files))
    assert written.is_symlink()
    assert read_policy(tmp_path / "first")[0]["agents"] == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "first"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signals": {"observation": [], "action": []}}, "0 signals of the observation"),
        ({"batch_sizes": ()}, "give sizes of at least 1"),
        ({"statistics": {"mean": [0.0], "std": [1.0]}}, "mean has shape"),
    ],
)
def test_what_does_not_fit_the_policy_is_refused(small_plant, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        export(small_plant, tmp_path / "bundle", **changes)
    assert not list(tmp_path.iterdir())


def test_a_policy_that_is_not_finite_is_not_exported(small_plant, tmp_path):
    gone = jax.tree.map(lambda x: x * np.nan, small_plant.policy.params)
    with pytest.raises(ValueError, match="not finite; export an earlier checkpoint"):
        export_bundle(
            tmp_path / "bundle", small_plant.policy.replace(params=gone), small_plant.constraints,
            signals=small_plant.signals, onnx=False,
        )  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_statistics_leave_out_what_is_not_finite():
    found = observation_statistics([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0]])
    assert found["count"] == 2
    assert found["mean"].tolist() == [3.0, 4.0]
    assert found["high"].tolist() == [5.0, 6.0]


def test_observations_of_another_size_are_refused(bundle):
    with pytest.raises(ValueError, match="this policy takes 3 numbers a row"):
        bundle.act(np.zeros(4, np.float32), bundle.initial_memory())


def test_inputs_at_an_edge_of_a_decision_are_not_settled():
    def whole(obs, memory, key):
        above = obs[:, 0] >= 1.0
        return {"action": np.where(above, 1.0, -1.0)[:, None], "report": {"intervened": above}}

    obs = np.asarray([[0.5], [1.0 - 4e-7], [1.5]])
    np.testing.assert_array_equal(bundle_export._settled(whole, obs, {}, obs), [True, False, True])


def test_inputs_whose_answers_rounding_would_change_are_not_settled():
    def whole(obs, memory, key):
        return {"action": np.where(obs > 1.0, np.float32(100.0) * (obs - np.float32(1.0)), obs)}

    obs = np.asarray([[0.5], [1.01], [0.01]], np.float32)
    np.testing.assert_array_equal(bundle_export._settled(whole, obs, {}, obs), [True, False, True])


def test_differences_are_in_units_of_scale_and_infinite_between_flags():
    one, other = np.asarray([1.0, np.nan, np.inf, 4.0]), np.asarray([2.0, np.nan, np.inf, np.inf])
    assert differences(one, other, 10.0).tolist() == [0.1, 0.0, 0.0, np.inf]
    assert difference(np.asarray([True]), np.asarray([False])) == np.inf
    assert difference(one.astype(np.float32), one) == np.inf
    assert difference(np.zeros((2, 0)), np.zeros((2, 0))) == 0.0
