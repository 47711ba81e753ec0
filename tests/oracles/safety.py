"""What the safety filter answers to random rows, judged in float64 by enumeration and by scipy."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from scipy.optimize import linprog

from worldloom.safety import (
    TOLERANCE,
    Barrier,
    ControlState,
    LinearRow,
    filter_action,
    initial_memory,
    make_constraints,
)
from worldloom.safety.reductions import sum_last

ROOM = TOLERANCE  # in lengths of a row: what is feasible by less is decided by rounding
SHAPES = ((1, 2), (2, 2), (2, 5), (3, 4), (4, 7))  # actuators, hard linear rows
BATCH = 5_000


def nearest(
    point: np.ndarray, rows: np.ndarray, bounds: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray | None:
    """The u (m,) nearest to `point` with rows @ u <= bounds in the box; None: there is none.

    Every set of at most m rows is tried as the one that is just satisfied; of the points that
    satisfy all rows, the nearest is the answer, since the true set is among those tried.
    """
    normals, ends = _all_rows(rows, bounds, low, high)
    best, far = None, np.inf
    for count in range(len(point) + 1):
        for held in itertools.combinations(range(len(ends)), count):
            a, b = normals[list(held)], ends[list(held)]
            u = point - np.linalg.pinv(a) @ (a @ point - b) if count else point
            distance = np.linalg.norm(u - point)
            if distance < far and (normals @ u - ends).max() <= 1e-9:
                best, far = u, distance
    return best


def most_room(rows: np.ndarray, bounds: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """By how much every row can be kept at once, in lengths of the rows; below 0: infeasible."""
    normals, ends = _all_rows(rows, bounds, low, high)
    slack = np.concatenate([normals, np.ones((len(ends), 1))], axis=1)
    goal = np.zeros(len(low) + 1)
    goal[-1] = -1.0
    free = [(None, None)] * len(goal)
    return -linprog(goal, A_ub=slack, b_ub=ends, bounds=free).fun


def _all_rows(
    rows: np.ndarray, bounds: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and box as normals of length 1 and their ends."""
    eye = np.eye(len(low))
    normals = np.concatenate([rows, eye, -eye])
    length = np.linalg.norm(normals, axis=1)
    return normals / length[:, None], np.concatenate([bounds, high, -low]) / length


# The filter's faults -----------------------------------------------------------------------------


def count_faults(cases: int, seed: int = 0) -> dict[str, int]:
    """Random cases of every shape, and what the filter got wrong in them.

    broken_promises: actions that are no emergency and cross a hard row beyond its tolerance.
    needless_emergencies: emergencies where `most_room` finds an action with room to spare.
    altered: actions that were changed although they satisfy every hard row, whatever soft rows say.
    feasible: cases that have an answer, but were not safe as they were given.
    """
    names = ("cases", "feasible", "broken_promises", "needless_emergencies", "altered")
    total = dict.fromkeys(names, 0)
    while total["cases"] < cases:
        part = min(BATCH, cases - total["cases"])
        shape = SHAPES[total["cases"] // BATCH % len(SHAPES)]
        for name, value in _faults(shape, part, seed + total["cases"]).items():
            total[name] += value
    return total


def random_rows(rng: np.random.Generator, count: int, size: int, rows: int) -> np.ndarray:
    """Weights (count, rows, size) of any length; half of them nearly parallel to the row before."""
    made = rng.standard_normal((count, rows, size))
    for i in range(1, rows):
        tilt = 10.0 ** rng.uniform(-3.0, 0.0, (count, 1)) * rng.standard_normal((count, size))
        beside = rng.choice([-1.0, 1.0], (count, 1)) * made[:, i - 1] + tilt
        made[:, i] = np.where(rng.uniform(size=(count, 1)) < 0.5, beside, made[:, i])
    return made * 10.0 ** rng.uniform(-2.0, 2.0, (count, rows, 1))


def _model(gains, obs, action):
    return obs + sum_last(gains * action)


@cache
def _filter(size: int, rows: int):
    """Constraints of a shape, as a tree whose numbers are those of one case; and the program."""
    linear = [LinearRow(f"row {i}", [1.0] * size, 0.0) for i in range(rows)]
    linear.append(LinearRow("soft", [1.0] * size, 0.0, hard=False))
    barriers = [Barrier(f"barrier {i}", [1.0, 0.0], 0.0, gamma=1.0) for i in range(2)]
    made = make_constraints(
        2, [0.0] * size, rate={0: 0.5}, linear=linear, barriers=barriers,
        model=Partial(_model, jnp.zeros((2, size))),
    )  # fmt: skip

    def run(arrays):
        low, high, previous, proposed, obs, weights, offsets, gains, barrier, ends = arrays
        c = made.replace(
            low=low, high=high, emergency=jnp.clip(made.emergency, low, high),
            linear=made.linear.replace(weights=-weights, offset=offsets),
            barrier=made.barrier.replace(weights=barrier, offset=ends),
            model=Partial(_model, gains),
        )  # fmt: skip
        sizes = [sum_last(jnp.abs(weights)), sum_last(jnp.abs(barrier))]
        ends = [jnp.abs(offsets), jnp.abs(ends)]
        scale = [jnp.maximum(a, b) for a, b in zip(sizes, ends, strict=True)]
        c = c.replace(scale=jnp.concatenate([jnp.ones(size + 1), *scale]))
        return filter_action(proposed, ControlState(obs, initial_memory(c, previous)), c)

    return jax.jit(jax.vmap(run)), float(made.rate[0])


def _faults(shape: tuple[int, int], count: int, seed: int) -> dict[str, int]:
    size, rows = shape
    run, rate = _filter(size, rows)
    rng = np.random.default_rng(seed)
    low, high = -rng.uniform(0.3, 1.0, (count, size)), rng.uniform(0.3, 1.0, (count, size))
    previous, inner = (low + (high - low) * rng.uniform(size=(count, size)) for _ in range(2))
    proposed = rng.uniform(-1.5, 1.5, (count, size))
    obs = rng.uniform(-1.0, 1.0, (count, 2))
    weights = random_rows(rng, count, size, rows + 1)
    # Most leave a point of the box some room, which the rate may take away again.
    room = np.abs(weights).sum(-1) * rng.uniform(-0.05, 0.3, (count, rows + 1))
    offsets = (weights @ inner[..., None])[..., 0] + room
    gains = random_rows(rng, count, size, 2)
    barrier = rng.standard_normal((count, 2, 2))
    following = obs + (gains @ inner[..., None])[..., 0]
    room = np.abs(barrier @ gains).sum(-1) * rng.uniform(-0.05, 0.3, (count, 2))
    ends = room - (barrier @ following[..., None])[..., 0]
    arrays = (low, high, previous, proposed, obs, weights, offsets, gains, barrier, ends)
    arrays = tuple(x.astype(np.float32) for x in arrays)
    padded = tuple(np.resize(x, (BATCH, *x.shape[1:])) for x in arrays)  # one compiled size
    action, report = jax.tree.map(lambda x: np.asarray(x)[:count], run(padded))

    low, high, previous, proposed, obs, weights, offsets, gains, barrier, ends = (
        x.astype(np.float64) for x in arrays
    )
    low[:, 0] = np.maximum(low[:, 0], previous[:, 0] - rate)
    high[:, 0] = np.minimum(high[:, 0], previous[:, 0] + rate)
    # Both kinds of rows in terms of the action: A u <= b.
    pushed = -(barrier @ gains)
    a = np.concatenate([weights[:, :rows], pushed], axis=1)
    b = np.concatenate([offsets[:, :rows], ends + (barrier @ obs[..., None])[..., 0]], axis=1)
    scale = [
        np.maximum(np.abs(w).sum(-1), np.abs(e)) for w, e in ((weights, offsets), (barrier, ends))
    ]
    allowed = TOLERANCE * np.concatenate([scale[0][:, :rows], scale[1]], axis=1)

    def crossed(u: np.ndarray, least: np.ndarray | float) -> np.ndarray:
        outside = ((u < low - TOLERANCE) | (u > high + TOLERANCE)).any(-1)
        return outside | ((a @ u[..., None])[..., 0] - b > least).any(-1)

    emergency = report.emergency
    rooms = {i: most_room(a[i], b[i], low[i], high[i]) for i in np.flatnonzero(emergency)}
    inside = ((proposed >= low) & (proposed <= high)).all(-1)
    safe = inside & ((a @ proposed[..., None])[..., 0] <= b - ROOM * np.abs(a).sum(-1)).all(-1)
    return {
        "cases": count,
        "feasible": int((~safe & ~emergency).sum() + sum(room > ROOM for room in rooms.values())),
        "broken_promises": int((crossed(action.astype(np.float64), allowed) & ~emergency).sum()),
        "needless_emergencies": sum(room > ROOM for room in rooms.values()),
        "altered": int((safe & (action != arrays[3]).any(-1)).sum()),
    }
