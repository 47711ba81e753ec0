"""The compiled ARC worlds against the numpy oracle, over random worlds and random actions.

`python -m oracles.arc_check --steps 100000` runs the check in full.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from oracles import arc
from oracles.arc import EditRules, Grid, Outcome, World
from oracles.arc_random import (
    FORM_CLASSES,
    Drawn,
    compiled_action,
    draw_action,
    random_tasks,
)
from worldloom.suites.arc import batch_reset, batch_step, make_config, pack_tasks
from worldloom.suites.arc.planes import pack_numpy

FORMS = tuple(FORM_CLASSES)
REWARD_TOLERANCE = 2e-6  # float32 sums of at most five terms of at most about 10


@dataclass(frozen=True)
class Setting:
    """One kind of world; `extended` and `canvas` are what costs a compilation."""

    name: str
    canvas: tuple[int, int] = (30, 30)
    extended: bool = False
    masked: bool = False  # each world allows a random half of the operations
    evaluation: bool = False
    max_trials: int = 3
    max_steps: int = 100
    similarity_weight: float = 1.0
    success_bonus: float = 10.0


SETTINGS = (
    Setting("plain"),
    Setting("extended", extended=True, max_trials=-1),
    Setting("one trial, seven steps", max_trials=1, max_steps=7, similarity_weight=2.5),
    Setting("evaluation", evaluation=True, max_trials=2, extended=True, max_steps=6),
    Setting("masked operations", masked=True, success_bonus=3.25),
    Setting("5x5 canvas", canvas=(5, 5), extended=True, max_steps=9),
    Setting("32x11 canvas", canvas=(32, 11), extended=True, masked=True, max_trials=-1),
)


@dataclass
class Report:
    """What was compared. `changes` counts, by operation, the steps that changed the grid."""

    steps: int = 0
    differences: int = 0
    first: str | None = None
    invalid: int = 0
    solved: int = 0
    wrong: int = 0
    truncated: int = 0
    changes: Counter[int] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        text = (
            f"{self.steps} world steps ({dict(self.forms)}), {self.differences} differences; "
            f"{self.invalid} invalid actions, {self.solved} correct and {self.wrong} wrong "
            f"submissions, {self.truncated} truncations, {sum(self.changes.values())} changes "
            f"of the grid by {len(self.changes)} operations"
        )
        return text if self.first is None else f"{text}\nfirst difference: {self.first}"


# The comparison --------------------------------------------------------------------------------


def padded(grid: Grid, canvas: tuple[int, int]) -> Grid:
    out = np.zeros(canvas, int)
    out[: grid.shape[0], : grid.shape[1]] = grid
    return out


def expected(world: World, reward: float, outcome: Outcome, canvas: tuple[int, int]) -> dict:
    """What the compiled step must report for one world, by name."""
    return {
        "grid": padded(world.grid, canvas),
        "size": world.grid.shape,
        "clipboard": padded(world.clipboard, canvas),
        "clipboard_size": world.clipboard.shape,
        "reward": reward,
        "done": outcome.done,
        "episode_done": outcome.done,
        "terminated": outcome.terminated,
        "truncated": outcome.truncated,
        "solved": outcome.solved,
        "trials": world.trials,
        "similarity": outcome.similarity,
        "similarity_improvement": outcome.improvement,
        "step_count": outcome.step_count,
        "operation_type": outcome.operation_type,
        "size_correct": outcome.size_correct,
    }


def observed(states, obs, reward, done, info) -> dict:
    """The same of B compiled worlds, as numpy arrays (B, ...)."""
    found = {
        "grid": obs.grid, "size": obs.size, "clipboard": obs.clipboard,
        "clipboard_size": obs.clipboard_size, "trials": obs.trials, "reward": reward, "done": done,
    }  # fmt: skip
    found |= {name: getattr(info, name) for name in info.__dataclass_fields__}
    found = {name: np.asarray(value) for name, value in found.items()}
    # No bit may be set outside of the canvas either, where no observation shows it.
    words = states.grid.shape[-1]
    for name in ("grid", "clipboard"):
        clean = pack_numpy(found[name], words) == np.asarray(getattr(states, name))
        found[f"{name} has no bit off the canvas"] = clean.all((-1, -2))
    return found


def differing(want: Sequence[dict], found: dict) -> dict[int, list[str]]:
    """The compiled worlds that differ from the oracle's, each with the names of what differs."""
    names: dict[int, list[str]] = {}
    for name, values in found.items():
        same = values
        if name in want[0]:
            right = np.array([world[name] for world in want])
            tolerance = REWARD_TOLERANCE if right.dtype == float else 0
            same = np.isclose(values, right, rtol=tolerance, atol=tolerance)
        for b in np.flatnonzero(~same.reshape(len(want), -1).all(-1)).tolist():
            names.setdefault(b, []).append(name)
    return names


def _picture(grid: Grid) -> str:
    return "\n".join("".join(map(str, row)) for row in grid.tolist()) or "(empty)"


def describe(
    place: str, names: list[str], action: Drawn, before: World, want: dict, found: dict, b: int
) -> str:
    """A difference, with all one needs to repeat it by hand."""
    selection = action.selection
    cells = "no cells" if selection is None else f"cells {np.argwhere(selection).tolist()[:40]}"
    numbers = [number for number in action.numbers if np.ndim(number) == 0]
    lines = [
        f"{place}: {', '.join(names)}",
        f"operation {action.operation}, action {numbers}, {cells}",
    ]
    lines.append(f"before, {before.grid.shape}:\n{_picture(before.grid)}")
    lines.append(f"clipboard before:\n{_picture(before.clipboard)}")
    for name in names:
        value, got = want.get(name, True), found[name][b]
        if name in ("grid", "clipboard"):
            value, got = f"\n{_picture(value)}", f"\n{_picture(got)}"
        lines.append(f"{name}: expected {value}, found {got}")
    return "\n".join(lines)


def _episode(setting: Setting, form: str, seed: int, batch: int, steps: int, report: Report):
    """`steps` steps of `batch` fresh worlds, compared after each."""
    rng = np.random.default_rng(seed)
    tasks = random_tasks(rng, setting.canvas, 16)
    config = make_config(
        pack_tasks(tasks, setting.canvas),
        extended=setting.extended,
        evaluation=setting.evaluation,
        max_trials=setting.max_trials,
        max_steps=setting.max_steps,
        similarity_weight=setting.similarity_weight,
        success_bonus=setting.success_bonus,
    )
    rules = EditRules(
        similarity_weight=setting.similarity_weight,
        success_bonus=setting.success_bonus,
        max_steps=setting.max_steps,
        evaluation=setting.evaluation,
    )
    states, _ = batch_reset(jax.random.split(jax.random.key(seed), batch), config)
    allowed = np.ones((batch, config.num_operations), bool)
    if setting.masked:
        allowed = rng.random(allowed.shape) < 0.5
        states = states.replace(operation_mask=jnp.asarray(allowed))
    pairs = [pair for task in tasks for pair in task.pairs]
    drawn_pairs = [pairs[i] for i in np.asarray(states.pair)]
    worlds = [
        arc.start(pair.input, pair.input, pair.output, mask, setting.max_trials)
        for pair, mask in zip(drawn_pairs, allowed, strict=True)
    ]
    for t in range(steps):
        # Now and then all worlds do the same, since what few worlds do takes another path.
        together = int(rng.integers(config.num_operations)) if rng.random() < 0.2 else None
        drawn = [draw_action(rng, form, world, setting.canvas, together) for world in worlds]
        states, *answer = batch_step(states, compiled_action(form, drawn), config)
        found = observed(states, *answer)
        after = [
            arc.step(world, action.operation, action.selection, rules)
            for world, action in zip(worlds, drawn, strict=True)
        ]
        want = [expected(*world, setting.canvas) for world in after]
        differences = differing(want, found)
        report.differences += len(differences)
        if differences and report.first is None:
            b, names = next(iter(differences.items()))
            place = f"{setting.name}, {form}, seed {seed}, world {b}, step {t}"
            report.first = describe(place, names, drawn[b], worlds[b], want[b], found, b)
        for world, (new, _, outcome) in zip(worlds, after, strict=True):
            _count(report, world, new, outcome)
        worlds = [new for new, _, _ in after]
        report.steps += batch
        report.forms[form] += batch


def _count(report: Report, world: World, new: World, outcome: Outcome) -> None:
    operation = outcome.operation_type
    report.invalid += operation == -1
    report.truncated += outcome.truncated
    if operation == arc.SUBMIT:
        correct = np.array_equal(world.grid, world.target)
        report.solved += correct
        report.wrong += not correct
    elif not np.array_equal(world.grid, new.grid):
        report.changes[operation] += 1


def check_edit(
    steps: int,
    seed: int = 0,
    *,
    batch: int = 256,
    forms: Sequence[str] = FORMS,
    settings: Sequence[Setting] = SETTINGS,
    episode_steps: int = 20,
) -> Report:
    """At least `steps` random world steps in the compiled worlds and in the oracle.

    They are spread evenly over `settings` and `forms`, in episodes of `episode_steps` steps of
    `batch` worlds. Every cell, size, reward, flag and figure of every step is compared.
    """
    report = Report()
    episode = 0
    while report.steps < steps:
        for setting in settings:
            for form in forms:
                _episode(setting, form, seed + episode, batch, episode_steps, report)
                episode += 1
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    report = check_edit(arguments.steps, arguments.seed)
    print(report)
    sys.exit(report.differences > 0)


if __name__ == "__main__":
    main()
