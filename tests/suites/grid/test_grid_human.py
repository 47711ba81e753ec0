"""A person plays: keys, screens, the order of turns, and the terminal put back as it was."""

import math
import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.text import Text

from worldloom import suites
from worldloom.core import draws
from worldloom.core.rollout import play_turn
from worldloom.core.transforms import as_pure, base_state, batch
from worldloom.nn.networks import Networks
from worldloom.replay import dataset_files
from worldloom.suites.grid import human, views
from worldloom.training.recording import recorded_data

KEY = jax.random.key(0)
TURNS = 4
UP = jnp.array([0])
ORDERS = ("interleaved", "simultaneous")


@pytest.fixture(scope="module", params=ORDERS)
def env(request):
    return suites.make(
        "treasurehunt", height=5, width=6, num_agents=3, horizon=TURNS, spawn_prob=0.3,
        turn_order=request.param,
    )  # fmt: skip


@pytest.fixture(scope="module")
def cleanup():
    return suites.make("cleanup", height=5, width=8, num_agents=2, horizon=5)


def play(env, pressed, agent_index=1, others=None):
    """Plays with a list of keys: (game, screens)."""
    keys, screens = iter(pressed), []
    game = human.play(env, agent_index, KEY, lambda: next(keys, ""), screens.append, others)
    assert all(isinstance(screen, Text) for screen in screens)
    return game, [screen.plain for screen in screens]


def test_the_turns_are_those_of_the_turn_loop(env):
    """Same keys: the same states and scores as `play_turn` with the person as one more agent."""
    game, screens = play(env, ["w", "a", "s", "d"])
    moves = jnp.array([0, 2, 1, 3])

    def act(agent, obs, key):
        number, turn = agent
        return jnp.where(number == 1, moves[turn], draws.integers(key, (1,), 4)), ()

    worlds, params = batch(env, 1), env.default_params()

    @jax.jit
    def take_turn(key, state, agents):
        return play_turn(worlds, act, key, state, agents, params)

    reset_key, play_key = draws.split(KEY)
    state, scores = jax.jit(worlds.reset)(reset_key, params)[0], np.zeros(3)
    for turn in range(TURNS):
        agents = (jnp.arange(3), jnp.full((3,), turn))
        state, done = take_turn(jax.random.fold_in(play_key, turn), state, agents)
        scores += np.asarray(done.reward[:, 0])
    last = jax.tree.map(lambda x: x[0], base_state(state))
    assert screens[-1].startswith(views.ascii_map(env.base, last))
    assert np.array_equal(game.scores, scores)
    assert (game.turns, game.finished) == (TURNS, True)


def test_the_person_sees_what_earlier_agents_did_only_if_turns_are_interleaved(env):
    _, screens = play(env, ["q"], agent_index=2, others=lambda i, obs, key: UP)
    state = jax.jit(batch(env, 1).reset)(draws.split(KEY)[0], env.default_params())[0]
    before = np.asarray(base_state(state).position[0])
    seen = {
        digit: (row, line.index(digit))
        for row, line in enumerate(screens[0].splitlines()[:5])
        for digit in "012"
        if digit in line
    }
    rows_up = [before[i, 0] - seen[str(i)][0] for i in range(2)]
    if env.spec.turn_order == "simultaneous":
        assert rows_up == [0, 0]
    else:
        assert max(rows_up) == 1  # at least one of them was not at the wall
    assert seen["2"] == tuple(before[2])


def test_others_get_their_index_and_a_batch_of_one_observation(env):
    calls = []

    def others(i, obs, key):
        calls.append((i, obs.shape))
        return UP

    play(env, ["w"] * TURNS, others=others)
    shape = (1, *env.spec.observation.shape)
    assert calls == [(0, shape), (2, shape)] * TURNS


def test_what_a_person_did_is_data_to_learn_from(env, tmp_path):
    path = tmp_path / "new" / "played.npz"
    for _ in range(2):  # the second game is added to the first
        pressed = iter(["w", "a", "s", "d"])
        game = human.play(env, 1, KEY, pressed.__next__, lambda text: None, record=path)
    data = dataset_files.read_npz(path).columns
    assert data["action"][:, 0].tolist() == [0, 2, 1, 3] * 2
    assert data["obs"].shape == (2 * TURNS, math.prod(env.spec.observation.shape))
    np.testing.assert_array_equal(data["obs"][1:TURNS], data["next_obs"][: TURNS - 1])
    assert data["reward"][:TURNS].sum() == game.scores[1]
    assert data["truncated"].tolist() == [0, 0, 0, 1] * 2  # cut by the time limit
    loaded = recorded_data(str(path), env, Networks())()
    assert len(loaded.starts) == 2


def test_a_game_that_is_left_keeps_whole_turns_and_one_of_another_world_is_refused(
    env, cleanup, tmp_path
):
    path = tmp_path / "played.npz"
    human.play(env, 1, KEY, iter(["w", "q"]).__next__, lambda text: None, record=path)
    assert dataset_files.read_npz(path).columns["truncated"].tolist() == [1]
    before = path.read_bytes()
    with pytest.raises(ValueError, match="name another file"):
        human.play(cleanup, 0, KEY, iter(["w", "q"]).__next__, lambda text: None, record=path)
    assert path.read_bytes() == before
    human.play(env, 1, KEY, lambda: "q", lambda text: None, record=tmp_path / "none.npz")
    assert not (tmp_path / "none.npz").exists()


def test_letters_and_arrows_move_the_same_way(env):
    letters, first = play(env, ["w", "a", "s", "d"])
    arrows, second = play(env, ["up", "left", "down", "right"])
    assert first == second
    assert np.array_equal(letters.scores, arrows.scores)


def test_every_turn_shows_map_turn_and_score_and_the_end_shows_all_scores(env):
    game, screens = play(env, ["w"] * TURNS, agent_index=0)
    assert len(screens) == TURNS + 1
    for turn, screen in enumerate(screens[:-1], start=1):
        assert f"turn {turn} of {TURNS} | you are agent 0 | your score" in screen
        assert "w a s d or arrows move | q leaves" in screen
        assert screen.count("#") == 18
    assert f"the end after {TURNS} turns | you scored {game.scores[0]:g}" in screens[-1]
    assert f"agent 2: {game.scores[2]:g} | together {game.scores.sum():g}" in screens[-1]


def test_the_score_shown_adds_what_the_last_turn_paid(env):
    """Walking into the upper wall for four turns costs one each at the latest from turn four on."""
    _, screens = play(env, ["w"] * TURNS, agent_index=0)
    lines = [line for screen in screens for line in screen.splitlines() if "your score" in line]
    assert lines[0].count("your score 0 (+0)") == 1
    assert "(-1)" in lines[-1]


@pytest.mark.parametrize("leave", ["q", ""])
def test_q_and_the_end_of_input_leave(env, leave):
    game, screens = play(env, ["w", leave])
    assert (game.turns, game.finished) == (1, False)
    assert "you left after 1 turns" in screens[-1]


def test_a_key_without_meaning_is_named_and_asked_again(env):
    game, screens = play(env, ["w", "k", "7", "w", "q"])
    assert game.turns == 2
    assert "'k' does nothing here" in screens[2]
    assert "'7' does nothing here" in screens[3]


def test_numbers_are_the_actions_of_the_worlds_own(cleanup):
    """All of a river is foul; an agent beside it looks left and cleans what is ahead."""
    foul = cleanup.default_params()
    foul = foul.replace(extra=foul.extra.replace(start_pollution=jnp.float32(1.0)))
    env = replace(cleanup, default_params=lambda: foul)
    game, screens = play(env, ["left", "left", "left", "1", "1"], others=lambda i, obs, key: UP)
    assert "w a s d or arrows move | 1 clean | q leaves" in screens[0]
    assert screens[0].count("&") >= 5
    assert screens[-1].count("&") < screens[0].count("&")
    assert game.finished


def test_there_are_as_many_numbers_as_actions_of_the_worlds_own(cleanup):
    game, screens = play(cleanup, ["2", "q"])
    assert "'2' does nothing here" in screens[1]
    assert game.turns == 0


def test_the_map_is_drawn_in_the_colours_of_the_kinds(cleanup):
    state = jax.jit(cleanup.reset)(KEY, cleanup.default_params())[0]
    text = human.draw(cleanup.base, base_state(state), agent_index=1)
    rows = views.cells(cleanup.base, base_state(state))
    assert text.plain == views.ascii_map(cleanup.base, base_state(state))
    styles = {}
    for span in text.spans:
        for at in range(span.start, span.end):
            styles[at] = span.style
    row, column = np.asarray(base_state(state).position[1])
    own = styles[row * 9 + column]
    assert own.reverse
    assert own.color.triplet == rows[row][column][1]
    assert styles[0].color.triplet == (88, 92, 108)  # the wall in the corner
    assert not styles[0].reverse


@pytest.mark.parametrize("index", [-1, 2])
def test_there_must_be_such_an_agent(cleanup, index):
    with pytest.raises(ValueError, match=f"there is no agent {index} in cleanup; choose 0 to 1"):
        play(cleanup, [], agent_index=index)


def test_the_world_must_be_a_gridworld(cleanup):
    other = as_pure(cleanup).__class__(
        cleanup.spec, cleanup.default_params, cleanup.reset, cleanup.step, base=object()
    )
    with pytest.raises(ValueError, match="cleanup is not a gridworld"):
        play(other, [])


# The terminal ---------------------------------------------------------------------------------


def test_without_a_terminal_there_is_one_clear_line(tmp_path):
    with (
        open(os.devnull) as nothing,
        pytest.raises(ValueError, match="standard input is not a terminal; start it in one"),
        human.terminal_keys(nothing),
    ):
        pass


@pytest.fixture
def terminal():
    """The two ends of a pseudo-terminal: the keyboard's file number, and the program's input."""
    pytest.importorskip("termios", reason="this system has no POSIX terminal")
    keyboard, screen = os.openpty()
    with os.fdopen(screen, "r") as stream:
        yield keyboard, stream
    os.close(keyboard)


def test_keys_arrive_one_by_one_without_enter(terminal):
    keyboard, stream = terminal
    with human.terminal_keys(stream) as read_key:
        os.write(keyboard, b"wA\x1b[A\x1b[B\x1b[C\x1b[D\x1bOA1")
        got = [read_key() for _ in range(8)]
        assert got == ["w", "a", "up", "down", "right", "left", "up", "1"]
        os.write(keyboard, b"\x1b")
        assert read_key() == "escape"
        os.write(keyboard, b"\x1b[3~q")  # the delete key is no arrow
        assert read_key() == "escape"
        os.write(keyboard, b"\x04")
        assert read_key() in ("~", "q", "")


def test_the_terminal_is_put_back_also_after_an_exception(terminal):
    import termios

    _, stream = terminal
    before = termios.tcgetattr(stream)
    with human.terminal_keys(stream):
        inside = termios.tcgetattr(stream)
        assert inside[3] & (termios.ICANON | termios.ECHO) == 0
    assert termios.tcgetattr(stream) == before
    with pytest.raises(KeyboardInterrupt), human.terminal_keys(stream):
        raise KeyboardInterrupt
    assert termios.tcgetattr(stream) == before
