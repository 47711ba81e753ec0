"""The rules of coins: who is paid, and who pays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import DOWN, LEFT, RIGHT, UP, picture, scene

from oracles.social import Coins
from worldloom.suites.grid import coins

KEY, STAY = jax.random.key(0), 4
WORLD = coins.world(height=4, width=5)
PARAMS = WORLD.default_params()
TOP = "..... .0r.. ..g1. ....."


@pytest.fixture(scope="module")
def step():
    return jax.jit(WORLD.apply_all)


def start(text: str = TOP) -> coins.GridState:
    return coins.show(WORLD, scene(WORLD, text))


@pytest.mark.parametrize(
    ("actions", "rewards", "after"),
    [
        ((RIGHT, STAY), [1.0, 0.0], "..... ..0.. ..g1. ....."),  # its own
        ((STAY, LEFT), [0.0, 1.0], "..... .0r.. ..1.. ....."),
        ((DOWN, STAY), [0.0, 0.0], "..... ..r.. .0g1. ....."),
        ((STAY, UP), [0.0, 0.0], "..... .0r1. ..g.. ....."),
        ((LEFT, 99), [0.0, 0.0], "..... 0.r.. ..g1. ....."),
    ],
)
def test_any_coin_pays_who_takes_it(step, actions, rewards, after):
    state, reward = step(KEY, start(), jnp.array(actions), PARAMS)
    assert reward.tolist() == rewards
    assert picture(WORLD, state) == after


def test_the_others_colour_costs_the_other_two(step):
    state, reward = step(KEY, start("..... .0g.. ..r1. ....."), jnp.array([RIGHT, LEFT]), PARAMS)
    assert reward.tolist() == [1.0 - 2.0, 1.0 - 2.0]
    assert picture(WORLD, state) == "..... ..0.. ..1.. ....."
    dearer = PARAMS.replace(extra=PARAMS.extra.replace(harm=jnp.float32(0.5)))
    _, reward = step(KEY, start("..... .0g.. ..r1. ....."), jnp.array([RIGHT, STAY]), dearer)
    assert reward.tolist() == [1.0, -0.5]


def test_a_coin_that_both_want_stays_and_harms_nobody_when_moves_are_simultaneous():
    world = coins.world(height=4, width=5, turn_order="simultaneous")
    before = coins.show(world, scene(world, "..... .0g1. ..... ....."))
    state, reward = world.apply_all(KEY, before, jnp.array([RIGHT, LEFT]), PARAMS)
    assert reward.tolist() == [0.0, 0.0]
    assert picture(world, state) == "..... .0g1. ..... ....."


def test_the_edge_of_the_field_is_a_wall_that_costs_nothing(step):
    state, reward = step(KEY, start("0.... ..... ..... ....1"), jnp.array([UP, RIGHT]), PARAMS)
    assert reward.tolist() == [0.0, 0.0]
    assert state.position.tolist() == [[0, 0], [3, 4]]


@pytest.mark.parametrize("seed", range(3))
def test_whole_games_pay_what_a_slow_oracle_pays(step, seed):
    random = np.random.default_rng(seed)
    cells = random.permutation(20)
    rows = np.full(20, ".")
    rows[cells[2:8]], rows[cells[8:14]] = "r", "g"
    rows[cells[0]], rows[cells[1]] = "0", "1"
    text = " ".join("".join(rows[n : n + 5]) for n in range(0, 20, 5))
    state = start(text)
    owners = {divmod(int(c), 5): int(n >= 6) for n, c in enumerate(cells[2:14])}
    oracle = Coins((4, 5), state.position.tolist(), owners)
    for actions in random.integers(0, 5, (40, 2)):
        state, reward = step(KEY, state, jnp.asarray(actions), PARAMS)
        assert reward.tolist() == oracle.turn(actions)
        assert [tuple(p) for p in state.position.tolist()] == oracle.positions
    colours = np.asarray(state.layers[-1]) - WORLD.index["RedCoin"]
    cells = map(tuple, np.argwhere((colours == 0) | (colours == 1)).tolist())
    assert {cell: int(colours[cell]) for cell in cells} == oracle.coins


def test_coins_of_either_colour_appear_on_empty_cells_only():
    chances = jnp.full((1, 4, 5), 0.0004)
    red = WORLD.change_with(chances, start(), PARAMS)
    assert (np.asarray(red.layers[-1]) == WORLD.index["RedCoin"]).sum() == 20 - 3
    green = WORLD.change_with(chances + 0.0005, start(), PARAMS)
    assert (np.asarray(green.layers[-1]) == WORLD.index["GreenCoin"]).sum() == 20 - 3
    none = WORLD.change_with(chances + 0.001, start(), PARAMS)
    assert picture(WORLD, none) == TOP


def test_mistakes_are_named_with_their_remedy():
    with pytest.raises(ValueError, match="coins: coin_rate=2; it must be"):
        coins.world(coin_rate=2)
    with pytest.raises(ValueError, match="coins: 1x1 has no room for two agents"):
        coins.world(height=1, width=1)
