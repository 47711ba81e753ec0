"""Worlds in the Stoa interface, under Stoa's own wrappers."""

import importlib
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import suites
from worldloom.adapters.single_agent import as_dict
from worldloom.suites.arc import pack_tasks
from worldloom.suites.arc.operations import SUBMIT
from worldloom.suites.arc.tasks import Pair, Task
from worldloom.suites.arc.world import make

pytest.importorskip("stoa", reason="needs worldloom[stoa]")

import stoa
from stoa.core_wrappers.auto_reset import CachedAutoResetWrapper
from stoa.core_wrappers.vmap import VmapWrapper

from worldloom.adapters.stoa import BinarySpace, StoaEnv, stoa_space
from worldloom.core.spaces import Box, Dict, Discrete

pytestmark = pytest.mark.usefixtures("compiled_once")
# Little is run, so compile quickly.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
CELLS, LIMIT, WORLDS, STEPS = 9, 4, 6, 40
ROWS = np.arange(9, dtype=np.int8).reshape(3, 3)
TASKS = [Task(str(i), (Pair(ROWS, np.roll(ROWS, i)),), ()) for i in (1, 2)]
FIRST, MID, TERMINATED, TRUNCATED = range(4)


def allowed(obs):
    return jnp.repeat(obs.operation_mask, CELLS)


@pytest.fixture(scope="module")
def pure():
    return make(pack_tasks(TASKS), max_steps=LIMIT, max_trials=1, operations=[*range(10), SUBMIT])


@pytest.fixture(scope="module")
def env(pure):
    return StoaEnv(pure, action_mask=allowed)


def plays(env, key, sample):
    """A reset and many random steps of a Stoa environment: the first time step and the others."""

    def run(key):
        reset_key, play_key = jax.random.split(key)
        state, first = env.reset(reset_key)

        def one(state, key):
            action = sample(key)
            state, timestep = env.step(state, action)
            return state, (timestep, action)

        return first, *jax.lax.scan(one, state, jax.random.split(play_key, STEPS))[1]

    return jax.device_get(quick_jit(run)(key))


@pytest.fixture(scope="module")
def functions(env):
    return quick_jit(env.reset), quick_jit(env.step)


@pytest.fixture(scope="module")
def wrapped(env):
    """Several worlds under the wrappers that Stoix puts around one."""
    inner = stoa.RecordEpisodeMetrics(stoa.AddActionMaskWrapper(env))
    many = VmapWrapper(stoa.AutoResetWrapper(inner, next_obs_in_extras=True), WORLDS)
    sample = many.action_space().sample
    return plays(many, jax.random.key(0), lambda k: jax.vmap(sample)(jax.random.split(k, WORLDS)))


def test_truncation_keeps_the_discount_and_termination_ends_it(wrapped):
    first, steps, _ = wrapped
    assert (first.step_type == FIRST).all()
    assert (first.discount == 1).all()
    assert set(np.unique(steps.step_type)) == {MID, TERMINATED, TRUNCATED}
    assert (steps.discount == (steps.step_type != TERMINATED)).all()
    assert steps.step_type.dtype == np.int8
    assert steps.discount.dtype == steps.reward.dtype == np.float32


def test_what_the_world_says_is_in_the_extras(wrapped):
    first, steps, _ = wrapped
    extras = steps.extras
    assert set(first.extras) == set(extras)
    assert (extras["terminated"] == (steps.step_type == TERMINATED)).all()
    late = extras["truncated"] & ~extras["terminated"]
    assert (late == (steps.step_type == TRUNCATED)).all()
    assert (extras["operation_type"] == -1).any()  # not all operations are allowed


def test_automatic_reset_shows_the_new_episode_and_keeps_the_last_observation(wrapped):
    _, steps, _ = wrapped
    over = steps.step_type >= TERMINATED
    seen = steps.observation["observation"]["step_count"]
    last = steps.extras["next_obs"]["observation"]["step_count"]
    assert (seen[over] == 0).all()
    assert (last == steps.extras["step_count"]).all()
    assert (seen[~over] == last[~over]).all()


def test_episode_metrics_agree_with_the_rewards(wrapped):
    _, steps, _ = wrapped
    metrics = steps.extras["episode_metrics"]
    for world in range(WORLDS):
        begin = 0
        for end in np.flatnonzero(metrics["is_terminal_step"][:, world]):
            assert metrics["episode_length"][end, world] == end + 1 - begin <= LIMIT
            total = steps.reward[begin : end + 1, world].sum()
            assert metrics["episode_return"][end, world] == pytest.approx(total, abs=1e-5)
            begin = end + 1
        assert begin > 0


def test_the_action_mask_says_what_is_invalid(wrapped):
    first, steps, actions = wrapped
    before = np.concatenate(
        [first.observation["action_mask"][None], steps.observation["action_mask"][:-1]]
    )
    valid = np.take_along_axis(before, actions[..., None], axis=-1)[..., 0]
    assert (valid == (steps.extras["operation_type"] >= 0)).all()
    assert valid.any()
    assert not valid.all()


def same(ours, theirs):
    assert jax.tree.all(jax.tree.map(np.array_equal, ours, theirs))


def test_the_steps_are_those_of_the_pure_world(pure, env, functions):
    reset, step = functions
    params, action = pure.default_params(), jnp.int32(5 * CELLS + 4)
    state, first = reset(jax.random.key(4))
    reset_key, state_key = jax.random.split(jax.random.key(4))
    inner, expected = quick_jit(pure.reset)(reset_key, params)
    same(first.observation, as_dict(expected.obs))
    state, timestep = step(state, action)
    inner, expected = quick_jit(pure.step)(state_key, inner, action, params)
    same(timestep.observation, as_dict(expected.obs))
    same(state.base_env_state, inner)
    assert timestep.reward == expected.reward != 0
    assert env.observation_space().contains(timestep.observation)


def test_keys_of_the_old_kind_give_the_same_worlds(env, functions):
    reset, _ = functions
    new, first = reset(jax.random.key(4))
    old, again = reset(jax.random.PRNGKey(4))
    same(first, again)
    same(new.base_env_state, old.base_env_state)
    same(jax.random.key_data(new.rng_key), old.rng_key)
    after, _ = jax.eval_shape(env.step, old, jnp.int32(0))
    assert after.rng_key.dtype == old.rng_key.dtype


def test_parameters_given_to_a_call_replace_the_world_s_own(pure, functions):
    reset, step = functions
    harsh = pure.default_params().replace(step_penalty=-3.0, max_steps=1)
    state, _ = reset(jax.random.key(0), harsh)
    _, timestep = step(state, jnp.int32(0), harsh)  # fills the one cell that is 0 already
    assert timestep.reward == -3
    assert timestep.step_type == TRUNCATED
    assert StoaEnv(pure, harsh).params is harsh


def test_cached_resets_and_step_limits_work_too():
    world = suites.make("treasurehunt", num_agents=1, height=5, width=5, radius=1, horizon=9)
    env = StoaEnv(world)
    assert env.observation_space().shape == world.spec.observation.shape
    limited = stoa.EpisodeStepLimitWrapper(stoa.FlattenObservationWrapper(env), 3)
    many = VmapWrapper(CachedAutoResetWrapper(limited), 2)
    sample = env.action_space().sample
    first, steps, _ = plays(
        many, jax.random.key(1), lambda k: jax.vmap(sample)(jax.random.split(k, 2))
    )
    assert first.observation.shape == (2, world.spec.observation.shape[0] * 5 * 9)
    over = np.arange(1, STEPS + 1) % 3 == 0
    assert (steps.step_type == np.where(over, TRUNCATED, MID)[:, None]).all()
    assert (steps.discount == 1).all()
    assert (steps.observation[over] == first.observation).all()


def test_all_spaces_of_an_environment_can_be_asked_for(env):
    whole = env.environment_space()
    state, timestep = jax.eval_shape(env.reset, jax.random.key(0))
    arrays = {
        "observations": timestep.observation,
        "state": as_dict(state.base_env_state),
        "rewards": timestep.reward,
        "discounts": timestep.discount,
    }
    for name, expected in arrays.items():
        space = getattr(whole, name)
        kinds = jax.tree.map(lambda x: (x.shape, x.dtype), expected)
        parts = space.spaces if isinstance(space, stoa.DictSpace) else None
        found = (
            (space.shape, space.dtype)
            if parts is None
            else {part: (s.shape, s.dtype) for part, s in parts.items()}
        )
        assert found == kinds, name
    assert whole.actions == stoa.DiscreteSpace(35 * CELLS, jnp.int32)
    drawn = jax.eval_shape(whole.observations.generate_value)
    assert drawn == timestep.observation


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Discrete(4), stoa.DiscreteSpace(4, jnp.int32)),
        (Discrete(4, (2,)), stoa.MultiDiscreteSpace([4, 4], jnp.int32)),
        (Box(-1.0, 2.0, (3,)), stoa.BoundedArraySpace((3,), jnp.float32, -1.0, 2.0)),
        (Box(0, 1, (2,), "bool"), BinarySpace((2,))),
        (Dict((("a", Discrete(2)),)), stoa.DictSpace({"a": stoa.DiscreteSpace(2, jnp.int32)})),
    ],
)
def test_spaces_are_translated_and_contain_their_samples(ours, theirs):
    space = stoa_space(ours)
    assert type(space) is type(theirs)
    assert space == theirs
    samples = [space.sample(jax.random.key(i)) for i in range(8)]
    assert all(space.contains(sample) for sample in samples)
    assert len({str(sample) for sample in samples}) > 1


def test_a_picture_of_the_state(env, functions):
    state, _ = functions[0](jax.random.key(0))
    assert env.render(state).shape == (24, 24, 3)


def test_worlds_of_several_agents_are_refused():
    with pytest.raises(
        ValueError, match=r"StoaEnv: tag has . agents and this interface is for one"
    ):
        StoaEnv(suites.make("tag"))


def test_without_stoa_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "stoa", None)
    monkeypatch.delitem(sys.modules, "worldloom.adapters.stoa")
    with pytest.raises(ImportError, match=r"pip install 'worldloom\[stoa\]'"):
        importlib.import_module("worldloom.adapters.stoa")
