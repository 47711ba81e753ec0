"""A policy learned offline, for people: it acts on numpy arrays, is saved to a file and loaded."""

import json
import zipfile
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom import algos
from worldloom.core.files import atomic_path
from worldloom.core.types import Array
from worldloom.nn.policy import PolicyState, policy_step

FORMAT = 1

_step = jax.jit(policy_step)


class LearnedPolicy:
    """What `fit` returns. `state` is the policy as pure functions take it."""

    def __init__(self, agent: Any, state: PolicyState, action_size: int):
        self.agent, self.state, self.action_size = agent, state, action_size

    def act(self, obs: Array | np.ndarray) -> np.ndarray:
        """Deterministic actions (..., m) for observations (..., n), in the units of the data."""
        return np.asarray(_step(self.state, jnp.asarray(obs, jnp.float32)))

    def save(self, path: str | Path) -> Path:
        """Writes an npz file, whole or not at all, that `load_policy` reads."""
        path = Path(path).with_suffix(".npz")
        about = {
            "format": FORMAT,
            "algorithm": self.agent.config.name,
            "config": asdict(self.agent.config),
            "obs_size": self.state.mean.shape[0],
            "action_size": self.action_size,
            "num_actions": getattr(self.agent, "num_actions", None),
        }
        leaves: dict[str, Any] = {"about": np.array(json.dumps(about))}
        leaves |= {f"leaf_{i:03}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(self.state))}
        with atomic_path(path) as draft, draft.open("wb") as file:
            np.savez(file, **leaves)
        return path


def load_policy(path: str | Path) -> LearnedPolicy:
    """The policy that `LearnedPolicy.save` wrote."""
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            stored = dict(file)  # each is checked by the sum that a zip file keeps of it
    except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: no npz file, or a damaged one; save the policy again") from error
    if "about" not in stored:
        raise ValueError(f"{path}: this is no policy that `save` of a learned policy wrote")
    about = json.loads(str(stored.pop("about")))
    leaves = [jnp.asarray(stored[name]) for name in sorted(stored)]
    if about["format"] != FORMAT:
        raise ValueError(f"{path}: format {about['format']}; this version reads {FORMAT}")
    agent = _make_agent(about)
    sizes = (about["obs_size"], about["action_size"])
    scales: Any = SimpleNamespace(mean=jnp.zeros(sizes[0]), std=jnp.ones(sizes[0]))
    blank = jax.eval_shape(lambda key: agent.policy(agent.init(key, *sizes), scales), _KEY_SHAPE)
    state = jax.tree.unflatten(jax.tree.structure(blank), leaves)
    return LearnedPolicy(agent, state, about["action_size"])


_KEY_SHAPE = jax.eval_shape(lambda: jax.random.key(0))


def _make_agent(about: dict[str, Any]) -> Any:
    algorithm = algos.get(about["algorithm"])
    usual, options = algorithm.config(), dict(about["config"])
    hyper = type(usual.hyper)(**options.pop("hyper"))
    agent = algorithm.make(type(usual)(**options, hyper=hyper))
    return replace(agent, num_actions=about["num_actions"]) if about["num_actions"] else agent
