"""The original's loop in PyTorch behind the face of a trainer: a world of objects."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from worldloom.core import stack
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key, PyTree
from worldloom.suites.grid.object_world import ObjectTreasureHunt
from worldloom.training.config import TrainConfig
from worldloom.training.loops import turn_loop
from worldloom.training.loops.turns import check_memory
from worldloom.training.suite import Problem
from worldloom.training.trainer import Metrics

if TYPE_CHECKING:
    from torch import nn

    from worldloom.algos.iqn import IQNConfig
    from worldloom.suites.grid.torch_iqn import TorchIQN


class TorchTrainer:
    """The original's loop in PyTorch. Its checkpoints hold weights to evaluate, not a resume."""

    compile_seconds = 0.0
    _loaded: PyTree = None

    def __init__(self, config: TrainConfig, problem: Problem):
        if find_spec("torch") is None:
            raise ValueError(
                "torch_sequential needs PyTorch, which is not installed; "
                "pip install 'worldloom[torch]', or use a jax mode"
            )
        self.env, self._agents = baseline(config, problem.env)
        self._config, self._problem = config, problem
        self.steps_per_iteration = problem.env.spec.horizon or 0
        self.iteration = 0

    @cached_property
    def loop(self) -> Any:
        """The same task and network in JAX, which acts with the weights."""
        return turn_loop(self._config, self._problem)

    def act(self, params: PyTree, obs: PyTree, key: Key, *, explore: Array | float) -> Array:
        return self.loop.act(params, obs, key, explore=explore)

    def advance(self, epochs: int) -> Metrics:
        if self._loaded is not None:
            raise ValueError(
                "a torch_sequential run cannot be resumed: the original keeps neither its memory "
                "nor its generators; start it again, or resume a jax run"
            )
        rows = []
        for _ in range(epochs):
            rows.append(run_epoch(self.env, self._agents, self.iteration, self.steps_per_iteration))
            self.iteration += 1
        metrics = {name: np.array([row[name] for row in rows], np.float32) for name in rows[0]}
        rewards, losses = metrics["agent_returns"], metrics["agent_loss"]
        return metrics | {
            "return": rewards.sum(axis=1),
            "loss": losses.mean(axis=1),
            "finite": np.asarray(np.isfinite(np.hstack([rewards, losses])).all(axis=1)),
        }

    def agents(self) -> PyTree:
        if self._loaded is not None:
            return self._loaded
        return stack.stack([to_flax(agent.local) for agent in self._agents])

    def template(self) -> PyTree:
        run = jax.eval_shape(self.loop.init, jax.random.key(0))
        return run.learner.params

    def state(self) -> PyTree:
        return self.agents()

    def load(self, state: PyTree) -> None:
        """Weights to act with; training cannot go on from them."""
        self._loaded = state


def object_options(config: TrainConfig, env: PureEnv) -> dict[str, Any]:
    """Options of `ObjectTreasureHunt` for the same world; a ValueError for another task."""
    if env.base.name != "treasurehunt" or config.algo != "iqn":
        raise ValueError(
            "torch_sequential is the original's treasure hunt with IQN agents; "
            f"it cannot train {config.algo} on {config.env}: use a jax mode"
        )
    if config.num_worlds != 1 or config.hyper.gradient_steps != 1:
        raise ValueError(
            "torch_sequential plays one world and updates once an iteration, not "
            f"num_worlds={config.num_worlds} and iqn.gradient_steps={config.hyper.gradient_steps}; "
            "start from --preset original"
        )
    check_memory(env, config.hyper, config.num_worlds)
    if env.spec.turn_order != "interleaved":
        raise ValueError(
            "torch_sequential lets agents act one after the other; "
            f"turn_order={env.spec.turn_order!r} needs a jax mode"
        )
    world, iqn = env.base, config.hyper
    height, width = world.shape
    value = {kind.name: kind.value for kind in world.kinds}
    # Where the baseline has no choice, another wish must not be passed over in silence.
    fixed = {
        "view=onehot": world.view == "onehot",
        "a radius": world.radius is not None,
        "legacy=true for the world": bool(config.world.get("legacy")) or "Bone" in value,
        "iqn.legacy": iqn.legacy,
        "iqn.noisy": iqn.noisy,
        "iqn.levels=own": iqn.levels == "own",
        "iqn.act_levels=random": iqn.act_levels == "random",
        "iqn.max_grad_norm=1": iqn.max_grad_norm == 1.0,
        "iqn.sync_epochs of 1 or more": iqn.sync_epochs > 0,
        "iqn.epsilon_steps=0": iqn.epsilon_steps == 0,
    }
    missing = [name for name, holds in fixed.items() if not holds]
    if missing:
        raise ValueError(
            f"torch_sequential plays the original's task with its arithmetic and needs "
            f"{', '.join(missing)}; start from --preset original, or use a jax mode"
        )
    return {
        "height": height,
        "width": width,
        "num_agents": env.spec.num_agents,
        "radius": world.radius,
        "spawn_prob": sum(rate for _, rate in world.kinds[0].becomes),
        "items": "mixed" if "Bone" in value else "gems",
    } | {f"{name.lower()}_value": value[name] for name in ("Gem", "Food", "Bone") if name in value}


def baseline(config: TrainConfig, env: PureEnv) -> tuple[ObjectTreasureHunt, list["TorchIQN"]]:
    """The baseline's world and agents for the settings of a run."""
    options, tuned = object_options(config, env), config.settings.tuned
    return setup(options, config.hyper, env.spec.num_frames, config.seed, tuned)


def setup(
    world: Mapping[str, Any], iqn: "IQNConfig", num_frames: int, seed: int, tuned: bool = False
) -> tuple[ObjectTreasureHunt, list["TorchIQN"]]:
    """A world, with the original's double walls, and its agents; `seed` decides what happens."""
    from worldloom.suites.grid.torch_iqn import TorchIQN

    world_seed, *seeds = np.random.SeedSequence(seed).generate_state(world["num_agents"] + 1)
    env = ObjectTreasureHunt(**world, tuned=tuned, rng=np.random.default_rng(world_seed))
    make = partial(TorchIQN, iqn, env.obs_size, num_frames, tuned=tuned)
    return env, [make(seed=int(seed)) for seed in seeds]


def run_epoch(
    env: ObjectTreasureHunt, agents: Sequence["TorchIQN"], epoch: int, turns: int = 50
) -> dict[str, Any]:
    """A new world, `turns` turns, one gradient step for each agent, and a smaller epsilon."""
    env.reset()
    for agent in agents:
        agent.start_epoch_action(epoch)
    turn_rewards: list[list[float]] = []
    for _ in range(turns):
        env.spawn()
        turn_rewards.append([])
        for i, agent in enumerate(agents):
            obs = env.pov(i)
            action = agent.take_action(agent.stacked_state(obs))
            reward = env.act(i, action)
            agent.memory.add(obs, action, reward, float(env.is_done))
            turn_rewards[-1].append(reward)
    # Set only now, as in the original: no row of the ring ever carries done = 1.
    env.is_done = True
    metrics = {
        "agent_returns": [sum(column) for column in zip(*turn_rewards, strict=True)],
        "turn_rewards": turn_rewards,
        "epsilon": agents[0].epsilon,  # the one that was acted with
        "agent_loss": [agent.train_step() for agent in agents],
    }
    for agent in agents:
        agent.decay_epsilon()
    return metrics


def to_flax(module: "nn.Module") -> dict[str, Any]:
    """The parameters of `module` as flax variables, ``{"params": {layer: {name: array}}}``.

    PyTorch keeps weights as (out, in), flax as (in, out) under the name `kernel`. The rest of a
    parameter's path is the same in both: `ff_1.sigma_weight` is `["ff_1"]["sigma_kernel"]`.
    """
    flat = {}
    for name, parameter in module.named_parameters():
        path = tuple(name.replace("weight", "kernel").split("."))
        # A copy, because jax may otherwise share memory that an optimiser changes in place.
        array = np.array(parameter.detach().cpu().numpy())
        flat[path] = jnp.array(array.T if path[-1].endswith("kernel") else array)
    return {"params": unflatten_dict(flat)}
