"""Problems with known answers for agents of continuous actions, as memories of random play.

An observation is (x, step), an action one number. Every probe has the same shapes, so that one
program learns all of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box
from worldloom.core.types import Array
from worldloom.nn.offline import critics
from worldloom.nn.policy import policy_step
from worldloom.replay.uniform import UniformBuffer

GAMMA, ROWS = 0.6, 1024
SPEC = EnvSpec("probe", Box(-1, 1, (2,)), Box(-1, 1, (1,)))


class Memory(NamedTuple):
    """Transitions (ROWS, ...) under uniform actions."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray


class Draws(NamedTuple):
    x: np.ndarray
    action: np.ndarray
    step: np.ndarray  # 0 or 1


def _draws() -> Draws:
    rng = np.random.default_rng(0)
    x, action = rng.uniform(-1.0, 1.0, (2, ROWS)).astype(np.float32)
    return Draws(x, action, rng.integers(0, 2, ROWS).astype(np.float32))


def _memory(x, step, action, reward, next_x, next_step, terminated) -> Memory:
    def wide(value):
        return np.broadcast_to(np.asarray(value, np.float32), (ROWS,))

    return Memory(
        np.stack([x, wide(step)], 1).astype(np.float32),
        action[:, None],
        wide(reward),
        np.stack([wide(next_x), wide(next_step)], 1).astype(np.float32),
        np.broadcast_to(np.asarray(terminated), (ROWS,)),
    )


def aim() -> Memory:
    """One step: the reward is -(a - x / 2)^2. The best action is x / 2, and worth 0."""
    x, action, _ = _draws()
    return _memory(x, 0, action, -np.square(action - x / 2), 0, 0, terminated=True)


def reach() -> Memory:
    """Two steps: the first moves to x' = a for nothing, the second pays -(x' - 0.6)^2.

    The best first action is 0.6, and nothing but the value of the second step says so.
    """
    x, action, step = _draws()
    second = step == 1
    reward = np.where(second, -np.square(x - 0.6), 0.0)
    return _memory(x, step, action, reward, np.where(second, 0.0, action), 1, second)


def endless() -> Memory:
    """A reward of 1 in each step, and time that runs out: worth 1 / (1 - gamma) everywhere."""
    x, action, step = _draws()
    return _memory(x, step, action, 1.0, -x, step, terminated=False)


class Learned(NamedTuple):
    action: Array  # (states,): what the deterministic policy does
    value: Array  # (states,): what the critics say of it
    metrics: dict[str, Any]  # (updates,)


def learner_of(agent: Any, updates: int) -> Callable[[Memory, np.ndarray], Learned]:
    """learn(memory, states (states, 2)), compiled once for all probes."""
    buffer = UniformBuffer(ROWS, GAMMA)

    @jax.jit
    def learn(memory: Memory, states: Array) -> Learned:
        replay = buffer.init(jnp.zeros(2), jnp.zeros(1), jnp.float32(0))
        replay = buffer.add(replay, *memory)
        learner = agent.init(jax.random.key(0), memory.obs[:1])
        learner = agent.observe(learner, memory.obs[None])

        def one(learner, key):
            sample_key, update_key = jax.random.split(key)
            batch = buffer.sample(replay, sample_key, agent.config.batch_size)
            return agent.update(learner, batch, update_key)

        keys = jax.random.split(jax.random.key(1), updates)
        learner, metrics = jax.lax.scan(one, learner, keys)
        action = policy_step(agent.deterministic(learner.params), states)
        _, inputs = agent.inputs(learner.normaliser, states)
        value = critics(learner.critic.params, inputs, action).mean(0)
        return Learned(action[:, 0], value, metrics)

    return learn
