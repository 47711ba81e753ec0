"""Implicit quantile network (Dabney et al. 2018) in PyTorch, as the original treasure hunt has it.

The departures from the paper are the original's and are kept on purpose: they are what a faithful
port must reproduce. The cosine frequencies are 1..64 instead of 0..63, the loss is a mean over
the online quantiles instead of a sum, `n_step` enters as gamma**n_step while rewards and next
states stay one step apart, and the first greedy action turns the noise of the local network off
for good.
"""

import math
from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils import clip_grad_norm_

from worldloom.algos.iqn import IQNConfig
from worldloom.suites.grid.numpy_ring import LegacyRing

NUM_COSINES = 64
INITIAL_SIGMA = 0.017
MAX_GRAD_NORM = 1.0
NOISY_LAYERS = ("ff_1", "advantage", "value")

LayerNoise = tuple[Tensor, Tensor]  # eps_weight (out, in), eps_bias (out,)
Noise = Mapping[str, LayerNoise]  # by the name of the layer


def seeded_linear(in_features: int, out_features: int, generator: torch.Generator) -> nn.Linear:
    """PyTorch's own initialisation, U(+-1/sqrt(in)), but from an explicit generator."""
    layer = nn.Linear(in_features, out_features, device="meta").to_empty(device="cpu")
    bound = 1.0 / math.sqrt(in_features)
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


class NoisyLinear(nn.Module):
    """Linear layer with learnable, independent (not factorised) Gaussian noise on its parameters.

    One draw of the noise is shared by the whole batch. Without given noise, a forward draws it in
    training mode and uses the means in evaluation mode.
    """

    def __init__(self, in_features: int, out_features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator
        bound = math.sqrt(3.0 / in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.sigma_weight = nn.Parameter(torch.full((out_features, in_features), INITIAL_SIGMA))
        self.sigma_bias = nn.Parameter(torch.full((out_features,), INITIAL_SIGMA))
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)
        nn.init.uniform_(self.bias, -bound, bound, generator=generator)

    def draw_noise(self) -> LayerNoise:
        """Standard normal eps_weight (out, in) and eps_bias (out,)."""
        return (
            torch.randn(self.weight.shape, generator=self.generator),
            torch.randn(self.bias.shape, generator=self.generator),
        )

    def forward(self, x: Tensor, noise: LayerNoise | None = None) -> Tensor:
        """(..., in) -> (..., out)."""
        if noise is None and self.training:
            noise = self.draw_noise()
        if noise is None:
            return linear(x, self.weight, self.bias)
        eps_weight, eps_bias = noise
        weight = self.weight + self.sigma_weight * eps_weight
        bias = self.bias + self.sigma_bias * eps_bias
        return linear(x, weight, bias)


class IQN(nn.Module):
    """Dueling quantile network: state (B, in_features) and tau -> return quantiles per action."""

    def __init__(
        self,
        in_features: int,
        action_space: int,
        layer_size: int,
        n_quantiles: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.n_quantiles = n_quantiles
        self.generator = generator
        self.pi_multiples = math.pi * torch.arange(1, NUM_COSINES + 1, dtype=torch.float32)
        self.head1 = seeded_linear(in_features, layer_size, generator)
        self.cos_embedding = seeded_linear(NUM_COSINES, layer_size, generator)
        self.ff_1 = NoisyLinear(layer_size, layer_size, generator)
        self.advantage = NoisyLinear(layer_size, action_space, generator)
        self.value = NoisyLinear(layer_size, 1, generator)

    def draw_noise(self) -> dict[str, LayerNoise]:
        """One draw for each noisy layer, in the form that `forward` takes."""
        return {name: getattr(self, name).draw_noise() for name in NOISY_LAYERS}

    def forward(
        self,
        x: Tensor,
        n_tau: int | None = None,
        taus: Tensor | None = None,
        noise: Noise | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Quantiles of the return.

        Args:
            x: states (B, in_features).
            n_tau: N, the number of taus to draw for each state; `n_quantiles` if None.
            taus: (B, N, 1) to use instead of drawing.
            noise: noise of the three noisy layers to use, in any mode, instead of drawing.

        Returns:
            Quantiles (B, N, A) and their taus (B, N, 1).
        """
        layer_noise = noise or dict.fromkeys(NOISY_LAYERS)
        if taus is None:
            taus = torch.rand(len(x), n_tau or self.n_quantiles, 1, generator=self.generator)
        assert taus is not None  # for a type checker that sees no torch
        batch, n_tau, _ = taus.shape
        cos = torch.cos(taus * self.pi_multiples)  # cos(pi i tau), i = 1..64: (B, N, 64)
        state = torch.relu(self.head1(x)).unsqueeze(1)  # (B, 1, H)
        embedding = torch.relu(self.cos_embedding(cos.view(batch * n_tau, NUM_COSINES)))
        hidden = (state * embedding.view(batch, n_tau, -1)).view(batch * n_tau, -1)
        hidden = torch.relu(self.ff_1(hidden, layer_noise["ff_1"]))
        advantage = self.advantage(hidden, layer_noise["advantage"])
        value = self.value(hidden, layer_noise["value"])
        quantiles = value + advantage - advantage.mean(dim=1, keepdim=True)
        return quantiles.view(batch, n_tau, -1), taus

    def get_qvalues(
        self, x: Tensor, n_tau: int | None = None, taus: Tensor | None = None
    ) -> Tensor:
        """Action values (B, A): the mean over the taus."""
        quantiles, _ = self(x, n_tau, taus)
        return quantiles.mean(dim=1)


def take_quantiles(quantiles: Tensor, action: Tensor) -> Tensor:
    """The quantiles of one action for each state: (B, N, A), (B,) -> (B, N)."""
    index = action[:, None, None].expand(-1, quantiles.shape[1], 1)
    return quantiles.gather(2, index).squeeze(2)


def quantile_huber_loss(
    expected: Tensor, targets: Tensor, taus: Tensor, legacy: bool, valid: Tensor | None = None
) -> Tensor:
    """Quantile regression with the Huber loss, kappa = 1.

    Args:
        expected: online quantiles (B, N).
        targets: target quantiles (B, M).
        taus: the taus of the online quantiles (B, N).
        legacy: average over both quantile axes. The paper (eq. 3) sums over the online axis and
            averages over the target axis: N times the loss and the gradient.
        valid: weight of each state (B,); all ones if None.
    """
    td = targets[:, None, :] - expected[:, :, None]  # (B, N, M)
    size = td.abs()
    huber = torch.where(size <= 1.0, 0.5 * td.square(), size - 0.5)
    if valid is not None:
        huber = huber * valid[:, None, None]
    loss = (taus[:, :, None] - (td.detach() < 0).float()).abs() * huber
    return loss.mean() if legacy else loss.sum(dim=1).mean(dim=1).mean()


def iqn_loss(
    local: IQN,
    target: IQN,
    batch: Mapping[str, Tensor],
    taus: Mapping[str, Tensor] | None = None,
    noise: Mapping[str, Noise] | None = None,
    legacy: bool = True,
    *,
    detach: bool = True,
) -> Tensor:
    """Double-Q quantile loss of a batch.

    Args:
        batch: obs (B, D), action (B,) int64, reward (B,), discount (B,) with termination already
            in it, next_obs (B, D), and optionally valid (B,).
        taus: (B, N, 1) for each of the forwards "select" (local network, next state, picks the
            action), "target" (target network, next state) and "online" (local network, state);
            those not given are drawn, in this order.
        noise: the same for the noise of these forwards.
        legacy: see `quantile_huber_loss`.
        detach: compute the target without autograd. The original does not: the loss and the
            gradient of `local` are the same, but the backward pass also runs through `target`.
    """
    taus, noise = taus or {}, noise or {}

    def forward(network: IQN, obs: str, name: str) -> tuple[Tensor, Tensor]:
        return network(batch[obs], taus=taus.get(name), noise=noise.get(name))

    with torch.no_grad() if detach else nullcontext():
        selecting, _ = forward(local, "next_obs", "select")
        best = selecting.mean(dim=1).argmax(dim=1)
        following, _ = forward(target, "next_obs", "target")
        bootstrap = batch["discount"][:, None] * take_quantiles(following, best)
        targets = batch["reward"][:, None] + bootstrap
    quantiles, online_taus = forward(local, "obs", "online")
    expected = take_quantiles(quantiles, batch["action"])
    return quantile_huber_loss(
        expected, targets, online_taus.squeeze(2), legacy, batch.get("valid")
    )


class TorchIQN:
    """One agent: a local and a target network, an optimiser and a ring of its own frames.

    Args:
        config: sizes and rates. Of `n_step` the original knows the exponent of gamma alone, and
            `epsilon_decay` is a share of epsilon for each epoch.
        input_size: features of one frame; the networks take n_frames of them.
        seed: seeds the agent's torch and numpy generators, its only sources of randomness.
        tuned: skip the autograd work of which the original makes no use; same results.
    """

    def __init__(
        self,
        config: IQNConfig,
        input_size: int,
        n_frames: int = 5,
        action_space: int = 4,
        seed: int = 0,
        tuned: bool = False,
    ) -> None:
        self.config, self.action_space, self.tuned = config, action_space, tuned
        self.epsilon = config.epsilon
        self.rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        sizes = n_frames * input_size, action_space, config.hidden, config.num_quantiles
        self.local, self.target = IQN(*sizes, generator), IQN(*sizes, generator)
        self.hard_update()
        self.optimizer = torch.optim.Adam(self.local.parameters(), lr=config.learning_rate)
        self.memory = LegacyRing(config.buffer_size, input_size, n_frames)

    def stacked_state(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The frames at the write head of the ring and `obs` (input_size,): (F * input_size,)."""
        return np.concatenate([self.memory.current_state().reshape(-1), obs])

    def take_action(self, stacked_state: NDArray[np.float32]) -> int:
        """An epsilon-greedy action for a state (F * input_size,)."""
        if self.rng.random() <= self.epsilon:
            return int(self.rng.integers(self.action_space))
        # The original never goes back to training mode, so from here on the local network also
        # learns without noise, while the target network keeps its own.
        self.local.eval()
        with torch.no_grad():
            state = torch.from_numpy(stacked_state).unsqueeze(0)
            return int(self.local.get_qvalues(state, self.config.act_quantiles).argmax())

    def start_epoch_action(self, epoch: int) -> None:
        """Leave a gap in the ring, and copy the local to the target network when it is due."""
        self.memory.add_empty()
        if epoch % self.config.sync_epochs == 0:
            self.hard_update()

    def train_step(self) -> float:
        """One gradient step on one batch; returns the loss, or 0 while the ring is too short."""
        if self.memory.num_starts < self.config.batch_size:
            return 0.0
        self.optimizer.zero_grad()
        loss = iqn_loss(self.local, self.target, self.sample(), detach=self.tuned)
        loss.backward()
        clip_grad_norm_(self.local.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()
        self.soft_update()
        return loss.item()

    def sample(self) -> dict[str, Tensor]:
        """A batch from memory, as `iqn_loss` takes it."""
        windows = self.memory.sample(self.config.batch_size, self.rng)
        # Rewards and next states are one step apart: gamma**n_step is the original's discount.
        discount = self.config.gamma**self.config.n_step * (1.0 - windows.dones)
        return {
            "obs": torch.from_numpy(windows.states),
            "action": torch.from_numpy(windows.actions),
            "reward": torch.from_numpy(windows.rewards),
            "discount": torch.from_numpy(discount),
            "next_obs": torch.from_numpy(windows.next_states),
            "valid": torch.from_numpy(windows.valid),
        }

    def decay_epsilon(self) -> None:
        """Multiply epsilon by 1 - epsilon_decay, down to epsilon_min."""
        decayed = self.epsilon * (1.0 - self.config.epsilon_decay)
        self.epsilon = max(decayed, self.config.epsilon_min)

    def hard_update(self) -> None:
        """Copy the local to the target network."""
        self.target.load_state_dict(self.local.state_dict())

    def soft_update(self) -> None:
        """Move the target network by a share of its distance to the local network."""
        rate = self.config.target_rate
        for target, local in zip(self.target.parameters(), self.local.parameters(), strict=True):
            target.data.copy_(rate * local.data + (1.0 - rate) * target.data)
