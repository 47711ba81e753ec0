"""Worlds by name: which options a maker takes."""

import pytest

from worldloom.core.transforms import frame_stack, time_limit
from worldloom.envs import registry
from worldloom.envs.grid import tag

world = tag.world(num_agents=2)  # not a function of rules: a maker of ours is not taken for another


def any_tag(**rules):
    return time_limit(frame_stack(tag.world(**rules), 1), 5)


def timed_tag(*, horizon=5):
    return time_limit(frame_stack(world, 1), horizon)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", {})
    registry.register("any tag", any_tag, "hands all its options on")
    registry.register("timed tag", timed_tag)


def test_a_maker_that_takes_any_options_gets_them_all():
    assert registry.option_names(any_tag) is None
    assert registry.make("any tag", num_agents=3, radius=1).spec.num_agents == 3


def test_a_maker_that_names_its_options_gets_no_others():
    assert registry.make("timed tag", horizon=7).spec.horizon == 7
    with pytest.raises(ValueError, match="no option 'horizn'; did you mean 'horizon'"):
        registry.make("timed tag", horizn=7)


def test_options_of_our_worlds_are_those_of_maker_and_rules():
    names = registry.option_names(registry.maker("tag"))
    assert names is not None
    assert {"horizon", "num_frames", "num_agents", "it_cost"} <= names
    with pytest.raises(ValueError, match="tag has no option 'it_costs'; did you mean 'it_cost'"):
        registry.make("tag", it_costs=1)


def test_a_name_is_given_once():
    for name in ("tag", "any tag"):
        with pytest.raises(ValueError, match=f"there is already a world named '{name}'"):
            registry.register(name, any_tag)


def test_names_come_with_their_descriptions():
    assert registry.names()["any tag"] == "hands all its options on"
    assert "any tag" not in registry.names("grid")
