"""`worldloom connect FILE`: a served policy reads and moves a plant over OPC UA or Modbus."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from worldloom.cli.serve import TOKEN
from worldloom.training import console
from worldloom.training.arguments import parse


def command(argv: list[str]) -> int:
    """Controls until it is told to stop; 1 where server or bus was not there at the start."""
    import tyro

    @dataclass
    class Connect:
        file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
        """The connection file (YAML): server, bus, and the place of each signal and actuator."""
        check: bool = False
        """Only read every place and compare the names with the policy's; write nothing."""
        take_over: bool = False
        """Begin where the actuators are now, and lift a latched stop. Without it, a start goes on
        with what the server remembers."""

    about = "connect a plant on a field bus with a server"
    args = parse(Connect, argv, "worldloom connect", about)
    from worldloom.serving import connect
    from worldloom.serving.field_bus import BusError

    connection = connect.read_connection(args.file)
    token = os.environ.get(TOKEN, "").strip() or None
    connector = connect.make_connector(connection, token, _say)

    async def run() -> None:
        try:
            console.phase("connecting", note=connection.bus)
            rows = await connector.check()
            console.end()
            if args.check:
                console.table(str(args.file), ("signal", "place", "now"), rows)
                return
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop.set)
            await connector.run(stop, take_over=args.take_over)
        finally:
            await connect.close(connector)

    try:
        asyncio.run(run())
    except (connect.NoAnswer, BusError) as error:
        console.end()
        print(f"worldloom connect: {error}", file=sys.stderr, flush=True)
        return 1
    if args.check:
        console.next_steps(("connect", args.file))
    else:
        counts = ", ".join(f"{name} {count:,}" for name, count in connector.counts.items())
        console.say(f"steps: {counts or 'none'}")
    return 0


def _say(text: str) -> None:
    if not console.is_quiet():
        print(text, file=sys.stderr, flush=True)
