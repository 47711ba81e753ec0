"""The policy that demonstrations tell the rule: what it sees, what it learns, how it is run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.arc import make_config, selectors
from worldloom.suites.arc.adapting import MOST_DEMONSTRATIONS, own_demonstrations
from worldloom.suites.arc.environment import create_observation, start_at
from worldloom.suites.arc.evaluate import ArcEvaluator
from worldloom.suites.arc.generators.drawing import draw_examples, generate, to_buffer
from worldloom.suites.arc.generators.grids import Level
from worldloom.suites.arc.imitation import ImitationLoop, solve
from worldloom.suites.arc.policy import DemonstrationPolicy, renaming
from worldloom.suites.arc.problem import with_beam
from worldloom.suites.arc.suite import SUITE, generalise
from worldloom.training import run as runs
from worldloom.training.config import make_config as make_settings
from worldloom.training.trainer import Trainer

FAMILIES = ("recolour", "paint background", "flip rows", "count in a row")
PAIRS = 4
SMALL = {"channels": 10, "context_size": 16, "token": 16}


@pytest.fixture(scope="module")
def examples():
    return draw_examples(jax.random.key(0), FAMILIES, 2, PAIRS, Level(side=8))


@pytest.fixture(scope="module")
def rules(examples):
    buffer = to_buffer(examples, PAIRS)
    options = {"extended": True, "max_steps": 12, "max_trials": 1, "demonstrations": PAIRS - 1}
    return make_config(buffer, **options)


@pytest.fixture(scope="module")
def seen(rules):
    """What the policy sees at the start of every pair."""
    pairs = jnp.arange(rules.tasks.num_pairs)
    state = start_at(pairs, jax.random.split(jax.random.key(0), len(pairs)), rules)
    return create_observation(state, rules)


@pytest.fixture(scope="module")
def policy(seen):
    net = DemonstrationPolicy(41, **SMALL)
    steps = jnp.zeros(seen.grid.shape[0])
    params = jax.jit(net.init)(jax.random.key(1), seen, steps)
    return jax.jit(lambda obs: net.apply(params, obs, steps)[0].probs)


def recoloured(obs, order):
    """The observation with colour c as `order[c]` in every grid."""
    inside = jnp.asarray(order, jnp.int8)
    demos = obs.demonstrations
    return obs.replace(
        grid=inside[obs.grid],
        input=inside[obs.input],
        demonstrations=demos.replace(input=inside[demos.input], output=inside[demos.output]),
    )


def test_colours_are_names_that_the_policy_does_not_care_for(seen, policy):
    order = np.array([0, 4, 5, 6, 7, 8, 9, 1, 2, 3])
    other = recoloured(seen, order)
    demos, whole = seen.demonstrations, selectors.FIRST["whole"]
    grids = np.concatenate([demos.input, demos.output, seen.input[:, None]], axis=1)
    there = (grids[:, None] == np.arange(10)[:, None, None, None]).any((-1, -2, -3))  # (B, 10)
    names = np.asarray(renaming(demos, seen.input))
    after = np.asarray(renaming(other.demonstrations, other.input))[:, order]
    # The names of colours that are as many cells each are anybody's; else they move along.
    clear = ((names == after) | ~there).all(1)
    assert clear.mean() > 0.3
    total = selectors.count_selectors((8, 8))
    one, two = (np.asarray(policy(x)).reshape(-1, 41, total)[:, :10, whole] for x in (seen, other))
    np.testing.assert_allclose(one[clear][there[clear]], two[:, order][clear][there[clear]], 1e-4)
    assert np.ptp(one[clear][there[clear]]) > 1e-5


def test_new_names_begin_with_what_pairs_gain_and_lose(examples, seen):
    names = np.asarray(renaming(seen.demonstrations, seen.input)).reshape(
        len(FAMILIES), 2, PAIRS, 10
    )
    recolour = np.asarray(examples.operations)[:2, :, 0]  # fills with the new colour
    for task, pair in np.ndindex(2, PAIRS):
        assert names[0, task, pair, recolour[task, pair]] == 1
    assert (names[..., 0] == 0).all()
    assert (np.sort(names, -1) == np.arange(10)).all()


def test_only_what_the_mask_offers_has_a_probability(seen, policy):
    found = selectors.selectable(seen.grid.astype(jnp.int32), seen.size)
    mask = selectors.object_action_mask(seen.operation_mask, found.usable, seen.size, (8, 8))
    probs = np.asarray(policy(seen))
    assert probs[~np.asarray(mask)].max() == 0.0
    np.testing.assert_allclose(probs.sum(-1), 1.0, rtol=1e-5)


def test_decisions_end_with_a_submission_that_is_right(examples, rules):
    decisions = jax.jit(solve)(examples, rules)
    total = selectors.count_selectors((8, 8))
    last = np.asarray(decisions.action)[np.asarray(decisions.length) - 1, np.arange(32)]
    assert (last == 34 * total).all()
    end = np.asarray(decisions.state.similarity)[np.asarray(decisions.length) - 1, np.arange(32)]
    assert (end == 1.0).all()


@pytest.mark.slow
def test_cloning_learns_two_families_from_their_demonstrations(rules):
    loop = ImitationLoop(
        agent=DemonstrationPolicy(41, channels=20, context_size=32, token=32),
        rules=rules,
        families=FAMILIES[:2],
        level=Level(side=8),
        updates=160,
        learning_rate=4e-3,
        batch=16,
        states=2,
        per_family=20,
        updates_per_iteration=10,
    )
    trainer = Trainer(loop, seed=0, chunk=16)
    metrics = trainer.advance(16)
    assert metrics["finite"].all()
    assert metrics["accuracy"][0] < 0.7
    assert metrics["accuracy"][-1] > 0.9


def test_what_is_adapted_to_are_the_demonstrations_alone():
    tasks = generate(("flip rows", "swap"), per_family=1, demonstrations=2, tests=2).buffer(
        (10, 10)
    )
    own = own_demonstrations(tasks, jnp.int32(1))
    assert own.num_pairs == MOST_DEMONSTRATIONS
    assert own.demos_count.tolist() == [2]
    assert own.tests_count.tolist() == [0]
    given = {grid.tobytes() for grid in np.asarray(own.grids)}
    assert given == {grid.tobytes() for grid in np.asarray(tasks.grids[4:6])}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algo": "dqn"}, "learns by bc, ppo"),
        ({"world": {"extended": False}}, "set world.extended"),
        ({"world": {"max_steps": 5}}, "set world.max_steps=12"),
        ({"families": ("flop rows",)}, "no family 'flop rows'"),
        ({"algo": "ppo", "adapt": 1}, "adapt is for algo=bc"),
        ({"algo": "ppo", "beam": 4}, "beam is for algo=bc"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(changes, words, tmp_path):
    given = {"families": ("recolour",), "per_family": 1} | changes
    preset = generalise()
    if given.get("algo", "bc") != "bc":
        preset.pop("bc")
    world = preset["world"] | given.pop("world", {})
    config = make_settings(SUITE, preset | {"env": "arc"} | given | {"world": world})
    with pytest.raises(ValueError, match=words) as error:
        runs.train(SUITE, config, tmp_path / "run", report=False)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "own"),
    [
        ("bc", {"beam": 2}),
        pytest.param("bc", {"adapt": 1}, marks=pytest.mark.nightly),
        ("ppo", {}),
    ],
)
def test_a_run_on_generated_tasks_trains_scores_and_loads(algo, own, tmp_path):
    sizes = {
        "bc": {"batch_size": 12, "updates_per_iteration": 2, "learning_rate": 1e-3},
        "ppo": {"unroll_length": 2, "num_epochs": 1, "num_minibatches": 1, "anneal_updates": 2},
    }
    preset = generalise()
    preset.pop("bc")
    given = {
        "env": "arc",
        "algo": algo,
        "families": ("recolour",),
        "per_family": 1,
        "steps": 16 if algo == "ppo" else 4,
        "num_worlds": 4,
        "chunk": 1,
        "attempts": 1,
        algo: sizes[algo],
    } | own
    config = make_settings(SUITE, preset | given)
    run = runs.train(SUITE, config, tmp_path / "run")
    assert run.evaluation.tests.sum() == 1
    assert set(run.evaluation.tasks) == {"recolour-0"}
    loaded = runs.load(SUITE, tmp_path / "run")
    key = jax.random.key(0)
    again = loaded.evaluator(loaded.agents, key)
    np.testing.assert_array_equal(again.solved, run.evaluator(run.agents, key).solved)
    if algo == "bc":
        assert type(with_beam(loaded, 0)) is ArcEvaluator
        assert with_beam(loaded, 3).searching.width == 3
    else:
        with pytest.raises(ValueError, match="beam is for runs of algo=bc"):
            with_beam(loaded, 3)


def test_a_run_either_adapts_or_searches():
    with pytest.raises(ValueError, match="give one of the two"):
        make_settings(SUITE, generalise() | {"env": "arc", "adapt": 1, "beam": 4})
