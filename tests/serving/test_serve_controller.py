"""Requests on their way to an action: in turn, in batches, in time, and on record."""

import asyncio
import dataclasses
import json
import threading
import time
from itertools import pairwise

import numpy as np
import pytest

from serving.controlled import run
from worldloom.serving.audit import verify_log
from worldloom.serving.controller import Controller, Limits
from worldloom.serving.journal import Journal
from worldloom.serving.plants import Bucket, Refused
from worldloom.serving.replay import replay_log


class Slow:
    """A program that answers when it is let, and notes the sizes of its batches."""

    def __init__(self, program):
        self.program, self.sizes = program, []
        self.entered, self._may = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, obs, memory, key):
        self.sizes.append(len(obs))
        self.entered.release()
        assert self._may.acquire(timeout=600)
        return self.program(obs, memory, key)

    async def busy(self):
        """Waits until it has been asked once more."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=600)

    def let(self, times=1000):
        self._may.release(times)


def rows(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def log(tmp_path):
    return tmp_path / "audit.jsonl"


def test_requests_of_one_plant_follow_each_other_and_share_no_memory(bundle, log, usual):
    async def story(controller):
        obs = usual(6)
        return await asyncio.gather(*(controller.act("a", row) for row in obs))

    answers = run(bundle, log, story)
    records = [row for row in rows(log) if row["kind"] == "act"]
    assert [row["memory"]["step"] for row in records] == list(range(6))
    assert [answer["content"]["memory"]["step"] for answer in answers] == list(range(6))
    for before, after in pairwise(records):
        assert after["memory"] == before["after"]
        assert after["until"] != before["until"]  # never in one batch
    # The same plant by hand, one request after the other.
    memory = bundle.initial_memory()
    for row, answer in zip(usual(6), answers, strict=True):
        wanted = bundle.act(row, memory)
        assert answer["content"]["action"] == wanted.action.tolist()
        memory = wanted.memory


def test_plants_are_answered_together_in_padded_batches(bundle, log, usual):
    slow = Slow(bundle.control)
    served = dataclasses.replace(bundle, control=slow)

    async def story(controller):
        obs = usual(13)
        first = asyncio.create_task(controller.act("p0", obs[0]))
        await slow.busy()
        rest = [asyncio.create_task(controller.act(f"p{i}", obs[i])) for i in range(1, 13)]
        await asyncio.sleep(0.05)
        slow.let()
        return await asyncio.gather(first, *rest)

    answers = run(served, log, story)
    assert slow.sizes == [1, 16]
    assert [a["content"]["batch"] for a in answers] == [[1, 0], *([16, i] for i in range(12))]
    for i, row in enumerate(usual(13)):
        alone = bundle.act(row, bundle.initial_memory())
        assert np.allclose(answers[i]["content"]["action"], alone.action, atol=1e-6)
    assert replay_log(log, bundle).different == 0


def test_a_request_that_runs_out_of_time_gets_the_emergency_action(bundle, log, usual):
    slow = Slow(bundle.control)
    served = dataclasses.replace(bundle, control=slow)

    async def story(controller):
        late = await controller.act("a", usual(1)[0])  # is computed, but not in time
        queued = await controller.act("b", usual(1)[0])  # waits for that batch to end
        slow.let()
        controller.limits = dataclasses.replace(controller.limits, deadline=60.0)
        again = await controller.act("a", usual(1)[0])
        metrics = controller.metrics.render(controller.gauges(None))
        return late, queued, again, metrics

    late, queued, again, metrics = run(served, log, story, deadline=0.1)
    start = bundle.initial_memory()
    for answer in (late, queued):
        assert answer["kind"] == "emergency"
        assert answer["content"]["reason"] == "deadline"
        assert answer["content"]["action"] == start["fallback"].tolist()
    assert again["kind"] == "act"
    assert again["content"]["memory"] == late["content"]["after"]
    assert again["content"]["memory"]["emergencies"] == 1
    assert 'worldloom_emergencies_total{reason="deadline"} 2.0' in metrics
    kinds = [row["kind"] for row in rows(log)]
    assert sorted(kinds) == ["act", "emergency", "emergency", "start", "stop", "unused"]
    replayed = replay_log(log, bundle)
    assert (replayed.problem, replayed.replayed, replayed.different) == (None, 3, 0)


def test_who_has_waited_too_long_leaves_the_queue(bundle, log, usual):
    """However long a batch takes, what waits behind it is no more than what still has time."""
    slow = Slow(bundle.control)
    served = dataclasses.replace(bundle, control=slow)

    async def story(controller):
        obs = usual(4)
        busy = asyncio.create_task(controller.act("busy", obs[0]))
        await slow.busy()
        late = [await controller.act(f"p{i}", obs[i]) for i in range(1, 4)]
        waiting = len(controller._asked)
        slow.let()
        return await busy, late, waiting

    _, late, waiting = run(served, log, story, deadline=0.1)
    assert [answer["kind"] for answer in late] == ["emergency"] * 3
    assert waiting == 0
    assert slow.sizes == [1], "nothing that was late is computed"


def test_a_batch_goes_on_without_the_row_that_was_late(bundle, log, usual):
    slow = Slow(bundle.control)

    async def story(controller):
        first = asyncio.create_task(controller.act("x", usual(1)[0]))
        await slow.busy()
        pair = [asyncio.create_task(controller.act(p, usual(1)[0])) for p in ("a", "b")]
        await asyncio.sleep(0.05)
        impatient = controller._asked[0]
        slow.let(1)
        await first
        await slow.busy()  # with both of them
        controller._expire(impatient, "deadline")
        late = await pair[0]
        slow.let()
        return late, await pair[1], await controller.act("a", usual(1)[0])

    late, other, after = run(dataclasses.replace(bundle, control=slow), log, story)
    assert (late["kind"], other["kind"], other["content"]["batch"]) == ("emergency", "act", [16, 1])
    assert after["content"]["memory"] == late["content"]["after"]
    unused = [row for row in rows(log) if row["kind"] == "unused"]
    assert [(row["plant"], row["batch"]) for row in unused] == [("a", [16, 0])]
    found = replay_log(log, bundle)
    assert (found.problem, found.replayed, found.different) == (None, 4, 0)


def test_a_program_that_fails_leads_to_the_emergency_action(bundle, log, usual):
    def fail(*_):
        raise RuntimeError("the device is gone")

    async def story(controller):
        return await controller.act("a", usual(1)[0])

    answer = run(dataclasses.replace(bundle, control=fail), log, story)
    assert answer["kind"] == "emergency"
    assert answer["content"]["reason"] == "RuntimeError: the device is gone"


def fail_once(journal, monkeypatch):
    """The next thing that is written meets with a mistake of ours, and not with the disk."""
    real, failures = journal.append, iter([TypeError("no such number")])

    def append(records):
        for failure in failures:
            raise failure
        return real(records)

    monkeypatch.setattr(journal, "append", append)


def test_a_failure_after_a_batch_was_claimed_is_answered(bundle, log, usual, monkeypatch):
    async def story(controller):
        fail_once(controller.journal, monkeypatch)
        async with asyncio.timeout(10):
            return await controller.act("a", usual(1)[0]), await controller.act("a", usual(1)[0])

    first, second = run(bundle, log, story, deadline=60.0)
    assert first["content"]["reason"] == "TypeError: no such number"
    assert second["kind"] == "act"
    assert replay_log(log, bundle).different == 0


def test_a_change_that_fails_does_not_hold_up_the_next(bundle, log, monkeypatch):
    async def story(controller):
        fail_once(controller.journal, monkeypatch)
        async with asyncio.timeout(10):
            with pytest.raises(TypeError):
                await controller.override("a", None)
            return await controller.override("a", None)

    assert run(bundle, log, story)["kind"] == "override"
    assert verify_log(log).problem is None


def test_without_a_record_there_is_no_answer_and_no_new_memory(bundle, log, usual, monkeypatch):
    async def story(controller):
        await controller.act("a", usual(1)[0])
        real = controller.journal._write

        def full(data):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(controller.journal, "_write", full)
        for call in (controller.act("a", usual(1)[0]), controller.override("a", None)):
            with pytest.raises(Refused, match="No space left") as refusal:
                await call
            assert refusal.value.status == 503
        monkeypatch.setattr(controller.journal, "_write", real)
        return await controller.act("a", usual(1)[0])

    answer = run(bundle, log, story)
    assert answer["content"]["memory"]["step"] == 1
    assert verify_log(log).problem is None


def test_an_override_is_asked_for_until_it_is_cleared(bundle, log, usual):
    wanted = np.asarray([0.3, -0.2], np.float32)

    async def story(controller):
        await controller.override("a", wanted)
        during = await controller.act("a", usual(1)[0])
        await controller.override("a", None)
        after = await controller.act("a", usual(1)[0])
        return during["content"], after["content"]

    during, after = run(bundle, log, story)
    assert during["action"] == wanted.tolist()
    assert during["report"]["overridden"]
    assert not after["report"]["overridden"]
    assert replay_log(log, bundle).different == 0


def test_a_latched_stop_stays_until_it_is_reset(bundle, log, usual):
    blind = np.full(3, np.nan, np.float32)

    async def story(controller):
        for _ in range(3):
            await controller.act("a", blind)
        stopped = await controller.act("a", usual(1)[0])
        other = await controller.act("b", usual(1)[0])
        gauge = controller.gauges(None)["worldloom_plants_latched"]
        await controller.reset("a", None)
        free = await controller.act("a", usual(1)[0])
        return stopped["content"], other["content"], gauge, free["content"]

    stopped, other, gauge, free = run(bundle, log, story)
    assert stopped["report"]["latched"]
    assert stopped["report"]["emergency"]
    assert not other["report"]["emergency"]
    assert gauge == 1
    assert not free["report"]["emergency"]
    assert free["memory"]["step"] == 4
    assert replay_log(log, bundle).different == 0


def test_a_reset_with_the_actuators_place_starts_there(bundle, log):
    place = np.asarray([0.9, -0.9], np.float32)

    async def story(controller):
        await controller.reset("a", place)
        return await controller.act("a", np.full(3, np.nan, np.float32))

    content = run(bundle, log, story)["content"]
    assert content["memory"]["previous"] == place.tolist()
    assert content["action"][0] == pytest.approx(0.4)  # the rate counts from there
    assert replay_log(log, bundle).different == 0


def test_memories_are_recovered_from_the_log(bundle, log, usual):
    async def first(controller):
        for row in usual(3):
            await controller.act("a", row)
        await controller.override("b", np.zeros(2, np.float32))

    async def second(controller):
        return await asyncio.gather(
            controller.act("a", usual(1)[0]), controller.act("b", usual(1)[0])
        )

    run(bundle, log, first)
    a, b = run(bundle, log, second)
    assert a["content"]["memory"]["step"] == 3
    assert b["content"]["report"]["overridden"]
    found = replay_log(log, bundle)
    assert (found.problem, found.starts, found.different) == (None, 2, 0)


def test_closing_answers_what_was_asked_and_refuses_what_comes_after(bundle, log, usual):
    async def story():
        controller = Controller(bundle, Journal(log, "none"), Limits(deadline=5.0))
        await controller.open()
        for i in range(12):
            controller.plants.find(f"p{i}", time.monotonic()).known = True
        asked = [asyncio.create_task(controller.act(f"p{i}", usual(1)[0])) for i in range(12)]
        await asyncio.sleep(0)
        await controller.close()
        with pytest.raises(Refused) as refusal:
            await controller.act("p0", usual(1)[0])
        assert refusal.value.status == 503
        return await asyncio.gather(*asked)

    answers = asyncio.run(story())
    assert {answer["kind"] for answer in answers} == {"act"}
    assert rows(log)[-1]["kind"] == "stop"


def test_a_client_that_goes_away_leaves_its_plant_in_order(bundle, log, usual):
    slow = Slow(bundle.control)

    async def story(controller):
        gone = asyncio.create_task(controller.act("a", usual(1)[0]))
        await slow.busy()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        slow.let()
        return await controller.act("a", usual(1)[0])

    answer = run(dataclasses.replace(bundle, control=slow), log, story)
    assert answer["content"]["memory"]["step"] == 1
    assert verify_log(log).problem is None


def test_plants_and_waiting_requests_are_limited(bundle, log, usual):
    async def story(controller):
        await controller.act("a", usual(1)[0])
        with pytest.raises(Refused, match="1 plants are controlled already"):
            await controller.act("b", usual(1)[0])
        crowd = [controller.act("a", usual(1)[0]) for _ in range(9)]
        return await asyncio.gather(*crowd, return_exceptions=True)

    answers = run(bundle, log, story, known=["a"], plants=1, waiting=4)
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    assert [answer.status for answer in refused] == [503] * 5


def test_a_bucket_lets_a_burst_and_then_its_rate_pass():
    bucket = Bucket(rate=10.0, burst=3.0, left=3.0, at=0.0)
    assert [bucket.wait(0.0) > 0.0 for _ in range(4)] == [False, False, False, True]
    assert bucket.wait(0.05) == pytest.approx(0.05)
    assert bucket.wait(0.11) == 0.0
    assert bucket.wait(0.11) > 0.0


def test_observations_outside_of_the_training_data_are_flagged(bundle, log, usual):
    async def story(controller):
        strange = usual(1)[0] + np.float32([0.0, 60.0, 0.0])
        answers = [await controller.act("a", row) for row in (usual(1)[0], strange)]
        return [a["content"]["drift"] for a in answers], controller.metrics.render(
            controller.gauges(None)
        )

    drift, metrics = run(bundle, log, story)
    assert drift == [[], ["level"]]
    assert 'worldloom_drift_total{signal="level"} 1.0' in metrics
