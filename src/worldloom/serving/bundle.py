"""Bundles of plant policies: loaded without pickle and without running any code from them.

bundle = load_bundle("bundle")
memory = bundle.initial_memory()
while True:
    answer = bundle.act(obs, memory)
    ...  # execute answer.action
    memory = answer.memory
"""

import io
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from worldloom.serving.artifact import KEY_WORDS, MEMORY, REPORT, Rows, pad
from worldloom.serving.bundle_folder import PROGRAMS, read_policy
from worldloom.serving.drift import Drift
from worldloom.serving.program import Program

TOLERANCE = 1e-5  # of the self-test, in units of each number's scale


class Answer(NamedTuple):
    """What the policy and its filter say, as numpy arrays with the leading axes of what was asked.

    report: by the names of `SafetyReport`, margins in the order of `Bundle.rows`.
    """

    action: np.ndarray  # (..., m): to be executed
    proposed: np.ndarray  # (..., m): what the policy wanted
    memory: Rows  # for the next call
    report: Rows


@dataclass(frozen=True)
class Bundle:
    """A policy with its safety filter, ready to run. See the module."""

    folder: Path
    manifest: dict[str, Any]
    control: Program
    emergency: Program
    start: Program
    cases: dict[str, np.ndarray]  # of the self-test

    # What it is ----------------------------------------------------------------------------------

    @property
    def digest(self) -> str:
        """Names this policy with this filter and these signals, and no other."""
        return self.manifest["digest"]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The numbers of rows it is compiled for; others are padded."""
        return tuple(self.manifest["batch_sizes"])

    @property
    def observation(self) -> list[dict[str, Any]]:
        """Name, unit, low and high of n signals."""
        return self.manifest["signals"]["observation"]

    @property
    def action(self) -> list[dict[str, Any]]:
        """Name, unit, low and high of m actuators: what -1 and 1 stand for."""
        return self.manifest["signals"]["action"]

    @property
    def rows(self) -> list[str]:
        """The names of C constraints, in the order of the margins."""
        return [row["name"] for row in self.manifest["constraints"]]

    # What it does --------------------------------------------------------------------------------

    def act(self, obs: Any, memory: Rows, key: Any = None) -> Answer:
        """The answer to observations (n,) or (b, n) of plants with these memories.

        key: uint32 (2,) or (b, 2), for a policy that explores. Rows are padded to the next of
        `batch_sizes`: an answer's last digits depend on that size.
        """
        obs = np.asarray(obs, np.float32)
        single = obs.ndim == 1
        key = np.zeros((*obs.shape[:-1], KEY_WORDS), np.uint32) if key is None else key
        asked = (obs, {name: memory[name] for name in MEMORY}, np.asarray(key, np.uint32))
        if single:
            asked = jax.tree.map(lambda x: np.asarray(x)[None], asked)
        self._check(asked[0])
        most = max(self.batch_sizes)
        parts = []
        for first in range(0, len(asked[0]), most):
            part = jax.tree.map(lambda x, at=first: np.asarray(x)[at : at + most], asked)
            count = len(part[0])
            out = self.control(*pad(part, self.padded(count)))
            parts.append(jax.tree.map(lambda x, count=count: x[:count], out))
        out = parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *parts)
        if single:
            out = jax.tree.map(lambda x: x[0], out)
        return Answer(out["action"], out["proposed"], out["memory"], out["report"])

    def padded(self, count: int) -> int:
        """The size to which `count` rows are padded; the largest where they are more."""
        sizes = self.batch_sizes
        return next((size for size in sizes if size >= count), max(sizes))

    def initial_memory(self, previous: Any = None) -> Rows:
        """The memory before the first step of one plant, or of b with previous (b, m).

        previous: where the actuators are, in [-1, 1]; the emergency action's place if not given.
        """
        if previous is None:
            previous = self.manifest["emergency"]
        place = np.asarray(previous, np.float32)
        if place.ndim > 1:
            return self.start(place)
        return jax.tree.map(lambda x: x[0], self.start(place[None]))

    def after_emergency(self, memory: Rows) -> Rows:
        """The memory of one plant after `memory["fallback"]` was executed unasked."""
        rows = {name: np.asarray(memory[name])[None] for name in MEMORY}
        return {name: x[0] for name, x in self.emergency(rows).items()}

    def self_test(self, size: int | None = None) -> float:
        """Runs the recorded inputs with `size` rows; the largest difference to the outputs.

        In units of each number's scale. More than the manifest's tolerance is a ValueError.
        """
        size = self.padded(len(self.cases["obs"])) if size is None else size
        obs, memory, key = case_inputs(self.cases)
        worst = 0.0
        for first in range(0, len(obs), size):
            part = jax.tree.map(lambda x, at=first: x[at : at + size], (obs, memory, key))
            out = flat(self.control(*pad(part, size)))
            for name, values in out.items():
                expected = self.cases[f"out.{name}"][first : first + size]
                gap = difference(values[: len(expected)], expected, self._scale(name))
                worst = max(worst, gap)
                if gap > self.manifest["self_test"]["tolerance"]:
                    raise ValueError(
                        f"{self.folder}: the self-test fails: {name} is off by {gap:.2g}, allowed "
                        f"is {self.manifest['self_test']['tolerance']:g}; this device or jax "
                        f"{jax.__version__} computes something else: export the policy again here"
                    )
        return worst

    def warm(self, *, sizes: Sequence[int] | None = None) -> None:
        """Compiles for every batch size, and tests each."""
        for size in self.batch_sizes if sizes is None else sizes:
            self.self_test(size)
        self.after_emergency(self.initial_memory())

    def _scale(self, name: str) -> np.ndarray | float:
        if name.startswith("report.margins"):
            return np.asarray([row["scale"] for row in self.manifest["constraints"]])
        return 1.0

    def _check(self, obs: np.ndarray) -> None:
        if obs.ndim != 2 or obs.shape[1] != len(self.observation) or not len(obs):
            raise ValueError(
                f"{self.folder}: observations of shape {obs.shape}; this policy takes "
                f"{len(self.observation)} numbers a row"
            )


def load_bundle(folder: str | Path) -> Bundle:
    """The bundle in a folder, after checking hashes and format and running its self-test."""
    folder = Path(folder)
    manifest, files = read_policy(folder)
    _check_manifest(folder, manifest)
    control, emergency, start = (Program(f"{folder}: {n}", files[n]) for n in PROGRAMS)
    with np.load(io.BytesIO(files["self_test.npz"]), allow_pickle=False) as stored:
        cases = {name: stored[name] for name in stored.files}
    bundle = Bundle(folder, manifest, control, emergency, start, cases)
    bundle.self_test()
    return bundle


def _check_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    expected = {
        "batch_sizes": list,
        "signals": dict,
        "constraints": list,
        "emergency": list,
        "self_test": dict,
        "drift": dict,
    }
    for name, kind in expected.items():
        if not isinstance(manifest.get(name), kind):
            raise ValueError(f"{folder}: manifest.json has no {name}; export the policy again")
    try:
        signals = [s for part in ("observation", "action") for s in manifest["signals"][part]]
        named = [str(entry["name"]) for entry in (*signals, *manifest["constraints"])]
        edges = [float(signal[end]) for signal in signals for end in ("low", "high")]
        scales = [float(row["scale"]) for row in manifest["constraints"]]
        sizes = [operator.index(size) for size in manifest["batch_sizes"]]
        Drift(manifest["drift"], named)
        float(manifest["self_test"]["tolerance"])
        if not np.isfinite(edges + scales).all() or min(sizes) < 1:
            raise ValueError("numbers that are not finite, or sizes below 1")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder}: manifest.json lacks something or garbles it ({error!r}); "
            "export the policy again"
        ) from None
    if (manifest.get("memory"), manifest.get("report")) != (list(MEMORY), list(REPORT)):
        raise ValueError(
            f"{folder}: its filter remembers or reports other things than this worldloom's; "
            "export the policy again"
        )


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """Arrays of nested dicts, by names with dots."""
    actual: dict[str, np.ndarray] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            actual |= flat(value, f"{prefix}{name}.")
        else:
            actual[prefix + name] = np.asarray(value)
    return actual


def case_inputs(cases: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Rows, np.ndarray]:
    """What the control program takes, from the flat names of a self-test."""
    return cases["obs"], {name: cases[f"memory.{name}"] for name in MEMORY}, cases["key"]


def difference(actual: np.ndarray, expected: np.ndarray, scale: np.ndarray | float = 1.0) -> float:
    """The largest difference, in units of scale or of the wanted number where that is larger.

    Numbers that are not finite must be the same, and so must whole numbers and flags.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if not actual.size:
        return 0.0
    if actual.dtype.kind != "f":
        return 0.0 if np.array_equal(actual, expected) else float("inf")
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(actual)):
        return float("inf")
    if not np.array_equal(actual[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    actual, expected = np.where(finite, actual, 0.0), np.where(finite, expected, 0.0)
    unit = np.maximum(np.maximum(np.abs(expected), 1.0), scale)
    return float((np.abs(actual - expected) / unit).max())
