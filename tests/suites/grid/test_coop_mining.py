"""The rules of cooperative mining: iron at once, gold together and in time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import RIGHT, UP, scene

from worldloom.suites.grid import coop_mining as mining

KEY = jax.random.key(0)
MINE, STAY = 4, 99
SIZE = {"height": 7, "width": 9, "num_agents": 3, "iron_rate": 0.0, "gold_rate": 0.0}
WORLD = mining.world(**SIZE)
PARAMS = WORLD.default_params()
SOIL, IRON, GOLD, BEGUN = (WORLD.index[n] for n in ("Soil", "Iron", "Gold", "BegunGold"))
# Agents 0 and 1 look right, at what lies in their row; agent 2 looks up at it from below.
FIELD = "######### #.......# #0.1....# #.......# #.....2.# #.......# #########"


@pytest.fixture(scope="module")
def turn():
    """One whole turn: all act, the world moves."""

    def play(state, actions):
        state, reward = WORLD.apply_all(KEY, state, actions, PARAMS)
        return WORLD.end_turn(KEY, state, PARAMS)[0], reward

    return jax.jit(play)


def at(ores, picture: str = FIELD, world=WORLD):
    extra = mining.MiningState(
        jnp.array([RIGHT, RIGHT, UP]), jnp.zeros((3, 7, 9), bool), jnp.zeros((7, 9), jnp.int32)
    )
    # The inner wall is not in these pictures.
    state = scene(world, picture, extra)
    floor = np.array(state.layers[0])
    for cell, ore in ores.items():
        floor[cell] = ore
    return state.replace(layers=state.layers.at[0].set(floor))


def test_iron_pays_one_miner_at_once_and_is_gone(turn):
    state, reward = turn(at({(2, 3 + 1): IRON}), jnp.array([STAY, MINE, STAY]))
    assert reward.tolist() == [0.0, 1.0, 0.0]
    assert state.layers[0, 2, 4] == SOIL
    state, reward = turn(state, jnp.array([STAY, MINE, STAY]))
    assert not reward.any()


def test_the_first_of_two_has_the_iron_when_both_reach_it(turn):
    state, reward = turn(at({(2, 4): IRON}), jnp.array([MINE, MINE, STAY]))
    assert reward.tolist() == [1.0, 0.0, 0.0], "agents do not stop a blow"
    assert state.layers[0, 2, 4] == SOIL


def test_a_blow_reaches_three_cells_and_the_first_ore(turn):
    far = at({(2, 5): IRON})  # four from agent 0, two from agent 1
    _, reward = turn(far, jnp.array([MINE, STAY, STAY]))
    assert not reward.any()
    state, reward = turn(at({(2, 4): IRON, (2, 5): GOLD}), jnp.array([STAY, MINE, STAY]))
    assert reward.tolist() == [0.0, 1.0, 0.0]
    assert state.layers[0, 2, 5] == GOLD


def test_a_wall_stops_a_blow(turn):
    walled = FIELD.replace("#0.1....#", "#0.1#...#")
    _, reward = turn(at({(2, 5): IRON}, walled), jnp.array([STAY, MINE, STAY]))
    assert not reward.any()


def test_ore_lies_in_the_ground_and_can_be_walked_over(turn):
    state, _ = turn(at({(2, 4): IRON}), jnp.array([STAY, RIGHT, STAY]))
    assert state.position[1].tolist() == [2, 4]
    assert state.layers[0, 2, 4] == IRON


def test_gold_pays_two_in_one_turn(turn):
    state, reward = turn(at({(2, 4): GOLD}), jnp.array([MINE, MINE, STAY]))
    assert reward.tolist() == [8.0, 8.0, 0.0]
    assert state.layers[0, 2, 4] == SOIL
    assert not state.extra.miners.any()


def test_gold_pays_the_last_alone_if_asked_to():
    world = mining.world(**SIZE, gold_pays="last")
    state = at({(2, 4): GOLD}, world=world)
    _, reward = world.apply_all(KEY, state, jnp.array([MINE, MINE, STAY]), PARAMS)
    assert reward.tolist() == [0.0, 8.0, 0.0]


@pytest.mark.parametrize(("wait", "paid"), [(0, 8.0), (1, 8.0), (2, 0.0), (3, 0.0)])
def test_the_second_miner_has_three_turns(turn, wait, paid):
    state, reward = turn(at({(2, 4): GOLD}), jnp.array([MINE, STAY, STAY]))
    assert not reward.any()
    assert state.layers[0, 2, 4] == BEGUN
    for _ in range(wait):
        state, reward = turn(state, jnp.array([STAY, STAY, STAY]))
    assert state.layers[0, 2, 4] == (BEGUN if wait < 2 else GOLD)
    state, reward = turn(state, jnp.array([STAY, MINE, STAY]))
    assert reward.tolist() == [paid, paid, 0.0]


def test_one_miner_that_strikes_twice_is_one(turn):
    state = at({(2, 4): GOLD})
    for _ in range(2):
        state, reward = turn(state, jnp.array([MINE, STAY, STAY]))
        assert not reward.any()
    assert state.layers[0, 2, 4] == BEGUN
    assert state.extra.left[2, 4] == 1, "striking again does not win time"


def test_begun_gold_is_one_for_each_place(turn):
    two = at({(2, 4): GOLD, (2, 6): GOLD})
    # Agent 2 looks up at (2, 6), two cells above it.
    state, reward = turn(two, jnp.array([MINE, STAY, MINE]))
    assert not reward.any()
    state, reward = turn(state, jnp.array([STAY, MINE, STAY]))
    assert reward.tolist() == [8.0, 8.0, 0.0]
    assert state.layers[0, 2, 6] == BEGUN


def test_ore_appears_in_soil_only():
    world = mining.world()
    state, _ = jax.jit(world.reset)(KEY, world.default_params())
    layer = world.changing_layers.index(0)
    draws = jnp.full((len(world.changing_layers), *world.shape), 0.5)
    for draw, ore in ((0.0001, "Iron"), (0.00025, "Gold")):
        after = world.change_with(draws.at[layer].set(draw), state, world.default_params())
        floor = np.asarray(after.layers[0])
        soil = np.asarray(state.layers[0]) == world.index["Soil"]
        assert (floor[soil] == world.index[ore]).all()
        assert (floor[~soil] == np.asarray(state.layers[0])[~soil]).all()


def test_all_that_was_paid_was_ore():
    """Conservation with all paid: 1 for each iron and 8 for each of two miners of each gold."""
    env = mining.make(height=9, width=9, num_agents=4, horizon=60)
    params = env.default_params().replace(rate=jnp.array([0.05, 0.05]))
    world = env.base

    @jax.jit
    def play(key):
        def one(state, key):
            before = state.inner.inner.layers[0]
            act_key, key = jax.random.split(key)
            action = jax.random.randint(act_key, (4,), 0, 5)
            state, timestep = env.step(key, state, action, params)
            after = state.inner.inner.layers[0]

            def lost(*kinds):
                had = sum(before == world.index[k] for k in kinds) > 0
                has = sum(after == world.index[k] for k in kinds) > 0
                return (had & ~has).sum()

            return state, (timestep.reward.sum(), lost("Iron"), lost("Gold", "BegunGold"))

        return jax.lax.scan(one, env.reset(key, params)[0], jax.random.split(key, 60))[1]

    paid, iron, gold = map(np.asarray, jax.vmap(play)(jax.random.split(KEY, 8)))
    # What was mined and came back within the same turn is paid, too: at most what was paid.
    assert (paid >= iron + 16 * gold).all()
    assert (paid % 1 == 0).all()
    assert paid.sum() == pytest.approx((iron + 16 * gold).sum(), rel=0.25)
    assert gold.sum() > 0


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"gold_pays": "none"}, "coop_mining: gold_pays='none'; use 'all' or 'last'"),
        ({"gold_miners": 9}, "use 1 to num_agents=6 miners"),
        ({"iron_rate": 2.0}, "coop_mining: iron_rate=2; it must be"),
        ({"mining_range": 0}, "and 1 or more for the others"),
    ],
)
def test_mistakes_are_named_with_their_remedy(mistake, message):
    with pytest.raises(ValueError, match=message):
        mining.world(**mistake)
