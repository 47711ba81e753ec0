"""Runs an exported robot policy with numpy and nothing else: copy this file with its bundle.

    policy = Policy.load("bundle")
    policy.reset()
    while True:  # 50 times a second
        targets = policy.step(gyro, orientation_wxyz, joint_positions, joint_velocities, command)

`command` is a forward speed, m/s; for a policy that is steered, also a speed to the left, m/s, and
a yaw rate, rad/s.

`python policy_runtime.py [bundle]` checks a bundle and says what is in it.
"""

import hashlib
import io
import json
import math
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

VERSION = 4  # of bundles that this file can read
KIND = "worldloom robot policy"
SENSED = ("gravity", "turning", "joints", "joint_speeds")
ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    "silu": lambda x: x * 0.5 * (1.0 + np.tanh(0.5 * x)),  # x logistic(x), without overflow
}


class Policy:
    """A policy for one robot. It remembers its last action and the phase of its gait.

    `joints` names the joints in the order of all arrays; `manifest` is the bundle's manifest.
    """

    def __init__(self, manifest: dict[str, Any], arrays: dict[str, np.ndarray]):
        self.manifest = manifest
        self.joints: tuple[str, ...] = tuple(manifest["joints"])
        self.seconds: float = manifest["control"]["seconds"]  # between two calls of `step`
        action = manifest["action"]
        self._home, self._scale, self._lower, self._upper = (
            np.asarray(action[name], np.float32) for name in ("home", "scale", "lower", "upper")
        )
        self._scales = {part["name"]: np.float32(part["scale"]) for part in manifest["observation"]}
        gait = manifest["gait"]
        self._stride = np.float32(self.seconds / gait["period"])  # cycles in a step
        self._pace, self._pace_speed = gait.get("pace", 0.0), gait.get("pace_speed", 1.0)
        sizes = {part["name"]: part["size"] for part in manifest["observation"]}
        self._directions: int = sizes["command"]
        frame = sum(sizes[name] for name in SENSED) + len(self.joints)
        self._history: int = sizes.get("history", 0) // frame  # steps
        network = manifest["network"]
        self._activation = ACTIVATIONS[network["activation"]]
        count = len(network["layers"]) - 1
        self._layers = [
            (arrays[f"kernel_{i}"].astype(np.float64), arrays[f"bias_{i}"].astype(np.float64))
            for i in range(count)
        ]
        self._squash = network["squash"]
        self._limit = network["observation_limit"]  # None: observations are taken as they come
        if self._limit is not None:
            self._mean = arrays["mean"].astype(np.float64)
            self._gain = 1.0 / np.sqrt(arrays["var"].astype(np.float64) + network["epsilon"])
        self.reset()

    @classmethod
    def load(cls, folder: str | Path = ".") -> "Policy":
        """The policy of a bundle, after checking that every file is as it was exported."""
        manifest, files = read_bundle(folder, KIND, VERSION)
        known = {*SENSED, "last_action", "command", "clock", "history"}
        strange = [part["name"] for part in manifest["observation"] if part["name"] not in known]
        if strange or manifest["network"]["activation"] not in ACTIVATIONS:
            what = strange or manifest["network"]["activation"]
            raise ValueError(f"{folder} asks for {what}, which this runtime does not know")
        with np.load(io.BytesIO(files["policy.npz"])) as file:
            arrays = {name: file[name] for name in file.files}
        layers = manifest["network"]["layers"]
        for i, shape in enumerate(pairwise(layers)):
            stored = arrays[f"kernel_{i}"].shape if f"kernel_{i}" in arrays else "no"
            if stored != shape:
                raise ValueError(
                    f"policy.npz: layer {i} has {stored} weights, the manifest says {shape}; "
                    "export the policy again"
                )
        return cls(manifest, arrays)

    def reset(self, phase: float = 0.0) -> None:
        """Forgets everything: call it before a robot starts. `phase` of the gait, 0 to 1."""
        self.phase = np.float32(phase)
        self.action = np.zeros(len(self.joints), np.float32)
        self._past: list[np.ndarray] = []  # of earlier steps, the last first

    def step(
        self,
        gyro: Any,
        orientation_wxyz: Any,
        joint_positions: Any,
        joint_velocities: Any,
        command: Any = 0.0,
    ) -> np.ndarray:
        """Targets (n,) rad for the servos, from what the sensors say now.

        gyro (3,) rad/s in the frame of the base; orientation_wxyz (4,) of the base in the world, a
        unit quaternion with w first; joint_positions (n,) rad and joint_velocities (n,) rad/s;
        command: the forward speed that is wanted, m/s, or (3,) with a speed to the left, m/s, and a
        yaw rate, rad/s, if the policy knows them; 0 to stand. Readings that are not finite or
        of the wrong size are a ValueError, and nothing is remembered of them.
        """
        readings = (gyro, orientation_wxyz, joint_positions, joint_velocities)
        obs = self.observe(*readings, command)
        if self._history:
            frame = self._frame(self._parts(*readings))
            self._past = [frame, *(self._past or [frame] * self._history)][: self._history]
        self.action = np.clip(np.nan_to_num(self.forward(obs)), -1.0, 1.0)
        asked = self._command(command)
        if asked.any():
            speed = float(np.hypot(asked[0], asked[1] if len(asked) > 1 else 0.0))
            quicker = np.float32(1.0 + self._pace * min(speed / self._pace_speed, 1.0))
            later = self.phase + quicker * self._stride
            self.phase = later - np.floor(later)
        return np.clip(self._home + self._scale * self.action, self._lower, self._upper)

    def observe(
        self,
        gyro: Any,
        orientation_wxyz: Any,
        joint_positions: Any,
        joint_velocities: Any,
        command: Any,
    ) -> np.ndarray:
        """What the network sees, float32, in the order of the manifest."""
        asked = self._command(command)
        angle = np.float32(2.0 * math.pi) * self.phase
        parts = self._parts(gyro, orientation_wxyz, joint_positions, joint_velocities) | {
            "command": asked,
            "clock": np.array([np.sin(angle), np.cos(angle)], np.float32) * np.float32(asked.any()),
        }
        if self._history:
            past = self._past or [self._frame(parts)] * self._history
            parts["history"] = np.concatenate(past)
        names = [part["name"] for part in self.manifest["observation"]]
        return np.concatenate([parts[name] * self._scales[name] for name in names])

    def _frame(self, parts: dict[str, np.ndarray]) -> np.ndarray:
        """What is seen later of a step."""
        return np.concatenate(
            [parts[name] * self._scales[name] for name in (*SENSED, "last_action")]
        )

    def _parts(
        self, gyro: Any, orientation_wxyz: Any, joint_positions: Any, joint_velocities: Any
    ) -> dict[str, np.ndarray]:
        n = len(self.joints)
        quaternion = _reading("orientation_wxyz", orientation_wxyz, 4)
        length = float(np.linalg.norm(quaternion))
        if abs(length - 1.0) > 0.05:
            raise ValueError(
                f"orientation_wxyz has length {length:.3g}; a unit quaternion is needed"
            )
        return {
            "gravity": _down(quaternion),
            "turning": _reading("gyro", gyro, 3),
            "joints": _reading("joint_positions", joint_positions, n) - self._home,
            "joint_speeds": _reading("joint_velocities", joint_velocities, n),
            "last_action": self.action,
        }

    def _command(self, command: Any) -> np.ndarray:
        """All that the policy is told of a command: a single number is a forward speed."""
        given = np.atleast_1d(np.asarray(command, np.float32))
        if given.shape == (1,):
            given = np.concatenate([given, np.zeros(self._directions - 1, np.float32)])
        return _reading("command", given, self._directions)

    def forward(self, obs: np.ndarray) -> np.ndarray:
        """The network's output (n,) for an observation, float32; not yet clipped."""
        x = obs.astype(np.float64)
        if self._limit is not None:
            x = np.clip((x - self._mean) * self._gain, -self._limit, self._limit)
        for kernel, bias in self._layers[:-1]:
            x = self._activation(x @ kernel + bias)
        kernel, bias = self._layers[-1]
        x = x @ kernel + bias
        return (np.tanh(x) if self._squash else x).astype(np.float32)


def _reading(name: str, value: Any, size: int) -> np.ndarray:
    numbers = np.asarray(value, np.float32)
    if numbers.shape != (size,):
        raise ValueError(f"{name} has shape {numbers.shape}; {size} numbers are needed")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} is not finite: {numbers.tolist()}")
    return numbers


def _down(quaternion: np.ndarray) -> np.ndarray:
    """The direction of gravity, seen from a base that is turned by `quaternion`."""
    down = np.array([0.0, 0.0, -1.0], np.float32)
    axis = -quaternion[1:]
    across = np.float32(2.0) * np.cross(axis, down)
    return down + quaternion[0] * across + np.cross(axis, across)


# Bundles ---------------------------------------------------------------------------------------


def read_bundle(
    folder: str | Path, kind: str, version: int
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest of a bundle and the content of its files, if all are as they were exported.

    What is returned is what was checked: nothing is read twice. Anything else is a ValueError.
    """
    folder = Path(folder)
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_bytes())
    except OSError:
        raise ValueError(
            f"{folder} is no bundle of a policy: it has no manifest.json; `worldloom export RUN` "
            "writes one, RUN/bundle"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); export the policy again") from None
    given = manifest.get("kind") if isinstance(manifest, dict) else None
    if given != kind:
        raise ValueError(f"{path} is of kind {given!r}, not the manifest of a {kind}")
    if manifest.get("version") != version:
        raise ValueError(
            f"{path} is of version {manifest.get('version')}, this worldloom reads {version}; "
            "export the policy again with it, or use the worldloom that wrote it "
            f"({manifest.get('worldloom')})"
        )
    if not isinstance(manifest.get("digest"), str):
        raise ValueError(f"{path} has no digest; export the policy again")
    actual = digest_of(manifest)
    if manifest["digest"] != actual:
        raise ValueError(
            f"{path} names policy {manifest['digest'][:12]}, what it says is that of "
            f"{actual[:12]}; copy the bundle again"
        )
    if not isinstance(manifest.get("files"), dict):
        raise ValueError(f"{path} lists no files; export the policy again")
    files = {}
    for name, expected in manifest["files"].items():
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise ValueError(f"{path}: {name!r} is no name of a file in a bundle; do not use it")
        file = folder / name
        if not file.is_file():
            raise ValueError(f"{folder}: {name} is missing; copy the whole bundle")
        files[name] = file.read_bytes()
        if hashlib.sha256(files[name]).hexdigest() != expected:
            raise ValueError(
                f"{folder}: {name} is not the file that was exported (its sha256 differs from the "
                "manifest's); copy the bundle again"
            )
    return manifest, files


def digest_of(manifest: dict[str, Any]) -> str:
    """Names a policy: the sha256 of all that its manifest says, hashes of files included.

    Only not of when it was written. The same weights with another order or range of signals
    control a plant or a robot differently.
    """
    facts = {name: x for name, x in manifest.items() if name not in ("digest", "created")}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def main() -> None:
    policy = Policy.load(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    about = policy.manifest
    print(f"{about['robot']}, task {about['task']}, exported by worldloom {about['worldloom']}")
    print(f"{1.0 / policy.seconds:.0f} steps a second, quaternions {about['quaternion']['order']}")
    for name, low, high in zip(policy.joints, policy._lower, policy._upper, strict=True):
        print(f"  {name:24} {low:+.2f} to {high:+.2f} rad")


if __name__ == "__main__":
    main()
