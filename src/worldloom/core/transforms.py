"""Functions from environment to environment. There is no wrapper class to inherit from.

`frame_stack` needs a turn-based world. The others take any; `time_limit`, `batch` and
`normalise_actions` keep a turn-based one turn based, `autoreset` and `episode_stats` keep its
`reset` and `step` only.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Float, Shaped

from worldloom.core import draws, stack
from worldloom.core.protocols import Environment, PureEnv, TurnBased, not_turn_based
from worldloom.core.spaces import Box
from worldloom.core.sparse import update_chosen
from worldloom.core.types import Array, Key, PyTree, TimeStep


def as_pure(env: Environment | PureEnv) -> PureEnv:
    """The functions of any environment, gathered in one value."""
    if isinstance(env, PureEnv):
        return env
    turns = {
        name: getattr(env, name, not_turn_based)
        for name in ("observe_agent", "apply_agent", "apply_all", "end_turn")
    }
    names = ("reset_many", "step_many", "restart_many")
    many = {name: getattr(env, name, None) for name in names}
    return PureEnv(env.spec, env.default_params, env.reset, env.step, env, **many, **turns)


def reset_many(env: PureEnv) -> Callable[[Key, PyTree], tuple[PyTree, TimeStep]]:
    """`reset` for keys (B,): the world's own, or that for one, mapped."""
    return env.reset_many or jax.vmap(env.reset, (0, None))


def step_many(env: PureEnv) -> Callable[[Key, PyTree, Array, PyTree], tuple[PyTree, TimeStep]]:
    """`step` for B worlds: the world's own, or that for one, mapped."""
    return env.step_many or jax.vmap(env.step, (0, 0, 0, None))


class TransformState(struct.PyTreeNode):
    """What every transform that keeps something adds to: the state of what it transforms."""

    inner: PyTree


def base_state(state: PyTree) -> PyTree:
    """The state of the world itself, under the states of all transforms."""
    while isinstance(state, TransformState):
        state = state.inner
    return state


def _inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(key, state, ...) -> (state, ...)` on the state under that of a transform."""

    def call(key, state, *args):
        new, *others = function(key, state.inner, *args)
        return (state.replace(inner=new), *others)

    return call


def _derived(inner: PureEnv, reset: Any, step: Any, **turns: Callable[..., Any]) -> PureEnv:
    """A world with another `reset` and `step`, and with `turns` if the inner one is turn based."""
    turns = turns if inner.turn_based else {}
    return PureEnv(inner.spec, inner.default_params, reset, step, inner.base, **turns)


# Turn-based worlds -----------------------------------------------------------------------------


def observe_all(env: TurnBased | PureEnv, state: PyTree, params: PyTree) -> PyTree:
    """What every agent sees now, (A, ...)."""
    agents = jnp.arange(env.spec.num_agents)
    return jax.vmap(env.observe_agent, (None, 0, None))(state, agents, params)


def apply_in_order(
    env: Any, key: Key, state: PyTree, action: Shaped[Array, "A ..."], params: PyTree
) -> tuple[PyTree, Float[Array, " A"]]:
    """Agents 0 .. A-1 act one after the other; rewards are summed over the turn."""
    num_agents = env.spec.num_agents

    def one(carry, x):
        state, reward = carry
        i, a, k = x
        state, paid = env.apply_agent(k, state, i, a, params)
        return (state, reward + paid), None

    keys = draws.split(key, num_agents)
    zero = jnp.zeros((num_agents,), jnp.float32)
    agents = jnp.arange(num_agents)
    (state, reward), _ = jax.lax.scan(one, (state, zero), (agents, action, keys))
    return state, reward


def first_step(env: Any, state: PyTree, params: PyTree) -> TimeStep:
    """The time step of a fresh turn-based world: observations, no reward, not over."""
    obs = observe_all(env, state, params)
    reward = jnp.zeros((env.spec.num_agents,), jnp.float32)
    no = jnp.asarray(False)
    return TimeStep(obs, reward, no, no, obs, ())


def step_by_turn(
    env: Any, key: Key, state: PyTree, action: Shaped[Array, "A ..."], params: PyTree
) -> tuple[PyTree, TimeStep]:
    """`step` of a turn-based world: all act, the world moves, all look."""
    act_key, end_key = draws.split(key)
    state, reward = env.apply_all(act_key, state, action, params)
    state, terminated, truncated = env.end_turn(end_key, state, params)
    obs = observe_all(env, state, params)
    return state, TimeStep(obs, reward, terminated, truncated, obs, ())


class FrameStackState(TransformState):
    past: Array  # (A, n-1, *frame): what each agent saw before, oldest first, zeros at the start


def frame_stack(env: TurnBased | PureEnv, num_frames: int) -> PureEnv:
    """Each agent sees its last `num_frames` frames, (n, *frame), oldest first.

    The stack is part of the state and starts from zeros, so no frame of an earlier episode can
    leak into a new one.
    """
    if num_frames < 1:
        raise ValueError(f"frame_stack: num_frames={num_frames}; it must be at least 1")
    inner = as_pure(env)
    frame = inner.spec.observation
    if not isinstance(frame, Box) or not inner.turn_based:
        raise ValueError(
            f"frame_stack: {inner.spec.name} is not a turn-based world with Box observations; "
            "stack before autoreset and episode_stats, which keep reset and step only"
        )
    spec = replace(
        inner.spec,
        observation=replace(frame, shape=(num_frames, *frame.shape)),
        num_frames=num_frames,
    )

    def observe_agent(state, i, params):
        now = inner.observe_agent(state.inner, i, params)
        return jnp.concatenate([state.past[i], now[None]])

    def apply_agent(key, state, i, action, params):
        frames = observe_agent(state, i, params)
        new, reward = inner.apply_agent(key, state.inner, i, action, params)
        return FrameStackState(new, state.past.at[i].set(frames[1:])), reward

    def apply_all(key, state, action, params):
        if spec.interleaved:
            return apply_in_order(made, key, state, action, params)
        frames = observe_all(made, state, params)
        new, reward = inner.apply_all(key, state.inner, action, params)
        return FrameStackState(new, frames[:, 1:]), reward

    def reset(key, params):
        past = jnp.zeros((spec.num_agents, num_frames - 1, *frame.shape), frame.dtype)
        state = FrameStackState(inner.reset(key, params)[0], past)
        return state, first_step(made, state, params)

    def step(key, state, action, params):
        return step_by_turn(made, key, state, action, params)

    made = _derived(
        replace(inner, spec=spec),
        reset,
        step,
        observe_agent=observe_agent,
        apply_agent=apply_agent,
        apply_all=apply_all,
        end_turn=_inside(inner.end_turn),
    )
    return made


class JointObservation(struct.PyTreeNode):
    """What one agent sees, and what all of them see, for critics that may know it."""

    own: Array
    everyone: Array  # (A, ...)


def joint_observations(env: TurnBased | PureEnv) -> PureEnv:
    """A turn-based world in which `observe_agent` gives a `JointObservation`.

    `reset` and `step` are as they were: what they return is for those who need no critic.
    """
    inner = as_pure(env)

    def observe_agent(state, i, params):
        everyone = observe_all(inner, state, params)
        return JointObservation(inner.observe_agent(state, i, params), everyone)

    return replace(inner, observe_agent=observe_agent)


class TimeLimitState(TransformState):
    elapsed: Array


def time_limit(env: Environment | PureEnv, horizon: int) -> PureEnv:
    """Truncates after `horizon` steps (turns). Time running out is not the task ending.

    Inside of `autoreset`, so that a new episode starts its own clock. Of two limits, the shorter
    is the horizon.
    """
    if horizon < 1:
        raise ValueError(f"time_limit: horizon={horizon}; it must be at least 1")
    inner = as_pure(env)
    spec = replace(inner.spec, horizon=min(horizon, inner.spec.horizon or horizon))

    def reset(key, params):
        state, timestep = inner.reset(key, params)
        return TimeLimitState(state, jnp.int32(0)), timestep

    def step(key, state, action, params):
        new, timestep = inner.step(key, state.inner, action, params)
        elapsed = state.elapsed + 1
        late = (elapsed >= horizon) & ~timestep.terminated
        timestep = timestep.replace(truncated=timestep.truncated | late)
        return TimeLimitState(new, elapsed), timestep

    def observe_agent(state, i, params):
        return inner.observe_agent(state.inner, i, params)

    def end_turn(key, state, params):
        new, terminated, truncated = inner.end_turn(key, state.inner, params)
        elapsed = state.elapsed + 1
        late = (elapsed >= horizon) & ~terminated
        return TimeLimitState(new, elapsed), terminated, truncated | late

    return _derived(
        replace(inner, spec=spec),
        reset,
        step,
        observe_agent=observe_agent,
        apply_agent=_inside(inner.apply_agent),
        apply_all=_inside(inner.apply_all),
        end_turn=end_turn,
    )


# Any world -------------------------------------------------------------------------------------


def batch(env: Environment | PureEnv, num_worlds: int, device_axis: str | None = None) -> PureEnv:
    """`num_worlds` independent worlds on a leading axis, with shared params.

    Inside of `shard_map` over `device_axis`, they are those of one device of several: with the
    keys that they would have in one batch of all.
    """
    if num_worlds < 1:
        raise ValueError(f"batch: num_worlds={num_worlds}; it must be at least 1")
    inner = as_pure(env)

    def split(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda key, *args: function(keys(key), *args)

    def keys(key: Key) -> Key:
        return draws.split(key, num_worlds, draws.first_row(num_worlds, device_axis))

    def reset(key: Key, params: PyTree):
        return reset_many(inner)(keys(key), params)

    def step(key: Key, state: PyTree, action: PyTree, params: PyTree):
        return step_many(inner)(keys(key), state, action, params)

    return _derived(
        inner,
        reset,
        step,
        observe_agent=jax.vmap(inner.observe_agent, (0, None, None)),
        apply_agent=split(jax.vmap(inner.apply_agent, (0, 0, None, 0, None))),
        apply_all=split(jax.vmap(inner.apply_all, (0, 0, 0, None))),
        end_turn=split(jax.vmap(inner.end_turn, (0, 0, None))),
    )


class AutoResetState(TransformState):
    starts: PyTree  # remembered first states and observations; () in fresh mode


def autoreset(
    env: Environment | PureEnv,
    mode: Literal["fresh", "cached", "pool"] = "fresh",
    pool_size: int = 16,
) -> PureEnv:
    """Starts a new episode when one ends; `final_obs` keeps what the agent saw last.

    fresh: draws a new start in every step, and uses it where one is needed: exact, and as dear
    as the reset. cached: always returns to the episode's first start: cheap, no variety.
    pool: picks among `pool_size` starts drawn at the first reset.
    """
    if mode not in ("fresh", "cached", "pool"):
        raise ValueError(f"autoreset: mode={mode!r}; use 'fresh', 'cached' or 'pool'")
    if pool_size < 1:
        raise ValueError(f"autoreset: pool_size={pool_size}; it must be at least 1")
    inner = as_pure(env)

    def reset(key, params):
        if mode == "fresh":
            state, timestep = inner.reset(key, params)
            return AutoResetState(state, ()), timestep
        count = pool_size if mode == "pool" else 1
        states, timesteps = jax.vmap(inner.reset, (0, None))(draws.split(key, count), params)
        state, timestep = stack.index((states, timesteps), 0)
        return AutoResetState(state, (states, timesteps.obs)), timestep

    def step(key, state, action, params):
        step_key, start_key = draws.split(key)
        new, timestep = inner.step(step_key, state.inner, action, params)
        if mode == "fresh":
            start, first = inner.reset(start_key, params)
            start_obs = first.obs
        else:
            pick = jax.random.randint(start_key, (), 0, stack.size(state.starts))
            start, start_obs = stack.index(state.starts, pick)
        done = timestep.terminated | timestep.truncated
        new = stack.where(done, start, new)
        obs = stack.where(done, start_obs, timestep.obs)
        timestep = timestep.replace(obs=obs, final_obs=timestep.obs)
        return AutoResetState(new, state.starts), timestep

    return _derived(inner, reset, step)


def autoreset_batch(
    env: Environment | PureEnv,
    num_worlds: int,
    chunk: int = 32,
    device_axis: str | None = None,
) -> PureEnv:
    """`num_worlds` worlds on a leading axis, each of which starts anew when its episode ends.

    As ``batch(autoreset(env, "fresh"), num_worlds)``, but a start is drawn only for the worlds
    that need one, `chunk` of them at a time: for worlds whose episodes end at different times.
    """
    if chunk < 1:
        raise ValueError(f"autoreset_batch: chunk={chunk}; it must be at least 1")
    inner = as_pure(env)
    worlds = batch(inner, num_worlds, device_axis)

    def step(key, state, action, params):
        step_key, start_key = draws.split(key)
        state, timestep = worlds.step(step_key, state, action, params)

        def start(args):
            if inner.restart_many is not None:
                keys, ended = args
                state, first = inner.restart_many(keys, ended, params)
            else:
                state, first = reset_many(inner)(args, params)
            return state, first.obs

        done = timestep.terminated | timestep.truncated
        first = draws.first_row(num_worlds, device_axis)
        keys = draws.split(start_key, num_worlds, first)
        args = keys if inner.restart_many is None else (keys, state)
        state, obs = update_chosen(done, start, (state, timestep.obs), args, chunk)
        return state, timestep.replace(obs=obs, final_obs=timestep.obs)

    return _derived(inner, worlds.reset, step)


class EpisodeStats(struct.PyTreeNode):
    """Return and length of the running episode and of the last one that ended."""

    episode_return: Array
    episode_length: Array
    last_return: Array
    last_length: Array
    inner: PyTree  # the world's own info


class EpisodeStatsState(TransformState):
    stats: EpisodeStats


def episode_stats(env: Environment | PureEnv) -> PureEnv:
    """Counts return and length into `info`; place it outside of `autoreset`."""
    inner = as_pure(env)

    def reset(key, params):
        state, timestep = inner.reset(key, params)
        zero = jnp.zeros_like(timestep.reward)
        none = jnp.zeros_like(timestep.terminated, jnp.int32)
        stats = EpisodeStats(zero, none, zero, none, timestep.info)
        return EpisodeStatsState(state, stats.replace(inner=())), timestep.replace(info=stats)

    def step(key, state, action, params):
        new, timestep = inner.step(key, state.inner, action, params)
        old = state.stats
        total = old.episode_return + timestep.reward
        length = old.episode_length + 1
        done = timestep.terminated | timestep.truncated
        stats = EpisodeStats(
            episode_return=stack.where(done, jnp.zeros_like(total), total),
            episode_length=jnp.where(done, 0, length),
            last_return=stack.where(done, total, old.last_return),
            last_length=jnp.where(done, length, old.last_length),
            inner=timestep.info,
        )
        return EpisodeStatsState(new, stats.replace(inner=())), timestep.replace(info=stats)

    return _derived(inner, reset, step)


def normalise_actions(env: Environment | PureEnv) -> PureEnv:
    """Actions in [-1, 1], scaled linearly to the world's Box; what lies outside is clipped to it.

    For algorithms that act in [-1, 1]. The middle of the box is 0, so a box that is symmetric
    about zero is scaled without rounding, and [-1, 1] itself is only clipped.
    """
    inner = as_pure(env)
    box = inner.spec.action
    if not isinstance(box, Box) or not jnp.issubdtype(jnp.dtype(box.dtype), jnp.floating):
        raise ValueError(
            f"normalise_actions: the actions of {inner.spec.name} are {box}; only a Box of floats "
            "can be scaled"
        )
    if math.isinf(box.low) or math.isinf(box.high):
        raise ValueError(
            f"normalise_actions: {inner.spec.name} takes actions in [{box.low:g}, {box.high:g}]; "
            "give the box finite bounds"
        )
    centre, half = (box.high + box.low) / 2.0, (box.high - box.low) / 2.0

    def scaled(function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose last arguments are `action, params`, with its action scaled."""

        def call(*args):
            *others, action, params = args
            action = centre + half * jnp.asarray(action, box.dtype)
            return function(*others, jnp.clip(action, box.low, box.high), params)

        return call

    names = ("step", "step_many", "apply_agent", "apply_all")
    known = {name: getattr(inner, name) for name in names if inner.turn_based or "step" in name}
    return replace(
        inner,
        spec=replace(inner.spec, action=replace(box, low=-1.0, high=1.0), reward=None),
        **{name: function and scaled(function) for name, function in known.items()},
    )
