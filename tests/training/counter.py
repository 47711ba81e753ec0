"""A trainer that compiles nothing."""

import jax.numpy as jnp
import numpy as np


class Counter:
    """A trainer that only counts its iterations; from `fails_at` on they are not finite."""

    compile_seconds = 0.0
    steps_per_iteration = 10
    fails_at = 1000

    def __init__(self):
        self.iteration = 0

    def advance(self, iterations):
        first, self.iteration = self.iteration, self.iteration + iterations
        number = np.arange(first, self.iteration, dtype=np.float32)
        return {
            "return": number,
            "agent_returns": np.stack([number, number + 0.5], axis=1),
            "turn_rewards": np.ones((iterations, 3, 2), np.float32),
            "finite": np.arange(first, self.iteration) < self.fails_at,
        }

    def agents(self):
        return ()

    def template(self):
        return self.state()

    def state(self):
        return {"iteration": jnp.int32(self.iteration)}

    def load(self, state):
        self.iteration = int(state["iteration"])
