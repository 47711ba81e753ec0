"""Problems so small that their values are known: a learner that misses one has a nameable fault.

States are numbered 0 to 3 and seen as one-hot vectors; there are two actions. A probe is what
happened in some episodes, and the values that follow from it. Every probe has the same shapes,
so that all of them are learned in one vmapped program.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos.off_policy import OffPolicyAgent
from worldloom.core import stack
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import Array, Transition
from worldloom.replay.ring import Ring

GAMMA = 0.6
NUM_STATES, NUM_ACTIONS, CAPACITY = 4, 2, 20
SPEC = EnvSpec("probe", Box(0, 1, (1, NUM_STATES), "uint8"), Discrete(NUM_ACTIONS))
TERMINATED = None  # in the place of the state after an episode's last step


@dataclass(frozen=True)
class Episode:
    """Steps (state, action, reward), and the state in which time ran out, if it did."""

    steps: tuple[tuple[int, int, float], ...]
    then: int | None = TERMINATED


@dataclass(frozen=True)
class Probe:
    """Episodes, and the value of (state, action) that must be learned from them."""

    name: str
    episodes: tuple[Episode, ...]
    values: dict[tuple[int, int], float]


def either_action(*states: int, rewards: tuple[float, ...], then: int | None = TERMINATED):
    """One episode for each of the actions, taken throughout."""
    return tuple(
        Episode(tuple((s, a, r) for s, r in zip(states, rewards, strict=True)), then)
        for a in range(NUM_ACTIONS)
    )


ONE_STEP = (
    Probe(
        "one state, reward 1: the value is the reward",
        either_action(0, rewards=(1.0,)),
        {(0, 0): 1.0, (0, 1): 1.0},
    ),
    Probe(
        "the reward depends on the observation",
        either_action(0, rewards=(1.0,)) + either_action(1, rewards=(-1.0,)),
        {(0, 0): 1.0, (0, 1): 1.0, (1, 0): -1.0, (1, 1): -1.0},
    ),
    Probe(
        "the reward comes one step later: it is discounted once",
        either_action(0, 1, rewards=(0.0, 1.0)),
        {(0, 0): GAMMA, (0, 1): GAMMA, (1, 0): 1.0, (1, 1): 1.0},
    ),
    Probe(
        "the reward depends on the action",
        (Episode(((0, 0, -1.0),)), Episode(((0, 1, 1.0),))),
        {(0, 0): -1.0, (0, 1): 1.0},
    ),
    Probe(
        "the right action depends on the observation",
        (
            Episode(((0, 0, 1.0),)),
            Episode(((0, 1, -1.0),)),
            Episode(((1, 0, -1.0),)),
            Episode(((1, 1, 1.0),)),
        ),
        {(0, 0): 1.0, (0, 1): -1.0, (1, 0): -1.0, (1, 1): 1.0},
    ),
    Probe(
        "the next state is worth its best action",
        (
            Episode(((0, 0, 0.0), (1, 0, -1.0))),
            Episode(((0, 1, 0.5), (1, 1, 1.0))),
        ),
        {(0, 0): GAMMA, (0, 1): 0.5 + GAMMA, (1, 0): -1.0, (1, 1): 1.0},
    ),
    Probe(
        "truncation bootstraps: a reward without end",
        either_action(0, 0, 0, rewards=(1.0, 1.0, 1.0), then=0),
        {(0, 0): 1 / (1 - GAMMA), (0, 1): 1 / (1 - GAMMA)},
    ),
    Probe(
        "truncation bootstraps from what was seen last",
        either_action(0, rewards=(1.0,), then=1) + either_action(1, rewards=(2.0,)),
        {(0, 0): 1.0 + GAMMA * 2.0, (0, 1): 1.0 + GAMMA * 2.0, (1, 0): 2.0, (1, 1): 2.0},
    ),
    Probe(
        "termination bootstraps from nothing, least of all from the next episode",
        (
            Episode(((0, 0, 1.0),)),
            Episode(((1, 0, 2.0),)),
            Episode(((0, 1, 1.0),)),
            Episode(((1, 1, 2.0),)),
        ),
        {(0, 0): 1.0, (0, 1): 1.0, (1, 0): 2.0, (1, 1): 2.0},
    ),
)

TWO_STEP = (
    Probe(
        "two rewards are summed before the bootstrap",
        either_action(0, 1, 2, rewards=(1.0, 2.0, 3.0)),
        {
            (0, 0): 1.0 + GAMMA * 2.0 + GAMMA**2 * 3.0,
            (1, 0): 2.0 + GAMMA * 3.0,
            (2, 0): 3.0,
        },
    ),
    Probe(
        "the second reward is the one received, not the best one known",
        # One step: worth GAMMA * 1, for state 1 has a better action. Two steps: what was done.
        (
            Episode(((0, 0, 0.0), (1, 0, 0.0), (2, 0, 0.0))),
            Episode(((1, 1, 1.0),)),
            Episode(((2, 1, 0.0),)),
        ),
        {(0, 0): 0.0, (1, 0): 0.0, (1, 1): 1.0, (2, 0): 0.0, (2, 1): 0.0},
    ),
    Probe(
        "a return cut by truncation bootstraps with fewer discounts",
        (Episode(((0, 0, 1.0),), then=3), *either_action(3, rewards=(2.0,))),
        {(0, 0): 1.0 + GAMMA * 2.0, (3, 0): 2.0, (3, 1): 2.0},
    ),
)


def frame(state: int) -> np.ndarray:
    return np.eye(NUM_STATES, dtype=np.uint8)[state]


def memory_rows(probe: Probe) -> Transition:
    """The probe's episodes as `CAPACITY` rows of one lane; rows to spare are never sampled."""
    rows = []
    for episode in probe.episodes:
        for i, (state, action, reward) in enumerate(episode.steps):
            last = i == len(episode.steps) - 1
            ends = last and episode.then is TERMINATED
            rows.append(Transition(frame(state), action, reward, ends, i == 0, False))
        if episode.then is not TERMINATED:
            rows.append(Transition(frame(episode.then), 0, 0.0, False, False, True))
    spare = Transition(frame(0), 0, 100.0, False, True, True)
    rows += [spare] * (CAPACITY - len(rows))
    assert len(rows) == CAPACITY
    return jax.tree.map(lambda *leaves: np.stack(leaves)[:, None], *rows)


def known_values(probe: Probe) -> np.ndarray:
    """(states, actions); NaN where the probe says nothing."""
    table = np.full((NUM_STATES, NUM_ACTIONS), np.nan, np.float32)
    for cell, value in probe.values.items():
        table[cell] = value
    return table


def learner_of(
    make: Callable[[], OffPolicyAgent], n_step: int, updates: int
) -> Callable[[tuple[Probe, ...], int], np.ndarray]:
    """learn(probes, seed) -> values (probes, states, actions), all learned in one program."""
    agent = make()
    ring = Ring(CAPACITY, num_frames=1, n_step=n_step, gamma=GAMMA)
    size = agent.config.batch_size
    everything = jnp.eye(NUM_STATES, dtype=jnp.uint8)[:, None]  # (states, 1 frame, features)

    def one(rows: Transition, key: Array) -> Array:
        blank = Transition(frame(0), jnp.int32(0), jnp.float32(0), *[jnp.asarray(False)] * 3)
        memory = ring.extend(ring.init(blank), rows)
        init_key, learn_key, act_key = jax.random.split(key, 3)

        def update(learner, k):
            sample_key, update_key = jax.random.split(k)
            return agent.update(learner, ring.sample(memory, sample_key, size), update_key)

        keys = jax.random.split(learn_key, updates)
        learner, _ = jax.lax.scan(update, agent.init(init_key, everything), keys)
        return agent.act(learner.params, everything, act_key)[1]

    program = jax.jit(jax.vmap(one))

    def learn(probes: tuple[Probe, ...], seed: int = 0) -> np.ndarray:
        rows = stack.stack([memory_rows(probe) for probe in probes])
        keys = jax.random.split(jax.random.key(seed), len(probes))
        return np.asarray(program(rows, keys))

    return learn
