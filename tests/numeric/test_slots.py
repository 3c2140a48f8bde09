"""Slots of states have one layout, and a step that they do not fit is refused before it writes anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrum.core.state_shape import StateShape
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import StatePool, StateTables, StepTables
from ferrum.kernels.op_attributes import DeltaShape
from ferrum.kernels.reference import ReferenceKernels
from native_twin import TIERS, normal, require_native, tables_of

SHAPE = DeltaShape(1, 0, num_heads=2, num_key_heads=1, key_dim=5, value_dim=7)
CHANNELS = 6
POOL = StatePool(3, (StateShape(CHANNELS, CHANNELS, 2), StateShape(SHAPE.state_numbers, SHAPE.input_columns + 4)), 2)
KERNELS: dict[str, Callable[[], Any]] = {"reference": ReferenceKernels} | {
    tier: lambda tier=tier: NativeKernels(tier, 2) for tier in TIERS
}


def tables(spans: list[tuple[int, int]], *columns: tuple[int, ...]) -> StepTables:
    """Return a step with slots to read and write, rows that wait and rows to keep."""
    made = tables_of(np.random.default_rng(0), spans, ())
    return made._replace(states=StateTables(*(np.array(column, np.int32) for column in columns)))


def step(kernels: Any, made: StepTables) -> None:
    rng, count = np.random.default_rng(len(made.token_ids)), len(made.token_ids)
    kernels.begin(made)
    for layer in range(2):
        kernels.short_conv(normal(rng, count, CHANNELS), normal(rng, 2 * CHANNELS), (0, layer))
    a, b, decay, shift = (normal(rng, *shape) for shape in ((count, 2), (count, 2), (2,), (2,)))
    kernels.delta_rule(normal(rng, count, SHAPE.input_columns), a, b, -np.abs(decay), shift, SHAPE)


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Any:
    made = KERNELS[request.param]()
    made.allocate((), POOL)
    step(made, tables([(0, 5), (0, 1)], (-1, -1), (0, 1), (0, 0), (2, 0)))
    return made


def slots(kernels: Any) -> list[bytes]:
    return [kernels.read_slot(slot).tobytes() for slot in range(POOL.num_slots)]


def test_slots_move_between_kernels(kernels: Any) -> None:
    other = ReferenceKernels()
    other.allocate((), POOL)
    for slot in range(2):
        other.write_slot(slot, kernels.read_slot(slot))
    kernels.copy_slot(0, 2)
    assert slots(kernels)[2] == slots(kernels)[0] != slots(kernels)[1]
    for each, read in ((kernels, 2), (other, 0)):
        step(each, tables([(4, 3)], (read,), (1,), (1,), (0,)))
    assert slots(other)[1] == slots(kernels)[1]


@pytest.mark.parametrize("start", [3, 5])
def test_a_step_that_would_repeat_or_skip_a_row_fails_and_writes_nothing(kernels: Any, start: int) -> None:
    """The state in slot 0 has seen 3 tokens, and one row is said to wait."""
    before = slots(kernels)
    with pytest.raises(RuntimeError, match=f"slot 0 has seen 3 tokens and 1 rows wait, not {start}"):
        kernels.begin(tables([(1, 1), (start, 1)], (1, 0), (1, 2), (0, 1), (0, 0)))
    assert slots(kernels) == before
    step(kernels, tables([(1, 1), (4, 1)], (1, 0), (1, 2), (0, 1), (0, 0)))


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (((-2, 1), (0, 2), (0, 0), (0, 0)), "out of range"),
        (((-1, 1), (0, 3), (0, 0), (0, 0)), "out of range"),
        (((-1, 1), (2, 2), (0, 0), (0, 0)), "two spans write"),
        (((-1, 1), (1, 2), (0, 0), (0, 0)), "another one reads"),
        (((-1, 1), (0, 2), (1, 0), (0, 0)), "rows wait"),
        (((0, 1), (0, 2), (3, 0), (0, 0)), "rows wait"),
        (((-1, 1), (0, 2), (0, 0), (3, 0)), "rows to keep"),
        (((-1, 1), (0, 2), (0, 0), (0, 2)), "rows to keep"),
        (((-1,), (0,), (0,), (0,)), "per span"),
    ],
)
def test_contradictory_tables_of_states_are_refused(columns: Any, reason: str) -> None:
    require_native()
    kernels = KERNELS[TIERS[0]]()
    kernels.allocate((), POOL)
    step(kernels, tables([(0, 1)], (-1,), (1,), (0,), (0,)))
    with pytest.raises(ValueError, match=reason):
        kernels.begin(tables([(0, 5), (1, 1)], *columns))
    with pytest.raises(RuntimeError, match="no slots"):
        kernels.short_conv(normal(np.random.default_rng(0), 6, CHANNELS), np.ones(2 * CHANNELS, np.float32), (0, 0))


def test_slots_out_of_range_and_arrays_of_another_size_are_refused() -> None:
    require_native()
    kernels = KERNELS[TIERS[0]]()
    kernels.allocate((), POOL)
    for slot in (-1, 3):
        with pytest.raises(ValueError, match="slot"):
            kernels.read_slot(slot)
        with pytest.raises(ValueError, match="slot"):
            kernels.copy_slot(0, slot)
    with pytest.raises(ValueError, match="slot size"):
        kernels.write_slot(0, kernels.read_slot(0)[:-1])
    x, weight = np.ones((1, CHANNELS), np.float32), np.ones(3 * CHANNELS, np.float32)
    with pytest.raises(ValueError, match="do not match"):
        kernels.short_conv(x, weight, (0, 0))
