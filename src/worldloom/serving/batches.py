"""Batches of requests for an action: computed, and written down, each in a thread of its own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from worldloom.serving.act_texts import ActTexts, Texts
from worldloom.serving.bundle import Bundle
from worldloom.serving.changes import Outcome, Settle
from worldloom.serving.health import Recorder
from worldloom.serving.plants import Plant, Refused
from worldloom.serving.program import Rows
from worldloom.serving.records import DTYPES, Encoded, as_json, memory_names, memory_numbers

Outcomes = Sequence[Outcome | Exception | None]


@dataclass(eq=False)
class Asked:
    """A request for an action, while it waits."""

    plant: Plant
    obs: np.ndarray
    key: np.ndarray
    memory: Rows
    text: bytes | None  # the memory as JSON, where it is known
    expires: float  # by the event loop's clock
    about: dict[str, Any]  # what its record says besides
    settle: Settle
    executed: np.ndarray | None = None  # (m,): by somebody else, whatever the answer is
    taken: bool = False  # by the batch or by the deadline: the first decides the answer


class Computed(NamedTuple):
    """A batch, and what the program and the filter say of it."""

    batch: list[Asked]
    memory: Rows  # after
    texts: Texts
    margins: np.ndarray  # (b, C): of what is executed


def compute(batch: list[Asked], bundle: Bundle, texts: ActTexts) -> Computed:
    """The actions of a batch, padded to one of the bundle's sizes, and what is to be said of it."""
    size = bundle.padded(len(batch))
    rows = batch + [batch[0]] * (size - len(batch))
    obs, key = _stacked([a.obs for a in rows]), _stacked([a.key for a in rows])
    memory = {
        name: _stacked([a.memory[name] for a in rows]).astype(DTYPES[name], copy=False)
        for name in memory_names(batch[0].memory)
    }
    out = bundle.control(obs, memory, key)
    count = len(batch)
    after = {name: np.array(x[:count]) for name, x in out["memory"].items()}
    for i, asked in enumerate(batch):
        if asked.executed is not None:
            own = {name: x[i] for name, x in after.items()}
            for name, x in bundle.after_executed(own, asked.executed).items():
                after[name][i] = x
    said = texts.of(
        [asked.plant.name for asked in batch],
        [asked.text or as_json(memory_numbers(asked.memory)) for asked in batch],
        obs[:count],
        key[:count],
        out | {"memory": after},
        time.time(),
    )
    return Computed(batch, after, said, out["report"]["margins_after"][:count])


def _stacked(rows: list[np.ndarray]) -> np.ndarray:
    """`np.stack`, which is slow for many small arrays."""
    if rows[0].ndim:
        return np.concatenate(rows).reshape(len(rows), -1)
    return np.asarray(rows)


def write(computed: Computed, recorder: Recorder, take: Callable[[Asked], bool]) -> Outcomes:
    """Writes the records of a batch; what came of each row, None where the deadline took it.

    take: whether nobody else has decided on the answer to a request.
    """
    batch, memory, texts, _ = computed
    mine = [take(asked) for asked in batch]
    try:
        records = []
        for asked, first, text, result in zip(
            batch, mine, texts.inputs, texts.results, strict=True
        ):
            about = b"," + as_json(asked.about)[1:-1] if asked.about else b""
            whole = b"%b%b%b}" % ((text, result, about) if first else (text, b"", b""))
            records.append(("act" if first else "unused", Encoded(asked.plant.name, whole)))
        written = recorder.write(records)
    except OSError as error:
        return [unwritten(error) if first else None for first in mine]
    except Exception:
        for asked, first in zip(batch, mine, strict=True):
            asked.taken = not first  # or nobody could answer with the emergency action
        raise
    return [
        {
            "kind": "act",
            "record": place._asdict(),
            "text": records[i][1].text,
            "answer": b'%b,"record":{"seq":%d,"hash":"%b"}}'
            % (texts.answers[i], place.seq, place.hash.encode()),
            "memory": {name: x[i] for name, x in memory.items()},
            "after": texts.after[i],
            "counted": texts.kinds[i],
            "drift": texts.drift[i],
        }
        if mine[i]
        else None
        for i, place in enumerate(written)
    ]


def unwritten(error: OSError) -> Refused:
    """What is said where no record could be written."""
    return Refused(503, f"the audit log: {error}", 1.0)
