"""An offline dataset: logged transitions as a pytree on the device.

Rows are in the order in which they were logged, episode after episode. Terminated and truncated are
apart: an episode that ran out of time, or whose log just stops, is bootstrapped from; one that
ended is not.
"""

import hashlib
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key

SMALLEST_STD = 1e-6  # beside a signal's mean: less is rounding of one that never moves


class Rows(struct.PyTreeNode):
    """Transitions (B, ...) as a learner takes them."""

    obs: Array  # float32 (B, n)
    action: Array  # float32 (B, m), in [-1, 1]
    reward: Array  # float32 (B,)
    next_obs: Array  # float32 (B, n)
    terminated: Array  # bool (B,): nothing follows
    truncated: Array  # bool (B,): the log stops here, the plant does not


class Dataset(struct.PyTreeNode):
    """N rows of E episodes, with what a learner and an auditor need to know of them."""

    rows: Rows  # (N, ...)
    starts: Array  # int32 (E,): the first row of each episode
    mean: Array  # (n,), of the observations
    std: Array  # (n,)
    cost: Array | None = None  # (N, C): by how much limits were crossed
    log_prob: Array | None = None  # (N,): of the action, under what logged it
    name: str = struct.field(pytree_node=False, default="")
    digest: str = struct.field(pytree_node=False, default="")
    """SHA-256 of the content, names and shapes of the columns included."""
    provenance: tuple[tuple[str, str], ...] = struct.field(pytree_node=False, default=())
    """Where it comes from, as pairs of names and values."""

    @property
    def size(self) -> int:
        return self.rows.reward.shape[0]

    def normalise(self, obs: Array) -> Array:
        """Observations (..., n), centred and scaled by those of the data."""
        return (obs - self.mean) / self.std

    def take(self, index: Array) -> Rows:
        """The rows (B,) of that index (B,)."""
        return Rows(*(column[index] for column in vars(self.rows).values()))

    def sample(self, key: Key, batch_size: int) -> Rows:
        """`batch_size` rows, each as likely."""
        return self.take(draws.integers(key, (batch_size,), self.size))


def from_columns(
    obs: Any,
    action: Any,
    reward: Any,
    next_obs: Any,
    terminated: Any,
    truncated: Any,
    *,
    cost: Any = None,
    log_prob: Any = None,
    name: str = "",
    provenance: tuple[tuple[str, str], ...] = (),
) -> Dataset:
    """A dataset from columns of N rows in the order of their logging, which must be sound.

    An episode begins after each row that is terminated or truncated, and at the first.
    """
    floats = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
    columns: dict[str, Any] = {key: np.asarray(value, np.float32) for key, value in floats.items()}
    columns["reward"] = columns["reward"].reshape(-1)
    for key, value in (("terminated", terminated), ("truncated", truncated)):
        columns[key] = np.asarray(value).reshape(-1).astype(bool)
    given = {"cost": cost, "log_prob": log_prob}
    extra = {key: np.asarray(x, np.float32) for key, x in given.items() if x is not None}
    if "cost" in extra and extra["cost"].ndim == 1:
        extra["cost"] = extra["cost"][:, None]
    rows = len(columns["reward"])
    for key, value in (columns | extra).items():
        if len(value) != rows:
            raise ValueError(f"dataset: {key} has {len(value)} rows, reward has {rows}")
    if rows == 0:
        raise ValueError("dataset: there are no rows")
    over = columns["terminated"] | columns["truncated"]
    starts = np.flatnonzero(np.concatenate([[True], over[:-1]])).astype(np.int32)
    mean, std = columns["obs"].mean(0, np.float64), columns["obs"].std(0, dtype=np.float64)
    # Left unscaled. In which unit a signal is logged must not decide whether it is seen.
    std = np.where(std <= SMALLEST_STD * np.abs(mean), 1.0, std)
    return Dataset(
        rows=Rows(**{key: jnp.asarray(value) for key, value in columns.items()}),
        starts=jnp.asarray(starts),
        mean=jnp.asarray(mean, jnp.float32),
        std=jnp.asarray(std, jnp.float32),
        name=name,
        digest=digest_of(columns | extra),
        provenance=provenance,
        **{key: jnp.asarray(value) for key, value in extra.items()},
    )


def hold_out(dataset: Dataset, share: float, seed: int = 0) -> tuple[Dataset, Dataset]:
    """The dataset without a share of its episodes, drawn at random, and these.

    What was learned from the first can be judged by the second: whole episodes, since neighbouring
    rows are nearly the same. Both keep at least one episode.
    """
    episodes = len(dataset.starts)
    count = min(max(round(share * episodes), 1), episodes - 1)
    if episodes < 2 or not 0.0 < share < 1.0:
        raise ValueError(f"hold_out: share={share:g} of {episodes} episodes; both parts need one")
    held = np.zeros(episodes, bool)
    held[np.random.default_rng(seed).permutation(episodes)[:count]] = True
    lengths = np.diff(np.append(np.asarray(dataset.starts), dataset.size))
    of_rows = np.repeat(held, lengths)
    columns = columns_of(dataset)

    def part(chosen: np.ndarray, name: str) -> Dataset:
        rows = {key: value[chosen] for key, value in columns.items()}
        origin = (*dataset.provenance, ("part", f"{name}, of {dataset.digest}"))
        return from_columns(**rows, name=dataset.name, provenance=origin)

    kept = part(~of_rows, f"without {share:g} of the episodes")
    return kept, part(of_rows, f"{share:g} held out")


def columns_of(dataset: Dataset) -> dict[str, np.ndarray]:
    """The columns (N, ...) of a dataset in host memory."""
    columns = vars(dataset.rows) | {"cost": dataset.cost, "log_prob": dataset.log_prob}
    return {name: np.asarray(value) for name, value in columns.items() if value is not None}


def digest_of(columns: dict[str, np.ndarray]) -> str:
    """SHA-256 over names, types, shapes and bytes of columns, in the order of their names."""
    sha = hashlib.sha256()
    for name in sorted(columns):
        value = np.ascontiguousarray(columns[name])
        sha.update(f"{name}:{value.dtype.str}:{value.shape};".encode())
        sha.update(value.tobytes())
    return sha.hexdigest()
