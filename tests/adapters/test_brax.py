"""Worlds as environments of Brax: under Brax's own wrappers, and under ours."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import Array, TimeStep

pytest.importorskip("brax", reason="needs worldloom[robot]")

from worldloom import suites
from worldloom.adapters import brax, brax_ppo
from worldloom.adapters.brax import BraxEnv, wrap_for_training
from worldloom.adapters.brax_compat import quiet_import
from worldloom.suites.robot.brax_env import BraxWildRobotWrapper

with quiet_import():
    from brax import envs
    from brax.envs import training
    from brax.envs.base import Env

pytestmark = pytest.mark.usefixtures("compiled_once")
EDGE, LIMIT, WORLDS = 1.0, 6, 5


# A world that compiles in no time: a cart that must not roll off a table -------------------------


class Cart(struct.PyTreeNode):
    place: Array
    count: Array


class CartInfo(struct.PyTreeNode):
    lucky: Array
    path: Array  # (2,): no scalar, and so no metric
    size: Array


def cart(action=None, observe=lambda obs: obs, limit=LIMIT) -> PureEnv:
    action = action or Box(-0.5, 0.5, (1,))

    def see(state, reward, terminated, truncated, lucky):
        obs = observe(jnp.stack([state.place, state.count.astype(jnp.float32)]))
        info = CartInfo(lucky, obs if obs.ndim == 1 else obs[0], jnp.abs(state.place))
        return TimeStep(obs, reward, terminated, truncated, obs, info)

    def reset(key, params):
        state = Cart(draws.uniform(key) - 0.5, jnp.int32(0))
        no = jnp.asarray(False)
        return state, see(state, jnp.float32(0), no, no, no)

    def step(key, state, action, params):
        noise = draws.uniform(key)
        state = Cart(state.place + action[0] + params["wind"] * noise, state.count + 1)
        fell = jnp.abs(state.place) > EDGE
        return state, see(state, 1.0 - jnp.abs(state.place), fell,
                          (state.count >= limit) & ~fell, noise > 0.5)  # fmt: skip

    spec = EnvSpec("cart", Box(-9.0, 9.0, (2,)), action, horizon=limit)
    return PureEnv(spec, lambda: {"wind": jnp.float32(0.01)}, reset, step, None)


def keys(count=WORLDS, seed=0):
    return jax.random.split(jax.random.PRNGKey(seed), count)


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def played(env, state, actions):
    """All states from `state` on, (T, ...), under actions (T, ...)."""

    def one(state, action):
        state = env.step(state, action)
        return state, state

    return jax.jit(lambda state, actions: jax.lax.scan(one, state, actions)[1])(state, actions)


@pytest.fixture(scope="module")
def biped():
    return suites.make(
        "biped", task="push", physics="c", horizon=6, randomise=1.0, noise=1.0, threads=1,
        command=(0.1, 0.3), push_pause=(1, 4), push_steps=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def actions(biped):
    shape = (9, WORLDS, *biped.spec.action.shape)
    return jax.random.uniform(jax.random.key(1), shape, minval=-1.2, maxval=1.2)


@pytest.fixture(scope="module")
def ours(biped, actions):
    """Two episodes and a half of the biped in `wrap_for_training`: the first state, and all."""
    env = wrap_for_training(BraxWildRobotWrapper(biped), 1000, 1)
    state = jax.jit(env.reset)(keys())
    return state, played(env, state, jnp.concatenate([actions, actions[:5]]))


@pytest.fixture(scope="module")
def braxs(biped, actions):
    """The same in Brax's own wrappers, whose clock runs out when the world's would."""
    env = training.wrap(BraxWildRobotWrapper(biped), episode_length=6)
    state = jax.jit(env.reset)(keys())
    return state, played(env, state, actions)


# One world ----------------------------------------------------------------------------------------


def test_a_world_is_what_brax_asks_for(biped):
    env = BraxWildRobotWrapper(biped)
    assert isinstance(env, Env)
    sizes = dict(biped.spec.observation.items)
    assert env.observation_size == {name: sizes[name].shape for name in sizes}
    assert (env.action_size, env.backend) == (biped.spec.action.shape[0], "c")
    state = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    assert set(state.obs) == {"state", "privileged_state"}
    plain = BraxEnv(cart())
    assert (plain.observation_size, plain.action_size, plain.backend) == (2, 1, "jax")


def test_options_of_the_biped_make_a_world():
    env = BraxWildRobotWrapper({"task": "stand", "physics": "c", "horizon": 7, "threads": 1})
    assert env.world.spec.name.endswith("stand")
    assert env.world.spec.horizon == 7
    assert BraxWildRobotWrapper().world.spec.name == "biped-walk"


def test_the_wrapper_is_found_where_it_used_to_be():
    assert brax.BraxWildRobotWrapper is BraxWildRobotWrapper
    with pytest.raises(AttributeError, match="no attribute 'BraxHumanoid'"):
        brax.BraxHumanoid  # noqa: B018


def test_brax_knows_the_biped_by_name():
    env = envs.get_environment("worldloom_biped", task="stand", physics="c", horizon=7, threads=1)
    assert isinstance(env, BraxWildRobotWrapper)
    assert (env.world.spec.horizon, env.backend) == (7, "c")
    many = envs.create(
        "worldloom_biped", episode_length=5, batch_size=2, task="stand", physics="c", threads=1
    )
    state = jax.eval_shape(many.reset, jax.random.PRNGKey(0))
    assert state.obs["state"].shape == (2, *env.observation_size["state"])


@pytest.mark.parametrize("wrap", [None, training.wrap, wrap_for_training])
@pytest.mark.parametrize("world", ["cart", "biped"])
def test_reset_and_step_have_one_structure(wrap, world, biped):
    env = BraxEnv(cart()) if world == "cart" else BraxWildRobotWrapper(biped)
    lead = () if wrap is None else (WORLDS,)
    env = env if wrap is None else wrap(env, episode_length=5, action_repeat=1)
    first = jax.eval_shape(env.reset, keys() if lead else keys()[0])
    action = jax.ShapeDtypeStruct((*lead, env.action_size), jnp.float32)
    after = jax.eval_shape(env.step, first, action)
    assert shapes(first) == shapes(after)
    assert jax.tree.structure(first) == jax.tree.structure(after)
    scalars = (first.reward, first.done, first.info["truncation"], *first.metrics.values())
    assert all((x.shape, x.dtype) == (lead, jnp.float32) for x in scalars)
    assert all(not x.weak_type for x in jax.tree.leaves(first))


def test_what_wrappers_keep_stays(biped):
    env = BraxEnv(cart())
    state = env.reset(keys()[0])
    state.info["mine"], state.metrics["reward"] = jnp.float32(3.0), jnp.float32(4.0)
    after = env.step(state, jnp.zeros(1))
    assert (after.info["mine"], after.metrics["reward"]) == (3.0, 4.0)
    assert "truncation" in after.info


def test_keys_of_both_kinds_lead_to_the_same_episode():
    env = BraxEnv(cart())
    old, new = env.reset(jax.random.PRNGKey(7)), env.reset(jax.random.key(7))
    jax.tree.map(np.testing.assert_array_equal, old, new)
    many = wrap_for_training(env, 10)
    typed = jax.random.split(jax.random.key(7), 3)
    jax.tree.map(
        np.testing.assert_array_equal, many.reset(typed), many.reset(jax.random.key_data(typed))
    )


def test_the_end_of_the_task_is_apart_from_the_end_of_time():
    env = BraxEnv(cart())
    state = env.reset(keys()[0])
    still = played(env, state, jnp.zeros((LIMIT + 1, 1)))
    assert still.done.sum() == 0
    np.testing.assert_array_equal(still.info["truncation"], [0, 0, 0, 0, 0, 1, 1])
    away = played(env, state, jnp.ones((LIMIT, 1)))
    assert away.done[-1] == 1
    assert away.info["truncation"].sum() == 0


def test_actions_are_stretched_to_the_box():
    env = BraxEnv(cart(), params={"wind": jnp.float32(0.0)})
    state = env.reset(keys()[0])
    moved = env.step(state, jnp.array([0.5])).pipeline_state.place - state.pipeline_state.place
    np.testing.assert_allclose(moved, 0.25, rtol=1e-5)


def test_metrics_of_any_world_are_the_scalars_of_its_info():
    env = BraxEnv(cart())
    assert env.metric_names == ("lucky", "size")
    state = env.step(env.reset(keys()[0]), jnp.zeros(1))
    assert state.metrics["size"] == jnp.abs(state.pipeline_state.place)


def test_metrics_of_a_robot_are_its_reward_in_parts_and_its_gait(biped, ours):
    _, states = ours
    names = {f"reward/{term}" for term in biped.base.task.terms}
    gait = {"velocity_per_step", "command_error_per_step", "height_per_step", "fell", "diverged"}
    assert set(states.metrics) == names | gait
    parts = sum(np.asarray(states.metrics[name]) for name in names)
    np.testing.assert_allclose(parts, states.reward, atol=1e-6)
    assert np.ptp(states.reward) > 0


# Many worlds --------------------------------------------------------------------------------------


def own_trajectory(env, key_words, actions, params):
    """The world itself, one key chain for each: what all wrappings must amount to."""
    both = jax.vmap(draws.split)

    def reset(chain):
        pair = both(chain)
        return pair[:, 0], *env.reset_many(pair[:, 1], params)

    def one(carry, action):
        chain, state = carry
        pair = both(chain)
        state, timestep = env.step_many(pair[:, 1], state, action, params)
        return (pair[:, 0], state), (state, timestep)

    chain, state, _ = reset(jax.random.wrap_key_data(key_words))
    return jax.lax.scan(one, (chain, state), actions)[1]


def test_a_trajectory_is_that_of_the_world_itself(biped, actions, ours, braxs):
    params = biped.default_params()
    run = jax.jit(functools.partial(own_trajectory, biped))
    states, timesteps = run(keys(), actions[:5], params)
    for _, wrapped in (ours, braxs):
        wrapped = jax.tree.map(lambda x: x[:5], wrapped)
        going = np.cumprod(1 - np.asarray(wrapped.done), axis=0).astype(bool)
        assert going.sum() > 10
        for a, b in zip(
            jax.tree.leaves((wrapped.pipeline_state, wrapped.obs["state"], wrapped.reward)),
            jax.tree.leaves((states, timesteps.obs.state, timesteps.reward)),
            strict=True,
        ):
            a, b = np.asarray(a)[going], np.asarray(b)[going]
            if a.dtype == np.float32:  # the same mathematics in two programs: equal to rounding
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_brax_and_we_play_the_same_first_episode(ours, braxs):
    def part(states):
        return states.reward[:6], states.done[:6], states.info["truncation"][:6]

    for a, b in zip(part(ours[1]), part(braxs[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_braxs_automatic_reset_restores_clock_command_and_last_action(braxs):
    first, states = braxs
    ended = np.asarray(states.done[5]) == 1
    assert ended.any()
    now = jax.tree.map(lambda x: np.asarray(x[5])[ended], states.pipeline_state)
    begin = jax.tree.map(lambda x: np.asarray(x)[ended], first.pipeline_state)
    jax.tree.map(np.testing.assert_array_equal, now, begin)
    assert (np.asarray(states.pipeline_state.episode.step[6])[ended] == 1).all()
    # The luck of the second episode is another: its key was not restored.
    assert (np.asarray(states.info["rng"][5]) != np.asarray(first.info["rng"])).any(-1).all()


def test_time_running_out_under_braxs_clock_is_no_fall(braxs):
    _, states = braxs
    late = (np.asarray(states.info["steps"]) == 6) & (np.asarray(states.metrics["fell"]) == 0)
    assert late.any()
    assert (np.asarray(states.done)[late] == 1).all()
    assert (np.asarray(states.info["truncation"])[late] == 1).all()


def test_braxs_ppo_finds_what_it_bootstraps_from(braxs):
    """`bootstrap_on_timeout` reads info["time_out"], under Brax's own wrappers too."""
    env = training.EpisodeWrapper(training.VmapWrapper(BraxEnv(cart(limit=3))), 10, 1)
    state, step = env.reset(jax.random.split(jax.random.PRNGKey(0), WORLDS)), jax.jit(env.step)
    for expected in (0.0, 0.0, 1.0):
        state = step(state, jnp.zeros((WORLDS, 1)))
        running = np.asarray(state.done) == 0
        assert (np.asarray(state.info["time_out"])[running] == expected).all()
    assert running.any()
    assert braxs[1].info["time_out"].shape == braxs[1].done.shape


def test_each_episode_of_ours_begins_anew(ours):
    first, states = ours
    ends = np.asarray(states.done) == 1
    assert ends.sum() >= 2 * WORLDS
    episode = jax.tree.map(np.asarray, states.pipeline_state.episode)
    assert (episode.step[ends] == 0).all()
    assert (episode.action[ends] == 0).all()
    commands = np.r_[first.pipeline_state.episode.command, episode.command[ends]][:, 0]
    assert len(np.unique(commands)) == len(commands)
    frictions = np.asarray(states.pipeline_state.domain.dynamics.friction)[ends]
    assert len(np.unique(frictions)) == len(frictions)
    counted = np.where(ends[:-1], 1, episode.step[:-1] + 1)
    np.testing.assert_array_equal(episode.step[1:][~ends[1:]], counted[~ends[1:]])


def test_what_is_seen_after_a_reset_is_the_new_world(biped, ours):
    """The command is the third last number that a policy sees."""
    _, states = ours
    ends = np.asarray(states.done) == 1
    commands = np.asarray(states.obs["state"])[ends][:, -3]
    asked = np.asarray(states.pipeline_state.episode.command)[ends][:, 0]
    np.testing.assert_allclose(commands, asked)


def test_the_counts_of_episodes_are_those_of_brax():
    world = BraxEnv(cart(limit=1000))
    moves = jax.random.uniform(jax.random.key(0), (20, WORLDS, 1), minval=-1.0, maxval=1.0)
    ours = wrap_for_training(world, episode_length=4)
    theirs = training.EpisodeWrapper(training.VmapWrapper(world), 4, 1)  # without automatic reset
    a = played(ours, ours.reset(keys()), moves)
    b = played(theirs, theirs.reset(keys()), moves[:4])
    until = np.asarray(b.done).argmax(0)
    for w, t in enumerate(until):
        for name in ("truncation", "steps", "episode_done"):
            np.testing.assert_array_equal(a.info[name][: t + 1, w], b.info[name][: t + 1, w])
        assert set(a.info["episode_metrics"]) == set(b.info["episode_metrics"])
        for name, total in b.info["episode_metrics"].items():
            np.testing.assert_allclose(
                a.info["episode_metrics"][name][: t + 1, w], total[: t + 1, w], rtol=1e-5
            )
    # Later episodes are counted from zero, and their totals are of themselves alone.
    done, rewards = np.asarray(a.done), np.asarray(a.reward)
    for w in range(WORLDS):
        ends = np.flatnonzero(done[:, w])
        for begin, end in zip(np.r_[0, ends[:-1] + 1], ends, strict=True):
            assert a.info["steps"][end, w] == end + 1 - begin
            np.testing.assert_allclose(
                a.info["episode_metrics"]["sum_reward"][end, w], rewards[begin : end + 1, w].sum(),
                rtol=1e-5,
            )  # fmt: skip


def test_the_shorter_of_two_clocks_counts():
    moves = jnp.zeros((12, WORLDS, 1))
    for limit, length, expected in ((6, 1000, 6), (1000, 4, 4)):
        env = wrap_for_training(BraxEnv(cart(limit=limit)), episode_length=length)
        states = played(env, env.reset(keys()), moves)
        first = np.asarray(states.done).argmax(0) + 1
        assert (first == expected).all()
        late = np.asarray(states.done) == 1
        np.testing.assert_array_equal(states.info["truncation"], late)
        np.testing.assert_array_equal(states.info["time_out"], late)


def test_a_repeated_action_stops_with_the_episode():
    world = BraxEnv(cart(), params={"wind": jnp.float32(0.0)})
    env = wrap_for_training(world, episode_length=1000, action_repeat=4)
    first = env.reset(keys())
    away = jax.jit(env.step)(first, jnp.full((WORLDS, 1), 0.8))  # 0.4 each step, to the right
    start = np.asarray(first.pipeline_state.place)
    needed = np.minimum(np.floor((EDGE - start) / 0.4) + 1, 4)
    assert len(np.unique(needed)) > 1
    np.testing.assert_array_equal(away.info["steps"], needed)
    np.testing.assert_array_equal(away.done, 1)
    steps = np.arange(1, 5)
    paid = np.where(steps <= needed[:, None], 1 - np.abs(start[:, None] + 0.4 * steps), 0)
    rewards = paid.sum(1)
    np.testing.assert_allclose(away.reward, rewards, atol=1e-5)
    counts = np.asarray(away.pipeline_state.count)
    assert (counts == 0).all()


def test_worlds_can_differ_in_their_params_under_both_wrappings():
    def differ(params):
        return {"wind": jnp.arange(WORLDS) * 0.01 * (params["wind"] > 0)}, {"wind": 0}

    moves = jnp.zeros((5, WORLDS, 1))
    ends = []
    for wrap in (training.wrap, wrap_for_training):
        env = wrap(BraxEnv(cart()), episode_length=9, randomization_fn=differ)
        states = played(env, jax.jit(env.reset)(keys()), moves)
        ends.append(np.asarray(states.pipeline_state.place))
    np.testing.assert_allclose(*ends, rtol=1e-6)
    drift = ends[0][-1] - ends[0][0]
    assert drift[0] == 0
    assert (drift[1:] > 0).all()


def test_a_fresh_start_goes_with_the_params_of_its_world():
    def differ(params):
        return {"wind": jnp.where(jnp.arange(WORLDS) == 2, 5.0, 0.0)}, {"wind": 0}

    env = wrap_for_training(BraxEnv(cart()), episode_length=9, randomization_fn=differ)
    states = played(env, env.reset(keys()), jnp.zeros((3, WORLDS, 1)))
    fell = np.asarray(states.done).sum(0)
    assert fell[2] >= 1
    assert fell.sum() == fell[2]


TWO_DEVICES = """
import jax, numpy as np
from worldloom.adapters.brax import BraxWildRobotWrapper, wrap_for_training
env = BraxWildRobotWrapper({"task": "stand", "physics": "c", "threads": 1})
env = wrap_for_training(env, 1000, 1)
keys = jax.random.split(jax.random.PRNGKey(0), 4)
actions = jax.random.uniform(jax.random.PRNGKey(1), (5, 4, env.action_size), minval=-1.0)

def run(keys, actions):
    return jax.lax.scan(lambda s, a: (env.step(s, a),) * 2, env.reset(keys), actions)[1]

one = jax.jit(run)(keys, actions)
split = actions.reshape(5, 2, 2, -1).swapaxes(0, 1)
two = jax.pmap(run)(keys.reshape(2, 2, 2), split)
assert jax.device_count() == 2 and np.unique(one.reward).size == 20
for a, b in ((one.pipeline_state.physics.full, two.pipeline_state.physics.full),):
    b = np.asarray(b).swapaxes(0, 1).reshape(a.shape)
    a, b = (np.ascontiguousarray(x).view(np.float64) for x in (np.asarray(a), b))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
print("same on two devices")
"""


@pytest.mark.slow
def test_the_c_engine_plays_the_same_on_two_devices(tmp_path):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES],
        env=os.environ | flags, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert "same on two devices" in done.stdout, done.stderr[-2000:]


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action",
    [
        Discrete(3),
        Box(-1.0, 1.0, (2, 2)),
        Box(-np.inf, np.inf, (1,)),
        Box(0, 3, (1,), "int32"),
    ],
)
def test_an_action_that_brax_cannot_give_is_refused(action):
    with pytest.raises(ValueError, match=r"cart has the action .*finite Box"):
        BraxEnv(cart(action))


def test_an_observation_that_is_no_vector_is_refused():
    with pytest.raises(ValueError, match="the observation of cart is not a vector"):
        BraxEnv(cart(observe=lambda obs: obs[None]))


def test_other_environments_keep_their_own_wrappers():
    class Other(Env):
        reset = step = observation_size = action_size = backend = None

    with pytest.raises(ValueError, match=r"Other is not a BraxEnv; .*training\.wrap"):
        wrap_for_training(Other())


@pytest.mark.parametrize("wrong", [{"episode_length": 0}, {"action_repeat": 0}])
def test_an_episode_has_at_least_one_step(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=0; it must be at least 1"):
        wrap_for_training(BraxEnv(cart()), **wrong)


def test_an_unknown_option_of_the_biped_is_refused():
    with pytest.raises(ValueError, match="hight"):
        BraxWildRobotWrapper({"task": "stand", "physics": "c", "hight": 3})


# Sizes, before Brax is asked ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"num_envs": 3, "batch_size": 4, "num_minibatches": 2},
            r"batch_size=4 times num_minibatches=2 is 8, .* num_envs=3",
        ),
        ({"num_envs": 4, "max_devices_per_host": 64}, "devices=64; this process has"),
    ],
)
def test_sizes_that_brax_cannot_split_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        brax_ppo.train(BraxEnv(cart()), 100, **wrong)


@pytest.mark.parametrize(
    ("num_envs", "expected"), [(1, 32), (512, 32), (4096, 256), (48, 3), (100, 25)]
)
def test_a_batch_size_that_is_not_given_fits_the_worlds(num_envs, expected, monkeypatch):
    calls = []
    monkeypatch.setattr(brax_ppo.ppo, "train", lambda *_, **options: calls.append(options))
    brax_ppo.train(BraxEnv(cart()), 100, num_envs=num_envs)
    assert calls[0]["batch_size"] == expected
    assert expected * calls[0]["num_minibatches"] % num_envs == 0
    assert calls[0]["episode_length"] == LIMIT
    assert calls[0]["wrap_env_fn"] is wrap_for_training


def test_environments_of_brax_are_trained_as_they_are(monkeypatch):
    calls = []
    monkeypatch.setattr(brax_ppo.ppo, "train", lambda *_, **options: calls.append(options))
    brax_ppo.train(envs.get_environment("fast"), 100, episode_length=7)
    assert "wrap_env_fn" not in calls[0]
    assert calls[0]["episode_length"] == 7
    assert not hasattr(jax, "device_put_replicated")
