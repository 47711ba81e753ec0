"""The rules of commons harvest: regrowth, beam, starting anew, both maps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import DOWN, LEFT, UP

from oracles.social import regrowth_chances
from worldloom.suites.grid import beams, harvest

KEY = jax.random.key(0)
ZAP, STAY = 4, 99
WORLD = harvest.world(num_agents=3)
PARAMS = WORLD.default_params()
APPLE = WORLD.index["Apple"]


@pytest.fixture(scope="module")
def step():
    return jax.jit(WORLD.apply_all)


@pytest.fixture(scope="module")
def upkeep():
    return jax.jit(lambda key, state, params: harvest.upkeep(WORLD, key, state, params)[0])


def at(*cells, facing=(UP, UP, UP), apples=None, zapped=(False,) * 3):
    """A state with the agents on `cells`, and all apples or none but `apples`."""
    layers = WORLD.start_layers.copy()
    if apples is not None:
        layers[-1][layers[-1] == APPLE] = 0
        for cell in apples:
            layers[-1][cell] = APPLE
    for cell, way in zip(cells, facing, strict=True):
        layers[-1][cell] = WORLD.index[beams.FACINGS[way]]
    extra = harvest.HarvestState(jnp.array(facing), jnp.array(zapped), jnp.zeros(3, bool))
    return harvest.GridState(jnp.asarray(layers), jnp.array(cells), extra)


def test_maps_have_six_patches_starting_cells_below_and_two_rooms_if_closed():
    opened, closed = harvest.maps(closed=False), harvest.maps(closed=True)
    # Two quarters of a patch (6 cells) and four whole ones (13) are sites; apples lie on all.
    assert sum(row.count("%") for row in opened[0]) == 2 * 6 + 4 * 13 == 64
    assert sum(row.count("o") for row in opened[1]) == 64
    assert [row.count("s") for row in opened[0][-3:]] == [18, 20, 22]
    assert opened[0][0] == "%%%,,,,%,,,,,,%,,,,%%%"
    assert "#" not in "".join(opened[1])
    assert closed[1][10] == "#########.##.#########"
    assert closed[1][8] == ".ooo..##########..ooo."
    assert sum(row.count("o") for row in closed[1]) == 64


def test_only_starting_cells_are_started_on():
    reset = jax.jit(lambda key: WORLD.reset(key, PARAMS)[0].position)
    rows = np.asarray(jax.vmap(reset)(jax.random.split(KEY, 50)))[..., 0]
    assert rows.min() == 13
    assert rows.max() == 15


def test_apples_pay_who_takes_them(step):
    state, reward = step(KEY, at((5, 7), (10, 5), (10, 8)), jnp.array([UP, UP, UP]), PARAMS)
    assert reward.tolist() == [1.0, 0.0, 0.0]
    assert state.position.tolist() == [[4, 7], [9, 5], [9, 8]]


@pytest.mark.parametrize("seed", range(4))
def test_regrowth_is_that_of_a_slow_oracle(seed):
    random = np.random.default_rng(seed)
    sites = WORLD.start_layers[0] == WORLD.index["Orchard"]
    apples = sites & (random.random(WORLD.shape) < random.choice([0.1, 0.3, 0.7]))
    state = at((15, 0), (15, 1), (15, 2), apples=map(tuple, np.argwhere(apples)))
    near = np.asarray(harvest.near(WORLD, state))
    table = np.asarray(PARAMS.extra.regrowth)
    chances = np.where(sites & ~apples, table[np.minimum(near, 3)], 0.0)
    np.testing.assert_allclose(chances, regrowth_chances(apples, sites, table))


def test_a_patch_eaten_bare_stays_bare_and_others_come_back(upkeep):
    sure = PARAMS.replace(extra=PARAMS.extra.replace(regrowth=jnp.array([0.0, 1.0, 1.0, 1.0])))
    state = at((15, 0), (15, 1), (15, 2), apples=[(7, 2)])
    patch = {(y, x) for y in range(16) for x in range(22) if abs(y - 7) + abs(x - 2) <= 2}
    grown = upkeep(KEY, state, sure)
    assert {tuple(c) for c in np.argwhere(np.asarray(grown.layers[-1]) == APPLE)} == patch


def test_apples_grow_neither_under_agents_nor_beside_their_sites(upkeep):
    always = PARAMS.replace(extra=PARAMS.extra.replace(regrowth=jnp.ones(4)))
    grown = upkeep(KEY, at((7, 2), (7, 3), (15, 0), apples=[]), always)
    top = np.asarray(grown.layers[-1])
    assert (top == APPLE).sum() == 64 - 2
    sites = WORLD.start_layers[0] == WORLD.index["Orchard"]
    assert not (top == APPLE)[~sites].any()


def test_the_beam_has_four_cells_and_hits_all_who_stand_there(step):
    mask = beams.beam(WORLD, jnp.array([10, 10]), UP, jnp.float32(2), jnp.float32(1), taper=True)
    assert set(map(tuple, np.argwhere(mask).tolist())) == {(9, 10), (8, 10), (9, 9), (9, 11)}
    state, reward = step(KEY, at((10, 10), (8, 10), (9, 9)), jnp.array([ZAP, STAY, STAY]), PARAMS)
    assert state.extra.zapped.tolist() == [False, True, True]
    assert reward.tolist() == [0.0, 0.0, 0.0]
    assert state.position.tolist() == [[10, 10], [8, 10], [9, 9]], "until the turn ends"
    state, _ = step(KEY, at((10, 10), (8, 11), (10, 9)), jnp.array([ZAP, STAY, STAY]), PARAMS)
    assert state.extra.zapped.tolist() == [False, False, False]


def test_a_move_turns_before_the_beam_of_the_next_turn(step):
    start = at((10, 10), (11, 10), (12, 10))
    state, _ = step(KEY, start, jnp.array([LEFT, STAY, DOWN]), PARAMS)
    assert state.extra.facing.tolist() == [LEFT, UP, DOWN]
    state, _ = step(KEY, state, jnp.array([ZAP, STAY, STAY]), PARAMS)
    assert not state.extra.zapped.any()


def test_who_was_zapped_starts_anew_on_a_free_starting_cell(upkeep):
    state = at((10, 10), (8, 10), (14, 3), zapped=(False, True, True))
    later = jax.vmap(upkeep, (0, None, None))(jax.random.split(KEY, 100), state, PARAMS)
    positions = np.asarray(later.position)
    assert (positions[:, 0] == [10, 10]).all()
    assert (positions[:, 1:, 0] >= 13).all()
    assert (positions[:, 1] != positions[:, 2]).any(axis=1).all()
    assert len({tuple(cell) for cell in positions[:, 1]}) > 20
    assert not later.extra.zapped.any()
    assert (np.asarray(jax.vmap(WORLD.at_peace)(later)) == [True, False, False]).all()


def test_with_turning_only_turns_turn():
    world = harvest.world(num_agents=1, turning=True)
    assert world.actions[4:] == ("stay", "turn_left", "turn_right", "zap")
    facing, seen = jnp.array([UP]), []
    for name in ("left", "turn_left", "turn_left", "turn_right", "turn_right", "turn_right", "zap"):
        act = harvest.Act(0, jnp.int32(world.actions.index(name)), jnp.zeros(2), jnp.int32(0))
        facing = beams.turn(world, facing, act)
        seen.append(int(facing[0]))
    up, down, left, right = range(4)
    assert seen == [up, left, down, left, up, right, right]


def test_apples_only_vanish_when_somebody_is_paid():
    """Conservation: without regrowth, what was paid and what is left are what there was."""
    env = harvest.make(num_agents=7, horizon=40)
    key, params = KEY, env.default_params()
    params = params.replace(extra=params.extra.replace(regrowth=jnp.zeros(4)))

    @jax.jit
    def play(key):
        def one(state, key):
            act_key, key = jax.random.split(key)
            action = jax.random.randint(act_key, (7,), 0, 5)
            state, timestep = env.step(key, state, action, params)
            apples = (state.inner.inner.layers[-1] == APPLE).sum()
            return state, (apples, timestep.reward.sum(), state.inner.inner.position)

        return jax.lax.scan(one, env.reset(key, params)[0], jax.random.split(key, 40))[1]

    apples, paid, positions = map(np.asarray, jax.vmap(play)(jax.random.split(key, 16)))
    assert (apples + np.cumsum(paid, axis=1) == 64).all()
    assert paid.sum() > 0
    cells = positions[..., 0] * 22 + positions[..., 1]
    assert all(len(set(row)) == 7 for row in cells.reshape(-1, 7).tolist())


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"map": "round"}, "harvest: map='round'; use 'open' or 'closed'"),
        ({"regrowth": (0.1,)}, "harvest: regrowth=.*give 4 chances"),
        ({"regrowth": (0.0, 0.0, 0.0, 1.5)}, r"harvest: regrowth\[3\]=1.5; it must be"),
        ({"num_agents": 100}, "num_agents=100 does not fit the 60 free cells"),
    ],
)
def test_mistakes_are_named_with_their_remedy(mistake, message):
    with pytest.raises(ValueError, match=message):
        harvest.world(**mistake)
