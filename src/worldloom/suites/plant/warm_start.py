"""Offline to online: a fresh online learner with the networks of an offline run.

    td3   from td3bc, rebrac or bc: the actor
    sac   from cql, edac, iql or a Gaussian bc: the actor, of iql as the mean of a Gaussian

Critics follow where their shapes agree (not ReBRAC's, which have layer norms, nor EDAC's many),
brought from the log's rewards, which are scaled and centred, to the plant's own. The normaliser is
that of the data, and stays: it is part of what the networks know. Optimisers start anew, and so
does the memory.
"""

from typing import Any

import jax
import jax.numpy as jnp

from worldloom.algos.actor_critic import init_train_state
from worldloom.algos.offline import make_table
from worldloom.core.types import PyTree
from worldloom.nn.normaliser import EPSILON, Normaliser
from worldloom.nn.offline import Weights, deterministic, squashed_mode
from worldloom.replay.dataset import Dataset
from worldloom.training.run import Run

IMMOVABLE = 1e30  # observations: what a normaliser has seen that no new one moves
SOURCES = {"td3": ("td3bc", "rebrac", "bc"), "sac": ("cql", "edac", "iql", "bc")}


def warm_start(learner: PyTree, algo: str, config: Any, source: Run) -> PyTree:
    """The fresh `learner` of an online `algo` with what the offline run `source` learned."""
    known = SOURCES.get(algo)
    if known is None or source.config.algo not in known:
        fits = "; ".join(f"{to} from {', '.join(names)}" for to, names in SOURCES.items())
        raise ValueError(
            f"init_from={source.folder}: {algo} cannot start from {source.config.algo}; "
            f"what can: {fits}"
        )
    if not config.normalise_observations:
        raise ValueError(
            f"init_from={source.folder}: its networks see normalised observations; "
            f"set {algo}.normalise_observations"
        )
    assert source.problem.data is not None
    data, offline = source.problem.data(), source.trainer.run.learner
    actor = _actor(algo, source.agents)
    if _shapes(actor) != _shapes(learner.actor.params):
        sizes = [layer["kernel"].shape[-1] for layer in actor[:-1]]
        raise ValueError(
            f"init_from={source.folder}: its actor has hidden layers of {sizes}, or another plant; "
            f"use hidden={sizes} and its plant"
        )
    critic = getattr(offline, "critic", None)
    normaliser = Normaliser(jnp.float32(IMMOVABLE), data.mean, jnp.square(data.std) - EPSILON)
    changes: dict[str, Any] = {"actor": init_train_state(actor), "normaliser": normaliser}
    if hasattr(learner, "target_actor"):
        changes["target_actor"] = actor
    if critic is not None and _shapes(critic.params) == _shapes(learner.critic.params):
        weights = _in_plant_rewards(critic.params, data, float(offline.hyper.gamma), config)
        changes |= {"critic": init_train_state(weights), "target_critic": weights}
    # Buffers of their own: all of them are donated to the first iteration.
    return jax.tree.map(jnp.copy, learner.replace(**changes))


def _actor(algo: str, policy: Any) -> Weights:
    """The weights of the policy as those of the online algorithm's actor."""
    if isinstance(policy.params, dict):  # IQL: a mean, and a deviation for all observations
        *layers, last = policy.params["mean"]
        log_std = policy.params["log_std"]
        kernel = jnp.concatenate([last["kernel"], jnp.zeros_like(last["kernel"])], axis=-1)
        bias = jnp.concatenate([last["bias"], log_std])
        return (*layers, {"kernel": kernel, "bias": bias})
    expected = deterministic if algo == "td3" else squashed_mode
    if policy.apply is not expected:
        kind = "deterministic" if algo == "td3" else "Gaussian"
        raise ValueError(f"init_from: {algo} needs a {kind} policy to start from; see bc.gaussian")
    return policy.params


def _in_plant_rewards(critic: Weights, data: Dataset, gamma: float, config: Any) -> Weights:
    """Critics of the rewards that the online learner sees, from those of the log's table."""
    scale = make_table(data, centre=True).reward_scale
    ends = bool(data.rows.terminated.any())  # then rewards were not centred: see `make_table`
    middle = 0.0 if ends else data.rows.reward.mean()
    factor = config.reward_scale / scale
    *layers, last = critic
    shift = config.reward_scale * middle / (1.0 - gamma)
    return (*layers, {"kernel": factor * last["kernel"], "bias": factor * last["bias"] + shift})


def _shapes(tree: PyTree) -> Any:
    return jax.tree.structure(tree), [leaf.shape for leaf in jax.tree.leaves(tree)]
