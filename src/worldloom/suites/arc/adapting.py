"""Test-time training: before a task is scored, the policy learns from its own demonstrations.

Turned and recoloured copies of the demonstration pairs are attempted by chance, each with the
others as its demonstrations; what was solved is cloned. Answers of test pairs are never looked at:
each task's weights start from those of the run, and see the demonstrations of that task alone.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree
from worldloom.suites.arc.augmentation import augment
from worldloom.suites.arc.environment import create_observation, start_at, step_worlds
from worldloom.suites.arc.evaluate import Agent, ArcEvaluator
from worldloom.suites.arc.policy import DemonstrationPolicy
from worldloom.suites.arc.tasks import TaskSet
from worldloom.suites.arc.types import ArcConfig, ObjectAction, TaskBuffer

MOST_DEMONSTRATIONS = 10  # of a task that are learned from


@dataclass(frozen=True)
class Adapting:
    """How much is learned from a task: in each round so many attempts, and steps of Adam."""

    policy: DemonstrationPolicy
    rounds: int = 1
    attempts: int = 32
    steps: int = 4
    learning_rate: float = 3e-4


def own_demonstrations(tasks: TaskBuffer, task: Array) -> TaskBuffer:
    """A buffer of one task with its demonstration pairs, and room for ten, whatever it is."""
    rows = tasks.demos_start[task] + jnp.arange(MOST_DEMONSTRATIONS)
    count = jnp.minimum(tasks.demos_count[task], MOST_DEMONSTRATIONS)
    rows = jnp.where(jnp.arange(MOST_DEMONSTRATIONS) < count, rows, tasks.demos_start[task])
    zero = jnp.zeros(1, jnp.int32)
    return tasks.replace(
        grids=tasks.grids[rows],
        sizes=tasks.sizes[rows],
        task=jnp.zeros(MOST_DEMONSTRATIONS, jnp.int32),
        demos_start=zero,
        demos_count=count[None],
        tests_start=count[None],
        tests_count=zero,
    )


def adapt(adapting: Adapting, params: PyTree, rules: ArcConfig, task: Array, key: Key) -> PyTree:
    """The weights after learning from the demonstrations of `task` (); compiled once for all."""
    policy, count, most = adapting.policy, adapting.attempts, rules.max_steps
    optimiser = optax.adam(adapting.learning_rate)

    def one_round(n: Array, carry: tuple[PyTree, PyTree]):
        params, opt_state = carry
        copy_key, play_key = draws.split(jax.random.fold_in(key, n))
        own = own_demonstrations(rules.tasks, task)
        copies = augment(copy_key, own, count)
        known = rules.replace(tasks=copies, evaluation=False)
        number = jnp.arange(count)
        pairs = number * MOST_DEMONSTRATIONS + number % own.demos_count[0]
        states = start_at(pairs, draws.split(copy_key, count), known)

        def step(carry, key):
            states, active = carry
            obs = create_observation(states, known)
            chosen: Any = policy.apply(params, obs, obs.step_count / most)[0]
            action = chosen.sample(key)
            new, _, _, done, _ = step_worlds(states, ObjectAction(action), known)
            return (new, active & ~done), (obs, action, active, new.solved & active)

        start = (states, jnp.ones(count, bool))
        keys = draws.split(play_key, rules_steps(rules))
        _, (obs, action, active, solved) = jax.lax.scan(step, start, keys)
        weight = (active & solved.any(0)).astype(jnp.float32).reshape(-1)
        flat: Any = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), obs)

        def loss(params: PyTree) -> Array:
            chosen: Any = policy.apply(params, flat, flat.step_count / most)[0]
            return -(chosen.log_prob(action.reshape(-1)) * weight).sum() / jnp.maximum(
                weight.sum(), 1.0
            )

        def learn(_: int, carry: tuple[PyTree, PyTree]):
            params, opt_state = carry
            steps, opt_state = optimiser.update(jax.grad(loss)(params), opt_state)
            return optax.apply_updates(params, steps), opt_state

        return jax.lax.fori_loop(0, adapting.steps, learn, (params, opt_state))

    start = (params, optimiser.init(params))
    return jax.lax.fori_loop(0, adapting.rounds, one_round, start)[0]


def rules_steps(rules: ArcConfig) -> int:
    """The steps of an episode, as what shapes are made of."""
    return int(np.asarray(rules.max_steps))


class AdaptingEvaluator(ArcEvaluator):
    """Scores of a policy that learns from each task's demonstrations before it plays the task."""

    def __init__(
        self,
        tasks: TaskSet,
        rules: ArcConfig,
        agent: Agent,
        attempts: int,
        explore: float,
        adapting: Adapting,
    ):
        super().__init__(tasks, rules, agent, attempts, explore)
        most = max(1, int(np.bincount(self.task).max()))
        self.batch = min(self.batch, most)
        honest, steps = self.rules, rules_steps(self.rules)

        def adapted(params: PyTree, rules: ArcConfig, task: Array, key: Key) -> PyTree:
            return adapt(adapting, params, rules.replace(max_steps=steps), task, key)

        self._adapt = jax.jit(adapted)
        self._honest = honest

    def play(
        self, agents: PyTree, pairs: np.ndarray, key: Key, explore: float
    ) -> tuple[np.ndarray, ...]:
        """`ArcEvaluator.play`, with the weights that are each task's own."""
        owner = self.task[pairs]
        parts: Any = None
        for task in np.unique(owner):
            own = jax.random.fold_in(key, int(task))
            weights = self._adapt(agents, self._honest, jnp.int32(task), own)
            chosen = np.flatnonzero(owner == task)
            played = super().play(weights, pairs[chosen], own, explore)
            if parts is None:
                parts = tuple(np.zeros((len(pairs), *x.shape[1:]), x.dtype) for x in played)
            for whole, part in zip(parts, played, strict=True):
                whole[chosen] = part
        return parts
