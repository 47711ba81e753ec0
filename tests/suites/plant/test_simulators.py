"""A described plant in its owner's simulator: an FMU built here, a Gymnasium environment."""

import json
import shutil
import subprocess
import zipfile

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import worldloom
from worldloom.nn.policy import PolicyState
from worldloom.suites.plant import simulators
from worldloom.suites.plant.description import parse_description
from worldloom.suites.plant.logs import read_log
from worldloom.suites.plant.plant import make_world, plant_of
from worldloom.suites.plant.safety import constraint_text, constraints_in

TEXT = """\
name: tank
step: 10 s
horizon: 20
signals:
  level: {unit: m, low: 0, high: 5}
  wanted: {unit: m, low: 0, high: 5}
actuators:
  valve: {unit: "%", low: 0, high: 100, delay: 20 s}
reward: -abs(level - wanted) + 0.1 * before(level)
limits: {full: {signal: level, at_most: 4 m}}
emergency: {valve: 50 %}
"""
FMU = "simulator: {fmu: tank.fmu, variables: {level: tank.level, valve: opening}}\n"
GYM = "simulator: {gymnasium: worldloom-test/Tank-v0, variables: {level: 1, wanted: 0}}\n"
SOURCE = """
#include <stdlib.h>
typedef struct { double opening, level, wanted; } Tank;
typedef void* C; typedef unsigned int V; typedef int S; typedef const char* T; typedef double R;
#define API __attribute__((visibility("default")))
static R* at(C c, V v) {
  Tank* t = c;
  return v == 0 ? &t->opening : v == 1 ? &t->level : &t->wanted;
}
API T fmi2GetTypesPlatform(void) { return "default"; }
API T fmi2GetVersion(void) { return "2.0"; }
API C fmi2Instantiate(T n, int k, T g, T r, const void* f, int v, int l) {
  return calloc(1, sizeof(Tank));
}
API void fmi2FreeInstance(C c) { free(c); }
API S fmi2SetDebugLogging(C c, int o, size_t n, const T* k) { return 0; }
API S fmi2SetupExperiment(C c, int d, R t, R s, int e, R p) { return 0; }
API S fmi2EnterInitializationMode(C c) { return 0; }
API S fmi2ExitInitializationMode(C c) { return 0; }
API S fmi2Terminate(C c) { return 0; }
API S fmi2Reset(C c) { *(Tank*)c = (Tank){0, 0, 0}; return 0; }
API S fmi2GetReal(C c, const V* v, size_t n, R* x) {
  for (size_t i = 0; i < n; i++) x[i] = *at(c, v[i]);
  return 0;
}
API S fmi2SetReal(C c, const V* v, size_t n, const R* x) {
  for (size_t i = 0; i < n; i++) *at(c, v[i]) = x[i];
  return 0;
}
API S fmi2DoStep(C c, R t, R h, int keep) {
  Tank* k = c;
  if (k->opening > 99.5) return 3;  /* it breaks */
  for (int i = 0; i < (int)(h / 10.0 + 0.5); i++)
    k->level = 0.9 * k->level + 0.4 * k->opening;  /* in cm */
  return 0;
}
"""
UNUSED = """CancelStep DeSerializeFMUstate FreeFMUstate GetBoolean GetBooleanStatus
GetDirectionalDerivative GetFMUstate GetInteger GetIntegerStatus GetRealOutputDerivatives
GetRealStatus GetStatus GetString GetStringStatus SerializeFMUstate SerializedFMUstateSize
SetBoolean SetFMUstate SetInteger SetRealInputDerivatives SetString"""
SOURCE += "".join(f"API S fmi2{name}(void) {{ return 3; }}\n" for name in UNUSED.split())
ABOUT = """<?xml version="1.0" encoding="UTF-8"?>
<fmiModelDescription fmiVersion="2.0" modelName="tank" guid="{1}">
  <CoSimulation modelIdentifier="tank" canHandleVariableCommunicationStepSize="true"/>
  <UnitDefinitions><Unit name="cm"/><Unit name="%"/></UnitDefinitions>
  <ModelVariables>
    <ScalarVariable name="opening" valueReference="0" causality="input">
      <Real start="0" unit="%"/></ScalarVariable>
    <ScalarVariable name="tank.level" valueReference="1" causality="output" initial="exact">
      <Real start="0" unit="cm"/></ScalarVariable>
    <ScalarVariable name="position" valueReference="0" causality="output">
      <Real unit="%"/></ScalarVariable>
    <ScalarVariable name="wanted" valueReference="2" causality="input">
      <Real start="0"/></ScalarVariable>
  </ModelVariables>
  <ModelStructure><Outputs><Unknown index="2"/></Outputs></ModelStructure>
</fmiModelDescription>
"""


class Tank(gymnasium.Env):
    """The same tank: its vector is (wanted, level, something else)."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (3,))
    action_space = gymnasium.spaces.Box(0.0, 100.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level, self.wanted = self.np_random.uniform(1.0, 3.0, 2)
        return np.asarray([self.wanted, self.level, 7.0], np.float32), {}

    def step(self, action):
        self.level = 0.9 * self.level + 0.004 * float(action[0])
        now = np.asarray([self.wanted, self.level, 7.0], np.float32)
        return now, 0.0, self.level > 4.5, False, {}


gymnasium.register("worldloom-test/Tank-v0", entry_point=Tank)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """tank.fmu, compiled here."""
    pytest.importorskip("fmpy", reason="the extra fmu brings it")
    if shutil.which("gcc") is None:
        pytest.skip("gcc is needed to build an FMU")
    folder = tmp_path_factory.mktemp("fmu")
    (folder / "tank.c").write_text(SOURCE)
    library = folder / "tank.so"
    line = ["gcc", "-O1", "-shared", "-fPIC", "-w", "-o", str(library), str(folder / "tank.c")]
    subprocess.run(line, check=True)
    with zipfile.ZipFile(folder / "tank.fmu", "w") as packed:
        packed.writestr("modelDescription.xml", ABOUT)
        packed.write(library, "binaries/linux64/tank.so")
    return folder / "tank.fmu"


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A log of the tank with random openings: ten episodes, each with a level that is wanted."""
    monkeypatch.chdir(tmp_path)
    rng, lines = np.random.default_rng(0), ["episode,level,wanted,valve"]
    for episode in range(10):
        level, wanted = rng.uniform(1.0, 3.0, 2)
        for _ in range(23):
            valve = rng.uniform(0.0, 99.0)
            lines.append(f"{episode},{level:.6f},{wanted:.6f},{valve:.6f}")
            level = 0.9 * level + 0.004 * valve
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "log.csv"


def world_of(text):
    text = text.replace("horizon: 20\n", "horizon: 20\nlog: {episode: episode}\n")
    return plant_of(make_world(parse_description(text, "tank.yaml")))


def constant(share):
    return PolicyState({}, jnp.zeros(4), jnp.ones(4), lambda _, obs: jnp.full(1, share))


def played(world, log, share, episodes=4):
    data = read_log(str(log), world)
    plant = world.plant
    text = constraint_text(world, emergency=dict(plant.emergency), lookahead=10)

    def model(obs, action):
        following = jnp.asarray([0.9, 1.0, 0.0, 1.0]) * obs
        pushed = 0.004 * 50.0 * (action[0] + 1.0)
        return following + jnp.asarray([1.0, 0, 0, 0]) * pushed

    constraints = constraints_in(text, "tank", world, model=model)
    simulator = simulators.make_simulator(plant)
    try:
        return data, simulators.play(
            simulator, world, constant(share), constraints, data, episodes=episodes, gamma=0.9
        )
    finally:
        simulator.close()


def by_hand(level, wanted, valve, steps=20):
    """Rewards of a constant opening."""
    rewards = []
    for _ in range(steps):
        before, level = level, 0.9 * level + 0.004 * valve
        rewards.append(-abs(level - wanted) + 0.1 * before)
    return np.asarray(rewards)


def test_an_fmu_gives_the_returns_that_its_equations_have(built, log):
    """In metres, where it has centimetres; from logged starts, with logged set points."""
    shutil.copy(built, "tank.fmu")
    data, found = played(world_of(TEXT + FMU), log, 0.2)
    chosen = np.linspace(0, 9, 4).round().astype(int)
    starts = np.asarray(data.rows.obs)[np.asarray(data.starts)[chosen]]
    expected = [by_hand(level, wanted, 60.0) for level, wanted, *_ in starts.astype(float)]
    np.testing.assert_allclose(found.bare.returns, np.sum(expected, 1), rtol=1e-4)
    discounts = 0.9 ** np.arange(20)
    np.testing.assert_allclose(found.bare.discounted, expected @ discounts, rtol=1e-4)
    assert found.bare.lengths.tolist() == [20] * 4
    done = np.asarray(found.bare_trajectories.obs)[:, 0, 2:]  # 1 and 2 steps ago
    np.testing.assert_allclose(done[2:], 60.0, rtol=1e-5)
    np.testing.assert_allclose(done[0], starts[0, 2:], rtol=1e-5)


def test_the_filter_is_played_beside_the_bare_policy(built, log):
    shutil.copy(built, "tank.fmu")
    world = world_of(TEXT.replace("at_most: 4 m", "at_most: 3 m") + FMU)
    _, found = played(world, log, 0.98, episodes=2)  # it rises to 4 m
    assert found.bare.violated[0] > 0.3
    assert found.filtered.violated[0] == 0.0
    assert found.filtered.interventions > 0.3
    assert found.spurious_trips == 0


def test_an_fmu_that_fails_says_so_in_one_line(built, log):
    shutil.copy(built, "tank.fmu")
    with pytest.raises(ValueError, match=r"^simulator .*tank\.fmu: .*fmi2DoStep") as error:
        played(world_of(TEXT + FMU), log, 1.0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("tank.level", "tank.lvl"), r"level: no variable tank\.lvl; did you mean 'tank\.level'"),
        (
            ("valve: opening", "valve: position"),
            r"valve is moved, and position is of causality out",
        ),
        (("level: {unit: m, low", "level: {unit: K, low"), r"tank\.fmu: level: .*cm"),
        (("tank.fmu", "tnk.fmu"), r"tnk\.fmu: there is no such file"),
        (("tank.fmu", "log.csv"), r"simulator .*log\.csv: "),
    ],
)
def test_an_fmu_that_does_not_fit_is_refused(built, log, change, words):
    shutil.copy(built, "tank.fmu")
    text = (TEXT + FMU).replace(*change).replace("at_most: 4 m", "at_most: 4")
    with pytest.raises(ValueError, match=words) as error:
        simulators.make_simulator(world_of(text).plant)
    assert "\n" not in str(error.value)


def test_a_gymnasium_environment_gives_its_returns(log):
    _, found = played(world_of(TEXT + GYM), log, 0.2)
    tank = Tank()
    expected = []
    for seed in range(4):
        wanted, level, _ = (float(x) for x in tank.reset(seed=seed)[0])
        expected.append(by_hand(level, wanted, 60.0).sum())
    np.testing.assert_allclose(found.bare.returns, expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("Tank-v0", "Tnk-v0"), r"simulator worldloom-test/Tnk-v0: "),
        (("level: 1", "level: 3"), r"it has 3 signals, the description 2 at \[3, 0\]"),
        (("worldloom-test/Tank-v0", "CartPole-v1"), r"its actuators are Discrete\(2\)"),
        (("gymnasium: ", "gymnasium: 3 #"), r"simulator\.gymnasium: 3; it must be a text"),
        (("wanted: 0}", "wished: 0}"), r"simulator\.variables: unknown key 'wished'"),
        (("simulator: {", "simulator: {fmu: x.fmu, "), r"give either fmu: FILE or gymnasium: ID"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(log, change, words):
    text = TEXT + GYM.replace(*change)
    if "#" in text:
        text = text.replace("#worldloom-test/Tank-v0", "")
    with pytest.raises(ValueError, match=words) as error:
        simulators.make_simulator(world_of(text).plant)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_run_holds_the_truth_beside_the_estimate(log, tmp_path, compiled_once):
    text = (TEXT + GYM).replace("horizon: 20\n", "horizon: 20\nlog: {episode: episode}\n")
    (tmp_path / "tank.yaml").write_text(text)
    small = {"hidden": (8, 8), "batch_size": 16, "updates_per_iteration": 10}
    run = worldloom.train(
        "tank.yaml", dataset="log.csv", algo="iql", steps=20, eval_every=0, eval_episodes=3,
        checkpoint_every=0, ope_updates=20, model_updates=100, iql=small,
    )  # fmt: skip
    ope = json.loads((run.folder / "ope.json").read_text())
    assert ope["true_return"] == ope["truth"]["bare"]["discounted_return"]
    page = (run.folder / "report.html").read_text()
    assert "In the simulator" in page
    assert "truth inside" in page
    assert "There is no simulator of this plant" not in page
    again = worldloom.load(run.folder).evaluate()
    assert "in the simulator" in again.lines()
    assert again.to_dict()["truth"]["episodes"] == 3
    row = json.loads((run.folder / "eval.jsonl").read_text().splitlines()[-1])
    assert "truth" not in row  # nobody chooses by it
