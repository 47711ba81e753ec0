"""Pictures by MuJoCo's own renderer: `python gl.py FRAMES WIDTH HEIGHT BASE_BODY BASE_HEIGHT`.

Beside the file FRAMES lie model.mjb and qpos.npy; frames are written to it, RGB rows one after the
other. A process of its own because the graphics library is chosen before MuJoCo is imported, and a
driver that does not work may end the process that asked for it. It imports nothing of worldloom.
"""

import importlib
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

PATIENCE = 60  # seconds until the first frame: a driver may hang


def main(frames: Path, width: int, height: int, base_body: int, base_height: float) -> None:
    signal.alarm(PATIENCE)
    mujoco: Any = importlib.import_module("mujoco")
    model = mujoco.MjModel.from_binary_path(str(frames.with_name("model.mjb")))
    model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
    model.vis.global_.offheight = max(height, model.vis.global_.offheight)
    data = mujoco.MjData(model)
    camera: Any = "side"
    if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "side") < 0:
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        camera.trackbodyid = base_body
        camera.azimuth, camera.elevation = 90.0, -8.0
        camera.distance = 3.3 * base_height
    with mujoco.Renderer(model, height, width) as renderer, frames.open("wb") as file:
        for row in np.load(frames.with_name("qpos.npy")):
            data.qpos[:] = row
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            file.write(renderer.render().tobytes())
            signal.alarm(0)


if __name__ == "__main__":
    path, wide, high, body, tall = sys.argv[1:]
    main(Path(path), int(wide), int(high), int(body), float(tall))
