"""Offline model-based policy optimisation: back-propagation through an ensemble of learned models.

For its first `model_updates` updates an ensemble f_1 ... f_E learns from logged rows what follows,
what is paid and whether the episode ends (Chua et al. 2018). From then on the models are fixed, and
the policy, which sets out from the logged mean action, climbs the gradient of its own return in
short rollouts that begin at logged rows (SVG of an infinite horizon, Heess et al. 2015), less a
penalty where two models disagree (MOPO, Yu et al. 2020):

    J(pi) = E sum_t gamma^t alive_t (r_t - penalty |f_i(s_t, a_t) - f_j(s_t, a_t)|)        (1)
    s_t+1 = f_i(s_t, a_t),   i and j drawn for each step,   alive_t+1 = alive_t (1 - p_i(end))

It shares the name with the online algorithm of Janner et al. (2019), which learns a critic by soft
actor-critic from rows that its models make up: here there is no critic, the models themselves are
differentiated. Of all iterates the one is kept that earns most in `num_held_out` further models,
in which the policy never learns: a rule that asks the data alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

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
from worldloom.algos.offline import (
    LinkedRows,
    OfflineAgent,
    OfflineConfig,
    OfflineLearner,
    Table,
    make_table,
)
from worldloom.core import draws
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Key
from worldloom.nn.networks import Networks
from worldloom.nn.offline import Weights, deterministic, make_mlp
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset

ROOM = 0.1  # of a signal's logged range, by which a model may leave it
SMALLEST_STD = 1e-6  # of a signal, below which it is taken not to change
LARGEST_GRADIENT = 1.0  # norm: a rollout that blows up must not undo what was learned
LARGEST_MEAN = 0.9995  # of an action: further out, an actor would have no gradient left
STARTS = 64  # rows from which iterates are compared
NOTHING_YET = -1e30  # a return below all others; finite, as all of a learner must be
METRICS = ("model_loss", "model_return", "spread", "held_out_return")
Reward = Callable[[Array, Array, Array], Array]


class MBPOHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program."""

    actor_rate: float = positive(3e-3)
    model_rate: float = positive(1e-3)  # falls to 0 in the course of `model_updates`
    gamma: float = fraction(0.99)
    penalty: float = at_least(0, 1.0)  # deviations of the reward, for one of the models' spread


@dataclass(frozen=True, kw_only=True)
class MBPOConfig(OfflineConfig):
    """Options of the algorithm.

    policy: "linear" has a bias and a gain for every signal, "mlp" hidden layers as the models have.
    history: time constants, in steps, of leaky averages of observations and actions, which models
    see beside the present where a plant hides part of its state; the policy sees the present only.
    """

    hidden: tuple[int, ...] = at_least(1, (64, 64))
    policy: str = choice("mlp", ("mlp", "linear"))
    num_members: int = at_least(2, 5)  # models that the policy learns in
    num_held_out: int = at_least(2, 2)  # models that choose among iterates
    model_updates: int = at_least(1, 8_000)
    rollout_length: int = at_least(1, 30)
    num_rollouts: int = at_least(1, 128)  # of an update: so many of the batch's rows begin one
    history: tuple[float, ...] = ()
    hyper: MBPOHyper = field(default_factory=MBPOHyper)

    def __post_init__(self):
        super().__post_init__()
        if not all(constant >= 1.0 for constant in self.history):
            raise ValueError(f"mbpo: history={self.history}; time constants are steps, 1 or more")


# Rows ------------------------------------------------------------------------------------------


class Scales(struct.PyTreeNode):
    """What the numbers of a table stand for: obs and next_obs of its rows are normalised."""

    obs_mean: Array  # (n,), in the plant's units
    obs_std: Array  # (n,)
    action_mean: Array  # (m,)
    action_std: Array  # (m,)
    change_std: Array  # (n,), of a normalised signal in a step; 0 if it never changes
    low: Array  # (n,), normalised: how far a model may go
    high: Array  # (n,)
    reward_mean: Array  # (): what was taken off rewards, and what they were multiplied by then
    reward_scale: Array  # ()
    ends: Array  # (): 1 if some episode ends of itself, else 0

    def scale_action(self, action: Array) -> Array:
        return (action - self.action_mean) / self.action_std


class ModelRows(LinkedRows):
    """Rows with what came before them."""

    memory: Array  # (B, h)
    scales: Scales

    @property
    def state(self) -> Array:
        """What a rollout starts from, (B, n + h)."""
        return jnp.concatenate([self.obs, self.memory], -1)


class ModelTable(Table):
    """A table whose rows know their past and their scales."""

    memory: Array  # (N, h)
    scales: Scales

    def take(self, index: Array) -> ModelRows:
        rows = Table.take(self, index)
        return ModelRows(**vars(rows), memory=self.memory[index], scales=self.scales)


@partial(jax.jit, static_argnums=2)
def leaky_averages(x: Array, first: Array, constants: tuple[float, ...]) -> Array:
    """Averages (N, K d) of what came before each row of x (N, d), K time constants in steps.

    An episode, whose `first` row is marked (N,), begins as if it had been so for ever.
    """
    rates = 1.0 / jnp.asarray(constants, jnp.float32).reshape(-1, 1)

    def one(average: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        x, first = row
        average = jnp.where(first, x, average)
        return average + rates * (x - average), average

    blank = jnp.zeros((len(constants), x.shape[1]), x.dtype)
    return jax.lax.scan(one, blank, (x, first))[1].reshape(len(x), blank.size)


# One model -------------------------------------------------------------------------------------

Model = dict[str, Weights]


def make_model(key: Key, inputs: int, hidden: tuple[int, ...], obs_size: int) -> Model:
    """Networks of their own for what follows and what it is worth.

    A reward with sharp peaks, learned by the same layers, would spoil the changes.
    """
    linear, residual, outcome = draws.split(key, 3)
    return {
        "linear": make_mlp(linear, (inputs, obs_size)),
        "residual": make_mlp(residual, (inputs, *hidden, obs_size)),
        "outcome": make_mlp(outcome, (inputs, *hidden, 2)),  # the reward, an end's log-odds
    }


def change(model: Model, inputs: Array) -> Array:
    """Changes (B, n), in their deviations: what is linear in them is learned to the last digit."""
    return network(model["linear"], inputs) + network(model["residual"], inputs)


# The algorithm ---------------------------------------------------------------------------------


class MBPOLearner(OfflineLearner):
    """All that is learned."""

    model: TrainState  # of a `Model`, (num_members + num_held_out, ...)
    actor: TrainState
    selected: Weights  # the actor that earned most in the models held out
    selected_return: Array
    starts: Array  # (STARTS, n + h): where iterates are compared
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

    @classmethod
    def make(
        cls, config: MBPOConfig, spec: EnvSpec | None = None, networks: Networks | None = None
    ) -> Self:
        """The agent, with the reward that the world of `spec` declares."""
        return cls(config, None if spec is None else spec.reward)

    def table(self, dataset: Dataset) -> ModelTable:
        """The rows of a dataset with their scales and their past."""
        table, rows = make_table(dataset, centre=True), dataset.rows
        obs, next_obs = dataset.normalise(rows.obs), dataset.normalise(rows.next_obs)
        action = rows.action.reshape(dataset.size, -1)
        change_std, spread = (next_obs - obs).std(0), action.std(0)
        both = jnp.stack([jnp.minimum(obs, next_obs).min(0), jnp.maximum(obs, next_obs).max(0)])
        room = ROOM * (both[1] - both[0])
        ends = rows.terminated.any()
        scales = Scales(
            obs_mean=dataset.mean,
            obs_std=dataset.std,
            action_mean=action.mean(0),
            action_std=jnp.where(spread > SMALLEST_STD, spread, 1.0),
            change_std=jnp.where(change_std > SMALLEST_STD, change_std, 0.0),
            low=both[0] - room,
            high=both[1] + room,
            reward_mean=jnp.where(ends, 0.0, rows.reward.mean()),  # as `make_table` centres them
            reward_scale=table.reward_scale,
            ends=ends.astype(jnp.float32),
        )
        first = jnp.zeros(dataset.size, bool).at[dataset.starts].set(True)
        both = jnp.concatenate([obs, scales.scale_action(action)], -1)
        memory = leaky_averages(both, first, self.config.history)
        return ModelTable(**vars(table), memory=memory, scales=scales)

    def networks(self, key: Key, obs_size: int, action_size: int) -> dict[str, Any]:
        config = self.config
        state_size = obs_size + len(config.history) * (obs_size + action_size)
        model_key, actor_key = draws.split(key)
        keys = draws.split(model_key, config.num_members + config.num_held_out)
        inputs = state_size + action_size

        def member(key: Key) -> TrainState:
            return init_train_state(make_model(key, inputs, config.hidden, obs_size))

        hidden = config.hidden if config.policy == "mlp" else ()
        actor = make_mlp(actor_key, (obs_size, *hidden, action_size))
        return {
            "model": jax.vmap(member)(keys),
            "actor": init_train_state(actor),
            "selected": own_buffers(actor),
            "selected_return": jnp.float32(NOTHING_YET),
            "starts": jnp.zeros((STARTS, state_size), jnp.float32),
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
        hyper, scales = learner.hyper, rows.scales
        moves = scales.change_std > 0.0
        changes = (rows.next_obs - rows.obs) / jnp.where(moves, scales.change_std, 1.0)
        inputs = jnp.concatenate([rows.state, scales.scale_action(rows.action)], -1)
        ends = rows.terminated.astype(jnp.float32)
        targets = jnp.concatenate([changes * moves, rows.reward[:, None], ends[:, None]], -1)
        left = 1.0 - learner.step / self.config.model_updates

        def one(member: tuple[TrainState, Key]) -> tuple[TrainState, Metrics]:
            model, key = member
            own = draws.integers(key, ends.shape, ends.shape[0])
            rate = left * hyper.model_rate
            return gradient_step(model, rate, model_loss, inputs[own], targets[own], moves)

        count = self.config.num_members + self.config.num_held_out
        # One after the other: as products with a batch axis they would be slower on a CPU.
        model, losses = jax.lax.map(one, (learner.model, draws.split(key, count)))
        # The actor begins at the logged mean action: at 0, a pump would be half open.
        *layers, last = learner.actor.params
        bias = jnp.arctanh(jnp.clip(scales.action_mean, -LARGEST_MEAN, LARGEST_MEAN))
        bias = jnp.where(learner.step == 0, bias, last["bias"])
        actor = (*layers, last | {"bias": bias})
        starts = rows.state[jnp.arange(STARTS) % rows.state.shape[0]]
        metrics = {"model_loss": losses["model_loss"].mean()}
        return learner.replace(
            model=model,
            actor=learner.actor.replace(params=actor),
            selected=own_buffers(actor),
            starts=jnp.where(learner.step == 0, starts, learner.starts),
            metrics=learner.metrics | metrics,
        )

    def rollout(
        self, actor: Weights, members: Model, state: Array, scales: Scales, key: Key, gamma: Array
    ) -> tuple[Array, Array]:
        """Discounted rewards and spreads of the members, (T, B) each, from states (B, n + h)."""
        config, size = self.config, scales.obs_mean.shape[0]
        count = len(members["linear"][0]["bias"])
        moves = scales.change_std > 0.0
        rates = 1.0 / jnp.asarray(config.history, jnp.float32)
        rates = jnp.repeat(rates, size + scales.action_mean.shape[0])

        def one(carry: tuple[Array, Array], key: Key) -> tuple[Any, tuple[Array, Array]]:
            state, weight = carry
            obs, memory = state[:, :size], state[:, size:]
            action = deterministic(actor, obs)
            scaled = scales.scale_action(action)
            inputs = jnp.concatenate([state, scaled], -1)
            pair = draws.integers(key, (), count * (count - 1))
            i, j = pair % count, (pair % count + 1 + pair // count) % count
            model = jax.tree.map(lambda x: x[i], members)
            said = change(model, inputs)
            other = change(jax.tree.map(lambda x: x[j], members), inputs)
            next_obs = jnp.clip(obs + scales.change_std * said, scales.low, scales.high)
            spread = jnp.sqrt(0.5 * mean_of(moves, jnp.square(said - other)) + 1e-12)
            outcome = network(model["outcome"], inputs)
            reward = self._reward(scales, obs, action, next_obs, outcome[:, 0])
            ends = scales.ends * jax.nn.sigmoid(outcome[:, 1])
            seen = jnp.tile(jnp.concatenate([obs, scaled], -1), (1, len(config.history)))
            later = jnp.concatenate([next_obs, memory + rates * (seen - memory)], -1)
            return (later, gamma * weight * (1.0 - ends)), (weight * reward, weight * spread)

        keys = draws.split(key, config.rollout_length)
        return jax.lax.scan(one, (state, jnp.ones(state.shape[0])), keys)[1]

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
        hyper, count, scales = learner.hyper, self.config.num_members, rows.scales
        starts = rows.state[: self.config.num_rollouts]
        members = jax.tree.map(lambda x: x[:count], learner.model.params)
        held_out = jax.tree.map(lambda x: x[count:], learner.model.params)

        def loss(actor: Weights) -> tuple[Array, Metrics]:
            reward, spread = self.rollout(actor, members, starts, scales, key, hyper.gamma)
            metrics = {"model_return": reward.sum(0).mean(), "spread": spread.mean()}
            return -(reward - hyper.penalty * spread).sum(0).mean(), metrics

        iterate = learner.actor.params
        grads, metrics = jax.grad(loss, has_aux=True)(iterate)
        norm = optax.tree.norm(grads)
        factor = jnp.minimum(1.0, LARGEST_GRADIENT / norm)
        grads = jax.tree.map(lambda g: jnp.where(jnp.isfinite(norm), factor * g, 0.0), grads)
        # The same starts and members each time, so that iterates differ in nothing but themselves.
        same = jax.random.key(0)
        judged = self.rollout(iterate, held_out, learner.starts, scales, same, hyper.gamma)
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
        return PolicyState(learner.selected, dataset.mean, dataset.std, deterministic)

    def last_policy(self, learner: MBPOLearner, dataset: Dataset) -> PolicyState:
        """Deterministic policy: the last iterate."""
        return PolicyState(learner.actor.params, dataset.mean, dataset.std, deterministic)


# Losses ----------------------------------------------------------------------------------------


def mean_of(chosen: Array, x: Array) -> Array:
    """The mean (B,) over the chosen (n,) columns of x (B, n); 0 if there are none."""
    return (x * chosen).sum(-1) / jnp.maximum(chosen.sum(), 1)


def model_loss(model: Model, inputs: Array, targets: Array, moves: Array) -> tuple[Array, Metrics]:
    """Squared errors of changes, as far as signals move, and reward; the end's cross-entropy."""
    size, outcome = moves.shape[0], network(model["outcome"], inputs)
    changes = mean_of(moves, jnp.square(change(model, inputs) - targets[:, :size])).mean()
    reward = jnp.square(outcome[:, 0] - targets[:, size]).mean()
    end = optax.sigmoid_binary_cross_entropy(outcome[:, 1], targets[:, size + 1]).mean()
    loss = changes + reward + end
    return loss, {"model_loss": loss}


ABOUT = ("mbpo", "back-propagation through an ensemble of learned models", "offline", CONTINUOUS)
ALGORITHM = Algorithm(*ABOUT, MBPOConfig, MBPO.make)
