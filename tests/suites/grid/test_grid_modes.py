"""The modes are one experiment, executed in different ways."""

from contextlib import contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.modes_work import changed
from oracles.countdown import countdown
from worldloom.algos.random import Random, RandomConfig
from worldloom.core import stack
from worldloom.suites.grid.evaluate import GridEvaluator
from worldloom.suites.grid.modes import make_repeat
from worldloom.suites.grid.problem import make_problem, new_trainer
from worldloom.suites.grid.suite import JAX_MODES, SUITE, original
from worldloom.training.config import make_config
from worldloom.training.loops import turn_loop
from worldloom.training.loops.turns import TurnLoop

pytestmark = pytest.mark.usefixtures("compiled_once")


def copy_of(run):
    """A driver takes the buffers of what it is given."""
    return jax.tree.map(jnp.copy, run)


def weights(run) -> np.ndarray:
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(run.learner.params)])


def same_bits(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(_words(x), _words(y)) for x, y in pairs)


def _words(x):
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


# One task for all ----------------------------------------------------------------------------

TURNS = 50


@pytest.fixture(scope="module")
def task(tiny):
    """A loop, and how every mode executes it: easy to learn, and slow to fill its memory.

    One epoch gives 100 steps and a batch takes 104, so that an agent whose memory is emptied
    before each epoch keeps its parameters, in the very programs that otherwise learn.
    """
    config = tiny(
        world={"horizon": TURNS, "radius": 1, "num_frames": 2},
        iqn={
            "hidden": 32,
            "batch_size": 104,
            "buffer_size": 2 * 153,
            "gradient_steps": 20,
            "gamma": 0.2,
            "learning_rate": 5e-3,
            "epsilon": 0.8,
            "epsilon_decay": 0.1,
            "epsilon_min": 0.6,
        },
    )
    loop = turn_loop(config, make_problem(config))
    return loop, {mode: make_repeat(loop, mode, 4) for mode in JAX_MODES}


@pytest.fixture(scope="module")
def init(task):
    return jax.jit(task[0].init)


@pytest.fixture(scope="module")
def learned(task, init):
    """In every mode: the run after five iterations, after ten, and the metrics of all ten."""
    results = {}
    for mode, advance in task[1].items():
        half, early = advance(init(jax.random.key(0)), 5)
        run, late = advance(copy_of(half), 5)
        metrics = jax.tree.map(lambda a, b: np.concatenate([a, b]), early, late)
        results[mode] = half, run, metrics
    return results


# The same actions --------------------------------------------------------------------------------


def test_all_modes_choose_the_same_actions_over_500_turns(task, init):
    played = {}
    for mode, advance in task[1].items():
        start = init(jax.random.key(4))
        run, epochs = start, []
        for _ in range(10):
            forgetful = run.replace(replay=copy_of(start.replay))
            run, metrics = advance(copy_of(forgetful), 1)
            assert np.isnan(metrics["loss"]).all(), "the parameters must stay as they are"
            epochs.append(stack.index(run.replay.rows, np.s_[:, : TURNS + 1]))
        assert same_bits(run.learner, start.learner)
        played[mode] = jax.tree.map(lambda *x: np.stack(x), *epochs)
    fused = played["jax_fused"]
    assert fused.action.shape == (10, 2, TURNS + 1, 2)
    assert set(np.unique(fused.action)) == {0, 1, 2, 3}
    for mode in ("jax_sequential", "jax_parallel"):
        np.testing.assert_array_equal(played[mode].action, fused.action, mode)
        assert same_bits(played[mode], fused), f"{mode} saw or was paid something else"


@pytest.fixture(scope="module")
def simultaneous(tiny):
    """Runs and metrics of 10 epochs of 50 simultaneous turns, without any update."""
    world = {"num_agents": 3, "horizon": TURNS, "turn_order": "simultaneous"}
    options = {
        "hidden": (16,),
        "batch_size": 8,
        "gradient_steps": 0,
        "buffer_size": 2 * 510,
        "epsilon": 0.5,
        "epsilon_decay": 0.2,
        "epsilon_min": 0.2,
    }
    config = tiny(world=world, algo="dqn", dqn=options)
    loop = turn_loop(config, make_problem(config))
    start = jax.jit(loop.init)(jax.random.key(4))
    return {mode: make_repeat(loop, mode)(copy_of(start), 10) for mode in JAX_MODES}


@pytest.mark.slow
def test_all_modes_choose_the_same_actions_when_turns_are_simultaneous(simultaneous):
    fused, metrics = simultaneous["jax_fused"]
    assert fused.replay.size.tolist() == [510] * 3  # 500 turns and ten last observations
    for mode in ("jax_sequential", "jax_parallel"):
        other, others = simultaneous[mode]
        actions = np.asarray(other.replay.rows.action)
        np.testing.assert_array_equal(actions, np.asarray(fused.replay.rows.action), mode)
        assert same_bits(other.replay, fused.replay), f"{mode} saw or was paid something else"
        np.testing.assert_allclose(others["turn_rewards"], metrics["turn_rewards"], rtol=1e-6)


def test_without_updates_nothing_is_learned_and_the_metrics_say_so(simultaneous):
    for run, metrics in simultaneous.values():
        assert metrics["return"].shape == (10,)
        assert np.isnan(metrics["loss"]).all()
        assert metrics["finite"].all()  # NaN means "did not learn", not "diverged"
        assert np.isfinite(weights(run)).all()


def test_epsilon_falls_by_its_share_to_its_floor(simultaneous):
    for _, metrics in simultaneous.values():
        expected = np.maximum(0.5 * 0.8 ** np.arange(10), 0.2)
        np.testing.assert_allclose(metrics["epsilon"], expected, rtol=1e-5)


# The same learning -------------------------------------------------------------------------------


def test_learned_parameters_agree_after_five_iterations(learned, init):
    fused = weights(learned["jax_fused"][0])
    assert np.abs(fused - weights(init(jax.random.key(0)))).max() > 0.01
    for mode in ("jax_sequential", "jax_parallel"):
        np.testing.assert_allclose(weights(learned[mode][0]), fused, atol=1e-4, err_msg=mode)


@pytest.mark.parametrize("mode", JAX_MODES)
def test_the_loss_falls_in_every_mode(learned, mode):
    loss = learned[mode][2]["agent_loss"]
    assert loss.shape == (10, 2)
    assert np.isnan(loss[0]).all(), "a memory with less than a batch is not learned from"
    assert np.isfinite(loss[1:]).all()
    assert loss[-3:].mean() < 0.9 * loss[1:3].mean()


@pytest.mark.parametrize("mode", JAX_MODES)
def test_gradients_stay_finite_in_every_mode(learned, mode):
    _, run, metrics = learned[mode]
    assert np.isfinite(metrics["agent_grad_norm"][1:]).all()
    assert (metrics["agent_grad_norm"][1:] > 0).all()
    assert metrics["finite"].all()
    assert np.isfinite(weights(run)).all()


def test_agents_learn_in_every_mode(learned, task, init):
    loop, _ = task
    score = GridEvaluator(loop.env, loop.act, episodes=32)
    before = score(init(jax.random.key(0)).learner.params, jax.random.key(9)).mean
    assert before < 0, "untrained agents walk into walls"
    for mode, (_, run, metrics) in learned.items():
        after = score(run.learner.params, jax.random.key(9)).mean
        # Play was almost random in the first iteration: greedy play must be better by far.
        assert after > 1.3 * metrics["return"][0], mode


def test_the_same_seed_gives_the_same_run_and_another_seed_another(task, init, learned):
    fused = task[1]["jax_fused"]
    again, metrics = fused(init(jax.random.key(0)), 5)
    half, _, before = learned["jax_fused"]
    assert same_bits(again, half)
    np.testing.assert_array_equal(metrics["turn_rewards"], before["turn_rewards"][:5])
    other, _ = fused(init(jax.random.key(1)), 5)
    assert np.abs(weights(other) - weights(half)).max() > 0.01


def test_a_run_may_change_its_mode_on_the_way(task, init, learned):
    run, rows = init(jax.random.key(0)), []
    for mode, iterations in (("jax_fused", 2), ("jax_parallel", 2), ("jax_sequential", 1)):
        run, metrics = task[1][mode](run, iterations)
        rows.append(metrics["return"])
    half, _, metrics = learned["jax_fused"]
    assert int(run.iteration) == 5
    np.testing.assert_allclose(weights(run), weights(half), atol=1e-4)
    np.testing.assert_allclose(np.concatenate(rows), metrics["return"][:5], rtol=1e-4)


@pytest.mark.parametrize("mode", JAX_MODES)
def test_nothing_is_compiled_again_in_steady_state(task, init, learned, mode, compilations):
    run = init(jax.random.key(0))
    run, _ = task[1][mode](run, 2)
    with compilations() as compiled:
        for iterations in (1, 3, 2, 6):  # six are more than one fused call holds
            run, metrics = task[1][mode](run, iterations)
            assert metrics["return"].shape == (iterations,)
    assert compiled == []


@pytest.fixture
def compilations():
    """A context that lists what XLA is asked to compile within it."""

    @contextmanager
    def watch():
        found = []

        def note(event, seconds, **facts):
            if "backend_compile" in event:
                found.append(facts or event)

        jax.monitoring.register_event_duration_secs_listener(note)
        try:
            yield found
        finally:
            jax.monitoring.unregister_event_duration_listener(note)

    with watch() as found:
        jax.jit(lambda x: x + 12345)(jnp.ones(3)).block_until_ready()
    assert found, "the watch sees no compilation at all: JAX renamed its events"
    return watch


# Agents apart ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def update(task, learned):
    """update(run, ready): one update of every agent that is ready, and the metrics."""
    call = task[1]["jax_parallel"]._update  # compiled already
    return lambda run, ready: call(copy_of(run), jax.random.key(1), jnp.asarray(ready))


def test_agents_do_not_share_their_memories(learned, update):
    run, _, _ = learned["jax_fused"]
    actions = np.asarray(run.replay.rows.action)
    assert not np.array_equal(actions[0], actions[1])

    # What agent 0 remembers is falsified: agent 1 must not notice.
    rewards = run.replay.rows.reward.at[0].add(100.0)
    false = run.replace(replay=run.replay.replace(rows=run.replay.rows.replace(reward=rewards)))
    true, _ = update(run, [True, True])
    other, _ = update(false, [True, True])
    assert same_bits(stack.index(true.learner, 1), stack.index(other.learner, 1))
    assert not same_bits(stack.index(true.learner, 0), stack.index(other.learner, 0))


def test_a_memory_that_is_not_ready_leaves_its_agent_as_it_is(learned, update):
    run, _, _ = learned["jax_fused"]
    after, metrics = update(run, [False, True])
    assert same_bits(stack.index(after.learner, 0), stack.index(run.learner, 0))
    assert not same_bits(stack.index(after.learner, 1), stack.index(run.learner, 1))
    assert np.isnan(metrics.loss).tolist() == [True, False]


def test_learning_that_diverges_is_called_not_finite(task, init, learned):
    run = init(jax.random.key(0))
    broken = jax.tree.map(lambda x: x.at[1].set(jnp.nan), run.learner.params)
    run = run.replace(learner=run.learner.replace(params=broken))
    _, metrics = task[1]["jax_fused"](run, 1)
    assert not metrics["finite"].any()


def test_ended_worlds_pay_nothing_more_and_are_never_sampled():
    env = countdown(num_agents=2, horizon=9)
    config = RandomConfig(buffer_size=6 * 30, batch_size=1, gradient_steps=0)
    loop = TurnLoop(env, Random(config, env.spec.action), env.default_params(), num_worlds=6)
    start = jax.jit(loop.init)(jax.random.key(3))
    run, metrics = make_repeat(loop, "jax_fused", 2)(start, 2)
    lengths = np.asarray(run.worlds.inner.inner.length)  # of the second iteration's worlds
    assert len(set(lengths)) > 2, "worlds of different lengths make the test"
    # Every turn pays 1 for as long as the world lasts, though it goes on paying after.
    assert metrics["agent_returns"][1].tolist() == pytest.approx([lengths.mean()] * 2)
    alive = [(lengths > turn).mean() for turn in range(9)]
    np.testing.assert_allclose(metrics["turn_rewards"][1][:, 0], alive, rtol=1e-6)

    memory = stack.index(run.replay, 1)
    valid = np.asarray(loop.ring.valid(memory))[10:20]  # rows of the second iteration
    for lane, length in enumerate(lengths):
        assert valid[:, lane].tolist() == [turn < length for turn in range(10)]
    batch = jax.jit(loop.ring.sample, static_argnums=2)(memory, jax.random.key(0), 200)
    # An observation is (turn, length): the last step of a task bootstraps from nothing.
    turn, length = np.asarray(batch.obs)[:, 0].T
    assert (turn < length).all()
    np.testing.assert_array_equal(np.asarray(batch.discount) == 0, turn == length - 1)


# The baseline ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def baseline():
    torch = pytest.importorskip("torch", reason="the PyTorch baseline needs torch")
    world = {"height": 6, "width": 6, "num_agents": 2, "horizon": 100, "radius": 1}
    iqn = {
        "hidden": 128,
        "num_quantiles": 8,
        "act_quantiles": 8,
        "batch_size": 90,
        "buffer_size": 1000,
        "n_step": 1,
        "gamma": 0.3,
        "learning_rate": 0.02,
        "target_rate": 0.05,
        "epsilon_decay": 0.0,
    }
    small = {"world": world | {"spawn_prob": 0.05, "num_frames": 1}, "iqn": iqn}
    config = make_config(SUITE, original(mode="torch_sequential", **small))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trainer = new_trainer(config)
    score = make_problem(config).make_evaluator(trainer, 32)
    before = score(trainer.agents(), jax.random.key(9)).mean
    metrics = trainer.advance(10)
    after = score(trainer.agents(), jax.random.key(9)).mean
    again = new_trainer(config).advance(2)
    torch.set_num_threads(threads)
    return trainer, metrics, before, after, again


def test_the_loss_falls_in_torch_sequential(baseline):
    _, metrics, *_ = baseline
    assert metrics["agent_loss"].shape == (10, 2)
    assert metrics["finite"].all()
    assert metrics["loss"][5:].mean() < 0.9 * metrics["loss"][:5].mean()


def test_agents_learn_in_torch_sequential(baseline):
    trainer, _, before, after, _ = baseline
    assert trainer.iteration == 10
    assert before < -100, "untrained agents walk into walls"
    assert after > before + 100


def test_torch_sequential_gives_the_same_run_twice(baseline):
    _, metrics, _, _, again = baseline
    np.testing.assert_array_equal(again["turn_rewards"], metrics["turn_rewards"][:2])
    np.testing.assert_array_equal(again["loss"], metrics["loss"][:2])


def test_torch_sequential_refuses_what_it_would_silently_ignore():
    pytest.importorskip("torch", reason="the PyTorch baseline needs torch")
    config = make_config(SUITE, original(mode="torch_sequential"))
    refused = {
        "turn_order": replace(config, world=config.world | {"turn_order": "simultaneous"}),
        "view": replace(config, world=config.world | {"view": "rgb"}),
        "radius": replace(config, world=config.world | {"radius": None}),
        "legacy": replace(config, world=config.world | {"legacy": False}),
        "one world": replace(config, num_worlds=2),
        "updates once": changed(config, hyper={"gradient_steps": 2}),
        "noisy": changed(config, hyper={"noisy": False}),
        "iqn.levels": changed(config, hyper={"levels": "shared"}),
        "act_levels": changed(config, hyper={"act_levels": "midpoints"}),
        "max_grad_norm": changed(config, hyper={"max_grad_norm": 10.0}),
        "sync_epochs": changed(config, hyper={"sync_epochs": 0}),
    }
    new_trainer(config)
    for name, refusal in refused.items():
        with pytest.raises(ValueError, match=f"torch_sequential .*{name}"):
            new_trainer(refusal)
