"""The published decision record on JAX for industrial offline RL runs as it is printed.

Its code blocks (ADR-0003, "JAX implementation strategy") stand here word for word but for imports;
where a block says `pass`, the body is one line of ours.
"""

from dataclasses import dataclass
from typing import Any, Dict, Tuple  # noqa: UP035

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import worldloom
from worldloom import safety
from worldloom.algos.bc import BC, BCConfig
from worldloom.algos.offline import make_table
from worldloom.nn.offline import deterministic, make_mlp
from worldloom.nn.policy import PolicyState as PolicyParams
from worldloom.safety import ControlState as EnvState
from worldloom.safety import (
    SafetyConstraints,
    SafetyReport,
    emergency_action,
    policy_forward,
    validate_constraints,
)
from worldloom.suites.plant import SafetyMetrics
from worldloom.suites.plant.datasets import make_data
from worldloom.suites.plant.safety import constraints_in

Action = EnvStates = Actions = PRNGKey = Any
Params = Batch = Grads = Metrics = Sample = OptState = Any

pytestmark = pytest.mark.usefixtures("compiled_once")

LIMITS = """emergency: {force_1: 0 N, force_2: 0 N}
barriers: {right: {signal: position_1, at_most: 1 m, gamma: 1}}
"""
KEYS = [jax.random.key(7), jax.random.PRNGKey(7)]


@pytest.fixture(scope="module")
def plant():
    return worldloom.make("dmsd", horizon=10, disturbance=0.0)


@pytest.fixture(scope="module")
def policy():
    return PolicyParams(
        make_mlp(jax.random.key(0), (6, 8, 2)), jnp.zeros(6), jnp.ones(6), deterministic, 0.2
    )


@pytest.fixture(scope="module")
def constraints(plant):
    return constraints_in(LIMITS, "limits", plant.base)


# Integration with Safety Systems ---------------------------------------------------------------


# fmt: off
@jax.jit
def safe_policy_execution(
    policy_params: PolicyParams,
    state: EnvState,
    safety_constraints: SafetyConstraints,
    key: PRNGKey
) -> Tuple[Action, SafetyReport]:  # noqa: UP006
    """Policy execution with integrated safety validation."""
    
    # Get policy action
    action = policy_forward(policy_params, state, key)
    
    # Validate safety constraints (JIT-compiled)
    safety_report = validate_constraints(state, action, safety_constraints)
    
    # Apply safety override if necessary
    safe_action = jax.lax.cond(
        safety_report.is_safe,
        lambda: action,
        lambda: emergency_action(state)
    )
    
    return safe_action, safety_report
# fmt: on


@pytest.mark.parametrize("key", KEYS, ids=["key", "PRNGKey"])
def test_the_printed_execution_agrees_with_ours(policy, constraints, key):
    """Where the proposal is safe, to the bit; where it is not, ours finds a safe action nearby."""
    memory = safety.initial_memory(constraints, jnp.zeros(2))
    calm = EnvState(jnp.zeros(6), memory)
    fast = EnvState(jnp.asarray([0.95, 0.0, 0.2, 0.0, 0.0, 0.0]), memory)
    lost = EnvState(jnp.asarray([0.95, 0.0, 2.0, 0.0, 0.0, 0.0]), memory)
    run = jax.jit(safety.safe_policy_execution)
    for state in (calm, fast, lost):
        action, report = safe_policy_execution(policy, state, constraints, key)
        own, ours = run(policy, state, constraints, key)
        if bool(report.is_safe):
            np.testing.assert_array_equal(action, own)
            assert not bool(ours.intervened)
        else:
            np.testing.assert_array_equal(action, memory.fallback)
            assert bool(ours.intervened)
            assert bool(ours.emergency) == (not bool(ours.is_safe))
        np.testing.assert_allclose(ours.margins_before, report.margins, atol=1e-6)
    assert bool(safe_policy_execution(policy, calm, constraints, key)[1].is_safe)
    assert not bool(safe_policy_execution(policy, lost, constraints, key)[1].is_safe)


# Performance Optimization Strategy -------------------------------------------------------------


@jax.jit
def policy_step(params: PolicyParams, state: EnvState, key: PRNGKey) -> Tuple[Action, PolicyParams]:  # noqa: UP006
    """JIT-compiled policy step for maximum performance."""
    return policy_forward(params, state, key), params


def test_steps_of_policy_plants_and_training_are_transformed_as_printed(plant, policy, constraints):
    params = plant.default_params()

    # Vectorized environment execution
    @jax.vmap
    def vectorized_env_step(env_states: EnvStates, actions: Actions) -> EnvStates:
        """Parallel environment execution across batch dimension."""
        return plant.step(jax.random.PRNGKey(0), env_states, actions, params)

    env_states, first = jax.vmap(plant.reset, (0, None))(
        jax.random.split(jax.random.PRNGKey(1), 4), params
    )
    memory = safety.initial_memory(constraints, jnp.zeros(2))
    state = EnvState(first.obs[0], memory)
    actions = jnp.stack([policy_step(policy, state, key)[0] for key in KEYS] * 2)
    np.testing.assert_array_equal(actions[0], actions[1])  # of either kind of key
    env_states, after = vectorized_env_step(env_states, actions)
    assert after.obs.shape == (4, 6)
    assert after.info.safety.margins.shape == (4, 6)


@pytest.fixture(scope="module")
def learner():
    """A learner of ours, and rows of ours to learn from."""
    data = make_data("dmsd", "medium", 100, horizon=10)
    agent, table = BC(BCConfig(hidden=(8,))), make_table(data)
    return agent, agent.init(jax.random.key(0), 6, 2), table.take(jnp.arange(64))


def test_a_training_step_is_compiled_as_printed(learner):
    agent, state, rows = learner

    # Efficient batch training
    @jax.jit
    def training_step(optimizer_state: OptState, batch: Batch) -> Tuple[OptState, Metrics]:  # noqa: UP006
        """JIT-compiled training step with automatic differentiation."""
        return agent.update(optimizer_state, batch, jax.random.PRNGKey(0))

    losses = []
    for _ in range(20):
        state, metrics = training_step(state, rows)
        losses.append(float(metrics["actor_loss"]))
    assert losses[-1] < losses[0]


# Data Structure Design -------------------------------------------------------------------------


@dataclass
class PolicyState:
    """Immutable policy state using JAX PyTree."""

    params: chex.ArrayTree
    optimizer_state: optax.OptState
    step_count: int
    metrics: Dict[str, float]  # noqa: UP006


@dataclass
class EnvironmentState:
    """Immutable environment state."""

    observation: chex.Array
    reward: float
    done: bool
    info: Dict[str, Any]  # noqa: UP006
    safety_metrics: SafetyMetrics


def test_the_printed_records_are_filled_from_ours(plant, learner):
    agent, state, rows = learner
    state, metrics = agent.update(state, rows, jax.random.key(0))
    kept = PolicyState(
        params=state.actor.params,
        optimizer_state=state.actor.opt_state,
        step_count=int(state.step),
        metrics={name: float(value) for name, value in metrics.items()},
    )
    assert kept.step_count == 1
    assert len(jax.tree.leaves(kept.optimizer_state)) >= 2 * len(jax.tree.leaves(kept.params))
    params = plant.default_params()
    world, _ = plant.reset(jax.random.PRNGKey(0), params)
    _, step = plant.step(jax.random.PRNGKey(1), world, jnp.zeros(2), params)
    seen = EnvironmentState(
        observation=step.obs,
        reward=float(step.reward),
        done=bool(step.terminated | step.truncated),
        info=vars(step.info),
        safety_metrics=step.info.safety,
    )
    assert not seen.done
    assert seen.safety_metrics.margins.shape == (6,)
    assert not seen.safety_metrics.violated.any()


# Performance Optimization Patterns -------------------------------------------------------------


def test_the_printed_gradients_are_those_of_ours(learner):
    agent, state, rows = learner

    # fmt: off
    # Efficient batch gradient computation
    @jax.jit
    def compute_gradients(params: Params, batch: Batch) -> Tuple[Grads, Metrics]:  # noqa: UP006
        """Compute gradients with automatic vectorization."""

        def loss_fn(params: Params, sample: Sample) -> Tuple[float, Metrics]:  # noqa: UP006
            """Per-sample loss computation."""
            return agent.loss(params, jax.tree.map(lambda x: x[None], sample))

        # Vectorize loss computation across batch
        vectorized_loss = jax.vmap(loss_fn, in_axes=(None, 0))
        losses, metrics = vectorized_loss(params, batch)

        # Compute gradients of mean loss
        mean_loss = jnp.mean(losses)  # noqa: F841
        gradients = jax.grad(lambda p: jnp.mean(vectorized_loss(p, batch)[0]))(params)

        return gradients, metrics
    # fmt: on

    gradients, metrics = compute_gradients(state.actor.params, rows)
    expected = jax.grad(lambda p: agent.loss(p, rows)[0])(state.actor.params)
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert metrics["actor_loss"].shape == (64,)
