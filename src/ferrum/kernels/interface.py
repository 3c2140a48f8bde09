"""The backend interface: tables of a step, the KV pool, kernels, replay. The operations are in `operations.py`.

All values that change per step are in `StepTables`, so that a network can be recorded once and replayed
(`kernels/recorded_program.py`). Letters as in `operations.py`, and S spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ferrum.cache.page_table import PageCopy
from ferrum.core.errors import Unsupported
from ferrum.core.state_shape import StateShape
from ferrum.kernels.adapters import AdapterSite, Change
from ferrum.kernels.exchange import RankExchange
from ferrum.kernels.op_spec import Extent, Program
from ferrum.kernels.operations import F32, Array, Bytes, Int32, Operations, Weight
from ferrum.kernels.services import PageSums, PanelQuantizer, RowSampler


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """A layer group of the KV pool: layers with equal page layout and one common page row per sequence.

    Attributes:
        name: of the group in the page table.
        num_pages, page_size: pages of this group, tokens per page.
        num_layers, num_kv_heads, key_dim, value_dim: stored per token, as in `KvShape`; value_dim is 0 where values
            are a part of the key.
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
class StatePool:
    """The slots of the states of recurrent layers. A slot has the states of one sequence in all of them.

    Attributes:
        num_slots: of all sequences.
        shapes: the states by state group: layers with equal shapes.
        kept_rows: rows of draft tokens that a slot keeps next to a state.
    """

    num_slots: int
    shapes: tuple[StateShape, ...]
    kept_rows: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
        return sum(shape.slot_bytes(self.kept_rows) for shape in self.shapes)


class StateTables(NamedTuple):
    """What a step does to the states of its spans: see `cache.state_slots`. All [S] int32.

    Attributes:
        read, write: slots; -1 reads a state of zeros.
        waiting: rows kept in the slot read, which are applied before the span's own.
        kept: last rows of the span, or of those waiting, that are kept in the slot written and not applied.
    """

    read: Int32
    write: Int32
    waiting: Int32
    kept: Int32


class GivenRows(NamedTuple):
    """Rows of a step that are used in place of embeddings.

    Attributes:
        rows: [n] int32, which rows of the step they are.
        values: f32 [n, H].
        added: f32 [n, columns], which `Operations.add_given` adds to their hidden states later; None: nothing.
    """

    rows: Int32
    values: F32
    added: F32 | None = None


class StepTokens:
    """The tokens that a step samples, one per span in the step's order.

    Attributes:
        tokens: int32 [S, 1] of the backend, or [S] of the host; set once the step is computed, or submitted to a
            backend that defers. Of a span that failed or samples nothing any number, even -1: a row that carries it has
            no effect.
    """

    __slots__ = ("tokens",)
    tokens: Array


class Carried(NamedTuple):
    """Rows of a step whose tokens a step before it samples. They may be on the device only.

    Attributes:
        rows: [n] int32, which rows of the step they are.
        spans: [n] int32, the spans of the other step that sample them: indices into `step.tokens`.
        step: the other step's tokens.
    """

    rows: Int32
    spans: Int32
    step: StepTokens


class AdapterRows(NamedTuple):
    """Rows of a step that use an adapter.

    Attributes:
        slot: of the adapter, in `AdapterSite.entries`.
        scale: factor of its low-rank products.
        rows: int32 [n], ascending, which rows of the step they are.
        logit_rows: int32 [m], ascending, which rows of logits belong to them: indices into `StepTables.logit_rows`.
    """

    slot: int
    scale: float
    rows: Int32
    logit_rows: Int32


class StepTables(NamedTuple):
    """Inputs of a step. Only `runtime/step_tables.py` makes them.

    Attributes:
        token_ids, positions: [R] int32; an id is -1 where it is carried.
        span_rows: [S+1] int32: span s has the rows span_rows[s] to span_rows[s+1].
        pages: per layer group [S, maximum pages of a sequence] int32; -1 for a page that a window group has freed.
        logit_rows: [G] int32 rows with requested logits.
        hidden_rows: [P] int32 rows with requested hidden states.
        given: rows used in place of embeddings, or None.
        states: what happens to the states of the spans; None if no layer has one.
        carried: token ids that steps in flight sample, step by step.
        adapters: of the rows that use some, in the order in which their results are added.
        places: [R, 3] int32, the time, row and column that rotations with axes are by; None: they are by `positions`.
        last_seen: [R] int32, the last position that each row sees, which never falls within a span; None: its own. Keys
            up to there are written before any row reads them.
    """

    token_ids: Int32
    positions: Int32
    span_rows: Int32
    pages: tuple[Int32, ...]
    logit_rows: Int32
    hidden_rows: Int32
    given: GivenRows | None = None
    states: StateTables | None = None
    carried: tuple[Carried, ...] = ()
    adapters: tuple[AdapterRows, ...] = ()
    places: Int32 | None = None
    last_seen: Int32 | None = None


def with_carried(tables: StepTables) -> Int32:
    """Return the token ids of a step with those that are carried, for a backend whose arrays are numpy's."""
    token_ids = tables.token_ids.copy()
    for rows, spans, step in tables.carried:
        token_ids[rows] = step.tokens.ravel()[spans]
    return token_ids


def row_counts(tables: StepTables, limits: Mapping[Extent, int] | None = None) -> dict[Extent, int]:
    """Return the rows of each extent in this step. Check them against the limits of a program."""
    counts = {
        Extent.ROWS: len(tables.token_ids),
        Extent.LOGITS: len(tables.logit_rows),
        Extent.HIDDEN: len(tables.hidden_rows),
        Extent.SPANS: len(tables.span_rows) - 1,
    }
    for extent, limit in (limits or {}).items():
        assert counts[extent] <= limit, f"{counts[extent]} {extent.value}, planned for {limit}"
    return counts


class ParameterForms(Protocol):
    """Conversion of parameters to the form of a backend, at load."""

    def weight(self, weight: Weight) -> Weight:
        """Convert a matrix. The original may be freed."""

    def vector(self, values: F32) -> Array:
        """Convert a norm weight or bias."""

    def rope_table(self, frequencies: tuple[float, ...], scaling: float, length: int) -> Array:
        """Compute cos and sin of position x frequency, times `scaling`, for positions below `length`."""


class NetworkOutput(NamedTuple):
    """Results of a submitted step. `Kernels.collect` waits for them.

    Attributes:
        logits: [G, V].
        best: most likely tokens [G, 1], see `Operations.best`.
        hidden: states [P, H].
        finite: flags [S, 1].
        others: what else a network returns, of a replay only in parts.
    """

    logits: Array
    best: Array
    hidden: Array
    finite: Array
    others: tuple[Array, ...] = ()


def output_of(rows: Sequence[Array]) -> NetworkOutput:
    """Return what `Program.output` lists: logits, best tokens, states, flags, and the others."""
    return NetworkOutput(rows[0], rows[1], rows[2], rows[3], tuple(rows[4:]))


Collected: TypeAlias = tuple[list[int], list[bool]]
"""The most likely token of each row of logits, -1 if a logit is not finite; and whether each span is finite."""


class Network(Protocol):
    """A model that runs a step on kernels: the Decoder, or a recorded program."""

    def __call__(self, kernels: Operations, states: list[Array] | None = None) -> NetworkOutput:
        """Run the step whose tables the kernels hold; `states` collects each layer's input and the final states."""


class Replay(Protocol):
    """A program ready to run steps.

    Attributes:
        program: the recorded program.
    """

    program: Program

    def submit(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:
        """Begin one step, or run it at once. The next step overwrites the returned arrays; see `Kernels.defers`."""

    def run_part(self, kernels: Kernels, tables: StepTables, part: range) -> NetworkOutput:  # noqa: ARG002
        """Run some operations of a step. Parts run in order, and nothing else on these kernels between them."""
        raise Unsupported("a step in parts", f"{type(self).__name__} runs whole steps")

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:
        """Run one step and return the seconds of each operation."""

    def nbytes(self, extent: Extent) -> int:
        """Return the bytes of the buffers of that extent."""

    def experts_read(self) -> int | None:
        """Return how many experts all steps so far have read, summed over layers; None: they are not counted."""
        return None


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


class RawSlots(Protocol):
    """The slots of a `StatePool` as bytes. All kernels of one `numerics_id` have the same layout.

    For each layer of each state group: the state (heads first, in f32), the rows kept next to it, and as one int64 how
    many tokens it has seen.
    """

    @property
    def slot_bytes(self) -> int:
        """Bytes of `read_slot`, which are those of `StatePool.slot_bytes`."""

    def copy_slot(self, source: int, target: int) -> None:
        """Copy a whole slot."""

    def read_slot(self, slot: int) -> Bytes:
        """Return the raw bytes of a slot, u8 [slot_bytes]."""

    def write_slot(self, slot: int, data: Bytes) -> None:
        """Write the bytes from `read_slot` to any slot of a pool with the same shapes."""


class Kernels(Operations, ParameterForms, RawPages, RawSlots, Protocol):
    """A backend bound to one pool. `begin` sets the step's tables; the operations then read them.

    Attributes:
        name: "reference", "native", ...
        numerics_id: the arithmetic and its version. Equal ids give equal bits.
        tier: the instruction tier; empty if there is only one.
        device: what it computes on, as in `ModelConfig.device`.
        defers: `submit` may return before the step is computed. Then one more step is submitted before the first one
            is collected; until then its `best` and `finite` stay as they are.
        threads: CPU threads that a step can use.
        table_bytes: bytes of all vectors and rope tables so far.
        captures: whether attention can store its softmax weights, and layers their inputs.
        takes_places: whether steps may have `StepTables.places` and `GivenRows.added`.
        captured: if not None, each attention appends its softmax weights, one array [heads, rows, tokens] per span.
    """

    name: str
    numerics_id: str
    device: str = "cpu"
    defers: bool = False
    table_bytes: int
    captures: bool
    takes_places: bool = True
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

    def collect(self, output: NetworkOutput) -> Collected:
        """Wait for a submitted step and return what the host needs of it. Raises what the step has raised."""
        return self.host(output.best).ravel().tolist(), self.host(output.finite).ravel().tolist()

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

    def share(self, memory: Bytes, rank: int, ranks: int) -> RankExchange:  # noqa: ARG002 - for backends with ranks
        """Exchange columns with other ranks through memory that all share, zeroed. Called before `prepare`.

        Args:
            memory: u8 [`exchange.memory_bytes`].
            rank, ranks: which one this is, and how many there are.

        Raises:
            Unsupported: these kernels compute on one rank only.
        """
        raise Unsupported(f"several ranks with the {self.name} kernels", "they exchange nothing: load the model on one")

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the scratch memory of the operations."""

    def allocate(self, groups: tuple[PoolGroup, ...], states: StatePool | None = None) -> None:
        """Allocate the pool, zeroed, and the slots of states. Call once, before the first step."""

    def planned_page_bytes(self, group: PoolGroup) -> int:
        """Return the bytes of a page of that group, with padding. `allocate` need not have run."""

    def adapter_memory(self, nbytes: int) -> Any:  # noqa: ARG002 - backends that need no memory of one piece
        """Return memory for the numbers of an adapter of that size, as `adapted` takes it."""
        return None

    def adapted(self, changes: tuple[Change | None, ...], memory: Any = None) -> Any:
        """Convert an adapter's changes at a site, one for each matrix or None, to an entry of the site.

        It may run while a step is computed.

        Args:
            memory: of the adapter, from `adapter_memory`.
        """

    def install(self, site: AdapterSite, slot: int, entry: Any | None) -> None:
        """Set the entry of a slot, or remove it. Called between steps only."""

    def begin(self, tables: StepTables) -> None:
        """Start a step and keep its tables.

        Raises:
            RuntimeError: a state has not seen exactly the tokens before its span: rows would be applied twice or
                skipped. Nothing has been written.
        """
