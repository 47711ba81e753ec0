"""The compiled IQN against the PyTorch one: forward, loss, gradients and whole updates.

Weights are copied, levels and noise are fixed; what remains is float32 rounding.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the torch extra")

from oracles.torch_weights import from_flax, noise_to_flax  # noqa: E402
from worldloom.algos.iqn import IQN, PASSES, IQNConfig, quantile_huber  # noqa: E402
from worldloom.algos.off_policy import TargetLearner  # noqa: E402
from worldloom.core.types import Batch  # noqa: E402
from worldloom.nn.iqn import IQNJAX  # noqa: E402
from worldloom.suites.grid import torch_iqn  # noqa: E402
from worldloom.suites.grid.torch_trainer import to_flax  # noqa: E402

TOLERANCE = 1e-5
ACTIONS = 4
SMALL = {"features": 12, "hidden": 16, "quantiles": 5, "rows": 7}
# Few rows: where rounding moves a unit across the kink of its ReLU the gradient jumps, and each
# of the original's 24 x 250 units in a row is another chance of that.
ORIGINAL = {"features": 625, "hidden": 250, "quantiles": 12, "rows": 8}
SIZES = pytest.mark.parametrize("size", [SMALL, ORIGINAL], ids=["small", "original"])
LEGACY = pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "paper"])


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_network(size, seed) -> torch_iqn.IQN:
    """A network whose noise is large and uneven, so that a mistake in it cannot hide."""
    generator = torch.Generator().manual_seed(seed)
    network = torch_iqn.IQN(size["features"], ACTIONS, size["hidden"], size["quantiles"], generator)
    for name, parameter in network.named_parameters():
        if "sigma" in name:
            parameter.data.uniform_(0.0, 0.05, generator=generator)
    return network


def make_agent(size, **options) -> IQN:
    config = IQNConfig(
        hidden=size["hidden"], num_quantiles=size["quantiles"], batch_size=size["rows"],
        levels="own", noisy=True,
    )  # fmt: skip
    return IQN(replace(config, **options), ACTIONS)


def make_batch(size, seed=2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (size["rows"], size["features"])
    return {
        "obs": rng.random(shape, dtype=np.float32),
        "action": rng.integers(ACTIONS, size=size["rows"]),
        "reward": rng.normal(size=size["rows"]).astype(np.float32),
        "discount": rng.choice([0.0, 0.97], size=size["rows"]).astype(np.float32),
        "next_obs": rng.random(shape, dtype=np.float32),
    }


def as_torch(batch) -> dict:
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def as_jax(batch) -> Batch:
    return Batch(**{name: jnp.asarray(array) for name, array in batch.items()})


def fixed_draws(size, local) -> tuple[dict, dict]:
    """PyTorch levels (B, N, 1) and noise for each of the three passes."""
    generator = torch.Generator().manual_seed(3)
    shape = (size["rows"], size["quantiles"], 1)
    taus = {name: torch.rand(shape, generator=generator) for name in PASSES}
    return taus, {name: local.draw_noise() for name in PASSES}


def draws_as_jax(taus, noise) -> tuple[dict, dict]:
    levels = {name: jnp.asarray(t.squeeze(2).numpy()) for name, t in taus.items()}
    return levels, {name: noise_to_flax(n) for name, n in noise.items()}


def draws_as_torch(levels, noises) -> tuple[dict, dict]:
    def layer(pair):
        weight, bias = (torch.tensor(np.asarray(part)) for part in pair)
        return weight.T.contiguous(), bias

    taus = {name: torch.tensor(np.asarray(t))[..., None] for name, t in levels.items()}
    return taus, {
        name: {each: layer(pair) for each, pair in noise.items()} for name, noise in noises.items()
    }


def worst(a, b) -> float:
    """The largest absolute difference between two parameter trees."""
    difference = jax.tree.map(lambda x, y: np.abs(np.asarray(x) - np.asarray(y)).max(), a, b)
    return float(max(jax.tree.leaves(difference)))


def share_beyond(a, b, tolerance) -> float:
    """The share of entries of two parameter trees that differ by more than `tolerance`."""
    far = jax.tree.map(lambda x, y: np.abs(np.asarray(x) - np.asarray(y)) > tolerance, a, b)
    return float(np.concatenate([f.ravel() for f in jax.tree.leaves(far)]).mean())


def gradients(network) -> dict:
    """The gradients of a PyTorch network in the shape of flax parameters."""
    holder = torch_iqn.IQN(
        network.head1.in_features, ACTIONS, network.head1.out_features, network.n_quantiles,
        torch.Generator(),
    )  # fmt: skip
    for held, parameter in zip(holder.parameters(), network.parameters(), strict=True):
        held.data.copy_(parameter.grad)
    return to_flax(holder)


# Weights -----------------------------------------------------------------------------------------


def test_copied_weights_have_the_structure_and_size_of_the_flax_network():
    copied = to_flax(make_network(ORIGINAL, 0))
    network = IQNJAX(ACTIONS, 250)
    own = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 625)), jnp.zeros(12))
    assert jax.tree.map(jnp.shape, copied) == jax.tree.map(lambda leaf: leaf.shape, own)
    assert sum(leaf.size for leaf in jax.tree.leaves(copied)) == 300_760


def test_weights_survive_the_way_there_and_back():
    source, sink = make_network(SMALL, 0), make_network(SMALL, 1)
    from_flax(to_flax(source), sink)
    for a, b in zip(source.parameters(), sink.parameters(), strict=True):
        assert torch.equal(a, b)


def test_copies_share_no_memory_with_the_network():
    network = make_network(SMALL, 0)
    copied = to_flax(network)
    before = jax.tree.map(np.array, copied)
    for parameter in network.parameters():
        parameter.data.add_(1.0)
    assert worst(copied, before) == 0.0


def test_weights_of_another_network_are_refused():
    silent = IQNJAX(ACTIONS, 16, noisy=False)
    params = jax.jit(silent.init)(jax.random.key(0), jnp.zeros((1, 12)), jnp.zeros(5))
    with pytest.raises(ValueError, match=r"advantage\.sigma_bias.* on one side only"):
        from_flax(params, make_network(SMALL, 0))
    wider = to_flax(make_network(SMALL | {"features": 13}, 0))
    with pytest.raises(ValueError, match=r"head1.kernel has shape \(16, 13\), \(16, 12\)"):
        from_flax(wider, make_network(SMALL, 0))


# Forward -----------------------------------------------------------------------------------------


@SIZES
@pytest.mark.parametrize("noisy", [True, False], ids=["noisy", "means"])
def test_forward_agrees(size, noisy):
    network = make_network(size, 0)
    batch = make_batch(size)
    taus, noise = fixed_draws(size, network)
    if not noisy:
        network.eval()
    theirs, _ = network(
        torch.from_numpy(batch["obs"]), taus=taus["online"],
        noise=noise["online"] if noisy else None,
    )  # fmt: skip
    levels, noises = draws_as_jax(taus, noise)
    ours = jax.jit(IQNJAX(ACTIONS, size["hidden"]).apply)(
        to_flax(network), batch["obs"], levels["online"], noises["online"] if noisy else None
    )
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=0, atol=TOLERANCE)


@SIZES
def test_action_values_agree(size):
    network = make_network(size, 0).eval()
    batch = make_batch(size)
    taus, _ = fixed_draws(size, network)
    theirs = network.get_qvalues(torch.from_numpy(batch["obs"]), taus=taus["online"])
    ours = IQNJAX(ACTIONS, size["hidden"]).apply(
        to_flax(network),
        jnp.asarray(batch["obs"]),
        jnp.asarray(taus["online"].squeeze(2).numpy()),
        method=IQNJAX.get_qvalues,
    )
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=0, atol=TOLERANCE)


# Loss and gradients ------------------------------------------------------------------------------


@LEGACY
def test_the_quantile_huber_loss_agrees(legacy):
    rng = np.random.default_rng(0)
    now, aim = 2 * rng.normal(size=(2, 9, 6)).astype(np.float32)
    taus = rng.random((9, 6), dtype=np.float32)
    theirs = torch_iqn.quantile_huber_loss(
        torch.from_numpy(now), torch.from_numpy(aim), torch.from_numpy(taus), legacy
    )
    each = np.asarray(quantile_huber(*map(jnp.asarray, (now, aim, taus))))
    ours = each.mean() if legacy else each.mean(axis=2).sum(axis=1).mean()
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=TOLERANCE)


@SIZES
@LEGACY
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_loss_and_gradients_agree(size, legacy, masked):
    local, target = make_network(size, 0), make_network(size, 1)
    batch, valid = make_batch(size), np.arange(size["rows"]) % 3 > 0
    mask = {"valid": torch.from_numpy(valid.astype(np.float32))} if masked else {}
    taus, noise = fixed_draws(size, local)
    theirs = torch_iqn.iqn_loss(local, target, as_torch(batch) | mask, taus, noise, legacy)
    theirs.backward()
    agent = make_agent(size, legacy=legacy)
    weighted = as_jax(batch).replace(weight=jnp.float32(valid) if masked else None)
    (ours, q_mean), grads = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))(
        to_flax(local), to_flax(target), weighted, *draws_as_jax(taus, noise)
    )
    assert abs(float(ours) - theirs.item()) < TOLERANCE
    assert worst(grads, gradients(local)) < TOLERANCE
    assert max(np.abs(g).max() for g in jax.tree.leaves(grads)) > 100 * TOLERANCE, "not all tiny"
    assert np.isfinite(q_mean)


def test_no_gradient_reaches_the_target():
    local, target = to_flax(make_network(SMALL, 0)), to_flax(make_network(SMALL, 1))
    agent, batch = make_agent(SMALL), as_jax(make_batch(SMALL))
    taus, noises = agent.draw(jax.random.key(0), SMALL["rows"])
    grads = jax.jit(jax.grad(lambda t: agent.loss(local, t, batch, taus, noises)[0]))(target)
    assert all((np.asarray(g) == 0).all() for g in jax.tree.leaves(grads))


# Updates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "steps", "legacy", "max_grad_norm"),
    [
        (SMALL, 3, False, 1e-2),
        (SMALL, 3, True, 1e3),
        (ORIGINAL, 1, True, 1e-2),
        (ORIGINAL, 1, False, 1e3),
    ],
    ids=["small-paper-clipped", "small-legacy", "original-legacy-clipped", "original-paper"],
)
def test_updates_agree(size, steps, legacy, max_grad_norm):
    """Clip, Adam and the soft target, with draws of our own."""
    rate, share = 2.5e-4, 0.1
    agent = make_agent(
        size, legacy=legacy, learning_rate=rate, target_rate=share, max_grad_norm=max_grad_norm
    )
    local, target = make_network(size, 0), make_network(size, 1)
    params = to_flax(local)
    learner = TargetLearner(params, to_flax(target), agent.optimiser.init(params), jnp.int32(0))
    optimizer = torch.optim.Adam(local.parameters(), lr=rate)
    update, draw = jax.jit(agent.update), jax.jit(agent.draw, static_argnums=1)
    for step, key in enumerate(jax.random.split(jax.random.key(0), steps)):
        batch = make_batch(size, seed=step)
        learner, metrics = update(learner, as_jax(batch), key)
        taus, noise = draws_as_torch(*draw(key, size["rows"]))
        optimizer.zero_grad()
        loss = torch_iqn.iqn_loss(local, target, as_torch(batch), taus, noise, legacy)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(local.parameters(), max_grad_norm)
        assert (norm > max_grad_norm) == (max_grad_norm < 1), "the case is what it says"
        optimizer.step()
        for t, p in zip(target.parameters(), local.parameters(), strict=True):
            t.data.copy_(share * p.data + (1 - share) * t.data)
        assert abs(float(metrics.loss) - loss.item()) < TOLERANCE
        assert float(metrics.grad_norm) == pytest.approx(norm.item(), rel=1e-4)
    moved = worst(params, to_flax(local))
    assert moved > 0.9 * steps * rate, "the networks did learn"
    # Adam divides by the gradient's own size: where that is all rounding, so is the step.
    assert share_beyond(learner.params, to_flax(local), TOLERANCE) < 1e-4
    assert worst(learner.params, to_flax(local)) < rate
    assert share_beyond(learner.target, to_flax(target), TOLERANCE) < 1e-4
    assert int(learner.updates) == steps
