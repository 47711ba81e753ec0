"""A model of a plant, learned from logged data: an ensemble that disagrees where there are none.

For the barriers and the lookahead of a safety filter where nobody has the plant's equations:
`make_constraints(..., model=learn_dynamics(data, key)[0])` takes the members' mean less some of
their standard deviations. Members are networks that learn the change from one observation to the
next, each from other weights and from a bootstrap sample of its own (Chua et al. 2018).

That members disagree far from the data is likely, and nothing that could be relied on: a filter
with a learned model promises what it says of the model. `support` tells how far a policy goes.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos.actor_critic import Metrics, gradient_step, init_train_state
from worldloom.algos.config import Config, at_least, positive
from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.nn.offline import Weights, make_mlp, mlp
from worldloom.replay.dataset import Dataset

SMALLEST_CHANGE = 1e-6  # deviation of a signal's change, below which it is taken not to change


@dataclass(frozen=True)
class DynamicsConfig(Config):
    """num_members: E networks, 2 at least, since one cannot disagree.

    The learning rate falls to 0 in the course of the updates.
    """

    hidden: tuple[int, ...] = at_least(1, (64, 64))
    num_members: int = at_least(2, 5)
    updates: int = at_least(1, 10_000)  # of each member
    batch_size: int = at_least(1, 256)
    learning_rate: float = positive(1e-3)


class Dynamics(struct.PyTreeNode):
    """What was learned: weights with a leading axis (E, ...), and how numbers are scaled."""

    members: Weights
    obs_mean: Array  # (n,)
    obs_std: Array  # (n,)
    change_mean: Array  # (n,), in a step
    change_std: Array  # (n,); 0 for a signal that never changes


def learn_dynamics(
    dataset: Dataset, key: Key, config: DynamicsConfig | None = None
) -> tuple[jax.tree_util.Partial, Metrics]:
    """A model (obs (n,), action (m,)) -> next obs (E, n), and the curves (E, updates) of learning.

    Observations are in the plant's units, actions in [-1, 1]. The model is a pytree whose leaves
    are the weights: one that is learned anew takes the place of another without compiling again.
    """
    config = config or DynamicsConfig()
    rows = dataset.rows
    change = rows.next_obs - rows.obs
    mean, std = change.mean(0), change.std(0)
    moves = std > SMALLEST_CHANGE
    inputs = jnp.concatenate([dataset.normalise(rows.obs), rows.action], -1)
    targets = jnp.where(moves, (change - mean) / jnp.where(moves, std, 1.0), 0.0)
    members, metrics = _learn(config, inputs, targets, draws.split(key, config.num_members))
    learned = Dynamics(members, dataset.mean, dataset.std, mean, jnp.where(moves, std, 0.0))
    return jax.tree_util.Partial(next_observations, learned), metrics


def next_observations(model: Dynamics, obs: Array, action: Array) -> Array:
    """What each member takes the next observation to be, (E, n), for obs (n,) and action (m,)."""
    inputs = jnp.concatenate([(obs - model.obs_mean) / model.obs_std, action])
    change = jax.vmap(lambda weights: _network(weights, inputs[None])[0])(model.members)
    return obs + model.change_mean + model.change_std * change


# Smooth, for whoever follows its slopes: outputs (B, n) for inputs (B, n + m).
_network = partial(mlp, activation=jax.nn.silu)


def _loss(weights: Weights, inputs: Array, targets: Array) -> tuple[Array, Metrics]:
    loss = jnp.square(_network(weights, inputs) - targets).mean()
    return loss, {"model_loss": loss}


@partial(jax.jit, static_argnums=0)
def _learn(
    config: DynamicsConfig, inputs: Array, targets: Array, keys: Key
) -> tuple[Weights, Metrics]:
    """Weights (E, ...) and losses (E, updates), from inputs (N, n + m) and targets (N, n)."""
    size, sizes = inputs.shape[0], (inputs.shape[1], *config.hidden, targets.shape[1])
    rates = config.learning_rate * (1.0 - jnp.arange(config.updates) / config.updates)

    def member(key: Key) -> tuple[Weights, Metrics]:
        start_key, sample_key, learn_key = draws.split(key, 3)
        own = draws.integers(sample_key, (size,), size)

        def one(learned, step):
            key, rate = step
            index = own[draws.integers(key, (config.batch_size,), size)]
            return gradient_step(learned, rate, _loss, inputs[index], targets[index])

        steps = (draws.split(learn_key, config.updates), rates)
        start = init_train_state(make_mlp(start_key, sizes))
        learned, losses = jax.lax.scan(one, start, steps)
        return learned.params, losses

    # One after the other: as products with a batch axis they would be slower on a CPU.
    return jax.lax.map(member, keys)
