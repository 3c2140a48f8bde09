"""The states of recurrent layers in the memory of this process, and how a step advances them.

This is the specification of every operation that has a state: the result of a row depends on the rows before it in its
sequence only, however they were cut into steps, passes and drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import StatePool, StateTables, StepTables
from ferrum.kernels.op_attributes import DeltaShape
from ferrum.kernels.operations import F32, Bytes
from ferrum.kernels.reference.fused_sums import fused
from ferrum.kernels.reference.reference_experts import softplus
from ferrum.kernels.reference.reference_math import exp, squares_sum
from ferrum.kernels.reference.reference_rows import sigmoid

Advance: TypeAlias = Callable[[F32, F32], F32]
"""Advances a state [numbers], in place, by a row [row_numbers], and returns the row's result [columns]."""


class StateMemory:
    """States by state group, layer and slot, each with the rows kept next to it.

    A state also holds how many tokens it has seen. A step that would apply a row twice, or skip one, fails.

    Args:
        pool: sizes.

    Attributes:
        slot_bytes: bytes of a slot.
    """

    def __init__(self, pool: StatePool) -> None:
        self.slot_bytes = pool.slot_bytes
        self._states: list[F32] = []
        self._rows: list[F32] = []
        self._seen: list[NDArray[np.int64]] = []
        for shape in pool.shapes:
            lead = shape.num_layers, pool.num_slots
            self._states.append(np.zeros((*lead, shape.numbers), np.float32))
            self._rows.append(np.zeros((*lead, pool.kept_rows, shape.row_numbers), np.float32))
            self._seen.append(np.zeros(lead, np.int64))

    def copy_slot(self, source: int, target: int) -> None:
        """Copy a whole slot."""
        self.write_slot(target, self.read_slot(source))

    def read_slot(self, slot: int) -> Bytes:
        """Return the raw bytes of a slot, u8 [slot_bytes]; see `interface.RawSlots`."""
        return np.concatenate([part.view(np.uint8) for part in self._parts(slot)])

    def write_slot(self, slot: int, data: Bytes) -> None:
        """Write the bytes from `read_slot`."""
        for part in self._parts(slot):
            part[:] = data[: part.nbytes].view(part.dtype)
            data = data[part.nbytes :]

    def _parts(self, slot: int) -> Iterator[NDArray[Any]]:
        """Yield the arrays [n] of a slot, in the order of its bytes."""
        for states, rows, seen in zip(self._states, self._rows, self._seen, strict=True):
            for layer in range(len(states)):
                yield from (states[layer, slot], rows[layer, slot].reshape(-1), seen[layer, slot : slot + 1])

    def check(self, tables: StepTables) -> None:
        """Check that the states which a step reads have seen the tokens before its spans. Nothing is written.

        Raises:
            RuntimeError: a row would be applied twice, or skipped.
        """
        assert tables.states is not None, "the page table has slots"
        for start, read, _, waiting, _ in zip(tables.positions[tables.span_rows[:-1]], *tables.states, strict=True):
            for seen in self._seen:
                for known in seen[:, read] if read >= 0 else (0,):
                    if known + waiting != start:
                        has = f"has seen {known} tokens and {waiting} rows wait"
                        raise RuntimeError(f"the state in slot {read} {has}, not {start}")

    def advance(self, group: int, layer: int, tables: StepTables, rows: F32, apply: Advance) -> F32:
        """Advance the states of a layer by the rows of a step.

        Args:
            group, layer: the layer's place, from `Builder.state_slot`.
            tables: of the step, which `check` has passed.
            rows: [R, row_numbers].
            apply: the layer's arithmetic.

        Returns: the results of the rows, [R, columns].
        """
        assert tables.states is not None, "a layer has a state, so the page table has slots"
        results: list[F32] = []
        for span, (begin, end) in enumerate(pairwise(tables.span_rows)):
            results += self._advance_span(group, layer, tables.states, span, rows[begin:end], apply)
        return np.stack(results)

    def _advance_span(
        self, group: int, layer: int, tables: StateTables, span: int, new: F32, apply: Advance
    ) -> list[Any]:
        states, kept_rows, seen = self._states[group][layer], self._rows[group][layer], self._seen[group][layer]
        read, write, waiting, kept = (int(column[span]) for column in tables)
        state = np.zeros_like(states[0]) if read < 0 else states[read].copy()
        rows = np.concatenate([kept_rows[read, :waiting], new])
        results, applied = list[Any](), len(rows) - kept
        for index, row in enumerate(rows):
            if index == applied:
                states[write] = state  # what follows are drafts, which may be rejected
            result = apply(state, row)
            if index >= waiting:
                results.append(result)
        if not kept:
            states[write] = state
        kept_rows[write, :kept] = rows[applied:]
        seen[write] = (0 if read < 0 else int(seen[read])) + applied
        return results


# ---- Recurrent operations of the reference kernels: how a row advances a state. docs/numerics.md, section States ----

CHAINS = 4
"""Accumulators of a sum over the key dimension. A GPU would wait for one chain at every term."""

L2_EPS = np.float32(1e-6)


def convolve(state: F32, row: F32, weight: F32) -> F32:
    """Push a row [C] to the rows of the state [(taps - 1) x C], in place, and return the convolution [C]."""
    window = np.concatenate([state, row]).reshape(-1, len(row))
    y = np.zeros_like(row)
    for x, w in zip(window, weight.reshape(window.shape), strict=True):
        y = fused(x, w, y)
    state[:] = window[1:].ravel()
    return y


def advance_delta(state: F32, row: F32, decay: F32, shift: F32, shape: DeltaShape) -> F32:
    """Advance the states [heads x key dim x value dim] by a row, in place, and return the result.

    Args:
        row: x, a and b of `Operations.delta_rule`, one after another.
    """
    heads, values = shape.num_heads, shape.output_columns
    keys = (shape.input_columns - values) // 2
    q, k, v, a, b = np.split(row, np.cumsum([keys, keys, values, heads]))
    head = np.arange(heads)
    head = head % shape.num_key_heads if shape.interleaved else head // (heads // shape.num_key_heads)
    q = (unit(q.reshape(-1, shape.key_dim)) * np.float32(shape.key_dim**-0.5))[head]
    k = unit(k.reshape(-1, shape.key_dim))[head]
    v = v.reshape(heads, shape.value_dim)
    s = state.reshape(heads, shape.key_dim, shape.value_dim)
    s *= exp(decay * softplus(a + shift))[:, None, None]
    change = (v - chained(s, k)) * sigmoid(b)[:, None]
    s[:] = fused(k[:, :, None], change[:, None, :], s)
    return chained(s, q).ravel()


def unit(x: F32) -> F32:
    """Return vectors [..., n] with length 1: x * (1 / sqrt(sum of squares + 1e-6))."""
    inverse: F32 = np.float32(1) / np.sqrt(squares_sum(x) + L2_EPS)
    return x * inverse[..., None]


def chained(s: F32, x: F32) -> F32:
    """Multiply s [heads, keys, values] by x [heads, keys] -> [heads, values].

    Term i is added by `fused` to accumulator i mod 4; these are added as (v0 + v1) + (v2 + v3).
    """
    chains = [np.zeros((s.shape[0], s.shape[2]), np.float32) for _ in range(CHAINS)]
    for i in range(s.shape[1]):
        chains[i % CHAINS] = fused(s[:, i], x[:, i, None], chains[i % CHAINS])
    return (chains[0] + chains[1]) + (chains[2] + chains[3])
