"""Multi-agent PPO (Yu et al. 2022): each policy sees its own observation, each critic all."""

from worldloom.algos import ppo
from worldloom.algos.algorithm import ANY, Algorithm
from worldloom.algos.ppo import PPO, PPOConfig
from worldloom.core.protocols import EnvSpec
from worldloom.nn.networks import Networks, concatenate


def make(config: PPOConfig, spec: EnvSpec, networks: Networks) -> PPO:
    """PPO for observations that are a `worldloom.core.transforms.JointObservation`."""
    joint = Networks(
        encode=lambda obs: networks.encode(obs.own),
        critic_encode=lambda obs: concatenate(obs.everyone),
    )
    return ppo.make(config, spec, joint)


ABOUT = ("mappo", "PPO whose critics see the observations of all agents", "on_policy", ANY)
ALGORITHM = Algorithm(*ABOUT, PPOConfig, make, centralised=True)
