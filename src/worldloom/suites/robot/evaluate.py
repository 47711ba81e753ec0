"""Greedy evaluation of robots: whole episodes, pushes of growing size, worlds that differ.

Walks are scored by where they came to, over the commands that they were trained for, and by their
gait in numbers; stances by the pushes they take, beside a robot that merely holds its home pose;
robots that begin on the ground by whether they stand at the end.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.memory import blank, carried, without_memory
from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key, PyTree
from worldloom.suites.robot.features import gait_distance, leg_joints, profile, sensed, yaw
from worldloom.suites.robot.gait_numbers import NUMBERS, Steps, gait_numbers
from worldloom.suites.robot.ground import JUDGED_LEVEL, LEVELS
from worldloom.suites.robot.model_checks import CONTROL_HZ
from worldloom.suites.robot.motion import Motion
from worldloom.suites.robot.robustness import (
    DISTURBANCES,
    DISTURBED_EPISODES,
    DISTURBED_SECONDS,
    LADDER,
    WAY,
    Disturbed,
    Rung,
    Traversed,
    disturbance,
    on_level,
)
from worldloom.suites.robot.task import WIDTHS
from worldloom.suites.robot.types import Params, Reading
from worldloom.suites.robot.world import RobotWorld
from worldloom.training.evaluate import EpisodeScores, or_random, ratio_error, standard_error

if TYPE_CHECKING:
    from worldloom.training.run import Run

# act(agents, obs, key, explore=...) -> actions (E, n)
Act = Callable[..., Array]

# m/s, and rad/s of a yaw rate, off the command by net displacement; of the biped's size
TOLERANCE, YAW_TOLERANCE = 0.02, 0.1
LOOSE = 0.075  # m/s: the tolerance of `good`, of the mean forward speed in the heading's frame
BINS = 18  # of the phase, over which gaits are compared
SETTLING_SECONDS = 2.0  # before a speed counts; at most half of an episode
# Of robots that get up: over the height at home, rad of tilt, and for how long at the end.
STANDING_HEIGHT, STANDING_TILT, STANDING_SECONDS = 0.85, 0.35, 1.0
MOST_RECORDED, ROBOTS_RECORDED = 2000, 16  # steps and episodes that gaits are measured in


@dataclass(frozen=True, kw_only=True)
class RobotEvaluation(EpisodeScores):
    """Scores of E episodes; the length of each is up to its fall, or all.

    What is walked counts from two seconds on, in the frame of the heading at that moment.
    """

    command: np.ndarray  # (E, 3) forward and to the left, m/s, and yaw rate, rad/s
    speed: np.ndarray  # (E, 3) likewise, by net displacement; if turns are asked for, mean speeds
    forward: np.ndarray  # (E,) mean forward speed in the frame of the heading, m/s
    yaw: np.ndarray  # (E,) by how much it turned, rad
    drift: np.ndarray  # (E,) how far it came to the left, m
    walked: np.ndarray  # (E,) seconds that counted
    fell: np.ndarray  # (E,) bool
    terms: dict[str, float]  # mean of each term of the reward
    terms_stderr: dict[str, float]
    gait: dict[str, float]  # see `gait_numbers.NUMBERS`
    gait_distance: float | None  # rad, from the reference walk; see `features.gait_distance`
    scale: float = 1.0  # of speeds, against those of the biped
    stood_after: np.ndarray | None = None  # (E,) s until it stood for good; NaN where it does not
    rungs: tuple[Rung, ...] = ()  # where it was pushed, too
    disturbed: tuple[Disturbed, ...] = ()  # where its worlds differed, too
    traversals: tuple[Traversed, ...] = ()  # on uneven ground

    @property
    def error(self) -> np.ndarray:
        """(E,) m/s off the command."""
        return np.linalg.norm((self.speed - self.command)[:, :2] * self._asked, axis=1)

    @property
    def yaw_error(self) -> np.ndarray:
        """(E,) rad/s off the command."""
        return np.abs(self.speed - self.command)[:, 2]

    @property
    def _asked(self) -> np.ndarray:
        """(2,) 1 where speeds are asked for: forward, and sideways if anything else is."""
        return np.array([1.0, float(self.command[:, 1:].any())])

    @property
    def tracked(self) -> np.ndarray:
        """(E,) not fallen, and where the command leads to."""
        straight = self.yaw_error <= YAW_TOLERANCE / self.scale
        return ~self.fell & (self.error <= TOLERANCE * self.scale) & straight

    @property
    def good(self) -> np.ndarray:
        """(E,) not fallen, and roughly as fast as was asked, wherever it went."""
        return ~self.fell & (np.abs(self.forward - self.command[:, 0]) <= LOOSE * self.scale)

    def to_dict(self) -> dict[str, Any]:
        loose = np.abs(self.forward - self.command[:, 0])
        scores = super().to_dict() | {
            "survived": float(1.0 - self.fell.mean()),
            "tracked": float(self.tracked.mean()),
            "speed_error": float(self.error.mean()),
            "speed_error_stderr": standard_error(self.error),
            "yaw": float(np.abs(self.yaw).mean()),
            "yaw_rate_error": float(self.yaw_error.mean()),
            "drift": float(np.abs(self.drift).mean()),
            "good": float(self.good.mean()),
            "error": float(loose.mean()),
            "error_stderr": standard_error(loose),
            "gait": self.gait,
            "gait_distance": self.gait_distance,
            "terms": self.terms,
            "terms_stderr": self.terms_stderr,
        }
        if self.stood_after is not None:
            up = ~np.isnan(self.stood_after)
            after = float(self.stood_after[up].mean()) if up.any() else None
            scores |= {"recovered": float(up.mean()), "seconds_to_stand": after}
        scores |= {"pushes": [asdict(rung) for rung in self.rungs]} if self.rungs else {}
        if self.traversals:
            scores["traversals"] = [asdict(row) for row in self.traversals]
        return scores | (
            {"robustness": [asdict(row) for row in self.disturbed]} if self.disturbed else {}
        )

    def lines(self) -> dict[str, str]:
        """For people."""
        count = len(self.fell)
        if self.stood_after is None:
            lines = {"stays up": f"{(~self.fell).sum()} of {count} episodes to the end"}
        else:
            up = self.stood_after[~np.isnan(self.stood_after)]
            after = f", after {up.mean():.1f} s on average" if len(up) else ""
            lines = {"gets up": f"{len(up)} of {count}, and stands at the end{after}"}
        if self.command.any():
            lines["goes where asked"] = (
                f"{self.tracked.sum()} of {count}, within {TOLERANCE * self.scale:g} m/s and "
                f"{YAW_TOLERANCE / self.scale:g} rad/s; {self.error.mean():.3f} m/s and "
                f"{self.yaw_error.mean():.3f} rad/s off on average"
            )
            lines["on the way"] = (
                f"turns by {np.degrees(np.abs(self.yaw).mean()):.0f} degrees and drifts by "
                f"{np.abs(self.drift).mean():.2f} m in {self.walked.mean():.0f} s"
            )
        lines |= super().lines()
        if self.gait:
            lines["gait"] = ", ".join(
                f"{name.replace('_', ' ')} {value:.3g} {NUMBERS[name][0]}".strip()
                for name, value in self.gait.items()
            )
        if self.gait_distance is not None:
            lines["from the reference gait"] = f"{self.gait_distance:.3f} rad"
        lines |= dict(row.line() for row in self.traversals if row.kind == "all")
        return lines | dict(rung.line() for rung in self.rungs)


class RobotEvaluator:
    """Plays whole episodes in `episodes` worlds at once, and counts."""

    def __init__(
        self,
        world: RobotWorld,
        act: Act,
        episodes: int,
        reference: Motion | None = None,
        memory_size: int = 0,  # of an `act` that takes and gives `WithMemory`
    ):
        self.world = self.env = world
        self._memory_size = memory_size
        self.episodes = episodes
        self._reference = None
        if reference is not None:
            self._reference = profile(world.robot, reference.reading, reference.phase, BINS)
        self._worlds = batch(world, episodes)
        self._act = act
        self._play = jax.jit(partial(self._played, act, True))
        self._push = jax.jit(partial(self._played, act, False))
        self._hold = jax.jit(partial(self._played, self._hold_home, False))
        robots = min(episodes, ROBOTS_RECORDED)
        self._recorded = np.linspace(0, episodes - 1, robots).astype(int)

    def _hold_home(self, agents: PyTree, obs: Any, key: Key, *, explore: float) -> Array:
        return jnp.zeros((obs.state.shape[0], self.world.robot.num_joints), jnp.float32)

    def commands(self) -> Array:
        """(E, 3): spread evenly over the range that was trained for."""
        rules = self.world.params.rules
        ends = jnp.stack([rules.command, rules.sideways, rules.turn])  # (3, 2)
        if self.world.task.directions == 1:
            spread = jnp.linspace(0.0, 1.0, self.episodes)[:, None] * jnp.ones(3)
        else:  # evenly in all directions at once, to the ends of each
            steps = jnp.array([0.5, 0.7548777, 0.5698403])  # of a sequence that fills the cube
            steps = steps.at[0].set(1.0 / self.episodes)
            spread = (0.5 + jnp.arange(self.episodes)[:, None] * steps) % 1.0
            spread = jnp.clip(1.25 * spread - 0.125, 0.0, 1.0)
        return (ends[:, 0] + spread * (ends[:, 1] - ends[:, 0])).astype(jnp.float32)

    def _played(
        self,
        act: Act,
        record: bool,
        agents: PyTree,
        key: Key,
        params: Params,
        at_random: Array | bool = False,
        asked: Array | None = None,  # commands (E, 3), by default `commands`
    ) -> dict[str, Array]:
        world, task, robot = self.world, self.world.task, self.world.robot
        params = params.replace(rules=params.rules.replace(resample=jnp.int32(0)))
        reset_key, play_key = jax.random.split(key)
        state, _ = self._worlds.reset(reset_key, params)
        if task.moves:
            command = self.commands() if asked is None else asked
            state = state.replace(episode=state.episode.replace(command=command, speed=command))
        settling = round(SETTLING_SECONDS * robot.control_hz)
        settling = jnp.minimum(settling, params.rules.horizon // 2)
        first = state.physics.reading
        totals = {
            **dict.fromkeys(("settled", "returns", "steps", "turned"), jnp.zeros(self.episodes)),
            "standing": jnp.zeros(self.episodes),
            "velocity": jnp.zeros((self.episodes, 2)),
            "terms": jnp.zeros((self.episodes, len(task.terms))),
            "angles": jnp.zeros((BINS, robot.num_joints)),
            "visits": jnp.zeros(BINS),
        }
        places = {"start": self._pose(first), "now": self._pose(first)}
        places["furthest"] = jnp.zeros(self.episodes)  # ahead, in the direction faced at first
        films = {}
        if record:
            size = min(int(world.params.rules.horizon), MOST_RECORDED)
            like = {"reading": first, "target": state.episode.action, "counted": first.qpos[:, 0]}
            films = jax.tree.map(
                lambda x: jnp.zeros((size, len(self._recorded), *x.shape[1:]), x.dtype), like
            )

        def one(t, carry):
            state, obs, alive, totals, places, films = carry
            step_key = jax.random.fold_in(play_key, t)
            act_key = jax.random.fold_in(step_key, 1)
            action = act(agents, obs, act_key, explore=0.0)
            chosen = or_random(action, at_random, world.spec.action, act_key)
            action = without_memory(chosen)
            target = world.drive(params.rules, state, action)[1]
            state, after = self._worlds.step(step_key, state, action, params)
            obs = carried(after.obs, chosen)
            reading = after.info.reading
            counted = alive * (t >= settling)
            joints = reading.qpos[:, robot.joint_qpos]
            bins = jnp.arange(BINS) == jnp.floor(state.episode.phase * BINS)[:, None]
            bins = bins * counted[:, None]
            pose = self._pose(reading)
            turned = pose[:, 2] - places["now"][:, 2]
            turned = (turned + jnp.pi) % (2.0 * jnp.pi) - jnp.pi
            new = {
                "angles": bins.T @ joints,
                "visits": bins.sum(0),
                "velocity": counted[:, None] * sensed(jnp, robot, reading)["velocity"][:, :2],
                "turned": counted * turned,
                "settled": counted,
                "returns": alive * after.reward,
                "steps": alive,
                "terms": alive[:, None] * after.info.terms,
            }
            new["standing"] = self._stands(reading) * (1.0 + totals["standing"])
            new["standing"] -= totals["standing"]  # steps without a break until now
            totals = jax.tree.map(jnp.add, totals, new)
            going, before = alive[:, None] > 0.0, places["furthest"]
            places = {
                "start": jnp.where(t < settling, pose, places["start"]),
                "now": jnp.where(going, pose, places["now"]),
            }
            places["furthest"] = jnp.maximum(before, alive * self._ahead(first, reading))
            if record:
                row = {"reading": reading, "target": target, "counted": counted}
                row = jax.tree.map(lambda x: x[self._recorded], row)
                films = jax.tree.map(lambda x, new: x.at[t].set(new, mode="drop"), films, row)
            return state, obs, alive * ~after.terminated, totals, places, films

        obs = blank(world.look(state), self._memory_size if act is self._act else 0)
        carry = (state, obs, jnp.ones(self.episodes), totals, places, films)
        end = jax.lax.fori_loop(0, params.rules.horizon, one, carry)
        _, _, alive, totals, places, films = end
        lane = state.episode.lane
        kind = {} if isinstance(lane, tuple) else {"kind": lane.kind}
        last = {"alive": alive, "command": state.episode.command, "films": films}
        return totals | places | kind | last

    def _stands(self, reading: Reading) -> Array:
        """(E,) whether the base is level and as high as at home."""
        robot = self.world.robot
        parts = sensed(jnp, robot, reading)
        high = parts["height"] > (STANDING_HEIGHT - 1.0) * robot.home_height
        return high & (parts["gravity"][:, 2] < -math.cos(STANDING_TILT))

    def _stood_after(self, played: dict[str, Any]) -> np.ndarray | None:
        """(E,) seconds until the robot stood for good, if its task is to get up; NaN for never."""
        if not self.world.task.lies:
            return None
        seconds, standing = self.world.robot.control_seconds, played["standing"]
        up = (standing * seconds >= STANDING_SECONDS) & (played["alive"] > 0.0)
        return np.where(up, seconds * (played["steps"] - standing), np.nan)

    def _pose(self, reading: Reading) -> Array:
        """(E, 3): where the base is, and its yaw."""
        turn = yaw(jnp, reading.sensors[:, self.world.robot.orientation])
        return jnp.concatenate([reading.qpos[:, :2], turn[:, None]], axis=1)

    def _ahead(self, first: Reading, now: Reading) -> Array:
        """(E,) how far ahead the base is of where it was, m, in the direction that it faced."""
        heading = self._pose(first)[:, 2]
        x, y = (now.qpos - first.qpos)[:, :2].T
        return jnp.cos(heading) * x + jnp.sin(heading) * y

    def _walked(self, played: dict[str, Any]) -> dict[str, Any]:
        """How far and how fast, by net displacement: the parts of a `RobotEvaluation`."""
        robot = self.world.robot
        x, y, _ = (played["now"] - played["start"]).T
        heading = played["start"][:, 2]
        ahead = np.cos(heading) * x + np.sin(heading) * y
        aside = np.cos(heading) * y - np.sin(heading) * x
        seconds = robot.control_seconds * np.maximum(played["settled"], 1.0)
        mean = played["velocity"] / np.maximum(played["settled"], 1.0)[:, None]
        speed = np.stack([ahead, aside], axis=1) / seconds[:, None]
        if self.world.task.directions > 1:  # on an arc, the way is not where it leads to
            speed = mean
        return {
            "command": played["command"],
            "speed": np.column_stack([speed, played["turned"] / seconds]),
            "forward": mean[:, 0],
            "yaw": played["turned"],
            "drift": aside,
            "walked": seconds,
            "fell": played["alive"] == 0.0,
        }

    def __call__(self, agents: PyTree, key: Key, at_random: bool = False) -> RobotEvaluation:
        start, params = time.perf_counter(), self.world.params
        if self.world.task.moves:  # where it comes to is the way it walks; pushes come afterwards
            params = params.replace(rules=params.rules.replace(push_force=jnp.zeros(2)))
        if self.world.robot.ground is not None:
            params = on_level(params, JUDGED_LEVEL)
        result = self._play(agents, key, params, at_random)
        played = jax.tree.map(np.asarray, result)
        steps, names, robot = played["steps"], self.world.task.terms, self.world.robot
        terms = played["terms"].sum(0) / steps.sum()
        errors = ratio_error(played["terms"], steps)
        distance = None
        if self._reference is not None and played["visits"].all():
            mean = played["angles"] / played["visits"][:, None]
            distance = gait_distance(mean[:, leg_joints(robot)], self._reference)
        films = played["films"]
        counted = films["counted"] > 0.0
        return RobotEvaluation(
            **self._walked(played),
            lengths=steps.astype(int),
            returns=played["returns"],
            terms={n: float(x) for n, x in zip(names, terms, strict=True)},
            terms_stderr={n: float(x) for n, x in zip(names, errors, strict=True)},
            gait=gait_numbers(robot, Steps(films["reading"], films["target"], counted)),
            gait_distance=distance,
            scale=robot.time_scale,
            stood_after=self._stood_after(played),
            seconds=time.perf_counter() - start,
        )

    def disturbed(self, agents: PyTree, key: Key) -> tuple[Disturbed, ...]:
        """How it does in worlds that differ in one way, at growing strength."""
        robot, task = self.world.robot, self.world.task
        world = replace(self.world, randomised=True)
        episodes = min(self.episodes, DISTURBED_EPISODES)
        other = RobotEvaluator(world, self._act, episodes, memory_size=self._memory_size)
        zero = {name: jnp.zeros_like(getattr(world.params.rules, name)) for name in WIDTHS}
        horizon = round(DISTURBED_SECONDS * robot.control_hz)
        usual = world.params.rules.replace(
            **zero,
            randomise=jnp.float32(1.0),
            noise=jnp.float32(0.0),
            push_force=jnp.zeros(2),
            horizon=jnp.minimum(world.params.rules.horizon, horizon),
        )
        rows = [("none", 0.0, usual)]
        for kind, strengths in DISTURBANCES.items():
            for strength in strengths:
                rows.append(
                    (kind, strength, usual.replace(**disturbance(task, robot, kind, strength)))
                )
        results = []
        for kind, strength, rules in rows:
            params = world.params.replace(rules=rules)
            played = jax.tree.map(np.asarray, other._push(agents, key, params, False))
            walked = other._walked(played)
            up = ~walked["fell"]
            off = np.abs(walked["speed"] - walked["command"])[up]
            scores = [float(up.mean())]
            planar = off[:, 0] if task.directions == 1 else np.hypot(off[:, 0], off[:, 1])
            scores += [float(x.mean()) if up.any() else math.nan for x in (planar, off[:, 2])]
            results.append(Disturbed(kind, float(strength), *scores))
        return tuple(results)

    def traversals(
        self, agents: PyTree, key: Key, levels: Sequence[int] = range(1, LEVELS + 1)
    ) -> tuple[Traversed, ...]:
        """How it gets over each level, straight on and at the highest speed that it was trained
        for; rows of all kinds together, then of each."""
        ground: Any = self.world.robot.ground
        rules = self.world.params.rules
        fastest = jnp.zeros(3).at[0].set(rules.command[1])
        asked = jnp.tile(fastest, (self.episodes, 1)).astype(jnp.float32)
        way, rows = WAY * ground.scale, []
        for level in levels:
            calm = rules.replace(push_force=jnp.zeros(2))
            params = on_level(self.world.params.replace(rules=calm), level)
            played = self._push(agents, key, params, False, asked)
            furthest, alive, kind = (
                np.asarray(played[name]) for name in ("furthest", "alive", "kind")
            )
            done = furthest >= way
            for name, of in [("all", kind >= 0)] + [
                (name, kind == i) for i, name in enumerate(ground.kinds)
            ]:
                if of.any() and (name == "all" or len(ground.kinds) > 1):
                    rows.append(
                        Traversed(
                            level,
                            name,
                            int(of.sum()),
                            int(done[of].sum()),
                            int((~done & (alive == 0.0))[of].sum()),
                            float(furthest[of].mean()),
                        )
                    )
        return tuple(rows)

    def ladder(self, agents: PyTree, key: Key) -> tuple[Rung, ...]:
        """Pushes from small to large, for the robot and for one that holds its home pose."""
        robot, rungs = self.world.robot, []
        for newtons, steps in LADDER:
            newtons = round(newtons * robot.weight_scale, 3)
            steps = round(steps * robot.control_hz / CONTROL_HZ)
            rules = self.world.params.rules.replace(
                push_force=jnp.full(2, newtons, jnp.float32),
                push_steps=jnp.int32(steps),
                push_pause=jnp.array([2 * robot.control_hz, 3 * robot.control_hz], jnp.int32),
            )
            params = self.world.params.replace(rules=rules)
            survived, held = (
                float(np.asarray(play(agents, key, params, False)["alive"]).mean())
                for play in (self._push, self._hold)
            )
            rungs.append(Rung(newtons, steps, survived, held, robot.control_seconds))
        return tuple(rungs)


def push_ladder(run: "Run", episodes: int | None = None, seed: int = 0) -> tuple[Rung, ...]:
    """The pushes that the robot of a run takes, in new episodes."""
    if run.suite.name != "robot":
        raise ValueError(f"{run.folder} is a run of {run.config.env}, which is no robot to push")
    if run.problem.env.base.task.lies:
        raise ValueError(
            f"{run.folder}: its task begins on the ground; there is nobody to push over"
        )
    evaluator: Any = run.problem.make_evaluator(run.trainer, episodes or run.config.eval_episodes)
    return evaluator.ladder(run.agents, jax.random.key(seed))
