"""Worlds by name: what they are, which suite trains them, which options their makers take."""

import os

import numpy as np
import pytest

import worldloom
from oracles import guess
from worldloom import suites
from worldloom.core.transforms import frame_stack, time_limit
from worldloom.suites.grid import tag

world = tag.world(num_agents=2)  # not a function of rules: a maker of ours is not taken for another


def any_tag(**rules):
    return time_limit(frame_stack(tag.world(**rules), 1), 5)


def timed_tag(*, horizon: int = 5):
    return time_limit(frame_stack(world, 1), horizon)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(suites, "_REGISTERED", {})
    suites.register("any tag", any_tag, "hands all its options on")
    suites.register("timed tag", timed_tag)
    suites.register("guess", guess.make, "name the number that is shown")


# Options -----------------------------------------------------------------------------------------


def test_a_maker_that_takes_any_options_gets_them_all():
    assert suites.world_parameters("any tag") is None
    assert suites.make("any tag", num_agents=3, radius=1).spec.num_agents == 3


def test_a_maker_that_names_its_options_gets_no_others():
    assert suites.make("timed tag", horizon=7).spec.horizon == 7
    with pytest.raises(ValueError, match="no option 'horizn'; did you mean 'horizon'"):
        suites.make("timed tag", horizn=7)


def test_a_world_whose_own_code_fails_says_so_itself():
    """Only with options may one of them be to blame."""

    def broken(*, size: int = 3):
        world = guess.make()
        world.reset = lambda key, params: None + size
        return world

    suites.register("broken", broken)
    with pytest.raises(TypeError, match="NoneType"):
        suites.make_checked("broken", {}, "broken")
    with pytest.raises(ValueError, match="broken: an option is not known or of the wrong type"):
        suites.make_checked("broken", {"size": 4}, "broken")


def test_options_of_our_worlds_are_those_of_maker_and_rules():
    names = suites.world_parameters("tag") or {}
    assert {"horizon", "num_frames", "num_agents", "it_cost"} <= names.keys()
    with pytest.raises(ValueError, match="tag has no option 'it_costs'; did you mean 'it_cost'"):
        suites.make("tag", it_costs=1)


def test_options_come_with_their_types_and_defaults():
    pytest.importorskip("gymnax", reason="Gymnax is not for this JAX")
    parameters = suites.world_parameters("treasurehunt")
    assert parameters is not None
    assert (parameters["radius"].default, parameters["radius"].annotation) == (2, int | None)
    assert (parameters["num_frames"].default, parameters["num_frames"].annotation) == (1, int)
    assert suites.world_parameters("gymnax:CartPole-v1") is None


# Names -------------------------------------------------------------------------------------------


def test_a_name_is_given_once():
    for name in ("tag", "any tag"):
        with pytest.raises(ValueError, match=f"there is already a world named '{name}'"):
            suites.register(name, any_tag)
    with pytest.raises(ValueError, match="there is no suite 'grids'; did you mean 'grid'"):
        suites.register("another tag", any_tag, suite="grids")


def test_names_come_with_their_descriptions():
    assert suites.names()["any tag"] == "hands all its options on"
    assert "any tag" not in suites.names("grid")
    suites.register("my plant", guess.make, "a plant of mine", suite="plant")
    assert suites.names("plant")["my plant"] == "a plant of mine"
    assert worldloom.worlds() == suites.names()


@pytest.mark.parametrize(
    ("name", "suite"),
    [
        ("treasurehunt", "grid"),
        ("arc", "arc"),
        ("biped", "robot"),
        ("reactor", "plant"),
        ("meadow.yaml", "grid"),
        ("MEADOW.YML", "grid"),
        ("gymnax:CartPole-v1", "plain"),
        ("brax:ant", "plain"),
        ("any tag", "grid"),  # turn-based
        ("guess", "plain"),
        ("my plant", "plant"),
    ],
)
def test_the_suite_of_a_world_follows_from_its_name_or_from_what_it_is(
    name, suite, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for path in ("meadow.yaml", "MEADOW.YML"):
        (tmp_path / path).write_text("kinds: {}\n", encoding="utf-8")
    suites.register("my plant", guess.make, suite="plant")
    assert suites.suite_of(name).name == suite


def test_what_is_not_known_is_answered_with_the_nearest():
    for call in (suites.make, suites.suite_of, suites.maker):
        with pytest.raises(ValueError, match="there is no world 'reactr'; did you mean 'reactor'"):
            call("reactr")
    with pytest.raises(ValueError, match="there is no suite 'grids'; did you mean 'grid'"):
        suites.suite("grids")


# Files -------------------------------------------------------------------------------------------

FILE = """
print("executed")
from worldloom.suites.grid import tag
def make(horizon=5):
    return tag.make(num_agents=2, horizon=horizon)
other = lambda: make(horizon=9)
"""


def test_a_function_in_a_file_makes_a_world(tmp_path, monkeypatch, capsys):
    path = tmp_path / "own.py"
    path.write_text(FILE)
    assert suites.make(f"{path}:make", horizon=6).spec.horizon == 6
    assert suites.make(str(path)).spec.horizon == 5, "make is what it is usually called"
    assert suites.make(f"{path}:other").spec.horizon == 9
    assert suites.suite_of(f"{path}:make").name == "grid"
    monkeypatch.chdir(tmp_path)
    assert suites.make("own.py:other").spec.horizon == 9
    assert capsys.readouterr().out.split() == ["executed"], "once, whatever it is asked for"
    path.write_text(FILE.replace("horizon=9", "horizon=8"))
    os.utime(path, ns=(1, 1))
    assert suites.make("own.py:other").spec.horizon == 8, "again, where it has changed"


# Training ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiled_once")
def test_a_registered_world_trains_like_a_built_in_one(tmp_path):
    run = worldloom.train(
        "guess",
        steps=64,
        num_worlds=4,
        eval_episodes=4,
        world={"choices": 2},
        ppo={"unroll_length": 8, "hidden": (8,)},
        out=tmp_path / "run",
    )
    assert (run.suite.name, run.config.algo, run.steps) == ("plain", "ppo", 64)
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    loaded = worldloom.load(tmp_path / "run")
    obs = np.array([[0.0], [1.0], [0.0]], np.float32)
    assert loaded.act(obs).tolist() == run.act(obs).tolist()
    assert worldloom.evaluate(tmp_path / "run", 4).lengths.tolist() == [4, 4, 4, 4]
    assert run.metrics()["return"].shape == (2,)
