"""A server from a bundle: everything is checked and compiled before it listens."""

import gc
import math
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import fastapi  # noqa: F401
    import orjson  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ImportError as error:
    remedy = "which is not installed; pip install 'worldloom[serve]'"
    raise ImportError(f"serving needs {error.name}, {remedy}") from None

from worldloom.core.checks import check_fields
from worldloom.serving.approval import require_approval
from worldloom.serving.bundle import Bundle, load_bundle
from worldloom.serving.connections import ConnectionLimits, limited
from worldloom.serving.controller import DRAIN_SECONDS, Controller, Limits
from worldloom.serving.direct import Direct
from worldloom.serving.gate import GateRules, is_loopback
from worldloom.serving.journal import Fsync, Journal
from worldloom.serving.server_app import make_app
from worldloom.training.console import phase

SWITCH_SECONDS = 0.0005  # how long one thread may keep the others from running
SPARE_FILES = 64  # besides connections


@dataclass(frozen=True)
class ServeConfig:
    """What `run_server` serves, where, and to whom."""

    bundle: Path
    log: Path
    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None  # None: anybody on this machine may ask
    fsync: Fsync = "batch"
    segment_mb: float = 64.0  # of the log
    body_bytes: int = 64 * 1024
    approved_by: tuple[Path, ...] = ()  # public keys, all of which must have signed the bundle
    shadow: bool = False  # somebody else controls the plants, and is compared with
    limits: Limits = field(default_factory=Limits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)


def run_server(config: ServeConfig, ready: Callable[[str], None]) -> None:
    """Serves until SIGTERM or Ctrl-C, then answers what was asked and returns.

    ready: told the address when requests are about to be answered. A RuntimeError where the server
    ends by itself, because it cannot answer any more.
    """
    check(config)
    bundle = load_bundle(config.bundle)
    approved = require_approval(bundle.folder, bundle.digest, config.approved_by)
    sizes = {"total": len(bundle.batch_sizes), "unit": "batch sizes"}
    phase("compiling", done=0, **sizes)
    bundle.warm(lambda count: phase("compiling", done=count, **sizes))
    listener = listen(config.host, config.port)
    try:
        phase("reading the log", total=None, note=str(config.log))
        journal = Journal(config.log, config.fsync, int(config.segment_mb * 1e6))
        try:
            same_policy(journal, bundle)
            controller = Controller(bundle, journal, config.limits, config.shadow, approved)
            _serve(config, controller, listener, ready)
        finally:
            journal.close()
    finally:
        listener.close()


def check(config: ServeConfig) -> None:
    """A ValueError where the server would be open to anybody or could do nothing."""
    if config.token is None and not is_loopback(config.host):
        raise ValueError(
            f"--no-token: {config.host} can be reached from other machines; give a token, or serve "
            "on 127.0.0.1"
        )
    if config.token is not None and len(config.token) < 16:
        raise ValueError(f"the token has {len(config.token)} characters; use at least 16")
    if not 0 <= config.port <= 65535:
        raise ValueError(
            f"--port {config.port}: ports are numbers from 0 (any that is free) to 65535"
        )
    check_fields("serve", config, at_least={"body_bytes": 1}, positive=("segment_mb",))
    least = {"burst": 1, "plants": 1, "waiting": 1}
    positive = ("deadline", "rate", "forget_after")
    check_fields("serve", config.limits, at_least=least, positive=positive)
    check_fields(
        "serve", config.connections, at_least={"connections": 1}, positive=("idle_seconds",)
    )
    _allow_files(config.connections.connections + SPARE_FILES)


def _allow_files(count: int) -> None:
    """Lets this process open so many files; a ValueError where the system does not."""
    import resource  # which not every system has

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
        except (ValueError, OSError):
            raise ValueError(
                f"--connections {count - SPARE_FILES} needs {count} open files, and {hard} are "
                "allowed (ulimit -n); allow more, or fewer connections"
            ) from None


def same_policy(journal: Journal, bundle: Bundle) -> None:
    """A ValueError where a log's memories are those of another policy."""
    policy = journal.recovered.policy
    if policy not in (None, bundle.digest):
        raise ValueError(
            f"{journal.path} is the log of policy {str(policy)[:12]}, {bundle.folder} holds "
            f"{bundle.digest[:12]}; name another log with --log"
        )


def settings(app: Any, limits: ConnectionLimits, direct: Direct | None = None, **more: Any) -> Any:
    """How uvicorn runs the application, and what is answered without it."""
    options: dict[str, Any] = {
        "http": limited(AutoHTTPProtocol, limits, direct),
        "log_level": "error",  # strangers could fill a disk with warnings
        "access_log": False,
        "server_header": False,
        "date_header": False,
        "timeout_keep_alive": math.ceil(limits.idle_seconds),
        "timeout_graceful_shutdown": math.ceil(DRAIN_SECONDS),
        "lifespan": "on",
        "ws": "none",
    }
    return uvicorn.Config(app, **(options | more))


def _serve(
    config: ServeConfig,
    controller: Controller,
    listener: socket.socket,
    ready: Callable[[str], None],
) -> None:
    address = address_of(listener)
    rules = GateRules(config.token, config.body_bytes)
    app = make_app(controller, rules, lambda: ready(address))
    server = uvicorn.Server(settings(app, config.connections, Direct(controller, rules)))
    controller.on_failure = lambda: setattr(server, "should_exit", True)
    # What was loaded stays; looking through it again and again would only cost answers time.
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_SECONDS)

    run_until_signal(server, listener)
    if controller.failure is not None and not server.force_exit:  # a second Ctrl-C ends all loops
        raise RuntimeError(controller.failure)


def run_until_signal(server: Any, listener: socket.socket) -> None:
    """Runs a server of uvicorn's until SIGTERM or Ctrl-C."""

    def stop(*_: object) -> None:
        server.should_exit = True

    # Until uvicorn listens for signals; at its end it raises the one that it heard once more.
    former = [(s, signal.signal(s, stop)) for s in (signal.SIGTERM, signal.SIGINT)]
    wakeup = signal.set_wakeup_fd(-1)  # these signals are not for who listens outside
    try:
        server.run(sockets=[listener])
    except SystemExit:  # of a start that failed, which uvicorn has told of
        raise ValueError("the server could not start; see above") from None
    finally:
        for number, handler in former:
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)


def address_of(listener: socket.socket) -> str:
    """The URL of what listens there."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address; a ValueError where that cannot be had."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=1024, dualstack_ipv6=dual)
    except (OSError, OverflowError) as error:
        raise ValueError(f"{host}:{port} cannot be listened on: {error}") from None
