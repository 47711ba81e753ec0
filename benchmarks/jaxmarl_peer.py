"""JaxMARL's own IPPO loop on SocialJax's Clean Up, in a process of an environment of its own.

This file is run by its path there and imports nothing of Worldloom. Both projects are read from
checkouts: the loop is `baselines/IPPO/ippo_ff_overcooked.py`, which no package has, and the world
`clean_up` of SocialJax behind the interface of JaxMARL's worlds. It is told what to set up in one
line of JSON, and trains from another seed for each line after that. Logging and the command line
of the loop are replaced by nothing, which makes it no slower.
"""

import importlib.util
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


class CleanUp:
    """SocialJax's world, whose agents are rows, with agents by name as JaxMARL has them."""

    def __init__(self, env: Any):
        self.env, self.num_agents = env, env.num_agents
        self.agents = [f"agent_{i}" for i in range(self.num_agents)]

    def _named(self, rows: Any) -> dict[str, Any]:
        return {name: rows[i] for i, name in enumerate(self.agents)}

    def action_space(self, agent: str) -> Any:
        return self.env.action_space()

    def observation_space(self, agent: str) -> Any:
        return SimpleNamespace(shape=self.env.observation_space()[0].shape)

    def reset(self, key: Any) -> tuple[dict[str, Any], Any]:
        obs, state = self.env.reset(key)
        return self._named(obs), state

    def step(self, key: Any, state: Any, actions: dict[str, Any]) -> tuple[Any, ...]:
        import jax.numpy as jnp

        chosen = [actions[name] for name in self.agents]
        obs, state, reward, done, _ = self.env.step(key, state, chosen)
        dones = self._named([done["__all__"]] * self.num_agents) | {"__all__": done["__all__"]}
        no_shaping = {"shaped_reward": self._named(jnp.zeros(self.num_agents))}
        return self._named(obs), state, self._named(reward.astype(jnp.float32)), dones, no_shaping


def loop_of(checkout: Path) -> ModuleType:
    """The module of JaxMARL's loop; what it would log and be told by is not there."""
    import jax

    for name in ("hydra", "omegaconf", "wandb"):
        sys.modules[name] = ModuleType(name)
    sys.modules["hydra"].main = lambda **_: lambda function: function
    sys.modules["omegaconf"].OmegaConf = None
    sys.modules["wandb"].log = lambda *_: None
    jax.debug.callback = lambda *_, **__: None
    path = checkout / "baselines/IPPO/ippo_ff_overcooked.py"
    spec = importlib.util.spec_from_file_location("jaxmarl_ippo", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(setup: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """A whole training as JaxMARL compiles it."""
    sys.path.insert(0, setup["socialjax"])
    import jax
    import jaxmarl
    import socialjax

    sizes, module = setup["sizes"], loop_of(Path(setup["jaxmarl"]))
    env = socialjax.make(
        "clean_up",
        num_agents=sizes["agents"],
        num_inner_steps=sizes["horizon"],
        cnn=True,  # windows of planes, which the loop flattens
        jit=True,
        shared_rewards=False,
    )
    jaxmarl.make = lambda *_, **__: CleanUp(env)
    steps = sizes["worlds"] * sizes["horizon"] * sizes["updates"]
    config = {
        "ENV_NAME": "clean_up", "ENV_KWARGS": {}, "NUM_ENVS": sizes["worlds"],
        "NUM_STEPS": sizes["horizon"], "TOTAL_TIMESTEPS": steps, "ANNEAL_LR": False,
        "NUM_MINIBATCHES": sizes["minibatches"], "UPDATE_EPOCHS": sizes["epochs"], "LR": 5e-4,
        "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh", "REW_SHAPING_HORIZON": 1,
    }  # fmt: skip
    start = time.perf_counter()
    program = jax.jit(module.make_train(config)).lower(jax.random.PRNGKey(0)).compile()
    facts = {
        "steps": steps,
        "compile_seconds": time.perf_counter() - start,
        "observation": list(env.observation_space()[0].shape),
        "jaxmarl": version("jaxmarl"),
        "jax": version("jax"),
    }

    def score(trained: Any, seed: int) -> float:
        return float(trained["metrics"]["reward"].sum()) * sizes["agents"] * sizes["horizon"]

    def train(seed: int) -> Any:
        return jax.block_until_ready(program(jax.random.PRNGKey(seed)))

    return train, score, facts


if __name__ == "__main__":
    from rejax_peer import serve  # beside this file, which is run by its path

    # Answers go where standard output went; what the peers print goes to standard error.
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(make)
