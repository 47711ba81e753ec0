"""What happens to plants without the policy: emergency actions, overrides, resets."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from worldloom.serving.health import Recorder
from worldloom.serving.plants import Plant
from worldloom.serving.program import Rows
from worldloom.serving.records import memory_numbers

Outcome = dict[str, Any]  # kind and content of a record, where it is in the log, the memory after


@dataclass(eq=False)
class Change:
    """Something that happens to a plant without the policy: kind and content of its record.

    `after` computes the memory that it leaves; it runs in a thread.
    """

    kind: str
    plant: Plant
    content: dict[str, Any]
    after: Callable[[], Rows]
    done: "asyncio.Future[Outcome]"


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
        outcomes.append({"kind": change.kind, "content": content, "memory": after})
    made = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    try:
        places = recorder.write([(x["kind"], x["content"]) for x in made])
    except OSError as error:
        return [error] * len(changes)
    for outcome, place in zip(made, places, strict=True):
        outcome["record"] = place._asdict()
    return outcomes
