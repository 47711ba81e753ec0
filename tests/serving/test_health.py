"""Loops that die, disks that are full, logs that are moved: what a server says and does then."""

import asyncio
import os
import shutil
import threading

import pytest

from serving.controlled import run
from worldloom.serving import health
from worldloom.serving.audit import verify_log
from worldloom.serving.health import Loop
from worldloom.serving.plants import Refused
from worldloom.serving.replay import replay_log


def factory(name):
    if name == "asyncio":
        return None
    return pytest.importorskip("uvloop").new_event_loop


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request):
    return factory(request.param)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "audit.jsonl"


def restarts(controller):
    text = controller.metrics.render(controller.gauges(None))
    return [line for line in text.splitlines() if line.startswith("worldloom_loop_restarts_total{")]


def test_a_deadline_that_is_past_when_its_turn_comes_kills_nothing(
    bundle, log, usual, loop_factory
):
    """uvloop's handle of a time that is past knows no time: that must not be asked for."""

    async def story(controller):
        obs = usual(1)[0]
        for _ in range(20):
            crowd = [controller.act(name, obs) for name in "abx" for _ in range(4)]
            await asyncio.gather(*crowd)
        assert await controller.problem() is None
        assert not restarts(controller)

    run(bundle, log, story, loop_factory=loop_factory, deadline=1e-6)
    found = replay_log(log, bundle)
    assert (found.problem, found.answers, found.different) == (None, 240, 0)


def failing(controller, monkeypatch, times):
    """Mistakes of ours in the loop that takes up batches."""
    real, left = controller._asked.__class__.popleft, [times]

    class Failing(type(controller._asked)):
        def popleft(self):
            if left[0] > 0:
                left[0] -= 1
                raise AttributeError("no such thing")
            return real(self)

    controller._asked = Failing()


def test_a_loop_that_fails_is_started_again(bundle, log, usual, loop_factory, monkeypatch, capsys):
    async def story(controller):
        failing(controller, monkeypatch, 2)
        answer = await controller.act("a", usual(1)[0])
        assert await controller.problem() is None
        return answer, restarts(controller)

    answer, counted = run(bundle, log, story, loop_factory=loop_factory)
    assert answer["kind"] == "act"
    assert counted == ['worldloom_loop_restarts_total{loop="batch"} 2.0']
    assert "AttributeError: no such thing" in capsys.readouterr().err


def test_a_loop_that_keeps_failing_ends_the_server(
    bundle, log, usual, loop_factory, monkeypatch, capsys
):
    monkeypatch.setattr(health, "PAUSE", 0.001)

    async def story(controller):
        told = asyncio.Event()
        controller.on_failure = told.set
        failing(controller, monkeypatch, 1000)
        with pytest.raises(Refused, match="the batch loop cannot be kept running: Attr") as refusal:
            await controller.act("a", usual(1)[0])
        assert refusal.value.status == 503
        async with asyncio.timeout(10):
            await told.wait()
        assert not controller.ready
        assert "the batch loop" in await controller.problem()
        with pytest.raises(Refused, match="the batch loop"):
            await controller.act("a", usual(1)[0])

    run(bundle, log, story, loop_factory=loop_factory, deadline=60.0)
    assert verify_log(log).problem is None
    capsys.readouterr()


def test_a_loop_that_is_cancelled_does_not_go_unnoticed():
    async def story():
        told = []
        loop = Loop("idle", asyncio.Event().wait, None, restarted=told.append, gave_up=told.append)
        await asyncio.sleep(0)
        assert loop.problem() is None
        loop._task.cancel()
        await asyncio.wait([loop._task])
        await asyncio.sleep(0)
        assert loop.problem() == "the idle loop has ended"
        return told

    assert asyncio.run(story()) == ["the idle loop cannot be kept running: it was cancelled"]


def test_a_loop_whose_work_does_not_end_is_stuck(monkeypatch):
    monkeypatch.setattr(health, "STUCK_SECONDS", -1.0)

    async def story():
        async def take():
            return None

        async def work(_):
            await asyncio.Event().wait()

        loop = Loop("busy", take, work, restarted=print, gave_up=print)
        await asyncio.sleep(0)
        said = loop.problem()
        await loop.close()
        return said

    assert asyncio.run(story()).startswith("the busy loop has been stuck")


# The log -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["renamed", "deleted", "replaced"])
def test_without_its_log_a_server_answers_nothing_and_says_so(bundle, log, usual, damage):
    async def story(controller):
        obs = usual(1)[0]
        await controller.act("a", obs)
        assert await controller.problem() is None
        kept = log.with_name("kept")
        os.link(log, kept)
        log.unlink()
        if damage == "renamed":
            kept.rename(log.with_name("elsewhere"))
        elif damage == "replaced":
            shutil.copy(kept, log)
        assert str(log) in await controller.problem()
        for request in (controller.act("a", obs), controller.override("a", None)):
            with pytest.raises(Refused, match="the audit log") as refusal:
                await request
            assert refusal.value.status == 503
        if damage == "renamed":  # and is put back
            log.with_name("elsewhere").rename(log)
            assert await controller.problem() is None
            return (await controller.act("a", obs))["content"]["memory"]["step"]
        return 1

    assert run(bundle, log, story) == 1
    if damage == "renamed":
        found = replay_log(log, bundle)
        assert (found.problem, found.different) == (None, 0)


@pytest.mark.parametrize("asked", [True, False], ids=["a probe comes first", "an action does"])
def test_a_disk_that_is_full_is_told_until_a_record_can_be_written(
    bundle, log, usual, monkeypatch, asked
):
    async def story(controller):
        def full(data):
            raise OSError(28, "No space left on device")

        obs = usual(1)[0]
        with monkeypatch.context() as patch:
            patch.setattr(controller.journal, "_write", full)
            with pytest.raises(Refused, match="No space left"):
                await controller.act("a", obs)
            assert "No space left" in await controller.problem()
            assert "No space left" in await controller.problem()
        assert not asked or await controller.problem() is None
        return await controller.act("a", obs)

    assert run(bundle, log, story)["content"]["memory"]["step"] == 0
    assert log.read_text().count('"kind":"resume"') == 1
    assert verify_log(log).problem is None


def test_a_disk_without_room_is_told_before_anything_fails(bundle, log, monkeypatch):
    async def story(controller):
        with monkeypatch.context() as patch:
            patch.setattr(health, "ROOM", 1 << 62)
            return await controller.problem()

    assert "is full" in run(bundle, log, story)


def test_a_log_that_does_not_answer_holds_nothing_up(bundle, log, monkeypatch):
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.01)
    go_on = threading.Event()

    async def story(controller):
        with monkeypatch.context() as patch:
            patch.setattr(controller.journal, "check", lambda: go_on.wait(20))
            told = [await controller.problem() for _ in range(2)]
        go_on.set()
        return told

    assert set(run(bundle, log, story)) == {"the audit log has not answered for 0.01 s"}
