"""PPO in a gridworld: one agent hunts gems, rollout and learning in one program.

python examples/14_grid_ppo.py            about half a minute
python examples/14_grid_ppo.py --quick    a few updates of a small world, to see that it works

Any world of one agent can take the place of this one. For a network of its own for each of several
agents, and a memory, there is `worldloom train treasurehunt`.
"""

import argparse

import worldloom
from worldloom.adapters.single_agent import as_single
from worldloom.algos.ppo import PPO, PPOConfig
from worldloom.nn.actor_critic import ActorCritic
from worldloom.train.on_policy import OnPolicy, OnPolicyTrainer


def main(quick: bool) -> None:
    sizes = {"height": 6, "width": 6} if quick else {}
    hunt = worldloom.make("treasurehunt", num_agents=1, **sizes)
    env = as_single(hunt, hunt.default_params(), "this example")
    ppo = PPO(
        PPOConfig(
            num_worlds=8 if quick else 256, unroll_length=8 if quick else 16, num_epochs=2,
            learning_rate=1e-3, gamma=0.9, entropy_cost=0.01,
        ),
        ActorCritic(num_actions=env.spec.action.n, hidden=(64, 64)),
    )  # fmt: skip
    trainer = OnPolicyTrainer(OnPolicy(env, ppo), env.default_params(), seed=0, chunk=20)
    for _ in range(1 if quick else 10):
        told = trainer.advance(3 if quick else 20)
        reward = told.episode_return[told.episodes > 0]
        score = f"{reward.mean():.1f} an episode" if len(reward) else "no episode has ended yet"
        print(f"update {trainer.epoch}: {score}")
    print(f"compiled in {trainer.compile_seconds:.1f} s; a policy is in trainer.agents()")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few updates of a small world")
    main(parser.parse_args().quick)
