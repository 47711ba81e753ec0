"""A game in the studio: a person plays it as people play ARC-AGI-3, and episodes can be saved."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldloom.core.protocols import PureEnv
from worldloom.replay import dataset_files
from worldloom.replay.dataset import from_columns
from worldloom.suites.arc.games import camera
from worldloom.suites.arc.games.engine import ACTION_NAMES, CLICK, LOST, WON
from worldloom.suites.arc.games.problem import from_first_level, one_hot

PLAYS = Path("plays")


class GameSession:
    """A `worldloom.training.suite.Session`.

    Messages: {"action": 1}, an action by its number of 1 .. 7; {"action": 6, "pixel": [row,
    column]}; {"save": true} writes the episode so far as a dataset, which `bc` learns from.
    """

    def __init__(self, target: Any, folder: str | Path = PLAYS):
        env = target if isinstance(target, PureEnv) else target.problem.env
        self.env, self.folder, self._saved = from_first_level(env), Path(folder), ""
        world, params = self.env.base, self.env.default_params()
        self._step = jax.jit(lambda s, a: self.env.step(jax.random.key(0), s, a, params))
        self._frame = jax.jit(lambda state: camera.frame(world.game, params.levels, state))
        self._cell = jax.jit(lambda s, p: camera.pixel_to_cell(params.levels.at(s.level), p))
        self.reset(0)
        self._step(self._state, np.int32(0))  # everything is compiled now

    def describe(self) -> dict[str, Any]:
        game = self.env.base.game
        return {
            "game": game.name,
            "about": game.about,
            "actions": {str(action): ACTION_NAMES[action] for action in game.actions},
            "palette": list(camera.PALETTE),
            "levels": len(self.env.base.params.levels.baseline),
            "most": self.env.base.max_actions,
        }

    def reset(self, seed: int) -> dict[str, Any]:
        self._state, self._now = self.env.reset(jax.random.key(seed), self.env.default_params())
        self._steps: list[tuple[Any, int, Any]] = []  # what was seen, what was done, what followed
        self._saved = ""
        return self.state()

    @property
    def _over(self) -> bool:
        return bool(self._now.terminated | self._now.truncated)

    def act(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message.get("save"):
            self._save()
            return self.state()
        if self._over:
            raise ValueError("the game is over; begin another")
        action = self._read(message)
        if action is not None:  # a click beside the board is none
            before = self._now
            self._state, self._now = self._step(self._state, np.int32(action))
            self._steps.append((before.obs, action, self._now))
            self._saved = ""
        return self.state()

    def _read(self, message: Mapping[str, Any]) -> int | None:
        """The number of an action in the world's space."""
        world, action = self.env.base, message.get("action")
        if type(action) is not int or action not in world.game.actions:
            known = ", ".join(f"{n} ({ACTION_NAMES[n]})" for n in world.game.actions)
            raise ValueError(f"action must be one of {known}")
        if action != CLICK:
            return world.simple.index(action)
        pixel: Any = message.get("pixel")
        is_pair = isinstance(pixel, list) and [type(x) for x in pixel] == [int, int]
        if not is_pair or not all(0 <= x < camera.SIDE for x in pixel):
            raise ValueError("pixel must be a row and a column from 0 to 63")
        row, column = self._cell(self._state, np.array(pixel)).tolist()
        if row < 0:
            return None
        return len(world.simple) + row * world.params.levels.shape[1] + column

    def _save(self) -> None:
        if not self._steps:
            raise ValueError("there is no action to save yet")
        seen, actions, after = zip(*self._steps, strict=True)

        def features(observations: Any) -> np.ndarray:
            return np.asarray(one_hot(jax.tree.map(lambda *x: np.stack(x), *observations)))

        terminated = np.array([bool(step.terminated) for step in after])
        truncated = np.zeros_like(terminated)
        truncated[-1] = not terminated[-1]
        name = self.env.spec.name
        dataset = from_columns(
            obs=features(seen),
            action=np.array(actions, np.float32)[:, None],
            reward=np.array([float(step.reward) for step in after], np.float32),
            next_obs=features([step.obs for step in after]),
            terminated=terminated,
            truncated=truncated,
            name=f"a play of {name}",
            provenance=(("env", name), ("levels solved", str(int(self._now.info.solved)))),
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
        path, number = self.folder / f"{stem}.npz", 2
        while path.exists():
            path, number = self.folder / f"{stem}-{number}.npz", number + 1
        self._saved = str(dataset_files.save(dataset, path))

    def state(self) -> dict[str, Any]:
        state, rows = self._state, np.asarray(self._frame(self._state)).tolist()
        return {
            "frame": ["".join(f"{colour:x}" for colour in row) for row in rows],
            "level": int(state.level) + 1,
            "solved": int(self._now.info.solved),
            "lives": int(state.lives),
            "actions": int(state.spent.sum()),
            "over": self._over,
            "end": {WON: "won", LOST: "lost"}.get(int(state.status), "out of time"),
            "saved": self._saved,
        }
