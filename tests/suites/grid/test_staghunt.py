"""The rules of the stag hunt, in both turn orders."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import DOWN, LEFT, RIGHT, UP, picture, scene

from worldloom.suites.grid import staghunt

KEY = jax.random.key(0)
STAY = 99
ORDERS = ("interleaved", "simultaneous")
WORLDS = {
    order: staghunt.world(
        height=5, width=6, num_agents=4, num_stags=1, num_hares=1, turn_order=order
    )
    for order in ORDERS
}
PARAMS = WORLDS["interleaved"].default_params()
STAG, HARE = WORLDS["interleaved"].index["Stag"], WORLDS["interleaved"].index["Hare"]


@pytest.fixture(scope="module")
def steps():
    return {order: jax.jit(world.apply_all) for order, world in WORLDS.items()}


@pytest.fixture(scope="module")
def end_turn():
    """The end of a turn in which nothing comes back, or with the given numbers of animals."""
    end = jax.jit(WORLDS["interleaved"].end_turn)

    def play(state, num_stags=0, num_hares=0, key=KEY):
        counts = PARAMS.extra.replace(
            num_stags=jnp.int32(num_stags), num_hares=jnp.int32(num_hares)
        )
        return end(key, state, PARAMS.replace(extra=counts))[0]

    return play


@pytest.fixture(scope="module")
def turn(steps):
    """One turn, without its end: (state, rewards)."""

    def play(order, before, *actions):
        nobody = staghunt.StagHuntState(jnp.full((4,), staghunt.NO_STAG))
        return steps[order](KEY, scene(WORLDS[order], before, nobody), jnp.array(actions), PARAMS)

    return play


@pytest.mark.parametrize("order", ORDERS)
def test_a_hare_pays_who_takes_it(turn, order):
    state, reward = turn(order, "###### #0h.1# #2..3# #....# ######", RIGHT, STAY, STAY, STAY)
    assert picture(WORLDS[order], state) == "###### #.0.1# #2..3# #....# ######"
    assert reward.tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("order", ORDERS)
def test_a_lone_hunter_gets_nothing_and_the_stag_stays(turn, end_turn, order):
    before = "###### #0S1.# #2..3# #....# ######"
    state, reward = turn(order, before, RIGHT, STAY, STAY, STAY)
    assert reward.tolist() == [0.0, 0.0, 0.0, 0.0]
    assert picture(WORLDS[order], end_turn(state, num_stags=1)) == before


@pytest.mark.parametrize("order", ORDERS)
def test_two_hunters_catch_the_stag_and_are_both_paid(turn, end_turn, order):
    before = "###### #0S1.# #3.2.# #....# ######"
    state, reward = turn(order, before, RIGHT, LEFT, STAY, STAY)
    assert reward.tolist() == [5.0, 5.0, 0.0, 0.0]
    # The stag stands until the turn is over, so that others can still join.
    assert picture(WORLDS[order], state) == before
    assert picture(WORLDS[order], end_turn(state)) == before.replace("S", ".")


@pytest.mark.parametrize("order", ORDERS)
def test_everybody_who_joins_is_paid_in_full(turn, order):
    before = "###### #.0..# #1S2.# #.3..# ######"
    _, reward = turn(order, before, DOWN, RIGHT, LEFT, STAY)
    assert reward.tolist() == [5.0, 5.0, 5.0, 0.0]
    _, reward = turn(order, before, DOWN, RIGHT, LEFT, UP)
    assert reward.tolist() == [5.0, 5.0, 5.0, 5.0]


@pytest.mark.parametrize("order", ORDERS)
def test_standing_beside_a_stag_is_not_hunting_it(turn, order):
    _, reward = turn(order, "###### #0S1.# #2..3# #....# ######", RIGHT, RIGHT, UP, STAY)
    assert reward.tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("order", ORDERS)
def test_two_hunters_of_different_stags_catch_neither(turn, end_turn, order):
    before = "###### #0S..# #2S1.# #...3# ######"
    state, reward = turn(order, before, RIGHT, LEFT, STAY, STAY)
    assert reward.tolist() == [0.0, 0.0, 0.0, 0.0]
    assert picture(WORLDS[order], end_turn(state, num_stags=2)) == before


@pytest.mark.parametrize("order", ORDERS)
def test_two_stags_can_be_caught_in_one_turn(turn, end_turn, order):
    before = "###### #0S1.# #2S3.# #....# ######"
    state, reward = turn(order, before, RIGHT, LEFT, RIGHT, LEFT)
    assert reward.tolist() == [5.0, 5.0, 5.0, 5.0]
    assert picture(WORLDS[order], end_turn(state)) == before.replace("S", ".")


def test_hunters_of_different_turns_do_not_add_up(turn, steps, end_turn):
    before = "###### #0S1.# #2..3# #....# ######"
    state, _ = turn("interleaved", before, RIGHT, STAY, STAY, STAY)
    state = end_turn(state, num_stags=1)
    assert state.extra.hunted.tolist() == [staghunt.NO_STAG] * 4
    state, reward = steps["interleaved"](KEY, state, jnp.array([99, LEFT, 99, 99]), PARAMS)
    assert reward.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_what_was_taken_comes_back_on_free_cells(end_turn):
    nobody = staghunt.StagHuntState(jnp.full((4,), staghunt.NO_STAG))
    state = scene(WORLDS["interleaved"], "###### #0h.1# #2..3# #....# ######", nobody)
    places = np.zeros(WORLDS["interleaved"].shape, int)
    for seed in range(60):
        after = end_turn(state, num_stags=2, num_hares=3, key=jax.random.key(seed))
        top = np.asarray(after.layers[-1])
        assert (top == STAG).sum() == 2
        assert (top == HARE).sum() == 3
        assert top[1, 2] == HARE  # what is there stays
        assert (np.asarray(after.position) == np.asarray(state.position)).all()
        places += top == STAG
    free = np.asarray(state.layers[-1]) == 0
    assert (places[free] > 0).all()
    assert (places[~free] == 0).all()


def test_a_full_field_takes_what_it_can_hold(end_turn):
    nobody = staghunt.StagHuntState(jnp.full((4,), staghunt.NO_STAG))
    state = scene(WORLDS["interleaved"], "###### #0h.1# #2..3# #....# ######", nobody)
    after = end_turn(state, num_stags=3, num_hares=20)
    assert (np.asarray(after.layers[-1]) == STAG).sum() == 3
    assert (np.asarray(after.layers[-1]) == HARE).sum() == 12 - 4 - 3


def test_a_new_field_holds_the_given_numbers():
    world = staghunt.world(num_stags=3, num_hares=7)
    reset = jax.jit(jax.vmap(lambda key: world.reset(key, world.default_params())[0].layers[-1]))
    tops = np.asarray(reset(jax.random.split(KEY, 50)))
    assert ((tops == STAG).sum(axis=(1, 2)) == 3).all()
    assert ((tops == HARE).sum(axis=(1, 2)) == 7).all()
    assert ((tops == world.index["Agent"]).sum(axis=(1, 2)) == 4).all()


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"num_agents": 1}, "staghunt: num_agents=1; it takes at least 2 to hunt a stag"),
        ({"num_stags": 50, "num_hares": 11}, "do not fit the 60 cells that 4 agents leave free"),
        ({"num_hares": -1}, "num_hares=-1 do not fit"),
    ],
)
def test_mistakes_are_named_with_their_remedy(mistake, message):
    with pytest.raises(ValueError, match=message):
        staghunt.world(**mistake)
