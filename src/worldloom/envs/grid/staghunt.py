"""Stag hunt: a hare feeds one hunter at once; a stag feeds all who hunt it, but takes two.

An agent hunts a stag by walking into it; the stag does not give way. A stag that two or more
agents walk into in the same turn is caught at the end of that turn, and each of them is paid in
full, in either turn order. An agent alone gets nothing and the stag stays. What was taken comes
back on a random free cell at the end of the turn, so the field always holds as many hares and
stags as it started with, as long as there is room.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import PureEnv, TurnOrder
from worldloom.core.transforms import frame_stack, time_limit
from worldloom.core.types import Array, Key
from worldloom.envs.grid.kinds import Kind, bordered
from worldloom.envs.grid.world import GridParams, GridState, GridWorld

NOBODY = -1


@struct.dataclass
class StagHuntParams:
    stag_value: Array  # () paid to each agent that had a part in the catch


@struct.dataclass
class StagHuntState:
    hunted: Array  # (A,) int32: the cell of the stag that each agent hunts in this turn, or -1
    num_stags: Array  # () int32: how many there should be
    num_hares: Array  # () int32


def world(
    *,
    height: int = 10,
    width: int = 10,
    num_agents: int = 4,
    radius: int | None = 3,
    num_stags: int = 2,
    num_hares: int = 4,
    stag_value: float = 5.0,
    hare_value: float = 1.0,
    turn_order: TurnOrder = "interleaved",
    view: Literal["onehot", "rgb"] = "onehot",
) -> GridWorld:
    """The rules without time limit or frame stack."""
    ...
