"""`NamedVerbs`: the named verbs of an executor, for users, tests and notebooks; engines use `submit` alone.

All verbs are all-or-none: every check comes before anything runs, and if a span fails, every sequence of the call
returns to its state before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from ferrum.contract.capabilities import ExecutorTraits
from ferrum.contract.draft_acceptance import check_threshold, count_accepted
from ferrum.contract.executor_log import logger
from ferrum.contract.handles import NamedSequences, check_name
from ferrum.contract.input_checks import as_prompt, check_positions, real_tokens
from ferrum.contract.integer_lists import token_matrix, token_row
from ferrum.contract.io_types import (
    LAYERS,
    DecodeInput,
    DecodeOutput,
    KvCacheHandle,
    LogitsPolicy,
    PrefillInput,
    PrefillOutput,
    SpeculativeDecodeOutput,
    UnifiedBatch,
    UnifiedBatchItem,
)
from ferrum.contract.sequences import with_adapters
from ferrum.contract.verb_outputs import decode_output, prefill_output, row_of, verified_output
from ferrum.core.errors import RequestError, Unsupported
from ferrum.core.span_checks import check_kind, check_tokens, inputs_of
from ferrum.core.step import AdapterUse, Array, Hidden, PendingStep, Rows, Span, SpanExtras, SpanResult, StepBatch, Want
from ferrum.core.values import kept_length

P = ParamSpec("P")
Result = TypeVar("Result")
Input = TypeVar("Input", PrefillInput, DecodeInput)
Output = TypeVar("Output", PrefillOutput, DecodeOutput)

SPAN_WANTS: Final = {
    LogitsPolicy.NONE: (Want.NONE, Rows.LAST),
    LogitsPolicy.LAST: (Want.LOGITS, Rows.LAST),
    LogitsPolicy.ALL: (Want.LOGITS, Rows.ALL),
}
"""A logits policy as a span's `want` and `rows`."""

_HIDDEN: Final[dict[bool | str, Hidden]] = {False: Hidden.NONE, True: Hidden.ALL, LAYERS: Hidden.LAYERS}
"""A value of `return_hidden_states` as a span's `hidden`; each includes those before it."""


@dataclass(frozen=True, slots=True)
class NamedVerbs:
    """The verbs over `submit`: a facade without state.

    Attributes:
        submit: runs a step.
        sequences: the executor's.
        traits: the executor's fixed properties.
        exclusive: holds the executor for one verb. Raises ExecutorInUse if an engine has its lease, and
            InvalidTransition if it is shut down and the verb may not follow that (`ended`).
        count_drafts: counts drafts and accepted ones for the reports.
        adapters_for: returns what `set_lora_adapter` chooses for a sequence. Raises Unsupported, RequestError.
    """

    submit: Callable[[StepBatch], PendingStep]
    sequences: NamedSequences
    traits: ExecutorTraits
    exclusive: Callable[..., AbstractContextManager[None]]
    count_drafts: Callable[[int, int], None]
    adapters_for: Callable[[str, str | None], tuple[AdapterUse, ...]]

    # Prompts

    def prefill(self, inputs: PrefillInput | Sequence[int]) -> PrefillOutput:
        """Process a prompt, given as an input or token ids, or its next chunk. Raises as `batch_prefill`."""
        return self.batch_prefill([inputs if isinstance(inputs, PrefillInput) else as_prompt(inputs)])[0]

    def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list[PrefillOutput]:
        """Process several prompts or chunks in one forward pass, bit for bit equal to one by one.

        Raises:
            RequestError: an input that cannot be honoured; `param` names the field. Its subclasses InvalidToken,
                InvalidHandle, UnknownSequence, StaleHandle, ContextOverflow say more.
            KvExhausted: no room in the pool.
            ExecutorInUse: an engine holds the lease.
        """
        return self._run_all(PrefillInput, inputs, self._prefill_span, prefill_output)

    def forward(self, input_ids: Any) -> Array:
        """Return the logits of all positions, float32 [B, S, V], of token ids [B, S].

        No sequence is kept. Raises as `prefill`.
        """
        with self.exclusive():
            spans = [
                Span(self.sequences.passing_id("forward"), 0, row, Want.LOGITS, Rows.ALL)
                for row in token_matrix("input_ids", input_ids)
            ]
            try:
                arrays: list[Any] = [result.logits for result in self._step(spans, "input_ids")]
                return arrays[0].__array_namespace__().stack(arrays)
            finally:
                for span in spans:
                    self.sequences.pages.release(span.cache_id)

    # One more token

    def decode(self, inputs: DecodeInput) -> DecodeOutput:
        """Process one more token, at the position of the handle's length. Raises as `batch_decode`."""
        return self.batch_decode([inputs])[0]

    def batch_decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Process one more token of each of several sequences in one forward pass; outputs in input order.

        Raises: as `batch_prefill`; also RequestError for a sequence that appears twice.
        """
        return self._run_all(DecodeInput, inputs, self._decode_span, decode_output)

    def forward_verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Process N + 1 tokens of one sequence in one pass; row i equals the output of the i-th of N + 1 decodes.

        Args:
            inputs: the last token and N draft tokens, all with the same handle.

        Raises: as `batch_decode`; also RequestError for inputs of different sequences or lengths.
        """
        if not (inputs := inputs_of(DecodeInput, inputs, param="inputs")):
            return []
        with self.exclusive():
            rows = [self._decode_span(each, ahead) for ahead, each in enumerate(inputs)]
            if len({(row.cache_id, row.start) for row in rows}) != 1:
                raise RequestError("all inputs must continue the same sequence at the same length", param="kv_cache")
            weights = [each.return_attention_weights for each in inputs]
            span = replace(
                rows[0],
                tokens=tuple(each.token for each in inputs),
                rows=Rows.ALL,
                hidden=max((row.hidden for row in rows), key=list(_HIDDEN.values()).index),
                extras=SpanExtras(len(inputs) - 1, attention_weights=any(weights)).or_none(),
            )
            (result,) = self._step([span], "input_ids")
            handles = [self.sequences.handle(span.cache_id, span.start + row + 1) for row in range(len(inputs))]
            pairs = zip(handles, inputs, strict=True)
            return [verified_output(result, handle, row, each) for row, (handle, each) in enumerate(pairs)]

    def speculative_decode(
        self, inputs: DecodeInput, draft_tokens: Any, acceptance_threshold: float | None = None
    ) -> SpeculativeDecodeOutput:
        """Process a token and the draft tokens after it, and keep the leading drafts that are accepted.

        Args:
            inputs: the next token.
            draft_tokens: [k] draft tokens after it; without any this is a plain decode.
            acceptance_threshold: None accepts a draft that equals the token of greedy decoding. A threshold t accepts
                it if p(draft) >= t x max p, which changes the text.

        Returns:
            The accepted drafts; the sequence's length is start + 1 + accepted.

        Raises: as `decode`; RequestError for an invalid threshold.
        """
        check_kind(inputs, DecodeInput, param="inputs")
        with self.exclusive():
            drafts = token_row("draft_tokens", draft_tokens)
            if inputs.return_hidden_states or inputs.return_attention_weights:
                raise Unsupported(
                    "speculative_decode with hidden states or attention weights", "it returns logits only"
                )
            check_threshold(acceptance_threshold)
            first = self._decode_span(inputs)
            self._check_tokens((inputs.token,), first.start, "input_ids")
            self._check_tokens(drafts, first.start + 1, "draft_tokens")
            span = replace(
                first, tokens=(inputs.token, *drafts), rows=Rows.ALL, extras=SpanExtras(len(drafts)).or_none()
            )
            with self.sequences.undo.guard([span], settled=not drafts):
                (result,) = self._step([span], "draft_tokens")
                accepted = count_accepted(result.logits, drafts, acceptance_threshold)
                self.sequences.pages.truncate(span.cache_id, span.start + 1 + accepted)
            if drafts:
                self.count_drafts(len(drafts), accepted)
            logits, handle = row_of(result.logits, accepted), self.handle(span.cache_id)
            return SpeculativeDecodeOutput(drafts[:accepted], logits, handle)

    # Any mixture

    def unified_decode(self, batch: UnifiedBatch) -> list[Array | None]:
        """Process any mixture of chunks, decodes and verifications in one pass.

        Returns:
            For each item float32 [1, V] or [S, V] as its policy asks; None for policy NONE or before the final chunk.

        Raises: as `batch_decode`.
        """
        check_kind(batch, UnifiedBatch, param="batch")
        if not (items := inputs_of(UnifiedBatchItem, batch.items, param="items")):
            return []
        with self.exclusive():
            results = self._step([self._unified_span(item) for item in items], "q_tokens")
            return [result.logits for result in results]

    # Sequences

    def handle(self, cache_id: str) -> KvCacheHandle:
        """Return a handle of the sequence as it is now. Raises UnknownSequence, or InvalidHandle for no name."""
        check_name(cache_id)
        return self.sequences.handle(cache_id, self.sequences.pages.length(cache_id))

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> KvCacheHandle:
        """Forget the tokens from position `new_len` on; takes any handle of the current generation.

        Raises:
            InvalidHandle, UnknownSequence, StaleHandle: an unusable handle.
            RequestError: `new_len` is no integer, negative or beyond the stored length.
            Unsupported: a sliding window has freed keys that would be needed.
        """
        with self.exclusive():
            self.sequences.check(handle, exact=False)
            return self.truncate_kv_for_cache_id(handle.cache_id, new_len)

    def truncate_kv_for_cache_id(self, cache_id: str, new_len: int) -> KvCacheHandle:
        """Truncate a sequence by name, as `truncate_kv`. Raises InvalidHandle for no name."""
        check_name(cache_id)
        with self.exclusive():
            self.sequences.pages.truncate(
                cache_id, kept_length("new_len", new_len, self.sequences.pages.length(cache_id))
            )
            return self.handle(cache_id)

    def fork(self, handle: KvCacheHandle) -> KvCacheHandle:
        """Begin an independent continuation, `<base>-clone-<n>`, that shares the stored pages.

        Raises:
            InvalidHandle, UnknownSequence, StaleHandle: an unusable handle.
        """
        with self.exclusive():
            self.sequences.check(handle, exact=True)
            clone = self.sequences.clone_id(handle.cache_id)
            self.sequences.pages.fork(handle.cache_id, clone)
            return self.handle(clone)

    def set_lora_adapter(self, cache_id: str | KvCacheHandle, name: str | None) -> KvCacheHandle:
        """Use a loaded adapter for the next tokens of a sequence; None: the base model. An unknown name begins one.

        Returns a handle of the sequence, with which an empty one is prefilled. Other handles of it stay valid.

        Raises:
            Unsupported: the executor takes no adapters.
            RequestError: no adapter of that name is loaded, or the stored tokens do not allow it. Its subclasses
                InvalidHandle, UnknownSequence say more.
        """
        cache_id = self.sequences.name_of(cache_id)
        with self.exclusive():
            self.sequences.check_new(cache_id, param="cache_id")
            self.sequences.pages.choose(cache_id, self.adapters_for(cache_id, name))
            return self.handle(cache_id)

    def release_cache(self, cache_id: str | KvCacheHandle) -> None:
        """Free a sequence by name or handle; an unknown one is no error. Raises InvalidHandle for anything else."""
        cache_id = self.sequences.name_of(cache_id)
        with self.exclusive(ended=True):
            logger.debug("release %s: %s", cache_id, "known" if cache_id in self.sequences.pages else "unknown")
            self.sequences.pages.release(cache_id)
            self.sequences.undo.forget(cache_id)

    # From inputs to spans

    def _run_all(
        self,
        kind: type[Input],
        inputs: Sequence[Input],
        to_span: Callable[[Input], Span],
        to_output: Callable[[SpanResult, KvCacheHandle], Output],
    ) -> list[Output]:
        if not (inputs := inputs_of(kind, inputs, param="inputs")):
            return []
        with self.exclusive():
            spans = [to_span(each) for each in inputs]
            results = self._step(spans, "input_ids")
            return [to_output(result, self.handle(span.cache_id)) for span, result in zip(spans, results, strict=True)]

    def _prefill_span(self, inputs: PrefillInput) -> Span:
        if inputs.batch_size != 1:
            reason = f"must hold one prompt, not {inputs.batch_size}: use batch_prefill with one input each"
            raise RequestError(reason, param="input_ids")
        start = 0
        if inputs.kv_cache is not None:
            self.sequences.check(inputs.kv_cache, exact=True)
            start = inputs.kv_cache.sequence_length
        real = real_tokens(inputs, start)
        tokens = inputs.input_ids[0][real]
        self._check_options(inputs, range(start, start + len(tokens)), real)
        want, rows = SPAN_WANTS[LogitsPolicy(inputs.logits)]
        return Span(
            inputs.kv_cache.cache_id if inputs.kv_cache else self.sequences.new_id(),
            start,
            tokens,
            want,
            rows,
            _HIDDEN[inputs.return_hidden_states],
            extras=SpanExtras(attention_weights=inputs.return_attention_weights).or_none(),
        )

    def _decode_span(self, inputs: DecodeInput, ahead: int = 0) -> Span:
        """Return the span of one token, `ahead` tokens after the handle's length."""
        self.sequences.check(inputs.kv_cache, exact=True)
        start = inputs.kv_cache.sequence_length
        self._check_options(inputs, range(start + ahead, start + ahead + 1))
        return Span(
            inputs.kv_cache.cache_id,
            start,
            (inputs.token,),
            Want.LOGITS,
            hidden=_HIDDEN[inputs.return_hidden_states],
            extras=SpanExtras(attention_weights=inputs.return_attention_weights).or_none(),
        )

    def _unified_span(self, item: UnifiedBatchItem) -> Span:
        if isinstance(item.seq_id, str):
            cache_id = item.seq_id
            self.sequences.check_new(cache_id, param="seq_id")
        else:
            self.sequences.check(item.seq_id, exact=True)
            cache_id = item.seq_id.cache_id
        stored = self.sequences.pages.length(cache_id) if cache_id in self.sequences.pages else 0
        if item.pos_offset != stored:
            raise RequestError(f"must be the stored length {stored}, not {item.pos_offset}", param="pos_offset")
        want, rows = SPAN_WANTS[item.policy]
        adapters = () if item.adapter is None else self.adapters_for(cache_id, item.adapter)
        return Span(cache_id, stored, tuple(item.q_tokens), want, rows, extras=SpanExtras(adapters=adapters).or_none())

    def _check_options(self, inputs: PrefillInput | DecodeInput, stored: range, real: slice = slice(None)) -> None:
        """Refuse positions other than where the tokens will be stored, and what the kernels do not keep."""
        check_positions(inputs, stored, real)
        reason = f'{self.traits.backend} does not keep them: load the model with kernels="reference"'
        if inputs.return_attention_weights and not self.traits.attention_weights:
            raise Unsupported("return_attention_weights", reason)
        if inputs.return_hidden_states == LAYERS and not self.traits.layer_states:
            raise Unsupported(f"return_hidden_states={LAYERS!r}", reason)

    def _step(self, spans: Sequence[Span], param: str) -> list[SpanResult]:
        """Run checked spans, all or none; `param` is the caller's name for their tokens."""
        if len(spans) > (most := self.traits.largest_batch):
            reason = f"{len(spans)} sequences exceed max_batch_size = {most}"
            raise RequestError(reason, param=param)
        if len({span.cache_id for span in spans}) < len(spans):
            raise RequestError("a sequence appears twice", param="kv_cache")
        for span in spans:
            self._check_tokens(span.tokens, span.start, param)
        spans = [with_adapters(span, self.sequences.pages) for span in spans]
        return self.sequences.undo.all_or_none(spans, lambda batch: self.submit(batch).result())

    def _check_tokens(self, tokens: Sequence[int], start: int, param: str) -> None:
        """Refuse unknown token ids, and tokens beyond the context, after `start` stored tokens."""
        longest = self.traits.longest_sequence
        check_tokens(tokens, start, vocab_size=self.sequences.info.vocab_size, max_sequence_length=longest, param=param)


def verb(method: Callable[Concatenate[NamedVerbs, P], Result]) -> Callable[Concatenate[Any, P], Result]:
    """Return a verb as a method of an object that has it in `verbs`, with its arguments, result and errors."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return method(self.verbs, *args, **kwargs)

    return call
