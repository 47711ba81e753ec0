"""ONNX graphs in which every value that depends on the row is a tensor (B, K).

Its K numbers stand in a line, whatever their shape is; what depends on no row is a constant.
Operations then work along the batch by themselves, and reshaping is nothing at all.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx


class Row(NamedTuple):
    """A tensor (B, K) of the graph: in each row, an array of this shape and kind."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Value = Row | np.ndarray


class Graph:
    """Nodes of a graph on their way into ONNX."""

    def __init__(self, batch: str | None = None):
        self.nodes: list[Any] = []
        self.constants: dict[tuple[Any, ...], Any] = {}  # of the outermost graph
        self.batch = batch  # a tensor (1,): how many rows there are
        self._known: dict[tuple[Any, ...], str] = {}
        self._count = [0]

    def inner(self) -> "Graph":
        """The body of a loop or branch: it sees the names around it, and shares the constants."""
        body = Graph(self.batch)
        body.constants, body._count = self.constants, self._count
        return body

    def new_name(self) -> str:
        self._count[0] += 1
        return f"t{self._count[0]}"

    def constant(self, value: Any, dtype: Any = None) -> str:
        """The name of a constant tensor."""
        value = np.asarray(value, dtype)
        key = (value.shape, value.dtype.str, value.tobytes())
        if key not in self.constants:
            self.constants[key] = onnx.numpy_helper.from_array(value, self.new_name())
        return self.constants[key].name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The output of a node; one that is there already is not made again."""
        key = (op, inputs, tuple(sorted(attributes.items())))
        if key not in self._known:
            name = self.new_name()
            self.nodes.append(onnx.helper.make_node(op, list(inputs), [name], **attributes))
            self._known[key] = name
        return self._known[key]

    def output(self, name: str, output: str | None = None) -> str:
        """A tensor under another name, as outputs of a graph must have one each."""
        output = output or self.new_name()
        self.nodes.append(onnx.helper.make_node("Identity", [name], [output]))
        return output

    def nested(self, op: str, inputs: Sequence[str], count: int, **graphs: Any) -> list[str]:
        """The `count` outputs of a node with graphs in it."""
        names = [self.new_name() for _ in range(count)]
        self.nodes.append(onnx.helper.make_node(op, list(inputs), names, **graphs))
        return names

    def closed(
        self, inputs: Sequence[Any], out: Sequence[Value], goes_on: str | None = None
    ) -> Any:
        """This graph inside another: of a branch, or of a loop, which also says if it `goes_on`."""
        flag = [] if goes_on is None else [info(self.output(goes_on), (), np.bool_)]
        outputs = [info(self.output(self.spread(x)), ("batch", x.size), x.dtype) for x in out]
        return onnx.helper.make_graph(self.nodes, self.new_name(), inputs, [*flag, *outputs])

    # Values ----------------------------------------------------------------------------------

    def operand(self, value: Value) -> str:
        """A value for an operation that broadcasts."""
        return value.name if isinstance(value, Row) else self.constant(value.reshape(1, -1))

    def spread(self, value: Value) -> str:
        """A value as (B, K), also where it is a constant."""
        name = self.operand(value)
        return name if isinstance(value, Row) else self.expand(name, value.size)

    def expand(self, name: str, size: int) -> str:
        """A tensor (1, size), the same for all rows, as (B, size)."""
        shape = self.node("Concat", self.batch or "", self.constant([size], np.int64), axis=0)
        return self.node("Expand", name, shape)

    def where(self, here: str, one: str, other: str, dtype: Any) -> str:
        """One where `here` is set, else the other."""
        if np.dtype(dtype) != np.bool_:
            return self.node("Where", here, one, other)
        # Of flags, onnxruntime knows no Where.
        kept = self.node("And", self.node("Not", here), other)
        return self.node("Or", self.node("And", here, one), kept)

    def any(self, name: str) -> str:
        """Whether any of the flags (B, 1) is set, a flag ()."""
        most = self.node("ReduceMax", self.cast(name, np.int32), keepdims=0)
        return self.cast(most, np.bool_)

    def cast(self, name: str, dtype: Any) -> str:
        return self.node("Cast", name, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def take(self, name: str, size: int, order: np.ndarray) -> str:
        """The numbers of (B, size) in this order, a line of places; nothing where it is theirs."""
        order = order.reshape(-1)
        if np.array_equal(order, np.arange(size)):
            return name
        return self.node("Gather", name, self.constant(order.astype(np.int64)), axis=1)

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """A tensor as (B, *shape)."""
        return self.node("Reshape", name, self.constant([-1, *shape], np.int64))


def info(name: str, shape: Sequence[Any], dtype: Any) -> Any:
    """What ONNX is told of an input or output; names in the shape are sizes that are not known."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(name, kind, list(shape))
