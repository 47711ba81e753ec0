"""Branches and loops of a program of one row, in an ONNX graph of any number of rows.

Rows may take different ways: what some row needs is computed for all, what none needs is skipped,
and each row keeps what its own way led to.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from worldloom.serving.onnx_graph import Graph, Row, Value, info

# (graph, a closed jaxpr, its arguments) -> its results
Evaluate = Callable[[Graph, Any, Sequence[Value]], list[Value]]


def branch(graph: Graph, params: Any, values: Sequence[Value], evaluate: Evaluate) -> list[Value]:
    """`cond` and `switch`: an `If` for each branch, taken where any row takes it."""
    index, *operands = values
    branches = params["branches"]
    if not isinstance(index, Row):
        return evaluate(graph, branches[int(index)], operands)
    chosen: list[Value] = []
    for number, inner in enumerate(branches):
        here = graph.node("Equal", index.name, graph.constant([[number]], index.dtype))
        if inner.jaxpr.eqns:
            result = _if_any(graph, here, inner, operands, evaluate)
        else:  # it hands on what it is given
            result = evaluate(graph, inner, operands)
        chosen = _where(graph, here, result, chosen) if number else result
    return chosen


def _if_any(
    graph: Graph, here: str, inner: Any, operands: Sequence[Value], evaluate: Evaluate
) -> list[Value]:
    """What a branch computes of all rows if any is `here` (B, 1); zeros if none is."""
    then, otherwise = graph.inner(), graph.inner()
    out = evaluate(then, inner, operands)
    zeros = [np.zeros(x.size, x.dtype) for x in out]
    graphs = {
        f"{name}_branch": body.closed([], results)
        for name, body, results in (("then", then, out), ("else", otherwise, zeros))
    }
    names = graph.nested("If", [graph.any(here)], len(out), **graphs)
    return _rows(names, out)


def _where(graph: Graph, here: str, one: Sequence[Value], other: Sequence[Value]) -> list[Value]:
    """One where a row is `here` (B, 1), else the other."""
    pairs = zip(one, other, strict=True)
    names = [graph.where(here, graph.spread(x), graph.spread(y), x.dtype) for x, y in pairs]
    return _rows(names, one)


def loop(graph: Graph, params: Any, values: Sequence[Value], evaluate: Evaluate) -> list[Value]:
    """`while`: a `Loop` that goes on while any row does; the others stay as they are."""
    first = params["cond_nconsts"]
    last = first + params["body_nconsts"]

    def test(place: Graph, state: Sequence[Value]) -> str:
        (going,) = evaluate(place, params["cond_jaxpr"], [*values[:first], *state])
        return place.spread(going)

    body = graph.inner()
    turn, on, going = (body.new_name() for _ in range(3))
    states = _rows([body.new_name() for _ in values[last:]], values[last:])
    out = evaluate(body, params["body_jaxpr"], [*values[first:last], *states])
    out = _where(body, going, out, states)
    still = test(body, out)
    flag = Row(going, (), np.dtype(np.bool_))
    inside = body.closed(
        [info(turn, (), np.int64), info(on, (), np.bool_), *_infos([flag, *states])],
        [flag._replace(name=still), *out],
        goes_on=body.any(still),
    )
    start = test(graph, values[last:])
    inputs = ["", graph.any(start), start, *map(graph.spread, values[last:])]
    _, *names = graph.nested("Loop", inputs, len(out) + 1, body=inside)
    return _rows(names, out)


def scan(graph: Graph, params: Any, values: Sequence[Value], evaluate: Evaluate) -> list[Value]:
    """`scan`: a `Loop` in which everything that is carried on depends on the row."""
    if "ft_in" in params:  # jax 0.12
        constants, carried, _ = map(len, params["ft_in"].unpack())
    else:
        constants, carried = params["num_consts"], params["num_carry"]
    length, last = params["length"], constants + carried
    body = graph.inner()
    turn, on = body.new_name(), body.new_name()
    kinds = [x.aval for x in params["jaxpr"].jaxpr.invars[constants:last]]
    states = _rows([body.new_name() for _ in kinds], kinds)
    place = turn
    if params["reverse"]:
        place = body.node("Sub", body.constant(length - 1, np.int64), turn)
    slices = [_slice_of(body, x, place, length) for x in values[last:]]
    out = evaluate(body, params["jaxpr"], [*values[:constants], *states, *slices])
    inside = body.closed(
        [info(turn, (), np.int64), info(on, (), np.bool_), *_infos(states)],
        out,
        goes_on=on,
    )
    starts = [graph.spread(x) for x in values[constants:last]]
    inputs = [graph.constant(length, np.int64), graph.constant(True), *starts]
    names = graph.nested("Loop", inputs, len(out), body=inside)
    result = _rows(names[:carried], out[:carried])
    for name, x in zip(names[carried:], out[carried:], strict=True):  # (length, B, K)
        line = graph.node("Transpose", name, perm=(1, 0, 2))
        if params["reverse"]:
            backwards = graph.constant(np.arange(length, dtype=np.int64)[::-1].copy())
            line = graph.node("Gather", line, backwards, axis=1)
        line = graph.reshaped(line, (length * x.size,))
        result.append(Row(line, (length, *x.shape), np.dtype(x.dtype)))
    return result


def _slice_of(body: Graph, value: Value, place: str, length: int) -> Value:
    """What a loop sees of an array (length, ...) in its turn."""
    shape, size = value.shape[1:], prod(value.shape[1:])
    if isinstance(value, Row):
        block = body.reshaped(value.name, (length, size))
        return Row(body.node("Gather", block, place, axis=1), shape, value.dtype)
    line = body.node("Gather", body.constant(value.reshape(length, size)), place, axis=0)
    return Row(body.expand(body.reshaped(line, (size,)), size), shape, value.dtype)


def _rows(names: Sequence[str], like: Sequence[Any]) -> list[Value]:
    pairs = zip(names, like, strict=True)
    return [Row(name, tuple(x.shape), np.dtype(x.dtype)) for name, x in pairs]


def _infos(rows: Sequence[Any]) -> list[Any]:
    return [info(x.name, ("batch", x.size), x.dtype) for x in rows]
