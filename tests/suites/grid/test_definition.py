"""Worlds from YAML files: what they say, and every mistake in one line."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from worldloom import suites
from worldloom.suites.grid import definition, views

BERRIES = Path(__file__).parents[3] / "examples" / "worlds" / "berries.yaml"
TEXT = """
name: tiny
num_agents: 2
height: 4
width: 5
border: Wall
kinds:
  Empty: {glyph: ".", color: [0, 0, 0], becomes: {Berry: 0.25, Thorn: 0.5}}
  Wall: {glyph: "#", color: [90, 90, 90], value: -1, passable: false}
  Berry: {glyph: "o", color: [200, 0, 0], value: 1.5}
  Thorn: {glyph: "x", color: [0, 99, 0], value: -2}
  Agent: {glyph: "A", color: [0, 0, 200], passable: false}
"""


def change(old: str, new: str) -> str:
    """TEXT with one thing changed."""
    assert TEXT.count(old) == 1, old
    return TEXT.replace(old, new)


def test_a_text_says_the_whole_world():
    world = definition.parse(TEXT, "tiny.yaml")
    assert world.name == "tiny"
    assert world.maps == (("#####", "#...#", "#...#", "#####"),)
    assert [kind.name for kind in world.kinds] == ["Empty", "Wall", "Berry", "Thorn", "Agent"]
    assert world.kinds[0].becomes == (("Berry", 0.25), ("Thorn", 0.5))
    assert world.kinds[2].color == (200, 0, 0)
    assert world.default_params().value.tolist() == [0.0, -1.0, 1.5, -2.0, 0.0]
    assert world.passable.tolist() == [True, False, True, True, False]
    assert (world.num_agents, world.radius, world.view) == (2, 2, "onehot")
    assert world.turn_order == "interleaved"


def test_what_is_not_said_has_a_default():
    short = TEXT.replace("name: tiny\n", "").replace("num_agents: 2\n", "")
    made = definition.read(short, "some/where/small.yaml")
    assert made.world.name == "small"
    assert made.world.num_agents == 1
    assert (made.horizon, made.num_frames) == (100, 1)


def test_a_map_may_be_drawn_as_text_or_as_a_list():
    as_text = change("height: 4\nwidth: 5\nborder: Wall\n", "map: |\n  ####\n  #.o#\n  ####\n")
    as_list = change("height: 4\nwidth: 5\nborder: Wall\n", 'map: ["####", "#.o#", "####"]\n')
    for text in (as_text, as_list):
        assert definition.read(text, "x.yaml", {"num_agents": 1}).world.maps == (
            ("####", "#.o#", "####"),
        )


def test_a_field_without_a_border_is_open_and_a_floor_is_a_layer_of_its_own():
    open_field = definition.parse(change("border: Wall\n", ""))
    assert open_field.maps == (("." * 5,) * 4,)
    floored = definition.parse(TEXT + "floor: Thorn\n")
    assert floored.maps == (("xxxxx",) * 4, ("#####", "#...#", "#...#", "#####"))


def test_all_the_other_settings_reach_the_world():
    more = """
radius: all
turn_order: simultaneous
view: rgb
agent: Person
outside: Berry
horizon: 7
num_frames: 3
"""
    text = TEXT.replace("Agent:", "Person:").replace("value: 1.5}", "value: 1.5, passable: false}")
    made = definition.read(text + more, "tiny.yaml")
    world = made.world
    assert (world.radius, world.turn_order, world.view) == (None, "simultaneous", "rgb")
    assert (world.agent, world.outside) == ("Person", "Berry")
    assert (made.horizon, made.num_frames) == (7, 3)


def test_the_shipped_example_plays(tmp_path):
    env = suites.make(str(BERRIES))
    assert env.spec.name == "berries"
    assert (env.spec.num_agents, env.spec.horizon) == (4, 100)
    state, first = jax.jit(env.reset)(jax.random.key(0), env.default_params())
    assert first.obs.shape == (4, 1, 7, 7, 7)
    text = views.ascii_map(env.base, state.inner.inner)
    assert text.count("#") == 14 * 2 + 9 * 2 + 2
    state, after = jax.jit(env.step)(
        jax.random.key(1), state, jnp.array([0, 1, 2, 3]), env.default_params()
    )
    assert after.reward.shape == (4,)


def test_options_go_before_what_the_file_says():
    env = suites.make(
        str(BERRIES), num_agents=2, radius=None, turn_order="simultaneous", horizon=5, num_frames=2
    )
    assert (env.spec.num_agents, env.spec.horizon, env.spec.num_frames) == (2, 5, 2)
    assert env.spec.turn_order == "simultaneous"
    assert env.base.radius is None
    assert suites.make(str(BERRIES), radius="all").base.radius is None
    assert suites.make(str(BERRIES), radius=1).base.radius == 1


def test_the_options_of_a_file_are_known_to_the_registry():
    assert (suites.world_parameters(str(BERRIES)) or {}).keys() == {
        "num_agents", "height", "width", "radius", "turn_order", "view", "horizon", "num_frames",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"berries.yaml has no option 'agents'; did you mean"):
        suites.make(str(BERRIES), agents=3)


@pytest.mark.parametrize("name", ["no/such/world.yaml", "gone.yml"])
def test_a_missing_file_is_said_to_be_missing(name):
    with pytest.raises(ValueError, match=f"{name}: there is no such file; check the path"):
        suites.make(name)


def test_a_file_that_is_no_text_is_said_to_be_none(tmp_path):
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"folder.yaml: cannot be read as a text file"):
        suites.make(str(folder))
    noise = tmp_path / "noise.yaml"
    noise.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ValueError, match=r"noise.yaml: cannot be read as a text file"):
        suites.make(str(noise))


GLYPH = '{glyph: "o", color: [200, 0, 0], value: 1.5}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "w.yaml: None is not a list of keys with values"),
        ("just words", "w.yaml: 'just words' is not a list of"),
        ("kinds: [\n", "w.yaml: not a YAML file: .* line 2"),
        (TEXT + "name: again\n", r"w.yaml: not a YAML file: name is written twice \(line 13\)"),
        (change("Thorn: {", "Berry: {"), r"w.yaml: .*: Berry is written twice \(line 11\)"),
        (TEXT + "agents: 3\n", "w.yaml: unknown key 'agents'; did you mean 'agent'"),
        (TEXT + "no: 3\n", "w.yaml: .*: the key False is not a name"),
        ("num_agents: 1\n", "w.yaml: kinds is missing; list the kinds"),
        ("kinds: 3\n", "w.yaml: kinds: 3 is not a list of keys"),
        ("kinds: {}\n", "w.yaml: kinds: is empty; name at least"),
        (change(GLYPH, "null"), "w.yaml: kinds.Berry: None is not a list of"),
        (change(GLYPH, "red"), "w.yaml: kinds.Berry: 'red' is not a list of"),
        (change(GLYPH, '{glyph: "o"}'), "w.yaml: kinds.Berry: color is missing; every kind needs"),
        (change(GLYPH, "{color: [1, 2, 3]}"), "w.yaml: kinds.Berry: glyph is missing"),
        (change('"o", color', '"o", colour'),
         "w.yaml: kinds.Berry: unknown key 'colour'; did you mean 'color'"),
        (change('glyph: "o"', 'glyph: "oo"'), "w.yaml: kinds.Berry.glyph: 'oo' is not one char"),
        (change('glyph: "o"', "glyph: 7"), "w.yaml: kinds.Berry.glyph: 7 is not one character"),
        (change('glyph: "o"', 'glyph: "x"'), "w.yaml: tiny: each kind needs one character of"),
        (change("[200, 0, 0]", "[200, 0]"), "w.yaml: kinds.Berry.color: .* is no colour; write"),
        (change("[200, 0, 0]", "[200, 0, 256]"), "w.yaml: kinds.Berry.color: .* is no colour"),
        (change("[200, 0, 0]", "red"), "w.yaml: kinds.Berry.color: 'red' is no colour"),
        (change("1.5", "high"), "w.yaml: kinds.Berry.value: 'high' is not a finite number"),
        (change("1.5", ".inf"), "w.yaml: kinds.Berry.value: inf is not a finite number"),
        (change("1.5", "true"), "w.yaml: kinds.Berry.value: True is not a finite number"),
        (change("value: -1, passable: false", "passable: maybe"),
         "w.yaml: kinds.Wall.passable: 'maybe'; it must be true or false"),
        (change("{Berry: 0.25, Thorn: 0.5}", "[Berry]"), "kinds.Empty.becomes: .* is not a list"),
        (change("Thorn: 0.5", "Torn: 0.5"),
         "w.yaml: kinds.Empty.becomes: there is no kind 'Torn'; did you mean 'Thorn'"),
        (change("0.25", "1.25"), "w.yaml: kinds.Empty.becomes.Berry: 1.25 is no chance; use"),
        (change("0.25", "0.75"), "w.yaml: tiny: the chances of Empty turning .* add up to 1.25"),
        (change("height: 4\n", ""), "w.yaml: height is missing; give height and width, or a map"),
        (change("height: 4", "height: 2"), "w.yaml: height, width: a world of 2x5 has no room"),
        (change("height: 4", "height: tall"), "w.yaml: height: 'tall'; it must be a whole number"),
        (change("border: Wall", "border: Wal"), "w.yaml: border: there is no kind 'Wal'; did you"),
        (change("border: Wall", "map: [abc]"), "w.yaml: height: cannot stand beside map"),
        (change("height: 4\nwidth: 5\nborder: Wall", "map: 5"), "w.yaml: map: 5 is no map; write"),
        (change("height: 4\nwidth: 5\nborder: Wall", "map: ['..', '.']"),
         "w.yaml: tiny: the maps have rows of sizes"),
        (change("height: 4\nwidth: 5\nborder: Wall", "map: ['.?', '..']"),
         r"w.yaml: tiny: no kind has the glyph '\?'"),
        (TEXT + "floor: Sand\n", "w.yaml: floor: there is no kind 'Sand'; known: Empty, Wall"),
        (change("Agent: {", "Person: {"), "w.yaml: agent: there is no kind 'Agent'; known:"),
        (TEXT + "outside: Berry\n", "w.yaml: tiny: outside='Berry' can be walked into"),
        (change("num_agents: 2", "num_agents: 0"), "w.yaml: num_agents: 0; it must be a whole"),
        (change("num_agents: 2", "num_agents: 80"), "num_agents=80 does not fit the 6 free cells"),
        (TEXT + "radius: 0\n", "w.yaml: radius: 0; it must be .* of at least 1, or all"),
        (TEXT + "turn_order: random\n", "w.yaml: tiny: turn_order='random' is not known"),
        (TEXT + "view: 3\n", "w.yaml: view: 3; it must be a text"),
        (TEXT + "horizon: -1\n", "w.yaml: horizon: -1; it must be a whole number of at least 1"),
        (TEXT + "num_frames: 1.5\n", "w.yaml: num_frames: 1.5; it must be a whole number"),
        (change("height: 4", "height: 10000000000"), "w.yaml: height: .* it must be at most 4096"),
        (change("height: 4\nwidth: 5\nborder: Wall", "floor: Berry\nmap: [' ']"),
         "w.yaml: map: it has no lines; draw at least one"),
        (TEXT + "num_frames: 1000000\n", "w.yaml: num_frames: 1000000; it must be at most 1024"),
        (TEXT + "radius: 1000000\n", "w.yaml: radius: 1000000; it must be at most 4096, or all"),
        (TEXT + "agent: [Agent]\n", "w.yaml: agent: there is no kind .'Agent'.; did you"),
        (change("border: Wall", "border: {a: 1}"), "w.yaml: border: there is no kind {'a': 1}"),
        (change("name: tiny", "name: 3"), "w.yaml: name: 3; it must be a text"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_line_with_file_key_and_remedy(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        definition.parse(text, "w.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("w.yaml: ")
