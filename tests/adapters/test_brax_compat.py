"""What is lent to Brax works as what JAX had, and is gone afterwards."""

import os
import subprocess
import sys
import textwrap
import threading
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("brax", reason="needs worldloom[robot]")

from worldloom.adapters import brax_compat
from worldloom.adapters.brax_compat import device_put_replicated, names, quiet_import, replicated

with quiet_import():
    from brax.training import pmap
    from brax.training.agents.ppo import train as ppo

NAME = "device_put_replicated"


def module(text):
    made = types.ModuleType("a_module")
    exec(textwrap.dedent(text), vars(made))
    return made


CALLER = module(f"import jax\ndef put(x): return jax.{NAME}(x, jax.local_devices())")
BYSTANDER = module("import jax\ndef put(x): return jax.device_put(x)")


def test_nothing_is_told_of_what_brax_does_without(capfd):
    with quiet_import():
        print("Failed to import warp")
        warnings.warn("JAXopt is no longer maintained.", DeprecationWarning, stacklevel=1)
    assert capfd.readouterr() == ("", "")
    line = "from worldloom.adapters import brax_worlds"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.fixture
def without(monkeypatch):
    """A JAX that has no such function, whichever version runs here."""
    if hasattr(jax, NAME):
        monkeypatch.delattr(jax, NAME)


@pytest.fixture
def with_it(monkeypatch):
    """A JAX that still has one."""
    own = object()
    monkeypatch.setattr(jax, NAME, own, raising=False)
    return own


def test_brax_as_tested_asks_for_it():
    assert names(ppo, NAME)
    assert names(pmap, NAME)


@pytest.mark.parametrize(("text", "expected"), [
    (f"def f(): return jax.{NAME}", True),
    (f"def f():\n  def g(): return jax.{NAME}\n  return g", True),
    (f"class A:\n  pass\nx = '{NAME}'", False),
    ("def f(): return jax.device_put", False),
])  # fmt: skip
def test_a_name_is_found_in_code_alone(text, expected):
    assert names(module(text), NAME) is expected


def test_it_is_lent_and_taken_back(without):
    with device_put_replicated(CALLER):
        copied = CALLER.put(jnp.arange(3.0))
        assert copied.shape == (jax.local_device_count(), 3)
    assert not hasattr(jax, NAME)


def test_it_is_taken_back_after_an_error(without):
    with pytest.raises(KeyError), device_put_replicated(CALLER):
        raise KeyError
    assert not hasattr(jax, NAME)


def test_nothing_happens_where_jax_has_it(with_it):
    with device_put_replicated(CALLER):
        assert getattr(jax, NAME) is with_it
    assert getattr(jax, NAME) is with_it


def test_nothing_happens_where_brax_does_without(without):
    with device_put_replicated(BYSTANDER):
        assert not hasattr(jax, NAME)


def test_the_last_of_several_users_takes_it_back(without):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with device_put_replicated(CALLER):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with device_put_replicated(CALLER):
        thread.start()
        assert inside.wait(10)
    assert getattr(jax, NAME) is replicated
    leave.set()
    thread.join()
    assert not hasattr(jax, NAME)
    assert brax_compat._users == 0


def test_copies_are_whole_and_typed():
    tree = {"a": jnp.arange(6, dtype=jnp.int32).reshape(2, 3), "b": np.float32(2.5), "c": 1.5}
    copies = replicated(tree, jax.local_devices())
    for name, leaf in tree.items():
        assert copies[name].dtype == jnp.asarray(leaf).dtype
        for row in copies[name]:
            np.testing.assert_array_equal(row, leaf)


def test_a_mapped_program_is_not_compiled_again_for_what_it_returned():
    traced = 0

    def more(x):
        nonlocal traced
        traced += 1
        return x + 1

    mapped = jax.pmap(more, axis_name=ppo._PMAP_AXIS_NAME)
    value = replicated(jnp.zeros(3), jax.local_devices())
    for _ in range(3):
        value = mapped(value)
    assert traced == 1
    np.testing.assert_array_equal(value[0], 3.0)


ON_TWO = """
import jax, numpy as np
from worldloom.adapters.brax_compat import replicated
copies = replicated({"a": np.arange(3.0, dtype=np.float32)}, jax.local_devices())["a"]
assert copies.shape == (2, 3)
assert {shard.device for shard in copies.addressable_shards} == set(jax.local_devices())
assert all(shard.data.shape == (1, 3) for shard in copies.addressable_shards)
one = replicated({"a": np.float32(1.0)}, jax.local_devices()[1:])["a"]
assert one.devices() == {jax.local_devices()[1]}
totals = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(copies)
np.testing.assert_array_equal(totals, [[0.0, 2.0, 4.0]] * 2)
print("a row on each")
"""


def test_each_device_holds_a_row(tmp_path):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO],
        env=os.environ | flags, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert "a row on each" in done.stdout, done.stderr[-2000:]


def test_only_the_warning_that_is_known_is_silenced():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with quiet_import():
            for text in ("JAXopt is no longer maintained. See elsewhere.", "something else"):
                warnings.warn(text, DeprecationWarning, stacklevel=1)
    assert [str(one.message) for one in caught] == ["something else"]


def test_what_is_printed_during_an_import_is_no_result(capsys):
    with quiet_import():
        print("something is missing")
    assert capsys.readouterr() == ("", "something is missing\n")
