"""Two masses on springs, one plant at a time in numpy: what the compiled `dmsd` must compute.

The dynamics stand here as NeoRL-2 describes them, a matrix on the four states and a push on the two
velocities; see `worldloom.suites.plant.dmsd` for the task. A step gives all that the compiled one
gives: observation, reward, the end of the episode, and the margins of the limits.
"""

from typing import NamedTuple

import numpy as np

HORIZON = 100
CHANGE_STEP = 50  # when a target may change
FORCE = 30.0  # N, for an action of 1
REACH = 2.0  # m, for either mass and either way
JERK = 30.0  # N, from one step to the next


class Outcome(NamedTuple):
    """What a step tells."""

    obs: np.ndarray  # float32 (6,): positions, velocities, targets
    reward: float
    terminated: bool
    truncated: bool
    margins: np.ndarray  # (6,): below 0 where a limit is crossed
    cost: np.ndarray  # (6,): by how much
    violated: np.ndarray  # bool (6,)


def dynamics(mass: float, stiffness: float, damping: float, seconds: float) -> np.ndarray:
    """The matrix (4, 4) that takes positions and velocities one step on, by explicit Euler."""
    k, c = seconds * stiffness / mass, seconds * damping / mass
    return np.array(
        [
            [1.0, 0.0, seconds, 0.0],
            [0.0, 1.0, 0.0, seconds],
            [-2.0 * k, k, 1.0 - 2.0 * c, c],
            [k, -2.0 * k, c, 1.0 - 2.0 * c],
        ]
    )


class DmsdLoop:
    """One plant: `reset`, then `step` until it is truncated."""

    def __init__(
        self,
        seed: int = 0,
        *,
        mass: float = 20.0,
        stiffness: float = 2.0,
        damping: float = 4.0,
        seconds: float = 0.2,
    ):
        self.matrix = dynamics(mass, stiffness, damping, seconds)
        self.push = seconds / mass
        self.random = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> np.ndarray:
        """A new episode by chance; its first observation (6,)."""
        targets = np.empty((HORIZON, 2))
        for mass in range(2):
            targets[:, mass] = self.random.uniform(-1.5, 1.5)
            if self.random.random() < 0.5:
                targets[CHANGE_STEP:, mass] = self.random.uniform(-1.5, 1.5)
        position = self.random.uniform(-0.25, 0.25, 2)
        return self.begin(position, self.random.uniform(-0.1, 0.1, 2), targets)

    def begin(self, position: np.ndarray, velocity: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """An episode with given positions and velocities (2,) and targets (100, 2)."""
        self.state = np.concatenate([position, velocity]).astype(np.float64)
        self.targets = targets
        self.steps = 0
        self.force = None
        return self.observe()

    def observe(self) -> np.ndarray:
        target = self.targets[min(self.steps, HORIZON - 1)]
        return np.concatenate([self.state, target]).astype(np.float32)

    def step(self, action: np.ndarray) -> Outcome:
        """One step under an action (2,) in [-1, 1]."""
        force = FORCE * np.clip(action, -1.0, 1.0)
        self.state = self.matrix @ self.state
        self.state[2:] += self.push * force
        self.steps += 1
        obs = self.observe()
        error = obs[:2] - obs[4:]
        reward = -np.sum(np.log(np.abs(error) + 0.01))
        margins = self.margins(obs, force)
        self.force = force
        return Outcome(
            obs=obs,
            reward=float(reward),
            terminated=False,
            truncated=self.steps >= HORIZON,
            margins=margins,
            cost=np.maximum(-margins, 0.0),
            violated=margins < 0.0,
        )

    def margins(self, obs: np.ndarray, force: np.ndarray) -> np.ndarray:
        """How far from each limit (6,): right and left of both masses, then the forces' jerk."""
        last = force if self.force is None else self.force
        jerk = JERK - np.abs(force - last)
        return np.array(
            [REACH - obs[0], REACH + obs[0], REACH - obs[1], REACH + obs[1], jerk[0], jerk[1]]
        )
