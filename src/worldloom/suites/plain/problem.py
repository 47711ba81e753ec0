"""Any world of one agent as a problem to train on."""

from pathlib import Path
from typing import Any

from worldloom import suites
from worldloom.adapters.single_agent import as_single
from worldloom.algos.algorithm import action_kind
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import normalise_actions
from worldloom.nn.networks import Networks
from worldloom.training.config import TrainConfig
from worldloom.training.evaluate import EpisodeEvaluator
from worldloom.training.loops import seen_by_agents
from worldloom.training.recording import recorded_data
from worldloom.training.suite import Problem


def make_env(config: TrainConfig) -> PureEnv:
    """The world that the settings name, with actions in [-1, 1] where they are continuous."""
    env = suites.make_checked(config.env, config.world, config.env)
    if env.spec.horizon is None:
        raise ValueError(
            f"{config.env}: training needs a world whose episodes end; wrap it in time_limit"
        )
    return usual_form(env, config.env) if env.spec.num_agents == 1 else env


def usual_form(env: PureEnv, name: str) -> PureEnv:
    """A world of one agent without its axis, with actions in [-1, 1] where they are continuous."""
    env = as_single(env, env.default_params(), name)
    action: Any = env.spec.action
    if action_kind(env.spec) == "continuous" and (action.low, action.high) != (-1, 1):
        env = normalise_actions(env)
    return env


def make_problem(config: TrainConfig, folder: Path | None = None) -> Problem:
    """What a loop needs to train in a world of one agent."""
    env, networks = make_env(config), Networks()
    return Problem(
        env=env,
        make_evaluator=lambda trainer, episodes: EpisodeEvaluator(
            seen_by_agents(env, config), trainer.act, episodes
        ),
        networks=networks,
        data=recorded_data(config.settings.dataset, env, networks),
    )
