"""What a model and its mapping must have to be a robot to train; what they lack, in words."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from worldloom.core.names import shown, suggest
from worldloom.suites.robot.mjcf import is_motor, mujoco

CONTROL_HZ = 50  # decisions a second, unless the mapping has another `control_hz`
GRAVITY = 9.81  # m/s^2

# No number of a model is larger; MuJoCo itself takes larger ones in a state for a divergence.
LARGEST = 1e10
_SENSORS = {"gyro": 3, "orientation": 4, "position": 3}  # numbers of each


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
    sensors = mapping_of(names.get("sensors"))
    for role in ("gyro", "orientation"):
        find_sensor(sensors.get(role), role, role)
    feet = names.get("feet")
    if not isinstance(feet, Sequence) or len(feet) != 2:
        problems.append("the mapping must list two feet, left and right")
    else:
        for side, foot in zip(("left", "right"), map(mapping_of, feet), strict=True):
            body = find("body", foot.get("body"), f"the {side} foot")
            if body is not None and not touching(model)[model.geom_bodyid == body].any():
                problems.append(
                    f"body {foot['body']!r}, the {side} foot, has no geom that can touch anything; "
                    "name the body of the sole, whose geoms have a contype or conaffinity"
                )
            find_sensor(foot.get("position"), "position", f"position of the {side} foot")
            for name in as_list(foot.get("touch")):
                number = find("sensor", name, f"touch of the {side} foot")
                if number is not None and touch_of(model, number) is None:
                    problems.append(
                        f"sensor {name!r} is no touch sensor for the {side} foot, and no contact "
                        'sensor with data="found" or data="found force" and num="1"'
                    )
    moved = model.actuator_trnid[model.actuator_trntype == engine.mjtTrn.mjTRN_JOINT, 0]
    legs = names.get("legs") or []
    if not isinstance(legs, list) or not all(isinstance(leg, list) for leg in legs):
        problems.append(f"legs is {shown(legs)}; it must be two lists of joints, or be left out")
        legs = []
    joints = [model.joint(j).name for j in moved]
    problems += _check_endings("action", names.get("action"), joints, _is_scale, "a number above 0")
    problems += _check_endings(
        "gains",
        names.get("gains"),
        joints,
        _is_gains,
        "[stiffness, damping], above 0 and not below",
    )
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
        if hinge and is_motor(model, i):
            if by_ending(names.get("gains"), model.joint(joint).name) is None:
                problems.append(
                    f"{named} is a torque motor; give the stiffness and damping of its servo, "
                    f"Nm/rad and Nm s/rad: `gains: {{{model.joint(joint).name}: [30, 1]}}`"
                )
            if not (model.actuator_ctrllimited[i] and model.jnt_limited[joint]):
                problems.append(f"{named} needs a control range, and its joint a range")
        elif not (hinge and servo and model.actuator_ctrllimited[i]):
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
    rate = names.get("control_hz", CONTROL_HZ)
    if not _is_scale(rate) or not 5 <= rate <= 1000:
        problems.append(f"control_hz is {shown(rate)}; it must be a number from 5 to 1000")
        rate = CONTROL_HZ
    steps = 1.0 / rate / max(model.opt.timestep, 1e-9)
    if abs(steps - round(steps)) > 1e-6 or not 1 <= steps <= 1000:
        problems.append(
            f"a timestep of {model.opt.timestep:g} s does not divide {1.0 / rate:g} s, a step of "
            "control; change it, or `control_hz` of the mapping"
        )
    return problems


def by_ending(values: Any, name: str, default: Any = None) -> Any:
    """What a mapping has for a name: the longest of its keys that the name ends in, or `default`.

    A key "default" is for all that no other fits.
    """
    values = mapping_of(values)
    fitting = [end for end in values if end != "default" and name.endswith(end)]
    return values[max(fitting, key=len)] if fitting else values.get("default", default)


def _check_endings(
    part: str, values: Any, joints: Sequence[str], is_valid: Callable[[Any], bool], what: str
) -> list[str]:
    """What is wrong with a mapping from joints, or what they end in, to values."""
    if values is None:
        return []
    if not isinstance(values, Mapping) or not all(map(is_valid, values.values())):
        return [f"{part} is {shown(values)}; it must be joints with {what} each"]
    idle = [str(end) for end in values if end != "default"]
    idle = [end for end in idle if not any(joint.endswith(end) for joint in joints)]
    ends = {"_".join(joint.split("_")[i:]) for joint in joints for i in range(3)} - {""}
    return [
        f"{part} names {shown(end)}, which no joint with an actuator ends in; "
        f"{suggest(end, sorted(ends))}"
        for end in idle
    ]


def _is_gains(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and _is_scale(value[0])
        and (value[1] == 0 or _is_scale(value[1]))
    )


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) and value else [value]


class Touch(NamedTuple):
    """How a sensor tells the load of a foot: newtons * min(length of its numbers, most)."""

    place: slice  # in sensordata
    newtons: float = 1.0
    most: float = math.inf


def touch_of(model: Any, sensor: int) -> Touch | None:
    """How a sensor tells the load of a foot; None if it does not.

    A contact sensor that only counts contacts stands for half the weight if there is any.
    """
    kinds, place = mujoco().mjtSensor, int(model.sensor_adr[sensor])
    if model.sensor_type[sensor] == kinds.mjSENS_TOUCH:
        return Touch(slice(place, place + 1))
    if model.sensor_type[sensor] != kinds.mjSENS_CONTACT:
        return None
    size = int(model.sensor_dim[sensor])
    wanted, _, count = model.sensor_intprm[sensor, :3]
    found, force = (1 << int(getattr(mujoco().mjtConDataField, f"mjCONDATA_{name}"))
                    for name in ("FOUND", "FORCE"))  # fmt: skip
    if count == 1 and wanted == found and size == 1:
        return Touch(slice(place, place + 1), 0.5 * GRAVITY * float(model.body_mass.sum()), 1.0)
    if count == 1 and wanted == found | force and size == 4:
        return Touch(slice(place + 1, place + 4))
    return None


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


def mapping_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def touching(model: Any) -> np.ndarray:
    """(ngeom,) bool: geoms that can touch others, by their bits or in a pair."""
    paired = np.isin(np.arange(model.ngeom), [*model.pair_geom1, *model.pair_geom2])
    return ((model.geom_contype | model.geom_conaffinity) != 0) | paired
