"""What loops say of an iteration: episodes that ended, and whether numbers are still numbers."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from worldloom.core.types import Array, PyTree, TimeStep


def as_dict(metrics: Any) -> dict[str, Array]:
    """Metrics of an update by name, whether they are a struct or a dict."""
    return metrics if isinstance(metrics, dict) else dict(vars(metrics))


def is_finite(tree: PyTree) -> Array:
    """() bool: whether all floating-point leaves are."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def episode_summary(
    steps: TimeStep,
    outcomes: Callable[[PyTree], Mapping[str, Array]],
    axis_name: str | None = None,
) -> dict[str, Array]:
    """Means over the episodes that ended in the time steps (T, B) of worlds with `episode_stats`.

    episodes: how many; NaN in the place of means where none did. finite: whether all rewards are.
    `axis_name` is that of devices, inside of `shard_map`, that share the worlds.
    """
    ended = steps.terminated | steps.truncated

    def total(values: Array) -> Array:
        values = values.sum()
        return values if axis_name is None else jax.lax.psum(values, axis_name)

    count = total(ended.astype(jnp.int32))

    def mean(values: Array) -> Array:
        # Divided by 0, where nothing ended, it is NaN.
        return total(jnp.where(ended, values, 0.0)) / count

    return {
        "episodes": count,
        "return": mean(steps.info.last_return),
        "length": mean(steps.info.last_length),
        **{name: mean(value) for name, value in outcomes(steps.info.inner).items()},
        "finite": total((~jnp.isfinite(steps.reward)).astype(jnp.int32)) == 0,
    }
