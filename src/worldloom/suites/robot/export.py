"""Robot policies as bundles: manifest, weights, robot, runtime in numpy, and a control loop."""

import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from worldloom import __version__
from worldloom.core.files import plain
from worldloom.nn.normaliser import EPSILON, LIMIT, Normaliser
from worldloom.serving import control_loop, policy_runtime
from worldloom.serving.bundle_folder import npz, with_manifest, write_folder
from worldloom.serving.onnx_export import OPSET, PACKAGES, require_onnx
from worldloom.suites.robot import gait
from worldloom.suites.robot.forces import torque_limits
from worldloom.suites.robot.model import Robot
from worldloom.suites.robot.task import SCALES, Task
from worldloom.suites.robot.types import Rules
from worldloom.suites.robot.world import HIGHEST, LEAST_UPRIGHT, LOWEST

if TYPE_CHECKING:
    from worldloom.training.run import Run

# What the runtime can compute.
_OBSERVATION = {
    "gravity": "the direction down, in the frame of the base",
    "turning": "gyro, rad/s, in the frame of the base",
    "joints": "joint positions less home, rad",
    "joint_speeds": "joint velocities, rad/s",
    "last_action": "the network's last answer, clipped to -1 .. 1; 0 at first",
    "command": "wanted forward speed, m/s; then speed to the left, m/s, and yaw rate, rad/s",
    "history": "of earlier steps, the last first: gravity, turning, joints, joint_speeds and "
    "last_action, scaled; at first those of the first step",
    "clock": "sine and cosine of the gait's phase; 0 while the command is 0",
}
# Steps of control in which a target may cross all that an action can ask for: a limit for the
# servos' sake, which training does not know.
STEPS_ACROSS = 4


def export(run: "Run", folder: str | Path, *, onnx: bool | None = None) -> Path:
    """Writes the policy of a run as a bundle and returns its folder.

    The runtime needs numpy alone. onnx: also the network as policy.onnx, which onnxruntime was
    compared with; by default where the extra of that name is installed.
    """
    if onnx:
        require_onnx()
    from worldloom.training.run import check_no_memory

    check_no_memory(run, "exported")
    if run.config.settings.by_brax:
        raise ValueError(
            f"{run.folder} was learned by Brax's PPO, whose networks the numpy runtime does not "
            "know; export a run of our own PPO: level 1, 3 or 4"
        )
    world, agents, hyper = run.problem.env.base, run.agents, run.config.hyper
    if run.config.algo == "ppo":
        params, options = agents.params, {"activation": hyper.activation}
    elif not hasattr(agents, "actor"):
        raise ValueError(f"{run.folder}: policies of {run.config.algo} cannot be exported yet")
    else:  # sac's actor has its log deviations beside its means
        *hidden, last = agents.actor
        means = {name: array[..., : world.robot.num_joints] for name, array in last.items()}
        params, options = (*hidden, means), {"activation": "relu", "squash": True}
    if onnx is None:
        onnx = all(importlib.util.find_spec(name) for name in PACKAGES)
    return export_policy(
        folder,
        world.robot,
        world.task,
        params,
        normaliser=agents.normaliser,
        rules=world.params.rules,
        onnx=onnx,
        **options,
    )


def export_policy(
    folder: str | Path,
    robot: Robot,
    task: Task,
    params: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    activation: str,
    squash: bool = False,
    normaliser: Normaliser | None = None,
    rules: Rules | None = None,
    onnx: bool = False,
) -> Path:
    """Writes the bundle of a policy, whole or not at all, and returns its folder.

    params: flax parameters with an `ActorCritic` for a vector of actions somewhere inside, or
    layers from first to last; `activation` is that network's, and `squash` puts a tanh at its end.
    normaliser: of the observations it was trained with, either of what the policy sees or of the
    whole `Observation`. rules: those it was trained with, else the task's. onnx: also as ONNX,
    from an observation to an action in -1 .. 1. A bundle that is there already is replaced;
    anything else is left alone.
    """
    layers = policy_layers(params)
    arrays = {f"kernel_{i}": kernel for i, (kernel, _) in enumerate(layers)}
    arrays |= {f"bias_{i}": bias for i, (_, bias) in enumerate(layers)}
    if normaliser is not None:
        for name in ("mean", "var"):
            whole = getattr(normaliser, name)
            arrays[name] = np.asarray(getattr(whole, "state", whole), np.float32)
    sizes = [len(layers[0][0]), *(len(bias) for _, bias in layers)]
    _check(robot, task, sizes, activation, arrays)
    network = {
        "layers": sizes,
        "activation": activation,
        "squash": squash,
        "observation_limit": None if normaliser is None else LIMIT,
        "epsilon": EPSILON,
    }
    files = {
        "policy.npz": npz(arrays),
        "robot.xml": robot.xml.encode(),
        "policy_runtime.py": Path(policy_runtime.__file__).read_bytes(),
        "control_loop.py": Path(control_loop.__file__).read_bytes(),
    }
    manifest = _manifest(robot, task, rules or task.rules(robot)) | {"network": network}
    if onnx:
        forward = policy_runtime.Policy(json.loads(json.dumps(plain(manifest))), arrays).forward
        files["policy.onnx"] = policy_onnx(arrays, network, forward)
    return write_folder(folder, with_manifest(manifest, files))


def policy_onnx(
    arrays: Mapping[str, np.ndarray],
    network: Mapping[str, Any],
    forward: Callable[[np.ndarray], np.ndarray],
) -> bytes:
    """The network as an ONNX model from `obs` (batch, n) to `action` (batch, m), within -1 .. 1.

    Observations are those of the manifest; normalisation is inside. A ValueError unless onnxruntime
    answers as the numpy runtime does.
    """
    import jax.numpy as jnp
    import onnxruntime

    from worldloom.nn.layers import ACTIVATIONS
    from worldloom.serving.onnx_convert import build

    layers = [
        (arrays[f"kernel_{i}"], arrays[f"bias_{i}"]) for i in range(len(network["layers"]) - 1)
    ]

    def run(x: Any) -> tuple[Any]:
        if network["observation_limit"] is not None:
            limit, gain = network["observation_limit"], 1.0 / np.sqrt(arrays["var"] + EPSILON)
            x = jnp.clip((x - arrays["mean"]) * gain, -limit, limit)
        for kernel, bias in layers[:-1]:
            x = ACTIVATIONS[network["activation"]](x @ kernel + bias)
        x = x @ layers[-1][0] + layers[-1][1]
        return (jnp.clip(jnp.tanh(x) if network["squash"] else x, -1.0, 1.0),)

    rows = np.random.default_rng(0).normal(size=(64, network["layers"][0])).astype(np.float32)
    model = build(run, {"obs": rows}, ["action"], OPSET)
    model.doc_string = "A robot's policy; manifest.json says what it sees and does."
    stored = model.SerializeToString()
    session = onnxruntime.InferenceSession(stored, providers=["CPUExecutionProvider"])
    answers: Any = session.run(["action"], {"obs": rows})[0]
    gap = np.abs(answers - np.stack([np.clip(forward(row), -1.0, 1.0) for row in rows])).max()
    if not gap <= 1e-5:
        raise ValueError(f"export: onnxruntime's actions are off by {gap:.2g}; export without ONNX")
    return stored


def policy_layers(
    params: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Kernels (in, out) and biases (out,) of the policy in an `ActorCritic`'s parameters.

    Of a sequence of layers, they are those.
    """
    layers: dict[Any, Any] = {}
    if isinstance(params, Mapping):
        network = _find(params)
        if network is None:
            raise ValueError(
                "export: these parameters hold no policy of an ActorCritic (layers policy_0, "
                "policy_1, ..., policy); only such networks can be exported"
            )
        torso = "torso" if "torso_0" in network else "policy"
        hidden = sum(name.startswith(f"{torso}_") for name in network)
        names = [*(f"{torso}_{i}" for i in range(hidden)), "policy"]
        layers = {name: network[name] for name in names}
    else:
        layers = dict(enumerate(params))
    arrays = []
    for name, layer in layers.items():
        kernel, bias = (np.asarray(layer[part], np.float32) for part in ("kernel", "bias"))
        if not (np.isfinite(kernel).all() and np.isfinite(bias).all()):
            raise ValueError(f"export: layer {name} is not finite; export an earlier checkpoint")
        arrays.append((kernel, bias))
    return arrays


def _find(tree: Any) -> Mapping[str, Any] | None:
    """The parameters of the network itself, however deep it is wrapped."""
    if not isinstance(tree, Mapping):
        return None
    head = tree.get("policy")
    if isinstance(head, Mapping) and "kernel" in head:
        return tree
    return next(filter(None, map(_find, tree.values())), None)


def _check(
    robot: Robot, task: Task, sizes: list[int], activation: str, arrays: Mapping[str, np.ndarray]
) -> None:
    layout = task.layout(robot)
    unknown = [name for name, _ in layout if name not in _OBSERVATION]
    if unknown:
        raise ValueError(f"export: the runtime cannot compute the observations {unknown}")
    size = sum(count for _, count in layout)
    if (sizes[0], sizes[-1]) != (size, robot.num_joints):
        raise ValueError(
            f"export: a network from {sizes[0]} to {sizes[-1]} numbers is not for {robot.name} "
            f"and its task {task.name}, which has {size} observations and {robot.num_joints} joints"
        )
    if activation not in policy_runtime.ACTIVATIONS:
        known = ", ".join(policy_runtime.ACTIVATIONS)
        raise ValueError(f"export: activation={activation!r}; the runtime knows {known}")
    if "mean" in arrays and arrays["mean"].shape != (size,):
        raise ValueError(
            f"export: the normaliser is for {arrays['mean'].shape} numbers, the policy sees {size}"
        )


def _manifest(robot: Robot, task: Task, rules: Rules) -> dict[str, Any]:
    model, limits = robot.model, torque_limits(robot)
    directions = ("command", "sideways", "turn")[: task.directions]
    return {
        "kind": policy_runtime.KIND,
        "version": policy_runtime.VERSION,
        "worldloom": __version__,
        "robot": robot.name,
        "task": task.name,
        "control": {"rate_hz": robot.control_hz, "seconds": robot.control_seconds},
        "quaternion": {
            "order": "wxyz",
            "meaning": "from the base's frame into the world's; x forward, y left, z up",
        },
        "observation": [
            {
                "name": name,
                "size": size,
                "scale": SCALES.get(name, 1.0),
                "meaning": _OBSERVATION[name],
            }
            for name, size in task.layout(robot)
        ],
        "history": {
            "steps": 1 + task.history,
            "meaning": "of readings; of one step alone, last_action is the past",
        },
        "joints": list(robot.joints),
        "axes": {
            "joints": robot.home_axes,
            "meaning": "of each joint in the home pose, in the frame of the base; angles count by "
            "the right hand",
        },
        "action": {
            "meaning": "target = clip(home + scale * clip(answer, -1, 1), lower, upper), rad",
            "home": robot.home_joints,
            "scale": robot.action_scale,
            "lower": robot.lower,
            "upper": robot.upper,
            "rate": 2.0 * robot.action_scale / (STEPS_ACROSS * robot.control_seconds),
            "rate_meaning": "how fast a target may move, rad/s; training knows no such limit",
        },
        "gait": {
            "period": gait.PERIOD * robot.time_scale,
            "stance": gait.STANCE,
            "pace": float(rules.pace),
            "pace_speed": gait.PACE_SPEED * robot.time_scale,
            "meaning": "seconds of a cycle, and the share of it that a foot stands; the phase goes "
            "on by seconds / period a step, times 1 + pace * min(speed / pace_speed, 1), while the "
            "command is not 0",
        },
        "servos": {
            "stiffness": model.actuator_gainprm[:, 0],
            "damping": -model.actuator_biasprm[:, 2],
            "torque": [float(x) if np.isfinite(x) else None for x in limits],
            "meaning": "torque = clip(stiffness * (target - angle) - damping * speed), Nm/rad, "
            "Nm s/rad and Nm",
        },
        "trained": {
            "command": [np.asarray(getattr(rules, name)) for name in directions],
            "latency": np.asarray(rules.latency) * float(rules.randomise > 0.0),
            "meaning": "least and most of each number of a command; steps of control from a "
            "reading to the servos",
        },
        "fall": None
        if task.lies
        else {
            "tilt": math.acos(LEAST_UPRIGHT),
            "height": [LOWEST * robot.home_height, HIGHEST * robot.home_height],
            "meaning": "rad from the vertical, and m of the base above the floor, beyond which the "
            "robot has fallen",
        },
        "model": {
            "file": "robot.xml",
            "home": robot.home,
            "gyro": _sensor(robot, robot.gyro),
            "orientation": _sensor(robot, robot.orientation),
            "meaning": "for simulations: qpos to stand in, and the names of the sensors",
        },
    }


def _sensor(robot: Robot, place: slice) -> str:
    """The name of a sensor by its place in sensordata."""
    model = robot.model
    return model.sensor(int(np.flatnonzero(model.sensor_adr == place.start)[0])).name
