"""The one run: trained, resumed or loaded, with the same face in all three."""

import html
import importlib.util
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldloom import algos
from worldloom.algos.algorithm import Algorithm
from worldloom.core.checks import check_seed
from worldloom.core.draws import as_key
from worldloom.core.lazy import resolve
from worldloom.core.memory import WithMemory
from worldloom.core.transforms import JointObservation
from worldloom.core.types import Array, Key, PyTree
from worldloom.training.config import TrainConfig, make_config, read_header
from worldloom.training.driver import Hook, Plan, drive, open_checkpoints, plan_of, set_clock
from worldloom.training.folders import new_folder, world_label
from worldloom.training.hooks import Hooks, as_hooks
from worldloom.training.loops import make_trainer
from worldloom.training.machine import use_compilation_cache
from worldloom.training.sinks import read_json_lines
from worldloom.training.suite import Evaluation, Evaluator, Problem, Suite
from worldloom.training.trainer import Trainer


@dataclass
class Run:
    """A run: what it is, where it lies, what it learned and how well.

    `worldloom.train` returns it when training is over, `worldloom.load` reads it back. While it
    trains, hooks see it.
    """

    suite: Suite
    config: TrainConfig
    folder: Path
    problem: Problem
    trainer: Trainer
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    evaluation: Evaluation | None = None
    interrupted: bool = False
    asked_to_stop: bool = False
    _evaluators: dict[int, Evaluator] = field(default_factory=dict, repr=False)

    @property
    def iteration(self) -> int:
        return self.trainer.iteration

    @property
    def steps(self) -> int:
        """Environment steps so far, or updates of an offline algorithm."""
        return self.iteration * self.trainer.steps_per_iteration

    @cached_property
    def plan(self) -> Plan:
        plan = plan_of(self.config, self.trainer.steps_per_iteration)
        return replace(plan, chunk=self.problem.chunk or plan.chunk)

    @property
    def agents(self) -> PyTree:
        """What was learned, as `trainer.act` takes it; of several agents, stacked."""
        return self.trainer.agents()

    @property
    def evaluator(self) -> Evaluator:
        """How the run is scored."""
        return self._evaluator(self.config.eval_episodes)

    def _evaluator(self, episodes: int) -> Evaluator:
        if episodes not in self._evaluators:
            self._evaluators[episodes] = self.problem.make_evaluator(self.trainer, episodes)
        return self._evaluators[episodes]

    def stop(self) -> None:
        """Asks a run that trains, from a hook, to end after this chunk as Ctrl-C does."""
        self.asked_to_stop = True

    def act(self, obs: PyTree, key: Key | None = None) -> Array:
        """Greedy actions (B, ...) for observations (B, ...); with a key, explored as in training.

        Of a world with A agents: actions (A,) for the observations (A, ...) of one world. Agents
        that remember take observations `WithMemory`, and give such actions.
        """
        size = self.config.memory_size
        if size and not isinstance(obs, WithMemory):
            raise ValueError(
                f"{self.folder}: its agents remember; give act WithMemory(obs, memory) of "
                f"worldloom.core.memory, at first zeros (..., {size}), as its actions have the next"
            )
        explore = 0.0 if key is None else self.exploration
        key = jax.random.key(0) if key is None else as_key(key)
        if self._one_agent:
            return self._act_jit(self.agents, obs, key, explore=explore)
        return self._act_in_world_jit(self.agents, obs, key, explore=explore)

    def act_in_world(
        self, agents: PyTree, obs: PyTree, key: Key | None = None, *, explore: float = 0.0
    ) -> Array:
        """The action of a world's agent, or those (A,) of all of them; pure, as `agents` are given.

        obs: of one world.
        """
        key = jax.random.key(0) if key is None else key
        if self._one_agent:
            batch = jax.tree.map(lambda x: x[None], obs)
            action = self.trainer.act(agents, batch, key, explore=explore)
            return jax.tree.map(lambda x: x[0], action)
        if self.config.algorithm.centralised:
            obs = _for_critics(obs)
        keys = jax.random.split(key, self.problem.env.spec.num_agents)
        one_world = jax.tree.map(lambda x: x[:, None], obs)
        act = jax.vmap(lambda a, o, k: self.trainer.act(a, o, k, explore=explore))
        return jax.tree.map(lambda x: x[:, 0], act(agents, one_world, keys))

    @property
    def _one_agent(self) -> bool:
        return self.problem.env.spec.num_agents == 1 and not self.problem.env.turn_based

    @property
    def exploration(self) -> float:
        """How much the last iteration explored: epsilon, or 1 where the policy is sampled."""
        schedule = getattr(getattr(self.trainer, "loop", None), "exploration", None)
        last = jax.numpy.int32(max(self.iteration - 1, 0))
        return 1.0 if schedule is None else float(schedule(last))

    @cached_property
    def _act_jit(self):
        return jax.jit(self.trainer.act, static_argnames="explore")

    @cached_property
    def _act_in_world_jit(self):
        return jax.jit(self.act_in_world, static_argnames="explore")

    def evaluate(self, episodes: int | None = None, seed: int = 0) -> Evaluation:
        """Scores in fresh episodes, without exploration.

        An evaluator may know more than is asked for while a run trains: its `in_full`.
        """
        check_seed(seed)
        if episodes is not None and episodes < 1:
            raise ValueError(f"episodes={episodes}; evaluate at least 1")
        evaluator = self._evaluator(episodes or self.config.eval_episodes)
        score = getattr(evaluator, "in_full", evaluator)
        return score(self.agents, jax.random.key(seed))

    def references(self) -> dict[str, dict[str, Any]]:
        """Scores of agents that learned nothing, such as "random play", as rows of eval.jsonl.

        Measured once, when the run began.
        """
        known = read_header(self.folder).get("references")
        return known if isinstance(known, dict) else {}

    def metrics(self) -> dict[str, np.ndarray]:
        """metrics.jsonl by column, (iterations,) or (iterations, agents); NaN where it has null."""
        rows = read_json_lines(self.folder / "metrics.jsonl")
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([_number(row.get(name)) for row in rows]) for name in names}

    def dataframe(self) -> Any:
        """`metrics` as a DataFrame of pandas or polars, whichever is installed.

        A metric of A agents is A columns: agent_returns_0, agent_returns_1, ...
        """
        columns = {}
        for name, values in self.metrics().items():
            parts = values.T if values.ndim == 2 else [values]
            columns |= {f"{name}_{i}" if len(parts) > 1 else name: p for i, p in enumerate(parts)}
        for package in ("pandas", "polars"):
            if importlib.util.find_spec(package):
                return importlib.import_module(package).DataFrame(columns)
        raise ImportError("a DataFrame needs pandas or polars; run.metrics() has the same columns")

    def timing(self) -> dict[str, Any]:
        """What timing.json holds: seconds, and steps in a second of training."""
        rate = self.steps / self.train_seconds if self.train_seconds else 0.0
        return {
            "compile_seconds": round(self.trainer.compile_seconds, 3),
            "train_seconds": round(self.train_seconds, 3),
            "eval_seconds": round(self.eval_seconds, 3),
            "iterations": self.iteration,
            "steps": self.steps,
            "steps_per_second": round(rate, 1),
        }

    def plot(self, metric: str | None = None, *, over: str = "steps") -> Any:
        """The learning curve, or a column of `metrics`, as a picture.

        A notebook shows it; `run.plot().save("curve.png")`, or .svg, writes it.

        Args:
            metric: such as "loss"; by default return and evaluations.
            over: "steps" or "seconds".
        """
        unit = "updates" if self.config.algorithm.loop == "offline" else "steps"
        draw = resolve("worldloom.report.picture:plot")  # by name: it is of a layer above this one
        return draw(self.folder, metric, over, unit)

    def report(self) -> Path:
        """Writes report.html into the run's folder; its path."""
        return self.suite.page(self.folder)

    def _repr_html_(self) -> str:
        """What a notebook shows: the run's report, or its scores where it has none."""
        path = self.folder / "report.html"
        if path.is_file():
            text = html.escape(path.read_text(encoding="utf-8"))
            return f'<iframe srcdoc="{text}" style="width:100%;height:640px;border:0"></iframe>'
        scores = self.evaluation.lines() if self.evaluation else {}
        lines = [str(self.folder), *(f"{name}: {value}" for name, value in scores.items())]
        return f"<pre>{html.escape(chr(10).join(lines))}</pre>"

    def export(
        self, path: str | Path | None = None, *, force: bool = False, **options: Any
    ) -> Path:
        """Writes the policy as a bundle that runs without training code; its folder.

        force: replace a bundle that is there. options: those of the suite's exporter.
        """
        target = Path(path) if path else self.folder / "bundle"
        if (target / "manifest.json").is_file() and not force:
            raise ValueError(f"{target} holds a bundle already; force=True (--force) replaces it")
        return self.suite.export(self, target, **options)


def _for_critics(obs: PyTree) -> PyTree:
    """Observations (A, ...) with those of all agents beside each."""
    if isinstance(obs, WithMemory):
        return obs.replace(now=_for_critics(obs.now))
    return JointObservation(obs, jax.numpy.broadcast_to(obs, (obs.shape[0], *obs.shape)))


def check_no_memory(run: Run, done: str) -> None:
    """Raises ValueError where a run's agents remember and cannot be `done` something with."""
    if run.config.memory_size:
        raise ValueError(
            f"{run.folder}: agents that remember ({run.config.algo}.memory="
            f"{run.config.hyper.memory}) cannot be {done} yet; `worldloom eval` scores them"
        )


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return [_number(one) for one in value]
    return np.nan if value is None else value


# Fitting algorithms to worlds --------------------------------------------------------------------


def why_not(algorithm: Algorithm, problem: Problem) -> str | None:
    """Why an algorithm cannot learn this problem; None if it can."""
    reason = algorithm.why_not(problem.env.spec)
    if reason is not None:
        return reason
    name = problem.env.spec.name
    if algorithm.loop == "offline" and problem.data is None:
        return f"{algorithm.name} learns from logged data, and none are named (dataset=FILE.npz)"
    several = problem.env.spec.num_agents > 1
    if several and not problem.env.turn_based:
        return f"{name} has several agents and is not turn-based; wrap it for one agent"
    return None


def check_fit(config: TrainConfig, problem: Problem) -> None:
    """Raises ValueError, in one line that names what would fit, unless the algorithm does."""
    if config.memory_size and problem.no_memory:
        raise ValueError(
            f"{config.env}: {config.algo}.memory={config.hyper.memory!r}, but {problem.no_memory}; "
            "leave it at 'none'"
        )
    reason = why_not(config.algorithm, problem)
    if reason is None:
        return
    fitting = [name for name in algos.names() if why_not(algos.get(name), problem) is None]
    raise ValueError(f"{reason}; use {', '.join(fitting)}" if fitting else reason)


# Folders -----------------------------------------------------------------------------------------


def run_folder(root: Path, config: TrainConfig) -> Path:
    """An unused folder name that says what ran on what, and when."""
    env = world_label(config.env)
    return new_folder(Path(root), f"{env}-{config.algorithm.name}-s{config.seed}")


def check_empty(folder: Path) -> None:
    """Raises ValueError if a new run must not be written there."""
    if folder.is_dir():
        taken = any(path.name != ".lock" for path in folder.iterdir())  # which a kill may leave
    else:
        taken = folder.exists()
    if taken:
        raise ValueError(f"{folder} already exists and is not empty; choose another, or resume it")


def read_config(folder: str | Path, suite: Suite) -> TrainConfig:
    """The settings of an existing run."""
    return make_config(suite, read_header(folder)["config"], str(Path(folder) / "config.json"))


def check_resumable(folder: Path, kept: TrainConfig, given: TrainConfig) -> None:
    """Raises ValueError if anything that decides what is learned differs from the run's own."""
    if given.fingerprint() == kept.fingerprint():
        return
    old, new = kept.to_dict(), given.to_dict()
    names = sorted((old.keys() | new.keys()) - set(kept.cadence))
    if given.algo != kept.algo:
        raise ValueError(f"{folder} learns with {kept.algo}; to use {given.algo}, start a new run")
    differs = [n for name in names for n in _different(name, old.get(name), new.get(name))]
    raise ValueError(
        f"{folder} was trained with other settings ({', '.join(differs)}); "
        "resume it with its own, or start a new run"
    )


def _different(name: str, old: Any, new: Any) -> list[str]:
    """Dotted names of what differs, at every depth."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = sorted(old.keys() | new.keys())
        return [d for n in names for d in _different(f"{name}.{n}", old.get(n), new.get(n))]
    return [] if old == new else [name]


# Train and load ----------------------------------------------------------------------------------


def train(
    suite: Suite,
    config: TrainConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    report: bool = True,
    hooks: Hooks = (),
    command: str = "",
) -> Run:
    """Trains to `config.steps`; with `resume` on from the newest checkpoint in `folder`.

    hooks: functions of (steps, metrics) and `Hook`s, called between chunks. Ctrl-C ends it after
    the current chunk with a checkpoint; `run.interrupted` then says so.
    Compiled programs are kept in JAX's persistent cache.
    """
    use_compilation_cache()
    folder, given = Path(folder), as_hooks(hooks)
    if resume:
        check_resumable(folder, read_config(folder, suite), config)
    else:
        check_empty(folder)
    run = _open(suite, config, folder, resume)  # checks everything before anything is written
    own = [*run.problem.hooks, *(run.problem.pictures if report else ())]
    if report:
        own.append(_Report())
    return drive(run, resume=resume, hooks=[*given, *own], command=command)


def _open(suite: Suite, config: TrainConfig, folder: Path, existing: bool) -> Run:
    problem = suite.problem(config, folder if existing else None)
    config = problem.config or config
    check_fit(config, problem)
    if existing:
        problem.check_resume(read_header(folder))
    return Run(suite, config, folder, problem, make_trainer(config, problem))


def load(suite: Suite, folder: str | Path) -> Run:
    """A run from its newest complete checkpoint, on one device."""
    use_compilation_cache()
    folder = Path(folder)
    config = replace(read_config(folder, suite), devices=1)
    run = _open(suite, config, folder, existing=True)
    with closing(open_checkpoints(folder)) as checkpoints:
        run.trainer.load(checkpoints.restore(run.trainer.template()))
    set_clock(run)
    return run


class _Report(Hook):
    """report.html at the end of a run."""

    phase = "writing the page"

    def on_end(self, run: Run) -> None:
        run.report()
