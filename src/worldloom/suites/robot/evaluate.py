"""Greedy evaluation of robots: whole episodes, and a ladder of pushes of growing size.

Walks are scored by the speed they keep, stances by the pushes they take, beside a robot that
merely holds its home pose.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key, PyTree
from worldloom.suites.robot.features import gait_distance, leg_joints, profile
from worldloom.suites.robot.model import CONTROL_SECONDS
from worldloom.suites.robot.motion import Motion
from worldloom.suites.robot.types import Params
from worldloom.suites.robot.world import RobotWorld
from worldloom.training.evaluate import EpisodeScores, or_random, ratio_error, standard_error

if TYPE_CHECKING:
    from worldloom.training.run import Run

# act(agents, obs, key, explore=...) -> actions (E, n)
Act = Callable[..., Array]

COMMANDS = (0.15, 0.30)  # m/s, spread evenly over the episodes of an evaluation
TOLERANCE = 0.075  # m/s
BINS = 18  # of the phase, over which gaits are compared
SETTLING = round(2.0 / CONTROL_SECONDS)  # steps before a speed counts
# Pushes of so many newtons for so many steps of control, every two to three seconds.
LADDER = (
    (5.0, 10), (6.0, 10), (7.0, 10), (8.0, 10), (10.0, 10),
    (9.0, 15), (12.0, 15), (16.0, 15), (20.0, 15),
)  # fmt: skip


@dataclass(frozen=True)
class Rung:
    """One size of push, and the shares of episodes that it did not end."""

    newtons: float
    steps: int
    survived: float
    held: float  # by the robot that holds its home pose

    @property
    def milliseconds(self) -> int:
        """How long the push lasts."""
        return round(1000 * CONTROL_SECONDS * self.steps)

    def line(self) -> tuple[str, str]:
        """For people."""
        return (
            f"pushed by {self.newtons:g} N for {self.milliseconds} ms",
            f"{self.survived:.0%} stay up; {self.held:.0%} if it only holds its pose",
        )


@dataclass(frozen=True, kw_only=True)
class RobotEvaluation(EpisodeScores):
    """Scores of E episodes; the length of each is up to its fall, or all."""

    command: np.ndarray  # (E,) m/s
    speed: np.ndarray  # (E,) mean forward speed after the first two seconds
    fell: np.ndarray  # (E,) bool
    terms: dict[str, float]  # mean of each term of the reward
    terms_stderr: dict[str, float]
    gait_distance: float | None  # rad, from the reference walk; see `features.gait_distance`
    rungs: tuple[Rung, ...] = ()  # where it was pushed, too

    @property
    def error(self) -> np.ndarray:
        return np.abs(self.speed - self.command)

    @property
    def good(self) -> np.ndarray:
        """(E,) not fallen, and as fast as was asked."""
        return ~self.fell & (self.error <= TOLERANCE)

    def to_dict(self) -> dict[str, Any]:
        scores = super().to_dict() | {
            "survived": float(1.0 - self.fell.mean()),
            "good": float(self.good.mean()),
            "error": float(self.error.mean()),
            "error_stderr": standard_error(self.error),
            "gait_distance": self.gait_distance,
            "terms": self.terms,
            "terms_stderr": self.terms_stderr,
        }
        return scores | ({"pushes": [asdict(rung) for rung in self.rungs]} if self.rungs else {})

    def lines(self) -> dict[str, str]:
        """For people."""
        count = len(self.fell)
        lines = {"stays up": f"{(~self.fell).sum()} of {count} episodes to the end"}
        if self.command.any():
            lines["as fast as asked"] = (
                f"{self.good.sum()} of {count}, within {TOLERANCE:g} m/s; "
                f"{self.error.mean():.3f} m/s off on average"
            )
        lines |= super().lines()
        if self.gait_distance is not None:
            lines["from the reference gait"] = f"{self.gait_distance:.3f} rad"
        return lines | dict(rung.line() for rung in self.rungs)


class RobotEvaluator:
    """Plays whole episodes in `episodes` worlds at once, and counts."""

    def __init__(self, world: RobotWorld, act: Act, episodes: int, reference: Motion | None = None):
        self.world = self.env = world
        self.episodes = episodes
        self._reference = None
        if reference is not None:
            self._reference = profile(world.robot, reference.reading, reference.phase, BINS)
        self._worlds = batch(world, episodes)
        self._play = jax.jit(partial(self._played, act))
        self._hold = jax.jit(partial(self._played, self._hold_home))

    def _hold_home(self, agents: PyTree, obs: Any, key: Key, *, explore: float) -> Array:
        return jnp.zeros((obs.state.shape[0], self.world.robot.num_joints), jnp.float32)

    def _played(
        self, act: Act, agents: PyTree, key: Key, params: Params, at_random: Array | bool = False
    ) -> dict[str, Array]:
        world, task = self.world, self.world.task
        reset_key, play_key = jax.random.split(key)
        state, _ = self._worlds.reset(reset_key, params)
        if task.command != (0.0, 0.0):  # commands spread evenly over the episodes
            command = jnp.linspace(*COMMANDS, self.episodes, dtype=jnp.float32)
            state = state.replace(episode=state.episode.replace(command=command, speed=command))
        obs = world.look(state)
        totals = {
            **dict.fromkeys(("speed", "settled", "returns", "steps"), jnp.zeros(self.episodes)),
            "terms": jnp.zeros((self.episodes, len(task.terms))),
            "angles": jnp.zeros((BINS, world.robot.num_joints)),
            "visits": jnp.zeros(BINS),
        }

        def one(t, carry):
            state, obs, alive, totals = carry
            step_key = jax.random.fold_in(play_key, t)
            act_key = jax.random.fold_in(step_key, 1)
            action = act(agents, obs, act_key, explore=0.0)
            action = or_random(action, at_random, world.spec.action, act_key)
            state, after = self._worlds.step(step_key, state, action, params)
            counted = alive * (t >= SETTLING)
            joints = after.info.reading.qpos[:, world.robot.joint_qpos]
            bins = jnp.arange(BINS) == jnp.floor(state.episode.phase * BINS)[:, None]
            bins = bins * counted[:, None]
            new = {
                "angles": bins.T @ joints,
                "visits": bins.sum(0),
                "speed": counted * after.info.velocity,
                "settled": counted,
                "returns": alive * after.reward,
                "steps": alive,
                "terms": alive[:, None] * after.info.terms,
            }
            totals = jax.tree.map(jnp.add, totals, new)
            return state, after.obs, alive * ~after.terminated, totals

        carry = (state, obs, jnp.ones(self.episodes), totals)
        _, _, alive, totals = jax.lax.fori_loop(0, params.rules.horizon, one, carry)
        return totals | {"alive": alive, "command": state.episode.command}

    def __call__(self, agents: PyTree, key: Key, at_random: bool = False) -> RobotEvaluation:
        start = time.perf_counter()
        result = self._play(agents, key, self.world.params, at_random)
        played = jax.tree.map(np.asarray, result)
        steps, names = played["steps"], self.world.task.terms
        terms = played["terms"].sum(0) / steps.sum()
        errors = ratio_error(played["terms"], steps)
        distance = None
        if self._reference is not None and played["visits"].all():
            mean = played["angles"] / played["visits"][:, None]
            distance = gait_distance(mean[:, leg_joints(self.world.robot)], self._reference)
        return RobotEvaluation(
            command=played["command"],
            speed=played["speed"] / np.maximum(played["settled"], 1.0),
            lengths=steps.astype(int),
            fell=played["alive"] == 0.0,
            returns=played["returns"],
            terms={n: float(x) for n, x in zip(names, terms, strict=True)},
            terms_stderr={n: float(x) for n, x in zip(names, errors, strict=True)},
            gait_distance=distance,
            seconds=time.perf_counter() - start,
        )

    def ladder(self, agents: PyTree, key: Key) -> tuple[Rung, ...]:
        """Pushes from small to large, for the robot and for one that holds its home pose."""
        rungs = []
        for newtons, steps in LADDER:
            rules = self.world.params.rules.replace(
                push_force=jnp.array([newtons, newtons], jnp.float32),
                push_steps=jnp.int32(steps),
                push_pause=jnp.array([100, 150], jnp.int32),
            )
            params = self.world.params.replace(rules=rules)
            survived, held = (
                float(np.asarray(play(agents, key, params, False)["alive"]).mean())
                for play in (self._play, self._hold)
            )
            rungs.append(Rung(newtons, steps, survived, held))
        return tuple(rungs)


def push_ladder(run: "Run", episodes: int | None = None, seed: int = 0) -> tuple[Rung, ...]:
    """The pushes that the robot of a run takes, in new episodes."""
    if run.suite.name != "robot":
        raise ValueError(f"{run.folder} is a run of {run.config.env}, which is no robot to push")
    evaluator: Any = run.problem.make_evaluator(run.trainer, episodes or run.config.eval_episodes)
    return evaluator.ladder(run.agents, jax.random.key(seed))
