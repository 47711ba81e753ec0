"""A replay ring in numpy that knows its episodes: the oracle of the compiled one."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Row:
    """One row of an `EpisodeRing`; `episode` is the time of the first row of its episode."""

    frame: NDArray[np.float32]
    action: int
    reward: float
    terminated: bool
    final: bool
    episode: int


class EpisodeRing:
    """A ring that knows its episodes: frame stacks and n-step returns never cross one.

    Rows are kept with their time, the number of rows added before them; the row of time t lies
    in slot t % capacity. A row is live until the row `capacity` later overwrites it.
    """

    def __init__(self, capacity: int, n_frames: int, n_step: int, gamma: float) -> None:
        self.capacity, self.n_frames = capacity, n_frames
        self.n_step, self.gamma = n_step, gamma
        self._rows: deque[Row] = deque(maxlen=capacity)
        self._time = 0
        self._episode = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        frame: ArrayLike,
        action: int,
        reward: float,
        terminated: bool,
        first: bool,
        final: bool,
    ) -> None:
        """Append a row.

        Args:
            frame: the observation before the action; any shape, the same for all rows.
            terminated: the action ended the episode.
            first: the row starts a new episode (the very first row does in any case).
            final: the row only holds the last observation of its episode; no action was taken.
        """
        if first:
            self._episode = self._time
        frame = np.array(frame, dtype=np.float32)
        self._rows.append(Row(frame, action, reward, terminated, final, self._episode))
        self._time += 1

    def valid_rows(self) -> list[int]:
        """Slots of the rows that `window` accepts, oldest first."""
        return [time % self.capacity for time in self._live_times() if self._steps(time) >= 1]

    def window(self, slot: int) -> dict[str, NDArray[np.generic] | np.generic]:
        """The transition that starts at the row in `slot`.

        Returns obs (n_frames, *frame), action (), reward () the discounted sum over k steps,
        discount () gamma^k or 0 after termination, next_obs (n_frames, *frame).
        """
        times = [time for time in self._live_times() if time % self.capacity == slot]
        k = self._steps(times[0]) if times else 0
        if k == 0:
            raise ValueError(
                f"EpisodeRing: slot {slot} starts no transition; choose one of valid_rows()"
            )
        time = times[0]
        obs = self._stack(time)
        reward = 0.0
        for step in range(k):
            reward += self.gamma**step * self._row(time + step).reward
        terminated = self._row(time + k - 1).terminated
        return {
            "obs": obs,
            "action": np.int32(self._row(time).action),
            "reward": np.float32(reward),
            "discount": np.float32(0.0 if terminated else self.gamma**k),
            "next_obs": np.zeros_like(obs) if terminated else self._stack(time + k),
        }

    def _live_times(self) -> range:
        return range(self._time - len(self._rows), self._time)

    def _row(self, time: int) -> Row:
        return self._rows[time - self._live_times().start]

    def _steps(self, time: int) -> int:
        """The number of steps of the transition that starts at `time`; 0 if there is none."""
        if not self._stack_is_live(time):
            return 0
        for k in range(self.n_step, 0, -1):
            if self._can_step(time, k):
                return k
        return 0

    def _can_step(self, time: int, k: int) -> bool:
        """Whether k actions from `time` on are known, and what came of the last of them too."""
        live, episode = self._live_times(), self._row(time).episode
        for step in range(k):
            if time + step not in live:
                return False
            row = self._row(time + step)
            if row.final or row.episode != episode:
                return False
            if row.terminated:
                return step == k - 1
        return time + k in live and self._row(time + k).episode == episode

    def _stack_times(self, time: int) -> range:
        return range(time - self.n_frames + 1, time + 1)

    def _stack_is_live(self, time: int) -> bool:
        episode = self._row(time).episode
        return all(t in self._live_times() for t in self._stack_times(time) if t >= episode)

    def _stack(self, time: int) -> NDArray[np.float32]:
        """The last n_frames frames up to `time`, oldest first, zeros before the episode."""
        row = self._row(time)
        return np.stack(
            [
                self._row(t).frame if t >= row.episode else np.zeros_like(row.frame)
                for t in self._stack_times(time)
            ]
        )
