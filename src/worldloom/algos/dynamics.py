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

LOG_STD_RANGE = (-5.0, 2.0)
SMALLEST_CHANGE = 1e-6  # of a signal's deviation: one that changes less does not, in any unit


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
    moves = std > SMALLEST_CHANGE * dataset.std
    inputs = jnp.concatenate([dataset.normalise(rows.obs), rows.action], -1)
    targets = jnp.where(moves, (change - mean) / jnp.where(moves, std, 1.0), 0.0)
    members, metrics = fit_ensemble(config, inputs, targets, draws.split(key, config.num_members))
    learned = Dynamics(members, dataset.mean, dataset.std, mean, jnp.where(moves, std, 0.0))
    return jax.tree_util.Partial(next_observations, learned), metrics


def next_observations(model: Dynamics, obs: Array, action: Array) -> Array:
    """What each member takes the next observation to be, (E, n), for obs (n,) and action (m,)."""
    inputs = jnp.concatenate([(obs - model.obs_mean) / model.obs_std, action])
    change = jax.vmap(lambda weights: network(weights, inputs[None])[0])(model.members)
    return obs + model.change_mean + model.change_std * change


# Smooth, for whoever follows its slopes: outputs (B, n) for inputs (B, n + m).
network = partial(mlp, activation=jax.nn.silu)


def _loss(weights: Weights, inputs: Array, targets: Array) -> tuple[Array, Metrics]:
    loss = jnp.square(network(weights, inputs) - targets).mean()
    return loss, {"model_loss": loss}


def _likelihood(weights: Weights, inputs: Array, targets: Array) -> tuple[Array, Metrics]:
    """The negative log-likelihood, each term times its deviation (beta-NLL, Seitzer et al. 2022).

    Without that factor a network gives up on what it finds hard and calls it noise.
    """
    mean, log_std = gaussian_change(weights, inputs)
    nll = 0.5 * jnp.square((targets - mean) * jnp.exp(-log_std)) + log_std
    loss = (nll * jax.lax.stop_gradient(jnp.exp(log_std))).mean()
    return loss, {"model_loss": loss}


def gaussian_change(weights: Weights, inputs: Array) -> tuple[Array, Array]:
    """Means and log-deviations (B, o) each, of a network that learned both."""
    mean, log_std = jnp.split(network(weights, inputs), 2, axis=-1)
    return mean, jnp.clip(log_std, *LOG_STD_RANGE)


@partial(jax.jit, static_argnums=(0, 5))
def fit_ensemble(
    config: DynamicsConfig,
    inputs: Array,
    targets: Array,
    keys: Key,
    samples: Array | None = None,
    deviations: bool = False,
) -> tuple[Weights, Metrics]:
    """Weights (E, ...) and losses (E, updates), from inputs (N, i) and targets (N, o).

    samples (E, N): the rows that each member learns from; None draws them with replacement.
    deviations: whether o log-deviations are learned beside the means, outputs (N, 2 o).
    """
    loss, each = (_likelihood, 2) if deviations else (_loss, 1)
    size, sizes = inputs.shape[0], (inputs.shape[1], *config.hidden, each * targets.shape[1])
    rates = config.learning_rate * (1.0 - jnp.arange(config.updates) / config.updates)

    def member(given: tuple[Key, Array | None]) -> tuple[Weights, Metrics]:
        key, own = given
        start_key, sample_key, learn_key = draws.split(key, 3)
        own = draws.integers(sample_key, (size,), size) if own is None else own

        def one(learned, step):
            key, rate = step
            index = own[draws.integers(key, (config.batch_size,), size)]
            return gradient_step(learned, rate, loss, inputs[index], targets[index])

        steps = (draws.split(learn_key, config.updates), rates)
        start = init_train_state(make_mlp(start_key, sizes))
        learned, losses = jax.lax.scan(one, start, steps)
        return learned.params, losses

    # One after the other: as products with a batch axis they would be slower on a CPU.
    return jax.lax.map(member, (keys, samples))
