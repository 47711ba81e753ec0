"""Pictures by MuJoCo's own renderer, made by a process of its own: `python robot_gl.py FOLDER`.

The folder holds model.mjb, qpos.npy and job.json; frames go to the standard output, RGB rows one
after the other. A process apart because the graphics library is chosen before MuJoCo is imported,
and a driver that does not work may end the process that asked for it. It imports nothing of
worldloom.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main(folder: Path) -> None:
    mujoco: Any = importlib.import_module("mujoco")
    job = json.loads((folder / "job.json").read_text())
    model = mujoco.MjModel.from_binary_path(str(folder / "model.mjb"))
    width, height = job["size"]
    model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
    model.vis.global_.offheight = max(height, model.vis.global_.offheight)
    data = mujoco.MjData(model)
    camera: Any = "side"
    if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "side") < 0:
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        camera.trackbodyid = job["base_body"]
        camera.azimuth, camera.elevation = 90.0, -8.0
        camera.distance = 3.3 * job["base_height"]
    qpos = np.load(folder / "qpos.npy")
    renderer = mujoco.Renderer(model, height, width)
    try:
        for row in qpos:
            data.qpos[:] = row
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            sys.stdout.buffer.write(renderer.render().tobytes())
        sys.stdout.buffer.flush()
    finally:
        renderer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
