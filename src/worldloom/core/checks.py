"""Range checks of settings: one line that names the owner, the value and what would be right."""

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from worldloom.core.names import one_line, shown, suggest

# Sizes by the names that settings have for them, beyond which memory or patience ends long before
# anything is learned.
MOST = {
    "num_worlds": 2**24, "eval_episodes": 2**20, "devices": 2**16,
    "hidden": 2**14, "batch_size": 2**24, "buffer_size": 2**32, "unroll_length": 2**20,
    "num_epochs": 2**20, "num_minibatches": 2**20, "num_agents": 2**16, "num_frames": 2**10,
    "horizon": 2**30, "radius": 2**10, "height": 2**12, "width": 2**12,
}  # fmt: skip
_LAYERS = 2**10  # entries of a tuple


def check_fields(
    owner: str,
    settings: Any,
    *,
    at_least: Mapping[str, float] | None = None,
    positive: Iterable[str] = (),
    fractions: Iterable[str] = (),
    choices: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Raises ValueError unless the named fields of `settings` are in range; None passes.

    at_least: name -> smallest value. positive: above 0. fractions: in [0, 1]. choices: name ->
    what it may be. Tuples are checked entry by entry, and must not be empty. Sizes of `MOST` must
    not be above what it says.
    """
    for name, low in (at_least or {}).items():
        words = "be 0 or more" if low == 0 else f"be at least {low:g}"
        _check(owner, name, getattr(settings, name), lambda x, low=low: x >= low, words)
    for name in positive:
        _check(owner, name, getattr(settings, name), lambda x: x > 0.0, "be positive")
    for name in fractions:
        _check(owner, name, getattr(settings, name), lambda x: 0.0 <= x <= 1.0, "be in [0, 1]")
    for name, known in (choices or {}).items():
        value = getattr(settings, name)
        if value not in known:
            hint = suggest(str(value), [str(choice) for choice in known])
            raise ValueError(f"{owner}: {name}={shown(value)} is not known; {hint}")


def check_seed(seed: int) -> None:
    """Raises ValueError for a seed that a 32-bit key cannot tell from another."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={shown(seed)}; it must be in 0 .. 4294967295")


def _check(owner: str, name: str, value: Any, fits: Any, words: str) -> None:
    if value is None:
        return
    entries = value if isinstance(value, tuple) else (value,)
    if not entries:
        raise ValueError(f"{owner}: {name}={value}; it must not be empty")
    if len(entries) > _LAYERS:
        raise ValueError(f"{owner}: {name} has {len(entries)} entries; use at most {_LAYERS}")
    for entry in entries:
        if hasattr(entry, "aval"):  # a traced number, which was checked before it was traced
            continue
        if isinstance(entry, bool) or not isinstance(entry, Real):  # numpy has numbers of its own
            raise ValueError(f"{owner}: {name}={shown(value)}; it must be a number")
        number: Any = entry
        if not -math.inf < number < math.inf:  # also of whole numbers that no float holds
            raise ValueError(f"{owner}: {name}={one_line(value, 80)}; it must be a finite number")
        most = MOST.get(name, 2**63 - 1 if isinstance(number, int) else math.inf)
        if not fits(number) or number > most:
            words = f"be at most {most}" if fits(number) else words
            raise ValueError(f"{owner}: {name}={one_line(value, 80)}; it must {words}")
