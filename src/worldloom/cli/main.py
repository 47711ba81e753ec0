"""The `worldloom` command: looks a subcommand up and calls it.

Each is a function `command(argv) -> exit code` in a module that is imported when it is called:
those of this package, and those that a suite brings along.
"""

import os
import sys
from collections.abc import Sequence

from worldloom import __version__
from worldloom.core.lazy import resolve
from worldloom.core.names import one_line, suggest

# Those of this package, each in a module of its name, with one line for people.
COMMANDS = {
    "envs": "list the worlds",
    "algos": "list the algorithms, and where each fits",
    "train": "train in a world, or from data; write a run folder",
    "eval": "score a trained run, film it, or play yourself",
    "sweep": "train over a grid of settings or seeds",
    "compare": "set runs in one world side by side",
    "report": "write the page of a run, comparison or sweep",
    "export": "write a trained policy as a bundle",
    "serve": "answer requests with an exported policy",
    "audit": "verify and replay what a server wrote down",
    "bench": "measure speed here, or a suite against its peers",
    "doctor": "show versions, devices and caches, and check them",
}
FIRST_STEPS = """First steps:
  worldloom train treasurehunt          train, and write runs/.../report.html
  worldloom train arc                   learn to solve grid puzzles
  worldloom train biped                 teach a small robot to walk
  worldloom train reactor               learn to control a plant from logged data
  worldloom train gymnax:CartPole-v1 --algo dqn"""


def commands() -> dict[str, tuple[str, str]]:
    """Every command, those of the suites included: where it is, and one line for people."""
    from worldloom import suites

    known = {name: (f"worldloom.cli.{name}:command", text) for name, text in COMMANDS.items()}
    for name in suites.SUITES:
        known |= suites.suite(name).commands
    return known


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; 0 is success, 2 is bad input, 130 a run ended by Ctrl-C."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if args[0] in ("-V", "--version"):
        print(f"worldloom {__version__}")
        return 0
    name, rest = args[0], args[1:]
    known = commands()
    if name not in known:
        print(one_line(f"worldloom: no command {name!r}; {suggest(name, known)}"), file=sys.stderr)
        return 2
    try:
        return resolve(known[name][0])(rest)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ImportError) as error:  # the last: an extra that is missing
        print(one_line(f"worldloom {name}: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"worldloom {name}: stopped at once", file=sys.stderr)
        return 130


def _help() -> str:
    known = commands()
    width = max(map(len, known))
    lines = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in known.items())
    return f"""usage: worldloom COMMAND [options]      (worldloom COMMAND --help for its options)

Whole reinforcement-learning experiments compiled into one XLA program.

{lines}

{FIRST_STEPS}"""
