"""The robot: an MJCF, and a small file that says what in it is the base, the feet, the sensors.

Everything that tasks need of a model is looked up here once, as plain numbers and numpy arrays;
nothing below this file asks MuJoCo for a name.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.core.names import listed, one_line
from worldloom.core.yaml_nodes import parse_yaml, read_text
from worldloom.suites.robot.ground import Ground, make_ground
from worldloom.suites.robot.mjcf import is_motor, make_servos, mujoco, read_model, whole_text
from worldloom.suites.robot.model_checks import (
    CONTROL_HZ,
    Touch,
    as_list,
    by_ending,
    check,
    touch_of,
    touching,
)

ASSETS = Path(__file__).parent / "assets"
# Of the biped: what is a number in metres, seconds or newtons in the tasks is that of its size.
BIPED_HEIGHT, BIPED_MASS = 0.4626, 3.977  # of the base at home, m; kg


@dataclass(frozen=True, eq=False)
class Robot:
    """A model and where to find things in it. Joints are in the order of the actuators.

    Compared by identity: one robot is loaded once.
    """

    name: str
    xml: str  # with what it includes
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
    contacts: tuple[tuple[Touch, ...], ...]  # of each foot: what tells its load
    foot_position: tuple[slice, slice]
    legs: tuple[tuple[int, ...], tuple[int, ...]]  # places among the joints; () if not named
    control_seconds: float  # between two decisions
    files: tuple[Path, Path]  # that it was read from: MJCF and mapping
    ground: Ground | None = None  # None where the floor is flat
    flat: "Robot | None" = None  # the same on a flat floor, of a robot on uneven ground

    @property
    def num_joints(self) -> int:
        return len(self.joints)

    @property
    def substeps(self) -> int:
        """Steps of the engine in one of control."""
        return max(1, round(self.control_seconds / self.model.opt.timestep))

    @property
    def control_hz(self) -> int:
        return round(1.0 / self.control_seconds)

    # Lengths, times, speeds and forces of a robot of another size follow from those of the biped:
    # equal Froude numbers, equal shares of the weight.

    @cached_property
    def length_scale(self) -> float:
        """Its height over the biped's; 1 for that."""
        return round(self.home_height / BIPED_HEIGHT, 9)

    @cached_property
    def time_scale(self) -> float:
        """Its times over the biped's; of speeds, too."""
        return math.sqrt(self.length_scale)

    @cached_property
    def weight_scale(self) -> float:
        """Its weight over the biped's; of forces."""
        return round(self.mass / BIPED_MASS, 9)

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
    def home_axes(self) -> np.ndarray:
        """(n, 3): the axes of the joints in the home pose, in the frame of the base."""
        base = self._at_home.xmat[self.base_body].reshape(3, 3)
        return self._at_home.xaxis[self.model.actuator_trnid[:, 0]] @ base

    @cached_property
    def sideways(self) -> np.ndarray:
        """(n,) float32: 1 for joints that a straight walk does not need.

        It needs those between base and feet that turn about the axis from side to side.
        """
        pitch = np.abs(self.home_axes[:, 1]) > math.cos(math.pi / 4)
        acted = self.model.actuator_trnid[:, 0]
        in_leg = np.isin(self.model.jnt_bodyid[acted], list(self.leg_bodies))
        return (~(pitch & in_leg)).astype(np.float32)

    @cached_property
    def leg_bodies(self) -> frozenset[int]:
        """Those from the base, which is not among them, to the feet."""
        legs = set()
        for body in self.foot_bodies:
            while body not in (0, self.base_body):
                legs.add(body)
                body = int(self.model.body_parentid[body])
        return frozenset(legs)

    @cached_property
    def trunk(self) -> np.ndarray:
        """(nbody,) bool: bodies that the legs carry: the base, and what hangs on it besides."""
        bodies = np.arange(self.model.nbody)
        return (bodies > 0) & ~np.isin(bodies, list(self.leg_bodies))

    @cached_property
    def home_foot_distance(self) -> float:
        """From side to side between the feet's position sensors, in the home pose, m."""
        left, right = (self._at_home.sensordata[place] for place in self.foot_position)
        across = self._at_home.xmat[self.base_body].reshape(3, 3)[:, 1]
        return abs(float((left - right) @ across))

    @cached_property
    def mass(self) -> float:
        return float(self.model.body_mass.sum())

    @cached_property
    def lying(self) -> "Robot":
        """The same robot as it can lie and get up: all of it touches the ground, as its soles do,
        and actions reach the whole range of every joint.

        A robot of which more than its feet touches stays as it is; meshes never touch.
        """
        model, engine = copy.copy(self.model), mujoco()
        moving = (model.geom_bodyid > 0) & ~np.isin(model.geom_bodyid, self.foot_bodies)
        if not (moving & touching(model)).any():
            bare = moving & (model.geom_type != engine.mjtGeom.mjGEOM_MESH)
            ground = np.flatnonzero(model.geom_bodyid == 0)
            kinds = int(np.bitwise_or.reduce(model.geom_contype[ground], initial=0))
            model.geom_conaffinity[bare] = kinds
            model.geom_friction[bare] = model.geom_friction[self.foot_geoms[0]]
            model.body_conaffinity[np.unique(model.geom_bodyid[bare])] |= kinds
        home = self.home_joints
        return replace(
            self, model=model, action_scale=np.maximum(self.upper - home, home - self.lower)
        )

    def on_ground(self, kind: str, seed: int = 0) -> "Robot":
        """The same robot on uneven ground of a kind, as its files have it."""
        ground = make_ground(kind, seed, self.length_scale)
        return replace(load(*self.files, ground), ground=ground, flat=self)


@cache
def biped() -> Robot:
    """The robot that comes with the suite."""
    return load(ASSETS / "biped.xml")


def load(
    mjcf: str | Path, mapping: str | Path | None = None, ground: Ground | None = None
) -> Robot:
    """A robot from an MJCF file and its mapping, which is the .yaml of that name beside it.

    A ValueError lists what is missing or does not fit, as far as it fits in a line.
    """
    mjcf = Path(mjcf)
    mapping = Path(mapping) if mapping is not None else mjcf.with_suffix(".yaml")
    model, names = read_model(mjcf, ground), _read_mapping(mapping)
    problems = check(model, names)
    if not problems:
        robot = _look_up(mjcf, mapping, model, names)
        # MuJoCo's C engine would not look at centres of mass that are at their body's origin, and
        # worlds may have them elsewhere.
        model.body_sameframe[robot.trunk] = mujoco().mjtSameFrame.mjSAMEFRAME_NONE
        problems = _check_home(robot)
        if not problems:
            return robot
    reasons = listed(problems, 220, "; ")
    raise ValueError(f"{mjcf.name} with {mapping.name} is no robot to train: {reasons}")


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


def _check_home(robot: "Robot") -> list[str]:
    """What the home pose shows: that the engine can start from it."""
    try:
        data = robot._at_home
    except Exception as error:  # MuJoCo's, such as an arena that is too small
        return [f"MuJoCo cannot start from its home pose: {one_line(error, 120)}"]
    if not all(np.isfinite(x).all() for x in (data.qpos, data.qacc, data.sensordata)):
        return ["its home pose is none that a simulation could start from"]
    return [] if robot.home_height > 0.0 else ["the base of its home pose is not above the floor"]


# Looking up ------------------------------------------------------------------------------------


def _look_up(mjcf: Path, mapping: Path, model: Any, names: Mapping[str, Any]) -> Robot:
    acted = model.actuator_trnid[:, 0]
    joints = tuple(model.joint(j).name for j in acted)
    motors = [i for i in range(model.nu) if is_motor(model, i)]
    make_servos(model, {i: by_ending(names.get("gains"), joints[i]) for i in motors})
    lower, upper = model.actuator_ctrlrange.T.copy()

    def places(sensor: str) -> slice:
        start = int(model.sensor(sensor).adr[0])
        return slice(start, start + int(model.sensor(sensor).dim[0]))

    def touch(foot: Mapping[str, Any]) -> tuple[Touch, ...]:
        sensors = (int(model.sensor(name).id) for name in as_list(foot["touch"]))
        return tuple(found for found in (touch_of(model, i) for i in sensors) if found)

    scales = [by_ending(names.get("action"), joint, 0.25) for joint in joints]
    feet = names["feet"]
    bodies = tuple(int(model.body(foot["body"]).id) for foot in feet)
    soles = np.flatnonzero(np.isin(model.geom_bodyid, bodies) & touching(model))
    legs = [tuple(joints.index(joint) for joint in leg) for leg in names.get("legs") or ()]
    return Robot(
        name=mjcf.stem,
        xml=whole_text(mjcf),
        mapping=mapping.read_text(),
        model=model,
        joints=joints,
        joint_qpos=model.jnt_qposadr[acted].copy(),
        joint_qvel=model.jnt_dofadr[acted].copy(),
        home=model.key(names["home"]).qpos.copy(),
        lower=lower,
        upper=upper,
        action_scale=np.array(scales, np.float64),
        base_body=int(model.body(names["base"]).id),
        foot_bodies=(bodies[0], bodies[1]),
        foot_geoms=tuple(int(i) for i in soles),
        gyro=places(names["sensors"]["gyro"]),
        orientation=places(names["sensors"]["orientation"]),
        contacts=tuple(touch(foot) for foot in feet),
        foot_position=(places(feet[0]["position"]), places(feet[1]["position"])),
        legs=(legs[0], legs[1]) if len(legs) == 2 else ((), ()),
        control_seconds=1.0 / names.get("control_hz", CONTROL_HZ),
        files=(mjcf, mapping),
    )
