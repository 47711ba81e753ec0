"""Options that gridworlds have in common are options of each, said once."""

import inspect
from typing import Literal

import pytest
from flax import struct

from worldloom.suites.grid.kinds import WALL, Kind
from worldloom.suites.grid.options import CommonOptions, Number, common_options, episodic
from worldloom.suites.grid.world import GridWorld


class PondParams(struct.PyTreeNode):
    fish: Number = 3
    bite: Number = 0.5


@common_options("pond", PondParams, height=5, width=7, num_agents=2)
def world(
    common: CommonOptions, *, water: Literal["still", "wild"] = "still", rate: float = 0.1
) -> GridWorld:
    """A pond."""
    common.check_chances(rate=rate)
    empty = Kind("Empty", ".", (0, 0, 0), value=float(water == "wild"))
    return common.world(kinds=(empty, WALL, Kind("Agent", "A", (1, 2, 3), passable=False)))


def test_the_signature_says_all_options_of_a_world():
    options = inspect.signature(episodic(world, horizon=9)).parameters
    assert {name: option.default for name, option in options.items()} == {
        "height": 5,
        "width": 7,
        "num_agents": 2,
        "fish": 3,
        "bite": 0.5,
        "water": "still",
        "rate": 0.1,
        "turn_order": "interleaved",
        "view": "onehot",
        "horizon": 9,
        "num_frames": 1,
    }
    assert world.__doc__ == "A pond."


def test_common_and_own_options_make_the_world():
    made = world(width=6, water="wild", view="rgb")
    assert (made.shape, made.num_agents, made.view, made.kinds[0].value) == ((5, 6), 2, "rgb", 1.0)


def test_numbers_of_the_rules_are_arrays_of_their_own_kind():
    extra = world(fish=4, bite=1).default_params().extra
    assert (extra.fish.dtype, extra.bite.dtype) == ("int32", "float32")
    assert (int(extra.fish), float(extra.bite)) == (4, 1.0)


def test_a_horizon_may_depend_on_the_options():
    make = episodic(world, horizon=lambda options: 3 if options.get("water") == "wild" else 7)
    horizons = make().spec.horizon, make(water="wild").spec.horizon, make(horizon=4).spec.horizon
    assert horizons == (7, 3, 4)


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"water": "deep"}, "pond: water='deep'; use 'still' or 'wild'"),
        ({"rate": 1.5}, "pond: rate=1.5; it must be a share or chance up to 1"),
    ],
)
def test_a_wrong_option_is_named(mistake, says):
    with pytest.raises(ValueError, match=says):
        world(**mistake)


def test_an_option_that_the_world_does_not_have_is_refused():
    with pytest.raises(TypeError, match="radius"):
        world(radius=3)
