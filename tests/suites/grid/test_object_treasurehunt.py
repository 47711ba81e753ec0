"""The rules of the object-loop treasure hunt, each on a map small enough to check by eye."""

import numpy as np
import pytest

from oracles.heuristics import nearest_gem_policy, random_policy
from oracles.objects import load
from worldloom.suites.grid.object_world import KINDS, MOVES, ObjectTreasureHunt

UP, DOWN, LEFT, RIGHT = MOVES
SYMBOLS = {"#": "Wall", ".": "EmptyEntity", "g": "Gem", "f": "Food", "b": "Bone"}


def draw_world(picture: str, items="gems", **options) -> ObjectTreasureHunt:
    """A world from a picture: # wall, . empty, g gem, f food, b bone, digits agents in order."""
    rows = picture.split()
    agents = sorted(symbol for row in rows for symbol in row if symbol.isdigit())
    env = ObjectTreasureHunt(
        height=len(rows),
        width=len(rows[0]),
        num_agents=len(agents),
        items=items,
        rng=np.random.default_rng(0),
        **options,
    )
    layers = env.layers()
    positions = np.zeros((len(agents), 2), dtype=int)
    for y, row in enumerate(rows):
        for x, symbol in enumerate(row):
            layers[1, y, x] = KINDS[items].index(SYMBOLS.get(symbol, "Agent"))
            if symbol.isdigit():
                positions[int(symbol)] = y, x
    load(env, layers, positions)
    return env


def picture(env: ObjectTreasureHunt) -> list[str]:
    symbols = {kind: symbol for symbol, kind in SYMBOLS.items()}
    rows = [[symbols.get(env.kinds[cell], "?") for cell in row] for row in env.layers()[1]]
    for number, (y, x) in enumerate(env.positions):
        rows[y][x] = str(number)
    return ["".join(row) for row in rows]


def view(env: ObjectTreasureHunt, i: int) -> dict[str, np.ndarray]:
    side = 2 * env.radius + 1
    window = env.pov(i).reshape(len(env.kinds), side, side)
    return dict(zip(env.kinds, window, strict=True))


def make_env(seed: int = 0, **options) -> ObjectTreasureHunt:
    return ObjectTreasureHunt(rng=np.random.default_rng(seed), **options)


def test_a_new_world_has_walls_around_sand_below_agents_inside_and_no_items():
    env = make_env()
    floor, objects = env.layers()
    border = np.ones((10, 10), dtype=bool)
    border[1:-1, 1:-1] = False
    kinds = KINDS["gems"]
    assert np.all(floor[border] == kinds.index("Wall"))
    assert np.all(floor[~border] == kinds.index("Sand"))
    assert np.all(objects[border] == kinds.index("Wall"))
    inside = objects[~border]
    assert np.count_nonzero(inside == kinds.index("Agent")) == 5
    assert np.count_nonzero(inside == kinds.index("EmptyEntity")) == 64 - 5
    assert env.turn == 0
    assert env.total_reward == 0.0
    assert not env.is_done


def test_agents_can_fill_the_whole_interior_but_not_more():
    env = make_env(height=4, width=5, num_agents=6)
    assert {tuple(p) for p in env.positions} == {(y, x) for y in (1, 2) for x in (1, 2, 3)}
    with pytest.raises(ValueError, match="num_agents=7 does not fit the 6 free cells of a 4x5"):
        make_env(height=4, width=5, num_agents=7)


def test_reset_forgets_items_and_counters_and_uses_fresh_objects():
    env = make_env(spawn_prob=1.0)
    env.take_turn(random_policy(np.random.default_rng(1)))
    env.is_done = True
    before = env.map
    env.reset()
    assert KINDS["gems"].index("Gem") not in env.layers()
    assert env.turn == 0
    assert env.total_reward == 0.0
    assert not env.is_done
    assert not {id(entity) for entity in before.flat} & {id(entity) for entity in env.map.flat}


@pytest.mark.parametrize(
    ("action", "row", "column"), [(UP, 1, 2), (DOWN, 3, 2), (LEFT, 2, 1), (RIGHT, 2, 3)]
)
def test_actions_move_one_cell_and_leave_an_empty_cell(action, row, column):
    env = draw_world("##### #...# #.0.# #...# #####")
    assert env.act(0, action) == 0.0
    assert env.positions.tolist() == [[row, column]]
    assert env.map[2, 2, 1].kind == "EmptyEntity"
    assert env.map[2, 2, 1].has_transitions


def test_walking_onto_a_gem_pays_its_value_and_consumes_it():
    env = draw_world("##### #.0g# #####", gem_value=7.0)
    assert env.act(0, RIGHT) == 7.0
    assert picture(env) == ["#####", "#..0#", "#####"]
    assert env.total_reward == 7.0


def test_walking_into_a_wall_pays_minus_one_and_does_not_move():
    env = draw_world("#### #0.# ####")
    assert env.act(0, UP) == -1.0
    assert picture(env) == ["####", "#0.#", "####"]


def test_walking_into_an_agent_pays_nothing_and_does_not_move():
    env = draw_world("#### #01# ####")
    assert env.act(0, RIGHT) == 0.0
    assert picture(env) == ["####", "#01#", "####"]


def test_a_move_that_fails_still_pays_the_value_of_the_target():
    env = draw_world("#### #01# ####")
    env.agents[1].value = 3.0
    assert env.act(0, RIGHT) == 3.0
    assert env.positions.tolist() == [[1, 1], [1, 2]]


@pytest.mark.parametrize(("symbol", "value"), [("g", 10.0), ("f", 5.0), ("b", -10.0)])
def test_mixed_items_pay_their_values(symbol, value):
    env = draw_world(f"#### #0{symbol}# ####", items="mixed")
    assert env.act(0, RIGHT) == value
    assert picture(env) == ["####", "#.0#", "####"]


def test_an_unknown_action_is_refused():
    env = draw_world("### #0# ###")
    with pytest.raises(ValueError, match="action=-1 is unknown"):
        env.act(0, -1)


def test_spawn_is_strict_and_touches_empty_object_cells_only():
    env = draw_world("##### #0.g# #...# #####", spawn_prob=0.25)
    draws = np.zeros((4, 5))
    draws[1, 2] = 0.25  # not below the probability
    draws[2, 1] = np.nextafter(0.25, 0.0)
    draws[2, 2] = 0.9
    env.spawn(draws)
    assert picture(env) == ["#####", "#0.g#", "#g.g#", "#####"]


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("items", ["gems", "mixed"])
def test_the_floor_never_spawns(items, legacy):
    env = make_env(items=items, legacy=legacy, spawn_prob=1.0)
    floor = env.layers()[0]
    env.spawn()
    np.testing.assert_array_equal(env.layers()[0], floor)
    assert "EmptyEntity" not in {entity.kind for entity in env.map[:, :, 1].flat}


def test_a_cell_that_an_agent_leaves_can_spawn_on_the_next_turn():
    env = draw_world("#### #0.# ####", spawn_prob=1.0)
    env.spawn()
    assert picture(env) == ["####", "#0g#", "####"]
    env.act(0, RIGHT)
    env.spawn()
    assert picture(env) == ["####", "#g0#", "####"]


def test_the_spawn_rate_is_the_given_one():
    env = make_env(height=102, width=102, num_agents=1, spawn_prob=0.02)
    env.spawn()
    gems = np.count_nonzero(env.layers()[1] == KINDS["gems"].index("Gem"))
    assert abs(gems - 200) < 5 * np.sqrt(200)


def test_mixed_items_are_chosen_by_the_third_the_draw_falls_into():
    env = draw_world("######### #0......# #########", items="mixed", spawn_prob=0.3)
    draws = np.full((3, 9), 0.9)
    draws[1, 2:8] = 0.0, 0.099, 0.101, 0.199, 0.201, np.nextafter(0.3, 0.0)
    env.spawn(draws)
    assert picture(env) == ["#########", "#0ggffbb#", "#########"]


def test_the_view_is_egocentric_and_kind_major():
    env = draw_world("####### #.....# #.g...# #..0..# #....1# #.....# #######")
    seen = view(env, 0)
    assert env.pov(0).shape == (125,)
    assert env.pov(0).dtype == np.float32
    assert np.argwhere(seen["Gem"]).tolist() == [[1, 1]]
    assert np.argwhere(seen["Agent"]).tolist() == [[2, 2], [3, 4]]
    assert np.all(seen["Sand"] == 1.0)
    assert not seen["EmptyEntity"].any()
    assert not seen["Wall"].any()


def test_legacy_walls_are_seen_twice_but_padding_once():
    seen = view(draw_world("###### #0...# #....# #....# ######"), 0)
    expected = np.zeros((5, 5))
    expected[0, :] = expected[:, 0] = 1.0  # beyond the map
    expected[1, 1:] = expected[1:, 1] = 2.0  # a wall on both layers
    np.testing.assert_array_equal(seen["Wall"], expected)
    np.testing.assert_array_equal(seen["Sand"], expected == 0.0)


@pytest.mark.parametrize(("items", "legacy"), [("gems", False), ("mixed", True), ("mixed", False)])
def test_other_walls_are_seen_once(items, legacy):
    env = draw_world("###### #0...# #....# #....# ######", items=items, legacy=legacy)
    seen = view(env, 0)
    expected = np.zeros((5, 5))
    expected[:2, :] = expected[:, :2] = 1.0
    np.testing.assert_array_equal(seen["Wall"], expected)


def test_mixed_worlds_have_six_kinds_and_no_sand():
    env = draw_world("##### #0gf# #b..# #####", items="mixed")
    seen = view(env, 0)
    assert list(seen) == ["EmptyEntity", "Wall", "Gem", "Bone", "Food", "Agent"]
    assert env.pov(0).shape == (150,)
    cells = {kind: np.argwhere(seen[kind]).tolist() for kind in ("Gem", "Food", "Bone", "Agent")}
    assert cells == {"Gem": [[2, 3]], "Food": [[2, 4]], "Bone": [[3, 2]], "Agent": [[2, 2]]}
    assert not seen["EmptyEntity"].any()


@pytest.mark.parametrize("items", ["gems", "mixed"])
@pytest.mark.parametrize(("size", "radius"), [((10, 10), 2), ((4, 7), 3), ((9, 5), 0)])
def test_the_tuned_view_equals_the_full_scan(items, size, radius):
    height, width = size
    env = make_env(height=height, width=width, radius=radius, items=items, spawn_prob=0.2)
    for _ in range(5):
        env.take_turn(random_policy(np.random.default_rng(2)))
        for i in range(env.num_agents):
            env.tuned = False
            full = env.pov(i)
            env.tuned = True
            np.testing.assert_array_equal(env.pov(i), full)


def test_later_agents_see_the_moves_of_earlier_agents():
    env = draw_world("###### #0..1# ######", spawn_prob=0.0)
    agents_seen = {}

    def policy(i, obs):
        agents_seen[i] = np.argwhere(obs.reshape(5, 5, 5)[4]).tolist()
        return RIGHT if i == 0 else LEFT

    assert env.take_turn(policy) == [0.0, 0.0]
    assert agents_seen == {0: [[2, 2]], 1: [[2, 0], [2, 2]]}
    assert picture(env) == ["######", "#.01.#", "######"]


def test_the_first_agent_in_order_gets_the_gem_and_the_second_bumps_into_it():
    env = draw_world("##### #0g1# #####", spawn_prob=0.0)
    assert env.take_turn(lambda i, obs: RIGHT if i == 0 else LEFT) == [10.0, 0.0]
    assert picture(env) == ["#####", "#.01#", "#####"]


def test_a_turn_spawns_before_anyone_acts():
    env = draw_world("#### #0.# ####", spawn_prob=1.0)
    assert env.take_turn(lambda i, obs: RIGHT) == [10.0]
    assert env.turn == 1
    assert env.total_reward == 10.0


@pytest.mark.parametrize("items", ["gems", "mixed"])
@pytest.mark.parametrize("legacy", [True, False])
def test_loading_restores_layers_views_and_what_happens_next(items, legacy):
    env = make_env(items=items, legacy=legacy, spawn_prob=0.3)
    env.take_turn(random_policy(np.random.default_rng(3)))
    copy = make_env(seed=9, items=items, legacy=legacy, spawn_prob=0.3)
    load(copy, env.layers(), env.positions)
    draws = np.random.default_rng(4).random((10, 10))
    for world in (env, copy):
        world.spawn(draws)
    np.testing.assert_array_equal(copy.layers(), env.layers())
    for i in range(5):
        np.testing.assert_array_equal(copy.pov(i), env.pov(i))
        assert copy.act(i, i % 4) == env.act(i, i % 4)
    np.testing.assert_array_equal(copy.layers(), env.layers())


def test_the_same_generator_gives_the_same_epoch():
    def play():
        env, policy = make_env(seed=5), random_policy(np.random.default_rng(6))
        return [env.take_turn(policy) for _ in range(20)], env.layers().tolist()

    assert play() == play()


def test_the_heuristic_walks_to_the_nearest_gem():
    env = draw_world("####### #.....# #.0.g.# #.....# #..g..# #######")
    policy = nearest_gem_policy(env, np.random.default_rng(0))
    assert {policy(0, env.pov(0)) for _ in range(20)} == {RIGHT}


def test_the_heuristic_goes_around_agents_and_takes_no_step_into_walls():
    env = draw_world("##### #01g# #...# #####")
    policy = nearest_gem_policy(env, np.random.default_rng(0))
    assert {policy(0, env.pov(0)) for _ in range(20)} == {DOWN}


@pytest.mark.parametrize(
    ("make_policy", "low", "high"), [(random_policy, 230, 280), (nearest_gem_policy, 500, 560)]
)
def test_heuristics_score_what_they_are_known_to_score(make_policy, low, high):
    env, rng = make_env(tuned=True), np.random.default_rng(0)
    policy = make_policy(rng) if make_policy is random_policy else make_policy(env, rng)
    scores = []
    for _ in range(30):
        env.reset()
        for _ in range(50):
            env.take_turn(policy)
        scores.append(env.total_reward)
    assert low < np.mean(scores) < high
