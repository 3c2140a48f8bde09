"""Checks of the logits that a model written by hand returns: their shape and dtype, before anything relies on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrum.core.errors import StepError
from ferrum.core.values import shown
from ferrum.kernels.operations import F32


def logits_of(value: Any, shapes: Sequence[tuple[int, ...]], cache_id: str) -> F32:
    """Return logits from a model as float32 [rows, V].

    Args:
        value: any kind of array or nested lists of numbers.
        shapes: the shapes that it may have, the usual one first; V is the last number of that one.
        cache_id: the sequence, for messages.

    Raises:
        StepError: no array, no numbers, or another shape; the message names what was found.
    """
    what = f"the model's logits of {shown(cache_id)}"
    if value is None:
        raise StepError(f"{what} are missing: it returned None, not {list(shapes[0])}")
    try:
        array = np.asarray(value)
    except Exception as error:
        raise StepError(f"{what} are no array: {error}") from error
    if array.shape not in shapes:
        raise StepError(f"{what} have the shape {list(array.shape)}, not {list(shapes[0])}")
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise StepError(f"{what} have the dtype {array.dtype}, not float32")
    with np.errstate(over="ignore"):  # an infinity is refused with the other values that are not finite
        return array.astype(np.float32, copy=False).reshape(-1, shapes[0][-1])


def one_per(value: Any, count: int, what: str) -> list[Any]:
    """Return a model's outputs as a list of `count`. Raises StepError for another number of them."""
    try:
        outputs = list(value)
    except TypeError:
        raise StepError(f"the model's {what} returned {shown(value)}, not {count} outputs") from None
    if len(outputs) != count:
        raise StepError(f"the model's {what} returned {len(outputs)} outputs, not {count}")
    return outputs
