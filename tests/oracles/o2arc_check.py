"""`rules="o2arc"` beside the installed ARCLE: the same actions in both, compared after every step.

    python -m oracles.o2arc_check --sequences 20000

Compared are the grid and its size, the clipboard, every field of the object state, what is
selected, and the reward of submissions. Two defects of ARCLE are known, and after each step its
state is put right where one of them showed, so that everything else can be compared on:

- Color and Paste write outside of `grid_dim`: that area is set to 0 again.
- Copy refuses selections that reach out of bounds, but lets pass those that do so by one row or
  column: what it has copied then is taken back.
"""

import argparse
import dataclasses
import functools
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array, Key
from worldloom.suites.arc import o2arc, planes
from worldloom.suites.arc.environment import make_config, start_at, step_worlds
from worldloom.suites.arc.tasks import Pair, Task, pack_tasks
from worldloom.suites.arc.types import Action, ArcConfig, BoxAction, MaskAction

# Each batch of sequences is of the next of these: canvas, form of action, share of real tasks.
BATCHES = (
    ((30, 30), "mask", 0.5),
    ((30, 30), "box", 0.5),
    ((30, 30), "mask", 0.5),
    ((5, 5), "mask", 0.5),
    ((30, 30), "mask", 0.5),
    ((32, 32), "mask", 0.0),  # the widest of words, in which shifts have no bit to spare
)
OBJECT_GRIDS = ("object", "object_sel", "background")
OBJECT_NUMBERS = ("active", "object_dim", "object_pos", "rotation_parity")
GRIDS = ("grid", "clip", "selected", *OBJECT_GRIDS)
OUTSIDE, EDGE_COPY = "written outside of the grid", "copied beyond the edge"


@dataclass(frozen=True)
class O2ArcReport:
    """What a comparison has found; `differences` must be 0."""

    sequences: int
    steps: int  # compared, all sequences together
    differences: int  # steps after which something was not the same
    first: str | None  # the first of them, described
    put_right: dict[str, int]  # steps in which a known defect of ARCLE showed
    continued: int  # steps that went on with an object under an empty selection
    correct_submissions: int
    wrong_submissions: int
    unfinished: int  # sequences cut short because ARCLE raised an OverflowError


class Script(NamedTuple):
    """What B worlds are to do in T steps, beginning with their pairs."""

    pairs: list[Pair]
    operation: np.ndarray  # int32 (T, B)
    selection: np.ndarray  # bool (T, B, H, W)
    box: np.ndarray | None  # int32 (T, B, 4) where all selections are boxes


# Actions and tasks -----------------------------------------------------------------------------


def random_pair(rng: np.random.Generator, grid_shape: tuple[int, int]) -> Pair:
    """Random grids, small ones more often; now and then the answer is the input, or close to it."""

    def grid(shape):
        colours = rng.integers(0, 10, rng.integers(1, 5))
        return np.where(rng.random(shape) < 0.4, 0, rng.choice(colours, shape)).astype(np.int8)

    def shape():
        return tuple(1 + int(side * rng.random() ** 2) for side in grid_shape)

    start = grid(shape())
    answer = [start, np.zeros_like(start), grid(start.shape), grid(shape())][rng.integers(4)]
    return Pair(start, answer)


def random_script(
    rng: np.random.Generator, pairs: list[Pair], steps: int, grid_shape: tuple[int, int], form: str
) -> Script:
    """Random operations, in half of the sequences mostly on objects, on selections of all kinds:
    none, one cell, boxes, scattered cells, and such that reach to the end of the canvas."""
    shape = (steps, len(pairs))
    busy = rng.random(len(pairs)) < 0.5  # with objects
    on_object = busy & (rng.random(shape) < 0.7)
    operation = np.where(on_object, rng.integers(20, 28, shape), rng.integers(0, 35, shape))
    operation = np.where(rng.random(shape) < 0.05, 34, operation).astype(np.int32)

    canvas = np.array(grid_shape)
    sizes = np.array([pair.input.shape for pair in pairs])
    near = np.minimum(sizes + 2, canvas)  # a little more than the grid
    extent = np.where((rng.random(shape) < 0.25)[..., None], canvas, near)
    corners = (rng.random((2, *shape, 2)) * extent).astype(np.int32)
    first, last = corners.min(0), corners.max(0)
    kind = rng.random(shape)
    last = np.where((kind < 0.3)[..., None], first, last)  # one cell
    last = np.where((kind > 0.9)[..., None], canvas - 1, last)
    rows, columns = np.arange(canvas[0])[:, None], np.arange(canvas[1])

    def wide(x):
        return x[..., None, None]

    selection = (wide(first[..., 0]) <= rows) & (rows <= wide(last[..., 0]))
    selection = selection & (wide(first[..., 1]) <= columns) & (columns <= wide(last[..., 1]))
    if form == "box":
        return Script(pairs, operation, selection, np.concatenate([first, last], -1))
    scattered = (kind > 0.5) & (kind < 0.75)
    thinned = rng.random(selection.shape, np.float32) < wide(rng.random(shape, np.float32))
    selection &= ~wide(scattered) | thinned
    empty = rng.random(shape) < np.where(on_object, 0.6, 0.1)
    return Script(pairs, operation, selection & ~wide(empty), None)


# Theirs ----------------------------------------------------------------------------------------


@contextmanager
def _arcle() -> Iterator[Any]:
    """The package, with room for its recursive flood fill and quiet about int8 that overflows."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    depth = sys.getrecursionlimit()
    with warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.simplefilter("ignore")
        try:
            import arcle
        except ImportError as error:
            raise ImportError("check_o2arc: ARCLE is missing; pip install arcle==0.2.6") from error
        sys.setrecursionlimit(depth + 32 * 32)
        try:
            yield arcle
        finally:
            sys.setrecursionlimit(depth)


class _Picks:
    """The part of ARCLE's loaders that its environments use: here, pair by pair."""

    def __init__(self, pairs: list[Pair]) -> None:
        self.pairs = pairs

    def pick(self, data_index: int) -> tuple:
        pair = self.pairs[data_index]
        return [pair.input], [pair.output], [], [], {}


def _put_right(state: dict, operation: int, selection: np.ndarray, before: tuple) -> str | None:
    """Undoes a known defect in ARCLE's state after a step; which one, if it showed."""
    height, width = state["grid_dim"]
    if operation < 10 or operation == o2arc.PASTE:
        grid = state["grid"]
        showed = grid[height:].any() or grid[:, width:].any()
        grid[height:] = 0
        grid[:, width:] = 0
        return OUTSIDE if showed else None
    if operation in (o2arc.COPY_FROM_INPUT, o2arc.COPY_FROM_GRID) and selection.any():
        if operation == o2arc.COPY_FROM_INPUT:
            height, width = state["input_dim"]
        bottom = np.flatnonzero(selection.any(1))[-1]
        right = np.flatnonzero(selection.any(0))[-1]
        if bottom <= height and right <= width and (bottom == height or right == width):
            state["clip"][:], state["clip_dim"][:] = before
            return EDGE_COPY
    return None


def _theirs(
    arcle: Any, script: Script, grid_shape: tuple[int, int]
) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, int]]:
    """What ARCLE does: fields (T, B, ...), steps finished (T, B), and how often defects showed."""
    steps, worlds = script.operation.shape
    out = {name: np.zeros((steps, worlds, *grid_shape), np.int8) for name in GRIDS}
    pairs = ("grid_dim", "clip_dim", "object_dim", "object_pos")
    out |= {name: np.zeros((steps, worlds, 2), np.int8) for name in pairs}
    ones = ("active", "rotation_parity", "reward")
    out |= {name: np.zeros((steps, worlds), np.int8) for name in ones}
    finished = np.zeros((steps, worlds), bool)
    put_right = {OUTSIDE: 0, EDGE_COPY: 0}
    env = arcle.envs.O2ARCv2Env(_Picks(script.pairs), max_grid_size=grid_shape)
    for world in range(worlds):
        env.reset(options={"prob_index": world, "subprob_index": 0})
        for step in range(steps):
            operation = int(script.operation[step, world])
            selection = script.selection[step, world].astype(np.int8)
            state = env.current_state
            before = state["clip"].copy(), state["clip_dim"].copy()
            try:
                state, reward, *_ = env.step({"operation": operation, "selection": selection})
            except OverflowError:  # a turn of an object some hundred cells off the canvas
                break
            defect = _put_right(state, operation, selection, before)
            if defect:
                put_right[defect] += 1
            for name in ("grid", "clip", "selected", "grid_dim", "clip_dim"):
                out[name][step, world] = state[name]
            objects = state["object_states"]
            for name in (*OBJECT_GRIDS, "object_dim", "object_pos"):
                out[name][step, world] = objects[name]
            for name in ("active", "rotation_parity"):
                out[name][step, world] = objects[name][0]
            out["reward"][step, world] = reward
            finished[step, world] = True
    return out, finished, put_right


# Ours ------------------------------------------------------------------------------------------


@jax.jit
def _play(keys: Key, actions: Action, config: ArcConfig) -> dict[str, Array]:
    """The same fields of our worlds: (T, B, ...) from actions (T, B, ...)."""
    shape = config.grid_shape
    states = start_at(jnp.arange(config.tasks.num_pairs), keys, config)

    def step(states, action):
        states, _, reward, _, _ = step_worlds(states, action, config)
        objects = states.objects
        fields = {name: getattr(objects, name) for name in OBJECT_NUMBERS}
        fields |= {
            "grid": planes.unpack(states.grid, shape),
            "grid_dim": states.size,
            "clip": planes.unpack(states.clipboard, shape),
            "clip_dim": states.clipboard_size,
            "selected": planes.unpack_plane(o2arc.selected_cells(objects, states.size), shape),
            "object": planes.unpack(objects.object, shape),
            "object_sel": planes.unpack_plane(objects.object_sel, shape),
            "background": planes.unpack(objects.background, shape),
            "reward": reward,
        }
        return states, {name: value.astype(jnp.int8) for name, value in fields.items()}

    return jax.lax.scan(step, states, actions)[1]


def _ours(script: Script, grid_shape: tuple[int, int]) -> dict[str, np.ndarray]:
    tasks = [Task(str(i), (pair,), ()) for i, pair in enumerate(script.pairs)]
    # ARCLE pays 1 for a correct submission and nothing else.
    config = make_config(
        pack_tasks(tasks, grid_shape), rules="o2arc", max_trials=-1, success_bonus=1.0,
        similarity_weight=0.0, step_penalty=0.0, wrong_penalty=0.0,
    )  # fmt: skip
    keys = jax.random.split(jax.random.key(0), len(tasks))
    operation = jnp.asarray(script.operation)
    if script.box is not None:
        actions = BoxAction(operation, *(jnp.asarray(x) for x in np.moveaxis(script.box, -1, 0)))
    else:
        actions = MaskAction(operation, jnp.asarray(script.selection))
    return {name: np.asarray(value) for name, value in _play(keys, actions, config).items()}


# The comparison --------------------------------------------------------------------------------


def _describe(script: Script, theirs: dict, ours: dict, where: tuple, names: list[str]) -> str:
    """The step at `where` (step, world), and each field in which the two differ after it."""
    step, world = where
    operation = script.operation[where]
    cells = np.argwhere(script.selection[where]).tolist()
    lines = [
        f"sequence {world}, step {step}: operation {operation} ({o2arc.NAMES[operation]}), "
        f"input {script.pairs[world].input.shape}, {len(cells)} cells selected: {cells[:12]}"
    ]
    for name in names:
        a, b = theirs[name][where], ours[name][where]
        if a.ndim < 2:
            lines.append(f"  {name}: ARCLE {a.tolist()}, ours {b.tolist()}")
            continue
        differ = np.argwhere(a != b)
        shown = ", ".join(f"{(int(r), int(c))}: {a[r, c]} / {b[r, c]}" for r, c in differ[:6])
        lines.append(f"  {name}: {len(differ)} cells (ARCLE / ours): {shown}")
    return "\n".join(lines)


def compare(script: Script, grid_shape: tuple[int, int]) -> O2ArcReport:
    """Plays one script in ARCLE and in ours."""
    steps, worlds = script.operation.shape
    with _arcle() as arcle:
        theirs, finished, put_right = _theirs(arcle, script, grid_shape)
    ours = _ours(script, grid_shape)
    wrong = {
        name: (theirs[name] != ours[name]).reshape(steps, worlds, -1).any(-1) & finished
        for name in theirs
    }
    differs = np.any(list(wrong.values()), axis=0)
    first = None
    if differs.any():
        where = tuple(np.argwhere(differs)[0])
        first = _describe(script, theirs, ours, where, [n for n in wrong if wrong[n][where]])
    on_object = (script.operation >= o2arc.UP) & (script.operation <= o2arc.FLIP_ROWS)
    empty = ~script.selection.any((-1, -2))
    submits = (script.operation == o2arc.SUBMIT) & finished
    correct = int(theirs["reward"].sum())
    return O2ArcReport(
        sequences=worlds,
        steps=int(finished.sum()),
        differences=int(differs.sum()),
        first=first,
        put_right=put_right,
        continued=int((on_object & empty & (theirs["active"] == 1)).sum()),
        correct_submissions=correct,
        wrong_submissions=int(submits.sum()) - correct,
        unfinished=worlds - int(finished[-1].sum()),
    )


def _together(one: O2ArcReport, two: O2ArcReport) -> O2ArcReport:
    """Both reports as one: sums, and the first difference of either."""
    a, b = dataclasses.asdict(one), dataclasses.asdict(two)
    joined = {name: a[name] + b[name] for name in a if isinstance(a[name], int)}
    put_right = {name: times + b["put_right"][name] for name, times in a["put_right"].items()}
    return O2ArcReport(first=one.first or two.first, put_right=put_right, **joined)


@functools.cache
def _real_pairs() -> dict[bool, list[Pair]]:
    """The pairs of the tasks that come with ARCLE; True: Mini-ARC, of 5x5 at most."""
    with _arcle() as arcle:
        loaders = {False: arcle.loaders.ARCLoader(), True: arcle.loaders.MiniARCLoader()}
    return {
        mini: [
            Pair(start, answer)
            for demo_in, demo_out, test_in, test_out, _ in loader.data
            for start, answer in zip([*demo_in, *test_in], [*demo_out, *test_out], strict=True)
        ]
        for mini, loader in loaders.items()
    }


def check_o2arc(
    sequences: int,
    steps: int = 30,
    seed: int = 0,
    batches: tuple[tuple[tuple[int, int], str, float], ...] = BATCHES,
    batch_size: int = 500,
) -> O2ArcReport:
    """Plays `sequences` random sequences of `steps` actions in ARCLE and in ours; see above.

    About half of them begin with real tasks, those that come with ARCLE, the rest with random
    grids. `batches` are taken in turns; the last one is played to the end, even if that is more.
    """
    if sequences < 1 or steps < 1:
        raise ValueError(f"check_o2arc: sequences={sequences}, steps={steps}; both must be >= 1")
    rng = np.random.default_rng(seed)
    real = _real_pairs()
    size = min(batch_size, sequences)
    reports = []
    for number in range(-(-sequences // size)):
        grid_shape, form, share = batches[number % len(batches)]
        known = real[max(grid_shape) <= 5]
        is_real = rng.random(size) < share
        pairs = [
            known[rng.integers(len(known))] if yes else random_pair(rng, grid_shape)
            for yes in is_real
        ]
        script = random_script(rng, pairs, steps, grid_shape, form)
        reports.append(compare(script, grid_shape))
    return functools.reduce(_together, reports)


def main() -> int:
    """The command: prints the report; the exit code is 1 if anything differed."""
    parser = argparse.ArgumentParser(description="Compare rules='o2arc' with the installed ARCLE.")
    parser.add_argument("--sequences", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    report = check_o2arc(options.sequences, options.steps, options.seed)
    for name, value in dataclasses.asdict(report).items():
        print(f"{name}: {value}")
    print(f"seconds: {time.perf_counter() - began:.0f}")
    return int(report.differences > 0)


if __name__ == "__main__":
    raise SystemExit(main())
