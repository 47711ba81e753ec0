"""Settings: what they refuse, and that they survive the way to config.json and back."""

import json
from dataclasses import replace

import pytest

from worldloom.algos.dqn import DQNConfig
from worldloom.algos.iqn import IQNConfig
from worldloom.train.build import build_env, build_loop
from worldloom.train.config import CADENCE, TrainConfig, from_dict


def through_json(config: TrainConfig) -> TrainConfig:
    return from_dict(json.loads(json.dumps(config.to_dict())))


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(),
        TrainConfig.original(),
        TrainConfig(seed=4, world={"num_agents": 3, "radius": None}, iqn=IQNConfig(hidden=7)),
        TrainConfig(algo="dqn", dqn=DQNConfig(hidden=(8, 4))),
        TrainConfig(algo="qlearning"),
        TrainConfig(algo="random", env="tag"),
    ],
    ids=lambda config: f"{config.algo}-{config.env}-{config.fingerprint()}",
)
def test_settings_come_back_from_json_as_they_were(config):
    assert through_json(config) == config
    assert through_json(config).fingerprint() == config.fingerprint()


def test_settings_of_algorithms_that_are_not_used_are_not_written():
    assert "dqn" not in TrainConfig().to_dict()
    assert set(TrainConfig(algo="dqn").to_dict()) & {"iqn", "dqn", "random"} == {"dqn"}


def test_the_fingerprint_is_of_what_is_learned_and_not_of_when_it_is_looked_at():
    config = TrainConfig()
    for name in CADENCE:
        assert replace(config, **{name: 7}).fingerprint() == config.fingerprint(), name
    changes = {"seed": 1, "mode": "jax_parallel", "epsilon": 0.5, "num_worlds": 3, "algo": "dqn",
               "world": {"num_agents": 2}, "env": "tag", "iqn": IQNConfig(hidden=8)}  # fmt: skip
    prints = {replace(config, **{n: v}).fingerprint() for n, v in changes.items()}
    assert len(prints | {config.fingerprint()}) == len(changes) + 1
    # Nor of what has no effect: the settings of another algorithm.
    assert replace(config, dqn=DQNConfig(hidden=(3,))).fingerprint() == config.fingerprint()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algo": "iqm"}, "algo='iqm' is not known; did you mean 'iqn'"),
        ({"mode": "jax_fuse"}, "mode='jax_fuse' is not known; did you mean 'jax_fused'"),
        ({"mode": "?"}, "mode='\\?' is not known; known: torch_sequential, jax_sequential"),
        ({"epochs": 0}, "epochs=0; it must be at least 1"),
        ({"num_worlds": 0}, "num_worlds=0; it must be at least 1"),
        ({"updates_per_epoch": -1}, "updates_per_epoch=-1; it must be at least 0"),
        ({"memory_rows": 0}, "memory_rows=0; it must be at least 1"),
        ({"chunk": 0}, "chunk=0; it must be at least 1"),
        ({"eval_every": -1}, "eval_every=-1; it must be at least 0"),
        ({"eval_episodes": 1}, "eval_episodes=1; it must be at least 2"),
        ({"record_period": -5}, "record_period=-5; it must be at least 0"),
        ({"checkpoint_every": 0}, "checkpoint_every=0; it must be at least 1"),
        ({"seed": -1}, "seed=-1; it must be in 0 .. 4294967295"),
        ({"seed": 2**32}, "seed=4294967296; it must be in"),
        ({"epsilon": 1.5}, "epsilon=1.5; it must be in"),
        ({"epsilon_decay": -0.1}, "epsilon_decay=-0.1; it must be in"),
        ({"epsilon_min": float("nan")}, "epsilon_min=nan; it must be in"),
        ({"mode": "torch_sequential", "env": "tag"}, "cannot train iqn on tag: use a jax mode"),
        ({"mode": "torch_sequential", "algo": "dqn"}, "cannot train dqn on treasurehunt"),
        ({"mode": "torch_sequential"}, "num_worlds=32 .* start from --preset original"),
    ],
)
def test_wrong_settings_are_refused_with_their_value_and_a_remedy(settings, message):
    with pytest.raises(ValueError, match=message) as told:
        TrainConfig(**settings)
    assert "\n" not in str(told.value)


def test_seeds_that_a_key_cannot_tell_apart_are_refused():
    # A 32-bit key takes the seed 2**32 for the seed 0, without a word.
    with pytest.raises(ValueError, match="seed="):
        TrainConfig(seed=2**32)
    assert TrainConfig(seed=2**32 - 1).seed == 4294967295


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"epoch": 3}, "there.json: no setting 'epoch'; did you mean 'epochs'"),
        ({"zzz": 3}, "there.json: no setting 'zzz'; known: algo, mode"),
        ({"iqn": {"hiden": 3}}, "there.json: iqn: no setting 'hiden'; did you mean 'hidden'"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_name(plain, message):
    with pytest.raises(ValueError, match=message):
        from_dict(plain, "there.json")


# What only shows when the settings meet the world ------------------------------------------------


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"height": 2, "width": 2}, "a world of 2x2 has no room"),
        ({"radius": 0}, "radius=0; use at least 1"),
        ({"num_agents": 99}, "num_agents=99 does not fit the 16 free cells of a 6x6 world"),
        ({"num_agents": "many"}, "treasurehunt: an option is not known or of the wrong type"),
        ({"num_agents": 2.5}, "treasurehunt: an option is not known or of the wrong type"),
        ({"gem_value": float("nan")}, "its rewards or rates are not all finite"),
        ({"gem_value": float("inf")}, "its rewards or rates are not all finite"),
        ({"spawn_prob": float("nan")}, "spawn_prob=nan; it must be a chance"),
        ({"num_agent": 2}, "treasurehunt has no option 'num_agent'; did you mean 'num_agents'"),
        ({"turn_order": "both"}, "turn_order='both'; use 'interleaved' or 'simultaneous'"),
    ],
)
def test_worlds_that_cannot_be_are_refused(tiny, world, message):
    with pytest.raises(ValueError, match=message) as told:
        build_env(tiny(world))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory_rows": 10}, "memory_rows=10 cannot hold one epoch of 10 turns .* at least 11"),
        ({"memory_rows": 11, "iqn": {"batch_size": 21}}, "never holds more than 20 steps"),
        ({"iqn": {"legacy": True}}, "lanes=2; the original memory has one world"),
        (
            {"num_worlds": 1, "iqn": {"legacy": True, "batch_size": 32}},
            "never holds more than 31 steps",
        ),
    ],
)
def test_memories_that_could_never_be_learned_from_are_refused(tiny, settings, message):
    with pytest.raises(ValueError, match=message):
        build_loop(tiny(**settings))


def test_the_smallest_memory_that_is_accepted_is_learned_from(tiny):
    import jax

    # 27 rows of epochs of 11: two whole epochs, and of the oldest what has its stack complete.
    config = tiny({"num_frames": 2}, {"batch_size": 46}, memory_rows=27)
    loop = build_loop(config)
    with pytest.raises(ValueError, match="never holds more than 46 steps"):
        build_loop(replace(config, iqn=replace(config.iqn, batch_size=47)))

    @jax.jit
    def play(key):
        def epoch(run, _):
            keys = loop.keys(run)
            run, turns = loop.play(loop.start(run, keys), keys.turns)
            run = loop.remember(run, turns)
            return run.replace(epoch=run.epoch + 1), loop.ready(run)

        return jax.lax.scan(epoch, loop.init(key), None, length=4)[1]

    assert play(jax.random.key(0)).tolist() == [[False] * 2] * 2 + [[True] * 2] * 2


def test_a_world_without_an_end_is_refused(tiny, monkeypatch):
    from worldloom.envs import registry
    from worldloom.envs.grid import treasurehunt

    monkeypatch.setitem(registry._REGISTERED, "endless", (treasurehunt.world, ""))
    with pytest.raises(ValueError, match="endless: training needs a turn-based world that ends"):
        build_env(replace(tiny(), env="endless", world={}))
