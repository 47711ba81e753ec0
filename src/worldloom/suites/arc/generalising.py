"""What a run needs whose policy is told the rule by demonstrations: network, trainer, settings."""

from typing import Any

from worldloom.core.types import Array
from worldloom.nn.networks import Network
from worldloom.replay.dataset import Dataset
from worldloom.suites.arc.generators.drawing import family_names
from worldloom.suites.arc.generators.grids import MOST_EDITS, Level
from worldloom.suites.arc.imitation import ImitationLoop
from worldloom.suites.arc.policy import DemonstrationPolicy
from worldloom.suites.arc.types import NUM_EXTENDED_OPERATIONS, ArcConfig, Observation
from worldloom.training.config import TrainConfig
from worldloom.training.suite import Problem
from worldloom.training.trainer import Trainer

GENERALISE = ("bc", "ppo", "random")  # the algorithms of this policy
GENERATED = "generated"  # the name of tasks that are drawn
SHOWN = 3  # demonstrations
SHOWN_SEED = 1_000_003  # of the generated tasks that a run is scored on
DECISIONS = 3  # learned from in a pair, of those that solve it


def demonstration_network(rules: ArcConfig) -> Network:
    """The policy and the value for an on-policy algorithm."""
    net = DemonstrationPolicy(rules.num_operations)
    most = int(rules.max_steps)

    def steps(obs: Observation) -> Array:
        return obs.step_count / most

    return Network(
        init=lambda key, obs: net.init(key, obs, steps(obs)),
        apply=lambda params, obs: net.apply(params, obs, steps(obs)),
    )


def imitates(config: TrainConfig) -> bool:
    """Whether a run clones programmatic solutions of tasks that it draws."""
    settings: Any = config.settings
    generated = settings.tasks == GENERATED and settings.policy == "demonstrations"
    return config.algo == "bc" and generated and not settings.dataset


def drawn_anew() -> Dataset:
    """There are no data to read: tasks and solutions are drawn in training."""
    raise ValueError("arc: solutions of generated tasks are drawn while training, never stored")


def imitation_trainer(config: TrainConfig, problem: Problem) -> Trainer:
    """A trainer that clones the solutions of tasks drawn from the run's families."""
    rules: ArcConfig = problem.env.default_params()
    settings, hyper = config.settings, config.hyper
    if rules.num_operations < NUM_EXTENDED_OPERATIONS or not rules.operation_mask.all():
        raise ValueError(
            "arc: solutions of generated tasks use every operation; set world.extended and leave "
            "world.operations out"
        )
    if int(rules.max_steps) < MOST_EDITS or rules.rules != "edit":
        raise ValueError(
            f"arc: solutions of generated tasks take up to {MOST_EDITS} steps under the rules "
            f"'edit'; set world.max_steps={MOST_EDITS}"
        )
    if config.devices > 1:
        raise ValueError(
            f"devices={config.devices}: solutions of generated tasks are cloned on one device"
        )
    most = int(rules.max_steps)
    families = family_names(settings.families)
    pairs = max(1, hyper.batch_size // DECISIONS)
    wanted = hyper.updates_per_iteration * pairs
    loop = ImitationLoop(
        agent=DemonstrationPolicy(rules.num_operations),
        rules=rules,
        families=families,
        level=Level(),
        updates=config.steps,
        learning_rate=float(hyper.hyper.learning_rate),
        batch=pairs,
        states=DECISIONS,
        per_family=-(-wanted // (len(families) * (SHOWN + 1))),
        updates_per_iteration=hyper.updates_per_iteration,
        steps_of=lambda obs: obs.step_count / most,
    )
    return Trainer(loop, seed=config.seed, chunk=config.chunk)
