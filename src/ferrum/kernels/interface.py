"""The backend interface: operations of a decoder, tables of a step, the KV pool.

`nn/` and `models/` call `Operations` and see opaque arrays without a row count. Operations are functional, except for
those that write the pool. All values that change per step are in `StepTables`, so that a network can be recorded once
and replayed (`kernels/program_recorder.py`).

Letters: R rows of the step (all tokens of all spans), S spans, G rows with requested logits, P rows with requested
hidden states, H hidden size, V vocabulary, N outputs and K inputs of a product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ferrum.cache.page_table import PageCopy
from ferrum.core.errors import Unsupported
from ferrum.kernels.op_spec import Extent, Kind, OpSpec, Pool, Program, Value, operation
from ferrum.kernels.services import PageSums, PanelQuantizer, RowSampler

Array = Annotated[Any, Kind.VALUE]
"""Rows of a step: an array of the backend, or a `Value` while recording. Above the backend only `len(array)`, a row
`array[i]`, a run of rows `array[a:b]` and its `copy()` are used; `Kernels.host` gives the numbers."""

Vector = Annotated[Any, Kind.VECTOR]
"""A norm weight, bias or rope table in the form of the backend."""

Int32 = NDArray[np.int32]
F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Weight(Protocol):
    """A matrix [N, K] in a format of `quant/`.

    Attributes:
        shape: (N, K): outputs, inputs.
        format: name ("float32", "bfloat16", "int8", ...).
        nbytes: bytes held.
    """

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def format(self) -> str: ...
    @property
    def nbytes(self) -> int: ...

    def matmul(self, x: F32) -> F32:
        """Multiply x [M, K] f32 -> [M, N] f32, with the rounding of the format and a fixed order of additions."""

    def rows(self, ids: Int32) -> F32:
        """Return the given rows [len(ids), K], dequantised: an embedding look-up."""

    def dequantize(self) -> F32:
        """Return the matrix [N, K] as f32. Backends without native support for a format use this."""


Matrix = Annotated[Weight, Kind.MATRIX]
"""A weight that an operation multiplies by."""

Table = Annotated[Weight, Kind.TABLE]
"""A weight whose rows an operation looks up."""


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """A layer group of the KV pool: layers with equal page layout and one common page row per sequence.

    Attributes:
        name: of the group in the page table.
        num_pages, page_size: pages of this group, tokens per page.
        num_layers, num_kv_heads, key_dim, value_dim: stored per token.
        format: of keys and values: "float32", "bfloat16" or "int8" (with one f32 scale per token and head).
    """

    name: str
    num_pages: int
    page_size: int
    num_layers: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    format: str


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Attention parameters of a layer.

    Attributes:
        group, layer: layer group of the pool, and index within the group.
        num_heads, num_kv_heads, head_dim: runs of num_heads / num_kv_heads query heads share a KV head.
        scale: factor of q . k.
        window: a query at position p sees keys at positions > p - window; None: all keys.
        value_dim: width of a value; None: head_dim.
    """

    group: int
    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    value_dim: int | None = None

    @property
    def output_columns(self) -> int:
        """Columns of the result: a value of each query head."""
        return self.num_heads * (self.head_dim if self.value_dim is None else self.value_dim)


class StepTables(NamedTuple):
    """Inputs of a step. Only `runtime/step_tables.py` makes them.

    Attributes:
        token_ids, positions: [R] int32.
        span_rows: [S+1] int32: span s has the rows span_rows[s] to span_rows[s+1].
        pages: per layer group [S, maximum pages of a sequence] int32; -1 for a page that a window group has freed.
        logit_rows: [G] int32 rows with requested logits.
        hidden_rows: [P] int32 rows with requested hidden states.
        embeddings: f32 [R, H] used in place of embedding rows, or None.
    """

    token_ids: Int32
    positions: Int32
    span_rows: Int32
    pages: tuple[Int32, ...]
    logit_rows: Int32
    hidden_rows: Int32
    embeddings: F32 | None = None


class Operations(Protocol):
    """The operations that a network calls in a step.

    Each method declares one: its signature the operands, its body the shapes of the results. A new attribute gets a
    default, so that no other network changes.
    """

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        """Record or run an operation whose method is not overridden."""
        raise Unsupported(f"the operation {spec.name}", f"{type(self).__name__} does not implement it")

    @operation()
    def embed(self, table: Table) -> Array:
        """Look up the rows of the step's token ids, or return the step's embeddings -> [R, H]."""
        return Value(Extent.ROWS, table.shape[1])

    @operation()
    def norm(self, x: Array, weight: Vector, eps: float) -> Array:
        """Apply RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight, [R, H] -> [R, H]."""
        return x.like()

    @operation()
    def add_norm(self, residual: Array, delta: Array, weight: Vector, eps: float) -> tuple[Array, Array]:
        """Return residual + delta and its RMSNorm, both [R, H]."""
        return residual.like(), residual.like()

    @operation()
    def linear(self, x: Array, weights: tuple[Matrix, ...], biases: tuple[Vector | None, ...]) -> tuple[Array, ...]:
        """Multiply one input by each weight: [R, K] -> [R, N] each."""
        return tuple(x.like(weight.shape[0]) for weight in weights)

    @operation()
    def gated_linear(self, x: Array, gate: Matrix, up: Matrix) -> Array:
        """Compute silu(x gate^T) * (x up^T): [R, K] -> [R, N] (SwiGLU, Shazeer 2020)."""
        return x.like(gate.shape[0])

    @operation(pool=Pool.WRITE)
    def rope_store(
        self,
        q: Array,
        k: Array,
        v: Array,
        shape: AttentionShape,
        rope: Vector | None,
        q_norm: Vector | None,
        k_norm: Vector | None,
        eps: float,
    ) -> Array:
        """Norm q and k per head, rotate them, write k and v to the pool at each row's position -> q [R, heads x dim]"""
        return q.like()

    @operation(pool=Pool.READ)
    def attention(self, q: Array, shape: AttentionShape) -> Array:
        """Attend from each row to the stored keys of its sequence up to its position -> [R, heads x value dim]."""
        return q.like(shape.output_columns)

    @operation()
    def gather(self, x: Array) -> Array:
        """Return the step's `logit_rows` of x: [R, H] -> [G, H]."""
        return Value(Extent.LOGITS, x.columns)

    @operation()
    def head(self, x: Array, weight: Matrix) -> Array:
        """Compute logits in f32: [G, H] -> [G, V]."""
        return x.like(weight.shape[0])

    @operation()
    def best(self, logits: Array) -> Array:
        """Return the most likely token of each row, the lowest id among equals: [G, V] -> int32 [G, 1].

        A row with a NaN or infinite logit gets -1.
        """
        return Value(logits.extent, 1, np.int32)

    @operation()
    def gather_hidden(self, x: Array) -> Array:
        """Return the step's `hidden_rows` of x: [R, H] -> [P, H]."""
        return Value(Extent.HIDDEN, x.columns)

    @operation()
    def finite(self, x: Array) -> Array:
        """Return whether all numbers of each span are finite: [R, H] -> bool [S, 1]."""
        return Value(Extent.SPANS, 1, np.bool_)


class ParameterForms(Protocol):
    """Conversion of parameters to the form of a backend, at load."""

    def weight(self, weight: Weight) -> Weight:
        """Convert a matrix. The original may be freed."""

    def vector(self, values: F32) -> Array:
        """Convert a norm weight or bias."""

    def rope_table(self, frequencies: tuple[float, ...], scaling: float, length: int) -> Array:
        """Compute cos and sin of position x frequency, times `scaling`, for positions below `length`."""


class NetworkOutput(NamedTuple):
    """Results of a step.

    Attributes:
        logits: [G, V].
        best: most likely tokens [G, 1], see `Operations.best`.
        hidden: states [P, H].
        finite: flags [S, 1].
    """

    logits: Array
    best: Array
    hidden: Array
    finite: Array


class Network(Protocol):
    """A model that runs a step on kernels: the Decoder, or a recorded program."""

    def __call__(self, kernels: Operations) -> NetworkOutput:
        """Run the step whose tables the kernels hold."""


class Replay(Protocol):
    """A program ready to run steps.

    Attributes:
        program: the recorded program.
    """

    program: Program

    def __call__(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:
        """Run one step. The next step overwrites the returned arrays."""

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:
        """Run one step and return the seconds of each operation."""

    def nbytes(self, extent: Extent) -> int:
        """Return the bytes of the buffers of that extent."""


class RawPages(Protocol):
    """The pages of a KV pool as bytes, wherever they are. Kernels have them, and so have several ranks."""

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy whole pages of keys and values, before a step writes to the targets. Repeating it changes nothing."""

    def page_bytes(self, group: str) -> int:
        """Return the bytes of `read_page`, the same for all kernels of one `numerics_id`."""

    def read_page(self, group: str, page: int) -> Bytes:
        """Return the raw bytes of a page, u8 [page_bytes], for any kernels of the same `numerics_id`."""

    def write_page(self, group: str, page: int, data: Bytes) -> None:
        """Write the bytes from `read_page` to any page of a group with the same shape."""


class Kernels(Operations, ParameterForms, RawPages, Protocol):
    """A backend bound to one pool. `begin` sets the step's tables; the operations then read them.

    Attributes:
        name: "reference", "native", ...
        numerics_id: the arithmetic and its version. Equal ids give equal bits.
        tier: the instruction tier; empty if there is only one.
        device: what it computes on, as in `ModelConfig.device`.
        threads: CPU threads that a step can use.
        table_bytes: bytes of all vectors and rope tables so far.
        captures: whether attention can store its softmax weights.
        captured: if not None, each attention appends its softmax weights, one array [heads, rows, tokens] per span.
    """

    name: str
    numerics_id: str
    device: str = "cpu"
    table_bytes: int
    captures: bool
    captured: list[list[Array]] | None

    @property
    def threads(self) -> int:
        return 1

    @property
    def tier(self) -> str:
        return ""

    @property
    def description(self) -> str:
        """The name, and the instruction tier if there are several."""
        return f"{self.name} {self.tier}".rstrip()

    def prepare(self, program: Program, limits: Mapping[Extent, int]) -> Replay:
        """Return the fastest replay of a program on these kernels, with buffers for the largest step.

        Args:
            program: a recorded program. The pool is allocated.
            limits: maximum rows of each extent.
        """

    def host(self, array: Array) -> NDArray[Any]:
        """Return the numbers of an array, for use before the next step. It may share the array's memory."""
        return np.asarray(array)

    def sampler(self) -> RowSampler | None:
        """Return the backend's sampler of rows of logits; None: rows are sampled by numpy."""
        return None

    def quantizer(self) -> PanelQuantizer | None:
        """Return the backend's quantiser; None: matrices are quantised by numpy, and not held in panels."""
        return None

    def page_sums(self) -> PageSums:
        """Return the fastest computation of `kernels.reference.page_sums`."""

    def device_memory(self) -> int | None:
        """Return the free bytes of the device's own memory; None: the pool is in the memory of this process."""
        return None

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the scratch memory of the operations."""

    def allocate(self, groups: tuple[PoolGroup, ...]) -> None:
        """Allocate the pool, zeroed. Call once, before the first step."""

    def planned_page_bytes(self, group: PoolGroup) -> int:
        """Return the bytes of a page of that group, with padding. `allocate` need not have run."""

    def begin(self, tables: StepTables) -> None:
        """Start a step and keep its tables."""
