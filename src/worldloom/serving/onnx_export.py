"""The control program as ONNX, for runtimes without JAX; checked in onnxruntime.

Inputs are `obs` and `memory_<name>`, outputs `action`, `proposed`, `next_<name>` of the memory and
`report_<name>`, all with a leading axis of any size. A policy that explores does not do so here.
"""

import importlib.util
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from worldloom.core.types import Array
from worldloom.nn.policy import PolicyState
from worldloom.safety.constraints import SafetyConstraints
from worldloom.serving.artifact import KEY_WORDS, MEMORY, control_row
from worldloom.serving.bundle import difference
from worldloom.serving.onnx_convert import build
from worldloom.serving.program import Rows

TOLERANCE = 1e-5  # between onnxruntime and the compiled program, in units of each number's scale
OPSET = 21
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
    policy: PolicyState, constraints: SafetyConstraints, obs: np.ndarray, memory: Rows
) -> tuple[bytes, float]:
    """The control program as an ONNX model, and by how much onnxruntime differs from it.

    They are compared for obs (b, n) and memory; more than `TOLERANCE` is a ValueError.
    """
    require_onnx()
    quiet = policy.replace(noise=0.0)
    key = np.zeros((len(obs), KEY_WORDS), np.uint32)
    row = control_row(quiet, constraints)
    expected = _named(jax.device_get(jax.jit(jax.vmap(row))(obs, memory, key)))

    def run(obs: Array, *remembered: Array) -> tuple[Array, ...]:
        out = _named(row(obs, dict(zip(MEMORY, remembered, strict=True)), key[0]), lead=0)
        return tuple(out[name] for name in expected)

    inputs = {"obs": obs} | {f"memory_{name}": np.asarray(memory[name]) for name in MEMORY}
    try:
        model = build(run, inputs, list(expected), OPSET)
    except ValueError as error:
        text = " ".join(str(error).split())[:300]
        raise ValueError(
            f"export: this policy and its filter cannot be written as ONNX ({text}); "
            "export it with --no-onnx"
        ) from error
    model.doc_string = "A plant's policy with its safety filter, from a worldloom bundle."
    stored = model.SerializeToString()
    return stored, check_onnx(stored, inputs, expected, np.asarray(constraints.scale))


def check_onnx(
    model: bytes,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    scale: np.ndarray,
) -> float:
    """By how much onnxruntime differs from the outputs, all rows together and one at a time.

    inputs, expected: arrays (b, ...) by the model's names. scale (C,): of the margins. More than
    `TOLERANCE` is a ValueError.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    known = {entry.name for entry in session.get_inputs()}
    names, count, worst = list(expected), len(inputs["obs"]), 0.0
    for size in (count, 1):
        for first in range(0, count, size):
            rows = {k: v[first : first + size] for k, v in inputs.items() if k in known}
            for name, value in zip(names, session.run(names, rows), strict=True):
                unit = scale if name.startswith("report_margins") else 1.0
                gap = difference(value, expected[name][first : first + size], unit)
                worst = max(worst, gap)
                if gap > TOLERANCE:
                    raise ValueError(
                        f"export: onnxruntime's {name} differs by {gap:.2g} from the compiled "
                        f"policy's, allowed is {TOLERANCE:g}; export it with --no-onnx"
                    )
    return worst


def _named(out: Rows, lead: int = 1) -> dict[str, Any]:
    """Outputs, with `lead` leading axes, by the names they have in ONNX.

    Those without any numbers (the uncertainty of a known model) are left out: ONNX's tools have
    little use for them.
    """
    memory = {f"next_{name}": x for name, x in out["memory"].items()}
    report = {f"report_{name}": x for name, x in out["report"].items()}
    named = {"action": out["action"], "proposed": out["proposed"], **memory, **report}
    return {name: x for name, x in named.items() if 0 not in x.shape[lead:]}
