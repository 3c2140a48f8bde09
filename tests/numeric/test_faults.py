"""Faults at every kernel call site end only the faulty sequences, and nothing leaks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ferrum.core.errors import NonFiniteLogits, StepError
from ferrum.core.step import Hidden, Rows, Span, SpanResult, StepBatch, Want
from ferrum.kernels.cpu.native_kernels import NativeProgram
from ferrum.kernels.interface import NetworkOutput, StepTables
from ferrum.kernels.operations import Operations
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from native_twin import require_native
from tiny import directory_of, find, tokens_of

OPERATIONS = {name for name in vars(Operations) if not name.startswith("_")}
POISON = 5  # the token that only the faulty sequence holds
CASE = find("qwen3-windows")


class Fault:
    """A fault after operation `site`, in each pass with the faulty token."""

    def __init__(self, kind: str) -> None:
        self.spoil: Callable[[np.ndarray], None] = {"raising": self._raise, "nan": self._plant}[kind]
        self.site: int | None = None
        self.calls = 0

    def begin(self, tables: StepTables) -> None:
        self.calls = 0
        self.tables = tables
        self.spans = np.add.reduceat(tables.token_ids == POISON, tables.span_rows[:-1]) > 0
        self.rows = np.repeat(self.spans, np.diff(tables.span_rows))

    def after(self, made: tuple[np.ndarray, ...]) -> None:
        self.calls += 1
        if self.calls - 1 == self.site and self.rows.any():
            for array in made:
                self.spoil(array)

    def _raise(self, _: np.ndarray) -> None:
        raise ZeroDivisionError("injected")

    def _plant(self, array: np.ndarray) -> None:
        """Write NaN to the faulty rows of the operation's result."""
        if array.dtype == np.bool_:
            array[self.spans] = False
        elif array.dtype == np.int32:
            array[self.rows[self.tables.logit_rows]] = -1  # the mark of a NaN among the best tokens
        elif len(array) == len(self.rows):
            array[self.rows] = np.nan
        elif len(array):
            array[self.rows[self.tables.logit_rows]] = np.nan


class FaultyKernels:
    """Kernels with a fault after one of their operations."""

    def __init__(self, inner: Any, fault: Fault) -> None:
        self._inner, self._fault = inner, fault

    def begin(self, tables: StepTables) -> None:
        self._fault.begin(tables)
        self._inner.begin(tables)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in OPERATIONS:
            return attribute

        def call(*arguments: Any, **named: Any) -> Any:
            made = attribute(*arguments, **named)
            self._fault.after(made if isinstance(made, tuple) else (made,))
            return made

        return call


class FaultyProgram:
    """A native program with a fault between two operations: a call up to it, and a call from there on."""

    def __init__(self, inner: NativeProgram, fault: Fault) -> None:
        self._inner, self._fault = inner, fault

    def submit(self, kernels: Any, tables: StepTables) -> NetworkOutput:
        program, operations = self._inner.program, self._inner._operations
        self._fault.begin(tables)
        counts = self._inner._begin(kernels, tables)
        split = 0 if self._fault.site is None else self._fault.site + 1
        kernels.lowering.runtime.run(operations[:split])
        for op in program.ops[:split]:
            self._fault.after(tuple(self._inner._matrix(value)[: counts[value.extent]] for value in op.results))
        kernels.lowering.runtime.run(operations[split:])
        self._fault.calls = len(operations)
        return NetworkOutput(*(matrix[: counts[extent]] for extent, matrix in self._inner._output))


@pytest.fixture(params=["reference", "native eager", "native"])
def faulty(request: pytest.FixtureRequest, kind: str) -> Iterator[tuple[LocalExecutor, Fault]]:
    kernels, _, eager = request.param.partition(" ")
    if kernels == "native":
        require_native()
    with load_executor(directory_of(CASE), kernels=kernels, page_size=16, replay=not eager) as executor:
        fault, lm = Fault(kind), executor.lm
        if isinstance(lm.replay, NativeProgram):
            lm.replay = FaultyProgram(lm.replay, fault)
        else:
            lm.kernels = FaultyKernels(lm.kernels, fault)
        yield executor, fault


def innocent(seed: int, count: int) -> list[int]:
    return [token if token != POISON else 6 for token in tokens_of(CASE, count, seed)]


def spans_of(start: int) -> tuple[Span, ...]:
    first, last = innocent(1, 30), innocent(2, 30)
    parts = {"a": first, "guilty": [*first[:15], POISON, *first[16:]], "b": last}
    chunk = slice(0, 10) if start == 0 else slice(10, 30)
    wish = (Want.LOGITS, Rows.ALL, Hidden.ALL)
    return tuple(Span(name, start, tuple(tokens[chunk]), *wish) for name, tokens in parts.items())


def run(executor: LocalExecutor, *spans: Span) -> tuple[Any, ...]:
    return executor.submit(StepBatch(spans)).result().results


@pytest.mark.contract("5.no fallback answers with stale keys")
@pytest.mark.parametrize("kind", ["raising", "nan"])
def test_a_fault_at_any_call_site_ends_the_faulty_sequence_alone(faulty: tuple[LocalExecutor, Fault]) -> None:
    executor, fault = faulty
    pages = executor.lm.pages
    run(executor, *spans_of(0))
    clean = run(executor, *spans_of(10))
    executor.reset()
    assert fault.calls > 15
    for site in range(fault.calls):
        run(executor, *spans_of(0))
        fault.site = site
        first, guilty, last = run(executor, *spans_of(10))
        fault.site = None
        assert isinstance(guilty, StepError | NonFiniteLogits), f"call {site}"
        for ours, expected in ((first, clean[0]), (last, clean[2])):
            assert isinstance(ours, SpanResult), f"call {site}: {ours}"
            np.testing.assert_array_equal(ours.logits, expected.logits)
        assert pages.length("guilty") == 10, "a failed span leaves its sequence as it was"
        pages.check()
        (retried,) = run(executor, spans_of(10)[1])
        np.testing.assert_array_equal(retried.logits, clean[1].logits)
        executor.reset()
        pages.check()
        assert pages.used == 0


@pytest.mark.parametrize("kind", ["raising", "nan"])
def test_a_fault_in_the_first_step_leaves_no_sequence(faulty: tuple[LocalExecutor, Fault]) -> None:
    executor, fault = faulty
    fault.site = 3
    (result,) = run(executor, Span("guilty", 0, (1, POISON), Want.LOGITS))
    assert isinstance(result, StepError)
    assert "guilty" not in executor.lm.pages
    assert executor.lm.pages.used == 0


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model with a NaN in the embedding of one token."""
    directory = shutil.copytree(directory_of(CASE), tmp_path_factory.mktemp("damaged") / "model")
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON, 7] = np.nan
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_a_nan_in_an_embedding_affects_sequences_with_its_token_alone(
    damaged: Path, kernels: str, dtype: str, replay: bool
) -> None:
    """NaN keys and values stay in freed pages: later owners of the pages must not be affected."""
    if kernels == "native":
        require_native()
    options: dict[str, Any] = {"kernels": kernels, "dtype": dtype, "replay": replay, "page_size": 16, "kv_capacity": 96}
    wish = (Want.LOGITS, Rows.ALL)
    before = [Span(name, 0, tuple(innocent(seed, 32)), *wish) for seed, name in enumerate("ab")]
    after = [Span(name, 0, tuple(innocent(seed, 20)), *wish) for seed, name in enumerate("cde", 2)]
    with load_executor(directory_of(CASE), **options) as sound:
        expected = [*run(sound, *before)]
        sound.reset()
        expected += run(sound, *after)
    with load_executor(damaged, **options) as executor:
        first, guilty, last = run(executor, before[0], Span("guilty", 0, (POISON, *innocent(9, 31)), *wish), before[1])
        assert isinstance(guilty, NonFiniteLogits)
        executor.release_cache("a")
        executor.release_cache("b")
        found = [first, last, *run(executor, *after)]
        assert executor.pages.free(executor.pages.groups[0].name) == 0, "the three hold every page"
    for ours, clean in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.logits, clean.logits)
