"""A small valid example of every format that users hand in, how it is spoiled, and who reads it.

A format is a function of a folder that writes its example there and returns `case(rng)`: one call
of the reader that users reach, with a spoiled file or option.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.faults_mutators import (
    VALUES,
    json_text,
    lying_npz,
    npz_bytes,
    spoil_array,
    spoil_bytes,
    spoil_csv,
    spoil_document,
    spoil_text,
    spoil_tree,
    yaml_text,
)

Case = Callable[[Random], Any]

# Settings ----------------------------------------------------------------------------------------

_WORLDS = {
    "grid": ({"env": "treasurehunt"}, {"env": "tag", "algo": "dqn"}),
    "plain": ({"env": "gymnax:CartPole-v1", "algo": "ppo"}, {"env": "brax:ant", "algo": "sac"}),
    "robot": ({"env": "biped"}, {"env": "biped", "algo": "sac"}),
    "plant": ({"env": "reactor"}, {"env": "reactor", "algo": "td3bc"}),
    "arc": ({"env": "arc"},),
}


def _headers() -> list[dict[str, Any]]:
    """What config.json holds of a run of each suite."""
    from worldloom import suites
    from worldloom.core.files import plain
    from worldloom.training.config import FORMAT, make_config

    headers = []
    for name, examples in _WORLDS.items():
        for given in examples:
            config = make_config(suites.suite(name), given)
            headers.append({"format": FORMAT, "suite": name, "config": plain(config.to_dict())})
    return headers


def config_json(folder: Path) -> Case:
    """A run folder's config.json, as `worldloom eval` and `train --resume` read it."""
    from worldloom import suites
    from worldloom.training.config import make_config, read_header

    headers, path = _headers(), folder / "config.json"

    def case(rng: Random) -> None:
        path.write_bytes(spoil_document(rng, rng.choice(headers), json_text))
        header = read_header(folder)
        make_config(suites.suite(header["suite"]), header["config"], str(path)).fingerprint()

    return case


def config_yaml(folder: Path) -> Case:
    """Settings in YAML, as `worldloom train --config` reads them."""
    from worldloom.cli.settings import asked_devices, read_request

    settings, path = [header["config"] for header in _headers()], folder / "run.yaml"

    def case(rng: Random) -> None:
        whole = rng.choice(settings)
        some = {n: v for n, v in whole.items() if n in ("env", "algo") or rng.random() < 0.3}
        path.write_bytes(spoil_document(rng, some, yaml_text))
        asked_devices([], config=str(path))
        _ = read_request(None, [], config=str(path)).config

    return case


def options(folder: Path) -> Case:
    """Options in Python: `worldloom.train(env, **settings)` and the robot's `Task.rules`."""
    from worldloom import suites
    from worldloom.suites.robot.task import TASKS
    from worldloom.training.config import make_config

    headers = _headers()
    numbers = {
        "command": [0.1, 0.2], "push_force": [0.0, 5.0], "push_steps": 6, "push_pause": [75, 200],
        "horizon": 500, "noise": 0.5, "randomise": 0.5, "still": 0.1, "alive": 1.0,
    }  # fmt: skip

    def case(rng: Random) -> None:
        if rng.random() < 0.5:
            some = {name: value for name, value in numbers.items() if rng.random() < 0.5}
            spoiled = spoil_tree(rng, some)
            rng.choice(list(TASKS.values())).rules(**spoiled if isinstance(spoiled, dict) else {})
        else:
            header = rng.choice(headers)
            given = dict(header["config"])
            group = rng.choice([name for name, value in given.items() if isinstance(value, dict)])
            inner = dict(given[group])
            if inner:
                inner[rng.choice(list(inner))] = rng.choice(VALUES)
            name = rng.choice([name for name in given if name != "env"])
            given = given | {group: inner} | {name: rng.choice((given[name], *VALUES))}
            make_config(suites.suite(header["suite"]), given).fingerprint()

    return case


# Data --------------------------------------------------------------------------------------------


def _columns() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(7, 2)).astype(np.float32)
    done, truncated = np.zeros(6, np.float32), np.zeros(6, np.float32)
    done[2], truncated[5] = 1, 1
    return {
        "obs": seen[:-1], "action": np.full((6, 1), 0.5, np.float32), "next_obs": seen[1:],
        "reward": np.ones(6, np.float32), "done": done, "truncated": truncated,
        "cost": np.zeros((6, 1), np.float32), "time": np.arange(6.0), "index": np.array([0, 3]),
        "name": np.asarray("small"), "provenance": np.asarray('[["env", "reactor"]]'),
    }  # fmt: skip


def _look_at(logged: Any) -> None:
    """As `worldloom data check` does, and `train`."""
    list(logged.check().defects())
    logged.dataset()


def npz(folder: Path) -> Case:
    """An npz dataset."""
    from worldloom.replay.dataset_files import read_npz

    arrays, path = _columns(), folder / "data.npz"
    whole = [npz_bytes(arrays, False), npz_bytes(arrays, True)]

    def case(rng: Random) -> None:
        how = rng.random()
        if how < 0.4:
            content = spoil_bytes(rng, rng.choice(whole))
        elif how < 0.6:
            content = lying_npz(rng, arrays)
        else:
            spoiled = dict(arrays)
            for name in rng.sample(sorted(spoiled), rng.choice((1, 1, 2, 3))):
                if rng.random() < 0.1:
                    del spoiled[name]
                else:
                    spoiled[name] = spoil_array(rng, spoiled[name])
            content = npz_bytes(spoiled, rng.random() < 0.5)
        path.write_bytes(content)
        _look_at(read_npz(path))

    return case


MAPPING = {
    "name": "line 4", "time": {"column": "at", "format": "iso"}, "gap": 120, "missing": ["Bad"],
    "observation": [
        {"column": "TI", "name": "temperature", "unit": "K", "offset": 273.15, "low": 280,
         "high": 420},
        "LI",
    ],
    "action": [{"column": "OP", "name": "valve", "unit": "%", "low": 0, "high": 100}],
    "reward": {"column": "profit", "at": "next"}, "terminated": "tripped", "cost": ["over"],
}  # fmt: skip
_MAPPINGS = (
    MAPPING,
    MAPPING | {"time": "seconds", "reward": "profit", "episode": "batch"},
    MAPPING | {"time": {"column": "at", "format": "%Y-%m-%dT%H:%M:%S"}},
)
TABLE = [
    ["at", "seconds", "batch", "TI", "LI", "OP", "profit", "tripped", "over"],
    *(
        [f"2024-05-01T10:0{i}:00", str(60 * i), str(i // 4), str(50 + i), "1.5", "25", "1",
         str(int(i == 2)), "0"]
        for i in range(9)
    ),
]  # fmt: skip


def csv(folder: Path) -> Case:
    """A historian's CSV file, also resampled."""
    from worldloom.replay.dataset_csv import read_csv
    from worldloom.replay.dataset_mapping import read_mapping

    path, file = folder / "log.csv", folder / "map.yaml"
    mappings = []
    for mapping in _MAPPINGS:
        file.write_text(yaml_text(mapping))
        mappings.append(read_mapping(file))
    text = "\n".join(",".join(row) for row in TABLE)

    def case(rng: Random) -> None:
        how = rng.random()
        if how < 0.6:
            content = spoil_csv(rng, TABLE).encode("utf-8", "surrogatepass")
        else:
            content = spoil_bytes(rng, text.encode())
        path.write_bytes(content)
        _look_at(read_csv(path, rng.choice(mappings)))

    return case


def csv_mapping(folder: Path) -> Case:
    """The mapping of a CSV file."""
    from worldloom.replay.dataset_csv import read_csv
    from worldloom.replay.dataset_mapping import read_mapping

    path, file = folder / "log.csv", folder / "map.yaml"
    path.write_text("\n".join(",".join(row) for row in TABLE))

    def case(rng: Random) -> None:
        file.write_bytes(spoil_document(rng, rng.choice(_MAPPINGS), yaml_text))
        _look_at(read_csv(path, read_mapping(file)))

    return case


def minari(folder: Path) -> Case:
    """A Minari dataset: metadata, HDF5 file, and arrays that declare what they do not hold."""
    from worldloom.adapters import minari as adapter
    from worldloom.replay.dataset_files import read_npz

    (folder / "data.npz").write_bytes(npz_bytes(_columns(), False))
    dataset = read_npz(folder / "data.npz").dataset()
    data = adapter.save(dataset, "reactor/small-v0", folder) / "data"
    about, store = data / "metadata.json", data / "main_data.hdf5"
    metadata, whole = json.loads(about.read_text()), store.read_bytes()
    spaces = {name: json.loads(metadata[name]) for name in ("observation_space", "action_space")}
    own = json.loads(metadata["worldloom"])
    written = about.read_bytes()

    def case(rng: Random) -> None:
        content, said = whole, written
        how = rng.random()
        if how < 0.35:
            said = spoil_document(rng, metadata, json_text)
        elif how < 0.5:
            name = rng.choice(("worldloom", *spaces))
            inner = spoil_tree(rng, spaces.get(name, own))
            said = json.dumps(metadata | {name: json_text(inner)}).encode()
        elif how < 0.9:
            content = spoil_bytes(rng, whole)
        about.write_bytes(said)
        store.write_bytes(content)
        if how >= 0.9:
            _spoil_hdf5(rng, store)
        _look_at(adapter.read_minari(data))

    return case


def _spoil_hdf5(rng: Random, path: Path) -> None:
    import h5py

    with h5py.File(path, "r+") as file:
        episode = file[f"episode_{rng.randrange(2)}"]
        names = ["observations", "actions", "rewards", "terminations", "infos/cost"]
        name = rng.choice([name for name in names if name in episode])
        old = episode[name][()]
        kind = rng.randrange(6)
        if kind == 5:
            episode.attrs[rng.choice(("id", "seed", "total_steps"))] = rng.choice((-1, "x", 2**40))
            return
        del episode[name]
        if kind == 0:
            shape = rng.choice(((10**9, 2), (10**7, 100), (2**40,), (0, 2), (10**9,)))
            episode.create_dataset(name, shape, old.dtype, chunks=(1,) * len(shape))
        elif kind == 1:
            shape = rng.choice(((10**9,), (10**8, 2)))
            episode.create_dataset(name, shape, "f8", maxshape=shape, fillvalue=1.0)
        elif kind == 2:
            episode.create_group(name)
        elif kind == 3:
            new = spoil_array(rng, old)
            if new.dtype.kind in "bifuS":
                episode.create_dataset(name, data=new)
        elif rng.random() < 0.5:
            episode[name] = h5py.SoftLink("/nowhere")
        else:
            episode[name] = h5py.ExternalLink("/etc/hostname", "/")


# Worlds ------------------------------------------------------------------------------------------

ROBOT = """<mujoco model="tiny">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.004" iterations="6"/>
  <size memory="1M"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <asset><texture name="t" type="2d" builtin="flat" width="4" height="4" rgb1="1 1 1"/></asset>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 0.1" contype="1"/>
    <body name="base" pos="0 0 0.4">
      <freejoint name="root"/>
      <geom type="box" size="0.04 0.06 0.03" mass="0.75"/>
      <site name="imu" pos="0 0 0"/>
      <body name="left" pos="0 0.05 -0.1" quat="1 0 0 0">
        <joint name="left_hip" type="hinge" axis="0 1 0" range="-1 1" damping="0.1"/>
        <geom type="sphere" size="0.012" conaffinity="1" mass="0.1" friction="0.8 0.005 0.0001"/>
        <site name="left_sole" pos="0 0 0" size="0.02"/>
      </body>
      <body name="right" pos="0 -0.05 -0.1">
        <joint name="right_hip" type="hinge" axis="0 1 0" range="-1 1" damping="0.1"/>
        <geom type="sphere" size="0.012" conaffinity="1" mass="0.1"/>
        <site name="right_sole" pos="0 0 0" size="0.02"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="a" joint="left_hip" kp="28" inheritrange="1" forcerange="-4 4"/>
    <position name="b" joint="right_hip" kp="28" inheritrange="1"/>
  </actuator>
  <sensor>
    <gyro name="gyro" site="imu"/>
    <framequat name="orientation" objtype="site" objname="imu"/>
    <touch name="left_touch" site="left_sole"/>
    <touch name="right_touch" site="right_sole"/>
    <framepos name="left_pos" objtype="body" objname="left"/>
    <framepos name="right_pos" objtype="body" objname="right"/>
  </sensor>
  <keyframe><key name="home" qpos="0 0 0.4 1 0 0 0 0 0"/></keyframe>
</mujoco>
"""
NAMES = {
    "base": "base", "home": "home", "sensors": {"gyro": "gyro", "orientation": "orientation"},
    "feet": [
        {"body": "left", "touch": "left_touch", "position": "left_pos"},
        {"body": "right", "touch": "right_touch", "position": "right_pos"},
    ],
    "legs": [["left_hip"], ["right_hip"]], "action": {"default": 0.2, "hip": 0.6},
}  # fmt: skip
_ATTRIBUTE = re.compile(r"""(?<==")[^"\n]*(?=")|(?<=<)\w+|\b\w+(?==")|(?<=[" ])-?[0-9.]+(?=[" ])""")


def _load_robot(path: Path) -> Any:
    """As tasks do: a model, and the numbers that they look up in it."""
    from worldloom.suites.robot.model import load

    robot = load(path)
    numbers = (robot.home, robot.lower, robot.upper, robot.action_scale, robot.mass,
               robot.home_foot_height, robot.sideways, robot.model.body_inertia,
               robot.model.jnt_range, robot.model.geom_friction)  # fmt: skip
    if not all(np.isfinite(number).all() for number in numbers):
        raise AssertionError("a robot with numbers that are not finite was accepted")
    return robot


def mjcf(folder: Path) -> Case:
    """A robot's MJCF."""
    path = folder / "tiny.xml"
    path.with_suffix(".yaml").write_text(yaml_text(NAMES))

    def case(rng: Random) -> None:
        if rng.random() < 0.7:
            path.write_bytes(spoil_text(rng, ROBOT, _ATTRIBUTE).encode("utf-8", "surrogatepass"))
        else:
            path.write_bytes(spoil_bytes(rng, ROBOT.encode()))
        _load_robot(path)

    return case


def mjcf_mapping(folder: Path) -> Case:
    """The mapping beside a robot's MJCF."""
    path = folder / "tiny.xml"
    path.write_text(ROBOT)

    def case(rng: Random) -> None:
        path.with_suffix(".yaml").write_bytes(spoil_document(rng, NAMES, yaml_text))
        _load_robot(path)

    return case


WORLD = {
    "name": "tiny", "num_agents": 2, "height": 4, "width": 5, "border": "Wall", "radius": 2,
    "horizon": 20, "num_frames": 1, "view": "onehot", "turn_order": "interleaved",
    "kinds": {
        "Empty": {"glyph": ".", "color": [0, 0, 0], "becomes": {"Berry": 0.25}},
        "Wall": {"glyph": "#", "color": [90, 90, 90], "value": -1, "passable": False},
        "Berry": {"glyph": "o", "color": [200, 0, 0], "value": 1.5},
        "Agent": {"glyph": "A", "color": [0, 0, 200], "passable": False},
    },
}  # fmt: skip
_DRAWN = {name: value for name, value in WORLD.items() if name not in ("height", "width", "border")}


def world_yaml(folder: Path) -> Case:
    """A gridworld in YAML."""
    from worldloom.suites.grid.definition import load

    path = folder / "tiny.yaml"
    worlds = (WORLD, _DRAWN | {"map": ["#####", "#.o.#", "#...#", "#####"], "floor": "Empty"})

    def case(rng: Random) -> None:
        path.write_bytes(spoil_document(rng, rng.choice(worlds), yaml_text))
        _ = load(path).spec

    return case


# Safety and tasks --------------------------------------------------------------------------------

CONSTRAINTS = {
    "emergency": {"jacket": "280 K", "feed": "4.8 m3/h"},
    "box": {"jacket": {"low": "6.85 degC", "high": "315 K"}},
    "rate": {"jacket": {"at_most": "100 K/min", "hard": False}, "feed": {"at_most": "2 L/min"}},
    "linear": {"supply": {"of": {"feed": 1}, "at_most": "7.8 m3/h"}},
    "state": {"relief": {"signal": "temperature", "at_most": "126.85 degC"}},
    "barriers": {
        "runaway": {"signal": "temperature", "at_most": "375 K", "gamma": 0.3,
                    "disturbance": "0.9 degF"},
        "dry": {"signal": "level", "at_least": "20 %"},
    },
    "lookahead": {"steps": 5, "backup": "emergency",
                  "rows": {"far": {"signal": "temperature", "at_most": "375 K"}}},
    "deviations": 2, "latch_after": 3,
}  # fmt: skip


def constraints(folder: Path) -> Case:
    """A constraint file."""
    from worldloom.replay.dataset_mapping import SignalColumn
    from worldloom.safety.constraint_file import read_constraints

    def signal(name: str, unit: str, low: float, high: float) -> SignalColumn:
        return SignalColumn(name, name, unit, low=low, high=high)

    path = folder / "constraints.yaml"
    seen = (signal("temperature", "K", 300.0, 400.0), signal("level", "%", 0.0, 100.0))
    moved = (signal("jacket", "K", 280.0, 320.0), signal("feed", "L/min", 80.0, 120.0))

    def case(rng: Random) -> None:
        path.write_bytes(spoil_document(rng, CONSTRAINTS, yaml_text))
        read_constraints(path, seen, moved, lambda obs, action: obs, step_seconds=60.0)

    return case


TASK = {
    "train": [{"input": [[0, 1], [2, 3]], "output": [[1, 0], [3, 2]]}] * 2,
    "test": [{"input": [[4, 5, 6]], "output": [[6, 5, 4]]}, {"input": [[1]]}],
}


def arc_task(folder: Path) -> Case:
    """A task of ARC as a JSON file, and the tasks that a run keeps."""
    from worldloom.suites.arc import sources
    from worldloom.suites.arc.tasks import read_tasks

    path, kept = folder / "tasks" / "some.json", folder / "tasks.json"
    path.parent.mkdir()
    of_run = {"name": "mine", "split": "training", "tasks": {"some": TASK, "other": TASK}}

    def case(rng: Random) -> None:
        if rng.random() < 0.7:
            path.write_bytes(spoil_document(rng, TASK, json_text))
            tasks = sources.load(path.parent)
        else:
            kept.write_bytes(spoil_document(rng, of_run, json_text))
            tasks = read_tasks(kept)
        if len(tasks):
            tasks.statistics()

    return case


FORMATS: dict[str, Callable[[Path], Case]] = {
    "config.json": config_json,
    "config.yaml": config_yaml,
    "options": options,
    "npz": npz,
    "csv": csv,
    "csv mapping": csv_mapping,
    "minari": minari,
    "mjcf": mjcf,
    "mjcf mapping": mjcf_mapping,
    "world": world_yaml,
    "constraints": constraints,
    "arc": arc_task,
}
