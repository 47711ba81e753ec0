"""Field buses by address: OPC UA through asyncua, Modbus TCP through pymodbus.

A place on a bus is a text: a node id of OPC UA (`ns=2;s=TI101`), or a register of Modbus as
table:address:type, with a scale where the register holds another unit (`holding:100:float32`,
`input:3:int16*0.1`).
"""

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from worldloom.core.names import one_line, shown, suggest


class BusError(OSError):
    """The bus does not answer, or refuses a place."""


class Reading(NamedTuple):
    """A value, None where its quality is bad, and its age in seconds (0 where nobody says)."""

    value: float | None
    age: float = 0.0


class Bus(Protocol):
    """A connection to a plant's signals. Whatever goes wrong is a `BusError`."""

    async def open(self) -> None: ...
    async def read(self, places: Sequence[str]) -> list[Reading]: ...
    async def write(self, values: Mapping[str, float]) -> None: ...
    async def close(self) -> None: ...


def make_bus(address: str, timeout: float) -> Bus:
    """The bus at an address: opc.tcp://HOST:PORT/PATH or modbus://HOST:PORT/DEVICE."""
    kinds = {"opc.tcp": OpcUa, "modbus": Modbus}
    scheme = urlsplit(address).scheme
    if scheme not in kinds:
        hint = suggest(scheme, kinds)
        raise ValueError(f"bus {shown(address)}: no such kind of bus; {hint} (opc.tcp://HOST:4840)")
    return kinds[scheme](address, timeout)


def _needs(package: str) -> ImportError:
    return ImportError(
        f"this bus needs {package}, which is not installed; pip install 'worldloom[bus]'"
    )


class OpcUa:
    """A client of an OPC UA server."""

    def __init__(self, address: str, timeout: float):
        try:
            import asyncua
        except ImportError:
            raise _needs("asyncua") from None
        self._asyncua, self._address, self._timeout = asyncua, address, timeout
        self._client: Any = None
        self._types: dict[str, Any] = {}  # place -> its type of number, which writes must match

    async def open(self) -> None:
        client = self._asyncua.Client(self._address, timeout=self._timeout)
        try:
            await client.connect()
        except Exception as error:
            raise _failed(self._address, error) from None
        self._client = client

    async def read(self, places: Sequence[str]) -> list[Reading]:
        ua = self._asyncua.ua
        try:
            nodes = [self._node(place) for place in places]
            values = await self._client.uaclient.read_attributes(nodes, ua.AttributeIds.Value)
        except Exception as error:
            raise _failed(self._address, error) from None
        for place, value in zip(places, values, strict=True):
            if value.Value is not None and value.StatusCode.is_good():
                self._types[place] = value.Value.VariantType
        return [_reading(value) for value in values]

    async def write(self, values: Mapping[str, float]) -> None:
        ua = self._asyncua.ua
        unknown = [place for place in values if place not in self._types]
        if unknown:
            await self.read(unknown)
        try:
            nodes = [self._node(place) for place in values]
            data = [ua.DataValue(self._variant(*item)) for item in values.items()]
            results = await self._client.uaclient.write_attributes(
                nodes, data, ua.AttributeIds.Value
            )
        except Exception as error:
            raise _failed(self._address, error) from None
        for place, result in zip(values, results, strict=True):
            if not result.is_good():
                raise BusError(f"{place} cannot be written: {result.name}; check its access rights")

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                await client.disconnect()
            except Exception as error:
                raise _failed(self._address, error) from None

    def _node(self, place: str) -> Any:
        return self._asyncua.ua.NodeId.from_string(place)

    def _variant(self, place: str, value: float) -> Any:
        ua = self._asyncua.ua
        kind = self._types.get(place, ua.VariantType.Double)
        if kind == ua.VariantType.Boolean:
            return ua.Variant(bool(value), kind)
        whole = kind not in (ua.VariantType.Double, ua.VariantType.Float)
        return ua.Variant(round(value) if whole else float(value), kind)


def _reading(value: Any) -> Reading:
    """What OPC UA says of a value; its age by the clock of the server, which stamps both."""
    if not value.StatusCode.is_good() or value.Value is None:
        return Reading(None)
    number = value.Value.Value
    if not isinstance(number, bool | int | float) or not math.isfinite(number):
        return Reading(None)
    now = value.ServerTimestamp or datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    stamped = value.SourceTimestamp or now
    return Reading(float(number), max(0.0, (now - stamped).total_seconds()))


@dataclass(frozen=True)
class Register:
    """A number in a table of Modbus: where it starts, how it is coded, what 1 stands for."""

    table: str
    address: int
    kind: str
    scale: float = 1.0


_REGISTER = re.compile(r"(holding|input):(\d{1,5}):(u?int16|u?int32|float32)(?:\*([-+.\deE]+))?")


def parse_register(place: str) -> Register:
    """A place on Modbus; a ValueError where it is none."""
    match = _REGISTER.fullmatch(place)
    try:
        if match is None or int(match[2]) > 65535:
            raise ValueError
        scale = float(match[4] or 1.0)
        if not math.isfinite(scale) or scale == 0.0:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{shown(place)} is no register of Modbus; write holding:100:float32 or "
            "input:3:int16*0.1 (int16, uint16, int32, uint32, float32)"
        ) from None
    return Register(match[1], int(match[2]), match[3], scale)


class Modbus:
    """A client of a Modbus TCP device: it tells neither quality nor time, so `alive` should."""

    def __init__(self, address: str, timeout: float):
        try:
            from pymodbus.client import AsyncModbusTcpClient
        except ImportError:
            raise _needs("pymodbus") from None
        parts = urlsplit(address)
        try:
            port, device = parts.port or 502, int(parts.path.strip("/") or 1)
        except ValueError:
            raise ValueError(f"bus {shown(address)}: write modbus://HOST:PORT/DEVICE") from None
        self._address, self._device = address, device
        self._client = AsyncModbusTcpClient(
            parts.hostname or "127.0.0.1", port=port, timeout=timeout, retries=0
        )

    async def open(self) -> None:
        try:
            connected = await self._client.connect()
        except Exception as error:
            raise _failed(self._address, error) from None
        if not connected:
            raise BusError(f"{self._address} does not answer")

    async def read(self, places: Sequence[str]) -> list[Reading]:
        return [await self._read(parse_register(place)) for place in places]

    async def _read(self, register: Register) -> Reading:
        client = self._client
        kind = client.DATATYPE[register.kind.upper()]
        holding = register.table == "holding"
        ask = client.read_holding_registers if holding else client.read_input_registers
        try:
            answer = await ask(register.address, count=kind.value[1], device_id=self._device)
        except Exception as error:
            raise _failed(self._address, error) from None
        if answer.isError():
            return Reading(None)
        number = client.convert_from_registers(answer.registers, kind)
        value = float(number) * register.scale  # pyright: ignore[reportArgumentType]
        return Reading(value if math.isfinite(value) else None)

    async def write(self, values: Mapping[str, float]) -> None:
        client = self._client
        for place, value in values.items():
            register = parse_register(place)
            if register.table != "holding":
                raise BusError(f"{place} cannot be written: only holding registers can")
            kind = client.DATATYPE[register.kind.upper()]
            number = value / register.scale
            try:
                coded = number if register.kind == "float32" else round(number)
                words = client.convert_to_registers(coded, kind)
                answer = await client.write_registers(
                    register.address, words, device_id=self._device
                )
            except Exception as error:
                raise _failed(self._address, error) from None
            if answer.isError():
                raise BusError(f"{place} cannot be written: {answer}")

    async def close(self) -> None:
        self._client.close()


def _failed(address: str, error: Exception) -> BusError:
    reason = str(error) or type(error).__name__
    return BusError(one_line(f"{address}: {reason}", 200))
