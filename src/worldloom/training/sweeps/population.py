"""Population-based training (Jaderberg et al. 2017) as one XLA program.

Members are runs on a leading axis with numbers of their own (learning rate, entropy cost, ...).
After every generation the worst of them take over what the best have learned, which is a gather,
and their numbers changed a little, which is a multiplication. For any online algorithm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree
from worldloom.training.sweeps.together import Members, curve_name

POPULATION_KEY = 9_000_011  # who copies whom is drawn from keys of its own


@struct.dataclass
class Population:
    """N members: their runs (N, ...), the numbers (N,) that change, and how they do (N,)."""

    runs: PyTree
    numbers: dict[str, Array]
    score: Array
    key: Key
    iteration: Array  # generations so far


@dataclass(frozen=True)
class Generations:
    """Generations of a population as pure functions.

    fixed: the algorithm's other numbers. ranges: (low, high) of those that change. replaced: the
    share that is replaced, and the share that replaces it. step: numbers are multiplied or divided
    by it.
    """

    members: Members
    size: int
    fixed: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]
    replaced: float = 0.25
    step: float = 1.2

    def _all(self, numbers: Mapping[str, Array]) -> dict[str, Array]:
        same = {name: jnp.full(self.size, value) for name, value in self.fixed.items()}
        return same | dict(numbers)

    def init(self, seed: Array, numbers: dict[str, Array], params: PyTree) -> Population:
        """Members with seeds of their own and these numbers (N,) to begin with."""
        key = jax.random.fold_in(jax.random.key(seed), POPULATION_KEY)
        seeds = draws.bits(key, (self.size,))
        runs = self.members.init(seeds, self._all(numbers), params)
        return Population(runs, numbers, jnp.full(self.size, jnp.nan), key, jnp.int32(0))

    def iterate(
        self, population: Population, iterations: Array, params: PyTree
    ) -> tuple[Population, dict[str, Any]]:
        """One generation: every member learns for so many iterations, then the worst copy the best.

        Its row has scores and numbers (N,) as they were while it learned, and parents (N,): whose
        run each member goes on with. A score is -inf where a run diverged, and NaN where no
        episode has ended yet.
        """
        numbers = self._all(population.numbers)

        def one(_, carry):
            runs, total, count, finite = carry
            runs, rows = self.members.iterate(runs, numbers, params)
            curve = rows[curve_name(rows)]
            ended = ~jnp.isnan(curve)
            total = total + jnp.where(ended, curve, 0.0)
            return runs, total, count + ended, finite & rows["finite"]

        none = jnp.zeros(self.size)
        carry = (population.runs, none, none, jnp.ones(self.size, bool))
        runs, total, count, finite = jax.lax.fori_loop(0, iterations, one, carry)
        # Where no episode ended, as it was.
        score = jnp.where(count > 0, total / jnp.maximum(count, 1.0), population.score)
        score = jnp.where(finite, score, -jnp.inf)
        key, choose_key, turn_key = draws.split(jax.random.fold_in(population.key, 1), 3)
        parents = self.parents(score, choose_key)
        copied = parents != jnp.arange(self.size)
        taken = jax.tree.map(lambda x: x[parents], runs)
        if hasattr(taken, "key"):  # what two copies do next is not the same
            taken = taken.replace(key=runs.key)
        changed = self.explored({n: x[parents] for n, x in population.numbers.items()}, turn_key)
        numbers = {n: jnp.where(copied, changed[n], x) for n, x in population.numbers.items()}
        row = {"score": score, "parents": parents, "numbers": population.numbers}
        after = Population(taken, numbers, score[parents], key, population.iteration + 1)
        return after, row

    def parents(self, score: Array, key: Key) -> Array:
        """(N,) whose run each member goes on with: the worst with one of the best.

        Those that diverged are replaced as well, however many they are, while any has not. Those
        without a score are left alone.
        """
        if not self.replaced:
            return jnp.arange(self.size)
        count = max(1, round(self.size * self.replaced))
        # Best first, behind them those that diverged, and then those without a score.
        order = jnp.argsort(-score)
        rank = jnp.zeros(self.size, jnp.int32).at[order].set(jnp.arange(self.size))
        best = order[draws.integers(key, (self.size,), count)]
        first = jnp.where(jnp.isfinite(score[order[0]]), order[0], order[-1])
        best = jnp.where(jnp.isfinite(score[best]), best, first)
        # A member that is as good as the one it would copy stays: of equals nothing is learned.
        worst = (rank >= (~jnp.isnan(score)).sum() - count) & (score < score[best])
        diverged = score == -jnp.inf
        return jnp.where(worst | (diverged & ~diverged[best]), best, jnp.arange(self.size))

    def explored(self, numbers: Mapping[str, Array], key: Key) -> dict[str, Array]:
        """Numbers (N,) times or divided by `step`, within their ranges."""
        changed = {}
        for (name, value), own in zip(
            sorted(numbers.items()), draws.split(key, len(numbers)), strict=True
        ):
            up = draws.uniform(own, (self.size,)) < 0.5
            low, high = self.ranges[name]
            changed[name] = jnp.clip(jnp.where(up, value * self.step, value / self.step), low, high)
        return changed


def lineage(parents: Sequence[Sequence[int]], last: int) -> list[int]:
    """Which member held the run of member `last`, in every generation (G,) up to now."""
    line = [last]
    for row in reversed(parents[:-1]):
        line.append(int(row[line[-1]]))
    return line[::-1]
