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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos import independent
from worldloom.algos.iqn import IQNConfig
from worldloom.bench.timer import Timing, compiled, interleave, ratio
from worldloom.core.types import Array, Batch
from worldloom.nn.iqn import IQNJAX
from worldloom.train.build import build_loop
from worldloom.train.config import TrainConfig
from worldloom.train.online import Loop


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
    loop = build_loop(config)
    spec = loop.env.spec
    features, actions = int(np.prod(spec.observation.shape)), loop.agent.num_actions
    counted = update_flops(config.iqn, features, actions)
    work = counted["total"] * spec.num_agents
    steps, facts = _updates(loop, sizes.updates)
    dots = layer_dots(config.iqn, features, actions)
    largest = max(dots, key=lambda name: dots[name].flops)
    products = {
        f"{name}, {form}, {library}": product
        for name, dot in dots.items()
        if name != "heads"  # too thin to say anything about a machine
        for (form, library), product in _products(dot, spec.num_agents).items()
    }
    timed = interleave(steps | {name: p.run for name, p in products.items()}, sizes.repeats)
    rates = {name: p.flops / timed[name].median for name, p in products.items()}
    best = max((name for name in rates if name.startswith(largest)), key=lambda n: rates[n])
    update: Timing = timed["fused updates"].per(sizes.updates)
    rate = work / update.median
    raw |= {
        "work": {
            "agents": spec.num_agents,
            "hidden": config.iqn.hidden,
            "batch_size": config.iqn.batch_size,
            "num_quantiles": config.iqn.num_quantiles,
            "features": features,
        },
        "flops_of_one_agent": counted,
        "flops_of_all_agents": work,
        "cost_analysis_flops": facts["cost_analysis_flops"],
        "compile_seconds": facts["compile_seconds"],
        "update_seconds": update.to_dict(),
        "update_in_a_call_of_its_own_seconds": timed["one update"].to_dict(),
        "update_gflops_per_second": rate / 1e9,
        "best_matmul": best,
        "best_matmul_gflops_per_second": rates[best] / 1e9,
        "matmul_gflops_per_second": {name: value / 1e9 for name, value in rates.items()},
    }
    return ratio(rate, rates[best])


def _updates(loop: Loop, count: int) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """Calls that update all agents: `count` times in one program, and once."""
    learner = jax.jit(lambda key: independent.init(loop.agent, key, loop.env.spec))(
        jax.random.key(0)
    )
    batches, keys = jax.jit(lambda: _batches(loop, count))()

    def one(learner, x):
        batch, keys = x
        return independent.parallel_train_agents(loop.agent, learner, batch, keys)

    def many(learner, batches, keys):
        return jax.lax.scan(one, learner, (batches, keys))

    first = jax.tree.map(lambda x: x[0], (batches, keys))
    fused, fused_seconds = compiled(many, learner, batches, keys, donate=(0,))
    single, single_seconds = compiled(one, learner, first, donate=(0,))
    cost = single.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    held = {name: jax.tree.map(jnp.copy, learner) for name in ("fused", "single")}

    def run_fused():
        held["fused"], metrics = fused(held["fused"], batches, keys)
        return metrics

    def run_single():
        held["single"], metrics = single(held["single"], first)
        return metrics

    facts = {
        "cost_analysis_flops": (cost or {}).get("flops"),
        "compile_seconds": {"fused updates": fused_seconds, "one update": single_seconds},
    }
    return {"fused updates": run_fused, "one update": run_single}, facts


def _batches(loop: Loop, count: int) -> tuple[Batch, Array]:
    """Made-up batches (count, agents, B, ...) of the right shapes, and keys (count, agents)."""
    spec, size = loop.env.spec, loop.agent.config.batch_size
    shape = (count, spec.num_agents, size)
    keys = jax.random.split(jax.random.key(1), 5)
    seen = (*shape, *spec.observation.shape)

    def frames(key):
        return jax.random.bernoulli(key, 0.2, seen).astype(spec.observation.dtype)

    batch = Batch(
        obs=frames(keys[0]),
        action=jax.random.randint(keys[1], shape, 0, loop.agent.num_actions),
        reward=jax.random.normal(keys[2], shape),
        discount=jnp.full(shape, 0.97),
        next_obs=frames(keys[3]),
    )
    return batch, jax.random.split(keys[4], shape[:2])


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
    found = {}
    for form, (left, right) in forms.items():
        transposed = form != "forward"
        subscripts = "aji,ajk->aik" if transposed else "aij,ajk->aik"
        # XLA and PyTorch get the activations as they lie in memory, and transpose by themselves.
        plain = left.swapaxes(1, 2) if transposed else left
        many = jax.jit(lambda a, b, s=subscripts: jnp.einsum(s, a, b))
        one = jax.jit(lambda a, b, t=transposed: (a.T if t else a) @ b)
        ours = jnp.asarray(plain), jnp.asarray(right)
        alone = ours[0][0], ours[1][0]
        found[form, "XLA, all agents"] = _Product(
            lambda f=many, ab=ours: f(*ab), dot.flops * agents
        )
        found[form, "XLA, one agent"] = _Product(lambda f=one, ab=alone: f(*ab), dot.flops)
        found[form, "numpy, one agent"] = _Product(
            lambda a=left[0], b=right[0]: np.matmul(a, b), dot.flops
        )
        found |= _torch_products(form, left[0], right[0], dot.flops)
    return found


def _torch_products(
    form: str, left: np.ndarray, right: np.ndarray, flops: int
) -> dict[tuple[str, str], _Product]:
    try:
        import torch
    except ImportError:
        return {}
    a, b = torch.from_numpy(left), torch.from_numpy(right)
    return {(form, "PyTorch, one agent"): _Product(lambda: torch.mm(a, b), flops)}
