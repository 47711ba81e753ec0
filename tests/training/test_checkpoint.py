"""Checkpoints: all of a run or none of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from worldloom.training.checkpoint import Checkpoints


class State(struct.PyTreeNode):
    weights: dict
    key: jax.Array
    keys: jax.Array
    nothing: jax.Array
    no_keys: jax.Array
    count: jax.Array
    alive: jax.Array


def make_state(seed: int = 0, width: int = 3, dtype=jnp.float32) -> State:
    key = jax.random.key(seed)
    return State(
        weights={"a": jnp.arange(4 * width, dtype=dtype).reshape(4, width) + seed, "b": ()},
        key=key,
        keys=jax.random.split(key, 5),
        nothing=jnp.zeros((2, 0, 3), jnp.uint8),
        no_keys=jax.random.split(key, 0),
        count=jnp.int32(seed),
        alive=jnp.array([True, False]),
    )


def assert_equal(a: State, b: State) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def checkpoints(folder):
    made = Checkpoints(folder)
    yield made
    made.close()


def test_what_is_restored_is_what_was_saved(checkpoints):
    state = make_state(7)
    checkpoints.save(3, state)
    back = checkpoints.restore(make_state())
    assert_equal(back, state)
    # A key is a key again, and draws what it drew.
    assert jax.random.uniform(back.key) == jax.random.uniform(state.key)


def test_shapes_alone_say_what_to_restore(checkpoints):
    state = make_state(7)
    checkpoints.save(3, state)
    assert_equal(checkpoints.restore(jax.eval_shape(lambda: make_state())), state)


def test_what_is_restored_compiles_no_program_again(checkpoints):
    traces = []

    @jax.jit
    def program(weights):
        traces.append(1)
        return weights * 2

    state = make_state(7)
    program(state.weights["a"])
    checkpoints.save(3, state)
    back = checkpoints.restore(make_state()).weights["a"]
    program(back)
    assert len(traces) == 1
    assert not back.committed  # or every program would get another name in the cache


def test_the_newest_two_are_kept(checkpoints, folder):
    for iteration in (2, 4, 6):
        checkpoints.save(iteration, make_state(iteration))
    assert {path.name for path in folder.iterdir()} == {"4", "6"}
    assert checkpoints.latest == 6
    assert int(checkpoints.restore(make_state()).count) == 6
    assert int(checkpoints.restore(make_state(), iteration=4).count) == 4


def test_an_iteration_is_saved_once(checkpoints):
    checkpoints.save(2, make_state(2))
    checkpoints.save(2, make_state(9))
    assert int(checkpoints.restore(make_state()).count) == 2


def test_another_look_at_the_folder_sees_the_same(checkpoints, folder):
    checkpoints.save(2, make_state(2))
    other = Checkpoints(folder)
    assert other.latest == 2
    assert_equal(other.restore(make_state()), make_state(2))
    other.close()


def test_a_folder_without_checkpoints_says_so(checkpoints):
    assert checkpoints.latest is None
    with pytest.raises(ValueError, match="holds no complete checkpoint; train from the start"):
        checkpoints.restore(make_state())


def test_what_was_cut_short_is_ignored(checkpoints, folder):
    checkpoints.save(2, make_state(2))
    half = folder / "4.orbax-checkpoint-tmp-77"
    half.mkdir()
    (half / "_METADATA").write_text("{")
    other = Checkpoints(folder)
    assert other.latest == 2
    other.close()


@pytest.mark.parametrize(
    "like", [make_state(width=5), make_state(dtype=jnp.bfloat16)], ids=["shape", "dtype"]
)
def test_a_checkpoint_of_another_shape_or_type_is_refused(checkpoints, like):
    checkpoints.save(2, make_state(2))
    with pytest.raises(ValueError, match="another configuration") as told:
        checkpoints.restore(like)
    assert "\n" not in str(told.value)
    assert "delete" not in str(told.value), "it may be a good one"


def test_a_checkpoint_with_other_parts_is_refused(checkpoints):
    checkpoints.save(2, make_state(2))
    like = make_state()
    for weights in ({"a": like.weights["a"], "c": jnp.zeros(3)}, {}):
        with pytest.raises(ValueError, match="another configuration"):
            checkpoints.restore(like.replace(weights=weights))


def harm(step, damage: str = "flipped", pattern: str = "d/*") -> None:
    """Damages the files of a checkpoint; by default those with the numbers in them."""
    for path in step.rglob(pattern):
        data = path.read_bytes()
        half = len(data) // 2
        if damage == "missing":
            path.unlink()
        elif damage == "flipped":
            path.write_bytes(data[:half] + bytes([data[half] ^ 16]) + data[half + 1 :])
        else:
            rest = b"" if damage == "truncated" else bytes(len(data) - half)
            path.write_bytes(data[:half] + rest)


@pytest.mark.parametrize("damage", ["truncated", "missing", "overwritten", "flipped"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(
    checkpoints, folder, capsys, damage
):
    checkpoints.save(2, make_state(2))
    checkpoints.save(4, make_state(4))
    harm(folder / "4", damage)
    assert_equal(checkpoints.restore(make_state()), make_state(2))
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith(f"{folder / '4'} is damaged (")
    assert "the one before it is used" in told
    harm(folder / "2", damage)
    with pytest.raises(ValueError, match=r"is damaged .*, and so are 1 before it; copy") as error:
        checkpoints.restore(make_state())
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"2 is damaged .*; copy it from elsewhere, or train"):
        checkpoints.restore(make_state(), iteration=2)


def test_no_single_damaged_byte_is_restored_as_if_it_were_sound(checkpoints, folder):
    """In the numbers themselves, of which orbax checks nothing."""
    state = make_state(2)
    state = state.replace(weights={"a": jnp.arange(300.0) * jnp.pi, "b": ()})  # is not compressed
    checkpoints.save(2, state)
    sound = {path: path.read_bytes() for path in (folder / "2").rglob("d/*")}
    refused = 0
    for path, data in sound.items():
        for place in range(0, len(data), 1 + len(data) // 4):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            try:
                assert_equal(checkpoints.restore(state), state)
            except ValueError:
                refused += 1
        path.write_bytes(data)
    assert refused > 2
    assert_equal(checkpoints.restore(state), state)


def test_a_damaged_checkpoint_makes_room_for_the_same_iteration(checkpoints, folder):
    for iteration in (2, 4):
        checkpoints.save(iteration, make_state(iteration))
    harm(folder / "4")
    (folder / "6.orbax-checkpoint-tmp-77").mkdir()
    checkpoints.forget_after(2)
    assert checkpoints.latest == 2
    checkpoints.save(4, make_state(4))
    assert_equal(checkpoints.restore(make_state()), make_state(4))
    assert {path.name for path in folder.iterdir()} == {"2", "4", "4.damaged-1"}


def test_a_checkpoint_without_a_sha256_is_read_and_said_to_be_unchecked(
    checkpoints, folder, capsys, monkeypatch
):
    """As they were written before there was one: arrays on devices, and nothing else."""
    from worldloom.training import checkpoint

    state = make_state(3)
    save = checkpoints._ocp.args.StandardSave
    checkpoints._manager.save(3, args=save(checkpoint._to_plain(state)))
    assert_equal(checkpoints.restore(make_state()), state)
    told = capsys.readouterr().err
    assert told == f"{folder / '3'} was written without a sha256: damage would not show\n"


def test_a_full_disk_is_one_line_and_harms_nothing(checkpoints, folder, monkeypatch):
    import errno

    checkpoints.save(2, make_state(2))

    def full(*_, **__):
        raise ValueError("writing: No space left on device [os_error_code='28']\n" * 50)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints._manager, "save", full)
        with pytest.raises(OSError, match=r"No space left on device: .*4$") as told:
            checkpoints.save(4, make_state(4))
    assert told.value.errno == errno.ENOSPC
    assert "\n" not in str(told.value)
    assert_equal(checkpoints.restore(make_state()), make_state(2))


def test_a_checkpoint_is_on_the_disk_before_it_counts(checkpoints, folder, monkeypatch):
    from worldloom.training import checkpoint

    synced = []
    monkeypatch.setattr(checkpoint, "sync", synced.append)
    checkpoints.save(2, make_state(2))
    assert set((folder / "2").rglob("*")) | {folder / "2", folder} == set(synced)
    assert synced[-1] == folder
