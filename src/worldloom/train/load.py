"""A finished run, ready to act: the newest checkpoint's agents and their world."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from worldloom.algos.independent import parallel_take_actions
from worldloom.core import stack
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key, PyTree
from worldloom.track.machine import use_compilation_cache
from worldloom.train.build import build_env, build_loop
from worldloom.train.config import TrainConfig, check_seed
from worldloom.train.evaluate import Evaluation, Evaluator
from worldloom.train.runner import open_checkpoints, read_config
from worldloom.train.trainers import evaluation_agent


@dataclass(frozen=True)
class LoadedRun:
    """Trained agents: how they act, and their parameters, stacked, as of `epoch`."""

    config: TrainConfig
    env: PureEnv
    agent: Any
    agents: PyTree
    epoch: int

    def act(self, obs: Array, key: Key | None = None) -> Array:
        """Greedy actions (A,) for one world's observations (A, frames, *frame)."""
        keys = jax.random.split(jax.random.key(0) if key is None else key, obs.shape[0])
        return parallel_take_actions(self.agent, self.agents, obs[:, None], keys)[:, 0]

    def policy(self) -> Callable[[int, Array, Key], Array]:
        """policy(i, obs, key): greedy actions (B,) of agent `i` for obs (B, frames, *frame)."""
        act = jax.jit(lambda agent, obs, key: self.agent.act(agent, obs, key, explore=0.0)[0])
        agents = stack.unstack(self.agents)
        return lambda i, obs, key: act(agents[i], obs, key)

    def evaluate(self, episodes: int = 200, seed: int = 0) -> Evaluation:
        """Greedy scores in `episodes` fresh worlds."""
        check_seed(seed)
        return Evaluator(self.env, self.agent, episodes)(self.agents, jax.random.key(seed))


def load_run(folder: Path) -> LoadedRun:
    """Reads the newest complete checkpoint of a run folder."""
    use_compilation_cache()
    config = read_config(folder)
    env, agent = build_env(config), evaluation_agent(config)
    checkpoints = open_checkpoints(folder)
    try:
        if config.mode == "torch_sequential":
            one = jax.eval_shape(lambda k: agent.init(k, env.spec).params, jax.random.key(0))
            count = env.spec.num_agents
            like = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), one)
            agents = checkpoints.restore(like)
        else:
            like = jax.eval_shape(build_loop(config).init, jax.random.key(0))
            agents = checkpoints.restore(like).learner.params
        return LoadedRun(config, env, agent, agents, checkpoints.latest or 0)
    finally:
        checkpoints.close()
