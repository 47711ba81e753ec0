"""Worlds pass Gymnasium's own checks, and play singly and in a vector as the pure world does."""

import copy
import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from worldloom import suites
from worldloom.core import draws
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box, Dict, Discrete
from worldloom.core.types import Array, TimeStep

pytest.importorskip("gymnasium", reason="needs worldloom[adapters]")

import gymnasium
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from worldloom.adapters.gymnasium import GymEnv, GymVectorEnv
from worldloom.adapters.gymnasium_values import gym_space

pytestmark = pytest.mark.usefixtures("compiled_once")
MODES = list(AutoresetMode)


# A world that compiles in no time -----------------------------------------------------------------


class Inner(struct.PyTreeNode):
    pull: Array  # float32 (2,)


class Info(struct.PyTreeNode):
    count: Array
    inner: Inner
    lucky: Array


class Seen(struct.PyTreeNode):
    where: Array  # int32, a Discrete
    wind: Array  # float32 (2,)
    signs: Array  # bool (3,)
    nothing: None = None


class Walker(struct.PyTreeNode):
    where: Array
    count: Array
    wind: Array


GOAL, LIMIT = 4, 6


def walk(action=None, take=lambda action: action) -> PureEnv:
    """A walk in the wind: it ends at the goal, and time runs out after a few steps."""

    def see(state, reward, terminated, truncated, lucky):
        obs = Seen(state.where, state.wind, jnp.arange(3) < state.count)
        info = Info(state.count, Inner(state.wind * 2), lucky)
        return TimeStep(obs, reward, terminated, truncated, obs, info)

    def reset(key, params):
        wind = draws.uniform(key, (2,))
        state = Walker(jnp.int32(0), jnp.int32(0), wind)
        no = jnp.asarray(False)
        return state, see(state, jnp.float32(0), no, no, no)

    def step(key, state, action, params):
        drift = draws.uniform(key, (2,))
        lucky = drift[0] > 0.5
        where = state.where + take(action) * lucky
        state = Walker(jnp.clip(where, 0, GOAL), state.count + 1, drift)
        ended = state.where >= params
        return state, see(state, drift[1], ended, state.count >= LIMIT, lucky)

    seen = Dict(
        (
            ("where", Discrete(GOAL + 1)),
            ("wind", Box(0.0, 1.0, (2,))),
            ("signs", Box(0, 1, (3,), "bool")),
        )
    )
    spec = EnvSpec("walk", seen, action or Discrete(3), horizon=LIMIT)
    return PureEnv(spec, lambda: jnp.int32(GOAL), reset, step, None)


@pytest.fixture(scope="module")
def single():
    return GymEnv(walk())


@pytest.fixture(scope="module")
def vectors():
    """One vector of three walks for each way of resetting, made when it is first asked for."""
    made = {}

    def get(mode):
        if mode not in made:
            made[mode] = GymVectorEnv(walk(), 3, autoreset_mode=mode)
        return made[mode]

    return get


def same(ours, theirs, at="") -> None:
    """The same values in the same places; numbers may be wider."""
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), at
        for name in theirs:
            same(ours[name], theirs[name], f"{at}.{name}")
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert ours.dtype == object
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            same(a, b, f"{at}[{i}]")
    else:
        np.testing.assert_array_equal(ours, theirs, err_msg=at)


# Gymnasium's own checks ---------------------------------------------------------------------------


def test_arc_passes_the_checks_without_a_warning(recwarn):
    env = gymnasium.make(
        "worldloom.adapters.gymnasium:worldloom/Arc-v0", tasks="examples", action="flat"
    )
    assert isinstance(env.action_space, spaces.Discrete)
    assert isinstance(env.observation_space, spaces.Dict)
    check_env(env.unwrapped)
    env.close()
    assert not recwarn.list


def test_arc_takes_random_masks():
    env = gymnasium.make("worldloom/Arc-v0", action="mask", max_steps=10, max_trials=-1)
    env.action_space.seed(0)
    obs, info = env.reset(seed=0)
    done = []
    for _ in range(10):
        obs, _, _, truncated, info = env.step(env.action_space.sample())
        assert obs in env.observation_space
        done.append(info["operation_type"])
    assert truncated
    assert len(set(done) - {-1}) > 1  # valid actions among them


def test_a_gridworld_with_one_agent_passes_the_checks(recwarn):
    world = suites.make("treasurehunt", num_agents=1, height=5, width=5, radius=1, horizon=5)
    env = GymEnv(world)
    assert env.observation_space.shape == world.spec.observation.shape
    check_env(env, skip_render_check=True)
    assert not recwarn.list


def test_every_world_that_is_known_can_be_made_by_its_name():
    import worldloom
    from worldloom.adapters.gymnasium import gym_name

    assert gym_name("industrial-benchmark") == "worldloom/IndustrialBenchmark-v0"
    assert {gym_name(name) for name in worldloom.worlds()} <= gymnasium.registry.keys()
    env = gymnasium.make(gym_name("treasurehunt"), num_agents=1, horizon=5)
    assert env.action_space == spaces.Discrete(4)


def test_a_world_registered_later_is_known_to_gymnasium_too(monkeypatch):
    from worldloom.adapters.gymnasium import gym_name

    monkeypatch.setattr(suites, "_REGISTERED", dict(suites._REGISTERED))
    suites.register("late-hunt", lambda: suites.make("treasurehunt", num_agents=1, horizon=5))
    env = gymnasium.make(gym_name("late-hunt"))
    assert env.action_space == spaces.Discrete(4)
    gymnasium.registry.pop(gym_name("late-hunt"))


def test_a_world_of_structs_passes_the_checks(single, recwarn):
    check_env(single, skip_render_check=True)
    assert not recwarn.list


def test_gymnasium_s_wrappers_work_on_it(single, vectors):
    flat = gymnasium.wrappers.FlattenObservation(single)
    obs, _ = flat.reset(seed=0)
    assert obs.shape == (GOAL + 1 + 2 + 3,)
    counted = gymnasium.wrappers.vector.RecordEpisodeStatistics(vectors(AutoresetMode.NEXT_STEP))
    counted.reset(seed=0)
    lengths = []
    for _ in range(20):
        *_, infos = counted.step(np.zeros(3, int))  # standing still: all episodes are full length
        if "episode" in infos:
            lengths += infos["episode"]["l"][infos["_episode"]].tolist()
    assert set(lengths) == {LIMIT}


def test_make_vec_gives_one_compiled_vector():
    env = gymnasium.make_vec(
        "worldloom/Arc-v0", num_envs=4, action="box", max_steps=3, autoreset_mode="SameStep"
    )
    assert isinstance(env, GymVectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    for _ in range(3):
        assert obs in env.observation_space
        obs, rewards, _, truncated, infos = env.step(env.action_space.sample())
    assert truncated.all()
    assert (rewards != 0).all()
    assert [seen["step_count"] for seen in infos["final_obs"]] == [3] * 4
    assert (obs["step_count"] == 0).all()
    assert infos["final_info"]["truncated"].all()
    assert not infos["truncated"].any()


# One world ----------------------------------------------------------------------------------------


def test_the_steps_are_those_of_the_pure_world(single):
    pure, params = single.env, single.params
    obs, info = single.reset(seed=11)
    key, use = draws.split(jax.random.key(11))
    step = jax.jit(pure.step)
    state, timestep = jax.jit(pure.reset)(use, params)
    for action in (1, 2, 0):
        same(obs, {n: getattr(timestep.obs, n) for n in ("where", "wind", "signs")})
        same(info, {"count": timestep.info.count, "inner": {"pull": timestep.info.inner.pull},
                    "lucky": timestep.info.lucky})  # fmt: skip
        obs, reward, terminated, truncated, info = single.step(action)
        key, use = draws.split(key)
        state, timestep = step(use, state, jnp.int32(action), params)
        assert (reward, terminated, truncated) == (timestep.reward, False, False)


def test_the_same_seed_gives_the_same_episodes_and_none_goes_on(single):
    def winds(seed):
        return [single.reset(seed=s)[0]["wind"].tolist() for s in (seed, None, None)]

    first = winds(5)
    assert winds(5) == first
    assert winds(6) != first
    assert first[0] != first[1] != first[2]
    single.reset(seed=2**63)  # Gymnasium's own seeds may be as long as this


def test_termination_and_truncation_stand_apart(single):
    single.reset(seed=0)
    ends = set()
    for action in (0, 2):
        for seed in range(8):
            single.reset(seed=seed)
            terminated = truncated = False
            steps = 0
            while not (terminated or truncated):
                *_, terminated, truncated, _ = single.step(action)
                steps += 1
            ends.add((action, terminated, truncated))
            assert truncated == (steps == LIMIT)
    assert {(0, False, True), (2, True, False)} <= ends
    assert (0, True, False) not in ends


def test_parameters_replace_the_world_s_own():
    env = GymEnv(walk(), jnp.int32(0))
    env.reset(seed=0)
    assert env.step(0)[2] is True


def test_nothing_is_compiled_again(single):
    for seed, action in enumerate((1, np.int64(2), np.int32(0), np.array(1))):
        single.reset(seed=seed)
        single.step(action)
    assert single._step._cache_size() == single._reset._cache_size() == 1


def test_observations_are_the_callers_to_change(single):
    obs, _ = single.reset(seed=0)
    before = copy.deepcopy(obs)
    obs["wind"][:] = 9
    again, _ = single.reset(seed=0)
    assert not (again["wind"] == 9).any()
    same(again, before)


@pytest.mark.parametrize("action", [3, -1, 1.0, [1], None])
def test_actions_outside_of_the_space_are_refused(single, action):
    single.reset(seed=0)
    with pytest.raises(ValueError, match=r"whole numbers from 0 to 2|has shape \(1,\); it must"):
        single.step(action)


def test_a_dict_action_needs_its_names():
    moves = Dict((("left", Discrete(2)), ("right", Discrete(3))))
    env = GymEnv(walk(moves, take=lambda action: action["right"] - action["left"]))
    env.reset(seed=0)
    env.step({"left": 0, "right": 2})
    with pytest.raises(ValueError, match=r"a dict of left, right, not \['left'\]"):
        env.step({"left": 0})
    with pytest.raises(ValueError, match=r"right: got the action 3; .* from 0 to 2"):
        env.step({"left": 0, "right": 3})


def test_an_episode_must_begin_and_ends_once(single):
    fresh = GymEnv(walk())
    with pytest.raises(ValueError, match=r"has not begun; call reset\(\) first"):
        fresh.step(0)
    single.reset(seed=0)
    for _ in range(LIMIT):
        single.step(0)
    with pytest.raises(ValueError, match=r"the episode is over.*call reset\(\) first"):
        single.step(0)


def test_unit_actions_are_stretched_to_the_world_s_range():
    felt = []

    def take(action):
        jax.debug.callback(lambda x: felt.append(x.tolist()), action)
        return jnp.int32(0)

    env = GymEnv(walk(Box(-2.0, 6.0, (2,)), take), unit_actions=True)
    assert env.action_space == spaces.Box(-1, 1, (2,), np.float32)
    env.reset(seed=0)
    env.step(np.array([-1.0, 0.5]))
    jax.effects_barrier()
    assert felt == [[-2.0, 4.0]]


# Many worlds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_is_as_many_single_worlds(single, vectors, mode):
    ours = vectors(mode)
    theirs = SyncVectorEnv([lambda: copy.copy(single)] * 3, autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    for a, b in zip(ours.reset(seed=3), theirs.reset(seed=3), strict=True):
        same(a, b)
    rng, ends = np.random.default_rng(0), np.zeros(2, int)
    for _ in range(40):
        actions = rng.integers(3, size=3)
        mine, other = ours.step(actions), theirs.step(actions)
        for a, b in zip(mine, other, strict=True):
            same(a, b)
        assert mine[0] in ours.observation_space
        assert all(a.dtype == b.dtype for a, b in zip(mine[1:4], other[1:4], strict=True))
        ends += mine[2].sum(), mine[3].sum()
        over = mine[2] | mine[3]
        if mode is AutoresetMode.DISABLED and over.any():
            mask = {"reset_mask": over}
            mine, other = ours.reset(options=dict(mask)), theirs.reset(options=dict(mask))
            same(mine[0], other[0])
            same(mine[1], other[1])
    assert ends.min() > 2  # both kinds of end were met


def test_each_world_can_have_a_seed_of_its_own(vectors):
    env = vectors(AutoresetMode.DISABLED)
    first, _ = env.reset(seed=[7, 8, 9])
    again, _ = env.reset(seed=[9, None, 7])
    np.testing.assert_array_equal(again["wind"][[2, 0]], first["wind"][[0, 2]])
    assert not np.array_equal(again["wind"][1], first["wind"][1])
    one, _ = env.reset(seed=[1, 1, 1], options={"reset_mask": np.array([False, True, False])})
    np.testing.assert_array_equal(one["wind"][[0, 2]], again["wind"][[0, 2]])
    assert not np.array_equal(one["wind"][1], again["wind"][1])


def test_a_vector_compiles_nothing_again(vectors):
    env = vectors(AutoresetMode.SAME_STEP)
    for seed in range(2):
        env.reset(seed=seed)
        for actions in (np.zeros(3, int), np.ones(3, np.int32), [0, 1, 2]):
            env.step(actions)
    assert env._step._cache_size() == env._renew._cache_size() == 1


def test_bad_use_of_a_vector_is_refused(vectors):
    env = vectors(AutoresetMode.DISABLED)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"shape \(2,\); it must have \(3,\)"):
        env.step([0, 0])
    with pytest.raises(ValueError, match="2 seeds for 3 worlds"):
        env.reset(seed=[1, 2])
    with pytest.raises(ValueError, match=r"reset_mask must be bool \(3,\)"):
        env.reset(options={"reset_mask": np.zeros(3, bool)})
    for _ in range(LIMIT):
        env.step([0, 0, 0])
    with pytest.raises(ValueError, match=r"worlds \[0, 1, 2\] are over; reset them first"):
        env.step([0, 0, 0])
    with pytest.raises(ValueError, match="there are no worlds yet"):
        GymVectorEnv(walk(), 2).step([0, 0])
    with pytest.raises(ValueError, match="num_envs=0; it must be at least 1"):
        GymVectorEnv(walk(), 0)


# Spaces and pictures ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Discrete(4), spaces.Discrete(4)),
        (Discrete(4, (2,)), spaces.MultiDiscrete([4, 4], np.int32)),
        (Box(-1.0, 2.0, (3,)), spaces.Box(-1, 2, (3,), np.float32)),
        (Box(0, 9, (2, 2), "int8"), spaces.Box(0, 9, (2, 2), np.int8)),
        (Box(0, 1, (2, 2), "bool"), spaces.MultiBinary((2, 2))),
        (Box(0, 1, (), "bool"), spaces.Box(0, 1, (), np.int8)),
        (
            Dict((("a", Dict((("b", Discrete(2)),))),)),
            spaces.Dict(a=spaces.Dict(b=spaces.Discrete(2))),
        ),
    ],
)
def test_spaces_are_translated(ours, theirs):
    assert gym_space(ours) == theirs


def test_worlds_are_drawn_by_the_renderers_given():
    renderers = {"ansi": lambda state, goal: f"{int(state.where)} of {int(goal)}"}
    env = GymEnv(walk(), render_mode="ansi", renderers=renderers)
    assert env.metadata["render_modes"] == ["ansi"]
    with pytest.raises(ValueError, match=r"nothing to draw yet; call reset\(\) first"):
        env.render()
    env.reset(seed=0)
    assert env.render() == "0 of 4"
    vector = GymVectorEnv(walk(), 2, render_mode="ansi", renderers=renderers)
    vector.reset(seed=0)
    assert vector.render() == ("0 of 4", "0 of 4")
    assert GymEnv(walk()).render() is None
    with pytest.raises(ValueError, match="walk cannot be rendered as 'human'; it has ansi"):
        GymEnv(walk(), render_mode="human", renderers=renderers)
    with pytest.raises(ValueError, match="give renderers for it"):
        GymEnv(walk(), render_mode="ansi")


def test_worlds_of_several_agents_are_refused():
    with pytest.raises(ValueError, match=r"treasurehunt has 5 agents .*adapters\.pettingzoo"):
        GymEnv(suites.make("treasurehunt"))


def test_without_gymnasium_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "worldloom.adapters.gymnasium")
    with pytest.raises(ImportError, match=r"pip install 'worldloom\[adapters\]'"):
        importlib.import_module("worldloom.adapters.gymnasium")
