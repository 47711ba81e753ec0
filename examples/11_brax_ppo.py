"""Brax's own PPO teaches the biped to stand, on MuJoCo's C engine inside of the compiled program.

python examples/11_brax_ppo.py [--quick]           needs: pip install 'worldloom[robot]'

`train_brax` calls `brax.training.agents.ppo.train` as it is. To call it yourself, give it
`BraxWildRobotWrapper(world)` and `wrap_env_fn=wrap_for_training` from `worldloom.adapters.brax`.
"""

import argparse
from pathlib import Path

import jax

import worldloom
from worldloom.train.robot_brax import BraxConfig, load, save, train_brax

SMALL = {"num_envs": 8, "batch_size": 8, "num_timesteps": 320, "num_eval_envs": 4, "num_evals": 2}


def tell(steps: int, row: dict[str, float]) -> None:
    """One line for each evaluation."""
    print(
        f"{steps:>9,} steps: return {row['eval/episode_reward']:6.2f}, "
        f"{row['eval/avg_episode_length']:4.0f} steps upright, "
        f"pelvis at {row['eval/episode_height_per_step']:.2f} m, "
        f"{row['eval/episode_fell']:4.0%} fell",
        flush=True,
    )


def main(quick: bool) -> None:
    # It is pushed with up to 14 N, for a tenth of a second, every few seconds.
    world = worldloom.make("biped", task="stand", horizon=20 if quick else 500)
    config = BraxConfig(num_timesteps=600_000, num_evals=7, learning_rate=1e-3, unroll_length=10)
    folder = Path("runs/brax-ppo")
    trained = train_brax(
        world, config, progress=tell, keep=lambda result: save(folder, result),
        **(SMALL if quick else {}),
    )  # fmt: skip

    # Normaliser, policy and value are what Brax can restore: training goes on from there with
    # train_brax(world, trained.config, restore=load(folder)).
    policy = load(folder)
    _, first = world.reset(jax.random.key(0), world.default_params())
    action = policy.act(first.obs)
    print(f"after {trained.steps:,} steps the policy is in {folder}; its first action, in [-1, 1]:")
    print(", ".join(f"{n} {x:.2f}" for n, x in zip(world.base.robot.joints, action, strict=True)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two updates only")
    main(parser.parse_args().quick)
