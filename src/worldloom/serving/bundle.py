"""Bundles of policies: loaded without pickle and without running any code from them.

The policy of any world's agents answers with greedy actions:

    policy = load_policy("bundle")
    action = policy.act(obs)

A plant's comes with its safety filter, which remembers:

    bundle = load_bundle("bundle")
    memory = bundle.initial_memory()
    while True:
        answer = bundle.act(obs, memory)
        ...  # execute answer.action
        memory = answer.memory
"""

import io
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from worldloom.core.types import PyTree
from worldloom.serving.artifact import KEY_WORDS, MEMORY, REPORT
from worldloom.serving.bundle_folder import CASES, FORMATS, PLANT_POLICY, POLICY, read_policy
from worldloom.serving.program import Program, Rows, pad
from worldloom.serving.records import OPTIONAL

TOLERANCE = 1e-5  # of the self-test, in units of each number's scale
KEPT = ("override", "overriding", "step", "estimate")  # of a memory, whoever executes an action


@dataclass(frozen=True)
class ProgramBundle:
    """What bundles of every kind have: a policy's program, what is said of it, and a self-test."""

    folder: Path
    manifest: dict[str, Any]
    cases: dict[str, np.ndarray]  # of the self-test
    control: Program

    @property
    def digest(self) -> str:
        """Names this policy, with what its numbers mean, and no other."""
        return self.manifest["digest"]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The numbers of rows it is compiled for; others are padded."""
        return tuple(self.manifest["batch_sizes"])

    def padded(self, count: int) -> int:
        """The size to which `count` rows are padded; the largest where they are more."""
        sizes = self.batch_sizes
        return next((size for size in sizes if size >= count), max(sizes))

    def run(self, rows: tuple[PyTree, ...], size: int | None = None) -> Rows:
        """What the program computes of numpy arrays (b, ...), `size` rows at a time.

        Without a size, they are padded to the next of `batch_sizes`. An answer's last digits depend
        on it.
        """
        count = len(jax.tree.leaves(rows)[0])
        most = size or max(self.batch_sizes)
        parts = []
        for first in range(0, count, most):
            part = jax.tree.map(lambda x, at=first: x[at : at + most], rows)
            length = min(most, count - first)
            out = self.control(*pad(part, size or self.padded(length)))
            parts.append(jax.tree.map(lambda x, n=length: x[:n], out))
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *parts)

    def self_test(self, size: int | None = None) -> float:
        """Runs the recorded inputs, `size` rows at a time; the largest difference to the outputs.

        In units of each number's scale. More than the manifest's tolerance is a ValueError.
        """
        tolerance, worst = self.manifest["self_test"]["tolerance"], 0.0
        for name, values in flat(self.run(self._inputs(), size)).items():
            gap = difference(values, self.cases[f"out.{name}"], self.scale(name))
            worst = max(worst, gap)
            if gap > tolerance:
                raise ValueError(
                    f"{self.folder}: the self-test fails: {name} is off by {gap:.2g}, allowed is "
                    f"{tolerance:g}; this device or jax {jax.__version__} computes something else: "
                    "export the policy again here"
                )
        return worst

    def warm(self, ready: Callable[[int], None] = lambda count: None) -> None:
        """Compiles for every batch size, on all cores, and tests each; says how many are ready."""
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for count, _ in enumerate(pool.map(self.self_test, self.batch_sizes), start=1):
                ready(count)

    def _inputs(self) -> tuple[PyTree, ...]:
        """The arguments of the program in the self-test."""
        takes = self.control.takes
        return tuple(
            {key: self.cases[f"{name}.{key}"] for key in spec}
            if isinstance(spec, dict)
            else self.cases[name]
            for name, spec in zip(("obs", "memory", "key"), takes, strict=False)
        )

    def scale(self, name: str) -> np.ndarray | float:
        """The size of an output's numbers, which differences are measured by."""
        return 1.0


# Any world ---------------------------------------------------------------------------------------


class PolicyBundle(ProgramBundle):
    """The greedy policy of a world's agents, ready to run."""

    def act(self, obs: PyTree) -> np.ndarray:
        """Actions for an observation of one world, or of b of them with a leading axis.

        obs: as the world gives it, or its arrays in a dict. Of A agents (A, ...), as their actions.
        """
        (spec,) = self.control.takes
        if isinstance(spec, dict):
            rows = {name: self._rows(_part(obs, name), name, spec[name]) for name in spec}
            alone = np.ndim(_part(obs, min(spec))) < spec[min(spec)].ndim
        else:
            rows = self._rows(obs, "observation", spec)
            alone = np.ndim(obs) < spec.ndim
        action = self.run((rows,))["action"]
        return action[0] if alone else action

    def _rows(self, value: Any, name: str, spec: Any) -> np.ndarray:
        """An array of an observation as rows (b, ...) of the kind that the program takes."""
        given, shape = np.asarray(value), spec.shape[1:]
        rows = given[None] if given.shape == shape else given
        if rows.shape[1:] == shape and len(rows) and rows.dtype.kind in "biuf":
            with np.errstate(invalid="ignore"):
                cast = rows.astype(spec.dtype)
            if cast.dtype.kind == "f" or np.array_equal(cast, rows):
                return cast
        raise ValueError(
            f"{self.folder}: {name} is {given.dtype}{list(given.shape)}; this policy takes "
            f"{spec.dtype}{list(shape)}, or rows of that"
        )


def load_policy(folder: str | Path) -> PolicyBundle:
    """The policy in a folder, after checking hashes and format and running its self-test."""
    return _load(PolicyBundle, folder, POLICY)


def _part(obs: Any, name: str) -> Any:
    """An array of an observation, by its name with dots."""
    for key in [name] if isinstance(obs, Mapping) and name in obs else name.split("."):
        try:
            if isinstance(obs, Mapping):
                obs = obs[key]
            else:
                obs = obs[int(key)] if isinstance(obs, list | tuple) else getattr(obs, key)
        except (KeyError, IndexError, AttributeError):
            raise ValueError(f"the observation has no {name}, which this policy takes") from None
    return obs


# Plants ------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What the policy and its filter say, as numpy arrays with the leading axes of what was asked.

    report: by the names of `SafetyReport`, margins in the order of `Bundle.rows`.
    """

    action: np.ndarray  # (..., m): to be executed
    proposed: np.ndarray  # (..., m): what the policy wanted
    memory: Rows  # for the next call
    report: Rows


@dataclass(frozen=True)
class Bundle(ProgramBundle):
    """A plant's policy with its safety filter, ready to run. See the module."""

    emergency: Program
    start: Program

    @property
    def observation(self) -> list[dict[str, Any]]:
        """Name, unit, low and high of n signals."""
        return self.manifest["signals"]["observation"]

    @property
    def action(self) -> list[dict[str, Any]]:
        """Name, unit, low and high of m actuators: what -1 and 1 stand for."""
        return self.manifest["signals"]["action"]

    @property
    def _memory(self) -> list[str]:
        return self.manifest["memory"]

    @property
    def rows(self) -> list[str]:
        """The names of C constraints, in the order of the margins."""
        return [row["name"] for row in self.manifest["constraints"]]

    def act(self, obs: Any, memory: Rows, key: Any = None) -> Answer:
        """The answer to observations (n,) or (b, n) of plants with these memories.

        key: uint32 (2,) or (b, 2), for a policy that explores. Rows are padded to the next of
        `batch_sizes`: an answer's last digits depend on that size.
        """
        obs = np.asarray(obs, np.float32)
        key = np.zeros((*obs.shape[:-1], KEY_WORDS), np.uint32) if key is None else key
        asked = (obs, {name: memory[name] for name in self._memory}, np.asarray(key, np.uint32))
        single = obs.ndim == 1
        asked = jax.tree.map(lambda x: np.asarray(x)[None] if single else np.asarray(x), asked)
        rows = asked[0]
        if rows.ndim != 2 or rows.shape[1] != len(self.observation) or not len(rows):
            raise ValueError(
                f"{self.folder}: observations of shape {rows.shape}; this policy takes "
                f"{len(self.observation)} numbers a row"
            )
        out = self.run(asked)
        if single:
            out = jax.tree.map(lambda x: x[0], out)
        return Answer(**out)

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
        rows = {name: np.asarray(memory[name])[None] for name in self._memory}
        return {name: x[0] for name, x in self.emergency(rows).items()}

    def after_executed(self, after: Rows, action: np.ndarray) -> Rows:
        """The memory of one plant where somebody else executed an action (m,), limits or not.

        after: what it would be if our action had been executed. What stood before is no stop any
        more, and an override stays: it is what is executed.
        """
        kept = {name: x for name, x in after.items() if name in KEPT}
        return self.initial_memory(action) | kept

    def warm(self, ready: Callable[[int], None] = lambda count: None) -> None:
        super().warm(ready)
        self.after_emergency(self.initial_memory())

    def scale(self, name: str) -> np.ndarray | float:
        return output_scale(name, self.manifest["constraints"])


def output_scale(name: str, rows: Sequence[Mapping[str, Any]]) -> np.ndarray | float:
    """The size of the numbers of a control program's output, by its rows of constraints."""
    if "report" in name and "margins" in name:
        return np.asarray([row["scale"] for row in rows])
    if name.endswith("model_uncertainty"):
        return np.asarray([row["scale"] for row in rows if row.get("kind") == "barrier"])
    return 1.0


def load_bundle(folder: str | Path) -> Bundle:
    """A plant's bundle, after checking hashes and format and running its self-test."""
    return _load(Bundle, folder, PLANT_POLICY)


class Drift:
    """Compares a plant with the data its policy was trained on: their mean, deviation and range.

    facts: the `drift` of a bundle's manifest; names: of the n signals.
    """

    def __init__(self, facts: Mapping[str, Any], names: Sequence[str]):
        self.names = list(names)
        mean, std = (np.asarray(facts[name], np.float64) for name in ("mean", "std"))
        # A signal that never moved in the data may still move in its last digits.
        reach = facts["deviations"] * np.maximum(std, 1e-6 * np.maximum(np.abs(mean), 1.0))
        self.low, self.high = mean - reach, mean + reach
        if facts.get("low") is not None and facts.get("high") is not None:
            low, high = (np.asarray(facts[name], np.float64) for name in ("low", "high"))
            beyond = facts["beyond"] * np.maximum(high - low, 1e-6 * np.maximum(np.abs(low), 1.0))
            self.low = np.maximum(self.low, low - beyond)
            self.high = np.minimum(self.high, high + beyond)

    def strange(self, obs: np.ndarray) -> np.ndarray:
        """Which signals (b, n) of observations (b, n) lie outside; what is not a number does."""
        return ~((obs >= self.low) & (obs <= self.high))


# Reading -----------------------------------------------------------------------------------------

_Kind = TypeVar("_Kind", bound=ProgramBundle)


def _load(cls: type[_Kind], folder: str | Path, kind: str) -> _Kind:
    folder = Path(folder)
    manifest, files = read_policy(folder, kind)
    _check_manifest(folder, manifest)
    programs = [Program(f"{folder}: {name}", files[name]) for name in FORMATS[kind].programs]
    with np.load(io.BytesIO(files[CASES]), allow_pickle=False) as stored:
        cases = {name: stored[name] for name in stored.files}
    bundle = cls(folder, manifest, cases, *programs)
    bundle.self_test()
    return bundle


def _check_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    expected = {"batch_sizes": list, "self_test": dict}
    of_plant = manifest["kind"] == PLANT_POLICY
    if of_plant:
        expected |= {"signals": dict, "constraints": list, "emergency": list, "drift": dict}
    for name, kind in expected.items():
        if not isinstance(manifest.get(name), kind):
            raise ValueError(f"{folder}: manifest.json has no {name}; export the policy again")
    try:
        if min(operator.index(size) for size in manifest["batch_sizes"]) < 1:
            raise ValueError("sizes below 1")
        float(manifest["self_test"]["tolerance"])
        if of_plant:
            _check_plant(manifest)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder}: manifest.json lacks something or garbles it ({error!r}); "
            "export the policy again"
        ) from None
    memories = (list(MEMORY), [name for name in MEMORY if name not in OPTIONAL])
    known = manifest.get("memory") in memories and manifest.get("report") == list(REPORT)
    if of_plant and not known:
        raise ValueError(
            f"{folder}: its filter remembers or reports other things than this worldloom's; "
            "export the policy again"
        )


def _check_plant(manifest: dict[str, Any]) -> None:
    signals = [s for part in ("observation", "action") for s in manifest["signals"][part]]
    names = [str(entry["name"]) for entry in (*signals, *manifest["constraints"])]
    numbers = [float(signal[end]) for signal in signals for end in ("low", "high")]
    numbers += [float(row["scale"]) for row in manifest["constraints"]]
    Drift(manifest["drift"], names)
    if not np.isfinite(numbers).all():
        raise ValueError("numbers that are not finite")


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """Arrays of nested dicts, by names with dots."""
    actual: dict[str, np.ndarray] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            actual |= flat(value, f"{prefix}{name}.")
        else:
            actual[prefix + name] = np.asarray(value)
    return actual


def difference(actual: np.ndarray, expected: np.ndarray, scale: np.ndarray | float = 1.0) -> float:
    """The largest of `differences`; infinite between arrays of another shape or kind."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    return float(differences(actual, expected, scale).max(initial=0.0))


def differences(
    actual: np.ndarray, expected: np.ndarray, scale: np.ndarray | float = 1.0
) -> np.ndarray:
    """How far numbers are apart, in units of scale or of the expected one where that is larger.

    Numbers that are not finite must be the same, and so must whole numbers and flags: all others
    are infinitely far apart.
    """
    same = actual == expected
    if actual.dtype.kind != "f":
        return np.where(same, 0.0, np.inf)
    same |= np.isnan(actual) & np.isnan(expected)
    with np.errstate(invalid="ignore"):
        size = np.maximum(np.abs(expected.astype(np.float64)), scale)
        gap = np.abs(actual.astype(np.float64) - expected) / size
    return np.where(same, 0.0, np.where(np.isfinite(gap), gap, np.inf))
