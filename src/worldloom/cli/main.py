"""The `worldloom` command: looks a subcommand up and calls it.

Each is a function `command(argv) -> exit code` in a module that is imported when it is called:
those of this package, and those that a suite brings along.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from worldloom import __version__
from worldloom.core.files import DISK_ERRORS
from worldloom.core.interrupts import on_signal
from worldloom.core.lazy import resolve
from worldloom.core.names import one_line, suggest
from worldloom.training import console

# Those of this package, each in a module of its name, with one line for people.
COMMANDS = {
    "envs": "list the worlds",
    "algos": "list the algorithms, and where each fits",
    "runs": "list the runs in a folder, and how to go on with each",
    "train": "train in a world, or from data; write a run folder",
    "eval": "score a trained run, film it, or play yourself",
    "sweep": "train over a grid of settings or seeds",
    "compare": "set runs in one world side by side",
    "select": "say which trained policy logged data speak for, or none",
    "report": "write the page of a run, comparison or sweep",
    "studio": "show all runs in the browser, and play in their worlds",
    "export": "write a trained policy as a bundle",
    "serve": "answer requests with an exported policy",
    "approve": "sign a plant's bundle, so that a server may ask for it",
    "connect": "let a served policy read and move a plant on a field bus",
    "audit": "verify and replay what a server wrote down",
    "bench": "measure speed here, or a suite against its peers",
    "doctor": "show versions, devices and caches, and check them",
    "completion": "print a script that completes commands in bash, zsh or fish",
}
QUIET = "--quiet"
HELP = {"-h", "--help", "--help-all"}
# Those that start at once, and those that say themselves what they do first.
LIGHT = ("algos", "runs", "approve", "completion", "serve", "studio", "compare", "report", "export")
FIRST_STEPS = """First steps:
  worldloom train treasurehunt        train, and write runs/.../report.html
  worldloom train arc                 learn to solve grid puzzles
  worldloom train biped               teach a small robot to walk
  worldloom train reactor             learn to control a plant from logged data
  worldloom train gymnax:CartPole-v1 --algo dqn"""


def commands() -> dict[str, tuple[str, str]]:
    """Every command, those of the suites included: where it is, and one line for people."""
    from worldloom import suites

    known = {name: (f"worldloom.cli.{name}:command", text) for name, text in COMMANDS.items()}
    for name in suites.SUITES:
        known |= suites.suite(name).commands
    return known


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; 0 is success, 2 is bad input, 1 a full disk, 130 an end by Ctrl-C."""
    args = list(sys.argv[1:] if argv is None else argv)
    said = f"worldloom {args[0]}" if args else "worldloom"
    stopped = f"{said}: stopped at once"

    def leave() -> None:
        cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # which a progress bar hides
        print(cursor + stopped, file=sys.stderr, flush=True)
        os._exit(130)

    def react() -> None:
        if _importing():  # which may take an interrupt for a package that is missing
            leave()
        raise KeyboardInterrupt

    console.begin(quiet=QUIET in args)
    try:
        with on_signal(react, leave) if argv is None else nullcontext():
            return _run(args)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ImportError) as error:  # the last: an extra that is missing
        print(one_line(f"{said}: {_words(error)}"), file=sys.stderr)
        return 1 if getattr(error, "errno", None) in DISK_ERRORS else 2
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        return 130
    finally:
        console.begin()
        console.end()


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if args[0] in ("-V", "--version"):
        print(f"worldloom {__version__}")
        return 0
    name, rest = args[0], [arg for arg in args[1:] if arg != QUIET]
    known = commands()
    if name not in known:
        hint = suggest(name, [*known, "--help", "--version"])
        print(one_line(f"worldloom: no command {name!r}; {hint}"), file=sys.stderr)
        return 2
    if name not in LIGHT and (rest or name == "doctor") and HELP.isdisjoint(rest):
        console.phase("starting")
    return resolve(known[name][0])(rest)


def _words(error: Exception) -> str:
    """What is wrong; where the system says so, its words behind the path."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}; name another path"
    return str(error)


def _importing() -> bool:
    """Whether the main thread is in the middle of an import."""
    frame = sys._getframe()
    while frame is not None and "importlib" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


def _help() -> str:
    known = commands()
    width = max(map(len, known))
    lines = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in known.items())
    return f"""usage: worldloom COMMAND [options]       (worldloom COMMAND --help: its options)

Whole reinforcement-learning experiments compiled into one XLA program.

{lines}

With any command, {QUIET} shows no progress, and no results but those of --json.

{FIRST_STEPS}"""
