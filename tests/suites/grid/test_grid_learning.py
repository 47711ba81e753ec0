"""Agents learn a small treasure hunt: apart, with one network, with critics that see all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.grid.problem import make_problem, new_trainer
from worldloom.suites.grid.suite import SUITE, WORLDS
from worldloom.training.config import make_config
from worldloom.training.loops import turn_loop

pytestmark = pytest.mark.usefixtures("compiled_once")

HUNT = {"height": 6, "width": 6, "num_agents": 2, "horizon": 16, "spawn_prob": 0.1, "radius": 1}
RANDOM = 62.0  # what random play gets there in an episode, both agents together
FAST = {"gamma": 0.6, "learning_rate": 5e-3}
OPTIONS = {
    "ppo": FAST | {"num_minibatches": 2, "hidden": (32,)},
    "mappo": FAST | {"num_minibatches": 2, "hidden": (32,)},
    "pqn": FAST | {"hidden": (32,), "epsilon_updates": 15},
    "vdn": FAST | {"hidden": (32,), "epsilon_updates": 15},
    "dqn": FAST
    | {"hidden": (32,), "buffer_size": 16 * 17 * 10, "gradient_steps": 10, "epsilon_decay": 0.2},
}


def settings(algo, share, **changes):
    given = {"env": "treasurehunt", "algo": algo, "world": HUNT, "num_worlds": 16, "chunk": 60}
    return make_config(SUITE, given | {algo: OPTIONS[algo], "share_parameters": share} | changes)


@pytest.mark.parametrize(
    ("algo", "share"),
    [
        ("ppo", False),
        ("mappo", False),
        ("pqn", False),
        ("vdn", False),
        ("ppo", True),
        ("dqn", True),
        ("vdn", True),
    ],
)
def test_agents_learn_a_small_treasure_hunt(algo, share):
    trainer = new_trainer(settings(algo, share))
    metrics = trainer.advance(60)
    returns = metrics["return"]
    assert returns[:2].mean() == pytest.approx(RANDOM, abs=15), "they begin by playing at random"
    assert returns[-3:].mean() > 1.6 * RANDOM
    assert metrics["agent_returns"][-3:].min() > 0.6 * RANDOM, "every one of them has learned"
    np.testing.assert_allclose(metrics["agent_returns"].sum(axis=1), returns, rtol=1e-5)
    networks = {leaf.shape[0] for leaf in jax.tree.leaves(trainer.run.learner.params)}
    assert networks == {1 if share else 2}
    for leaf in jax.tree.leaves(trainer.agents()):
        assert leaf.shape[0] == 2
        assert np.array_equal(leaf[0], leaf[1]) or not share
    first = next(leaf for leaf in jax.tree.leaves(trainer.agents()) if leaf.ndim > 2)
    assert share or not np.array_equal(first[0], first[1]), "agents apart learn apart"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "algo"),
    [("harvest", "ppo"), ("coins", "pqn"), ("prisoners_dilemma", "vdn"), ("coop_mining", "pqn")],
)
def test_agents_of_the_social_worlds_can_have_one_network(world, algo):
    given = {"env": world, "algo": algo, "world": {"horizon": 4, "radius": 1}, "num_worlds": 4}
    options = {"hidden": (8,), "num_minibatches": 2, "num_epochs": 1}
    config = make_config(SUITE, given | {algo: options, "share_parameters": True, "chunk": 1})
    trainer = new_trainer(config)
    metrics = trainer.advance(1)
    assert metrics["finite"].all()
    assert {leaf.shape[0] for leaf in jax.tree.leaves(trainer.run.learner.params)} == {1}
    count = trainer.loop.env.spec.num_agents
    assert {leaf.shape[0] for leaf in jax.tree.leaves(trainer.agents())} == {count}
    assert metrics["agent_returns"].shape == (1, count)


@pytest.mark.slow
def test_returns_over_three_steps_reach_the_score_that_single_steps_reach():
    """`worldloom train treasurehunt --iqn.n-step 3`; random play scores 255, the bar is 500."""
    given = {"env": "treasurehunt", "algo": "iqn", "chunk": 20, "iqn": {"n_step": 3}}
    config = make_config(SUITE, given)
    trainer = new_trainer(config)
    trainer.advance(config.steps // trainer.steps_per_iteration)
    evaluate = make_problem(config).make_evaluator(trainer, 200)
    assert evaluate(trainer.agents(), jax.random.key(1)).mean >= 500


def test_a_shared_network_learns_from_the_memories_of_all_agents():
    config = settings("dqn", True)
    loop = turn_loop(config, make_problem(config))
    run, _ = jax.jit(loop.iterate)(jax.jit(loop.init)(jax.random.key(0)))
    ready = jnp.ones(2, bool)
    update = jax.jit(lambda run: loop.update(run, jax.random.key(1), ready)[0].learner.params)

    def with_rewards_of(agent):
        rewards = run.replay.rows.reward.at[agent].add(100.0)
        return run.replace(replay=run.replay.replace(rows=run.replay.rows.replace(reward=rewards)))

    learned = [update(r) for r in (run, with_rewards_of(0), with_rewards_of(1))]
    flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(p)]) for p in learned]
    assert not np.array_equal(flat[0], flat[1])
    assert not np.array_equal(flat[0], flat[2])
    assert not np.array_equal(flat[1], flat[2])


def test_a_shared_network_is_saved_and_loaded_as_one(tmp_path):
    import worldloom

    options = {"world": HUNT | {"horizon": 4}, "num_worlds": 2, "eval_episodes": 2}
    run = worldloom.train(
        "treasurehunt",
        algo="ppo",
        steps=16,
        share_parameters=True,
        ppo={"num_minibatches": 1, "hidden": (8,)},
        out=tmp_path / "run",
        report=False,
        **options,
    )
    loaded = worldloom.load(run.folder)
    obs = np.random.default_rng(0).random((1, *run.problem.env.spec.observation.shape))
    same = np.repeat(obs.astype(np.float32), 2, axis=0)
    actions = loaded.act(same)
    assert actions.shape == (2,)
    assert actions[0] == actions[1], "what both see alike, both answer alike"
    np.testing.assert_array_equal(actions, run.act(same))


@pytest.mark.parametrize(
    ("algo", "changes", "message"),
    [
        ("ppo", {"mode": "jax_parallel"}, "ppo is trained as one program; use mode='jax_fused'"),
        ("dqn", {"mode": "jax_parallel"}, "share_parameters is trained as one program"),
        ("ppo", {"ppo": {"num_minibatches": 7}}, "num_minibatches=7 does not divide"),
    ],
)
def test_what_cannot_be_trained_so_is_refused(algo, changes, message):
    with pytest.raises(ValueError, match=message):
        new_trainer(settings(algo, True, **changes))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algo", ["iqn", "dqn", "qlearning", "ppo", "vdn"])
def test_the_usual_settings_of_every_world_hold_what_they_learn_from(world, algo):
    """`worldloom train WORLD` begins: memories hold an episode, minibatches are whole."""
    config = make_config(SUITE, {"env": world, "algo": algo})
    loop = turn_loop(config, make_problem(config))
    iterations = config.steps / loop.steps_per_iteration
    assert iterations >= 8
    assert config.eval_every >= loop.steps_per_iteration
