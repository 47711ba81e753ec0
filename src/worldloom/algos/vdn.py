"""Value decomposition networks, VDN (Sunehag et al. 2018), on the rollouts of PQN.

Every agent has values of its own observation and actions, and the team's value is their sum,
Q(o, a) = sum_i Q_i(o_i, a_i): the best joint action is every agent's own best. The sum learns the
team's reward, the sum of all agents' rewards; the difference flows back into every agent's part.
Returns are the Q(lambda) of PQN (arXiv:2407.04811, section 4) instead of one-step targets from a
memory and a target network. Agents are an axis that `update` is mapped over, named `AGENTS`.
"""

from dataclasses import dataclass

import jax
from jaxtyping import Float

from worldloom.algos.algorithm import DISCRETE, Algorithm
from worldloom.algos.on_policy import OnPolicyState, Rollout, Samples
from worldloom.algos.pqn import PQN, PQNConfig
from worldloom.core.types import Array, Key

AGENTS = "agents"


@dataclass(frozen=True)
class VDNConfig(PQNConfig):
    """Options of the algorithm: those of PQN."""


@dataclass(frozen=True)
class VDN(PQN):
    """One agent of the team as pure functions; `update` only inside of a map over `AGENTS`.

    axis_name=AGENTS gives all agents one network: they take the same steps, on the mean of their
    gradients.
    """

    def samples(self, rollout: Rollout) -> Samples:
        """As PQN's, of the team: rewards and values are sums over agents."""
        values = (rollout.reward, rollout.value, rollout.next_value)
        reward, value, next_value = jax.lax.psum(values, AGENTS)
        team = rollout.replace(reward=reward, value=value, next_value=next_value)
        return super().samples(team)

    def fitted_value(self, own: Float[Array, " B"]) -> Float[Array, " B"]:
        """The team's value, whose gradient is that of an agent's part."""
        others = jax.lax.stop_gradient(jax.lax.psum(own, AGENTS) - own)
        return own + others

    def update(
        self, state: OnPolicyState, rollout: Rollout, key: Key
    ) -> tuple[OnPolicyState, dict[str, Array]]:
        """PQN's passes over a rollout, in one order for all agents: that of the first one's key."""
        words = jax.lax.all_gather(jax.random.key_data(key), AGENTS)[0]
        return super().update(state, rollout, jax.random.wrap_key_data(words))


ABOUT = ("vdn", "agents learn parts of the team's value, which is their sum", "on_policy", DISCRETE)
ALGORITHM = Algorithm(*ABOUT, VDNConfig, VDN.make, team_axis=AGENTS)
