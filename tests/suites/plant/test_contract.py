"""What every plant keeps to. Each is compiled once for whole episodes, once for a step."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import suites
from worldloom.core import draws
from worldloom.suites.plant import EnvironmentState, PlantWorld
from worldloom.suites.plant.controllers import loops_of
from worldloom.suites.plant.patients import SIGNALS

QUICK = {"xla_backend_optimization_level": 0}  # little is run, so compile quickly
HORIZON, STEPS = 6, 200  # worlds go on when their time is over, and what is rare happens
PLANTS = (
    "pipeline", "dmsd", "simglucose", "industrial-benchmark", "reactor", "powergrid", "hvac",
    "water",
)  # fmt: skip
# The signals that a plant's docstring calls exactly known; of the others, all are.
KNOWN = {
    "simglucose": tuple(signal.name for signal in SIGNALS),
    "industrial-benchmark": ("load", "velocity", "gain", "shift"),
    "hvac": (
        *(f"{part}_{i}" for part in ("air", "walls") for i in (1, 2, 3, 4)), "power", "hour",
    ),
}  # fmt: skip
# A number of the physics that the next state, but no observation, depends on.
DECISIVE = {
    "pipeline": "most", "dmsd": "mass", "simglucose": "eating_rate",
    "industrial-benchmark": "ageing",
    "reactor": "heat", "powergrid": "inertia", "hvac": "air", "water": "area_1",
}  # fmt: skip
# Worlds 0 and 1 start alike, undisturbed, and differ in the luck of their steps; 2 and 3 likewise,
# disturbed; 4 is as 0 and disturbed a lot.
STARTS = np.asarray([0, 0, 1, 1, 0])
LUCK = np.asarray([0, 1, 0, 1, 0])
DISTURBANCE = np.asarray([0.0, 0.0, 1.0, 1.0, 50.0], np.float32)


def test_these_are_the_plants():
    assert tuple(suites.names("plant")) == PLANTS


@pytest.fixture(scope="module", params=PLANTS)
def played(request):
    """A plant, its compiled functions, and short episodes of random actions."""
    env = suites.make(request.param, horizon=HORIZON)
    world = env.base
    params, traces = env.default_params(), []

    def episode(start, luck, disturbance, actions):
        traces.append(start)
        own = params.replace(disturbance=disturbance)

        def one(state, x):
            state, timestep = env.step(x[0], state, x[1], own)
            return state, (timestep, state)

        state, first = env.reset(start, own)
        keys = draws.split(luck, STEPS)
        _, (timesteps, states) = jax.lax.scan(one, state, (keys, actions))
        return (state, first), timesteps, states

    compiled = jax.jit(jax.vmap(episode), compiler_options=QUICK)
    keys = jax.random.split(jax.random.key(3), 2)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (1, STEPS, len(world.plant.action))).astype(np.float32)
    actions = np.broadcast_to(actions, (len(STARTS), *actions.shape[1:]))
    given = (keys[STARTS], keys[LUCK], DISTURBANCE, actions)
    (state, first), steps, states = jax.device_get(compiled(*given))
    return SimpleNamespace(
        name=request.param, env=env, world=world, plant=world.plant, params=params, traces=traces,
        compiled=compiled, given=given, actions=actions, start=state, first=first, steps=steps,
        states=states, step=jax.jit(env.step, compiler_options=QUICK),
        reset=jax.jit(env.reset, compiler_options=QUICK), keys=keys,
    )  # fmt: skip


def test_it_is_a_plant_with_units(played):
    assert isinstance(played.world, PlantWorld)
    assert played.plant.name == played.name
    signals = (*played.plant.observation, *played.plant.action)
    assert all(signal.unit and signal.unit.strip() == signal.unit for signal in signals)
    for names in (played.plant.observation, played.plant.action, played.plant.limits):
        assert len({part.name for part in names}) == len(names)
    assert played.plant.limits
    assert played.plant.loops
    assert played.plant.step_seconds > 0
    low = np.asarray([signal.low for signal in played.plant.observation], np.float32)
    high = np.asarray([signal.high for signal in played.plant.observation], np.float32)
    np.testing.assert_allclose(played.world.normalise(low), -1.0, atol=1e-6)
    np.testing.assert_allclose(played.world.normalise(high), 1.0, atol=1e-6)


def test_limits_and_loops_name_signals(played):
    seen = {signal.name for signal in played.plant.observation}
    moved = {signal.name for signal in played.plant.action}
    for limit in played.plant.limits:
        assert limit.signal in (moved if limit.kind == "rate" else seen)
    loops_of(played.world)  # checks the names in loops


def test_a_declared_reward_is_that_of_every_step(played):
    declared = played.env.spec.reward
    assert (declared is not None) == (played.name in ("pipeline", "dmsd", "simglucose"))
    if declared is None:
        return
    after = played.steps.obs
    before = np.concatenate([played.first.obs[:, None], after[:, :-1]], 1)
    paid = jax.jit(jax.vmap(jax.vmap(declared)))(before, played.actions, after)
    np.testing.assert_allclose(paid, played.steps.reward, rtol=1e-4, atol=1e-5)


def test_shapes_and_types(played):
    spec, steps = played.env.spec, played.steps
    many = (len(STARTS), STEPS)
    size, moves = len(played.plant.observation), len(played.plant.action)
    assert spec.observation.shape == (size,)
    assert spec.action.shape == (moves,)
    assert (spec.action.low, spec.action.high) == (-1.0, 1.0)
    assert spec.horizon == HORIZON
    for part, shape, dtype in (
        (steps.obs, (size,), "float32"), (steps.reward, (), "float32"),
        (steps.terminated, (), "bool"), (steps.truncated, (), "bool"),
        (steps.info.control, (moves,), "float32"), (steps.info.action_finite, (), "bool"),
        (steps.info.diverged, (), "bool"),
        (steps.info.safety.margins, (len(played.plant.limits),), "float32"),
        (steps.info.safety.cost, (len(played.plant.limits),), "float32"),
        (steps.info.safety.violated, (len(played.plant.limits),), "bool"),
    ):  # fmt: skip
        assert part.shape == (*many, *shape)
        assert part.dtype == dtype
    assert isinstance(played.states, EnvironmentState)
    assert played.states.step[0].tolist() == list(range(1, STEPS + 1))
    first = jax.tree.map(lambda x: (x.shape[1:], x.dtype), played.first)
    assert first == jax.tree.map(lambda x: (x.shape[2:], x.dtype), steps)  # a reset is a time step
    start = jax.tree.map(lambda x: (x.shape[1:], x.dtype), played.start)
    assert start == jax.tree.map(lambda x: (x.shape[2:], x.dtype), played.states)


def test_everything_is_finite_and_within_the_observation_space(played):
    for leaf in jax.tree.leaves((played.steps, played.states)):
        assert np.isfinite(leaf).all()
    assert np.abs(played.steps.obs[:4]).max() <= played.env.spec.observation.high
    assert not played.steps.info.diverged[:4].any()
    assert played.steps.info.action_finite.all()


def test_the_same_keys_give_the_same_episode_and_nothing_is_compiled_again(played):
    again = jax.device_get(played.compiled(*played.given))
    for a, b in zip(jax.tree.leaves(again[1]), jax.tree.leaves(played.steps), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(played.traces) == 1


def test_steps_one_by_one_are_those_of_the_scan(played):
    params = played.params.replace(disturbance=jnp.float32(1.0))
    state, timestep = played.reset(played.keys[1], params)
    np.testing.assert_allclose(timestep.obs, played.first.obs[2], rtol=1e-4, atol=1e-4)
    keys = draws.split(played.keys[0], STEPS)
    for i in range(4):
        state, timestep = played.step(keys[i], state, jnp.asarray(played.actions[2, i]), params)
        np.testing.assert_allclose(timestep.obs, played.steps.obs[2, i], rtol=1e-3, atol=1e-3)
    assert played.step._cache_size() == played.reset._cache_size() == 1


def test_an_undisturbed_plant_is_deterministic(played):
    for leaf in jax.tree.leaves(played.steps):  # what is hidden may be drawn and not matter
        np.testing.assert_array_equal(leaf[0], leaf[1])


def test_each_world_of_a_batch_has_its_own_disturbance(played):
    calm, rough = (jax.tree.leaves(jax.tree.map(lambda x, i=i: x[i], played.states.x))
                   for i in (0, 4))  # fmt: skip
    assert any(not np.allclose(a, b) for a, b in zip(calm, rough, strict=True))


def test_time_that_runs_out_is_not_an_end(played):
    elapsed = np.arange(1, STEPS + 1)
    ended = played.steps.terminated
    np.testing.assert_array_equal(played.steps.truncated, (elapsed >= HORIZON) & ~ended)
    assert (played.steps.truncated & ~ended)[:4].any()
    assert not played.first.truncated.any()
    assert not played.first.terminated.any()


def test_an_action_that_is_not_finite_repeats_the_last_one(played):
    params = played.params.replace(disturbance=jnp.float32(0.0))
    state, _ = played.reset(played.keys[0], params)
    action = jnp.full(len(played.plant.action), 0.25, jnp.float32)
    state, _ = played.step(played.keys[0], state, action, params)
    repeated = played.step(played.keys[1], state, action, params)
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        masked = played.step(played.keys[1], state, action.at[0].set(bad), params)
        assert not masked[1].info.action_finite
        assert not masked[1].info.diverged
        for a, b in zip(jax.tree.leaves(masked[0]), jax.tree.leaves(repeated[0]), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(masked[1].obs, repeated[1].obs)
    assert repeated[1].info.action_finite


def test_actions_are_clipped_to_the_actuators_ranges(played):
    params = played.params
    state, _ = played.reset(played.keys[0], params)
    ends = jnp.ones(len(played.plant.action), jnp.float32)
    _, at_most = played.step(played.keys[0], state, ends * 7.0, params)
    _, at_least = played.step(played.keys[0], state, -ends, params)
    high = [signal.high for signal in played.plant.action]
    low = [signal.low for signal in played.plant.action]
    np.testing.assert_allclose(at_most.info.control, high, rtol=1e-6)
    np.testing.assert_allclose(at_least.info.control, low, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(played.world.action(at_most.info.control), 1.0, rtol=1e-5)


def test_a_plant_that_is_no_longer_finite_is_taken_back_and_ends(played):
    state, timestep = played.reset(played.keys[0], played.params)
    broken = played.params.physics.replace(**{DECISIVE[played.name]: jnp.float32(jnp.nan)})
    action = jnp.full(len(played.plant.action), 0.5, jnp.float32)
    params = played.params.replace(physics=broken)
    new, after = played.step(played.keys[0], state, action, params)
    assert after.info.diverged
    assert after.terminated
    assert not after.truncated
    for a, b in zip(jax.tree.leaves(new.x), jax.tree.leaves(state.x), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(after.obs, timestep.obs)
    assert np.isfinite(after.reward)


def test_margins_are_signed_and_agree_with_cost_and_violation(played):
    names = [signal.name for signal in played.plant.observation]
    moved = [signal.name for signal in played.plant.action]
    obs, control = played.steps.obs, played.steps.info.control
    # The first step of an episode has nothing to have changed from.
    before = np.concatenate([control[:, :1], control[:, :-1]], axis=1)
    margins = []
    for limit, bound in zip(played.plant.limits, np.asarray(played.params.bounds), strict=True):
        if limit.kind == "rate":
            i = moved.index(limit.signal)
            margins.append(bound - np.abs(control[..., i] - before[..., i]))
        else:
            room = bound - obs[..., names.index(limit.signal)]
            margins.append(room if limit.kind == "at_most" else -room)
    told = played.steps.info.safety
    np.testing.assert_allclose(told.margins, np.stack(margins, -1), rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(told.violated, told.margins < 0)
    np.testing.assert_array_equal(told.cost, np.maximum(-told.margins, 0))
    # Bounds that nothing can keep.
    out = [1e6 if limit.kind == "at_least" else -1e6 for limit in played.plant.limits]
    params = played.params.replace(bounds=jnp.asarray(out, jnp.float32))
    worst = played.world.safety(obs[0, 0], control[0, 0], control[0, 0], params)
    assert worst.violated.all()
    assert (worst.cost > 0).all()


def test_the_model_is_the_plant_undisturbed(played):
    model = jax.jit(jax.vmap(played.world.model()))
    before = np.concatenate([played.first.obs[0][None], played.steps.obs[0, :-1]])
    expected = model(before, played.actions[0])
    names = [signal.name for signal in played.plant.observation]
    known = [names.index(name) for name in KNOWN.get(played.name, names)]
    spans = np.asarray([signal.high - signal.low for signal in played.plant.observation])
    error = np.abs(np.asarray(expected) - played.steps.obs[0]) / spans
    over = np.cumsum(played.steps.terminated[0]) > 0
    assert error[~over][:50, known].max() < 1e-4
    assert np.isfinite(expected).all()


def test_drift_changes_a_plant_late_more_than_early(played):
    calm = played.params.replace(disturbance=jnp.float32(0.0))
    state, _ = played.reset(played.keys[0], calm)
    action = jnp.full(len(played.plant.action), 0.6, jnp.float32)

    def moved(step, drift):
        params = calm.replace(drift=jnp.float32(drift))
        return played.step(played.keys[0], state.replace(step=jnp.int32(step)), action, params)[0].x

    def apart(step):
        pairs = zip(
            jax.tree.leaves(moved(step, 0.0)), jax.tree.leaves(moved(step, 1.0)), strict=True
        )
        return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)

    assert apart(0) == 0.0
    assert apart(HORIZON - 1) > 0.0


def test_unknown_options_and_bad_numbers_are_named():
    with pytest.raises(ValueError, match="reactor has no option 'feul'; "):
        suites.make("reactor", feul=1.0)
    with pytest.raises(ValueError, match="water: disturbance=-1"):
        suites.make("water", disturbance=-1)
    with pytest.raises(ValueError, match="hvac: horizon=0; an episode has at least 1 step"):
        suites.make("hvac", horizon=0)
    with pytest.raises(ValueError, match=r"hvac: horizon=2\.5; an episode has at least 1 step"):
        suites.make("hvac", horizon=2.5)
    with pytest.raises(ValueError, match="reactor: volume=nan; it must be a finite number"):
        suites.make("reactor", volume=float("nan"))
    with pytest.raises(ValueError, match="reactor: runaway='hot'; it must be a finite number"):
        suites.make("reactor", runaway="hot")
    env = suites.make("reactor", runaway=360.0, volume=120.0)
    assert env.default_params().bounds[0] == 360.0
    assert env.default_params().physics.volume == 120.0
