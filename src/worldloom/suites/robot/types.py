"""The records of the robot suite. Leaves are arrays of numpy or JAX, with any leading axes.

n is the number of joints. Floats are float32 everywhere but in an engine's own state.
"""

from typing import Any

from flax import struct

Array = Any  # of numpy or JAX


class Reading(struct.PyTreeNode):
    """What an engine tells after a step of control.

    As after `mj_step`, `sensors` describe the instant before the last step of the engine.
    """

    qpos: Array  # (..., nq)
    qvel: Array  # (..., nv)
    sensors: Array  # (..., ns)


class Physics(struct.PyTreeNode):
    """A robot in an engine: `full` is what the engine needs to go on, in a form of its own."""

    full: Array
    reading: Reading


class Dynamics(struct.PyTreeNode):
    """How the physics of a world differ from the model."""

    friction: Array  # (...,) factor on the friction of soles and floor
    mass: Array  # (...,) factor on the masses of all bodies
    strength: Array  # (...,) factor on the stiffness of the servos
    damping: Array  # (...,) factor on the damping of joints and servos
    com: Array  # (..., 3) by which the centres of mass of base and trunk are off, m


class Domain(struct.PyTreeNode):
    """How this world differs from the model: drawn at a reset, kept for an episode."""

    dynamics: Dynamics
    offset: Array  # (..., n) what the joint encoders are wrong by, rad
    bias: Array  # (..., 6) what gravity and gyro are wrong by
    action_delay: Array  # (...,) int32, steps of control until a target reaches the servos
    sensor_delay: Array  # (...,) int32, steps of control until a reading is seen


class Push(struct.PyTreeNode):
    """A horizontal force on the base from step `start` on."""

    start: Array  # (...,) int32
    force: Array  # (..., 2) N, in the world's x and y


class Lane(struct.PyTreeNode):
    """Where a robot is on uneven ground, and how far it got."""

    level: Array  # (...,) int32; 0 is flat
    kind: Array  # (...,) int32, among the ground's kinds
    asked: Array  # (...,) m, the way that was asked for until now
    walked: Array  # (...,) m, what it made of that


class Episode(struct.PyTreeNode):
    """What a task remembers from step to step."""

    step: Array  # (...,) int32, steps of control since the start
    phase: Array  # (...,) of the gait, in cycles, 0 to 1
    command: Array  # (..., 3) forward and sideways (left) speed to keep, m/s, and yaw rate, rad/s
    speed: Array  # (..., 3) the same of the robot, averaged over about half a second
    action: Array  # (..., n) the last action, clipped
    earlier: Array  # (..., n) the one before
    readings: (
        Array  # (..., 2, 6 + 2 n) what the sensors said in the last step, and in the one before
    )
    feet: Array  # (..., 2, 3) where they were
    push: Push
    past: Array = ()  # (..., 1 + history, 6 + 3 n) what was seen, and done; of this step first
    lane: Any = ()  # a Lane, on uneven ground


class RobotState(struct.PyTreeNode):
    """One world: the robot in its engine, the episode, and how this world differs."""

    physics: Physics
    episode: Episode
    domain: Domain


class Observation(struct.PyTreeNode):
    """What a policy may see, and what a critic may see besides in training.

    The names are those by which Brax tells them apart.
    """

    state: Array
    privileged_state: Array


class Info(struct.PyTreeNode):
    """What a step came to; `terms` are the parts of the reward, as in the task's table."""

    reading: Reading
    terms: Array  # (..., terms)
    command: Array  # (...,) the forward speed that was asked for, m/s
    velocity: Array  # (...,) forward, m/s
    height: Array  # of the base, m
    contact: Array  # (..., 2) bool
    fell: Array
    diverged: Array  # the simulation is no longer finite; the world starts anew
    level: Array = ()  # (...,) of uneven ground


class Starts(struct.PyTreeNode):
    """States to begin an episode in, computed once: a reset is a row of this table."""

    physics: Physics  # (N, ...)
    phase: Array  # (N,)


class Rules(struct.PyTreeNode):
    """The numbers of a task: all may be traced, changed between calls, and mapped over."""

    weights: Array  # (terms,) of the reward, in the order of the task's table
    command: Array  # (2,) lowest and highest forward speed to ask for, m/s
    sideways: Array  # (2,) the same to the left, m/s
    turn: Array  # (2,) the same of the yaw rate, rad/s
    still: Array  # the share of commands that are to stand
    resample: Array  # mean steps of control until there is another command; 0: never
    pace: Array  # how much faster the gait's clock runs at a speed of PACE_SPEED than at none
    push_force: Array  # (2,) least and most, N; 0 for none
    push_steps: Array  # how long a push lasts, steps of control
    push_pause: Array  # (2,) fewest and most steps from one push to the next
    noise: Array  # factor on the noise of sensors; 0 for none
    bias: Array  # factor on the part of that which stays the same for an episode
    randomise: Array  # factor on how far a world may differ from the model; 0 for not at all
    friction: Array  # how far, at a factor of 1: half-widths of uniform factors
    mass: Array
    strength: Array
    damping: Array
    com: Array  # m
    offset: Array  # rad
    latency: Array  # (2,) fewest and most steps of control from a reading to the servos
    levels: Array  # (2,) lowest and highest level of uneven ground to begin on
    climb: Array  # 1: levels follow from how far a robot got; 0: they are drawn for each episode
    horizon: Array  # steps of control until time runs out


class Params(struct.PyTreeNode):
    """What a compiled world takes as an argument: its rules and its starts."""

    rules: Rules
    starts: Starts
