"""Uneven ground: one field of heights with a lane for every kind and level, side by side.

All worlds share the field, and with it one model: each robot walks along the lane of its level, and
begins its next episode in another (Rudin et al. 2021, "Learning to walk in minutes").
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from worldloom.suites.robot.types import Array, Lane, Rules

KINDS = ("rough", "slopes", "steps", "gaps")
CHOICES = ("none", *KINDS, "mixed")  # mixed: all kinds
LEVELS = 5  # beside level 0, which is flat
JUDGED_LEVEL = 3  # that evaluations are played on

# m, of the biped's size. Along x cells are fine, for edges; along y only the rough kind varies.
CELL = (0.025, 0.1)
LENGTH, WIDTH = 9.5, 2.0  # of a lane, from where robots begin, and from side to side
BEHIND, ASIDE = 4.5, 3.0  # flat ground behind the starts, and beside the outermost lanes
PAD, RAMP = 0.5, 0.3  # flat ground before a start, and how soon the lane has its full height then
MARGIN = 0.5  # to the edge of the field: there an episode is cut short
STRAY = (0.2, 0.2)  # how far off the middle robots begin
UNDER = 0.3  # along which the ground counts that a base is above of
# Of level 1, and as many times as much of the others.
BUMP, TILT, RISE = 0.005, math.radians(3.0), 0.008  # m, rad, m
KNOTS, TREAD, RUN, REST = 0.1, 0.3, 1.0, 0.4  # m: between bumps; of a step; of a slope; after it
DEPTH, APART = 0.06, (0.5, 0.8)  # of gaps, which are 0.025 (level + 1) m wide, and between them
# Where a critic sees the ground: ahead and to the left of the base.
SCAN = np.array(
    [(x, y) for x in (-0.15, 0.0, 0.15, 0.3, 0.45) for y in (-0.1, 0.0, 0.1)], np.float32
)
SCAN_SCALE = 10.0  # 0.1 m counts as 1
# Shares of the way that was asked for: who made more goes up a level, who made less goes down.
UP, DOWN = 0.8, 0.4
LEAST_WAY = 0.5  # m: of less, nothing follows


@dataclass(frozen=True, eq=False)
class Ground:
    """Heights at the corners of cells, rows along y and columns along x, and the lanes on them.

    All tables are (rows, columns), m, float32. Between corners heights are those of MuJoCo's
    triangles.
    """

    kinds: tuple[str, ...]
    scale: float  # of all lengths, against those of the biped
    corner: tuple[float, float]  # x and y of row 0, column 0
    cell: tuple[float, float]  # along x and y
    heights: np.ndarray  # what robots touch
    surface: np.ndarray  # the same with gaps filled: what feet are lifted above of
    mean: np.ndarray  # of the surface, along x: what the height of a base is measured from
    starts: np.ndarray  # (lanes, 2): x and y

    @property
    def size(self) -> tuple[float, float]:
        """Along x and y, m."""
        rows, columns = self.heights.shape
        return (columns - 1) * self.cell[0], (rows - 1) * self.cell[1]

    def at(self, xp: Any, table: np.ndarray, place: Array) -> Array:
        """The values (...) of a table at places (..., 2); beyond the edge, those of the edge."""
        rows, columns = table.shape
        across = (place[..., 0] - np.float32(self.corner[0])) / np.float32(self.cell[0])
        along = (place[..., 1] - np.float32(self.corner[1])) / np.float32(self.cell[1])
        column = xp.clip(xp.floor(across), 0, columns - 2)
        row = xp.clip(xp.floor(along), 0, rows - 2)
        u, v = xp.clip(across - column, 0.0, 1.0), xp.clip(along - row, 0.0, 1.0)
        values = xp.asarray(table).reshape(-1)
        first = row.astype(np.int32) * columns + column.astype(np.int32)
        near, far = values[first], values[first + columns + 1]
        # Each cell has two triangles, which meet in the diagonal from its near corner.
        aside = xp.where(u >= v, values[first + 1], values[first + columns])
        return near + xp.where(
            u >= v,
            u * (aside - near) + v * (far - aside),
            v * (aside - near) + u * (far - aside),
        )

    def left(self, xp: Any, place: Array) -> Array:
        """Whether a robot (...) at a place (..., 2) has come to the edge of the field."""
        ends = np.array(self.corner) + self.size
        margin = MARGIN * self.scale
        low, high = np.array(self.corner) + margin, ends - margin
        return (place < low.astype(np.float32)).any(-1) | (place > high.astype(np.float32)).any(-1)

    def scan(self, xp: Any, place: Array, heading: Array) -> Array:
        """(..., len(SCAN)): how high the ground is around a base, above what is under it."""
        cos, sin = xp.cos(heading)[..., None], xp.sin(heading)[..., None]
        x, y = (np.float32(self.scale) * SCAN).T
        spots = xp.stack([cos * x - sin * y, sin * x + cos * y], axis=-1) + place[..., None, :]
        seen = self.at(xp, self.heights, spots) - self.at(xp, self.mean, place)[..., None]
        return seen * np.float32(SCAN_SCALE / self.scale)

    def lane(self, xp: Any, level: Array, kind: Array) -> Array:
        """The lane (...) of a level and a kind; all kinds share the flat one."""
        return xp.where(level == 0, 0, 1 + kind * LEVELS + level - 1)


# Making it ---------------------------------------------------------------------------------------


def make_ground(kind: str, seed: int = 0, scale: float = 1.0) -> Ground:
    """The ground of one kind or of all, which a seed decides. scale: of the robot, over the biped.

    Lane 0 is flat and leads along the x axis.
    """
    kinds = KINDS if kind == "mixed" else (kind,)
    lanes = 1 + len(kinds) * LEVELS
    x = -BEHIND + CELL[0] * np.arange(round((BEHIND + LENGTH) / CELL[0]) + 1)
    lowest = -ASIDE - WIDTH / 2.0
    y = lowest + CELL[1] * np.arange(round((2 * ASIDE + lanes * WIDTH) / CELL[1]) + 1)
    surface = np.zeros((len(y), len(x)))
    heights = np.zeros_like(surface)
    lane_of_row = np.floor((y + WIDTH / 2.0) / WIDTH + 1e-9).astype(int)
    for i, name in enumerate(kinds):
        for level in range(1, LEVELS + 1):
            rows = lane_of_row == 1 + i * LEVELS + level - 1
            random = np.random.default_rng([seed, KINDS.index(name), level])
            lane = _MAKERS[name](x, int(rows.sum()), level, random)
            if name == "gaps":
                heights[rows] = lane
            else:
                surface[rows] = lane * np.clip((x - PAD) / RAMP, 0.0, 1.0)
    heights += surface
    starts = np.stack([np.zeros(lanes), WIDTH * np.arange(lanes)], axis=-1)
    mean = _mean_along(surface, round(UNDER / CELL[0]))
    return Ground(
        kinds=kinds,
        scale=scale,
        corner=(-BEHIND * scale, lowest * scale),
        cell=(CELL[0] * scale, CELL[1] * scale),
        heights=(scale * heights).astype(np.float32),
        surface=(scale * surface).astype(np.float32),
        mean=(scale * mean).astype(np.float32),
        starts=scale * starts,
    )


def _rough(x: np.ndarray, rows: int, level: int, random: np.random.Generator) -> np.ndarray:
    """Bumps at random, up and down."""
    knots = np.arange(x[0], x[-1] + KNOTS, KNOTS)
    bumps = BUMP * level * random.uniform(-1.0, 1.0, (rows, len(knots)))
    return np.stack([np.interp(x, knots, row) for row in bumps])


def _slopes(x: np.ndarray, rows: int, level: int, random: np.random.Generator) -> np.ndarray:
    """Up, along, down, along."""
    top = RUN * math.tan(TILT * level)
    ends = np.cumsum([0.0, RUN, REST, RUN, REST])
    profile = np.interp((x - PAD) % ends[-1], ends, [0.0, top, top, 0.0, 0.0])
    return np.tile(np.where(x > PAD, profile, 0.0), (rows, 1))


def _steps(x: np.ndarray, rows: int, level: int, random: np.random.Generator) -> np.ndarray:
    """Four steps up, four down, again and again; none of them is quite as high as another."""
    number = np.maximum(np.floor((x - PAD - RAMP) / TREAD + 1e-9), -1).astype(int) + 1
    rise = RISE * level * random.uniform(0.8, 1.2, number.max() + 1)
    rise *= np.where((np.arange(len(rise)) - 1) % 8 < 4, 1.0, -1.0)
    rise[0] = 0.0
    return np.tile(np.maximum(np.cumsum(rise), 0.0)[number], (rows, 1))


def _gaps(x: np.ndarray, rows: int, level: int, random: np.random.Generator) -> np.ndarray:
    """Trenches across the lane."""
    profile, at = np.zeros(len(x)), PAD + RAMP
    while at < x[-1]:
        first = int(np.searchsorted(x, at))
        profile[first : first + level] = -DEPTH
        at += random.uniform(*APART) + CELL[0] * level
    return np.tile(profile, (rows, 1))


_MAKERS = {"rough": _rough, "slopes": _slopes, "steps": _steps, "gaps": _gaps}


def _mean_along(table: np.ndarray, count: int) -> np.ndarray:
    """The mean of about `count` neighbours along x."""
    half = count // 2
    padded = np.pad(table, ((0, 0), (half + 1, half)), mode="edge")
    sums = np.cumsum(padded, axis=1)
    return (sums[:, 2 * half + 1 :] - sums[:, : -2 * half - 1]) / (2 * half + 1)


# Which lane --------------------------------------------------------------------------------------


def draw_lane(xp: Any, rules: Rules, num_kinds: int, u: Array) -> Lane:
    """A kind, and a level of those that the rules begin with, from uniform numbers (..., 2)."""
    least, most = rules.levels[..., 0], rules.levels[..., 1]
    level = least + xp.floor(u[..., 0] * (most - least + 1))
    kind = xp.minimum(xp.floor(u[..., 1] * num_kinds), num_kinds - 1)
    zero = xp.zeros_like(u[..., 0])
    return Lane(level.astype(np.int32), kind.astype(np.int32), zero, zero)


def next_lane(
    xp: Any, rules: Rules, lane: Lane, still_asked: Array, drawn: Lane, u: Array, scale: float
) -> Lane:
    """Where a robot begins again, by how far it got: up, down, or where it was.

    still_asked (...): the way that would have been asked for until time ran out, m. Who is through
    with the highest level goes to any but the flat one (u (...), uniform), so that none is
    forgotten. Where `rules.climb` is 0, levels are as `drawn`.
    """
    way = lane.asked + still_asked
    share = lane.walked / xp.maximum(way, 1e-6)
    counts = way >= LEAST_WAY * scale
    moved = xp.where(share >= UP, 1, xp.where(share < DOWN, -1, 0)) * counts
    level = xp.maximum(lane.level + moved, 0)
    anywhere = 1 + xp.minimum(xp.floor(u * LEVELS), LEVELS - 1).astype(np.int32)
    level = xp.where(level > LEVELS, anywhere, level).astype(np.int32)
    level = xp.where(rules.climb > 0, level, drawn.level)
    return drawn.replace(level=level, kind=lane.kind)


def went_on(xp: Any, lane: Lane, velocity: Array, command: Array, seconds: float) -> Lane:
    """After a step at a velocity (..., 2) with a command (..., 3), both in the robot's heading."""
    asked = xp.sqrt((command[..., :2] ** 2).sum(-1))
    walked = (velocity * command[..., :2]).sum(-1) / xp.maximum(asked, 1e-6)
    step = np.float32(seconds)
    return lane.replace(asked=lane.asked + step * asked, walked=lane.walked + step * walked)
