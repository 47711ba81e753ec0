"""What a step is worth, written as arithmetic of signals: -abs(level - 50) - 0.1 * valve.

The text is parsed, checked against a list of what may stand in it, and turned into `jnp`; none of
it is ever executed as Python. A signal's name stands for its value after the step, an actuator's
for what was done in it, and `before(level)` for a value before the step. A comparison is 1 where it
holds and 0 where it does not.
"""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax.numpy as jnp

from worldloom.core.names import shown, suggest
from worldloom.core.types import Array

Values = Mapping[str, Any]  # arrays of one shape by name; `before(NAME)` is a name as well
BEFORE = "before"
MOST_CHARACTERS = 2000
_ONE: dict[str, Callable[[Any], Array]] = {
    "abs": jnp.abs,
    "exp": jnp.exp,
    "log": jnp.log,
    "sqrt": jnp.sqrt,
}
_SEVERAL: dict[str, Callable[[Any, Any], Array]] = {"min": jnp.minimum, "max": jnp.maximum}
FUNCTIONS = (*_ONE, *_SEVERAL, BEFORE)
_OPERATORS: dict[type, Callable[[Any, Any], Array]] = {
    ast.Add: jnp.add,
    ast.Sub: jnp.subtract,
    ast.Mult: jnp.multiply,
    ast.Div: jnp.divide,
    ast.Pow: jnp.power,
}
_COMPARISONS: dict[type, Callable[[Any, Any], Array]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_REST = f"use + - * / **, comparisons, {', '.join(FUNCTIONS)} and the names of signals"


@dataclass(frozen=True)
class Expression:
    """A checked expression; called with values by name it gives an array of their shape."""

    text: str
    names: frozenset[str]

    def __call__(self, values: Values) -> Array:
        shape = jnp.shape(next(iter(values.values())))
        found = _compile(ast.parse(self.text.strip(), mode="eval").body)(values)
        return jnp.broadcast_to(jnp.asarray(found, jnp.float32), shape)


def parse_expression(text: str, signals: Iterable[str], actuators: Iterable[str]) -> Expression:
    """The expression that a text writes down; a ValueError that says what may not stand in it."""
    measured, moved = list(signals), list(actuators)
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{len(text):,} characters; at most {MOST_CHARACTERS:,} are read")
    try:
        body = ast.parse(text.strip(), mode="eval").body
        _compile(body)
    except SyntaxError as error:
        place = f" at character {error.offset}" if error.offset else ""
        raise ValueError(f"{shown(text)} is no expression{place}; {_REST}") from None
    except (RecursionError, MemoryError):
        raise ValueError("it is nested too deeply; write it more simply") from None
    names = _names(body)
    for name in names:
        bare = name.removeprefix(f"{BEFORE}(").removesuffix(")")
        known = measured if bare != name else [*measured, *moved]
        if bare not in known:
            raise ValueError(
                f"there is no signal {shown(bare)}; {suggest(bare, known)} (a column of the file "
                "that holds the reward is written {column: NAME})"
            )
    return Expression(text, frozenset(names))


def _compile(node: ast.AST) -> Callable[[Values], Any]:
    """A part of an expression as a function of values."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _constant(node)
    if isinstance(node, ast.Name):
        if node.id in FUNCTIONS:
            raise _refused(node, f"{node.id} is a function; write {node.id}(...)")
        return lambda values: values[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner, sign = _compile(node.operand), -1.0 if isinstance(node.op, ast.USub) else 1.0
        return lambda values: sign * inner(values)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        function, parts = _OPERATORS[type(node.op)], (_compile(node.left), _compile(node.right))
        return lambda values: function(*(part(values) for part in parts))
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
        return _comparison(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _call(node, node.func.id)
    raise _refused(node, _REST)


def _constant(node: ast.Constant) -> Callable[[Values], Any]:
    try:
        number = float(node.value)  # pyright: ignore[reportArgumentType]
    except OverflowError:
        raise _refused(node, "a number that large cannot be held") from None
    return lambda values: number


def _comparison(node: ast.Compare) -> Callable[[Values], Any]:
    functions = [_COMPARISONS[type(op)] for op in node.ops]
    parts = [_compile(part) for part in (node.left, *node.comparators)]

    def holds(values: Values) -> Any:
        found = [part(values) for part in parts]
        pairs = zip(functions, found[:-1], found[1:], strict=True)
        each = [jnp.asarray(function(a, b), jnp.float32) for function, a, b in pairs]
        return reduce(jnp.multiply, each)

    return holds


def _call(node: ast.Call, name: str) -> Callable[[Values], Any]:
    if name == BEFORE:
        if len(node.args) != 1 or not isinstance(node.args[0], ast.Name):
            raise _refused(node, "write before(NAME), with the name of a signal")
        label = f"{BEFORE}({node.args[0].id})"
        return lambda values: values[label]
    parts, count = [_compile(part) for part in node.args], len(node.args)
    if name in _ONE and count == 1:
        return lambda values: _ONE[name](parts[0](values))
    if name in _SEVERAL and count >= 2:
        return lambda values: reduce(_SEVERAL[name], [part(values) for part in parts])
    wrong = f"{name} takes {'one value' if name in _ONE else 'two values or more'}"
    raise _refused(node, wrong if name in FUNCTIONS else f"there is no function {name}; {_REST}")


def _names(node: ast.AST) -> list[str]:
    """Names of values, in the order in which they stand."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        inner = [name for part in node.args for name in _names(part)]
        return [f"{BEFORE}({name})" for name in inner] if node.func.id == BEFORE else inner
    if isinstance(node, ast.Name):
        return [node.id]
    return [name for part in ast.iter_child_nodes(node) for name in _names(part)]


def _refused(node: ast.AST, remedy: str) -> ValueError:
    return ValueError(f"{shown(ast.unparse(node))} cannot stand here; {remedy}")
