"""Records games of ARC-Interactive under arcengine: levels, random play, and every frame of it.

    python record_arc_interactive.py CHECKOUT OUT [GAME ...] [--plays 1000]

Run by a Python that has arcengine (benchmarks/peers-arcengine.txt); it imports nothing of
Worldloom. For each game OUT holds GAME.json, its levels as `worldloom.suites.arc.games.levels`
reads them, and GAME.npz, of N plays of T actions: `start` (N,) the level that a play begins at,
`actions` (N, T, 3) as id, row and column of the pixel, `frames` (N, T) how many there were,
`digests` (N, T, 2) uint64 of each, `status` (N, T), `level` (N, T).
"""

import argparse
import hashlib
import importlib.util
import json
from pathlib import Path

import numpy as np
from arcengine import ActionInput, GameAction, GameState

ACTIONS = {False: 60, True: 120}  # of a play; longer where a level can be lost by its limit
# What their tags and data are called by our rules.
KINDS = {
    "ic01": {"player": "player", "target": "goal", "wall": "wall", "hazard": "hazard"},
    "pb01": {"player": "player", "block": "crate", "target": "pad", "wall": "wall"},
    "sk01": {"player": "player", "block": "crate", "target": "pad", "wall": "wall"},
    "fs01": {
        "player": "player", "switch": "plate", "door": "door", "target": "exit", "wall": "wall",
    },
    "va01": {"player": "player", "wall": "wall"},
    "lo01": {"wall": "wall", "lights_on": "lamp"},
    "lo02": {"wall": "wall", "lights_on": "lamp"},
    "gp01": {"wall": "wall", "goal_cells": "pattern"},
}  # fmt: skip
STATUS = {GameState.NOT_FINISHED: 0, GameState.WIN: 1, GameState.GAME_OVER: 2}


def load(checkout, name):
    """The module of a game."""
    (path,) = Path(checkout).glob(f"environment_files/{name}/*/{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_level(level, kinds):
    """A level as JSON."""
    cells = {ours: [] for ours in kinds.values()}
    for sprite in level.get_sprites():
        for tag in sprite.tags:
            if tag in kinds:
                cells[kinds[tag]].append([sprite.y, sprite.x])
    for name, ours in kinds.items():
        cells[ours] += [[y, x] for x, y in level.get_data(name) or ()]
    width, height = level.grid_size
    return {"size": [height, width], "kinds": cells, "limit": level.get_data("step_limit") or 0}


def random_action(rng, status, last, pixels):
    """Mostly what a player would try: the same direction again, a click on what can be seen.

    Now and then another action or a reset. pixels: where to click; none in a game of steps.
    """
    if rng.random() < (0.5 if status else 0.02):
        return 0, 0, 0
    if rng.random() < 0.1:
        return int(rng.integers(1, 7)), *map(int, rng.integers(0, 64, 2))
    if len(pixels):
        anywhere = rng.random() < 0.3
        return 6, *map(int, rng.integers(0, 64, 2) if anywhere else rng.choice(pixels))
    again = last in range(1, 5) and rng.random() < 0.5
    return last if again else int(rng.integers(1, 5)), 0, 0


def coloured(frame):
    """Pixels (n, 2) of colours that are rare in a frame: what there is to click at."""
    colours, counts = np.unique(frame, return_counts=True)
    return np.argwhere(np.isin(frame, colours[counts < counts.max()]))


def play(make, start, actions, clicks, rng):
    """One play: rows of (action, frames, digests, status, level)."""
    game = make()
    game.set_level(start)
    status, rows, last, pixels = 0, [], 0, []
    for _ in range(actions):
        number, row, column = random_action(rng, status, last, pixels)
        data = {"x": column, "y": row} if number == 6 else {}
        action = ActionInput(id=GameAction.from_id(number), data=data)
        answer = game.perform_action(action, raw=True)
        digests = [digest(frame) for frame in answer.frame]
        assert len(digests) <= 2, "a game of animations"
        status, last = STATUS[answer.state], number
        if clicks and len(answer.frame):
            pixels = coloured(answer.frame[-1])
        rows.append(
            ((number, row, column), len(digests), [*digests, 0, 0][:2], status, game.level_index)
        )
    return rows


def digest(frame):
    """64 bits of a frame."""
    content = np.ascontiguousarray(frame, np.int8).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("games", nargs="*", default=list(KINDS))
    parser.add_argument("--plays", type=int, default=1000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.games:
        module, rng = load(args.checkout, name), np.random.default_rng(1)
        make = getattr(module, name.capitalize())
        levels = [read_level(level, KINDS[name]) for level in module.levels]
        clicks = 6 in make()._available_actions
        starts = rng.integers(0, len(levels), args.plays)
        actions = ACTIONS[any(level["limit"] for level in levels)]
        plays = [play(make, int(start), actions, clicks, rng) for start in starts]
        columns = [
            np.array([[row[n] for row in rows] for rows in plays], kind)
            for n, kind in enumerate((np.int32, np.int32, np.uint64, np.int32, np.int32))
        ]
        names = ("actions", "frames", "digests", "status", "level")
        arrays = dict(zip(names, columns, strict=True)) | {"start": starts.astype(np.int32)}
        np.savez_compressed(args.out / f"{name}.npz", **arrays)
        (args.out / f"{name}.json").write_text(json.dumps(levels))
        print(f"{name}: {args.plays} plays, {int(arrays['frames'].sum())} frames", flush=True)


if __name__ == "__main__":
    main()
