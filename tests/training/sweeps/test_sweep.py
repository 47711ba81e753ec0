"""A sweep is single runs side by side: same parameters, same scores, one program."""

import json
from types import SimpleNamespace
from typing import ClassVar

import jax
import numpy as np
import pytest
from small_runs import LOOPS, write_data

from worldloom import suites
from worldloom.cli.settings import Schema
from worldloom.cli.sweep_space import parse_space, split_varied
from worldloom.training.config import make_config, merge
from worldloom.training.driver import EVALUATION_KEY, plan_of
from worldloom.training.loops import make_trainer, off_policy
from worldloom.training.run import load, train
from worldloom.training.sweeps import together as side_by_side
from worldloom.training.sweeps import worker as working
from worldloom.training.sweeps.search import Range, goes_on, grid_points, random_points, rungs
from worldloom.training.sweeps.source import Search
from worldloom.training.sweeps.sweep import Place, sweep
from worldloom.training.sweeps.together import InTurn, Together, numbers_of, program_key

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


def total_of(config, problem):
    return plan_of(config, make_trainer(config, problem).steps_per_iteration).total


@pytest.fixture(scope="module")
def swept(tmp_path_factory, compiled_once):
    """A sweep of GRID with two seeds, in one program called three times; and what it ran."""
    ran, train_batch = [], working.Worker.train

    def watched(self, points):
        yield from train_batch(self, points)
        ran.extend(points)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(working.Worker, "train", watched)
        patch.setattr(side_by_side, "TOGETHER", 7)
        out = tmp_path_factory.mktemp("runs")
        space = parse_space(schema(), GRID)
        rows, path = sweep(
            GRID_SUITE, SMALL, space, Search(seeds=2), Place(out), command="as typed"
        )
    runs = [(p, n) for p in ran for n in range(2)]
    return SimpleNamespace(
        rows=rows,
        path=path,
        configs=[p.config for p, _ in runs],
        seeds=[p.seeds[n] for p, n in runs],
        agents=[p.agents[n] for p, n in runs],
        curves=np.stack([p.rows["return"][n] for p, n in runs]),
    )


@pytest.mark.slow
def test_a_run_of_a_sweep_is_the_run_alone(swept):
    n = len(swept.configs) - 1  # none of its numbers is that of the run the program was built from
    config, seed = swept.configs[n], swept.seeds[n]
    problem = GRID_SUITE.problem(config, None)
    alone, last = InTurn([config], [problem], [seed]), total_of(config, problem)
    curve = alone.advance(last)["return"][0]
    assert_close(alone.agents()[0], swept.agents[n])
    np.testing.assert_allclose(curve, swept.curves[n], atol=1e-3)
    # And its score is what `worldloom train` would say at its end.
    trainer = make_trainer(config, problem)
    key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + seed), last)
    score = problem.make_evaluator(trainer, config.eval_episodes)(alone.agents()[0], key).mean
    assert score == pytest.approx(swept.rows[-1]["scores"][-1], abs=1e-3)


def test_runs_with_other_numbers_or_seeds_learn_other_parameters(swept):
    assert len(swept.configs) == len(swept.agents) == 16
    largest = [max(jax.tree.leaves(a), key=lambda x: x.size).ravel() for a in swept.agents]
    flat = np.stack(largest)
    apart = np.abs(flat[:, None] - flat[None]).max(axis=-1) + np.eye(16)
    assert (apart > 1e-4).all()


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
        assert (row["iqm"], row["iqm_low"]) == pytest.approx((row["mean"], row["worst"]), abs=1e-3)
        assert row["curve"] == pytest.approx(swept.curves[runs].mean(axis=0), abs=1e-2)
        spread = np.abs(np.diff(swept.curves[runs], axis=0)[0]) / 2
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
    "steps, with a memory": [SLOW],
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
    total = total_of(usual, problems[0])
    together, alone = Together(configs, problems, [0, 1]), InTurn(configs[1:], problems[1:], [1])
    rows, row = together.advance(total), alone.advance(total)
    assert_close(alone.agents()[0], together.agents()[1])
    assert rows.keys() == row.keys()
    for name in rows:
        np.testing.assert_allclose(row[name][0], rows[name][1], atol=1e-3, err_msg=name)
    assert rows["finite"].all()


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


class Pretended:
    """Runs whose agents are their learning rate and number of worlds, and score as their sum."""

    compile_seconds = 0.0
    calls: ClassVar[list] = []

    def __init__(self, configs, problems, seeds, *, program=None, states=None):
        Pretended.calls.append([(c.seed, s) for c, s in zip(configs, seeds, strict=True)])
        self.configs = configs

    def advance(self, iterations):
        none = np.zeros((len(self.configs), iterations))
        return {"return": none, "finite": none == 0}

    def agents(self):
        return [c.num_worlds + c.hyper.learning_rate for c in self.configs]


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr(Pretended, "calls", [])
    monkeypatch.setattr(working, "Together", Pretended)
    score = lambda self, point, agents, seed: SimpleNamespace(mean=agents)  # noqa: E731
    monkeypatch.setattr(working.Worker, "evaluate", score)
    monkeypatch.setattr(working.Worker, "_beside", lambda self, point: {})
    return Pretended.calls


def test_programs_run_in_turn_and_rows_keep_the_order_of_the_grid(pretended, tmp_path):
    space = parse_space(schema(), ["iqn.learning_rate=0.25,0.5", "num_worlds=1,2"])
    rows, _ = sweep(GRID_SUITE, SMALL, space, Search(seeds=2), Place(tmp_path))
    assert [row["mean"] for row in rows] == [1.25, 2.25, 1.5, 2.5]
    first, second = (row["program"] for row in rows[:2])
    assert first != second
    assert [row["program"] for row in rows[2:]] == [first, second]
    assert pretended == [[(3, 3), (3, 4)] * 2] * 2


@pytest.mark.nightly
@pytest.mark.slow
def test_networks_of_other_sizes_are_scored_as_what_they_are(tmp_path):
    space = parse_space(schema(), ["iqn.hidden=8,16"])
    rows, _ = sweep(GRID_SUITE, SMALL | {"steps": 20}, space, Search(seeds=1), Place(tmp_path))
    assert len({row["program"] for row in rows}) == 2
    assert all(np.isfinite(row["mean"]) for row in rows)


def test_runs_that_must_be_alone_follow_each_other(tmp_path, counting):
    """Such as those that call the host, or train in a way of their suite's own."""
    given = {"env": "counting", "steps": 40, "chunk": 2}
    grid = [("random.gamma", [0.5, 0.9])]
    rows, path = sweep(counting.suite, given, grid, Search(seeds=2), Place(tmp_path))
    assert len({row["program"] for row in rows}) == 2
    assert [row["curve"] for row in rows] == [[0.0, 1.0, 2.0, 3.0]] * 2
    assert [row["scores"] for row in rows] == [[1.5, 1.5]] * 2
    assert json.loads(path.read_text())["complete"]


def test_a_sweep_that_is_stopped_keeps_the_programs_that_are_done(pretended, tmp_path, monkeypatch):
    def second_fails(*arguments, **more):
        if pretended:
            raise KeyboardInterrupt
        return Pretended(*arguments, **more)

    monkeypatch.setattr(working, "Together", second_fails)
    space = parse_space(schema(), ["num_worlds=1,2"])
    with pytest.raises(KeyboardInterrupt):
        sweep(GRID_SUITE, SMALL, space, Search(seeds=1), Place(tmp_path))
    (path,) = tmp_path.glob("*/sweep.json")
    written = json.loads(path.read_text())
    assert not written["complete"]
    assert [row["settings"] for row in written["results"]] == ["num_worlds=1"]


def test_a_point_that_is_wrong_is_found_before_any_runs(tmp_path):
    def refused(text, message):
        space = parse_space(schema(), [text])
        with pytest.raises(ValueError, match=message):
            sweep(GRID_SUITE, SMALL, space, Search(seeds=1), Place(tmp_path))

    refused("iqn.buffer_size=48,5", "buffer_size=5 cannot hold")
    refused("iqn.gamma=0.5,2", "gamma=2.0; it must be in")
    refused("algo=iqn,sac", "sac needs continuous actions")
    refused("world.height=6,2", "a world of 2x6 has no room")
    refused("iqn.gamma=0.5..2", "gamma=2.0; it must be in")
    with pytest.raises(ValueError, match="seeds=0; use at least 1"):
        Search(seeds=0)
    assert not list(tmp_path.iterdir())


# Grids -------------------------------------------------------------------------------------------


def test_values_have_the_types_of_their_settings():
    grid = ["num_worlds=16,32", "iqn.learning-rate=1e-3", "iqn.noisy=true", "dqn.hidden=64x64,32",
            "algo=iqn,dqn", "world.spawn_prob=1e-2", "world.turn_order=simultaneous",
            "steps=1e3", "world.radius=2,null"]  # fmt: skip
    assert parse_space(schema(), grid) == [
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
    grid = parse_space(schema(), ["algo=iqn,random", "iqn.gamma=0.5,0.9"])
    assert [point.label for point in grid_points(GRID_SUITE, SMALL, grid)] == [
        "algo=iqn iqn.gamma=0.5",
        "algo=iqn iqn.gamma=0.9",
        "algo=random",
    ]


def test_points_that_are_the_same_are_run_once():
    grid = [("steps", [60, 80]), ("iqn.hidden", [16, 16.0])]
    assert len(grid_points(GRID_SUITE, SMALL, grid)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iqn.learnin_rate=1", "did you mean '--iqn.learning-rate'"),
        ("dqn.gamma=0.5,0.9", "this run learns with iqn; add --algo dqn"),
        ("world.spwn_prob=0.1", "did you mean '--world.spawn-prob'"),
        ("iqn.gamma=0.9..0.5", "iqn.gamma=0.9..0.5: it must go up"),
        ("iqn.gamma=0..0.5:log", "a logarithm needs numbers above 0"),
        ("iqn.gamma=0.1..0.5,0.9", "or name=1e-4..1e-2:log"),
        ("world.turn_order=1..2", "only numbers have a range; list values"),
        ("iqn.gamma=1e-4..1e-2:lg", "or name=1e-4..1e-2:log"),
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
        parse_space(schema(), [text])


# Ranges, random points and samplers ------------------------------------------------------------


def test_flags_with_several_values_are_varied_and_others_are_settings():
    argv = "--iqn.gamma 0.5..0.9 --iqn.hidden 8,16 --dataset ../a.npz --steps 5 --ppo.hidden 8 8"
    fixed, varied = split_varied(argv.split())
    assert fixed == ["--dataset", "../a.npz", "--steps", "5", "--ppo.hidden", "8", "8"]
    assert varied == ["iqn.gamma=0.5..0.9", "iqn.hidden=8,16"]


def test_a_range_has_the_type_of_its_setting_and_a_counted_one_is_a_list():
    texts = ["iqn.learning-rate=1e-4..1e-2:log", "iqn.hidden=8..32", "iqn.gamma=0.5..0.9:3"]
    assert parse_space(schema(), [*texts, "num_worlds=1..16:log:3"]) == [
        ("iqn.learning_rate", Range(1e-4, 1e-2, log=True)),
        ("iqn.hidden", Range(8, 32, whole=True)),
        ("iqn.gamma", [0.5, 0.7, 0.9]),
        ("num_worlds", [1, 4, 16]),
    ]


def test_random_points_fill_their_ranges_and_do_not_hang_on_how_many_there_are():
    space = parse_space(schema(), ["iqn.learning_rate=1e-4..1e-2:log", "iqn.hidden=1..3"])
    drawn = random_points(GRID_SUITE, SMALL, space, 200, seed=0)
    rates = np.log10([point.values["iqn.learning_rate"] for point in drawn])
    assert (rates.min() < -3.9, rates.max() > -2.1, abs(np.median(rates) + 3) < 0.2) == (True,) * 3
    counts = np.bincount([point.values["iqn.hidden"] for point in drawn])
    assert counts[0] == 0
    assert counts[1:].min() > 40  # the ends are as likely as what lies between
    assert [p.values for p in random_points(GRID_SUITE, SMALL, space, 3, seed=0)] == [
        point.values for point in drawn[:3]
    ]


def test_a_sampler_learns_from_what_was_tried(pretended, tmp_path):
    """The score is 2 plus the learning rate: late points are near the upper end."""
    pytest.importorskip("optuna", reason="needs worldloom[sweep]")
    space = parse_space(schema(), ["iqn.learning_rate=0.01..0.9", "iqn.noisy=true,false"])
    search = Search(points=40, batch=2, seeds=1)
    rows, path = sweep(GRID_SUITE, SMALL, space, search, Place(tmp_path))
    rates = [row["values"]["iqn.learning_rate"] for row in rows]
    assert len(rates) == 40
    assert np.mean(rates[20:]) > 0.6 > np.mean(rates[:10])
    written = json.loads(path.read_text())
    assert (written["search"], written["complete"]) == ("tpe", True)
    assert written["grid"][0] == {"name": "iqn.learning_rate", "values": "0.01..0.9"}


# Early stopping --------------------------------------------------------------------------------


def test_rungs_are_powers_of_the_budget():
    assert rungs(90, 3) == [10, 30]
    assert rungs(1000, 2) == [62, 125, 250, 500]
    assert rungs(7, 2) == []
    assert rungs(90, 0) == []


def test_the_best_share_of_a_rung_goes_on():
    values = [1.0, 5.0, 3.0, float("nan")]
    assert [goes_on(value, values, 2) for value in values] == [False, True, True, False]
    assert [goes_on(value, values, 4) for value in values] == [False, True, False, False]
    assert goes_on(1.0, [1.0], 4), "the first has nobody to be compared with"


@pytest.mark.slow
def test_points_of_rivals_are_told_apart_by_random_play(tmp_path, compiled_once):
    """And not by the sum of their returns, which is the same for all."""
    given = {"env": "tag", "algo": "pqn", "steps": 64, "num_worlds": 2, "eval_episodes": 6,
             "world": {"horizon": 12}, "pqn": {"hidden": (8,), "num_minibatches": 1}}  # fmt: skip
    space = parse_space(schema("pqn", "tag"), ["pqn.gamma=0.5"])
    (row,), _ = sweep(GRID_SUITE, given, space, Search(seeds=2), Place(tmp_path))
    assert row["references"] == {"random play": {"mean": 0.0, "stderr": None}}
    config = make_config(
        GRID_SUITE, given | {"seed": row["seeds"][0], "pqn": given["pqn"] | {"gamma": 0.5}}
    )
    alone = train(GRID_SUITE, config, tmp_path / "alone", report=False).evaluation
    assert row["scores"][0] == pytest.approx(alone.against_random.mean(), abs=1e-3)
    assert row["scores"][0] != pytest.approx(alone.mean), "which is a constant"


@pytest.mark.slow
def test_a_point_that_was_stopped_goes_on_as_a_run(tmp_path, compiled_once):
    """And comes to where it would have come without a stop."""
    given = merge(SMALL, {"steps": 160, "world": {"spawn_prob": 0.3}})
    space = parse_space(schema(), ["iqn.learning_rate=1e-3,1e-2", "iqn.gamma=0.5,0.9"])
    rows, path = sweep(GRID_SUITE, given, space, Search(seeds=2, halving=2), Place(tmp_path))
    stopped = [n for n, row in enumerate(rows) if "stopped_at" in row]
    assert [rows[n]["stopped_at"] for n in stopped] == [80, 80]  # of four, the better half went on
    folder = path.parent / "stopped" / f"point-{stopped[0]}-s4"
    assert len(list(folder.parent.iterdir())) == 4  # two seeds each
    begun = load(GRID_SUITE, folder)
    assert (begun.steps, begun.config.seed, begun.config.steps) == (80, 4, 160)
    assert len(begun.metrics()["return"]) == 4
    resumed = train(GRID_SUITE, begun.config, folder, resume=True, report=False)
    whole = train(GRID_SUITE, begun.config, tmp_path / "whole", report=False)
    assert resumed.steps == 160
    assert_close(resumed.agents, whole.agents)
    np.testing.assert_allclose(resumed.metrics()["return"], whole.metrics()["return"], atol=1e-3)
