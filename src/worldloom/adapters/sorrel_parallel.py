"""All models of an object loop at once: one compiled call where the loop makes one for each."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from worldloom.adapters.sorrel import JAXModel, act_once, learn_once
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

    all_params: models (or agents that have one), which do exactly what `take_action` of each
    would do, exploration included. Or the parameters of IQN networks of one shape, which act
    greedily by the mean of `n_tau` levels drawn from `all_rng_keys`; `model_class` is not needed,
    the shapes of the parameters tell the network.
    """
    observations = np.asarray(all_observations, np.float32)
    if not all(isinstance(params, dict) for params in all_params):
        return _models_act([_model_of(one) for one in all_params], observations)
    if all_rng_keys is None:
        raise ValueError("parallel_take_actions: parameters alone act by keys; give all_rng_keys")
    params = stack.stack([p if "params" in p else {"params": p} for p in all_params])
    hidden, actions = params["params"]["advantage"]["kernel"].shape[1:]
    config = IQNConfig(hidden=hidden, act_quantiles=n_tau, act_levels="random")
    agent, keys = IQN(config, actions), draws.as_key(jnp.stack(list(all_rng_keys)))
    greedy = jnp.zeros(len(observations))
    return np.asarray(_act_all(agent, params, observations[:, None], keys, greedy)[1])


def _models_act(models: list[JAXModel], observations: NDArray[np.float32]) -> NDArray[np.int32]:
    first = models[0]
    obs = np.stack([m.frames(o) for m, o in zip(models, observations, strict=True)])
    if any(m.agent != first.agent for m in models):
        acts = [m.take_action(o) for m, o in zip(models, obs, strict=True)]
        return np.array(acts, np.int32)
    keys, actions = _act_all(
        first.agent,
        stack.stack([m.learner.params for m in models]),
        obs,
        jnp.stack([m.rng_key for m in models]),
        jnp.array([m.epsilon for m in models], jnp.float32),
    )
    for model, key in zip(models, keys, strict=True):
        model.rng_key = key
    return np.asarray(actions)


def parallel_train_agents(agents: Sequence[Any]) -> NDArray[np.float32]:
    """One `train_step` of every model (or agent that has one) in one call; the sum of their losses.

    Those whose memory holds too little stay as they are, as `train_step` leaves them.
    """
    models = [_model_of(agent) for agent in agents]
    ready = [m for m in models if m.memory.can_sample(m.agent.config.batch_size)]
    total = 0.0
    for kind in {(m.agent, m.memory.ring) for m in ready}:
        group = [m for m in ready if (m.agent, m.memory.ring) == kind]
        learners, keys, losses = _learn_all(
            *kind,
            stack.stack([m.learner for m in group]),
            stack.stack([m.memory.state for m in group]),
            jnp.stack([m.rng_key for m in group]),
        )
        for model, learner, key in zip(group, stack.unstack(learners), keys, strict=True):
            model.learner, model.rng_key = learner, key
        total += float(losses.sum())
    return np.array(total, np.float32)


def _model_of(agent: Any) -> JAXModel:
    model = getattr(agent, "model", agent)
    if not isinstance(model, JAXModel):
        raise ValueError(
            f"{type(model).__name__} is no model of this package; use JAXIQN or a JAXModel"
        )
    return model


@partial(jax.jit, static_argnums=0)
def _act_all(agent: Any, *agents: PyTree) -> tuple[Key, Array]:
    return jax.vmap(partial(act_once, agent))(*agents)


@partial(jax.jit, static_argnums=(0, 1))
def _learn_all(agent: Any, ring: Any, *agents: PyTree) -> tuple[PyTree, Key, Array]:
    return jax.vmap(partial(learn_once, agent, ring))(*agents)
