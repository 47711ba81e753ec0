"""The model that a safety filter looks ahead with where nobody has the plant's equations.

An ensemble learned from the log (`worldloom.algos.dynamics`) without some of its episodes, which
then tell by how much it errs: what its members' disagreement does not cover becomes the
`disturbance` of every barrier. A filter takes `deviations` (2) standard deviations off the members'
mean. Of five members none lies further than 2 from their mean, sqrt(5 - 1): the filter is never
less careful than the most careful of them.
"""

import io
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos.dynamics import Dynamics, DynamicsConfig, learn_dynamics, next_observations
from worldloom.core.files import atomic_path
from worldloom.core.names import one_line
from worldloom.core.types import Array
from worldloom.replay.dataset import Dataset, hold_out

MODEL_FILE = "model.npz"
MODEL_KEY = 8_000_009  # the model draws from keys of its own
MEMBERS, DEVIATIONS = 5, 2.0
HELD_OUT = 0.1  # of the episodes
COVERED = 0.99  # of held-out rows, by deviations and disturbance together
ROWS = 20_000  # of these, at most


class LearnedModel(NamedTuple):
    """What was learned, and by how much it errs beyond its own doubt, (n,) in signals' units."""

    dynamics: Dynamics
    error: np.ndarray

    @property
    def function(self) -> jax.tree_util.Partial:
        """(obs (n,), action (m,)) -> next obs (E, n); a pytree of its weights."""
        return jax.tree_util.Partial(next_observations, self.dynamics)


def learn_model(data: Dataset, seed: int, updates: int) -> LearnedModel:
    """An ensemble from the log, and its error in episodes that it has not seen.

    Of a single episode, there is none to hold out: the error is then that of what it learned from.
    """
    several = len(data.starts) > 1
    kept, held = hold_out(data, HELD_OUT, seed) if several else (data, data)
    config = DynamicsConfig(num_members=MEMBERS, updates=updates)
    model, _ = learn_dynamics(kept, jax.random.key(MODEL_KEY + seed), config)
    rows = held.take(jnp.asarray(np.linspace(0, held.size - 1, min(held.size, ROWS)).astype(int)))

    @jax.jit
    def uncovered(obs: Array, action: Array, after: Array) -> Array:
        members = model(obs, action)
        return jnp.abs(after - members.mean(0)) - DEVIATIONS * members.std(0)

    beyond = jax.lax.map(lambda row: uncovered(*row), (rows.obs, rows.action, rows.next_obs))
    error = np.quantile(np.asarray(beyond), COVERED, axis=0)
    return LearnedModel(model.args[0], np.maximum(error, 0.0))


def save_model(path: Path, learned: LearnedModel) -> None:
    """Writes the model as arrays, whole or not at all."""
    scales = {n: x for n, x in vars(learned.dynamics).items() if n != "members"}
    layers = enumerate(learned.dynamics.members)
    weights = {f"members.{i}.{name}": x for i, layer in layers for name, x in layer.items()}
    arrays: dict[str, Any] = {name: np.asarray(x) for name, x in (scales | weights).items()}
    with atomic_path(path) as draft, draft.open("wb") as file:
        np.savez(file, error=learned.error, **arrays)


def load_model(path: Path) -> LearnedModel:
    """What `save_model` wrote; a ValueError of one line if it cannot be read."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        error = arrays.pop("error")
        layers: dict[int, dict[str, Array]] = {}
        for name in [name for name in arrays if name.startswith("members.")]:
            _, layer, part = name.split(".")
            layers.setdefault(int(layer), {})[part] = jnp.asarray(arrays.pop(name))
        members = tuple(layers[i] for i in range(len(layers)))
        scales = {name: jnp.asarray(x) for name, x in arrays.items()}
        return LearnedModel(Dynamics(members, **scales), error)
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; train the run again") from None
    except Exception as damage:  # numpy and zipfile have many words for one thing
        raise ValueError(
            f"{path} cannot be read ({one_line(damage, 100)}); put it back, or train again"
        ) from None
