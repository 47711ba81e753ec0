"""ARC in the studio: the page of `worldloom arc play` behind a choice of sets and tasks."""

from collections.abc import Mapping
from typing import Any

from worldloom.core.names import shown, suggest
from worldloom.core.protocols import PureEnv
from worldloom.suites.arc.game import Game
from worldloom.suites.arc.games.studio import GameSession
from worldloom.suites.arc.games.world import GameWorld
from worldloom.suites.arc.play import ROUTES
from worldloom.suites.arc.problem import load_tasks
from worldloom.suites.arc.sources import available, load
from worldloom.suites.arc.tasks import TaskSet

OWN = "those of the run"


def session(target: Any) -> "ArcSession | GameSession":
    """What is played in a world of the suite, or in that of a run."""
    env = target if isinstance(target, PureEnv) else target.problem.env
    return GameSession(target) if isinstance(env.base, GameWorld) else ArcSession(target)


class ArcSession:
    """A `worldloom.training.suite.Session`.

    Messages: {"set": "arc-agi-1"}, {"task": "007bbfb7"}; {"ask": ["POST", "/api/step"], "body":
    {...}} is what the play page would ask of its own server, and gets the same answer.
    """

    def __init__(self, target: Any):
        self._sets: dict[str, TaskSet | None] = dict.fromkeys(available())  # None: not read yet
        first = "examples"
        if not isinstance(target, PureEnv):
            first, self._sets[OWN] = OWN, load_tasks(target.config.settings)
        self._take(first, None)

    def _tasks(self, name: Any) -> TaskSet:
        if not isinstance(name, str) or name not in self._sets:
            raise ValueError(f"there is no set {shown(name)}; {suggest(str(name), self._sets)}")
        tasks = self._sets[name] or load(name, split="all")
        self._sets[name] = tasks
        return tasks

    def _take(self, name: Any, task: Any) -> None:
        tasks = self._tasks(name)
        if task is not None and not (isinstance(task, str) and task in tasks):
            hint = suggest(str(task), tasks.ids)
            raise ValueError(f"{name} has no task {shown(task)}; {hint}")
        game = Game(tasks[tasks.ids[0] if task is None else task])
        game.warm_up()
        self._set, self._game = name, game

    def describe(self) -> dict[str, Any]:
        return {"sets": list(self._sets)}

    def reset(self, seed: int) -> dict[str, Any]:
        self._game.start(self._game.pair)
        return self.state()

    def act(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if "ask" in message:
            return self._answer(message)
        self._take(message.get("set", self._set), message.get("task"))
        return self.state()

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        asked, body = message["ask"], message.get("body") or {}
        route = ROUTES.get(tuple(asked)) if isinstance(asked, list) and len(asked) == 2 else None
        if route is None or not isinstance(body, dict):
            raise ValueError("ask must be a method and a path of the play page, body an object")
        return route(self._game, body) or self._game.view()

    def state(self) -> dict[str, Any]:
        tasks = list(self._tasks(self._set).ids)
        return {"set": self._set, "tasks": tasks, "task": self._game.task.name}
