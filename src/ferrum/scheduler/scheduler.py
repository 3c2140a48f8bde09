"""Continuous batching: a step lets the computed tokens of every sequence catch up with its known ones.

There is no prefill phase and no decode phase. A prompt is a sequence far behind, a preempted sequence falls back to the
start, and one that is a single token behind decodes. A step gives its token budget first to sequences that decode, then
to prompts: the tenant that was served least comes first, within it the lowest rank.

A waiting request is admitted if its tokens fit and the sequences before it have pages to grow (`admission.py`). When
pages run out, the running sequence served last is preempted and starts over. The sequence served first is never
preempted for another one, so it ends, and then the next one is first: there is always progress. With several tenants
the victim is the sequence with the most of its tenant before it; it also gives way to a waiting request of a tenant
with fewer running sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ferrum.core.errors import FerrumError, RequestError
from ferrum.core.snapshots import PrefixCounts
from ferrum.core.step import Hidden, Span, SpanResult, StepOutput, TokenLogprobs, Want
from ferrum.core.types import FinishReason, Request, Sequence, TokenEvent
from ferrum.scheduler.planner import StepPlanner
from ferrum.scheduler.sequence import (
    check_length,
    event,
    judge,
    pool,
)
from ferrum.scheduler.step_plan import Plan


class Scheduler(StepPlanner):
    """All live requests, from their arrival to their end. Not thread-safe: the engine's loop owns it.

    Arguments as `StepPlanner`.
    """

    @property
    def num_running(self) -> int:
        """Number of sequences that hold pages."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Number of sequences that wait to be admitted, for the first time or after a preemption."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the pages that is in use, 0 to 1."""
        return self._pages.usage

    @property
    def prefix_counts(self) -> PrefixCounts:
        """Counts of the prefix cache."""
        return self._pages.prefix_counts()

    @property
    def has_work(self) -> bool:
        """Whether any event is pending."""
        return bool(self._live or self._unplaced)

    def add(self, request: Request) -> None:
        """Queue the request's choices.

        Raises:
            RequestError: a live request has this id, or the prompt is empty.
            ContextOverflow: the prompt leaves no room for a token in the context.
            KvExhausted: the prompt is longer than the whole pool.
        """
        if request.request_id in self._live:
            raise RequestError(f"{request.request_id!r} is in use", param="request_id")
        check_length(request, self._max_sequence_length, self._storable)
        limit = len(request.prompt) + (
            self._context if request.params.max_tokens is None else request.params.max_tokens
        )
        for sequence in self._live.add(request):
            sequence.limit = min(limit, self._context)
            self._waiting.add(sequence)
        self._decodes.end()

    def abort(
        self, request_id: str, reason: FinishReason = FinishReason.ABORT, *, choice: int | None = None
    ) -> list[TokenEvent]:
        """End a request, or one choice of it; ignore unknown and ended ones."""
        return self._end_all([each for each in self._live.choices(request_id) if choice in (None, each.choice)], reason)

    def expire(self, now: float) -> list[TokenEvent]:
        """End the requests whose deadline has passed; return their events and those of choices without room."""
        events, self._unplaced = self._unplaced, []
        for request_id in self._live.due(now):
            events += self.abort(request_id, FinishReason.DEADLINE)
        return events

    def drain(self, cause: FinishReason | FerrumError) -> list[TokenEvent]:
        """End all requests, for a reason or with an error."""
        error = cause if isinstance(cause, FerrumError) else None
        reason = cause if isinstance(cause, FinishReason) else FinishReason.ERROR
        events, self._unplaced = self._unplaced, []
        return events + self._end_all(self._live, reason, error)

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Set a function to call, from any thread, when restored pages that `plan` waited for have arrived."""
        self._pages.restores.on_ready = wake

    # The end of a step

    def commit(self, plan: Plan, output: StepOutput) -> list[TokenEvent]:
        """Apply a step's results; a span with an error ends only its own choice."""
        events: list[TokenEvent] = []
        self._costs.observe_step(plan.batch, output, plan.context_tokens)
        decoded = 0
        for sequence, span, result in zip(plan.sequences, plan.batch.spans, output.results, strict=True):
            self._in_flight[sequence.cache_id] -= 1
            if not self._in_flight[sequence.cache_id]:
                del self._in_flight[sequence.cache_id]
            sequence.ahead -= len(span.tokens) - (0 if span.extras is None else span.extras.drafts)
            sequence.pending -= span.want is Want.TOKEN
            if sequence.finish is not None:
                if sequence.cache_id not in self._in_flight:
                    self._leave(sequence)
            elif isinstance(result, FerrumError):
                events += self._end_all([sequence], FinishReason.ERROR, result)
            elif plan.tenant is None or not self._continues(sequence, result):
                events += self._advance(sequence, span, result)
            else:
                decoded += 1
                sequence.computed = result.length
                sequence.tokens += result.tokens
                events.append(event(sequence, result.tokens, result.logprobs))
        if decoded and plan.tenant is not None:
            self._waiting.charge(plan.tenant, decoded)
        return events

    def _continues(self, sequence: Sequence, result: SpanResult) -> bool:
        """Return whether a decoded token is all that has happened to a sequence: it ends nothing and fills no page."""
        (token,), request = result.tokens, sequence.request
        return (
            token not in request.stop_token_ids
            and len(sequence.tokens) + 1 < sequence.limit
            and (self._page_size is None or result.length % self._page_size != 0)
        )

    def fail(self, plan: Plan, error: FerrumError) -> list[TokenEvent]:
        """Apply the failure of a whole step: all its choices end."""
        return self.commit(plan, StepOutput((error,) * len(plan.sequences)))

    def _advance(self, sequence: Sequence, span: Span, result: SpanResult) -> list[TokenEvent]:
        """Apply one successful result: computed tokens, prompt log-probabilities and sampled tokens, if any."""
        assert result.length == span.end - span.drafts + result.accepted
        sequence.computed = result.length
        if span.hidden is not Hidden.NONE:
            pool(sequence, span, result)
        if span.score is not None:
            scores = self._live.scores(sequence)
            scores += result.scores[len(scores) - span.start :]
        if span.drafts:
            self.drafter.learn(sequence, span.drafts, result.accepted)
        if result.length < span.end:
            self._pages.trim(sequence.cache_id)
        if not result.tokens:
            if sequence.request.params.max_tokens != 0 or sequence.computed < len(sequence.tokens):
                return []
            return self._end_scored(sequence)
        prompt_logprobs = self._prompt_logprobs(sequence)
        outcome = judge(sequence, result.tokens, self._context)
        sequence.extend(outcome.tokens)
        self._prefixes.publish(sequence)
        self._waiting.count_output(sequence, len(outcome.tokens))
        if outcome.finish is not None:
            self._finish(sequence, outcome.finish)
        logprobs = None if result.logprobs is None else result.logprobs[: len(outcome.tokens)]
        return [event(sequence, outcome.tokens, logprobs, prompt_logprobs, outcome.stop_reason)]

    def _end_scored(self, sequence: Sequence) -> list[TokenEvent]:
        """End a choice that generates nothing."""
        prompt_logprobs = self._prompt_logprobs(sequence)
        self._prefixes.publish(sequence)
        self._finish(sequence, FinishReason.LENGTH)
        return [event(sequence, prompt_logprobs=prompt_logprobs)]

    def _prompt_logprobs(self, sequence: Sequence) -> tuple[TokenLogprobs, ...] | None:
        """Return the prompt's log-probabilities for the first event of a choice."""
        if sequence.generated or sequence.request.params.prompt_logprobs is None:
            return None
        return tuple(self._live.scores(sequence))

    def _end_all(
        self, sequences: Iterable[Sequence], reason: FinishReason, error: FerrumError | None = None
    ) -> list[TokenEvent]:
        """End the given sequences. All are marked before the first one leaves, so none of them takes over a prompt."""
        ending = [each for each in sequences if each.finish is None]
        self._decodes.end()
        for sequence in ending:
            sequence.finish = reason
        for sequence in ending:
            if sequence.cache_id not in self._in_flight:
                self._leave(sequence)
        return [event(sequence, error=error) for sequence in ending]

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence; it leaves when none of its steps is in flight."""
        self._decodes.end()
        sequence.finish = reason
        if sequence.cache_id not in self._in_flight:
            self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Release everything that an ended sequence holds."""
        if sequence in self._running:
            self._forks.hand_over(sequence)
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._prefixes.release(sequence)
        self._admission.reconsider()
        self.drafter.forget(sequence)
        self._live.remove(sequence)
