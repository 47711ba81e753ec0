"""What happened to one robot in one episode, in plain numpy: what films and replays are made of."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.suites.robot.engines import LoopEngine
from worldloom.suites.robot.forces import Forces, read_forces
from worldloom.suites.robot.model_checks import CONTROL_HZ
from worldloom.suites.robot.types import Dynamics, Physics, Reading

if TYPE_CHECKING:
    from worldloom.suites.robot.world import RobotWorld


@dataclass(frozen=True, eq=False)
class Recording:
    """T steps of control; row t is what was read after step t and what was asked for in it.

    Pushes and forces may be missing: who makes a recording by other means need not know them.
    """

    qpos: np.ndarray  # (T, nq)
    target: np.ndarray  # (T, n) of the servos, rad
    terms: np.ndarray  # (T, k) what each term of the reward was worth a second, weight included
    velocity: np.ndarray  # (T,) forward, m/s
    command: np.ndarray  # (T,) the forward speed that was asked for, m/s
    contact: np.ndarray  # (T, 2) bool: left and right foot
    names: tuple[str, ...]  # (k) of the terms
    fell: bool = False  # in the last step
    diverged: bool = False  # likewise: the simulation had diverged
    seconds: float = 1.0 / CONTROL_HZ  # of a step
    push: np.ndarray | None = None  # (T, 2) on the base, along the world's x and y, N
    torque: np.ndarray | None = None  # (T, n) of the servos, Nm
    force: np.ndarray | None = None  # (T, 2, 3) of contacts on the feet, in the world's frame, N
    pressure: np.ndarray | None = None  # (T, 2, 3) the centre of pressure of each, m

    def __len__(self) -> int:
        return len(self.qpos)

    @property
    def total(self) -> float:
        """The return: the sum of all rewards."""
        return float(self.terms.sum() * self.seconds)


def record_episode(
    world: "RobotWorld", act: Callable[[Any], Any], seed: int, steps: int
) -> Recording:
    """Plays one episode of at most `steps` and writes it down; see `record_episodes`."""
    return record_episodes(world, act, [seed], steps)[0]


def record_episodes(
    world: "RobotWorld", act: Callable[[Any], Any], seeds: Sequence[int], steps: int
) -> list[Recording]:
    """Plays an episode of at most `steps` from each of E seeds, side by side, and writes them down.

    `act` takes observations of E worlds (E, ...) and returns actions (E, n); it may be compiled
    or plain Python. The same seed is the same start and the same noise.
    """
    if steps < 1:
        raise ValueError(f"record_episode: steps={steps}; record at least one")
    params = world.params

    @jax.jit
    def advance(keys: Any, state: Any, action: Any) -> Any:
        _, target, push = world.drive(params.rules, state, action)
        state, timestep = world.step_many(keys, state, action, params)
        info = timestep.info
        row = {
            "qpos": state.physics.reading.qpos,
            "target": target,
            "terms": info.terms * params.rules.weights,
            "velocity": info.velocity,
            "command": info.command,
            "contact": info.contact,
            "push": push,
        }
        ends = {"fell": info.fell, "diverged": info.diverged, "over": timestep.truncated}
        return state, timestep.obs, row, ends

    keys = [draws.split(jax.random.key(seed)) for seed in seeds]
    play_keys = jnp.stack([draws.split(play, steps) for _, play in keys], axis=1)
    state, first = jax.jit(world.reset_many)(jnp.stack([reset for reset, _ in keys]), params)
    obs, loop = first.obs, LoopEngine(world.robot)
    dynamics = jax.tree.map(np.asarray, state.domain.dynamics) if world.randomised else None
    rows: list[list[dict[str, Any]]] = [[] for _ in seeds]
    last: list[dict[str, Any]] = [{} for _ in seeds]
    for step_keys in play_keys:
        before = world.engine.unpack(state.physics.full)
        state, obs, row, ends = advance(step_keys, state, np.asarray(act(obs), np.float32))
        row, ends = jax.tree.map(np.asarray, (row, ends))
        for i in range(len(seeds)):
            if not any(last[i].values()):  # else it is over, whatever its world does now
                begun, row_i, dynamics_i, last[i] = jax.tree.map(
                    operator.itemgetter(slice(i, i + 1)), (before, row, dynamics, ends)
                )
                rows[i].append(row_i | _forces(loop, begun, row_i, dynamics_i, last[i]["diverged"]))
        if all(any(ends.values()) for ends in last):
            break
    return [
        Recording(
            **{name: np.concatenate([row[name] for row in some]) for name in some[0]},
            names=world.task.terms,
            fell=bool(ends["fell"][0]),
            diverged=bool(ends["diverged"][0]),
            seconds=world.robot.control_seconds,
        )
        for some, ends in zip(rows, last, strict=True)
    ]


def _forces(
    loop: LoopEngine,
    begun: np.ndarray,
    row: dict[str, Any],
    dynamics: Dynamics | None,
    diverged: Any,
) -> dict[str, np.ndarray]:
    """What acted on a robot in a step (1, ...): the step is done again by MuJoCo, which tells all.

    No engine keeps contact forces or torques with its states: of all readers this is the only one
    who wants them. Where the simulation diverged there is nothing to believe: zeros.
    """
    n = loop.robot.num_joints
    read = Forces(np.zeros(n), np.zeros((2, 3)), np.zeros((2, 3)))
    if not diverged:
        nq, nv = loop.model.nq, loop.model.nv
        qpos, qvel, warmstart = np.split(begun, [nq, nq + nv], axis=-1)
        start = Physics(loop.pack(qpos, qvel, warmstart), Reading(qpos, qvel, np.zeros((1, 0))))
        loop.step(start, row["target"], row["push"], dynamics)
        read = read_forces(loop.robot, loop.model, loop.data)
    return {name: x[None] for name, x in read._asdict().items()}
