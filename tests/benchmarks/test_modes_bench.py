"""`worldloom bench modes`: equal work or a refusal, and figures that survive a failing part."""

import json
from contextlib import nullcontext
from dataclasses import replace

import jax
import numpy as np
import pytest

from benchmarks import modes as compare
from benchmarks import modes_memory as memory
from benchmarks import modes_timing as modes
from benchmarks import modes_work as work
from benchmarks import processes as fresh
from benchmarks import tables
from benchmarks.modes_parts import PARTS, jax_parts, record_epoch
from benchmarks.modes_work import changed
from worldloom.suites.grid.problem import make_problem
from worldloom.suites.grid.suite import JAX_MODES, MODES, SUITE, original
from worldloom.training.config import make_config
from worldloom.training.loops import turn_loop
from worldloom.training.trainer import Trainer


def config(**changes):
    """The defaults, but for changes."""
    return make_config(SUITE, {"env": "treasurehunt", "algo": "iqn"} | changes)


ORIGINAL = make_config(SUITE, original())
HAS_TORCH = work.why_not_torch(ORIGINAL) is None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")


class FakeTrainer:
    """Learns from its third epoch on, at once and for nothing."""

    def __init__(self, config, ready_at=2, skips=()):
        self.config, self.played, self.compile_seconds = config, 0, 0.0
        self._ready_at, self._skips = ready_at, skips

    def advance(self, epochs):
        self.compile_seconds = 1.5
        rows = range(self.played, self.played + epochs)
        self.played += epochs
        loss = [np.nan if n < self._ready_at or n in self._skips else 0.1 for n in rows]
        return {"agent_loss": np.array(loss)[:, None]}


@pytest.fixture
def no_work(monkeypatch, tmp_path_factory):
    """Modes that cost nothing: the command without its computing."""
    cache = tmp_path_factory.mktemp("cache")
    parts = {name: lambda: None for name in PARTS if name != "epoch"}
    monkeypatch.setattr(modes, "new_trainer", FakeTrainer)
    monkeypatch.setattr(modes, "torch_parts", lambda config: parts)
    monkeypatch.setattr(modes, "training_memory", lambda *_: {"resident_mb": 7.0, "peak_mb": 9.0})
    monkeypatch.setattr(work.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(compare, "own_cache", lambda: nullcontext(cache))


# Equal work -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"world": {"turn_order": "simultaneous"}}, "turn_order: interleaved / simultaneous"),
        ({"world": {"gem_value": 5.0}}, "world option gem_value: default / 5.0"),
        ({"world": {"num_agents": 3}}, "world option num_agents: default / 3"),
        ({"iqn": {"gradient_steps": 3}}, "iqn.gradient_steps: 20 / 3"),
        ({"num_worlds": 3}, "num_worlds: 32 / 3"),
        ({"iqn": {"epsilon": 0.5}}, "iqn.epsilon: 1.0 / 0.5"),
        ({"steps": 4800}, "steps: 128000 / 4800"),
        ({"share_parameters": True}, "share_parameters: False / True"),
        ({"algo": "dqn"}, "algo: iqn / dqn"),
        ({"iqn": {"hidden": 3}}, "iqn.hidden: 64 / 3"),
        ({"iqn": {"act_quantiles": 3}}, "iqn.act_quantiles: 4 / 3"),
    ],
)
def test_work_that_differs_is_refused_and_named(changes, named):
    configs = {"first": config(), "second": config(**changes)}
    with pytest.raises(ValueError, match="first and second do not do the same work") as refusal:
        work.same_work(configs)
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "jax_sequential", "seed": 9, "chunk": 3, "eval_every": 7, "record_every": 0},
        {"world": {"num_agents": 5, "height": 10, "turn_order": "interleaved"}},  # the defaults
    ],
)
def test_mode_seed_cadence_and_defaults_written_out_are_the_same_work(changes):
    assert work.differences(config(), config(**changes)) == []
    work.same_work({"first": config(), "second": config(**changes)})  # does not raise


def test_the_baseline_alternates_whatever_its_settings_say():
    world = dict(ORIGINAL.world) | {"turn_order": "simultaneous"}
    torch = changed(ORIGINAL, mode="torch_sequential")
    fused = replace(ORIGINAL, world=world)
    assert work.differences(torch, fused)[0] == "turn_order: interleaved / simultaneous"


def test_jax_modes_act_with_midpoints_and_the_baseline_as_ever():
    configs = modes.equal_work(ORIGINAL, MODES, 3, midpoints=True)
    assert set(configs) == set(MODES)
    acting = {mode: (c.hyper.act_levels, c.hyper.act_quantiles) for mode, c in configs.items()}
    assert acting.pop("torch_sequential") == ("random", 256)
    assert set(acting.values()) == {("midpoints", 12)}
    assert {c.world["num_agents"] for c in configs.values()} == {3}
    assert {(c.hyper.epsilon, c.hyper.epsilon_decay) for c in configs.values()} == {(0.632, 0.0)}
    exact = modes.equal_work(ORIGINAL, MODES, 3, midpoints=False)
    assert {c.hyper.act_levels for c in exact.values()} == {"random"}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (config(), "one world, one update an epoch"),
        (replace(ORIGINAL, world={"num_frames": 5}), "double walls"),
        (replace(ORIGINAL, world={"legacy": True, "turn_order": "simultaneous"}), "alternate"),
        (replace(ORIGINAL, env="tag", world={}), "the baseline is treasure hunt"),
    ],
)
def test_a_baseline_that_would_do_other_work_is_left_out_or_refused(settings, reason, monkeypatch):
    monkeypatch.setattr(work.importlib.util, "find_spec", lambda name: object())
    chosen, skipped = modes.possible_modes(settings, None)
    assert chosen == list(JAX_MODES)
    assert reason in skipped["torch_sequential"]
    with pytest.raises(ValueError, match=reason):
        modes.possible_modes(settings, ["torch_sequential", "jax_fused"])


def test_without_pytorch_its_mode_is_left_out_with_the_remedy(monkeypatch):
    monkeypatch.setattr(work.importlib.util, "find_spec", lambda name: None)
    chosen, skipped = modes.possible_modes(ORIGINAL, ["torch_sequential", "jax_fused"])
    assert chosen == ["jax_fused"]
    assert "pip install" in skipped["torch_sequential"]


def test_memories_are_filled_until_every_agent_learns():
    assert work.fill_memory(FakeTrainer(ORIGINAL, ready_at=4), ORIGINAL) == 5
    with pytest.raises(ValueError, match="1024 transitions never held a batch of 256"):
        work.fill_memory(FakeTrainer(ORIGINAL, ready_at=10_000), ORIGINAL)


def test_a_timed_epoch_that_does_not_train_is_an_error():
    advance = work.training_epochs(FakeTrainer(ORIGINAL, ready_at=0, skips=(3,)), 2)
    advance()
    with pytest.raises(RuntimeError, match="did not train"):
        advance()


# The command ------------------------------------------------------------------------------------


def test_a_comparison_writes_rows_for_every_mode_and_number_of_agents(no_work, tmp_path, capsys):
    arguments = ["treasurehunt", "--agents", "1", "2", "--epochs", "2", "--repeats", "3"]
    assert compare.command([*arguments, "--out", str(tmp_path / "out")]) == 0
    result = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert result["complete"] is True
    assert result["errors"] == {}
    assert result["command"].startswith("worldloom bench modes treasurehunt --agents 1 2")
    assert result["task"]["turn_order"] == "interleaved"
    assert {"machine", "versions", "date", "notes", "plan"} <= set(result)
    found = [(row["num_agents"], row["mode"]) for row in result["rows"]]
    assert found == [(n, mode) for n in (1, 2) for mode in MODES]
    for row in result["rows"]:
        assert {f"{part}_ms" for part in PARTS} <= set(row)
        assert row["compile_seconds"] == 1.5
        assert row["memory_mb"] == 7.0
    assert result["rows"][0]["speedup"] == 1.0  # each number of agents against its first mode
    assert result["rows"][4]["speedup"] == 1.0
    samples = result["samples"]["2"]["jax_fused"]
    assert {len(samples[part]) for part in PARTS} == {3}
    assert "jax_fused" in (tmp_path / "out" / "compare.html").read_text()
    assert "12 stratified levels" in capsys.readouterr().out


def test_all_jax_modes_are_timed_on_the_parts_of_one_run(no_work, tmp_path, monkeypatch):
    class FakeJaxTrainer(FakeTrainer, Trainer):
        compile_seconds = 0.0  # a plain number, where the real one asks its programs
        loop, run = "loop", "run"

    asked = []

    def parts_of(inputs, mode):
        asked.append((inputs, mode))
        return {name: lambda: None for name in PARTS if name != "epoch"}

    monkeypatch.setattr(modes, "new_trainer", FakeJaxTrainer)
    monkeypatch.setattr(modes, "record_epoch", lambda loop, run: f"inputs of {loop} and {run}")
    monkeypatch.setattr(modes, "jax_parts", parts_of)
    arguments = ["--agents", "2", "--modes", *JAX_MODES, "--no-memory", "--out", str(tmp_path)]
    assert compare.command(arguments) == 0
    assert asked == [("inputs of loop and run", mode) for mode in JAX_MODES]


def test_a_failing_number_of_agents_is_recorded_and_the_rest_goes_on(
    no_work, tmp_path, monkeypatch, capsys
):
    def fail_with_two(config, cache):
        if config.world["num_agents"] == 2:
            raise RuntimeError("out of memory")
        return {"resident_mb": 1.0}

    monkeypatch.setattr(modes, "training_memory", fail_with_two)
    arguments = ["--agents", "1", "2", "4", "--modes", "jax_fused", "--json"]
    assert compare.command([*arguments, "--out", str(tmp_path)]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["errors"] == {"2 agents": "RuntimeError: out of memory"}
    assert result["complete"] is False
    assert [row["num_agents"] for row in result["rows"]] == [1, 4]
    assert json.loads((tmp_path / "compare.json").read_text()) == result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["treasurehnt"], "treasurehunt"),
        (["--world", "num_agents=3"], "--agents"),
        (["--world", "gems"], "name=value"),
        (["--agents", "0"], "at least 1"),
        (["--agents", "1", "80"], "does not fit"),
        (["--world", "turn_order=simultaneous", "--turn-order", "interleaved"], "give one"),
        (["--turn-order", "simultaneous", "--modes", "torch_sequential", "jax_fused"], "alternate"),
        (["--repeats", "0"], "repeats=0"),
        (["--epochs", "0"], "epochs=0"),
        (["--modes", "jax_fusd"], "did you mean 'jax_fused'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(arguments, message, no_work, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=message) as error:
        compare.command([*arguments, "--out", str(out)])
    assert "\n" not in str(error.value)
    assert not out.exists()


@pytest.mark.parametrize("out", [".", "compare.json"])
def test_an_earlier_comparison_is_not_overwritten(out, no_work, tmp_path):
    (tmp_path / "compare.json").write_text("precious")
    with pytest.raises(ValueError, match="already holds a comparison"):
        compare.command(["--out", str(tmp_path / out)])
    assert (tmp_path / "compare.json").read_text() == "precious"


def test_a_file_is_written_alone_and_its_figures_become_a_table(no_work, tmp_path, capsys):
    path = tmp_path / "results" / "modes.json"
    assert compare.command(["--agents", "2", "--modes", "jax_fused", "--out", str(path)]) == 0
    assert [file.name for file in path.parent.iterdir()] == ["modes.json"]
    assert f"written to {path}\n" in capsys.readouterr().out
    table = tables.modes(json.loads(path.read_text()))
    assert "| 2 | jax_fused |" in table
    assert "12 stratified levels" in table
    assert "256 random ones" in table


# Recorded runs ----------------------------------------------------------------------------------


def make_run(folder, settings, *, seconds=10.0, iterations=80, score=510.0):
    folder.mkdir()
    timing = {
        "iterations": iterations,
        "steps": iterations * 1600,
        "train_seconds": seconds,
        "compile_seconds": 1.0,
    }
    header = {"format": 2, "suite": "grid", "config": settings.to_dict()}
    (folder / "config.json").write_text(json.dumps(header))
    (folder / "timing.json").write_text(json.dumps(timing))
    rows = [
        {"iteration": 40, "mean": 400.0, "stderr": 3.0},
        {"iteration": 80, "mean": score, "stderr": 2.0},
    ]
    (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_recorded_runs_are_compared_by_their_last_score_and_their_time(tmp_path, capsys):
    a = make_run(tmp_path / "a", config(mode="jax_parallel"), seconds=40.0)
    b = make_run(tmp_path / "b", config(seed=1), seconds=10.0, score=520.0)
    assert compare.command([a, b, "--out", str(tmp_path / "out"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["run"], row["score"], row["speedup"]) for row in rows] == [
        (a, 510.0, 1.0),
        (b, 520.0, 4.0),
    ]
    assert [row["epochs_per_second"] for row in rows] == [2.0, 8.0]
    assert (tmp_path / "out" / "compare.html").exists()


@pytest.mark.parametrize(
    ("changes", "iterations", "named"),
    [
        ({"world": {"turn_order": "simultaneous"}}, 80, "turn_order"),
        ({"world": {"spawn_prob": 0.5}}, 80, "spawn_prob"),
        ({"iqn": {"buffer_size": 9999}}, 80, "iqn.buffer_size: 13056 / 9999"),
        ({"steps": 64_000}, 40, "steps: 128000 / 64000"),
    ],
)
def test_recorded_runs_of_other_work_are_refused(changes, iterations, named, tmp_path):
    a = make_run(tmp_path / "a", config())
    b = make_run(tmp_path / "b", config(**changes), iterations=iterations)
    with pytest.raises(ValueError, match="do not do the same work") as refusal:
        compare.command([a, b, "--out", str(tmp_path / "out")])
    assert named in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_what_counts_is_how_far_a_run_came(tmp_path):
    a = make_run(tmp_path / "a", config(steps=320_000))
    b = make_run(tmp_path / "b", config())
    assert compare.command([a, b, "--out", str(tmp_path / "out")]) == 0


def test_folders_that_are_not_runs_are_named(tmp_path):
    a = make_run(tmp_path / "a", config())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty is not a run folder"):
        compare.command([a, str(tmp_path / "empty")])
    with pytest.raises(ValueError, match="alone cannot be compared"):
        compare.command([a])
    with pytest.raises(ValueError, match="named twice"):
        compare.command([a, a])
    (tmp_path / "a" / "timing.json").unlink()
    b = make_run(tmp_path / "b", config())
    with pytest.raises(ValueError, match="a has no results yet"):
        compare.command([a, b])


# Real work --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_parts_do_the_same_in_every_mode(compiled_once, tiny):
    """Observations, actions and losses, in as many calls as each mode makes."""
    settings = tiny(world={"horizon": 3, "num_frames": 2}, num_worlds=1)
    loop = turn_loop(settings, make_problem(settings))
    inputs = record_epoch(loop, jax.jit(loop.init)(jax.random.key(0)))
    results = {}
    for mode in JAX_MODES:
        parts = jax_parts(inputs, mode)
        assert set(parts) == set(PARTS) - {"epoch"}
        seen, chosen, losses = (parts[name]() for name in ("observe", "act", "loss"))
        calls = {"jax_fused": None, "jax_parallel": (3, 2), "jax_sequential": (6, 4)}[mode]
        if calls is not None:
            assert (len(seen), len(losses)) == calls
            seen, chosen, losses = (np.stack(x) for x in (seen, chosen, losses))
        results[mode] = [np.asarray(x) for x in (seen, chosen, losses)]
    for mode in ("jax_parallel", "jax_sequential"):
        for fused, other in zip(results["jax_fused"], results[mode], strict=True):
            np.testing.assert_allclose(other.reshape(fused.shape), fused, rtol=1e-4)
    assert results["jax_fused"][0].shape[:3] == (3, 2, 1)  # turns, agents, worlds
    assert results["jax_fused"][2].shape == (2, 2)  # updates, agents


@needs_torch
def test_quick_mode_runs_the_baseline_for_real(tmp_path, monkeypatch, capsys):
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        code = compare.command(
            ["--quick", "--agents", "2", "--modes", "torch_sequential", "--no-memory", "--json",
             "--out", str(tmp_path)]
        )  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    result = json.loads(capsys.readouterr().out)
    assert code == 0, result["errors"]
    (row,) = result["rows"]
    assert all(row[f"{part}_ms"] > 0 for part in PARTS)
    assert row["memory_mb"] is None


def test_memory_is_what_training_added(monkeypatch):
    sizes = iter([100.0, 160.0])
    monkeypatch.setattr(memory, "resident_mb", lambda: next(sizes))
    monkeypatch.setattr(memory, "peak_memory_mb", lambda: 190.0)
    monkeypatch.setattr("worldloom.suites.grid.problem.new_trainer", FakeTrainer)
    assert memory.growth(ORIGINAL.to_dict()) == {"resident_mb": 60.0, "peak_mb": 90.0}


@pytest.mark.parametrize(("compiles", "asked"), [(0, 1), (1, 2)])
def test_a_process_that_had_to_compile_is_asked_again(compiles, asked, tmp_path, monkeypatch):
    calls = []

    def process(function, argument, cache, timeout):
        calls.append(argument["mode"])
        if len(calls) <= compiles:
            (cache / "jit_epoch-cache").write_text("program")
        return {"resident_mb": float(len(calls))}

    monkeypatch.setattr(memory, "in_fresh_process", process)
    assert memory.training_memory(ORIGINAL, tmp_path) == {"resident_mb": float(asked)}
    assert calls == ["jax_fused"] * asked


def test_a_fresh_process_answers_in_json_and_its_failure_is_told(tmp_path):
    assert fresh.in_fresh_process("builtins:sorted", {"b": 1, "a": 2}, tmp_path) == ["a", "b"]
    with pytest.raises(RuntimeError, match=r"builtins:int failed in its process: .*TypeError"):
        fresh.in_fresh_process("builtins:int", {"a": 1}, tmp_path)


def test_modes_do_not_find_each_others_programs(no_work, tmp_path, monkeypatch):
    folders = {}

    def build(config):
        folders[config.settings.mode] = jax.config.jax_compilation_cache_dir
        return FakeTrainer(config)

    def weigh(config, cache):
        assert (
            str(cache) == folders[config.settings.mode]
        )  # but the process that is weighed finds its own
        return {}

    monkeypatch.setattr(modes, "new_trainer", build)
    monkeypatch.setattr(modes, "training_memory", weigh)
    assert compare.command(["--agents", "2", "--out", str(tmp_path)]) == 0
    assert set(folders) == set(MODES)
    assert len(set(folders.values())) == len(MODES)


def test_a_cache_of_its_own_is_empty_and_the_old_one_comes_back():
    before = jax.config.jax_compilation_cache_dir
    with fresh.own_cache() as folder:
        assert jax.config.jax_compilation_cache_dir == str(folder)
        assert list(folder.iterdir()) == []
    assert jax.config.jax_compilation_cache_dir == before
    assert not folder.exists()
