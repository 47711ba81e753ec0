"""Command lines as dataclasses, and what is wrong with one in a single line."""

import contextlib
import io
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from worldloom.core.names import suggest

# What tyro says -> what we say.
COMPLAINTS = {
    r"^Error parsing (\S+): invalid literal for int.*'(.*)'$": r"\1 \2: it must be a whole number",
    r"^Error parsing (\S+): could not convert .* float: '(.*)'$": r"\1 \2: it must be a number",
    r"^Error parsing (\S+): ": r"\1: ",
    r"^Unrecognized options: (.*)$": r"\1 is not expected here",
    r"^Missing from worldloom [a-z ]+: (\S+) ?(.*?)( \(required\))?$": r"\1 is missing: \2",
    r"^Missing value for argument '(.*?)'.*$": r"\1 needs a value",
}


def parse(kind: Any, argv: Sequence[str], prog: str = "", description: str = "") -> Any:
    """The dataclass `kind` filled from `argv`; a ValueError of one line if it cannot be.

    By default it is named and documented as the command is. `--help` prints and raises
    SystemExit(0), as tyro does.
    """
    import tyro

    prog = prog or f"worldloom {kind.__name__.lower()}"
    description = f"{description or kind.__doc__}\n\n(--quiet: no progress, no results but JSON)"
    known = ["--help", *(f"--{f.name.replace('_', '-')}" for f in fields(kind))]
    for flag in (arg.partition("=")[0].replace("_", "-") for arg in argv if arg[:2] == "--"):
        if not {flag, flag.replace("--no-", "--", 1), flag.partition(".")[0]} & {*known, "--"}:
            raise ValueError(f"{flag}: no such option; {suggest(flag, known)}")
    complaint, told = io.StringIO(), io.StringIO()
    told.isatty = sys.stdout.isatty  # which decides on colours
    plain = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)  # no --no-json, no {None}|PATH
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(told):
            return tyro.cli(kind, prog=prog, description=description, args=list(argv), config=plain)
    except SystemExit as end:
        if not end.code:
            # Of a switch what it does is enough: --no-open has no default that is true.
            text = re.sub(r"\s\(default:\s+(True|False)\)", "", told.getvalue())
            usage, _, rest = text.partition("\n")
            print(_wrapped(usage), rest, sep="\n", end="")
            raise
    raise ValueError(one_line(complaint.getvalue()))


def _wrapped(usage: str) -> str:
    """A line of usage in 80 columns, without colours; no option is parted from its value."""
    parts = re.findall(r"\[-.*?\]|\S+", re.sub(r"\x1b\[[\d;]*m", "", usage))
    line = " ".join(part.replace(" ", "\0") for part in parts)
    whole = textwrap.fill(line, 80, subsequent_indent=" " * 7, break_on_hyphens=False)
    return whole.replace("\0", " ")


def run_group(prog: str, commands: Mapping[Any, Callable[[Any], int]], argv: Sequence[str]) -> int:
    """Hands a line to the command that it names; returns its exit code.

    commands: the arguments of each, a dataclass that is named and documented as the command is,
    and the function that takes them.
    """
    kinds = {kind.__name__.lower(): kind for kind in commands}
    if not argv or argv[0] in ("-h", "--help"):
        print(f"usage: {prog} COMMAND [options]      ({prog} COMMAND --help)\n")
        print("\n".join(f"  {name:<10}{kind.__doc__}" for name, kind in kinds.items()))
        return 0
    name, *rest = argv
    if name not in kinds:
        raise ValueError(f"there is no command {name!r}; {suggest(name, list(kinds))}")
    return commands[kinds[name]](parse(kinds[name], rest, f"{prog} {name}"))


def name_values(pairs: Sequence[str]) -> dict[str, Any]:
    """name=value pairs as a dict; see `read_word`."""
    options = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--world {pair}: write options as name=value, e.g. num_agents=3")
        options[name.replace("-", "_")] = read_word(f"--world {pair}", text)
    return options


def read_word(flag: str, word: str) -> Any:
    """A typed word as a number, true, false, none, or whatever else YAML takes it for."""
    for number in (int, float):  # YAML takes 1e6 for text
        with contextlib.suppress(ValueError):
            return number(word)
    if word.lower() == "none":
        return None
    import yaml

    try:
        return yaml.safe_load(word)
    except yaml.YAMLError:
        raise ValueError(f"{flag}: {word!r} is not a value that YAML knows") from None


def one_line(complaint: str) -> str:
    """The heart of tyro's framed complaint, in our words."""
    # A frame of lines, with the title in it, or of dashes, with the title above the first rule.
    sections: list[list[str]] = [[]]
    for line in complaint.splitlines():
        text = line.strip("│ ")
        if set(text) <= set("─-") or text.startswith(("╭", "╰")):
            sections.append([])
        else:
            sections[-1].append(text)
    texts = [" ".join(lines) for lines in sections[1:] if lines]
    message = texts[0] if texts else "the arguments cannot be understood"
    choice = re.match(r"invalid choice '(.*?)' for argument '(.*?)'.*?\((.*)\)", message)
    if choice:
        value, name, known = choice.groups()
        hint = suggest(value, re.findall(r"'(.*?)'", known))
        return f"{name} {value} is not known; {hint}"
    for pattern, words in COMPLAINTS.items():
        message = re.sub(pattern, words, message)
    return f"{message.rstrip('. ')}; see --help"
