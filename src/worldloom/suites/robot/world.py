"""The robot as an environment of pure functions, whichever engine moves it.

Written once over an array library (numpy or jax.numpy), on any leading axes but for the engines'
one. Whatever is left to chance comes in as uniform numbers, so that two engines, or two array
libraries, can be given the same noise.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.core.checks import check_seed
from worldloom.core.names import shown, suggest
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box, Dict
from worldloom.core.transforms import as_pure
from worldloom.core.types import Key, TimeStep
from worldloom.suites.robot import gait
from worldloom.suites.robot import starts as start_tables
from worldloom.suites.robot.chance import draw_command, draw_domain, draw_push
from worldloom.suites.robot.engines import Engine, EngineName, make_engine
from worldloom.suites.robot.features import TOUCH, feet, sensed, yaw
from worldloom.suites.robot.ground import CHOICES, draw_lane, next_lane, went_on
from worldloom.suites.robot.model import Robot, biped, load
from worldloom.suites.robot.rewards import Facts
from worldloom.suites.robot.task import SCALES, Task, task_named
from worldloom.suites.robot.types import (
    Array,
    Domain,
    Episode,
    Info,
    Lane,
    Observation,
    Params,
    Push,
    Reading,
    RobotState,
    Rules,
    Starts,
)

NUM_STARTS, NUM_LYING = 512, 64
NUM_ON_LANE = 128  # starts on each lane of uneven ground
PICTURE = (400, 300)  # pixels
MEMORY_SECONDS = 0.5  # of the averaged speed
LOWEST, HIGHEST = 0.65, 1.35  # of the home height, outside of which a robot has fallen
LEAST_UPRIGHT = math.cos(0.8)  # rad of tilt
# m, rad, m/s and rad/s: no robot comes near it in an episode, only a simulation that has diverged.
# That is seen long before it overflows: the square of 1e20, still finite, is a reward of -inf.
BEYOND_SENSE = 1e3
# Noise of sensors at a factor of 1: half-widths of uniform draws.
NOISE = {"gravity": 0.03, "turning": 0.15, "joints": 0.02, "joint_speeds": 0.5}


def make(**options: Any) -> PureEnv:
    """The environment; see `world` for the options."""
    return as_pure(world(**options))


def world(
    *,
    task: str | Task = "walk",
    physics: EngineName = "auto",
    robot: str | Path | Robot | None = None,
    threads: int | None = None,
    randomise: float = 0.0,
    noise: float = 0.0,
    seed: int = 0,
    ground: str = "none",
    history: int = 0,
    **rules: Any,
) -> "RobotWorld":
    """A robot with a task: stand, walk, push, joystick or recover.

    physics: c, mjx, or auto. robot: the path of an MJCF with its mapping beside it; by default the
    biped of the suite. threads: of the C engine; all cores by default. randomise, noise: factors
    on how worlds differ and on the noise of sensors; a world that is made with randomise=0 has
    none compiled in, and `params.rules.randomise` is without effect there. seed: of the table of
    starts, and of uneven ground. ground: none, or rough, slopes, steps, gaps or mixed for tasks
    that go somewhere. history: how many earlier steps a policy sees. Other options are numbers of
    the task by name (`command=(0.1, 0.3)`, `horizon=500`), and weights of the terms of its reward
    (`smooth=0.1`).
    """
    body = robot if isinstance(robot, Robot) else biped() if robot is None else load(robot)
    chosen_task = task if isinstance(task, Task) else task_named(task)
    if physics == "numpy":
        raise ValueError(
            'physics="numpy" is a loop outside of jit: use worldloom.suites.robot.loop, or "c" here'
        )
    chosen_task = chosen_task.sees_back(history)
    if chosen_task.lies:
        body = body.lying
    check_seed(seed)
    _check_ground(ground, chosen_task, rules)
    if ground != "none":
        body = body.on_ground(ground, seed)
    numbers = chosen_task.rules(body, randomise=randomise, noise=noise, **rules)
    engine = make_engine(physics, body, threads)
    if chosen_task.lies:
        table = start_tables.lying(engine, NUM_LYING, seed)
    elif body.ground is not None:
        table = start_tables.around_home(engine, NUM_ON_LANE, seed)
        table = start_tables.on_lanes(engine, body.ground, table, seed)
    else:
        table = start_tables.around_home(engine, NUM_STARTS, seed)
    params = jax.tree.map(jnp.asarray, Params(numbers, table))
    return RobotWorld(body, chosen_task, engine, params, randomised=randomise > 0.0)


def _check_ground(ground: str, task: Task, rules: dict[str, Any]) -> None:
    if ground not in CHOICES:
        raise ValueError(f"there is no ground {shown(ground)}; {suggest(str(ground), CHOICES)}")
    if ground != "none" and not task.moves:
        raise ValueError(
            f"task {task.name!r} stays where it is, and uneven ground is for those that go "
            "somewhere: walk or joystick"
        )
    idle = [name for name in ("levels", "climb") if name in rules and ground == "none"]
    if idle:
        raise ValueError(f"{idle[0]} is of uneven ground; choose one (ground='mixed')")


@dataclass(frozen=True, eq=False)
class RobotWorld:
    """A robot, a task and an engine; written for many worlds at once.

    randomised: whether worlds may differ; if not, nothing of that is compiled.
    xp: jax.numpy, or numpy where the engine is a plain loop.
    """

    robot: Robot
    task: Task
    engine: Engine
    params: Params
    randomised: bool = False
    xp: Any = jnp

    @property
    def spec(self) -> EnvSpec:
        state, privileged = self.task.observation_size(self.robot)
        limit = 100.0
        return EnvSpec(
            name=f"{self.robot.name}-{self.task.name}",
            observation=Dict(
                (
                    ("state", Box(-limit, limit, (state,))),
                    ("privileged_state", Box(-limit, limit, (privileged,))),
                )
            ),
            action=Box(-1.0, 1.0, (self.robot.num_joints,)),
            horizon=int(self.params.rules.horizon),
        )

    def default_params(self) -> Params:
        return self.params

    def with_starts(self, starts: Starts) -> "RobotWorld":
        """The same world, beginning elsewhere; on uneven ground, on all of its lanes."""
        if self.robot.ground is not None:
            starts = start_tables.on_lanes(self.engine, self.robot.ground, starts, 0)
        return replace(self, params=self.params.replace(starts=jax.tree.map(jnp.asarray, starts)))

    @property
    def num_draws(self) -> tuple[int, int]:
        """How many uniform numbers `begin` takes, and how many `advance`."""
        ground = 2 if self.robot.ground is not None else 0
        return 23 + self.robot.num_joints + ground, 14 + 2 * self.robot.num_joints

    # Many worlds -------------------------------------------------------------------------------

    def reset_many(self, keys: Key, params: Params) -> tuple[RobotState, TimeStep]:
        """New episodes from keys (B,)."""
        return self.begin(_uniform(keys, self.num_draws[0]), params)

    @property
    def _ground(self) -> Any:
        """A `Ground`; asked for where there is one."""
        return self.robot.ground

    @property
    def restart_many(self) -> Any:
        """On uneven ground: new episodes in worlds that keep their lanes, or climb; else None."""
        if self.robot.ground is None:
            return None
        return lambda keys, ended, params: self.begin(
            _uniform(keys, self.num_draws[0]), params, ended
        )

    def step_many(
        self, keys: Key, state: RobotState, action: Array, params: Params
    ) -> tuple[RobotState, TimeStep]:
        """One step of control in B worlds."""
        return self.advance(state, action, _uniform(keys, self.num_draws[1]), params)

    def begin(
        self, uniform: Array, params: Params, ended: RobotState | None = None
    ) -> tuple[RobotState, TimeStep]:
        """New episodes from uniform numbers (..., num_draws[0]), seen without noise.

        ended: the same worlds at the end of their episodes, which uneven ground asks for.
        """
        xp, robot, rules, u = self.xp, self.robot, params.rules, uniform
        lane: Any = ()
        first_row, num_starts = 0, len(params.starts.phase)
        if robot.ground is not None:
            lane = self._lane(rules, u[..., -2:], ended)
            num_starts //= len(robot.ground.starts)
            first_row = num_starts * robot.ground.lane(xp, lane.level, lane.kind)
        row = xp.minimum((u[..., 0] * num_starts).astype(np.int32), num_starts - 1) + first_row
        command = draw_command(xp, rules, u[..., 1:5])
        domain = draw_domain(xp, rules, u[..., 8 : 23 + robot.num_joints], self.randomised)
        start: Starts = jax.tree.map(lambda x: x[row], params.starts)
        reading = start.physics.reading
        still = xp.zeros_like(reading.qpos[..., robot.joint_qpos])
        episode = Episode(
            step=xp.zeros_like(row),
            phase=start.phase,
            command=command,
            speed=command,
            action=still,
            earlier=still,
            readings=xp.zeros((*row.shape, 2, 6 + 2 * robot.num_joints), np.float32),
            feet=feet(xp, robot, reading),
            push=draw_push(xp, rules, xp.zeros_like(row), u[..., 5:8]),
            lane=lane,
        )
        state = RobotState(start.physics, episode, domain)
        facts = self._facts(episode, reading, still, None)
        first = self._sensed(facts, domain)  # which is all that there was before
        readings = xp.stack([first, first], axis=-2).astype(np.float32)
        past = ()
        if self.task.history:
            past = xp.stack([self._frame(first, still)] * (1 + self.task.history), axis=-2)
        state = state.replace(episode=episode.replace(readings=readings, past=past))
        obs = self.look(state)
        no, zero = xp.zeros_like(row, bool), xp.zeros_like(command[..., 0])
        info = Info(
            reading=reading,
            terms=xp.zeros((*zero.shape, len(self.task.terms)), np.float32),
            command=command[..., 0],
            velocity=zero,
            height=reading.qpos[..., 2],
            contact=xp.ones((*zero.shape, 2), bool),
            fell=no,
            diverged=no,
            level=() if robot.ground is None else lane.level,
        )
        return state, TimeStep(obs, zero, no, no, obs, info)

    def _lane(self, rules: Rules, u: Array, ended: RobotState | None) -> Lane:
        """Where to begin, from uniform numbers (..., 2) and from how the last episode ended."""
        xp, robot, ground = self.xp, self.robot, self._ground
        drawn = draw_lane(xp, rules, len(ground.kinds), u)
        if ended is None:
            return drawn
        episode, place = ended.episode, ended.physics.reading.qpos[..., :2]
        speed = xp.sqrt((episode.command[..., :2] ** 2).sum(-1))
        steps = xp.maximum(rules.horizon - episode.step, 0)
        steps = xp.where(ground.left(xp, place), 0, steps)
        still_asked = speed * steps * np.float32(robot.control_seconds)
        return next_lane(xp, rules, episode.lane, still_asked, drawn, u[..., 0], ground.scale)

    def drive(self, rules: Rules, state: RobotState, action: Array) -> tuple[Array, Array, Array]:
        """The action clipped, the targets (..., n) that it stands for, and a push (..., 2), N."""
        xp, robot, episode = self.xp, self.robot, state.episode
        action = xp.clip(xp.nan_to_num(action), -1.0, 1.0)
        used = action
        if self.randomised:
            delay = state.domain.action_delay[..., None]
            before = xp.where(delay == 1, episode.action, episode.earlier)
            used = xp.where(delay == 0, action, before)
        home, scale = robot.home_joints.astype(np.float32), robot.action_scale.astype(np.float32)
        low, high = robot.lower.astype(np.float32), robot.upper.astype(np.float32)
        target = xp.clip(home + scale * used, low, high)
        since = episode.step - episode.push.start
        pushed = (since >= 0) & (since < rules.push_steps)
        force = xp.where(pushed[..., None], episode.push.force, 0.0)
        return action, target, force

    def advance(
        self, state: RobotState, action: Array, uniform: Array, params: Params
    ) -> tuple[RobotState, TimeStep]:
        """One step of control in B worlds, from uniform numbers (B, num_draws[1])."""
        driven = _, target, force = self.drive(params.rules, state, action)
        dynamics = state.domain.dynamics if self.randomised else None
        moved = self.engine.step(state.physics, target, force, dynamics)
        valid = is_valid(self.xp, moved.reading)
        # What has diverged is taken back, and ends the episode.
        physics = jax.tree.map(
            lambda new, old: self.xp.where(valid.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            moved,
            state.physics,
        )
        state = RobotState(physics, state.episode, state.domain)
        return self.finish(params.rules, state, driven, ~valid, uniform)

    def finish(
        self,
        rules: Rules,
        state: RobotState,
        driven: tuple[Array, Array, Array],
        diverged: Array,
        uniform: Array,
    ) -> tuple[RobotState, TimeStep]:
        """Judges a step of control from what was read after it and what was done.

        state: the physics after the step, the episode before it; `driven` is what `drive` made of
        the action. Where the simulation `diverged`, the physics are those before the step. Uniform
        numbers (..., num_draws[1]) are for noise, and for the next push.
        """
        xp, robot, episode, reading = self.xp, self.robot, state.episode, state.physics.reading
        action, target, force = driven
        seconds = robot.control_seconds / robot.time_scale
        scaled = self._at_biped_size(episode.command)
        phase = gait.advance(xp, episode.phase, seconds, scaled, rules.pace)
        facts = self._facts(episode.replace(phase=phase), reading, action, target)
        judged = self._scaled(facts)
        terms = xp.stack([term(xp, judged) for term in self.task.functions], axis=-1)
        tall = (1.0 + facts.height / robot.home_height).astype(np.float32)
        level = -facts.gravity[..., 2]
        fell = diverged
        if not self.task.lies:
            fell = (tall < LOWEST) | (tall > HIGHEST) | (level < LEAST_UPRIGHT) | diverged
        reward = xp.where(diverged, 0.0, (rules.weights * terms).sum(-1) * robot.control_seconds)
        step = episode.step + 1
        over = step >= episode.push.start + rules.push_steps
        again = draw_push(xp, rules, step, uniform[..., :3])
        push = Push(
            start=xp.where(over, again.start, episode.push.start),
            force=xp.where(over[..., None], again.force, episode.push.force),
        )
        exact = self._sensed(facts, state.domain)
        widths = self._each(NOISE)
        noise = rules.noise * widths * (2.0 * uniform[..., 8:] - 1.0)
        readings = xp.stack([exact + noise, episode.readings[..., 0, :]], axis=-2)
        after = episode.replace(
            step=step,
            phase=phase,
            speed=facts.speed,
            action=action,
            earlier=episode.action,
            readings=readings.astype(np.float32),
            feet=feet(xp, robot, reading),
            push=push,
        )
        if self.task.moves:  # now and then something else is asked for
            another = (uniform[..., 3] * rules.resample < 1.0) & (rules.resample > 0)
            drawn = draw_command(xp, rules, uniform[..., 4:8])
            after = after.replace(command=xp.where(another[..., None], drawn, episode.command))
        if robot.ground is not None:
            lane = went_on(xp, episode.lane, facts.velocity, episode.command, robot.control_seconds)
            after = after.replace(lane=lane)
        seen = after.readings[..., 0, :]
        if self.randomised:  # of this step, of the last, or of the one before
            delay = state.domain.sensor_delay[..., None]
            old = xp.where(delay == 1, episode.readings[..., 0, :], episode.readings[..., 1, :])
            seen = xp.where(delay == 0, seen, old)
        if self.task.history:
            frame = self._frame(seen, action)[..., None, :]
            past = xp.concatenate([frame, episode.past[..., :-1, :]], axis=-2)
            after = after.replace(past=past)
        state = state.replace(episode=after)
        obs = self._observe(state, force, facts, seen)
        info = Info(
            reading=reading,
            terms=terms,
            command=episode.command[..., 0],
            velocity=facts.velocity[..., 0],
            height=reading.qpos[..., 2],
            contact=facts.contact,
            fell=fell,
            diverged=diverged,
            level=() if robot.ground is None else episode.lane.level,
        )
        truncated = step >= rules.horizon
        if robot.ground is not None:
            truncated = truncated | robot.ground.left(xp, reading.qpos[..., :2])
        truncated = truncated & ~fell
        return state, TimeStep(obs, reward.astype(np.float32), fell, truncated, obs, info)

    def look(self, state: RobotState) -> Observation:
        """What is seen in the first moment of an episode, without noise."""
        facts = self._facts(state.episode, state.physics.reading, state.episode.action, None)
        force = self.xp.zeros_like(state.episode.push.force)
        return self._observe(state, force, facts, state.episode.readings[..., 0, :])

    def _each(self, values: dict[str, float]) -> np.ndarray:
        """(6 + 2 n,) of what is sensed: a number for each of its parts, repeated."""
        n = self.robot.num_joints
        sizes = {"gravity": 3, "turning": 3, "joints": n, "joint_speeds": n}
        return np.repeat(list(values.values()), [sizes[x] for x in values]).astype(np.float32)

    def _sensed(self, facts: Facts, domain: Domain) -> Array:
        """What the sensors say (..., 6 + 2 n), without noise but with what they are wrong by."""
        wrong = (domain.bias, domain.offset, self.xp.zeros_like(domain.offset))
        exact = (facts.gravity, facts.turning, facts.joints, facts.joint_speeds)
        return self.xp.concatenate(exact, axis=-1) + self.xp.concatenate(wrong, axis=-1)

    def _frame(self, seen: Array, action: Array) -> Array:
        """(..., 6 + 3 n) what a policy sees later of a step."""
        parts = [seen * self._each(SCALES), action]
        return self.xp.concatenate(parts, axis=-1).astype(np.float32)

    def _observe(self, state: RobotState, force: Array, facts: Facts, seen: Array) -> Observation:
        """seen: what the sensors said (..., 6 + 2 n), noise and delay included."""
        xp, episode, domain = self.xp, state.episode, state.domain
        angle = 2.0 * math.pi * episode.phase
        walking = gait.walks(xp, episode.command)[..., None]
        clock = xp.where(walking, xp.stack([xp.sin(angle), xp.cos(angle)], axis=-1), 0.0)
        scales, asked = self._each(SCALES), slice(self.task.directions)
        known = xp.concatenate([episode.action, episode.command[..., asked], clock], axis=-1)
        policy = [seen * scales, known]
        if self.task.history:  # the last first
            past = episode.past[..., 1:, :]
            policy.append(past.reshape(*past.shape[:-2], math.prod(past.shape[-2:])))
        policy = xp.concatenate(policy, axis=-1)
        dynamics, delay = domain.dynamics, domain.action_delay + domain.sensor_delay
        world = (dynamics.friction - 1.0, dynamics.mass - 1.0, dynamics.strength - 1.0, delay)
        hidden = [
            facts.velocity,
            state.physics.reading.qvel[..., 2:3],
            (facts.speed - episode.command)[..., asked],
            facts.height[..., None],
            facts.foot_height,
            facts.contact.astype(np.float32),
            0.1 / self.robot.weight_scale * force,
            xp.stack(world, axis=-1).astype(np.float32),
        ]
        if self.robot.ground is not None:
            reading = state.physics.reading
            heading = yaw(xp, reading.sensors[..., self.robot.orientation])
            hidden.append(self.robot.ground.scan(xp, reading.qpos[..., :2], heading))
        exact = self._sensed(facts, domain) * scales
        privileged = xp.concatenate([exact, known, *hidden], axis=-1)
        return Observation(policy.astype(np.float32), privileged.astype(np.float32))

    def _facts(
        self, episode: Episode, reading: Reading, action: Array, target: Array | None
    ) -> Facts:
        robot, parts = self.robot, sensed(self.xp, self.robot, reading)
        velocity, touch = parts.pop("velocity")[..., :2], parts.pop("touch")
        home = robot.home_joints.astype(np.float32)
        moved = parts.pop("feet") - episode.feet
        apart = parts.pop("feet_apart") / np.float32(robot.home_foot_distance)
        now = self.xp.concatenate([velocity, parts["turning"][..., 2:]], axis=-1)
        memory = robot.control_seconds / (MEMORY_SECONDS * robot.time_scale)
        return Facts(
            **parts,
            command=episode.command,
            velocity=velocity,
            speed=episode.speed + memory * (now - episode.speed),
            target=parts["joints"] if target is None else target - home,
            action=action,
            last_action=episode.action,
            foot_velocity=moved / np.float32(robot.control_seconds),
            feet_apart=apart,
            contact=touch > TOUCH * robot.weight_scale,
            phase=episode.phase,
            walking=gait.walks(self.xp, episode.command),
            sideways=robot.sideways,
        )

    def _scaled(self, facts: Facts) -> Facts:
        """What a robot of the biped's size would have done in the place of this one."""
        length, time = self.robot.length_scale, self.robot.time_scale
        if length == 1.0:
            return facts
        return facts._replace(
            command=self._at_biped_size(facts.command),
            speed=self._at_biped_size(facts.speed),
            velocity=facts.velocity / time,
            height=facts.height / length,
            turning=facts.turning * time,
            joint_speeds=facts.joint_speeds * time,
            foot_height=facts.foot_height / length,
            foot_velocity=facts.foot_velocity / time,
        )

    def _at_biped_size(self, command: Array) -> Array:
        """Speeds, m/s, and a yaw rate, rad/s, for a robot of the biped's size."""
        time = self.robot.time_scale
        return command * np.array([1.0 / time, 1.0 / time, time], np.float32)

    # One world ---------------------------------------------------------------------------------

    def reset(self, key: Key, params: Params) -> tuple[RobotState, TimeStep]:
        return _first(self.reset_many(key[None], params))

    def step(
        self, key: Key, state: RobotState, action: Array, params: Params
    ) -> tuple[RobotState, TimeStep]:
        state, action = jax.tree.map(lambda x: x[None], (state, action))
        return _first(self.step_many(key[None], state, action, params))

    @property
    def renderers(self) -> dict[str, Any]:
        """What Gymnasium draws: by our own means, which need no graphics card."""
        return {"rgb_array": self._drawn}

    def gymnasium_metadata(self, env: PureEnv) -> dict[str, Any]:
        return {"render_fps": self.robot.control_hz}

    def _drawn(self, state: RobotState, params: Params) -> np.ndarray:
        """A picture of one robot, uint8 (height, width, 3)."""
        from worldloom.suites.robot.drawing import drawings
        from worldloom.suites.robot.shapes import moving_shapes

        moving = moving_shapes(self.robot, np.asarray(state.physics.reading.qpos)[None])
        return np.asarray(next(drawings(moving, PICTURE, [0])))

    def describe(self) -> dict[str, Any]:
        """Static facts, for tables."""
        return {
            "name": self.spec.name,
            "size": f"{self.robot.mass:.1f} kg",
            "agents": 1,
            "actions": list(self.robot.joints),
        }


def is_valid(xp: Any, reading: Reading) -> Array:
    """Whether a simulation (...) has not diverged; NaN is below no bound."""
    qpos, qvel = xp.abs(reading.qpos), xp.abs(reading.qvel)
    return (qpos < BEYOND_SENSE).all(-1) & (qvel < BEYOND_SENSE).all(-1)


def _uniform(keys: Key, count: int) -> Array:
    return jax.vmap(lambda key: draws.uniform(key, (count,)))(keys)


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[0], tree)
