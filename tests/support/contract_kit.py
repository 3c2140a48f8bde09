"""A language model without numerics for the contract's tests: logits are a hash of the tokens that a position sees.

It keeps every token in its page of the page table and computes from what it reads back. So a page that is shared,
copied, freed or reused wrongly shows up as wrong logits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.contract.decoder_llm import LlmRuntimeConfig, StepwiseLLM
from ferrum.contract.model_info import DataType, ExecutorTraits, ModelInfo
from ferrum.core.errors import FerrumError, KvExhausted, StepError, Unsupported
from ferrum.core.memory_plan import MemoryPlan, PoolPart
from ferrum.core.span_checks import refuse_span
from ferrum.core.step import Span, SpanResult, StepBatch, StepOutput
from ferrum.kernels.reference.reference_math import best_tokens
from ferrum.runtime.span_results import SpanRows, result_alone
from ferrum.verbs.llm_executor import LlmExecutor
from ferrum.verbs.model_executor import ModelExecutor

VOCABULARY = 131
HIDDEN = 8
POISON = 130
"""A span with this token fails, alone."""
PROMPT = [3, 14, 15, 92, 65, 35, 89]
OTHER = [2, 71, 82, 81]


def same(a: np.ndarray, b: np.ndarray) -> None:
    """Assert that both are float32 and equal, bit for bit."""
    assert a.dtype == b.dtype == np.float32
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@dataclass(frozen=True)
class Options:
    """The executor interface that tests use."""

    page_size: int = 4
    num_pages: int = 60
    window: int | None = None
    max_batch_size: int = 6
    max_sequence_length: int = 100


@dataclass
class Kit:
    """An executor to test, and what the test must know of it.

    Attributes:
        passes: forward passes so far.
        hidden: whether it returns hidden states.
        check: asserts that its state is consistent.
    """

    executor: ModelExecutor
    passes: Callable[[], int]
    check: Callable[[], None]
    hidden: bool = True


class Maker(Protocol):
    def __call__(self, **options: int | None) -> Kit: ...


INFO = ModelInfo(
    model_id="fake",
    family="FakeForCausalLM",
    num_parameters=1000,
    vocab_size=VOCABULARY,
    max_sequence_length=100,
    hidden_size=HIDDEN,
    num_layers=2,
    num_heads=6,
    num_kv_heads=3,
    head_dim=16,
    dtype=DataType.FLOAT32,
)


class FakeLM(StepwiseLLM):
    """A model that runs spans on a real page table, like `DecoderLM`, without a network."""

    def __init__(self, options: Options) -> None:
        group = PageGroup("layers0", options.num_pages, options.page_size, options.window)
        self.pages = PageTable([group])
        self.passes = 0
        self.explode: Exception | None = None
        self._options = options
        self._group = group
        self._store = np.full((group.num_pages, group.page_size), -1)

    @property
    def config(self) -> LlmRuntimeConfig:
        return LlmRuntimeConfig(
            hidden_size=HIDDEN,
            num_layers=INFO.num_layers,
            num_kv_heads=INFO.num_kv_heads,
            head_dim=INFO.head_dim,
            vocab_size=VOCABULARY,
            max_seq_len=self._options.max_sequence_length,
        )

    def run(self, batch: StepBatch) -> StepOutput:
        self.passes += 1
        if self.explode is not None:
            raise self.explode
        return StepOutput(tuple(self._one(span) for span in batch.spans))

    def _one(self, span: Span) -> SpanResult | FerrumError:
        begun = span.cache_id not in self.pages
        try:
            self._check(span)
            if not self.pages.reserve(span.cache_id, span.end):
                raise KvExhausted("no free pages")
            self._write(span)
            if POISON in span.tokens:
                raise StepError("poisoned")
            result = self._read(span)
        except FerrumError as error:
            if begun:
                self.pages.release(span.cache_id)
            else:
                self.pages.trim(span.cache_id)
            return error
        self.pages.commit(span.cache_id, result.length)
        return result

    def _check(self, span: Span) -> None:
        stored = self.length(span.cache_id) if span.cache_id in self.pages else None
        longest = self._options.max_sequence_length
        error = refuse_span(span, stored, vocab_size=VOCABULARY, max_sequence_length=longest)
        if error is not None:
            raise error
        if span.adapters:
            raise Unsupported("adapters", "this model has none")

    def _write(self, span: Span) -> None:
        for copy in self.pages.take_copies():
            self._store[copy.target] = self._store[copy.source]
        row = self.pages.row(span.cache_id, self._group.name)
        for position, token in enumerate(span.tokens, span.start):
            self._store[row[position // self._group.page_size], position % self._group.page_size] = token

    def _read(self, span: Span) -> SpanResult:
        rows = SpanRows(span)
        wanted, hidden = rows.logit_rows(), rows.hidden_rows()
        table = np.array([self._logits(self._visible(span, span.start + row)) for row in range(len(span.tokens))])
        logits = table[wanted.start : wanted.stop]
        best = best_tokens(logits).tolist()
        rows.take(wanted.start, logits, best, table[hidden.start : hidden.stop, :HIDDEN] if hidden else None)
        return result_alone(rows)

    def _visible(self, span: Span, position: int) -> tuple[int, ...]:
        first = 0 if self._group.window is None else max(0, position - self._group.window + 1)
        row, size = self.pages.row(span.cache_id, self._group.name), self._group.page_size
        assert all(row[p // size] >= 0 for p in range(first, position + 1)), "a freed page is read"
        return tuple(int(self._store[row[p // size], p % size]) for p in range(first, position + 1))

    @staticmethod
    def _logits(visible: Sequence[int]) -> np.ndarray:
        digest = hashlib.blake2b(repr(visible).encode(), digest_size=8).digest()
        logits = np.random.default_rng(int.from_bytes(digest, "big")).standard_normal(VOCABULARY, np.float32)
        logits[POISON] = -100.0  # never the largest
        return logits


def traits_of(options: Options) -> ExecutorTraits:
    per_token = INFO.kv_bytes_per_token(DataType.FLOAT32)
    size = options.page_size
    part = PoolPart(name="layers0", num_pages=options.num_pages, page_size=size, page_bytes=size * per_token)
    return ExecutorTraits(
        backend="fake",
        numerics_id="fake-1",
        kv_dtype=DataType.FLOAT32,
        max_batch_size=options.max_batch_size,
        max_sequence_length=options.max_sequence_length,
        memory=MemoryPlan(weights=4000, activations=600, activation_row=50, tables=80, pool=(part,)),
        windows=options.window is not None,
    )


class FakeContractExecutor(ModelExecutor):
    def __init__(self, lm: FakeLM, options: Options) -> None:
        super().__init__(INFO, traits_of(options), lm.pages)
        self.lm = lm
        self.warmed = 0
        self.closed = 0

    def _run(self, batch: StepBatch) -> StepOutput:
        return self.lm.run(batch)

    def _warm(self) -> None:
        self.warmed += 1

    def _close(self) -> None:
        self.closed += 1


def make_fake(**options: int | None) -> Kit:
    chosen = Options(**options)  # type: ignore[arg-type]
    lm = FakeLM(chosen)
    return Kit(FakeContractExecutor(lm, chosen), passes=lambda: lm.passes, check=lm.pages.check)


class FourMethods:
    """The fake model with the least that a model must have."""

    def __init__(self, options: Options) -> None:
        self.inner = FakeLM(options)
        self.config = self.inner.config
        self.prefill, self.decode, self.release = self.inner.prefill, self.inner.decode, self.inner.release
        self.kv_capacity = self.inner.kv_capacity


def make_llm(**options: int | None) -> Kit:
    """The fake model behind `LlmExecutor`."""
    chosen = Options(**options)  # type: ignore[arg-type]
    lm = FakeLM(chosen)
    executor = LlmExecutor(lm, INFO, max_batch_size=chosen.max_batch_size)
    return Kit(executor, passes=lambda: lm.passes, check=lm.pages.check, hidden=False)
