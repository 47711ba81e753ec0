"""Rewards as options of any gridworld: what agents learn from, and what is scored."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldloom import suites
from worldloom.cli.compare import task_of
from worldloom.cli.settings import Schema
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import apply_in_order, first_step, step_by_turn
from worldloom.suites.grid.problem import make_problem
from worldloom.suites.grid.rewards import social_rewards
from worldloom.suites.grid.suite import SUITE
from worldloom.training.config import make_config

KEY = jax.random.key(0)
PAYS = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, -1.0], [0.0, 0.0, 4.0]])  # acting agent -> rewards


def payments(order: str) -> PureEnv:
    """Three agents; action a of agent i pays all of them a times PAYS[i]."""
    spec = EnvSpec("payments", Box(0, 1, (1,)), Discrete(3), 3, 10, order)

    def apply_agent(key, state, i, action, params):
        return state, (action * jnp.asarray(PAYS)[i]).astype(jnp.float32)

    def apply_all(key, state, action, params):
        if order == "interleaved":
            return apply_in_order(env, key, state, action, params)
        return state, (action[:, None] * jnp.asarray(PAYS)).sum(axis=0).astype(jnp.float32)

    no = jnp.asarray(False)
    env = PureEnv(
        spec,
        default_params=tuple,
        reset=lambda key, params: (jnp.int32(0), first_step(env, jnp.int32(0), params)),
        step=lambda *args: step_by_turn(env, *args),
        base=None,
        observe_agent=lambda state, i, params: jnp.zeros((1,)),
        apply_agent=apply_agent,
        apply_all=apply_all,
        end_turn=lambda key, state, params: (state + 1, no, no),
    )
    return env


def played(env: PureEnv, actions) -> np.ndarray:
    """(T, 3): what agents are paid for actions (T, 3)."""
    state, rows = env.reset(KEY, ())[0], []
    for action in actions:
        state, timestep = env.step(KEY, state, jnp.asarray(action), ())
        rows.append(np.asarray(timestep.reward))
    return np.array(rows)


@pytest.mark.parametrize("order", ["interleaved", "simultaneous"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rewards": "selfish"}, [1.0, 2.0, 3.0]),
        ({"rewards": "shared"}, [6.0, 6.0, 6.0]),
        ({"rewards": "svo", "svo_angle": 0.0}, [1.0, 2.0, 3.0]),
        ({"rewards": "svo", "svo_angle": 90.0}, [2.5, 2.0, 1.5]),
        ({"rewards": "svo", "svo_angle": 45.0}, np.array([3.5, 4.0, 4.5]) / 2**0.5),
        # Others have 1 and 2 more; 1 less and 1 more; 2 and 1 less.
        (
            {"rewards": "inequity_averse", "inequity_alpha": 2.0, "inequity_beta": 0.5},
            [1.0 - 2.0 * 3 / 2, 2.0 - 2.0 * 1 / 2 - 0.5 * 1 / 2, 3.0 - 0.5 * 3 / 2],
        ),
    ],
)
def test_a_turn_is_paid_by_what_all_got_in_it(order, options, expected):
    env = social_rewards(payments(order), **options)
    np.testing.assert_allclose(played(env, [(1, 1, 1)])[0], expected, atol=1e-6)
    np.testing.assert_allclose(played(env, [(0, 0, 0)])[0], np.zeros(3), atol=1e-6)


def test_inequity_is_of_smoothed_rewards():
    """Only agent 0 is paid, in the first turn; the others envy it ever less."""
    options = {"inequity_alpha": 1.0, "inequity_beta": 0.1, "inequity_decay": 0.5}
    env = social_rewards(payments("interleaved"), rewards="inequity_averse", **options)
    rows = played(env, [(1, 0, 0), (0, 0, 0), (0, 0, 0)])
    envy, guilt = [0.5, 0.25, 0.125], [1.0, 0.5, 0.25]
    np.testing.assert_allclose(rows[:, 0], [1.0 - 0.1, -0.1 * guilt[1], -0.1 * guilt[2]], atol=1e-6)
    np.testing.assert_allclose(rows[:, 1], [-e for e in envy], atol=1e-6)
    np.testing.assert_allclose(rows[:, 2], [-e for e in envy], atol=1e-6)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=4))
def test_the_order_of_turns_does_not_matter_where_acts_do_not_meet(actions):
    for options in ({"rewards": "inequity_averse"}, {"rewards": "svo", "svo_angle": 30.0}):
        one, other = (
            played(social_rewards(payments(order), **options), actions)
            for order in ("interleaved", "simultaneous")
        )
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", ["coins", "treasurehunt"])
def test_any_gridworld_takes_them_and_plays_on_as_it_did(name):
    size = {"height": 5, "width": 5} | ({"num_agents": 2} if name == "treasurehunt" else {})
    plain = suites.make(name, horizon=5, **size)
    shared = suites.make(name, horizon=5, rewards="shared", **size)
    assert shared.spec == plain.spec
    params = plain.default_params().replace(rate=jnp.full_like(plain.default_params().rate, 0.2))

    def play(env):
        def one(state, key):
            action = jax.random.randint(key, (2,), 0, 4)
            state, timestep = env.step(key, state, action, params)
            return state, (timestep.obs, timestep.reward)

        keys = jax.random.split(KEY, 5)
        return jax.jit(lambda: jax.lax.scan(one, env.reset(KEY, params)[0], keys)[1])()

    (obs, own), (same, team) = play(plain), play(shared)
    np.testing.assert_array_equal(obs, same)
    assert np.asarray(own).any()
    np.testing.assert_allclose(team, np.asarray(own).sum(axis=1, keepdims=True).repeat(2, 1))


def test_evaluation_scores_the_worlds_own_rewards():
    shared, own = (
        make_problem(make_config(SUITE, {"env": "staghunt", "algo": "random", "world": world}))
        for world in ({"horizon": 4, "rewards": "shared"}, {"horizon": 4})
    )

    def act(params, obs, key, explore):
        return jnp.zeros(obs.shape[0], jnp.int32)

    class Learned:
        loop = None

    Learned.act = staticmethod(act)
    agents = jnp.zeros(4)
    scores = [p.make_evaluator(Learned, 8)(agents, KEY).agent_scores for p in (shared, own)]
    np.testing.assert_array_equal(*scores)


def test_runs_that_learned_from_other_rewards_are_compared():
    def task(**world):
        settings = {"env": "tag", "world": world}
        return task_of(SimpleNamespace(settings=settings, about={"suite": "grid"}))

    assert task(rewards="shared") == task(rewards="svo", svo_angle=30.0) == task()
    assert task(rewards="shared", it_cost=0.5) != task()


def test_they_are_options_of_the_command_line_in_any_gridworld():
    for env in ("coins", "tag"):
        option = Schema(SUITE, env, "pqn").find("--world.rewards")
        assert option.default == "selfish"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tag", {"rewards": "fair"}, "tag: rewards='fair'; use one of selfish, shared, svo"),
        ("tag", {"inequity_decay": 1.0}, "the decay from 0 to below 1"),
        ("tag", {"reward": "shared"}, "tag has no option 'reward'"),
        ("treasurehunt", {"num_agents": 1, "rewards": "shared"}, "of several agents"),
        ("reactor", {"rewards": "shared"}, "rewards"),
    ],
)
def test_what_does_not_fit_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        suites.make(name, **options)
