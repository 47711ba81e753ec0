"""The PyTorch baseline: the arithmetic of the network and the loss, and the loop around them."""

import math
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the PyTorch baseline needs torch")

from worldloom.algos.iqn import IQNConfig  # noqa: E402
from worldloom.suites.grid.torch_iqn import (  # noqa: E402
    IQN,
    NoisyLinear,
    TorchIQN,
    iqn_loss,
    quantile_huber_loss,
)
from worldloom.suites.grid.torch_trainer import run_epoch, setup  # noqa: E402

WORLD = {"height": 6, "width": 6, "num_agents": 2, "spawn_prob": 0.1}
IQN_OPTIONS = replace(
    IQNConfig.original(), hidden=16, num_quantiles=4, act_quantiles=8, batch_size=16,
    buffer_size=64, epsilon=0.5, sync_epochs=4,
)  # fmt: skip


def train(seed, tuned=False, epochs=10):
    """The metrics of each epoch of a small training."""
    env, agents = setup(WORLD, IQN_OPTIONS, 5, seed, tuned)
    return [run_epoch(env, agents, epoch, turns=12) for epoch in range(epochs)]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_network(in_features=6, actions=4, layer_size=8, n_quantiles=5, seed=0) -> IQN:
    generator = torch.Generator().manual_seed(seed)
    return IQN(in_features, actions, layer_size, n_quantiles, generator)


def make_agent(input_size=3, n_frames=5, seed=0, tuned=False, **options) -> TorchIQN:
    config = replace(IQNConfig.original(), **options)
    return TorchIQN(config, input_size, n_frames, seed=seed, tuned=tuned)


def make_agent_with_memory(rows=60, tuned=False, **options) -> TorchIQN:
    settings = {"hidden": 16, "batch_size": 16, "buffer_size": 64} | options
    agent = make_agent(n_frames=2, tuned=tuned, **settings)
    rng = np.random.default_rng(1)
    for _ in range(rows):
        agent.memory.add(rng.random(3), int(rng.integers(4)), rng.normal(), 0.0)
    return agent


def make_batch(size=7, features=6, seed=2) -> dict:
    rng = np.random.default_rng(seed)
    arrays = {
        "obs": rng.random((size, features), dtype=np.float32),
        "action": rng.integers(4, size=size),
        "reward": rng.normal(size=size).astype(np.float32),
        "discount": rng.choice([0.0, 0.97], size=size).astype(np.float32),
        "next_obs": rng.random((size, features), dtype=np.float32),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def draw_taus_and_noise(local: IQN, size=7, n_tau=5) -> tuple[dict, dict]:
    names = ("select", "target", "online")
    generator = torch.Generator().manual_seed(3)
    taus = {name: torch.rand(size, n_tau, 1, generator=generator) for name in names}
    return taus, {name: local.draw_noise() for name in names}


def state_of(network: IQN) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in network.state_dict().items()}


def test_the_network_of_the_original_has_300760_parameters():
    network = make_network(in_features=625, layer_size=250)
    assert sum(parameter.numel() for parameter in network.parameters()) == 300_760


def test_initial_weights_lie_in_the_bounds_of_their_layers():
    network = make_network(in_features=100, layer_size=64)
    bounds = {"head1": 0.1, "cos_embedding": 1 / 8, "ff_1": math.sqrt(3 / 64)}
    for name, bound in bounds.items():
        weight = network.get_submodule(name).weight
        assert 0.9 * bound < weight.abs().max() <= bound
        assert abs(weight.mean()) < 0.1 * bound, "centred on zero"
    assert torch.all(network.ff_1.sigma_weight == 0.017)
    assert torch.all(network.value.sigma_bias == 0.017)


def test_forward_gives_quantiles_and_their_taus():
    network, x = make_network(), torch.rand(3, 6)
    quantiles, taus = network(x, n_tau=9)
    assert quantiles.shape == (3, 9, 4)
    assert taus.shape == (3, 9, 1)
    assert taus.min() >= 0
    assert taus.max() < 1
    assert len(taus.unique()) == 27
    assert network(x)[0].shape == (3, 5, 4)
    assert network.get_qvalues(x, n_tau=9).shape == (3, 4)


def test_forward_agrees_with_the_formula_in_numpy():
    network, rng = make_network(), np.random.default_rng(4)
    x, taus = rng.random((3, 6), dtype=np.float32), rng.random((3, 5, 1), dtype=np.float32)
    noise = network.draw_noise()
    p = state_of(network)

    def dense(name, h):
        eps_weight, eps_bias = (eps.numpy() for eps in noise.get(name, (torch.zeros(()),) * 2))
        weight = p[f"{name}.weight"] + p.get(f"{name}.sigma_weight", 0) * eps_weight
        return h @ weight.T + p[f"{name}.bias"] + p.get(f"{name}.sigma_bias", 0) * eps_bias

    embedding = np.maximum(dense("cos_embedding", np.cos(np.pi * np.arange(1, 65) * taus)), 0)
    hidden = np.maximum(dense("head1", x), 0)[:, None] * embedding
    hidden = np.maximum(dense("ff_1", hidden), 0)
    advantage, value = dense("advantage", hidden), dense("value", hidden)
    expected = value + advantage - advantage.mean(axis=-1, keepdims=True)

    tensors = torch.from_numpy(x), torch.from_numpy(taus)
    quantiles, _ = network(tensors[0], taus=tensors[1], noise=noise)
    np.testing.assert_allclose(quantiles.detach(), expected, rtol=1e-4, atol=1e-5)


def test_noise_is_drawn_in_training_mode_only():
    layer = NoisyLinear(6, 3, torch.Generator().manual_seed(0))
    x = torch.rand(5, 6)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_one_draw_of_noise_is_shared_by_the_batch():
    layer = NoisyLinear(6, 3, torch.Generator().manual_seed(0))
    out = layer(torch.ones(5, 6))
    assert torch.equal(out, out[:1].expand_as(out))


def test_given_noise_is_used_in_both_modes():
    network = make_network()
    x, taus, noise = torch.rand(2, 6), torch.rand(2, 5, 1), network.draw_noise()
    training, _ = network(x, taus=taus, noise=noise)
    network.eval()
    assert torch.equal(network(x, taus=taus, noise=noise)[0], training)
    assert not torch.equal(network(x, taus=taus)[0], training)


def test_quantile_huber_loss_on_numbers_worked_by_hand():
    expected = torch.tensor([[0.0, 1.0]])
    targets = torch.tensor([[0.5, -2.0, 1.0]])
    taus = torch.tensor([[0.25, 0.75]])
    # td of the first quantile: .5, -2, 1; of the second: -.5, -3, 0
    first = 0.25 * 0.125 + 0.75 * 1.5 + 0.25 * 0.5
    second = 0.25 * 0.125 + 0.25 * 2.5 + 0.75 * 0.0
    legacy = quantile_huber_loss(expected, targets, taus, legacy=True)
    paper = quantile_huber_loss(expected, targets, taus, legacy=False)
    assert legacy.item() == pytest.approx((first + second) / 6)
    assert paper.item() == pytest.approx((first + second) / 3)


def test_invalid_rows_lose_their_weight_but_stay_in_the_mean():
    generator = torch.Generator().manual_seed(0)
    expected, targets, taus = (torch.rand(2, 3, generator=generator) for _ in range(3))
    masked = quantile_huber_loss(expected, targets, taus, True, valid=torch.tensor([1.0, 0.0]))
    alone = quantile_huber_loss(expected[:1], targets[:1], taus[:1], True)
    assert masked.item() == pytest.approx(alone.item() / 2)


def test_the_loss_bootstraps_from_the_action_that_the_local_network_prefers():
    local, target, batch = make_network(seed=0), make_network(seed=1), make_batch()
    taus, noise = draw_taus_and_noise(local)
    select = local(batch["next_obs"], taus=taus["select"], noise=noise["select"])[0]
    follow = target(batch["next_obs"], taus=taus["target"], noise=noise["target"])[0]
    online = local(batch["obs"], taus=taus["online"], noise=noise["online"])[0]
    total = 0.0
    for b in range(7):
        best = int(np.argmax([select[b, :, a].mean().item() for a in range(4)]))
        for i in range(5):
            for j in range(5):
                y = batch["reward"][b] + batch["discount"][b] * follow[b, j, best]
                td = (y - online[b, i, batch["action"][b]]).item()
                huber = 0.5 * td * td if abs(td) <= 1 else abs(td) - 0.5
                total += abs(taus["online"][b, i, 0].item() - (td < 0)) * huber
    legacy = iqn_loss(local, target, batch, taus, noise, legacy=True)
    paper = iqn_loss(local, target, batch, taus, noise, legacy=False)
    assert legacy.item() == pytest.approx(total / (7 * 5 * 5), rel=1e-5)
    assert paper.item() == pytest.approx(total / (7 * 5), rel=1e-5)


def test_not_detaching_the_target_changes_no_gradient_of_the_local_network():
    local, target, batch = make_network(seed=0), make_network(seed=1), make_batch()
    taus, noise = draw_taus_and_noise(local)
    gradients = []
    for detach in (True, False):
        local.zero_grad()
        target.zero_grad()
        iqn_loss(local, target, batch, taus, noise, legacy=True, detach=detach).backward()
        gradients.append([parameter.grad.clone() for parameter in local.parameters()])
        assert (target.head1.weight.grad is None) == detach
    for detached, attached in zip(*gradients, strict=True):
        torch.testing.assert_close(detached, attached)


def test_local_and_target_start_equal_and_agents_differ_by_seed():
    agent, other = make_agent(seed=1), make_agent(seed=2)
    for name, value in state_of(agent.local).items():
        np.testing.assert_array_equal(state_of(agent.target)[name], value)
    assert not torch.equal(agent.local.head1.weight, other.local.head1.weight)


def test_the_local_network_stays_in_evaluation_mode_after_the_first_greedy_action():
    agent = make_agent_with_memory(epsilon=1.0)
    state = agent.stacked_state(np.zeros(3, dtype=np.float32))
    agent.take_action(state)
    agent.train_step()
    assert agent.local.training
    assert agent.local.ff_1.sigma_weight.grad is not None
    agent.epsilon = 0.0
    agent.take_action(state)
    agent.train_step()
    assert not agent.local.training
    assert agent.target.training
    assert agent.local.ff_1.sigma_weight.grad is None, "sigma no longer learns"


def test_actions_are_random_or_greedy_by_epsilon():
    state = np.ones(6, dtype=np.float32)
    agent = make_agent_with_memory(epsilon=1.0)
    assert {agent.take_action(state) for _ in range(100)} == {0, 1, 2, 3}
    agent.epsilon = 0.0
    with torch.no_grad():
        agent.local.advantage.bias[2] += 100.0
    assert {agent.take_action(state) for _ in range(20)} == {2}


def test_the_stacked_state_ends_with_the_current_frame():
    agent = make_agent(input_size=2, n_frames=3)
    for row in range(3):
        agent.memory.add([row, row], 0, 0.0, 0.0)
    stacked = agent.stacked_state(np.array([9, 9], dtype=np.float32))
    assert stacked.dtype == np.float32
    assert stacked.tolist() == [1, 1, 2, 2, 9, 9]


def test_the_discount_is_gamma_cubed_on_one_step_rewards():
    agent = make_agent_with_memory()
    batch = agent.sample()
    np.testing.assert_allclose(batch["discount"], 0.970299, rtol=1e-6)
    rewards = agent.memory.rewards
    assert all(reward in rewards for reward in batch["reward"].numpy())


def test_training_waits_until_the_ring_has_a_batch_of_windows():
    agent = make_agent_with_memory(rows=18)  # 18 - 2 - 1 = 15 starts
    before = state_of(agent.local)
    assert agent.train_step() == 0.0
    for name, value in state_of(agent.local).items():
        np.testing.assert_array_equal(value, before[name])
    agent.memory.add(np.zeros(3), 0, 0.0, 0.0)
    assert agent.train_step() > 0.0


def test_a_train_step_moves_the_target_by_tau_towards_the_local_network():
    agent = make_agent_with_memory(target_rate=0.25)
    before = state_of(agent.target)
    agent.train_step()
    local, after = state_of(agent.local), state_of(agent.target)
    assert not np.array_equal(local["head1.weight"], before["head1.weight"])
    for name in after:
        np.testing.assert_allclose(after[name], 0.25 * local[name] + 0.75 * before[name], atol=1e-7)


def test_the_gradient_of_the_local_network_is_clipped_to_norm_one():
    agent = make_agent_with_memory()
    agent.memory.states *= 1000.0  # the Huber loss bounds the effect of large rewards
    agent.train_step()
    squares = [parameter.grad.square().sum().item() for parameter in agent.local.parameters()]
    assert math.sqrt(sum(squares)) == pytest.approx(1.0, rel=1e-4)


def test_the_target_is_copied_in_the_epochs_that_sync_freq_divides():
    agent = make_agent_with_memory(sync_epochs=3)
    agent.train_step()
    gaps = agent.memory.idx
    for epoch, synced in ((1, False), (2, False), (3, True)):
        agent.start_epoch_action(epoch)
        equal = torch.equal(agent.local.head1.weight, agent.target.head1.weight)
        assert equal == synced
    assert agent.memory.idx == (gaps + 3) % 64, "n_frames - 1 rows for each epoch"


def test_the_gradient_of_the_target_accumulates_unless_tuned():
    for tuned in (False, True):
        agent = make_agent_with_memory(tuned=tuned)
        agent.train_step()
        assert (agent.target.head1.weight.grad is None) == tuned


def test_epsilon_decays_by_its_share_down_to_its_floor():
    agent = make_agent(epsilon=1.0, epsilon_decay=0.001)
    for _ in range(1000):
        agent.decay_epsilon()
    assert agent.epsilon == pytest.approx(0.368, abs=1e-3)
    agent = make_agent(epsilon=0.4, epsilon_decay=0.001, epsilon_min=0.4)
    agent.decay_epsilon()
    assert agent.epsilon == 0.4


def test_an_epoch_fills_the_ring_in_the_order_of_the_original():
    env, agents = setup(WORLD, IQN_OPTIONS, 5, seed=0)
    for epoch in range(2):
        record = run_epoch(env, agents, epoch, turns=12)
    for agent, total in zip(agents, record["agent_returns"], strict=True):
        assert agent.memory.idx == 2 * (4 + 12)
        assert len(agent.memory) == 2 * 12
        assert agent.memory.rewards[16 + 4 : 32].sum() == pytest.approx(total)
        assert not agent.memory.dones.any()
    assert env.is_done
    assert env.turn == 12
    assert sum(record["agent_returns"]) == env.total_reward
    assert record["epsilon"] == pytest.approx(0.5 * 0.999)
    assert agents[0].epsilon == pytest.approx(0.5 * 0.999**2)


def test_tiny_training_runs_and_depends_on_the_seed_alone():
    records = train(seed=0)
    losses = np.array([record["agent_loss"] for record in records])
    assert losses.shape == (10, 2)
    assert np.isfinite(losses).all()
    assert not losses[0].any(), "the first epoch is too short to learn from"
    assert losses[1:].all()
    assert train(seed=0) == records
    assert train(seed=1) != records


def test_tuning_changes_no_record():
    for plain, tuned in zip(train(seed=3), train(seed=3, tuned=True), strict=True):
        assert tuned["agent_loss"] == pytest.approx(plain["agent_loss"], rel=1e-5)
        assert tuned["agent_returns"] == plain["agent_returns"]


def test_training_leaves_the_global_generators_alone():
    torch_before = torch.random.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # noqa: NPY002
    train(seed=0, epochs=3)
    assert torch.equal(torch.random.get_rng_state(), torch_before)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002
