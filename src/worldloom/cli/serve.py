"""`worldloom serve BUNDLE`: a policy with its safety filter as an HTTP service."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from worldloom.serving.journal import Fsync
from worldloom.training import console
from worldloom.training.arguments import parse

TOKEN = "WORLDLOOM_TOKEN"


def command(argv: list[str]) -> int:
    """Serves until it is told to stop."""
    import tyro

    @dataclass
    class Serve:
        bundle: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")]
        """The folder that `worldloom export` wrote."""
        host: str = "127.0.0.1"
        port: int = 8080
        """0: any that is free."""
        log: Path | None = None
        """The audit log; audit.jsonl beside the bundle by default. Goes on where it ended."""
        token_file: Path | None = None
        """A file with the token that clients must send; or set WORLDLOOM_TOKEN."""
        no_token: bool = False
        """Answer anybody on this machine. Only with a loopback address."""
        fsync: Fsync = "batch"
        """When records are on the disk: after every record, after every batch (either way before
        the answer), or when the system sees fit (a power failure may lose answered ones)."""
        segment_mb: float = 64.0
        """Megabytes of records after which the log goes on in a new file. The next start reads no
        more than the last one."""
        deadline: float = 0.2
        """Seconds after which the emergency action is answered."""
        rate: float = 1000.0
        """Requests a second that one plant may make."""
        burst: int = 100
        """Requests that it may make at once."""
        plants: int = 10_000
        """Plants at most."""
        forget_after: float = 7 * 86_400.0
        """Seconds of silence after which a plant may lose its slot to another. A plant that is
        stopped or overridden keeps it."""
        waiting: int = 2_000
        """Requests at once at most."""
        body_bytes: int = 64 * 1024
        """The largest request."""
        connections: int = 1_000
        """Connections at most; beyond them, those without a request are closed."""
        idle: float = 10.0
        """Seconds that a connection may go without a request, or take over its headers."""
        approved_by: tuple[Path, ...] = ()
        """Public keys, all of which must have approved this bundle (`worldloom approve`)."""
        shadow: bool = False
        """Look on: the operator's actions are executed and come with the requests (`executed`), the
        policy's are compared with them, and none is answered as an action to execute."""
        json: bool = False
        """Print the address as JSON when it serves."""

    args = parse(Serve, argv, "worldloom serve", "serve a plant's policy over HTTP")
    console.phase("loading", note=str(args.bundle))
    from worldloom.serving import serve  # first: it says what to install
    from worldloom.serving.connections import ConnectionLimits
    from worldloom.serving.controller import Limits
    from worldloom.training.machine import use_compilation_cache

    config = serve.ServeConfig(
        bundle=args.bundle,
        log=args.log or args.bundle.absolute().parent / "audit.jsonl",
        host=args.host,
        port=args.port,
        token=_token(args.token_file, args.no_token),
        fsync=args.fsync,
        segment_mb=args.segment_mb,
        body_bytes=args.body_bytes,
        approved_by=args.approved_by,
        shadow=args.shadow,
        limits=Limits(
            args.deadline, args.rate, args.burst, args.plants, args.waiting, args.forget_after
        ),
        connections=ConnectionLimits(args.connections, args.idle),
    )

    def ready(address: str) -> None:
        console.end()
        if args.json:
            about = {"url": address, "pid": os.getpid(), "log": str(config.log)}
            about |= {"shadow": True} if config.shadow else {}
            print(json.dumps(about), flush=True)
        elif not console.is_quiet():
            open_ = " without a token" if config.token is None else ""
            how = "shadowing with" if config.shadow else "serving"
            text = f"{how} {args.bundle} on {address}{open_}; records go to {config.log}"
            print(text, file=sys.stderr, flush=True)

    use_compilation_cache()
    try:
        serve.run_server(config, ready)
    except RuntimeError as error:  # it ended by itself; whoever started it should know
        print(f"worldloom serve: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def read_token(file: Path) -> str:
    """The token that a file holds."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--token-file {file} cannot be read: {error}") from None


def _token(file: Path | None, no_token: bool) -> str | None:
    if file is not None:
        if no_token:
            raise ValueError("--token-file and --no-token exclude each other; use one")
        return read_token(file)
    if no_token:
        return None
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise ValueError(
            f"clients need a token: name a file with --token-file, set {TOKEN}, or serve this "
            "machine alone with --no-token"
        )
    return token
