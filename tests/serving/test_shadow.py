"""Shadow mode: the operator controls, the policy is compared, and taking over makes no jump."""

import json

import numpy as np
import pytest

pytest.importorskip("fastapi")

from serving.controlled import run
from worldloom.cli.audit import command
from worldloom.serving.audit import verify_log
from worldloom.serving.controller import Controller, Limits
from worldloom.serving.journal import Journal
from worldloom.serving.openapi import describe
from worldloom.serving.plants import Refused
from worldloom.serving.replay import replay_log
from worldloom.serving.shadow import shadow_report

HOME = {"valve": 50.0, "pump": 750.0}
DONE = np.asarray([0.8, -0.25], np.float32)  # by the operator, whatever the filter thinks of it


@pytest.fixture
def log(tmp_path):
    return tmp_path / "audit.jsonl"


def shadowed(bundle, log, story, **limits):
    return run(bundle, log, story, shadow=True, **limits)


def test_memories_go_on_from_what_the_operator_did(bundle, log, usual):
    async def story(controller):
        return [await controller.act("a", row, executed=DONE) for row in usual(3)]

    answers = [answer["content"] for answer in shadowed(bundle, log, story)]
    for content in answers:
        assert content["executed"] == DONE.tolist()
        assert content["after"]["previous"] == DONE.tolist()
        assert not content["after"]["latched"]
    assert answers[1]["memory"] == answers[0]["after"]
    assert [content["after"]["step"] for content in answers] == [1, 2, 3]
    # What the policy says is what it would say there.
    wanted = bundle.act(usual(3)[1], bundle.initial_memory(DONE) | {"step": np.int32(1)})
    assert answers[1]["action"] == wanted.action.tolist()
    assert answers[1]["proposed"] == wanted.proposed.tolist()
    found = replay_log(log, bundle)
    assert (found.problem, found.replayed, found.different) == (None, 3, 0)


def test_a_wrong_memory_does_not_come_out_again(bundle, log, usual):
    """That what was executed is compared: a bundle that remembers otherwise is found out."""

    async def story(controller):
        await controller.act("a", usual(1)[0], executed=DONE)

    shadowed(bundle, log, story)
    real = type(bundle).after_executed
    try:
        type(bundle).after_executed = lambda self, memory, action: real(self, memory, -action)
        assert replay_log(log, bundle).different == 1
    finally:
        type(bundle).after_executed = real


def test_an_override_says_what_is_executed(bundle, log, usual):
    async def story(controller):
        with pytest.raises(Refused, match="say what the operator did") as refusal:
            await controller.act("a", usual(1)[0])
        assert refusal.value.status == 409
        await controller.override("a", DONE)
        return [(await controller.act("a", usual(1)[0]))["content"] for _ in range(2)]

    for content in shadowed(bundle, log, story):
        assert content["executed"] == DONE.tolist()
        assert content["after"]["overriding"]
    assert replay_log(log, bundle).different == 0


def test_blind_or_late_nothing_is_stopped(bundle, log):
    blind = np.full(3, np.nan, np.float32)

    async def story(controller):
        seen = [(await controller.act("a", blind, executed=DONE)) for _ in range(5)]
        controller.limits = Limits(deadline=1e-6)
        return seen, await controller.act("a", blind, executed=DONE)

    seen, late = shadowed(bundle, log, story)
    assert all(answer["content"]["report"]["emergency"] for answer in seen)
    assert late["kind"] == "emergency"
    for answer in (*seen, late):
        assert not answer["content"]["after"]["latched"]
        assert answer["content"]["after"]["previous"] == DONE.tolist()
    assert replay_log(log, bundle).different == 0


def test_taking_over_begins_where_the_operator_left_off(bundle, log, usual):
    """Without a jump: the rate of the valve counts from the operator's last action."""

    async def shadow(controller):
        for row in usual(2):
            await controller.act("a", row, executed=DONE)

    async def control(controller):
        return (await controller.act("a", usual(1)[0]))["content"]

    shadowed(bundle, log, shadow)
    content = run(bundle, log, control, known=())
    assert content["memory"]["previous"] == DONE.tolist()
    assert "executed" not in content
    assert abs(content["action"][0] - DONE[0]) <= 0.5 + 1e-6
    assert content["memory"]["step"] == 2
    found = replay_log(log, bundle)
    assert (found.problem, found.starts, found.different) == (None, 2, 0)


def test_the_difference_is_counted_and_reported(bundle, log, usual, capsys):
    async def story(controller):
        for row in usual(4):
            await controller.act("a", row, executed=DONE)
        return controller.metrics.render(controller.gauges(None))

    metrics = shadowed(bundle, log, story)
    assert "worldloom_shadow_answers_total 4.0" in metrics
    assert verify_log(log).answers == 4
    records = [row for row in map(json.loads, log.read_text().splitlines()) if "executed" in row]
    valve = np.asarray([50.0 * (row["proposed"][0] - row["executed"][0]) for row in records])
    _, found = shadow_report(log)
    told = found["actuators"][0]
    assert (told["name"], told["unit"], told["compared"]) == ("valve", "%", 4)
    assert told["mean"] == pytest.approx(valve.mean())
    assert told["largest"] == pytest.approx(np.abs(valve).max())
    assert told["share"] == pytest.approx(np.abs(valve).mean() / 100.0)
    counted = float(metrics.split('difference_total{actuator="valve"} ')[1].split()[0])
    assert counted == pytest.approx(np.abs(valve).sum() / 100.0)
    assert command(["shadow", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shadow"]["answers"] == 4
    assert command(["shadow", str(log)]) == 0
    assert "valve" in capsys.readouterr().out


def test_a_log_without_shadow_mode_is_named(bundle, log, usual):
    async def story(controller):
        await controller.act("a", usual(1)[0])

    run(bundle, log, story)
    with pytest.raises(ValueError, match="nothing was answered in shadow mode"):
        command(["shadow", str(log)])


def test_over_http_the_operators_action_is_the_answer(served, client_of, usual, bundle):
    address, _ = served(shadow=True)
    client = client_of(address)
    obs, done = usual(1)[0].tolist(), {"valve": 90.0, "pump": 875.0}
    body = {"plant": "a", "observation": obs, "previous": HOME, "executed": done}
    status, answer = client.send("POST", "/act", body)
    assert (status, answer["action"]) == (200, pytest.approx(done))
    assert set(answer["shadow"]) == {"action", "difference"}
    gap = answer["proposed"]["valve"] - done["valve"]
    assert answer["shadow"]["difference"]["valve"] == pytest.approx(gap, abs=1e-3)
    status, told = client.send("POST", "/act", body | {"executed": [101.0, 800.0]})
    assert (status, told["detail"][0]["field"]) == (422, "executed.valve")
    assert client.act("a", obs)[0] == 409
    assert client.send("GET", "/policy")[1]["shadow"] is True
    client.close()


def test_otherwise_nobody_is_asked_what_was_executed(served, client_of, usual, bundle):
    address, _ = served()
    client = client_of(address)
    body = {"plant": "a", "observation": usual(1)[0].tolist(), "previous": HOME, "executed": HOME}
    status, told = client.send("POST", "/act", body)
    assert (status, told["detail"][0]["field"]) == (422, "executed")
    client.close()
    for shadow in (True, False):
        act = describe(bundle, "1", with_token=True, shadow=shadow)["paths"]["/act"]["post"]
        schema = act["requestBody"]["content"]["application/json"]["schema"]
        assert ("executed" in schema["properties"]) == shadow


def test_a_start_in_shadow_mode_is_on_record(bundle, log):
    controller = Controller(bundle, Journal(log, "none"), Limits(), shadow=True)
    controller.journal.close()
    assert json.loads(log.read_text().splitlines()[0])["shadow"] is True
