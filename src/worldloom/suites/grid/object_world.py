"""Treasure hunt as a grid of Python objects, one agent after the other.

The rules are those of Sorrel's treasure hunt. `items="gems"` is its 10x10 research example;
`items="mixed"` is the later example with gems, food and bones and an invisible floor.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

FLOOR, OBJECTS = 0, 1
NUM_LAYERS = 2
MOVES = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}  # up, down, left, right as (dy, dx)
KINDS = {
    "gems": ("EmptyEntity", "Wall", "Sand", "Gem", "Agent"),
    "mixed": ("EmptyEntity", "Wall", "Gem", "Bone", "Food", "Agent"),
}

Items = Literal["gems", "mixed"]
Policy = Callable[[int, NDArray[np.float32]], int]


class Entity:
    """What fills one cell of one layer. Observations see nothing of it but its `kind`.

    Whoever walks into it is paid its `value`; `has_transitions`: it may turn into an item.
    """

    has_transitions = False

    def __init__(self, kind: str, value: float = 0.0, passable: bool = False) -> None:
        self.kind, self.value, self.passable = kind, value, passable


class EmptyEntity(Entity):
    has_transitions = True

    def __init__(self) -> None:
        super().__init__("EmptyEntity", passable=True)


class Agent(Entity):
    def __init__(self, location: tuple[int, int]) -> None:
        super().__init__("Agent")
        self.location = location


@dataclass(eq=False)
class ObjectTreasureHunt:
    """A walled world in which items appear and agents, in fixed order, walk onto them.

    `map` is an object array [height, width, layer]: layer 0 is the floor, layer 1 holds walls,
    items and agents. An observation sums the one-hot kinds over the layers.

    Args:
        radius: an agent sees the (2 * radius + 1)^2 window around it.
        spawn_prob: chance per turn that an empty cell turns into an item.
        items: "gems", or "mixed" for gem, food and bone with equal chance.
        legacy: with "gems", put a wall on the floor under each wall as the original does, so that
            walls of the map are seen as 2.0 (beyond the map they are always 1.0).
        tuned: scan the window instead of the whole map to make an observation; same result.
        rng: the only source of randomness.
    """

    height: int = 10
    width: int = 10
    num_agents: int = 5
    radius: int = 2
    spawn_prob: float = 0.02
    items: Items = "gems"
    gem_value: float = 10.0
    food_value: float = 5.0
    bone_value: float = -10.0
    legacy: bool = True
    tuned: bool = False
    _: KW_ONLY
    rng: np.random.Generator

    def __post_init__(self) -> None:
        if self.items not in KINDS:
            raise ValueError(
                f"treasurehunt: items={self.items!r} is unknown; use one of {list(KINDS)}"
            )
        free = max(self.height - 2, 0) * max(self.width - 2, 0)
        if not 1 <= self.num_agents <= free:
            raise ValueError(
                f"treasurehunt: num_agents={self.num_agents} does not fit the {free} free cells "
                f"of a {self.height}x{self.width} world; use 1 to {free}, or a larger world"
            )
        self.kinds = KINDS[self.items]
        self.obs_size = len(self.kinds) * (2 * self.radius + 1) ** 2
        self._values = {
            "Wall": -1.0,
            "Gem": self.gem_value,
            "Food": self.food_value,
            "Bone": self.bone_value,
        }
        one_hot = np.eye(len(self.kinds), dtype=np.float32)
        one_hot[self.kinds.index("EmptyEntity")] = 0.0
        self._one_hot = dict(zip(self.kinds, one_hot, strict=True))
        self.reset()

    def reset(self) -> None:
        """Build a new world: walls around, agents on random interior cells, no items."""
        self.map = np.empty((self.height, self.width, NUM_LAYERS), dtype=object)
        self.turn = 0
        self.total_reward = 0.0
        self.is_done = False
        gems = self.items == "gems"
        inside = ("Sand" if gems else "EmptyEntity", "EmptyEntity")
        border = ("Wall" if gems and self.legacy else "EmptyEntity", "Wall")
        interior = []
        for y, x in np.ndindex(self.height, self.width):
            on_border = y in (0, self.height - 1) or x in (0, self.width - 1)
            for layer, kind in enumerate(border if on_border else inside):
                self.map[y, x, layer] = self.make(kind)
            if not on_border:
                interior.append((y, x))
        chosen = self.rng.choice(len(interior), size=self.num_agents, replace=False)
        self.agents = [Agent(interior[cell]) for cell in chosen]
        for agent in self.agents:
            self.map[(*agent.location, OBJECTS)] = agent

    def make(self, kind: str) -> Entity:
        """A new thing of a kind."""
        if kind == "EmptyEntity":
            return EmptyEntity()
        return Entity(kind, self._values.get(kind, 0.0), passable=kind != "Wall")

    def spawn(self, draws: ArrayLike | None = None) -> None:
        """Open a turn: each empty cell turns into an item with probability `spawn_prob`.

        Args:
            draws: uniforms [height, width] to use in place of the generator, one for each cell.
                They are compared in their own precision, as a compiled implementation does.
        """
        self.turn += 1
        given: Any = None if draws is None else np.asarray(draws)
        for (y, x, z), entity in np.ndenumerate(self.map):
            # Of the floor, empty cells stay so: they are what lies under walls, or is not seen.
            if z == OBJECTS and entity.has_transitions:
                draw = self.rng.random() if given is None else given[y, x]
                if draw < self.spawn_prob:
                    self.map[y, x, z] = self.make(self._item(draw))

    def _item(self, draw: float) -> str:
        if self.items == "gems":
            return "Gem"
        # Rounding can lift a draw just below spawn_prob to 3, hence the min.
        return ("Gem", "Food", "Bone")[min(int(3 * draw / self.spawn_prob), 2)]

    def pov(self, i: int) -> NDArray[np.float32]:
        """What agent `i` sees now: float32 [kinds * (2 * radius + 1)^2], flattened kind-major."""
        r, (y, x) = self.radius, self.agents[i].location
        rows, columns = range(self.height), range(self.width)
        if self.tuned:
            rows = rows[max(y - r, 0) : y + r + 1]
            columns = columns[max(x - r, 0) : x + r + 1]
        field = np.zeros((len(self.kinds), self.height + 2 * r, self.width + 2 * r), np.float32)
        wall = self.kinds.index("Wall")
        field[wall] = 1.0
        field[wall, r : r + self.height, r : r + self.width] = 0.0
        for row in rows:
            for column in columns:
                for entity in self.map[row, column]:
                    field[:, row + r, column + r] += self._one_hot[entity.kind]
        return field[:, y : y + 2 * r + 1, x : x + 2 * r + 1].reshape(-1)

    def act(self, i: int, action: int) -> float:
        """Move agent `i` (0 up, 1 down, 2 left, 3 right) and return its reward.

        The reward is the value of what stands on the target cell, paid even if the move fails.
        """
        if action not in MOVES:
            raise ValueError(f"treasurehunt: action={action!r} is unknown; use one of {[*MOVES]}")
        agent = self.agents[i]
        (y, x), (dy, dx) = agent.location, MOVES[action]
        target = self.map[y + dy, x + dx, OBJECTS]
        if target.passable:
            self.map[y, x, OBJECTS] = EmptyEntity()
            self.map[y + dy, x + dx, OBJECTS] = agent
            agent.location = (y + dy, x + dx)
        self.total_reward += target.value
        return target.value

    def take_turn(self, policy: Policy) -> list[float]:
        """Spawn, then let each agent look and act; later agents see the moves of earlier ones.

        Returns the reward of each agent.
        """
        self.spawn()
        return [self.act(i, policy(i, self.pov(i))) for i in range(self.num_agents)]

    @property
    def positions(self) -> NDArray[np.int64]:
        """(y, x) of each agent, [num_agents, 2]."""
        return np.array([agent.location for agent in self.agents])

    def layers(self) -> NDArray[np.int8]:
        """The map as indices into `kinds`, [layer, height, width]; layer 0 is the floor."""
        numbers = np.empty((NUM_LAYERS, self.height, self.width), dtype=np.int8)
        for (y, x, z), entity in np.ndenumerate(self.map):
            numbers[z, y, x] = self.kinds.index(entity.kind)
        return numbers
