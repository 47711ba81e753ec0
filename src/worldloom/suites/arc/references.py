"""Agents that learn nothing, as what learned ones are compared with, and what they score."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from worldloom.core.types import Array
from worldloom.nn.actor_critic import point_action_mask
from worldloom.nn.distributions import Categorical
from worldloom.suites.arc import o2arc, operations
from worldloom.suites.arc.episodes import AgentFn, greedy_editor
from worldloom.suites.arc.evaluate import ArcEvaluator
from worldloom.suites.arc.types import ArcConfig

REFERENCE_KEY = 4_000_037  # reference play draws from keys of its own
# Operations that do not look at the cell they point to, and those that may point anywhere.
NOWHERE = {
    "edit": (operations.COPY_INPUT, operations.SUBMIT, operations.UNDO),
    "o2arc": (o2arc.COPY_INPUT, o2arc.RESET, operations.SUBMIT),
}
ANYWHERE = (operations.RESIZE,)  # the same number under both rule sets


def random_agent(config: ArcConfig, explore: Array) -> AgentFn:
    """Draws among the same point actions as a policy, each as likely, whatever `explore` is."""

    def act(states, agent_state, key):
        mask = point_action_mask(
            states.operation_mask, states.size, config.grid_shape, ANYWHERE, NOWHERE[config.rules]
        )
        return Categorical(jnp.zeros(mask.shape), mask).sample(key), agent_state

    return act


def editor_agent(config: ArcConfig, explore: Array) -> AgentFn:
    """The scripted editor, which knows the answer: how much the rules let anybody solve."""
    return greedy_editor(config)


def _both(config: ArcConfig, explore: Array) -> AgentFn:
    """Both of them in one program: the editor where play is greedy, random play elsewhere."""
    random, editor = random_agent(config, explore), greedy_editor(config)
    height, width = config.grid_shape

    def act(states, agent_state, key):
        best: Any = editor(states, agent_state, key)[0]
        drawn: Any = random(states, agent_state, key)[0]
        flat = (best.operation * height + best.row) * width + best.column
        return jnp.where(explore > 0, drawn, flat), agent_state

    return act


def references(evaluator: ArcEvaluator) -> dict[str, dict[str, Any]]:
    """What random play and the editor that knows the answer solve of the same pairs.

    The editor is left out under rules that it cannot play by.
    """
    key = jax.random.key(REFERENCE_KEY)
    if evaluator.rules.rules != "edit":
        alone = ArcEvaluator(evaluator.tasks, evaluator.rules, random_agent)
        return {"random play": alone((), key).to_dict()}
    played = ArcEvaluator(evaluator.tasks, evaluator.rules, _both, attempts=1)((), key)
    alone = replace(played, attempts=played.attempts[:0])
    return {
        "random play": replace(alone, solved=played.attempts[0]).to_dict(),
        "greedy editor": alone.to_dict(),
    }
