"""What agents and people see: windows, whole maps, colours, text."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import scene

from worldloom.suites.grid import views
from worldloom.suites.grid.kinds import Kind, bordered
from worldloom.suites.grid.world import GridWorld

KINDS = (
    Kind("Empty", ".", (10, 10, 10)),
    Kind("Wall", "#", (90, 90, 90), passable=False),
    Kind("Sand", ",", (200, 150, 100)),
    Kind("Gem", "*", (0, 200, 200)),
    Kind("Agent", "A", (0, 0, 200), passable=False),
)
EMPTY, WALL, SAND, GEM, AGENT = range(5)
WORLD = GridWorld(
    "beach", KINDS, (bordered(4, 5, ".", ","), bordered(4, 5, "#", ".")), num_agents=2, radius=1
)
PICTURE = "##### #0*.# #..1# #####"


def look(world: GridWorld, i: int) -> np.ndarray:
    """What agent `i` sees of PICTURE."""
    observe = jax.jit(world.observe_agent)
    return np.asarray(observe(scene(world, PICTURE), jnp.int32(i), world.default_params()))


def test_a_one_hot_window_is_centred_on_the_agent_and_counts_layers():
    seen = look(WORLD, 0)
    assert seen.dtype == np.uint8
    assert seen[WALL].tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert seen[SAND].tolist() == [[0, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert seen[GEM].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert seen[AGENT].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    # The empty top of (2, 1) and (2, 2), and the empty floor under the walls.
    assert seen[EMPTY].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 1]]


def test_a_window_is_never_turned():
    assert look(WORLD, 1)[GEM].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_beyond_the_map_stands_the_outside_kind_once():
    far = look(replace(WORLD, radius=3), 0)
    assert far.shape == (5, 7, 7)
    assert far[WALL, 0].tolist() == [1] * 7  # two rows beyond the map
    assert far[WALL, 3].tolist() == [1, 1, 1, 0, 0, 0, 1]
    assert far[EMPTY, 0].tolist() == [1] * 7  # the floor out there
    assert far[SAND:].sum(axis=0)[0].tolist() == [0] * 7


def test_channels_can_be_chosen_and_silenced():
    chosen = replace(WORLD, channels=("Gem", "Empty", "Agent"), unseen=("Empty",))
    seen, every = look(chosen, 0), look(WORLD, 0)
    assert chosen.channel_names == ("Gem", "Empty", "Agent")
    assert np.array_equal(seen[0], every[GEM])
    assert np.array_equal(seen[2], every[AGENT])
    assert not seen[1].any()


def test_rgb_adds_the_colours_of_the_layers_and_stops_at_white():
    world = replace(WORLD, view="rgb", unseen=("Empty",))
    seen = look(world, 0)
    assert seen.dtype == np.float32
    assert seen.shape == (3, 3, 3)
    np.testing.assert_allclose(seen[:, 0, 0] * 255, [90, 90, 90], rtol=1e-6)
    np.testing.assert_allclose(seen[:, 2, 2] * 255, [200, 150, 100], rtol=1e-6)  # sand alone
    np.testing.assert_allclose(seen[:, 1, 1] * 255, [200, 150, 255], rtol=1e-6)  # 100 + 200 is cut
    np.testing.assert_allclose(seen[:, 1, 2] * 255, [200, 255, 255], rtol=1e-6)


def test_rgb_shows_the_colour_of_the_empty_cell_unless_it_is_unseen():
    seen = look(replace(WORLD, view="rgb"), 0)
    np.testing.assert_allclose(seen[:, 2, 2] * 255, [210, 160, 110], rtol=1e-6)


@pytest.mark.parametrize("view", ["onehot", "rgb"])
def test_the_full_view_is_the_whole_map_and_where_the_agent_is(view):
    world = replace(WORLD, radius=None, view=view)
    assert world.frame_shape == ((6 if view == "onehot" else 4), 4, 5)
    first, second = look(world, 0), look(world, 1)
    assert first.shape == world.frame_shape
    assert np.array_equal(first[:-1], second[:-1])  # the same map for both
    assert np.argwhere(first[-1] == 1).tolist() == [[1, 1]]
    assert np.argwhere(second[-1] == 1).tolist() == [[2, 3]]
    assert first[-1].sum() == second[-1].sum() == 1
    if view == "onehot":
        assert np.argwhere(first[GEM] == 1).tolist() == [[1, 2]]
        assert np.argwhere(first[AGENT] == 1).tolist() == [[1, 1], [2, 3]]


def test_the_ascii_map_shows_the_topmost_thing_and_numbers_the_agents():
    state = scene(WORLD, PICTURE)
    assert views.ascii_map(WORLD, state) == "#####\n#0*,#\n#,,1#\n#####"


def test_agents_after_the_tenth_are_letters():
    world = GridWorld("long", KINDS, (("." * 14,),), num_agents=12)
    state, _ = jax.jit(world.reset)(jax.random.key(0), world.default_params())
    assert sorted(views.ascii_map(world, state)) == sorted("0123456789ab..")


def test_cells_carry_the_colour_of_what_is_on_top():
    rows = views.cells(WORLD, scene(WORLD, PICTURE))
    assert rows[1][1] == ("0", (0, 0, 200))
    assert rows[1][2] == ("*", (0, 200, 200))
    assert rows[1][3] == (",", (200, 150, 100))
    assert rows[0][0] == ("#", (90, 90, 90))
