"""The self-check's operations of recurrent layers: two steps of two sequences, the first of them with drafts."""

from __future__ import annotations

from typing import Final

import numpy as np

from ferrum.core.state_shape import StateShape
from ferrum.kernels.interface import Kernels, StatePool, StateTables
from ferrum.kernels.op_attributes import SIGMOID, SILU, DeltaShape
from ferrum.runtime.known_inputs import Answer, Inputs, known_tables

_TAPS: Final = 3
_CHANNELS: Final = 70  # four vectors of 16 and a part
_SHAPE: Final = DeltaShape(group=1, layer=0, num_heads=4, num_key_heads=2, key_dim=41, value_dim=40)

STATES: Final = StatePool(
    num_slots=4,
    shapes=(
        StateShape((_TAPS - 1) * _CHANNELS, _CHANNELS),
        StateShape(_SHAPE.state_numbers, _SHAPE.input_columns + 2 * _SHAPE.num_heads),
    ),
    kept_rows=2,
)

_FIRST: Final = ((0, 4), (0, 9)), StateTables(*np.array([(-1, -1), (0, 1), (0, 0), (2, 0)], np.int32))
_SECOND: Final = ((3, 9), (9, 4)), StateTables(*np.array([(0, 1), (2, 3), (1, 0), (0, 0)], np.int32))
"""Spans, and slots: of the first sequence two rows are kept, of which one counts. The last rows of the second step are
tiny and huge; they are of the second sequence."""


def state_answers(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Advance states, read one of them, norm heads and gate them, and activate by the gate's curve."""
    heads, columns = _SHAPE.num_heads, _SHAPE.input_columns
    weight, bias = (kernels.vector(inputs.numbers(size, at=size)) for size in (_TAPS * _CHANNELS, _CHANNELS))
    decay, shift = kernels.vector(-1 - inputs.numbers(heads, at=5)), kernels.vector(3 * inputs.numbers(heads, at=9))
    found: list[Answer] = []
    for spans, states in (_FIRST, _SECOND):
        kernels.begin(known_tables(spans)._replace(states=states))
        x, z = inputs.rows(_CHANNELS), inputs.rows(columns)
        a, b = 8 * inputs.numbers(len(z), heads, at=31), 8 * inputs.numbers(len(z), heads, at=61)
        found.append(kernels.short_conv(x, weight, (0, 0), bias, SILU))
        found.append(kernels.delta_rule(z, a, b, decay, shift, _SHAPE))
    y, gate = inputs.rows(3 * 40), inputs.rows(3 * 40)[::-1].copy()
    norm = kernels.vector(inputs.numbers(40, at=17))
    found += [kernels.read_slot(2), kernels.gated_norm(y, gate, norm, 1e-6, 3), kernels.gate(y, gate, SIGMOID)]
    return [*found, kernels.gated_norm(y, gate, norm, 1e-5, 3, SIGMOID), kernels.activate(y, SIGMOID)]
