"""`worldloom studio`: a web page with all runs of a folder, and worlds to play in."""

import secrets
import sys
import threading
import webbrowser
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import tyro

from worldloom import suites
from worldloom.cli.serve import read_token
from worldloom.report.run_list import USUAL, RunList
from worldloom.training import console
from worldloom.training.arguments import parse


@dataclass
class Studio:
    """show all runs of a folder in the browser, and play in their worlds"""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = USUAL
    """A folder with runs, or one run."""
    port: int = 0
    """The port of the page on this machine; 0: any that is free."""
    open: bool = True
    """Open no browser; from a terminal one is opened otherwise."""
    host: str = "127.0.0.1"
    """Where to listen. In a container 0.0.0.0, its port published on the loopback address: the page
    answers to names of this machine alone."""
    token_file: Path | None = None
    """A file with the token of the page; by default it is new with every start."""


def command(argv: list[str]) -> int:
    """Shows the page until Ctrl-C."""
    args = parse(Studio, argv, "worldloom studio")
    console.phase("starting")
    from worldloom.serving import studio  # first: it says what to install
    from worldloom.training.machine import use_compilation_cache

    def ready(address: str) -> None:
        console.end()
        known = f"{address.partition('=')[0]}=TOKEN, with the token of {args.token_file}"
        shown = address if args.token_file is None else known
        print(f"{args.folder} is shown at {shown}\nCtrl-C ends it", flush=True)
        if args.open and sys.stdout.isatty():
            # Some browsers keep who opens them until they end.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    from worldloom.serving.gate import is_loopback

    token = secrets.token_urlsafe(24)
    if args.token_file is not None:
        token = read_token(args.token_file)
    elif not is_loopback(args.host):
        raise ValueError(
            f"--host {args.host} can be reached from other machines; name a token of your own with "
            "--token-file"
        )
    use_compilation_cache()
    studio.run_studio(make_studio(args.folder), token, ready, args.port, args.host)
    return 0


def make_studio(folder: Path):
    """The studio of a folder, with every suite."""
    import worldloom
    from worldloom.report.colors import PALETTE
    from worldloom.serving import studio

    return studio.Studio(
        runs=RunList(folder),
        suites={name: suites.suite(name) for name in suites.SUITES},
        worlds=suites.names,
        load=worldloom.load,
        make=suites.make,
        assets=lambda name: files(f"worldloom.suites.{name}"),
        vendor=files("worldloom.report") / "vendor",
        palette=PALETTE,
    )
