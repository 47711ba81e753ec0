"""Population-based training finds a number that is known to be best, by copies that are copies."""

import json
import shutil
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from oracles import guess
from worldloom import suites
from worldloom.cli import main as cli
from worldloom.core.draws import is_key
from worldloom.training.folders import locked
from worldloom.training.run import load
from worldloom.training.sweeps import population_run as running
from worldloom.training.sweeps.population import Generations, lineage
from worldloom.training.sweeps.population_run import Breeding, PopulationRun, train_populations
from worldloom.training.sweeps.search import Range
from worldloom.training.trainer import Repeated

BEST = 1e-2


@struct.dataclass
class Climber:
    height: jax.Array
    key: jax.Array


def gain(rate):
    """What an iteration brings: most where the rate is `BEST`, and nothing far away from it."""
    return np.exp(-(np.log(rate / BEST) ** 2))


class Climbers:
    """Members that climb by `gain` of their rate; those with a rate above 1 fall to NaN."""

    def init(self, seeds, numbers, params):
        return Climber(jnp.zeros(len(seeds)), jax.vmap(jax.random.key)(seeds))

    def iterate(self, runs, numbers, params):
        height = runs.height + jnp.exp(-(jnp.log(numbers["rate"] / BEST) ** 2))
        height = jnp.where(numbers["rate"] > 1.0, jnp.nan, height)
        return runs.replace(height=height), {"return": height, "finite": jnp.isfinite(height)}


SIZE, GENERATIONS = 12, 40


@pytest.fixture(scope="module")
def climbed():
    """Rows of all generations, and the population after them."""
    program = Generations(Climbers(), SIZE, {"other": 1.0}, {"rate": (1e-5, 10.0)})
    rates = np.geomspace(1e-5, 5.0, SIZE).astype(np.float32)
    start = program.init(jnp.uint32(0), {"rate": jnp.asarray(rates)}, ())
    population, rows = Repeated(program.iterate, GENERATIONS)(start, GENERATIONS, np.int32(5), ())
    return rates, rows, jax.device_get(population)


def test_the_number_that_is_known_to_be_best_is_found(climbed):
    rates, rows, population = climbed
    found = rows["numbers"]["rate"][-1][np.argmax(rows["score"][-1])]
    assert BEST / 1.3 < found < BEST * 1.3
    # And more than any member would have come to that kept its first number.
    steps = 5 * GENERATIONS
    assert population.runs.height.max() > steps * gain(rates[rates < 1.0]).max()
    assert population.runs.height.max() <= steps


def test_a_copy_goes_on_with_the_run_of_its_parent_and_numbers_near_to_its_own(climbed):
    rates, rows, population = climbed
    height, rate = np.zeros(SIZE), rates
    all_rates = [*rows["numbers"]["rate"], population.numbers["rate"]]
    for score, parents, now, after in zip(
        rows["score"], rows["parents"], all_rates[:-1], all_rates[1:], strict=True
    ):
        np.testing.assert_allclose(now, rate, rtol=1e-5)
        climb = np.where(rate > 1.0, np.nan, gain(rate))
        mean = height + 3 * climb  # of heights after 1, 2, 3, 4 and 5 iterations
        np.testing.assert_allclose(score, np.where(np.isfinite(mean), mean, -np.inf), rtol=1e-4)
        copied = parents != np.arange(SIZE)
        assert copied.sum() >= 1
        assert (score[parents][copied] > score[copied]).all()
        height, factor = (height + 5 * climb)[parents], after / rate[parents]
        np.testing.assert_allclose(factor[~copied], 1.0)
        np.testing.assert_allclose(np.abs(np.log(factor[copied])), np.log(1.2), rtol=1e-3)
        rate = after
    np.testing.assert_allclose(population.runs.height, height, rtol=1e-4)


def test_those_that_diverged_are_replaced_and_copies_do_not_repeat_their_parents(climbed):
    rates, rows, population = climbed
    diverged = np.flatnonzero(rates > 1.0)
    assert len(diverged) >= 1
    assert (rows["score"][0][diverged] == -np.inf).all()
    assert not np.isin(rows["parents"][0][diverged], diverged).any()
    assert np.isfinite(population.runs.height).all()
    words = jax.random.key_data(population.runs.key)
    assert len(np.unique(words, axis=0)) == SIZE, "every member has random numbers of its own"


def test_those_without_a_score_are_left_alone():
    """No episode has ended there yet; one that diverged is replaced all the same."""
    program = Generations(Climbers(), 6, {}, {"rate": (1e-5, 10.0)})
    nan, inf = np.nan, np.inf

    def parents(*score):
        return program.parents(jnp.asarray(score), jax.random.key(0)).tolist()

    assert parents(nan, nan, nan, nan, nan, nan) == [0, 1, 2, 3, 4, 5]
    assert parents(nan, 1.0, nan, 3.0, 2.0, nan) in ([0, 3, 2, 3, 3, 5], [0, 3, 2, 3, 4, 5])
    chosen = parents(nan, -inf, nan, nan, nan, nan)
    assert chosen[1] != 1
    assert chosen[:1] + chosen[2:] == [0, 2, 3, 4, 5]
    assert parents(nan, -inf, nan, 3.0, nan, nan)[1] == 3


class Late(Climbers):
    """Only the odd ones end an episode."""

    def iterate(self, runs, numbers, params):
        runs, rows = super().iterate(runs, numbers, params)
        odd = jnp.arange(len(runs.height)) % 2 == 1
        return runs, rows | {"return": jnp.where(odd, rows["return"], jnp.nan)}


def test_a_member_has_no_score_before_its_first_episode_ends():
    program = Generations(Late(), 4, {}, {"rate": (1e-5, 10.0)})
    rates = jnp.asarray([1e-3, 1e-2, 1e-3, 1e-3], jnp.float32)
    start = program.init(jnp.uint32(0), {"rate": rates}, ())
    _, row = jax.jit(program.iterate)(start, np.int32(2), ())
    assert np.isnan(row["score"]).tolist() == [True, False, True, False]
    assert row["parents"].tolist() == [0, 1, 2, 1]


def test_a_line_is_followed_back_through_copies():
    # Generation 0: member 2 copies 0. Generation 1: member 1 copies 2.
    assert lineage([[0, 1, 0], [0, 2, 2], [0, 1, 2]], last=1) == [0, 2, 1]
    assert lineage([[0, 1, 2]], last=2) == [2]


# Real runs ---------------------------------------------------------------------------------------

GIVEN = {
    "env": "guess.py:make",
    "algo": "ppo",
    "steps": 20_000,
    "num_worlds": 4,
    "eval_episodes": 16,
    "world": {"choices": 2},
    "ppo": {"hidden": (8,), "unroll_length": 8, "num_minibatches": 2, "num_epochs": 1},
}
RATES = [("ppo.learning_rate", Range(1e-4, 1e-1, log=True))]


def make_run(**more):
    suite = suites.suite_of("guess.py:make", choices=2)
    return PopulationRun(suite, GIVEN, RATES, Breeding(**{"members": 4, "seeds": 1} | more))


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    shutil.copy(Path(guess.__file__), tmp_path / "guess.py")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_folder")
def test_a_generation_is_at_least_an_iteration_and_at_most_all_of_them():
    """An iteration has 32 steps, and there are 625 of them."""
    expected = {0: (32, 20), 1: (1, 625), 100: (3, 209), 10**6: (625, 1)}
    for steps, counts in expected.items():
        run = make_run(every=steps)
        assert (run.every, run.generations) == counts


@pytest.mark.usefixtures("in_folder")
def test_the_folder_of_a_population_is_for_one_process_and_one_configuration(tmp_path, monkeypatch):
    folder, run = tmp_path / "population", make_run()
    row = {"seed": 0, "score": 1.0}
    monkeypatch.setattr(PopulationRun, "train", lambda *_: row)
    train_populations(run, folder)
    train_populations(run, folder)
    monkeypatch.setitem(GIVEN, "eval_episodes", 8)
    with pytest.raises(ValueError, match=r"begun with other settings \(eval_episodes\)"):
        train_populations(make_run(), folder)
    with locked(folder), pytest.raises(ValueError, match="is being trained by process"):
        train_populations(run, folder)
    assert json.loads((folder / "sweep.json").read_text())["config"]["eval_episodes"] == 16


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--population 4 --study runs/x --halving 3", "--halving, --study: that is for a search"),
        ("--population 4 --launch local:2", "--launch: that is for a search; leave it out"),
        ("--exploit-every 100", "--exploit-every: that is for a population; add --population"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(line, message, capsys):
    assert cli.main(["sweep", "tag", *line.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("in_folder")
def test_a_population_learns_and_goes_on_as_if_it_had_not_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "SAVE_EVERY", 0.0)
    run, stop = make_run(), threading.Event()
    whole, path = train_populations(run, tmp_path / "whole")
    assert json.loads(path.read_text())["complete"]
    (result,) = whole["results"]
    assert np.shape(result["scores"]) == (20, 4)
    assert 1e-4 <= result["numbers"]["learning_rate"] <= 1e-1
    assert result["score"] == pytest.approx(guess_optimum(run), rel=0.1)

    advance, told = run._advance, []

    def stopped_at_five(*arguments):
        told.append(1)
        if len(told) == 5:
            stop.set()
        return advance(*arguments)

    monkeypatch.setattr(run, "_advance", stopped_at_five)
    with pytest.raises(KeyboardInterrupt):
        run.train(0, tmp_path / "parts", stop)
    again = make_run().train(0, tmp_path / "parts", threading.Event())
    assert again["parents"] == result["parents"]
    np.testing.assert_array_equal(again["scores"], result["scores"])
    ends = [
        load(run.suite, tmp_path / name / "best-s0").trainer.state() for name in ("whole", "parts")
    ]
    for one, other in zip(*map(jax.tree.leaves, ends), strict=True):
        one, other = (jax.random.key_data(x) if is_key(x) else x for x in (one, other))
        np.testing.assert_array_equal(one, other)
    # The best member is a run like any other.
    best = load(run.suite, tmp_path / "parts" / "best-s0")
    assert best.config.hyper.learning_rate == pytest.approx(again["numbers"]["learning_rate"])
    assert best.steps == 20_000
    assert best.evaluation is None
    assert best.evaluate().mean == pytest.approx(result["score"], rel=0.1)


def guess_optimum(run):
    """What is scored by who always guesses right."""
    return run.problem.env.spec.horizon or 1.0


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ([("ppo.hidden", [(8,), (16,)])], "ppo.hidden cannot change while runs go on"),
        ([("world.horizon", Range(5, 9))], "world.horizon cannot change"),
        ([("ppo.learning_rate", [0.1, 0.2])], "give ranges of ppo."),
    ],
)
def test_what_cannot_change_in_a_run_is_refused(space, message):
    given = {"env": "tag", "algo": "ppo", "steps": 1000}
    with pytest.raises(ValueError, match=message):
        PopulationRun(suites.suite("grid"), given, space, Breeding())
