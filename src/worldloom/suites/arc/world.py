"""ARC as an environment: the functions of `environment` behind the protocol that all worlds share.

The rules are `ArcConfig`, and that is what `params` are: everything in it that is not static may
be changed, traced or vmapped without compiling again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

from worldloom.core.draws import as_key
from worldloom.core.names import suggest
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box, Dict, Discrete, Space
from worldloom.core.transforms import as_pure
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.report.colors import rgb
from worldloom.suites.arc import planes
from worldloom.suites.arc.actions import Form, as_action
from worldloom.suites.arc.environment import (
    NAMES,
    make_config,
    reset_world,
    reset_worlds,
    step_world,
    step_worlds,
)
from worldloom.suites.arc.selectors import count_selectors
from worldloom.suites.arc.sources import load
from worldloom.suites.arc.tasks import Task, TaskSet
from worldloom.suites.arc.types import (
    PALETTE,
    Action,
    ArcConfig,
    ArcState,
    BoxAction,
    MaskAction,
    ObjectAction,
    Observation,
    StepInfo,
    TaskBuffer,
)

ActionForm = Literal["point", "flat", "box", "mask", "object"]
Tasks = TaskBuffer | TaskSet | Sequence[Task]

_OUTSIDE = (64, 64, 64)  # of the canvas around the active area
_CELL = 8  # pixels on a side


def world(tasks: Tasks, *, action: ActionForm = "point", **options: Any) -> "ArcWorld":
    """The world of these tasks; the options are those of `make_config`.

    `action` is the form of the actions: "point" (or "flat", the same: one integer, operation *
    H * W + row * W + column), "box" (a dict of operation, r1, c1, r2 and c2, corners inclusive and
    in order), "mask" (a dict of operation and selection (H, W)) or "object" (one integer, operation
    * S + selector: a colour, a component, a box, see `selectors`). The structs of `types` are
    understood under each.
    """
    known = list(get_args(ActionForm))
    if action not in known:
        raise ValueError(f"arc: there is no action={action!r}; {suggest(action, known)}")
    return ArcWorld(make_config(tasks, **options), action)


def make(
    tasks: str | Tasks = "examples",
    split: str | None = None,
    subset: str | None = None,
    max_size: int | tuple[int, int] | None = None,
    path: str | None = None,
    action: ActionForm = "point",
    **rules: Any,
) -> PureEnv:
    """ARC as an environment: ``make("arc-agi-1", split="training", action="box")``.

    `tasks` is a name that `load` knows, and `split`, `subset`, `max_size` and `path` say what to
    load of it; or it is the tasks themselves. `rules` are the options of `world`.
    """
    choice = {"split": split, "subset": subset, "max_size": max_size, "path": path}
    if isinstance(tasks, str):
        tasks = load(tasks, **choice)  # pyright: ignore[reportArgumentType]
    else:
        for name, value in choice.items():
            if value is not None:
                raise ValueError(f"arc: {name}={value!r} needs the name of a task set to load")
    return as_pure(world(tasks, action=action, **rules))


@dataclass(frozen=True, eq=False)
class ArcWorld:
    """One world of ARC under `config`, with actions of one form."""

    config: ArcConfig
    action: ActionForm

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            name="arc",
            observation=observation_space(self.config),
            action=action_space(self.config, self.action),
            horizon=int(self.config.max_steps),
        )

    def default_params(self) -> ArcConfig:
        return self.config

    def reset(self, key: Key, params: ArcConfig) -> tuple[ArcState, TimeStep]:
        return _first(*reset_world(as_key(key), params), params)

    def step(
        self, key: Key, state: ArcState, action: PyTree, params: ArcConfig
    ) -> tuple[ArcState, TimeStep]:
        """One action; the key is not used, since nothing in a step is left to chance."""
        return _later(*step_world(state, self._read(action), params))

    def reset_many(self, keys: Key, params: ArcConfig) -> tuple[ArcState, TimeStep]:
        """`reset` for keys (B,)."""
        return _first(*reset_worlds(as_key(keys), params), params)

    def step_many(
        self, keys: Key, state: ArcState, action: PyTree, params: ArcConfig
    ) -> tuple[ArcState, TimeStep]:
        """`step` for B worlds."""
        return _later(*step_worlds(state, as_action(self._read(action)), params))

    def _read(self, action: PyTree) -> Action:
        """Bare numbers mean what the world's form says; dicts are as their spaces describe them."""
        if self.action == "object" and not isinstance(action, Form | Mapping):
            return ObjectAction(action)
        return _from_dict(action)

    def describe(self) -> dict[str, Any]:
        """Static facts, for tables."""
        height, width = self.config.grid_shape
        names = NAMES[self.config.rules]
        allowed = np.flatnonzero(np.asarray(self.config.operation_mask)).tolist()
        return {
            "name": "arc",
            "size": f"{height}x{width}",
            "agents": 1,
            "actions": [names[operation] for operation in allowed],
        }

    @property
    def renderers(self) -> Mapping[str, Callable[[ArcState, ArcConfig], Any]]:
        """How to draw a state, by the names that Gymnasium gives to the ways of drawing."""
        return {"rgb_array": pixels, "ansi": text}


def _first(state: ArcState, obs: Observation, params: ArcConfig) -> tuple[ArcState, TimeStep]:
    """The time step of fresh worlds."""
    zero, no = jnp.zeros_like(state.similarity), jnp.zeros_like(state.solved)
    info = StepInfo(
        similarity=state.similarity,
        similarity_improvement=zero,
        operation_type=jnp.full_like(state.step_count, -1),  # nothing has been done
        step_count=state.step_count,
        episode_done=no,
        terminated=no,
        truncated=no,
        solved=no,
        size_correct=(state.size == params.tasks.sizes[state.pair, 1]).all(-1),
    )
    return state, TimeStep(obs, zero, no, no, obs, info)


def _later(
    state: ArcState, obs: Observation, reward: Array, done: Array, info: StepInfo
) -> tuple[ArcState, TimeStep]:
    return state, TimeStep(obs, reward, info.terminated, info.truncated, obs, info)


def _from_dict(action: PyTree) -> Action:
    """Box and mask actions arrive as the dicts that their spaces describe."""
    if not isinstance(action, Mapping):
        return action
    return MaskAction(**action) if "selection" in action else BoxAction(**action)


# Spaces ----------------------------------------------------------------------------------------


def action_space(config: ArcConfig, form: ActionForm) -> Space:
    """The actions of one form. Not every box in it has its corners in order."""
    height, width = config.grid_shape
    operation = Discrete(config.num_operations)
    if form == "box":
        rows, columns = Discrete(height), Discrete(width)
        corners = (("r1", rows), ("c1", columns), ("r2", rows), ("c2", columns))
        return Dict((("operation", operation), *corners))
    if form == "mask":
        selection = Box(0, 1, (height, width), "bool")
        return Dict((("operation", operation), ("selection", selection)))
    if form == "object":
        return Discrete(config.num_operations * count_selectors(config.grid_shape))
    return Discrete(config.num_operations * height * width)


def observation_space(config: ArcConfig) -> Dict:
    """The fields of `Observation` under their names."""
    shape, trials, count = config.grid_shape, int(config.max_trials), config.demonstrations

    def sized(name: str, size: str, lead: tuple[int, ...] = ()) -> dict[str, Space]:
        sizes = Box(0, max(shape), (*lead, 2), "int32")
        return {name: Box(0, 9, (*lead, *shape), "int8"), size: sizes}

    fields: dict[str, Space] = {
        **sized("grid", "size"),
        **sized("input", "input_size"),
        **sized("clipboard", "clipboard_size"),
        "step_count": Box(0, int(config.max_steps), (), "int32"),
        "trials": Box(min(-1, trials), max(1, trials), (), "int32"),
        "operation_mask": Box(0, 1, (config.num_operations,), "bool"),
    }
    if count:
        pairs = sized("input", "input_size", (count,)) | sized("output", "output_size", (count,))
        present = Box(0, 1, (count,), "bool")
        fields["demonstrations"] = Dict((*pairs.items(), ("present", present)))
    if config.rules == "o2arc":
        fields["selected"] = Box(0, 1, shape, "bool")
    return Dict(tuple(fields.items()))


# Views -----------------------------------------------------------------------------------------


def _cells(state: ArcState, config: ArcConfig) -> tuple[np.ndarray, tuple[int, int]]:
    """The canvas (H, W) and the size of the active area of one world, on the host."""
    grid = np.asarray(planes.unpack(state.grid, config.grid_shape))
    height, width = np.asarray(state.size).tolist()
    return grid, (height, width)


def text(state: ArcState, config: ArcConfig) -> str:
    """The working grid as lines of digits, with a dot for 0."""
    grid, (height, width) = _cells(state, config)
    rows = grid[:height, :width].tolist()
    return "\n".join("".join(str(c) if c else "." for c in row) for row in rows)


def pixels(state: ArcState, config: ArcConfig) -> np.ndarray:
    """The canvas as a picture uint8 (8 H, 8 W, 3); what lies outside the active area is grey."""
    grid, (height, width) = _cells(state, config)
    picture = np.array([rgb(color) for color in PALETTE], np.uint8)[grid]
    picture[height:] = _OUTSIDE
    picture[:, width:] = _OUTSIDE
    return picture.repeat(_CELL, axis=0).repeat(_CELL, axis=1)
