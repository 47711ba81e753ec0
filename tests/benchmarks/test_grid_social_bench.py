"""Sections of `worldloom bench grid` about many agents: a little of each, and what is counted."""

from types import SimpleNamespace

import pytest

from benchmarks import cleanup, grid_agents, hunt, ippo


@pytest.mark.slow
def test_cleanup_is_learned_from_both_kinds_of_rewards(compiled_once):
    raw = {}
    ratios = cleanup.measure(cleanup.QUICK, raw, lambda _: None)
    assert [row["rewards"] for row in raw["rows"]] == ["selfish", "shared"]
    assert ratios.keys() == {"cleanup_shared_vs_selfish"}
    assert all(len(row["curve"]) == 2 and row["train_seconds"] > 0 for row in raw["rows"])
    assert all(row["random_play"] is not None for row in raw["rows"])


def test_cleanup_counts_welfare_over_seeds(monkeypatch):
    welfare = {("selfish", 0): 2.0, ("selfish", 1): 4.0, ("shared", 0): 20.0, ("shared", 1): 10.0}

    def train(config, sizes):
        rewards = config.world["rewards"]
        row = {"welfare": welfare[rewards, config.seed], "random_play": 1.0, "train_seconds": 1.0}
        return row | {"gini": None if rewards == "selfish" else 0.2}

    monkeypatch.setattr(cleanup, "train", train)
    raw = {}
    ratios = cleanup.measure(cleanup.CleanupSizes(seeds=2), raw, lambda _: None)
    assert ratios["cleanup_shared_vs_selfish"] == 5.0
    assert raw["gini"] == {"selfish": None, "shared": pytest.approx(0.2)}


def test_the_budget_is_spent_in_seven_seats_of_socialjax():
    config = cleanup.settings(cleanup.CleanupSizes(), "shared", 1)
    assert (config.world["num_agents"], config.world["horizon"]) == (7, 1000)
    assert config.share_parameters is True, "as their PARAMETER_SHARING"
    minibatch = 7 * 16 * 1000 // config.hyper.num_minibatches
    assert config.steps // 16_000 * config.hyper.num_minibatches * config.hyper.num_epochs > 7_000
    assert minibatch == 1750


def test_hunters_that_never_get_there_count(monkeypatch):
    seconds = iter([1.0, None, 3.0, 2.0, 5.0])

    def play(config, criterion, score):
        curve = ((20, 1.0, 480.0),)
        taken = next(seconds)
        return SimpleNamespace(seconds=taken, curve=curve, to_dict=lambda: {"seconds": taken})

    monkeypatch.setattr(hunt, "time_to_score", play)
    raw = {}
    ratios = hunt.measure(hunt.HuntSizes(), raw, lambda _: None)
    assert ratios == {"ippo_treasurehunt_500_share": 0.8}
    assert raw["median_seconds"] == 3.0


def test_costs_of_agents_are_compared_by_agent_steps():
    rows = [
        {"algo": "ppo", "agents": 1, "seconds_per_step": 1.0},
        {"algo": "ppo", "agents": 8, "seconds_per_step": 4.0},
        {"algo": "pqn", "agents": 8, "seconds_per_step": 1.0},
    ]
    assert grid_agents.most_to_fewest(rows) == 2.0


def test_a_row_is_measured_for_real(compiled_once):
    sizes = {"side": 6, "horizon": 4, "agents": 2, "algo": "pqn", "worlds": 4}
    row = grid_agents.one(sizes | {"iterations": 1, "repeats": 2})
    assert row["steps_in_a_block"] == 16
    assert len(row["seconds"]["samples"]) == 2
    assert row["seconds_per_step"] > 0
    assert row["learner_mb"] > 0


def test_peers_that_are_not_there_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLDLOOM_JAXMARL", str(tmp_path / "JaxMARL"))
    with pytest.raises(ValueError, match="name a checkout of JaxMARL in WORLDLOOM_JAXMARL"):
        ippo.measure(ippo.QUICK, {}, lambda _: None)
    monkeypatch.setenv("WORLDLOOM_JAXMARL_VENV", str(tmp_path))
    with pytest.raises(ValueError, match="`make peers` sets up"):
        ippo.peer_python()


def test_our_side_has_the_sizes_of_the_loop_beside_it(compiled_once):
    sizes = {"agents": 2, "worlds": 2, "horizon": 6, "minibatches": 2, "epochs": 1, "updates": 1}
    config = ippo.settings(sizes)
    assert config.share_parameters, "as JaxMARL's loop does"
    assert config.world["radius"] == 5
    assert (config.hyper.num_minibatches, config.hyper.num_epochs) == (2, 1)
