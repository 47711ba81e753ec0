"""Worlds of one agent as environments of Brax, for Brax's trainers and wrappers.

Our whole state is Brax's `pipeline_state`, so that Brax's AutoResetWrapper, which restores that and
the observation but never `info`, also restores clocks, commands and the last action. It returns to
the same first state each time; `wrap_for_training` begins each episode anew. For robots see
`worldloom.suites.robot.brax_env`; to train, `worldloom.adapters.brax_ppo`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.adapters.brax_compat import quiet_import
from worldloom.adapters.single_agent import as_dict, as_single, carry_key
from worldloom.core import draws, stack
from worldloom.core.lazy import resolve
from worldloom.core.protocols import Environment, PureEnv
from worldloom.core.spaces import Box
from worldloom.core.sparse import update_chosen
from worldloom.core.transforms import as_pure, reset_many, step_many
from worldloom.core.types import Array, Key, PyTree, TimeStep

try:
    with quiet_import():
        from brax.envs.base import Env, State, Wrapper
except ImportError as error:
    raise ImportError(
        "worldloom.adapters.brax needs brax 0.14.2 or newer; pip install 'worldloom[robot]'"
    ) from error

RESET_CHUNK = 32  # worlds that are begun anew at a time
# metrics(timestep, params): numbers by name, with the leading axes of the time step.
Metrics = Callable[[TimeStep, PyTree], dict[str, Array]]


class BraxEnv(Env):
    """A world of one agent as a `brax.envs.Env`. Its `reset` plays the episodes of `GymEnv`.

    Args:
        world: one of one agent whose action is a finite box of floats, without automatic reset.
        params: its parameters, by default its own.
        metrics: what `State.metrics` holds, by default the scalars of its info. Names that end in
            "_per_step" Brax divides by the length of an episode; others are sums over it.

    Actions are in [-1, 1], and stretched to the box. `done` is the end of the task alone: that time
    ran out is in ``info["truncation"]``, and a matter of whoever wraps this. ``info["time_out"]``
    says the same by the world's own horizon: Brax's wrappers leave it alone, and its PPO reads it
    with `bootstrap_on_timeout`. The key for the next step is in ``info["rng"]``, as words, where
    Brax's automatic reset leaves it as it is: no noise is drawn twice. `sys` are the params, which
    is what Brax's randomization_fn maps over.
    """

    def __init__(
        self,
        world: Environment | PureEnv,
        params: PyTree = None,
        metrics: Metrics | None = None,
    ) -> None:
        env = as_pure(world)
        self.sys = jax.tree.map(jnp.asarray, env.default_params() if params is None else params)
        self.world = as_single(env, self.sys, type(self).__name__)
        self._metrics = scalars_of_info if metrics is None else metrics
        self._box = _action_box(self.world)
        _, first = jax.eval_shape(self.world.reset, jax.random.key(0), self.sys)
        self._sizes = _sizes(self.world, as_dict(first.obs))
        self.metric_names = tuple(jax.eval_shape(self.measured, first, self.sys))

    def reset(self, rng: Key) -> State:
        """A new episode, from a key of the new or of the old kind."""
        return self.first(carry_key(self.world.reset, _split)(_words(rng), self.sys), self.sys)

    def step(self, state: State, action: Array) -> State:
        """One step; whatever else wrappers keep in `info` and `metrics` stays there."""
        words, world, timestep = carry_key(self.world.step, _split)(
            state.info["rng"], state.pipeline_state, self.stretched(action), self.sys
        )
        return state.replace(  # pyright: ignore[reportAttributeAccessIssue]
            pipeline_state=world,
            obs=as_dict(timestep.obs),
            reward=_number(timestep.reward),
            done=_number(timestep.terminated),
            metrics=state.metrics | self.measured(timestep, self.sys),
            info=state.info
            | {
                "rng": words,
                "truncation": _number(timestep.truncated),
                "time_out": _number(timestep.truncated),
            },
        )

    @property
    def observation_size(self) -> Any:
        """How many numbers are seen; shapes by name where policy and critic differ in it."""
        return self._sizes

    @property
    def action_size(self) -> int:
        """How many numbers are an action."""
        return self._box.shape[0]

    @property
    def backend(self) -> str:
        """What computes the physics."""
        return "jax"

    # For wrappers, on any leading axes ---------------------------------------------------------

    def first(self, begun: tuple[Array, PyTree, TimeStep], params: PyTree) -> State:
        """Brax's state at the start of an episode, from words, state and time step."""
        words, world, timestep = begun
        zero = jnp.zeros_like(timestep.reward, jnp.float32)
        return State(
            pipeline_state=world,
            obs=as_dict(timestep.obs),
            reward=zero,
            done=zero,
            metrics=self.measured(timestep, params),
            info={"rng": words, "truncation": zero, "time_out": zero},
        )

    def stretched(self, action: Array) -> Array:
        """The world's action, from one in [-1, 1]."""
        low, high = self._box.low, self._box.high
        if (low, high) == (-1.0, 1.0):
            return action
        return low + (action + 1.0) * ((high - low) / 2.0)

    def measured(self, timestep: TimeStep, params: PyTree) -> dict[str, Array]:
        """The metrics of a time step, float32."""
        return {name: _number(x) for name, x in self._metrics(timestep, params).items()}


def scalars_of_info(timestep: TimeStep, params: PyTree) -> dict[str, Array]:
    """The scalars of a time step's info by name."""
    flat, _ = jax.tree_util.tree_flatten_with_path(as_dict(timestep.info))
    lead = timestep.reward.ndim
    return {"/".join(str(part.key) for part in path): x for path, x in flat if x.ndim == lead}


# Many worlds, each begun anew ------------------------------------------------------------------


def wrap_for_training(
    env: Env,
    episode_length: int = 1000,
    action_repeat: int = 1,
    randomization_fn: Callable[[PyTree], tuple[PyTree, PyTree]] | None = None,
) -> "TrainingEnvs":
    """Brax's `wrap_env_fn` for our worlds: many of them, with episodes and automatic reset.

    episode_length: steps after which time runs out, if the world's own horizon is not shorter.
    randomization_fn: as Brax's, but of the world's params: gives params with a leading axis where
    worlds differ, and the axes to map over.
    """
    inner = env.unwrapped
    if not isinstance(inner, BraxEnv):
        raise ValueError(
            f"wrap_for_training: {type(inner).__name__} is not a BraxEnv; "
            "use brax.envs.training.wrap for other environments"
        )
    return TrainingEnvs(inner, episode_length, action_repeat, randomization_fn)


class TrainingEnvs(Wrapper):
    """B worlds; where an episode ends, the state is already the first of a fresh one.

    ``info["truncation"]`` (and "time_out") is 1 where time ran out: Brax's PPO then takes the value
    of what was seen for what would have come. `done` is 1 there as well as where the task ended.
    "steps", "episode_done" and "episode_metrics" are as Brax's EpisodeWrapper has them, but that
    nothing is counted, with `action_repeat`, after an episode's end.
    """

    env: BraxEnv

    def __init__(
        self,
        env: BraxEnv,
        episode_length: int,
        action_repeat: int = 1,
        randomization_fn: Callable[[PyTree], tuple[PyTree, PyTree]] | None = None,
    ) -> None:
        super().__init__(env)
        for name, value in (("episode_length", episode_length), ("action_repeat", action_repeat)):
            if value < 1:
                raise ValueError(f"wrap_for_training: {name}={value}; it must be at least 1")
        self.episode_length, self.action_repeat = episode_length, action_repeat
        self._alike = randomization_fn is None
        self._params, reset, step = env.sys, reset_many(env.world), step_many(env.world)
        if randomization_fn is not None:
            self._params, axes = randomization_fn(env.sys)
            reset = jax.vmap(env.world.reset, (0, axes))
            step = jax.vmap(env.world.step, (0, 0, 0, axes))
        self._reset, self._step = carry_key(reset, _split), carry_key(step, _split)

    def reset(self, rng: Key) -> State:
        """New episodes from keys (B,), or (B, 2) of the old kind."""
        begun = self._reset(_words(rng), self._params)
        state = self.env.first(begun, self._params)
        zero = state.done
        totals = dict.fromkeys(("sum_reward", "length", *self.env.metric_names), zero)
        counted = dict.fromkeys(("steps", "episode_done"), zero)
        info = state.info | counted | {"episode_metrics": totals}
        return state.replace(info=info)  # pyright: ignore[reportAttributeAccessIssue]

    def step(self, state: State, action: Array) -> State:
        """`action_repeat` steps with actions (B, n)."""
        going = 1.0 - state.done  # 0 where the step before was an episode's last
        now = self._repeated(state, self.env.stretched(action))
        steps = state.info["steps"] * going + now.played
        done = now.terminated | now.truncated | (steps >= self.episode_length)
        truncation = _number(done & ~now.terminated)
        counts = {"sum_reward": now.reward, "length": now.played, **now.metrics}
        totals = {
            name: total * going + counts[name]
            for name, total in state.info["episode_metrics"].items()
        }
        words, world, obs = self._renewed(done, (now.words, now.world, now.obs))
        info = state.info | {
            "rng": words,
            "truncation": truncation,
            "time_out": truncation,
            "steps": steps,
            "episode_done": _number(done),
            "episode_metrics": totals,
        }
        return state.replace(  # pyright: ignore[reportAttributeAccessIssue]
            pipeline_state=world,
            obs=obs,
            reward=now.reward,
            done=_number(done),
            metrics=state.metrics | now.metrics,
            info=info,
        )

    def _repeated(self, state: State, action: Array) -> "_Played":
        """The worlds after `action_repeat` steps, or fewer where an episode ends before."""
        zero = jnp.zeros_like(state.done)
        no = zero > 0.0

        def one(old: _Played, _: None) -> tuple[_Played, None]:
            words, world, timestep = self._step(old.words, old.world, action, self._params)
            measured = self.env.measured(timestep, self._params)
            new = _Played(
                words,
                world,
                as_dict(timestep.obs),
                old.reward + _number(timestep.reward),
                {name: old.metrics[name] + x for name, x in measured.items()},
                timestep.terminated,
                timestep.truncated,
                old.played + 1.0,
            )
            return stack.where(~(old.terminated | old.truncated), new, old), None

        metrics = dict.fromkeys(self.env.metric_names, zero)
        words, world = state.info["rng"], state.pipeline_state
        start = _Played(words, world, state.obs, zero, metrics, no, no, zero)
        if self.action_repeat == 1:
            return one(start, None)[0]
        return jax.lax.scan(one, start, length=self.action_repeat)[0]

    def _renewed(self, done: Array, worlds: PyTree) -> PyTree:
        """Keys, states and observations, with those that are `done` begun anew."""

        def start(words):
            words, world, timestep = self._reset(words, self._params)
            return words, world, as_dict(timestep.obs)

        if self._alike:
            return update_chosen(done, start, worlds, worlds[0], RESET_CHUNK)
        return stack.where(done, start(worlds[0]), worlds)  # params go with the world, by row


class _Played(NamedTuple):
    """B worlds after some steps: sums of reward and metrics, how they stand, how many steps."""

    words: Array
    world: PyTree
    obs: PyTree
    reward: Array
    metrics: dict[str, Array]
    terminated: Array
    truncated: Array
    played: Array


# Keys, numbers and sizes -----------------------------------------------------------------------


def _words(rng: Key) -> Array:
    """The words (..., 2) of keys of the new or of the old kind."""
    return jax.random.key_data(draws.as_key(rng))


def _split(words: Array) -> tuple[Array, Key]:
    """Words (2,) or (B, 2) to go on with, and the key or keys (B,) to use."""
    keys = jax.random.wrap_key_data(words)
    pair = jax.vmap(draws.split, out_axes=1)(keys) if keys.ndim else draws.split(keys)
    return jax.random.key_data(pair[0]), pair[1]


def _number(x: Array) -> Array:
    return jnp.asarray(x, jnp.float32)


def _action_box(env: PureEnv) -> Box:
    box = env.spec.action
    if isinstance(box, Box):
        finite = np.isfinite([box.low, box.high]).all()
        if finite and len(box.shape) == 1 and np.dtype(box.dtype).kind == "f":
            return box
    raise ValueError(
        f"brax: {env.spec.name} has the action {box}, and Brax's policies give "
        "vectors of floats in [-1, 1]; use a world with a finite Box of one axis"
    )


def _sizes(env: PureEnv, obs: Any) -> int | dict[str, tuple[int, ...]]:
    parts: dict[str, Any] = obs if isinstance(obs, dict) else {"the observation": obs}
    for name, part in parts.items():
        if len(getattr(part, "shape", ())) != 1:
            raise ValueError(
                f"brax: {name} of {env.spec.name} is not a vector, and Brax's "
                "networks see vectors; flatten it"
            )
    shapes = {name: part.shape for name, part in parts.items()}
    return shapes if isinstance(obs, dict) else obs.shape[0]


def __getattr__(name: str) -> Any:
    if name == "BraxWildRobotWrapper":  # it knows robots, which nothing here may import
        return resolve("worldloom.suites.robot.brax_env:BraxWildRobotWrapper")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
