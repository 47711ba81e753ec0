"""Datasets as npz files: what comes back, what is refused, and how ends are coded."""

import os

import jax
import numpy as np
import pytest

from worldloom.replay import dataset_files
from worldloom.replay.dataset import from_columns, hold_out
from worldloom.replay.dataset_checks import columns_of
from worldloom.replay.dataset_files import load, read_npz, save


def logged(rows=12, every=4, seed=0):
    """Columns of episodes of `every` steps, the first of which terminates."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(rows + rows // every, 3)).astype(np.float32)
    at = np.arange(rows) + np.arange(rows) // every
    last = np.arange(rows) % every == every - 1
    terminated = last & (np.arange(rows) < every)
    return {
        "obs": states[at], "action": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "reward": rng.normal(size=rows).astype(np.float32), "next_obs": states[at + 1],
        "terminated": terminated, "truncated": last & ~terminated,
    }  # fmt: skip


@pytest.fixture
def dataset():
    rng = np.random.default_rng(1)
    return from_columns(
        **logged(), cost=rng.uniform(size=(12, 2)), log_prob=rng.normal(size=12), name="small",
        provenance=(("env", "reactor"), ("seed", "0")),
    )  # fmt: skip


@pytest.fixture
def file(dataset, tmp_path):
    return save(dataset, tmp_path / "small.npz")


def change(path, **arrays):
    """The same file with other arrays in it; None takes one away."""
    with np.load(path) as stored:
        kept = dict(stored) | arrays
    np.savez(path, **{name: value for name, value in kept.items() if value is not None})
    return path


def test_a_dataset_comes_back_bit_for_bit(dataset, file):
    back = load(file)
    assert jax.tree.structure(back) == jax.tree.structure(dataset)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(dataset), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert (back.name, back.digest, back.provenance) == (
        "small", dataset.digest, (("env", "reactor"), ("seed", "0"))
    )  # fmt: skip
    assert back.starts.tolist() == [0, 4, 8]


def test_the_file_has_the_keys_of_neorl2(dataset, file):
    with np.load(file, allow_pickle=False) as stored:
        assert {"obs", "action", "next_obs", "reward", "done", "truncated"} < set(stored)
        np.testing.assert_array_equal(stored["done"], dataset.rows.terminated)
        assert stored["done"].dtype == np.float32


def test_the_same_dataset_gives_the_same_bytes(dataset, tmp_path):
    first, second = (save(dataset, tmp_path / name).read_bytes() for name in ("a.npz", "b.npz"))
    assert first == second


def test_a_changed_number_is_noticed(file):
    with np.load(file) as stored:
        reward = stored["reward"]
    reward[5] += 1e-3
    with pytest.raises(ValueError, match=r"small\.npz: its content has digest .* changed or damag"):
        load(change(file, reward=reward))


def test_what_is_there_is_kept_unless_forced(dataset, file):
    before = file.read_bytes()
    with pytest.raises(FileExistsError, match=r"small\.npz is there already; use --force"):
        save(dataset, file)
    assert file.read_bytes() == before
    other = from_columns(**logged(seed=9))
    assert load(save(other, file, force=True)).digest == other.digest


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(dataset, file, monkeypatch):
    before = file.read_bytes()

    def fail(stream, **arrays):
        stream.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(dataset_files.np, "savez_compressed", fail)
    with pytest.raises(OSError, match="no space left"):
        save(dataset, file, force=True)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["small.npz"]


# Bad files ---------------------------------------------------------------------------------------


def test_other_files_are_refused_in_one_line(tmp_path, file):
    text = tmp_path / "text.npz"
    text.write_text("obs,action\n")
    torn = tmp_path / "torn.npz"
    torn.write_bytes(file.read_bytes()[:-200])
    single = tmp_path / "single.npz"
    with single.open("wb") as out:
        np.save(out, np.zeros(3))
    for path in (text, torn, single):
        with pytest.raises(ValueError, match=rf"{path.name} is not an npz file") as error:
            load(path)
        assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        load(tmp_path / "absent.npz")


def test_damage_inside_names_the_array(file, tmp_path):
    plain = tmp_path / "plain.npz"
    with np.load(file) as stored:
        np.savez(plain, **dict(stored))
    raw = bytearray(plain.read_bytes())
    at = raw.index(b"next_obs.npy") + 200
    raw[at : at + 8] = b"\xff" * 8
    plain.write_bytes(raw)
    with pytest.raises(ValueError, match=r"plain\.npz: next_obs is damaged"):
        load(plain)


def test_an_encrypted_file_is_one_line_too(file, tmp_path):
    raw = bytearray(file.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # of a file, and in the directory
        at = raw.index(mark)
        raw[at + flags] |= 1
    locked = tmp_path / "locked.npz"
    locked.write_bytes(raw)
    with pytest.raises(ValueError, match=r"locked\.npz: .* is damaged .*encrypted"):
        load(locked)


def test_python_objects_are_never_unpickled(file):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    bomb = np.empty(1, object)
    bomb[0] = Bomb()
    with pytest.raises(ValueError, match="reward holds Python objects, which are never unpickled"):
        load(change(file, reward=bomb))


def test_missing_keys_are_named(file):
    with pytest.raises(ValueError, match=r"there is no next_obs, done; it holds .*needs obs, act"):
        load(change(file, next_obs=None, done=None))


def test_wrong_row_counts_are_named(file):
    with pytest.raises(ValueError, match="action has 11 rows, obs has 12"):
        load(change(file, action=np.zeros((11, 2), np.float32)))


def test_rows_of_no_use_are_refused_with_their_row(file):
    obs = logged()["obs"]
    obs[7, 2] = np.nan
    with pytest.raises(ValueError, match=r"row 7: obs\[2\] is nan; `worldloom data check"):
        load(change(file, obs=obs, digest=None))


def test_texts_that_are_no_texts_are_refused(file):
    with pytest.raises(ValueError, match="provenance must be a JSON list of pairs"):
        load(change(file, provenance=np.asarray("{broken")))
    with pytest.raises(ValueError, match="name must be one text"):
        load(change(file, name=np.zeros(3)))


def test_columns_written_as_matrices_are_columns(file):
    reward = logged()["reward"][:, None]
    assert read_npz(change(file, reward=reward)).columns["reward"].shape == (12,)


# Ends --------------------------------------------------------------------------------------------


def test_an_index_ends_episodes_and_its_empty_ones_are_told(file):
    nothing = np.zeros(12, np.float32)
    index = np.asarray([0, 5, 5, 9])
    found = read_npz(change(file, done=nothing, truncated=nothing, index=index, digest=None))
    assert found.columns["truncated"].nonzero()[0].tolist() == [4, 8]
    assert [(d.kind, d.row) for d in found.defects] == [("empty_episode", 5)]
    with pytest.raises(ValueError, match="index names row 40; there are rows 0 to 11"):
        read_npz(change(file, index=np.asarray([0, 40])))


@pytest.mark.parametrize(
    ("task", "rows", "episodes", "terminated"),
    [
        ("DMSD", 100_000, 1000, 0),
        ("Simglucose", 100_257, 280, 111),
        ("SafetyHalfCheetah", 18_000, 18, 0),
        ("Pipeline", 100_000, 100, 0),
    ],
)
def test_neorl2_codes_terminated_as_done_and_time_limits_as_truncated(
    neorl2, task, rows, episodes, terminated
):
    dataset = load(neorl2 / f"{task}-high-100000-train.npz")
    assert (dataset.size, len(dataset.starts)) == (rows, episodes)
    columns = columns_of(dataset)
    assert columns["terminated"].sum() == terminated
    assert columns["truncated"].sum() == episodes - terminated
    assert not (columns["terminated"] & columns["truncated"]).any()


def test_simglucose_ends_where_glucose_is_too_low(neorl2):
    columns = columns_of(load(neorl2 / "Simglucose-high-100000-train.npz"))
    glucose, ended = columns["next_obs"][:, 0], columns["terminated"]
    # The mean of a step decides, under 40 mg/dL; its last reading may be a little above.
    assert glucose[ended].max() < 41.0
    assert glucose[~ended].min() > 40.0


def test_whole_episodes_are_held_out_and_none_is_lost():
    rng = np.random.default_rng(0)
    rows = 60
    ends = np.zeros(rows, bool)
    ends[[4, 19, 20, 39, 59]] = True
    obs = np.arange(rows, dtype=float)[:, None]
    action, cost = rng.uniform(-1, 1, (rows, 1)), rng.uniform(0, 1, (rows, 2))
    whole = from_columns(obs, action, obs[:, 0], obs + 1, ends, ~ends & False, cost=cost)
    rest, held = hold_out(whole, 0.4, seed=1)
    assert (len(rest.starts), len(held.starts)) == (3, 2)
    both = np.concatenate([rest.rows.obs[:, 0], held.rows.obs[:, 0]])
    np.testing.assert_array_equal(np.sort(both), np.arange(rows))
    for part in (rest, held):
        index = part.rows.obs[:, 0].astype(int)
        np.testing.assert_array_equal(part.rows.action, whole.rows.action[index])
        np.testing.assert_array_equal(part.cost, whole.cost[index])
        assert bool(part.rows.terminated[-1])
    again = hold_out(whole, 0.4, seed=1)[1]
    assert again.digest == held.digest
    with pytest.raises(ValueError, match="share=0 of 5 episodes"):
        hold_out(whole, 0.0)
