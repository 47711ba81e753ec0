"""Data of every plant: as good as their names, whole episodes, the same for the same seed."""

import json

import jax
import numpy as np
import pytest

import worldloom
from worldloom import suites
from worldloom.suites.plant import datasets as plant_data
from worldloom.suites.plant.controllers import QUALITIES, TUNINGS
from worldloom.suites.plant.datasets import DATA_QUALITIES, EPISODES, episode_returns, make_data

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def some():
    return make_data("reactor", "mixed", 3000, seed=1)


@pytest.mark.parametrize(
    "name",
    [
        n if n == "reactor" else pytest.param(n, marks=pytest.mark.slow)
        for n in suites.names("plant")
    ],
)
def test_better_controllers_earn_more(name):
    """On average over the episodes of one batch; the gaps are wider than chance explains."""
    returns = {}
    for quality in DATA_QUALITIES:
        horizon = suites.make(name).spec.horizon
        data = make_data(name, quality, steps=EPISODES * horizon // 2, seed=0)
        returns[quality] = episode_returns(data).mean()
        assert np.isfinite(data.rows.obs).all()
    assert returns["random"] < returns["mixed"] < returns["medium"] < returns["expert"], returns
    way = (returns["medium"] - returns["random"]) / (returns["expert"] - returns["random"])
    assert way < 0.95, returns  # there is something to learn from medium data


def test_a_reactor_is_held_by_an_expert_and_lost_by_chance():
    lost = {}
    for quality in ("expert", "random"):
        data = make_data("reactor", quality, steps=64 * 200)
        lost[quality] = float(data.rows.terminated.sum()) / len(data.starts)
    assert lost["expert"] < 0.02
    assert lost["random"] > 0.5


def test_columns_have_their_shapes_and_types(some):
    rows = some.rows
    assert some.size == len(rows.reward) >= 3000
    assert rows.obs.shape == rows.next_obs.shape == (some.size, 5)
    assert rows.action.shape == (some.size, 2)
    assert some.cost.shape == (some.size, 3)
    assert some.log_prob.shape == (some.size,)
    assert rows.terminated.dtype == rows.truncated.dtype == bool
    assert np.abs(rows.action).max() <= 1.0
    assert (some.cost >= 0).all()
    assert (some.cost > 0).any()
    assert np.isfinite(some.log_prob).all()


def test_episodes_are_whole_and_linked(some):
    rows, starts = some.rows, np.asarray(some.starts)
    over = np.asarray(rows.terminated | rows.truncated)
    assert over[-1]
    ends = np.append(starts[1:], some.size) - 1
    np.testing.assert_array_equal(np.flatnonzero(over), ends)
    within = ~over[:-1]
    np.testing.assert_array_equal(rows.next_obs[:-1][within], rows.obs[1:][within])
    lengths = ends - starts + 1
    assert lengths.max() == 200
    assert (rows.truncated[ends] == (lengths == 200)).all()
    assert not (rows.terminated & rows.truncated).any()
    assert rows.terminated.any()  # some ran away, and were not played on
    assert some.size - lengths[-1] < 3000  # no more episodes than were asked for


def test_the_same_seed_gives_the_same_data_and_another_others(some):
    again = make_data("reactor", "mixed", 3000, seed=1)
    assert again.digest == some.digest
    assert again.provenance == some.provenance
    assert make_data("reactor", "mixed", 3000, seed=2).digest != some.digest


def test_a_larger_dataset_begins_with_the_smaller_one(some):
    more = make_data("reactor", "mixed", 20_000, seed=1)
    assert more.size >= 20_000
    np.testing.assert_array_equal(more.rows.obs[: some.size], some.rows.obs)
    np.testing.assert_array_equal(more.log_prob[: some.size], some.log_prob)


def test_rows_are_what_the_plant_does(some):
    """An undisturbed plant does in every row what its model says."""
    data = make_data("reactor", "medium", 2000, disturbance=0.0)
    model = suites.make("reactor", disturbance=0.0).base.model()
    expected = jax.jit(jax.vmap(model))(data.rows.obs, data.rows.action)
    np.testing.assert_allclose(data.rows.next_obs, expected, rtol=1e-4, atol=1e-4)


def test_costs_are_those_of_the_limits(some):
    temperature = np.asarray(some.rows.next_obs[:, 1])
    bound = float(suites.make("reactor").default_params().bounds[0])
    np.testing.assert_allclose(some.cost[:, 0], np.maximum(temperature - bound, 0.0), atol=1e-4)


@pytest.mark.parametrize("quality", DATA_QUALITIES)
def test_each_quality_has_its_share_of_the_episodes(quality):
    shares, plant = np.float32(plant_data.SHARES[quality]), suites.make("dmsd").base.plant
    keys = jax.random.split(jax.random.key(0), 100)
    tuning = jax.vmap(lambda key: plant_data._tunings(plant, key, shares))(keys)
    assert tuning.noise.shape == (100, EPISODES)
    found = [(~tuning.uniform & (tuning.gain == TUNINGS[name].gain)).mean() for name in QUALITIES]
    np.testing.assert_allclose([*found[:2], tuning.uniform.mean()], shares, atol=0.02)


def test_provenance_says_how_to_make_it_again():
    data = make_data("dmsd", "random", 10, seed=7, disturbance=0.5, horizon=20)
    told = dict(data.provenance)
    assert told["env"] == "dmsd"
    assert told["quality"] == "random"
    assert (told["seed"], told["steps"]) == ("7", "10")
    assert told["version"] == worldloom.__version__
    options = json.loads(told["options"])
    assert options == {"disturbance": 0.5, "horizon": 20}
    assert data.size == 20
    assert data.name == "dmsd-random"
    same = make_data(
        told["env"], told["quality"], int(told["steps"]), int(told["seed"]), **options
    )  # fmt: skip
    assert same.digest == data.digest


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="there is no world 'reactr'; did you mean 'reactor'"):
        make_data("reactr", "expert", 10)
    with pytest.raises(ValueError, match="tag is not a plant"):
        make_data("tag", "expert", 10)
    with pytest.raises(ValueError, match="quality='best'; use one of expert, medium, mixed"):
        make_data("reactor", "best", 10)
    with pytest.raises(ValueError, match="reactor: steps=0; ask for at least 1"):
        make_data("reactor", "expert", 0)
    with pytest.raises(ValueError, match="seed=-1; it must be in 0"):
        make_data("reactor", "expert", 10, seed=-1)
