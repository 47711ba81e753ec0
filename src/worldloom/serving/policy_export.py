"""The greedy policy of any run as a bundle: one program, what it takes and gives, a self-test."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom import __version__
from worldloom.core.rollout import unroll
from worldloom.core.types import Key, PyTree
from worldloom.serving import bundle_folder as folders
from worldloom.serving.bundle import TOLERANCE, flat
from worldloom.serving.program import PLATFORMS, Rows, serialise
from worldloom.training.machine import versions
from worldloom.training.run import Run, check_no_memory

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
ROWS = 8  # of the self-test
STEPS = 16  # of the episodes that its observations are taken from
NUDGE = 1e-6  # by which weights may change without changing the actions


def export_run(
    run: Run, folder: Path, *, onnx: bool = False, batch_sizes: Sequence[int] = BATCH_SIZES
) -> Path:
    """Writes the bundle of a run's greedy policy, whole or not at all; returns its folder.

    Its program takes observations (b, ...) of the run's world, of A agents (b, A, ...), and gives
    their actions as `run.act` does. An observation of several arrays is a dict of them, by names
    with dots. batch_sizes: the numbers of rows that are compiled for.
    """
    check_no_onnx(run, onnx)
    check_no_memory(run, "exported")
    folders.check_target(folder)
    agents = run.agents
    check_finite(agents)
    obs = _observations(run, agents)
    named, structure = jax.tree_util.tree_flatten_with_path(obs)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in named]
    arrays = dict(zip(names, (x for _, x in named), strict=True))
    rows = obs if names == [""] else arrays

    def act(obs: Any) -> Rows:
        leaves = [obs[name] for name in names] if isinstance(obs, dict) else [obs]
        return {"action": run.act_in_world(agents, structure.unflatten(leaves))}

    whole = jax.vmap(act)
    out = jax.device_get(jax.jit(whole)(rows))
    space: Any = run.problem.env.spec.action
    return write_bundle(
        folder,
        folders.POLICY,
        {"policy.jax": serialise(whole, jax.tree.map(lambda x: x[0], rows))},
        cases={"obs": rows, "out": out},
        batch_sizes=batch_sizes,
        observation={name or "observation": _kind(x) for name, x in arrays.items()},
        action=asdict(space) | _kind(out["action"]),
        provenance=provenance(run),
        agents=run.problem.env.spec.num_agents,
    )


def check_no_onnx(run: Run, onnx: bool) -> None:
    """Raises ValueError if ONNX is asked for where only plants have it."""
    if onnx:
        raise ValueError(
            f"{run.folder}: its policy is not written as ONNX, those of plants are; leave onnx out"
        )


def provenance(run: Run) -> dict[str, Any]:
    """What a bundle says of the run that it comes from."""
    config = run.config
    return {"env": config.env, "algo": config.algo, "seed": config.seed, "steps": run.steps}


def _kind(rows: np.ndarray) -> dict[str, Any]:
    return {"shape": rows.shape[1:], "dtype": rows.dtype.name}


def _observations(run: Run, agents: PyTree) -> PyTree:
    """Observations (ROWS, ...) of the run's world, met by its own policy.

    Where two actions are equally good, rounding decides, and another device may decide otherwise:
    such observations say nothing about a program, and others are taken in their place.
    """
    env, params, act = run.problem.env, run.problem.env.default_params(), run.act_in_world

    def play(key: Key) -> PyTree:
        state, timestep = env.reset(key, params)
        steps = unroll(env, lambda obs, _: act(agents, obs), key, state, timestep, params, STEPS)[2]
        return steps[0]

    def nudged(x: Any) -> Any:
        if not _is_float(x):
            return x
        noise = np.random.default_rng(0).standard_normal(x.shape)
        return (x * (1.0 + NUDGE * noise)).astype(x.dtype)

    played = jax.device_get(jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), ROWS)))
    obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), played)
    each = jax.jit(jax.vmap(act, (None, 0)))
    action, near = (np.asarray(each(x, obs)) for x in (agents, jax.tree.map(nudged, agents)))
    alike = (np.abs(action - near) <= 1e3 * NUDGE).reshape(len(action), -1)
    settled = np.flatnonzero(alike.all(axis=-1))
    settled = settled if len(settled) else np.arange(len(action))
    chosen = settled[np.linspace(0, len(settled) - 1, ROWS).astype(int)]
    return jax.tree.map(lambda x: x[chosen], obs)


# Bundles of every kind ---------------------------------------------------------------------------


def check_finite(agents: PyTree) -> None:
    """Raises ValueError unless all weights are finite."""
    if not all(np.isfinite(x).all() for x in jax.tree.leaves(agents) if _is_float(x)):
        raise ValueError(
            "export: the policy's weights are not finite; export an earlier checkpoint"
        )


def _is_float(leaf: Any) -> bool:
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)
    return jnp.issubdtype(dtype, jnp.floating)  # also of keys, which numpy does not know


def write_bundle(
    folder: str | Path,
    kind: str,
    programs: Mapping[str, bytes],
    *,
    cases: Rows,
    batch_sizes: Sequence[int],
    files: Mapping[str, bytes] | None = None,
    **facts: Any,
) -> Path:
    """Writes the bundle of some programs, whole or not at all; returns its folder.

    cases: inputs of the self-test, and what came `out`. files, facts: whatever else is in the
    bundle, and in its manifest.
    """
    sizes = sorted({int(size) for size in batch_sizes})
    if not sizes or sizes[0] < 1:
        raise ValueError(f"export: batch_sizes={list(batch_sizes)}; give sizes of at least 1")
    stored = flat(cases)
    manifest = {
        "kind": kind,
        "version": folders.FORMATS[kind].version,
        "worldloom": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "batch_sizes": sizes,
        "platforms": PLATFORMS,
        "self_test": {"rows": len(next(iter(stored.values()))), "tolerance": TOLERANCE},
        "versions": versions(),
        **facts,
    }
    content = {**programs, folders.CASES: folders.npz(stored), **(files or {})}
    return folders.write_folder(folder, folders.with_manifest(manifest, content))
