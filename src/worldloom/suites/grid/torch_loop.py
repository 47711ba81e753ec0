"""The original's experiment loop: object world, PyTorch agents, one after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from worldloom.suites.grid.object_world import Items, ObjectTreasureHunt
from worldloom.suites.grid.torch_iqn import TorchIQN


@dataclass(frozen=True)
class TorchConfig:
    """World, learner and schedule; the defaults are those of the original example."""

    height: int = 10
    width: int = 10
    num_agents: int = 5
    radius: int = 2
    spawn_prob: float = 0.02
    items: Items = "gems"
    gem_value: float = 10.0
    food_value: float = 5.0
    bone_value: float = -10.0
    epochs: int = 1000
    turns: int = 50
    layer_size: int = 250
    n_quantiles: int = 12
    act_quantiles: int = 256
    batch_size: int = 256
    memory_size: int = 1024
    n_frames: int = 5
    n_step: int = 3
    gamma: float = 0.99
    lr: float = 2.5e-4
    tau: float = 1e-3
    sync_freq: int = 200
    epsilon: float = 1.0
    epsilon_decay: float = 0.001
    epsilon_min: float = 0.0


class EpochRecord(TypedDict):
    """What one epoch left behind; `epsilon` is the one that was acted with."""

    epoch: int
    score: float
    loss: float
    losses: list[float]
    rewards: list[float]
    turn_rewards: list[list[float]]
    epsilon: float


def make_env(config: TorchConfig, rng: np.random.Generator, tuned: bool) -> ObjectTreasureHunt:
    """The world of `config`, with the original's double walls."""
    return ObjectTreasureHunt(
        height=config.height,
        width=config.width,
        num_agents=config.num_agents,
        radius=config.radius,
        spawn_prob=config.spawn_prob,
        items=config.items,
        gem_value=config.gem_value,
        food_value=config.food_value,
        bone_value=config.bone_value,
        legacy=True,
        tuned=tuned,
        rng=rng,
    )


def make_agent(config: TorchConfig, input_size: int, seed: int, tuned: bool) -> TorchIQN:
    """One independent agent of `config` for frames of `input_size` features."""
    return TorchIQN(
        input_size=input_size,
        layer_size=config.layer_size,
        n_quantiles=config.n_quantiles,
        act_quantiles=config.act_quantiles,
        batch_size=config.batch_size,
        memory_size=config.memory_size,
        n_frames=config.n_frames,
        n_step=config.n_step,
        gamma=config.gamma,
        lr=config.lr,
        tau=config.tau,
        sync_freq=config.sync_freq,
        epsilon=config.epsilon,
        epsilon_decay=config.epsilon_decay,
        epsilon_min=config.epsilon_min,
        seed=seed,
        tuned=tuned,
    )


def run_epoch(
    env: ObjectTreasureHunt, agents: Sequence[TorchIQN], epoch: int, turns: int = 50
) -> EpochRecord:
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
    losses = [agent.train_step() for agent in agents]
    record = EpochRecord(
        epoch=epoch,
        score=env.total_reward,
        loss=sum(losses),
        losses=losses,
        rewards=[sum(column) for column in zip(*turn_rewards, strict=True)],
        turn_rewards=turn_rewards,
        epsilon=agents[0].epsilon,
    )
    for agent in agents:
        agent.decay_epsilon()
    return record


def setup(
    config: TorchConfig, seed: int, tuned: bool = False
) -> tuple[ObjectTreasureHunt, list[TorchIQN]]:
    """A world and its agents; `seed` decides everything that happens to them."""
    world_seed, *agent_seeds = np.random.SeedSequence(seed).generate_state(config.num_agents + 1)
    env = make_env(config, np.random.default_rng(world_seed), tuned)
    return env, [make_agent(config, env.obs_size, int(each), tuned) for each in agent_seeds]


def train(config: TorchConfig, seed: int, tuned: bool = False) -> Iterator[EpochRecord]:
    """Train from scratch and yield the record of each epoch; the same seed, the same records.

    Like the original, this runs epochs 0 to `config.epochs` inclusive. `tuned` drops costs that
    do not change the records (see the two classes).
    """
    env, agents = setup(config, seed, tuned)
    for epoch in range(config.epochs + 1):
        yield run_epoch(env, agents, epoch, config.turns)
