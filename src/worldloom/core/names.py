"""Names and values that people hand in, and how messages quote them: one line, never a long one."""

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

MOST_CHARACTERS = 300  # of a message
_quote = reprlib.Repr()
_quote.maxstring = _quote.maxlong = _quote.maxother = 60
_quote.maxlevel, _quote.maxlist, _quote.maxtuple, _quote.maxdict = 3, 4, 4, 4


def suggest(name: str, known: Iterable[str]) -> str:
    """'did you mean ...?', or the list of what there is, as far as it fits in a line."""
    known = list(known)
    close = difflib.get_close_matches(str(name)[:100], known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {listed(known, 120)}"


def listed(parts: Iterable[str], most: int, between: str = ", ") -> str:
    """The first parts, as many as fit in `most` characters, and how many there are beside them."""
    parts = list(parts)
    fitting, length = [], 0
    for part in parts:
        length += len(part) + len(between)
        if length > most and fitting:
            return f"{between.join(fitting)}{between}... ({len(parts)} in all)"
        fitting.append(one_line(part, most))
    return between.join(fitting)


def shown(value: Any) -> str:
    """A value as messages quote it: its repr, with the middle of what is long left out."""
    return one_line(_quote.repr(value), 80)


def one_line(text: Any, most: int = MOST_CHARACTERS) -> str:
    """A text in one line of at most `most` characters: what is too much is left out of the middle.

    A message begins with the place and ends with the remedy.
    """
    line = " ".join(str(text).split())
    half = (most - 5) // 2
    return line if len(line) <= most else f"{line[:half]} ... {line[-half:]}"
