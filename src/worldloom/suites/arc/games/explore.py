"""Graph exploration: an agent that learns nothing but where actions lead, level by level.

It keeps a graph of the boards that it has seen. Where an action is untried, it tries one; else it
goes the shortest way to the nearest board with an untried action. Published as a strong baseline
for ARC-AGI-3, where learning agents solved fewer levels.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import jax
import numpy as np

from worldloom.core.protocols import PureEnv
from worldloom.suites.arc.games import camera
from worldloom.suites.arc.games.evaluate import GameScores

NAME = "graph exploration"


@dataclass
class Graph:
    """What is known of one level: board -> {action: the board that it led to}.

    Actions that are not tried yet are kept in the order in which they will be.
    """

    num_actions: int
    order: np.random.Generator
    led: dict[bytes, dict[int, bytes]] = field(default_factory=dict)
    untried: dict[bytes, list[int]] = field(default_factory=dict)

    def see(self, board: bytes) -> None:
        """Adds a board if it is new."""
        if board not in self.led:
            self.led[board] = {}
            self.untried[board] = self.order.permutation(self.num_actions).tolist()

    def record(self, board: bytes, action: int, after: bytes) -> None:
        """An action led from one board to another."""
        self.led[board][action] = after
        self.see(after)

    def choose(self, board: bytes) -> int:
        """An action that leads to something untried by the shortest way; any where all is tried."""
        if self.untried[board]:
            return self.untried[board].pop()
        came: dict[bytes, int] = {board: -1}  # the first action of the way to each board
        queue = deque([board])
        while queue:
            now = queue.popleft()
            for action, after in self.led[now].items():
                if after in came:
                    continue
                came[after] = action if now == board else came[now]
                if self.untried[after]:
                    return came[after]
                queue.append(after)
        return int(self.order.integers(self.num_actions))


def explore(env: PureEnv, episodes: int = 1, seed: int = 0) -> GameScores:
    """Scores of graph exploration in whole episodes of a game, which differ in what is tried first.

    What it knows of a level it keeps when it loses a life there, and forgets with the episode.
    """
    began, params = time.perf_counter(), env.default_params()
    step, reset = jax.jit(env.step), jax.jit(env.reset)
    # Whatever an agent sees: a frame shows how many actions are left, which makes no board a new
    # one.
    cells = jax.jit(partial(camera.cells, env.base.game, params.levels))
    key = jax.random.key(seed)
    solved, spent = [], []
    for episode in range(episodes):
        order = np.random.default_rng([seed, episode])
        state, now = reset(key, params)
        graphs: dict[int, Graph] = {}
        while not (now.terminated or now.truncated):
            level, lives = int(state.level), int(state.lives)
            board = np.asarray(cells(state)).tobytes()
            graph = graphs.setdefault(level, Graph(env.spec.action.n, order))  # pyright: ignore[reportAttributeAccessIssue]
            graph.see(board)
            action = graph.choose(board)
            state, now = step(key, state, np.int32(action), params)
            # What comes after a level, or a lost life, is not where the action led.
            if (int(state.level), int(state.lives)) == (level, lives):
                graph.record(board, action, np.asarray(cells(state)).tobytes())
        solved.append(int(now.info.solved))
        spent.append(np.asarray(now.info.spent))
    return GameScores(
        solved=np.array(solved),
        spent=np.array(spent),
        baseline=np.asarray(params.levels.baseline),
        seconds=time.perf_counter() - began,
    )
