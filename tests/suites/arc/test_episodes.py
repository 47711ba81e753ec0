"""Whole episodes, agents that learn nothing, and the functional interface around them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from worldloom.core.mesh import BATCH_AXIS, device_mesh
from worldloom.suites import arc
from worldloom.suites.arc.episodes import _nth_allowed
from worldloom.suites.arc.operations import SUBMIT

KEYS = jax.random.split(jax.random.key(0), 12)


@pytest.fixture(scope="module")
def config():
    return arc.make_config(arc.load("examples"), max_steps=6, max_trials=1)


@pytest.fixture(scope="module")
def worlds(config):
    return arc.batch_reset(KEYS, config)[0]


def submit_after(steps):
    def agent(states, count, key):
        operation = jnp.where(count >= steps, SUBMIT, 0)  # fill 0 of the first cell until then
        return arc.PointAction(
            jnp.full(states.pair.shape, operation), jnp.zeros_like(states.pair),
            jnp.zeros_like(states.pair),
        ), count + 1  # fmt: skip

    return agent


def test_an_episode_stands_still_and_pays_nothing_after_its_end(worlds, config):
    final, total, steps = arc.run_episode_batch(
        worlds, submit_after(2), 8, config, key=jax.random.key(1), agent_state=jnp.int32(0)
    )
    np.testing.assert_array_equal(steps.active.sum(0), 3)  # two fills and a submission
    np.testing.assert_array_equal(final.step_count, 3)
    np.testing.assert_array_equal(steps.reward[3:], 0.0)
    np.testing.assert_allclose(total, steps.reward.sum(0), rtol=1e-6)
    assert (np.asarray(total) < 0).all()  # a wrong submission each


def test_a_runner_is_the_same_episode_compiled_once(worlds, config):
    runner = arc.create_batch_episode_runner(submit_after(1), 4)
    final, total, _ = runner(worlds, config, jax.random.key(1), jnp.int32(0))
    plain, plain_total, _ = arc.run_episode_batch(
        worlds, submit_after(1), 4, config, key=jax.random.key(1), agent_state=jnp.int32(0)
    )
    jax.tree.map(np.testing.assert_array_equal, final, plain)
    np.testing.assert_allclose(total, plain_total, rtol=1e-6)
    runner(worlds, config.replace(step_penalty=-0.5), jax.random.key(2), jnp.int32(0))
    assert runner._cache_size() == 1


def test_the_editor_that_knows_the_answer_solves_every_task(config):
    long = config.replace(max_steps=200)
    states, _ = arc.batch_reset(KEYS, long)
    runner = arc.create_batch_episode_runner(arc.greedy_editor(long), 80)
    final, _, _ = runner(states, long, jax.random.key(0))
    assert np.asarray(final.solved).all()


def test_the_editor_refuses_rules_under_which_a_cell_cannot_tell_a_size(config):
    with pytest.raises(ValueError, match="rules='o2arc'; it can play under \"edit\" alone"):
        arc.greedy_editor(config.replace(rules="o2arc"))


def test_random_agents_play_valid_allowed_actions_only(worlds, config):
    mask = jnp.isin(jnp.arange(35), jnp.asarray([0, 7, 31, 32, 34]))
    states = worlds.replace(operation_mask=jnp.broadcast_to(mask, (12, 35)))
    agent = arc.VectorizedRandomAgent(config.grid_shape)
    seen, state = set(), agent.init(jax.random.key(3))
    for _ in range(30):
        action, state = agent.select_batch_actions(states, state)
        assert np.asarray(arc.validate_action_jax(action, states, config)).all()
        seen |= set(np.asarray(action.operation).tolist())
    assert seen == {0, 7, 31, 32, 34}


def test_one_random_agent_draws_a_new_action_each_time(worlds, config):
    one = jax.tree.map(lambda x: x[0], worlds)
    first, state = arc.RandomAgent().select_action(jax.random.key(0), one, config)
    again, _ = arc.RandomAgent().select_action(jax.random.key(0), one, config)
    second, _ = arc.RandomAgent().select_action(state, one, config)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert jax.tree.leaves(first) != jax.tree.leaves(second)


def test_operations_are_drawn_evenly_among_the_allowed():
    rng = np.random.default_rng(0)
    mask = rng.random((50, 41)) < 0.3
    mask[:, 40] = True
    draw = jax.jit(_nth_allowed)
    for row in mask[:5]:
        count = row.sum()
        uniform = (np.arange(count) + 0.5) / count
        found = draw(jnp.asarray(uniform, jnp.float32), jnp.tile(jnp.asarray(row), (count, 1)))
        np.testing.assert_array_equal(found, np.flatnonzero(row))


def test_a_donating_step_is_the_step_and_its_input_is_dead(worlds, config):
    action = arc.create_bbox_action(3, 0, 0, 1, 1)
    actions = jax.tree.map(lambda x: jnp.full((12,), x), action)
    kept = arc.batch_step(worlds, actions, config)
    given = jax.tree.map(jnp.copy, worlds)
    taken = arc.batch_step_donating(given, actions, config)
    jax.tree.map(np.testing.assert_array_equal, kept, taken)
    assert given.grid.is_deleted()


def test_task_data_replaces_the_tasks_and_must_be_stepped_with(config):
    other = arc.load("examples", tasks=["recolour"]).buffer(config.grid_shape)
    state, _ = arc.arc_reset(jax.random.key(0), config, task_data=other)
    action = arc.create_bbox_action(3, 0, 0, 0, 0)
    *_, wrong = arc.arc_step(state, action, config)
    assert int(wrong.operation_type) == -1
    assert not arc.validate_action_jax(action, state, config)
    *_, right = arc.safe_arc_step(state, action, config.replace(tasks=other))
    assert int(right.operation_type) == 3


@pytest.mark.parametrize(
    ("corners", "message"),
    [
        ((3, 2, 0, 1, 4), "r1=2 lies beyond r2=1"),
        ((3, 0, 5, 1, 4), "c1=5 lies beyond c2=4"),
        ((99, 0, 0, 1, 1), "operation=99"),
        ((3, -1, 0, 1, 1), "r1=-1"),
        ((3, 0, 0.5, 1, 1), "must be an integer"),
    ],
)
def test_a_wrong_box_is_a_plain_error(corners, message):
    with pytest.raises(ValueError, match=message):
        arc.create_bbox_action(*corners)


def test_a_wrong_operation_is_an_error_also_beside_traced_corners():
    with pytest.raises(ValueError, match="operation=99"):
        jax.jit(lambda r: arc.create_bbox_action(99, 0, 0, r, 1))(3)


def test_bounds_are_those_of_the_canvas():
    def holds(*corners):
        return bool(arc.check_bounds_jax(arc.BoxAction(jnp.int32(0), *corners), (4, 6)))

    assert holds(0, 0, 3, 5)
    assert not holds(0, 0, 4, 5)
    assert not holds(0, 0, 3, 6)
    assert not holds(2, 0, 1, 5)
    assert not holds(0, -1, 1, 5)


def test_a_mask_must_cover_the_canvas(worlds, config):
    action = arc.MaskAction(jnp.int32(33), jnp.ones((8, 8), bool))
    one = jax.tree.map(lambda x: x[0], worlds)
    with pytest.raises(ValueError, match=r"selection of shape \(8, 8\)"):
        arc.arc_step(one, action, config)


def test_starts_that_tell_of_the_answer_are_refused_in_evaluation(config):
    for start in ("curriculum", "target_blank"):
        with pytest.raises(ValueError, match="tells of the answer"):
            arc.make_config(config.tasks, evaluation=True, start=start)


def test_a_task_without_test_pairs_makes_a_world_in_which_nothing_is_valid(config):
    counts = jnp.where(jnp.arange(config.tasks.num_tasks) == 4, config.tasks.tests_count, 0)
    some = config.replace(evaluation=True, tasks=config.tasks.replace(tests_count=counts))
    state, _ = arc.batch_reset(jax.random.split(jax.random.key(0), 64), some)
    fill = jax.tree.map(lambda x: jnp.full((64,), x), arc.create_bbox_action(1, 0, 0, 1, 1))
    *_, info = arc.batch_step(state, fill, some)
    works = np.asarray(info.operation_type == 1)
    assert 0 < works.sum() < 64
    np.testing.assert_array_equal(config.tasks.task[state.pair[works]], 4)


def test_worlds_spread_over_devices_play_as_on_one(worlds, config):
    devices = int(np.gcd(jax.device_count(), 12))
    action = jax.tree.map(lambda x: jnp.full((12,), x), arc.create_bbox_action(24, 0, 0, 1, 1))
    part = PartitionSpec(BATCH_AXIS)
    spread = jax.jit(
        jax.shard_map(
            arc.batch_step, mesh=device_mesh(devices), in_specs=(part, part, PartitionSpec()),
            out_specs=part, check_vma=False,
        )
    )  # fmt: skip
    jax.tree.map(
        np.testing.assert_array_equal,
        spread(worlds, action, config), arc.batch_step(worlds, action, config),
    )  # fmt: skip
