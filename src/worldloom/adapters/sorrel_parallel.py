"""All models of an object loop at once: one compiled call where the loop makes one for each."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from worldloom.adapters.sorrel import JAXModel, act_once, learn_once
from worldloom.algos.independent import is_large
from worldloom.algos.iqn import IQN, IQNConfig
from worldloom.core import draws, stack
from worldloom.core.types import Array, Key, PyTree


def parallel_take_actions(
    all_params: Sequence[Any],
    all_observations: ArrayLike,
    all_rng_keys: Sequence[Key] | None = None,
    model_class: Any = None,
    n_tau: int = 256,
) -> NDArray[np.int32]:
    """Every agent chooses in one call: actions (A,) for stacks of frames (A, numbers).

    all_params: models (or agents that have one), which do exactly what `take_action` of each in
    turn would do, exploration included; models of different forms take a call for each form. Or
    the parameters of IQN networks of one shape, which act greedily by the mean of `n_tau` levels
    drawn from `all_rng_keys`; `model_class` is not needed, the parameters' shapes tell the network.
    """
    if not all(isinstance(params, dict) for params in all_params):
        return _models_act([_model_of(one) for one in all_params], all_observations)
    if all_rng_keys is None:
        raise ValueError("parallel_take_actions: parameters alone act by keys; give all_rng_keys")
    params = [p if "params" in p else {"params": p} for p in all_params]
    hidden, actions = params[0]["params"]["advantage"]["kernel"].shape
    config = IQNConfig(hidden=hidden, act_quantiles=n_tau, act_levels="random")
    observations = np.asarray(all_observations, np.float32)[:, None]
    keys, greedy = list(draws.as_key(jnp.stack(list(all_rng_keys)))), np.zeros(len(observations))
    return np.asarray(_act_all(IQN(config, actions), params, observations, keys, greedy)[1])


def _models_act(models: list[JAXModel], observations: Any) -> NDArray[np.int32]:
    obs = [model.frames(o) for model, o in zip(models, observations, strict=True)]
    actions = np.zeros(len(models), np.int32)
    for places in _groups(models):
        group = [models[i] for i in places]
        keys, chosen = _act_all(
            group[0].agent,
            [m.learner.params for m in group],
            np.stack([obs[i] for i in places]),
            [m.rng_key for m in group],
            np.array([m.epsilon for m in group], np.float32),
        )
        actions[places] = chosen
        for model, key in zip(group, keys, strict=True):
            model.rng_key = key
    return actions


def parallel_train_agents(agents: Sequence[Any]) -> NDArray[np.float32]:
    """One `train_step` of every model (or agent that has one) in one call; the sum of their losses.

    Models of different forms take a call for each form, and a model that several agents share
    learns once for each of them. Those whose memory holds too little stay as they are, as
    `train_step` leaves them.
    """
    models = [_model_of(agent) for agent in agents]
    ready = [m for m in models if m.can_train()]
    total = 0.0
    for places in _groups(ready):
        group = [ready[i] for i in places]
        learned, losses = _learn_all(
            *group[0].form[:3],
            [(m.learner, m.memory.state, m.rng_key) for m in group],
        )
        for model, (learner, key) in zip(group, learned, strict=True):
            model.learner, model.rng_key = learner, key
        total += float(losses.sum())
    return np.array(total, np.float32)


def _groups(models: Sequence[JAXModel]) -> Collection[list[int]]:
    """Places of models that one call can serve, in order: all of one form, and no model twice."""
    turns, groups = Counter(), defaultdict(list)
    for place, model in enumerate(models):
        turns[id(model)] += 1
        groups[turns[id(model)], model.form].append(place)
    return groups.values()


def _model_of(agent: Any) -> JAXModel:
    model = getattr(agent, "model", agent)
    if not isinstance(model, JAXModel):
        raise ValueError(
            f"{type(model).__name__} is no model of this package; use JAXIQN or a JAXModel"
        )
    return model


# Models come as lists and are stacked inside, where it costs no call for every leaf.


@partial(jax.jit, static_argnums=0)
def _act_all(
    agent: Any, params: list[PyTree], obs: Array, keys: list[Key], epsilon: Array
) -> tuple[list[Key], Array]:
    each = zip(params, obs, keys, epsilon, strict=True)
    new_keys, actions = zip(*(act_once(agent, *one) for one in each), strict=True)
    return list(new_keys), jnp.stack(actions)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _learn_all(
    agent: Any, ring: Any, updates: int, models: list[tuple[PyTree, PyTree, Key]]
) -> tuple[list[tuple[PyTree, Key]], Array]:
    learn, stacked = partial(learn_once, agent, ring, updates), stack.stack(models)
    if is_large(agent):  # see `independent.parallel_train_agents`
        learners, keys, losses = jax.lax.map(lambda one: learn(*one), stacked)
    else:
        learners, keys, losses = jax.vmap(learn)(*stacked)
    return list(zip(stack.unstack(learners), keys, strict=True)), losses
