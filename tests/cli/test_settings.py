"""One grammar of settings: the command, Python, YAML and config.json say the same by one name."""

import json
import re
from importlib.util import find_spec

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from worldloom import suites
from worldloom.cli.main import main
from worldloom.cli.settings import Schema, flags_of, parse_settings, read_request, read_value
from worldloom.training.config import make_config, nest

SETTINGS = {
    "treasurehunt": {
        "seed": st.integers(0, 2**32 - 1),
        "steps": st.integers(1, 10**7),
        "num_worlds": st.integers(1, 512),
        "share_parameters": st.booleans(),
        "mode": st.sampled_from(["jax_fused", "jax_parallel"]),
        "world.num_agents": st.integers(1, 9),
        "world.radius": st.none() | st.integers(1, 4),
        "world.gem_value": st.floats(-10, 10, width=32) | st.integers(-5, 5),
        "world.turn_order": st.sampled_from(["interleaved", "simultaneous"]),
        "iqn.learning_rate": st.floats(1e-6, 1, exclude_min=True),
        "iqn.hidden": st.integers(1, 64),
        "iqn.noisy": st.booleans(),
    },
    "gymnax:CartPole-v1": {
        "eval_every": st.integers(0, 10**6),
        "world.gravity": st.floats(1, 20, width=32),
        "ppo.hidden": st.lists(st.integers(1, 64), min_size=1, max_size=3).map(tuple),
        "ppo.final_entropy_cost": st.none() | st.floats(0, 1),
        "ppo.activation": st.sampled_from(["tanh", "elu"]),
    },
    "reactor": {
        "data_steps": st.integers(1, 10**6),
        "constraints": st.none() | st.just("limits.yaml"),
        "iql.expectile": st.floats(0.1, 0.9),
        "iql.hidden": st.lists(st.integers(1, 64), min_size=1, max_size=3).map(tuple),
    },
}
OUTSIDER = "gymnax:CartPole-v1"  # a world that takes any options: only itself knows what they are
if find_spec("gymnax") is None:
    del SETTINGS[OUTSIDER]


def typed(name: str, value) -> list[str]:
    """A setting as it would be typed."""
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return [flag, "none"]
    if isinstance(value, bool):
        return [flag] if value else [f"--no-{flag[2:]}"]
    if isinstance(value, tuple):
        return [flag, *map(str, value)]
    return [f"{flag}={value}"] if "-" in str(value) else [flag, str(value)]


@pytest.mark.parametrize("env", SETTINGS)
@settings(max_examples=40)
@given(data=st.data())
def test_the_same_settings_make_the_same_run_however_they_are_written(tmp_path_factory, env, data):
    known = SETTINGS[env]
    chosen = {
        name: data.draw(known[name], name)
        for name in data.draw(st.lists(st.sampled_from(sorted(known)), unique=True), "names")
    }
    suite = suites.suite_of(env)
    in_python = make_config(suite, {"env": env} | chosen)
    assert make_config(suite, {"env": env} | nest(chosen)) == in_python

    argv = [word for name, value in chosen.items() for word in typed(name, value)]
    in_shell = read_request(env, argv).config

    folder = tmp_path_factory.mktemp("settings")
    plain = json.loads(json.dumps(nest(chosen)))
    (folder / "run.yaml").write_text(yaml.safe_dump({"env": env} | plain))
    in_yaml = read_request(None, [], config=str(folder / "run.yaml")).config

    in_json = make_config(suite, json.loads(json.dumps(in_python.to_dict())))
    configs = (in_shell, in_yaml, in_json)
    assert {one.fingerprint() for one in configs} == {in_python.fingerprint()}
    assert in_yaml == in_json == in_python
    assert (in_shell.hyper, in_shell.settings) == (in_python.hyper, in_python.settings)


def schema(env="treasurehunt", algo="iqn") -> Schema:
    return Schema(suites.suite_of(env), env, algo)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--steps 1e6", {"steps": 1_000_000}),
        ("--steps 2_000", {"steps": 2000}),
        ("--steps=3", {"steps": 3}),
        ("--iqn.gamma 1", {"iqn": {"gamma": 1.0}}),
        ("--algo.gamma .5", {"iqn": {"gamma": 0.5}}),
        ("--iqn.noisy", {"iqn": {"noisy": True}}),
        ("--no-iqn.noisy", {"iqn": {"noisy": False}}),
        ("--iqn.noisy false", {"iqn": {"noisy": False}}),
        ("--share-parameters true --seed 1 --seed 2", {"share_parameters": True, "seed": 2}),
        ("--share_parameters", {"share_parameters": True}),
        ("--mode jax_fused", {"mode": "jax_fused"}),
        ("--world.num-agents 3", {"world": {"num_agents": 3}}),
        ("--world.radius null", {"world": {"radius": None}}),
        ("--world.radius None", {"world": {"radius": None}}),
        ("--world.gem_value -1e-3", {"world": {"gem_value": -0.001}}),
        ("--world.gem_value -.inf", {"world": {"gem_value": -float("inf")}}),
        ("--world.turn-order simultaneous", {"world": {"turn_order": "simultaneous"}}),
        ("--world.legacy", {"world": {"legacy": True}}),
    ],
)
def test_what_is_typed_means_what_it_looks_like(line, expected):
    given = parse_settings(schema(), line.split())
    assert given == expected
    for value, other in zip(_leaves(given), _leaves(expected), strict=True):
        assert type(value) is type(other)


def _leaves(tree):
    return [x for v in tree.values() for x in (_leaves(v) if isinstance(v, dict) else [v])]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("1e-3", 1e-3),  # which YAML takes for text
        ("true", True),
        ("null", None),
        ("simultaneous", "simultaneous"),
        ("[1,2]", [1, 2]),
        ("x=y", "x=y"),
    ],
)
def test_options_of_unknown_type_are_read_as_yaml_reads_them(word, value):
    pytest.importorskip("gymnax", reason="needs worldloom[gymnax]")
    given = parse_settings(schema(OUTSIDER, "ppo"), ["--world.a", word])
    assert given == {"world": {"a": value}}
    assert type(given["world"]["a"]) is type(value)


@pytest.mark.parametrize(
    ("words", "kind", "expected"),
    [
        (["64", "32"], tuple[int, ...], (64, 32)),
        (["64"], tuple[int, ...], (64,)),
        (["0", "1.5"], tuple[float, float] | None, (0.0, 1.5)),
        (["none"], tuple[float, float] | None, None),
        (["none"], str, "none"),
        (["none"], str | None, None),
        (["1e3"], str, "1e3"),
    ],
)
def test_words_take_the_type_of_their_option(words, kind, expected):
    value = read_value("--x", words, kind)
    assert value == expected
    assert type(value) is type(expected)


def test_an_option_of_a_world_may_be_a_bare_flag():
    assert read_request("treasurehunt", ["--world.legacy"]).given["world"]["legacy"] is True
    assert read_request("treasurehunt", ["--no-world.legacy"]).given["world"]["legacy"] is False


def test_flags_and_values_come_apart():
    line = "--a 1 2 --b=-3 --c -4 --d"
    assert list(flags_of(line.split())) == [
        ("--a", ["1", "2"]),
        ("--b", ["-3"]),
        ("--c", ["-4"]),
        ("--d", []),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--steps", "--steps needs a value"),
        ("--steps many", "--steps='many'; it must be a number"),
        ("--steps 1.5", "--steps=1.5; it must be a whole number"),
        ("--steps null", "--steps=None; it must be a number"),
        ("--steps 1 2", "--steps takes one value, not 1 2"),
        ("--no-steps", "--no-steps: there is nothing to switch off"),
        ("--no-iqn.noisy true", "--no-iqn.noisy: there is nothing to switch off"),
        ("--iqn.noisy perhaps", "--iqn.noisy='perhaps'; it must be true or false"),
        ("--step 3", "--step: no such option; did you mean '--steps'?"),
        ("--iqn.hiden 3", "--iqn.hiden: no such option; did you mean '--iqn.hidden'?"),
        ("--world.num-agent 3", "--world.num-agent: no such option; did you mean '--world.num-a"),
        ("--hidden 3", "--hidden: write --iqn.hidden"),
        ("--num-agents 3", "--num-agents: write --world.num-agents"),
        ("--iqn.num-worlds 3", "--iqn.num-worlds: write --num-worlds"),
        ("--ppo.gamma 0.5", "--ppo.gamma: this run learns with iqn; add --algo ppo, or leave it"),
        ("--env tag", "--env: the world comes first"),
        ("tag", "'tag' is not expected here; the world comes first, then options"),
        # What was written in the first version.
        ("--epochs 80", "--epochs: this is now --steps, the budget in environment steps"),
        ("--updates 80", "--updates: this is now --steps"),
        ("--updates-per-epoch 3", "--updates-per-epoch: this is now --iqn.gradient-steps"),
        ("--memory-rows 3", "--memory-rows: this is now --iqn.buffer-size"),
        ("--record-period 3", "--record-period: this is now --record-every"),
        ("--judge-updates 3", "--judge-updates: this is now --ope-updates"),
        ("--network.hidden 64", "--network.hidden: this is now --iqn.hidden"),
        ("--episodes 3", "--episodes: this is now --eval-episodes"),
        # What other libraries call them.
        ("--iqn.lr 1e-3", "--iqn.lr: this is here --iqn.learning-rate"),
        ("--lr 1e-3", "--lr: this is here --iqn.learning-rate"),
        ("--num-envs 8", "--num-envs: this is here --num-worlds"),
        ("--total-timesteps 8", "--total-timesteps: this is here --steps"),
        ("--epsilon-decay 0.2", "--epsilon-decay: write --iqn.epsilon-decay"),
        ("--world num_agents=3", "--world num_agents=3: options are written --world.NAME VALUE"),
        ("--hyper tau=0.7", "--hyper tau=0.7: options are written --iqn.NAME VALUE now"),
    ],
)
def test_a_wrong_line_is_answered_with_the_right_one(line, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        parse_settings(schema(), line.split())
    assert "\n" not in str(error.value)


# Where settings start from -----------------------------------------------------------------------


def test_flags_go_before_a_file_and_a_file_before_a_preset(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("env: treasurehunt\nsteps: 1e3\nworld: {num_agents: 2}\niqn.hidden: 8\n")
    config = read_request(
        None, ["--world.radius", "3", "--seed", "7"], config=str(path), preset="original"
    ).config
    assert (config.steps, config.seed, config.hyper.hidden) == (1000, 7, 8)
    assert config.world == {"num_frames": 5, "legacy": True, "num_agents": 2, "radius": 3}
    assert config.hyper.n_step == 3  # of the original
    # Another world than that of the file, if one is named.
    assert read_request("tag", [], config=str(path)).config.env == "tag"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "it must hold settings by name"),
        ("a: [", "run.yaml: not a YAML file: while parsing"),
        ("env: tag\nsteps: 1\nsteps: 2\n", "steps is written twice"),
        ("steps: 3\n", "name a world first"),
        ("env: treasurehunt\nworld: 3\n", "world=3; it must hold names"),
        ("env: treasurehunt\nstep: 3\n", "no setting 'step'; did you mean 'steps'"),
        ("env: treasurehunt\nsteps: many\n", "steps='many'; it must be a number"),
        ("env: treasurehunt\nppo: {}\n", "'ppo' holds options of ppo"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_request(None, [], config=str(tmp_path / "run.yaml")).config  # noqa: B018
    assert "\n" not in str(error.value)


def test_another_algorithm_comes_with_its_own_defaults():
    config = read_request("treasurehunt", ["--algo", "ppo"]).config
    usual = suites.suite("grid").defaults("treasurehunt", "ppo")
    assert config.algo == "ppo"
    assert config.steps == usual["steps"]
    assert config.hyper.gamma == usual["ppo"]["gamma"]


# Help --------------------------------------------------------------------------------------------

WORLDS = [*suites.names(), *({OUTSIDER} & set(SETTINGS))]


def shown(capsys, *argv: str) -> str:
    assert main(["train", *argv]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


@pytest.mark.parametrize("world", WORLDS)
def test_help_fits_a_screen_and_names_everything(world, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    screen, everything = shown(capsys, world, "--help"), shown(capsys, world, "--help-all")
    assert len(screen.splitlines()) <= 45
    assert all(len(line) <= 80 for line in screen.splitlines())
    asked = read_request(world, [])
    offered = [option for group in asked.schema.groups.values() for option in group]
    for option in offered:
        last = option.name.rpartition(".")[2].replace("_", "-")
        assert f" {last} " in screen.replace("--", " ").replace(".", " ").replace("\n", " "), last
        assert f"  {option.flag} " in everything, option.flag
    lines = everything.splitlines()
    assert len(lines) > len(offered)


def test_help_of_a_game_names_nothing_that_is_about_tasks(capsys):
    for flag in ("--help", "--help-all"):
        out = shown(capsys, "glide", flag)
        assert "--dataset" in out
        assert not re.search(r"--(tasks|split|families|attempts|network)\b", out)
    assert main(["train", "glide", "--tasks", "mini-arc"]) == 2
    assert "is for ARC tasks, and this is a game" in capsys.readouterr().err


def test_help_shows_the_defaults_that_a_run_would_have(capsys):
    def gamma(*argv):
        lines = shown(capsys, "tag", "--help-all", *argv).splitlines()
        return next(line for line in lines if ".gamma" in line).split()[:2]

    assert gamma() == ["--iqn.gamma", "0.9"]
    assert gamma("--algo", "ppo") == ["--ppo.gamma", "0.9"]
    out = shown(capsys, "reactor", "--help")
    assert "algorithms that fit: ppo, random, sac, td3" in out
    assert "from logged data, --dataset: bc, cql" in out
