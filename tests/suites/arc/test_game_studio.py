"""A game in the studio: played action by action, saved, and learned from."""

import numpy as np
import pytest

from worldloom import suites
from worldloom.suites.arc.games.studio import GameSession
from worldloom.suites.arc.problem import make_problem
from worldloom.suites.arc.studio import session
from worldloom.suites.arc.suite import SUITE
from worldloom.training.config import make_config

pytestmark = pytest.mark.slow


def test_a_person_solves_a_level_by_clicks_and_saves_it(tmp_path):
    game = GameSession(suites.make("lights"), tmp_path)
    assert game.describe()["actions"] == {"6": "click"}
    first = game.reset(0)
    assert (first["level"], len(first["frame"]), len(first["frame"][0])) == (1, 64, 64)
    assert game.act({"action": 6, "pixel": [1, 63]})["actions"] == 0, "that is beside the board"
    after = game.act({"action": 6, "pixel": [32, 32]})
    assert (after["level"], after["solved"], after["actions"]) == (2, 1, 1)
    path = game.act({"save": True})["saved"]
    given = {"env": "lights", "algo": "bc", "dataset": path}
    data = make_problem(make_config(SUITE, given)).data()
    assert data.rows.action.tolist() == [[12.0]], "the lamp in the middle of 5 x 5"
    assert data.rows.reward == pytest.approx(0.99)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"action": 5}, "action must be one of 1 \\(up\\)"),
        ({"action": "1"}, "action must be"),
        ({"save": True}, "no action to save"),
    ],
)
def test_what_makes_no_sense_is_refused(message, words, glide):
    glide.reset(0)
    with pytest.raises(ValueError, match=words):
        glide.act(message)


@pytest.fixture(scope="module")
def glide():
    return session(suites.make("glide"))


def test_a_game_that_is_over_takes_no_more_actions(glide):
    glide.reset(0)
    while not (state := glide.act({"action": 1}))["over"]:
        pass
    assert (state["end"], state["lives"]) == ("lost", 0)
    assert np.sum([row.count("8") for row in state["frame"][:1]]) == 0, "no life is shown"
    with pytest.raises(ValueError, match="over"):
        glide.act({"action": 1})
