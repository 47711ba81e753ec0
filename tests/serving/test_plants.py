"""Plants of a server: how they begin, what is asked twice, and when they are forgotten."""

import asyncio
import dataclasses
import json
import time

import numpy as np
import pytest

from serving.controlled import run
from worldloom.serving import plants
from worldloom.serving.answers import act_answer
from worldloom.serving.audit import verify_log
from worldloom.serving.journal import Journal
from worldloom.serving.plants import KEYS, Refused
from worldloom.serving.replay import replay_log

PLACE = np.asarray([0.9, -0.9], np.float32)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "audit.jsonl"


def kinds(log):
    return [json.loads(line)["kind"] for line in log.read_text().splitlines()]


# Beginnings --------------------------------------------------------------------------------------


def test_a_plant_that_is_not_known_is_not_moved(bundle, log, usual):
    async def story(controller):
        for request in (
            controller.act("new", usual(1)[0]),
            controller.reset("new", None),
            controller.override("new", PLACE),
        ):
            with pytest.raises(Refused, match="plant new is not known") as refusal:
                await request
            assert refusal.value.status == 409
        return len(controller.plants)

    assert run(bundle, log, story, known=()) == 0, "a refused plant has no slot"
    assert kinds(log) == ["start", "stop"]


@pytest.mark.parametrize("by", ["act", "reset"])
def test_a_plant_begins_where_its_actuators_are(bundle, log, usual, by):
    async def story(controller):
        if by == "reset":
            await controller.reset("new", PLACE)
            return await controller.act("new", usual(1)[0])
        return await controller.act("new", usual(1)[0], PLACE)

    content = run(bundle, log, story, known=())["content"]
    assert content["memory"]["previous"] == PLACE.tolist()
    assert abs(content["action"][0] - PLACE[0]) <= 0.5 + 1e-5, "the rate counts from there"
    assert kinds(log) == ["start", "reset", "act", "stop"]
    assert replay_log(log, bundle).different == 0


def test_of_a_known_plant_the_memory_counts(bundle, log, usual):
    async def story(controller):
        return await controller.act("a", usual(1)[0], PLACE)

    content = run(bundle, log, story)["content"]
    assert content["memory"]["previous"] == bundle.initial_memory()["previous"].tolist()


# The same request again --------------------------------------------------------------------------


def test_a_request_that_is_repeated_is_carried_out_once(bundle, log, usual):
    async def story(controller):
        obs = usual(2)
        together = await asyncio.gather(*(controller.act("a", obs[0], None, "k1") for _ in "1234"))
        other = await controller.act("a", obs[1], None, "k2")
        again = await controller.act("a", obs[0], None, "k1")
        with pytest.raises(Refused, match="used for another observation") as refusal:
            await controller.act("a", obs[1], None, "k1")
        assert refusal.value.status == 409
        elsewhere = await controller.act("b", obs[0], None, "k1")
        counted = controller.metrics.render(controller.gauges(None))
        return together, other, again, elsewhere, counted

    together, other, again, elsewhere, counted = run(bundle, log, story)
    for answer in (*together[1:], again):
        assert answer["record"] == together[0]["record"]
        assert act_answer(bundle, answer["kind"], answer["content"]) == act_answer(
            bundle, together[0]["kind"], together[0]["content"]
        )
    assert other["content"]["memory"]["step"] == 1
    assert elsewhere["content"]["plant"] == "b"
    assert kinds(log).count("act") == 3
    assert 'worldloom_answers_total{kind="policy"} 3.0' in counted
    assert replay_log(log, bundle).different == 0


def test_the_last_repeated_request_is_known_after_a_restart(bundle, log, usual):
    async def story(controller):
        return await controller.act("a", usual(1)[0], None, "k1")

    first = run(bundle, log, story)
    assert run(bundle, log, story, known=())["record"] == first["record"]
    assert kinds(log).count("act") == 1


def test_an_emergency_action_is_repeated_like_any_other(bundle, log, usual):
    def fail(*_):
        raise RuntimeError("the device is gone")

    async def story(controller):
        return [await controller.act("a", usual(1)[0], None, "k") for _ in "12"]

    first, second = run(dataclasses.replace(bundle, control=fail), log, story)
    assert (first["kind"], first["record"]) == ("emergency", second["record"])


def test_a_request_without_a_record_is_carried_out_when_it_is_repeated(
    bundle, log, usual, monkeypatch
):
    async def story(controller):
        def full(data):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(controller.journal, "_write", full)
            with pytest.raises(Refused, match="No space left"):
                await controller.act("a", usual(1)[0], None, "k")
        return await controller.act("a", usual(1)[0], None, "k")

    assert run(bundle, log, story)["content"]["memory"]["step"] == 0


def test_a_plant_remembers_a_few_keys(bundle, log, usual):
    async def story(controller):
        obs = usual(1)[0]
        for number in range(KEYS + 1):
            await controller.act("a", obs, None, str(number))
        newest = await controller.act("a", obs, None, str(KEYS))
        return newest, await controller.act("a", obs, None, "0")

    newest, oldest = run(bundle, log, story)
    assert newest["content"]["memory"]["step"] == KEYS
    assert oldest["content"]["memory"]["step"] == KEYS + 1


# Silence -----------------------------------------------------------------------------------------


def test_a_silent_plant_gives_its_slot_to_another(bundle, log, usual):
    async def story(controller):
        obs = usual(1)[0]
        await controller.act("a", obs)
        with pytest.raises(Refused, match="2 plants are controlled already"):
            await controller.act("c", obs, PLACE)
        controller.plants.find("a", time.monotonic()).heard -= 1e6
        await controller.act("c", obs, PLACE)
        assert len(controller.plants) == 2
        controller.plants.find("c", time.monotonic()).heard -= 1e6
        with pytest.raises(Refused, match="2 plants are controlled already"):
            await controller.act("a", obs)  # who is refused anyway takes nobody's slot
        return await controller.act("a", obs, PLACE)

    content = run(bundle, log, story, known=["a", "b"], plants=2)["content"]
    assert content["memory"]["previous"] == PLACE.tolist()
    found = replay_log(log, bundle)
    assert (found.problem, found.different) == (None, 0), "also the log knows that it began anew"


def test_a_plant_that_was_forgotten_stays_so_after_a_restart(bundle, log, usual):
    async def first(controller):
        await controller.act("a", usual(1)[0])
        controller.plants.find("a", time.monotonic()).heard -= 1e6
        await controller.act("b", usual(1)[0], PLACE)

    async def second(controller):
        with pytest.raises(Refused, match="plant a is not known"):
            await controller.act("a", usual(1)[0])
        return len(controller.plants)

    run(bundle, log, first, known=["a"], plants=1)
    assert run(bundle, log, second, known=()) == 1


def test_stops_and_overrides_are_never_forgotten(bundle, log, usual):
    async def story(controller):
        for _ in range(3):
            await controller.act("a", np.full(3, np.nan, np.float32))
        await controller.override("b", PLACE)
        for name in "ab":
            controller.plants.find(name, time.monotonic()).heard -= 1e6
        with pytest.raises(Refused, match="2 plants are controlled already"):
            await controller.act("c", usual(1)[0], PLACE)
        return await controller.act("a", usual(1)[0])

    assert run(bundle, log, story, known=["a", "b"], plants=2)["content"]["report"]["latched"]


def test_a_plant_that_asks_while_it_is_forgotten_begins_anew(bundle, log, usual):
    async def story(controller):
        obs = usual(1)[0]
        await controller.act("a", obs)
        controller.plants.find("a", time.monotonic()).heard -= 1e6
        other = asyncio.create_task(controller.act("b", obs, PLACE))
        await asyncio.sleep(0)  # it is being forgotten
        back = await controller.act("a", obs, PLACE)
        await asyncio.gather(other, return_exceptions=True)
        return back

    content = run(bundle, log, story, known=["a"], plants=1)["content"]
    assert content["memory"]["previous"] == PLACE.tolist()
    assert verify_log(log).problem is None


def test_recovered_plants_are_not_silent_yet(bundle, log, usual):
    async def story(controller):
        await controller.act("a", usual(1)[0])

    async def again(controller):
        with pytest.raises(Refused, match="1 plants are controlled already"):
            await controller.act("b", usual(1)[0], PLACE)

    run(bundle, log, story, known=["a"])
    run(bundle, log, again, known=(), plants=1, forget_after=3600.0)
    assert Journal(log, "none").recovered.latest.keys() == {"a"}


def test_a_restart_does_not_make_a_silent_plant_speak(bundle, log, usual, monkeypatch):
    async def story(controller):
        await controller.act("a", usual(1)[0])

    async def again(controller):
        await controller.act("b", usual(1)[0], PLACE)
        return len(controller.plants)

    run(bundle, log, story, known=["a"])
    now = time.time()
    monkeypatch.setattr(plants.time, "time", lambda: now + 3601.0)
    assert run(bundle, log, again, known=(), plants=1, forget_after=3600.0) == 1


@pytest.mark.parametrize("field", ["after", "time", "step", "previous"])
def test_a_last_record_that_is_garbled_is_one_line(bundle, log, usual, field):
    async def story(controller):
        await controller.act("a", usual(1)[0])

    run(bundle, log, story, known=["a"])
    latest = json.loads(Journal(log, "none").recovered.latest["a"])
    if field in latest:
        del latest[field]
    else:
        latest["after"][field] = [0.0] * 7
    known = plants.Plants(bundle, plants.Limits())
    with pytest.raises(ValueError, match=r"record of plant a lacks or garbles .* audit verify"):
        known.recover({"a": json.dumps(latest).encode()})
