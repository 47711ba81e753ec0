"""How much of the machine's matrix multiplication an offline update uses.

The products of one update are counted from its layers, multiply and add as two; everything else
(draws, activations, losses, Adam, targets) is not. Beside it stands one plain product of the
update's largest layer, repeated in a compiled loop that does nothing else.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

Setup = dict[str, Any]
PRODUCTS = 64  # in one call: so that calling costs nothing


def update_flops(setup: Setup) -> float:
    """Floating-point operations of all products of one update, on average over its period."""
    n, m, rows, hidden = (setup[k] for k in ("obs_size", "action_size", "batch", "hidden"))
    actor, critic = (n, *hidden, m), (n + m, *hidden, 1)
    forward, learn = _forward(rows, critic), _learn(rows, critic)
    # Back through a critic to the action: no gradients of weights, nor of the observation.
    through = forward + _forward(rows, critic[1:]) + _forward(rows, (m, hidden[0]))
    if setup["algo"] == "td3bc":
        target = _forward(rows, actor) + 2 * forward
        return target + 2 * learn + (_learn(rows, actor) + through) / 2
    if setup["algo"] == "iql":
        value = (n, *hidden, 1)
        target = 2 * forward + _forward(rows, value)
        return target + 2 * learn + _learn(rows, actor) + _learn(rows, value)
    judged = rows * (3 * setup["samples"] + 1)  # actions, which share their observation's layer
    shared = 2 * (_forward(rows, (n, hidden[0])) + _forward(judged, (m, hidden[0])))
    judging = shared + 3 * _forward(judged, critic[1:])
    gaussian = (n, *hidden, 2 * m)
    target = _forward(2 * rows, gaussian) + 2 * forward
    return target + 2 * judging + _learn(rows, gaussian) + 2 * through


def _forward(rows: int, sizes: Sequence[int]) -> int:
    return sum(2 * rows * inputs * outputs for inputs, outputs in pairwise(sizes))


def _learn(rows: int, sizes: Sequence[int]) -> int:
    """Forward, and back to all weights and to all inputs but the first layer's."""
    return 2 * _forward(rows, sizes) + _forward(rows, sizes[1:])


def multiply(setup: Setup) -> tuple[Any, int, dict[str, Any]]:
    """A block of plain products as large as those of the update's largest layer."""
    import jax
    import jax.numpy as jnp

    width, rows = max(setup["hidden"]), setup["batch"]
    if setup["algo"] == "cql":
        rows *= 3 * setup["samples"] + 1
    x = jax.random.normal(jax.random.key(0), (rows, width))
    # Orthogonal, so that nothing becomes infinite or vanishes on the way.
    w = jnp.linalg.qr(jax.random.normal(jax.random.key(1), (width, width)))[0]
    run = jax.jit(lambda x, w: jax.lax.fori_loop(0, PRODUCTS, lambda _, y: y @ w, x).sum())
    run(x, w).block_until_ready()
    facts = {"flops": PRODUCTS * _forward(rows, (width, width)), "rows": rows, "width": width}
    return lambda: run(x, w).block_until_ready(), 1, facts
