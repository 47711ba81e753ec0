"""The records that flow between worlds, memories and learners.

`struct.PyTreeNode` is flax's `struct.dataclass` as a base class, which lets type checkers see
`replace`.
"""

from typing import Any

import jax
from flax import struct

Array = jax.Array
Key = jax.Array  # a typed PRNG key, made by jax.random.key
PyTree = Any


class TimeStep(struct.PyTreeNode):
    """What a world answers to one step.

    With A agents `reward` is (A,) and `obs` has a leading agent axis; `terminated` and
    `truncated` are () and speak for the whole world.
    """

    obs: PyTree
    reward: Array
    terminated: Array  # the task ended
    truncated: Array  # time ran out: bootstrap from final_obs
    final_obs: PyTree  # the observation before an automatic reset
    info: PyTree


class Turn(struct.PyTreeNode):
    """One turn of A agents in W worlds, as the turn loop records it.

    record (A, W, ...): what the acting function kept of each action, such as the newest frame;
    action (A, W), reward (A, W), terminated (W,), truncated (W,).
    """

    record: PyTree
    action: PyTree
    reward: Array
    terminated: Array
    truncated: Array


class Transition(struct.PyTreeNode):
    """One row of an agent's memory: what it saw, did and was paid.

    `first` opens an episode. `final` marks a row that only holds the last observation of an
    episode, so that the step before it has something to bootstrap from.
    """

    frame: PyTree
    action: Array
    reward: Array
    terminated: Array
    first: Array
    final: Array


class Batch(struct.PyTreeNode):
    """What a learner consumes: n-step returns with the discount of the bootstrap value.

    obs and next_obs (B, frames, *frame), action (B,), reward (B,), discount (B,). `weight` (B,)
    is what each row counts in the loss, of which the mean is still over all B; None: 1.
    """

    obs: PyTree
    action: Array
    reward: Array
    discount: Array
    next_obs: PyTree
    weight: Array | None = None


class RunState(struct.PyTreeNode):
    """A whole experiment as one pytree: the thing that is checkpointed.

    What a loop has no use for is (). `timestep` is where the next unroll starts; `prior` learns
    beside the agent.
    """

    learner: PyTree
    worlds: PyTree
    replay: PyTree
    key: Key
    iteration: Array
    timestep: PyTree = ()
    prior: PyTree = ()
