"""A game as an environment behind the protocol that all worlds share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws
from worldloom.core.names import suggest
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box, Dict, Discrete
from worldloom.core.transforms import as_pure
from worldloom.core.types import Array, Key, TimeStep
from worldloom.report.colors import rgb
from worldloom.suites.arc.games import camera, engine
from worldloom.suites.arc.games.engine import ACTION_NAMES, CLICK, PLAYING, WON, Game
from worldloom.suites.arc.games.levels import Level, LevelTable, read_levels, tabulate

View = Literal["cells", "frame"]
Start = Literal["first", "any"]


class GameParams(struct.PyTreeNode):
    """What of a game can be changed, traced or vmapped without compiling again."""

    levels: LevelTable
    level_reward: Array | float = 1.0
    action_cost: Array | float = 0.01
    life_cost: Array | float = 0.1


class GameInfo(struct.PyTreeNode):
    """What came of an episode so far."""

    solved: Array  # int32 (): levels that were solved in it
    lives: Array  # int32 ()
    won: Array  # bool (): every level is solved
    spent: Array  # int32 (L,): actions on each level


def make(
    game: Game,
    levels: str | Sequence[Level] = "",
    view: View = "cells",
    start: Start = "first",
    max_actions: int = 300,
    lives: int | None = None,
    level_reward: float = 1.0,
    action_cost: float = 0.01,
    life_cost: float = 0.1,
) -> PureEnv:
    """A game as an environment: ``make("glide", start="any")``.

    levels: others in the place of the game's own, or a JSON file of them. view: what an agent sees,
    "cells" (a colour for each cell of the board: small, and all that there is to know) or "frame"
    (64 x 64 pixels, as a person sees it). start: at the first level, or at any, which helps to
    learn. max_actions: of an episode.
    """
    for name, value, known in (("view", view, View), ("start", start, Start)):
        if value not in get_args(known):
            hint = suggest(str(value), get_args(known))
            raise ValueError(f"{game.name}: there is no {name}={value!r}; {hint}")
    lives = game.lives if lives is None else lives
    for name, value in (("max_actions", max_actions), ("lives", lives)):
        if value < 1:
            raise ValueError(f"{game.name}: {name}={value}; it must be at least 1")
    if isinstance(levels, str):
        levels = read_levels(levels, game.kinds) if levels else game.levels
    paid = {"level_reward": level_reward, "action_cost": action_cost, "life_cost": life_cost}
    params = GameParams(tabulate(levels, game.kinds), **paid)
    return as_pure(GameWorld(game, params, view, start, max_actions, lives))


@dataclass(frozen=True, eq=False)
class GameWorld:
    """One game. Actions: those that need no place, in their order, then a click at each cell."""

    game: Game
    params: GameParams
    view: View
    start: Start
    max_actions: int
    lives: int

    @property
    def simple(self) -> tuple[int, ...]:
        """Actions that need no place."""
        return tuple(action for action in self.game.actions if action != CLICK)

    @property
    def num_actions(self) -> int:
        height, width = self.params.levels.shape
        return len(self.simple) + (height * width if CLICK in self.game.actions else 0)

    @property
    def spec(self) -> EnvSpec:
        shape = (camera.SIDE, camera.SIDE) if self.view == "frame" else self.params.levels.shape
        colours = Box(0, camera.COLOURS - 1, shape, "int8")
        return EnvSpec(
            name=self.game.name,
            observation=Dict((("cells", colours), ("status", Box(0.0, 1.0, (3,))))),
            action=Discrete(self.num_actions),
            horizon=self.max_actions,
        )

    def default_params(self) -> GameParams:
        return self.params

    def reset(self, key: Key, params: GameParams) -> tuple[engine.GameState, TimeStep]:
        level: Array | int = 0
        if self.start == "any":
            level = draws.integers(key, (), params.levels.cells.shape[0])
        state = engine.begin(self.game, params.levels, level).replace(lives=jnp.int32(self.lives))
        no = jnp.asarray(False)
        obs = self.observe(state, params)
        return state, TimeStep(obs, jnp.float32(0), no, no, obs, _info(state))

    def step(
        self, key: Key, state: engine.GameState, action: Array, params: GameParams
    ) -> tuple[engine.GameState, TimeStep]:
        """One action; the key is not used, since nothing in a step is left to chance."""
        move = self.move(action, params.levels.at(state.level))
        acted, outcome = engine.act(self.game, params.levels, state, move)
        state, _ = engine.advance(self.game, params.levels, acted, outcome)
        reward = params.level_reward * outcome.solved - params.life_cost * outcome.failed
        reward = jnp.asarray(reward - params.action_cost, jnp.float32)
        terminated = state.status != PLAYING
        truncated = (state.spent.sum() >= self.max_actions) & ~terminated
        obs = self.observe(state, params)
        return state, TimeStep(obs, reward, terminated, truncated, obs, _info(state))

    def move(self, action: Array, level: LevelTable) -> engine.Move:
        """What an action of the space is in the game."""
        simple, width = self.simple, level.shape[1]
        ids = jnp.asarray([*simple, CLICK], jnp.int32)
        place = action - len(simple)
        cell = jnp.stack([place // width, place % width]).astype(jnp.int32)
        on = (place >= 0) & (cell < level.size).all()
        cell = jnp.where(on, cell, -1)
        pixel = jnp.where(on, camera.cell_to_pixel(level, cell), -1)
        return engine.Move(ids[jnp.minimum(action, len(simple))], cell, pixel)

    def observe(self, state: engine.GameState, params: GameParams) -> dict[str, Array]:
        """What an agent sees: the board, and how far level, lives and limit have come."""
        levels = params.levels
        draw = camera.frame if self.view == "frame" else camera.cells
        level = levels.at(state.level)
        used = state.charged / jnp.maximum(level.limit, 1)
        shares = [state.level / levels.cells.shape[0], state.lives / self.lives, used]
        status = jnp.clip(jnp.stack(shares), 0.0, 1.0).astype(jnp.float32)
        return {"cells": draw(self.game, levels, state), "status": status}

    def describe(self) -> dict[str, Any]:
        """Static facts, for tables."""
        height, width = self.params.levels.shape
        return {
            "name": self.game.name,
            "size": f"{height}x{width}",
            "agents": 1,
            "actions": [ACTION_NAMES[action] for action in self.game.actions],
        }

    @property
    def renderers(self) -> Mapping[str, Callable[[engine.GameState, GameParams], Any]]:
        """How to draw a state, by the names that Gymnasium gives to the ways of drawing."""
        return {"rgb_array": self.pixels, "ansi": self.text}

    def pixels(self, state: engine.GameState, params: GameParams) -> np.ndarray:
        """The frame as a picture uint8 (256, 256, 3)."""
        colours = np.array([rgb(colour) for colour in camera.PALETTE], np.uint8)
        picture = colours[np.asarray(camera.frame(self.game, params.levels, state))]
        return picture.repeat(4, axis=0).repeat(4, axis=1)

    def text(self, state: engine.GameState, params: GameParams) -> str:
        """The board as lines of hexadecimal digits, one for each colour."""
        rows = np.asarray(camera.cells(self.game, params.levels, state)).tolist()
        return "\n".join("".join(f"{colour:x}" for colour in row) for row in rows)


def _info(state: engine.GameState) -> GameInfo:
    levels = jnp.arange(state.spent.shape[0])
    solved = ((levels < state.solved) & (state.spent > 0)).sum().astype(jnp.int32)
    return GameInfo(solved, state.lives, state.status == WON, state.spent)
