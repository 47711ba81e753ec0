"""Offline model-based policy optimisation: back-propagation through an ensemble of learned models.

What is linear in a step is solved, and so is when episodes end (`model_rows`); for its first
`model_updates` updates an ensemble learns from logged rows what that leaves, and what is paid (Chua
et al. 2018). From then on the models f_1 ... f_E are fixed, and the policy, which sets out from the
logged mean action, climbs the gradient of its own return in short rollouts that begin at logged
rows (SVG of an infinite horizon, Heess et al. 2015), less a penalty where two models disagree
(MOPO, Yu et al. 2020):

    J(pi) = E sum_t gamma^t alive_t (r_t - penalty |f_i(s_t, a_t) - f_j(s_t, a_t)|)        (1)
    s_t+1 = f_i(s_t, a_t) + w_t,   i and j drawn for each step
    w_t = s'_t - f_i(s''_t, a'_t),   alive_t+1 = alive_t (1 - p(end))

with w_t what f_i cannot explain of the row that was logged t steps after the first, from s''_t to
s'_t: the log's own disturbances, so that who does what was logged sees what was logged. A rollout
ends where the log ran out of time; after an end that was the log's own fault w_t is 0.

It shares the name with the online algorithm of Janner et al. (2019), which learns a critic by soft
actor-critic from rows that its models make up: here there is no critic, the models themselves are
differentiated. Of all iterates the one is kept that earns most in `num_held_out` further models,
in which the policy never learns: a rule that asks the data alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.actor_critic import (
    Metrics,
    TrainState,
    apply_gradients,
    gradient_step,
    init_train_state,
    own_buffers,
)
from worldloom.algos.algorithm import CONTINUOUS, Algorithm
from worldloom.algos.config import at_least, choice, fraction, positive
from worldloom.algos.dynamics import network
from worldloom.algos.model_rows import (
    Course,
    ModelRows,
    ModelTable,
    Scales,
    end_features,
    make_model_table,
)
from worldloom.algos.offline import OfflineAgent, OfflineConfig, OfflineLearner
from worldloom.core import draws
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Key
from worldloom.nn.offline import Weights, make_mlp
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset

LARGEST_GRADIENT = 1.0  # norm: a rollout that blows up must not undo what was learned
LARGEST_MEAN = 0.9995  # of an action: further out, an actor would have no gradient left
STARTS = 64  # rows from which iterates are compared
NOTHING_YET = -1e30  # a return below all others; finite, as all of a learner must be
METRICS = ("model_loss", "model_return", "spread", "held_out_return")
Reward = Callable[[Array, Array, Array], Array]
Actor = dict[str, Weights]
Policy = Callable[[Array], Array]  # of normalised obs (B, n), actions (B, m)


class MBPOHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program."""

    actor_rate: float = positive(3e-3)
    model_rate: float = positive(1e-3)  # falls to 0 in the course of `model_updates`
    gamma: float = fraction(0.99)
    penalty: float = at_least(0, 1.0)  # deviations of the reward, for one of the models' spread


@dataclass(frozen=True, kw_only=True)
class MBPOConfig(OfflineConfig):
    """Options of the algorithm.

    policy: "linear" has a bias and a gain for every signal that moves, "mlp" for all of them, and
    hidden layers beside them, as the models have.
    history: time constants, in steps, of leaky averages of observations and actions, which models
    see beside the present where a plant hides part of its state; the policy sees the present only.
    interval: logged steps that a step of a model spans, under their mean action: more than one
    where a plant answers late, and noise would hide what a single step does.
    """

    hidden: tuple[int, ...] = at_least(1, (64, 64))
    policy: str = choice("mlp", ("mlp", "linear"))
    num_members: int = at_least(2, 5)  # models that the policy learns in
    num_held_out: int = at_least(2, 2)  # models that choose among iterates
    model_updates: int = at_least(1, 8_000)
    rollout_length: int = at_least(1, 30)
    num_rollouts: int = at_least(1, 128)  # of an update: so many of the batch's rows begin one
    history: tuple[float, ...] = ()
    interval: int = at_least(1, 1)
    hyper: MBPOHyper = field(default_factory=MBPOHyper)

    def __post_init__(self):
        super().__post_init__()
        if not all(constant >= 1.0 for constant in self.history):
            raise ValueError(f"mbpo: history={self.history}; time constants are steps, 1 or more")


# One model -------------------------------------------------------------------------------------

Model = dict[str, Weights]


def make_model(key: Key, inputs: int, hidden: tuple[int, ...], obs_size: int) -> Model:
    """Networks of their own for what a linear fit leaves of changes, and for the reward.

    A reward with sharp peaks, learned by the same layers, would spoil the changes.
    """
    residual, reward = draws.split(key)
    return {
        "residual": make_mlp(residual, (inputs, *hidden, obs_size)),
        "reward": make_mlp(reward, (inputs, *hidden, 1)),
    }


# The policy's network --------------------------------------------------------------------------


def make_actor(key: Key, obs_size: int, hidden: tuple[int, ...], action_size: int) -> Actor:
    """Gains and a bias, and beside them hidden layers, if any; 0 in the beginning."""
    sizes: dict[str, tuple[int, ...]] = {"linear": (obs_size, action_size)}
    if hidden:
        sizes["residual"] = (obs_size, *hidden, action_size)
    actor = {name: make_mlp(key, size) for name, size in sizes.items()}
    blank = partial(jax.tree.map, jnp.zeros_like)
    return {name: (*layers[:-1], blank(layers[-1])) for name, layers in actor.items()}


def act(actor: Actor, obs: Array) -> Array:
    """Deterministic actions (B, m) in (-1, 1) for normalised obs (B, n)."""
    return jnp.tanh(sum(network(layers, obs) for layers in actor.values()))


# The algorithm ---------------------------------------------------------------------------------


class MBPOLearner(OfflineLearner):
    """All that is learned."""

    model: TrainState  # of a `Model`, (num_members + num_held_out, ...)
    actor: TrainState
    selected: Actor  # the actor that earned most in the models held out
    selected_return: Array
    starts: Array  # int32 (STARTS,): rows from which iterates are compared
    metrics: Metrics  # the newest of both phases


@dataclass(frozen=True)
class MBPO(OfflineAgent):
    """The algorithm, as pure functions.

    reward: r(obs (n,), action (m,), next_obs (n,)) in the plant's units, where a world declares
    one; else it is learned with the rest.
    """

    config: MBPOConfig = field(default_factory=MBPOConfig)
    reward: Reward | None = None
    learner = MBPOLearner
    shares_batches = False  # every model draws a bootstrap sample of its own from a batch

    @classmethod
    def from_spec(cls, spec: EnvSpec) -> dict[str, Any]:
        return {"reward": spec.reward}

    def table(self, dataset: Dataset) -> ModelTable:
        """The rows of a dataset with their scales and their past."""
        return make_model_table(dataset, self.config.history, self.config.interval)

    def networks(self, key: Key, obs_size: int, action_size: int) -> dict[str, Any]:
        config = self.config
        state_size = obs_size + len(config.history) * (obs_size + action_size)
        model_key, actor_key = draws.split(key)
        keys = draws.split(model_key, config.num_members + config.num_held_out)
        inputs = state_size + action_size

        def member(key: Key) -> TrainState:
            return init_train_state(make_model(key, inputs, config.hidden, obs_size))

        hidden = config.hidden if config.policy == "mlp" else ()
        actor = make_actor(actor_key, obs_size, hidden, action_size)
        return {
            "model": jax.vmap(member)(keys),
            "actor": init_train_state(actor),
            "selected": own_buffers(actor),
            "selected_return": jnp.float32(NOTHING_YET),
            "starts": jnp.zeros(STARTS, jnp.int32),
            "metrics": dict.fromkeys(METRICS, jnp.float32(0.0)),
        }

    def update(
        self, learner: MBPOLearner, rows: ModelRows, key: Key, turn: int | None = None
    ) -> tuple[MBPOLearner, Metrics]:
        """One update on rows (B, ...): of the models, or of the policy once these are learned.

        In a batch of learners, under `vmap`, both are computed and one is kept.
        """
        modelling = learner.step < self.config.model_updates
        learner = jax.lax.cond(modelling, self.model_step, self.actor_step, learner, rows, key)
        return learner.replace(step=learner.step + 1), learner.metrics

    # The models --------------------------------------------------------------------------------

    def model_step(self, learner: MBPOLearner, rows: ModelRows, key: Key) -> MBPOLearner:
        """One step of every model on a bootstrap sample of its own."""
        hyper, scales = learner.hyper, rows.table.scales
        moves = scales.remainder_std > 0.0
        inputs = rows.inputs
        changes = rows.next_obs - rows.obs - scales.fit(inputs)
        changes = changes / jnp.where(moves, scales.remainder_std, 1.0)
        targets = jnp.concatenate([changes * moves, rows.reward[:, None]], -1)
        left = 1.0 - learner.step / self.config.model_updates

        def one(member: tuple[TrainState, Key]) -> tuple[TrainState, Metrics]:
            model, key = member
            own = draws.integers(key, rows.reward.shape, rows.reward.shape[0])
            rate = left * hyper.model_rate
            given = (inputs[own], targets[own], moves, self.reward is not None)
            return gradient_step(model, rate, model_loss, *given)

        count = self.config.num_members + self.config.num_held_out
        # One after the other: as products with a batch axis they would be slower on a CPU.
        model, losses = jax.lax.map(one, (learner.model, draws.split(key, count)))
        # The actor begins at the logged mean action: at 0, a pump would be half open.
        (gains,) = learner.actor.params["linear"]
        bias = jnp.arctanh(jnp.clip(scales.action_mean, -LARGEST_MEAN, LARGEST_MEAN))
        actor = learner.actor.params | {"linear": (gains | {"bias": bias},)}
        starts = rows.index[jnp.arange(STARTS) % rows.index.shape[0]]
        metrics = {"model_loss": losses["model_loss"].mean()}
        return learner.replace(
            model=model,
            actor=learner.actor.replace(params=actor),
            selected=own_buffers(actor),
            starts=jnp.where(learner.step == 0, starts, learner.starts),
            metrics=learner.metrics | metrics,
        )

    def rollout(
        self, policy: Policy, members: Model, rows: ModelRows, key: Key, gamma: Array | float
    ) -> tuple[Array, Array]:
        """Discounted rewards and spreads of members (E, ...), (T, B) each, from rows (B, ...)."""
        config, scales = self.config, rows.table.scales
        size, state = scales.obs_mean.shape[0], rows.state
        count = len(members["residual"][0]["bias"])
        moves = scales.change_std > 0.0
        # The remainder's share of a change: members differ in nothing else.
        share = jnp.where(moves, scales.remainder_std / jnp.where(moves, scales.change_std, 1.0), 0)
        left = 1.0 - 1.0 / jnp.asarray(config.history, jnp.float32)
        rates = 1.0 - left**config.interval
        rates = jnp.repeat(rates, size + scales.action_mean.shape[0])

        def one(
            carry: tuple[Array, Array], step: tuple[Key, Course]
        ) -> tuple[Any, tuple[Array, Array]]:
            (state, weight), (key, logged) = carry, step
            obs, memory = state[:, :size], state[:, size:]
            action = policy(obs)
            scaled = scales.scale_action(action)
            inputs = jnp.concatenate([state, scaled], -1)
            pair = draws.integers(key, (), count * (count - 1))
            i, j = pair % count, (pair % count + 1 + pair // count) % count
            model = jax.tree.map(lambda x: x[i], members)
            remainder = network(model["residual"], inputs)
            other = network(jax.tree.map(lambda x: x[j], members["residual"]), inputs)
            change = scales.fit(inputs) + scales.remainder_std * remainder
            # What the model cannot explain of the log happens here as well.
            expected = scales.fit(logged.inputs)
            expected += scales.remainder_std * network(model["residual"], logged.inputs)
            change += logged.known[:, None] * (logged.change - expected)
            next_obs = jnp.clip(obs + change, scales.low, scales.high)
            apart = jnp.square(share * (remainder - other))
            spread = jnp.sqrt(0.5 * mean_of(moves, apart) + 1e-12)
            learned = network(model["reward"], inputs)[:, 0]
            reward = self._reward(scales, obs, action, next_obs, learned)
            odds = end_features(obs, next_obs) @ scales.end["kernel"] + scales.end["bias"]
            ends = jax.nn.sigmoid(odds)
            seen = jnp.tile(jnp.concatenate([obs, scaled], -1), (1, len(config.history)))
            later = jnp.concatenate([next_obs, memory + rates * (seen - memory)], -1)
            paid = (weight * reward, weight * spread)
            return (later, gamma * weight * (1.0 - ends) * logged.goes_on), paid

        course = rows.table.course(rows.index, config.rollout_length)
        steps = (draws.split(key, config.rollout_length), course)
        return jax.lax.scan(one, (state, jnp.ones(state.shape[0])), steps)[1]

    def _reward(
        self, scales: Scales, obs: Array, action: Array, next_obs: Array, learned: Array
    ) -> Array:
        """Rewards (B,) as the table has them: declared, or else `learned` (B,)."""
        if self.reward is None:
            return learned
        before, after = (scales.obs_mean + scales.obs_std * x for x in (obs, next_obs))
        reward = jax.vmap(self.reward)(before, action, after)
        return (reward - scales.reward_mean) * scales.reward_scale

    # The policy --------------------------------------------------------------------------------

    def actor_step(self, learner: MBPOLearner, rows: ModelRows, key: Key) -> MBPOLearner:
        """One step of the actor up the gradient of (1); the iterate before it is judged."""
        hyper, count = learner.hyper, self.config.num_members
        begun = rows.table.take(rows.index[: self.config.num_rollouts])
        members = jax.tree.map(lambda x: x[:count], learner.model.params)
        held_out = jax.tree.map(lambda x: x[count:], learner.model.params)

        def loss(actor: Actor) -> tuple[Array, Metrics]:
            reward, spread = self.rollout(partial(act, actor), members, begun, key, hyper.gamma)
            metrics = {"model_return": reward.sum(0).mean(), "spread": spread.mean()}
            return -(reward - hyper.penalty * spread).sum(0).mean(), metrics

        iterate = learner.actor.params
        grads, metrics = jax.grad(loss, has_aux=True)(iterate)
        if self.config.policy == "linear":  # what a signal that never moves would add is a bias
            (gains,) = grads["linear"]
            moves = rows.table.scales.change_std > 0.0
            grads = {"linear": (gains | {"kernel": gains["kernel"] * moves[:, None]},)}
        norm = optax.tree.norm(grads)
        factor = jnp.minimum(1.0, LARGEST_GRADIENT / norm)
        grads = jax.tree.map(lambda g: jnp.where(jnp.isfinite(norm), factor * g, 0.0), grads)
        # The same starts and members each time, so that iterates differ in nothing but themselves.
        same = jax.random.key(0)
        compared = rows.table.take(learner.starts)
        judged = self.rollout(partial(act, iterate), held_out, compared, same, hyper.gamma)
        held_out_return = judged[0].sum(0).mean()
        better = held_out_return > learner.selected_return
        return learner.replace(
            actor=apply_gradients(learner.actor, grads, hyper.actor_rate),
            selected=jax.tree.map(partial(jnp.where, better), iterate, learner.selected),
            selected_return=jnp.where(better, held_out_return, learner.selected_return),
            metrics=learner.metrics | metrics | {"held_out_return": held_out_return},
        )

    def policy(self, learner: MBPOLearner, dataset: Dataset) -> PolicyState:
        """Deterministic policy: the iterate that earned most in the models held out."""
        return PolicyState(learner.selected, dataset.mean, dataset.std, act)

    def last_policy(self, learner: MBPOLearner, dataset: Dataset) -> PolicyState:
        """Deterministic policy: the last iterate."""
        return PolicyState(learner.actor.params, dataset.mean, dataset.std, act)


# Losses ----------------------------------------------------------------------------------------


def mean_of(chosen: Array, x: Array) -> Array:
    """The mean (B,) over the chosen (n,) columns of x (B, n); 0 if there are none."""
    return (x * chosen).sum(-1) / jnp.maximum(chosen.sum(), 1)


def model_loss(
    model: Model, inputs: Array, targets: Array, moves: Array, declared: bool
) -> tuple[Array, Metrics]:
    """Squared errors of the reward, unless it is declared, and of what is left of changes."""
    size = moves.shape[0]
    remainder = network(model["residual"], inputs)
    changes = mean_of(moves, jnp.square(remainder - targets[:, :size])).mean()
    loss = changes
    if not declared:
        loss += jnp.square(network(model["reward"], inputs)[:, 0] - targets[:, size]).mean()
    return loss, {"model_loss": loss}


ABOUT = ("mbpo", "back-propagation through an ensemble of learned models", "offline", CONTINUOUS)
ALGORITHM = Algorithm(*ABOUT, MBPOConfig, MBPO.make)
