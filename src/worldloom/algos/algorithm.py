"""What the shell knows of an algorithm: its name, its loop, the actions it handles, its options."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Dict, Discrete

LoopName = Literal["off_policy", "on_policy", "offline"]
ActionKind = Literal["discrete", "continuous"]
DISCRETE: frozenset[ActionKind] = frozenset({"discrete"})
CONTINUOUS: frozenset[ActionKind] = frozenset({"continuous"})
ANY = DISCRETE | CONTINUOUS


@dataclass(frozen=True)
class Algorithm:
    """An algorithm as a value: everything that training, sweeps and the command line need of it.

    config: a frozen dataclass that checks itself. make(config, spec, networks): the agent, an
    object of pure functions whose protocol follows from `loop` (see `worldloom.training.loops`);
    `networks` is a `worldloom.nn.networks.Networks`. centralised: its critic sees what all agents
    see, so there must be several. team_axis: agents learn together; `update` is mapped over them
    with an axis of this name. one_array: needs observations that are a single array.
    """

    name: str
    description: str
    loop: LoopName
    actions: frozenset[ActionKind]
    config: type
    make: Callable[..., Any]
    centralised: bool = False
    team_axis: str | None = None
    one_array: bool = False

    @property
    def several_agents(self) -> bool:
        """Whether it makes no sense for one agent."""
        return self.centralised or self.team_axis is not None

    def why_not(self, spec: EnvSpec) -> str | None:
        """Why it cannot be used in a world of `spec`; None if it can."""
        kind = action_kind(spec)
        if kind not in self.actions:
            kinds = " or ".join(sorted(self.actions))
            return f"{self.name} needs {kinds} actions, and those of {spec.name} are {kind}"
        if self.several_agents and spec.num_agents < 2:
            return f"{self.name} is for several agents, and {spec.name} has one"
        if self.one_array and isinstance(spec.observation, Dict):
            return f"{self.name} needs observations of one array, and {spec.name} has several"
        return None


def action_kind(spec: EnvSpec) -> str:
    """discrete, continuous, or whatever else the actions of a world are."""
    if isinstance(spec.action, Discrete):
        return "discrete"
    if isinstance(spec.action, Box) and spec.action.dtype.startswith("float"):
        return "continuous"
    return f"a {type(spec.action).__name__}"
