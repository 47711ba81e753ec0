"""Exported policies: the runtime in numpy does what the compiled policy does, and says no."""

import importlib.util
import json
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("mujoco")

from types import SimpleNamespace

from worldloom.algos import sac, td3
from worldloom.algos.ppo import PPOConfig
from worldloom.algos.ppo import make as make_ppo
from worldloom.nn import actor_critic
from worldloom.nn.actor_critic import ActorCritic
from worldloom.nn.networks import Networks
from worldloom.nn.normaliser import Normaliser
from worldloom.serving.policy_runtime import ACTIVATIONS, Policy, digest_of
from worldloom.suites.robot.export import export, export_policy, policy_layers
from worldloom.suites.robot.loop import RobotLoop
from worldloom.suites.robot.types import Observation
from worldloom.suites.robot.world import world

STEPS = 100


NETWORKS = Networks(encode=lambda obs: obs.state, critic_encode=lambda obs: obs.privileged_state)


def first_obs(walking):
    """Zeros in the form of observations (1, ...)."""
    sizes = walking.task.observation_size(walking.robot)
    return Observation(*(np.zeros((1, size), np.float32) for size in sizes))


@pytest.fixture(scope="module")
def walking():
    return world(task="walk", physics="c", command=(0.2, 0.2), still=0.0, horizon=STEPS + 1)


@pytest.fixture(scope="module")
def learner(walking):
    """A policy with weights that matter and a normaliser that has seen something."""
    config = PPOConfig(normalise_observations=True, hidden=(64, 32), activation="elu")
    ppo = make_ppo(config, walking.spec, NETWORKS)
    random = np.random.default_rng(0)
    obs = first_obs(walking)
    state = jax.jit(ppo.init)(jax.random.key(1), obs)
    params = jax.tree.map(lambda x: np.asarray(x) + 0.1 * random.normal(size=x.shape), state.params)
    params["params"]["policy"]["kernel"] *= 0.5  # small enough not to be clipped away
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)

    def drawn(draw):
        return jax.tree.map(lambda x: jnp.asarray(draw(x.shape[1:]), jnp.float32), obs)

    normaliser = Normaliser(
        jnp.float32(100.0),
        drawn(lambda shape: random.normal(size=shape) * 0.1),
        drawn(lambda shape: random.uniform(0.05, 2.0, shape)),
    )
    return ppo, state.replace(params=params, normaliser=normaliser)


@pytest.fixture(scope="module")
def bundle(walking, learner, tmp_path_factory):
    _, state = learner
    return export_policy(
        tmp_path_factory.mktemp("export") / "bundle", walking.robot, walking.task, state.params,
        activation="elu", normaliser=state.normaliser,
    )  # fmt: skip


@pytest.fixture(scope="module")
def episode(walking, learner):
    """Readings and targets (T, ...) of an episode played by the compiled policy, and its phase."""
    ppo, learned = learner

    def one(carry, key):
        state, obs = carry
        action = ppo.act(learned, obs, key, explore=0.0)[0]
        _, target, _ = walking.drive(walking.params.rules, state, action)
        reading = state.physics.reading
        state, timestep = walking.step_many(key[None], state, action, walking.params)
        return (state, timestep.obs), (reading, target, action, obs.state, timestep.terminated)

    @jax.jit
    def play(key):
        state, timestep = walking.reset_many(key[None], walking.params)
        steps = jax.lax.scan(one, (state, timestep.obs), jax.random.split(key, STEPS))[1]
        return state.episode.phase[0], jax.tree.map(lambda x: x[:, 0], steps)

    phase, rows = jax.tree.map(np.asarray, play(jax.random.key(7)))
    return phase, *rows


def readings(robot, reading, t):
    return (
        reading.sensors[t, robot.gyro],
        reading.sensors[t, robot.orientation],
        reading.qpos[t, robot.joint_qpos],
        reading.qvel[t, robot.joint_qvel],
    )


def test_the_runtime_asks_of_the_servos_what_the_compiled_policy_asks(bundle, walking, episode):
    phase, reading, target, action, _, _ = episode
    policy = Policy.load(bundle)
    policy.reset(phase=phase)
    asked = np.stack(
        [policy.step(*readings(walking.robot, reading, t), command=0.2) for t in range(STEPS)]
    )
    assert asked.dtype == np.float32
    assert np.abs(action).max() > 0.3, "an idle policy proves nothing"
    assert (np.abs(action) < 1.0).mean() > 0.5
    np.testing.assert_allclose(asked, target, rtol=0, atol=1e-6)


def test_the_runtime_sees_what_the_policy_was_trained_on(bundle, walking, episode):
    phase, reading, _, _, obs, _ = episode
    policy = Policy.load(bundle)
    policy.reset(phase=phase)
    for t in range(STEPS):
        mine = policy.observe(*readings(walking.robot, reading, t), command=0.2)
        np.testing.assert_allclose(mine, obs[t], rtol=0, atol=1e-6)
        policy.step(*readings(walking.robot, reading, t), command=0.2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_those_of_the_networks(activation):
    x = np.concatenate([np.linspace(-6, 6, 101), [-1e4, 1e4]])
    compiled = actor_critic.ACTIVATIONS[activation](jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(ACTIVATIONS[activation](x), compiled, rtol=2e-6, atol=1e-6)


def test_a_reset_forgets_the_last_action_and_the_phase(bundle, walking, episode):
    first = readings(walking.robot, episode[1], 0)
    policy = Policy.load(bundle)
    before = policy.step(*first, command=0.2)
    assert not np.array_equal(policy.step(*first, command=0.2), before)
    policy.reset()
    np.testing.assert_array_equal(policy.step(*first, command=0.2), before)


def test_the_clock_stands_while_the_robot_is_told_to_stand(bundle, walking, episode):
    policy = Policy.load(bundle)
    policy.reset(phase=0.25)
    for _ in range(3):
        policy.step(*readings(walking.robot, episode[1], 0), command=0.0)
    assert policy.phase == np.float32(0.25)
    assert policy.observe(*readings(walking.robot, episode[1], 0), command=0.0)[-2:].tolist() == [
        0,
        0,
    ]


def test_targets_stay_within_the_limits_of_the_servos(bundle, walking):
    policy = Policy.load(bundle)
    n, random = walking.robot.num_joints, np.random.default_rng(3)
    for _ in range(50):
        wild = policy.step(
            random.normal(size=3) * 50, [1, 0, 0, 0], *random.normal(size=(2, n)) * 50
        )
        assert (wild >= walking.robot.lower.astype(np.float32)).all()
        assert (wild <= walking.robot.upper.astype(np.float32)).all()


def test_the_manifest_says_what_a_robot_needs_to_know(bundle, walking):
    about = json.loads((bundle / "manifest.json").read_text())
    robot = walking.robot
    assert (about["version"], about["quaternion"]["order"]) == (4, "wxyz")
    assert about["control"] == {"rate_hz": 50, "seconds": 0.02}
    assert about["joints"] == list(robot.joints)
    assert [(part["name"], part["size"]) for part in about["observation"]] == list(
        walking.task.layout(robot)
    )
    assert about["network"]["layers"] == [48, 64, 32, 13]
    assert about["network"]["activation"] == "elu"
    assert set(about["files"]) == {
        "policy.npz", "robot.xml", "policy_runtime.py", "control_loop.py"
    }  # fmt: skip
    assert (bundle / "robot.xml").read_text() == robot.xml
    np.testing.assert_array_equal(about["action"]["home"], robot.home_joints)


def test_a_bundle_runs_where_neither_jax_nor_worldloom_is(bundle, tmp_path):
    moved = shutil.copytree(bundle, tmp_path / "moved")
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['jax', 'flax', 'worldloom', 'mujoco']))\n"
        "from policy_runtime import Policy\n"
        "policy = Policy.load()\n"
        "n = len(policy.joints)\n"
        "print(len(policy.step([0] * 3, [1, 0, 0, 0], [0] * n, [0] * n, 0.2)))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=moved, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "13"
    out = subprocess.run(
        [sys.executable, "policy_runtime.py"], cwd=moved, capture_output=True, text=True, check=True
    )
    assert "left_knee_pitch" in out.stdout
    assert "50 steps a second" in out.stdout


def test_the_runtime_imports_nothing_but_numpy_and_the_standard_library(bundle):
    text = (bundle / "policy_runtime.py").read_text()
    named = {line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert named - set(sys.stdlib_module_names) == {"numpy"}
    spec = importlib.util.spec_from_file_location("copied", bundle / "policy_runtime.py")
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    assert copied.Policy.load(bundle).joints == Policy.load(bundle).joints


# What goes wrong -------------------------------------------------------------------------------


@pytest.fixture
def broken(bundle, tmp_path):
    return shutil.copytree(bundle, tmp_path / "broken")


@pytest.mark.parametrize("name", ["policy.npz", "robot.xml", "policy_runtime.py"])
def test_a_changed_or_missing_file_is_refused(broken, name):
    content = (broken / name).read_bytes()
    (broken / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=rf"{name} is not the file that was exported"):
        Policy.load(broken)
    (broken / name).unlink()
    with pytest.raises(ValueError, match=rf"{name} is missing"):
        Policy.load(broken)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("action", "home", [0.5] * 13),
        ("action", "upper", [9.0] * 13),
        ("control", "seconds", 0.1),
        ("gait", "period", 9.0),
        ("network", "activation", "tanh"),
        ("network", "observation_limit", None),
        ("files", "policy.npz", "0" * 64),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(broken, part, name, value):
    about = json.loads((broken / "manifest.json").read_text())
    about[part][name] = value
    (broken / "manifest.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"manifest\.json names policy .* copy the bundle again"):
        Policy.load(broken)
    about["joints"] = about["joints"][::-1]
    (broken / "manifest.json").write_text(json.dumps(about | {"digest": None}))
    with pytest.raises(ValueError, match="has no digest"):
        Policy.load(broken)


def test_a_bundle_of_another_version_or_kind_is_refused(broken, tmp_path):
    about = json.loads((broken / "manifest.json").read_text())

    def rewrite(**changes):
        changed = about | changes
        changed |= {"digest": digest_of(changed)}
        (broken / "manifest.json").write_text(json.dumps(changed))

    rewrite(version=1)
    with pytest.raises(ValueError, match="version 1, this worldloom reads 4"):
        Policy.load(broken)
    rewrite(kind="a poem")
    with pytest.raises(ValueError, match="'a poem', not the manifest of a worldloom robot policy"):
        Policy.load(broken)
    rewrite(observation=[*about["observation"], {"name": "sonar", "size": 1, "scale": 1.0}])
    with pytest.raises(ValueError, match="sonar"):
        Policy.load(broken)
    (broken / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        Policy.load(broken)
    with pytest.raises(ValueError, match=r"no manifest\.json"):
        Policy.load(tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, [0.0, 0.0], r"gyro has shape \(2,\); 3 numbers"),
        (0, [0.0, np.nan, 0.0], "gyro is not finite"),
        (1, [0.0, 0.0, 0.0, 0.0], "orientation_wxyz has length 0"),
        (2, np.zeros(12), "joint_positions has shape"),
        (3, np.full(13, np.inf), "joint_velocities is not finite"),
        (4, np.nan, "command is not finite"),
    ],
)
def test_bad_readings_are_refused_and_leave_no_trace(bundle, place, value, message):
    policy = Policy.load(bundle)
    given = [np.zeros(3), [1, 0, 0, 0], np.zeros(13), np.zeros(13), 0.2]
    policy.step(*given)
    action, phase = policy.action.copy(), policy.phase
    given[place] = value
    with pytest.raises(ValueError, match=message):
        policy.step(*given)
    np.testing.assert_array_equal(policy.action, action)
    assert policy.phase == phase


def test_networks_that_do_not_fit_are_refused(walking, learner, tmp_path):
    _, state = learner

    def export(params=state.params, activation="elu", normaliser=None):
        export_policy(
            tmp_path / "out", walking.robot, walking.task, params,
            activation=activation, normaliser=normaliser,
        )  # fmt: skip

    small = {"params": {"policy": {"kernel": np.zeros((48, 5)), "bias": np.zeros(5)}}}
    with pytest.raises(ValueError, match="from 48 to 5 numbers is not for biped"):
        export(small)
    with pytest.raises(ValueError, match="hold no policy"):
        export({"params": {"q": {"kernel": np.zeros((2, 2))}}})
    with pytest.raises(ValueError, match="activation='gelu'"):
        export(activation="gelu")
    with pytest.raises(ValueError, match="normaliser is for"):
        export(normaliser=Normaliser(1.0, np.zeros(3), np.ones(3)))
    with pytest.raises(ValueError, match="not finite"):
        export(jax.tree.map(lambda x: np.asarray(x) * np.nan, state.params))
    assert not (tmp_path / "out").exists()


def test_a_bundle_is_replaced_and_other_folders_are_left_alone(bundle, walking, learner, tmp_path):
    _, state = learner
    target = shutil.copytree(bundle, tmp_path / "bundle")
    arguments = (walking.robot, walking.task, state.params)
    export_policy(target, *arguments, activation="tanh")
    assert Policy.load(target).manifest["network"]["activation"] == "tanh"
    assert Policy.load(target).manifest["network"]["observation_limit"] is None
    letters = tmp_path / "letters"
    letters.mkdir()
    (letters / "dear.txt").write_text("keep me")
    with pytest.raises(ValueError, match="exists and is no bundle"):
        export_policy(letters, *arguments, activation="tanh")
    assert (letters / "dear.txt").read_text() == "keep me"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "letters"]


def test_a_shared_torso_belongs_to_the_policy():
    network = ActorCritic(action_size=2, hidden=(8, 4), shared_torso=True)
    obs = np.random.default_rng(0).normal(size=(1, 5)).astype(np.float32)
    params = jax.jit(network.init)(jax.random.key(0), obs)
    x = obs
    for i, (kernel, bias) in enumerate(layers := policy_layers(params)):
        x = x @ kernel + bias
        x = np.tanh(x) if i < len(layers) - 1 else x
    np.testing.assert_allclose(x, jax.jit(network.apply)(params, obs)[0].mean, atol=1e-6)


def test_observations_of_the_policy_alone_have_a_normaliser_too(walking, learner, tmp_path):
    _, state = learner
    whole = state.normaliser
    assert isinstance(whole.mean, Observation)
    alone = Normaliser(whole.count, whole.mean.state, whole.var.state)
    out = [
        export_policy(
            tmp_path / name, walking.robot, walking.task, state.params,
            activation="elu", normaliser=normaliser,
        )
        for name, normaliser in (("whole", whole), ("alone", alone))
    ]  # fmt: skip
    assert (out[0] / "policy.npz").read_bytes() == (out[1] / "policy.npz").read_bytes()


# Runs ------------------------------------------------------------------------------------------


def run_of(walking, agents, algo, hyper, by_brax=False):
    """What `export` needs of a run."""
    settings = SimpleNamespace(by_brax=by_brax)
    config = SimpleNamespace(algo=algo, hyper=hyper, settings=settings, memory_size=0)
    problem = SimpleNamespace(env=SimpleNamespace(base=walking))
    return SimpleNamespace(config=config, problem=problem, agents=agents, folder="runs/x")


@pytest.mark.parametrize("algorithm", [sac, td3], ids=["sac", "td3"])
def test_actors_of_off_policy_algorithms_run_in_numpy_too(walking, algorithm, tmp_path):
    descriptor = algorithm.ALGORITHM
    hyper = descriptor.config(hidden=(16,), normalise_observations=True)
    agent = descriptor.make(hyper, walking.spec, NETWORKS)
    obs = first_obs(walking)
    params = jax.jit(agent.init)(jax.random.key(2), obs).params
    random = np.random.default_rng(1)
    mean = jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape[1:]), jnp.float32), obs)
    params = params.replace(normaliser=params.normaliser.replace(mean=mean))
    folder = export(run_of(walking, params, descriptor.name, hyper), tmp_path / "bundle")
    policy = Policy.load(folder)
    state = random.normal(size=obs.state.shape).astype(np.float32)
    action = agent.act(params, obs.replace(state=state), jax.random.key(0), explore=0.0)[0][0]
    np.testing.assert_allclose(policy.forward(state[0]), action, atol=1e-6)
    assert np.abs(action).max() > 0.05


def test_a_run_is_exported_and_its_bundle_replaced(walking, learner, tmp_path):
    ppo, state = learner
    run = run_of(walking, state, "ppo", ppo.config)
    folder = export(run, tmp_path / "bundle", onnx=False)
    assert not (folder / "policy.onnx").exists()
    assert Policy.load(folder).manifest["network"]["layers"] == [48, 64, 32, 13]
    assert export(run, folder) == folder


def test_a_policy_as_onnx_does_what_the_runtime_does(walking, learner, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs worldloom[onnx]")
    ppo, state = learner
    folder = export(run_of(walking, state, "ppo", ppo.config), tmp_path / "bundle", onnx=True)
    policy = Policy.load(folder)
    session = onnxruntime.InferenceSession(
        str(folder / "policy.onnx"), providers=["CPUExecutionProvider"]
    )
    rows = np.random.default_rng(1).normal(0.0, 3.0, (20, 48)).astype(np.float32)
    actions = session.run(["action"], {"obs": rows})[0]
    expected = [np.clip(policy.forward(row), -1.0, 1.0) for row in rows]
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    assert np.abs(actions).max() > 0.1


@pytest.mark.parametrize("history", [0, 3])
def test_a_steered_policy_sees_its_three_commands_its_past_and_a_clock_that_they_control(
    tmp_path, history
):
    """Step by step what the world shows, while commands change and one is to stand."""
    loop = RobotLoop(world(task="joystick", physics="c", history=history), 1)
    robots, random = loop.world, np.random.default_rng(0)
    size = robots.task.observation_size(robots.robot)[0]
    shape = ((size, 8), (8, 13))
    layers = [{"kernel": 0.1 * random.normal(size=x), "bias": np.zeros(x[1])} for x in shape]
    policy = Policy.load(
        export_policy(tmp_path / "bundle", robots.robot, robots.task, layers, activation="elu")
    )
    assert policy.manifest["trained"]["command"][1] == pytest.approx([-0.15, 0.15])
    state, step = loop.reset()
    policy.reset(phase=float(state.episode.phase[0]))
    for command in ([0.3, -0.1, 0.2],) * 3 + ([0, 0, 0],) * 2 + ([-0.1, 0.05, 0.0],) * 3:
        asked = np.array([command], np.float32)
        state = state.replace(episode=state.episode.replace(command=asked))
        given = readings(robots.robot, state.physics.reading, 0)
        np.testing.assert_allclose(
            policy.observe(*given, command), robots.look(state).state[0], atol=1e-5
        )
        policy.step(*given, command)
        state, step = loop.step(state, policy.action[None])
        assert policy.phase == pytest.approx(float(state.episode.phase[0]), abs=1e-5)
    assert not step.terminated[0]
    one = policy.observe(*given, 0.2)
    np.testing.assert_array_equal(one, policy.observe(*given, [0.2, 0.0, 0.0]))
    with pytest.raises(ValueError, match="command has shape"):
        policy.step(*given, [0.2, 0.0])


def test_what_brax_learned_is_not_exported(walking, learner, tmp_path):
    ppo, state = learner
    with pytest.raises(ValueError, match=r"Brax's PPO, whose networks .* level 1, 3 or 4"):
        export(run_of(walking, state, "ppo", ppo.config, by_brax=True), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
