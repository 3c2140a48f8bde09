"""Rows and changes of adapters that tests of operations share."""

from __future__ import annotations

from typing import Any

import numpy as np

from changed_sites import Changes, low_rank, replacement, uses
from ferrum.kernels.adapters import Change, LowRank
from ferrum.kernels.op_attributes import Routing
from native_twin import normal

SOME = uses((0, 1.0, range(9)), (2, 0.3, range(4, 20)), (1, -1.5, [0, 7, 22]), (5, 1.0, [3]))
"""Rows with one adapter, two and three, and rows without; slot 5 is empty."""

APART = uses((0, 1.0, range(9)), (2, 1.0, range(9, 20)), (1, 1.0, [22]))
"""Rows with one adapter at most, as those that replace weights need it."""


def random_change(rng: np.random.Generator, shape: tuple[int, int], rank: int, dtype: Any, kind: int) -> Change:
    """Return a change with more parts for higher kinds; those from 2 on are the only ones of a row."""
    outputs = shape[0]
    factors = {} if kind < 2 else {"factor": normal(rng, outputs), "offset": normal(rng, outputs)}
    rows = None if kind < 4 else sorted(rng.choice(outputs, (outputs + 1) // 2, replace=False).tolist())
    new = None if kind < 3 else replacement(rng, shape, rows, dtype)
    low = None if kind == 5 else low_rank(rng, shape, rank, dtype, bias=kind > 0)
    return Change(low, new, **factors)


EXPERTS, HIDDEN, INNER = 6, 96, 64
ROUTINGS = {
    "softmax": Routing(EXPERTS, 2, renormalise=True),
    "weights on inputs": Routing(EXPERTS, 3, "sigmoid", late=True, on_input=True),
    "all experts": Routing(EXPERTS, EXPERTS, "sigmoid"),
}


def expert_changes(rng: np.random.Generator, rank: int, dtype: Any) -> list[Changes]:
    """Return adapters of gate, up and down: of all three, with one A of gate and up, and of down alone."""
    inner, outer = (INNER, HIDDEN), (HIDDEN, INNER)
    every = tuple(Change(low_rank(rng, shape, rank, dtype, EXPERTS)) for shape in (inner, inner, outer))
    first, second = (low_rank(rng, inner, rank + 1, dtype, EXPERTS) for _ in range(2))
    shared = Change(first), Change(LowRank(first.a, second.b, 0.4)), None
    return [every, shared, (None, None, Change(low_rank(rng, outer, 3, dtype, EXPERTS)))]
