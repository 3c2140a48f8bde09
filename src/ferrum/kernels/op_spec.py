"""Declarations of operations, and programs recorded from them.

A method of `Operations` (`operations.py`) is the only declaration of an operation. Its signature gives the operands and
their kinds, its body the shapes of the results. The recorder, the interpreter, eager native calls, the liveness of
values and the limits of the benchmark read it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, wraps
from typing import Any, TypeVar, cast, get_args, get_type_hints

import numpy as np

Method = TypeVar("Method", bound=Callable[..., Any])


class Kind(Enum):
    """The kind of an operand. Annotated types of `operations.py` carry it."""

    VALUE = "rows that this step computes"
    MATRIX = "one or several weights that multiply every row"
    TABLE = "a weight whose rows are looked up"
    VECTOR = "one or several parameters in the form of the backend"
    ATTRIBUTE = "a constant of the network"


class Pool(Enum):
    """How an operation uses the KV pool. Its attribute is the `AttentionShape` of the layer."""

    READ = "read"
    WRITE = "write"


class Extent(Enum):
    """The kind of row count of a value. The count itself varies by step."""

    ROWS = "rows"
    LOGITS = "logit rows"
    HIDDEN = "hidden rows"
    SPANS = "spans"

    __hash__ = object.__hash__  # the hash of Enum runs Python code, a dozen times per step


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A result of an operation: [extent, columns] of `dtype`."""

    extent: Extent
    columns: int
    dtype: type[np.generic] = np.float32

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.columns * np.dtype(self.dtype).itemsize

    def like(self, columns: int | None = None) -> Value:
        """Return another value with as many rows, of f32 and by default as wide."""
        return Value(self.extent, self.columns if columns is None else columns)


@dataclass(frozen=True)
class OpSpec:
    """The declaration of an operation.

    Attributes:
        shapes: the declared method. Given arguments with a `Value` for each value, it returns its results as values.
        pool: how the operation uses the KV pool; None: not at all.
        in_place: the operand that the results overwrite; nothing uses it afterwards.
    """

    shapes: Callable[..., Any]
    pool: Pool | None = None
    in_place: str | None = None

    @property
    def name(self) -> str:
        """The name of the method that each backend implements."""
        return self.shapes.__name__

    @cached_property
    def operands(self) -> Mapping[str, Kind]:
        """The kind of each operand, in order."""
        hints = get_type_hints(self.shapes, include_extras=True)
        return {name: _kind(hints[name]) for name in list(self._signature.parameters)[1:]}

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.shapes)

    def bind(self, *given: Any, **named: Any) -> tuple[Any, ...]:
        """Return the arguments of a call in the order of the operands, with defaults. Raises TypeError."""
        bound = self._signature.bind(None, *given, **named)
        bound.apply_defaults()
        return bound.args[1:]

    def results(self, arguments: tuple[Any, ...]) -> Any:
        """Return the result as a `Value`, or several as a tuple, for arguments with `Value`s."""
        return self.shapes(None, *arguments)

    def pick(self, arguments: tuple[Any, ...], *kinds: Kind) -> tuple[Any, ...]:
        """Return the arguments of these kinds, several weights one by one, without those that are None."""
        pairs = zip(arguments, self.operands.values(), strict=True)
        found = [each for argument, kind in pairs if kind in kinds for each in as_tuple(argument)]
        return tuple(each for each in found if each is not None)

    def with_values(self, arguments: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
        """Return the arguments with each value changed, in order, also in tuples. An absent value stays None."""
        pairs = zip(arguments, self.operands.values(), strict=True)
        return tuple(_changed(a, change) if kind is Kind.VALUE else a for a, kind in pairs)

    def overwritten(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values whose memory the results take, in order; nothing if the results have their own."""
        names = list(self.operands)
        return () if self.in_place is None else as_tuple(arguments[names.index(self.in_place)])


@dataclass(frozen=True, slots=True)
class Op:
    """A recorded call: the operation's declaration, its arguments (values and constants), its results."""

    spec: OpSpec
    arguments: tuple[Any, ...]
    results: tuple[Value, ...]

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.spec.name

    def operands(self) -> tuple[Value, ...]:
        """Return the arguments that are values."""
        return self.spec.pick(self.arguments, Kind.VALUE)

    def weights(self) -> tuple[Any, ...]:
        """Return the arguments that are weights, which `nn.linear.weight_names` names."""
        return self.spec.pick(self.arguments, Kind.MATRIX, Kind.TABLE)


@dataclass(frozen=True, slots=True)
class Program:
    """A recorded network.

    Attributes:
        ops: in order.
        buffers: per buffer its extent, and the bytes of a row of its widest value.
        placement: buffer number of each value.
        output: the results of the network, as in `NetworkOutput`.
    """

    ops: tuple[Op, ...]
    buffers: tuple[tuple[Extent, int], ...]
    placement: dict[Value, int]
    output: tuple[Value, ...]


def operation(*, pool: Pool | None = None, in_place: str | None = None) -> Callable[[Method], Method]:
    """Declare a method of `Operations` as an operation. Calls of the method go to `Operations.compute`.

    A backend either implements `compute` for all operations or overrides the method.
    """

    def declare(shapes: Method) -> Method:
        spec = OpSpec(shapes, pool, in_place)

        @wraps(shapes)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            return self.compute(spec, spec.bind(*given, **named))

        call.spec = spec  # type: ignore[attr-defined]
        return cast(Method, call)

    return declare


def declared(owner: type) -> dict[str, OpSpec]:
    """Return the operations that a class declares, by name."""
    return {name: method.spec for name, method in vars(owner).items() if hasattr(method, "spec")}


def as_tuple(made: Any) -> tuple[Any, ...]:
    """Return the results of an operation as a tuple, also a single one."""
    return made if isinstance(made, tuple) else (made,)


def _changed(argument: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(argument, tuple):
        return tuple(_changed(each, change) for each in argument)
    return None if argument is None else change(argument)


def _kind(hint: Any) -> Kind:
    """Return the kind in an annotated type, also inside a union or a tuple; any other type is an attribute's."""
    for part in (*getattr(hint, "__metadata__", ()), *map(_kind, get_args(hint))):
        if isinstance(part, Kind) and part is not Kind.ATTRIBUTE:
            return part
    return Kind.ATTRIBUTE
