"""The original's nested configuration, read as settings, and its experiment, run."""

import copy
import subprocess
import sys

import pytest

from worldloom.train.config import TrainConfig
from worldloom.train.experiment import TreasurehuntExperiment, to_settings
from worldloom.train.runner import Hook

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
    assert (settings.epochs, settings.record_period, settings.seed) == (3, 2, 4)
    assert (settings.epsilon, settings.epsilon_decay, settings.epsilon_min) == (0.8, 0.25, 0.1)
    assert settings.memory_rows == 32
    assert settings.world == {
        "height": 5, "width": 6, "gem_value": 7, "spawn_prob": 0.2, "num_agents": 2,
        "horizon": 6, "radius": 1, "num_frames": 2, "legacy": False,
    }  # fmt: skip
    iqn = settings.iqn
    assert (iqn.hidden, iqn.num_quantiles, iqn.act_quantiles, iqn.n_step) == (8, 3, 3, 2)
    assert (iqn.batch_size, iqn.sync_epochs, iqn.learning_rate) == (4, 5, 0.01)
    assert (iqn.target_rate, iqn.gamma, iqn.legacy) == (0.02, 0.9, False)


def test_what_is_left_out_is_as_in_the_original():
    original = TrainConfig.original(mode="torch_sequential")
    assert to_settings({"model": {"use_jax": False}}) == original
    same_arithmetic = to_settings({"model": {"legacy": True, "mode": "jax_fused"}})
    assert same_arithmetic == TrainConfig.original(mode="jax_fused")


@pytest.mark.parametrize(
    ("switches", "parallel", "mode"),
    [
        ({"use_jax": False}, None, "torch_sequential"),
        ({"use_jax": True, "parallel_processing": False}, None, "jax_sequential"),
        ({"use_jax": True, "parallel_processing": True}, None, "jax_parallel"),
        ({"use_jax": True, "parallel_processing": True}, False, "jax_sequential"),
        ({"use_jax": True, "parallel_processing": False}, True, "jax_parallel"),
        ({"use_jax": False, "mode": "jax_fused"}, None, "jax_fused"),
    ],
)
def test_the_switches_decide_the_mode(switches, parallel, mode):
    assert to_settings({"model": switches}, parallel).mode == mode


def test_a_switch_turned_after_construction_turns_the_next_run():
    config = plan(use_jax=True, parallel_processing=True)
    experiment = TreasurehuntExperiment(config)
    assert experiment.mode == "jax_parallel"
    config["model"]["use_jax"] = False
    assert experiment.mode == "torch_sequential"
    assert experiment.settings().iqn.legacy
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
    with pytest.raises(ValueError, match="needs use_jax=True"):
        to_settings({"model": {"use_jax": False}}, parallel=True)
    with pytest.raises(ValueError, match="contradicts mode='jax_fused'"):
        to_settings({"model": {"mode": "jax_fused"}}, parallel=False)


def test_an_experiment_trains_logs_every_epoch_and_calls_its_hooks(tmp_path):
    logger, filmed = Logged(), []

    class Watcher(Hook):
        def on_record(self, run):
            filmed.append(run.epoch)

    class Drawn(TreasurehuntExperiment):
        pictures = Watcher

    folder = tmp_path / "run"
    result = Drawn(plan(mode="jax_fused")).run_experiment(logger=logger, output_dir=folder)
    assert [row[0] for row in logger.rows] == [0, 1, 2]
    assert [row[3] for row in logger.rows] == pytest.approx([0.8, 0.6, 0.45])
    rewards = [row[2] for row in logger.rows]
    assert all(reward % 1 == 0 for reward in rewards)  # gems pay 7, walls -1, in one world
    assert logger.rows[0][1] > 0  # six turns hold a batch of four
    assert filmed == [2]
    assert (result.epoch, result.config.mode) == (3, "jax_fused")
    assert (folder / "metrics.jsonl").exists()


def test_drawing_is_refused_where_nothing_can_draw(tmp_path):
    experiment = TreasurehuntExperiment(PLAN)
    with pytest.raises(ValueError, match=r"worldloom\.adapters\.sorrel"):
        experiment.run_experiment(output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_experiment_stands_beside_the_models_and_is_loaded_only_when_asked_for():
    code = (
        "import sys; from worldloom.adapters import sorrel; "
        "layers = ('worldloom.train', 'worldloom.report'); "
        "print([m for m in sys.modules if m.startswith(layers)]); "
        "from worldloom.adapters.sorrel import TreasurehuntExperiment as T; "
        "print(T is sorrel.TreasurehuntExperiment, T.pictures.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", "True Pictures"]
