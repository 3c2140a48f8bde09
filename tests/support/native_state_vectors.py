"""Cases of operations with states for the conformance program, and of norms with gates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ferrum.core.state_shape import StateShape
from ferrum.kernels.interface import StatePool, StateTables
from ferrum.kernels.op_attributes import SIGMOID, SILU, Activation, DeltaShape
from ferrum.kernels.reference import ReferenceKernels
from native_twin import normal, tables_of
from vector_fields import Case, Fields, tables

STEPS = (
    ([(0, 3), (0, 40)], [(-1, -1), (0, 1), (0, 0), (0, 0)]),
    ([(3, 4), (40, 5)], [(0, 1), (2, 3), (0, 0), (3, 1)]),
    ([(6, 1), (45, 2), (0, 1)], [(2, 3, -1), (0, 1, 4), (2, 1, 0), (2, 0, 0)]),
    ([(7, 1), (47, 20)], [(0, 1), (0, 1), (2, 0), (2, 0)]),
)
"""Steps as spans, and the slots that they read and write, rows that wait and rows to keep. The last one is in place."""


def states(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases of two sequences with drafts, forked by a third that begins."""
    for taps, channels, heads, key_heads, key_dim, value_dim, activation in (
        (1, 5, 1, 1, 1, 1, None),
        (2, 70, 4, 2, 8, 16, SILU),
        (4, 600, 3, 3, 33, 40, SIGMOID),
        (4, 64, 4, 2, 128, 128, SILU),
    ):
        shape = DeltaShape(1, 0, heads, key_heads, key_dim, value_dim)
        shapes = (
            StateShape((taps - 1) * channels, channels),
            StateShape(shape.state_numbers, shape.input_columns + 2 * heads),
        )
        kernels, pool = ReferenceKernels(), StatePool(5, shapes, 3)
        kernels.allocate((), pool)
        weight, bias = normal(rng, taps * channels), normal(rng, channels)
        decay, shift = -np.exp(normal(rng, heads)), normal(rng, heads)
        fields: Fields = {"weight": weight, "bias": bias, "decay": decay, "shift": shift, "taps": taps}
        fields |= {"heads": heads, "key_heads": key_heads, "key_dim": key_dim, "value_dim": value_dim}
        fields |= {"query_scale": float(np.float32(key_dim**-0.5)), "slots": 5, "kept_rows": 3, "steps": len(STEPS)}
        fields |= {} if activation is None else {"curve": activation.kind}
        for number, (spans, slots) in enumerate(STEPS):
            made = tables_of(rng, spans, ())._replace(states=StateTables(*(np.array(each, np.int32) for each in slots)))
            kernels.begin(made)
            count, step = len(made.token_ids), f"{number} "
            x, z = normal(rng, count, channels), normal(rng, count, shape.input_columns)
            a, b = normal(rng, count, heads), normal(rng, count, heads)
            results = {
                f"{step}convolved": kernels.short_conv(x, weight, (0, 0), bias, activation),
                f"{step}advanced": kernels.delta_rule(z, a, b, decay, shift, shape),
            }
            inputs = {f"{step}x": x, f"{step}z": z, f"{step}a": a, f"{step}b": b}
            fields |= {**tables(step, made), **inputs, **results}
        yield "states", fields | {f"slot {slot}": kernels.read_slot(slot) for slot in range(5)}


def gated_norms(rng: np.random.Generator) -> Iterator[Case]:
    kernels = ReferenceKernels()
    for rows, heads, dim in ((1, 1, 1), (3, 5, 33), (2, 32, 128)):
        for activation in (SILU, SIGMOID, Activation("gelu")):
            x, gate, weight = normal(rng, rows, heads * dim), normal(rng, rows, heads * dim), normal(rng, dim)
            y = kernels.gated_norm(x, gate, weight, 1e-6, heads, activation)
            yield "gated norm", {"x": x, "gate": gate, "weight": weight, "eps": 1e-6, "curve": activation.kind, "y": y}


STATES = states, gated_norms
