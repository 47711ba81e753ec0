"""The parts of an epoch, each run apart in the way its execution mode runs it.

Each part is a function without arguments that does one epoch's worth of it: what all agents
observe in all turns, the actions they choose, the batches they sample, and so on. `train` holds
`sample` and `loss` within it, as an update does. What an epoch spends beside observing, acting
and training is the world's own work, memory writes and the host.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from worldloom.core import stack
from worldloom.core.rollout import play_turns
from worldloom.core.types import Batch, Key, PyTree, RunState
from worldloom.suites.grid.problem import make_env
from worldloom.suites.grid.suite import Mode
from worldloom.suites.grid.torch_trainer import baseline
from worldloom.training.config import TrainConfig
from worldloom.training.loops.turns import TurnLoop, agent_keys

PARTS = {
    "epoch": "a whole epoch: fresh worlds, every turn, memory, one round of updates, metrics",
    "act": "every agent's choice in every turn, from its observation, exploration included",
    "observe": "what every agent sees in every turn, as the network's input",
    "train": "every agent's updates: batch, loss, gradients, optimiser, target network",
    "sample": "the batches alone (within train)",
    "loss": "the loss alone, without gradients (within train)",
}
Part = Callable[[], Any]


@dataclass(frozen=True)
class EpochInputs:
    """Real inputs for every part of one epoch: leaves (steps, agents, ...), states (turns, ...)."""

    loop: TurnLoop
    run: RunState
    states: PyTree
    obs: PyTree
    act_keys: Key
    update_keys: Key  # (updates,)
    sample_keys: Key
    learn_keys: Key
    batches: Batch


def record_epoch(loop: TurnLoop, run: RunState) -> EpochInputs:
    """Plays the epoch after `run`, whose memories must be ready to be sampled, and keeps it all."""
    run = jax.tree.map(jnp.copy, run)  # the run itself goes on, and donates its buffers
    return EpochInputs(loop, run, **jax.jit(partial(_inputs, loop))(run))


def _inputs(loop: TurnLoop, run: RunState) -> dict[str, PyTree]:
    count = loop.env.spec.num_agents
    keys = loop.keys(run)
    start = loop.start(run, keys)
    act = loop.exploring(run.iteration)
    _, _, states = play_turns(
        loop.worlds, act, keys.turns, start.worlds, run.learner.params, loop.params, lambda s: s
    )
    watch = jax.vmap(loop.worlds.observe_agent, (None, 0, None))
    sample_keys, learn_keys = jax.vmap(lambda key: agent_keys(key, count))(keys.updates)
    size = loop.agent.config.batch_size
    sample = jax.vmap(lambda replay, key: loop.ring.sample(replay, key, size))
    return {
        "states": states,
        "obs": jax.vmap(watch, (0, None, None))(states, jnp.arange(count), loop.params),
        "act_keys": jax.vmap(lambda key: jax.random.split(key, count))(keys.turns),
        "update_keys": keys.updates,
        "sample_keys": sample_keys,
        "learn_keys": learn_keys,
        "batches": jax.vmap(sample, (None, 0))(run.replay, sample_keys),
    }


def jax_parts(inputs: EpochInputs, mode: Mode) -> dict[str, Part]:
    """The parts of the recorded epoch, as `mode` runs them."""
    loop, run = inputs.loop, inputs.run
    agents, size = jnp.arange(loop.env.spec.num_agents), loop.agent.config.batch_size
    act = loop.exploring(run.iteration)
    params, target = run.learner.params, run.learner.target
    together = loop.env.spec.turn_order == "simultaneous"
    over_agents = _all_at_once if together else _one_after_another
    # Turns of all agents at once are one call in the sequential mode too.
    turn_mode: Mode = "jax_parallel" if together and mode == "jax_sequential" else mode

    def observe(i, state, _):
        return loop.worlds.observe_agent(state, i, loop.params)

    def choose(params, _, x):
        return act(params, *x)[0]

    def sample(replay, _, key):
        return loop.ring.sample(replay, key, size)

    def loss(weights, _, x):
        batch, key = x
        return loop.agent.loss(*weights, batch, *loop.agent.draw(key, size))[0]

    choices = (inputs.obs, inputs.act_keys)
    exercises = (inputs.batches, inputs.learn_keys)
    return {
        "observe": _calls(turn_mode, over_agents(observe), observe, agents, inputs.states, ()),
        "act": _calls(turn_mode, over_agents(choose), choose, params, (), choices),
        "train": _training(loop, run, mode, inputs.update_keys),
        "sample": _calls(mode, _all_at_once(sample), sample, run.replay, (), inputs.sample_keys),
        "loss": _calls(mode, _all_at_once(loss), loss, (params, target), (), exercises),
    }


def _all_at_once(one: Callable) -> Callable:
    return jax.vmap(one, (0, None, 0))


def _one_after_another(one: Callable) -> Callable:
    def every(fixed, shared, each):
        return jax.lax.map(lambda x: one(x[0], shared, x[1]), (fixed, each))

    return every


def _calls(
    mode: Mode, every: Callable, one: Callable, fixed: PyTree, shared: PyTree, each: PyTree
) -> Part:
    """one(fixed_i, shared_t, each_ti) for all agents i, steps t, in as many calls as `mode` makes.

    `every` is `one` for all agents. Leaves of `fixed` are (agents, ...), of `shared` (steps, ...),
    of `each` (steps, agents, ...).
    """
    if mode == "jax_fused":
        # Inputs are scanned, not fixed: a loop over equal inputs would be computed once.
        program = jax.jit(lambda f, s, e: jax.lax.map(lambda x: every(f, *x), (s, e)))
        return lambda: program(fixed, shared, each)
    steps = list(zip(_unstack_like(shared, each), _unstack_like(each, shared), strict=True))
    if mode == "jax_parallel":
        program = jax.jit(every)
        return lambda: [program(fixed, s, e) for s, e in steps]
    program = jax.jit(one)
    apart = [
        (f, s, e)
        for s, step in steps
        for f, e in zip(stack.unstack(fixed), _unstack_like(step, fixed), strict=True)
    ]
    return lambda: [program(*inputs) for inputs in apart]


def _unstack_like(tree: PyTree, other: PyTree) -> list[PyTree]:
    """The slices of `tree`; where it has no leaves, itself as often as `other` has slices."""
    return stack.unstack(tree) if jax.tree.leaves(tree) else [tree] * stack.size(other)


def _training(loop: TurnLoop, run: RunState, mode: Mode, keys: jax.Array) -> Part:
    """Updates go on from each other, so the learners are carried, in donated buffers."""
    ready = jnp.ones((loop.env.spec.num_agents,), bool)
    size = loop.agent.config.batch_size
    replay, held = run.replay, [jax.tree.map(jnp.copy, run.learner)]

    if mode == "jax_fused":

        def learn(learner, replay, keys):
            after, metrics = loop.learn(run.replace(learner=learner, replay=replay), keys)
            return after.learner, metrics

        program = jax.jit(learn, donate_argnums=0)

        def fused():
            held[0], metrics = program(held[0], replay, keys)
            return metrics

        return fused

    if mode == "jax_parallel":

        def update(learner, replay, key):
            after, metrics = loop.update(run.replace(learner=learner, replay=replay), key, ready)
            return after.learner, metrics

        program, each_key = jax.jit(update, donate_argnums=0), list(keys)

        def parallel():
            for key in each_key:
                held[0], metrics = program(held[0], replay, key)
            return metrics

        return parallel

    learners = stack.unstack(held[0])
    sample = jax.jit(lambda replay, i, key: loop.ring.sample(stack.index(replay, i), key, size))
    learn = jax.jit(loop.agent.update, donate_argnums=0)
    pairs = jax.jit(lambda key: agent_keys(key, len(learners)))

    def sequential():
        for key in keys:
            sample_keys, learn_keys = pairs(key)
            for i in range(len(learners)):
                batch = sample(replay, jnp.int32(i), sample_keys[i])
                learners[i], metrics = learn(learners[i], batch, learn_keys[i])
        return metrics

    return sequential


def torch_parts(config: TrainConfig) -> dict[str, Part]:
    """The same parts of the PyTorch baseline, with agents and full memories of their own."""
    from worldloom.suites.grid.torch_iqn import iqn_loss

    task = make_env(config)
    env, agents = baseline(config, task)
    turns = range(task.spec.horizon or 0)
    frames = [env.pov(i) for i in range(len(agents))]
    for i, agent in enumerate(agents):
        for row in range(agent.memory.capacity):
            agent.memory.add(frames[i], row % agent.action_space, float(row % 3), 0.0)
    stacks = [agent.stacked_state(frames[i]) for i, agent in enumerate(agents)]
    batches = [agent.sample() for agent in agents]

    def observe():
        for _ in turns:
            for i, agent in enumerate(agents):
                agent.stacked_state(env.pov(i))

    def choose():
        for _ in turns:
            for agent, stacked in zip(agents, stacks, strict=True):
                agent.take_action(stacked)

    def loss():
        for agent, batch in zip(agents, batches, strict=True):
            iqn_loss(agent.local, agent.target, batch, detach=agent.tuned)

    return {
        "observe": observe,
        "act": choose,
        "train": lambda: [agent.train_step() for agent in agents],
        "sample": lambda: [agent.sample() for agent in agents],
        "loss": loss,
    }
