"""The original's nested configuration, read as settings, and its experiment, run."""

import copy
import subprocess
import sys

import pytest

from worldloom.suites.grid.experiment import TreasurehuntExperiment, to_settings
from worldloom.suites.grid.problem import make_env
from worldloom.suites.grid.suite import SUITE, original
from worldloom.training.config import make_config
from worldloom.training.driver import Hook

PLAN = {
    "experiment": {"epochs": 3, "max_turns": 6, "record_period": 2, "seed": 4},
    "model": {
        "agent_vision_radius": 1, "epsilon": 0.8, "epsilon_decay": 0.25, "epsilon_min": 0.1,
        "batch_size": 4, "layer_size": 8, "n_frames": 2, "n_quantiles": 3, "n_step": 2,
        "sync_freq": 5, "memory_size": 32, "LR": 0.01, "TAU": 0.02, "GAMMA": 0.9,
        "model_update_freq": 4, "device": "cpu", "use_jax": True, "parallel_processing": True,
    },
    "world": {"height": 5, "width": 6, "gem_value": 7, "spawn_prob": 0.2, "num_agents": 2},
}  # fmt: skip


def plan(**model):
    config = copy.deepcopy(PLAN)
    config["model"] |= model
    return config


class Logged:
    def __init__(self):
        self.rows = []

    def record_turn(self, epoch, loss, reward, epsilon=0.0, **kwargs):
        self.rows.append((epoch, loss, reward, epsilon))


def test_every_number_of_the_configuration_arrives():
    settings = to_settings(PLAN)
    # An epoch is six turns in one world.
    assert (settings.steps, settings.record_every, settings.seed) == (18, 12, 4)
    assert settings.world == {
        "height": 5,
        "width": 6,
        "gem_value": 7,
        "spawn_prob": 0.2,
        "num_agents": 2,
        "horizon": 6,
        "radius": 1,
        "num_frames": 2,
        "legacy": False,
    }
    iqn = settings.hyper
    assert (iqn.epsilon, iqn.epsilon_decay, iqn.epsilon_min) == (0.8, 0.25, 0.1)
    assert (iqn.hidden, iqn.num_quantiles, iqn.act_quantiles) == (8, 3, 3)
    assert (iqn.batch_size, iqn.buffer_size, iqn.sync_epochs) == (4, 32, 5)
    assert (iqn.learning_rate, iqn.target_rate) == (0.01, 0.02)
    assert (iqn.n_step, iqn.gamma) == (1, 0.9**2), "n_step is a power of GAMMA there"
    assert (iqn.legacy, iqn.gradient_steps, settings.num_worlds) == (False, 1, 1)


def test_a_large_batch_serves_several_gradient_steps_unless_legacy():
    def learns(**model):
        iqn = to_settings(plan(memory_size=1024, **model)).hyper
        return iqn.batch_size, iqn.gradient_steps, iqn.noisy

    assert learns(batch_size=256, updates_per_epoch=2) == (64, 8, False)
    assert learns(batch_size=100) == (100, 1, False)
    assert learns(batch_size=256, legacy=True) == (256, 1, True)


def test_the_configurations_of_the_originals_two_examples_are_taken():
    experiment = {"epochs": 2, "max_turns": 100, "record_period": 50, "log_dir": "logs"}
    model = {"agent_vision_radius": 2, "epsilon_decay": 0.0005, "observation_spec": "rgb"}
    values = {"gem_value": 10, "food_value": 5, "bone_value": -10}
    world = {"height": 21, "width": 21, "spawn_prob": 0.005} | values
    settings = to_settings({"experiment": experiment, "model": model, "world": world})
    assert settings.world["items"] == "mixed"
    assert settings.world["view"] == "rgb"
    assert make_env(settings).spec.num_agents == 2
    assert (settings.hyper.epsilon, settings.hyper.epsilon_decay) == (0.6, 0.0005)
    assert (settings.hyper.batch_size, settings.steps) == (64, 200)
    processes = {"enabled": True, "mode": "snapshot", "device": "mps", "learning_rate": 0.00025}
    assert to_settings(PLAN | {"multiprocessing": processes}) == to_settings(PLAN)


def test_several_worlds_are_so_many_more_steps_and_memory():
    settings = to_settings(plan(num_worlds=3, updates_per_epoch=4))
    assert (settings.num_worlds, settings.steps, settings.record_every) == (3, 54, 36)
    assert (settings.hyper.buffer_size, settings.hyper.gradient_steps) == (96, 4)


def test_what_is_left_out_is_as_in_the_original():
    def expected(mode):
        return make_config(SUITE, original(mode=mode))

    assert to_settings({"model": {"use_jax": False}}) == expected("torch_sequential")
    same_arithmetic = to_settings({"model": {"legacy": True, "mode": "jax_fused"}})
    assert same_arithmetic == expected("jax_fused")


@pytest.mark.parametrize(
    ("switches", "parallel", "mode"),
    [
        ({"use_jax": False}, None, "torch_sequential"),
        ({"use_jax": False, "parallel_processing": True}, True, "torch_sequential"),
        ({"use_jax": True, "parallel_processing": False}, None, "jax_sequential"),
        ({"use_jax": True, "parallel_processing": True}, None, "jax_parallel"),
        ({"use_jax": True, "parallel_processing": True}, False, "jax_sequential"),
        ({"use_jax": True, "parallel_processing": False}, True, "jax_parallel"),
        ({"use_jax": False, "mode": "jax_fused"}, None, "jax_fused"),
    ],
)
def test_the_switches_decide_the_mode(switches, parallel, mode):
    assert to_settings({"model": switches}, parallel).settings.mode == mode


def test_a_switch_turned_after_construction_turns_the_next_run():
    config = plan(use_jax=True, parallel_processing=True)
    experiment = TreasurehuntExperiment(config)
    assert experiment.mode == "jax_parallel"
    config["model"]["use_jax"] = False
    assert experiment.mode == "torch_sequential"
    assert experiment.settings().hyper.legacy
    experiment.config["model"] |= {"use_jax": True, "parallel_processing": False}
    assert experiment.mode == "jax_sequential"
    with pytest.raises(AttributeError):
        experiment.mode = "jax_fused"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"modle": {}}, "no section 'modle'; did you mean 'model'"),
        ({"model": {"layer_sise": 1}}, "'layer_sise'; did you mean 'layer_size'"),
        ({"world": {"epochs": 1}}, "it belongs into 'experiment'"),
        ({"GAMMA": 0.9}, "it belongs into 'model'"),
        ({"world": 3}, "must hold names and values"),
        ({"model": {"num_agents": 2}, "world": {"num_agents": 3}}, "say different things"),
        ({"model": {"use_jax": True}, "experiment": {"use_jax": False}}, "say different things"),
        ({"model": {"GAMMA": 1.5}}, "gamma=1.5"),
        ({"model": {"mode": "jax_fussed"}}, "did you mean 'jax_fused'"),
    ],
)
def test_a_wrong_configuration_is_refused_at_once(config, message):
    with pytest.raises(ValueError, match=message):
        TreasurehuntExperiment(config)


def test_contradicting_switches_are_refused():
    with pytest.raises(ValueError, match="contradicts mode='jax_fused'"):
        to_settings({"model": {"mode": "jax_fused"}}, parallel=False)


def test_an_experiment_trains_logs_every_epoch_and_calls_its_hooks(tmp_path):
    logger, filmed = Logged(), []

    class Watcher(Hook):
        def on_record(self, run):
            filmed.append(run.iteration)

    folder = tmp_path / "run"
    experiment = TreasurehuntExperiment(plan(mode="jax_fused"))
    result = experiment.run_experiment(logger=logger, output_dir=folder, hooks=[Watcher()])
    assert [row[0] for row in logger.rows] == [0, 1, 2]
    assert [row[3] for row in logger.rows] == pytest.approx([0.8, 0.6, 0.45])
    rewards = [row[2] for row in logger.rows]
    assert all(reward % 1 == 0 for reward in rewards)  # gems pay 7, walls -1, in one world
    assert logger.rows[0][1] > 0  # six turns hold a batch of four
    assert filmed == [2]
    assert (result.iteration, result.config.settings.mode) == (3, "jax_fused")
    names = {path.name for path in folder.iterdir()}
    assert {"metrics.jsonl", "report.html", "eval.gif", "training-000000012.gif"} <= names


def test_nothing_is_drawn_unless_it_is_asked_for(tmp_path, capsys):
    experiment = TreasurehuntExperiment(plan(mode="jax_fused"))
    experiment.run_experiment(animate=False, logging=False, output_dir=tmp_path / "run")
    assert not list(tmp_path.glob("run/*.gif"))
    assert not (tmp_path / "run" / "report.html").exists()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"use_jax": False}, "hunt_PYTORCH_SEQUENTIAL"),
        ({"use_jax": True, "parallel_processing": False}, "hunt_JAX_SEQUENTIAL"),
        ({"use_jax": True, "parallel_processing": True}, "hunt_JAX_PARALLEL"),
        ({"mode": "jax_fused"}, "hunt_JAX_FUSED"),
    ],
)
def test_a_named_experiment_names_its_folder_and_mode(model, expected, tmp_path):
    config = {"experiment": {"name": "hunt", "log_dir": str(tmp_path)}, "model": model}
    experiment = TreasurehuntExperiment(config)
    folder = experiment._folder(experiment.settings())
    assert folder.parent == tmp_path
    assert folder.name.rpartition("-")[0].rpartition("-")[0] == expected


def test_the_experiment_stands_beside_the_models_and_is_loaded_only_when_asked_for():
    code = (
        "import sys; from worldloom.adapters import sorrel; "
        "layers = ('worldloom.training', 'worldloom.report', 'worldloom.suites'); "
        "print([m for m in sys.modules if m.startswith(layers)]); "
        "from worldloom.adapters.sorrel import TreasurehuntExperiment as T; "
        "print(T is sorrel.TreasurehuntExperiment, T.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", "True TreasurehuntExperiment"]
