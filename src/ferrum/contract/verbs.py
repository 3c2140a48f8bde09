"""The named verbs of an executor, each a few lines over one door: `submit`.

They are for users, tests and notebooks. All of them are all-or-none: everything that can be checked is checked before
anything runs, and when a span fails nevertheless, every sequence of the call is taken back to where it was.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from typing import Any, Final

from ferrum.contract.capabilities import ExecutorTraits
from ferrum.contract.handles import Handles, check_name
from ferrum.contract.io_types import (
    DecodeInput,
    DecodeOutput,
    KvCacheHandle,
    LogitsPolicy,
    Matrix,
    ModelInfo,
    PrefillInput,
    PrefillOutput,
    SpeculativeDecodeOutput,
    UnifiedBatch,
    UnifiedBatchItem,
    token_matrix,
    token_row,
)
from ferrum.contract.sequences import SequenceStore, Undo
from ferrum.core.errors import RequestError, UnknownSequence, Unsupported
from ferrum.core.span_checks import check_kind, check_tokens, inputs_of
from ferrum.core.step import Array, Hidden, PendingStep, Rows, Span, SpanResult, StepBatch, Want
from ferrum.core.values import kept_length, shown

logger: Final = logging.getLogger("ferrum.executor")

WISH: Final = {
    LogitsPolicy.NONE: (Want.NONE, Rows.LAST),
    LogitsPolicy.LAST: (Want.LOGITS, Rows.LAST),
    LogitsPolicy.ALL: (Want.LOGITS, Rows.ALL),
}
"""A logits policy as a span says it."""


class NamedVerbs(ABC):
    """The verbs over `submit` and a sequence store.

    Args:
        info: the model.
        traits: what is true of this executor.
        pages: its sequences.
        cache_prefix: fresh sequences are called `<prefix>-0`, `<prefix>-1`, ...; no name is ever given twice.
    """

    def __init__(
        self, info: ModelInfo, traits: ExecutorTraits, pages: SequenceStore, *, cache_prefix: str = "llm-cache"
    ) -> None:
        self._info = info
        self.traits = traits
        self.pages = pages
        self._prefix = cache_prefix
        self._fresh, self._clones, self._passing = count(), count(), count()
        self._undo = Undo(pages)
        self._handles = Handles(info, traits.kv_dtype, pages, self._undo)

    @property
    def info(self) -> ModelInfo:
        """The model: the object that the executor was built with."""
        return self._info

    @abstractmethod
    def submit(self, batch: StepBatch) -> PendingStep:
        """Run a step: one result or error per span."""

    @abstractmethod
    def _exclusive(self) -> AbstractContextManager[None]:
        """Hold the executor for one verb. Raises ExecutorInUse while an engine has its lease."""

    # Prompts

    def prefill(self, given: PrefillInput) -> PrefillOutput:
        """Process a prompt, or with a handle the next chunk of one. Raises as `batch_prefill`."""
        return self.batch_prefill([given])[0]

    def batch_prefill(self, given: Sequence[PrefillInput]) -> list[PrefillOutput]:
        """Process several prompts or chunks in one forward pass; equal, bit for bit, to one by one.

        Raises:
            RequestError: an input that cannot be honoured; `param` names the field. Its subclasses InvalidToken,
                InvalidHandle, UnknownSequence, StaleHandle, ContextOverflow say more.
            KvExhausted: no room in the pool.
            ExecutorInUse: an engine holds the lease.
        """
        if not (given := inputs_of(PrefillInput, given)):
            return []
        with self._exclusive():
            spans = [self._prefill_span(each) for each in given]
            results = self._step(spans, "input_ids")
            return [self._prefill_output(span, result) for span, result in zip(spans, results, strict=True)]

    def forward(self, input_ids: Any) -> Array:
        """Logits of all positions, float32 [B, S, V], of token ids [B, S]; no sequence is kept. Raises as `prefill`."""
        with self._exclusive():
            spans = [
                Span(self._new_id(f"{self._prefix}-forward", self._passing), 0, row, Want.LOGITS, Rows.ALL)
                for row in token_matrix("input_ids", input_ids)
            ]
            try:
                return self._stack([result.logits for result in self._step(spans, "input_ids")])
            finally:
                for span in spans:
                    self.pages.release(span.cache_id)

    # One more token

    def decode(self, given: DecodeInput) -> DecodeOutput:
        """Process one more token, at the position that is the handle's length. Raises as `batch_decode`."""
        return self.batch_decode([given])[0]

    def batch_decode(self, given: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """One more token for each of several sequences, in one forward pass; outputs in input order.

        Raises: as `batch_prefill`; also RequestError for a sequence that appears twice.
        """
        if not (given := inputs_of(DecodeInput, given)):
            return []
        with self._exclusive():
            spans = [self._decode_span(each) for each in given]
            results = self._step(spans, "input_ids")
            return [self._decode_output(span, result) for span, result in zip(spans, results, strict=True)]

    def forward_verify(self, given: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """N + 1 tokens of one sequence in one pass; row i is what the i-th of so many decodes would return.

        Args:
            given: the last token and N drafts, all with the same handle.

        Raises: as `batch_decode`; also RequestError for inputs of different sequences or lengths.
        """
        if not (given := inputs_of(DecodeInput, given)):
            return []
        with self._exclusive():
            rows = [self._decode_span(each, ahead) for ahead, each in enumerate(given)]
            if len({(row.cache_id, row.start) for row in rows}) != 1:
                raise RequestError("all inputs must continue the same sequence at the same length", param="kv_cache")
            span = replace(
                rows[0],
                tokens=tuple(each.token for each in given),
                rows=Rows.ALL,
                drafts=len(given) - 1,
                hidden=Hidden.ALL if any(each.return_hidden_states for each in given) else Hidden.NONE,
                attention_weights=any(each.return_attention_weights for each in given),
            )
            (result,) = self._step([span], "input_ids")
            return [self._verified(span, result, row, each) for row, each in enumerate(given)]

    def speculative_decode(
        self, given: DecodeInput, draft_tokens: Any, acceptance_threshold: float | None = None
    ) -> SpeculativeDecodeOutput:
        """Process a token and the drafts after it, and keep the drafts that are right.

        Args:
            given: the next token.
            draft_tokens: [k] guesses of what follows it; none is a plain decode.
            acceptance_threshold: None accepts a draft while it is the token that greedy decoding chooses. A threshold t
                accepts it while p(draft) >= t x max p, which changes the text.

        Returns:
            The sequence's length is start + 1 + accepted.

        Raises: as `decode`; Unsupported for a threshold where the executor has none, and by a model that keeps its own
            sequences and cannot take back so many drafts; RequestError for what is no threshold.
        """
        check_kind(given, DecodeInput, param="given")
        with self._exclusive():
            drafts = token_row("draft_tokens", draft_tokens)
            if given.return_hidden_states or given.return_attention_weights:
                raise Unsupported(
                    "speculative_decode with hidden states or attention weights", "it returns logits only"
                )
            if acceptance_threshold is not None:
                self._check_threshold(acceptance_threshold)
            first = self._decode_span(given)
            self._check_tokens((given.token,), first.start, "input_ids")
            self._check_tokens(drafts, first.start + 1, "draft_tokens")
            span = replace(first, tokens=(given.token, *drafts), rows=Rows.ALL, drafts=len(drafts))
            with self._undo.guard([span], settled=not drafts):
                (result,) = self._step([span], "draft_tokens")
                accepted = self._count_accepted(result.logits, drafts, acceptance_threshold)
                self.pages.truncate(span.cache_id, span.start + 1 + accepted)
            return SpeculativeDecodeOutput(drafts[:accepted], _row(result.logits, accepted), self.handle(span.cache_id))

    # Any mixture

    def unified_decode(self, batch: UnifiedBatch) -> list[Array | None]:
        """Any mixture of chunks, decodes and verifications in one pass.

        Returns:
            For each item float32 [1, V] or [S, V] as its policy asks, None without a wish or before the final chunk.

        Raises: as `batch_decode`.
        """
        check_kind(batch, UnifiedBatch, param="batch")
        if not (items := inputs_of(UnifiedBatchItem, batch.items, param="items")):
            return []
        with self._exclusive():
            results = self._step([self._unified_span(item) for item in items], "q_tokens")
            return [result.logits for result in results]

    # Sequences

    def handle(self, cache_id: str) -> KvCacheHandle:
        """The sequence as it is now. Raises UnknownSequence, InvalidHandle for what is no name."""
        check_name(cache_id)
        return self._handles.make(cache_id, self.pages.length(cache_id))

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> KvCacheHandle:
        """Forget the tokens from position `new_len` on; takes any handle of the current generation.

        Raises:
            InvalidHandle, UnknownSequence, StaleHandle: the handle will not do.
            RequestError: `new_len` is no integer, negative or beyond the stored length.
            Unsupported: a sliding window has let go of keys that would be needed.
        """
        with self._exclusive():
            self._handles.check(handle, exact=False)
            return self.truncate_kv_for_cache_id(handle.cache_id, new_len)

    def truncate_kv_for_cache_id(self, cache_id: str, new_len: int) -> KvCacheHandle:
        """`truncate_kv` by name. Raises InvalidHandle for what is none."""
        check_name(cache_id)
        with self._exclusive():
            self.pages.truncate(cache_id, kept_length("new_len", new_len, self.pages.length(cache_id)))
            return self.handle(cache_id)

    def fork(self, handle: KvCacheHandle) -> KvCacheHandle:
        """Begin an independent continuation, `<base>-clone-<n>`, that shares the stored pages.

        Raises:
            InvalidHandle, UnknownSequence, StaleHandle: the handle will not do.
        """
        with self._exclusive():
            self._handles.check(handle, exact=True)
            clone = self._new_id(f"{handle.cache_id}-clone", self._clones)
            self.pages.fork(handle.cache_id, clone)
            return self.handle(clone)

    def release_cache(self, cache_id: str) -> None:
        """Free a sequence; an unknown one is no error. Raises InvalidHandle for what is no name."""
        check_name(cache_id)
        with self._exclusive():
            logger.debug("release %s: %s", cache_id, "known" if cache_id in self.pages else "unknown")
            self.pages.release(cache_id)
            self._undo.forget(cache_id)

    # Hooks

    def _check_threshold(self, threshold: object) -> None:
        """Refuse an acceptance threshold that cannot be honoured, before anything runs."""
        raise Unsupported("acceptance_threshold", f"this executor verifies exactly, without {shown(threshold)}")

    def _count_accepted(self, logits: Array, drafts: Sequence[int], threshold: float | None) -> int:
        """How many leading drafts to keep, given logits [k + 1, V]. Greedy is the lowest id of the largest.

        Args:
            threshold: None, or one that `_check_threshold` lets pass.
        """
        assert threshold is None, "this executor verifies exactly"
        accepted = 0
        while accepted < len(drafts) and int(logits[accepted].argmax()) == drafts[accepted]:
            accepted += 1
        return accepted

    def _stack(self, arrays: Sequence[Array]) -> Array:
        """Arrays [S, V] as one [B, S, V], by the array API standard's name for it."""
        return arrays[0].__array_namespace__().stack(arrays)

    # From inputs to spans

    def _prefill_span(self, given: PrefillInput) -> Span:
        if given.batch_size != 1:
            reason = f"{given.batch_size} prompts in one input: give them to batch_prefill, one input each"
            raise RequestError(reason, param="input_ids")
        start = 0
        if given.kv_cache is not None:
            self._handles.check(given.kv_cache, exact=True)
            start = given.kv_cache.sequence_length
        end = start + given.sequence_length
        if given.attention_mask is not None and given.attention_mask not in _ones(given.sequence_length, end):
            reason = f"only ones can be honoured, [1, {given.sequence_length}] or [1, {end}]: leave padding out"
            raise RequestError(reason, param="attention_mask")
        _check_positions(given.position_ids, range(start, end))
        self._check_weights(given.return_attention_weights)
        want, rows = WISH[LogitsPolicy(given.logits)]
        return Span(
            given.kv_cache.cache_id if given.kv_cache else self._new_id(self._prefix, self._fresh),
            start,
            given.input_ids[0],
            want,
            rows,
            Hidden.ALL if given.return_hidden_states else Hidden.NONE,
            attention_weights=given.return_attention_weights,
        )

    def _decode_span(self, given: DecodeInput, ahead: int = 0) -> Span:
        """The span of one token, which stands `ahead` tokens behind the handle's length."""
        self._handles.check(given.kv_cache, exact=True)
        start = given.kv_cache.sequence_length
        _check_positions(given.position_ids, range(start + ahead, start + ahead + 1))
        self._check_weights(given.return_attention_weights)
        return Span(
            given.kv_cache.cache_id,
            start,
            (given.token,),
            Want.LOGITS,
            hidden=Hidden.LAST if given.return_hidden_states else Hidden.NONE,
            attention_weights=given.return_attention_weights,
        )

    def _unified_span(self, item: UnifiedBatchItem) -> Span:
        if isinstance(item.seq_id, str):
            cache_id = item.seq_id
            if cache_id not in self.pages and cache_id.startswith(f"{self._prefix}-"):
                raise UnknownSequence(f"{cache_id!r} is not stored, and only prefill gives such names", param="seq_id")
        else:
            self._handles.check(item.seq_id, exact=True)
            cache_id = item.seq_id.cache_id
        stored = self.pages.length(cache_id) if cache_id in self.pages else 0
        if item.pos_offset != stored:
            raise RequestError(f"{item.pos_offset} claimed, {stored} tokens are stored", param="pos_offset")
        want, rows = WISH[item.policy]
        return Span(cache_id, stored, tuple(item.q_tokens), want, rows, adapter=item.adapter)

    def _check_weights(self, wanted: bool) -> None:
        if wanted and not self.traits.attention_weights:
            reason = f"the {self.traits.backend} kernels do not keep attention probabilities"
            raise Unsupported("return_attention_weights", reason)

    def _new_id(self, base: str, numbers: Iterable[int]) -> str:
        """The next name that no sequence has; one begun under such a name through `submit` is stepped over."""
        return next(name for number in numbers if (name := f"{base}-{number}") not in self.pages)

    def _step(self, spans: Sequence[Span], param: str) -> list[SpanResult]:
        """Run checked spans, all or none; `param` is the caller's name for their tokens."""
        if len(spans) > self.traits.max_batch_size:
            reason = f"{len(spans)} sequences are more than max_batch_size = {self.traits.max_batch_size}"
            raise RequestError(reason, param=param)
        seen: set[str] = set()
        for span in spans:
            if span.cache_id in seen:
                raise RequestError(f"the sequence {span.cache_id!r} appears twice", param="kv_cache")
            seen.add(span.cache_id)
            self._check_tokens(span.tokens, span.start, param)
        return self._undo.all_or_none(spans, lambda batch: self.submit(batch).result())

    def _check_tokens(self, tokens: Sequence[int], start: int, param: str) -> None:
        """Refuse tokens behind `start` others that the model does not have, or has no room for."""
        longest = self.traits.max_sequence_length
        check_tokens(tokens, start, vocab_size=self._info.vocab_size, max_sequence_length=longest, param=param)

    # From results to outputs

    def _prefill_output(self, span: Span, result: SpanResult) -> PrefillOutput:
        hidden = None if result.hidden is None else result.hidden[None]
        assert result.logits is not None, "the span wanted them"
        return PrefillOutput(result.logits[None], self.handle(span.cache_id), hidden, result.attention_weights)

    def _decode_output(self, span: Span, result: SpanResult) -> DecodeOutput:
        return DecodeOutput(result.logits, self.handle(span.cache_id), result.hidden, result.attention_weights)

    def _verified(self, span: Span, result: SpanResult, row: int, given: DecodeInput) -> DecodeOutput:
        length = span.start + row + 1
        weights = None
        if given.return_attention_weights and result.attention_weights is not None:
            weights = tuple(layer[:, row : row + 1, :length] for layer in result.attention_weights)
        hidden = _row(result.hidden, row) if given.return_hidden_states else None
        return DecodeOutput(_row(result.logits, row), self._handles.make(span.cache_id, length), hidden, weights)


def _row(array: Array, row: int) -> Array:
    """Row `row` of [rows, N] as [1, N]."""
    return array[row : row + 1]


def _ones(*lengths: int) -> list[Matrix]:
    return [((1,) * length,) for length in lengths]


def _check_positions(given: Any, stored: range) -> None:
    """Refuse positions that are not those at which the tokens will be stored."""
    if given is not None and given != (tuple(stored),):
        reason = f"only {stored.start} to {stored.stop - 1} can be honoured: tokens follow those that are stored"
        raise RequestError(reason, param="position_ids")
