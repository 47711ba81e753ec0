"""Alarms: deadbands, shelving, and what a log tells of alarms and trips."""

import json

import numpy as np
import pytest

pytest.importorskip("fastapi")

from serving.controlled import run
from worldloom.cli.audit import command
from worldloom.serving.alarms import STOP, Alarms, alarm_report, alarm_rules
from worldloom.serving.audit import verify_log

ROWS = [
    {"name": "box:valve", "kind": "box", "hard": True, "scale": 1.0},
    {"name": "state:warm", "kind": "state", "hard": False, "priority": "low", "deadband": 2.0},
    {"name": "state:relief", "kind": "state", "hard": True, "priority": "high", "deadband": 0.0},
    {"name": "barrier:full", "kind": "barrier", "hard": True},
    {"name": "linear:gentle", "kind": "linear", "hard": False},
]
CALM = np.zeros(1, bool)


def margins(warm=9.0, relief=9.0, gentle=9.0):
    return np.asarray([[-1.0, warm, relief, -1.0, gentle]])


def names(changes, active=True):
    return {name for _, name, on in changes if on is active}


def test_alarms_are_soft_rows_and_trips_of_the_state():
    assert [rule.name for rule in alarm_rules(ROWS)] == [
        "state:warm", "state:relief", "linear:gentle",
    ]  # fmt: skip
    assert Alarms(ROWS).priorities["linear:gentle"] == "medium"  # what a bundle without one has


def test_a_deadband_keeps_a_wavering_signal_from_ringing_again():
    alarms = Alarms(ROWS)
    rung = ended = 0
    for second, warm in enumerate([0.5, -0.1, 0.1, 1.9, -0.2, 2.0, 2.1, -0.1]):
        changes = alarms.update(["a"], margins(warm=warm), CALM, float(second))
        rung += len(names(changes))
        ended += len(names(changes, active=False))
    assert (rung, ended) == (2, 1)
    without = Alarms([row | {"deadband": 0.0} for row in ROWS])
    rung = 0
    for warm in [0.5, -0.1, 0.1, 1.9, -0.2, 2.0, 2.1, -0.1]:
        rung += len(names(without.update(["a"], margins(warm=warm), CALM, 0.0)))
    assert rung == 3


def test_plants_are_apart_and_what_is_no_number_rings():
    alarms = Alarms(ROWS)
    both = np.concatenate([margins(relief=-1.0), margins(warm=-np.inf)])
    alarms.update(["a", "b"], both, np.asarray([True, False]), 1.0)
    alarms.update(["b"], margins(warm=np.nan, gentle=-1.0), CALM, 2.0)
    listed = [(row["plant"], row["alarm"], row["since"]) for row in alarms.listed(3.0)]
    assert set(listed[:2]) == {("a", "state:relief", 1.0), ("a", STOP, 1.0)}  # high ones first
    assert listed[2:] == [("b", "linear:gentle", 2.0), ("b", "state:warm", 1.0)]
    alarms.update(["a"], margins(), CALM, 4.0)
    assert {row["plant"] for row in alarms.listed(4.0)} == {"b"}


def test_what_is_shelved_is_silent_until_its_time_is_up():
    alarms = Alarms(ROWS)
    alarms.update(["a"], margins(warm=-1.0), CALM, 0.0)
    assert alarms.shelve("a", "state:warm", 60.0, 0.0) == 60.0
    assert alarms.ringing(59.0) == 0
    assert alarms.listed(59.0)[0]["shelved_until"] == 60.0  # silent, and still to be seen
    assert alarms.ringing(61.0) == 1
    alarms.shelve("a", "state:warm", 60.0, 61.0)
    alarms.shelve("a", "state:warm", 0.0, 62.0)
    assert alarms.ringing(62.0) == 1


HOT, MILD = [6.0, 10.0, -5.0], [0.0, 10.0, -5.0]


@pytest.fixture
def manifest(bundle):
    """As if the barrier were a hard row of the state, which HOT crosses whatever is done."""
    rows = [
        row | ({"kind": "state", "priority": "high"} if row["name"] == "barrier:first" else {})
        for row in bundle.manifest["constraints"]
    ]
    return bundle.manifest | {"constraints": rows}


def test_a_log_tells_of_alarms_and_of_trips_with_their_causes(bundle, manifest, tmp_path):
    log = tmp_path / "audit.jsonl"
    missing = [np.nan, 10.0, -5.0]

    async def story(controller):
        for obs in (MILD, HOT, HOT, MILD, missing, MILD, HOT, MILD):
            await controller.act("a", np.asarray(obs, np.float32))

    run(bundle, log, story)
    result, found = alarm_report(log, manifest)
    assert result.problem is None
    rows = {row["alarm"]: row for row in found["alarms"]}
    assert rows["barrier:first"]["activations"] == 3  # a signal that is missing is no room
    assert rows["barrier:first"]["chattering"] == 2  # all within a minute
    assert rows[STOP]["activations"] == 0
    assert found["trips"] == {"limit": 2, "missing signal": 1}
    assert found["hours"] > 0.0
    assert found["spurious_trip_rate"] == pytest.approx(1 / found["hours"])
    assert found["demand_rate"] == pytest.approx((2 + found["interventions"]) / found["hours"])


def test_the_command_shows_it(bundle, bundle_folder, tmp_path, capsys):
    log = tmp_path / "audit.jsonl"

    async def story(controller):
        await controller.act("a", np.asarray([np.nan, 10.0, -5.0], np.float32))

    run(bundle, log, story)
    assert command(["alarms", str(log), str(bundle_folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["alarms"]
    assert found["trips"] == {"missing signal": 1}
    assert found["spurious_trip_rate"] is None  # one record is no time
    assert command(["alarms", str(log), str(bundle_folder)]) == 0
    assert "1 by missing signal" in capsys.readouterr().out


def test_alarms_are_served_shelved_and_on_record(served, client_of, manifest, tmp_path):
    log = tmp_path / "audit.jsonl"
    address, controller = served(log=log)
    controller.alarms = Alarms(manifest["constraints"])
    client = client_of(address)
    assert client.send("GET", "/alarms")[1]["alarms"] == []
    client.act("a", HOT)
    (row,) = client.send("GET", "/alarms")[1]["alarms"]
    assert (row["plant"], row["alarm"], row["priority"]) == ("a", "barrier:first", "high")
    assert (
        'worldloom_alarms_total{alarm="barrier:first",priority="high"} 1.0'
        in (client.send("GET", "/metrics")[1])
    )
    body = {"plant": "a", "alarm": "barrier:first", "seconds": 60}
    status, answer = client.send("POST", "/shelve", body)
    assert status == 200
    assert answer["shelved_until"] > row["since"] + 59.0
    assert "worldloom_alarms_active 0.0" in client.send("GET", "/metrics")[1]
    for change, field in (
        ({"alarm": "barrier:frst"}, "alarm"),
        ({"seconds": -1}, "seconds"),
        ({"seconds": "long"}, "seconds"),
        ({"seconds": 1e9}, "seconds"),
    ):
        status, answer = client.send("POST", "/shelve", body | change)
        assert (status, answer["detail"][0]["field"]) == (422, field)
    client.close()
    kinds = [json.loads(line) for line in log.read_text().splitlines()]
    (shelved,) = [row for row in kinds if row["kind"] == "shelve"]
    assert (shelved["alarm"], shelved["seconds"]) == ("barrier:first", 60.0)
    assert verify_log(log).problem is None
