"""A sweep is single runs side by side: same parameters, same scores, one program."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from worldloom.algos.iqn import IQNConfig
from worldloom.train import sweep as sweeping
from worldloom.train.build import build_env, build_loop
from worldloom.train.config import TrainConfig
from worldloom.train.evaluate import Evaluator
from worldloom.train.modes import Fused
from worldloom.train.points import points
from worldloom.train.runner import EVALUATION_KEY
from worldloom.train.sweep import (
    Outcome,
    parse_grid,
    program_key,
    run_together,
    sweep,
    world_program,
)
from worldloom.train.trainers import evaluation_agent

EPISODES = 4
SMALL = TrainConfig(
    seed=3,
    epochs=3,
    num_worlds=2,
    updates_per_epoch=4,
    memory_rows=24,
    world={"num_agents": 2, "height": 6, "width": 6, "horizon": 10, "spawn_prob": 0.1},
    iqn=IQNConfig(hidden=16, batch_size=16),
)
GRID = (
    "iqn.learning_rate=1e-3,1e-2",
    "iqn.gamma=0.5,0.9",
    "epsilon_decay=0.5",
    "world.spawn_prob=0.1,0.3",
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of GRID with two seeds, in one program called three times; and what it ran."""
    ran = []

    def watched(configs, seeds, episodes):
        ran.append((configs, seeds, run_together(configs, seeds, episodes)))
        return ran[-1][-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "run_together", watched)
        patch.setattr(sweeping, "TOGETHER", 7)
        out = tmp_path_factory.mktemp("runs")
        rows, path = sweep(SMALL, parse_grid(GRID), 2, EPISODES, out, command="as typed")
    assert len(ran) == 1
    return rows, path, *ran[0]


def single(config, seed):
    """The same run alone: concrete numbers, the driver of `worldloom train`, the Evaluator."""
    loop = build_loop(config)
    run = jax.jit(loop.init)(jax.random.key(seed))
    run, metrics = Fused(loop, config.epochs).advance(run, config.epochs)
    agents = run.learner.params
    key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + seed), config.epochs)
    greedy = Evaluator(build_env(config), evaluation_agent(config), EPISODES)(agents, key)
    return agents, metrics.score, greedy.scores


def test_a_run_of_a_sweep_is_the_run_alone(swept):
    _, _, configs, seeds, outcome = swept
    n = len(configs) - 1  # none of its numbers is that of the run the program was built from
    agents, curve, scores = single(configs[n], seeds[n])
    beside = jax.tree.map(lambda leaf: leaf[n], outcome.agents)
    for one, other in zip(jax.tree.leaves(agents), jax.tree.leaves(beside), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    np.testing.assert_allclose(curve, outcome.curves[n], atol=1e-3)
    np.testing.assert_allclose(scores, outcome.scores[n], atol=1e-3)


def test_runs_with_other_numbers_or_seeds_learn_other_parameters(swept):
    _, _, configs, _, outcome = swept
    assert len(configs) == 16
    for leaf in jax.tree.leaves(outcome.agents):
        assert leaf.shape[0] == len(configs)
    largest = max(jax.tree.leaves(outcome.agents), key=lambda leaf: leaf.size)
    flat = largest.reshape(len(configs), -1)
    apart = np.abs(flat[:, None] - flat[None]).max(axis=-1) + np.eye(len(configs))
    assert (apart > 1e-4).all()
    assert outcome.finite.all()


def test_a_row_sums_up_the_seeds_of_its_point(swept):
    rows, _, configs, seeds, outcome = swept
    assert len(rows) == 8
    for n, row in enumerate(rows):
        mine = outcome.scores[2 * n : 2 * n + 2].mean(axis=1)
        assert row["seeds"] == [3, 4] == seeds[2 * n : 2 * n + 2]
        assert row["values"]["iqn.learning_rate"] == configs[2 * n].iqn.learning_rate
        assert row["scores"] == pytest.approx(mine, abs=1e-3)
        assert row["mean"] == pytest.approx(mine.mean(), abs=1e-3)
        assert row["stderr"] == pytest.approx(abs(mine[0] - mine[1]) / 2, abs=1e-3)
        assert row["worst"] == pytest.approx(mine.min(), abs=1e-3)
        assert row["diverged"] == 0
    last = "iqn.learning_rate=0.01 iqn.gamma=0.9 epsilon_decay=0.5 world.spawn_prob=0.3"
    assert rows[-1]["settings"] == last


def test_the_file_says_what_ran_where_and_how(swept):
    rows, path, *_ = swept
    written = json.loads(path.read_text())
    assert path.name == "sweep.json"
    assert path.parent.name.startswith("sweep-treasurehunt-")
    assert written["complete"]
    assert (written["command"], written["programs"]) == ("as typed", 1)
    assert written["config"] == json.loads(json.dumps(SMALL.to_dict()))
    assert {"versions", "machine", "grid", "seeds", "episodes"} <= written.keys()
    assert [row["scores"] for row in written["results"]] == [row["scores"] for row in rows]


def test_programs_run_in_turn_and_rows_keep_the_order_of_the_grid(tmp_path, monkeypatch):
    def worlds_as_score(configs, seeds, episodes):
        scores = np.array([[c.num_worlds + c.iqn.learning_rate] * episodes for c in configs])
        none = np.zeros((len(configs), 1))
        return Outcome((), scores, none, none == 0, seconds=1.0, compile_seconds=2.0)

    monkeypatch.setattr(sweeping, "run_together", worlds_as_score)
    grid = parse_grid(["iqn.learning_rate=0.25,0.5", "num_worlds=2,3"])
    rows, _ = sweep(SMALL, grid, seeds=2, episodes=2, out=tmp_path)
    assert [row["mean"] for row in rows] == [2.25, 3.25, 2.5, 3.5]
    assert [row["program"] for row in rows] == [0, 1, 0, 1]
    assert [row["seconds"] for row in rows] == [0.5] * 4


def test_numbers_share_a_program_and_shapes_or_rules_do_not():
    def key(**changes):
        config = replace(SMALL, **changes)
        return program_key(config, world_program(build_env(config)))

    def world(**options):
        return dict(SMALL.world) | options

    base = key()
    assert key(seed=5, epsilon=0.5, iqn=replace(SMALL.iqn, learning_rate=0.5, gamma=0.1)) == base
    assert key(world=world(spawn_prob=0.4, gem_value=3.0)) == base
    assert key(num_worlds=3) != base
    assert key(iqn=replace(SMALL.iqn, hidden=8)) != base
    # Same shapes for the learner, other walls: only the world's code can tell.
    assert key(world=world(height=7)) != base
    assert key(world=world(legacy=True)) != base
    assert key(world=world(turn_order="simultaneous")) != base


def test_a_point_that_is_wrong_is_found_before_any_runs(tmp_path):
    with pytest.raises(ValueError, match="memory_rows=5 cannot hold"):
        sweep(SMALL, parse_grid(["memory_rows=24,5"]), 1, 2, tmp_path)
    with pytest.raises(ValueError, match=r"treasurehunt has no option 'spwn_prob'.*spawn_prob"):
        sweep(SMALL, parse_grid(["world.spwn_prob=0.1"]), 1, 2, tmp_path)
    assert not list(tmp_path.iterdir())


def test_values_have_the_types_of_their_settings():
    grid = ["num_worlds=16,32", "iqn.learning-rate=1e-3", "iqn.noisy=true", "dqn.hidden=64x64,32",
            "algo=iqn,dqn", "world.spawn_prob=1e-2", "world.turn_order=simultaneous"]  # fmt: skip
    assert parse_grid(grid) == [
        ("num_worlds", [16, 32]),
        ("iqn.learning_rate", [0.001]),
        ("iqn.noisy", [True]),
        ("dqn.hidden", [(64, 64), (32,)]),
        ("algo", ["iqn", "dqn"]),
        ("world.spawn_prob", [0.01]),
        ("world.turn_order", ["simultaneous"]),
    ]


def test_an_option_of_an_algorithm_multiplies_only_runs_of_that_algorithm():
    grid = parse_grid(["algo=iqn,random", "iqn.gamma=0.5,0.9"])
    assert [point.label for point in points(SMALL, grid)] == [
        "algo=iqn iqn.gamma=0.5",
        "algo=iqn iqn.gamma=0.9",
        "algo=random",
    ]
    with pytest.raises(ValueError, match=r"no run uses dqn.*add algo=dqn"):
        points(SMALL, parse_grid(["dqn.gamma=0.5,0.9"]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iqn.learnin_rate=1", "did you mean 'iqn.learning_rate'"),
        ("num_worlds", "write name=value,value"),
        ("num_worlds=1,,2", "write name=value,value"),
        ("num_worlds=many", "'many' is not a value of type int"),
        ("iqn.noisy=maybe", "'maybe' is not true or false"),
        ("num_worlds=1,1", "given twice"),
        ("mode=jax_parallel", "worldloom compare"),
        ("chunk=1,2", "changes how a run is executed"),
    ],
)
def test_a_wrong_grid_says_what_would_be_right(text, message):
    with pytest.raises(ValueError, match=message):
        parse_grid([text])
