"""Robot policies as bundles: a manifest, weights, the robot, and a runtime in numpy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from worldloom import __version__
from worldloom.nn.normaliser import EPSILON, LIMIT, Normaliser
from worldloom.serving import policy_runtime
from worldloom.serving.bundle_folder import npz, with_manifest, write_folder
from worldloom.serving.policy_export import check_no_onnx
from worldloom.suites.robot import gait
from worldloom.suites.robot.model import Robot
from worldloom.suites.robot.task import SCALES, Task

if TYPE_CHECKING:
    from worldloom.training.run import Run

# What the runtime can compute.
_OBSERVATION = {
    "gravity": "the direction down, in the frame of the base",
    "turning": "gyro, rad/s, in the frame of the base",
    "joints": "joint positions less home, rad",
    "joint_speeds": "joint velocities, rad/s",
    "last_action": "the network's last answer, clipped to -1 .. 1; 0 at first",
    "command": "wanted forward speed, m/s",
    "clock": "sine and cosine of the gait's phase; 0 while the command is 0",
}


def export(run: "Run", folder: str | Path, *, onnx: bool = False) -> Path:
    """Writes the policy of a run as a bundle and returns its folder.

    The runtime needs numpy alone: there is no ONNX file.
    """
    check_no_onnx(run, onnx)
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
    return export_policy(
        folder, world.robot, world.task, params, normaliser=agents.normaliser, **options
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
) -> Path:
    """Writes the bundle of a policy, whole or not at all, and returns its folder.

    params: flax parameters with an `ActorCritic` for a vector of actions somewhere inside, or
    layers from first to last; `activation` is that network's, and `squash` puts a tanh at its end.
    normaliser: of the observations it was trained with, either of what the policy sees or of the
    whole `Observation`. A bundle that is there already is replaced; anything else is left alone.
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
    }
    manifest = _manifest(robot, task) | {"network": network}
    return write_folder(folder, with_manifest(manifest, files))


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


def _manifest(robot: Robot, task: Task) -> dict[str, Any]:
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
        "joints": list(robot.joints),
        "action": {
            "meaning": "target = clip(home + scale * clip(answer, -1, 1), lower, upper), rad",
            "home": robot.home_joints,
            "scale": robot.action_scale,
            "lower": robot.lower,
            "upper": robot.upper,
        },
        "gait": {
            "period": gait.PERIOD,
            "stance": gait.STANCE,
            "meaning": "seconds of a cycle, and the share of it that a foot stands; the phase goes "
            "on by seconds / period a step while the command is above 0",
        },
    }
