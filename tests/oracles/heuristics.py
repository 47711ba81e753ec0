"""Hand-written policies for the treasure hunt: the scores that a learner has to be measured by."""

import numpy as np
from numpy.typing import NDArray

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
