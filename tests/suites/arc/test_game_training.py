"""A run in a game: trained, scored, filmed, reported and loaded like one in any other world."""

from functools import partial

import numpy as np
import pytest

import worldloom
from worldloom import suites
from worldloom.suites.arc.games import glide, world
from worldloom.suites.arc.games.explore import NAME
from worldloom.suites.arc.suite import SUITE
from worldloom.training.config import make_config
from worldloom.training.evaluate import RANDOM_PLAY

pytestmark = pytest.mark.slow

SMALL = {"num_worlds": 4, "steps": 128, "eval_episodes": 3, "eval_every": 0, "checkpoint_every": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run in a game of a user's own: two levels of glide, and forty actions."""
    game = partial(world.make, glide.GAME, levels=glide.GAME.levels[:2], max_actions=40)
    name = "short glide"
    suites.register(name, game, "two levels", suite="arc")
    out = tmp_path_factory.mktemp("games") / "run"
    try:
        yield worldloom.train(name, algo="pqn", out=out, world={"start": "any"}, **SMALL)
    finally:
        suites._REGISTERED.pop(name)


def test_scores_stand_beside_those_of_agents_that_learn_nothing(run):
    known = run.references()
    assert known.keys() == {RANDOM_PLAY, NAME}
    assert known[NAME]["levels_solved"] == 2.0
    assert known[RANDOM_PLAY]["episodes"] == 3
    scores = run.evaluate(episodes=2, seed=1)
    assert scores.to_dict()["levels"] == 2
    assert scores.to_dict()["sampled_episodes"] == 2
    assert 0.0 <= scores.mean <= 1.0
    assert (scores.actions <= 40).all()


def test_training_starts_at_any_level_and_scores_start_at_the_first(run):
    assert make_config(SUITE, {"env": "glide"}).world["start"] == "any"
    assert run.problem.env.base.start == "any"
    assert run.evaluator.env.base.start == "first"


def test_the_report_has_a_film_and_every_level(run):
    page = run.report().read_text()
    assert (run.folder / "eval.gif").read_bytes()[:3] == b"GIF"
    assert "graph exploration" in page
    assert "level 2" in page
    assert "It has not been evaluated" not in page


def test_a_run_that_is_loaded_does_what_it_did(run):
    obs = {"cells": np.zeros((1, 6, 6), np.int8), "status": np.zeros((1, 3), np.float32)}
    again = worldloom.load(run.folder)
    assert again.act(obs) == run.act(obs)
    assert again.evaluate(seed=3).to_dict() == run.evaluate(seed=3).to_dict()


def test_a_world_that_is_no_game_is_refused_by_the_suite():
    suites.register("no game", partial(suites.make, "tag"), suite="arc")
    try:
        with pytest.raises(ValueError, match="neither"):
            worldloom.train("no game", algo="ppo")
    finally:
        suites._REGISTERED.pop("no game")
