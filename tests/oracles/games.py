"""Our games played the slow and obvious way: Python objects, one cell after the other.

Written from the rules as the documentation states them, with nothing of the engine but levels.
"""

import copy

import numpy as np

STEPS = {1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}
CLICK, UNDO = 6, 7


class Oracle:
    """A game of several levels; subclasses say how a level is played and drawn."""

    def __init__(self, levels, lives=3, undo=0):
        self.levels, self.lives, self.depth = levels, lives, undo
        self.over = ""
        self.spent = [0] * len(levels)
        self.begin(0)

    def begin(self, number):
        self.number, self.level = number, self.levels[number]
        self.height, self.width = self.level.size
        self.used, self.past = 0, []
        self.board = self.start()

    def cells_of(self, kind):
        return {tuple(cell) for cell in self.level.kinds.get(kind, ())}

    def on_board(self, cell):
        return 0 <= cell[0] < self.height and 0 <= cell[1] < self.width

    def perform(self, action, cell=None):
        """One action; True if it solved the level."""
        if self.over:
            return False
        self.used += 1
        self.spent[self.number] += 1
        solved = False
        if action == UNDO and self.depth:
            if self.past:
                self.board = self.past.pop()
        else:
            self.past = [*self.past, copy.deepcopy(self.board)][-self.depth :]
            solved = self.act(action, cell)
        if solved and self.number == len(self.levels) - 1:
            self.over = "won"
        elif solved:
            self.begin(self.number + 1)
        elif self.used >= self.level.limit > 0:
            self.lives -= 1
            if self.lives == 0:
                self.over = "lost"
            else:
                self.begin(self.number)
        return solved

    def cells(self):
        return np.array(
            [[self.colour((r, c)) for c in range(self.width)] for r in range(self.height)]
        )

    def frame(self):
        """64 x 64: squares of cells in the middle, lives above, what is left of the limit below."""
        scale = 64 // max(self.height, self.width)
        top, left = (64 - scale * self.height) // 2, (64 - scale * self.width) // 2
        pixels = np.full((64, 64), 4)
        for r, row in enumerate(self.cells()):
            for c, colour in enumerate(row):
                for y in range(scale):
                    for x in range(scale):
                        pixels[top + r * scale + y, left + c * scale + x] = colour
        pixels[0] = 3
        for life in range(self.lives):
            pixels[0, 4 * life : 4 * life + 3] = 8
        for x in range(64):
            share_left = (self.level.limit - self.used) / self.level.limit
            pixels[63, x] = 14 if x / 64 < share_left else 3
        return pixels


class Crates(Oracle):
    def start(self):
        (player,) = self.cells_of("player")
        return {"player": player, "crates": self.cells_of("crate")}

    def free(self, cell):
        return self.on_board(cell) and cell not in self.cells_of("wall")

    def act(self, action, cell):
        if action in STEPS:
            (r, c), (dr, dc) = self.board["player"], STEPS[action]
            to, beyond = (r + dr, c + dc), (r + 2 * dr, c + 2 * dc)
            crates = self.board["crates"]
            if self.free(to) and to in crates and self.free(beyond) and beyond not in crates:
                crates.remove(to)
                crates.add(beyond)
                self.board["player"] = to
            elif self.free(to) and to not in crates:
                self.board["player"] = to
        return self.board["crates"] <= self.cells_of("pad")

    def colour(self, cell):
        if cell == self.board["player"]:
            return 9
        if cell in self.board["crates"]:
            return 14 if cell in self.cells_of("pad") else 12
        if cell in self.cells_of("pad"):
            return 11
        return 3 if cell in self.cells_of("wall") else 5


class Glide(Oracle):
    def start(self):
        (player,) = self.cells_of("player")
        return player

    def act(self, action, cell):
        if action not in STEPS:
            return False
        dr, dc = STEPS[action]
        while True:
            ahead = (self.board[0] + dr, self.board[1] + dc)
            if not self.on_board(ahead) or ahead in self.cells_of("wall"):
                return self.board in self.cells_of("goal")
            self.board = ahead

    def colour(self, cell):
        if cell == self.board:
            return 9
        if cell in self.cells_of("goal"):
            return 11
        return 4 if cell in self.cells_of("wall") else 10


class Doors(Oracle):
    def start(self):
        (player,) = self.cells_of("player")
        return {"player": player, "pressed": set(), "holes": set()}

    def is_open(self):
        return self.board["pressed"] == self.cells_of("plate")

    def act(self, action, cell):
        board = self.board
        if action in STEPS:
            (r, c), (dr, dc) = board["player"], STEPS[action]
            to = (r + dr, c + dc)
            shut = to in self.cells_of("door") and not self.is_open()
            solid = to in self.cells_of("wall") or to in board["holes"] or shut
            if self.on_board(to) and not solid:
                if (r, c) in self.cells_of("crack"):
                    board["holes"].add((r, c))
                board["player"] = to
                if to in self.cells_of("plate"):
                    board["pressed"].add(to)
        return board["player"] in self.cells_of("exit") and self.is_open()

    def colour(self, cell):
        if cell == self.board["player"]:
            return 9
        if cell in self.cells_of("exit"):
            return 14
        if cell in self.cells_of("door") and not self.is_open():
            return 8
        if cell in self.cells_of("plate"):
            return 10 if cell in self.board["pressed"] else 11
        if cell in self.cells_of("crack"):
            return 4 if cell in self.board["holes"] else 2
        return 3 if cell in self.cells_of("wall") else 5


class Lights(Oracle):
    def start(self):
        return self.cells_of("lamp")

    def act(self, action, cell):
        if action != CLICK or not self.on_board(cell) or cell in self.cells_of("wall"):
            return False
        for dr, dc in ((0, 0), *STEPS.values()):
            lamp = (cell[0] + dr, cell[1] + dc)
            if self.on_board(lamp) and lamp not in self.cells_of("wall"):
                self.board ^= {lamp}
        return not self.board

    def colour(self, cell):
        return 11 if cell in self.board else 3 if cell in self.cells_of("wall") else 5


COLOURS = {"red": 8, "blue": 9, "yellow": 11, "green": 14}


class Flood(Oracle):
    def start(self):
        return {cell: c for name, c in COLOURS.items() for cell in self.cells_of(name)}

    def act(self, action, cell):
        if action != CLICK or not self.on_board(cell):
            return False
        before, after = self.board[0, 0], self.board[cell]
        waiting = [(0, 0)] if before != after else []
        while waiting:
            r, c = waiting.pop()
            if self.board.get((r, c)) == before:
                self.board[r, c] = after
                waiting += [(r + dr, c + dc) for dr, dc in STEPS.values()]
        return len(set(self.board.values())) == 1

    def colour(self, cell):
        return self.board[cell]


ORACLES = {"crates": Crates, "glide": Glide, "doors": Doors, "lights": Lights, "flood": Flood}
