"""Three of our games written for arcengine, by its public API, and played in its own way.

This file is run by its path in the environment of benchmarks/peers-arcengine.txt and imports
nothing of Worldloom: levels and actions come with the setup. See `arc_peers.serve`.
"""

import hashlib
import random
from multiprocessing import get_context
from typing import Any

import numpy as np
from arc_peers import serve
from arcengine import (
    ActionInput,
    ARCBaseGame,
    Camera,
    GameAction,
    GameState,
    Level,
    RenderableUserDisplay,
    Sprite,
)

STEPS = {1: (0, -1), 2: (0, 1), 3: (-1, 0), 4: (1, 0)}  # x and y
UNDO = 7


class Bars(RenderableUserDisplay):
    """Lives in the first row, what is left of the limit in the last."""

    def __init__(self):
        self.lives, self.left, self.limit = 3, 1, 1

    def render_interface(self, frame):
        frame[0] = 3
        for life in range(self.lives):
            frame[0, 4 * life : 4 * life + 3] = 8
        frame[63] = np.where(np.arange(64) * self.limit < 64 * self.left, 14, 3)
        return frame


class Ours(ARCBaseGame):
    """What our games share: lives, a limit of actions, undo. Sprites: kind -> (colour, layer)."""

    sprites: dict[str, tuple[int, int]]
    background = 5

    def __init__(self, setup: dict[str, Any]):
        self.bars, self.all_lives, self.undo = Bars(), setup["lives"], setup["undo"]
        self.lives = self.all_lives
        levels = [self._level(level) for level in setup["levels"]]
        height, width = setup["levels"][0]["size"]
        camera = Camera(0, 0, width, height, self.background, 4, [self.bars])
        super().__init__(setup["game"], levels, camera, available_actions=setup["actions"])

    def _level(self, level: dict[str, Any]) -> Level:
        made = [
            Sprite([[self.sprites[kind][0]]], kind, x, y, self.sprites[kind][1], tags=[kind])
            for kind, cells in level["kinds"].items()
            for y, x in cells
        ]
        height, width = level["size"]
        return Level(made, (width, height), {"limit": level["limit"]})

    def on_set_level(self, level: Level) -> None:
        self.limit, self.used, self.past = level.get_data("limit"), 0, []
        self.begin()
        self._show()

    def _show(self) -> None:
        self.bars.lives, self.bars.left, self.bars.limit = (
            self.lives, max(self.limit - self.used, 0), self.limit,
        )  # fmt: skip

    def at(self, kind: str) -> set[tuple[int, int]]:
        return {(sprite.x, sprite.y) for sprite in self.current_level.get_sprites_by_tag(kind)}

    def inside(self, cell: tuple[int, int]) -> bool:
        assert self.current_level.grid_size is not None
        width, height = self.current_level.grid_size
        return 0 <= cell[0] < width and 0 <= cell[1] < height

    def step(self) -> None:
        number = self.action.id.value
        if number == 0:
            self.complete_action()
            return
        self.used += 1
        solved = False
        if number == UNDO and self.undo:
            if self.past:
                self.restore(self.past.pop())
        else:
            if self.undo:
                self.past = [*self.past, self.saved()][-self.undo :]
            solved = self.play(number)
        if solved:
            self.next_level()
        elif self.used >= self.limit:
            self.lives -= 1
            if self.lives == 0:
                self.lose()
            else:
                self.level_reset()
        self._show()
        self.complete_action()

    def begin(self) -> None: ...
    def play(self, number: int) -> bool: ...
    def saved(self) -> Any: ...
    def restore(self, kept: Any) -> None: ...


class Glide(Ours):
    sprites = {"wall": (4, 0), "goal": (11, 1), "player": (9, 2)}  # noqa: RUF012
    background = 10

    def begin(self) -> None:
        (self.player,) = self.current_level.get_sprites_by_tag("player")
        self.walls, self.goals = self.at("wall"), self.at("goal")

    def play(self, number: int) -> bool:
        if number not in STEPS:
            return False
        dx, dy = STEPS[number]
        x, y = self.player.x, self.player.y
        while self.inside((x + dx, y + dy)) and (x + dx, y + dy) not in self.walls:
            x, y = x + dx, y + dy
        self.player.set_position(x, y)
        return (x, y) in self.goals


class Crates(Ours):
    sprites = {"wall": (3, 0), "pad": (11, 1), "crate": (12, 2), "player": (9, 3)}  # noqa: RUF012

    def begin(self) -> None:
        (self.player,) = self.current_level.get_sprites_by_tag("player")
        self.walls, self.pads = self.at("wall"), self.at("pad")
        self.crates = self.current_level.get_sprites_by_tag("crate")
        self._colour()

    def _colour(self) -> None:
        for crate in self.crates:
            crate.color_remap(None, 14 if (crate.x, crate.y) in self.pads else 12)

    def play(self, number: int) -> bool:
        dx, dy = STEPS.get(number, (0, 0))
        to = (self.player.x + dx, self.player.y + dy)
        beyond = (to[0] + dx, to[1] + dy)
        crates = {(crate.x, crate.y): crate for crate in self.crates}
        if (dx or dy) and self.inside(to) and to not in self.walls:
            if to not in crates:
                self.player.set_position(*to)
            elif self.inside(beyond) and beyond not in self.walls and beyond not in crates:
                crates[to].set_position(*beyond)
                self.player.set_position(*to)
        self._colour()
        return all((crate.x, crate.y) in self.pads for crate in self.crates)

    def saved(self) -> Any:
        return [(sprite.x, sprite.y) for sprite in (self.player, *self.crates)]

    def restore(self, kept: Any) -> None:
        for sprite, place in zip((self.player, *self.crates), kept, strict=True):
            sprite.set_position(*place)
        self._colour()


class Lights(Ours):
    sprites = {"wall": (3, 0), "lamp": (11, 1)}  # noqa: RUF012

    def begin(self) -> None:
        self.walls = self.at("wall")
        self.lit = {(s.x, s.y): s for s in self.current_level.get_sprites_by_tag("lamp")}

    def play(self, number: int) -> bool:
        if number != 6:
            return False
        cell = self.camera.display_to_grid(self.action.data["x"], self.action.data["y"])
        if cell is None or cell in self.walls:
            return False
        for dx, dy in ((0, 0), *STEPS.values()):
            lamp = (cell[0] + dx, cell[1] + dy)
            if not self.inside(lamp) or lamp in self.walls:
                continue
            if lamp in self.lit:
                self.current_level.remove_sprite(self.lit.pop(lamp))
            else:
                self.lit[lamp] = Sprite([[11]], "lamp", *lamp, 1, tags=["lamp"])
                self.current_level.add_sprite(self.lit[lamp])
        return not self.lit


GAMES = {"glide": Glide, "crates": Crates, "lights": Lights}


def _action(number: int, row: int, column: int) -> ActionInput:
    data = {"x": column, "y": row} if number == 6 else {}
    return ActionInput(id=GameAction.from_id(number), data=data)


def digest_of(setup: dict[str, Any]) -> str:
    """The last frame of each of the actions to check, as one digest."""
    game, seen = GAMES[setup["game"]](setup), hashlib.sha256()
    for action in setup["check"]:
        answer = game.perform_action(_action(*action), raw=True)
        seen.update(np.asarray(answer.frame[-1], np.int8).tobytes())
        assert answer.state == GameState.NOT_FINISHED, "the actions to check end the game"
    return seen.hexdigest()


def player(setup: dict[str, Any], count: int):
    """A function that plays so many games in turn, and how many actions that are."""
    make = GAMES[setup["game"]]
    games = [make(setup) for _ in range(count)]
    choices = [_action(*action) for action in setup["choices"]]
    draw = random.Random(0)
    steps = max(setup["steps"] // count, 1)

    def block() -> int:
        seen = 0
        for _ in range(steps):
            for n, game in enumerate(games):
                answer = game.perform_action(draw.choice(choices), raw=True)
                seen = max(seen, int(answer.frame[-1].max()))
                if answer.state in (GameState.WIN, GameState.GAME_OVER):
                    games[n] = make(setup)
        return seen

    return block, steps * count


def _work(pipe: Any, setup: dict[str, Any], count: int) -> None:
    block, steps = player(setup, count)
    pipe.send(steps)
    while pipe.recv():
        pipe.send(block())


def arcengine(setup: dict[str, Any]):
    """Its games in a loop, in one process or, each with a part of them, in several."""
    processes = setup.get("processes") or 1
    facts = {"digest": digest_of(setup)}
    if processes == 1:
        return *player(setup, setup["batch"]), facts
    context, pipes, total = get_context("fork"), [], 0
    for _ in range(processes):
        here, there = context.Pipe()
        arguments = (there, setup, setup["batch"] // processes)
        context.Process(target=_work, args=arguments, daemon=True).start()
        pipes.append(here)
    for pipe in pipes:
        total += pipe.recv()

    def block() -> None:
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()

    return block, total, facts


if __name__ == "__main__":
    serve({"arcengine": arcengine})
