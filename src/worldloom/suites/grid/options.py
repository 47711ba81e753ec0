"""Options that gridworlds have in common, so that a world's module writes only what is its own.

    class TagParams(struct.PyTreeNode):
        it_cost: Number = 0.05

    @common_options("tag", TagParams, height=9, width=9, num_agents=4, radius=3)
    def world(common: CommonOptions, *, shout: bool = False) -> GridWorld:
        return common.world(kinds=KINDS, interact=interact)

    make = episodic(world, horizon=100)

`world` then takes height, width, num_agents, radius, it_cost, shout, turn_order and view; `make`
also horizon and num_frames. Their signatures say so, which is where the command line reads them. A
field of the params is an option by its default, and as an array what rules see of it in
`params.extra`: a number that can be swept with vmap.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, Literal, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp

from worldloom.core.protocols import PureEnv, TurnOrder
from worldloom.core.transforms import frame_stack, time_limit
from worldloom.core.types import Array, PyTree
from worldloom.suites.grid.kinds import bordered
from worldloom.suites.grid.world import GridWorld

Number = Array | float  # as it is given, then as an array ()


@dataclass(frozen=True)
class CommonOptions:
    """What a world is made from beside its own options; 0 for what is no option of it."""

    name: str
    num_agents: int = 0
    radius: int | None = 2
    turn_order: TurnOrder = "interleaved"
    view: Literal["onehot", "rgb"] = "onehot"
    height: int = 0
    width: int = 0
    turning: bool = False  # see `beams`
    params: Any = ()  # the world's own, as they were given

    def check_chances(self, **chances: float) -> None:
        """Raises ValueError unless every one is a chance."""
        for option, chance in chances.items():
            if not 0 <= chance <= 1:
                raise ValueError(
                    f"{self.name}: {option}={chance:g}; it must be a share or chance up to 1"
                )

    def world(self, **parts: Any) -> GridWorld:
        """The world with these options and with `parts`; an empty field within walls by default."""
        names = ("name", "num_agents", "radius", "turn_order", "view")
        if "maps" not in parts:
            parts["maps"] = (bordered(self.height, self.width, "#", "."),)
        parts.setdefault("extra_params", self._extra_params)
        return GridWorld(**({n: getattr(self, n) for n in names} | parts))

    def _extra_params(self) -> PyTree:
        def number(usual: float, given: float) -> Array:
            return jnp.asarray(given, jnp.int32 if isinstance(usual, int) else jnp.float32)

        return jax.tree.map(number, type(self.params)(), self.params)


def common_options(
    name: str, params: Callable[..., PyTree] = tuple, **defaults: Any
) -> Callable[[Callable[..., GridWorld]], Callable[..., GridWorld]]:
    """Adds options to a function of rules: turn order, view, those of `CommonOptions` given here,
    and the fields of `params`."""
    last = {"turn_order": CommonOptions.turn_order, "view": CommonOptions.view}
    types = get_type_hints(CommonOptions)
    numbers = {} if params is tuple else vars(params())

    def option(name: str) -> Parameter:
        return _option(name, (defaults | last)[name], types[name])

    def decorate(rules: Callable[..., GridWorld]) -> Callable[..., GridWorld]:
        own = [p for p in signature(rules).parameters.values() if p.kind is p.KEYWORD_ONLY]
        counted = [_option(n, value, type(value)) for n, value in numbers.items()]
        options = Signature([*map(option, defaults), *counted, *own, *map(option, last)])

        @wraps(rules)
        def world(**given: Any) -> GridWorld:
            bound = options.bind(**given)
            bound.apply_defaults()
            given = bound.arguments
            common = {n: given.pop(n) for n in (*defaults, *last)}
            common["params"] = params(**{n: given.pop(n) for n in numbers})
            for option in own:
                known = get_args(option.annotation)
                if get_origin(option.annotation) is Literal and given[option.name] not in known:
                    hint = " or ".join(map(repr, known))
                    raise ValueError(f"{name}: {option.name}={given[option.name]!r}; use {hint}")
            return rules(CommonOptions(name, **common), **given)

        return _signed(world, options)

    return decorate


def episodic(
    world: Callable[..., GridWorld], horizon: int | Callable[[Mapping[str, Any]], int]
) -> Callable[..., PureEnv]:
    """The maker of a world: with frame stacks that start from zeros and a truncation at `horizon`.

    A function of the options decides where the usual horizon depends on them.
    """

    def make(*, num_frames: int = 1, **options: Any) -> PureEnv:
        turns = options.pop("horizon", None)
        if turns is None:
            turns = horizon(options) if callable(horizon) else horizon
        return time_limit(frame_stack(world(**options), num_frames), turns)

    usual = (None, int | None) if callable(horizon) else (horizon, int)
    more = [_option("horizon", *usual), _option("num_frames", 1, int)]
    return _signed(make, Signature([*signature(world).parameters.values(), *more]))


def _option(name: str, default: Any, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _signed(function: Any, options: Signature) -> Any:
    """`function` with the options that it is said to take."""
    function.__signature__ = options
    return function
