"""A person plays one agent of a gridworld in the terminal; the others play by themselves.

A turn has the same parts, order and keys as `worldloom.core.rollout.play_turn`, so that a person
sees what an agent in that seat would see: with interleaved turns, the moves of the agents before.
"""

import functools
import os
import select
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from worldloom.core import draws, stack
from worldloom.core.protocols import PureEnv
from worldloom.core.rollout import turn_keys
from worldloom.core.transforms import base_state, batch
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.networks import concatenate
from worldloom.replay import dataset_files
from worldloom.replay.dataset import from_columns
from worldloom.suites.grid import views
from worldloom.suites.grid.world import GridWorld
from worldloom.training.run import check_no_memory

MOVE_KEYS = {"w": 0, "up": 0, "s": 1, "down": 1, "a": 2, "left": 2, "d": 3, "right": 3}
QUIT_KEYS = ("q", "")  # an empty key is the end of the input
_ARROWS = {b"A": "up", b"B": "down", b"C": "right", b"D": "left"}

# others(i, obs (1, ...), key) -> action (1,): how agent i plays if no person does
Others = Callable[[int, PyTree, Key], Array]


@dataclass(frozen=True)
class Game:
    """How a game went."""

    scores: np.ndarray  # (A,)
    turns: int  # turns played to their end
    finished: bool  # False if the person left


@dataclass(frozen=True)
class Moment:
    """What a person sees of an episode: before each choice, and at the end of each turn."""

    state: PyTree  # of the environment, in a batch of one
    scores: np.ndarray  # (A,)
    turn: int  # turns played to their end
    chooses: bool
    terminated: bool = False
    over: bool = False


def check_seat(env: PureEnv, agent_index: int) -> None:
    """Raises ValueError where no person can play that agent."""
    if not isinstance(env.base, GridWorld):
        raise ValueError(f"human play: {env.spec.name} is not a gridworld; choose one that is")
    if not 0 <= agent_index < env.spec.num_agents:
        raise ValueError(
            f"human play: there is no agent {agent_index} in {env.spec.name}; "
            f"choose 0 to {env.spec.num_agents - 1}"
        )


def moments(
    env: PureEnv, agent_index: int, key: Key, others: Others | None = None
) -> Generator[Moment, int, None]:
    """One episode. Where a moment `chooses`, send the action of agent `agent_index`."""
    check_seat(env, agent_index)
    num_agents = env.spec.num_agents
    others = others or _random(len(env.base.actions))
    parts = _compiled(env)
    reset_key, play_key = draws.split(key)
    state, _ = parts.reset(reset_key)
    scores, turn, over = np.zeros(num_agents), 0, False
    while not over:
        agent_keys, world_key = turn_keys(jax.random.fold_in(play_key, turn), num_agents)
        apply_key, end_key = draws.split(world_key)
        actions = []
        for i, (choose_key, act_key) in enumerate(draws.split(k) for k in agent_keys):
            if i == agent_index:
                action = jnp.array([(yield Moment(state, scores, turn, True))], jnp.int32)
            else:
                obs = parts.observe_agent(state, i)
                action = jnp.asarray(others(i, obs, choose_key), jnp.int32)
            if env.spec.interleaved:
                state, rewards = parts.apply_agent(act_key, state, i, action)
                scores = scores + np.asarray(rewards)[0]
            actions.append(action)
        if not env.spec.interleaved:
            state, rewards = parts.apply_all(apply_key, state, jnp.stack(actions, axis=1))
            scores = scores + np.asarray(rewards)[0]
        state, terminated, truncated = parts.end_turn(end_key, state)
        over, turn = bool(terminated[0] | truncated[0]), turn + 1
        yield Moment(state, scores, turn, False, bool(terminated[0]), over)


def play(
    env: PureEnv,
    agent_index: int,
    key: Key,
    read_key: Callable[[], str],
    write: Callable[[Text], Any],
    others: Others | None = None,
    record: str | Path | None = None,
) -> Game:
    """One episode in which agent `agent_index` does what `read_key` says.

    `read_key` returns a character, "up", "down", "left" or "right" for an arrow, or "" when
    there is no more input; `write` shows a text, the whole screen each time. Keys: w a s d or
    arrows move, 1 and on are the world's own actions, q leaves. What the person saw and did is
    added to the dataset `record`, an npz file that offline algorithms such as bc learn from.
    """
    check_seat(env, agent_index)
    world, keys_of_actions = env.base, action_keys(env.base)
    rows: list[dict[str, Any]] = []
    earlier = None
    if record is not None and Path(record).exists():
        earlier = dataset_files.read_npz(record).columns
    shown = before = 0.0

    def screen(moment: Moment, line: str) -> Text:
        picture = draw(world, jax.tree.map(lambda x: x[0], base_state(moment.state)), agent_index)
        return Text("\n").join([picture, Text(line), Text(help_line(world))])

    def ask(moment: Moment) -> int | None:
        """The person's action; None to leave."""
        mine, all_ = moment.scores[agent_index], moment.scores.sum()
        of = f" of {env.spec.horizon}" if env.spec.horizon else ""
        line = f"turn {moment.turn + 1}{of} | you are agent {agent_index} | "
        line += f"your score {mine:g} ({mine - shown:+g}) | all agents {all_:g}"
        write(screen(moment, line))
        while True:
            pressed = read_key()
            if pressed in QUIT_KEYS:
                return None
            if pressed in keys_of_actions:
                return keys_of_actions[pressed]
            write(screen(moment, f"{line}\n{pressed!r} does nothing here"))

    def features(moment: Moment) -> np.ndarray:
        obs = _compiled(env).observe_agent(moment.state, agent_index)
        return np.asarray(concatenate(obs))[0]

    game = moments(env, agent_index, key, others)
    moment = next(game)
    while not moment.over:
        action = ask(moment)
        if action is None:
            break
        shown = moment.scores[agent_index]
        if record is not None:
            obs = features(moment)
            if rows:  # agents before it may have moved since the last turn ended
                rows[-1]["next_obs"] = obs
            rows.append({"obs": obs, "action": np.asarray([action], np.int32)})
        moment = game.send(action)
        if record is not None:
            reward = moment.scores[agent_index] - before
            after = {"next_obs": features(moment), "reward": reward, "truncated": False}
            rows[-1] |= after | {"terminated": moment.terminated}
        before = moment.scores[agent_index]
        if not moment.over:
            moment = next(game)
    if record is not None and rows:
        _save(Path(record), env.spec.name, rows, earlier)
    scores, turn = moment.scores, moment.turn
    ending = "the end" if moment.over else "you left"
    each = ", ".join(f"agent {i}: {score:g}" for i, score in enumerate(scores))
    mine = f"you scored {scores[agent_index]:g}"
    last = f"{ending} after {turn} turns | {mine} | {each} | together {scores.sum():g}"
    write(screen(moment, last))
    return Game(scores, turn, moment.over)


def action_keys(world: GridWorld) -> dict[str, int]:
    """Keys, and the actions that they stand for."""
    own = range(len(world.actions) - 4)
    return MOVE_KEYS | {str(number + 1): 4 + number for number in own}


def _save(
    path: Path, name: str, rows: list[dict[str, Any]], earlier: dict[str, np.ndarray] | None
) -> None:
    """Adds the person's transitions to those of a file; an episode that did not end was cut."""
    rows[-1]["truncated"] = not rows[-1]["terminated"]
    columns = {column: np.stack([row[column] for row in rows]) for column in rows[0]}
    if earlier is not None:
        if earlier["obs"].shape[1] != columns["obs"].shape[1]:
            raise ValueError(
                f"{path} holds observations of {earlier['obs'].shape[1]} numbers, "
                f"and those of {name} have {columns['obs'].shape[1]}; name another file"
            )
        columns = {n: np.concatenate([earlier[n], new]) for n, new in columns.items()}
    data = from_columns(**columns, name=f"{name}-human", provenance=(("env", name),))
    dataset_files.save(data, path, force=True)


def draw(world: GridWorld, state: PyTree, agent_index: int) -> Text:
    """The map in the colours of its kinds; the person's own agent stands out."""
    own = tuple(int(x) for x in state.position[agent_index])
    lines = []
    for row, line in enumerate(views.cells(world, state)):
        text = Text()
        for column, (glyph, color) in enumerate(line):
            # A nearly black thing would not be seen on a dark terminal: leave it to the terminal.
            ink = Color.from_rgb(*color) if max(color) >= 64 else None
            mine = (row, column) == own
            text.append(glyph, Style(color=ink, bold=mine, reverse=mine, dim=ink is None))
        lines.append(text)
    return Text("\n").join(lines)


def help_line(world: GridWorld) -> str:
    """Which key does what."""
    own = [f"{number} {name}" for number, name in enumerate(world.actions[4:], start=1)]
    return " | ".join(["w a s d or arrows move", *own, "q leaves"])


@contextmanager
def terminal_keys(stream: TextIO | None = None) -> Iterator[Callable[[], str]]:
    """A function that waits for one key of a terminal, without Enter and without echo.

    The terminal is put back as it was on leaving, also by an exception. Ctrl-C still interrupts.
    """
    stream = sys.stdin if stream is None else stream
    if stream is None or not stream.isatty():
        raise ValueError(
            "human play: standard input is not a terminal; start it in one, without a pipe"
        )
    try:
        import termios
        import tty
    except ImportError:
        raise ValueError(
            "human play: this system has no POSIX terminal; use Linux, macOS or WSL"
        ) from None
    handle = stream.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)
        yield lambda: _read_key(handle)
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _read_key(handle: int) -> str:
    first = os.read(handle, 1)
    if first in (b"", b"\x04"):  # closed, or Ctrl-D
        return ""
    if first != b"\x1b":
        return first.decode("utf-8", "replace").lower()
    # An arrow is ESC [ or ESC O and a letter, sent at once; ESC alone is followed by nothing.
    rest = b""
    while len(rest) < 8 and select.select([handle], [], [], 0.05)[0]:
        rest += os.read(handle, 1)
        if rest[-1:].isalpha() and rest != b"O":
            break
    return _ARROWS.get(rest[-1:], "escape") if rest[:1] in (b"[", b"O") else "escape"


def play_run(target: Any, seed: int = 0, record: str | Path | None = None) -> Game:
    """Lets a person play agent 0 of a world, or of a run, whose agents then play the others.

    In this terminal. record: an npz file to which what the person did is added.
    """
    is_world, console = isinstance(target, PureEnv), Console()
    env, others = (target, None) if is_world else (target.problem.env, trained(target))

    def show(text: Text) -> None:
        console.clear()
        console.print(text, soft_wrap=True)

    with terminal_keys() as read_key:
        return play(env, 0, jax.random.key(seed), read_key, show, others, record)


@functools.lru_cache(maxsize=8)
def _compiled(env: PureEnv) -> SimpleNamespace:
    """The parts of a turn, each compiled once for each world: the next game starts at once."""
    # A batch of one: observations have the shape that agents are used to.
    one, params = batch(env, 1), env.default_params()
    parts = ("reset", "observe_agent", "apply_agent", "apply_all", "end_turn")

    def with_params(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(lambda *args: function(*args, params))

    return SimpleNamespace(**{name: with_params(getattr(one, name)) for name in parts})


def trained(run: Any) -> Others:
    """The agents of a run, without exploration."""
    check_no_memory(run, "played with")
    agents, act = stack.unstack(run.agents), jax.jit(run.trainer.act)
    return lambda i, obs, key: act(agents[i], obs, key, explore=0.0)


def _random(num_actions: int) -> Others:
    choose = jax.jit(lambda key: draws.integers(key, (1,), num_actions))
    return lambda i, obs, key: choose(key)
