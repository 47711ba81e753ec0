"""Cross-play: how a run's agents do beside agents of other runs, which they never met in training.

The first half of the seats is played by agents of the one run, the others by agents of the other,
each by the parameters that it has for its seat. Runs may differ in algorithm and in what they
learned from, not in the world. Random play is a partner, too.

With one, two, ... agents of a run among those of a partner, mean returns of either are what a
Schelling diagram shows (Schelling 1973; of learned policies, Hughes et al. 2018).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom import suites
from worldloom.core.files import read_json, write_text
from worldloom.core.memory import WithMemory, as_seen, without_memory
from worldloom.core.transforms import JointObservation
from worldloom.core.types import Key, PyTree
from worldloom.suites.grid.evaluate import GridEvaluator
from worldloom.suites.grid.problem import make_env
from worldloom.training.evaluate import RANDOM_PLAY, standard_error, with_error
from worldloom.training.run import Run, load

FILE = "crossplay.json"


@dataclass(frozen=True)
class CrossPlay:
    """Mean returns of an agent of each run (rows) beside those of each (columns) and random ones.

    On the diagonal a run plays with itself. mixed: of the first run, what its agents and those of
    each partner get, by how many of the others are of the run: "own" and "theirs", (A,).
    """

    names: tuple[str, ...]
    mean: np.ndarray  # (runs, runs + 1)
    stderr: np.ndarray
    episodes: int
    mixed: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)

    @property
    def partners(self) -> tuple[str, ...]:
        return (*self.names, RANDOM_PLAY)

    def to_dict(self) -> dict[str, Any]:
        """As crossplay.json has it."""
        errors = [[None if math.isnan(x) else x for x in row] for row in self.stderr.tolist()]
        about = {"runs": list(self.names), "partners": list(self.partners)}
        about |= {"mean": self.mean.tolist(), "stderr": errors, "episodes": self.episodes}
        mixed = {
            partner: {name: values.tolist() for name, values in each.items()}
            for partner, each in self.mixed.items()
        }
        return about | {"mixed": mixed}

    def lines(self) -> dict[str, str]:
        """The first run beside every other one, for people."""
        rows = zip(self.partners, self.mean[0], self.stderr[0], strict=True)
        return {f"an agent with {name}": with_error(m, e) for name, m, e in rows}


def cross_play(runs: Sequence[Run], episodes: int, seed: int = 0) -> CrossPlay:
    """Every run beside every other one, in fresh episodes without exploration."""
    count = runs[0].problem.env.spec.num_agents
    if count < 2:
        raise ValueError(f"{runs[0].config.env} has one agent; partners need a world of several")
    for run in runs[1:]:
        if _task(run) != _task(runs[0]):
            raise ValueError(
                f"{run.folder} was trained in another world than {runs[0].folder}: "
                f"{_task(run)} instead of {_task(runs[0])}; leave it out"
            )
    half, key = (count + 1) // 2, jax.random.key(seed)
    mean, error = np.zeros((2, len(runs), len(runs) + 1))
    programs: dict[Any, GridEvaluator] = {}
    mixed = {}
    for i, focal in enumerate(runs):
        for j in range(len(runs) + 1):
            partner = runs[j] if j < len(runs) else focal
            kinds = tuple((run.config.algo, run.config.hyper) for run in (focal, partner))
            if kinds not in programs:  # runs of one kind share a program
                programs[kinds] = _evaluator(focal, partner, episodes)
            agents = (focal.agents, partner.agents, jnp.arange(count) >= half)
            learned = count if j < len(runs) else half
            scores = programs[kinds].agent_returns(agents, key, learned)[:, :half].mean(axis=1)
            mean[i, j], error[i, j] = scores.mean(), standard_error(scores)
            if i == 0 and j > 0:
                name = runs[j].folder.name if j < len(runs) else RANDOM_PLAY
                both, is_random = agents[:2], j == len(runs)
                mixed[name] = _mixed(programs[kinds], both, count, is_random, key)
    return CrossPlay(tuple(run.folder.name for run in runs), mean, error, episodes, mixed)


def _mixed(
    program: GridEvaluator, agents: tuple[PyTree, PyTree], count: int, is_random: bool, key: Key
) -> dict[str, np.ndarray]:
    """What agents of either kind get beside 0, 1, ... others of the first kind, (count,) each."""
    own, theirs = np.zeros((2, count))
    for first in range(count + 1):
        seats = (*agents, jnp.arange(count) >= first)
        returns = program.agent_returns(seats, key, first if is_random else count)
        if first:
            own[first - 1] = returns[:, :first].mean()
        if first < count:
            theirs[first] = returns[:, first:].mean()
    return {"own": own, "theirs": theirs}


def play_with_partners(run: Run, folder: Path, episodes: int | None, seed: int) -> CrossPlay:
    """A run beside those of a folder that were trained in its world, or beside a single run.

    Also written into the run's own folder as crossplay.json.
    """
    own, folder = run.folder.resolve(), Path(folder)
    single = (folder / "config.json").is_file()
    found = [folder] if single else sorted(folder.glob("*/"))
    found = [f for f in found if (f / "config.json").is_file() and f.resolve() != own]
    if not found:
        raise ValueError(f"{folder} holds no other run; name a folder of runs, or a run")
    partners = [load(run.suite, f) for f in found if single or _env(f) == run.config.env]
    if not single:
        partners = [partner for partner in partners if _task(partner) == _task(run)]
    if not partners:
        raise ValueError(
            f"each of the {len(found)} other runs in {folder} was trained in another world than "
            f"{run.folder}; name runs of {run.config.env} with the same options"
        )
    result = cross_play([run, *partners], episodes or run.config.eval_episodes, seed)
    write_text(run.folder / FILE, json.dumps(result.to_dict(), indent=1))
    return result


def _env(folder: Path) -> Any:
    """The world of a run folder; None where its config.json cannot be read."""
    try:
        about = read_json(folder / "config.json")
    except (OSError, ValueError):
        return None
    settings = about.get("config") if isinstance(about, dict) else None
    return settings.get("env") if isinstance(settings, dict) else None


def _task(run: Run) -> dict[str, Any]:
    """What must be the same for agents to meet; what they learned from need not."""
    shaping = suites.shaping_parameters("grid")
    known = suites.world_parameters(run.config.env) or {}
    given = {name: value for name, value in run.config.world.items() if name not in shaping}
    usual = {name: option.default for name, option in known.items()}
    return {"env": run.config.env} | usual | given


def _evaluator(focal: Run, partner: Run, episodes: int) -> GridEvaluator:
    """Plays agents given as (parameters of the one, those of the other, which it is)."""
    one: Any = focal.evaluator
    other: Any = partner.evaluator
    joint = [run.config.algorithm.centralised for run in (focal, partner)]
    sizes = [run.config.memory_size for run in (focal, partner)]
    env = as_seen(make_env(focal.config, focal.folder, shaped=False), any(joint), max(sizes))

    def own(obs, centralised, size):
        """Observations as agents of a run know them, with their part of a larger memory."""
        now = without_memory(obs)
        now = now.own if isinstance(now, JointObservation) and not centralised else now
        return WithMemory(now, obs.memory[:, :size]) if size else now

    def padded(action):
        if not max(sizes):
            return action
        now = without_memory(action)
        memory = action.memory if isinstance(action, WithMemory) else jnp.zeros((len(now), 0))
        room = ((0, 0), (0, max(sizes) - memory.shape[1]))
        return WithMemory(now, jnp.pad(memory, room))

    def act(agent, obs, key, *, explore):
        mine, theirs, is_partner = agent
        action = one.act(mine, own(obs, joint[0], sizes[0]), key, explore=explore)
        others = other.act(theirs, own(obs, joint[1], sizes[1]), key, explore=explore)
        return jax.tree.map(partial(jnp.where, is_partner), padded(others), padded(action))

    return GridEvaluator(env, act, episodes)
