"""The rules of the grid engine, each on a map small enough to check by eye."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import DOWN, LEFT, RIGHT, UP, picture, scene

from worldloom.suites.grid.kinds import Kind, bordered
from worldloom.suites.grid.world import MOVES, GridWorld

KINDS = (
    Kind("Empty", ".", (0, 0, 0), becomes=(("Gem", 0.25), ("Trap", 0.5))),
    Kind("Wall", "#", (90, 90, 90), value=-1.0, passable=False),
    Kind("Sand", ",", (200, 200, 100)),
    Kind("Gem", "*", (0, 200, 200), value=10.0),
    Kind("Trap", "x", (200, 0, 0), value=-3.0, becomes=(("Empty", 0.125),)),
    Kind("Bell", "B", (200, 200, 0), value=4.0, passable=False),
    Kind("Agent", "A", (0, 0, 200), passable=False),
)
FLOOR = bordered(4, 6, ".", ",")
WORLD = GridWorld("room", KINDS, (FLOOR, bordered(4, 6, "#", ".")), num_agents=2)
OPEN = GridWorld("open", KINDS, (("....", "...."),), num_agents=1)
PARAMS = WORLD.default_params()
NO_KEY = jax.random.key(0)  # nothing in these rules draws


@pytest.fixture(scope="module")
def turn():
    """One interleaved turn of two agents in WORLD: (state, rewards)."""
    step = jax.jit(lambda state, action: WORLD.apply_all(NO_KEY, state, action, PARAMS))
    return lambda before, *actions: step(scene(WORLD, before), jnp.array(actions))


@pytest.fixture(scope="module")
def change():
    """Spontaneous changes of WORLD for given draws."""
    return jax.jit(lambda draws, state, params: WORLD.change_with(draws, state, params))


# Movement ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "after"),
    [
        (UP, "###### #.0..# #...1# ######"),
        (DOWN, "###### #....# #.0.1# ######"),
        (LEFT, "###### #....# #0..1# ######"),
        (RIGHT, "###### #....# #..01# ######"),
    ],
)
def test_a_move_goes_one_cell_and_leaves_an_empty_one(turn, action, after):
    start = "###### #.0..# #...1# ######" if action == DOWN else "###### #....# #.0.1# ######"
    state, reward = turn(start, action, RIGHT)
    assert picture(WORLD, state) == after
    assert reward.tolist() == [0.0, -1.0]


def test_an_item_pays_its_value_and_is_taken(turn):
    state, reward = turn("###### #0*x1# #....# ######", RIGHT, LEFT)
    assert picture(WORLD, state) == "###### #.01.# #....# ######"
    assert reward.tolist() == [10.0, -3.0]


def test_a_wall_costs_and_stops(turn):
    state, reward = turn("###### #0..1# #....# ######", LEFT, UP)
    assert picture(WORLD, state) == "###### #0..1# #....# ######"
    assert reward.tolist() == [-1.0, -1.0]


def test_a_solid_thing_pays_though_the_move_fails(turn):
    state, reward = turn("###### #0B.1# #....# ######", RIGHT, DOWN)
    assert picture(WORLD, state) == "###### #0B..# #...1# ######"
    assert reward.tolist() == [4.0, 0.0]


def test_agents_stop_each_other_for_nothing(turn):
    state, reward = turn("###### #01..# #....# ######", RIGHT, LEFT)
    assert picture(WORLD, state) == "###### #01..# #....# ######"
    assert reward.tolist() == [0.0, 0.0]


def test_a_later_agent_can_follow_into_the_cell_an_earlier_one_left(turn):
    state, _ = turn("###### #10..# #....# ######", RIGHT, RIGHT)
    assert picture(WORLD, state) == "###### #.10.# #....# ######"


def test_an_earlier_agent_cannot_enter_the_cell_a_later_one_is_about_to_leave(turn):
    state, _ = turn("###### #01..# #....# ######", RIGHT, RIGHT)
    assert picture(WORLD, state) == "###### #0.1.# #....# ######"


def test_of_two_that_want_an_item_the_first_in_order_gets_it(turn):
    state, reward = turn("###### #1*0.# #....# ######", LEFT, RIGHT)
    assert picture(WORLD, state) == "###### #10..# #....# ######"
    assert reward.tolist() == [10.0, 0.0]


@pytest.mark.parametrize("nonsense", [-1, 4, 99])
def test_a_number_that_is_no_action_does_nothing(turn, nonsense):
    before = "###### #0*.1# #....# ######"
    state, reward = turn(before, nonsense, nonsense)
    assert picture(WORLD, state) == before
    assert reward.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("action", [UP, DOWN, LEFT, RIGHT])
def test_beyond_a_map_without_walls_stands_the_outside_kind(action):
    corner = "0... ...." if action in (UP, LEFT) else ".... ...0"
    state, reward = OPEN.apply_agent(
        NO_KEY, scene(OPEN, corner), jnp.int32(0), jnp.int32(action), OPEN.default_params()
    )
    assert picture(OPEN, state) == corner
    assert reward.tolist() == [-1.0]


def test_agents_see_the_moves_of_earlier_agents():
    state = scene(WORLD, "###### #0.*1# #....# ######")
    agent = WORLD.index["Agent"]
    observe = jax.jit(WORLD.observe_agent)
    before = observe(state, jnp.int32(1), PARAMS)
    move = jax.jit(WORLD.apply_agent)
    state, _ = move(NO_KEY, state, jnp.int32(0), jnp.int32(RIGHT), PARAMS)
    after = observe(state, jnp.int32(1), PARAMS)
    assert before[agent, 2].tolist() == [0, 0, 1, 0, 0]  # agent 0 is three cells away: unseen
    assert after[agent, 2].tolist() == [1, 0, 1, 0, 0]


def test_values_are_parameters_that_can_be_swept():
    state = scene(WORLD, "###### #0*.1# #....# ######")
    values = jnp.stack([PARAMS.value, 2 * PARAMS.value])

    def first_reward(value):
        params = PARAMS.replace(value=value)
        return WORLD.apply_agent(NO_KEY, state, jnp.int32(0), jnp.int32(RIGHT), params)[1]

    assert jax.vmap(first_reward)(values).tolist() == [[10.0, 0.0], [20.0, 0.0]]


# Spontaneous changes -------------------------------------------------------------------------


def draws_for(numbers: dict[tuple[int, int], float]) -> jnp.ndarray:
    """Draws (1, H, W) that change nothing but in the given cells."""
    draws = np.full((1, *WORLD.shape), 0.99, np.float32)
    for (y, x), number in numbers.items():
        draws[0, y, x] = number
    return jnp.asarray(draws)


def test_a_draw_picks_the_outcome_by_adding_up_the_chances(change):
    state = scene(WORLD, "###### #0..1# #....# ######")
    just_below = [float(np.nextafter(np.float32(x), np.float32(0))) for x in (0.25, 0.75)]
    cells = {(2, 1): 0.0, (2, 2): just_below[0], (2, 3): 0.25, (2, 4): just_below[1], (1, 2): 0.75}
    after = change(draws_for(cells), state, PARAMS)
    assert picture(WORLD, after) == "###### #0..1# #**xx# ######"


def test_things_that_are_not_empty_follow_their_own_chances(change):
    state = scene(WORLD, "###### #0xx1# #*B..# ######")
    cells = {(1, 2): 0.1, (1, 3): 0.125, (2, 1): 0.0, (2, 2): 0.0}
    after = change(draws_for(cells), state, PARAMS)
    assert picture(WORLD, after) == "###### #0.x1# #*B..# ######"


def test_one_change_does_not_run_into_the_next_in_the_same_turn(change):
    """Empty turns into a trap at a draw at which a trap would turn into empty, and stays one."""
    state = scene(WORLD, "###### #0..1# #....# ######")
    params = PARAMS.replace(rate=jnp.array([0.0, 0.5, 0.5]))
    after = change(draws_for({(2, 2): 0.1}), state, params)
    assert picture(WORLD, after) == "###### #0..1# #.x..# ######"


def test_nothing_appears_under_agents_or_walls_or_on_the_floor(change):
    everywhere = jnp.zeros((1, *WORLD.shape))
    state = scene(WORLD, "###### #0..1# #....# ######")
    after = change(everywhere, state, PARAMS)
    assert picture(WORLD, after) == "###### #0**1# #****# ######"
    # The floor is empty under the walls; an empty floor is no place where things appear.
    assert picture(WORLD, after, layer=0) == " ".join(FLOOR)


def test_only_layers_on_which_something_can_change_are_drawn_for():
    sand_turns = replace(KINDS[2], becomes=(("Empty", 0.1),))
    still = (replace(KINDS[0], becomes=()), *KINDS[1:4], replace(KINDS[4], becomes=()), *KINDS[5:])
    assert WORLD.changing_layers == (1,)
    assert replace(WORLD, kinds=(*still[:2], sand_turns, *still[3:])).changing_layers == (0,)
    assert replace(WORLD, kinds=(*KINDS[:2], sand_turns, *KINDS[3:])).changing_layers == (0, 1)
    assert replace(WORLD, kinds=still).changing_layers == ()


def test_a_kind_that_a_hook_brings_to_the_map_changes_like_any_other():
    seed = Kind("Seed", ":", (0, 90, 0), becomes=(("Gem", 1.0),))
    kinds = (replace(KINDS[0], becomes=()), KINDS[1], KINDS[3], seed, KINDS[6])

    def sow(world, key, state, params):
        layers = jnp.where(state.layers == 0, jnp.int8(world.index["Seed"]), state.layers)
        return state.replace(layers=layers)

    world = GridWorld("sown", kinds, (bordered(3, 4, "#", "."),), num_agents=1, setup=sow)
    state, _ = jax.jit(world.reset)(NO_KEY, world.default_params())
    assert sorted(picture(world, state)) == sorted("#### #0*# ####")


# Reset, hooks, facts ------------------------------------------------------------------------------


def test_agents_start_on_distinct_free_cells_each_as_likely():
    reset = jax.jit(jax.vmap(lambda key: WORLD.reset(key, PARAMS)[0].position))
    count = 2000
    cells = np.asarray(reset(jax.random.split(jax.random.key(1), count)))
    numbers = cells[..., 0] * 6 + cells[..., 1]
    assert (numbers[:, 0] != numbers[:, 1]).all()
    for agent in range(2):
        found, times = np.unique(numbers[:, agent], return_counts=True)
        assert len(found) == len(WORLD.start_cells) == 8
        # Each of 8 cells is expected 250 times, with a standard deviation of 14.8.
        assert np.abs(times - count / 8).max() < 5 * 14.8


def test_hooks_are_called_with_what_the_agent_did_and_met():
    def interact(world, key, state, act, params):
        seen = jnp.array([act.agent, act.action, *act.target, act.met])
        return state.replace(extra=seen), jnp.array([100.0, 200.0])

    def upkeep(world, key, state, params):
        return state, state.extra[1] == 4

    world = replace(WORLD, actions=(*MOVES, "ring"), interact=interact, upkeep=upkeep)
    state = scene(world, "###### #0*.1# #....# ######")
    state, reward = world.apply_agent(NO_KEY, state, jnp.int32(0), jnp.int32(RIGHT), PARAMS)
    assert state.extra.tolist() == [0, RIGHT, 1, 2, world.index["Gem"]]
    assert reward.tolist() == [110.0, 200.0]
    assert not world.end_turn(NO_KEY, state, PARAMS)[1]
    # An action of the world's own is no move: its target is the agent's own cell.
    state, _ = world.apply_agent(NO_KEY, state, jnp.int32(1), jnp.int32(4), PARAMS)
    assert state.extra.tolist() == [1, 4, 1, 4, world.index["Agent"]]
    assert world.end_turn(NO_KEY, state, PARAMS)[1]


def test_agents_can_be_drawn_as_different_kinds():
    state = scene(WORLD, "###### #0*.1# #....# ######")
    drawn = WORLD.draw_agents(state, jnp.array([WORLD.index["Bell"], WORLD.index["Agent"]]))
    before, after = np.asarray(state.layers), np.array(drawn.layers)
    assert after[1, 1, 1] == WORLD.index["Bell"]
    assert after[1, 1, 4] == WORLD.index["Agent"]
    after[1, 1, 1] = before[1, 1, 1]
    assert np.array_equal(after, before)


def test_a_border_leaves_room_inside():
    assert bordered(3, 4, "#", ".") == ("####", "#..#", "####")
    with pytest.raises(ValueError, match="a world of 2x4 has no room inside its walls; use 3x3"):
        bordered(2, 4, "#", ".")


# Mistakes ------------------------------------------------------------------------------------

HOLE = Kind("Hole", "o", (0, 0, 0))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"kinds": (*KINDS, replace(HOLE, name="Gem"))}, "room: two kinds share a name"),
        ({"kinds": (*KINDS, replace(HOLE, glyph="*"))}, "one character of its own as glyph"),
        ({"kinds": (*KINDS, replace(HOLE, glyph="oo"))}, "one character of its own as glyph"),
        ({"kinds": (*KINDS, replace(HOLE, becomes=(("Gm", 0.1),)))},
         "no kind 'Gm'; did you mean 'Gem'"),
        ({"kinds": (*KINDS, replace(HOLE, becomes=(("Gem", 0.9), ("Trap", 0.2))))},
         "chances of Hole turning into something add up to 1.1; they must be chances between"),
        ({"kinds": (*KINDS, replace(HOLE, becomes=(("Gem", -0.1),)))}, "add up to -0.1"),
        ({"kinds": (*KINDS, replace(HOLE, becomes=(("Gem", float("nan")),)))}, "add up to nan"),
        ({"kinds": (*KINDS, replace(HOLE, becomes=(("Agent", 0.1),)))},
         "'Agent' is part of a spontaneous change; agents neither appear nor vanish"),
        ({"kinds": tuple(Kind(str(i), chr(200 + i), (0, 0, 0)) for i in range(128))},
         "128 kinds are too many; use at most 127"),
        ({"agent": "Agnet"}, "no kind 'Agnet'; did you mean 'Agent'"),
        ({"agent": "Gem"}, "agent='Gem' can be walked into.* give the kind 'Gem' passable=False"),
        ({"outside": "Sand"}, "outside='Sand' can be walked into.*or leave the map"),
        ({"channels": ("Empty", "Stone")}, "no kind 'Stone'; known: Empty, Wall"),
        ({"unseen": ("Sad",)}, "no kind 'Sad'; did you mean 'Sand'"),
        ({"maps": ((".....", "...."),)}, r"rows of sizes \[\(2, 4\), \(2, 5\)\].*rectangle"),
        ({"maps": (("...",), ("...", "..."))}, "every layer must be a rectangle of one size"),
        ({"maps": ()}, "every layer must be a rectangle"),
        ({"maps": (("..?.",),)}, r"no kind has the glyph '\?' used in a map; known: \. #"),
        ({"maps": (("..A.",),)}, "a map shows the kind 'Agent'; leave agents out of maps"),
        ({"actions": ("up", "left", "right", "down")}, "the first four must be"),
        ({"turn_order": "random"}, "turn_order='random' is not known; known: interleaved"),
        ({"view": "ascii"}, "view='ascii' is not known; known: onehot, rgb"),
        ({"radius": 0}, "radius=0; it must be at least 1"),
        ({"num_agents": 9},
         "room: num_agents=9 does not fit the 8 free cells of a 4x6 world; use 1 to 8 or a larger"),
        ({"num_agents": 0}, "num_agents=0 does not fit"),
    ],
)  # fmt: skip
def test_mistakes_in_a_world_are_named_with_their_remedy(mistake, message):
    with pytest.raises(ValueError, match=message) as caught:
        replace(WORLD, **mistake)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("room: ")
