"""Games: every one against a slow and obvious oracle, and what all environments keep to."""

import copy
import importlib
import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from oracles.games import ORACLES
from worldloom import suites
from worldloom.suites.arc.games import camera, engine
from worldloom.suites.arc.games.evaluate import GameScores
from worldloom.suites.arc.games.explore import Graph, explore
from worldloom.suites.arc.games.levels import Level, read_levels, tabulate
from worldloom.suites.arc.problem import make_problem
from worldloom.suites.arc.suite import GAMES, SUITE
from worldloom.training.config import make_config

STEPS, PLAYS = 150, 8
QUICK = {"xla_backend_optimization_level": 0}


def game_of(name):
    return importlib.import_module(f"worldloom.suites.arc.games.{name}").GAME


def plans(env, rng):
    """Random actions (PLAYS, STEPS)."""
    return rng.integers(0, env.spec.action.n, (PLAYS, STEPS)).astype(np.int32)


# Undo and clicks are among the fast tests; what the other games add is their rules alone.
FAST = ("doors", "lights")
EACH = [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in GAMES]


@pytest.fixture(scope="module", params=EACH)
def played(request):
    """A game, random actions, and the frames and time steps that they give."""
    name = request.param
    env = suites.make(name, max_actions=STEPS - 10)
    params = env.default_params()
    traces = []

    def episode(actions, params):
        traces.append(name)
        state, first = env.reset(jax.random.key(0), params)

        def one(state, action):
            state, after = env.step(jax.random.key(0), state, action, params)
            seen = camera.frame(env.base.game, params.levels, state)
            fits = env.spec.observation.contains(after.obs)
            return state, (after, seen, state.status, fits)

        return first, jax.lax.scan(one, state, actions)[1]

    play = jax.jit(jax.vmap(episode, (0, None)), compiler_options=QUICK)
    actions = plans(env, np.random.default_rng(3))
    actions[0] = solution_of(env, actions[0])
    first, (after, frames, status, fits) = jax.device_get(play(actions, params))
    return {
        "env": env, "params": params, "play": play, "actions": actions, "first": first,
        "after": after, "frames": frames, "status": status, "fits": fits, "traces": traces,
    }  # fmt: skip


def solution_of(env, actions):
    """Actions that solve the first levels, by the oracle and breadth-first search, and then others.

    Chance alone would seldom come to a second level.
    """
    oracle = make_oracle(env)
    plan = []
    while oracle.number < 2 and not oracle.over:
        way = shortest(oracle, env)
        plan += way
        for action in way:
            oracle.perform(*described(env, action))
    return np.array([*plan, *actions[len(plan) :]], np.int32)


def make_oracle(env):
    game = env.base.game
    return ORACLES[game.name](game.levels, game.lives, game.undo)


def described(env, action):
    """An action of the space as (id, cell)."""
    simple, width = env.base.simple, env.base.params.levels.shape[1]
    if action < len(simple):
        return simple[action], None
    return engine.CLICK, divmod(action - len(simple), width)


def shortest(oracle, env):
    """The shortest way to solve the oracle's level, by breadth-first search over its boards."""
    number = oracle.number
    start = copy.deepcopy(oracle)
    start.level = replace(oracle.level, limit=0)
    seen, front = {repr(start.board)}, [(start, [])]
    usable = [a for a in range(env.spec.action.n) if described(env, a)[0] != engine.UNDO]
    while front:
        following = []
        for now, way in front:
            for action in usable:
                after = copy.copy(now)
                after.board, after.spent = copy.deepcopy(now.board), list(now.spent)
                if after.act(*described(env, action)):
                    return [*way, action]
                if (key := repr(after.board)) not in seen:
                    seen.add(key)
                    following.append((after, [*way, action]))
        front = following
    raise AssertionError(f"level {number} of {oracle} cannot be solved")


def test_frames_rewards_and_ends_are_those_of_the_oracle(played):
    env, params = played["env"], played["params"]
    levels = 0
    for n, actions in enumerate(played["actions"]):
        oracle = make_oracle(env)
        for t, action in enumerate(actions):
            before = oracle.over
            lives = oracle.lives
            solved = oracle.perform(*described(env, int(action)))
            assert np.array_equal(played["frames"][n, t], oracle.frame()), (n, t)
            status = {"": engine.PLAYING, "won": engine.WON, "lost": engine.LOST}[oracle.over]
            assert played["status"][n, t] == status
            if before:
                break
            lost = lives - oracle.lives
            reward = params.level_reward * solved - params.life_cost * lost - params.action_cost
            assert played["after"].reward[n, t] == pytest.approx(reward)
            assert played["after"].terminated[n, t] == bool(oracle.over)
            assert played["after"].info.spent[n, t].tolist() == oracle.spent
            late = sum(oracle.spent) >= env.spec.horizon and not oracle.over
            assert played["after"].truncated[n, t] == late
            levels = max(levels, oracle.number)
    assert levels >= 2


def test_observations_lie_in_the_space_of_the_spec(played):
    assert played["fits"].all()
    assert played["first"].obs["cells"].dtype == np.int8
    assert not played["first"].reward.any()


def test_the_same_actions_give_the_same_episode_and_nothing_is_compiled_again(played):
    params = played["params"].replace(action_cost=0.02)
    _, (after, frames, _, _) = played["play"](played["actions"], params)
    assert np.array_equal(frames, played["frames"])
    assert not np.array_equal(after.reward, played["after"].reward)
    assert len(played["traces"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", list(GAMES))
def test_the_baseline_of_a_level_is_its_shortest_solution(name):
    env = suites.make(name)
    for number, level in enumerate(game_of(name).levels):
        oracle = make_oracle(env)
        oracle.begin(number)
        assert len(shortest(oracle, env)) == level.baseline, f"level {number}"


# Scores, exploration and settings ----------------------------------------------------------------


def test_scores_count_levels_and_weigh_actions_against_the_baseline():
    scores = GameScores(
        solved=np.array([2, 0]),
        spent=np.array([[4, 2, 9], [50, 0, 0]]),
        baseline=np.array([2, 4, 4]),
        seconds=0.0,
    )
    assert scores.mean == pytest.approx(1 / 3)
    # (2 / 4) squared weighs 1, a level in fewer actions than the baseline is 1 and weighs 2.
    assert scores.efficiency.tolist() == pytest.approx([(0.25 * 1 + 1.0 * 2) / 6, 0.0])
    assert scores.to_dict()["level_actions"] == [4.0, 2.0, None]
    assert "1 +- 1 (s.e.) of 3, 2 episodes" in scores.lines()["levels solved"]


def test_where_a_baseline_is_not_known_there_is_no_efficiency():
    scores = GameScores(np.array([1]), np.array([[4, 2]]), np.array([2, 0]), 0.0)
    assert scores.efficiency is None
    assert scores.to_dict()["efficiency"] is None
    assert scores.lines()["efficiency"].startswith("- (1:")


@pytest.mark.slow
def test_exploration_knows_a_board_again_whatever_an_agent_sees():
    """A frame also shows how many actions are left."""
    cells, frame = (
        explore(suites.make("glide", view=view, max_actions=60)) for view in ("cells", "frame")
    )
    np.testing.assert_array_equal(frame.spent, cells.spent)
    assert frame.mean == cells.mean


def test_exploration_tries_what_is_untried_and_goes_the_shortest_way_to_it():
    graph = Graph(2, np.random.default_rng(0))
    for board in (b"a", b"b", b"c"):
        graph.see(board)
    first = graph.choose(b"a")
    assert {first, graph.choose(b"a")} == {0, 1}, "each action is tried once"
    graph.record(b"a", 0, b"a")
    graph.record(b"a", 1, b"b")
    graph.untried[b"b"].clear()
    graph.record(b"b", 0, b"c")
    assert graph.choose(b"a") == 1, "the way to c, where actions are untried, leads over b"
    graph.untried[b"c"].clear()
    assert graph.choose(b"a") in (0, 1), "where all is tried, anything goes"


def test_exploration_solves_what_random_play_does_not():
    env = suites.make("glide")
    scores = explore(env, episodes=2)
    assert scores.solved.tolist() == [5, 5]
    assert (scores.actions <= env.spec.horizon).all()
    assert (scores.spent >= scores.baseline).all(), "nothing is solved faster than is possible"


def test_what_is_no_option_of_a_game_is_refused_in_one_line(tmp_path):
    for options, words in (
        ({"view": "pixels"}, "there is no view='pixels'"),
        ({"start": "last"}, "there is no start='last'"),
        ({"lives": 0}, "lives=0; it must be at least 1"),
        ({"levels": str(tmp_path / "none.json")}, "is no file"),
    ):
        with pytest.raises(ValueError, match=r"glide|levels") as error:
            suites.make("glide", **options)
        assert words in str(error.value)
        assert "\n" not in str(error.value)


def test_settings_of_tasks_are_refused_in_games():
    config = make_config(SUITE, {"env": "glide", "tasks": "mini-arc"})
    with pytest.raises(ValueError, match=r"tasks=.* is for ARC tasks"):
        make_problem(config)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "holds no list of levels"),
        ('[{"size": [0, 3], "kinds": {}}]', "level 0: size="),
        ('[{"size": [3, 3], "kinds": {"tree": []}}]', "there is no kind"),
        ('[{"size": [3, 3], "kinds": {"wall": [[3, 0]]}}]', "which is no cell of it"),
        ('[{"size": [3, 3], "kinds": {}}]', "exactly one player"),
        ('[{"size": [3, 3], "kinds": {"player": [[0, 0]]}, "limit": -1}]', "limit=-1"),
    ],
)
def test_a_file_of_levels_that_is_wrong_says_where(tmp_path, content, words):
    path = tmp_path / "levels.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"levels\.json") as error:
        suites.make("glide", levels=str(path))
    assert words in str(error.value)


@pytest.mark.slow
def test_levels_of_several_sizes_are_shown_in_the_middle_of_the_frame(tmp_path):
    path = tmp_path / "levels.json"
    wide = {"size": [2, 4], "kinds": {"player": [[0, 0]], "goal": [[1, 3]]}, "limit": 8}
    small = {"size": [3, 3], "kinds": {"player": [[1, 1]], "goal": [[0, 1]]}, "limit": 8}
    path.write_text(json.dumps([wide, small]))
    env = suites.make("glide", levels=str(path))
    game = replace(env.base.game, levels=read_levels(path, env.base.game.kinds))
    params, step = env.default_params(), jax.jit(env.step)
    oracle = ORACLES["glide"](game.levels, game.lives, game.undo)
    state, _ = env.reset(jax.random.key(0), params)
    for action in (1, 3, 2, 0):  # down, right: solved; left, up: into the corner
        seen = np.asarray(camera.frame(game, params.levels, state))
        assert np.array_equal(seen, oracle.frame())
        state, _ = step(jax.random.key(0), state, np.int32(action), params)
        oracle.perform(*described(env, action))
    assert oracle.number == 1


def test_a_click_on_a_pixel_is_a_click_on_the_cell_under_it():
    level = tabulate([Level((3, 5), {})], ()).at(0)  # cells of 12 pixels, 14 above, 2 to the left
    for pixel, cell in (
        ((14, 2), (0, 0)),
        ((25, 13), (0, 0)),
        ((26, 14), (1, 1)),
        ((49, 61), (2, 4)),
        ((13, 30), (-1, -1)),
        ((30, 62), (-1, -1)),
    ):
        assert camera.pixel_to_cell(level, np.array(pixel)).tolist() == list(cell), pixel
