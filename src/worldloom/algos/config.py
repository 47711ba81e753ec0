"""Options of algorithms: frozen dataclasses whose fields say what they may be."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from worldloom.core.checks import check_fields


def at_least(low: float, default: Any) -> Any:
    """A field that is `low` or more; of a tuple each entry, of which there must be one."""
    return field(default=default, metadata={"at_least": low})


def positive(default: float) -> Any:
    """A field above 0."""
    return field(default=default, metadata={"positive": True})


def fraction(default: float) -> Any:
    """A field in [0, 1]."""
    return field(default=default, metadata={"fractions": True})


def choice(default: str, known: Sequence[str]) -> Any:
    """A field that is one of `known`."""
    return field(default=default, metadata={"choices": known})


@dataclass(frozen=True)
class Config:
    """Base of options: checks its fields, and those of `hyper`, by what they say they may be."""

    @property
    def name(self) -> str:
        """How messages name the algorithm."""
        return type(self).__name__.removesuffix("Config").lower()

    def __post_init__(self):
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, list):  # read from a file
                object.__setattr__(self, f.name, tuple(value))
        for options in (self, getattr(self, "hyper", None)):
            if options is not None:
                check_fields(self.name, options, **_ranges(options))


def _ranges(options: Any) -> dict[str, dict[str, Any]]:
    """What `check_fields` takes: for each kind of range the fields that have one."""
    kinds = ("at_least", "positive", "fractions", "choices")
    return {
        kind: {f.name: f.metadata[kind] for f in fields(options) if kind in f.metadata}
        for kind in kinds
    }
