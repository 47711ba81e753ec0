"""Programs of a row as ONNX graphs of many: onnxruntime computes what JAX does."""

import json
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from worldloom.serving.onnx_convert import build

TABLE = np.asarray([[1.0, 2.0], [3.0, 5.0], [8.0, 13.0]], np.float32)


def in_onnxruntime(run, asked, outputs):
    import onnxruntime

    model = build(run, asked, outputs, 21).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(outputs, asked)


def packing(x, y, k):
    bits = (x > 0.5).astype(jnp.uint8)
    packed = bits[0] | bits[1] << 1 | bits[2] << 7
    return packed, packed >> 1 & 1 == 1, (packed >> jnp.uint8(7)) & 1


def moving(x, y, k):
    back = x[::-1]
    joined = jnp.concatenate([y, x[1:4], jnp.ones(2)])
    return back, x.reshape(3, 2).T, joined, jnp.stack([y, y]), *jnp.unstack(x.reshape(3, 2), axis=1)


def arithmetic(x, y, k):
    return (
        x**2 + 1.0 / x, jnp.maximum(x, 0.5) % 0.3, jnp.where(y.sum() > 1.0, x, -x), x**-3,
        jnp.tanh(x) * jnp.exp(-x) - jnp.sqrt(x), jnp.isfinite(x / (x - x[0])),
        jnp.clip(x, 0.6, 0.9), y[:, None] * TABLE.T, jax.lax.mul(x.reshape(3, 2), y[None]),
        jnp.where(x > 0.5, x > 0.7, x < 0.2),
    )  # fmt: skip


def reducing(x, y, k):
    grid = x.reshape(3, 2)
    return grid.sum(axis=0), grid.max(axis=1), jnp.argmin(x), (x > 0.2).all(), (x > 0.9).any()


def multiplying(x, y, k):
    return TABLE @ y, x.reshape(3, 2) @ TABLE.T, x.reshape(3, 2) @ y


def indexing(x, y, k):
    table, both = jnp.asarray(TABLE), jnp.stack([k, 2 - k])
    return (
        x[jnp.asarray([3, 0, 0])], x[k], table[k], x.at[jnp.asarray([1, 1])].add(y),
        x[both], table[both], table[:, k // 2], (table > 2.0)[k], x.reshape(3, 2)[both],
        jax.lax.dynamic_slice(table, (k, k // 2), (1, 1)),
        jax.lax.dynamic_slice(x.reshape(3, 2), (k, k // 2), (2, 1)),
    )  # fmt: skip


def looping(x, y, k):
    def step(carry, seen):
        total, i = carry
        number, row = seen
        return (total * number + row.sum(), i + 1), (total, row * number)

    (total, count), (totals, rows) = jax.lax.scan(step, (y[0], 0), (x, jnp.ones((6, 2))))
    _, behind = jax.lax.scan(lambda c, v: (c + v, c), 0.0, x, reverse=True)
    return total, count, totals, rows, behind, jax.lax.fori_loop(0, 5, lambda i, z: z * 0.5 + y, y)


def sloping(x, y, k):
    def curve(u):
        return jax.lax.fori_loop(0, 3, lambda i, z: jnp.sin(z) + u, u).sum()

    return jax.grad(lambda u: jnp.tanh(u).sum())(x), jax.jvp(curve, (x,), (jnp.ones(6),))[1]


def branching(x, y, k):
    bent = jax.lax.cond(
        y.sum() > 1.0, lambda u: (u * y[0], k + 1, u > 0.5), lambda u: (u, k, u < 0.3), x
    )
    chosen = jax.lax.switch(k, [jnp.sin, lambda u: u + y.sum(), lambda u: u], x)
    within = jax.lax.cond(
        x[0] > 0.5, lambda: jax.lax.cond(y[0] > 0.5, lambda: x * 2.0, lambda: -x), lambda: x - 1.0
    )
    looped = jax.lax.cond(
        k > 0, lambda: jax.lax.fori_loop(0, 3, lambda i, z: z * y[0] + i, x), lambda: jnp.ones(6)
    )
    return *bent, chosen, within, looped


def waiting(x, y, k):
    grown = jax.lax.while_loop(lambda z: z[0].sum() < 4.0, lambda z: (z[0] + x, z[1] + 1), (x, 0))
    counted = jax.lax.fori_loop(0, k, lambda i, z: z * y[0] + i, x)
    return *grown, counted, jax.lax.while_loop(lambda z: z > 2.0, lambda z: z - 1.0, y[0])


@pytest.mark.parametrize(
    "run",
    [
        packing,
        moving,
        arithmetic,
        reducing,
        multiplying,
        indexing,
        looping,
        sloping,
        branching,
        waiting,
    ],
)
def test_a_batch_of_any_size_is_computed_as_jax_computes_it(run):
    luck = np.random.default_rng(0)
    for count in (5, 1):
        asked = {
            "x": luck.uniform(0.1, 1.0, (count, 6)).astype(np.float32),
            "y": luck.uniform(0.1, 1.0, (count, 2)).astype(np.float32),
            "k": luck.integers(0, 3, count).astype(np.int32),
        }
        wanted = jax.jit(jax.vmap(run))(*asked.values())
        names = [f"out{i}" for i in range(len(wanted))]
        for found, value in zip(in_onnxruntime(run, asked, names), wanted, strict=True):
            assert (found.shape, found.dtype) == (value.shape, value.dtype)
            np.testing.assert_allclose(found, value, rtol=2e-6, atol=1e-6)


def executed(session):
    """How many nodes of each kind ran, by onnxruntime's profile."""
    events = json.loads(Path(session.end_profiling()).read_text())
    return Counter(event["args"]["op_name"] for event in events if event.get("cat") == "Node")


@pytest.mark.parametrize("way", ["none", "some"])
def test_a_branch_that_no_row_takes_is_not_computed(way, tmp_path):
    import onnxruntime

    def run(x):
        far = jax.lax.fori_loop
        return (jax.lax.cond(x[0] > 1.0, lambda: far(0, 9, lambda i, z: jnp.sin(z), x), lambda: x),)

    asked = {"x": np.asarray([[0.5, 2.0], [0.1, 3.0]], np.float32)}
    if way == "some":
        asked["x"][1, 0] = 2.0
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    model = build(run, asked, ["y"], 21).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(["y"], asked)
    np.testing.assert_allclose(found, jax.vmap(run)(asked["x"])[0], rtol=1e-6)
    assert executed(session)["Sin"] == (9 if way == "some" else 0)


def test_a_constant_and_an_input_may_be_outputs():
    asked = {"x": np.ones((3, 2), np.float32)}
    found = in_onnxruntime(lambda x: (x, jnp.arange(3), x), asked, ["a", "b", "c"])
    assert [value.tolist() for value in found] == [
        [[1.0, 1.0]] * 3,
        [[0, 1, 2]] * 3,
        [[1.0] * 2] * 3,
    ]


def test_what_is_not_a_number_passes_as_jax_lets_it_pass():
    asked = {"x": np.asarray([[np.nan, 1.0], [-np.inf, np.inf]], np.float32)}

    def run(x):
        return jnp.maximum(x, 0.0), jnp.minimum(x[0], x[1]), x != x, jnp.where(x > 0, x, 2.0)

    wanted = jax.vmap(run)(asked["x"])
    found = in_onnxruntime(run, asked, ["a", "b", "c", "d"])
    for value, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(value, other)


def test_an_operation_without_a_counterpart_is_named():
    with pytest.raises(ValueError, match="ONNX has no counterpart for lgamma here"):
        build(lambda x: (jax.lax.lgamma(x),), {"x": np.ones((2, 2), np.float32)}, ["a"], 21)
