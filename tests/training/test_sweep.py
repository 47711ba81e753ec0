"""A sweep is single runs side by side: same parameters, same scores, one program."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from small_runs import LOOPS, write_data

from worldloom import suites
from worldloom.cli.settings import Schema
from worldloom.cli.sweep import parse_grid
from worldloom.training import sweep as sweeping
from worldloom.training.config import make_config, merge
from worldloom.training.driver import EVALUATION_KEY, plan_of
from worldloom.training.loops import make_trainer, off_policy
from worldloom.training.sweep import (
    Outcome,
    numbers_of,
    points,
    program_key,
    run_in_turn,
    run_together,
    sweep,
)

GRID_SUITE = suites.suite("grid")
SMALL = {
    "env": "treasurehunt",
    "algo": "iqn",
    "seed": 3,
    "steps": 60,
    "num_worlds": 2,
    "eval_episodes": 4,
    "world": {"num_agents": 2, "height": 6, "width": 6, "horizon": 10, "spawn_prob": 0.1},
    "iqn": {"hidden": 16, "batch_size": 16, "gradient_steps": 4, "buffer_size": 48},
}
GRID = (
    "iqn.learning_rate=1e-3,1e-2",
    "iqn.gamma=0.5,0.9",
    "iqn.epsilon-decay=0.5",
    "world.spawn_prob=0.1,0.3",
)


def schema(algo="iqn", env="treasurehunt", suite=GRID_SUITE) -> Schema:
    return Schema(suite, env, algo)


def assert_close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


# Runs of one program -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory, compiled_once):
    """A sweep of GRID with two seeds, in one program called three times; and what it ran."""
    ran = []

    def watched(configs, problems, seeds):
        ran.append((configs, seeds, run_together(configs, problems, seeds)))
        return ran[-1][-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "run_together", watched)
        patch.setattr(sweeping, "TOGETHER", 7)
        out = tmp_path_factory.mktemp("runs")
        grid = parse_grid(schema(), GRID)
        rows, path = sweep(GRID_SUITE, SMALL, grid, 2, out, command="as typed")
    assert len(ran) == 1
    return SimpleNamespace(rows=rows, path=path, configs=ran[0][0], seeds=ran[0][1], runs=ran[0][2])


def test_a_run_of_a_sweep_is_the_run_alone(swept):
    n = len(swept.configs) - 1  # none of its numbers is that of the run the program was built from
    config, seed = swept.configs[n], swept.seeds[n]
    problem = GRID_SUITE.problem(config, None)
    alone = run_in_turn([config], [problem], [seed])
    assert_close(alone.agents[0], swept.runs.agents[n])
    np.testing.assert_allclose(alone.curves[0], swept.runs.curves[n], atol=1e-3)
    # And its score is what `worldloom train` would say at its end.
    trainer = make_trainer(config, problem)
    last = plan_of(config, trainer.steps_per_iteration).total
    key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + seed), last)
    score = problem.make_evaluator(trainer, config.eval_episodes)(alone.agents[0], key).mean
    assert score == pytest.approx(swept.rows[-1]["scores"][-1], abs=1e-3)


def test_runs_with_other_numbers_or_seeds_learn_other_parameters(swept):
    assert len(swept.configs) == len(swept.runs.agents) == 16
    largest = [max(jax.tree.leaves(a), key=lambda x: x.size).ravel() for a in swept.runs.agents]
    flat = np.stack(largest)
    apart = np.abs(flat[:, None] - flat[None]).max(axis=-1) + np.eye(16)
    assert (apart > 1e-4).all()
    assert swept.runs.finite.all()


def test_a_row_sums_up_the_seeds_of_its_point(swept):
    assert len(swept.rows) == 8
    for n, row in enumerate(swept.rows):
        runs = slice(2 * n, 2 * n + 2)
        scores = np.array(row["scores"])
        assert row["seeds"] == [3, 4] == swept.seeds[runs]
        assert row["values"]["iqn.learning_rate"] == swept.configs[2 * n].hyper.learning_rate
        assert row["mean"] == pytest.approx(scores.mean(), abs=1e-3)
        assert row["stderr"] == pytest.approx(abs(scores[0] - scores[1]) / 2, abs=1e-3)
        assert row["worst"] == pytest.approx(scores.min(), abs=1e-3)
        assert row["curve"] == pytest.approx(swept.runs.curves[runs].mean(axis=0), abs=1e-2)
        spread = np.abs(np.diff(swept.runs.curves[runs], axis=0)[0]) / 2
        assert row["curve_stderr"] == pytest.approx(spread, abs=1e-2)
        assert np.isfinite(row["references"]["random play"]["mean"])
        assert (row["diverged"], row["steps_per_iteration"]) == (0, 20)
    last = "iqn.learning_rate=0.01 iqn.gamma=0.9 iqn.epsilon_decay=0.5 world.spawn_prob=0.3"
    assert swept.rows[-1]["settings"] == last


def test_the_file_says_what_ran_where_and_how(swept):
    written = json.loads(swept.path.read_text())
    assert swept.path.name == "sweep.json"
    assert swept.path.parent.name.startswith("sweep-treasurehunt-")
    assert (written["kind"], written["complete"]) == ("sweep", True)
    assert (written["command"], written["programs"]) == ("as typed", 1)
    assert written["config"] == json.loads(json.dumps(swept.configs[0].to_dict()))
    assert {"versions", "machine", "grid", "seeds"} <= written.keys()
    assert [row["scores"] for row in written["results"]] == [row["scores"] for row in swept.rows]


SLOW = pytest.mark.slow
KINDS = {
    "turns, on-policy": [SLOW],
    "turns, centralised critic": [SLOW],
    "turns, a team": [SLOW],
    "turns, one network for all": [SLOW],
    "steps, off-policy, discrete": [SLOW],
    "steps, off-policy, continuous": [SLOW],
    "steps, on-policy": [],
    "offline": [],
}


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("name", [pytest.param(n, marks=m) for n, m in KINDS.items()])
def test_runs_of_every_loop_can_be_one_program(name, tmp_path, monkeypatch):
    assert KINDS.keys() == LOOPS.keys()
    suite, given = suites.suite(LOOPS[name][0]), LOOPS[name][1]
    if "gymnax" in given["env"]:
        pytest.importorskip("gymnax", reason="needs worldloom[gymnax]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(off_policy, "STEPS_PER_ITERATION", 32)
    write_data(tmp_path / "data.npz")
    given = given | {"steps": 8 if name == "offline" else 96, "eval_episodes": 2}
    usual = make_config(suite, given)
    # Every number that the algorithm has is another one in the second run.
    changed = {}
    for number, value in numbers_of(usual).items():
        for factor in (1.05, 0.95):
            try:
                make_config(suite, merge(given, {"algo_options": {number: value * factor}}))
            except ValueError:
                continue
            changed[number] = value * factor
            break
    other = make_config(suite, given | {"algo_options": changed})
    assert numbers_of(other).keys() == numbers_of(usual).keys()
    configs, problems = [usual, other], [suite.problem(c, None) for c in (usual, other)]
    keys = {program_key(c, p.env) for c, p in zip(configs, problems, strict=True)}
    assert len(keys) == 1
    together = run_together(configs, problems, [0, 1])
    alone = run_in_turn(configs[1:], problems[1:], [1])
    assert_close(alone.agents[0], together.agents[1])
    np.testing.assert_allclose(alone.curves[0], together.curves[1], atol=1e-3)
    assert together.finite.tolist() == [True, True]


def test_numbers_share_a_program_and_shapes_or_rules_do_not():
    def key(**changes):
        config = make_config(GRID_SUITE, merge(SMALL, changes))
        return program_key(config, GRID_SUITE.problem(config, None).env)

    base = key()
    assert key(seed=5, iqn={"learning_rate": 0.5, "gamma": 0.1, "epsilon": 0.5}) == base
    assert key(world={"spawn_prob": 0.4, "gem_value": 3.0}) == base
    assert key(num_worlds=3, iqn={"buffer_size": 72}) != base
    assert key(iqn={"hidden": 8}) != base
    assert key(steps=80) != base
    # Same shapes for the learner, other walls: only the world's code can tell.
    assert key(world={"height": 7}) != base
    assert key(world={"legacy": True}) != base
    assert key(world={"turn_order": "simultaneous"}) != base


# Runs that follow each other ---------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch):
    """Runs whose agents are their learning rate and number of worlds, and score as their sum."""
    calls = []

    def pretend(configs, problems, seeds):
        calls.append([(c.seed, s) for c, s in zip(configs, seeds, strict=True)])
        none = np.zeros((len(configs), 1))
        agents = [c.num_worlds + c.hyper.learning_rate for c in configs]
        return Outcome(agents, none, none[:, 0] == 0, seconds=1.0, compile_seconds=2.0)

    monkeypatch.setattr(sweeping, "run_together", pretend)
    monkeypatch.setattr(sweeping, "_score", lambda run, agents, seed: agents)
    monkeypatch.setattr(sweeping, "_references", lambda run, agents, known: {})
    return calls


def test_programs_run_in_turn_and_rows_keep_the_order_of_the_grid(pretended, tmp_path):
    grid = parse_grid(schema(), ["iqn.learning_rate=0.25,0.5", "num_worlds=1,2"])
    rows, _ = sweep(GRID_SUITE, SMALL, grid, seeds=2, out=tmp_path)
    assert [row["mean"] for row in rows] == [1.25, 2.25, 1.5, 2.5]
    assert [row["program"] for row in rows] == [0, 1, 0, 1]
    assert [row["seconds"] for row in rows] == [0.5] * 4
    assert pretended == [[(3, 3), (3, 4)] * 2] * 2


@pytest.mark.slow
def test_networks_of_other_sizes_are_scored_as_what_they_are(tmp_path):
    grid = parse_grid(schema(), ["iqn.hidden=8,16"])
    rows, _ = sweep(GRID_SUITE, SMALL | {"steps": 20}, grid, seeds=1, out=tmp_path)
    assert [row["program"] for row in rows] == [0, 1]
    assert all(np.isfinite(row["mean"]) for row in rows)


def test_runs_that_must_be_alone_follow_each_other(tmp_path, counting):
    """Such as those that call the host, or train in a way of their suite's own."""
    given = {"env": "counting", "steps": 40, "chunk": 2}
    grid = [("random.gamma", [0.5, 0.9])]
    rows, path = sweep(counting.suite, given, grid, seeds=2, out=tmp_path)
    assert [row["program"] for row in rows] == [0, 1]
    assert [row["curve"] for row in rows] == [[0.0, 1.0, 2.0, 3.0]] * 2
    assert [row["scores"] for row in rows] == [[1.5, 1.5]] * 2
    assert json.loads(path.read_text())["complete"]


def test_a_sweep_that_is_stopped_keeps_the_programs_that_are_done(pretended, tmp_path, monkeypatch):
    pretend = sweeping.run_together

    def second_fails(configs, problems, seeds):
        if pretended:
            raise KeyboardInterrupt
        return pretend(configs, problems, seeds)

    monkeypatch.setattr(sweeping, "run_together", second_fails)
    grid = parse_grid(schema(), ["num_worlds=1,2"])
    with pytest.raises(KeyboardInterrupt):
        sweep(GRID_SUITE, SMALL, grid, seeds=1, out=tmp_path)
    (path,) = tmp_path.glob("*/sweep.json")
    written = json.loads(path.read_text())
    assert not written["complete"]
    assert [row["settings"] for row in written["results"]] == ["num_worlds=1"]


def test_a_point_that_is_wrong_is_found_before_any_runs(tmp_path):
    def refused(text, message):
        with pytest.raises(ValueError, match=message):
            sweep(GRID_SUITE, SMALL, parse_grid(schema(), [text]), 1, tmp_path)

    refused("iqn.buffer_size=48,5", "buffer_size=5 cannot hold")
    refused("iqn.gamma=0.5,2", "gamma=2.0; it must be in")
    refused("algo=iqn,sac", "sac needs continuous actions")
    refused("world.height=6,2", "a world of 2x6 has no room")
    with pytest.raises(ValueError, match="seeds=0; use at least 1"):
        sweep(GRID_SUITE, SMALL, [], 0, tmp_path)
    assert not list(tmp_path.iterdir())


# Grids -------------------------------------------------------------------------------------------


def test_values_have_the_types_of_their_settings():
    grid = ["num_worlds=16,32", "iqn.learning-rate=1e-3", "iqn.noisy=true", "dqn.hidden=64x64,32",
            "algo=iqn,dqn", "world.spawn_prob=1e-2", "world.turn_order=simultaneous",
            "steps=1e3", "world.radius=2,null"]  # fmt: skip
    assert parse_grid(schema(), grid) == [
        ("num_worlds", [16, 32]),
        ("iqn.learning_rate", [0.001]),
        ("iqn.noisy", [True]),
        ("dqn.hidden", [(64, 64), (32,)]),
        ("algo", ["iqn", "dqn"]),
        ("world.spawn_prob", [0.01]),
        ("world.turn_order", ["simultaneous"]),
        ("steps", [1000]),
        ("world.radius", [2, None]),
    ]


def test_an_option_of_an_algorithm_multiplies_only_runs_of_that_algorithm():
    grid = parse_grid(schema(), ["algo=iqn,random", "iqn.gamma=0.5,0.9"])
    assert [point.label for point in points(GRID_SUITE, SMALL, grid)] == [
        "algo=iqn iqn.gamma=0.5",
        "algo=iqn iqn.gamma=0.9",
        "algo=random",
    ]


def test_points_that_are_the_same_are_run_once():
    grid = [("steps", [60, 80]), ("iqn.hidden", [16, 16.0])]
    assert len(points(GRID_SUITE, SMALL, grid)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iqn.learnin_rate=1", "did you mean '--iqn.learning-rate'"),
        ("dqn.gamma=0.5,0.9", "this run learns with iqn; add --algo dqn"),
        ("world.spwn_prob=0.1", "did you mean '--world.spawn-prob'"),
        ("num_worlds", "write name=value,value"),
        ("num_worlds=1,,2", "write name=value,value"),
        ("num_worlds=many", "num_worlds='many'; it must be a number"),
        ("iqn.noisy=maybe", "iqn.noisy='maybe'; it must be true or false"),
        ("num_worlds=1,1", "given twice"),
        ("chunk=1,2", "changes how a run is watched"),
        ("algo=iqm", "there is no algorithm 'iqm'"),
    ],
)
def test_a_wrong_grid_says_what_would_be_right(text, message):
    with pytest.raises(ValueError, match=message):
        parse_grid(schema(), [text])
