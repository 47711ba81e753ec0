"""Hand-written policies for the treasure hunt: the scores that a learner has to be measured by."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from worldloom.core import draws
from worldloom.core.names import suggest
from worldloom.core.types import Array, Key, PyTree
from worldloom.suites.grid.object_world import MOVES, ObjectTreasureHunt, Policy


def random_policy(rng: np.random.Generator) -> Policy:
    """A policy that draws one of the four moves uniformly."""

    def policy(i: int, obs: NDArray[np.float32]) -> int:
        return int(rng.integers(len(MOVES)))

    return policy


def nearest_gem_policy(env: ObjectTreasureHunt, rng: np.random.Generator) -> Policy:
    """A policy that walks to the nearest visible gem, and at random while it sees none.

    It knows of the world only the observation vector; `env` gives the layout of that vector.
    Distance is Manhattan, ties are broken at random. Food counts as a gem, and bones count as
    obstacles like walls and agents: they are walked into only if all four sides are blocked.
    """
    radius, side = env.radius, 2 * env.radius + 1
    treasure = [env.kinds.index(kind) for kind in ("Gem", "Food") if kind in env.kinds]
    obstacle = [env.kinds.index(kind) for kind in ("Wall", "Agent", "Bone") if kind in env.kinds]

    def policy(i: int, obs: NDArray[np.float32]) -> int:
        window = obs.reshape(len(env.kinds), side, side)
        blocked = window[obstacle].sum(axis=0) > 0
        free = [
            action for action, (dy, dx) in MOVES.items() if not blocked[radius + dy, radius + dx]
        ]
        if not free:
            return int(rng.integers(len(MOVES)))
        offsets = np.argwhere(window[treasure].sum(axis=0) > 0) - radius
        if len(offsets) == 0:
            return int(rng.choice(free))
        distances = np.abs(offsets).sum(axis=1)
        dy, dx = offsets[rng.choice(np.flatnonzero(distances == distances.min()))]
        closer = [action for action in free if np.dot(MOVES[action], (dy, dx)) > 0]
        return int(rng.choice(closer or free))

    return policy


# The same, compiled --------------------------------------------------------------------------

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
