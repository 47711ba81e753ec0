"""The control loop of an exported robot policy: copy this file and edit it for your robot.

    python control_loop.py BUNDLE --sim --seconds 20 --command 0.25

runs the policy of a bundle in MuJoCo's C engine, in real time. For a robot of your own fill in
`Hardware`; everything below it stays as it is. What the loop does, in this order:

1. matches the robot's joints with the policy's by name, and hands over gains and torque limits;
2. refuses to start tilted, with joints out of range, or with a quaternion in another order;
3. ramps all joints from where they are to the home pose, and checks that they got there;
4. at the rate of the policy: reads, asks the policy, limits how fast targets move, writes;
5. stops the servos when the robot is tilted too far, a reading is no number, Ctrl-C is pressed, or
   the loop hangs, which a watchdog in a thread of its own sees.

It needs numpy and policy_runtime.py, which is beside it in the bundle; MuJoCo for --sim, and
onnxruntime for --onnx.
"""

import argparse
import json
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

if __package__:
    from worldloom.serving import policy_runtime as runtime
else:  # in a bundle
    import policy_runtime as runtime

RAMP_SECONDS = 1.5  # from the first pose to home
NEAR_HOME = 0.35  # rad: how far a joint may be from home after the ramp
OUT_OF_RANGE = 0.3  # rad: how far a joint may be beyond its range at the start
START_TILT = 0.4  # rad: more than that is no stand to start from
BEND = 0.02  # rad: how far off home a simulated robot starts
PATIENCE = 10  # steps of control without a sign of life, until the watchdog stops the servos
SETTLING_SECONDS = 2.0  # under the policy, before speeds count


class Readings(NamedTuple):
    """What the sensors say at one moment; joints in the order of the robot's `joints`."""

    gyro: Any  # (3,) rad/s, in the frame of the base: x forward, y left, z up
    orientation_wxyz: Any  # (4,) unit quaternion of the base in the world, w first
    positions: Any  # (n,) rad
    velocities: Any  # (n,) rad/s


class Hardware:
    """Your robot: fill in these methods. Arrays are in the order of `joints`."""

    joints: tuple[str, ...] = ()  # the names that the bundle's manifest has for them

    def configure(
        self, stiffness: np.ndarray, damping: np.ndarray, torque: list[float | None]
    ) -> None:
        """Sets the servos' gains (n,), Nm/rad and Nm s/rad, and the most they may give, Nm."""
        raise NotImplementedError

    def read(self) -> Readings:
        """The newest readings. Raise if there are none: old readings are worse than a stop."""
        raise NotImplementedError

    def write(self, targets: np.ndarray) -> None:
        """Sends targets (n,), rad, to the servos; returns at once."""
        raise NotImplementedError

    def stop(self) -> None:
        """Takes the torque off the servos, or damps them: from any thread, maybe more than once.

        What is written afterwards should have no effect: the loop may be in the middle of a write.
        """
        raise NotImplementedError

    def pose(self) -> tuple[float, float, float, float] | None:
        """Forward and left, m, yaw, rad, and height of the base, m, where anything knows them."""
        return None


class Simulation:
    """The bundle's robot in MuJoCo's C engine, with the methods of `Hardware`.

    latency: steps of control until a target reaches the servos. seed: of the pose it starts in,
    which is a little off home.
    """

    def __init__(self, manifest: dict[str, Any], xml: bytes, latency: int = 0, seed: int = 0):
        try:
            import mujoco as installed
        except ImportError as error:
            missing = "--sim needs MuJoCo, which is not installed; pip install mujoco"
            raise ValueError(missing) from error
        mujoco: Any = installed
        self._engine, about = mujoco, manifest["model"]
        try:
            self.model = mujoco.MjModel.from_xml_string(xml.decode())
        except ValueError as error:
            reason = " ".join(str(error).split())[:120]
            raise ValueError(
                f"MuJoCo does not read the bundle's robot.xml ({reason}); files that it names, "
                "such as meshes, are not in a bundle"
            ) from None
        model = self.model
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET  # as in training
        self.data = data = mujoco.MjData(model)
        acted = model.actuator_trnid[:, 0]
        self.joints = tuple(model.joint(j).name for j in acted)
        self._qpos, self._qvel = model.jnt_qposadr[acted], model.jnt_dofadr[acted]
        self._gyro, self._orientation = (
            slice(*np.cumsum([model.sensor(about[name]).adr[0], model.sensor(about[name]).dim[0]]))
            for name in ("gyro", "orientation")
        )
        self._substeps = max(1, round(manifest["control"]["seconds"] / model.opt.timestep))
        self._waiting: deque[np.ndarray] = deque()
        self._latency, self._limp = latency, False
        random = np.random.default_rng(seed)
        data.qpos[:] = about["home"]
        data.qpos[self._qpos] += random.uniform(-BEND, BEND, len(acted))
        data.qpos[2] -= 0.05  # into the floor, to see how deep it then is
        mujoco.mj_forward(model, data)
        data.qpos[2] -= min(data.contact.dist, default=0.0)
        mujoco.mj_forward(model, data)

    def configure(
        self, stiffness: np.ndarray, damping: np.ndarray, torque: list[float | None]
    ) -> None:
        model, engine = self.model, self._engine
        model.actuator_gainprm[:, 0] = stiffness
        for i, most in enumerate(torque):
            model.actuator_biasprm[i, :3] = 0.0, -stiffness[i], -damping[i]
            if model.actuator_biastype[i] != engine.mjtBias.mjBIAS_NONE:
                continue
            # A torque motor: the servo that was trained with is simulated, too.
            model.actuator_biastype[i] = engine.mjtBias.mjBIAS_AFFINE
            model.actuator_gear[i, 0], model.actuator_ctrllimited[i] = 1.0, False
            if most is not None:
                model.actuator_forcelimited[i] = True
                model.actuator_forcerange[i] = -most, most

    def read(self) -> Readings:
        data = self.data
        gyro, orientation = data.sensordata[self._gyro], data.sensordata[self._orientation]
        joints = data.qpos[self._qpos], data.qvel[self._qvel]
        return Readings(gyro.copy(), orientation.copy(), *joints)

    def write(self, targets: np.ndarray) -> None:
        self._waiting.append(np.array(targets))
        if len(self._waiting) > self._latency:
            self.data.ctrl[:] = self._waiting.popleft()
        elif len(self._waiting) == 1:  # nothing has reached the servos yet: they hold
            self.data.ctrl[:] = self.data.qpos[self._qpos]
        if self._limp:
            self.model.actuator_gainprm[:, 0] = self.model.actuator_biasprm[:, 1] = 0.0
        for _ in range(self._substeps):
            self._engine.mj_step(self.model, self.data)

    def stop(self) -> None:
        self._limp = True

    def pose(self) -> tuple[float, float, float, float]:
        x, y, height, qw, qx, qy, qz = self.data.qpos[:7]
        yaw = math.atan2(2.0 * (qw * qz + qx * qy), 1.0 - 2.0 * (qy * qy + qz * qz))
        return float(x), float(y), yaw, float(height)


# The loop ----------------------------------------------------------------------------------------


@dataclass
class Summary:
    """How it went. Speeds count from two seconds on, and where the robot's pose is known."""

    command: list[float]  # after clamping: forward, and where it is steered to the left and yaw
    seconds: float = 0.0  # under the policy
    stopped: str | None = None  # why it ended before its time
    falls: int = 0
    distance: float | None = None  # m, from where the policy began
    tracking_error: float | None = None  # m/s off the command
    yaw_error: float | None = None  # rad/s off the command
    missed_deadlines: int = 0
    slowest_ms: float = 0.0  # step of the loop, waiting apart
    limited: float = 0.0  # share of the policy's steps whose targets were held back

    def lines(self) -> dict[str, str]:
        """For people."""
        lines = {
            "ran": f"{self.seconds:.1f} s" + (f", then {self.stopped}" if self.stopped else ""),
            "falls": str(self.falls),
        }
        if self.distance is not None:
            lines["distance"] = f"{self.distance:.2f} m"
        if self.tracking_error is not None:
            lines["off the command"] = (
                f"{self.tracking_error:.3f} m/s and {self.yaw_error:.3f} rad/s on average"
            )
        return lines | {
            "missed deadlines": f"{self.missed_deadlines}, slowest step {self.slowest_ms:.1f} ms",
            "targets held back": f"in {self.limited:.1%} of the steps",
        }


def run(
    robot: Any,
    policy: runtime.Policy,
    command: Sequence[float] | float = 0.0,
    seconds: float = 20.0,
    *,
    realtime: bool = True,
    watch: Callable[[Readings, np.ndarray, np.ndarray], None] | None = None,
) -> Summary:
    """Runs a policy on a robot for some seconds, or until something is wrong; then stops it.

    realtime: keeps to the rate of the policy, with a watchdog; else as fast as it goes, which only
    a simulation can take. watch(readings, command, targets) is called after each of the policy's
    steps, joints in the policy's order.
    """
    about, period = policy.manifest, policy.seconds
    to_policy, to_robot = match_joints(policy.joints, tuple(robot.joints))
    asked = clamp_command(command, about["trained"]["command"])
    home, lower, upper, rate = (
        np.asarray(about["action"][name]) for name in ("home", "lower", "upper", "rate")
    )
    servos, fall = about["servos"], about["fall"]

    def read() -> Readings:
        raw = robot.read()
        joints = (np.asarray(x, np.float64)[to_policy] for x in (raw.positions, raw.velocities))
        return Readings(np.asarray(raw.gyro), np.asarray(raw.orientation_wxyz), *joints)

    first = read()
    check_start(first, policy.joints, lower, upper, upright=fall is not None)
    stiffness, damping = (np.asarray(servos[name])[to_robot] for name in ("stiffness", "damping"))
    robot.configure(stiffness, damping, [servos["torque"][i] for i in to_robot])
    start, targets = first.positions, np.clip(first.positions, lower, upper)
    summary, track = Summary(asked.tolist()), Track(period, asked)
    ramp, steps, held_back = round(RAMP_SECONDS / period), max(1, round(seconds / period)), 0
    pacer = Pacer(period if realtime else 0.0)
    policy.reset()
    with Watchdog(robot.stop, PATIENCE * period if realtime else None) as watchdog:
        try:
            for step in range(-ramp, steps):
                now, pose = read(), robot.pose()
                summary.stopped = _wrong(now, pose, fall)
                if step == 0 and not summary.stopped:
                    summary.stopped = _far_from_home(policy.joints, now.positions - home)
                if summary.stopped:
                    break
                if step < 0:
                    share = 0.5 - 0.5 * math.cos(math.pi * (step + ramp + 1) / ramp)
                    wanted = start + share * (home - start)
                else:
                    wanted = policy.step(*now, command=asked)
                limited = np.clip(wanted, targets - rate * period, targets + rate * period)
                held_back += step >= 0 and bool((np.abs(limited - wanted) > 1e-6).any())
                targets = np.clip(limited, lower, upper)
                watchdog.feed()
                if watchdog.tripped:
                    summary.stopped = f"the watchdog stopped it: {PATIENCE} steps without a sign"
                    break
                robot.write(targets[to_robot])
                if step >= 0:
                    track.add(robot.pose())
                    summary.seconds = (step + 1) * period
                    if watch is not None:
                        watch(now, asked, targets)
                pacer.wait()
        except KeyboardInterrupt:
            summary.stopped = "it was interrupted"
        except ValueError as error:  # readings that are none
            summary.stopped = f"{error}"
        finally:
            robot.stop()
    summary.falls = int((summary.stopped or "").startswith("it fell"))
    summary.distance, summary.tracking_error, summary.yaw_error = track.results()
    summary.missed_deadlines, summary.slowest_ms = pacer.missed, 1e3 * pacer.slowest
    summary.limited = held_back / max(1.0, summary.seconds / period)
    return summary


def match_joints(ours: Sequence[str], theirs: Sequence[str]) -> tuple[list[int], list[int]]:
    """Places of the policy's joints among the robot's, and of the robot's among the policy's."""
    gone, strange = ([x for x in a if x not in b] for a, b in ((ours, theirs), (theirs, ours)))
    if gone or strange or len(theirs) != len(ours):
        reasons = [
            f"{word} {', '.join(names[:3])}{' and more' * (len(names) > 3)}"
            for word, names in (("it lacks", gone), ("the policy does not know", strange))
            if names
        ]
        raise ValueError(
            f"the robot's joints are not the policy's: {'; '.join(reasons) or 'some are twice'}; "
            "give `joints` the names of the manifest"
        )
    return [list(theirs).index(name) for name in ours], [list(ours).index(name) for name in theirs]


def clamp_command(
    command: Sequence[float] | float, trained: Sequence[Sequence[float]]
) -> np.ndarray:
    """The nearest command that the policy was trained for; 0 in all, to stand, is one always."""
    given = np.atleast_1d(np.asarray(command, np.float64))
    if given.ndim != 1 or len(given) > len(trained) or not np.isfinite(given).all():
        names = "a forward speed" + ", a speed to the left and a yaw rate" * (len(trained) > 1)
        raise ValueError(f"command={given.tolist()}; this policy takes {names}, finite numbers")
    given = np.concatenate([given, np.zeros(len(trained) - len(given))])
    if not given.any():
        return given
    low, high = np.asarray(trained, np.float64).T
    return np.clip(given, low, high)


def check_start(
    now: Readings,
    joints: Sequence[str],
    lower: np.ndarray,
    upper: np.ndarray,
    upright: bool = True,
) -> None:
    """A ValueError unless these can be the readings of a robot that stands.

    upright: not if its task begins on the ground.
    """
    quaternion = np.asarray(now.orientation_wxyz, np.float64)
    if not (quaternion.shape == (4,) and abs(np.linalg.norm(quaternion) - 1.0) < 0.05):
        raise ValueError(f"orientation_wxyz={quaternion.tolist()} is no unit quaternion w x y z")
    if upright and abs(quaternion[0]) < 0.1 and abs(quaternion[3]) < 0.995:
        raise ValueError(
            f"orientation_wxyz={quaternion.round(3).tolist()} is far from upright: is it in the "
            "order x y z w?"
        )
    # x y z w of a robot that faces forward looks like one that faces backwards, too.
    if upright and abs(quaternion[0]) < 0.1:
        raise ValueError(
            f"orientation_wxyz={quaternion.round(3).tolist()} says that the robot faces backwards: "
            "is it in the order x y z w? If not, set the heading of the IMU to 0"
        )
    lean = tilt(quaternion)
    if upright and lean > START_TILT:
        raise ValueError(f"the robot is tilted by {lean:.2f} rad; put it on its feet to start")
    outside = np.maximum(lower - now.positions, now.positions - upper)
    worst = int(np.nan_to_num(outside, nan=np.inf).argmax())
    if not outside[worst] <= OUT_OF_RANGE:
        raise ValueError(
            f"{joints[worst]} reads {now.positions[worst]:.3g} rad, its range is "
            f"{lower[worst]:.3g} to {upper[worst]:.3g}; look at units, zero and order of the joints"
        )


def tilt(quaternion: np.ndarray) -> float:
    """The angle between the base's z axis and the vertical, rad."""
    _, x, y, _ = quaternion / np.linalg.norm(quaternion)
    return math.acos(max(-1.0, min(1.0, 1.0 - 2.0 * float(x * x + y * y))))


def _wrong(now: Readings, pose: Sequence[float] | None, fall: dict[str, Any] | None) -> str | None:
    """What is wrong with a robot that should be upright; no `fall` ends a task that begins so."""
    quaternion = np.asarray(now.orientation_wxyz, np.float64)
    if not (np.isfinite(quaternion).all() and quaternion.any()):
        return f"orientation_wxyz is no rotation: {quaternion.tolist()}"
    if fall is None:
        return None
    lean = tilt(quaternion)
    if lean > fall["tilt"]:
        return f"it fell: tilted by {lean:.2f} rad"
    if pose is not None and not fall["height"][0] <= pose[3] <= fall["height"][1]:
        return f"it fell: its base is at {pose[3]:.2f} m"
    return None


def _far_from_home(joints: Sequence[str], gap: np.ndarray) -> str | None:
    """The joint that the ramp did not bring home."""
    worst = int(np.abs(gap).argmax())
    if abs(gap[worst]) <= NEAR_HOME:
        return None
    return (
        f"{joints[worst]} is {gap[worst]:+.2f} rad from home after the ramp: look at the sign, "
        "order and power of the joints"
    )


class Track:
    """What is walked: from poses to the distance, and to how far mean speeds are off the command.

    Forward speed alone is judged by where the robot comes to, so that circles do not pass; where it
    is steered, by the mean speeds in the frame of its heading.
    """

    def __init__(self, period: float, command: np.ndarray):
        self._period, self._settling = period, SETTLING_SECONDS
        self._command, self._steered = np.pad(command, (0, 3 - len(command))), len(command) > 1
        self._poses: list[Sequence[float]] = []

    def add(self, pose: Sequence[float] | None) -> None:
        if pose is not None:
            self._poses.append(pose[:3])

    def results(self) -> tuple[float | None, float | None, float | None]:
        """Distance, m, and the gaps between mean speeds and the command, m/s and rad/s."""
        if not self._poses:
            return None, None, None
        poses = np.array(self._poses)
        distance = float(np.linalg.norm(poses[-1, :2] - poses[0, :2]))
        poses = poses[round(self._settling / self._period) :]
        if len(poses) < 2:
            return distance, None, None
        seconds = (len(poses) - 1) * self._period
        moved, headings = np.diff(poses[:, :2], axis=0), poses[:-1, 2]
        headings = headings if self._steered else np.full_like(headings, headings[0])
        cos, sin = np.cos(headings), np.sin(headings)
        ahead, aside = cos * moved[:, 0] + sin * moved[:, 1], cos * moved[:, 1] - sin * moved[:, 0]
        turned = np.unwrap(poses[:, 2])
        speed = np.array([ahead.sum(), aside.sum(), turned[-1] - turned[0]]) / seconds
        gap = np.abs(speed - self._command)
        planar = np.hypot(gap[0], gap[1]) if self._steered else gap[0]
        return distance, float(planar), float(gap[2])


class Pacer:
    """Keeps to a period, s, and counts the steps that were late; a period of 0 never waits."""

    def __init__(
        self,
        period: float,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._period, self._clock, self._sleep = period, clock, sleep
        self.missed, self.slowest = 0, 0.0
        self._began = clock()

    def wait(self) -> None:
        """Until the next step is due. What is lost by a late step is not made up for."""
        now = self._clock()
        due = self._began + self._period
        self.slowest = max(self.slowest, now - self._began)
        if self._period and now > due:
            self.missed += 1
        elif self._period:
            self._sleep(due - now)
        self._began = max(now, due) if self._period else now


class Watchdog:
    """Calls `stop` from a thread of its own if it is not fed for `patience` seconds."""

    def __init__(self, stop: Callable[[], None], patience: float | None):
        self.tripped = False
        self._stop, self._patience, self._over = stop, patience, False
        self._fed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self.feed()
        self._thread.join()

    def feed(self) -> None:
        """A sign of life."""
        self._fed.set()

    def _watch(self) -> None:
        while self._fed.wait(self._patience):
            self._fed.clear()
            if self._over:
                return
        self.tripped = True
        self._stop()


# Bundles -----------------------------------------------------------------------------------------


def load(folder: str | Path, *, onnx: bool = False) -> tuple[runtime.Policy, dict[str, bytes]]:
    """The policy of a bundle, and its files; onnx: its network is run by onnxruntime."""
    policy = runtime.Policy.load(folder)
    _, files = runtime.read_bundle(folder, runtime.KIND, runtime.VERSION)
    if onnx and "policy.onnx" not in files:
        raise ValueError(f"{folder} has no policy.onnx; export it with worldloom[onnx] installed")
    if onnx:
        try:
            import onnxruntime
        except ImportError as error:
            raise ValueError("--onnx needs onnxruntime; pip install onnxruntime") from error
        providers = ["CPUExecutionProvider"]
        session: Any = onnxruntime.InferenceSession(files["policy.onnx"], providers=providers)
        policy.forward = lambda obs: session.run(["action"], {"obs": obs[None]})[0][0]
    return policy, files


def simulate(
    folder: str | Path,
    *,
    command: Sequence[float] | float = 0.0,
    seconds: float = 20.0,
    latency: int = 0,
    onnx: bool = False,
    realtime: bool = True,
    seed: int = 0,
) -> Summary:
    """Runs the policy of a bundle on C MuJoCo."""
    if not 0.0 < seconds <= 86400.0:
        raise ValueError(f"seconds={seconds}; it must be above 0, and a day at most")
    if not 0 <= latency <= 100:
        raise ValueError(f"latency={latency}; it must be from 0 to 100 steps of control")
    policy, files = load(folder, onnx=onnx)
    robot = Simulation(policy.manifest, files["robot.xml"], latency, seed)
    return run(robot, policy, command, seconds, realtime=realtime)


def main() -> int:
    """0 if it ran to its end, 1 if it was stopped, 2 if it could not start."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("bundle", nargs="?", default=Path(__file__).parent, type=Path)
    parser.add_argument("--sim", action="store_true", help="in MuJoCo, not on `Hardware`")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--command", type=float, nargs="+", default=[0.0])
    parser.add_argument("--latency", type=int, default=0, help="steps of control, with --sim")
    parser.add_argument("--onnx", action="store_true", help="run policy.onnx by onnxruntime")
    parser.add_argument("--fast", action="store_true", help="with --sim: not in real time")
    args = parser.parse_args()
    options = {"command": args.command, "seconds": args.seconds}
    try:
        if args.sim:
            options |= {"latency": args.latency, "onnx": args.onnx, "realtime": not args.fast}
            summary = simulate(args.bundle, **options)
        else:
            summary = run(Hardware(), load(args.bundle, onnx=args.onnx)[0], **options)
    except (ValueError, OSError) as error:
        print(f"control_loop.py: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(summary), indent=2))
    return 1 if summary.stopped else 0


if __name__ == "__main__":
    sys.exit(main())
