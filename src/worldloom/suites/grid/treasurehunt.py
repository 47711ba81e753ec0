"""Treasure hunt: agents with short sight share a field in which treasure appears.

The rules are those of Sorrel's treasure hunt (social-ai-uoft/sorrel, MIT), in two sets. `gems`:
every empty cell turns into a gem with a small chance each turn. `mixed`: into a gem, food or a
bone, each as likely, and bones hurt. Items never vanish; an agent takes what it walks into.
"""

from typing import Literal

from worldloom.suites.grid.kinds import Kind, bordered
from worldloom.suites.grid.options import CommonOptions, common_options, episodic
from worldloom.suites.grid.world import GridWorld


@common_options("treasurehunt", radius=2)
def world(
    common: CommonOptions,
    *,
    items: Literal["gems", "mixed"] = "gems",
    height: int | None = None,
    width: int | None = None,
    num_agents: int | None = None,
    spawn_prob: float | None = None,
    gem_value: float = 10.0,
    food_value: float = 5.0,
    bone_value: float = -10.0,
    legacy: bool = False,
) -> GridWorld:
    """The rules without time limit or frame stack.

    `legacy` lays walls on both layers of the gem world, as the original does: a wall on the map
    is then seen as 2 and the wall beyond the map as 1.
    """
    gems = items == "gems"
    side = 10 if gems else 21
    height, width = side if height is None else height, side if width is None else width
    num_agents = (5 if gems else 2) if num_agents is None else num_agents
    spawn = (0.02 if gems else 0.005) if spawn_prob is None else spawn_prob
    if not 0 <= spawn <= 1:
        raise ValueError(f"treasurehunt: spawn_prob={spawn:g}; it must be a chance in [0, 1]")

    outcomes = ("Gem",) if gems else ("Gem", "Food", "Bone")
    becomes = tuple((name, spawn / len(outcomes)) for name in outcomes)
    kinds = [
        Kind("Empty", ".", (0, 0, 0), becomes=becomes),
        Kind("Wall", "#", (88, 92, 108), value=-1.0, passable=False),
        Kind("Sand", ",", (226, 202, 150)),
        Kind("Gem", "*", (38, 190, 170), value=gem_value),
        Kind("Bone", "x", (240, 240, 232), value=bone_value),
        Kind("Food", "o", (226, 92, 70), value=food_value),
        Kind("Agent", "A", (64, 120, 220), passable=False),
    ]
    if gems:
        kinds = [kind for kind in kinds if kind.name not in ("Bone", "Food")]
        floor = bordered(height, width, "#" if legacy else ".", ",")
    else:
        floor = ("," * width,) * height
    return common.world(
        kinds=tuple(kinds),
        maps=(floor, bordered(height, width, "#", ".")),
        num_agents=num_agents,
        # Of the mixed world's floor, agents see nothing.
        channels=tuple(kind.name for kind in kinds if gems or kind.name != "Sand"),
        unseen=("Empty",) if gems else ("Empty", "Sand"),
    )


make = episodic(world, horizon=lambda options: 100 if options.get("items") == "mixed" else 50)
