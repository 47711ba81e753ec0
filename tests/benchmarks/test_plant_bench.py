"""`worldloom bench plant`: equal work on both sides, scores as published, and what is written."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import (
    figures,
    plant,
    plant_arithmetic,
    plant_peers,
    plant_safety,
    plant_scores,
    plant_serving,
    plant_serving_compared,
    plant_speed,
    plant_table,
    tables,
)
from benchmarks.pages import plant as plant_bench
from oracles.plant import DmsdLoop
from worldloom import suites
from worldloom.algos.offline import make_table
from worldloom.cli.bench import AGAINST_PEERS
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import from_columns
from worldloom.report import page as html
from worldloom.training.timer import Timing

ROOT = Path(__file__).parents[2]
LEARNING = {
    "player": "ours", "devices": None, "batch": 8, "hidden": (8,), "rows": 100, "samples": 2,
    "obs_size": 3, "action_size": 2, "updates": 2, "seeds": 1,
}  # fmt: skip


# Speed -------------------------------------------------------------------------------------------


def test_made_up_data_are_the_same_every_time_and_of_whole_episodes():
    first, again = (plant_peers.random_data(2500, 3, 2) for _ in range(2))
    for name, column in first.items():
        np.testing.assert_array_equal(column, again[name])
    assert first["obs"].shape == (2500, 3)
    assert np.abs(first["action"]).max() <= 1.0
    np.testing.assert_array_equal(np.flatnonzero(first["truncated"]), [999, 1999, 2499])
    assert not first["terminated"].any()
    np.testing.assert_array_equal(first["next_obs"][:-1], first["obs"][1:])


@pytest.mark.parametrize("algo", plant_speed.ALGORITHMS)
def test_a_learner_has_the_sizes_that_are_asked_for(algo):
    made = plant_speed.made_algorithm(algo, [16, 4], samples=7)
    assert made.config.hidden == (16, 4)
    assert getattr(made.config, "num_samples", 7) == 7
    assert made.config.hyper == type(made)().config.hyper
    assert made.period == (2 if algo == "td3bc" else 1)


def test_a_block_counts_the_updates_of_all_its_seeds():
    block, count, facts = plant_speed.learn(LEARNING | {"part": "learn", "algo": "bc", "seeds": 2})
    told = block()
    assert count == 2 * 2
    assert facts["seeds"] == 2
    assert facts["compile_seconds"] > 0.0
    assert told["actor_loss"].shape == (1, 2)


def test_compiled_plants_and_the_loop_see_the_same_when_they_do_the_same():
    """From one start without chance, under the benchmark's own actions, until episodes end."""
    env = suites.make("dmsd", disturbance=0.0)
    params = env.default_params()
    state, first = env.reset(jax.random.key(0), params)
    reference = DmsdLoop()
    seen = np.asarray(first.obs, np.float64)
    reference.begin(seen[:2], seen[2:4], np.tile(seen[4:], (100, 1)))
    step = jax.jit(env.step)
    for action in plant_speed.given_actions(20, 3)[:, 0]:
        state, after = step(jax.random.key(1), state, jnp.asarray(action), params)
        told = reference.step(action)
        np.testing.assert_allclose(after.obs, told.obs, atol=1e-5)
        np.testing.assert_allclose(after.reward, told.reward, atol=1e-3)
        np.testing.assert_allclose(after.info.safety.margins, told.margins, atol=1e-4)


def test_a_plants_actions_do_not_depend_on_how_many_plants_there_are():
    few, many = plant_speed.given_actions(5, 1), plant_speed.given_actions(5, 64)
    assert many.shape == (5, 64, 2)
    np.testing.assert_array_equal(few[:, 0], many[:, 0])
    assert np.abs(many).max() <= 1.0
    assert many.std() > 0.5


def test_blocks_of_steps_go_on_where_the_last_one_stopped_and_past_the_end_of_episodes():
    setup = {"batch": 4, "steps_each": 70, "devices": None}
    block, count, _ = plant_speed.steps(setup)
    sums = [block() for _ in range(3)]
    assert count == 280
    assert np.isfinite(sums).all()
    assert len(set(sums)) == 3
    loop, count, _ = plant_speed.loop({"batch": 1, "steps_each": 130})
    assert count == 130
    assert np.isfinite(loop())


def test_without_d3rlpy_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(plant_speed, "PEERS", tmp_path)
    with pytest.raises(ValueError, match="make peers"):
        plant_speed.d3rlpy(batch=1)


class Clock:
    """Stands in for a process: says how long a piece of its work takes."""

    def __init__(self, seconds):
        self.seconds = seconds


def timed_by(clocks):
    """Instead of `plant_speed.timed`: what each maker's clock says."""

    def timed(makers, repeats, note):
        made = {name: make() for name, make in makers.items()}
        return (
            {name: Timing((clock.seconds,)) for name, clock in made.items()},
            {name: {"version": "2.8.1", "torch": "2.13.0", "flops": 1e9} for name in made},
        )

    return timed


def test_updates_are_compared_with_d3rlpy_at_its_best(monkeypatch, tmp_path):
    asked = []

    def d3rlpy(**setup):
        asked.append(setup)
        return Clock(0.010 if setup["threads"] == 1 else 0.008)

    def ours(part, **setup):
        asked.append(setup)
        if part == "multiply":
            return Clock(0.010)
        return Clock(0.002 if setup["seeds"] == 1 else 0.001)

    monkeypatch.setattr(plant_speed, "d3rlpy", d3rlpy)
    monkeypatch.setattr(plant_speed, "ours", ours)
    monkeypatch.setattr(plant_speed, "timed", timed_by({}))
    monkeypatch.setattr(plant.os, "cpu_count", lambda: 2)
    record = plant.run(plant.Sizes(), ["speed"], tmp_path / "plant.json", "line", quick=False)
    assert record.result["complete"]
    for algo in plant_speed.ALGORITHMS:
        assert record.result["ratios"][f"{algo}_vs_d3rlpy"] == pytest.approx(4.0)
    raw = record.result["raw"]["speed"]
    assert raw["updates_per_second"]["iql"] == pytest.approx(
        {"ours": 500.0, "seeds": 1000.0, "d3rlpy": 125.0}
    )
    for algo in plant_speed.ALGORITHMS:
        done = raw["flops_per_update"][algo] * 500.0
        assert raw["matmul_gflops_per_second"][algo] == pytest.approx(100.0)
        assert record.result["ratios"][f"{algo}_matmul_share"] == pytest.approx(done / 1e11)
    same = ("batch", "hidden", "rows", "samples", "obs_size", "action_size")
    assert len({tuple(setup[name] for name in same) for setup in asked}) == 1
    assert "d3rlpy 2.8.1 on torch 2.13.0" in figures.against("plant", record.result)


@pytest.mark.parametrize("algo", plant_speed.ALGORITHMS)
def test_no_more_arithmetic_is_counted_than_a_compiled_update_has(algo):
    """By XLA's own count, which has a little more: everything that is no product."""
    sizes = {"batch": 64, "hidden": (128, 128), "obs_size": 17, "action_size": 6, "samples": 2}
    setup = {"algo": algo, **sizes}
    made = plant_speed.made_algorithm(algo, sizes["hidden"], sizes["samples"])
    if algo == "cql":  # what is in a loop would be counted once
        made = replace(made, config=replace(made.config, num_parts=1))
    data = from_columns(**plant_peers.random_data(200, 17, 6))
    table, key = make_table(data), jax.random.key(0)
    learner = jax.eval_shape(lambda key: made.init(key, 17, 6), key)
    rows = jax.eval_shape(lambda: table.take(jnp.arange(64)))
    turns = [
        jax.jit(lambda *x, turn=turn: made.update(*x, turn)).lower(learner, rows, key)
        for turn in range(made.period)
    ]
    counted = [lowered.cost_analysis()["flops"] for lowered in turns]
    assert 0.8 < plant_arithmetic.update_flops(setup) / np.mean(counted) < 1.0


# Scores ------------------------------------------------------------------------------------------


def still(params, obs):
    """A policy that does the same whatever it sees."""
    return jnp.broadcast_to(params, (obs.shape[0], *params.shape))


def test_returns_are_those_of_whole_episodes_and_stop_with_them():
    env = suites.make("dmsd", horizon=7)
    policy = PolicyState(jnp.zeros(2), jnp.zeros(6), jnp.ones(6), still)
    found = plant_scores.Scorer(env, 3)(policy)
    params, total = env.default_params(), []
    step = jax.jit(env.step)
    keys = plant_scores.draws.split(
        plant_scores.draws.split(jax.random.key(plant_scores.START_KEY))[0], 3
    )
    for key in keys:
        state, _ = env.reset(key, params)
        paid = []
        for _ in range(7):
            state, after = step(key, state, jnp.zeros(2), params)
            paid.append(float(after.reward))
        total.append(sum(paid))
    assert found == pytest.approx(np.mean(total), rel=1e-5)


def test_every_patient_is_scored_at_every_hour():
    env = suites.make("simglucose")
    scorer = plant_scores.Scorer(env, 5)
    assert scorer.episodes == 24 * 15
    every = jax.jit(lambda key, params: plant_scores._every_person(env, 360, key, params))
    state, obs = every(jax.random.key(0), env.default_params())
    starts = set(zip(state.x.patient.tolist(), (state.x.minute // 60).tolist(), strict=True))
    assert starts == {(patient, hour) for patient in range(15) for hour in range(24)}
    assert obs.shape == (360, 31)
    assert (np.asarray(state.step) == 0).all()


def test_released_data_are_looked_for_where_the_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv(plant_scores.FOLDER, str(tmp_path))
    assert plant_scores.released_folder() is None
    for task in plant_scores.TASKS.values():
        (tmp_path / task.file).touch()
    assert plant_scores.released_folder() == tmp_path


def test_without_the_released_data_scores_are_left_out_with_a_reason(monkeypatch, tmp_path):
    monkeypatch.setenv(plant_scores.FOLDER, str(tmp_path))
    record = plant.run(plant.QUICK, ["scores"], tmp_path / "plant.json", "line", quick=True)
    assert record.result["complete"]
    assert plant_scores.FOLDER in record.result["skipped"]["scores"]
    assert "scores" not in record.result["raw"]


def test_the_last_part_of_a_run_is_learned_slowly():
    algorithm = plant_scores.with_sizes("rebrac", (4,))
    learner = algorithm.init(jax.random.key(0), 3, 2)
    slow = plant_scores.cooled(learner, 0.1)
    assert float(slow.hyper.actor_rate) == pytest.approx(0.1 * float(learner.hyper.actor_rate))
    assert float(slow.hyper.critic_rate) == pytest.approx(0.1 * float(learner.hyper.critic_rate))
    assert slow.replace(hyper=None).actor is learner.actor
    assert float(slow.hyper.gamma) == float(learner.hyper.gamma)


def test_a_variant_is_its_algorithm_with_other_options():
    agent = plant_scores.with_sizes("mbpo-linear", (4,), suites.make("dmsd").spec)
    assert (agent.config.policy, agent.config.hidden) == ("linear", (64, 64))
    assert agent.reward is not None
    assert plant_scores.with_sizes("bc", (4,)).config.hidden == (4,)
    assert set(plant_scores.VARIANTS) <= set(plant_scores.SET_IN_VIEW)


def test_nothing_is_claimed_on_data_that_are_not_the_release():
    released = {name for name, task in plant_scores.TASKS.items() if task.released}
    assert set(plant_scores.PUBLISHED) == released
    for name in released:
        assert f"{name}_best_score_share" in plant.RATIOS
    assert "pipeline_best_score_share" not in plant.RATIOS


def test_steps_after_a_plant_was_lost_count_as_violated():
    class Trajectories:
        alive = np.asarray([[True, True], [True, False]])
        margins = np.asarray([[[1.0, -1.0], [-1.0, 1.0]], [[1.0, 1.0], [-1.0, -1.0]]])

    found = plant_table.violations(Trajectories, np.asarray([True, False]), "bare")
    assert found == {"violated_bare": 1 / 2, "violated_soft_bare": 3 / 4}


def test_no_policy_that_was_measured_is_worse_off_behind_the_filter():
    """Which `worldloom bench plant --only plants` found, and the documentation shows."""
    measured = json.loads((ROOT / "benchmarks/results/plant.json").read_text())
    rows = measured["raw"]["plants"]
    assert {row["plant"] for row in rows} == set(plant.PLANTS)
    for row in rows:
        which = (row["plant"], row["quality"], row["algo"])
        assert row["violated_filtered"] <= row["violated_bare"], which
        if row["violated_bare"] == 0.0:
            least = row["return"] - tables.FILTER_LOSS * abs(row["return"])
            assert row["filtered"] >= least, which


# Safety and serving ------------------------------------------------------------------------------


def test_the_table_has_every_plant():
    assert set(plant.PLANTS) == set(suites.names("plant"))


def test_the_filter_is_measured_and_attacked_on_every_plant(monkeypatch, tmp_path):
    def cost(plant, batch, repeats):
        shares = {"linear": 0.2, "shipped": 20.0, "closed_loop": 2.0, "accepted": 0.3}
        overhead = shares.get(plant, 0.9)
        return {"plant": plant, "batch": batch, "overhead": overhead}

    def attacks(plant, cases):
        return {"bang_bang": {"cases": cases, "violations": 0}}

    monkeypatch.setattr(plant_safety, "filter_cost", cost)
    monkeypatch.setattr(plant_safety, "attacks", attacks)
    record = plant.run(plant.Sizes(), ["safety"], tmp_path / "plant.json", "line", quick=False)
    assert record.result["errors"] == {}
    ratios = record.result["ratios"]
    assert ratios["filter_time_share"] == 0.2
    assert ratios["shipped_filter_time_share"] == 20.0  # beside it, what is really executed
    assert ratios["closed_loop_filter_time_share"] == 2.0
    assert ratios["accepted_filter_time_share"] == 0.3
    raw = record.result["raw"]["safety"]
    assert set(raw["cost"]) == {*plant_safety.PLANTS, plant_safety.CLOSED_LOOP}
    assert set(raw["attacks"]) == set(plant_safety.PLANTS) - {"accepted"}  # the shipped one again
    assert raw["attacks"]["reactor"]["bang_bang"]["cases"] == 1_000_000
    assert "The safety filter" in html.page("", plant_bench.sections(record.result["raw"]))


def test_serving_tells_capacity_and_what_kills_cost(monkeypatch, tmp_path):
    def capacity(bundle, connections, seconds):
        assert bundle == tmp_path
        return {"requests_per_second": 900.0, "p50_ms": 1.0, "p99_ms": 4.0, "errors": {"x": 2}}

    def killed(bundle, times):
        return {"kills": times, "lost": 0, "unsound": []}

    def compared(bundle, model, observations, seconds, rounds, note):
        rates = {"ours": 900.0, "fastapi": 450.0, "mosec": 900.0, "mosec_workers": 1800.0}
        return {"requests_per_second": rates, "half_load": {"p99_ms": 7.0}}

    monkeypatch.setattr(plant_serving_compared, "compared", compared)
    monkeypatch.setattr(plant_serving_compared, "bare_policy", lambda *_: None)
    monkeypatch.setattr(plant, "served_bundle", lambda folder, sizes: tmp_path)
    monkeypatch.setattr(plant_serving, "capacity", capacity)
    monkeypatch.setattr(plant_serving, "killed", killed)
    record = plant.run(plant.Sizes(), ["serving"], tmp_path / "plant.json", "line", quick=False)
    assert record.result["errors"] == {}
    raw = record.result["raw"]["serving"]
    assert (raw["errors"], raw["kills"], raw["lost_records"]) == (2, 20, 0)
    ratios = record.result["ratios"]
    assert (ratios["serving_vs_fastapi"], ratios["serving_vs_mosec"]) == (2.0, 0.5)  # its best
    assert ratios["serving_p99_ms"] == 7.0
    assert "Serving" in html.page("", plant_bench.sections(record.result["raw"]))


# The command -------------------------------------------------------------------------------------


def test_the_suite_is_known_and_each_ratio_has_a_meaning():
    assert "plant" in AGAINST_PEERS
    assert set(plant.RATIOS) >= {
        "td3bc_vs_d3rlpy", "iql_vs_d3rlpy", "cql_vs_d3rlpy", "dmsd_steps_vs_loop",
    }  # fmt: skip
    assert "plant" in figures.MEANING


def test_an_unknown_section_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ValueError, match="steps"):
        plant.command(["--only", "stepz", "--out", str(tmp_path / "x.json")])
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.slow
def test_a_quick_run_writes_figures_and_a_page(tmp_path, monkeypatch, neorl2):
    monkeypatch.setenv(plant_scores.FOLDER, str(neorl2))
    sizes = replace(plant.QUICK, plants=("water",))
    sections = ["steps", "plants", "scores"]
    out = tmp_path / "plant-quick.json"
    record = plant.run(sizes, sections, out, "worldloom bench plant --quick", quick=True)
    assert record.result["errors"] == {}
    result = json.loads(out.read_text())
    assert result["complete"]
    assert result["ratios"]["dmsd_steps_vs_loop"] > 0.0
    assert result["ratios"]["dmsd_best_score_share"] is not None
    rows = result["raw"]["scores"]
    learnt = ["bc", "mbpo"]
    names = ["logged mean action", "logged median action", "best constant", "control loops"]
    assert [row["algo"] for row in rows if row["dataset"] == "dmsd"] == names + learnt
    rows = [row for row in rows if row["algo"] == "bc"]
    own = {row["dataset"]: row["data"] for row in rows}
    as_published = {"dmsd": 56.64, "simglucose": 73.87, "safetyhalfcheetah": 73.56}
    assert {name: own[name] for name in as_published} == pytest.approx(as_published, abs=0.03)
    assert [row["released"] for row in rows] == [True, True, True, False]
    assert rows[0]["last_scores"] == rows[0]["scores"]
    assert [look[0] for look in rows[0]["curves"][0]] == [2, 4]
    row = result["raw"]["plants"][1]
    assert (row["plant"], row["quality"], row["algo"]) == ("water", "medium", "bc")
    assert result["raw"]["plants"][0]["algo"] == "mean action"
    assert row["loops"] > row["return"]
    assert {"return", "filtered", "violated_bare", "violated_filtered"} <= set(row)
    assert result["measured"].keys() == {"steps", "plants", "scores"}
    assert "| dmsd | control loops |" in tables.scores(result)
    assert "| water | medium |" in tables.plants(result)
    page = html.page("", plant_bench.sections(result["raw"]))
    for words in ("Steps of the plant", "Scores", "Plants and qualities"):
        assert words in page


def test_the_choice_among_algorithms_does_not_see_scores():
    rows = [
        {"dataset": "dmsd", "algo": "best constant", "mean": 99.0},
        {"dataset": "dmsd", "algo": "lucky", "mean": 90.0, "model_return": 10.0},
        {"dataset": "dmsd", "algo": "supported", "mean": 60.0, "model_return": 40.0},
        {"dataset": "simglucose", "algo": "other", "mean": 70.0, "model_return": 80.0},
    ]
    assert plant_scores.chosen(rows, "dmsd")["algo"] == "supported"
    assert plant_scores.chosen(rows[:1], "dmsd") is None


def test_constants_and_control_loops_stand_beside_what_learns(monkeypatch):
    env = suites.make("dmsd", horizon=3)
    obs, ends = np.zeros((4, 6)), np.arange(4) == 3
    data = from_columns(obs, np.full((4, 2), 0.5), obs[:, 0], obs, ends & False, ends)
    monkeypatch.setattr(plant_scores, "GRID", 3)
    scorer = plant_scores.Scorer(env, 2)
    found = plant_scores.references(data, scorer)
    logged = ["logged mean action", "logged median action"]
    assert list(found) == [*logged, "best constant", "control loops"]
    assert "in the simulator" in found["best constant"][1]
    corners = [scorer(plant_scores.constant(a, 6)) for a in ([-1.0, -1.0], [1.0, 1.0])]
    assert found["best constant"][0] >= max(corners)
