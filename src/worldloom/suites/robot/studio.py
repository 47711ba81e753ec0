"""A robot in the studio: a person asks for speeds and pushes it, a policy keeps it on its feet."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from worldloom.core.protocols import PureEnv
from worldloom.suites.robot.forces import read_forces
from worldloom.suites.robot.kinematics import GRAVITY
from worldloom.suites.robot.loop import RobotLoop
from worldloom.suites.robot.model import mujoco
from worldloom.suites.robot.replay import EARTH, SCENE_SCRIPTS, drawn_scene, seen_bodies
from worldloom.suites.robot.shapes import ground_shape, moving_shapes
from worldloom.suites.robot.types import Push

PUSH_SECONDS = 0.2
MOST_FORCE = 60.0  # N, on the biped
LYING_SECONDS = 3.0  # that a fallen robot is watched


class RobotSession:
    """A `worldloom.training.suite.Session` that steps MuJoCo in the rhythm of control.

    Messages: {"speed": 0.2} or {"faster": 0.05}, in m/s, and {"push": [x, y]}, in N; an empty one
    is a step of control. Without a run the robot holds its home pose.
    """

    def __init__(self, target: Any):
        is_world = isinstance(target, PureEnv)
        env = target if is_world else target.problem.env
        self._act = None if is_world else target.act
        loop = RobotLoop(env.base, 1)
        self._engine: Any = loop.world.engine
        rules = loop.params.rules
        none = np.zeros_like(np.asarray(rules.push_force))
        rules = rules.replace(  # nothing happens but what a person does, and for as long
            push_force=none,
            push_steps=np.int32(round(PUSH_SECONDS / loop.world.robot.control_seconds)),
            horizon=np.int32(2**30),
            still=np.float32(0.0),
            resample=np.int32(0),
            sideways=none,
            turn=none,
        )
        self._world, self._params = loop.world, loop.params.replace(rules=rules)
        self._fastest = float(np.max(rules.command))
        robot, start = loop.world.robot, loop.params.starts.physics.reading.qpos[:1]
        moving = moving_shapes(robot, start)
        if robot.ground is not None:  # all of it: where a robot begins is not known yet
            ends = robot.ground.starts[[0, -1]] + robot.ground.scale * np.array([[0.0], [6.0]])
            around = ground_shape(robot.ground, ends, EARTH, every=4)
            moving = replace(moving, shapes=(*moving.shapes, around))
        self._bodies, self._scene = seen_bodies(moving), drawn_scene(moving)
        self._data = mujoco().MjData(robot.model)  # for poses alone

    def describe(self) -> dict[str, Any]:
        robot, world = self._world.robot, self._world
        return {
            "name": world.spec.name,
            "policy": "the run's policy" if self._act else "nothing: it holds its pose",
            "period": robot.control_seconds,
            "scripts": list(SCENE_SCRIPTS),
            **self._scene,
            "uneven": robot.ground is not None,
            "weight": robot.mass * GRAVITY,
            "fastest": round(self._fastest, 3),
            "force": MOST_FORCE * robot.weight_scale,
        }

    def reset(self, seed: int) -> dict[str, Any]:
        self._random = np.random.default_rng(seed)
        self._state, first = self._world.begin(self._draw(0), self._params)
        self._obs, self._info, self._lying, self._feet = first.obs, first.info, 0, []
        if self._act is not None:
            self._act(self._obs)  # compiled now, and not in the first step
        return self.state()

    def act(self, message: Mapping[str, Any]) -> dict[str, Any]:
        episode = self._state.episode
        if "speed" in message or "faster" in message:
            speed = _number(message.get("speed", float(episode.command[0, 0])), "speed")
            speed += _number(message.get("faster", 0.0), "faster")
            asked = episode.command.copy()
            asked[0, 0] = min(max(round(speed, 3), 0.0), self._fastest)
            self._state = self._state.replace(episode=episode.replace(command=asked))
        elif "push" in message:
            force = message["push"]
            if not isinstance(force, list) or len(force) != 2:
                raise ValueError("push must be two numbers [x, y], in newtons")
            force = np.asarray([[_number(part, "push") for part in force]], np.float32)
            size = float(np.hypot(*force[0]))
            force *= min(1.0, MOST_FORCE * self._world.robot.weight_scale / max(size, 1e-6))
            push = Push(start=episode.step, force=force)
            self._state = self._state.replace(episode=episode.replace(push=push))
        else:
            self._step()
        return self.state()

    def _step(self) -> None:
        if self._lying > LYING_SECONDS / self._world.robot.control_seconds:
            return
        action = np.zeros((1, self._world.robot.num_joints), np.float32)
        if self._act is not None:
            action = np.asarray(self._act(self._obs), np.float32)
        self._state, after = self._world.advance(self._state, action, self._draw(1), self._params)
        self._obs, self._info = after.obs, after.info
        self._feet = []
        if not after.info.diverged[0]:
            read = read_forces(self._world.robot, self._engine.model, self._engine.data)
            self._feet = [
                {"force": np.round(force, 1).tolist(), "at": np.round(place, 4).tolist()}
                for force, place in zip(read.force, read.pressure, strict=True)
            ]
        self._lying += bool(self._lying or after.terminated[0])

    def state(self) -> dict[str, Any]:
        robot, episode, data = self._world.robot, self._state.episode, self._data
        data.qpos[:] = self._state.physics.reading.qpos[0]
        mujoco().mj_kinematics(robot.model, data)
        since = int(episode.step[0] - episode.push.start[0])
        pushed = 0 <= since < int(self._params.rules.push_steps) and episode.push.force.any()
        return {
            "step": int(episode.step[0]),
            "positions": np.round(data.xpos[self._bodies], 4).ravel().tolist(),
            "quaternions": np.round(data.xquat[self._bodies], 4).ravel().tolist(),
            "base": np.round(data.xpos[robot.base_body], 4).tolist(),
            "asked": round(float(episode.command[0, 0]), 3),
            "speed": round(float(episode.speed[0, 0]), 3),
            "push": np.round(episode.push.force[0], 1).tolist() if pushed else None,
            "contact": self._info.contact[0].tolist(),
            "feet": self._feet,
            "fell": self._lying > 0,
        }

    def _draw(self, which: int) -> np.ndarray:
        return self._random.random((1, self._world.num_draws[which]), np.float32)


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e6:
        raise ValueError(f"{name} must be a number, and not a huge one")
    return float(value)
