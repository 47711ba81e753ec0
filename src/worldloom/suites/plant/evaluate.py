"""How a policy does in the plant itself, as it is and behind the safety filter."""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws
from worldloom.core.draws import as_key
from worldloom.core.files import atomic_path
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.safety import ControlState, SafetyConstraints, filter_batch, initial_memory
from worldloom.suites.plant.plant import play_episodes
from worldloom.suites.plant.references import references
from worldloom.suites.plant.types import EnvironmentState
from worldloom.training.evaluate import or_random, ratio_error, standard_error, with_error

TRAJECTORIES_FILE = "trajectories.npz"
KEPT_EPISODES = 8  # of an evaluation, step by step


class Trajectories(struct.PyTreeNode):
    """E episodes of T steps; rows after an episode's end are not `alive`."""

    alive: Array  # bool (T, E)
    reward: Array  # (T, E)
    margins: Array  # (T, E, C): of the plant's limits
    obs: Array  # (T, E, n)
    action: Array  # (T, E, m)
    intervened: Array  # bool (T, E)
    emergency: Array  # bool (T, E)


@dataclass(frozen=True)
class Outcome:
    """Statistics of episodes of one way to control the plant."""

    returns: np.ndarray  # (E,)
    discounted: np.ndarray  # (E,)
    lengths: np.ndarray  # (E,)
    violated: np.ndarray  # (C,): the share of steps in which each limit was crossed
    worst: np.ndarray  # (C,): the smallest margin
    interventions: float  # the share of steps
    emergencies: float
    violated_stderr: np.ndarray  # (C,)

    def to_dict(self) -> dict[str, Any]:
        return {
            "return": float(self.returns.mean()),
            "return_stderr": standard_error(self.returns),
            "discounted_return": float(self.discounted.mean()),
            "length": float(self.lengths.mean()),
            "violated": self.violated.tolist(),
            "violated_stderr": self.violated_stderr.tolist(),
            "worst_margin": self.worst.tolist(),
            "interventions": self.interventions,
            "emergencies": self.emergencies,
        }

    def lines(self, name: str, limits: Sequence[str]) -> dict[str, str]:
        """For people; `name` is that of the way to control the plant."""
        stats = self.to_dict()
        shares = zip(limits, self.violated, strict=True)
        crossed = [f"{limit} in {share:.2%}" for limit, share in shares if share > 0.0]
        words = f"crossed: {', '.join(crossed)} of the steps" if crossed else "never crossed"
        return {
            f"return, {name}": with_error(stats["return"], stats["return_stderr"]),
            f"limits, {name}": words,
        }


@dataclass(frozen=True)
class PlantEvaluation:
    """The policy by itself, and with the filter that it is shipped with; from the same starts."""

    bare: Outcome
    filtered: Outcome
    bare_trajectories: Trajectories  # in numpy
    filtered_trajectories: Trajectories
    limits: tuple[str, ...]  # names
    spurious_trips: int  # episodes stopped though the bare policy crosses no hard limit
    score: float | None  # of the bare policy, as NeoRL-2 normalises it, where it has the plant
    seconds: float
    references: Mapping[str, float] | None = None  # returns to compare with, where they are known

    @property
    def mean(self) -> float:
        """The return of what is shipped."""
        return float(self.filtered.returns.mean())

    def oracle_share(self, outcome: Outcome) -> float | None:
        """Of the way from random actions to an oracle that plans; None where it is not known."""
        if self.references is None:
            return None
        low, high = self.references["random"], self.references["oracle"]
        return float((outcome.returns.mean() - low) / (high - low))

    def to_dict(self) -> dict[str, Any]:
        bare, filtered = self.bare.to_dict(), self.filtered.to_dict()
        if self.references is not None:
            bare["oracle_share"] = self.oracle_share(self.bare)
            filtered["oracle_share"] = self.oracle_share(self.filtered)
        return {
            "mean": self.mean,
            "stderr": filtered["return_stderr"],
            "episodes": len(self.filtered.returns),
            "bare": bare,
            "filtered": filtered,
            "spurious_trips": self.spurious_trips,
        } | ({} if self.score is None else {"score": self.score})

    def metrics(self) -> dict[str, Any]:
        """`to_dict` for trackers, with what it has of each limit under the limit's name."""
        metrics = self.to_dict()
        for outcome in (metrics["bare"], metrics["filtered"]):
            for name in ("violated", "violated_stderr", "worst_margin"):
                outcome[name] = dict(zip(self.limits, outcome[name], strict=True))
        return metrics

    def lines(self) -> dict[str, str]:
        """For people."""
        lines = self.bare.lines("bare", self.limits)
        lines |= self.filtered.lines("filtered", self.limits)
        lines["filter"] = (
            f"acts in {self.filtered.interventions:.1%} of the steps, "
            f"{self.filtered.emergencies:.2%} are emergency actions"
        )
        if self.spurious_trips:
            lines["spurious trips"] = (
                f"{self.spurious_trips} of {len(self.filtered.returns)} episodes: stopped, "
                "where the bare policy crosses no hard limit"
            )
        shares = self.oracle_share(self.bare), self.oracle_share(self.filtered)
        if shares[0] is not None:
            lines["oracle share"] = (
                f"{shares[0]:.1%} bare, {shares[1]:.1%} filtered, of the way from random actions "
                "to planning with the true plant"
            )
        if self.score is not None:
            lines["normalised score"] = f"{self.score:.1f}, as NeoRL-2 has it, bare"
        return lines


class PlantEvaluator:
    """Plays whole episodes of a plant in one compiled program.

    gamma: of the discounted returns, by which off-policy estimates are measured. to_policy: the
    policy that is executed, of what a trainer gives as its agents. at_random: it plays at random.
    """

    def __init__(
        self,
        env: PureEnv,
        constraints: SafetyConstraints,
        episodes: int,
        gamma: float = 0.99,
        to_policy: Callable[[PyTree], PolicyState] = lambda agents: agents,
        at_random: bool = False,
    ):
        self.env, self.constraints, self.episodes, self.gamma = env, constraints, episodes, gamma
        self.to_policy, self.at_random = to_policy, at_random
        self._play = jax.jit(self._episodes, static_argnames="filtered")

    def __call__(self, agents: PyTree, key: Key, at_random: bool = False) -> PlantEvaluation:
        start = time.perf_counter()
        given = agents, self.constraints, as_key(key), self.env.default_params()
        at_random = at_random or self.at_random
        bare, filtered = (
            jax.device_get(self._play(*given, at_random, filtered=way)) for way in (False, True)
        )
        alone, limits = outcome(bare, self.gamma), self.env.base.plant.limits
        hard = np.asarray([limit.hard for limit in limits], bool)
        return PlantEvaluation(
            bare=alone,
            filtered=outcome(filtered, self.gamma),
            bare_trajectories=bare,
            filtered_trajectories=filtered,
            limits=tuple(limit.name for limit in limits),
            spurious_trips=spurious_trips(bare, filtered, hard),
            score=normalised_score(self.env, float(alone.returns.mean())),
            seconds=time.perf_counter() - start,
            references=references(self.env.base),
        )

    def _episodes(
        self,
        agents: PyTree,
        constraints: SafetyConstraints,
        key: Key,
        params: Any,
        at_random: Array,
        filtered: bool,
    ) -> Trajectories:
        policy, space = self.to_policy(agents), self.env.spec.action
        never = jnp.zeros(self.episodes, bool)

        def init(state: EnvironmentState) -> PyTree:
            return jax.vmap(lambda place: initial_memory(constraints, place))(state.action)

        def choose(obs: Array, memory: PyTree, key: Key) -> tuple[PyTree, PyTree]:
            # No key: the policy as it is shipped does not explore.
            proposed = or_random(policy_step(policy, obs), at_random, space, key)
            if not filtered:
                return (proposed, never, never), memory
            action, report = filter_batch(proposed, ControlState(obs, memory), constraints)
            return (action, report.intervened, report.emergency), report.memory

        def record(obs: Array, alive: Array, chosen: Any, after: TimeStep) -> Trajectories:
            return Trajectories(alive, after.reward, after.info.safety.margins, obs, *chosen)

        start_key, play_key = draws.split(key)
        keys = (start_key, play_key)
        return play_episodes(self.env, params, keys, self.episodes, init, choose, record)


def normalised_score(env: PureEnv, mean_return: float) -> float | None:
    """100 (R - min) / (max - min) with NeoRL-2's figures, where it has this plant."""
    function = getattr(inspect.getmodule(type(env.base.plant)), "normalised_score", None)
    return None if function is None else float(function(mean_return))


def outcome(trajectories: Trajectories, gamma: float) -> Outcome:
    """Statistics of trajectories."""
    alive = np.asarray(trajectories.alive)
    reward = np.where(alive, trajectories.reward, 0.0).astype(np.float64)
    steps = max(int(alive.sum()), 1)
    crossed = (trajectories.margins < 0.0) & alive[..., None]
    worst = np.where(alive[..., None], trajectories.margins, np.inf).min((0, 1))
    return Outcome(
        returns=reward.sum(0),
        discounted=(reward * gamma ** np.arange(len(reward))[:, None]).sum(0),
        lengths=alive.sum(0),
        violated=np.asarray(crossed.sum((0, 1)) / steps),
        worst=worst,
        interventions=float((trajectories.intervened & alive).sum() / steps),
        emergencies=float((trajectories.emergency & alive).sum() / steps),
        violated_stderr=ratio_error(np.asarray(crossed.sum(0)), alive.sum(0)),
    )


def spurious_trips(bare: Trajectories, filtered: Trajectories, hard: np.ndarray) -> int:
    """Episodes in which the filter takes to the emergency action, and the bare policy, from the
    same start, crosses no hard limit (a mask (C,)) and comes to the episode's end."""
    stopped = (np.asarray(filtered.emergency) & filtered.alive).any(axis=0)
    return int((stopped & ~unsafe_steps(bare, hard).any(axis=0)).sum())


def unsafe_steps(trajectories: Trajectories, limits: np.ndarray) -> np.ndarray:
    """Steps (T, E) in which one of the limits, a mask (C,), is crossed.

    All that are left when a plant is lost count: who ends an episode early must not gain by it.
    """
    return (np.asarray(trajectories.margins) < 0.0)[..., limits].any(-1) | ~np.asarray(
        trajectories.alive
    )


def save_trajectories(folder: Path, evaluation: PlantEvaluation) -> Path:
    """Writes trajectories.npz: the first episodes of an evaluation, step by step."""
    ways = {"bare": evaluation.bare_trajectories, "filtered": evaluation.filtered_trajectories}
    columns: dict[str, Any] = {
        f"{way}_{name}": np.asarray(value)[:, :KEPT_EPISODES]
        for way, trajectories in ways.items()
        for name, value in vars(trajectories).items()
    }
    path = Path(folder) / TRAJECTORIES_FILE
    with atomic_path(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **columns)
    return path


def read_trajectories(folder: Path, way: str) -> Trajectories:
    """The first episodes of a run's last evaluation, `bare` or `filtered`, in numpy."""
    with np.load(Path(folder) / TRAJECTORIES_FILE) as kept:
        names = Trajectories.__dataclass_fields__
        return Trajectories(**{name: kept[f"{way}_{name}"] for name in names})
