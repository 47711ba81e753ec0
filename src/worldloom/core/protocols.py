"""What a world is, and what takes metrics.

Environment functions take ``key, state, action, params`` in this order. Static things live on
the object (`spec`, frozen configs); whatever may be traced or vmapped lives in `params`. What an
agent is follows from its loop: see `worldloom.algos.off_policy`, `on_policy` and `offline`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import jax
import numpy as np

from worldloom.core.pixels import Pixels
from worldloom.core.spaces import Space, brief
from worldloom.core.types import Array, Key, PyTree, TimeStep

_SEEN = 240  # pixels: a picture of fewer has each of them several times
TurnOrder = Literal["interleaved", "simultaneous"]


@dataclass(frozen=True)
class EnvSpec:
    """What is static about a world.

    `observation` and `action` are those of one agent; with `frame_stack`, `num_frames` of them.
    `turn_order` is part of the task: two runs that differ in it must not be compared. `reward` is
    r(obs, action, next_obs) of one step, where what an agent sees decides it: model-based learners
    ask for it.
    """

    name: str
    observation: Space
    action: Space
    num_agents: int = 1
    horizon: int | None = None
    turn_order: TurnOrder | None = None
    num_frames: int = 1
    reward: Callable[[Array, Array, Array], Array] | None = field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self):
        if self.turn_order not in (None, *get_args(TurnOrder)):
            raise ValueError(
                f"{self.name}: turn_order={self.turn_order!r}; use 'interleaved' or 'simultaneous'"
            )

    @property
    def interleaved(self) -> bool:
        """Whether agents act one after the other; a ValueError where the world does not say."""
        if self.turn_order is None:
            raise ValueError(
                f"{self.name}: turn_order=None, so it has no turns to play; a turn-based world "
                "says 'interleaved' or 'simultaneous' in its spec"
            )
        return self.turn_order == "interleaved"


class Environment(Protocol):
    """A world as pure functions; `step` never resets itself."""

    @property
    def spec(self) -> EnvSpec: ...
    def default_params(self) -> PyTree: ...
    def reset(self, key: Key, params: PyTree) -> tuple[PyTree, TimeStep]: ...
    def step(
        self, key: Key, state: PyTree, action: Array, params: PyTree
    ) -> tuple[PyTree, TimeStep]: ...


class TurnBased(Environment, Protocol):
    """A world whose turn can be taken apart, so that later agents see what earlier ones did."""

    def observe_agent(self, state: PyTree, i: Array | int, params: PyTree) -> PyTree:
        """What agent `i` sees now."""
        ...

    def apply_agent(
        self, key: Key, state: PyTree, i: Array | int, action: Array, params: PyTree
    ) -> tuple[PyTree, Array]:
        """Agent `i` acts; rewards (A,), because an act may pay others."""
        ...

    def apply_all(
        self, key: Key, state: PyTree, action: Array, params: PyTree
    ) -> tuple[PyTree, Array]:
        """All agents act, action (A,), in the order the task prescribes; rewards (A,)."""
        ...

    def end_turn(self, key: Key, state: PyTree, params: PyTree) -> tuple[PyTree, Array, Array]:
        """The world's own move; returns the state, terminated () and truncated ()."""
        ...


def not_turn_based(*_: Any) -> Any:
    """Stands where a world that is not turn based has no function."""
    raise TypeError(
        "this environment has no turns that can be taken apart (autoreset and episode_stats keep "
        "reset and step only); call its step, or play the world under those transforms"
    )


@dataclass(frozen=True)
class PureEnv:
    """An environment as one value of functions: what the transforms return.

    `base` is the world itself under all transforms, for rendering and tables. `reset_many` and
    `step_many` are `reset` and `step` for B worlds on a leading axis, keys (B,) and shared params,
    where a world is written that way; otherwise `batch` maps the functions for one. `restart_many`,
    of keys (B,), the states in which B episodes ended, and params, begins their next ones where
    those keep something of the last, such as a level of difficulty; otherwise `reset_many` does.
    The last four exist in turn-based worlds; see `turn_based`.
    """

    spec: EnvSpec
    default_params: Callable[[], PyTree]
    reset: Callable[[Key, PyTree], tuple[PyTree, TimeStep]]
    step: Callable[[Key, PyTree, Array, PyTree], tuple[PyTree, TimeStep]]
    base: Any
    reset_many: Callable[[Key, PyTree], tuple[PyTree, TimeStep]] | None = None
    step_many: Callable[[Key, PyTree, Array, PyTree], tuple[PyTree, TimeStep]] | None = None
    restart_many: Callable[[Key, PyTree, PyTree], tuple[PyTree, TimeStep]] | None = None
    observe_agent: Callable[..., Any] = not_turn_based
    apply_agent: Callable[..., Any] = not_turn_based
    apply_all: Callable[..., Any] = not_turn_based
    end_turn: Callable[..., Any] = not_turn_based

    def __repr__(self) -> str:
        spec = self.spec
        spaces = f"observation={brief(spec.observation)}, action={brief(spec.action)}"
        return f"{spec.name}({spaces}, num_agents={spec.num_agents}, horizon={spec.horizon})"

    @property
    def turn_based(self) -> bool:
        return self.observe_agent is not not_turn_based

    def render(self, state: PyTree = None, params: PyTree = None) -> Pixels:
        """A picture of a state, which a notebook shows; without one, of a fresh world."""
        from worldloom.core.transforms import base_state

        draw = getattr(self.base, "renderers", {}).get("rgb_array")
        if draw is None:
            raise ValueError(f"{self.spec.name} has no picture: its world has no renderers")
        params = self.default_params() if params is None else params
        if state is None:
            state, _ = jax.jit(self.reset)(jax.random.key(0), params)
        array = np.asarray(draw(base_state(state), params))
        factor = max(1, _SEEN // max(array.shape[:2]))
        return Pixels(array.repeat(factor, 0).repeat(factor, 1))


class Sink(Protocol):
    """Takes a row of metrics on the host, between compiled chunks."""

    def write(self, row: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...
