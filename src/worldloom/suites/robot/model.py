"""The robot: an MJCF, and a small file that says what in it is the base, the feet, the sensors.

Everything that tasks need of a model is looked up here once, as plain numbers and numpy arrays;
nothing below this file asks MuJoCo for a name.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.core.files import check_memory
from worldloom.core.names import listed, one_line, shown, suggest
from worldloom.core.yaml_nodes import parse_yaml, read_text

ASSETS = Path(__file__).parent / "assets"
CONTROL_SECONDS = 0.02  # 50 decisions a second


def mujoco() -> Any:
    """The engine's Python module, imported when it is first needed."""
    try:
        import mujoco as engine
    except ImportError as error:
        raise ValueError(
            'the robot suite needs MuJoCo, which is not installed; pip install "worldloom[robot]"'
        ) from error
    return engine


@dataclass(frozen=True, eq=False)
class Robot:
    """A model and where to find things in it. Joints are in the order of the actuators.

    Compared by identity: one robot is loaded once.
    """

    name: str
    xml: str
    mapping: str  # the text of the file that names things in it
    model: Any = field(repr=False)  # mujoco.MjModel
    joints: tuple[str, ...]
    joint_qpos: np.ndarray  # (n,) places in qpos
    joint_qvel: np.ndarray  # (n,) places in qvel
    home: np.ndarray  # (nq,) float64
    lower: np.ndarray  # (n,) limits of the targets, rad
    upper: np.ndarray  # (n,)
    action_scale: np.ndarray  # (n,) rad
    base_body: int
    foot_bodies: tuple[int, int]
    foot_geoms: tuple[int, ...]  # those that touch the floor
    gyro: slice  # places in sensordata
    orientation: slice
    touch: tuple[int, int]
    foot_position: tuple[slice, slice]
    legs: tuple[tuple[int, ...], tuple[int, ...]]  # places among the joints; () if not named

    @property
    def num_joints(self) -> int:
        return len(self.joints)

    @property
    def substeps(self) -> int:
        """Steps of the engine in one of control."""
        return max(1, round(CONTROL_SECONDS / self.model.opt.timestep))

    @property
    def home_joints(self) -> np.ndarray:
        return self.home[self.joint_qpos]

    @property
    def home_height(self) -> float:
        return float(self.home[2])

    @cached_property
    def home_foot_height(self) -> float:
        """Of the feet's position sensors, in the home pose."""
        return float(min(self._at_home.sensordata[place][2] for place in self.foot_position))

    @cached_property
    def _at_home(self) -> Any:
        """MuJoCo's data of the home pose."""
        data = mujoco().MjData(self.model)
        data.qpos[:] = self.home
        mujoco().mj_forward(self.model, data)
        return data

    @cached_property
    def sideways(self) -> np.ndarray:
        """(n,) float32: 1 for joints that a straight walk does not need.

        It needs those between base and feet that turn about the axis from side to side.
        """
        model, data = self.model, self._at_home
        legs = set()  # the bodies between the base, which is not among them, and the feet
        for body in self.foot_bodies:
            while body not in (0, self.base_body):
                legs.add(body)
                body = int(model.body_parentid[body])
        acted = model.actuator_trnid[:, 0]
        across = data.xmat[self.base_body].reshape(3, 3)[:, 1]
        pitch = np.abs(data.xaxis[acted] @ across) > math.cos(math.pi / 4)
        in_leg = np.isin(model.jnt_bodyid[acted], list(legs))
        return (~(pitch & in_leg)).astype(np.float32)

    @cached_property
    def mass(self) -> float:
        return float(self.model.body_mass.sum())


@cache
def biped() -> Robot:
    """The robot that comes with the suite."""
    return load(ASSETS / "biped.xml")


def load(mjcf: str | Path, mapping: str | Path | None = None) -> Robot:
    """A robot from an MJCF file and its mapping, which is the .yaml of that name beside it.

    A ValueError lists what is missing or does not fit, as far as it fits in a line.
    """
    mjcf = Path(mjcf)
    mapping = Path(mapping) if mapping is not None else mjcf.with_suffix(".yaml")
    model, names = _read_model(mjcf), _read_mapping(mapping)
    problems = check(model, names)
    if not problems:
        robot = _look_up(mjcf, mapping, model, names)
        problems = _check_home(robot)
        if not problems:
            return robot
    reasons = listed(problems, 220, "; ")
    raise ValueError(f"{mjcf.name} with {mapping.name} is no robot to train: {reasons}")


def _read_model(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no MJCF file {path}")
    engine = mujoco()
    read_text(path)  # a ValueError if it is none
    engine.set_mju_user_warning(_warn)
    try:
        model = engine.MjModel.from_xml_path(str(path))
    except Exception as error:  # of several kinds, all of MuJoCo's
        raise ValueError(f"MuJoCo does not read {path}: {one_line(error, 180)}") from None
    check_memory(path, model.narena + model.nbuffer)
    # A simulation that diverges stays so: the world sees it, ends the episode and counts it. MuJoCo
    # would put the robot back in its default pose instead, and write a log into the folder.
    model.opt.disableflags |= engine.mjtDisableBit.mjDSBL_AUTORESET
    return model


def _warn(message: str) -> None:
    if not message.startswith(("Nan, Inf or huge value", "XML contains a 'NaN'")):  # told below
        print(f"MuJoCo: {message}", file=sys.stderr)


def _read_mapping(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise ValueError(
            f"there is no mapping {path}: a file that names base, home, sensors and feet of the "
            f"MJCF; copy {ASSETS / 'biped.yaml'} and put your names in it"
        )
    names = parse_yaml(read_text(path), str(path)).value
    if not isinstance(names, Mapping):
        raise ValueError(f"{path} must hold names under base, home, sensors and feet")
    return names


# Checks ----------------------------------------------------------------------------------------

# No number of a model is larger; MuJoCo itself takes larger ones in a state for a divergence.
LARGEST = 1e10
_SENSORS = {"gyro": 3, "orientation": 4, "touch": 1, "position": 3}  # numbers of each


def check(model: Any, names: Mapping[str, Any]) -> list[str]:
    """Everything that keeps this model from being trained with, in words; empty if nothing does."""
    engine = mujoco()
    kinds = {
        "body": (model.body, model.nbody),
        "sensor": (model.sensor, model.nsensor),
        "keyframe": (model.key, model.nkey),
        "joint": (model.joint, model.njnt),
    }
    problems = [f"{name} is not finite, or too large" for name in _not_finite(model)]
    if problems:
        return problems

    def find(kind: str, name: Any, role: str) -> int | None:
        if not isinstance(name, str):
            problems.append(f"the mapping names no {role} (a {kind})")
            return None
        one, count = kinds[kind]
        known = {one(i).name: i for i in range(count) if one(i).name}
        if name in known:
            return known[name]
        hint = suggest(name, known) if known else f"the model has no {kind}"
        problems.append(f"there is no {kind} {shown(name)} for {role}; {hint}")
        return None

    def find_sensor(name: Any, kind: str, role: str) -> None:
        number = find("sensor", name, role)
        if number is not None and model.sensor_dim[number] != _SENSORS[kind]:
            problems.append(
                f"sensor {name!r} gives {model.sensor_dim[number]} numbers, "
                f"{role} needs {_SENSORS[kind]}"
            )

    base = find("body", names.get("base"), "base")
    root = -1 if base is None else model.body_jntadr[base]
    if base is not None and (root < 0 or model.jnt_type[root] != engine.mjtJoint.mjJNT_FREE):
        problems.append(f"body {names['base']!r} has no free joint, so it cannot fall")
    elif base is not None and model.jnt_qposadr[root] != 0:
        problems.append(
            f"the free joint of body {names['base']!r} is not the model's first joint; put that "
            "body first in the worldbody"
        )
    find("keyframe", names.get("home"), "home")
    sensors = _mapping_of(names.get("sensors"))
    for role in ("gyro", "orientation"):
        find_sensor(sensors.get(role), role, role)
    feet = names.get("feet")
    if not isinstance(feet, Sequence) or len(feet) != 2:
        problems.append("the mapping must list two feet, left and right")
    else:
        for side, foot in zip(("left", "right"), map(_mapping_of, feet), strict=True):
            body = find("body", foot.get("body"), f"the {side} foot")
            if body is not None and not _touching(model)[model.geom_bodyid == body].any():
                problems.append(
                    f"body {foot['body']!r}, the {side} foot, has no geom that can touch anything; "
                    "name the body of the sole, whose geoms have a contype or conaffinity"
                )
            for kind in ("touch", "position"):
                find_sensor(foot.get(kind), kind, f"{kind} of the {side} foot")
    moved = model.actuator_trnid[model.actuator_trntype == engine.mjtTrn.mjTRN_JOINT, 0]
    legs = names.get("legs") or []
    if not isinstance(legs, list) or not all(isinstance(leg, list) for leg in legs):
        problems.append(f"legs is {shown(legs)}; it must be two lists of joints, or be left out")
        legs = []
    scales = names.get("action") or {}
    if not isinstance(scales, Mapping) or not all(map(_is_scale, scales.values())):
        problems.append(f"action is {shown(scales)}; it must be joints with a number above 0 each")
    for leg in legs:
        for joint in leg:
            number = find("joint", joint, "a leg")
            if number is not None and number not in moved:
                problems.append(f"no actuator moves joint {joint!r} of a leg")
    if model.nu == 0:
        problems.append("the model has no actuators")
    for i in range(model.nu):
        joint, gain = model.actuator_trnid[i, 0], model.actuator_gainprm[i, 0]
        by_joint = model.actuator_trntype[i] == engine.mjtTrn.mjTRN_JOINT
        hinge = by_joint and model.jnt_type[joint] == engine.mjtJoint.mjJNT_HINGE
        servo = gain > 0 and model.actuator_biasprm[i, 1] == -gain
        named = f"actuator {model.actuator(i).name!r}"
        if not (hinge and servo and model.actuator_ctrllimited[i]):
            problems.append(f"{named} is not a position servo of one hinge with a control range")
        if model.actuator_actnum[i] > 0:
            problems.append(
                f"{named} has a state of its own, which no engine here keeps; leave out its time "
                "constant or other dynamics"
            )
    if model.nhistory > 0:
        problems.append(
            "actuators or sensors are delayed, and no engine here keeps their past; leave out the "
            "delays (`randomise` has worlds with late targets)"
        )
    steps = CONTROL_SECONDS / max(model.opt.timestep, 1e-9)
    if abs(steps - round(steps)) > 1e-6 or not 1 <= steps <= 1000:
        problems.append(
            f"a timestep of {model.opt.timestep:g} s does not divide {CONTROL_SECONDS:g} s"
        )
    return problems


def _is_scale(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST


def _not_finite(model: Any) -> list[str]:
    """Names of the model's numbers that no simulation can start with."""
    parts = {"": model, "option ": model.opt}
    numbers = {f"{at}{name}": getattr(part, name) for at, part in parts.items()
               for name in _float_fields(type(part), part)}  # fmt: skip
    return [name for name, value in numbers.items() if not (np.abs(value) <= LARGEST).all()]


_FIELDS: dict[type, list[str]] = {}


def _float_fields(kind: type, example: Any) -> list[str]:
    """The fields of a MuJoCo struct that hold floats; found out once."""
    if kind not in _FIELDS:
        names = [name for name in dir(kind) if not name.startswith("_")]
        values = {name: getattr(example, name) for name in names}
        _FIELDS[kind] = [
            name
            for name, value in values.items()
            if isinstance(value, float) or getattr(getattr(value, "dtype", None), "kind", "") == "f"
        ]
    return _FIELDS[kind]


def _check_home(robot: "Robot") -> list[str]:
    """What the home pose shows: that the engine can start from it."""
    try:
        data = robot._at_home
    except Exception as error:  # MuJoCo's, such as an arena that is too small
        return [f"MuJoCo cannot start from its home pose: {one_line(error, 120)}"]
    if not all(np.isfinite(x).all() for x in (data.qpos, data.qacc, data.sensordata)):
        return ["its home pose is none that a simulation could start from"]
    return [] if robot.home_height > 0.0 else ["the base of its home pose is not above the floor"]


def _mapping_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _touching(model: Any) -> np.ndarray:
    """(ngeom,) bool: geoms that can touch others."""
    return (model.geom_contype | model.geom_conaffinity) != 0


# Looking up ------------------------------------------------------------------------------------


def _look_up(mjcf: Path, mapping: Path, model: Any, names: Mapping[str, Any]) -> Robot:
    acted = model.actuator_trnid[:, 0]
    joints = tuple(model.joint(j).name for j in acted)
    lower, upper = model.actuator_ctrlrange.T.copy()

    def places(sensor: str) -> slice:
        start = int(model.sensor(sensor).adr[0])
        return slice(start, start + int(model.sensor(sensor).dim[0]))

    scales = _mapping_of(names.get("action"))

    def scale_of(joint: str) -> float:
        """Of its name, of what its name ends in, or the default."""
        fitting = (scale for end, scale in scales.items() if joint.endswith(end))
        return next(fitting, scales.get("default", 0.25))

    feet = names["feet"]
    bodies = tuple(int(model.body(foot["body"]).id) for foot in feet)
    soles = np.flatnonzero(np.isin(model.geom_bodyid, bodies) & _touching(model))
    legs = [tuple(joints.index(joint) for joint in leg) for leg in names.get("legs") or ()]
    return Robot(
        name=mjcf.stem,
        xml=mjcf.read_text(),
        mapping=mapping.read_text(),
        model=model,
        joints=joints,
        joint_qpos=model.jnt_qposadr[acted].copy(),
        joint_qvel=model.jnt_dofadr[acted].copy(),
        home=model.key(names["home"]).qpos.copy(),
        lower=lower,
        upper=upper,
        action_scale=np.array([scale_of(joint) for joint in joints], np.float64),
        base_body=int(model.body(names["base"]).id),
        foot_bodies=(bodies[0], bodies[1]),
        foot_geoms=tuple(int(i) for i in soles),
        gyro=places(names["sensors"]["gyro"]),
        orientation=places(names["sensors"]["orientation"]),
        touch=(places(feet[0]["touch"]).start, places(feet[1]["touch"]).start),
        foot_position=(places(feet[0]["position"]), places(feet[1]["position"])),
        legs=(legs[0], legs[1]) if len(legs) == 2 else ((), ()),
    )
