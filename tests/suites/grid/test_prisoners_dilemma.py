"""The rules of the prisoner's dilemma in the matrix: gathering, playing, starting anew, frozen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import DOWN, LEFT, RIGHT, UP

from worldloom.suites.grid import beams
from worldloom.suites.grid import prisoners_dilemma as dilemma

KEY = jax.random.key(0)
INTERACT, STAY = 4, 99
WORLD = dilemma.world(num_agents=3)
PARAMS = WORLD.default_params()
COOPERATE, DEFECT = WORLD.index["Cooperate"], WORLD.index["Defect"]
MET = ((16, 5), (15, 5), (20, 20))  # agent 0 looks up at agent 1; agent 2 is far away


@pytest.fixture(scope="module")
def step():
    return jax.jit(WORLD.apply_all)


@pytest.fixture(scope="module")
def end_turn():
    return jax.jit(lambda key, state: WORLD.end_turn(key, state, PARAMS)[0])


def at(*cells, held=((0, 0),) * 3, frozen=(0, 0, 0), met=(False,) * 3):
    layers = WORLD.start_layers.copy()
    for cell in cells:
        layers[-1][cell] = WORLD.index[beams.FACINGS[UP]]
    extra = dilemma.DilemmaState(
        jnp.full((3,), UP), jnp.array(held), jnp.array(frozen), jnp.array(met)
    )
    state = dilemma.GridState(jnp.asarray(layers), jnp.array(cells), extra)
    return dilemma.show(WORLD, state)


def test_the_map_has_walls_around_sites_inside_and_starting_cells_in_the_corners():
    floor, held, top = WORLD.maps
    assert (len(top), len(top[0])) == (24, 25)
    assert {row[0] + row[-1] for row in top} == {"##"}
    assert top[0] == top[-1] == "#" * 25
    assert sum(row.count("C") for row in top) == sum(row.count("c") for row in floor) == 6
    assert sum(row.count("D") for row in top) == sum(row.count("d") for row in floor) == 6
    assert floor[1][1:5] == floor[1][20:24] == floor[22][1:5] == "ssss"
    assert set("".join(held)) == {"."}


def test_resources_are_held_by_who_walks_over_them_and_everybody_sees_which(step):
    state = at((9, 13), (11, 14), (20, 20))  # beside a site of either kind
    state, reward = step(KEY, state, jnp.array([RIGHT, UP, STAY]), PARAMS)
    assert state.position.tolist() == [[9, 14], [10, 14], [20, 20]]
    assert state.extra.held.tolist() == [[1, 0], [0, 1], [0, 0]]
    assert reward.tolist() == [0.0, 0.0, 0.0]
    assert state.layers[1, 9, 14] == COOPERATE
    assert state.layers[1, 10, 14] == DEFECT
    assert (np.asarray(state.layers[1]) > 0).sum() == 2
    seen = np.asarray(WORLD.observe_agent(state, 0, PARAMS))[:, 5, 5]
    assert seen[COOPERATE] == 1
    assert seen[DEFECT] == 0


@pytest.mark.parametrize(
    ("mine", "theirs", "paid"),
    [
        ((1, 0), (2, 0), (3.0, 3.0)),
        ((1, 0), (0, 1), (-1.0, 5.0)),
        ((0, 3), (1, 0), (5.0, -1.0)),
        ((0, 1), (0, 1), (1.0, 1.0)),
        ((1, 1), (1, 0), (4.0, 1.0)),  # half and half against cooperation
        ((0, 0), (1, 0), (0.0, 0.0)),
        # 1/4 * (3 - 1) / 2 + 3/4 * (5 + 1) / 2, and 1/2 * (3 - 3) / 4 + 1/2 * (5 + 3) / 4.
        ((1, 3), (1, 1), (2.5, 1.0)),
    ],
)
def test_the_matrix_pays_by_the_shares_of_what_both_hold(step, mine, theirs, paid):
    state = at(*MET, held=(mine, theirs, (5, 5)))
    state, reward = step(KEY, state, jnp.array([INTERACT, STAY, STAY]), PARAMS)
    np.testing.assert_allclose(reward, [*paid, 0.0], atol=1e-6)
    assert state.extra.held.tolist() == [[0, 0], [0, 0], [5, 5]]
    assert state.extra.met.tolist() == [False, True, False]


def test_nobody_is_played_who_is_not_on_the_cell_ahead(step):
    held = ((1, 0),) * 3
    for cells in (((16, 5), (14, 5), (16, 6)), ((16, 5), (17, 5), (15, 6))):
        state, reward = step(KEY, at(*cells, held=held), jnp.array([INTERACT, STAY, STAY]), PARAMS)
        assert not reward.any()
        assert not state.extra.met.any()
        assert state.extra.held.tolist() == [[1, 0]] * 3


def test_who_was_met_starts_anew_and_is_frozen_for_a_while(end_turn):
    state = at(*MET, frozen=(0, 0, 5), met=(False, True, False))
    after = jax.vmap(end_turn, (0, None))(jax.random.split(KEY, 300), state)
    positions, frozen = np.asarray(after.position), np.asarray(after.extra.frozen)
    starts = {tuple(cell) for cell in WORLD.start_cells.tolist()}
    assert all(tuple(cell) in starts for cell in positions[:, 1].tolist())
    assert (positions[:, 0] == MET[0]).all()
    assert frozen[:, 1].min() >= 9
    assert frozen[:, 1].max() <= 99
    assert frozen[:, 1].min() < 15
    assert frozen[:, 1].max() > 93
    assert (frozen[:, [0, 2]] == [0, 4]).all()
    assert not after.extra.met.any()


@pytest.mark.parametrize("order", ["interleaved", "simultaneous"])
def test_the_frozen_neither_move_nor_turn_nor_interact(order):
    world = dilemma.world(num_agents=3, turn_order=order)
    state = at(*MET, held=((1, 0),) * 3, frozen=(1, 0, 0))
    for action in (INTERACT, LEFT, DOWN):
        after, reward = world.apply_all(KEY, state, jnp.array([action, STAY, LEFT]), PARAMS)
        assert not reward.any()
        assert after.position.tolist() == [[16, 5], [15, 5], [20, 19]]
        assert after.extra.facing.tolist() == [UP, UP, LEFT]


def test_two_who_meet_each_other_in_one_turn_are_paid_once(step):
    start = at(*MET, held=((1, 0), (1, 0), (0, 0)))
    start = start.replace(extra=start.extra.replace(facing=jnp.array([UP, DOWN, UP])))
    state, reward = step(KEY, start, jnp.array([INTERACT, INTERACT, STAY]), PARAMS)
    assert reward.tolist() == [3.0, 3.0, 0.0]
    assert state.extra.met.tolist() == [True, True, False]


def test_resources_come_back_on_their_own_sites(end_turn):
    bare = at(*MET)
    top = np.array(bare.layers[-1])
    top[(top == COOPERATE) | (top == DEFECT)] = 0
    bare = bare.replace(layers=bare.layers.at[-1].set(top))
    tops = np.asarray(jax.vmap(end_turn, (0, None))(jax.random.split(KEY, 300), bare).layers)[:, -1]
    floor = WORLD.start_layers[0]
    for kind, site in ((COOPERATE, "CooperateSite"), (DEFECT, "DefectSite")):
        sites = floor == WORLD.index[site]
        assert not (tops == kind)[:, ~sites].any()
        assert (tops == kind)[:, sites].mean() == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"payoff": (1.0,)}, "prisoners_dilemma: payoff=.*give 4 numbers"),
        ({"num_agents": 1}, "it takes 2 agents or more"),
        ({"freeze_min": 9, "freeze_max": 3}, "0 <= freeze_min <= freeze_max"),
        ({"regrowth": -1.0}, "prisoners_dilemma: regrowth=-1; it must be"),
    ],
)
def test_mistakes_are_named_with_their_remedy(mistake, message):
    with pytest.raises(ValueError, match=message):
        dilemma.world(**mistake)
