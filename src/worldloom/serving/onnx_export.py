"""The control program as ONNX, for runtimes without JAX; checked in onnxruntime.

Inputs are `obs` and `memory_<name>`, outputs `action`, `proposed`, `next_<name>` of the memory and
`report_<name>`, all with a leading axis of any size. A policy that explores does not do so here.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array
from worldloom.nn.policy import PolicyState
from worldloom.safety.constraints import SafetyConstraints
from worldloom.safety.filter import ControlMemory, ControlState, validate_constraints
from worldloom.serving.artifact import KEY_WORDS, control_row, rows_of
from worldloom.serving.bundle import differences, output_scale
from worldloom.serving.program import Rows

TOLERANCE = 1e-5  # between onnxruntime and the compiled program, in units of each number's scale
EQUAL = 0.99  # of the rows, at least: the others are named
NUDGE = 1e-6  # of an observation: a rounding error
NUDGES = 4  # ways to round, each tried up and down
OPSET = 21
ALONE = 8  # rows that are also answered one at a time
PACKAGES = ("onnx", "onnxruntime")
REMEDY = "export it with --no-onnx"
Answers = Callable[[np.ndarray, Rows], Rows]  # of a control program, to obs (b, n) and memory


def require_onnx() -> None:
    """A ValueError with the remedy where ONNX cannot be written or checked."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f"export: ONNX needs {name}, which is not installed; "
                "pip install 'worldloom[onnx]', or leave it out with --no-onnx"
            )


def to_onnx(
    policy: PolicyState,
    constraints: SafetyConstraints,
    program: Answers,
    obs: np.ndarray,
    memory: Rows,
) -> tuple[bytes, dict[str, Any]]:
    """The control program as an ONNX model, and how onnxruntime compares with it: `check_onnx`.

    program: what the compiled control program, without exploration, answers to obs (b, n) and
    memory, with which both are compared.
    """
    from worldloom.serving.onnx_convert import build

    row = control_row(policy.replace(noise=0.0), constraints)
    names = list(_named(program(obs, memory)))

    def run(obs: Array, *remembered: Array) -> tuple[Array, ...]:
        given = dict(zip(memory, remembered, strict=True))
        out = row(obs, given, jnp.zeros(KEY_WORDS, jnp.uint32))
        named = _named(jax.tree.map(lambda x: x[None], out))
        return tuple(named[name][0] for name in names)

    try:
        model = build(run, _inputs(obs, memory), names, OPSET)
    except ValueError as error:
        text = " ".join(str(error).split())[:100]
        raise ValueError(
            f"export: this policy and its filter cannot be written as ONNX ({text}); {REMEDY}"
        ) from error
    model.doc_string = "A plant's policy with its safety filter, from a worldloom bundle."
    stored = model.SerializeToString()
    return stored, check_onnx(stored, program, obs, memory, constraints)


def check_onnx(
    model: bytes,
    program: Answers,
    obs: np.ndarray,
    memory: Rows,
    constraints: SafetyConstraints,
) -> dict[str, Any]:
    """onnxruntime's answers to obs (b, n) and memory beside the program's, for the manifest.

    Each answer is one of two:

    * equal: flags and whole numbers the same, all others within `TOLERANCE` of their scale;
    * named in `different`: rounding decides it. It differs by no more than the program's own answer
      does when the observation changes by a rounding error (`sensitivity`).

    And what onnxruntime executes satisfies every hard row (`validate_constraints`), unless it is an
    emergency action. One answer that is neither, or fewer equal ones than `EQUAL`, is a ValueError.
    """
    rows = rows_of(constraints)
    expected = _named(program(obs, memory))
    answers, alone = _answers(model, _inputs(obs, memory), list(expected))
    gaps = _gaps(answers, expected, rows)
    first = {name: x[: len(alone[name])] for name, x in expected.items()}
    for name, gap in _gaps(alone, first, rows).items():
        gaps[name][: len(gap)] = np.maximum(gap, gaps[name][: len(gap)])
    worst = np.max(list(gaps.values()), axis=0)
    apart = np.flatnonzero(worst > TOLERANCE)
    if len(apart) > (1.0 - EQUAL) * len(obs):
        raise ValueError(
            f"export: onnxruntime answers {len(apart)} of {len(obs)} random rows unlike the "
            f"compiled policy, {_largest(gaps, int(apart[0]))} in row {apart[0]}; {REMEDY}"
        )
    own = sensitivity(lambda obs: _named(program(obs, memory)), obs, rows) if len(apart) else {}
    for name, gap in gaps.items():
        beyond = apart[gap[apart] > np.maximum(own[name][apart], TOLERANCE)] if own else apart
        if len(beyond):
            raise ValueError(
                f"export: onnxruntime's {name} differs by {gap[beyond[0]]:.2g} from the compiled "
                f"policy's in row {beyond[0]}, and rounding does not explain it; {REMEDY}"
            )
    _check_safe(answers, obs, memory, constraints)
    return {
        "rows": len(obs),
        "equal": len(obs) - len(apart),
        "largest_difference": float(np.delete(worst, apart).max(initial=0.0)),
        "different": [
            {
                "row": i,
                "difference": _largest(gaps, i),
                "reason": f"ill-conditioned: the program's own answer changes by "
                f"{_largest(own, i)} when the observation changes by {NUDGE:g} of itself",
                "obs": obs[i],
                "previous": memory["previous"][i],
            }
            for i in apart.tolist()
        ],
    }


def sensitivity(
    answers: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    obs: np.ndarray,
    rows: Sequence[Mapping[str, Any]] = (),
) -> dict[str, np.ndarray]:
    """By how much (b,) each answer to obs (b, n) changes when these change by a rounding error.

    Where two safe ways out are equally near, or a limit hardly depends on an actuator, it is much;
    another program of the same mathematics may then answer otherwise.
    """
    out, rng = answers(obs), np.random.default_rng(0)
    most = {name: np.zeros(len(obs)) for name in out}
    for _ in range(NUDGES):
        ways = rng.choice([-NUDGE, NUDGE], obs.shape)
        for nudged in (obs * (1.0 + ways), obs * (1.0 - ways)):
            near = _gaps(answers(nudged.astype(obs.dtype)), out, rows)
            most = {name: np.maximum(gap, near[name]) for name, gap in most.items()}
    return most


def _gaps(
    answers: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    rows: Sequence[Mapping[str, Any]],
) -> dict[str, np.ndarray]:
    """The largest difference (b,) in each output, in units of each number's scale."""
    gaps = {}
    for name, value in expected.items():
        if answers[name].shape != value.shape or answers[name].dtype != value.dtype:
            raise ValueError(f"export: onnxruntime's {name} has another shape or kind; {REMEDY}")
        each = differences(answers[name], value, output_scale(name, rows))
        gaps[name] = each.reshape(len(value), -1).max(axis=-1, initial=0.0)
    if "report_distance" in gaps:  # an action that is moved by a rounding error is not moved
        moved = np.maximum(answers["report_distance"], expected["report_distance"]) > TOLERANCE
        gaps["report_intervened"] = np.where(moved, gaps["report_intervened"], 0.0)
    return gaps


def _largest(gaps: Mapping[str, np.ndarray], row: int) -> str:
    name = max(gaps, key=lambda name: gaps[name][row])
    return f"{name} by {gaps[name][row]:.2g}"


def _check_safe(
    answers: Mapping[str, np.ndarray], obs: np.ndarray, memory: Rows, constraints: SafetyConstraints
) -> None:
    """Judges every action that onnxruntime executes, and does not call an emergency action."""

    def judge(obs: Array, memory: Rows, action: Array) -> Array:
        state = ControlState(obs, ControlMemory(**memory))
        return validate_constraints(state, action, constraints).is_safe

    safe = np.asarray(jax.jit(jax.vmap(judge))(obs, memory, answers["action"]))
    wrong = ~(safe | answers["report_emergency"])
    if wrong.any():
        raise ValueError(
            f"export: what onnxruntime executes in row {wrong.argmax()} crosses a hard limit; "
            f"{REMEDY}"
        )


def _inputs(obs: np.ndarray, memory: Rows) -> dict[str, np.ndarray]:
    return {"obs": obs} | {f"memory_{name}": np.asarray(x) for name, x in memory.items()}


def _answers(
    model: bytes, inputs: Mapping[str, np.ndarray], names: list[str]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What onnxruntime computes of all rows together, and of the first ones, each alone."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    known = {entry.name for entry in session.get_inputs()}
    asked = {name: x for name, x in inputs.items() if name in known}
    first = range(min(len(inputs["obs"]), ALONE))
    alone = [session.run(names, {k: x[i : i + 1] for k, x in asked.items()}) for i in first]
    joined = [np.concatenate(values) for values in zip(*alone, strict=True)]
    together = session.run(names, asked)
    return dict(zip(names, together, strict=True)), dict(zip(names, joined, strict=True))


def _named(out: Rows) -> dict[str, Any]:
    """Outputs (b, ...) by the names they have in ONNX.

    Those without any numbers (the uncertainty of a known model) are left out: ONNX's tools have
    little use for them.
    """
    memory = {f"next_{name}": x for name, x in out["memory"].items()}
    report = {f"report_{name}": x for name, x in out["report"].items()}
    named = {"action": out["action"], "proposed": out["proposed"], **memory, **report}
    return {name: x for name, x in named.items() if 0 not in x.shape[1:]}
