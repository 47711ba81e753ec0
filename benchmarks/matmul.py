"""How much of the machine's matrix multiplication a train step uses.

The arithmetic of an IQN update is counted from its layers, multiply and add as two:

    forward             online(s), online(s') and target(s'); the pass that selects actions takes
                        the mean over levels before its heads, so they see B rows instead of B N
    weight gradients    of every layer of online(s); as much as its forward
    input gradients     of the second layer and the heads of online(s); as much as their forward.
                        The first layer's input is the observation and that of the level embedding
                        are cosines: nothing is propagated into them.

Everything else an update does (noise, cosines, loss, clipping, Adam, targets) is not counted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos import independent
from worldloom.algos.iqn import IQNConfig
from worldloom.core.spaces import Box
from worldloom.core.types import Batch, Key
from worldloom.nn.iqn import IQNJAX
from worldloom.suites.grid.problem import make_problem
from worldloom.training.config import TrainConfig
from worldloom.training.loops import turn_loop
from worldloom.training.loops.turns import TurnLoop
from worldloom.training.timer import Timing, compiled, interleave, ratio


@dataclass(frozen=True)
class Dot:
    """A matrix product (rows, inner) x (inner, columns)."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inner * self.columns


def layer_dots(config: IQNConfig, features: int, actions: int) -> dict[str, Dot]:
    """The products of one forward pass of one agent, by layer."""
    batch, levels, hidden = config.batch_size, config.num_quantiles, config.hidden
    embedded = levels if config.levels == "shared" else batch * levels
    return {
        "head1": Dot(batch, features, hidden),
        "cos_embedding": Dot(embedded, IQNJAX.num_cosines, hidden),
        "ff_1": Dot(batch * levels, hidden, hidden),
        "heads": Dot(batch * levels, hidden, actions + 1),
    }


def update_flops(config: IQNConfig, features: int, actions: int) -> dict[str, int]:
    """Floating-point operations of all products of one agent's update; see the module's text."""
    flops = {name: dot.flops for name, dot in layer_dots(config, features, actions).items()}
    one_pass = sum(flops.values())
    saved = flops["heads"] - flops["heads"] // config.num_quantiles
    counted = {
        "forward": 3 * one_pass - saved,
        "weight_gradients": one_pass,
        "input_gradients": flops["ff_1"] + flops["heads"],
    }
    return counted | {"total": sum(counted.values())}


@dataclass(frozen=True)
class ShareSizes:
    updates: int = 4  # in one call, carried from one to the next as in the fused program
    repeats: int = 15


def train_step_share(config: TrainConfig, sizes: ShareSizes, raw: dict[str, Any]) -> float | None:
    """The matmul rate of a fused update of all agents, over the best rate of its largest layer."""
    loop: Any = turn_loop(config, make_problem(config))
    spec = loop.env.spec
    features, actions = math.prod(_observation(loop).shape), loop.agent.num_actions
    counted = update_flops(config.hyper, features, actions)
    work = counted["total"] * spec.num_agents
    updates, facts = _updates(loop, sizes.updates)
    dots = layer_dots(config.hyper, features, actions)
    largest = max(dots, key=lambda name: dots[name].flops)
    products = {
        f"{name}, {form}, {library}": product
        for name, dot in dots.items()
        if name != "heads"  # too thin to say anything about a machine
        for (form, library), product in _products(dot, spec.num_agents).items()
    }
    timed = interleave(
        {"updates": updates} | {name: p.run for name, p in products.items()}, sizes.repeats
    )
    rates = {name: p.flops / timed[name].median for name, p in products.items()}
    best = max((name for name in rates if name.startswith(largest)), key=lambda n: rates[n])
    update: Timing = timed["updates"].per(sizes.updates)
    rate = work / update.median
    raw |= {
        "work": {
            "agents": spec.num_agents,
            "hidden": config.hyper.hidden,
            "batch_size": config.hyper.batch_size,
            "num_quantiles": config.hyper.num_quantiles,
            "features": features,
        },
        "flops_of_one_agent": counted,
        "flops_of_all_agents": work,
        **facts,
        "update_seconds": update.to_dict(),
        "update_gflops_per_second": rate / 1e9,
        "best_matmul": best,
        "best_matmul_gflops_per_second": rates[best] / 1e9,
        "matmul_gflops_per_second": {name: value / 1e9 for name, value in rates.items()},
    }
    return ratio(rate, rates[best])


def _updates(loop: TurnLoop, count: int) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A call that updates all agents `count` times in one program, and facts about it."""
    learner = jax.jit(lambda key: loop.init(key).learner)(jax.random.key(0))
    batches, keys = _batches(loop, count)

    def one(learner, x):
        batch, keys = x
        return independent.parallel_train_agents(loop.agent, learner, batch, keys)

    def many(learner, batches, keys):
        return jax.lax.scan(one, learner, (batches, keys))

    first = jax.tree.map(lambda x: x[0], (batches, keys))
    cost = jax.jit(one).lower(learner, first).cost_analysis() or {}
    program, seconds = compiled(many, learner, batches, keys, donate=(0,))
    held = [learner]

    def run():
        held[0], metrics = program(held[0], batches, keys)
        return metrics

    return run, {"cost_analysis_flops": cost.get("flops"), "compile_seconds": seconds}


def _observation(loop: TurnLoop) -> Box:
    assert isinstance(loop.env.spec.observation, Box)
    return loop.env.spec.observation


def _batches(loop: TurnLoop, count: int) -> tuple[Batch, Key]:
    """Made-up batches (count, agents, B, ...) of the right shapes, and keys (count, agents)."""
    space, rng = _observation(loop), np.random.default_rng(0)
    shape = (count, loop.env.spec.num_agents, loop.agent.config.batch_size)

    def frames():
        shown = rng.random((*shape, *space.shape), dtype=np.float32) < 0.2
        return jnp.asarray(shown.astype(space.dtype))

    batch = Batch(
        obs=frames(),
        action=jnp.asarray(rng.integers(loop.agent.num_actions, size=shape, dtype=np.int32)),
        reward=jnp.asarray(rng.standard_normal(shape, dtype=np.float32)),
        discount=jnp.full(shape, 0.97),
        next_obs=frames(),
    )
    return batch, jax.random.split(jax.random.key(1), shape[:2])


@dataclass(frozen=True)
class _Product:
    run: Callable[[], Any]
    flops: int


def _products(dot: Dot, agents: int) -> dict[tuple[str, str], _Product]:
    """One layer's product, forward and as a weight gradient, by every library that is here."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    x, w = draw(agents, dot.rows, dot.inner), draw(agents, dot.inner, dot.columns)
    g = draw(agents, dot.rows, dot.columns)
    forms = {"forward": (x, w), "weight gradient": (x.swapaxes(1, 2), g)}
    products = {}
    for form, (left, right) in forms.items():
        transposed = form != "forward"
        subscripts = "aji,ajk->aik" if transposed else "aij,ajk->aik"
        # XLA and PyTorch get the activations as they lie in memory, and transpose by themselves.
        plain = left.swapaxes(1, 2) if transposed else left
        many = jax.jit(lambda a, b, s=subscripts: jnp.einsum(s, a, b))
        one = jax.jit(lambda a, b, t=transposed: (a.T if t else a) @ b)
        ours = jnp.asarray(plain), jnp.asarray(right)
        alone = ours[0][0], ours[1][0]
        products[form, "XLA, all agents"] = _Product(
            lambda f=many, ab=ours: f(*ab), dot.flops * agents
        )
        products[form, "XLA, one agent"] = _Product(lambda f=one, ab=alone: f(*ab), dot.flops)
        products[form, "numpy, one agent"] = _Product(
            lambda a=left[0], b=right[0]: np.matmul(a, b), dot.flops
        )
        products |= _torch_products(form, left[0], right[0], dot.flops)
    return products


def _torch_products(
    form: str, left: np.ndarray, right: np.ndarray, flops: int
) -> dict[tuple[str, str], _Product]:
    try:
        import torch
    except ImportError:
        return {}
    a, b = torch.from_numpy(left), torch.from_numpy(right)
    return {(form, "PyTorch, one agent"): _Product(lambda: torch.mm(a, b), flops)}
