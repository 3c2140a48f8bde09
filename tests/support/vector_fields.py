"""Fields of the cases of `native_vectors.py` that several operations have: weights, and tables of a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from ferrum.kernels.interface import StepTables
from ferrum.kernels.operations import Weight
from ferrum.quant.block_weight import BlockWeight
from ferrum.quant.dense import DenseWeight
from native_weights import weight_of

Fields = dict[str, Any]
"""Arrays, numbers and texts by name."""

Case = tuple[str, Fields]


def matrix(rng: np.random.Generator, key: str, shape: tuple[int, int], format) -> tuple[Weight, Fields]:
    """Return a weight of any format and its fields: floats, or the panels of blocks and their numbers."""
    weight = weight_of(rng, *shape, format)
    if isinstance(weight, DenseWeight):
        return weight, {key: weight.values, f"{key} format": weight.format}
    assert isinstance(weight, BlockWeight)
    return weight, {key: weight.dequantize(), f"{key} panels": weight.panels, f"{key} format": weight.format}


def tables(prefix: str, made: StepTables) -> Fields:
    """Return the tables of a step; a prefix keeps steps of a case apart."""
    names = ("token_ids", "positions", "span_rows", "logit_rows", "hidden_rows")
    fields: Fields = {prefix + name: getattr(made, name) for name in names}
    if made.pages:
        (fields[prefix + "pages"],) = made.pages
    if made.given is not None:
        rows = np.full(len(made.token_ids), -1, np.int32)
        rows[made.given.rows] = np.arange(len(made.given.rows))
        fields |= {prefix + "given_of": rows, prefix + "given_columns": made.given.values.shape[1]}
    if made.states is not None:
        fields |= {f"{prefix}states {name}": column for name, column in made.states._asdict().items()}
    if made.adapters:
        fields[prefix + "adapter slots"] = np.array([each.slot for each in made.adapters], np.int64)
        fields[prefix + "adapter scales"] = np.array([each.scale for each in made.adapters], np.float64)
    for index, each in enumerate(made.adapters):
        name = f"{prefix}adapter {index} "
        fields |= {name + "rows": each.rows, name + "logit rows": each.logit_rows}
    return fields
