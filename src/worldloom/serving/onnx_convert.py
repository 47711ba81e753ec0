"""A program of one row, as JAX traces it, written as an ONNX graph of any number of rows.

Whatever only moves numbers about (slices, reshapes, broadcasts, indexing with constants) is one
`Gather`, or nothing at all; see `worldloom.serving.onnx_graph`. What depends on no row is computed
now, calls are written out, and branches and loops become `If` and `Loop`; see
`worldloom.serving.onnx_control`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax.extend.core import Literal

from worldloom.core.types import Array
from worldloom.serving import onnx_control
from worldloom.serving.onnx_graph import Graph, Row, Value, info

CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint")
MOVES = ("slice", "squeeze", "reshape", "broadcast_in_dim", "transpose", "rev", "concatenate",
         "stack", "unstack", "expand_dims", "gather", "dynamic_slice", "split", "copy")  # fmt: skip
SAME = {
    "add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max",
    "min": "Min", "pow": "Pow", "neg": "Neg", "abs": "Abs", "sign": "Sign", "exp": "Exp",
    "log": "Log", "sin": "Sin", "cos": "Cos", "tan": "Tan", "tanh": "Tanh", "logistic": "Sigmoid",
    "sqrt": "Sqrt", "floor": "Floor", "ceil": "Ceil", "erf": "Erf", "atan": "Atan",
    "not": "Not", "and": "And", "or": "Or", "xor": "Xor",
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}  # fmt: skip
REDUCE = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin",
          "reduce_prod": "ReduceProd", "argmin": "ArgMin", "argmax": "ArgMax",
          "reduce_and": "ReduceMin", "reduce_or": "ReduceMax"}  # fmt: skip

CONTROL = {"scan": onnx_control.scan, "while": onnx_control.loop, "cond": onnx_control.branch}


def build(
    run: Callable[..., Sequence[Array]],
    asked: dict[str, np.ndarray],
    outputs: Sequence[str],
    opset: int,
) -> Any:
    """`run`, a function of rows, as an ONNX model of batches like `asked`, (b, ...) by name."""
    closed = jax.make_jaxpr(run)(*(x[0] for x in asked.values()))
    graph = Graph()
    shape = graph.node("Shape", next(iter(asked)))
    graph.batch = graph.node("Gather", shape, graph.constant([0], np.int64), axis=0)
    rows = [
        Row(graph.reshaped(name, (x[0].size,)), x.shape[1:], x.dtype) for name, x in asked.items()
    ]
    result = _evaluate(graph, closed, rows)
    shapes = []
    for name, value in zip(outputs, result, strict=True):
        graph.output(graph.reshaped(graph.spread(value), value.shape), name)
        shapes.append(info(name, ("batch", *value.shape), value.dtype))
    inputs = [info(name, ("batch", *x.shape[1:]), x.dtype) for name, x in asked.items()]
    constants = list(graph.constants.values())
    made = onnx.helper.make_graph(graph.nodes, "policy", inputs, shapes, constants)
    opsets = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(made, opset_imports=opsets, producer_name="worldloom")
    model.ir_version = 10  # what runtimes of that opset read
    return model


def _evaluate(graph: Graph, closed: Any, args: Sequence[Value]) -> list[Value]:
    jaxpr, consts = closed.jaxpr, closed.consts
    known: dict[Any, Value] = dict(zip(jaxpr.constvars, map(np.asarray, consts), strict=True))
    known |= dict(zip(jaxpr.invars, args, strict=True))

    def read(x: Any) -> Value:
        if isinstance(x, Literal):
            return np.asarray(x.val, x.aval.dtype)  # pyright: ignore[reportAttributeAccessIssue]
        return known[x]

    for step in jaxpr.eqns:
        values = [read(x) for x in step.invars]
        outs = [x.aval for x in step.outvars]
        inner = step.params.get("jaxpr") or step.params.get("call_jaxpr")
        if all(0 in x.shape for x in outs):
            result = [np.zeros(x.shape, x.dtype) for x in outs]
        elif step.primitive.name in CALLS:
            result = _evaluate(graph, inner, values)
        elif not any(isinstance(x, Row) for x in values):
            result = _bind(step, values)
        elif step.primitive.name in CONTROL:
            result = CONTROL[step.primitive.name](graph, step.params, values, _evaluate)
        elif step.primitive.name in MOVES:
            result = _moved(graph, step, values)
        else:
            names = _computed(graph, step, values, outs[0])
            result = [Row(names, outs[0].shape, outs[0].dtype)]
        known |= dict(zip(step.outvars, result, strict=True))
    return [read(x) for x in jaxpr.outvars]


def _bind(step: Any, values: Sequence[Any]) -> list[np.ndarray]:
    """What a step computes of numbers."""
    result = step.primitive.bind(*map(jnp.asarray, values), **step.params)
    return [np.asarray(x) for x in (result if step.primitive.multiple_results else [result])]


def _moved(graph: Graph, step: Any, values: Sequence[Value]) -> list[Value]:
    """A step that only moves numbers: found out by letting it move their places."""
    name, moving = step.primitive.name, list(values)
    if name in ("gather", "dynamic_slice"):  # the rest of these are indices
        moving = moving[:1]
        if any(isinstance(x, Row) for x in values[1:]):
            return [_picked(graph, step, values)]
    ends = np.cumsum([x.size for x in moving])
    places = [
        np.arange(end - x.size, end, dtype=np.int32).reshape(x.shape)
        for x, end in zip(moving, ends, strict=True)
    ]
    if len(moving) == 1:
        whole = moving[0].name  # pyright: ignore[reportAttributeAccessIssue]
    else:
        whole = graph.node("Concat", *(graph.spread(x) for x in moving if x.size), axis=1)
    result = []
    for order in _bind(step, [*places, *values[len(moving) :]]):
        if order.size and (order.min() < 0 or order.max() >= ends[-1]):
            raise ValueError(f"{name} reaches beyond its array")
        moved = graph.take(whole, int(ends[-1]), order)
        result.append(Row(moved, order.shape, moving[0].dtype))
    return result


def _picked(graph: Graph, step: Any, values: Sequence[Value]) -> Value:
    """`dynamic_slice` or `gather` at places that depend on the row: one of all that there are.

    Every number that the first unknown index can be is tried, and what it leads to is taken where
    the index is that number; of several unknown indices, one after the other.
    """
    array, *places = values
    at = next(i for i, x in enumerate(places) if isinstance(x, Row))
    place: Any = places[at]
    shape, axis, order = step.outvars[0].aval.shape, at, np.zeros(1, int)
    if step.primitive.name == "gather":  # places (..., 1): each of them takes a slice of its own
        numbers = step.params["dimension_numbers"]
        if place.shape[-1] != 1:
            raise ValueError("gather by several indices at once that are not known before")
        axis = numbers.start_index_map[0]
        order = np.arange(place.size).reshape(place.shape[:-1])
        order = np.broadcast_to(np.expand_dims(order, numbers.offset_dims), shape)
    most, options = array.shape[axis], []
    for number in range(most):
        tried = [array, *places]
        tried[1 + at] = np.full(place.shape, number, place.dtype)
        depends = any(isinstance(x, Row) for x in tried)
        options += _moved(graph, step, tried) if depends else _bind(step, tried)
    low, high = (graph.constant(np.asarray([[x]], place.dtype)) for x in (0, most - 1))
    index = graph.node("Min", graph.node("Max", place.name, low), high)
    dtype = np.dtype(options[0].dtype)
    if place.size == 1 and not any(isinstance(x, Row) for x in options):
        table = graph.constant(np.stack([x.reshape(-1) for x in options]))
        line = graph.node("Gather", table, graph.cast(index, np.int64), axis=0)
        return Row(graph.reshaped(line, (options[0].size,)), shape, dtype)
    if place.size > 1:
        index = graph.take(index, place.size, order)
    chosen = graph.spread(options[0])
    for number, option in enumerate(options[1:], 1):
        here = graph.node("Equal", index, graph.constant(np.asarray([[number]], place.dtype)))
        chosen = graph.where(here, graph.operand(option), chosen, dtype)
    return Row(chosen, shape, dtype)


def _computed(graph: Graph, step: Any, values: Sequence[Value], out: Any) -> str:
    """The name of what a step computes."""
    name, params = step.primitive.name, step.params
    if name in REDUCE:
        return _reduced(graph, name, params["axes"], values[0], out)
    if name == "dot_general":
        return _product(graph, params["dimension_numbers"], values)
    if name == "scatter-add":
        return _scattered(graph, step, values)
    x = [_spread_to(graph, value, out.shape) for value in values]
    if name in ("not", "and", "or", "xor") and out.dtype != np.bool_:
        return graph.node(f"Bitwise{SAME[name]}", *x)
    if name in SAME:
        return graph.node(SAME[name], *x)
    match name:
        case "ne":
            return graph.node("Not", graph.node("Equal", *x))
        case "select_n" if len(x) == 3:
            which = x[0] if values[0].dtype == np.bool_ else graph.cast(x[0], np.bool_)
            return graph.where(which, x[2], x[1], out.dtype)
        case "clamp":
            return graph.node("Min", graph.node("Max", x[1], x[0]), x[2])
        case "integer_pow":
            return _power(graph, x[0], params["y"], out.dtype)
        case "square":
            return graph.node("Mul", x[0], x[0])
        case "one_minus_square":  # the slope of tanh, in jax 0.12
            one = graph.constant(np.ones((1, 1), out.dtype))
            return graph.node("Sub", one, graph.node("Mul", x[0], x[0]))
        case "rsqrt":
            return graph.node("Reciprocal", graph.node("Sqrt", x[0]))
        case "shift_left" | "shift_right_logical" if np.issubdtype(out.dtype, np.unsignedinteger):
            return graph.node("BitShift", *x, direction=name.split("_")[1].upper())
        case "rem":
            return graph.node("Mod", *x, fmod=1)
        case "is_finite":
            wrong = graph.node("Or", graph.node("IsNaN", x[0]), graph.node("IsInf", x[0]))
            return graph.node("Not", wrong)
        case "convert_element_type":
            return graph.cast(x[0], out.dtype)
        case "expm1":
            one = graph.constant(np.ones((1, 1), out.dtype))
            return graph.node("Sub", graph.node("Exp", x[0]), one)
        case "log1p":
            one = graph.constant(np.ones((1, 1), out.dtype))
            return graph.node("Log", graph.node("Add", x[0], one))
        case "stop_gradient" | "reduce_precision" | "optimization_barrier":
            return x[0]
    raise ValueError(f"ONNX has no counterpart for {name} here")


def _spread_to(graph: Graph, value: Value, shape: tuple[int, ...]) -> str:
    """An operand of an operation whose result has this shape: its axes of size 1 are repeated."""
    if value.size == 1 or value.shape == shape:
        return graph.operand(value)
    if isinstance(value, Row):
        places = np.arange(value.size).reshape(value.shape)
        return graph.take(value.name, value.size, np.broadcast_to(places, shape))
    return graph.operand(np.broadcast_to(value, shape))


def _power(graph: Graph, x: str, y: int, dtype: Any) -> str:
    if y == 0:
        raise ValueError("a power of 0")
    result = functools.reduce(lambda power, _: graph.node("Mul", power, x), range(abs(y) - 1), x)
    return result if y > 0 else graph.node("Div", graph.constant(np.ones((1, 1), dtype)), result)


def _reduced(graph: Graph, name: str, axes: Sequence[int], value: Value, out: Any) -> str:
    kept = [i for i in range(len(value.shape)) if i not in axes]
    places = np.arange(value.size).reshape(value.shape).transpose(*kept, *axes)
    line = graph.take(graph.operand(value), value.size, places)
    many = math.prod(value.shape[i] for i in axes)
    if value.dtype == np.bool_:
        line = graph.cast(line, np.int32)
    block = graph.reshaped(line, (value.size // many, many))
    if name in ("argmin", "argmax"):
        result = graph.node(REDUCE[name], block, axis=2, keepdims=0)
    else:
        result = graph.node(REDUCE[name], block, graph.constant([2], np.int64), keepdims=0)
    dtype = np.dtype(out.dtype)
    same = dtype == value.dtype and dtype != np.bool_ and not name.startswith("arg")
    return result if same else graph.cast(result, dtype)


def _product(graph: Graph, dimensions: Any, values: Sequence[Value]) -> str:
    """A matrix product by `Einsum`, with the batch in front of whatever depends on the row."""
    (left, right), (left_batch, right_batch) = dimensions
    letters = iter("abcdefghijklmnopqrstuvwxy")
    one = [next(letters) for _ in values[0].shape]
    other = [next(letters) for _ in values[1].shape]
    for i, j in (*zip(left, right, strict=True), *zip(left_batch, right_batch, strict=True)):
        other[j] = one[i]
    shared = [one[i] for i in left_batch]
    rest = [x for i, x in enumerate(one) if i not in (*left, *left_batch)]
    rest += [x for j, x in enumerate(other) if j not in (*right, *right_batch)]
    names, terms = [], []
    for value, term in zip(values, (one, other), strict=True):
        row = isinstance(value, Row)
        names.append(graph.reshaped(value.name, value.shape) if row else graph.constant(value))
        terms.append(("z" if row else "") + "".join(term))
    kept = "".join(shared + rest)
    sizes = dict(zip(one + other, (*values[0].shape, *values[1].shape), strict=True))
    product = graph.node("Einsum", *names, equation=f"{terms[0]},{terms[1]}->z{kept}")
    return graph.reshaped(product, (math.prod(sizes[x] for x in kept),))


def _scattered(graph: Graph, step: Any, values: Sequence[Value]) -> str:
    """`scatter-add` at places that are known: a matrix of ones says what is added to what."""
    array, places, updates = values
    if isinstance(places, Row):
        raise ValueError("scatter-add at places that are not known before")
    ones = np.eye(updates.size, dtype=np.float32).reshape(-1, *updates.shape)
    empty = np.zeros(array.shape, np.float32)
    matrix = np.stack([_bind(step, [empty, places, one])[0].reshape(-1) for one in ones])
    added = graph.node("MatMul", graph.operand(updates), graph.constant(matrix))
    return graph.node("Add", graph.operand(array), added)
