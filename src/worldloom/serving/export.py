"""A policy with its safety filter as a bundle: programs, what their numbers mean, a self-test."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldloom.nn.policy import PolicyState
from worldloom.safety.constraints import SafetyConstraints
from worldloom.safety.filter import initial_memory
from worldloom.serving import artifact
from worldloom.serving.artifact import KEY_WORDS, REPORT, as_dict, explores, rows_of
from worldloom.serving.bundle import TOLERANCE, flat
from worldloom.serving.bundle_folder import PLANT_POLICY, check_target, json_bytes
from worldloom.serving.onnx_export import require_onnx, sensitivity, to_onnx
from worldloom.serving.policy_export import BATCH_SIZES, check_finite, write_bundle
from worldloom.serving.program import Rows

SIGNAL = {"name": str, "unit": str, "low": float, "high": float}
CASES = 8  # rows of the self-test
COMPARED = 4096  # random rows that ONNX must answer as the program does
DEVIATIONS = 6.0  # from the mean of the training data, beyond which an observation is strange
BEYOND = 0.1  # of the training data's range, beyond which it is strange as well


def export_bundle(
    folder: str | Path,
    policy: PolicyState,
    constraints: SafetyConstraints,
    *,
    signals: Mapping[str, Sequence[Mapping[str, Any]]],
    statistics: Mapping[str, Any] | None = None,
    constraint_text: str | None = None,
    provenance: Mapping[str, Any] | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    onnx: bool = True,
) -> Path:
    """Writes the bundle of a policy and its filter, whole or not at all; returns its folder.

    signals: `observation` (n) and `action` (m), each a list of dicts with name, unit, low, high.
    statistics: `observation_statistics` of the training data, for the alarm that a plant has left
    them; without, only the policy's own mean and deviation are known. constraint_text: the file the
    constraints were read from, kept as it is. provenance: whatever is to be known of the training.
    batch_sizes: the numbers of rows that are compiled for; the last is the most that are answered
    at once. onnx: also as ONNX, which needs the extra of that name. A bundle that is there already
    is replaced.
    """
    check_target(folder)
    described = _checked_signals(signals, policy, constraints)
    check_finite((policy.params, policy.mean, policy.std))
    if onnx:
        require_onnx()
    drift = _drift(policy, statistics)
    whole = jax.jit(artifact.control(policy, constraints))
    drawn = _drawn(constraints, described["observation"], drift, COMPARED if onnx else 8 * CASES)
    settled = _settled(whole, *drawn, rows_of(constraints))
    kinds = settled.reshape(-1, CASES)
    tested = kinds.argmax(axis=0) * CASES + np.arange(CASES)  # one of a kind, or any settled one
    tested = np.where(kinds.any(axis=0), tested, settled.argmax())
    out = jax.device_get(whole(*drawn))
    obs, memory, key, first = jax.tree.map(lambda x: x[tested], (*drawn, out))
    files = {
        "constraints.json": json_bytes(describe(constraints)),
        "normaliser.json": json_bytes({"mean": policy.mean, "std": policy.std}),
    }
    if constraint_text is not None:
        files["constraints.yaml"] = constraint_text.encode()
    compared = None
    if onnx:
        quiet = artifact.control(policy.replace(noise=0.0), constraints)
        program = jax.jit(quiet) if explores(policy) else whole
        files["policy.onnx"], compared = to_onnx(
            policy,
            constraints,
            lambda obs, memory: jax.device_get(program(obs, memory, drawn[2])),
            *drawn[:2],
        )
    return write_bundle(
        folder,
        PLANT_POLICY,
        artifact.programs(policy, constraints, len(described["observation"])),
        cases={"obs": obs, "key": key, "memory": memory, "out": first},
        batch_sizes=batch_sizes,
        files=files,
        provenance=provenance or {},
        signals=described,
        constraints=rows_of(constraints),
        emergency=constraints.emergency,
        recovery=_stages(constraints, described["action"]),
        memory=list(drawn[1]),
        report=REPORT,
        explores=explores(policy),
        drift=drift,
        onnx=compared,
    )


def observation_statistics(obs: Any) -> dict[str, Any]:
    """Mean, deviation and range (n,) of observations (N, n), and their number."""
    obs = np.asarray(obs, np.float64)
    obs = obs[np.isfinite(obs).all(axis=-1)]
    if not len(obs):
        raise ValueError("export: the training data have no finite observation to describe")
    of = {"mean": np.mean, "std": np.std, "low": np.min, "high": np.max}
    return {"count": len(obs)} | {name: function(obs, axis=0) for name, function in of.items()}


def describe(constraints: SafetyConstraints) -> dict[str, Any]:
    """Every number of the constraints, for a reader; the model itself is in the program."""
    c = constraints
    affine = ("linear", "state", "barrier", "lookahead")
    alone = ("gamma", "disturbance", "emergency", "deviations", "latch_after", "horizon")
    meaning = {"meaning": "weights.x + offset"}
    return {
        "rows": rows_of(c),
        "box": {"low": c.low, "high": c.high},
        "rate": {str(i): x for i, x in zip(c.rated, np.asarray(c.rate).tolist(), strict=True)},
        **{name: as_dict(getattr(c, name)) | meaning for name in affine},
        **{name: getattr(c, name) for name in alone},
        "recovery": None if c.recovery is None else as_dict(c.recovery),
        "has_model": c.model is not None,
        "has_backup": c.backup is not None,
        "meaning": "actions in [-1, 1], observations in the units of the manifest's signals",
    }


def _stages(c: SafetyConstraints, actuators: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A recovery procedure for a reader: steps of each stage, and where actuators go, in units."""
    if c.recovery is None:
        return []
    end, target, moves, ramp = (np.asarray(x).tolist() for x in as_dict(c.recovery).values())
    spans = [(s["name"], s["low"], s["high"] - s["low"]) for s in actuators]
    return [
        {
            "steps": end[i] - (end[i - 1] if i else 0),
            "ramp": ramp[i],
            "to": {
                name: low + (x + 1.0) / 2.0 * span
                for (name, low, span), x, moved in zip(spans, target[i], moves[i], strict=True)
                if moved
            },
        }
        for i in range(len(end))
    ]


def _checked_signals(
    signals: Mapping[str, Sequence[Mapping[str, Any]]],
    policy: PolicyState,
    constraints: SafetyConstraints,
) -> dict[str, list[dict[str, Any]]]:
    sizes = {"observation": np.shape(policy.mean)[-1], "action": constraints.action_size}
    described = {}
    for part, size in sizes.items():
        given = signals.get(part, ())
        if len(given) != size:
            raise ValueError(
                f"export: {len(given)} signals of the {part} are described, the policy has {size}; "
                "describe each"
            )
        for signal in given:
            missing = [key for key in SIGNAL if key not in signal]
            if missing:
                raise ValueError(f"export: signal {signal} has no {missing[0]}; give one")
        described[part] = [{key: kind(s[key]) for key, kind in SIGNAL.items()} for s in given]
        names = [signal["name"] for signal in described[part]]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"export: two signals of the {part} are named {twice[0]}; rename one")
    return described


def _drift(policy: PolicyState, statistics: Mapping[str, Any] | None) -> dict[str, Any]:
    given = dict(statistics or {"mean": policy.mean, "std": policy.std})
    size = np.shape(policy.mean)[-1]
    known: dict[str, Any] = dict.fromkeys(("mean", "std", "low", "high"))
    for name in [name for name in known if name in given]:
        known[name] = np.asarray(given[name], np.float64)
        if known[name].shape != (size,):
            raise ValueError(
                f"export: statistics: {name} has shape {known[name].shape}; the policy has "
                f"{size} observations"
            )
    return known | {"count": given.get("count"), "deviations": DEVIATIONS, "beyond": BEYOND}


def _settled(
    whole: Callable[..., Rows],
    obs: np.ndarray,
    memory: Rows,
    key: np.ndarray,
    rows: Sequence[Mapping[str, Any]] = (),
) -> np.ndarray:
    """Which rows (b,) are answered alike when observations change by a rounding error.

    The others say nothing about a program. rows: of the constraints, by which differences are
    measured.
    """
    own = sensitivity(lambda obs: flat(jax.device_get(whole(obs, memory, key))), obs, rows)
    return np.max(list(own.values()), axis=0) <= TOLERANCE


def _drawn(
    constraints: SafetyConstraints,
    observation: list[dict[str, Any]],
    drift: dict[str, Any],
    count: int,
) -> tuple[np.ndarray, Rows, np.ndarray]:
    """Inputs (count, ...): of each eight, four usual ones, and one of each way to be unusual."""
    rng = np.random.default_rng(0)
    low, high = (np.asarray([s[end] for s in observation], np.float64) for end in ("low", "high"))
    usual = drift["mean"] + drift["std"] * rng.standard_normal((count, len(observation)))
    obs = np.clip(usual, low, high).astype(np.float32)
    memory = {
        name: np.repeat(np.asarray(x)[None], count, axis=0)
        for name, x in as_dict(initial_memory(constraints)).items()
    }
    box = np.asarray(constraints.low), np.asarray(constraints.high)
    memory["previous"], override = rng.uniform(*box, (2, *memory["previous"].shape)).astype("f4")
    kind = np.arange(count) % 8
    if constraints.hidden is not None:  # every other one has been asked before
        before = np.concatenate([obs, jax.vmap(constraints.hidden)(obs)], axis=-1)
        memory["estimate"] = np.where((kind % 2 == 1)[:, None], before, memory["estimate"])
    memory["override"] = np.where((kind == 4)[:, None], override, memory["override"])
    memory["overriding"] = kind == 4
    obs[kind == 5] = rng.uniform(low, high, obs.shape)[kind == 5]
    memory["latched"] = kind == 6
    if constraints.recovery is not None:  # every stage is met somewhere
        last = int(constraints.recovery.end[-1])
        memory["emergencies"] = rng.integers(0, last + 2, count, dtype=np.int32)
    obs[kind == 7, 0] = np.nan
    key = rng.integers(0, 2**32, (count, KEY_WORDS), dtype=np.uint32)
    return obs, memory, key
