"""The exact plan of an executor's memory, and the formula that users estimate with.

Sizing the pool and checking free memory is in `runtime/memory.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from ferrum.core.json_record import JsonRecord
from ferrum.core.values import whole

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def size(nbytes: int) -> str:
    """Return bytes as text in the largest binary unit that they fill."""
    amount, unit = float(nbytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{nbytes} B" if unit == 0 else f"{amount:,.1f} {_UNITS[unit]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPart(JsonRecord):
    """One layer group of the KV pool.

    Attributes:
        name: of the group in the page table.
        num_pages, page_size: number of pages, and tokens per page.
        page_bytes: bytes of a page over the group's layers, padding included.
        resident_tokens: maximum tokens of one sequence held at once (a window and its slack); None holds all of them.
    """

    name: str
    num_pages: int
    page_size: int
    page_bytes: int
    resident_tokens: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.num_pages * self.page_bytes

    def pages(self, length: int) -> int:
        """Return the number of pages that a sequence of `length` tokens holds. Raises RequestError."""
        length = whole("length", length, least=0)
        held = length if self.resident_tokens is None else min(length, self.resident_tokens)
        return -(-held // self.page_size)

    def longest(self, length: int) -> int:
        """Return the tokens, at most `length`, that a sequence alone in the pool can have. Raises RequestError."""
        return length if self.pages(length) <= self.num_pages else self.num_pages * self.page_size


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart(JsonRecord):
    """The slots of the states of recurrent layers.

    Attributes:
        num_slots: of all sequences and snapshots.
        per_sequence: that one sequence may hold: its state, and one for each of its steps in flight.
        slot_bytes: bytes of a slot over all layers.
        snapshots: slots that no sequence needs, for states of shared prefixes.
    """

    num_slots: int
    per_sequence: int
    slot_bytes: int
    snapshots: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.num_slots * self.slot_bytes

    @property
    def sequences(self) -> int:
        """Sequences that the slots suffice for."""
        return (self.num_slots - self.snapshots) // self.per_sequence


def longest_sequence(pool: Iterable[PoolPart], length: int) -> int:
    """Return the tokens, at most `length`, that one sequence alone in a pool can have."""
    return min([length, *(part.longest(length) for part in pool)])


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan(JsonRecord):
    """Every byte that an executor allocates, by purpose. A ready executor allocates nothing more.

    The memory of the process grows by `on_host` after `import ferrum`, once every page has been written to: the system
    commits no page before.

    Attributes:
        weights: the parameters as held (after quantisation).
        activations: the buffers of the largest step, and the scratch memory of each thread.
        activation_row: bytes of them per token of a step.
        tables: token ids, positions, page rows and rotation tables.
        pool: the layer groups of the KV pool.
        states: the slots of states; None if no layer has one.
        libraries: numpy, the native library and the network's objects, as an estimate.
        allowance: what the process may grow by in addition: libraries that need more, and freed memory that the
            allocator keeps. It is not part of `total`.
        device: "cpu", or the device whose memory holds everything but the libraries.
    """

    weights: int
    activations: int
    activation_row: int
    tables: int
    pool: tuple[PoolPart, ...]
    states: StatePart | None = None
    libraries: int = 0
    allowance: int = 0
    device: str = "cpu"

    @property
    def kv_pool(self) -> int:
        """Bytes of the KV pool, with the states."""
        return sum(part.nbytes for part in self.pool) + (0 if self.states is None else self.states.nbytes)

    @property
    def kv_per_token(self) -> Fraction:
        """Bytes of the KV pool per token, over all groups."""
        return sum((Fraction(part.page_bytes, part.page_size) for part in self.pool), start=Fraction())

    @property
    def own(self) -> int:
        """Bytes without the libraries, which several models share."""
        return self.weights + self.kv_pool + self.activations + self.tables

    @property
    def total(self) -> int:
        """Bytes in total."""
        return self.own + self.libraries

    @property
    def on_device(self) -> int:
        """Bytes in the memory of a device."""
        return 0 if self.device == "cpu" else self.own

    @property
    def on_host(self) -> int:
        """Bytes in the memory of the process."""
        return self.total - self.on_device

    def max_sequences(self, length: int) -> int:
        """Return how many sequences of `length` tokens fit in the pool together. Raises RequestError below 1."""
        length = whole("length", length, least=1)
        slots = () if self.states is None else (self.states.sequences,)
        return min((*slots, *(part.num_pages // part.pages(length) for part in self.pool)), default=0)

    def fitting(self, context: int) -> list[tuple[int, int]]:
        """Return (length, sequences that fit) for each power of two from 256 up to the context, and for the context.

        Raises RequestError for a context below 1.
        """
        context = whole("context", context, least=1)
        powers = [1 << exponent for exponent in range(8, context.bit_length()) if 1 << exponent < context]
        return [(length, self.max_sequences(length)) for length in (*powers, context)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequirements(JsonRecord):
    """An upper bound of what a fresh process grows by for work of a given size. `MemoryPlan` is exact.

    Attributes:
        parameter_memory: bytes of the weights as held.
        activation_memory_per_token: bytes of a step's buffers per token of the step.
        kv_cache_memory_per_token: bytes of a token's keys and values in ONE layer, on average over all, rounded up.
        overhead_memory: bytes independent of the work: buffers, tables, libraries, half-filled pages, states of
            snapshots, padding in the pool, and the plan's allowance.
        state_memory_per_sequence: bytes of the states of recurrent layers that a sequence may hold.
    """

    parameter_memory: int
    activation_memory_per_token: int
    kv_cache_memory_per_token: int
    overhead_memory: int
    state_memory_per_sequence: int = 0

    def calculate_total_memory(self, batch_size: int, sequence_length: int, num_layers: int) -> int:
        """Return parameters + batch x (sequence x (activation + kv x layers) + state) + overhead, in bytes.

        Raises RequestError for an argument that is no integer or less than 0; `param` names it.
        """
        batch_size = whole("batch_size", batch_size, least=0)
        sequence_length = whole("sequence_length", sequence_length, least=0)
        num_layers = whole("num_layers", num_layers, least=0)
        tokens = batch_size * sequence_length
        per_token = self.activation_memory_per_token + self.kv_cache_memory_per_token * num_layers
        states = self.state_memory_per_sequence * batch_size
        return self.parameter_memory + per_token * tokens + states + self.overhead_memory


def memory_requirements(plan: MemoryPlan, kv_bytes: int, num_layers: int, max_batch_size: int) -> MemoryRequirements:
    """Return the formula's constants for a plan.

    Args:
        plan: the exact plan.
        kv_bytes: keys and values of one token in all layers.
        num_layers: all layers, also those that store nothing.
        max_batch_size: sequences of a batch, each of which may leave a page nearly empty.
    """
    partial_pages = sum(part.page_bytes - part.page_bytes // part.page_size for part in plan.pool) * max_batch_size
    padding = (plan.kv_per_token - kv_bytes) * max((part.num_pages * part.page_size for part in plan.pool), default=0)
    states, snapshots = 0, 0
    if plan.states is not None:
        states = plan.states.per_sequence * plan.states.slot_bytes
        snapshots = plan.states.snapshots * plan.states.slot_bytes
    return MemoryRequirements(
        parameter_memory=plan.weights,
        activation_memory_per_token=plan.activation_row,
        kv_cache_memory_per_token=-(-kv_bytes // max(num_layers, 1)),
        overhead_memory=plan.activations
        + plan.tables
        + plan.libraries
        + plan.allowance
        + partial_pages
        + snapshots
        + ceil(padding),
        state_memory_per_sequence=states,
    )
