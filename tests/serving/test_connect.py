"""A plant on a field bus: what is read, asked and written, also when somebody is gone."""

import asyncio
import json
from dataclasses import replace

import pytest

from worldloom.serving.connect import (
    Connection,
    Connector,
    NoAnswer,
    Server,
    Status,
    make_connector,
    read_connection,
)
from worldloom.serving.field_bus import BusError, Reading, make_bus, parse_register

HOME = {"valve": 50.0, "pump": 750.0}
USUAL = {"T": 0.1, "L": 10.0, "F": -5.0}
CONNECTION = Connection(
    server="http://127.0.0.1:1",
    plant="unit-3",
    bus="opc.tcp://127.0.0.1:1",
    period=1.0,
    stale_after=5.0,
    signals={"temperature": "T", "level": "L", "flow": "F"},
    actuators={"valve": "V", "pump": "P"},
    enable="on",
    alive="plc",
    heartbeat="beat",
    status="who",
)


class Dictionary:
    """A bus of our own: values and ages by place; `broken`: it does not answer."""

    def __init__(self, **values):
        self.values = USUAL | {"V": 40.0, "P": 900.0, "on": 1.0, "plc": 0.0} | values
        self.ages, self.writes, self.broken = {}, [], False

    async def open(self):
        self._answer()

    async def read(self, places):
        self._answer()
        self.values["plc"] += 1.0
        return [Reading(self.values.get(p), self.ages.get(p, 0.0)) for p in places]

    async def write(self, values):
        self._answer()
        self.writes.append(dict(values))
        self.values |= values

    async def close(self):
        self._answer()

    def _answer(self):
        if self.broken:
            raise BusError("no answer")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def log(tmp_path):
    return tmp_path / "audit.jsonl"


@pytest.fixture
def linked(served, log):
    """linked(bus, **changes): a checked connector to a server, and what it says."""
    from serving.conftest import TOKEN

    address, _ = served(log=log)
    servers = []

    def link(bus, **changes):
        said = []
        server = Server(f"http://{address[0]}:{address[1]}", TOKEN, 60.0)
        servers.append(server)
        clock = Clock()
        connector = Connector(replace(CONNECTION, **changes), bus, server, said.append, clock)
        asyncio.run(connector.check())
        return connector, said, clock

    yield link
    for server in servers:
        server.close()


def steps(connector, count=1):
    async def run():
        for _ in range(count):
            await connector.step()

    asyncio.run(run())


def records(log, kind):
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [row for row in rows if row.get("kind") == kind]


def test_a_step_reads_asks_and_writes_what_is_on_record(linked, log):
    bus = Dictionary()
    connector, said, _ = linked(bus)
    steps(connector)
    (act,) = records(log, "act")
    written = {"valve": bus.values["V"], "pump": bus.values["P"]}
    shares = [written["valve"] / 50.0 - 1.0, (written["pump"] - 500.0) / 500.0 - 1.0]
    assert act["action"] == pytest.approx(shares, abs=1e-6)
    assert act["obs"] == pytest.approx([0.1, 10.0, -5.0])
    assert said == ["the policy has control"]
    assert (bus.values["who"], bus.values["beat"]) == (1.0, 1.0)
    steps(connector, 2)
    assert bus.values["beat"] == 3.0
    assert said == ["the policy has control"]  # once
    assert connector.counts == {"policy": 3}


def test_the_policy_begins_where_the_actuators_are(linked, log):
    """The valve's rate is half of its range a step: from 2 % it cannot leap to the far end."""
    bus = Dictionary(on=0.0, V=2.0)
    connector, _, _ = linked(bus)
    steps(connector, 2)
    assert connector.counts == {"operator": 2}
    assert not any("V" in write for write in bus.writes)
    bus.values["on"] = 1.0
    steps(connector)
    (reset,) = records(log, "reset")
    assert reset["previous"] == pytest.approx([2.0 / 50.0 - 1.0, 900.0 / 500.0 - 2.0])
    assert abs(bus.values["V"] - 2.0) <= 25.0 + 1e-4


@pytest.mark.parametrize("fault", ["old", "bad", "silent"])
def test_a_signal_that_is_not_fresh_is_an_emergency_on_record(linked, log, fault):
    bus = Dictionary()
    connector, said, clock = linked(bus)
    steps(connector)
    if fault == "old":
        bus.ages["L"] = 5.1
    elif fault == "bad":
        bus.values["L"] = None
    else:
        clock.now += 5.1
        bus.values["plc"] = connector._alive[0] - 1.0  # so that it reads as it was
    steps(connector)
    last = records(log, "act")[-1]
    assert last["report"]["emergency"]
    assert last["obs"][1] == "nan"
    assert bus.values["who"] == Status.EMERGENCY
    assert said[-1].startswith("an emergency action: ")
    assert ("level" in said[-1]) == (fault != "silent")
    bus.ages.clear()
    bus.values |= USUAL
    steps(connector)
    assert bus.values["who"] == Status.POLICY


def test_without_the_server_the_emergency_action_is_written(linked):
    bus = Dictionary()
    connector, said, _ = linked(bus)
    steps(connector)
    there, connector.server = connector.server, Server("http://127.0.0.1:1", None, 1.0)
    steps(connector)
    assert {"valve": bus.values["V"], "pump": bus.values["P"]} == pytest.approx(HOME)
    assert bus.values["who"] == Status.EMERGENCY
    assert "the server: " in said[-1]
    connector.server = there
    steps(connector)
    assert bus.values["who"] == Status.POLICY


def test_a_server_that_is_back_goes_on_from_where_the_actuators_are(linked, log):
    """The valve moved without it: its rate of 25 % a step counts from there, and a stop stands."""
    bus = Dictionary()
    connector, _, _ = linked(bus)
    steps(connector)
    there, connector.server = connector.server, Server("http://127.0.0.1:1", None, 1.0)
    connector._emergency = {"valve": 100.0, "pump": 1500.0}
    steps(connector, 2)
    connector.server = there
    steps(connector)
    moved = records(log, "reset")[-1]
    assert moved["keep_stop"]
    assert moved["previous"] == pytest.approx([1.0, 1.0])
    assert abs(bus.values["V"] - 100.0) <= 25.0 + 1e-4
    bus.values["L"] = None
    steps(connector, 3)  # which latches the stop
    connector.server = Server("http://127.0.0.1:1", None, 1.0)
    steps(connector)
    connector.server, bus.values["L"] = there, 10.0
    steps(connector)
    assert records(log, "act")[-1]["report"]["latched"]
    assert bus.values["who"] == Status.EMERGENCY


def test_a_position_beyond_its_range_is_that_of_the_end(linked, log):
    bus = Dictionary(on=0.0, V=100.3)
    connector, _, _ = linked(bus, positions={"valve": "V"})
    steps(connector)
    bus.values["on"] = 1.0
    steps(connector)
    assert records(log, "reset")[-1]["previous"][0] == 1.0
    assert connector.state is Status.POLICY


def test_without_the_server_a_recovery_procedure_goes_on(linked):
    bus = Dictionary(V=40.0)
    connector, _, _ = linked(bus)
    connector.server = Server("http://127.0.0.1:1", None, 1.0)
    connector._recovery = [
        {"steps": 1, "ramp": False, "to": {"pump": 500.0}},
        {"steps": 2, "ramp": True, "to": {"valve": 80.0}},
    ]
    seen = []
    for _ in range(4):
        steps(connector)
        seen.append((bus.values["V"], bus.values["P"]))
    assert seen == [(40.0, 500.0), (60.0, 500.0), (80.0, 500.0), (HOME["valve"], HOME["pump"])]


def test_a_server_in_shadow_mode_is_told_what_the_operator_does_and_nothing_is_written(served, log):
    from serving.conftest import TOKEN

    address, _ = served(log=log, shadow=True)
    server = Server(f"http://{address[0]}:{address[1]}", TOKEN, 60.0)
    bus, said = Dictionary(V=12.0), []
    connector = Connector(CONNECTION, bus, server, said.append, Clock())
    asyncio.run(connector.check())
    steps(connector)
    bus.values["V"] = 15.0  # by the operator
    steps(connector)
    assert [act["executed"][0] for act in records(log, "act")] == pytest.approx([-0.76, -0.7])
    assert not any({"V", "P"} & set(write) for write in bus.writes)
    assert bus.values["who"] == Status.OPERATOR
    assert said == ["the operator has control, and the policy is compared"]
    connector._shadow = False  # as if the server had been started anew, in shadow mode, meanwhile
    steps(connector, 2)
    assert not any({"V", "P"} & set(write) for write in bus.writes)
    server.close()


def test_a_policy_that_cannot_take_over_moves_nothing(linked):
    bus = Dictionary(on=0.0)
    connector, said, _ = linked(bus)
    steps(connector)
    bus.values["on"] = 1.0
    connector.server = Server("http://127.0.0.1:1", None, 1.0)
    steps(connector)
    assert (bus.values["V"], bus.values["P"]) == (40.0, 900.0)
    assert "cannot take over" in said[-1]
    assert connector.state is Status.OPERATOR


def test_without_the_bus_the_heartbeat_stops_until_it_is_back(linked):
    bus = Dictionary()
    connector, said, _ = linked(bus)
    steps(connector)
    bus.broken = True
    steps(connector, 3)
    assert connector.counts["no bus"] == 3
    assert said[-1].startswith("nothing can be read or written")
    assert bus.values["beat"] == 1.0
    bus.broken = False
    steps(connector)
    assert bus.values["beat"] == 2.0


def test_a_broken_connection_moves_a_plant_once(linked, log, monkeypatch):
    """The server carried it out, and the answer was lost: it is asked for again by its key."""
    bus = Dictionary()
    connector, _, _ = linked(bus)
    once, lost = Server._once, []

    def lose(self, path, content, key):
        answer = once(self, path, content, key)
        if path == "/act" and not lost:
            lost.append(answer)
            raise ConnectionResetError("by peer")
        return answer

    monkeypatch.setattr(Server, "_once", lose)
    steps(connector)
    assert len(records(log, "act")) == 1
    assert bus.values["V"] == lost[0]["action"]["valve"]


def test_names_that_the_policy_does_not_know_are_refused_before_anything_is_written(linked):
    bus = Dictionary()
    with pytest.raises(ValueError, match=r"observation: flow has no place"):
        linked(bus, signals={"temperature": "T", "level": "L"})
    with pytest.raises(ValueError, match=r"action: fan is not known to the policy"):
        linked(bus, actuators={"valve": "V", "pump": "P", "fan": "X"})
    assert not bus.writes


FILE = """
server: http://127.0.0.1:8080
plant: unit-3
bus: modbus://127.0.0.1:502/1
period: 1
stale_after: 5
signals: {temperature: "input:3:int16*0.1"}
actuators: {valve: "holding:100:float32"}
"""


def test_a_file_is_read(tmp_path):
    path = tmp_path / "io.yaml"
    path.write_text(FILE)
    connection = read_connection(path)
    assert connection.signals == {"temperature": "input:3:int16*0.1"}
    assert parse_register("input:3:int16*0.1").scale == 0.1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("period: 1", "period: 0"), r"period: 0; it is a time"),
        (("period: 1", ""), r"period is missing"),
        (("plant:", "plnt:"), r"did you mean 'plant'"),
        (("holding:100:float32", "ns=2;s=V"), r"actuators\.valve: .*no register"),
        (("http:", "ftp:"), r"server: .*write http://HOST:PORT"),
        (("unit-3", "unit 3"), r"plant: 'unit 3'; use letters, digits"),
        (("modbus://127.0.0.1:502/1", "opc.tcp://h"), r"signals\.temperature: .*no node id of OPC"),
        (
            ("stale_after: 5", "positions: {pump: holding:1:int16}\nstale_after: 5"),
            r"'pump' is not",
        ),
    ],
)
def test_mistakes_in_a_file_are_one_line(tmp_path, change, words):
    path = tmp_path / "io.yaml"
    path.write_text(FILE.replace(*change))
    with pytest.raises(ValueError, match=words) as error:
        read_connection(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 300


def test_an_unknown_bus_is_refused():
    with pytest.raises(ValueError, match=r"no such kind of bus"):
        make_bus("canopen://127.0.0.1", 1.0)


# Real buses --------------------------------------------------------------------------------------


@pytest.fixture
def at_server(served, log):
    from serving.conftest import TOKEN

    address, _ = served(log=log)
    made = []

    def make(**changes):
        url = f"http://{address[0]}:{address[1]}"
        connection = replace(CONNECTION, server=url, period=120.0, **changes)
        made.append(make_connector(connection, TOKEN, lambda text: None))
        return made[-1]

    yield make
    for connector in made:
        connector.server.close()


@pytest.mark.slow
def test_a_plant_on_opc_ua(at_server, log):
    asyncua = pytest.importorskip("asyncua", reason="the extra bus brings it")

    async def run():
        server = asyncua.Server()
        await server.init()
        server.set_endpoint("opc.tcp://127.0.0.1:0/")
        space = await server.register_namespace("plant")
        start = USUAL | {"V": 40.0, "P": 900.0, "on": True, "plc": 0, "beat": 0, "who": 0}
        nodes = {}
        for name, value in start.items():
            node_id = asyncua.ua.NodeId(name, space)
            nodes[name] = await server.nodes.objects.add_variable(node_id, name, value)
            await nodes[name].set_writable()
        async with server:
            port = server.bserver._server.sockets[0].getsockname()[1]
            places = {name: node.nodeid.to_string() for name, node in nodes.items()}
            connector = at_server(
                bus=f"opc.tcp://127.0.0.1:{port}/",
                signals={"temperature": places["T"], "level": places["L"], "flow": places["F"]},
                actuators={"valve": places["V"], "pump": places["P"]},
                enable=places["on"], alive=None, heartbeat=places["beat"], status=places["who"],
            )  # fmt: skip
            rows = await connector.check()
            assert ("temperature", places["T"], "0.1") in rows
            await connector.step()
            bad = asyncua.ua.DataValue(
                asyncua.ua.Variant(10.0), asyncua.ua.StatusCode(asyncua.ua.StatusCodes.Bad)
            )
            first = [await nodes[name].read_value() for name in ("V", "P", "beat", "who")]
            await server.write_attribute_value(nodes["L"].nodeid, bad)
            await connector.step()
            second = [await nodes[name].read_value() for name in ("V", "P", "beat", "who")]
            await nodes["on"].write_value(False)
            await connector.step()
            third = await nodes["who"].read_value()
            await connector.bus.close()
        await connector.step()  # the server is gone, and that is no exception
        return first, second, third, connector.counts

    first, second, third, counts = asyncio.run(run())
    act, emergency = records(log, "act")
    for record, (valve, pump, beat, status), expected in (
        (act, first, [1, Status.POLICY]),
        (emergency, second, [2, Status.EMERGENCY]),
    ):
        shares = [valve / 50.0 - 1.0, (pump - 500.0) / 500.0 - 1.0]
        assert shares == pytest.approx(record["action"], abs=1e-6)
        assert [beat, status] == expected
    assert emergency["report"]["emergency"]
    assert third == 0
    assert counts == {"policy": 1, "emergency": 1, "operator": 1, "no bus": 1}


@pytest.mark.slow
def test_on_opc_ua_a_policy_looks_on_takes_over_without_a_jump_and_hands_back(served, log):
    """The operator's valve is at 2 %, and its rate is 25 % a step; nobody else may move it."""
    asyncua = pytest.importorskip("asyncua", reason="the extra bus brings it")
    from serving.conftest import TOKEN

    async def run():
        server = asyncua.Server()
        await server.init()
        server.set_endpoint("opc.tcp://127.0.0.1:0/")
        space = await server.register_namespace("plant")
        start = USUAL | {"V": 2.0, "P": 600.0, "on": True, "plc": 0, "beat": 0, "who": 0}
        nodes = {}
        for name, value in start.items():
            node_id = asyncua.ua.NodeId(name, space)
            nodes[name] = await server.nodes.objects.add_variable(node_id, name, value)
            await nodes[name].set_writable()

        async def now():
            names = ("V", "P", "beat", "who")
            return dict(zip(names, [await nodes[n].read_value() for n in names], strict=True))

        async with server:
            port = server.bserver._server.sockets[0].getsockname()[1]
            place = {name: node.nodeid.to_string() for name, node in nodes.items()}

            def connector_of(address):
                made = replace(
                    CONNECTION, server=f"http://{address[0]}:{address[1]}", period=120.0,
                    bus=f"opc.tcp://127.0.0.1:{port}/", stale_after=3600.0,
                    signals={"temperature": place["T"], "level": place["L"], "flow": place["F"]},
                    actuators={"valve": place["V"], "pump": place["P"]}, enable=place["on"],
                    alive=place["plc"], heartbeat=place["beat"], status=place["who"],
                )  # fmt: skip
                return make_connector(made, TOKEN, lambda text: None)

            shadow = connector_of(served(log=log.with_name("shadow.jsonl"), shadow=True)[0])
            await shadow.check()
            await shadow.step()
            seen = [await now()]
            await shadow.bus.close()
            control = connector_of(served(log=log)[0])
            await nodes["on"].write_value(False)
            await control.check()
            await control.step()
            await nodes["on"].write_value(True)
            await control.step()
            seen.append(await now())
            later = control._clock
            control._clock = lambda: later() + 7200.0  # and the plant's side has not been heard of
            await control.step()
            seen.append(await now())
            await nodes["on"].write_value(False)
            await nodes["V"].write_value(77.0)
            await control.step()
            seen.append(await now())
            await control.bus.close()
        for connector in (shadow, control):
            connector.server.close()
        return seen

    looked_on, taken_over, silent, handed_back = asyncio.run(run())
    assert (looked_on["V"], looked_on["P"], looked_on["beat"], looked_on["who"]) == (2, 600, 0, 0)
    (compared,) = records(log.with_name("shadow.jsonl"), "act")
    assert compared["executed"] == pytest.approx([-0.96, -0.8])
    assert abs(taken_over["V"] - 2.0) <= 25.0 + 1e-4
    assert (taken_over["beat"], taken_over["who"]) == (1, Status.POLICY)
    assert (silent["beat"], silent["who"]) == (2, Status.EMERGENCY)
    assert records(log, "act")[-1]["obs"] == ["nan"] * 3
    assert (handed_back["V"], handed_back["beat"]) == (77.0, 2)  # its own, and no heartbeat
    assert handed_back["who"] == Status.OPERATOR


@pytest.mark.slow
def test_a_plant_on_modbus(at_server, log):
    pytest.importorskip("pymodbus", reason="the extra bus brings it")
    from pymodbus.client import AsyncModbusTcpClient
    from pymodbus.datastore import (
        ModbusDeviceContext,
        ModbusSequentialDataBlock,
        ModbusServerContext,
    )
    from pymodbus.server import ModbusTcpServer

    async def run():
        block = ModbusSequentialDataBlock(1, [0] * 100)
        context = ModbusServerContext(ModbusDeviceContext(hr=block, ir=block), single=True)
        server = ModbusTcpServer(context, address=("127.0.0.1", 0))
        await server.serve_forever(background=True)
        port = server.transport.sockets[0].getsockname()[1]
        places = {
            "T": "holding:0:float32", "L": "holding:2:int16*0.1", "F": "holding:3:int16*0.1",
            "V": "holding:10:float32", "P": "holding:12:uint16", "beat": "holding:20:uint16",
        }  # fmt: skip
        connector = at_server(
            bus=f"modbus://127.0.0.1:{port}/1",
            signals={"temperature": places["T"], "level": places["L"], "flow": places["F"]},
            actuators={"valve": places["V"], "pump": places["P"]},
            enable=None, alive=None, heartbeat=places["beat"], status=None,
        )  # fmt: skip
        await connector.bus.open()
        await connector.bus.write({places[n]: x for n, x in USUAL.items()})
        await connector.bus.write({places["V"]: 40.0, places["P"]: 900.0})
        await connector.check()
        await connector.step()
        client = AsyncModbusTcpClient("127.0.0.1", port=port)
        await client.connect()
        valve = await client.read_holding_registers(10, count=2, device_id=1)
        beat = await client.read_holding_registers(20, count=1, device_id=1)
        client.close()
        await connector.bus.close()
        await server.shutdown()
        await connector.step()
        valve = client.convert_from_registers(valve.registers, client.DATATYPE.FLOAT32)
        return valve, beat.registers, connector.counts

    valve, beat, counts = asyncio.run(run())
    (act,) = records(log, "act")
    assert act["obs"] == pytest.approx([0.1, 10.0, -5.0], abs=1e-6)
    assert valve == pytest.approx(50.0 * (act["action"][0] + 1), rel=1e-6)
    assert beat == [1]
    assert counts == {"policy": 1, "no bus": 1}


def test_the_server_says_why_it_refuses(served):
    address, _ = served()
    server = Server(f"http://{address[0]}:{address[1]}", "not the token at all", 60.0)
    with pytest.raises(NoAnswer, match="401"):
        server.ask("/policy")
    server.close()
