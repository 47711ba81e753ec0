"""Datasets in Minari's format: Minari reads ours, we read Minari's."""

import json
import subprocess
import sys

import numpy as np
import pytest

from worldloom.adapters import minari as adapter
from worldloom.replay.dataset import from_columns

minari = pytest.importorskip("minari", reason="these tests need minari[hdf5]")
pytest.importorskip("h5py", reason="these tests need minari[hdf5]")


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


@pytest.fixture
def dataset():
    """Three episodes of 4, 6 and 5 steps, the second of which terminates."""
    rng = np.random.default_rng(0)
    lengths = [4, 6, 5]
    states = [rng.normal(size=(n + 1, 3)).astype(np.float32) for n in lengths]
    ends = np.cumsum(lengths) - 1
    terminated = np.arange(15) == ends[1]
    return from_columns(
        np.concatenate([s[:-1] for s in states]), rng.uniform(-1, 1, (15, 2)),
        rng.normal(size=15), np.concatenate([s[1:] for s in states]),
        terminated, np.isin(np.arange(15), ends) & ~terminated,
        cost=rng.uniform(size=(15, 2)), log_prob=rng.normal(size=15), name="small",
        provenance=(("env", "reactor"), ("seed", "0")),
    )  # fmt: skip


def test_minari_reads_what_we_write(dataset, root):
    folder = adapter.save(dataset, "reactor/small-v0")
    assert folder == root / "reactor" / "small-v0"
    read = minari.load_dataset("reactor/small-v0")
    assert (read.total_episodes, read.total_steps) == (3, 15)
    assert "reactor/small-v0" in minari.list_local_datasets()
    starts = [0, 4, 10, 15]
    for i, episode in enumerate(read.iterate_episodes()):
        rows = slice(starts[i], starts[i + 1])
        np.testing.assert_array_equal(episode.observations[:-1], dataset.rows.obs[rows])
        np.testing.assert_array_equal(episode.observations[1:], dataset.rows.next_obs[rows])
        np.testing.assert_array_equal(episode.actions, dataset.rows.action[rows])
        np.testing.assert_array_equal(episode.rewards, dataset.rows.reward[rows])
        np.testing.assert_array_equal(episode.terminations, dataset.rows.terminated[rows])
        np.testing.assert_array_equal(episode.truncations, dataset.rows.truncated[rows])
        total = np.asarray(dataset.cost)[rows].sum(1)
        np.testing.assert_allclose(episode.infos["total_cost"][1:], total, rtol=1e-6)
        assert episode.infos["total_cost"][0] == 0


def test_a_dataset_comes_back_bit_for_bit(dataset):
    back = adapter.load(adapter.save(dataset, "reactor/small-v0"))
    assert (back.digest, back.name, back.provenance) == (
        dataset.digest, "small", dataset.provenance
    )  # fmt: skip
    assert back.starts.tolist() == [0, 4, 10]
    np.testing.assert_array_equal(back.cost, dataset.cost)
    assert adapter.load("reactor/small-v0").digest == dataset.digest


def test_data_that_others_wrote_are_read_and_their_actions_scaled():
    from gymnasium.spaces import Box
    from minari.data_collector.episode_buffer import EpisodeBuffer

    rng = np.random.default_rng(1)
    buffers = [
        EpisodeBuffer(
            observations=rng.normal(size=(n + 1, 2)), actions=np.full((n, 1), 1.5, np.float32),
            rewards=np.ones(n), terminations=np.zeros(n, bool), truncations=np.zeros(n, bool),
        )
        for n in (3, 2)
    ]  # fmt: skip
    with pytest.warns(UserWarning, match="None"):
        minari.create_dataset_from_buffers(
            "other/logged-v0", buffers, data_format="hdf5",
            observation_space=Box(-np.inf, np.inf, (2,), np.float64),
            action_space=Box(0.0, 2.0, (1,), np.float32),
        )  # fmt: skip
    found = adapter.read_minari("other/logged-v0")
    np.testing.assert_allclose(found.columns["action"], 0.5)
    assert found.columns["truncated"].tolist() == [False, False, True, False, False]
    assert dict(found.provenance)["minari"] == "other/logged-v0"
    dataset = found.dataset()
    assert (dataset.starts.tolist(), dataset.cost) == ([0, 3], None)


def test_a_dataset_that_is_there_is_kept_unless_forced(dataset, root):
    folder = adapter.save(dataset, "reactor/small-v0")
    with pytest.raises(FileExistsError, match="is there already; use --force"):
        adapter.save(dataset, "reactor/small-v0")
    other = dataset.replace(name="other")
    adapter.save(other, "reactor/small-v0", force=True)
    assert adapter.load(folder).name == "other"
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []


def test_a_write_that_fails_leaves_nothing(dataset, root, monkeypatch):
    def fail(*args, **options):
        raise OSError("no space left")

    monkeypatch.setattr(minari, "create_dataset_from_buffers", fail)
    with pytest.raises(OSError, match="no space left"):
        adapter.save(dataset, "reactor/small-v0")
    assert list(root.iterdir()) == []


def test_links_that_minari_cannot_keep_are_refused(dataset, root):
    rows = dataset.rows.replace(next_obs=dataset.rows.next_obs + 1)
    with pytest.raises(ValueError, match=r"row 0: its next observation is not .*use npz"):
        adapter.save(dataset.replace(rows=rows), "reactor/small-v0")
    assert not root.exists()


def test_what_is_no_dataset_is_told_in_one_line(root, tmp_path):
    with pytest.raises(ValueError, match="there is no Minari dataset of that id in"):
        adapter.load("nothing/here-v0")
    folder = tmp_path / "half" / "data"
    folder.mkdir(parents=True)
    (folder / "metadata.json").write_text(json.dumps({"total_episodes": 0}))
    with pytest.raises(ValueError, match="is not a Minari dataset that can be read") as error:
        adapter.load(folder.parent)
    assert "\n" not in str(error.value)


def test_without_minari_the_remedy_is_named():
    code = (
        "import sys; sys.modules['minari'] = None\n"
        "from worldloom.adapters import minari\n"
        "try: minari.load('a/b-v0')\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'worldloom[plant]'" in done.stdout, done.stderr


def reactor_rows():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(6, 5)).astype(np.float32)
    return from_columns(
        states[:-1], rng.uniform(-1, 1, (5, 2)), np.ones(5), states[1:], np.zeros(5, bool),
        np.arange(5) == 4, provenance=(("env", "reactor"), ("options", '{"drift": 1.0}')),
    )  # fmt: skip


def test_the_environment_of_the_data_is_recovered_in_their_units():
    adapter.save(reactor_rows(), "reactor/small-v0")
    recovered = minari.load_dataset("reactor/small-v0").recover_environment()
    spec = recovered.spec
    assert (spec.id, spec.kwargs["drift"]) == ("worldloom/Reactor-v0", 1.0)
    assert recovered.observation_space.shape == (5,)
    assert recovered.action_space.shape == (2,)
    assert recovered.observation_space.high.max() > 100, "in K, not normalised"


def test_data_that_fit_no_world_name_none(dataset):
    adapter.save(dataset, "reactor/small-v0")
    assert minari.load_dataset("reactor/small-v0").env_spec is None


# Files that say more than they hold --------------------------------------------------------------


@pytest.fixture
def stored(dataset):
    return adapter.save(dataset, "reactor/small-v0") / "data"


@pytest.mark.parametrize("shape", [(10**9, 3), (2**40,)])
def test_sizes_that_are_declared_and_not_held_are_refused(stored, shape):
    import h5py

    with h5py.File(stored / "main_data.hdf5", "r+") as file:
        del file["episode_0/observations"]
        file["episode_0"].create_dataset("observations", shape, "f8", chunks=(1,) * len(shape))
    with pytest.raises(ValueError, match=r"observations declares .* bytes that are not in"):
        adapter.load(stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_episodes": 10**12}, "speaks of 1000000000000 episodes, the file has 3"),
        ({"total_episodes": "3"}, "total_episodes is '3'"),
        ({"total_episodes": 3.5}, "total_episodes is 3.5"),
        ({"observation_space": None}, "observation_space is None"),
        ({"observation_space": "{"}, "is not a Minari dataset that can be read"),
        ({"observation_space": '{"type": "Sphere"}'}, "is not a Minari dataset that can be read"),
        ({"data_format": "arrow"}, "its format is 'arrow'; only hdf5 is read"),
        ({"dataset_id": 3}, "is not a Minari dataset that can be read"),
        ({"worldloom": "[1]"}, "worldloom in metadata.json is damaged"),
        ({"worldloom": 3}, "worldloom in metadata.json is damaged"),
        ({"env_spec": "[" * 3000}, "is not a Minari dataset that can be read"),
    ],
)
def test_metadata_that_cannot_be_are_refused(stored, change, message):
    about = json.loads((stored / "metadata.json").read_text())
    (stored / "metadata.json").write_text(json.dumps(about | change))
    with pytest.raises(ValueError, match=message) as error:
        adapter.load(stored)
    assert "\n" not in str(error.value)


def test_an_environment_that_a_file_names_is_not_run(stored):
    """Minari makes it where the spaces are missing, and so runs whatever it names."""
    about = json.loads((stored / "metadata.json").read_text())
    spec = {"id": "x-v0", "entry_point": "os:system", "kwargs": {"command": "touch run"}}
    about |= {"env_spec": json.dumps(spec)}
    del about["action_space"]
    (stored / "metadata.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"action_space is None in metadata.json"):
        adapter.load(stored)


def test_links_to_other_files_are_refused(stored):
    import h5py

    with h5py.File(stored / "main_data.hdf5", "r+") as file:
        del file["episode_0/rewards"]
        file["episode_0/rewards"] = h5py.ExternalLink("other.hdf5", "/rewards")
    with pytest.raises(ValueError, match="rewards is a link"):
        adapter.load(stored)
