"""What happened to one robot in one episode, in plain numpy: what films and replays are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.suites.robot.model import CONTROL_SECONDS

if TYPE_CHECKING:
    from worldloom.suites.robot.world import RobotWorld

Act = Callable[[Any], Any]  # observations (1, size) of the policy to actions (1, n)


@dataclass(frozen=True, eq=False)
class Recording:
    """T steps of control; row t is what was read after step t and what was asked for in it."""

    qpos: np.ndarray  # (T, nq)
    target: np.ndarray  # (T, n) of the servos, rad
    terms: np.ndarray  # (T, k) what each term of the reward was worth a second, weight included
    names: tuple[str, ...]  # (k) of the terms
    velocity: np.ndarray  # (T,) forward, m/s
    command: np.ndarray  # (T,) the forward speed that was asked for, m/s
    contact: np.ndarray  # (T, 2) bool: left and right foot
    fell: bool = False  # in the last step
    diverged: bool = False  # likewise: the simulation had diverged
    seconds: float = CONTROL_SECONDS  # from row to row

    def __post_init__(self):
        steps = len(self.qpos)
        if steps == 0:
            raise ValueError("Recording: it has no steps; record at least one")
        for name in ("target", "terms", "velocity", "command", "contact"):
            if len(getattr(self, name)) != steps:
                raise ValueError(
                    f"Recording: {name} has {len(getattr(self, name))} rows, qpos has {steps}; "
                    "all must be of one length"
                )
        if self.terms.shape[1:] != (len(self.names),):
            raise ValueError(
                f"Recording: terms of shape {self.terms.shape} for {len(self.names)} names"
            )

    def __len__(self) -> int:
        return len(self.qpos)

    @property
    def duration(self) -> float:
        """Seconds from the first row to the last."""
        return (len(self) - 1) * self.seconds


def record_episode(world: "RobotWorld", act: Act, seed: int, steps: int) -> Recording:
    """Plays one episode of at most `steps` and writes it down.

    `act` takes what a policy may see, (1, size) float32, and returns actions (1, n); it may be
    compiled or plain Python. The same seed is the same start and the same noise.
    """
    if steps < 1:
        raise ValueError(f"record_episode: steps={steps}; record at least one")
    params = world.default_params()
    rules, robot = params.rules, world.robot

    @jax.jit
    def begin(key: Any) -> Any:
        state, timestep = world.reset_many(key[None], params)
        return state, timestep.obs.state

    @jax.jit
    def advance(key: Any, state: Any, action: Any) -> Any:
        _, target, _ = world.task.drive(jnp, robot, rules, state.episode, state.domain, action)
        state, timestep = world.step_many(key[None], state, action, params)
        info = timestep.info
        row = {
            "qpos": state.physics.reading.qpos,
            "target": target,
            "terms": info.terms * rules.weights,
            "velocity": info.velocity,
            "command": info.command,
            "contact": info.contact,
        }
        ends = {"fell": info.fell, "diverged": info.diverged, "over": timestep.truncated}
        return state, timestep.obs.state, jax.tree.map(lambda x: x[0], (row, ends))

    reset_key, play_key = draws.split(jax.random.key(seed))
    state, obs = begin(reset_key)
    rows, ends = [], {}
    for key in draws.split(play_key, steps):
        action = np.asarray(act(np.asarray(obs)), np.float32)
        state, obs, (row, ends) = advance(key, state, action)
        rows.append(row)
        if any(ends.values()):
            break
    columns: dict[str, Any] = {
        name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]
    }
    return Recording(
        **columns,
        names=world.task.terms,
        fell=bool(ends["fell"]),
        diverged=bool(ends["diverged"]),
    )
