"""Brax's own PPO teaches the biped to stand, on MuJoCo's C engine inside of the compiled program.

python examples/11_brax_ppo.py [--quick]           needs: pip install 'worldloom[robot]'

`worldloom.adapters.brax_ppo.train` calls `brax.training.agents.ppo.train` as it is. The same with
checkpoints, films and a report: worldloom.train("biped", task="stand", level=2).
"""

import argparse

import jax

from worldloom.adapters import brax_ppo as ppo
from worldloom.adapters.brax import BraxWildRobotWrapper

USUAL = {"num_timesteps": 600_000, "num_envs": 512, "num_evals": 7, "num_eval_envs": 64}
SMALL = {"num_timesteps": 320, "num_envs": 8, "num_evals": 2, "num_eval_envs": 4, "batch_size": 8}


def progress(steps: int, metrics: dict) -> None:
    """One line for each evaluation."""
    print(
        f"{steps:>9,} steps: return {metrics['eval/episode_reward']:6.2f}, "
        f"{metrics['eval/avg_episode_length']:4.0f} steps upright, "
        f"pelvis at {metrics['eval/episode_height_per_step']:.2f} m, "
        f"{metrics['eval/episode_fell']:4.0%} fell",
        flush=True,
    )


def main(quick: bool) -> None:
    # It is pushed with up to 14 N, for a tenth of a second, every few seconds.
    robot = BraxWildRobotWrapper({"task": "stand", "horizon": 20 if quick else 500})
    make_policy, params, _ = ppo.train(
        environment=robot,
        learning_rate=1e-3,
        discounting=0.97,
        num_minibatches=4,
        num_updates_per_batch=4,
        normalize_observations=True,
        deterministic_eval=True,
        progress_fn=progress,
        **(SMALL if quick else USUAL),
    )
    policy = jax.jit(make_policy(params, deterministic=True))
    first = robot.reset(jax.random.key(0))
    action, _ = policy(first.obs, jax.random.key(1))
    print("its first action, in [-1, 1]:")
    joints = robot.world.base.robot.joints
    print(", ".join(f"{n} {x:.2f}" for n, x in zip(joints, action, strict=True)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two updates only")
    main(parser.parse_args().quick)
