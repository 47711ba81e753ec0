"""A world of your own, in one file: three functions, and it trains with any algorithm that fits.

python examples/15_add_a_world.py            about half a minute
python examples/15_add_a_world.py --quick    a few steps, to see that it works

The same file works from the shell: worldloom train examples/15_add_a_world.py:Ferry --algo dqn
"""

import argparse
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

import worldloom
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import TimeStep


class FerryState(struct.PyTreeNode):
    place: jax.Array  # 0 .. width - 1
    loaded: jax.Array
    time: jax.Array


@dataclass(frozen=True)
class Ferry:
    """Fetch a load on the right bank and bring it to the left one, again and again."""

    width: int = 6
    horizon: int = 40

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("ferry", Box(0, 1, (2,)), Discrete(3), horizon=self.horizon)

    def default_params(self):
        return {"pay": jnp.float32(1.0), "fuel": jnp.float32(-0.02)}  # can be vmapped

    def reset(self, key, params):
        place = jax.random.randint(key, (), 0, self.width)
        state = FerryState(place, jnp.asarray(False), jnp.int32(0))
        return state, self._timestep(state, jnp.float32(0.0))

    def step(self, key, state, action, params):
        place = jnp.clip(state.place + action - 1, 0, self.width - 1)  # left, stay, right
        delivered = state.loaded & (place == 0)
        loaded = (state.loaded & ~delivered) | (place == self.width - 1)
        reward = params["pay"] * delivered + params["fuel"] * (action != 1)
        state = FerryState(place, loaded, state.time + 1)
        return state, self._timestep(state, reward)

    def _timestep(self, state, reward):
        obs = jnp.stack([state.place / (self.width - 1), state.loaded.astype(jnp.float32)])
        no = jnp.asarray(False)
        return TimeStep(obs, reward, no, state.time >= self.horizon, obs, ())


def main(quick: bool) -> None:
    worldloom.register("ferry", Ferry, description="a load on one bank, a customer on the other")
    for algo, steps in (("ppo", 200_000), ("dqn", 100_000)):
        sizes = {"steps": 4_000, "eval_episodes": 4} if quick else {"steps": steps}
        run = worldloom.train("ferry", algo=algo, world={"width": 5}, report=not quick, **sizes)
        print(f"{algo}: {run.evaluation.mean:.2f} a trip of 40 steps; see {run.folder}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
