"""Every algorithm in every built-in world: it trains, resumes to the bit, is scored and shown, or
is refused with a reason that names what would fit."""

import functools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import algos, suites
from worldloom.cli.settings import merge
from worldloom.suites.arc.suite import GAMES
from worldloom.suites.plant.plant import plant_of
from worldloom.suites.plant.safety import constraint_text
from worldloom.training.config import make_config
from worldloom.training.loops import make_trainer
from worldloom.training.run import check_fit, load, train, why_not
from worldloom.training.suite import Suite

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_once")]

COMMON = {"num_worlds": 4, "chunk": 1, "eval_episodes": 2, "record_every": 0, "eval_every": 0}
SMALL = {
    "grid": {"world": {"horizon": 4}},
    "arc": {"limit": 1, "ids": ["recolour"], "attempts": 1, "world": {"max_steps": 4},
            "network": {"channels": 2, "context": 4}},
    "robot": {"task": "stand", "world": {"horizon": 8}},
    "plant": {"world": {"horizon": 8}, "data_steps": 64, "ope_updates": 2},
}  # fmt: skip
GAME = {"world": {"max_actions": 8}}
OFF_POLICY = {
    "batch_size": 4, "buffer_size": 64, "gradient_steps": 1, "unroll_length": 2,
    "learning_starts": 4,  # by default so many that two chunks would learn nothing
}  # fmt: skip
ON_POLICY = {"unroll_length": 4, "num_minibatches": 2, "num_epochs": 1}
OFFLINE = {"batch_size": 8, "updates_per_iteration": 4}
HIDDEN = {"dqn": (8,), "iqn": 8, "ppo": (8,), "mappo": (8,), "pqn": (8,), "sac": (8,), "td3": (8,)}
WITH_REFERENCES = ("ppo",)  # which learns in every world

WORLDS = [(suite, world) for suite in SMALL for world in suites.names(suite)]
# Every algorithm in one world of each kind, and every world with its own algorithm, are of the slow
# tier; the other three hundred pairs, which join what these test apart, are of the nightly one.
WHOLE_ROWS = ("treasurehunt", "arc", "glide", "biped", "dmsd")


def pairs() -> list:
    """Every world with every algorithm."""
    found = []
    for suite, world in WORLDS:
        own = suites.suite(suite).defaults(world, None)["algo"]
        for algo in algos.names():
            marks = () if world in WHOLE_ROWS or algo == own else pytest.mark.nightly
            found.append(pytest.param(suite, world, algo, marks=marks))
    return found


def settings(suite: str, world: str, algo: str) -> dict:
    """The smallest run of an algorithm in a world."""
    loop = algos.get(algo).loop
    options = {"off_policy": OFF_POLICY, "on_policy": ON_POLICY, "offline": OFFLINE}[loop]
    known = {f for f in algos.get(algo).config.__dataclass_fields__}
    options = {name: value for name, value in options.items() if name in known}
    hidden = HIDDEN.get(algo, (8,))
    if "hidden" in known:
        options["hidden"] = hidden
    if "num_critics" in known:
        options["num_critics"] = 2
    if "model_updates" in known:  # models in the first iteration, the policy in the second
        options |= {"model_updates": 4, "rollout_length": 2, "num_members": 2}
    return merge(COMMON | {"env": world, "algo": algo, algo: options}, small(suite, world))


def small(suite: str, world: str) -> dict:
    """What makes a world small."""
    return GAME if world in GAMES else SMALL[suite]


def assert_same(one, other):
    flat, _ = jax.tree_util.tree_flatten_with_path(one)
    for (path, x), y in zip(flat, jax.tree.leaves(other), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y, jax.tree_util.keystr(path))


@pytest.fixture(scope="module")
def spared(tmp_path_factory):
    """spared(world): settings without what costs a plant's pairs most and is the same for all.

    The search for a backup, lookahead and barriers, off-policy estimates: the reactor has all of
    it, and test_filter_harm plays the others behind what they are shipped with.
    """

    @functools.cache
    def write(world: str) -> dict[str, str | int]:
        if world == "reactor" or world not in suites.names("plant"):
            return {}
        path = tmp_path_factory.mktemp("constraints") / f"{world}.yaml"
        text = constraint_text(plant_of(suites.make(world)), lookahead=0)
        path.write_text(text.partition("barriers:")[0] + "latch_after: 0\n")
        return {"constraints": str(path), "ope_updates": 0}

    return write


def without_references(suite: Suite) -> Suite:
    """The suite without play at random, which is a world's and a quarter of what a pair takes."""

    def problem(config, folder):
        return replace(suite.problem(config, folder), references=lambda evaluator, agents: {})

    return replace(suite, problem=problem)


@pytest.fixture(autouse=True)
def forget(forget_programs):
    """Two hundred pairs share small programs only: the large ones must not pile up."""
    yield
    forget_programs()


@pytest.mark.parametrize(("name", "world", "algo"), pairs())
def test_an_algorithm_trains_in_a_world_or_is_refused(name, world, algo, spared, tmp_path):
    suite = suites.suite(name)
    if algo not in WITH_REFERENCES:
        suite = without_references(suite)
    given = settings(name, world, algo) | spared(world)
    config = make_config(suite, given)  # whatever the algorithm: no fault of ours is a refusal
    problem = suite.problem(config, None)
    reason = why_not(algos.get(algo), problem)
    if reason is not None:
        assert "\n" not in reason
        assert algo in reason or world in reason
        with pytest.raises(ValueError, match=r"; use [a-z]"):
            check_fit(config, problem)
        return
    try:
        config = replace(config, steps=2 * make_trainer(config, problem).steps_per_iteration)
    except ValueError as error:  # what only the agent itself can tell, such as its network
        reason = str(error)
    if reason is not None:
        assert "\n" not in reason
        assert f"{algo}:" in reason
        assert "; use " in reason
        return
    run = train(suite, config, tmp_path / "run", report=False)
    assert np.isfinite(run.evaluation.mean)
    assert run.report().stat().st_size > 1000
    assert run.iteration == 2
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2]
    assert rows[-1]["steps"] == run.steps
    resumed = load(suite, run.folder)
    for trainer in (run.trainer, resumed.trainer):
        trainer.advance(1)
    assert_same(run.trainer.state(), resumed.trainer.state())


def test_every_suite_trains_with_at_least_three_algorithms():
    """The point of it all: no suite is tied to one family."""
    for suite, world in WORLDS:
        made = suites.suite(suite)
        config = make_config(made, merge(COMMON | {"env": world}, small(suite, world)))
        problem = made.problem(config, None)
        fitting = [n for n in algos.names() if why_not(algos.get(n), problem) is None]
        assert len(fitting) >= 3, (world, fitting)
