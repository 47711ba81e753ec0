"""Settings: what they refuse, and that they survive the way to config.json and back."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import suites
from worldloom.algos.dqn import DQNConfig
from worldloom.algos.iqn import IQNConfig
from worldloom.algos.ppo import PPOConfig
from worldloom.suites.grid.suite import original
from worldloom.training.config import CADENCE, TrainConfig, convert, make_config, merge, nest

GRID, PLAIN, PLANT = (suites.suite(name) for name in ("grid", "plain", "plant"))


def grid(**given) -> TrainConfig:
    return make_config(GRID, {"env": "treasurehunt"} | given)


def through_json(suite, config: TrainConfig) -> TrainConfig:
    return make_config(suite, json.loads(json.dumps(config.to_dict())))


@pytest.mark.parametrize(
    ("suite", "given"),
    [
        (GRID, {"env": "treasurehunt"}),
        (GRID, original()),
        (GRID, {"env": "tag", "algo": "random"}),
        (GRID, {"env": "tag", "seed": 4, "world": {"num_agents": 3, "radius": None}}),
        (GRID, {"env": "tag", "algo": "dqn", "dqn": {"hidden": (8, 4)}}),
        (GRID, {"env": "tag", "algo": "qlearning", "share_parameters": True}),
        (PLAIN, {"env": "gymnax:CartPole-v1", "ppo": {"final_entropy_cost": None}}),
        (PLANT, {"env": "reactor", "iql": {"expectile": 0.8, "hidden": (32, 32)}}),
    ],
    ids=lambda value: getattr(value, "name", None) or f"{value['env']}-{value.get('algo')}",
)
def test_settings_come_back_from_json_as_they_were(suite, given):
    config = make_config(suite, given)
    assert through_json(suite, config) == config
    assert through_json(suite, config).fingerprint() == config.fingerprint()


def test_only_the_options_of_the_chosen_algorithm_are_written():
    names = {"iqn", "dqn", "random"}
    assert set(grid().to_dict()) & names == {"iqn"}
    assert set(grid(algo="dqn").to_dict()) & names == {"dqn"}
    # Numbers that may be vmapped stand among the others.
    written = make_config(PLANT, {"env": "reactor"}).to_dict()["iql"]
    assert {"hidden", "expectile"} <= set(written)
    assert "hyper" not in written


def test_the_fingerprint_is_of_what_is_learned_and_not_of_when_it_is_looked_at():
    config = grid()
    for name in CADENCE:
        assert replace(config, **{name: 7}).fingerprint() == config.fingerprint(), name
    changes = {
        "seed": 1,
        "mode": "jax_parallel",
        "num_worlds": 3,
        "share_parameters": True,
        "algo": "dqn",
        "world": {"num_agents": 2},
        "env": "tag",
        "iqn": {"epsilon": 0.5},
    }
    prints = {grid(**{name: value}).fingerprint() for name, value in changes.items()}
    assert len(prints | {config.fingerprint()}) == len(changes) + 1


def test_what_a_suite_calls_cadence_is_no_part_of_the_fingerprint():
    config = make_config(PLANT, {"env": "reactor"})
    other = make_config(PLANT, {"env": "reactor", "ope_updates": 7})
    assert "ope_updates" in config.cadence
    assert config.fingerprint() == other.fingerprint()
    data = make_config(PLANT, {"env": "reactor", "data_steps": 7})
    assert config.fingerprint() != data.fingerprint()


# One grammar -------------------------------------------------------------------------------------


def test_the_same_setting_has_the_same_hash_however_it_is_written():
    expected = grid(steps=1000, world={"gem_value": 3.0}, iqn={"gamma": 0.5, "hidden": 8})
    for given in (
        {"steps": 1e3, "world": {"gem_value": 3}, "iqn": {"gamma": 0.5, "hidden": 8.0}},
        {"steps": 1e3, "world.gem-value": np.float64(3.0), "iqn.gamma": 0.5, "iqn.hidden": 8},
        {"steps": 1e3, "world.gem_value": jnp.float32(3), "algo_options": {"gamma": 0.5,
                                                                           "hidden": 8}},
        {"steps": 1000, "world": {"gem_value": 3}, "iqn": IQNConfig(gamma=0.5, hidden=8)},
    ):  # fmt: skip
        made = grid(**given)
        assert made.fingerprint() == expected.fingerprint(), given
        assert (made.steps, made.hyper) == (expected.steps, expected.hyper)


def test_defaults_of_the_suite_stand_until_something_else_is_given():
    usual = GRID.defaults("tag", "ppo")
    config = make_config(GRID, {"env": "tag", "algo": "ppo", "ppo": {"num_epochs": 7}})
    assert config.steps == usual["steps"]
    assert config.hyper.num_epochs == 7
    assert config.hyper.gamma == usual["ppo"]["gamma"] != PPOConfig().gamma
    # A whole config of the algorithm is taken as it is.
    assert make_config(GRID, {"env": "tag", "algo": "ppo", "ppo": PPOConfig()}).hyper == PPOConfig()


def test_dotted_names_nest_and_nested_settings_merge():
    assert nest({"ppo.gamma": 1, "ppo": {"a": 2}, "num-worlds": 3}) == {
        "ppo": {"gamma": 1, "a": 2},
        "num_worlds": 3,
    }
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}, "d": {"e": 5}}) == {
        "a": {"b": 4, "c": 2},
        "d": {"e": 5},
    }


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1e6, int, 1_000_000),
        (3, float, 3.0),
        (np.int64(3), int, 3),
        (np.float32(0.5), float, 0.5),
        ([64, 32.0], tuple[int, ...], (64, 32)),
        (64, tuple[int, ...], (64,)),
        ([0, 1], tuple[float, float] | None, (0.0, 1.0)),
        (None, int | None, None),
        (7.0, int | None, 7),
        (None, tuple[int, ...] | None, None),
        (True, bool, True),
        ("text", str, "text"),
    ],
)
def test_values_take_the_type_of_their_setting(value, kind, expected):
    made = convert("x", value, kind)
    assert made == expected
    assert type(made) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (0.5, int, "x=0.5; it must be a whole number"),
        (float("nan"), int, "x=nan; it must be a whole number"),
        (float("inf"), int, "x=inf; it must be a whole number"),
        (None, int, "x=None; it must be a number"),
        (None, float, "x=None; it must be a number"),
        (True, int, "x=True; it must be a number"),
        ("3", int, "x='3'; it must be a number"),
        (1, bool, "x=1; it must be true or false"),
        (3, str, "x=3; it must be text"),
        ([1.5], tuple[int, ...], "x=1.5; it must be a whole number"),
        ("wide", tuple[int, ...] | None, "x='wide'; it must be a number"),
    ],
)
def test_values_of_another_type_are_refused(value, kind, message):
    with pytest.raises(ValueError, match=message):
        convert("x", value, kind)


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algo": "iqm"}, "there is no algorithm 'iqm'; did you mean 'iqn'"),
        ({"algo": 3}, "algo=3; it must be the name of an algorithm"),
        ({"mode": "jax_fuse"}, "mode='jax_fuse' is not known; did you mean 'jax_fused'"),
        ({"mode": "?"}, r"mode='\?' is not known; known: torch_sequential, jax_sequential"),
        ({"steps": 0}, "steps=0; it must be at least 1"),
        ({"steps": None}, "steps=None; it must be a number"),
        ({"steps": 1.5}, "steps=1.5; it must be a whole number"),
        ({"num_worlds": 0}, "num_worlds=0; it must be at least 1"),
        ({"chunk": 0}, "chunk=0; it must be at least 1"),
        ({"eval_every": -1}, "eval_every=-1; it must be 0 or more"),
        ({"eval_episodes": 0}, "eval_episodes=0; it must be at least 1"),
        ({"record_every": -5}, "record_every=-5; it must be 0 or more"),
        ({"checkpoint_every": -1}, "checkpoint_every=-1; it must be 0 or more"),
        ({"share_parameters": 1}, "share_parameters=1; it must be true or false"),
        ({"seed": -1}, "seed=-1; it must be in 0 .. 4294967295"),
        ({"seed": 2**32}, "seed=4294967296; it must be in"),
        ({"iqn": {"gradient_steps": -1}}, "iqn: gradient_steps=-1; it must be 0 or more"),
        ({"iqn": {"buffer_size": 0}}, "iqn: buffer_size=0; it must be at least 1"),
        ({"iqn": {"epsilon": 1.5}}, "iqn: epsilon=1.5; it must be in"),
        ({"iqn": {"epsilon_decay": -0.1}}, "iqn: epsilon_decay=-0.1; it must be in"),
        ({"iqn": {"epsilon_min": float("nan")}}, "iqn: epsilon_min=nan; it must be a finite"),
        ({"iqn": {"hidden": "many"}}, "iqn.hidden='many'; it must be a number"),
        ({"iqn": 3}, "iqn=3; it must hold names and values"),
        ({"world": [3]}, r"world=\[3\]; it must hold names and values"),
        ({"world": {"height": object}}, "world.height=.*; give numbers, text or lists"),
    ],
)
def test_wrong_settings_are_refused_with_their_value_and_a_remedy(given, message):
    with pytest.raises(ValueError, match=message) as error:
        grid(**given)
    assert "\n" not in str(error.value)


def test_seeds_that_a_key_cannot_tell_apart_are_refused():
    # A 32-bit key takes the seed 2**32 for the seed 0, without a word.
    with pytest.raises(ValueError, match="seed="):
        grid(seed=2**32)
    assert grid(seed=2**32 - 1).seed == 4294967295


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step": 3}, "there.json: no setting 'step'; did you mean 'steps'"),
        ({"zzz": 3}, "there.json: no setting 'zzz'; known: env, algo, world"),
        ({"iqn": {"hiden": 3}}, "there.json: iqn.hiden is not an option of iqn; did you mean 'hi"),
        ({"iqn": {"num_worlds": 3}}, "iqn.num_worlds is not an option of iqn; it is a setting of"),
        ({"dqn": {"gamma": 1}}, "'dqn' holds options of dqn, and this run learns with iqn; choose"),
        ({"gamma": 0.5}, r"'gamma' is an option of iqn: iqn=\{'gamma': ...\}"),
        # What settings were called in the first version.
        ({"epochs": 3}, "'epochs' is now steps, the budget in environment steps"),
        ({"updates": 3}, "'updates' is now steps"),
        ({"updates_per_epoch": 3}, "'updates_per_epoch' is now iqn.gradient_steps"),
        ({"memory_rows": 3}, "'memory_rows' is now iqn.buffer_size"),
        ({"record_period": 3}, "'record_period' is now record_every"),
        ({"hyper": {}}, "'hyper' is now iqn.NAME"),
        # What other libraries call them.
        ({"num_envs": 3}, "'num_envs' is here num_worlds"),
        ({"iqn": {"lr": 3}}, "iqn.lr is not an option of iqn; did you mean 'learning_rate'"),
        ({"epsilon": 0.5}, "'epsilon' is an option of iqn"),
        ({"hidden": 3}, "'hidden' is an option of iqn"),
    ],
)
def test_unknown_and_former_names_are_answered_with_the_right_one(given, message):
    with pytest.raises(ValueError, match=message):
        make_config(GRID, {"env": "treasurehunt"} | given, "there.json")


def test_settings_of_a_suite_are_unknown_to_another():
    with pytest.raises(ValueError, match="no setting 'tasks'"):
        grid(tasks="medium")
    assert make_config(PLANT, {"env": "reactor", "dataset": "expert"}).settings.dataset == "expert"


def test_numbers_of_an_offline_algorithm_are_named_with_it():
    with pytest.raises(ValueError, match=r"iql\.expectile='much'; it must be a number"):
        make_config(PLANT, {"env": "reactor", "iql": {"expectile": "much"}})
    with pytest.raises(
        ValueError, match=r"iql\.expectle is not an option of iql; did you mean 'exp"
    ):
        make_config(PLANT, {"env": "reactor", "iql": {"expectle": 0.5}})


# What only shows when the settings meet the world ------------------------------------------------


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"height": 2, "width": 2}, "a world of 2x2 has no room"),
        ({"radius": 0}, "radius=0; it must be at least 1"),
        ({"num_agents": 99}, "num_agents=99 does not fit the 16 free cells of a 6x6 world"),
        ({"num_agents": "many"}, "treasurehunt: num_agents='many'; it must be a number"),
        ({"num_agents": 2.5}, "treasurehunt: num_agents=2.5; it must be a whole number"),
        ({"gem_value": float("nan")}, "its rewards or rates are not all finite"),
        ({"gem_value": float("inf")}, "its rewards or rates are not all finite"),
        ({"spawn_prob": float("nan")}, "spawn_prob=nan; it must be a chance"),
        ({"num_agent": 2}, "treasurehunt has no option 'num_agent'; did you mean 'num_agents'"),
        ({"turn_order": "both"}, "turn_order='both' is not known"),
    ],
)
def test_worlds_that_cannot_be_are_refused(tiny, world, message):
    with pytest.raises(ValueError, match=message) as error:
        GRID.problem(tiny(world=world), None)
    assert "\n" not in str(error.value)


def trainer(config):
    from worldloom.training.loops import make_trainer

    return make_trainer(config, GRID.problem(config, None))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iqn": {"buffer_size": 21}}, "buffer_size=21 cannot hold an episode of 10 .* least 22"),
        ({"iqn": {"buffer_size": 22, "batch_size": 21}}, "never holds more than 20 steps"),
        ({"iqn": {"legacy": True}}, "lanes=2; the original memory has one world"),
        (
            {"num_worlds": 1, "iqn": {"legacy": True, "batch_size": 32, "buffer_size": 33}},
            "never holds more than 31 steps",
        ),
        ({"algo": "ppo", "ppo": {"num_minibatches": 7}}, "num_minibatches=7 does not divide"),
        ({"devices": 2}, "devices=2: iqn trains on one device, where its memory lies"),
    ],
)
def test_learners_that_could_never_learn_are_refused(tiny, settings, message):
    with pytest.raises(ValueError, match=message):
        trainer(tiny(**settings))


def test_the_smallest_memory_that_is_accepted_is_learned_from(tiny):
    import jax

    # 27 rows of episodes of 11: two whole ones, and of the oldest what has its stack complete.
    settings = {"buffer_size": 2 * 27, "batch_size": 46}
    loop = trainer(tiny(world={"num_frames": 2}, iqn=settings)).loop
    with pytest.raises(ValueError, match="never holds more than 46 steps"):
        trainer(tiny(world={"num_frames": 2}, iqn=settings | {"batch_size": 47}))

    @jax.jit
    def play(key):
        def iterate(run, _):
            keys = loop.keys(run)
            run, turns = loop.play(loop.start(run, keys), keys.turns)
            run = loop.remember(run, turns)
            return run.replace(iteration=run.iteration + 1), loop.ready(run)

        return jax.lax.scan(iterate, loop.init(key), None, length=4)[1]

    assert play(jax.random.key(0)).tolist() == [[False] * 2] * 2 + [[True] * 2] * 2


def test_a_world_without_an_end_is_refused(tiny, monkeypatch):
    from worldloom.suites.grid import treasurehunt

    monkeypatch.setattr(suites, "_REGISTERED", {})
    suites.register("endless", treasurehunt.world, suite="grid")
    with pytest.raises(ValueError, match="endless: training needs a turn-based world that ends"):
        GRID.problem(replace(tiny(), env="endless", world={}), None)


def test_configs_of_algorithms_keep_their_own_defaults():
    assert grid().hyper == IQNConfig()
    assert make_config(GRID, {"env": "tag", "algo": "dqn"}).hyper == DQNConfig()
