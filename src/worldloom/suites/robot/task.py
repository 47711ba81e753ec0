"""The tasks, written once over an array library `xp` (numpy or jax.numpy) for every engine.

Each function works on any leading axes. Whatever is left to chance comes in as uniform numbers, so
that two engines, or two array libraries, can be given the same noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import jax
import numpy as np

from worldloom.core.names import suggest
from worldloom.core.types import TimeStep
from worldloom.suites.robot import gait, rewards
from worldloom.suites.robot.features import feet, sensed
from worldloom.suites.robot.model import CONTROL_SECONDS, Robot
from worldloom.suites.robot.types import (
    Array,
    Domain,
    Episode,
    Info,
    Observation,
    Push,
    Reading,
    RobotState,
    Rules,
    Starts,
)

MEMORY = CONTROL_SECONDS / 0.5  # of the averaged speed: about half a second
TOUCH = 0.5  # N on a foot that count as a contact
LOWEST, HIGHEST = 0.65, 1.35  # of the home height, outside of which a robot has fallen
LEAST_UPRIGHT = math.cos(0.8)  # rad of tilt
# m, rad, m/s and rad/s: no robot comes near it in an episode, only a simulation that has diverged.
# That is seen long before it overflows: the square of 1e20, still finite, is a reward of -inf.
BEYOND_SENSE = 1e3

# Noise of sensors, and how far worlds differ, at a factor of 1: half-widths of uniform draws.
NOISE = {"gravity": 0.03, "turning": 0.15, "joints": 0.02, "joint_speeds": 0.5}
# What is sensed is multiplied by these before anybody sees it.
SCALES = {"gravity": 1.0, "turning": 0.25, "joints": 1.0, "joint_speeds": 0.1}
DIFFERENCES = {"friction": 0.4, "mass": 0.1, "strength": 0.1, "offset": 0.02}


@dataclass(frozen=True)
class Task:
    """A task: `table` gives the terms of the reward and their weights."""

    name: str
    table: Mapping[str, float]
    command: tuple[float, float] = (0.0, 0.0)
    still: float = 0.0
    push_force: tuple[float, float] = (0.0, 0.0)
    push_steps: int = 6
    push_pause: tuple[int, int] = (75, 200)
    horizon: int = 1000

    def __post_init__(self):
        for name in self.table:
            if not isinstance(getattr(rewards, name, None), type(rewards.alive)):
                raise ValueError(f"{self.name}: there is no reward term {name!r}")

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(self.table)

    @cached_property
    def _functions(self) -> tuple[rewards.Term, ...]:
        return tuple(getattr(rewards, name) for name in self.table)

    def rules(self, **changes: Any) -> Rules:
        """The numbers of the task; `changes` by the names of `Rules`, or weights by name."""
        weights = dict(self.table)
        for name in list(changes):
            if name in weights:
                weights[name] = changes.pop(name)
        names = [rule.name for rule in fields(Rules) if rule.name != "weights"]
        numbers = {name: getattr(self, name, 0.0) for name in names}  # without noise, all alike
        for name in changes:
            if name not in numbers:
                hint = suggest(name, [*numbers, *weights])
                raise ValueError(f"{self.name} has no option {name!r}; {hint}")
        numbers |= changes
        whole = {"push_steps", "push_pause", "horizon"}
        return Rules(
            weights=np.array(list(weights.values()), np.float32),
            **{
                name: np.asarray(value, np.int32 if name in whole else np.float32)
                for name, value in numbers.items()
            },
        )

    # Chance ------------------------------------------------------------------------------------

    @staticmethod
    def reset_draws(robot: Robot) -> int:
        """How many uniform numbers `begin` takes."""
        return 10 + robot.num_joints

    @staticmethod
    def step_draws(robot: Robot) -> int:
        """How many uniform numbers `finish` takes."""
        return 9 + 2 * robot.num_joints

    # An episode --------------------------------------------------------------------------------

    def begin(
        self, xp: Any, robot: Robot, rules: Rules, starts: Starts, uniform: Array
    ) -> tuple[RobotState, TimeStep]:
        """New episodes from uniform numbers (..., reset_draws), seen without noise."""
        u, num_starts = uniform, len(starts.phase)
        row = xp.minimum((u[..., 0] * num_starts).astype(np.int32), num_starts - 1)
        low, high = rules.command[..., 0], rules.command[..., 1]
        command = xp.where(u[..., 1] < rules.still, 0.0, low + (high - low) * u[..., 2])
        command = command.astype(np.float32)

        def factor(name: str, number: Array) -> Array:
            return 1.0 + rules.randomise * DIFFERENCES[name] * (2.0 * number - 1.0)

        domain = Domain(
            friction=factor("friction", u[..., 6]),
            mass=factor("mass", u[..., 7]),
            strength=factor("strength", u[..., 8]),
            offset=rules.randomise * DIFFERENCES["offset"] * (2.0 * u[..., 10:] - 1.0),
            late=(u[..., 9] < 0.5) & (rules.randomise > 0.0),
        )
        start: Starts = jax.tree.map(lambda x: x[row], starts)
        reading = start.physics.reading
        episode = Episode(
            step=xp.zeros_like(row),
            phase=start.phase,
            command=command,
            speed=command,
            action=xp.zeros_like(reading.qpos[..., robot.joint_qpos]),
            feet=feet(xp, robot, reading),
            push=_draw_push(xp, rules, xp.zeros_like(row), u[..., 3:6]),
        )
        obs = self.look(xp, robot, episode, domain, reading)
        no, zero = xp.zeros_like(row, bool), xp.zeros_like(command)
        info = Info(
            reading=reading,
            terms=xp.zeros((*zero.shape, len(self.terms)), np.float32),
            command=command,
            velocity=zero,
            height=reading.qpos[..., 2],
            contact=xp.ones((*zero.shape, 2), bool),
            fell=no,
            diverged=no,
        )
        return RobotState(start.physics, episode, domain), TimeStep(obs, zero, no, no, obs, info)

    def drive(
        self, xp: Any, robot: Robot, rules: Rules, episode: Episode, domain: Domain, action: Array
    ) -> tuple[Array, Array, Array]:
        """The action clipped, the targets (..., n) that it stands for, and a push (..., 2), N."""
        action = xp.clip(xp.nan_to_num(action), -1.0, 1.0)
        used = xp.where(domain.late[..., None], episode.action, action)
        home, scale = robot.home_joints.astype(np.float32), robot.action_scale.astype(np.float32)
        low, high = robot.lower.astype(np.float32), robot.upper.astype(np.float32)
        target = xp.clip(home + scale * used, low, high)
        since = episode.step - episode.push.start
        pushed = (since >= 0) & (since < rules.push_steps)
        force = xp.where(pushed[..., None], episode.push.force, 0.0)
        return action, target, force

    def finish(
        self,
        xp: Any,
        robot: Robot,
        rules: Rules,
        episode: Episode,
        domain: Domain,
        action: Array,
        reading: Reading,
        diverged: Array,
        uniform: Array,
    ) -> tuple[Episode, TimeStep]:
        """Judges a step of control from what was read after it and what was done.

        `action` is as `drive` clipped it; where the simulation `diverged`, `reading` is that of
        the step before. Uniform numbers (..., step_draws) are for noise, and for the next push.
        """
        _, target, force = self.drive(xp, robot, rules, episode, domain, action)
        walking = episode.command > 0.0
        later = gait.advance(xp, episode.phase, CONTROL_SECONDS)
        phase = xp.where(walking, later, episode.phase)
        facts = _facts(xp, robot, episode.replace(phase=phase), reading, action, target)
        terms = xp.stack([term(xp, facts) for term in self._functions], axis=-1)
        tall = (1.0 + facts.height / robot.home_height).astype(np.float32)
        level = -facts.gravity[..., 2]
        fell = (tall < LOWEST) | (tall > HIGHEST) | (level < LEAST_UPRIGHT) | diverged
        reward = xp.where(diverged, 0.0, (rules.weights * terms).sum(-1) * CONTROL_SECONDS)
        step = episode.step + 1
        over = step >= episode.push.start + rules.push_steps
        again = _draw_push(xp, rules, step, uniform[..., :3])
        push = Push(
            start=xp.where(over, again.start, episode.push.start),
            force=xp.where(over[..., None], again.force, episode.push.force),
        )
        after = episode.replace(
            step=step,
            phase=phase,
            speed=facts.speed,
            action=action,
            feet=feet(xp, robot, reading),
            push=push,
        )
        noise = rules.noise * (2.0 * uniform[..., 3:] - 1.0)
        obs = self._observe(xp, robot, after, domain, reading, force, facts, noise)
        info = Info(
            reading=reading,
            terms=terms,
            command=episode.command,
            velocity=facts.velocity[..., 0],
            height=reading.qpos[..., 2],
            contact=facts.contact,
            fell=fell,
            diverged=diverged,
        )
        truncated = (step >= rules.horizon) & ~fell
        return after, TimeStep(obs, reward.astype(np.float32), fell, truncated, obs, info)

    # Seeing ------------------------------------------------------------------------------------

    def observation_size(self, robot: Robot) -> tuple[int, int]:
        """How many numbers a policy sees, and how many a critic."""
        state = sum(size for _, size in self.layout(robot))
        return state, state + 12

    def layout(self, robot: Robot) -> tuple[tuple[str, int], ...]:
        """What a policy sees, in order: names and how many numbers each."""
        n = robot.num_joints
        return (
            ("gravity", 3),
            ("turning", 3),
            ("joints", n),
            ("joint_speeds", n),
            ("last_action", n),
            ("command", 1),
            ("clock", 2),
        )

    def look(
        self, xp: Any, robot: Robot, episode: Episode, domain: Domain, reading: Reading
    ) -> Observation:
        """What is seen in the first moment of an episode, without noise."""
        facts = _facts(xp, robot, episode, reading, episode.action, None)
        nobody = xp.zeros_like(episode.push.force)
        return self._observe(xp, robot, episode, domain, reading, nobody, facts, None)

    def _observe(
        self,
        xp: Any,
        robot: Robot,
        episode: Episode,
        domain: Domain,
        reading: Reading,
        force: Array,
        facts: rewards.Facts,
        noise: Array | None,
    ) -> Observation:
        n = robot.num_joints
        angle = 2.0 * math.pi * episode.phase
        walking = facts.walking[..., None]
        clock = xp.where(walking, xp.stack([xp.sin(angle), xp.cos(angle)], axis=-1), 0.0)
        sensed = [
            facts.gravity,
            facts.turning,
            facts.joints + domain.offset,
            facts.joint_speeds,
        ]
        exact = xp.concatenate(sensed, axis=-1)
        sizes = [3, 3, n, n]
        widths = np.repeat(list(NOISE.values()), sizes).astype(np.float32)
        noisy = exact if noise is None else exact + widths * noise
        scales = np.repeat(list(SCALES.values()), sizes).astype(np.float32)
        known = xp.concatenate([episode.action, episode.command[..., None], clock], axis=-1)
        state = xp.concatenate([noisy * scales, known], axis=-1)
        hidden = [
            facts.velocity,
            reading.qvel[..., 2:3],
            (facts.speed - episode.command)[..., None],
            facts.height[..., None],
            facts.foot_height,
            facts.contact.astype(np.float32),
            0.1 * force,
            (domain.friction - 1.0)[..., None],
        ]
        privileged = xp.concatenate([exact * scales, known, *hidden], axis=-1)
        return Observation(state.astype(np.float32), privileged.astype(np.float32))


def is_valid(xp: Any, reading: Reading) -> Array:
    """Whether a simulation (...) has not diverged; NaN is below no bound."""
    qpos, qvel = xp.abs(reading.qpos), xp.abs(reading.qvel)
    return (qpos < BEYOND_SENSE).all(-1) & (qvel < BEYOND_SENSE).all(-1)


def _draw_push(xp: Any, rules: Rules, step: Array, uniform: Array) -> Push:
    """A push some steps after `step`, in a random direction."""
    soonest, latest = rules.push_pause[..., 0], rules.push_pause[..., 1]
    pause = soonest + xp.floor(uniform[..., 0] * (latest - soonest)).astype(np.int32)
    least, most = rules.push_force[..., 0], rules.push_force[..., 1]
    size = least + (most - least) * uniform[..., 1]
    angle = 2.0 * math.pi * uniform[..., 2]
    force = size[..., None] * xp.stack([xp.cos(angle), xp.sin(angle)], axis=-1)
    return Push((step + pause).astype(np.int32), force.astype(np.float32))


def _facts(
    xp: Any, robot: Robot, episode: Episode, reading: Reading, action: Array, target: Array | None
) -> rewards.Facts:
    parts = sensed(xp, robot, reading)
    velocity, touch = parts.pop("velocity")[..., :2], parts.pop("touch")
    home = robot.home_joints.astype(np.float32)
    moved = feet(xp, robot, reading) - episode.feet
    return rewards.Facts(
        **parts,
        command=episode.command,
        velocity=velocity,
        speed=episode.speed + MEMORY * (velocity[..., 0] - episode.speed),
        target=parts["joints"] if target is None else target - home,
        action=action,
        last_action=episode.action,
        foot_velocity=moved / np.float32(CONTROL_SECONDS),
        contact=touch > TOUCH,
        phase=episode.phase,
        walking=episode.command > 0.0,
        sideways=robot.sideways,
    )


# The tasks -------------------------------------------------------------------------------------

STAND = Task(
    "stand",
    table={
        "alive": 1.0, "upright": 2.0, "height": 0.5, "steady": 0.05, "posture": 0.5,
        "slip": 0.5, "quiet": 0.002, "smooth": 0.02, "effort": 0.02,
    },
    push_force=(4.0, 14.0),
)  # fmt: skip

WALK = Task(
    "walk",
    table={
        "alive": 0.5, "track": 2.0, "approach": 1.0, "straight": 0.5, "upright": 1.0,
        "steady": 0.03, "height": 0.3, "swing": 1.5, "footing": 1.0, "slip": 0.5,
        "smooth": 0.03, "effort": 0.02, "pose": 1.0,
    },
    command=(0.1, 0.35),
    still=0.05,
)  # fmt: skip

PUSH = Task(
    "push",
    table={**STAND.table, "posture": 0.2, "quiet": 0.001},
    push_force=(5.0, 20.0),
    push_steps=10,
    push_pause=(50, 150),
)

TASKS = {task.name: task for task in (STAND, WALK, PUSH)}


def task_named(name: str) -> Task:
    """One of the tasks."""
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}; {suggest(name, list(TASKS))}")
    return TASKS[name]
