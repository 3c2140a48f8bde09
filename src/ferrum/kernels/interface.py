"""What a backend offers: the operations of a decoder, the tables of a step, the pool of keys and values.

`nn/` and `models/` are written against `Operations` and see opaque arrays without a row count. Operations are
functional, except `rope_store`, which writes the pool. They are as coarse as hardware wants them fused. What changes
from step to step comes in through `StepTables` alone, so that a network walked once can be recorded and replayed
(`kernels/program_recorder.py`).

Letters: R rows of the step (all tokens of all spans), S spans, G rows whose logits are wanted, P rows whose final
hidden state is, H hidden size, V vocabulary, N and K the outputs and inputs of a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ferrum.cache.page_table import PageCopy

Array = Any
"""A backend's own array; the recorder's stands for one that does not exist yet."""

Int32 = NDArray[np.int32]
F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Weight(Protocol):
    """A matrix [N, K] that knows its format. Formats live in `quant/`.

    Attributes:
        shape: (N, K): outputs, inputs.
        format: its name ("float32", "bfloat16", "int8", ...).
        nbytes: bytes held.
    """

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def format(self) -> str: ...
    @property
    def nbytes(self) -> int: ...

    def matmul(self, x: F32) -> F32:
        """x [M, K] f32 -> [M, N] f32, inputs rounded as the format says, each element in one fixed order."""
        ...

    def rows(self, ids: Int32) -> F32:
        """The given rows [len(ids), K], dequantised: an embedding look-up."""
        ...

    def dequantize(self) -> F32:
        """The matrix [N, K] as f32: every format works on every backend through this."""
        ...


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """A layer group of the KV pool: layers whose pages are laid out alike and share one page row per sequence.

    Attributes:
        name: the page table's name for it.
        num_pages, page_size: pages of this group and tokens per page.
        num_layers, num_kv_heads, key_dim, value_dim: what a token stores.
        format: of keys and values: "float32", "bfloat16" or "int8" (with a scale in f32 per token and head).
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
    """What both attention operations need to know of a layer.

    Attributes:
        group, layer: where in the pool: layer group, and index within the group.
        num_heads, num_kv_heads, head_dim: query heads share KV heads in runs of num_heads / num_kv_heads.
        scale: multiplies q . k.
        window: a query at position p sees keys at positions > p - window; None sees all.
    """

    group: int
    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None


class StepTables(NamedTuple):
    """Everything of a step that a recorded program does not know. Made in `runtime/step_tables.py` and nowhere else.

    Attributes:
        token_ids, positions: [R] int32.
        span_rows: [S+1] int32: span s has the rows span_rows[s] to span_rows[s+1].
        pages: per layer group [S, most pages of a sequence] int32; -1 where a window group has let a page go.
        logit_rows: [G] int32 rows whose logits are wanted.
        hidden_rows: [P] int32 rows whose final hidden states are wanted.
        embeddings: f32 [R, H] given in place of looked-up rows, or None.
    """

    token_ids: Int32
    positions: Int32
    span_rows: Int32
    pages: tuple[Int32, ...]
    logit_rows: Int32
    hidden_rows: Int32
    embeddings: F32 | None = None


class Operations(Protocol):
    """What a network may do in a step: all that `nn/` and `models/` call while they are walked."""

    def embed(self, table: Weight) -> Array:
        """Rows of the embedding for the step's token ids (or the given ones) -> [R, H]."""
        ...

    def norm(self, x: Array, weight: Array, eps: float) -> Array:
        """RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight, [R, H] -> [R, H]."""
        ...

    def add_norm(self, residual: Array, delta: Array, weight: Array, eps: float) -> tuple[Array, Array]:
        """(residual + delta, its RMSNorm), both [R, H]."""
        ...

    def linear(self, x: Array, weights: tuple[Weight, ...], biases: tuple[Array | None, ...]) -> tuple[Array, ...]:
        """One product per weight over one input: [R, K] -> [R, N] each."""
        ...

    def gated_linear(self, x: Array, gate: Weight, up: Weight) -> Array:
        """silu(x gate^T) * (x up^T): [R, K] -> [R, N] (SwiGLU, Shazeer 2020)."""
        ...

    def rope_store(
        self,
        q: Array,
        k: Array,
        v: Array,
        shape: AttentionShape,
        rope: Array | None,
        q_norm: Array | None,
        k_norm: Array | None,
        eps: float,
    ) -> Array:
        """Norm q and k per head, rotate them, write k and v to the pool at each row's position -> q [R, heads x dim]"""
        ...

    def attention(self, q: Array, shape: AttentionShape) -> Array:
        """Causal attention of each row over its sequence's stored keys, its own included -> [R, heads x dim]."""
        ...

    def gather(self, x: Array) -> Array:
        """The step's `logit_rows` of x: [R, H] -> [G, H]."""
        ...

    def head(self, x: Array, weight: Weight) -> Array:
        """Logits f32: [G, H] -> [G, V]."""
        ...

    def best(self, logits: Array) -> Array:
        """The most likely token of each row, the lowest id among equals: [G, V] -> int32 [G, 1].

        -1 where a number of the row is NaN or infinite.
        """
        ...

    def gather_hidden(self, x: Array) -> Array:
        """The step's `hidden_rows` of x: [R, H] -> [P, H]."""
        ...

    def finite(self, x: Array) -> Array:
        """Whether a span's rows are free of NaN and infinity: [R, H] -> bool [S, 1]."""
        ...


class ParameterForms(Protocol):
    """What a backend makes of a model's parameters at load."""

    def weight(self, weight: Weight) -> Weight:
        """A matrix in the backend's form; the given one may be let go."""
        ...

    def vector(self, values: F32) -> Array:
        """A norm weight or bias in the backend's form."""
        ...

    def rope_table(self, frequencies: tuple[float, ...], scaling: float, length: int) -> Array:
        """Cos and sin of position x frequency, times `scaling`, for positions below `length`."""
        ...


class Kernels(Operations, ParameterForms, Protocol):
    """A backend bound to one pool. `begin` sets the step's tables, which the operations then read.

    Attributes:
        name: "reference", "native", ...
        numerics_id: kernel set, instruction tier and version: equal ids give equal bits.
        table_bytes: bytes of the vectors and rope tables made so far.
        captures: whether attention can keep its softmax weights.
        captured: where a list, and the backend can, each attention appends them: one array [heads, rows, tokens] per
            span.
    """

    name: str
    numerics_id: str
    table_bytes: int
    captures: bool
    captured: list[list[Array]] | None

    @property
    def scratch_bytes(self) -> int:
        """Bytes that operations keep for themselves, those of recorded programs and all that have run."""
        ...

    def allocate(self, groups: tuple[PoolGroup, ...]) -> None:
        """Allocate the pool, zeroed; called once, before the first step."""
        ...

    def planned_page_bytes(self, group: PoolGroup) -> int:
        """Bytes that a page of such a group will take in the pool, padding included: asked before `allocate`."""
        ...

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy whole pages of keys and values, raw bytes, before a step that writes to the targets."""
        ...

    def page_bytes(self, group: str) -> int:
        """Bytes of a page of the group, as it lies in the pool."""
        ...

    def read_page(self, group: str, page: int) -> Bytes:
        """A page's keys and values, raw: u8 [page_bytes]. What they mean is known to kernels of one `numerics_id`."""
        ...

    def write_page(self, group: str, page: int, data: Bytes) -> None:
        """Put back what `read_page` has told, in this or another page of a group of that shape."""
        ...

    def begin(self, tables: StepTables) -> None:
        """Start a step: keep its tables."""
        ...


class NetworkOutput(NamedTuple):
    """What one walk through a network leaves.

    Attributes:
        logits: [G, V].
        best: see `Operations.best`, [G, 1].
        hidden: states [P, H].
        finite: flags [S, 1].
    """

    logits: Array
    best: Array
    hidden: Array
    finite: Array


class Network(Protocol):
    """Anything that can be walked with kernels: the Decoder, or a recorded program."""

    def __call__(self, kernels: Operations) -> NetworkOutput:
        """Run the step whose tables the kernels hold."""
        ...
