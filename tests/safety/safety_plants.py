"""Small plants with constraints of every kind."""

import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.safety import Barrier, LinearRow, StateRow, make_constraints
from worldloom.safety.reductions import sum_last

A = np.asarray([[0.95, 0.1, 0.0], [-0.05, 0.9, 0.1], [0.0, 0.05, 0.9]], np.float32)
B = np.asarray([[0.3, 0.1], [0.0, 0.25], [-0.2, 0.1]], np.float32)


def linear_model(obs, action):
    """3 signals, 2 actuators."""
    return sum_last(A * obs) + sum_last(B * action)


def curved_model(obs, action):
    """The same with a saturating actuator and a product of signal and action."""
    pushed = jnp.stack([jnp.tanh(0.8 * action[0]), action[1] + 0.3 * action[0] * obs[1]])
    return sum_last(A * obs) + sum_last(B * pushed)


def ensemble_model(obs, action):
    """5 members that agree near the origin of the actions and less further out."""
    spread = jnp.linspace(-1.0, 1.0, 5)[:, None] * 0.05 * (1.0 + (action**2).sum())
    return linear_model(obs, action)[None] + spread * jnp.asarray([1.0, -0.5, 0.2])


FIRST = Barrier("first", [-1.0, 0.0, 0.0], 1.0, gamma=0.4, disturbance=0.02)
SUM = Barrier("sum", [0.5, 1.0, 0.0], 1.5, gamma=0.3, disturbance=0.0)


def one_row(**changes):
    """Box, rates and one barrier, all hard."""
    options = {
        "rate": {0: 0.4, 1: 0.6}, "barriers": [FIRST], "model": linear_model, "latch_after": 3
    }  # fmt: skip
    return make_constraints(3, [-0.5, 0.0], **(options | changes))


def many_rows(**changes):
    """Two linear rows, a trip, two barriers and a lookahead, all hard, on a curved model."""
    options = {
        "low": [-0.9, -1.0], "high": [1.0, 0.8], "rate": {1: 0.7},
        "linear": [LinearRow("total", [1.0, 1.0], 1.2), LinearRow("gap", [1.0, -1.0], 1.3)],
        "state": [StateRow("trip", [0.0, 0.0, -1.0], 1.6)],
        "barriers": [FIRST, SUM], "model": curved_model,
        "lookahead": [StateRow("later", [-1.0, 0.0, 0.0], 1.2)], "horizon": 4,
    }  # fmt: skip
    return make_constraints(3, [-0.5, 0.0], **(options | changes))


def mixed_rows():
    """Hard and soft rows of several kinds."""
    return make_constraints(
        3, [-0.5, 0.0], rate={0: 0.3, 1: 0.5}, soft_rates=[0],
        linear=[LinearRow("total", [1.0, 1.0], 0.8, hard=False)],
        state=[StateRow("alarm", [0.0, 0.0, -1.0], 0.5, hard=False)],
        barriers=[FIRST, Barrier("low", [1.0, 0.0, 0.0], 0.7, hard=False, gamma=0.5)],
        model=linear_model,
    )  # fmt: skip


def learned():
    """One barrier on an ensemble."""
    return one_row(model=ensemble_model, deviations=1.5)


CONSTRAINTS = {
    "one_row": one_row, "many_rows": many_rows, "mixed_rows": mixed_rows, "learned": learned
}  # fmt: skip


def start(key):
    """An observation within or near the limits."""
    return 2.4 * draws.uniform(key, (3,)) - 1.2


def oracle_margins(constraints, obs, action, previous, model=linear_model):
    """Margins in float64 numpy, written out anew, of constraints without lookahead."""
    c = constraints
    obs, action, previous = (np.asarray(x, np.float64) for x in (obs, action, previous))
    f64 = lambda x: np.asarray(x, np.float64)  # noqa: E731
    margins = [min(action[i] - f64(c.low)[i], f64(c.high)[i] - action[i]) for i in range(2)]
    margins += [f64(c.rate)[k] - abs(action[i] - previous[i]) for k, i in enumerate(c.rated)]
    margins += list(f64(c.linear.weights) @ action + f64(c.linear.offset))
    margins += list(f64(c.state.weights) @ obs + f64(c.state.offset))
    after = A.astype(np.float64) @ obs + B.astype(np.float64) @ action
    for w, d, gamma, worst in zip(
        f64(c.barrier.weights), f64(c.barrier.offset), f64(c.gamma), f64(c.disturbance), strict=True
    ):
        margins.append(w @ after + d - worst - (1.0 - gamma) * (w @ obs + d))
    return np.asarray(margins)
