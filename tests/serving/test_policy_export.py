"""Policies of any suite as bundles: they act as the run does, without its code."""

import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import worldloom
from worldloom import suites
from worldloom.serving.bundle import _part, difference, load_bundle, load_policy
from worldloom.serving.bundle_folder import read_policy
from worldloom.training.config import make_config
from worldloom.training.run import train

pytestmark = pytest.mark.usefixtures("compiled_once")

PPO = {"hidden": (8,), "num_minibatches": 2, "num_epochs": 1}
OFF_POLICY = {"batch_size": 8, "buffer_size": 256, "gradient_steps": 1, "unroll_length": 2}
TAG = {"env": "tag", "world": {"horizon": 6, "num_agents": 2}, "num_worlds": 4, "steps": 48}
CARTPOLE = {"env": "gymnax:CartPole-v1", "algo": "ppo", "num_worlds": 4,
            "world": {"max_steps_in_episode": 16}, "ppo": PPO | {"unroll_length": 8}}  # fmt: skip
RUNS = {
    "a network for each agent": ("grid", TAG | {"algo": "ppo", "ppo": PPO}),
    "one network for all agents": (
        "grid",
        TAG | {"algo": "dqn", "share_parameters": True,
               "dqn": {"hidden": (8,), "batch_size": 8, "buffer_size": 112}},
    ),
    "a centralised critic": ("grid", TAG | {"algo": "mappo", "mappo": PPO}),
    "random quantile levels": (
        "grid",
        TAG | {"algo": "iqn", "iqn": {"hidden": 8, "num_quantiles": 4, "act_quantiles": 4,
                                      "batch_size": 8, "buffer_size": 112}},
    ),
    "arc": (
        "arc",
        {"env": "arc", "algo": "ppo", "num_worlds": 4, "tasks": "toys", "steps": 24,
         "world": {"max_steps": 5, "operations": (0, 1, 2, 34)},
         "network": {"channels": 4, "context": 8}, "attempts": 1,
         "ppo": {"unroll_length": 6, "num_epochs": 1, "num_minibatches": 2}},
    ),
    "choices": ("plain", CARTPOLE | {"steps": 64}),
    "numbers": (
        "plain",
        {"env": "gymnax:Pendulum-v1", "algo": "td3", "num_worlds": 4, "steps": 64,
         "world": {"max_steps_in_episode": 16},
         "td3": OFF_POLICY | {"hidden": (8,), "learning_starts": 40}},
    ),
}  # fmt: skip
LONG = (
    "a network for each agent",
    "one network for all agents",
    "a centralised critic",
    "random quantile levels",
    "numbers",
    "arc",
)

ALONE = """
import sys
import numpy as np
from worldloom.serving.bundle import load_policy

folder, inputs, outputs = sys.argv[1:]
with np.load(inputs) as stored:
    obs = {name: stored[name] for name in stored.files}
policy = load_policy(folder)
np.save(outputs, policy.act(obs["arr_0"] if "arr_0" in obs else obs))
assert not [name for name in sys.modules if name.startswith(("worldloom.training", "optax"))]
"""


def write_task(folder):
    """A task of 3 x 3 cells: a blue cell becomes red."""

    def pair(place):
        cells = np.zeros((2, 9), int)
        cells[:, place] = 1, 2
        before, after = cells.reshape(2, 3, 3).tolist()
        return {"input": before, "output": after}

    folder.mkdir()
    task = {"train": [pair(0), pair(4)], "test": [pair(8)]}
    (folder / "one.json").write_text(json.dumps(task))


def observations(run, count):
    """Observations (count, ...) of worlds that were just started."""
    env = run.problem.env
    keys = jax.random.split(jax.random.key(7), count)
    reset = jax.jit(jax.vmap(env.reset, (0, None)))
    return jax.device_get(reset(keys, env.default_params())[1].obs)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in RUNS]
)
def test_a_bundle_acts_as_its_run_in_a_process_without_training_code(name, tmp_path, monkeypatch):
    suite, given = suites.suite(RUNS[name][0]), RUNS[name][1]
    if "gymnax" in given["env"]:
        pytest.importorskip("gymnax", reason="needs worldloom[gymnax]")
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path / "toys")
    quick = {"eval_every": 0, "eval_episodes": 2, "record_every": 0}
    run = train(suite, make_config(suite, given | quick), tmp_path / "run", report=False)
    folder = worldloom.load(tmp_path / "run").export(batch_sizes=(4,))
    assert folder == tmp_path / "run" / "bundle"
    obs = observations(run, 5)
    if run.problem.env.turn_based:
        expected = np.stack([run.act(obs[i]) for i in range(5)])
    else:
        expected = np.asarray(run.act(obs))

    policy = load_policy(folder)
    action = policy.act(obs)  # as the world gives it, in two batches
    assert difference(action, expected) < 1e-6
    one = policy.act(jax.tree.map(lambda x: x[0], obs))
    assert difference(one, expected[0]) < 1e-6
    takes = policy.manifest["observation"]
    named = [] if list(takes) == ["observation"] else takes
    arrays = {path: load_part(obs, path) for path in named}
    np.savez(tmp_path / "obs.npz", *([] if arrays else [obs]), **arrays)
    arguments = [str(folder), str(tmp_path / "obs.npz"), str(tmp_path / "actions.npy")]
    subprocess.run([sys.executable, "-c", ALONE, *arguments], check=True)
    assert np.array_equal(np.load(tmp_path / "actions.npy"), action)


def test_arrays_of_an_observation_may_be_named_and_must_be_there():
    arrays = {"grid": 1, "demonstrations": [{"input": 2}]}
    assert _part(arrays, "demonstrations.0.input") == 2
    assert _part({"demonstrations.0.input": 3}, "demonstrations.0.input") == 3
    for missing in ("grids", "demonstrations.1.input", "demonstrations.0.size"):
        with pytest.raises(ValueError, match=f"the observation has no {missing}, which this"):
            _part(arrays, missing)


def load_part(obs, path):
    for part in path.split("."):
        obs = getattr(obs, part)
    return obs


# One bundle, and what is refused -----------------------------------------------------------------


@pytest.fixture(scope="module")
def cartpole(compiled_once, tmp_path_factory):
    """A bundle of CartPole's policy. Look, do not touch: copy it to change it."""
    pytest.importorskip("gymnax", reason="needs worldloom[gymnax]")
    suite, folder = suites.suite("plain"), tmp_path_factory.mktemp("cartpole")
    config = make_config(suite, CARTPOLE | {"steps": 64, "eval_every": 0, "eval_episodes": 2})
    return train(suite, config, folder / "run", report=False).export(folder / "bundle")


def test_the_manifest_says_what_the_policy_takes_and_gives(cartpole):
    manifest = json.loads((cartpole / "manifest.json").read_text())
    assert manifest["observation"] == {"observation": {"shape": [4], "dtype": "float32"}}
    assert manifest["action"] == {"n": 2, "shape": [], "dtype": "int32"}
    assert manifest["agents"] == 1
    assert manifest["provenance"]["env"] == "gymnax:CartPole-v1"
    assert sorted(manifest["files"]) == ["policy.jax", "self_test.npz"]
    assert manifest["self_test"]["rows"] == 8


def test_the_command_writes_the_same_policy(cartpole, tmp_path, capsys):
    from worldloom.cli.export import command

    arguments = [str(cartpole.parent / "run"), "--out", str(tmp_path / "bundle"), "--json"]
    assert command(arguments) == 0
    assert json.loads(capsys.readouterr().out) == {"bundle": str(tmp_path / "bundle")}
    obs = np.random.default_rng(0).normal(size=(20, 4))
    written, first = load_policy(tmp_path / "bundle"), load_policy(cartpole)
    assert np.array_equal(written.act(obs), first.act(obs))
    with pytest.raises(ValueError, match="holds a bundle already; force=True"):
        command(arguments)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(3), r"observation is float64\[3\]; this policy takes float32\[4\], or rows"),
        (np.zeros((0, 4)), r"observation is float64\[0, 4\]; this policy takes"),
        (np.asarray(["a"] * 4), r"observation is <U1\[4\]; this policy takes"),
    ],
)
def test_observations_of_another_kind_are_refused(cartpole, obs, message):
    with pytest.raises(ValueError, match=message) as error:
        load_policy(cartpole).act(obs)
    assert "\n" not in str(error.value)


def test_a_bundle_of_another_kind_or_program_is_refused(cartpole, tmp_path):
    with pytest.raises(ValueError, match="'worldloom policy', not the manifest of a worldloom pla"):
        load_bundle(cartpole)
    copy = shutil.copytree(cartpole, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["action"]["n"] = 3
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="what it says is that of"):
        read_policy(copy, manifest["kind"])
    shutil.copy(cartpole / "manifest.json", copy)
    (copy / "policy.jax").unlink()
    with pytest.raises(ValueError, match=r"policy\.jax is missing; copy the whole bundle"):
        load_policy(copy)


def test_weights_that_are_not_finite_are_not_exported(cartpole, tmp_path):
    run = worldloom.load(cartpole.parent / "run")
    state = run.trainer.run
    spoilt = jax.tree.map(lambda x: x * np.nan, state.learner.params)
    run.trainer.load(state.replace(learner=state.learner.replace(params=spoilt)))
    with pytest.raises(ValueError, match="not finite; export an earlier checkpoint"):
        run.export(tmp_path / "bundle")
    assert not list(tmp_path.iterdir())
