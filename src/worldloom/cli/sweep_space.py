"""What a sweep varies, as it is typed: --ppo.gamma 0.9,0.99 --ppo.learning-rate 1e-4..1e-2:log."""

import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from worldloom.cli.settings import Option, Schema, flags_of, read_value
from worldloom.training.config import CADENCE

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?(?::(\d+))?", re.IGNORECASE)
_LIKE_A_RANGE = re.compile(rf"{_NUMBER}\.\.", re.IGNORECASE)  # with something else behind it
_WRITE = "write name=value,value,... such as ppo.learning_rate=1e-3,3e-4, or name=1e-4..1e-2:log"


def split_varied(settings: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags that give a setting one value, and NAME=VALUES of those that give several."""
    fixed, varied = [], []
    for flag, words in flags_of(settings):
        (word, *more) = words or [""]
        several = not more and (
            _LIKE_A_RANGE.match(word) or ("," in word and word[0] not in "[{'\"")
        )
        if several:
            varied.append(f"{flag.removeprefix('--')}={word}")
        else:
            fixed += [flag, *words]
    return fixed, varied


def parse_space(schema: Schema, texts: Sequence[str]) -> list[tuple[str, Any]]:
    """(name, values) for texts like "ppo.learning_rate=1e-3,3e-4" or "ppo.gamma=0.9..0.999".

    Entries of a tuple are joined by x: "ppo.hidden=64x64,128". Values are a list, or a `Range`.
    """
    words: dict[str, list[str]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        name, listed = name.strip().replace("-", "_"), [w.strip() for w in listed.split(",")]
        if not equals or not name or not all(listed):
            raise ValueError(f"--grid {text}: {_WRITE}")
        if name in words or len(set(listed)) < len(listed):
            raise ValueError(f"--grid {text}: {name} or one of its values is given twice")
        if name in CADENCE and name != "steps":
            raise ValueError(
                f"--grid {text}: {name} changes how a run is watched, not what it learns; "
                "vary another setting"
            )
        words[name] = listed
    chosen = words.get("algo", [schema.algo])
    schemas = [Schema(schema.suite, schema.env, algo) for algo in chosen]
    found = [(_find(schemas, name), listed) for name, listed in words.items()]
    return [(option.name, _values(option, listed)) for option, listed in found]


def _find(schemas: Sequence[Schema], name: str) -> Option:
    """The setting of that name, in the runs of whichever algorithm has it."""
    for schema in schemas[:-1]:
        try:
            return schema.find(f"--{name}")
        except ValueError:
            continue
    return schemas[-1].find(f"--{name}")


def _values(option: Option, words: Sequence[str]) -> Any:
    kinds = (option.kind, *get_args(option.kind))
    ranges = [_RANGE.fullmatch(word) for word in words]
    if any(ranges) or any(_LIKE_A_RANGE.match(word) for word in words):
        if len(words) > 1 or not ranges[0]:
            raise ValueError(f"--grid {option.name}={','.join(words)}: {_WRITE}")
        return _range(option, ranges[0], whole=int in kinds and float not in kinds)
    is_tuple = any(get_origin(kind) is tuple for kind in kinds)
    typed = [word.split("x") if is_tuple else [word] for word in words]
    return [read_value(f"--grid {option.name}", each, option.kind) for each in typed]


def _range(option: Option, match: re.Match[str], whole: bool) -> Any:
    from worldloom.training.sweeps.search import Range

    flag = f"--grid {option.name}"
    low, high = (read_value(flag, [word], option.kind) for word in match.groups()[:2])
    if not all(isinstance(end, int | float) for end in (low, high)):
        raise ValueError(f"{flag}={match[0]}: only numbers have a range; list values")
    whole = whole or (option.kind is Any and isinstance(low, int) and isinstance(high, int))
    try:
        found = Range(low, high, bool(match[3]), whole)
    except ValueError as error:
        raise ValueError(f"{flag}={error}") from None
    return found.spaced(max(1, int(match[4]))) if match[4] else found
