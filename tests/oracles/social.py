"""Slow, obvious references for the social worlds of the grid suite: loops over cells, in numpy."""

import numpy as np


def regrowth_chances(apples: np.ndarray, sites: np.ndarray, table) -> np.ndarray:
    """(H, W) chance of an apple on each bare site, by the apples at most two steps away."""
    height, width = apples.shape
    chances = np.zeros(apples.shape)
    for y in range(height):
        for x in range(width):
            if not sites[y, x] or apples[y, x]:
                continue
            count = 0
            for other_y in range(height):
                for other_x in range(width):
                    steps = abs(other_y - y) + abs(other_x - x)
                    count += int(apples[other_y, other_x] and steps <= 2)
            chances[y, x] = table[min(count, 3)]
    return chances


class Coins:
    """The coin game, one agent after the other: positions, coins by cell, payoffs."""

    MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def __init__(self, shape, positions, coins, value=1.0, harm=2.0):
        self.shape, self.value, self.harm = shape, value, harm
        self.positions = [tuple(p) for p in positions]
        self.coins = dict(coins)  # (y, x) -> the agent whose colour it has

    def turn(self, actions) -> list[float]:
        rewards = [0.0, 0.0]
        for me, action in enumerate(actions):
            if not 0 <= action < 4:
                continue
            y, x = np.add(self.positions[me], self.MOVES[action]).tolist()
            if not (0 <= y < self.shape[0] and 0 <= x < self.shape[1]):
                continue
            if (y, x) == self.positions[1 - me]:
                continue
            self.positions[me] = (y, x)
            owner = self.coins.pop((y, x), None)
            if owner is not None:
                rewards[me] += self.value
                if owner != me:
                    rewards[owner] -= self.harm
        return rewards


def gini(values) -> float:
    """Mean absolute difference over twice the mean, pair by pair."""
    pairs = [abs(a - b) for a in values for b in values]
    return sum(pairs) / (2 * len(values) * sum(values))
