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
from worldloom.report.run_list import USUAL, RunList
from worldloom.training.arguments import parse


@dataclass
class Studio:
    """show all runs of a folder in the browser, and play in their worlds"""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = USUAL
    """A folder with runs, or one run."""
    port: int = 0
    """The port of the page on this machine; 0: any that is free."""
    open: bool = True
    """Open the page in a browser, if this is a terminal."""


def command(argv: list[str]) -> int:
    """Shows the page until Ctrl-C."""
    args = parse(Studio, argv, "worldloom studio")
    from worldloom.serving.studio import run_studio
    from worldloom.training.machine import use_compilation_cache

    def ready(address: str) -> None:
        print(f"{args.folder} is shown at {address}\nCtrl-C ends it", flush=True)
        if args.open and sys.stdout.isatty():
            # Some browsers keep who opens them until they end.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    use_compilation_cache()
    run_studio(make_studio(args.folder), secrets.token_urlsafe(24), ready, args.port)
    return 0


def make_studio(folder: Path):
    """The studio of a folder, with every suite."""
    import worldloom
    from worldloom.report.colors import PALETTE
    from worldloom.serving import studio

    return studio.Studio(
        runs=RunList(folder),
        suites={name: suites.suite(name) for name in suites.SUITES},
        load=worldloom.load,
        make=suites.make,
        assets=lambda name: files(f"worldloom.suites.{name}"),
        vendor=files("worldloom.report") / "vendor",
        palette=PALETTE,
    )
