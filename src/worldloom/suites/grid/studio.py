"""A gridworld in the studio: a person takes an agent's seat, trained agents play the others."""

import base64
import io
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import base_state
from worldloom.report.colors import series_color
from worldloom.suites.grid import render
from worldloom.suites.grid.human import Moment, action_keys, check_seat, moments, trained

TILE = 40  # pixels


class GridSession:
    """A `worldloom.training.suite.Session`. Messages: {"action": 2} or {"agent": 1}, a new seat."""

    def __init__(self, target: Any):
        is_world = isinstance(target, PureEnv)
        self.env: PureEnv = target if is_world else target.problem.env
        self._others = None if is_world else trained(target)
        self._agent, self._seed = 0, 0
        check_seat(self.env, 0)
        game = moments(self.env, 0, jax.random.key(0), self._others)
        next(game)
        game.send(0)  # a turn: everything is compiled now

    def describe(self) -> dict[str, Any]:
        spec, world = self.env.spec, self.env.base
        return {
            "name": spec.name,
            "others": "trained agents" if self._others else "agents that move at random",
            "actions": list(world.actions),
            "keys": action_keys(world),
            "colors": [series_color(i) for i in range(spec.num_agents)],
            "horizon": spec.horizon,
        }

    def reset(self, seed: int) -> dict[str, Any]:
        self._seed = seed
        self._game = moments(self.env, self._agent, jax.random.key(seed), self._others)
        self._moment = next(self._game)
        self._before: Moment = self._moment
        self._paid = np.zeros(self.env.spec.num_agents)
        return self.state()

    def act(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if "agent" in message:
            seat = message["agent"]
            check_seat(self.env, seat if type(seat) is int else -1)
            self._agent = seat
            return self.reset(self._seed)
        action, count = message.get("action"), len(self.env.base.actions)
        if type(action) is not int or not 0 <= action < count:
            raise ValueError(f"action must be a whole number from 0 to {count - 1}")
        if self._moment.over:
            raise ValueError("the episode is over; begin another")
        self._before = self._moment
        self._moment = self._game.send(action)
        if not self._moment.over:  # on to the next choice: agents before this one move first
            self._moment = next(self._game)
        self._paid = self._moment.scores - self._before.scores
        return self.state()

    def state(self) -> dict[str, Any]:
        now = self._moment
        own = np.asarray(base_state(now.state).position)[0, self._agent]
        return {
            "picture": self._picture(),
            "cells": list(self.env.base.shape[-2:]),
            "own": own.tolist(),
            "agent": self._agent,
            "turn": now.turn,
            "scores": now.scores.tolist(),
            "paid": self._paid.tolist(),
            "over": now.over,
        }

    def _picture(self) -> str:
        """The world as a PNG; agents look where they went last."""
        states = [base_state(moment.state) for moment in (self._before, self._moment)]
        parts = ("layers", "position")
        both = {name: np.stack([np.asarray(getattr(s, name))[0] for s in states]) for name in parts}
        image = render.frames(self.env.base, SimpleNamespace(**both), tile=TILE, caption=False)[-1]
        file = io.BytesIO()
        image.save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode()
