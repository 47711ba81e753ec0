"""Pictures of gridworlds: single images, frames of an episode, GIFs.

A frame is put together from finished cells. Every combination of things that occurs in a cell
during an episode is composed once; after that a frame is one array lookup.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from worldloom.report.colors import RGB, lighter
from worldloom.report.gif import save_gif
from worldloom.suites.grid import sprites

if TYPE_CHECKING:
    from PIL.Image import Image

    from worldloom.suites.grid.kinds import Kind
    from worldloom.suites.grid.world import GridWorld

__all__ = ["abridged", "frames", "save_gif"]

BARE: RGB = (196, 190, 178)  # ground on which a world says nothing lies
_CAPTION_PAPER: RGB = (43, 45, 58)
_CAPTION_INK: RGB = (240, 236, 226)
_CAPTION_DONE: RGB = (242, 190, 72)
_WORN = {"it"}  # kinds that an agent wears: drawn over it
_LOOKS = 5  # directions an agent can look in
# Of a long episode: so many turns one by one, then so many pictures of all that follows.
_TURNS, _LEAPS = 80, 40


def pixels(world: "GridWorld", state: Any, params: Any = None) -> np.ndarray:
    """One state, uint8 (height, width, 3); drawing needs none of the world's parameters."""
    one = SimpleNamespace(
        layers=np.asarray(state.layers)[None], position=np.asarray(state.position)[None]
    )
    return np.asarray(frames(world, one, caption=False)[0])


def abridged(turns: int) -> list[int]:
    """The turns that a film of an episode shows: all of a short one, of a long one few late ones.

    A thousand turns would take minutes to watch, and make a page of many megabytes.
    """
    if turns <= _TURNS + _LEAPS:
        return list(range(turns + 1))
    late = np.linspace(_TURNS, turns, _LEAPS + 1).round().astype(int)
    return [*range(_TURNS), *late.tolist()]


def frames(
    world: "GridWorld", states: Any, rewards: Any = None, tile: int = 24, *,
    caption: bool = True, chosen: Sequence[int] | None = None,
) -> list["Image"]:  # fmt: skip
    """One picture for each of T + 1 states, the last one included; or only for the chosen turns.

    `states` has `layers` (T + 1, L, H, W) and `position` (T + 1, A, 2). Agents look where they
    last went. With `rewards` (T,) or (T, A) of the turns between the states, the caption counts
    the score.
    """
    layers, positions = np.asarray(states.layers), np.asarray(states.position)
    if layers.ndim != 4:
        raise ValueError(
            f"frames: layers have shape {layers.shape}; stacked states of one world have "
            "(turns, layers, height, width)"
        )
    bank, cells = _compose(world, layers, positions, tile)
    turns = len(layers) - 1
    texts = [""] * (turns + 1)
    if rewards is not None:
        rewards = np.asarray(rewards, float)
        if len(rewards) != turns:
            raise ValueError(
                f"frames: {len(rewards)} rewards for {turns} turns between {len(layers)} states; "
                "give one row for each turn"
            )
        each_turn = rewards.sum(axis=tuple(range(1, rewards.ndim)))
        scores = np.concatenate([[0.0], np.cumsum(each_turn)])
        decimals = 0 if np.allclose(scores, np.round(scores)) else 1
        texts = [f"score {score:.{decimals}f}" for score in scores]
    pictures = {turn: _pixels(bank, cells[turn]) for turn in chosen or range(turns + 1)}
    if not caption:
        from PIL import Image

        return [Image.fromarray(pixels) for pixels in pictures.values()]
    bar = max(18, min(tile, cells.shape[2] * tile // 8))
    return [
        _with_caption(pixels, (f"turn {turn}/{turns}", texts[turn]), turn / max(turns, 1), bar)
        for turn, pixels in pictures.items()
    ]


# Cells -------------------------------------------------------------------------------------------


def _gazes(positions: np.ndarray) -> np.ndarray:
    """(T, A): the direction of each agent's last step so far."""
    looks = np.zeros(positions.shape[:2], int)
    for t in range(1, len(positions)):
        dy, dx = (positions[t] - positions[t - 1]).T
        directions = [sprites.UP, sprites.DOWN, sprites.LEFT, sprites.RIGHT]
        looks[t] = np.select([dy < 0, dy > 0, dx < 0, dx > 0], directions, looks[t - 1])
    return looks


def _compose(
    world: "GridWorld", layers: np.ndarray, positions: np.ndarray, tile: int
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
    looks = _gazes(positions)
    for number in range(positions.shape[1]):
        y, x = positions[:, number].T
        on_map = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        code = 1 + number * _LOOKS + looks[:, number]
        look[np.flatnonzero(on_map), y[on_map], x[on_map], -1] = code[on_map]
    unique, cells = np.unique(look.reshape(-1, look.shape[-1]), axis=0, return_inverse=True)
    bank = np.stack([_cell(world, row.tolist(), num_layers, tile) for row in unique])
    return bank, cells.reshape(num_turns, height, width)


def _open_sides(world: "GridWorld", layers: np.ndarray) -> np.ndarray:
    """(T, L, H, W): at which sides a block has a neighbour of another kind, as a sum of flags.

    The edge of the map is not a side: walls go on beyond it.
    """
    blocks = np.array([kind.name.lower() == "wall" for kind in world.kinds])[layers]
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
    # Ground on which nothing lies has the colour of the empty kind, unless that is black.
    empty = world.kinds[0].color
    cell = np.empty((tile, tile, 3), np.float32)
    cell[:] = lighter(empty, 0.25) if any(empty) else BARE
    if texture % 2:
        cell *= 0.97
    for layer in range(num_layers):
        own = who and layer == num_layers - 1  # on the top layer an agent stands for itself
        kind = world.kinds[look[layer]]
        if own or (look[layer] == 0 and (layer > 0 or kind.name.lower() not in sprites.SPRITES)):
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


def _sprite(kind: "Kind", tile: int, variant: int) -> np.ndarray:
    return sprites.thing(kind.name, kind.glyph, tuple(kind.color), tile, variant)


def _lay(cell: np.ndarray, sprite: np.ndarray) -> None:
    """Lays a sprite (tile, tile, 4) over a cell (tile, tile, 3) in place."""
    cover = sprite[..., 3:].astype(np.float32) / 255.0
    cell *= 1.0 - cover
    cell += sprite[..., :3] * cover


# Pictures ----------------------------------------------------------------------------------------


def _pixels(bank: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Cells (H, W) of the bank side by side, (H * tile, W * tile, 3)."""
    (height, width), tile = cells.shape, bank.shape[1]
    return bank[cells].transpose(0, 2, 1, 3, 4).reshape(height * tile, width * tile, 3)


def _with_caption(
    pixels: np.ndarray, caption: tuple[str, str], progress: float, bar: int
) -> "Image":
    """A bar below the picture: text on its left and right, and above that a line of progress."""
    from PIL import Image, ImageDraw, ImageFont

    height, width, _ = pixels.shape
    image = Image.new("RGB", (width, height + bar), _CAPTION_PAPER)
    image.paste(Image.fromarray(pixels))
    pen = ImageDraw.Draw(image)
    line = max(2, bar // 10)
    if progress:
        done = max(0, round(progress * width) - 1)
        pen.rectangle((0, height, done, height + line - 1), _CAPTION_DONE)
    font = ImageFont.load_default(bar * 0.52)  # Pillow's own: the same on every machine
    middle, margin = height + line + (bar - line) / 2 - 0.5, bar * 0.4
    left, right = caption
    # A narrow world has no room for both: the score says more than the turn.
    if pen.textlength(left, font) + pen.textlength(right, font) + 3 * margin > width and right:
        left = ""
    pen.text((margin, middle), left, _CAPTION_INK, font, anchor="lm")
    pen.text((width - margin, middle), right, _CAPTION_INK, font, anchor="rm")
    return image
