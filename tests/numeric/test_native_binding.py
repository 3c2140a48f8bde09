"""The library refuses arrays that need conversion, and contradictory tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ferrum.kernels.cpu.library import load
from native_twin import require_native

F32, F64 = np.float32, np.float64


@pytest.fixture
def runtime() -> Any:
    require_native()
    made = load().Runtime("auto", 1)
    made.allocate([("bfloat16", 4, 64, 1, 2, 64, 64)])
    return made


def zeros(*shape: int, dtype: Any = F32) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize("sums", [zeros(2, dtype=np.int64), zeros(4, dtype=np.uint64)[::2]])
def test_sum_output_is_never_converted(runtime: Any, sums: np.ndarray[Any, Any]) -> None:
    with pytest.raises(TypeError):
        runtime.sum_pages(zeros(8192, dtype=np.uint8), sums)


def test_page_data_must_be_contiguous_bytes(runtime: Any) -> None:
    size = runtime.page_bytes(0)
    for wrong in (zeros(2 * size, dtype=np.uint8)[::2], zeros(size, dtype=np.int16), zeros(size)):
        with pytest.raises(TypeError):
            runtime.read_page(0, 0, wrong)
        with pytest.raises(TypeError):
            runtime.write_page(0, 0, wrong)


@pytest.mark.parametrize(("source", "target"), [(-1, 0), (0, 4), (4, 0), (0, -1)])
def test_page_copy_out_of_range_is_refused(runtime: Any, source: int, target: int) -> None:
    with pytest.raises(ValueError, match="page"):
        runtime.copy_page(0, source, target)


@pytest.mark.parametrize("wrong", [zeros(8), zeros(2, 2, 2)])
def test_packed_matrix_must_have_two_dimensions(runtime: Any, wrong: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ValueError, match="matrix"):
        runtime.pack("float32", wrong)


@pytest.mark.parametrize("wrong", [zeros(4, 8, dtype=F64), zeros(4, 16)[:, ::2]])
def test_operation_arrays_are_never_converted(runtime: Any, wrong: np.ndarray[Any, Any]) -> None:
    norm, x, weight = load().norm, zeros(4, 8), zeros(8)
    rest = None, 1.0, 1e-6, False, None  # no bias, no total
    norm(runtime, x, None, weight, *rest, x.copy(), 4, None)
    for arguments in ((wrong, None, weight), (x, None, wrong[0])):
        with pytest.raises(TypeError):
            norm(runtime, *arguments, *rest, x.copy(), 4, None)
    with pytest.raises(TypeError):
        norm(runtime, x, None, weight, *rest, wrong, 4, None)


def ids(*numbers: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(numbers, np.int32)


@pytest.mark.parametrize(
    ("span_rows", "pages", "reason"),
    [
        (ids(0, 0, 2), zeros(2, 1, dtype=np.int32), "no rows"),
        (ids(0, 3, 2), zeros(2, 1, dtype=np.int32), "no rows"),
        (ids(0, 1), zeros(1, 1, dtype=np.int32), "span_rows"),
        (ids(1, 2), zeros(1, 1, dtype=np.int32), "span_rows"),
        (ids(0, 2), zeros(2, 1, dtype=np.int32), "pages per span"),
        (ids(0, 2), zeros(1, dtype=np.int32), "pages per span"),
    ],
)
def test_contradictory_tables_are_refused(
    runtime: Any, span_rows: Any, pages: np.ndarray[Any, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        runtime.begin(ids(1, 2), ids(0, 1), span_rows, [pages], ids(), ids(), None, None, None, [])


@pytest.mark.parametrize("rows", [(ids(2), ids()), (ids(-1), ids()), (ids(0), ids(0))])
def test_rows_of_adapters_outside_of_a_step_are_refused(runtime: Any, rows: tuple[Any, Any]) -> None:
    pages = zeros(1, 1, dtype=np.int32)
    with pytest.raises(ValueError, match="not in the step"):
        runtime.begin(ids(1, 2), ids(0, 1), ids(0, 2), [pages], ids(), ids(), None, None, None, [(0, 1.0, *rows)])


@pytest.mark.parametrize(
    ("rows", "reason"), [(ids(2), "not in the step"), (ids(-1), "not in the step"), (ids(0, 1), "one row")]
)
def test_given_rows_outside_of_a_step_are_refused(runtime: Any, rows: np.ndarray[Any, Any], reason: str) -> None:
    pages = zeros(1, 1, dtype=np.int32)
    with pytest.raises(ValueError, match=reason):
        runtime.begin(ids(1, 2), ids(0, 1), ids(0, 2), [pages], ids(), ids(), rows, zeros(1, 8), None, [])
