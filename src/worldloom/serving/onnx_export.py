"""The control program as ONNX, for runtimes without JAX; checked in onnxruntime.

Inputs are `obs` and `memory_<name>`, outputs `action`, `proposed`, `next_<name>` of the memory and
`report_<name>`, all with a leading axis of any size. A policy that explores does not do so here.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array
from worldloom.nn.policy import PolicyState
from worldloom.safety.constraints import SafetyConstraints
from worldloom.serving.artifact import KEY_WORDS, MEMORY, control_row, rows_of
from worldloom.serving.bundle import difference, output_scale
from worldloom.serving.program import Rows

TOLERANCE = 1e-5  # between onnxruntime and the compiled program, in units of each number's scale
OPSET = 21
ALONE = 8  # rows that are also compared one at a time
PACKAGES = ("onnx", "onnxruntime")


def require_onnx() -> None:
    """A ValueError with the remedy where ONNX cannot be written or checked."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f"export: ONNX needs {name}, which is not installed; "
                "pip install 'worldloom[onnx]', or leave it out with --no-onnx"
            )


def to_onnx(
    policy: PolicyState, constraints: SafetyConstraints, obs: np.ndarray, memory: Rows, out: Rows
) -> tuple[bytes, float]:
    """The control program as an ONNX model, and by how much onnxruntime differs from it.

    They are compared for obs (b, n) and memory, of which the program, without exploration, made
    `out`; more than `TOLERANCE` between them is a ValueError.
    """
    from worldloom.serving.onnx_convert import build

    row, expected = control_row(policy.replace(noise=0.0), constraints), _named(out)

    def run(obs: Array, *remembered: Array) -> tuple[Array, ...]:
        memory = dict(zip(MEMORY, remembered, strict=True))
        out = row(obs, memory, jnp.zeros(KEY_WORDS, jnp.uint32))
        named = _named(jax.tree.map(lambda x: x[None], out))
        return tuple(named[name][0] for name in expected)

    inputs = {"obs": obs} | {f"memory_{name}": np.asarray(memory[name]) for name in MEMORY}
    try:
        model = build(run, inputs, list(expected), OPSET)
    except ValueError as error:
        text = " ".join(str(error).split())[:100]
        raise ValueError(
            f"export: this policy and its filter cannot be written as ONNX ({text}); "
            "export it with --no-onnx"
        ) from error
    model.doc_string = "A plant's policy with its safety filter, from a worldloom bundle."
    stored = model.SerializeToString()
    return stored, check_onnx(stored, inputs, expected, rows_of(constraints))


def check_onnx(
    model: bytes,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    rows: Sequence[Mapping[str, Any]],
) -> float:
    """By how much onnxruntime's outputs differ from those given, in units of each number's scale.

    inputs, expected: arrays (b, ...) by the model's names; all are compared together, and the first
    of them one at a time. rows: the constraints, as a bundle's manifest has them. More than
    `TOLERANCE` is a ValueError.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    known = {entry.name for entry in session.get_inputs()}
    names, count, worst = list(expected), len(inputs["obs"]), 0.0
    for part in (slice(None), *(slice(i, i + 1) for i in range(min(count, ALONE)))):
        asked = {k: v[part] for k, v in inputs.items() if k in known}
        for name, value in zip(names, session.run(names, asked), strict=True):
            gap = difference(value, expected[name][part], output_scale(name, rows))
            worst = max(worst, gap)
            if gap > TOLERANCE:
                raise ValueError(
                    f"export: onnxruntime's {name} differs by {gap:.2g} from the compiled "
                    f"policy's, allowed is {TOLERANCE:g}; export it with --no-onnx"
                )
    return worst


def _named(out: Rows) -> dict[str, Any]:
    """Outputs (b, ...) by the names they have in ONNX.

    Those without any numbers (the uncertainty of a known model) are left out: ONNX's tools have
    little use for them.
    """
    memory = {f"next_{name}": x for name, x in out["memory"].items()}
    report = {f"report_{name}": x for name, x in out["report"].items()}
    named = {"action": out["action"], "proposed": out["proposed"], **memory, **report}
    return {name: x for name, x in named.items() if 0 not in x.shape[1:]}
