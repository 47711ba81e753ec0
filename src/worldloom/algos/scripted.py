"""Hand-written policies, compiled: scores that a learner is measured by."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.core.names import suggest
from worldloom.core.types import Array, Key, PyTree

_STEPS = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])  # up, down, left, right as rows, columns


def nearest_item(
    channels: Sequence[str],
    items: Sequence[str] = ("Gem", "Food"),
    obstacles: Sequence[str] = ("Wall", "Agent", "Bone"),
) -> Callable[[PyTree, Array, Key], Array]:
    """Walks to the nearest visible item, and at random while there is none in sight.

    `channels` are the kinds that the channels of a one-hot window show, a world's
    `channel_names`; items and obstacles that the world does not have are left out. Distance is
    Manhattan and ties are broken at random. Obstacles are walked into only if all four sides are
    blocked. Returns act(agent, obs (W, frames, C, side, side), key) -> actions (W,).
    """
    visible = [channels.index(name) for name in items if name in channels]
    blocking = [channels.index(name) for name in obstacles if name in channels]
    if not visible:
        raise ValueError(
            f"nearest_item: none of the items {list(items)} has a channel; "
            f"{suggest(str(items[0]) if items else '', channels)}"
        )

    def act(agent: PyTree, obs: Array, key: Key) -> Array:
        window = obs[:, -1]
        count, side = window.shape[0], window.shape[-1]
        if side % 2 == 0 or window.shape[1:] != (len(channels), side, side):
            raise ValueError(
                f"nearest_item: needs windows of {len(channels)} channels around the agent, got "
                f"frames of {window.shape[1:]}; give the world a radius and the onehot view"
            )
        radius = side // 2
        offsets = np.indices((side, side)).reshape(2, -1).T - radius
        noise = draws.uniform(key, (count, side * side + 4))

        blocked = (window[:, blocking] > 0).any(axis=1)
        free = ~jnp.stack([blocked[:, radius + y, radius + x] for y, x in _STEPS], axis=1)
        item = (window[:, visible] > 0).any(axis=1).reshape(count, -1)
        distance = jnp.where(item, np.abs(offsets).sum(axis=1), 2 * side)
        nearest = item & (distance == distance.min(axis=1, keepdims=True))
        goal = jnp.where(nearest, noise[:, :-4], -1.0).argmax(axis=1)
        closer = free & jnp.asarray(offsets @ _STEPS.T > 0)[goal] & item.any(axis=1)[:, None]
        choices = jnp.where(closer.any(axis=1, keepdims=True), closer, free)
        choices = choices | ~free.any(axis=1, keepdims=True)
        return jnp.where(choices, noise[:, -4:], -1.0).argmax(axis=1).astype(jnp.int32)

    return act
