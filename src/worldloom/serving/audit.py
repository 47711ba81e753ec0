"""Proof that a log is unchanged. Needs no jax: auditors have their own machines."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from worldloom.serving.records import FIRST, MOVES, Line
from worldloom.serving.segments import LogProblem, groups, read_head, segments_of


class Record(NamedTuple):
    """A record and what its line says about itself."""

    line: Line
    content: dict[str, Any]


@dataclass
class Verification:
    """What was found in a log, up to its end or its first problem."""

    path: str
    records: int = 0
    answers: int = 0
    filter_emergencies: int = 0  # answers of the filter that are emergency actions
    late_emergencies: int = 0  # answers without the filter: out of time, or a failure
    starts: int = 0
    segments: tuple[int, int] = (0, 0)  # the first and the last that were there
    follows: str | None = None  # the hash before the first record, where that is elsewhere
    head: str = FIRST  # the hash of the last good record: kept elsewhere, it vouches for the log
    head_file: int | None = None  # the record that FILE.head names; None: there is no such file
    policy: str | None = None
    plants: set[str] = field(default_factory=set)
    problem: str | None = None
    torn: bool = False


def verify_log(
    path: str | Path, *, policy: str | None = None, head: str | None = None
) -> Verification:
    """Checks every hash, every link, batches, and that each plant's memory goes on unbroken.

    Begins with the first segment that is there, or with the one that `path` names. The record that
    the log's head file names must be in it, if there is such a file. policy: the digest that
    answers must name. head: a hash that is known to have been in the log, which shows that nothing
    before it was rewritten and that it was not cut off.
    """
    result = Verification(str(path))
    walk(path, result, policy, head, lambda group: None)
    return result


def walk(
    path: str | Path,
    result: Verification,
    policy: str | None,
    head: str | None,
    visit: Callable[[list[Record]], None],
) -> None:
    """Notes in `result` what a log holds, group by group, each of which `visit` sees in turn.

    The first problem ends it. policy, head: those of `verify_log`.
    """
    if not segments_of(path):
        raise ValueError(f"{path}: there is no such log")
    latest: dict[str, Any] = {}  # plant -> its last record
    has_head, seq = head is None, 0
    try:
        known = read_head(path)  # before the log: a server that goes on writing moves both
        result.head_file = None if known is None else known.seq
        segments = segments_of(path)
        result.segments = (segments[0].number, segments[-1].number)
        for _, lines in groups(segments, known):
            seq = lines[0][0].seq
            group = [Record(line, json.loads(raw)) for line, raw in lines]
            _check_group(group, result, latest, policy)
            visit(group)
            result.records += len(group)
            result.head = group[-1].line.hash
            has_head = has_head or any(record.line.hash == head for record in group)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        about = repr(error)[:120]
        result.problem = f"record {seq} or one written with it lacks or garbles something: {about}"
        return
    except LogProblem as problem:
        result.problem, result.torn = str(problem), problem.torn
        return
    if not has_head:
        result.problem = f"no record has the hash {head}: the log was cut off or rewritten"


def _check_group(
    group: list[Record], result: Verification, latest: dict[str, Any], policy: str | None
) -> None:
    batch = [record for record in group if record.line.kind in ("act", "unused")]
    for i, (line, content) in enumerate(batch):
        size, row = content["batch"]
        if row != i or size != batch[0].content["batch"][0] or len(batch) > size:
            raise LogProblem(f"record {line.seq}: it cannot be row {row} of {size} in its batch")
    for line, content in group:
        named = content.get("policy")
        if line.kind == "start":
            result.starts += 1
            result.policy = named
        elif line.kind == "segment":
            if not result.records:  # what was before is elsewhere
                result.policy, result.follows = named, line.prev
            elif {n: r for n, r in latest.items() if "forgotten" not in r} != content["plants"]:
                raise LogProblem(
                    f"record {line.seq}: its snapshot is not what the records before left behind"
                )
            latest |= content["plants"]
            result.plants |= content["plants"].keys()
        expected = policy or result.policy
        if named != expected:
            raise LogProblem(
                f"record {line.seq}: it is of policy {str(named)[:12]}, not {str(expected)[:12]}"
            )
        if line.kind not in MOVES or line.plant is None:
            continue
        before = latest.get(line.plant)
        if before is not None and before["after"] != content["memory"]:
            raise LogProblem(
                f"record {line.seq}: the memory of plant {line.plant} is not what the record "
                "before left behind"
            )
        latest[line.plant] = content
        result.plants.add(line.plant)
        result.answers += line.kind in ("act", "emergency")
        result.filter_emergencies += line.kind == "act" and content["report"]["emergency"]
        result.late_emergencies += line.kind == "emergency"


def facts_of(result: Verification) -> dict[str, Any]:
    """What was found, as JSON can hold it."""
    facts = {name: value for name, value in vars(result).items() if name != "plants"}
    # The plants' newest memories are in the log; here only how many there are.
    return facts | {"plants": len(result.plants), "sound": result.problem is None}
