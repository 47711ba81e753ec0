"""The object loop's treasure hunt put into a given state, to play on from there."""

import numpy as np

from worldloom.suites.grid.object_world import OBJECTS, Agent, ObjectTreasureHunt


def load(env: ObjectTreasureHunt, layers, positions) -> None:
    """Replaces map and agents by kinds [layer, height, width] and (y, x) of each agent in order."""
    layers, positions = np.asarray(layers), np.asarray(positions)
    for (layer, y, x), number in np.ndenumerate(layers):
        env.map[y, x, layer] = env.make(env.kinds[number])
    marked = np.argwhere(layers[OBJECTS] == env.kinds.index("Agent"))
    assert {tuple(cell) for cell in marked} == {tuple(cell) for cell in positions}
    env.agents = [Agent((int(y), int(x))) for y, x in positions]
    for agent in env.agents:
        env.map[(*agent.location, OBJECTS)] = agent
