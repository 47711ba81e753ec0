"""Treasure hunt as a grid of Python objects, one agent after the other.

The rules are those of Sorrel's treasure hunt. `items="gems"` is its 10x10 research example;
`items="mixed"` is the later example with gems, food and bones and an invisible floor.
"""

from collections.abc import Callable
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
    """What fills one cell of one layer. Observations see nothing of it but its `kind`."""

    kind: str = "Entity"
    value: float = 0.0
    passable: bool = False
    has_transitions: bool = False


class EmptyEntity(Entity):
    kind = "EmptyEntity"
    passable = True
    has_transitions = True


class Wall(Entity):
    kind = "Wall"
    value = -1.0


class Sand(Entity):
    passable = True

    def __init__(self, kind: str = "Sand") -> None:
        self.kind = kind


class Item(Entity):
    """Consumed by the agent that walks onto it, for a reward of `value`."""

    passable = True

    def __init__(self, value: float) -> None:
        self.value = value


class Gem(Item):
    kind = "Gem"


class Food(Item):
    kind = "Food"


class Bone(Item):
    kind = "Bone"


class Agent(Entity):
    kind = "Agent"

    def __init__(self, location: tuple[int, int]) -> None:
        self.location = location


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

    def __init__(
        self,
        height: int = 10,
        width: int = 10,
        num_agents: int = 5,
        radius: int = 2,
        spawn_prob: float = 0.02,
        items: Items = "gems",
        gem_value: float = 10.0,
        food_value: float = 5.0,
        bone_value: float = -10.0,
        legacy: bool = True,
        tuned: bool = False,
        *,
        rng: np.random.Generator,
    ) -> None:
        if items not in KINDS:
            raise ValueError(f"treasurehunt: items={items!r} is unknown; use one of {list(KINDS)}")
        free = max(height - 2, 0) * max(width - 2, 0)
        if not 1 <= num_agents <= free:
            raise ValueError(
                f"treasurehunt: num_agents={num_agents} does not fit the {free} free cells of a "
                f"{height}x{width} world; use 1 to {free}, or a larger world"
            )
        self.height, self.width = height, width
        self.num_agents = num_agents
        self.radius = radius
        self.spawn_prob = spawn_prob
        self.items = items
        self.gem_value, self.food_value, self.bone_value = gem_value, food_value, bone_value
        self.legacy = legacy
        self.tuned = tuned
        self.rng = rng
        self.kinds = KINDS[items]
        self.obs_size = len(self.kinds) * (2 * radius + 1) ** 2
        self._kind_id = {kind: number for number, kind in enumerate(self.kinds)}
        one_hot = np.eye(len(self.kinds), dtype=np.float32)
        one_hot[self._kind_id["EmptyEntity"]] = 0.0
        self._one_hot = dict(zip(self.kinds, one_hot, strict=True))
        self.reset()

    def reset(self) -> None:
        """Build a new world: walls around, agents on random interior cells, no items."""
        self.map = np.empty((self.height, self.width, NUM_LAYERS), dtype=object)
        self.turn = 0
        self.total_reward = 0.0
        self.is_done = False
        for y, x, z in np.ndindex(self.map.shape):
            if self._on_border(y, x):
                self.map[y, x, z] = Wall() if z == OBJECTS else self._floor_under_wall()
            else:
                self.map[y, x, z] = EmptyEntity() if z == OBJECTS else self._sand()
        interior = [
            (y, x) for y, x in np.ndindex(self.height, self.width) if not self._on_border(y, x)
        ]
        chosen = self.rng.choice(len(interior), size=self.num_agents, replace=False)
        self.agents = [Agent(interior[cell]) for cell in chosen]
        for agent in self.agents:
            self.map[(*agent.location, OBJECTS)] = agent

    def spawn(self, draws: ArrayLike | None = None) -> None:
        """Open a turn: each empty cell turns into an item with probability `spawn_prob`.

        Args:
            draws: uniforms [height, width] to use in place of the generator, one for each cell.
                They are compared in their own precision, as a compiled implementation does.
        """
        self.turn += 1
        given: Any = None if draws is None else np.asarray(draws)
        for (y, x, z), entity in np.ndenumerate(self.map):
            # The floor is excluded by hand: with legacy=False it has empty cells under the walls.
            if z == OBJECTS and entity.has_transitions:
                draw = self.rng.random() if given is None else given[y, x]
                if draw < self.spawn_prob:
                    self.map[y, x, z] = self._new_item(draw)

    def pov(self, i: int) -> NDArray[np.float32]:
        """What agent `i` sees now: float32 [kinds * (2 * radius + 1)^2], flattened kind-major."""
        r, (y, x) = self.radius, self.agents[i].location
        rows, columns = range(self.height), range(self.width)
        if self.tuned:
            rows = rows[max(y - r, 0) : y + r + 1]
            columns = columns[max(x - r, 0) : x + r + 1]
        field = np.zeros((len(self.kinds), self.height + 2 * r, self.width + 2 * r), np.float32)
        wall = self._kind_id["Wall"]
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
            numbers[z, y, x] = self._kind_id[entity.kind]
        return numbers

    def load(self, layers: ArrayLike, positions: ArrayLike) -> None:
        """Replace the map and the agents; counters are left as they are.

        Args:
            layers: indices into `kinds`, [layer, height, width], as `layers()` returns them.
            positions: (y, x) of each agent in acting order, [num_agents, 2].
        """
        layers, positions = np.asarray(layers), np.asarray(positions)
        expected = (NUM_LAYERS, self.height, self.width)
        if layers.shape != expected or positions.shape != (self.num_agents, 2):
            raise ValueError(
                f"treasurehunt: load got layers {layers.shape} and positions {positions.shape}; "
                f"this world takes {expected} and {(self.num_agents, 2)}"
            )
        locations = [(int(y), int(x)) for y, x in positions]
        marked = {(int(y), int(x)) for y, x in np.argwhere(layers[OBJECTS] == self._agent_id)}
        if marked != set(locations) or len(marked) != self.num_agents:
            raise ValueError(
                f"treasurehunt: load got agents at {sorted(marked)} in layers[{OBJECTS}] but "
                f"positions {locations}; both must name the same {self.num_agents} cells"
            )
        inside = layers[OBJECTS, 1:-1, 1:-1]
        walls = np.count_nonzero(layers[OBJECTS] == self._kind_id["Wall"])
        walls_inside = np.count_nonzero(inside == self._kind_id["Wall"])
        if walls - walls_inside != layers[OBJECTS].size - inside.size:
            raise ValueError(
                "treasurehunt: load got a map with a gap in its border; every outer cell of "
                f"layers[{OBJECTS}] must be {self._kind_id['Wall']} (Wall)"
            )
        self.agents = [Agent(location) for location in locations]
        agent_at = dict(zip(locations, self.agents, strict=True))
        for y, x in np.ndindex(self.height, self.width):
            self.map[y, x, FLOOR] = self._make_floor(layers[FLOOR, y, x])
            self.map[y, x, OBJECTS] = agent_at.get((y, x)) or self._make(layers[OBJECTS, y, x])

    @property
    def _agent_id(self) -> int:
        return self._kind_id["Agent"]

    def _on_border(self, y: int, x: int) -> bool:
        return y in (0, self.height - 1) or x in (0, self.width - 1)

    def _sand(self) -> Sand:
        return Sand() if self.items == "gems" else Sand(kind="EmptyEntity")

    def _floor_under_wall(self) -> Entity:
        if self.items == "mixed":
            return self._sand()
        return Wall() if self.legacy else EmptyEntity()

    def _new_item(self, draw: float) -> Item:
        if self.items == "gems":
            return Gem(self.gem_value)
        # Rounding can lift a draw just below spawn_prob to 3, hence the min.
        outcome = min(int(3 * draw / self.spawn_prob), 2)
        return self._make_item(("Gem", "Food", "Bone")[outcome])

    def _make_item(self, kind: str) -> Item:
        if kind == "Gem":
            return Gem(self.gem_value)
        return Food(self.food_value) if kind == "Food" else Bone(self.bone_value)

    def _make(self, number: int) -> Entity:
        kind = self.kinds[number]
        if kind == "EmptyEntity":
            return EmptyEntity()
        if kind == "Wall":
            return Wall()
        return self._sand() if kind == "Sand" else self._make_item(kind)

    def _make_floor(self, number: int) -> Entity:
        if self.items == "mixed" and self.kinds[number] == "EmptyEntity":
            return self._sand()
        return self._make(number)
