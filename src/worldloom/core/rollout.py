"""Playing worlds: the only scans over environment steps are in this file."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from worldloom.core import draws, stack
from worldloom.core.protocols import Environment, EnvSpec, PureEnv, TurnBased
from worldloom.core.types import Array, Key, PyTree, TimeStep, Turn

# act(agent, obs, key) -> (actions (W,), what to record of them): one agent's params, and its
# observations (W, ...)
ActFn = Callable[[PyTree, PyTree, Key], tuple[PyTree, PyTree]]


def play_steps(
    choose: Callable[[PyTree, PyTree, Key], tuple[PyTree, PyTree]],
    step: Callable[[PyTree, PyTree, Key], tuple[PyTree, PyTree]],
    key: Key,
    state: PyTree,
    memory: PyTree,
    num_steps: int,
) -> tuple[PyTree, PyTree, PyTree]:
    """The bare loop: `choose(state, memory, key)` an action, `step(state, action, key)` with it.

    `choose` returns (action, memory), `step` returns (state, what to record). Returns the last
    state and memory and what was recorded, with a leading axis of `num_steps`.
    """

    def one(carry, step_key):
        state, memory = carry
        choose_key, world_key = draws.split(step_key)
        action, memory = choose(state, memory, choose_key)
        state, record = step(state, action, world_key)
        return (state, memory), record

    keys = draws.split(key, num_steps)
    (state, memory), records = jax.lax.scan(one, (state, memory), keys)
    return state, memory, records


def unroll(
    env: Environment | PureEnv,
    act: Callable[[PyTree, Key], Array],
    key: Key,
    state: PyTree,
    timestep: TimeStep,
    params: PyTree,
    num_steps: int,
) -> tuple[PyTree, TimeStep, tuple[PyTree, Array, TimeStep]]:
    """Plays `num_steps` steps with `act(obs, key)`, on through the end of an episode.

    A world that should start anew needs `autoreset` around it: `step` never resets itself.
    Returns the last state and time step, and (obs, action, time step after it), each with a
    leading axis of `num_steps`.
    """

    def choose(world, memory, key):
        return act(world[1].obs, key), memory

    def step(world, action, key):
        state, before = world
        state, after = env.step(key, state, action, params)
        return (state, after), (before.obs, action, after)

    (state, timestep), _, steps = play_steps(choose, step, key, (state, timestep), (), num_steps)
    return state, timestep, steps


def newest_frame(spec: EnvSpec, obs: PyTree) -> Shaped[Array, " W *frame"]:
    """The last of the frames in observations (W, frames, *frame)."""
    leaves = jax.tree.leaves(obs)
    if len(leaves) != 1 or leaves[0].shape[1:2] != (spec.num_frames,):
        shapes = ", ".join(str(x.shape[1:]) for x in leaves)
        raise ValueError(
            f"{spec.name}: an observation of {shapes} is no stack of num_frames="
            f"{spec.num_frames}; wrap the world in frame_stack"
        )
    return leaves[0][:, -1]


def agent_turn(
    env: TurnBased | PureEnv,
    act: ActFn,
    key: Key,
    state: PyTree,
    i: Int[Array, ""] | int,
    agent: PyTree,
    params: PyTree,
) -> tuple[PyTree, tuple[PyTree, PyTree, Float[Array, "W A"]]]:
    """Agent `i` of a batched world looks and acts.

    Returns the state and (what `act` records (W, ...), actions (W, ...), rewards).
    """
    choose_key, apply_key = draws.split(key)
    obs = env.observe_agent(state, i, params)
    action, record = act(agent, obs, choose_key)
    state, reward = env.apply_agent(apply_key, state, i, action, params)
    return state, (record, action, reward)


def turn_keys(key: Key, num_agents: int) -> tuple[Key, Key]:
    """The keys of one turn: one for each agent (A,), and one for the world's own move."""
    keys = draws.split(key, num_agents + 1)
    return keys[:-1], keys[-1]


def play_turn(
    env: TurnBased | PureEnv,
    act: ActFn,
    key: Key,
    state: PyTree,
    agents: PyTree,
    params: PyTree,
) -> tuple[PyTree, Turn]:
    """One turn of every agent in a batched world, in the order the task prescribes.

    `agents` is whatever `act` needs of each agent, stacked on a leading axis. A list with one
    entry for each agent unrolls the loop over them: longer to compile, but large parameters are
    then not copied out of the stack in every turn.
    """
    interleaved = env.spec.interleaved
    if isinstance(agents, list) and not interleaved:
        agents = stack.stack(agents)
    keys, world_key = turn_keys(key, env.spec.num_agents)
    apply_key, end_key = draws.split(world_key)
    indices = jnp.arange(env.spec.num_agents)
    if interleaved:

        def one(state, x):
            i, agent, k = x
            return agent_turn(env, act, k, state, i, agent, params)

        if isinstance(agents, list):
            turns = []
            for i, agent in enumerate(agents):
                state, turn = one(state, (jnp.int32(i), agent, keys[i]))
                turns.append(turn)
            record, action, paid = stack.stack(turns)
        else:
            state, (record, action, paid) = jax.lax.scan(one, state, (indices, agents, keys))
        reward = paid.sum(axis=0).T
    else:
        choose_keys = jax.vmap(lambda k: draws.split(k)[0])(keys)
        obs = jax.vmap(env.observe_agent, (None, 0, None))(state, indices, params)
        action, record = jax.vmap(act)(agents, obs, choose_keys)
        by_world = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), action)
        state, paid = env.apply_all(apply_key, state, by_world, params)
        reward = paid.T
    state, terminated, truncated = env.end_turn(end_key, state, params)
    return state, Turn(record, action, reward, terminated, truncated)


def play_turns(
    env: TurnBased | PureEnv,
    act: ActFn,
    keys: Key,
    state: PyTree,
    agents: PyTree,
    params: PyTree,
    watch: Callable[[PyTree], PyTree] = lambda state: (),
) -> tuple[PyTree, Turn, Any]:
    """As many turns as there are `keys`; `watch(state)` is recorded before each turn.

    Returns the last state, the turns (T, ...) and what was watched (T, ...).
    """

    def one(state, key):
        watched = watch(state)
        state, turn = play_turn(env, act, key, state, agents, params)
        return state, (turn, watched)

    state, (turns, watched) = jax.lax.scan(one, state, keys)
    return state, turns, watched


def run_episode_batch(
    env: TurnBased | PureEnv,
    act: ActFn,
    key: Key,
    agents: PyTree,
    params: PyTree,
    num_turns: int,
    watch: Callable[[PyTree], PyTree] = lambda state: (),
) -> tuple[PyTree, Turn, Any]:
    """Resets a batched world and plays `num_turns` turns in it."""
    reset_key, play_key = draws.split(key)
    state, _ = env.reset(reset_key, params)
    keys = draws.split(play_key, num_turns)
    return play_turns(env, act, keys, state, agents, params, watch)
