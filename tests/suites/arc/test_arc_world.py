"""ARC behind the protocol of all worlds: the same worlds, in their spaces, under the transforms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import suites
from worldloom.adapters.single_agent import as_dict
from worldloom.core.spaces import Box, Dict, Discrete
from worldloom.core.transforms import autoreset, base_state, batch, episode_stats, time_limit
from worldloom.report.colors import rgb
from worldloom.suites.arc import PointAction, arc_reset, arc_step, make_config, pack_tasks
from worldloom.suites.arc.operations import SUBMIT
from worldloom.suites.arc.sources import load
from worldloom.suites.arc.tasks import Pair, Task
from worldloom.suites.arc.types import PALETTE
from worldloom.suites.arc.world import make, pixels, text, world

# Little is run, so compile quickly.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
HEIGHT, WIDTH = 3, 4


def grid(*rows: str) -> np.ndarray:
    return np.array([[int(c) for c in row] for row in rows], np.int8)


BLANK = grid("0000", "0000", "0000")
TASKS = [
    # One fill of cell (1, 2) with colour 5 is the answer.
    Task("dot", (Pair(BLANK, grid("0000", "0050", "0000")),), (Pair(BLANK, BLANK),)),
    Task("cut", (Pair(grid("12", "34"), grid("1")), Pair(grid("777"), grid("7"))), ()),
]
DOT = [TASKS[0]]


def flat(operation: int, row: int = 0, column: int = 0) -> jax.Array:
    return jnp.int32(operation * HEIGHT * WIDTH + row * WIDTH + column)


@pytest.fixture(scope="module")
def dot():
    """The task of one fill, with its compiled functions."""
    env = make(pack_tasks(DOT, (HEIGHT, WIDTH)), max_steps=5, max_trials=2)
    return env, quick_jit(env.reset), quick_jit(env.step)


def play(step, state, params, *actions):
    """The time steps of these actions."""
    steps = []
    for action in actions:
        state, timestep = step(jax.random.key(0), state, action, params)
        steps.append(jax.device_get(timestep))
    return steps


# Spaces ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "space"),
    [
        ("point", Discrete(35 * 12)),
        ("flat", Discrete(35 * 12)),
        (
            "box",
            Dict(
                (
                    ("operation", Discrete(35)),
                    ("r1", Discrete(3)), ("c1", Discrete(4)),
                    ("r2", Discrete(3)), ("c2", Discrete(4)),
                )
            ),
        ),
        ("mask", Dict((("operation", Discrete(35)), ("selection", Box(0, 1, (3, 4), "bool"))))),
    ],
)  # fmt: skip
def test_each_form_of_action_has_its_space(form, space):
    spec = make(pack_tasks(TASKS, (HEIGHT, WIDTH)), action=form).spec
    assert spec.action == space
    assert (spec.name, spec.num_agents, spec.horizon) == ("arc", 1, 100)
    hash(spec)


def test_random_play_stays_in_the_space_of_observations():
    env = make(
        pack_tasks(TASKS, (HEIGHT, WIDTH)),
        action="mask", extended=True, demonstrations=2, max_steps=30, max_trials=-1,
    )  # fmt: skip
    params = env.default_params()

    def episode(key):
        reset_key, play_key = jax.random.split(key)
        state, first = env.reset(reset_key, params)

        def one(state, key):
            state, timestep = env.step(key, state, env.spec.action.sample(key), params)
            return state, timestep.obs

        _, seen = jax.lax.scan(one, state, jax.random.split(play_key, 30))
        seen = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first.obs, seen)
        return seen, jax.vmap(lambda obs: env.spec.observation.contains(as_dict(obs)))(seen)

    keys = jax.random.split(jax.random.key(0), 16)
    seen, inside = quick_jit(jax.vmap(episode))(keys)
    assert inside.shape == (16, 31)
    assert inside.all()
    assert len(np.unique(seen.grid)) == 10  # it was not a dull play
    assert seen.demonstrations.present.any()


def test_the_space_names_every_field_with_its_shape_and_type(dot):
    env, reset, _ = dot
    _, timestep = reset(jax.random.key(0), env.default_params())
    fields = as_dict(timestep.obs)
    assert set(fields) == {name for name, _ in env.spec.observation.items}
    for name, space in env.spec.observation.items:
        assert (fields[name].shape, fields[name].dtype) == (space.shape, space.dtype), name


# Steps -------------------------------------------------------------------------------------------


def test_reset_and_step_are_those_of_the_functional_interface(dot):
    env, reset, step = dot
    config = env.default_params()
    state, first = reset(jax.random.key(3), config)
    same, obs = quick_jit(arc_reset)(jax.random.key(3), config)
    own_step = quick_jit(arc_step)
    assert jax.tree.all(jax.tree.map(np.array_equal, (state, first.obs), (same, obs)))
    for action in (flat(5, 1, 2), flat(23, 1, 2), flat(SUBMIT), flat(SUBMIT)):
        state, timestep = step(jax.random.key(9), state, action, config)
        same, obs, reward, done, info = own_step(same, action, config)
        ours = (state, timestep.obs, timestep.final_obs, timestep.reward, timestep.info)
        assert jax.tree.all(jax.tree.map(np.array_equal, ours, (same, obs, obs, reward, info)))
        assert (timestep.terminated | timestep.truncated) == done


def test_the_first_time_step_pays_nothing_and_looks_like_all_others(dot):
    env, reset, step = dot
    config = env.default_params()
    state, first = reset(jax.random.key(0), config)
    _, then = step(jax.random.key(0), state, flat(0), config)
    assert jax.tree.structure(first) == jax.tree.structure(then)
    kinds = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), first, then)
    assert jax.tree.all(kinds)
    assert (first.reward, first.terminated, first.truncated) == (0, False, False)
    assert first.info.similarity == np.float32(11 / 12)
    assert first.info.size_correct
    assert first.info.operation_type == -1


def test_the_right_fill_and_a_submission_end_the_task(dot):
    env, reset, step = dot
    params = env.default_params()
    state, _ = reset(jax.random.key(0), params)
    fill, submit = play(step, state, params, flat(5, 1, 2), flat(SUBMIT))
    assert not fill.terminated
    assert fill.reward == pytest.approx(1 / 12 - 0.01, abs=1e-6)
    assert (submit.terminated, submit.truncated, submit.info.solved) == (True, False, True)
    assert submit.reward == pytest.approx(10 - 0.01)


def test_trials_end_the_task_and_time_only_truncates(dot):
    env, reset, step = dot
    params = env.default_params()
    state, _ = reset(jax.random.key(0), params)
    wrong = play(step, state, params, flat(SUBMIT), flat(SUBMIT))
    assert [bool(s.terminated) for s in wrong] == [False, True]
    assert not wrong[-1].truncated
    slow = play(step, state, params, *[flat(0)] * 5)
    assert [bool(s.truncated) for s in slow] == [False] * 4 + [True]
    assert not any(s.terminated for s in slow)


def test_all_forms_say_the_same(dot):
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[1, 2] = True
    box = {"operation": 5, "r1": 1, "c1": 2, "r2": 1, "c2": 2}
    actions = [
        flat(5, 1, 2),
        jax.tree.map(jnp.int32, box),
        {"operation": jnp.int32(5), "selection": jnp.asarray(mask)},
        PointAction(jnp.int32(5), jnp.int32(1), jnp.int32(2)),  # structs go with every form
    ]
    env, reset, step = dot
    params = env.default_params()
    state, _ = reset(jax.random.key(0), params)
    for action in actions:
        (timestep,) = play(step, state, params, action)
        assert timestep.info.similarity == 1
        assert timestep.info.operation_type == 5


def test_rewards_and_limits_change_without_compiling_again(dot):
    env, reset, step = dot
    params = env.default_params()
    state, _ = reset(jax.random.key(0), params)
    play(step, state, params, flat(0))
    compiled = step._cache_size()
    paid = []
    for penalty, limit in ((-0.5, 9), (-0.25, 1)):
        changed = params.replace(step_penalty=penalty, max_steps=limit)
        (timestep,) = play(step, state, changed, flat(0))
        paid.append((float(timestep.reward), bool(timestep.truncated)))
    assert paid == [(-0.5, False), (-0.25, True)]
    assert step._cache_size() == compiled


# Transforms --------------------------------------------------------------------------------------


def test_the_transforms_play_many_episodes():
    tasks = pack_tasks(TASKS, (HEIGHT, WIDTH))
    env = make(tasks, max_steps=6, max_trials=1, operations=[*range(10), 20, 28, 29, SUBMIT])
    env = batch(episode_stats(autoreset(time_limit(env, 4))), 8)
    assert env.spec.horizon == 4
    params = env.default_params()

    def run(key):
        reset_key, play_key = jax.random.split(key)
        state, _ = env.reset(reset_key, params)

        def one(state, key):
            action = jax.vmap(env.spec.action.sample)(jax.random.split(key, 8))
            state, timestep = env.step(key, state, action, params)
            return state, (timestep, base_state(state).pair)

        return jax.lax.scan(one, state, jax.random.split(play_key, 60))[1]

    steps, pair = jax.device_get(quick_jit(run)(jax.random.key(0)))
    over = steps.terminated | steps.truncated
    assert (steps.terminated & ~steps.truncated).any()
    assert (steps.truncated & ~steps.terminated).any()
    # The observation is the next episode's, the final one this episode's.
    assert (steps.obs.step_count[over] == 0).all()
    assert (steps.final_obs.step_count == steps.info.inner.step_count).all()
    assert (steps.obs.step_count[~over] == steps.final_obs.step_count[~over]).all()
    assert (steps.info.last_length[over] == steps.final_obs.step_count[over]).all()
    assert steps.info.last_length.max() == 4
    assert all(len(np.unique(world)) == 3 for world in pair.T)  # each comes by every pair


# Making ------------------------------------------------------------------------------------------


def test_the_world_has_the_defaults_of_the_configuration():
    tasks = pack_tasks(TASKS, (HEIGHT, WIDTH))
    ours, plain = world(tasks).config, make_config(tasks)
    assert jax.tree.structure(ours) == jax.tree.structure(plain)
    assert jax.tree.all(jax.tree.map(np.array_equal, ours, plain))


def test_worlds_are_made_by_name():
    env = suites.make("arc", max_steps=7, action="box", evaluation=True)
    config = env.default_params()
    assert (env.spec.horizon, config.max_steps, config.evaluation) == (7, 7, True)
    assert config.tasks.num_tasks == len(load("examples"))
    assert "arc" in suites.names()
    assert "arc" not in suites.names("grid")
    few = load("examples")[:2]
    assert suites.make("arc", tasks=few).default_params().tasks.num_tasks == 2


def test_facts_name_the_operations_that_are_allowed():
    facts = world(DOT, operations=[1, 34]).describe()
    assert facts == {"name": "arc", "size": "4x4", "agents": 1, "actions": ["fill 1", "submit"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "boxes"}, "no action='boxes'; did you mean 'box'"),
        ({"max_step": 3}, "there is no option 'max_step'; did you mean 'max_steps'"),
        ({"max_steps": 0}, "max_steps=0; it must be at least 1"),
        ({"tasks": DOT, "split": "training"}, "split='training' needs the name of a task set"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=message):
        suites.make("arc", **options)


# Views -------------------------------------------------------------------------------------------


def test_a_state_is_drawn_as_text_and_as_a_picture():
    env = make(pack_tasks([Task("t", (Pair(grid("012", "340"), BLANK),), ())], (3, 4)))
    config = env.default_params()
    state, _ = quick_jit(env.reset)(jax.random.key(0), config)
    assert text(state, config) == ".12\n34."
    picture = pixels(state, config)
    assert (picture.shape, picture.dtype) == ((24, 32, 3), np.uint8)
    shown = picture[::8, ::8]
    colors = [rgb(color) for color in PALETTE]
    assert [tuple(cell) for cell in shown[1, :3]] == [colors[3], colors[4], colors[0]]
    outside = {tuple(cell) for cell in [*shown[2], *shown[:, 3]]}
    assert len(outside) == 1
    assert not outside & set(colors)
    assert (picture == shown.repeat(8, axis=0).repeat(8, axis=1)).all()
    assert set(env.base.renderers) == {"rgb_array", "ansi"}
