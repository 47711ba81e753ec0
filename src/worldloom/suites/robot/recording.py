"""What happened to one robot in one episode, in plain numpy: what films and replays are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from worldloom.core import draws

if TYPE_CHECKING:
    from worldloom.suites.robot.world import RobotWorld


@dataclass(frozen=True, eq=False)
class Recording:
    """T steps of control; row t is what was read after step t and what was asked for in it."""

    qpos: np.ndarray  # (T, nq)
    target: np.ndarray  # (T, n) of the servos, rad
    terms: np.ndarray  # (T, k) what each term of the reward was worth a second, weight included
    velocity: np.ndarray  # (T,) forward, m/s
    command: np.ndarray  # (T,) the forward speed that was asked for, m/s
    contact: np.ndarray  # (T, 2) bool: left and right foot
    names: tuple[str, ...]  # (k) of the terms
    fell: bool = False  # in the last step
    diverged: bool = False  # likewise: the simulation had diverged

    def __len__(self) -> int:
        return len(self.qpos)


def record_episode(
    world: "RobotWorld", act: Callable[[Any], Any], seed: int, steps: int
) -> Recording:
    """Plays one episode of at most `steps` and writes it down.

    `act` takes observations of one world (1, ...) and returns actions (1, n); it may be compiled
    or plain Python. The same seed is the same start and the same noise.
    """
    if steps < 1:
        raise ValueError(f"record_episode: steps={steps}; record at least one")
    params = world.params

    @jax.jit
    def advance(key: Any, state: Any, action: Any) -> Any:
        _, target, _ = world.drive(params.rules, state, action)
        state, timestep = world.step_many(key[None], state, action, params)
        info = timestep.info
        row = {
            "qpos": state.physics.reading.qpos,
            "target": target,
            "terms": info.terms * params.rules.weights,
            "velocity": info.velocity,
            "command": info.command,
            "contact": info.contact,
        }
        ends = {"fell": info.fell, "diverged": info.diverged, "over": timestep.truncated}
        return state, timestep.obs, jax.tree.map(lambda x: x[0], (row, ends))

    reset_key, play_key = draws.split(jax.random.key(seed))
    state, first = jax.jit(world.reset_many)(reset_key[None], params)
    obs, rows, ends = first.obs, [], {}
    for key in draws.split(play_key, steps):
        state, obs, (row, ends) = advance(key, state, np.asarray(act(obs), np.float32))
        rows.append(row)
        if any(ends.values()):
            break
    columns: dict[str, Any] = jax.tree.map(lambda *x: np.stack(x), *rows)
    fell, diverged = bool(ends["fell"]), bool(ends["diverged"])
    return Recording(**columns, names=world.task.terms, fell=fell, diverged=diverged)
