"""Any gridworld through PettingZoo's parallel interface, for libraries that speak it.

python examples/06_pettingzoo.py [--quick]      needs: pip install 'worldloom[adapters]'
"""

import argparse
from collections import Counter

from worldloom.adapters.pettingzoo import parallel_env


def play(name: str, seed: int, **options) -> Counter:
    """One episode of random play; the return of every agent."""
    env = parallel_env(name, seed=seed, **options)
    observations, _ = env.reset(seed=seed)
    returns = Counter({agent: 0.0 for agent in env.agents})
    for n, agent in enumerate(env.agents):
        env.action_space(agent).seed(seed + n)
    while env.agents:
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        observations, rewards, *_ = env.step(actions)  # terminated, truncated, infos
        returns.update(rewards)
    shape = observations["agent_0"].shape
    print(f"{name}: each agent sees {shape}; the world at the end:")
    print(env.render())
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one world instead of four")
    names = ["tag"] if parser.parse_args().quick else ["treasurehunt", "tag", "cleanup", "staghunt"]
    for name in names:
        returns = play(name, seed=3, horizon=20)
        print(", ".join(f"{agent} {total:.2f}" for agent, total in returns.items()), end="\n\n")
