"""Whole reinforcement-learning experiments compiled into one XLA program.

Everything is imported when first used: `import worldloom` itself imports no jax.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldloom.algos.policy_selection import Selection
    from worldloom.core.protocols import PureEnv
    from worldloom.training.hooks import Hooks
    from worldloom.training.run import Run
    from worldloom.training.suite import Evaluation

__version__ = "0.2.0"
__all__ = [
    "algorithms",
    "evaluate",
    "load",
    "make",
    "register",
    "resume",
    "select",
    "train",
    "worlds",
]


def make(name: str, **options: Any) -> "PureEnv":
    """A world by name, with options of its own: ``make("treasurehunt", num_agents=3)``.

    Also by YAML file, as "PATH.py:FUNCTION", or of another package: "gymnax:CartPole-v1".
    """
    from worldloom import suites

    return suites.make(name, **options)


def register(
    name: str,
    make: "Callable[..., PureEnv]",
    suite: str | None = None,
    *,
    description: str = "",
) -> None:
    """Makes a world of yours known by name to `make`, `train` and the command line.

    suite: "plant" for a plant, "robot" for a robot, "grid" for a gridworld; None decides by what
    the world is.
    """
    from worldloom import suites

    suites.register(name, make, description, suite)


def worlds(suite: str | None = None) -> dict[str, str]:
    """Every known world with a line about it, or those of one suite."""
    from worldloom import suites

    return suites.names(suite)


def algorithms() -> dict[str, str]:
    """Every known algorithm with a line about it."""
    from worldloom import algos

    return algos.names()


def train(
    env: str = "treasurehunt",
    *,
    algo: str | None = None,
    steps: int | None = None,
    seed: int = 0,
    num_worlds: int | None = None,
    eval_every: int | None = None,
    world: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    report: bool = True,
    hooks: "Hooks" = (),
    **settings: Any,
) -> "Run":
    """Trains and writes a run folder: ``train("cleanup", algo="ppo", steps=2_000_000)``.

    Args:
        env: a world's name, a YAML file, "PATH.py:FUNCTION", "gymnax:NAME" or "brax:NAME".
        algo: an algorithm's name (see `algorithms`); by default what suits the world.
        steps: the budget in environment steps; of an offline algorithm, in updates.
        num_worlds: worlds that are played at once.
        eval_every: steps between evaluations; 0: only at the end.
        world: options of the world, such as {"num_agents": 3}.
        out: the run's folder; by default a new one under runs/.
        report: whether to make pictures and report.html.
        hooks: functions called between compiled chunks as function(steps, metrics), such as those
            written for Brax's `progress_fn`; one that returns True ends the run with a checkpoint.
            Also `worldloom.training.driver.Hook`s.
        settings: all others by name (`worldloom train WORLD --help-all` lists them); options of
            the algorithm under its name: ``ppo={"learning_rate": 3e-4}``.
    """
    from worldloom import suites
    from worldloom.training import run
    from worldloom.training.config import make_config

    chosen = {"algo": algo, "steps": steps, "num_worlds": num_worlds, "eval_every": eval_every}
    given = {name: value for name, value in chosen.items() if value is not None}
    given |= {"env": env, "seed": seed, "world": world or {}} | settings
    suite = suites.suite_of(env, **(world or {}))
    config = make_config(suite, given)
    folder = Path(out) if out else run.run_folder(Path("runs"), config)
    return run.train(suite, config, folder, report=report, hooks=hooks)


def resume(
    folder: str | Path, *, report: bool = True, hooks: "Hooks" = (), **settings: Any
) -> "Run":
    """Goes on with a run from its newest checkpoint, to the bit: ``resume("runs/X", steps=10**6)``.

    hooks: as in `train`. settings: what does not touch what is learned, such as steps, eval_every
    and checkpoint_every.
    """
    from worldloom import suites
    from worldloom.training import run
    from worldloom.training.config import make_config, read_header

    header = read_header(folder)
    suite = suites.suite(header["suite"])
    config = make_config(suite, header["config"] | settings)
    return run.train(suite, config, folder, resume=True, report=report, hooks=hooks)


def load(folder: str | Path) -> "Run":
    """A run from its newest checkpoint: ``load("runs/X").act(obs)``."""
    from worldloom import suites
    from worldloom.training import run

    header = run.read_header(folder)
    return run.load(suites.suite(header["suite"]), folder)


def evaluate(folder: str | Path, episodes: int | None = None, seed: int = 0) -> "Evaluation":
    """Scores of a run's newest checkpoint in fresh episodes."""
    return load(folder).evaluate(episodes, seed)


def select(
    runs: "Sequence[str | Path]", dataset: str | Path | None = None, **options: Any
) -> "Selection":
    """Which of several trained policies to use, judged from logged data: a choice, or none.

    ``select(["runs/A", "runs/B"], "log.npz").decision`` has the choice and the reason in a line.

    Args:
        runs: run folders of one world, of any algorithms.
        dataset: the log to judge by; by default what the runs learned from.
        options: updates (2,500, of each network that estimates are made with), gamma (0.99),
            episodes (0: how many may be tried in the world), seed, and out, a JSON file to write.
    """
    from worldloom import suites
    from worldloom.training.config import read_header

    if not runs:
        raise ValueError("select: name one run folder or more, as in: runs/A runs/B")
    kinds = {folder: suites.suite(read_header(folder)["suite"]) for folder in runs}
    for folder, suite in kinds.items():
        if suite.select is None:
            raise ValueError(
                f"{folder} is a run of the {suite.name} suite, whose policies cannot be judged "
                "from logged data; `worldloom compare` sets its runs side by side"
            )
    if len({suite.name for suite in kinds.values()}) > 1:
        raise ValueError("select: these runs are of different suites; name runs of one world")
    chosen = next(iter(kinds.values())).select
    assert chosen is not None
    return chosen(runs, dataset, **options)
