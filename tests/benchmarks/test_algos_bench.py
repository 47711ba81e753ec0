"""`worldloom bench algos`: the same settings on both sides, whole trainings, and what counts."""

import json

import pytest

from benchmarks import algos
from benchmarks.pages import algos as page
from worldloom import suites
from worldloom.report import page as html
from worldloom.training.config import make_config

# Of rejax's settings, what ours are called; None: said in another way, or not ours to choose.
NAMES = {
    "num_steps": "unroll_length",
    "clip_eps": "clip_epsilon",
    "ent_coef": "entropy_cost",
    "vf_coef": "value_cost",
    "fill_buffer": "learning_starts",
    "eps_start": "epsilon",
    "eps_end": "epsilon_min",
    "td_lambda": "q_lambda",
    "normalize_observations": "normalise_observations",
}


@pytest.mark.parametrize("name", algos.TASKS)
def test_both_sides_get_the_same_numbers(name):
    task = algos.TASKS[name]
    renamed = {NAMES.get(n, n): value for n, value in task.rejax.items()}
    if "target_noise" in renamed:  # rejax's TD3 adds noise to a torque in [-2, 2], ours to [-1, 1]
        halves = ("exploration_noise", "target_noise", "target_noise_clip")
        noises = [renamed.pop(n) / 2 for n in halves]
        renamed |= dict(
            zip(("exploration_noise", "policy_noise", "noise_clip"), noises, strict=True)
        )
    common = set(renamed) & set(task.ours)
    assert len(common) >= 5
    assert {n: renamed[n] for n in common} == {n: task.ours[n] for n in common}
    setup = algos.task_setup(task, 8)
    assert setup["rejax"]["num_envs"] == setup["ours"]["num_worlds"] == task.num_worlds
    config = make_config(suites.suite("plain"), setup["ours"])  # every option is known
    assert (config.steps, config.algo) == (task.steps, task.algo)
    off_policy = config.algorithm.loop == "off_policy"
    updates = config.hyper.gradient_steps if off_policy else config.hyper.num_epochs
    assert updates == task.rejax["num_epochs"]


def test_a_score_counts_as_good_within_its_noise():
    assert algos.as_good({"ours": [500.0, 500.0], "rejax": [500.0, 500.0]})
    assert algos.as_good({"ours": [490.0, 500.0], "rejax": [500.0, 500.0]})
    assert not algos.as_good({"ours": [470.0, 471.0], "rejax": [499.0, 500.0]})
    # The better of the others is what counts.
    others = {"rejax": [100.0, 110.0], "rejax_with_our_network": [499.0, 500.0]}
    assert not algos.as_good({"ours": [400.0, 410.0], **others})
    assert algos.as_good({"ours": [500.0], "rejax": [499.0]})
    assert not algos.as_good({"ours": [498.0], "rejax": [499.0]})


def test_our_side_trains_a_seed_again_to_the_same_score():
    task = algos.Task("CartPole-v1", "ppo", 64, {}, {"unroll_length": 8, "hidden": (4,)}, 4)
    train, evaluate, facts = algos.make(algos.task_setup(task, 4))
    assert facts["steps"] == 64
    first, other, again = (evaluate(train(seed), 7) for seed in (0, 1, 0))
    assert first == again
    assert 4 * first == round(4 * first)  # the mean of 4 whole lengths
    assert other > 0


def test_without_the_peers_environment_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(algos, "PEERS", tmp_path)
    with pytest.raises(ValueError, match="make peers"):
        algos.rejax(batch=1)


def test_an_unknown_task_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="ppo_pendulum"):
        algos.command(["--only", "ppo_pendulm"])


def runs(speed, scores):
    return {
        "steps_per_second": speed,
        "score": sum(scores) / len(scores),
        "scores": scores,
        "facts": {"compile_seconds": 1.5},
    }


def test_the_page_shows_speeds_and_scores_of_what_was_measured():
    raw = {"td3": {"env": "Pendulum-v1", "ours_runs": runs(5000.0, [-150.0, -140.0])}, "sac": {}}
    (section,) = [html.page("", [part]) for part in page.sections(raw)]
    assert "Worldloom" in section
    assert "5,000" in section
    assert "-150, -140" in section
    assert page.sections({"sac": {}}) == []


@pytest.mark.slow
def test_a_quick_run_of_both_sides_writes_its_result(tmp_path):
    if not (algos.PEERS / "bin/python").exists():
        pytest.skip("make peers sets up rejax")
    out = tmp_path / "algos.json"
    assert algos.command(["--quick", "--only", "ppo", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["complete"]
    raw = result["raw"]["ppo"]
    assert raw["ours_runs"]["facts"]["steps"] == raw["rejax_runs"]["facts"]["steps"] == 500
    assert raw["rejax_runs"]["facts"]["version"] == "0.1.3"
    speeds = [raw[f"{side}_runs"]["steps_per_second"] for side in ("ours", "rejax")]
    assert result["ratios"]["ppo_vs_rejax"] == pytest.approx(speeds[0] / speeds[1])
    assert out.with_suffix(".html").exists()
