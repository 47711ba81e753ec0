"""What happens to plants without the policy: emergency actions, overrides, resets."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worldloom.serving.health import Recorder
from worldloom.serving.plants import Plant
from worldloom.serving.program import Rows
from worldloom.serving.records import memory_numbers, numbers

Outcome = dict[str, Any]  # kind and content of a record, where it is in the log, the memory after
Settle = Callable[[Outcome | Exception], None]  # hears what came of a request


@dataclass(eq=False)
class Change:
    """Something that happens to a plant without the policy: kind and content of its record.

    `after` computes the memory that it leaves; it runs in a thread.
    """

    kind: str
    plant: Plant
    content: dict[str, Any]
    after: Callable[[], Rows]
    settle: Settle


def write_changes(changes: Sequence[Change], recorder: Recorder) -> list[Outcome | Exception]:
    """Carries changes of different plants out and writes their records as one group."""
    outcomes: list[Outcome | Exception] = []
    for change in changes:
        try:
            after = change.after()
        except Exception as error:
            outcomes.append(error)
            continue
        about = {
            "plant": change.plant.name,
            "time": time.time(),
            **recorder.about,
            "memory": memory_numbers(change.plant.memory),
        }
        content = about | change.content | {"after": memory_numbers(after)}
        outcome = {"kind": change.kind, "content": content, "memory": after}
        if change.kind == "emergency":
            counted = "deadline" if content["reason"] == "deadline" else "failure"
            outcome |= {"counted": counted, "drift": []}
        outcomes.append(outcome)
    made = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    try:
        places = recorder.write([(x["kind"], x["content"]) for x in made])
    except OSError as error:
        return [error] * len(changes)
    for outcome, place in zip(made, places, strict=True):
        outcome["record"] = place._asdict()
    return outcomes


def resolve(done: "asyncio.Future[Outcome]", outcome: Outcome | Exception) -> None:
    """Tells who awaits a request what came of it."""
    if done.done():
        return
    if isinstance(outcome, Exception):
        done.set_exception(outcome)
    else:
        done.set_result(outcome)


def advance(plant: Plant, outcome: Outcome) -> Outcome:
    """Lets a plant go on from what is on record now."""
    plant.memory, plant.known = outcome.pop("memory"), True
    plant.text = outcome.pop("after", None)
    return outcome


def read_outcome(outcome: Outcome) -> Outcome:
    """Kind, content and place of the record that a request led to."""
    content = json.loads(outcome["text"]) if "text" in outcome else outcome["content"]
    return {"record": outcome["record"], "kind": outcome["kind"], "content": content}


def or_none(action: np.ndarray | None) -> Any:
    """An action (m,) as JSON can hold it, if there is one."""
    return None if action is None else numbers(action)
