"""Behaviour cloning of programmatic solutions, on tasks that are drawn as long as training goes on.

An iteration draws a pool of tasks, executes their solutions in the environment, and learns from
minibatches of what was seen and done. Every pair of a task is solved with the others as its
demonstrations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree, RunState
from worldloom.suites.arc import planes, selectors
from worldloom.suites.arc.environment import create_observation, start_at, step_worlds
from worldloom.suites.arc.generators.drawing import draw_examples, to_buffer
from worldloom.suites.arc.generators.grids import MOST_EDITS, Example, Level
from worldloom.suites.arc.operations import SUBMIT
from worldloom.suites.arc.policy import Context, DemonstrationPolicy
from worldloom.suites.arc.types import ArcConfig, ArcState, MaskAction, Observation
from worldloom.training.loops.summary import is_finite
from worldloom.training.trainer import Loop


class Decisions(struct.PyTreeNode):
    """States on the way of solutions, (T, B), and what the solutions do in them."""

    state: ArcState
    action: Array  # int32 (T, B): object actions
    length: Array  # int32 (B,): decisions until the submission, which is the last


def solve(examples: Example, rules: ArcConfig) -> Decisions:
    """The solutions of examples (tasks, pairs), executed; B is tasks times pairs."""
    shape, total = rules.grid_shape, selectors.count_selectors(rules.grid_shape)
    pairs = jnp.arange(rules.tasks.num_pairs)
    keys = draws.split(jax.random.key(0), rules.tasks.num_pairs)
    flat: Any = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), examples)
    length = (flat.operations != SUBMIT).sum(1) + 1

    def one(state: ArcState, edit: tuple[Array, Array]):
        operation, cells = edit
        found = selectors.selectable(planes.unpack(state.grid, shape).astype(jnp.int32), state.size)
        selector = selectors.selector_of(operation, cells, found)
        new, *_ = step_worlds(state, MaskAction(operation, cells), rules)
        return new, (state, operation * total + selector)

    edits = (flat.operations.swapaxes(0, 1), flat.selections.swapaxes(0, 1))
    _, (states, actions) = jax.lax.scan(one, start_at(pairs, keys, rules), edits)
    return Decisions(states, actions, length)


class ImitationLearner(struct.PyTreeNode):
    """Weights, their average on the way, which acts, and Adam."""

    params: PyTree
    average: PyTree
    opt_state: PyTree
    updates: Array


@dataclass(frozen=True)
class ImitationLoop(Loop):
    """The loop as pure functions; `rules` are of the world, without its tasks.

    An update learns from `batch` pairs, `states` decisions of each. `updates` of them are the
    whole run, over which the learning rate falls. An iteration draws `per_family` tasks of each
    family, enough for its updates to learn from a pair at most once.
    """

    agent: DemonstrationPolicy
    rules: ArcConfig
    families: tuple[str, ...]
    level: Level
    updates: int
    learning_rate: float = 2e-3
    batch: int = 64
    states: int = 3
    per_family: int = 4
    updates_per_iteration: int = 12
    steps_of: Callable[[Observation], Array] = lambda obs: obs.step_count / MOST_EDITS

    @property
    def pairs(self) -> int:
        """Of a task: demonstrations, and the one to solve."""
        return self.rules.demonstrations + 1

    @property
    def steps_per_iteration(self) -> int:
        return self.updates_per_iteration

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        rate = optax.cosine_onecycle_schedule(
            max(self.updates, 10), self.learning_rate, pct_start=0.1, final_div_factor=50.0
        )
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

    def _drawn(self, key: Key) -> tuple[Decisions, ArcConfig]:
        examples = draw_examples(key, self.families, self.per_family, self.pairs, self.level)
        rules = self.rules.replace(tasks=to_buffer(examples, self.pairs))
        return solve(examples, rules), rules

    def init(self, key: Key, *shared: PyTree) -> RunState:
        run_key, net_key = jax.random.split(key)
        rules = self.rules
        state = start_at(jnp.zeros(1, jnp.int32), draws.split(key, 1), rules)
        params = self.agent.init(net_key, create_observation(state, rules), jnp.zeros(1))
        average = jax.tree.map(jnp.copy, params)
        learner = ImitationLearner(params, average, self._optimiser.init(params), jnp.int32(0))
        return RunState(learner, (), (), run_key, jnp.int32(0))

    def loss(self, params: PyTree, obs: Observation, action: Array) -> tuple[Array, Array]:
        """Cross-entropy of actions (b, L) in obs (b, L, ...), and the share that is likeliest."""
        batch, states = action.shape
        demos = jax.tree.map(lambda x: x[:, 0], obs.demonstrations)
        given: Any = self.agent.apply(params, demos, obs.input[:, 0], method="context")
        context = Context(*(jnp.repeat(x, states, axis=0) for x in given))
        flat: Any = jax.tree.map(
            lambda x: x.reshape(batch * states, *x.shape[2:]), obs.replace(demonstrations=None)
        )
        policy: Any = self.agent.apply(params, flat, context, self.steps_of(flat), method="choose")[
            0
        ]
        chosen = action.reshape(-1)
        return -policy.log_prob(chosen).mean(), (policy.mode() == chosen).mean()

    def iterate(self, run: RunState, *shared: PyTree) -> tuple[RunState, dict[str, Array]]:
        draw_key, learn_key = draws.split(jax.random.fold_in(run.key, run.iteration))
        order_key, time_key = draws.split(learn_key)
        decisions, rules = self._drawn(draw_key)
        count = decisions.length.shape[0]
        order = jnp.argsort(draws.uniform(order_key, (count,)))
        uniform = draws.uniform(time_key, (self.states, count))
        time = jnp.floor(uniform * decisions.length).astype(jnp.int32)
        optimiser = self._optimiser

        def update(n: Array, carry: tuple[ImitationLearner, Array]):
            learner, metrics = carry
            rows = jax.lax.dynamic_slice(order, (n * self.batch,), (self.batch,))
            at = time[:, rows].T  # (b, L)
            chosen = jax.tree.map(
                lambda x: x[at, rows[:, None]], (decisions.state, decisions.action)
            )
            obs = create_observation(chosen[0], rules)
            grads, learned = _gradient(self.loss, learner.params, obs, chosen[1])
            steps, opt_state = optimiser.update(grads, learner.opt_state)
            params: Any = optax.apply_updates(learner.params, steps)
            share = jnp.maximum(0.01, 2.0 / (learner.updates + 2))
            average = optax.incremental_update(params, learner.average, share)
            learner = ImitationLearner(params, average, opt_state, learner.updates + 1)
            return learner, metrics + jnp.stack(learned)

        total = self.steps_per_iteration
        start = (run.learner, jnp.zeros(2))
        learner, metrics = jax.lax.fori_loop(0, total, update, start)
        loss, accuracy = metrics / total
        run = run.replace(learner=learner, iteration=run.iteration + 1)
        finite = is_finite(learner.params)
        return run, {"actor_loss": loss, "accuracy": accuracy, "finite": finite}

    def agents(self, state: RunState) -> PyTree:
        return state.learner.average

    def act(self, agents: PyTree, obs: Any, key: Key, *, explore: Array | float) -> Array:
        policy: Any = self.agent.apply(agents, obs, self.steps_of(obs))[0]
        return jnp.where(jnp.asarray(explore) > 0, policy.sample(key), policy.mode())


def _gradient(loss: Callable[..., tuple[Array, Array]], params: PyTree, *args: Any):
    (value, accuracy), grads = jax.value_and_grad(loss, has_aux=True)(params, *args)
    return grads, (value, accuracy)
