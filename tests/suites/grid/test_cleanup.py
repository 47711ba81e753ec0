"""The rules of cleanup: river, orchard, beam."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import DOWN, LEFT, RIGHT, UP, picture, scene

from worldloom.core import draws
from worldloom.core.rollout import run_episode_batch
from worldloom.core.transforms import base_state, batch
from worldloom.suites.grid import cleanup

KEY = jax.random.key(0)
CLEAN, STAY = 4, 99
WORLD = cleanup.world(height=7, width=11, num_agents=2)
PARAMS = WORLD.default_params()
WATER, FOUL = WORLD.index["Water"], WORLD.index["Pollution"]
FIELD = "########### #.........# #.........# #...0.....# #.........# #........1# ###########"


@pytest.fixture(scope="module")
def step():
    return jax.jit(WORLD.apply_all)


@pytest.fixture(scope="module")
def upkeep():
    return jax.jit(lambda key, state, params: cleanup.upkeep(WORLD, key, state, params)[0])


def at_start(before: str = FIELD, facing=(UP, UP), foul=()) -> cleanup.GridState:
    """A state with the given river cells foul, or all of them."""
    nobody = jnp.zeros(2, bool)
    extra = cleanup.CleanupState(jnp.array(facing), nobody, nobody, jnp.int32(0))
    state = scene(WORLD, before, extra)
    floor = np.array(state.layers[0])
    if foul == "all":
        floor[floor == WATER] = FOUL
    else:
        for cell in foul:
            floor[cell] = FOUL
    return state.replace(layers=state.layers.at[0].set(floor))


def foul_cells(state) -> set[tuple[int, int]]:
    return {tuple(cell) for cell in np.argwhere(np.asarray(state.layers[0]) == FOUL).tolist()}


def test_river_path_and_orchard_lie_side_by_side():
    rows = picture(WORLD, at_start(), layer=0).split()
    assert rows == ["." * 11, *[".~~~,,,%%%."] * 5, "." * 11]
    assert cleanup.world(height=9, width=16).maps[0][4] == ".~~~~,,,,,,%%%%."


def test_the_beam_cleans_three_cells_ahead_and_one_to_either_side(step):
    state, reward = step(KEY, at_start(facing=(LEFT, UP), foul="all"), jnp.array([4, 99]), PARAMS)
    river = {(y, x) for y in range(1, 6) for x in range(1, 4)}
    assert foul_cells(state) == river - {(y, x) for y in (2, 3, 4) for x in (1, 2, 3)}
    assert reward.tolist() == [0.0, 0.0]
    assert picture(WORLD, state) == FIELD


def test_length_and_width_of_the_beam_are_numbers_of_the_world(step):
    params = PARAMS.replace(
        extra=PARAMS.extra.replace(beam_length=jnp.float32(2), beam_width=jnp.float32(0))
    )
    state, _ = step(KEY, at_start(facing=(LEFT, UP), foul="all"), jnp.array([4, 99]), params)
    river = {(y, x) for y in range(1, 6) for x in range(1, 4)}
    assert foul_cells(state) == river - {(3, 3), (3, 2)}


@pytest.mark.parametrize(
    ("facing", "cleaned"),
    [
        (UP, {(1, 2), (2, 2), (1, 1), (2, 1), (1, 3), (2, 3)}),
        (DOWN, {(4, 2), (5, 2), (4, 1), (5, 1), (4, 3), (5, 3)}),
        (LEFT, {(3, 1), (2, 1), (4, 1)}),
        (RIGHT, {(3, 3), (2, 3), (4, 3)}),
    ],
)
def test_the_beam_goes_where_the_agent_faces_and_spares_its_own_cell(step, facing, cleaned):
    inside = FIELD.replace("#...0.....#", "#.0.......#")
    start = at_start(inside, facing=(facing, UP), foul="all")
    state, _ = step(KEY, start, jnp.array([CLEAN, STAY]), PARAMS)
    assert foul_cells(start) - foul_cells(state) == cleaned


def test_a_move_turns_the_agent_even_if_it_fails_and_everybody_sees_it(step):
    state, _ = step(KEY, at_start(), jnp.array([LEFT, RIGHT]), PARAMS)
    assert state.extra.facing.tolist() == [LEFT, RIGHT]
    assert state.position.tolist() == [[3, 3], [5, 9]]  # agent 1 stands at the wall
    assert WORLD.kinds[state.layers[-1, 3, 3]].name == "FacingLeft"
    assert WORLD.kinds[state.layers[-1, 5, 9]].name == "FacingRight"
    state, _ = step(KEY, state, jnp.array([CLEAN, 99]), PARAMS)
    assert state.extra.facing.tolist() == [LEFT, RIGHT]  # neither cleaning nor standing turns
    state, _ = step(KEY, state, jnp.array([DOWN, UP]), PARAMS)
    assert state.extra.facing.tolist() == [DOWN, UP]


def test_apples_pay_who_takes_them(step):
    before = FIELD.replace("#........1#", "#.......o1#")
    state, reward = step(KEY, at_start(before), jnp.array([STAY, LEFT]), PARAMS)
    assert reward.tolist() == [0.0, 1.0]
    assert not (np.asarray(state.layers) == WORLD.index["Apple"]).any()


@pytest.mark.parametrize(
    ("foul", "share_of_the_rate"), [(0, 1.0), (3, 0.5), (6, 0.0), (9, 0.0), (15, 0.0)]
)
def test_growth_falls_in_a_line_with_pollution_down_to_nothing(foul, share_of_the_rate):
    """15 river cells; nothing grows from 6 foul ones on, a share of 0.4."""
    river = [(y, x) for y in range(1, 6) for x in range(1, 4)]
    rate = cleanup.growth(WORLD, at_start(foul=river[:foul]), PARAMS)
    assert float(rate) == pytest.approx(0.05 * share_of_the_rate, abs=1e-7)


def test_apples_grow_on_bare_orchard_cells_only(upkeep):
    always = PARAMS.replace(extra=PARAMS.extra.replace(apple_rate=jnp.float32(1.0)))
    after = upkeep(KEY, at_start(), always)
    assert picture(WORLD, after) == (
        "########### #......ooo# #......ooo# #...0..ooo# #......ooo# #......oo1# ###########"
    )
    after = upkeep(KEY, at_start(foul="all"), always)
    assert picture(WORLD, after) == FIELD


def test_the_river_turns_foul_by_itself_and_only_the_river():
    change = jax.jit(WORLD.change_with)
    nothing = change(jnp.full((2, *WORLD.shape), 0.5), at_start(), PARAMS)
    assert foul_cells(nothing) == set()
    everything = change(jnp.zeros((2, *WORLD.shape)), at_start(), PARAMS)
    assert foul_cells(everything) == {(y, x) for y in range(1, 6) for x in range(1, 4)}
    assert picture(WORLD, everything) == FIELD


def test_about_half_the_river_is_foul_at_the_start():
    floors = jax.jit(jax.vmap(lambda key: WORLD.reset(key, PARAMS)[0].layers[0]))(
        jax.random.split(KEY, 200)
    )
    foul = np.asarray(floors == FOUL).sum()
    river = foul + np.asarray(floors == WATER).sum()
    assert river == 200 * 15
    # 0.5 at the start, and one turn of fouling at 0.02 for the rest.
    assert foul / river == pytest.approx(0.51, abs=0.04)


@pytest.mark.parametrize("order", ["interleaved", "simultaneous"])
def test_nobody_eats_unless_somebody_cleans(order):
    env = cleanup.make(turn_order=order, horizon=150)
    worlds, agents = batch(env, 32), jnp.arange(env.spec.num_agents)

    @jax.jit
    def play(key, cleaners):
        """Mean score and foul share; the first `cleaners` agents clean half of the time."""

        def act(agent, obs, key):
            move_key, clean_key = jax.random.split(key)
            move = draws.integers(move_key, (32,), 4)
            also = draws.uniform(clean_key, (32,))
            return jnp.where((agent < cleaners) & (also < 0.5), CLEAN, move), ()

        state, turns, _ = run_episode_batch(worlds, act, key, agents, env.default_params(), 150)
        floor = base_state(state).layers[:, 0]
        foul = (floor == env.base.index["Pollution"]).sum()
        return turns.reward.sum() / 32, foul / (foul + (floor == env.base.index["Water"]).sum())

    lazy, dirt = play(KEY, 0)
    busy, clean = play(KEY, 4)
    assert lazy < 1.0
    assert dirt > 0.9
    assert busy > 5.0
    assert clean < 0.5


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"apple_rate": 1.5}, "cleanup: apple_rate=1.5; it must be"),
        ({"pollution_rate": -0.1}, "cleanup: pollution_rate=-0.1"),
        ({"start_pollution": float("nan")}, "cleanup: start_pollution=nan"),
        ({"depletion": 0.0}, "cleanup: depletion=0"),
        ({"width": 4}, "cleanup: width=4 has no room for river, path and orchard; use 5"),
        ({"height": 2}, "no room inside its walls"),
    ],
)
def test_mistakes_are_named_with_their_remedy(mistake, message):
    with pytest.raises(ValueError, match=message):
        cleanup.world(**mistake)


# The options of SocialJax's Clean Up -----------------------------------------------------------

THEIRS = cleanup.world(
    height=7, width=11, num_agents=2, turning=True, zap=True, fouling="one", pollution_rate=1.0,
    fouling_delay=2, beam_length=2, beam_taper=True,
)  # fmt: skip


def play_theirs(state, *names: str):
    actions = jnp.array([THEIRS.actions.index(name) for name in names])
    return THEIRS.apply_all(KEY, state, actions, THEIRS.default_params())[0]


def test_a_tapered_beam_cleans_four_cells():
    state = play_theirs(at_start(facing=(LEFT, UP), foul="all"), "clean", "stay")
    assert foul_cells(at_start(foul="all")) - foul_cells(state) == {(3, 3), (3, 2), (2, 3), (4, 3)}


def test_zapping_sends_the_hit_to_another_cell_and_disturbs_the_peace():
    near = FIELD.replace("#...0.....#", "#..10.....#").replace("#........1#", "#.........#")
    state = play_theirs(at_start(near, facing=(LEFT, UP)), "zap", "stay")
    assert state.extra.zapped.tolist() == [False, True]
    ends = jax.vmap(lambda key: THEIRS.end_turn(key, state, THEIRS.default_params())[0])
    after = ends(jax.random.split(KEY, 40))
    assert (np.asarray(after.position)[:, 0] == [3, 4]).all()
    assert len({tuple(cell) for cell in np.asarray(after.position)[:, 1].tolist()}) > 15
    assert jax.vmap(THEIRS.at_peace)(after).tolist() == [[True, False]] * 40


def test_one_cell_of_the_river_turns_foul_a_turn_once_the_delay_is_over():
    state, counts = at_start(), []
    end = jax.jit(lambda key, state: THEIRS.end_turn(key, state, THEIRS.default_params())[0])
    for turn in range(20):
        state = end(jax.random.fold_in(KEY, turn), state)
        counts.append(len(foul_cells(state)))
    assert counts == [0, 0, *range(1, 16), 15, 15, 15]
