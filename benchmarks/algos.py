"""`worldloom bench algos`: training speed and scores against rejax, on the same Gymnax tasks.

A run is a whole training from a new seed: it is timed, and then its greedy policy plays. Runs of
both sides take turns, each in a process of its own. `python -m benchmarks.algos` is our side.
"""

import json
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import rejax_peer
from benchmarks.pages.results import write_bench
from benchmarks.players import Player, take_turns
from benchmarks.record import Record
from worldloom.core.files import plain
from worldloom.core.names import suggest
from worldloom.training.arguments import parse
from worldloom.training.console import table

PEERS = Path(".venv-peers-rejax")
RATIOS = {
    "ppo_vs_rejax": "training steps/s of PPO on CartPole, 5 worlds, ours / rejax's",
    "ppo_pendulum_vs_rejax": "the same on Pendulum, 100 worlds",
    "pqn_vs_rejax": "the same of PQN on CartPole, 16 worlds",
    "dqn_vs_rejax": "the same of DQN on CartPole, 10 worlds, 5 updates a step",
    "sac_vs_rejax": "the same of SAC on Pendulum, 1 world, an update a step",
    "td3_vs_rejax": "the same of TD3 on Pendulum, 1 world, an update a step",
}
NOTES = (
    "Settings are those that rejax ships for these tasks (configs/gymnax of its repository), ours "
    "the same as far as we have them: numbers of worlds, updates and their batches, sizes of "
    "networks, learning rates, discounts, memory and budget. Evaluations are left out of both.",
    "Where our networks have ReLU or no dueling heads, rejax is measured with its own networks "
    "and with ours, and the faster of the two counts.",
    "What differs: rejax draws a batch from memory without repeats, by sorting random numbers for "
    "all of it; it clips gradients one by one, we clip their norm; it takes the end of time for "
    "the end of the task, we bootstrap there; our PQN has rectified Adam.",
    "A ratio is given only if our mean score is not worse than rejax's better one by more than "
    "two standard errors of their difference.",
)


@dataclass(frozen=True)
class Task:
    """One algorithm on one Gymnax task: rejax's settings, and ours in our words.

    network: what makes rejax's networks like ours, where we do not have its own. trainings: for
    each seed that is asked for, so many, where one takes but a second.
    """

    env: str
    algo: str
    steps: int
    rejax: Mapping[str, Any]
    ours: Mapping[str, Any]
    num_worlds: int
    network: Mapping[str, Any] = field(default_factory=dict)
    trainings: int = 1


TASKS: dict[str, Task] = {
    "ppo": Task(
        env="CartPole-v1",
        algo="ppo",
        steps=100_000,
        num_worlds=5,
        trainings=5,
        rejax={
            "agent_kwargs": {"activation": "tanh"},
            "num_steps": 100,
            "num_epochs": 5,
            "num_minibatches": 5,
            "learning_rate": 0.00075,
            "max_grad_norm": 0.5,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_eps": 0.2,
            "ent_coef": 0.01,
            "vf_coef": 0.5,
        },
        ours={
            "unroll_length": 100,
            "num_epochs": 5,
            "num_minibatches": 5,
            "learning_rate": 0.00075,
            "max_grad_norm": 0.5,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_epsilon": 0.2,
            "entropy_cost": 0.01,
            "value_cost": 0.5,
            "hidden": (64, 64),
            "activation": "tanh",
            "normalise_observations": False,
        },
    ),
    "ppo_pendulum": Task(
        env="Pendulum-v1",
        algo="ppo",
        # It asks for 150,000, and an evaluation every 2,000: its `train` then makes 75 iterations.
        steps=750_000,
        num_worlds=100,
        rejax={
            "agent_kwargs": {"activation": "swish"},
            "num_steps": 100,
            "num_epochs": 10,
            "num_minibatches": 10,
            "learning_rate": 0.001,
            "max_grad_norm": 10,
            "gamma": 0.995,
            "gae_lambda": 0.95,
            "clip_eps": 0.2,
            "ent_coef": 0.0,
            "vf_coef": 0.5,
            "normalize_observations": True,
        },
        ours={
            "unroll_length": 100,
            "num_epochs": 10,
            "num_minibatches": 10,
            "learning_rate": 0.001,
            "max_grad_norm": 10.0,
            "gamma": 0.995,
            "gae_lambda": 0.95,
            "clip_epsilon": 0.2,
            "entropy_cost": 0.0,
            "value_cost": 0.5,
            "hidden": (64, 64),
            "activation": "silu",
            "normalise_observations": True,
        },
    ),
    "pqn": Task(
        env="CartPole-v1",
        algo="pqn",
        steps=524_288,
        num_worlds=16,
        rejax={
            "num_steps": 128,
            "num_minibatches": 16,
            "max_grad_norm": 10,
            "learning_rate": 0.0003,
            "num_epochs": 5,
            "eps_start": 1,
            "eps_end": 0.05,
            "exploration_fraction": 0.5,
            "gamma": 0.99,
            "td_lambda": 0.9,
            "normalize_observations": False,
        },
        ours={
            "unroll_length": 128,
            "num_minibatches": 16,
            "max_grad_norm": 10.0,
            "learning_rate": 0.0003,
            "num_epochs": 5,
            "epsilon": 1.0,
            "epsilon_min": 0.05,
            "epsilon_updates": 128,
            "gamma": 0.99,
            "q_lambda": 0.9,
            "hidden": (64, 64),
            "normalise_observations": False,
        },
    ),
    "dqn": Task(
        env="CartPole-v1",
        algo="dqn",
        steps=100_000,
        num_worlds=10,
        rejax={
            "agent": "DuelingQNetwork",
            "agent_kwargs": {"activation": "swish"},
            "buffer_size": 50_000,
            "fill_buffer": 5_000,
            "batch_size": 100,
            "max_grad_norm": 10,
            "learning_rate": 0.001,
            "num_epochs": 5,
            "polyak": 0.98,
            "eps_start": 1,
            "eps_end": 0.05,
            "exploration_fraction": 0.5,
            "gamma": 0.99,
            "ddqn": True,
            "normalize_observations": False,
        },
        network={"agent": "QNetwork"},
        ours={
            "buffer_size": 50_000,
            "learning_starts": 5_000,
            "batch_size": 100,
            "max_grad_norm": 10.0,
            "learning_rate": 0.001,
            "gradient_steps": 5,
            "target_rate": 0.004,  # its target moves by 0.02 once in five updates
            "epsilon": 1.0,
            "epsilon_min": 0.05,
            "epsilon_steps": 50_000,
            "gamma": 0.99,
            "loss": "squared",
            "hidden": (64, 64),
            "activation": "silu",
        },
    ),
    "sac": Task(
        env="Pendulum-v1",
        algo="sac",
        steps=10_000,
        num_worlds=1,
        rejax={
            "agent_kwargs": {"activation": "swish"},
            "buffer_size": 10_000,
            "fill_buffer": 256,
            "batch_size": 256,
            "learning_rate": 0.01,
            "num_epochs": 1,
            "gamma": 0.99,
            "polyak": 0.98,
            "target_entropy_ratio": None,
            "normalize_observations": True,
        },
        network={"agent_kwargs": {"activation": "relu"}},
        ours={
            "buffer_size": 10_000,
            "learning_starts": 256,
            "batch_size": 256,
            "actor_rate": 0.01,
            "critic_rate": 0.01,
            "temperature_rate": 0.01,
            "gradient_steps": 1,
            "gamma": 0.99,
            "tau": 0.02,
            "hidden": (64, 64),
            "normalise_observations": True,
        },
    ),
    "td3": Task(
        env="Pendulum-v1",
        algo="td3",
        steps=10_000,
        num_worlds=1,
        rejax={
            "actor_kwargs": {"activation": "swish"},
            "critic_kwargs": {"activation": "swish"},
            "buffer_size": 10_000,
            "fill_buffer": 1000,
            "batch_size": 100,
            "learning_rate": 0.001,
            "num_epochs": 1,
            "gamma": 0.99,
            "polyak": 0.95,
            "max_grad_norm": 100,
            "exploration_noise": 0.3,
            "target_noise": 0.2,
            "target_noise_clip": 0.5,
            "policy_delay": 2,
            "normalize_observations": True,
        },
        network={
            "actor_kwargs": {"activation": "relu"},
            "critic_kwargs": {"activation": "relu"},
        },
        ours={
            "buffer_size": 10_000,
            "learning_starts": 1000,
            "batch_size": 100,
            "actor_rate": 0.001,
            "critic_rate": 0.001,
            "gradient_steps": 1,
            "gamma": 0.99,
            "tau": 0.05,
            # Its noise is added to a torque in [-2, 2], ours to an action in [-1, 1].
            "exploration_noise": 0.15,
            "policy_noise": 0.1,
            "noise_clip": 0.25,
            "policy_delay": 2,
            "hidden": (64, 64),
            "normalise_observations": True,
        },
    ),
}


@dataclass
class BenchAlgos:
    """The arguments of `worldloom bench algos`."""

    out: Path | None = None
    """Where to write; benchmarks/results/algos.json, or algos-partial / algos-quick beside it."""
    only: tuple[str, ...] = ()
    """Tasks to run (ppo, ppo_pendulum, pqn, dqn, sac, td3); all if none is named."""
    seeds: int = 5
    """Trainings of each side, each from another seed: of their times the median counts."""
    episodes: int = 128
    """Greedy episodes after each training."""
    json: bool = False
    """Print the result as JSON."""
    quick: bool = False
    """Tiny budgets, to see that it works; its figures mean nothing."""


def command(argv: Sequence[str]) -> int:
    """The command line of `worldloom bench algos`; 0, or 1 if a task failed."""
    about = "Measure training against rejax and write JSON; twenty minutes."
    args = parse(BenchAlgos, argv, "worldloom bench algos", about)
    for name in args.only:
        if name not in TASKS:
            raise ValueError(f"there is no task {name!r}; {suggest(name, list(TASKS))}")
    variant = "-quick" if args.quick else "-partial" if args.only else ""
    out = args.out or Path("benchmarks/results") / f"algos{variant}.json"
    record = run(args, out, shlex.join(["worldloom", "bench", "algos", *argv]))
    result = plain(record.result)
    page = write_bench(result, out.with_suffix(".html"))
    code = 0 if result["complete"] else 1
    if args.json:
        print(json.dumps(result, indent=2))
        return code
    rows = [
        [name, "-" if value is None else f"{value:,.3g}", RATIOS[name]]
        for name, value in result["ratios"].items()
    ]
    table("algos: all measured in this run", ["figure", "measured", "what it is"], rows)
    for task, error in result["errors"].items():
        print(f"- {task} failed: {error}")
    print(f"written to {out} and {page}")
    return code


def run(args: BenchAlgos, out: Path, line: str) -> Record:
    """Measures task after task and writes `out` after each; one that fails stops no other."""
    tasks = args.only or tuple(TASKS)
    record = Record(
        out,
        kind="bench",
        suite="algos",
        command=line,
        quick=args.quick,
        notes=list(NOTES),
        ratios=dict.fromkeys(RATIOS),
        raw={},
    )
    for name in tasks:
        raw = record.result["raw"].setdefault(name, {})
        record.section(name, partial(measure, name, args, record, raw))
    record.finish()
    return record


def measure(name: str, args: BenchAlgos, record: Record, raw: dict[str, Any]) -> None:
    """One task: whole trainings of both sides, taken in turn, and what they score."""
    setup, seeds = task_setup(TASKS[name], args.episodes), args.seeds * TASKS[name].trainings
    if args.quick:
        setup, seeds = quick(setup), 1
    raw |= {"env": setup["env"], "rejax": setup["rejax"], "ours": setup["ours"]}
    with ExitStack() as stack:
        learners = {"ours": stack.enter_context(ours(**setup))}
        raw["steps"] = setup["steps"] = learners["ours"].steps  # both sides play as many
        learners["rejax"] = stack.enter_context(rejax(**setup))
        if TASKS[name].network:
            like_ours = setup["rejax"] | TASKS[name].network
            like_ours = stack.enter_context(rejax(**setup | {"rejax": like_ours}))
            learners["rejax_with_our_network"] = like_ours
        timings = take_turns(learners, seeds)
    for player, learner in learners.items():
        timing = timings[player]
        raw[player + "_runs"] = {
            "steps_per_second": 1.0 / timing.median,
            "seconds_per_step": timing.to_dict(),
            "score": statistics.fmean(learner.scores),
            "scores": learner.scores,
            "facts": learner.facts,
        }
        record.note(
            f"  {player}: {1.0 / timing.median:,.0f} steps/s, scores "
            + ", ".join(f"{score:.4g}" for score in learner.scores)
        )
    scores = {player: learner.scores for player, learner in learners.items()}
    raw["as_good"] = as_good(scores)
    if raw["as_good"] or args.quick:
        fastest = min(timing.median for player, timing in timings.items() if player != "ours")
        record.result["ratios"][f"{name}_vs_rejax"] = fastest / timings["ours"].median


def as_good(scores: Mapping[str, Sequence[float]]) -> bool:
    """Whether our mean score is no worse than the best other one, but for noise.

    Noise: two standard errors of the difference of the means over seeds.
    """
    ours = scores["ours"]
    best = max((s for name, s in scores.items() if name != "ours"), key=statistics.fmean)
    if len(ours) < 2:
        return statistics.fmean(ours) >= statistics.fmean(best)
    error = sum(statistics.variance(s) / len(s) for s in (ours, best)) ** 0.5
    return statistics.fmean(ours) >= statistics.fmean(best) - 2.0 * error


def task_setup(task: Task, episodes: int) -> dict[str, Any]:
    """What both sides are told of a task."""
    return {
        "env": task.env,
        "algo": task.algo,
        "batch": task.num_worlds,
        "steps": task.steps,
        "episodes": episodes,
        "rejax": {
            "env": task.env,
            "num_envs": task.num_worlds,
            "total_timesteps": task.steps,
            **task.rejax,
        },
        "ours": {
            "env": f"gymnax:{task.env}",
            "algo": task.algo,
            "num_worlds": task.num_worlds,
            "steps": task.steps,
            task.algo: dict(task.ours),
        },
    }


def quick(setup: dict[str, Any]) -> dict[str, Any]:
    """The same for one iteration of ours, and few episodes."""
    return setup | {"steps": 1, "episodes": 2}


# Processes ---------------------------------------------------------------------------------------


class Learner(Player):
    """A process that trains from a new seed when it is asked to, and scores what it learned."""

    def __init__(self, argv: Sequence[str], setup: Mapping[str, Any]):
        self.scores: list[float] = []
        super().__init__(argv, setup)

    def play(self) -> float:
        """Seconds of one training."""
        answer = self._ask("go")
        self.scores.append(answer["score"])
        return answer["seconds"]


def ours(**setup: Any) -> Learner:
    return Learner([sys.executable, "-m", "benchmarks.algos"], {"player": "ours"} | setup)


def rejax(**setup: Any) -> Learner:
    """rejax in the environment that `make peers` sets up for it."""
    python = PEERS / "bin/python"
    if not python.exists():
        raise ValueError(f"{python} is not there: `make peers` sets up what is measured against")
    return Learner([str(python), rejax_peer.__file__], {"player": "rejax"} | setup)


def make(setup: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., float], dict[str, Any]]:
    """Our side: the library's own trainer of a plain world, any number of whole trainings."""
    import jax

    from worldloom import suites
    from worldloom.training.config import make_config
    from worldloom.training.loops import make_trainer
    from worldloom.training.machine import versions

    suite = suites.suite("plain")
    config = make_config(suite, setup["ours"])
    problem = suite.problem(config, None)
    trainer = make_trainer(config, problem)
    evaluator = problem.make_evaluator(trainer, setup["episodes"])
    iterations = max(1, round(setup["steps"] / trainer.steps_per_iteration))
    init = jax.jit(trainer.loop.init)

    def train(seed: int) -> Any:
        trainer.load(init(jax.random.key(seed), *trainer.shared))
        trainer.advance(iterations)
        jax.block_until_ready(trainer.run)
        return trainer.agents()

    def evaluate(agents: Any, seed: int) -> float:
        return evaluator(agents, jax.random.key(1000 + seed)).mean

    trainer.advance(1)  # compiles
    facts = {
        "steps": iterations * trainer.steps_per_iteration,
        "compile_seconds": trainer.compile_seconds,
        "versions": versions(),
    }
    return train, evaluate, facts


if __name__ == "__main__":
    rejax_peer.serve(make)
