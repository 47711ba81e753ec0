"""What is wrong with a command line fits one line."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
import tyro

from worldloom.training.arguments import one_line, parse


@dataclass(frozen=True)
class Inner:
    width: int = 3

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width={self.width}; it must be at least 1")


@dataclass
class Options:
    name: Annotated[str, tyro.conf.Positional]
    kind: Literal["round", "square"] = "round"
    size: int = 3
    inner: Inner = field(default_factory=Inner)


def options(*argv: str) -> Options:
    return parse(Options, argv, "worldloom test", "a test")


def test_what_is_right_is_parsed():
    found = options("x", "--kind", "square", "--inner.width", "5")
    assert found == Options("x", "square", 3, Inner(5))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["x", "--kind", "squre"], "--kind squre is not known; did you mean 'square'?"),
        (["x", "--kind", "?"], "--kind ? is not known; known: round, square"),
        (["x", "--sizes", "3"], "--sizes: no such option; did you mean '--size'?"),
        (["--siz=3"], "--siz: no such option; did you mean '--size'?"),
        (["x", "y"], "y is not expected here; see --help"),
        (["x", "--size"], "--size needs a value; see --help"),
        (["x", "--size", "big"], "--size big: it must be a whole number; see --help"),
        (["x", "--inner.width", "0"], "width=0; it must be at least 1"),
        ([], "STR is missing"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(argv, message, capsys):
    with pytest.raises(ValueError, match=re.escape(message)) as told:
        options(*argv)
    assert "\n" not in str(told.value)
    assert capsys.readouterr() == ("", "")


def test_help_is_printed_and_ends_well(capsys):
    with pytest.raises(SystemExit) as end:
        options("--help")
    assert not end.value.code
    assert "--inner.width" in capsys.readouterr().out


FRAMED = """\
╭─ Unrecognized options ────────────────────────╮
│ Unrecognized options: --step, 4               │
│ ───────────────────────────────────────────── │
│ Perhaps you meant:                            │
│     --steps INT                               │
│         (default: 80)                         │
│ ───────────────────────────────────────────── │
│ For full helptext, run worldloom train --help │
╰───────────────────────────────────────────────╯
"""
DASHED = """\
 Unrecognized options
 ----------------------------------------------
  Unrecognized options: --step, 4
  ---------------------------------------------
  Perhaps you meant:
      --steps INT
          (default: 80)
  ---------------------------------------------
  For full helptext, run worldloom train --help

"""


@pytest.mark.parametrize("complaint", [FRAMED, DASHED], ids=["lines", "dashes"])
def test_both_kinds_of_frames_are_understood(complaint):
    assert one_line(complaint) == "--step, 4 is not expected here; see --help"


def test_an_empty_complaint_is_still_an_answer():
    assert one_line("") == "the arguments cannot be understood; see --help"
