"""Gridworlds for PettingZoo's parallel interface: a shell over the compiled step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from worldloom.adapters.single_agent import carry_key
from worldloom.core.lazy import lazy, resolve
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import base_state
from worldloom.nn.values import num_actions

try:
    from gymnasium import spaces
    from pettingzoo import ParallelEnv

    from worldloom.adapters.gymnasium_values import gym_space
except ImportError as error:
    raise ImportError(
        "worldloom.adapters.pettingzoo needs pettingzoo; pip install 'worldloom[adapters]'"
    ) from error


# The worlds are a layer above this one: they are imported when they are asked for.
_make, _ascii_map = lazy("worldloom:make"), lazy("worldloom.suites.grid.views:ascii_map")


def parallel_env(name: str, seed: int = 0, **options: Any) -> "GridParallelEnv":
    """The gridworld `name`, with its own options, such as `num_agents=3`.

    All actions of a turn arrive at once. In a world of interleaved turns they are then applied in
    the order of the agents, but every one of them was chosen on what was seen before the turn.
    """
    env = _make(name, **options)
    if not isinstance(env.base, resolve("worldloom.suites.grid.world:GridWorld")):
        raise ValueError(f"parallel_env: {name} is not a gridworld; `worldloom envs` lists worlds")
    return GridParallelEnv(env, seed)


class GridParallelEnv(ParallelEnv):
    """A gridworld whose agents, `agent_0` and so on, act at once and end together.

    Args:
        env: a frame-stacked gridworld with a horizon.
        seed: what the first `reset()` without a seed of its own starts from; further ones go on
            to other worlds.
    """

    render_mode = "ansi"

    def __init__(self, env: PureEnv, seed: int = 0) -> None:
        self.env = env
        self.metadata = {"name": env.spec.name, "render_modes": ["ansi"]}
        self.possible_agents = [f"agent_{i}" for i in range(env.spec.num_agents)]
        self.agents: list[str] = []
        self.num_actions = num_actions(env.spec)
        self.observation_spaces, self.action_spaces = (
            {agent: gym_space(space) for agent in self.possible_agents}
            for space in (env.spec.observation, env.spec.action)
        )
        layers = (len(env.base.maps), *env.base.shape)
        self.state_space = spaces.Box(0, len(env.base.kinds) - 1, layers, np.int8)
        self._key = jax.random.key(seed)
        self._world: Any = None
        self._params = env.default_params()
        self._reset, self._step = (
            jax.jit(carry_key(function, jax.random.split)) for function in (env.reset, env.step)
        )

    def observation_space(self, agent: str) -> spaces.Space:
        """The frames that an agent sees, oldest first."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        """An agent's choices."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray], dict[str, dict]]:
        """A new world; the same seed gives the same one. `options` are not used."""
        if seed is not None:
            self._key = jax.random.key(seed)
        self._key, self._world, timestep = self._reset(self._key, self._params)
        self.agents = list(self.possible_agents)
        return self._by_agent(np.array(timestep.obs)), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, NDArray], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict]
    ]:
        """One turn of all agents; `truncated` at the horizon, and then no agent is left."""
        if not self.agents:
            raise ValueError(f"{self}: the episode is over, or has not begun; call reset() first")
        self._key, self._world, timestep = self._step(
            self._key, self._world, self._checked(actions), self._params
        )
        obs, reward, terminated, truncated = jax.device_get(
            (timestep.obs, timestep.reward, timestep.terminated, timestep.truncated)
        )
        answer = (
            self._by_agent(np.array(obs)),
            self._by_agent(reward.tolist()),
            dict.fromkeys(self.agents, bool(terminated)),
            dict.fromkeys(self.agents, bool(truncated)),
            {agent: {} for agent in self.agents},
        )
        if terminated or truncated:
            self.agents = []
        return answer

    def render(self) -> str:
        """The map as text, one line for each row, agents as digits."""
        return _ascii_map(self.env.base, self._begun())

    def state(self) -> NDArray[np.int8]:
        """The whole map as numbers of kinds, (layers, height, width)."""
        return np.array(self._begun().layers)

    def close(self) -> None:
        """Nothing is held open."""

    def _begun(self) -> Any:
        if self._world is None:
            raise ValueError(f"{self}: there is no world yet; call reset() first")
        return base_state(self._world)

    def _by_agent(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))

    def _checked(self, actions: dict[str, Any]) -> jax.Array:
        if set(actions) != set(self.agents):
            raise ValueError(
                f"{self}: got actions of {sorted(actions)}; every one of "
                f"{self.agents[0]} to {self.agents[-1]} must act, and nobody else"
            )
        for agent, action in actions.items():
            if not self.action_spaces[agent].contains(action):
                raise ValueError(
                    f"{self}: {agent} chose {action!r}; an action is a whole number from 0 to "
                    f"{self.num_actions - 1}"
                )
        return jnp.asarray([int(actions[agent]) for agent in self.possible_agents], jnp.int32)
