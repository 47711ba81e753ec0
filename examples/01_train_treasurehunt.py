"""Train five agents to hunt treasure, load them again, and let them act.

python examples/01_train_treasurehunt.py            about a minute; writes runs/<run>/report.html
python examples/01_train_treasurehunt.py --quick    a few iterations, to see that it works
"""

import argparse

import jax

import worldloom

QUICK = {
    "steps": 200,
    "num_worlds": 2,
    "eval_episodes": 4,
    "iqn": {"gradient_steps": 2, "buffer_size": 102},
}


def main(quick: bool) -> None:
    # One call: worlds, agents, memory and learning are one compiled program.
    run = worldloom.train("treasurehunt", seed=0, report=not quick, **(QUICK if quick else {}))
    timing = run.timing()
    print(f"trained for {run.steps:,} steps in {timing['train_seconds']:.1f} s, after compiling")
    print(f"for {timing['compile_seconds']:.1f} s; everything is in {run.folder}")

    # A run folder is all that is needed to use the agents again.
    agents = worldloom.load(run.folder)
    greedy = agents.evaluate(episodes=4 if quick else 200, seed=1)
    print(f"greedy score {greedy.mean:.0f} +- {greedy.stderr:.0f} (random play: about 255)")

    # The world itself is a handful of pure functions.
    env = worldloom.make("treasurehunt")
    params = env.default_params()
    state, timestep = env.reset(jax.random.key(7), params)
    actions = agents.act(timestep.obs)
    state, timestep = env.step(jax.random.key(8), state, actions, params)
    names = [env.base.actions[a] for a in actions]
    print(f"in a fresh world they go {', '.join(names)} and are paid {timestep.reward.tolist()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few iterations only")
    main(parser.parse_args().quick)
