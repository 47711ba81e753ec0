"""An algorithm of your own, in one file: REINFORCE with a baseline, used where PPO could be.

python examples/16_add_an_algorithm.py [--quick]; about half a minute
worldloom train treasurehunt --algo examples/16_add_an_algorithm.py
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import worldloom.algos
from worldloom.algos.algorithm import Algorithm
from worldloom.algos.on_policy import Extras, gae, merge_axes
from worldloom.nn.actor_critic import ActorCritic


@dataclass(frozen=True)
class ReinforceConfig:
    unroll_length: int = 32
    gamma: float = 0.9
    learning_rate: float = 3e-3


@dataclass(frozen=True)
class Reinforce:
    config: ReinforceConfig
    apply: Callable  # (params, obs) -> the policy, and values
    create: Callable  # (key, obs) -> params

    def init(self, key, obs):
        adam = optax.adam(self.config.learning_rate)
        return TrainState.create(apply_fn=None, params=self.create(key, obs), tx=adam)

    def act(self, state, obs, key, *, explore=1.0):
        policy, value = self.apply(state.params, obs)
        action = jnp.where(explore > 0, policy.sample(key), policy.mode())
        return action, Extras(policy.log_prob(action), value)

    def value(self, state, obs):
        return self.apply(state.params, obs)[1]

    def update(self, state, rollout, key):
        r, ends = rollout, (rollout.terminated, rollout.truncated)
        gain = gae(r.reward, r.value, r.next_value, *ends, self.config.gamma, 1.0)
        obs, action, gain, base = merge_axes((r.obs, r.action, gain, r.value))

        def loss(params):
            policy, value = self.apply(params, obs)
            pull = (gain - gain.mean()) / (gain.std() + 1e-8)
            score = policy.log_prob(action) * pull + 0.01 * policy.entropy()
            return 0.5 * jnp.square(value - gain - base).mean() - score.mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), {"loss": value}


def make(config, spec, networks):
    net, see = ActorCritic(num_actions=spec.action.n), networks.encode
    return Reinforce(config, lambda p, o: net.apply(p, see(o)), lambda k, o: net.init(k, see(o)))


ABOUT = ("reinforce", "REINFORCE with a baseline", "on_policy", frozenset({"discrete"}))
ALGORITHM = Algorithm(*ABOUT, ReinforceConfig, make)


def main(quick: bool) -> None:
    worldloom.algos.register(ALGORITHM)
    steps = 6_400 if quick else 640_000
    run = worldloom.train("treasurehunt", algo="reinforce", report=not quick, steps=steps)
    print(f"{run.evaluation.mean:.0f} points an episode; see {run.folder}")


if __name__ == "__main__":
    main("--quick" in sys.argv)
