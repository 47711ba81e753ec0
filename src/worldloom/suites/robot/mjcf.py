"""MJCF files as MuJoCo compiles them: includes written out, torque motors made servos."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from worldloom.core.files import check_memory
from worldloom.core.names import one_line
from worldloom.core.yaml_nodes import read_text

if TYPE_CHECKING:
    from worldloom.suites.robot.ground import Ground

BELOW = 0.3  # m of solid ground under the lowest point of a field of heights


def mujoco() -> Any:
    """The engine's Python module, imported when it is first needed."""
    try:
        import mujoco as engine
    except ImportError as error:
        raise ValueError(
            'the robot suite needs MuJoCo, which is not installed; pip install "worldloom[robot]"'
        ) from error
    return engine


def read_model(path: Path, ground: "Ground | None" = None) -> Any:
    """The compiled model of an MJCF, its floor flat or a field of heights; a ValueError says why
    where MuJoCo does not compile it."""
    if not path.is_file():
        raise ValueError(f"there is no MJCF file {path}")
    engine = mujoco()
    read_text(path)  # a ValueError if it is none
    engine.set_mju_user_warning(_warn)
    try:
        if ground is None:
            model = engine.MjModel.from_xml_path(str(path))
        else:
            spec = engine.MjSpec.from_file(str(path))
            floors = _floors(spec)
            model = _uneven(spec, floors[0], ground) if len(floors) == 1 else None
    except Exception as error:  # of several kinds, all of MuJoCo's
        raise ValueError(f"MuJoCo does not read {path}: {one_line(error, 180)}") from None
    if model is None:
        raise ValueError(
            f"{path.name} has {len(floors)} level planes at z = 0 in its worldbody; uneven ground "
            "takes the place of one, the floor"
        )
    check_memory(path, model.narena + model.nbuffer)
    # A simulation that diverges stays so: the world sees it, ends the episode and counts it. MuJoCo
    # would put the robot back in its default pose instead, and write a log into the folder.
    model.opt.disableflags |= engine.mjtDisableBit.mjDSBL_AUTORESET
    return model


def _floors(spec: Any) -> list[Any]:
    """The geoms that may be the floor: level planes of the world at z = 0."""
    plane = mujoco().mjtGeom.mjGEOM_PLANE
    level = [1.0, 0.0, 0.0, 0.0]
    return [
        geom
        for geom in spec.worldbody.geoms
        if geom.type == plane and geom.pos[2] == 0.0 and np.allclose(np.abs(geom.quat), level)
    ]


def _uneven(spec: Any, floor: Any, ground: "Ground") -> Any:
    """The compiled model with a field of heights in the place of its floor."""
    rows, columns = ground.heights.shape
    low, high = float(ground.heights.min()), float(ground.heights.max())
    reach = max(high - low, 1e-3 * ground.scale)
    heights = ((ground.heights - low) / reach).ravel()
    half = np.array(ground.size) / 2.0
    size = [*half, reach, BELOW * ground.scale]
    spec.add_hfield(name="ground", nrow=rows, ncol=columns, size=size, userdata=heights)
    floor.type, floor.hfieldname = mujoco().mjtGeom.mjGEOM_HFIELD, "ground"
    floor.pos = [*(half + ground.corner), low]
    model = spec.compile()
    model.hfield_data[:] = heights  # as they are, whatever a compiler makes of them
    return model


def _warn(message: str) -> None:
    if not message.startswith(("Nan, Inf or huge value", "XML contains a 'NaN'")):  # told below
        print(f"MuJoCo: {message}", file=sys.stderr)


def whole_text(path: Path) -> str:
    """The MJCF in one text: where it includes others, their content stands in their place."""
    text = read_text(path)
    if "<include" not in text:
        return text
    root = ElementTree.fromstring(text)
    _write_out(root, path.parent, path.parent)
    return ElementTree.tostring(root, encoding="unicode")


def _write_out(parent: ElementTree.Element, main: Path, own: Path) -> None:
    """Replaces the includes below an element, as MuJoCo does.

    Paths are those of the main file's folder; some versions look in that of the including file.
    """
    for child in list(parent):
        if child.tag != "include":
            _write_out(child, main, own)
            continue
        name = child.get("file", "")
        path = next((p for p in (main / name, own / name) if p.is_file()), main / name)
        included = ElementTree.fromstring(read_text(path))
        _write_out(included, main, path.parent)
        place = list(parent).index(child)
        parent.remove(child)
        for i, element in enumerate(included):
            parent.insert(place + i, element)


# Torque motors -----------------------------------------------------------------------------------


def is_motor(model: Any, actuator: int) -> bool:
    """Whether an actuator gives the torque that it is told."""
    engine = mujoco()
    return (
        model.actuator_gaintype[actuator] == engine.mjtGain.mjGAIN_FIXED
        and model.actuator_biastype[actuator] == engine.mjtBias.mjBIAS_NONE
    )


def make_servos(model: Any, gains: Mapping[int, tuple[float, float]]) -> None:
    """Makes motors servos of a stiffness, Nm/rad, and a damping, Nm s/rad, by actuator.

    They pull towards their target within the joint's range, with the motor's torque at most. In the
    model, not in the task: every engine has them, at the rate of the physics.
    """
    engine = mujoco()
    for i, (stiffness, damping) in gains.items():
        gain = model.actuator_gainprm[i, 0] * model.actuator_gear[i, 0]
        limits = np.sort(model.actuator_ctrlrange[i] * gain)
        if model.actuator_forcelimited[i]:
            own = np.sort(model.actuator_forcerange[i] * model.actuator_gear[i, 0])
            limits = [max(limits[0], own[0]), min(limits[1], own[1])]
        model.actuator_gear[i, 0] = 1.0
        model.actuator_gainprm[i, 0] = stiffness
        model.actuator_biastype[i] = engine.mjtBias.mjBIAS_AFFINE
        model.actuator_biasprm[i, :3] = 0.0, -stiffness, -damping
        model.actuator_forcelimited[i], model.actuator_forcerange[i] = True, limits
        model.actuator_ctrlrange[i] = model.jnt_range[model.actuator_trnid[i, 0]]
