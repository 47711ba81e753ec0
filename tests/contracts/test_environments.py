"""What every gridworld keeps to, in both turn orders.

Each world is compiled twice: once for whole episodes of several worlds (jit, vmap and scan at
once), once for a single step beside the pieces that it is composed of.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import suites
from worldloom.core import draws
from worldloom.core.transforms import base_state, observe_all

QUICK = {"xla_backend_optimization_level": 0}  # little is run, so compile quickly
# The fast tier has every world in one order of turns, and these in both.
BOTH_ORDERS = ("treasurehunt", "tag")
NUM_WORLDS, HORIZON, STEPS, FRAMES = 4, 5, 7, 3


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((name, order), id=f"{name}-{order}", marks=() if usual else pytest.mark.slow)
        for name in suites.names("grid")
        for order, usual in (("interleaved", True), ("simultaneous", name in BOTH_ORDERS))
    ],
)
def played(request):
    """One world, its compiled functions, and the episodes they give for one key."""
    name, order = request.param
    env = suites.make(name, turn_order=order, horizon=HORIZON, num_frames=FRAMES)
    spec, params = env.spec, env.default_params()
    traces = []

    def episode(key):
        """A reset and a few steps beyond the horizon, with random actions."""
        traces.append(key)
        reset_key, play_key = jax.random.split(key)

        def one(state, step_key):
            act_key, env_key = jax.random.split(step_key)
            action = draws.integers(act_key, (spec.num_agents,), spec.action.n)
            state, timestep = env.step(env_key, state, action, params)
            return state, (timestep, base_state(state))

        state, first = env.reset(reset_key, params)
        _, steps = jax.lax.scan(one, state, jax.random.split(play_key, STEPS))
        fits = jax.vmap(jax.vmap(spec.observation.contains))(steps[0].obs)
        return (first, base_state(state)), steps, fits

    def step_and_pieces(key):
        """The first step of an episode, whole and in the pieces that turn loops use."""
        reset_key, step_key, action_key = jax.random.split(key, 3)
        state, _ = env.reset(reset_key, params)
        action = draws.integers(action_key, (spec.num_agents,), spec.action.n)
        whole = env.step(step_key, state, action, params)
        act_key, end_key = draws.split(step_key)
        if order == "interleaved":
            keys = draws.split(act_key, spec.num_agents)
            agents = (jnp.arange(spec.num_agents), action, keys)
            state, paid = jax.lax.scan(
                lambda state, x: env.apply_agent(x[2], state, x[0], x[1], params), state, agents
            )
            reward = paid.sum(axis=0)
        else:
            state, reward = env.apply_all(act_key, state, action, params)
        state, terminated, truncated = env.end_turn(end_key, state, params)
        pieces = (state, (observe_all(env, state, params), reward, terminated, truncated))
        return whole, pieces

    compiled = jax.jit(jax.vmap(episode), compiler_options=QUICK)
    keys = jax.random.split(jax.random.key(0), NUM_WORLDS)
    start, steps, fits = jax.device_get(compiled(keys))
    return SimpleNamespace(
        env=env, spec=spec, order=order, traces=traces, compiled=compiled, keys=keys,
        first=start[0], start=start[1], timesteps=steps[0], states=steps[1], fits=fits,
        step_and_pieces=jax.jit(step_and_pieces, compiler_options=QUICK),
    )  # fmt: skip


def test_the_spec_says_what_was_asked_for(played):
    assert played.spec.turn_order == played.order
    assert played.spec.horizon == HORIZON
    assert played.spec.num_frames == FRAMES
    assert played.spec.observation.shape[0] == FRAMES


def test_observations_and_rewards_have_the_shapes_and_types_of_the_spec(played):
    spec, steps = played.spec, played.timesteps
    shape = (NUM_WORLDS, STEPS, spec.num_agents)
    assert steps.obs.shape == (*shape, *spec.observation.shape)
    assert steps.obs.dtype == spec.observation.dtype
    assert played.first.obs.shape == (NUM_WORLDS, spec.num_agents, *spec.observation.shape)
    assert played.first.obs.dtype == spec.observation.dtype
    assert steps.reward.shape == shape
    assert steps.reward.dtype == np.float32
    assert np.isfinite(steps.reward).all()
    assert played.first.reward.shape == (NUM_WORLDS, spec.num_agents)
    assert not played.first.reward.any()
    for flag in (steps.terminated, steps.truncated):
        assert flag.shape == (NUM_WORLDS, STEPS)
        assert flag.dtype == bool


def test_every_observation_lies_in_the_space_of_the_spec(played):
    assert played.fits.shape == (NUM_WORLDS, STEPS, played.spec.num_agents)
    assert played.fits.all()


def test_time_runs_out_exactly_at_the_horizon_and_that_is_no_end_of_the_task(played):
    assert not played.timesteps.terminated.any()
    assert not played.first.truncated.any()
    late = np.arange(1, STEPS + 1) >= HORIZON
    assert (played.timesteps.truncated == late).all()


def test_frame_stacks_start_from_zeros_and_fill_from_the_end(played):
    first, then = played.first.obs, played.timesteps.obs[:, 0]
    assert not first[:, :, :-1].any()
    assert first[:, :, -1].any()
    assert not then[:, :, :-2].any()
    assert then[:, :, -2].any()
    if played.order == "simultaneous":
        # Everybody remembers what it saw when the turn began.
        assert np.array_equal(then[:, :, -2], first[:, :, -1])
    else:
        # The first agent to act saw the world as it was then.
        assert np.array_equal(then[:, 0, -2], first[:, 0, -1])


def test_agents_never_share_a_cell_and_stand_where_the_map_shows_them(played):
    world = played.env.base
    cells = played.states.position[..., 0] * world.shape[1] + played.states.position[..., 1]
    cells = cells.reshape(-1, played.spec.num_agents)
    assert all(len(set(row)) == len(row) for row in cells.tolist())
    tops = played.states.layers[:, :, -1].reshape(len(cells), -1)
    shown = np.take_along_axis(tops, cells, axis=1)
    assert not world.passable[shown].any()
    looks = np.unique(shown)  # agents may look different, but nothing else looks like them
    assert (np.isin(tops, looks).sum(axis=1) == played.spec.num_agents).all()


def test_the_same_key_gives_the_same_episode_and_another_key_another(played):
    start, steps, _ = jax.device_get(played.compiled(played.keys))
    again = jax.tree.leaves((start, steps))
    before = jax.tree.leaves(
        ((played.first, played.start), (played.timesteps, played.states)),
    )
    assert all(np.array_equal(a, b) for a, b in zip(again, before, strict=True))
    other = jax.random.split(jax.random.key(1), NUM_WORLDS)
    assert not np.array_equal(
        jax.device_get(played.compiled(other))[1][1].position, played.states.position
    )


def test_nothing_is_compiled_again(played):
    for seed in range(3):
        played.compiled(jax.random.split(jax.random.key(seed), NUM_WORLDS))
    assert len(played.traces) == 1


def test_a_step_is_its_pieces_put_together(played):
    for seed in range(5):
        (state, step), (pieces, (obs, reward, terminated, truncated)) = jax.device_get(
            played.step_and_pieces(jax.random.key(seed))
        )
        leaves = zip(jax.tree.leaves(state), jax.tree.leaves(pieces), strict=True)
        assert all(np.array_equal(a, b) for a, b in leaves)
        assert np.array_equal(step.obs, obs)
        assert np.array_equal(step.final_obs, obs)
        assert np.array_equal(step.reward, reward)
        assert step.terminated == terminated
        assert step.truncated == truncated
