"""Pictures of gridworlds: single images, frames of an episode, GIFs.

A frame is put together from finished cells. Every combination of things that occurs in a cell
during an episode is composed once; after that a frame is one array lookup.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from worldloom.report.colors import RGB, lighter
from worldloom.report.gif import save_gif
from worldloom.suites.grid import sprites

if TYPE_CHECKING:
    from PIL.Image import Image

    from worldloom.suites.grid.kinds import Kind
    from worldloom.suites.grid.world import GridWorld

__all__ = ["draw", "frames", "save_gif", "save_png"]

BARE: RGB = (196, 190, 178)  # ground on which a world says nothing lies
_CAPTION_PAPER: RGB = (43, 45, 58)
_CAPTION_INK: RGB = (240, 236, 226)
_CAPTION_DONE: RGB = (242, 190, 72)
_WORN = {"it"}  # kinds that an agent wears: drawn over it
_LOOKS = 5  # directions an agent can look in


def draw(
    world: "GridWorld",
    layers: Any,
    positions: Any,
    tile: int = 24,
    *,
    gaze: Any = None,
    caption: tuple[str, str] | None = None,
    progress: float | None = None,
) -> "Image":
    """One picture of a world: floor and things layer by layer, then the agents.

    `layers` (L, H, W) holds kinds, `positions` (A, 2) rows and columns; `gaze` (A,) says where
    each agent looks (`sprites.UP` ...). `caption` is text for the left and right of a bar below
    the picture, with `progress` in [0, 1] as a thin line above it.
    """
    layers, positions = np.asarray(layers)[None], np.asarray(positions)[None]
    looks = np.zeros(positions.shape[:2], int) if gaze is None else np.asarray(gaze)[None]
    bank, cells = _compose(world, layers, positions, looks, tile)
    return _picture(bank, cells[0], caption, progress)


def frames(
    world: "GridWorld",
    states: Any,
    rewards: Any = None,
    tile: int = 24,
    *,
    caption: bool = True,
) -> list["Image"]:
    """One picture for each of T + 1 states, the last one included.

    `states` has `layers` (T + 1, L, H, W) and `position` (T + 1, A, 2), or is a sequence of
    states. Agents look where they last went. With `rewards` (T,) or (T, A) of the turns between
    the states, the caption counts the score.
    """
    layers, positions = _stacked(states)
    bank, cells = _compose(world, layers, positions, _gazes(positions), tile)
    turns = len(layers) - 1
    scores = None
    if rewards is not None:
        paid = np.asarray(rewards, float)
        if len(paid) != turns:
            raise ValueError(
                f"frames: {len(paid)} rewards for {turns} turns between {len(layers)} states; "
                "give one row for each turn"
            )
        scores = np.concatenate([[0.0], np.cumsum(paid.sum(axis=tuple(range(1, paid.ndim))))])
    decimals = 0 if scores is None or np.allclose(scores, np.round(scores)) else 1
    pictures = []
    for turn in range(turns + 1):
        text = progress = None
        if caption:
            score = "" if scores is None else f"score {scores[turn]:.{decimals}f}"
            text, progress = (f"turn {turn}/{turns}", score), turn / max(turns, 1)
        pictures.append(_picture(bank, cells[turn], text, progress))
    return pictures


def save_png(image: "Image", path: str | Path) -> Path:
    """Writes one picture and returns its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, format="PNG", optimize=True)
    return path


# Cells -------------------------------------------------------------------------------------------


def _stacked(states: Any) -> tuple[np.ndarray, np.ndarray]:
    """Layers (T, L, H, W) and positions (T, A, 2) of stacked states or of a sequence of states."""
    from worldloom.core.transforms import base_state

    if isinstance(states, Sequence):
        each = [base_state(state) for state in states]
        if not each:
            raise ValueError("frames: there are no states to draw; give at least one")
        return (
            np.stack([np.asarray(state.layers) for state in each]),
            np.stack([np.asarray(state.position) for state in each]),
        )
    state = base_state(states)
    layers, positions = np.asarray(state.layers), np.asarray(state.position)
    if layers.ndim != 4:
        raise ValueError(
            f"frames: layers have shape {layers.shape}; stacked states of one world have "
            "(turns, layers, height, width)"
        )
    return layers, positions


def _gazes(positions: np.ndarray) -> np.ndarray:
    """(T, A): the direction of each agent's last step so far."""
    looks = np.zeros(positions.shape[:2], int)
    for t in range(1, len(positions)):
        dy, dx = (positions[t] - positions[t - 1]).T
        moved = np.select(
            [dy < 0, dy > 0, dx < 0, dx > 0],
            [sprites.UP, sprites.DOWN, sprites.LEFT, sprites.RIGHT],
            looks[t - 1],
        )
        looks[t] = moved
    return looks


def _compose(
    world: "GridWorld", layers: np.ndarray, positions: np.ndarray, looks: np.ndarray, tile: int
) -> tuple[np.ndarray, np.ndarray]:
    """A bank of finished cells (U, tile, tile, 3) and which of them stands where (T, H, W)."""
    num_turns, num_layers, height, width = layers.shape
    unknown = layers[(layers < 0) | (layers >= len(world.kinds))]
    if len(unknown):
        raise ValueError(
            f"{world.name}: layers hold kind {unknown[0]}; there are only kinds 0 to "
            f"{len(world.kinds) - 1}"
        )
    rows, columns = np.mgrid[:height, :width]
    texture = (rows + columns) % 2 + 2 * ((rows * 7 + columns * 13 + rows * columns) % 3 % 2)
    # What a cell looks like: its kinds, their open sides, shadow on it, its texture, who is there.
    look = np.zeros((num_turns, height, width, 2 * num_layers + 3), np.int32)
    look[..., :num_layers] = np.moveaxis(layers, 1, -1)
    sides = _open_sides(world, layers)
    look[..., num_layers : 2 * num_layers] = np.moveaxis(sides, 1, -1)
    look[:, 1:, :, -3] = (sides[:, -1, :-1] & sprites.OPEN_BELOW) > 0
    look[..., -2] = texture
    for number in range(positions.shape[1]):
        y, x = positions[:, number].T
        on_map = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        code = 1 + number * _LOOKS + looks[:, number]
        look[np.flatnonzero(on_map), y[on_map], x[on_map], -1] = code[on_map]
    looks_of_cells = look.reshape(-1, look.shape[-1])
    unique, cells = np.unique(looks_of_cells, axis=0, return_inverse=True)
    bank = np.stack([_cell(world, row.tolist(), num_layers, tile) for row in unique])
    return bank, cells.reshape(num_turns, height, width)


def _open_sides(world: "GridWorld", layers: np.ndarray) -> np.ndarray:
    """(T, L, H, W): at which sides a block has a neighbour of another kind, as a sum of flags.

    The edge of the map is not a side: walls go on beyond it.
    """
    blocks = np.array([sprites.is_block(kind.name) for kind in world.kinds])[layers]
    around = np.pad(layers, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    sides = (
        (sprites.OPEN_BELOW, around[:, :, 2:, 1:-1]),
        (sprites.OPEN_ABOVE, around[:, :, :-2, 1:-1]),
        (sprites.OPEN_LEFT, around[:, :, 1:-1, :-2]),
        (sprites.OPEN_RIGHT, around[:, :, 1:-1, 2:]),
    )
    return blocks * sum(flag * (neighbour != layers) for flag, neighbour in sides)


def _cell(world: "GridWorld", look: list[int], num_layers: int, tile: int) -> np.ndarray:
    """One finished cell (tile, tile, 3) uint8."""
    shaded, texture, who = look[-3:]
    cell = np.empty((tile, tile, 3), np.float32)
    cell[:] = _ground(world)
    if texture % 2:
        cell *= 0.97
    for layer in range(num_layers):
        own = who and layer == num_layers - 1  # on the top layer an agent stands for itself
        kind = world.kinds[look[layer]]
        if own or (look[layer] == 0 and (layer > 0 or not sprites.is_known(kind.name))):
            continue
        variant = 0
        if kind.name.lower() in sprites.FLOORS:
            variant = texture + sprites.TEXTURES * look[num_layers + layer]
        _lay(cell, _sprite(kind, tile, variant))
    if shaded:
        _lay(cell, sprites.shade(tile))
    if who:
        number, gaze = divmod(who - 1, _LOOKS)
        seen_as = world.kinds[look[num_layers - 1]]
        gaze = sprites.FACINGS.get(seen_as.name.lower(), gaze)
        _lay(cell, sprites.agent(number, tile, gaze))
        if seen_as.name.lower() in _WORN:
            _lay(cell, _sprite(seen_as, tile, 0))
    return np.round(cell).astype(np.uint8)


def _ground(world: "GridWorld") -> RGB:
    """The colour of ground on which nothing lies: that of the empty kind, unless it is black."""
    empty = world.kinds[0].color
    return lighter((empty[0], empty[1], empty[2]), 0.25) if any(empty) else BARE


def _sprite(kind: "Kind", tile: int, variant: int) -> np.ndarray:
    red, green, blue = kind.color
    return sprites.thing(kind.name, kind.glyph, (red, green, blue), tile, variant)


def _lay(cell: np.ndarray, sprite: np.ndarray) -> None:
    """Lays a sprite (tile, tile, 4) over a cell (tile, tile, 3) in place."""
    cover = sprite[..., 3:].astype(np.float32) / 255.0
    cell *= 1.0 - cover
    cell += sprite[..., :3] * cover


# Pictures ----------------------------------------------------------------------------------------


def _picture(
    bank: np.ndarray,
    cells: np.ndarray,
    caption: tuple[str, str] | None,
    progress: float | None,
) -> "Image":
    """Cells (H, W) of the bank side by side, and the caption below."""
    from PIL import Image

    height, width = cells.shape
    tile = bank.shape[1]
    pixels = bank[cells].transpose(0, 2, 1, 3, 4).reshape(height * tile, width * tile, 3)
    if caption is None:
        return Image.fromarray(pixels)
    return _with_caption(pixels, caption, progress, max(18, min(tile, width * tile // 8)))


def _with_caption(
    pixels: np.ndarray, caption: tuple[str, str], progress: float | None, bar: int
) -> "Image":
    from PIL import Image, ImageDraw

    height, width, _ = pixels.shape
    image = Image.new("RGB", (width, height + bar), _CAPTION_PAPER)
    image.paste(Image.fromarray(pixels))
    pen = ImageDraw.Draw(image)
    line = max(2, bar // 10)
    if progress:
        done = max(0, round(progress * width) - 1)
        pen.rectangle((0, height, done, height + line - 1), _CAPTION_DONE)
    font = _font(bar * 0.52)
    middle, margin = height + line + (bar - line) / 2 - 0.5, bar * 0.4
    left, right = caption
    # A narrow world has no room for both: the score says more than the turn.
    if pen.textlength(left, font) + pen.textlength(right, font) + 3 * margin > width and right:
        left = ""
    pen.text((margin, middle), left, _CAPTION_INK, font, anchor="lm")
    pen.text((width - margin, middle), right, _CAPTION_INK, font, anchor="rm")
    return image


def _font(size: float) -> Any:
    """The font that comes with Pillow: the same on every machine."""
    from PIL import ImageFont

    return ImageFont.load_default(size)
