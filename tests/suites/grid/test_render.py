"""What stands in the world is in the picture, and what is in the film is in the file."""

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageSequence

from worldloom.report.colors import rgb, series_color
from worldloom.suites.grid import render, sprites
from worldloom.suites.grid.kinds import Kind
from worldloom.suites.grid.treasurehunt import world as treasurehunt
from worldloom.suites.grid.world import GridWorld

TILE = 24
EMPTY = Kind("Empty", ".", (0, 0, 0))
WALL = Kind("Wall", "#", (88, 92, 108), passable=False)
SAND = Kind("Sand", ",", (226, 202, 150))
AGENT = Kind("Agent", "A", (64, 120, 220), passable=False)
ITEMS = tuple(
    Kind(name, glyph, color)
    for name, glyph, color in (
        ("Gem", "*", (38, 190, 170)),
        ("Food", "o", (226, 92, 70)),
        ("Bone", "x", (240, 240, 232)),
        ("Apple", "a", (214, 60, 60)),
        ("Tree", "t", (70, 140, 80)),
        ("Hare", "h", (190, 160, 130)),
        ("Stag", "S", (150, 100, 64)),
        ("Dirt", "d", (110, 92, 60)),
        ("Rock", "r", (130, 130, 140)),
        ("Water", "~", (60, 130, 210)),
        ("Grass", '"', (90, 160, 80)),
        ("Lever", "L", (120, 60, 160)),  # a kind without a sprite of its own
        ("Switch", "s", (120, 60, 160)),  # of the same colour
    )
)


def field(*kinds, num_agents=1, agent="Agent", size=8):
    """A sandy field with the given kinds beside the usual ones."""
    inside = "#" + "." * (size - 2) + "#"
    return GridWorld(
        name="field",
        kinds=(EMPTY, WALL, SAND, AGENT, *kinds),
        maps=(("," * size,) * size, ("#" * size, *[inside] * (size - 2), "#" * size)),
        num_agents=num_agents,
        agent=agent,
    )


def draw(world, layers, positions):
    """One picture of a state, without a caption."""
    states = SimpleNamespace(layers=np.asarray(layers)[None], position=np.asarray(positions)[None])
    (image,) = render.frames(world, states, caption=False)
    return image


def cell(image, row, column, tile=TILE):
    pixels = np.asarray(image.convert("RGB"), int)
    return pixels[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]


def share_of_color(pixels, color, within=40):
    return (np.abs(pixels - np.array(color)).max(axis=-1) <= within).mean()


def test_films_of_long_episodes_are_abridged(random_walk):
    assert render.abridged(50) == list(range(51))
    shown = render.abridged(1000)
    assert shown[:81] == list(range(81)), "turn by turn at first"
    assert shown[-1] == 1000
    assert len(shown) == len(set(shown)) == 121
    states, rewards = random_walk(treasurehunt(), 9)
    whole = render.frames(treasurehunt(), states, rewards)
    some = render.frames(treasurehunt(), states, rewards, chosen=[0, 7])
    for frame, turn in zip(some, (0, 7), strict=True):
        np.testing.assert_array_equal(frame, whole[turn])


def test_every_agent_stands_in_its_own_colour_on_its_own_cell_and_nowhere_else():
    world = field(num_agents=8)
    places = np.array([[2 + i // 3, 2 + i % 3] for i in range(8)])
    layers = np.array(world.start_layers)
    layers[-1][tuple(places.T)] = world.index["Agent"]
    image = draw(world, layers, places)
    for number, row, column in ((i, *places[i]) for i in range(8)):
        own = [share_of_color(cell(image, row, column), rgb(series_color(i))) for i in range(8)]
        assert np.argmax(own) == number
        assert own[number] > 0.2
    bare = cell(image, 6, 6)
    assert max(share_of_color(bare, rgb(series_color(i)), 12) for i in range(8)) == 0


@pytest.mark.parametrize("kind", ITEMS, ids=lambda kind: kind.name)
def test_every_thing_is_seen_where_it_lies_and_changes_no_other_cell(kind):
    world = field(*ITEMS)
    bare = draw(world, world.start_layers, np.empty((0, 2), int))
    layers = np.array(world.start_layers)
    layers[-1, 4, 3] = world.index[kind.name]
    image = draw(world, layers, np.empty((0, 2), int))
    changed = (np.asarray(image, int) != np.asarray(bare, int)).any(axis=-1)
    inside = changed[4 * TILE : 5 * TILE, 3 * TILE : 4 * TILE]
    assert inside.mean() > 0.2
    assert inside.sum() == changed.sum()


def test_different_kinds_look_different_also_those_without_a_sprite():
    world = field(*ITEMS)
    looks = []
    for kind in ITEMS:
        layers = np.array(world.start_layers)
        layers[-1, 4, 3] = world.index[kind.name]
        looks.append(cell(draw(world, layers, np.empty((0, 2), int)), 4, 3))
    for (a, one), (b, other) in itertools.combinations(zip(ITEMS, looks, strict=True), 2):
        different = (np.abs(one - other).max(axis=-1) > 40).mean()
        assert different > 0.02, f"{a.name} looks like {b.name}"
    unknown = looks[[kind.name for kind in ITEMS].index("Lever")]
    assert share_of_color(unknown, (120, 60, 160), 8) > 0.4


def test_a_floor_shows_under_an_item_and_an_agent_hides_its_own_kind():
    world = field(ITEMS[0])
    layers = np.array(world.start_layers)
    layers[-1, 3, 3], layers[-1, 5, 5] = world.index["Gem"], world.index["Agent"]
    image = draw(world, layers, np.array([[5, 5]]))
    for row, column in ((3, 3), (5, 5)):
        corner = cell(image, row, column)[0, 0]
        assert np.abs(corner - np.array(SAND.color)).max() < 30
    # The sprite of the kind itself, a tile of its colour, would show.
    assert share_of_color(cell(image, 5, 5), AGENT.color, 8) < 0.05


def test_who_is_it_wears_a_mark_and_keeps_its_colour():
    world = field(Kind("It", "!", (230, 70, 60), passable=False), num_agents=2)
    places = np.array([[3, 3], [5, 5]])
    layers = np.array(world.start_layers)
    layers[-1, 3, 3], layers[-1, 5, 5] = world.index["Agent"], world.index["Agent"]
    before = draw(world, layers, places)
    layers[-1, 3, 3] = world.index["It"]
    after = draw(world, layers, places)
    assert (cell(before, 3, 3) != cell(after, 3, 3)).any(axis=-1).mean() > 0.1
    assert (cell(before, 5, 5) == cell(after, 5, 5)).all()
    assert share_of_color(cell(after, 3, 3), rgb(series_color(0))) > 0.15


def test_agents_look_where_they_went_and_where_their_kind_faces():
    world = field()
    # Right, stay, up, left, on cells whose sand looks the same.
    path = np.array([[[4, 2]], [[4, 4]], [[4, 4]], [[2, 4]], [[2, 2]]])
    states = SimpleNamespace(layers=np.stack([world.start_layers] * 5), position=path)
    film = render.frames(world, states, caption=False)
    still, right, stays, up, left = (
        cell(image, *place) for image, (place,) in zip(film, path, strict=True)
    )
    assert (right == stays).all()
    for one, other in itertools.combinations((still, right, up, left), 2):
        assert (one != other).any()
    facing = field(Kind("FacingLeft", "<", (1, 1, 1), passable=False), agent="FacingLeft")
    layers = np.array(facing.start_layers)
    layers[-1, 4, 4] = facing.index["FacingLeft"]
    assert (cell(draw(facing, layers, [[4, 4]]), 4, 4) == left).all()


def test_an_agent_off_the_map_is_not_drawn():
    world = field()
    without = draw(world, world.start_layers, np.empty((0, 2), int))
    beyond = draw(world, world.start_layers, np.array([[-1, -1], [99, 3]]))
    assert np.array_equal(np.asarray(without), np.asarray(beyond))


def test_frames_show_every_state_and_the_last_one_too(random_walk):
    world = treasurehunt()
    states, rewards = random_walk(world, 6)
    film = render.frames(world, states, rewards, caption=False)
    assert len(film) == 7
    again = SimpleNamespace(layers=states.layers[-2:], position=states.position[-2:])
    rows, columns = states.position[-1].T
    moved = (states.position[-1] != states.position[-2]).any(axis=-1)
    last = render.frames(world, again, caption=False)[-1]
    for row, column in zip(rows[moved], columns[moved], strict=True):
        assert np.array_equal(cell(film[-1], row, column), cell(last, row, column))


def test_the_caption_lies_below_the_picture_and_counts(random_walk):
    world = treasurehunt()
    states, rewards = random_walk(world, 3)
    bare = render.frames(world, states, caption=False)
    counted = render.frames(world, states, rewards)
    side = 10 * TILE
    assert counted[0].size[0] == side
    assert counted[0].size[1] > side
    for with_bar, without in zip(counted, bare, strict=True):
        assert np.array_equal(np.asarray(with_bar)[:side], np.asarray(without))
    bars = [np.asarray(image)[side:].tobytes() for image in counted]
    assert len(set(bars)) == len(bars)
    scored = render.frames(world, states, np.full((3, 5), 7.0))
    assert np.asarray(scored[1])[side:].tobytes() != bars[1]


def test_a_gif_has_turns_plus_one_frames_loops_and_rests_at_the_end(random_walk, tmp_path):
    world = treasurehunt()
    states, rewards = random_walk(world, 12)
    path = render.save_gif(render.frames(world, states, rewards), tmp_path / "a.gif", ms=80)
    with Image.open(path) as film:
        assert film.n_frames == 13
        assert film.info["loop"] == 0
        waits = [frame.info["duration"] for frame in ImageSequence.Iterator(film)]
    assert waits == [80] * 12 + [1000]


def test_equal_pictures_stay_frames_of_their_own(tmp_path):
    image = draw(field(), field().start_layers, [[4, 4]])
    path = render.save_gif([image] * 4, tmp_path / "still.gif")
    with Image.open(path) as film:
        assert film.n_frames == 4


def test_each_frame_of_a_gif_shows_its_picture_in_one_shared_palette(random_walk, tmp_path):
    world = treasurehunt(items="mixed", height=9, width=9, num_agents=5)
    states, rewards = random_walk(world, 10)
    images = render.frames(world, states, rewards)
    path = render.save_gif(images, tmp_path / "b.gif")
    with Image.open(path) as film:
        for image, frame in zip(images, ImageSequence.Iterator(film), strict=True):
            error = np.abs(np.asarray(frame.convert("RGB"), int) - np.asarray(image, int))
            assert error.mean() < 3
            assert (error.max(axis=-1) > 48).mean() < 0.01
    assert local_color_tables(path.read_bytes()) == [False] * 11


def local_color_tables(data):
    """Whether each image of a GIF brings a palette of its own."""
    at = 13 + 3 * 2 ** ((data[10] & 7) + 1)
    found = []
    while data[at] != 0x3B:
        if data[at] == 0x21:
            at += 2
        else:
            found.append(bool(data[at + 9] & 0x80))
            at += 11
        while data[at]:
            at += data[at] + 1
        at += 1
    return found


def test_a_film_of_fifty_turns_takes_well_under_a_second(random_walk, tmp_path):
    world = treasurehunt()
    states, rewards = random_walk(world, 50)

    def seconds():
        start = time.process_time()  # the machine may be busy with something else
        render.save_gif(render.frames(world, states, rewards), tmp_path / "fast.gif")
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.7


def test_mistakes_are_named_in_one_line(random_walk, tmp_path):
    world = field()
    states, rewards = random_walk(treasurehunt(), 4)
    with pytest.raises(ValueError, match="3 rewards for 4 turns"):
        render.frames(treasurehunt(), states, rewards[:3])
    with pytest.raises(ValueError, match="layers hold kind 99"):
        draw(world, np.full((2, 8, 8), 99, np.int8), [[1, 1]])
    one = SimpleNamespace(layers=states.layers[0], position=states.position[0])
    with pytest.raises(ValueError, match="stacked states"):
        render.frames(treasurehunt(), one)
    with pytest.raises(ValueError, match="no frames"):
        render.save_gif([], tmp_path / "none.gif")
    with pytest.raises(ValueError, match="different sizes"):
        render.save_gif([Image.new("RGB", (2, 2)), Image.new("RGB", (3, 2))], tmp_path / "two.gif")
    assert not list(tmp_path.iterdir())


def test_sprites_of_the_cache_cannot_be_drawn_over():
    gem = sprites.thing("Gem", "*", (38, 190, 170), TILE)
    for sprite in (sprites.agent(0, TILE), gem, sprites.shade(TILE)):
        with pytest.raises(ValueError, match="read-only"):
            sprite[0, 0] = 0
