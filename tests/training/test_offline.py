"""The offline loop: the same from the same seed, alone or together, at once or resumed."""

import os
import subprocess
import sys
import textwrap
from contextlib import closing
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import algos
from worldloom.nn.policy import policy_step
from worldloom.replay.dataset import from_columns
from worldloom.training.checkpoint import Checkpoints
from worldloom.training.loops.offline import OfflineLoop
from worldloom.training.trainer import Trainer

OFFLINE = [name for name in algos.names() if algos.get(name).loop == "offline"]


def dataset(rows=400):
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(rows + 1, 3))
    action = np.clip(0.5 * obs[:-1, :2] + 0.3 * rng.normal(size=(rows, 2)), -1, 1)
    reward = -np.square(action - 0.2).sum(-1)
    over = np.arange(rows) % 40 == 39
    ended = over & (np.arange(rows) % 80 == 79)
    return from_columns(obs[:-1], action, reward, obs[1:], ended, over & ~ended)


DATA = dataset()


def agent(name, **numbers):
    algorithm = algos.get(name)
    small = {
        "cql": {"num_samples": 2},
        "edac": {"num_critics": 3},
        "mbpo": {"model_updates": 15, "rollout_length": 3, "history": (2.0, 5.0)},
    }.get(name, {})
    hyper = algorithm.config().hyper.replace(**numbers)
    return algorithm.make(algorithm.config(hidden=(16,), hyper=hyper, **small))


def trainer_of(name, seed=0, mesh=None, hyper=None, chunk=2, updates=6):
    """A trainer of one learner; of several, where there are several seeds."""
    loop = OfflineLoop(agent(name), batch_size=32, updates_per_iteration=updates, mesh=mesh)
    several, table = isinstance(seed, tuple), loop.agent.table(DATA)
    trainer = Trainer(loop, (table,), seed=0 if several else seed, chunk=chunk)
    if several:
        keys = jax.vmap(jax.random.key)(jnp.asarray(seed, jnp.uint32))
        trainer.load(jax.jit(loop.init_many)(keys, table, hyper))
    elif hyper is not None:
        trainer.load(jax.jit(loop.init)(jax.random.key(seed), table, hyper))
    return trainer


def assert_same(one, other):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def assert_close(one, other, rtol=2e-3, atol=2e-4):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol, atol=atol)


SLOW = ("cql", "rebrac", "edac")  # to compile


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in OFFLINE]
)
def test_training_goes_on_to_the_bit_and_compiles_once(name, tmp_path):
    trainer = trainer_of(name)
    trainer.advance(2)
    compiled = trainer.compile_seconds
    with closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(2, trainer.state())
        at_once = trainer.advance(3)
        expected = jax.tree.map(np.asarray, trainer.agents())
        trainer.load(checkpoints.restore(trainer.template()))
    assert trainer.iteration == 2
    later = trainer.advance(3)
    assert (trainer.iteration, trainer.steps_per_iteration) == (5, 6)
    assert at_once["finite"].shape == (3,)
    assert at_once["finite"].all()
    assert_same((expected, at_once), (trainer.agents(), later))
    assert trainer.compile_seconds == compiled


def test_nothing_is_compiled_in_steady_state():
    trainer = trainer_of("bc")
    trainer.advance(2)
    trainer.advance(1)
    seen = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: seen.append(event) if "backend_compile" in event else None
    )
    try:
        trainer.advance(1)
        trainer.advance(2)
        assert seen == []
        jax.jit(lambda x: x * 3.25)(jnp.ones(7))  # so this is where compilations are seen
        assert seen
    finally:
        jax.monitoring.clear_event_listeners()


def test_the_same_seed_gives_the_same_numbers_and_another_one_others():
    one, same, other = (trainer_of("bc", seed) for seed in (1, 1, 2))
    first, again, another = (trainer.advance(2) for trainer in (one, same, other))
    assert_same(first, again)
    assert_same(one.agents(), same.agents())
    assert (first["actor_loss"] != another["actor_loss"]).all()


@pytest.mark.parametrize("name", ["iql", pytest.param("cql", marks=pytest.mark.slow)])
def test_seeds_in_one_program_are_separate_runs(name):
    together = trainer_of(name, seed=(3, 4))
    both = together.advance(2)
    assert both.pop("finite").shape == (2,)
    for i, seed in enumerate((3, 4)):
        alone = trainer_of(name, seed)
        metrics = alone.advance(2)
        assert_close({n: metrics[n] for n in both}, {n: x[:, i] for n, x in both.items()})
        ours = jax.tree.map(lambda x, i=i: x[i], together.agents())
        assert_close(alone.agents(), ours)


def test_numbers_in_one_program_are_separate_runs():
    base = agent("td3bc").config.hyper
    hypers = [base, base.replace(alpha=20.0, critic_rate=3e-3)]
    stacked = jax.tree.map(lambda *x: jnp.asarray(x, jnp.float32), *hypers)
    both = trainer_of("td3bc", seed=(3, 3), hyper=stacked).advance(2)
    del both["finite"]
    for i, hyper in enumerate(hypers):
        alone = trainer_of("td3bc", 3, hyper=hyper).advance(2)
        assert_close({n: alone[n] for n in both}, {n: x[:, i] for n, x in both.items()})
    assert not np.allclose(both["q"][:, 0], both["q"][:, 1])


def test_a_trained_policy_can_be_executed():
    trainer = trainer_of("bc", chunk=50)
    trainer.advance(50)
    data = dataset()
    policy = trainer.loop.agent.policy(trainer.agents(), data)
    error = jnp.square(policy_step(policy, data.rows.obs) - data.rows.action).mean()
    assert error < 0.8 * jnp.square(data.rows.action).mean()


def test_what_is_no_longer_finite_is_told():
    trainer = trainer_of("bc", hyper=agent("bc").config.hyper.replace(learning_rate=float("nan")))
    assert not trainer.advance(1)["finite"].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"updates_per_iteration": 5}, "updates_per_iteration=5; it must be a multiple of 2"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        OfflineLoop(agent("td3bc"), **changes)


# What one device learned, what two did, and what each made of a half that the other began.
DEVICES = """
    import re
    import sys
    import jax
    sys.path[:0] = ["tests", "tests/training"]
    from test_offline import assert_close, assert_same, trainer_of
    from worldloom.core.mesh import device_mesh

    def program(trainer):
        return trainer._iterations._run._compiled.as_text()

    def largest_product(trainer):
        shapes = re.findall(r" = f32.([0-9,]+).[^=]*? dot[(]", program(trainer))
        return max(int(size) for shape in shapes for size in shape.split(","))

    for name in sys.argv[1:]:
        mesh, near = device_mesh(2), {"rtol": 1e-5, "atol": 1e-5}
        one, two = trainer_of(name, updates=2), trainer_of(name, mesh=mesh, updates=2)
        assert_close(one.advance(2), two.advance(2), **near)
        half, same = two.state(), two.state()  # what is loaded is donated
        assert_close(one.agents(), two.agents(), **near)
        assert len(jax.tree.leaves(two.run.learner)[0].sharding.device_set) == 2
        assert "all-reduce" in program(two), "gradients are those of all rows"
        assert 2 * largest_product(two) == largest_product(one), "a device has half of the rows"
        at_once, end = two.advance(2), two.state()
        again = trainer_of(name, mesh=mesh, updates=2)
        again.load(same)
        assert_same(at_once, again.advance(2))
        assert_same(end.learner, again.state().learner)
        one.load(half)
        assert_close(one.advance(2), at_once, **near)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OFFLINE if name != "mbpo"])
def test_two_devices_learn_what_one_learns(name):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DEVICES), name],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("name", "batch_size", "message"),
    [
        ("bc", 33, "batch_size=33 cannot be shared by 2 devices; use a multiple of that"),
        ("mbpo", 32, "MBPO trains on one device: its models draw rows of their own from a whole"),
    ],
)
def test_batches_that_two_devices_cannot_share_are_refused(name, batch_size, message):
    mesh = SimpleNamespace(devices=np.zeros(2))
    with pytest.raises(ValueError, match=message):
        OfflineLoop(agent(name), batch_size, updates_per_iteration=6, mesh=mesh)
