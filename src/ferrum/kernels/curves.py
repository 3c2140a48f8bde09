"""Functions of single numbers as compiled kernels take them: activations, and the scaling of logits and scores."""

from __future__ import annotations

from typing import Final

import numpy as np

from ferrum.kernels.op_attributes import Activation

Curve = tuple[str, float, float, float, float | None]
"""A name, slope, top and span, and the limit of a gated product; `Activation` of `native/src/kernel_table.hpp`.

The bounds of `clip` are its top and its span."""

NO_CURVE: Final[Curve] = ("none", 1.0, 0.0, 0.0, None)

_NAMES: Final = ("none", "scaled", "capped", "silu", "gelu", "gelu_tanh", "relu2", "sigmoid", "clip")


def curve(activation: Activation) -> Curve:
    """Return an activation as kernels take it."""
    return activation.kind, activation.sharpness, activation.most, activation.least, activation.limit


def scaling(scale: float, softcap: float | None, factor: float = 1.0) -> Curve | None:
    """Return factor x softcap x tanh(scale x / softcap), or without a softcap factor x scale; None for x itself.

    Its constants are those of `reference_rows.capped`.
    """
    if softcap is not None:
        return "capped", 2 * scale / softcap, factor * softcap, 2 * factor * softcap, None
    slope = float(np.float32(scale) * np.float32(factor))
    return None if slope == 1 else ("scaled", slope, 0.0, 0.0, None)


def curve_values(given: Curve | None) -> tuple[int | float, ...]:
    """Return the fields of `Activation` of `native/cuda/numbers.hpp`."""
    name, slope, top, span, limit = NO_CURVE if given is None else given
    return _NAMES.index(name), float(slope), float(top), float(span), int(limit is not None), float(limit or 0.0)
