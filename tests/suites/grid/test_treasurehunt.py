"""Treasure hunt against the object loop, cell by cell, and the scores that its rules lead to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import scene

from oracles.heuristics import nearest_item
from oracles.objects import load
from worldloom.core import draws
from worldloom.core.rollout import run_episode_batch
from worldloom.core.transforms import batch
from worldloom.suites.grid import treasurehunt
from worldloom.suites.grid.object_world import KINDS, MOVES, ObjectTreasureHunt

SPAWN = 0.06
CASES = {
    "gems": {"items": "gems", "legacy": False, "height": 7, "width": 9, "num_agents": 4},
    "gems, legacy": {"items": "gems", "legacy": True, "height": 7, "width": 9, "num_agents": 4},
    "mixed": {"items": "mixed", "legacy": False, "height": 9, "width": 8, "num_agents": 3},
}


def numbers_for_reference(world, items) -> np.ndarray:
    """The reference's number of each of our kinds; its invisible sand is an empty cell."""
    names = {"Empty": "EmptyEntity"} | ({"Sand": "EmptyEntity"} if items == "mixed" else {})
    return np.array([KINDS[items].index(names.get(k.name, k.name)) for k in world.kinds], np.int8)


@pytest.mark.parametrize("case", CASES)
def test_every_turn_equals_the_object_loop(case):
    """Same state, same actions, same draws: same layers, positions, rewards and observations."""
    options = CASES[case] | {"spawn_prob": SPAWN}
    world = treasurehunt.world(**options)
    params = world.default_params()
    rng = np.random.default_rng(0)
    oracle = ObjectTreasureHunt(**options, tuned=True, rng=rng)
    number = numbers_for_reference(world, options["items"])

    reset = jax.jit(world.reset)
    observe = jax.jit(world.observe_agent)
    apply_agent = jax.jit(world.apply_agent)
    change = jax.jit(world.change_with)
    key = jax.random.key(0)

    # Without first items: the oracle starts every turn with its spawning.
    state, _ = reset(key, params.replace(rate=jnp.zeros_like(params.rate)))
    load(oracle, number[np.asarray(state.layers)], state.position)

    taken = 0.0
    for turn in range(200):
        drawn = rng.random(world.shape).astype(np.float32)
        # The two sides part the draws at rounded multiples of SPAWN / 3: keep away from those.
        edges = SPAWN * np.array([1 / 3, 2 / 3, 1])
        near = np.abs(drawn[..., None] - edges).min(axis=-1) < 1e-5
        drawn[near] += np.float32(2e-5)
        state = change(jnp.asarray(drawn)[None], state, params)
        oracle.spawn(drawn)
        assert np.array_equal(number[np.asarray(state.layers)], oracle.layers())
        for i in range(world.num_agents):
            seen = np.asarray(observe(state, jnp.int32(i), params))
            assert np.array_equal(seen.reshape(-1), oracle.pov(i)), (turn, i)
            action = int(rng.integers(4))
            state, reward = apply_agent(key, state, jnp.int32(i), jnp.int32(action), params)
            paid = np.zeros(world.num_agents)
            paid[i] = oracle.act(i, action)
            taken += paid[i]
            assert np.array_equal(reward, paid), (turn, i)
            assert np.array_equal(state.position, oracle.positions)
        assert np.array_equal(number[np.asarray(state.layers)], oracle.layers())
    assert taken != 0.0  # something was found on the way


def test_spawn_draws_split_the_three_items_evenly():
    world = treasurehunt.world(items="mixed", height=5, width=5, num_agents=1, spawn_prob=0.3)
    params = world.default_params()
    state, _ = jax.jit(world.reset)(jax.random.key(0), params.replace(rate=jnp.zeros(3)))
    row, column = (2, 2) if state.position[0].tolist() != [2, 2] else (1, 1)
    change = jax.jit(world.change_with)
    for draw, name in [(0.05, "Gem"), (0.15, "Food"), (0.25, "Bone"), (0.35, "Empty")]:
        after = change(jnp.full((1, 5, 5), draw), state, params)
        assert world.kinds[after.layers[-1, row, column]].name == name


@pytest.mark.parametrize(("legacy", "seen"), [(False, 1), (True, 2)])
def test_walls_of_the_map_are_seen_twice_only_under_legacy(legacy, seen):
    world = treasurehunt.world(legacy=legacy, height=5, width=5, num_agents=1)
    state = scene(world, "##### #0..# #...# #...# #####")
    walls = jax.jit(world.observe_agent)(state, jnp.int32(0), world.default_params())[1]
    assert walls[1].tolist() == [1, seen, seen, seen, seen]  # beyond the map a wall is always one
    assert walls[0].tolist() == [1, 1, 1, 1, 1]
    assert walls[2, :2].tolist() == [1, seen]


def test_no_gem_grows_inside_a_wall():
    world = treasurehunt.world(spawn_prob=1.0)
    state, _ = jax.jit(world.reset)(jax.random.key(0), world.default_params())
    floor, top = np.asarray(state.layers)
    assert not (floor == world.index["Gem"]).any()
    assert (top == world.index["Gem"]).sum() == 64 - 5


def test_the_two_item_sets_have_the_sizes_of_the_original():
    gems, mixed = treasurehunt.make(), treasurehunt.make(items="mixed")
    assert gems.spec.observation.shape == (1, 5, 5, 5)
    assert gems.spec.num_agents == 5
    assert gems.spec.horizon == 50
    assert gems.base.shape == (10, 10)
    assert mixed.spec.observation.shape == (1, 6, 5, 5)
    assert mixed.spec.num_agents == 2
    assert mixed.spec.horizon == 100
    assert mixed.base.shape == (21, 21)
    assert gems.default_params().rate.tolist() == pytest.approx([0.02])
    assert mixed.default_params().rate.tolist() == pytest.approx([0.005 / 3] * 3)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"items": "gold"}, "treasurehunt: items='gold'; use 'gems' or 'mixed'"),
        ({"spawn_prob": 1.5}, r"treasurehunt: spawn_prob=1.5; it must be a chance in \[0, 1\]"),
        ({"num_agents": 80}, "num_agents=80 does not fit the 64 free cells of a 10x10 world"),
        ({"height": 2}, "a world of 2x10 has no room inside its walls"),
    ],
)
def test_mistakes_are_named_with_their_remedy(mistake, message):
    with pytest.raises(ValueError, match=message):
        treasurehunt.world(**mistake)


# Scores --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mean_score():
    """The mean score of 1,000 worlds of the plan's size, played whole."""
    env = treasurehunt.make()
    worlds, agents = batch(env, 1000), jnp.arange(env.spec.num_agents)

    def score(act):
        def choose(*x):
            return act(*x), ()

        def play(key):
            turns = run_episode_batch(worlds, choose, key, agents, env.default_params(), 50)[1]
            return turns.reward.sum(axis=(0, 1)).mean()

        return float(jax.jit(play)(jax.random.key(0)))

    return score


def test_random_play_scores_255(mean_score):
    def act(agent, obs, key):
        return draws.integers(key, (obs.shape[0],), 4)

    assert abs(mean_score(act) - 255) < 10


def test_walking_to_the_nearest_visible_gem_scores_530(mean_score):
    assert abs(mean_score(nearest_item(treasurehunt.world().channel_names)) - 530) < 15


# The heuristic -------------------------------------------------------------------------------

CHANNELS = ("Empty", "Wall", "Gem", "Bone", "Food", "Agent")


def allowed_actions(window: np.ndarray) -> set[int]:
    """What the rules of the heuristic leave to chance, for a window (C, side, side)."""
    radius = window.shape[-1] // 2
    blocked = window[[1, 3, 5]].sum(axis=0) > 0
    free = {a for a, (y, x) in MOVES.items() if not blocked[radius + y, radius + x]}
    if not free:
        return set(MOVES)
    goals = np.argwhere(window[[2, 4]].sum(axis=0) > 0) - radius
    if len(goals) == 0:
        return free
    distance = np.abs(goals).sum(axis=1)
    allowed = set()
    for goal in goals[distance == distance.min()]:
        allowed |= {a for a in free if np.dot(MOVES[a], goal) > 0} or free
    return allowed


def test_the_heuristic_chooses_all_that_its_rules_allow_and_nothing_else():
    rng = np.random.default_rng(0)
    windows = np.zeros((40, 6, 5, 5), np.uint8)
    for number, window in enumerate(windows):
        kinds = rng.choice(6, size=(5, 5), p=[0.55, 0.2, 0.05, 0.08, 0.04, 0.08])
        kinds = np.where((kinds == 2) | (kinds == 4), 0, kinds) if number % 4 == 0 else kinds
        kinds[2, 2] = 5
        if number % 5 == 0:
            kinds[[1, 3, 2, 2], [2, 2, 1, 3]] = 1
        np.put_along_axis(window, kinds[None], 1, axis=0)
        window[0] = 0
    act = jax.jit(jax.vmap(nearest_item(CHANNELS), (None, None, 0)))
    keys = jax.random.split(jax.random.key(0), 200)
    chosen = np.asarray(act((), jnp.asarray(windows)[:, None], keys))
    for i, window in enumerate(windows):
        assert set(chosen[:, i].tolist()) == allowed_actions(window), i


def test_the_heuristic_says_what_it_cannot_work_with():
    with pytest.raises(ValueError, match=r"none of the items \['Apple'\] has a channel; known: "):
        nearest_item(CHANNELS, items=("Apple",))
    act = nearest_item(CHANNELS)
    with pytest.raises(ValueError, match="6 channels around the agent, got frames of"):
        act((), jnp.zeros((1, 1, 7, 10, 10)), jax.random.key(0))
