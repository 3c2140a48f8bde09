"""Continuous batching. Every sequence has known tokens and computed ones; a step lets the computed ones catch up.

There is no prefill phase and no decode phase: a prompt is a sequence that is far behind, a preempted one falls back to
the start, and one that is a single token behind decodes. A step gives its token budget first to those, then to prompts
by turns: the share that was served least goes first, in it running prompts before newcomers.

When the pages run out, the running sequence that is served last gives up its own and starts over. The one that is
served first never does so for another, so it ends at last, and then the next one is first. With several shares it is
the one with the most of its own share before it; such a sequence also gives way to a newcomer with fewer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from ferrum.core.errors import FerrumError, KvExhausted, RequestError
from ferrum.core.step import Span, SpanResult, StepOutput, TokenLogprobs
from ferrum.core.types import FinishReason, Request, Sequence, TokenEvent
from ferrum.scheduler.plan import OpenStep, Pages, Plan
from ferrum.scheduler.policy import Policy, Rank
from ferrum.scheduler.queues import Ranked, Waiting, last_in_turn
from ferrum.scheduler.sequence import begin, check_length, draft_limit, event, judge, make_span, pool, shared_length


@dataclass(slots=True, eq=False)
class _Live:
    """A request, its choices that still hold something, and its prompt's log-probabilities so far."""

    request: Request
    rank: Rank
    sequences: list[Sequence] = field(default_factory=list)
    scores: list[TokenLogprobs] = field(default_factory=list)


class Scheduler:
    """The books of all live requests. Not thread-safe: the engine's loop owns it.

    A sequence in a plan is in flight until the plan is committed or failed: it is not planned again and keeps its
    pages, even when it is ended meanwhile.

    Args:
        pages: the page table of the executor that runs the plans.
        policy: the order in which requests are served.
        max_tokens_per_step: most tokens in a step, drafts included.
        max_sequences: most sequences that run at a time.
        max_sequence_length: most tokens of prompt and output together. A pool that cannot hold so many lowers it, and
            a sequence that reaches the bound ends with `FinishReason.LENGTH` either way.
        propose: drafts the next tokens of a sequence; asked only when all but its last token are computed.

    Attributes:
        preemptions: how often any sequence lost its pages.
    """

    def __init__(
        self,
        pages: Pages,
        *,
        policy: Policy,
        max_tokens_per_step: int,
        max_sequences: int,
        max_sequence_length: int,
        propose: Callable[[Sequence], tuple[int, ...]] | None = None,
    ) -> None:
        for name, value in (("max_tokens_per_step", max_tokens_per_step), ("max_sequences", max_sequences)):
            if value < 1:
                raise RequestError(f"must be at least 1, not {value}", param=name)
        self._pages = pages
        self._policy = policy
        self._max_tokens_per_step = max_tokens_per_step
        self._max_sequences = max_sequences
        self._max_sequence_length = max_sequence_length
        self._propose = propose
        # The last token of a sequence is never stored: only what follows it would need its keys.
        lengths = range(1, max_sequence_length + 1)
        self._storable = bisect_left(lengths, True, key=lambda length: not self._holds(length))
        self._context = min(max_sequence_length, self._storable + 1)
        self._live: dict[str, _Live] = {}
        self._running = Ranked(self._rank)
        self._waiting = Waiting(self._rank, self._share)
        self._in_flight: set[str] = set()
        self._deadlines: list[tuple[float, str]] = []
        self._homeless: list[TokenEvent] = []
        self._added = 0
        self.preemptions = 0

    @property
    def num_running(self) -> int:
        """Number of sequences that hold pages."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Number of sequences that wait for their first page, or for another one after a preemption."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """The part of the pages that is in use, 0 to 1."""
        return self._pages.usage

    @property
    def has_work(self) -> bool:
        """Whether any event is still to come."""
        return bool(self._live or self._homeless)

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
        live = _Live(request, (*self._policy.rank(request), self._added))
        self._added += 1
        self._live[request.request_id] = live
        for choice in range(request.params.n):
            sequence = begin(request, choice)
            live.sequences.append(sequence)
            self._waiting.add(sequence)
        if request.deadline is not None:
            heappush(self._deadlines, (request.deadline, request.request_id))

    def abort(
        self, request_id: str, reason: FinishReason = FinishReason.ABORT, *, choice: int | None = None
    ) -> list[TokenEvent]:
        """End a request, or one choice of it; what is unknown or ended is let be."""
        live = self._live.get(request_id)
        sequences = live.sequences if live is not None else []
        return self._end_all([each for each in sequences if choice in (None, each.choice)], reason)

    def expire(self, now: float) -> list[TokenEvent]:
        """End the requests whose deadline is `now` or past, and tell of the choices that `plan` found no room for."""
        events, self._homeless = self._homeless, []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, request_id = heappop(self._deadlines)
            live = self._live.get(request_id)
            # The heap remembers ended requests too, and an id may have come back since.
            if live is not None and live.request.deadline == deadline:
                events += self.abort(request_id, FinishReason.DEADLINE)
        return events

    def drain(self, cause: FinishReason | FerrumError) -> list[TokenEvent]:
        """End everything, for a reason or with an error."""
        error = cause if isinstance(cause, FerrumError) else None
        reason = cause if isinstance(cause, FinishReason) else FinishReason.ERROR
        events, self._homeless = self._homeless, []
        return events + self._end_all([each for live in self._live.values() for each in live.sequences], reason, error)

    # Planning

    def plan(self) -> Plan | None:
        """The next step, or None when there is nothing to do until a commit, an arrival or `expire`."""
        step = OpenStep(self._max_tokens_per_step)
        self._plan_decodes(step)
        self._plan_prompts(step)
        while self._waiting and not self._running:
            # All pages are free but those of strangers to this scheduler, and they will not go.
            error = KvExhausted("the pages that others hold leave no room for this sequence")
            self._homeless += self._end_all([next(self._waiting.turns((), ()))], FinishReason.ERROR, error)
            self._plan_prompts(step)
        self._add_drafts(step)
        plan = step.close()
        if plan is not None:
            self._in_flight.update(sequence.cache_id for sequence in plan.sequences)
        return plan

    def _plan_decodes(self, step: OpenStep) -> None:
        """Spans for the running sequences that are one token behind."""
        for sequence in self._running_behind(range(1, 2)):
            if step.budget and sequence.computed:  # else it was preempted just now
                self._continue(sequence, step)

    def _plan_prompts(self, step: OpenStep) -> None:
        """By turns, spans for the running sequences far behind, and for newcomers until one does not fit.

        Later newcomers do not overtake that one, or it might wait for ever.
        """
        behind = self._running_behind(range(2, self._max_sequence_length + 1))
        closed = False
        for sequence in self._waiting.turns(self._running, behind):
            if not step.budget:
                return
            if sequence in self._running:
                self._waiting.count_prompt(sequence, self._continue(sequence, step))
            elif not closed:
                siblings = self._running_siblings(sequence)
                source = self._prefix_source(sequence, siblings)
                if source is None and any(each.computed < shared_length(each) for each in siblings):
                    continue  # the prefix is being computed
                closed = not self._admit(sequence, source, step)

    def _running_behind(self, tokens: range) -> list[Sequence]:
        """The running sequences that are so many tokens behind, without those in flight."""
        ready = [each for each in self._running if each.cache_id not in self._in_flight]
        return [each for each in ready if len(each.tokens) - each.computed in tokens]

    def _continue(self, sequence: Sequence, step: OpenStep) -> int:
        """A span for a running sequence, if there is room; its tokens."""
        count = min(len(sequence.tokens) - sequence.computed, step.budget)
        if not self._make_room(sequence, sequence.computed + count, step):
            return 0
        step.add(sequence, make_span(sequence, count, scored=self._scored(sequence)))
        return count

    def _add_drafts(self, step: OpenStep) -> None:
        """Spend what is left of the budget on drafts: a guess takes no token and no page that anyone needs for sure."""
        if self._propose is None:
            return
        for sequence, span in step.spans():
            limit = min(step.budget, draft_limit(sequence, self._context))
            if limit and len(span.tokens) == 1 and span.end == len(sequence.tokens):
                drafts = self._propose(sequence)[:limit]
                if drafts and self._pages.reserve(sequence.cache_id, span.end + len(drafts)):
                    step.add(sequence, make_span(sequence, 1, drafts=drafts, scored=self._scored(sequence)))

    def _make_room(self, sequence: Sequence, length: int, step: OpenStep) -> bool:
        """Reserve for a running sequence, at the cost of those served last; False when that is the sequence itself."""
        while not self._pages.reserve(sequence.cache_id, length):
            last = last_in_turn(self._running, self._share, self._in_flight)
            assert last is not None  # the sequence itself is not in flight
            if last[0] is sequence and self._in_flight:
                return False  # those in flight will give way, or end
            self._preempt(last[0], step)
            if last[0] is sequence:
                return False
        return True

    def _make_place(self, newcomer: Sequence, step: OpenStep, *, pages: bool) -> bool:
        """See to a place among the running, and to pages if need be, at the cost of shares that have more places."""
        share = self._share(newcomer)
        while len(self._running) >= self._max_sequences or (
            pages and not self._pages.fits(len(newcomer.tokens), self._max_tokens_per_step)
        ):
            last = last_in_turn(self._running, self._share, self._in_flight)
            if last is None or last[1] <= sum(self._share(each) == share for each in self._running):
                return False
            self._preempt(last[0], step)
        return True

    def _preempt(self, victim: Sequence, step: OpenStep) -> None:
        """Take the sequence's pages, and its span in this step; its tokens stay."""
        step.drop(victim)
        self._pages.release(victim.cache_id)
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        if not victim.generated:
            victim.scheduled = None
        self._running.remove(victim)
        self._waiting.add(victim)

    def _admit(self, sequence: Sequence, source: Sequence | None, step: OpenStep) -> bool:
        """Let the sequence in, with the prefix of `source` where there is one, if there is room for all its tokens."""
        if not self._make_place(sequence, step, pages=source is None):
            return False
        if source is not None:
            self._share_prefix(source, sequence)
        count = min(len(sequence.tokens) - sequence.computed, step.budget)
        if not self._pages.reserve(sequence.cache_id, sequence.computed + count):
            self._pages.release(sequence.cache_id)
            sequence.computed = 0
            return False
        self._waiting.remove(sequence)
        self._running.add(sequence)
        self._waiting.count_prompt(sequence, count)
        step.add(sequence, make_span(sequence, count, scored=self._scored(sequence)))
        return True

    # Choices of one request: the prompt but for its last token is computed once, and each takes it from there

    def _running_siblings(self, sequence: Sequence) -> list[Sequence]:
        if shared_length(sequence) == 0:
            return []
        siblings = self._live[sequence.request.request_id].sequences
        return [each for each in siblings if each.finish is None and each in self._running]

    def _prefix_source(self, sequence: Sequence, siblings: Iterable[Sequence]) -> Sequence | None:
        shared = shared_length(sequence)
        return next((each for each in siblings if self._can_share(each, shared)), None)

    def _can_share(self, source: Sequence, shared: int) -> bool:
        return source.computed >= shared > 0 and self._pages.can_truncate(source.cache_id, shared)

    def _share_prefix(self, source: Sequence, target: Sequence) -> None:
        self._pages.fork(source.cache_id, target.cache_id)
        self._pages.truncate(target.cache_id, shared_length(target))
        target.computed = shared_length(target)

    def _bequeath(self, sequence: Sequence) -> None:
        """Before the last choice that has the prefix goes, hand it, and the place, to one that waits."""
        if sequence.finish is FinishReason.ERROR or not self._can_share(sequence, shared_length(sequence)):
            return
        siblings = [each for each in self._live[sequence.request.request_id].sequences if each.finish is None]
        if self._prefix_source(sequence, [each for each in siblings if each in self._running]) is not None:
            return
        heir = next((each for each in siblings if each in self._waiting), None)
        if heir is not None:
            self._share_prefix(sequence, heir)
            self._waiting.remove(heir)
            self._running.add(heir)

    # The end of a step

    def commit(self, plan: Plan, output: StepOutput) -> list[TokenEvent]:
        """Take in a step's results; a span with an error ends its choice alone."""
        events: list[TokenEvent] = []
        for sequence, span, result in zip(plan.sequences, plan.batch.spans, output.results, strict=True):
            self._in_flight.remove(sequence.cache_id)
            if sequence.finish is not None:
                self._leave(sequence)
            elif isinstance(result, FerrumError):
                events += self._end_all([sequence], FinishReason.ERROR, result)
            else:
                events += self._advance(sequence, span, result)
        return events

    def fail(self, plan: Plan, error: FerrumError) -> list[TokenEvent]:
        """Take in that the whole step failed: all its choices end."""
        return self.commit(plan, StepOutput((error,) * len(plan.sequences)))

    def _advance(self, sequence: Sequence, span: Span, result: SpanResult) -> list[TokenEvent]:
        """One good result: the computed tokens, the scores and the sampled tokens, of which there may be none."""
        assert result.length == span.end - span.drafts + result.accepted
        sequence.computed = result.length
        pool(sequence, span, result)
        if span.score is not None:
            scores = self._live[sequence.request.request_id].scores
            scores += result.scores[len(scores) - span.start :]
        if result.length < span.end:
            self._pages.trim(sequence.cache_id)
        if not result.tokens:
            if sequence.request.params.max_tokens != 0 or sequence.computed < len(sequence.tokens):
                return []
            return self._end_scored(sequence)
        prompt_logprobs = self._prompt_logprobs(sequence)
        outcome = judge(sequence, result.tokens, self._context)
        sequence.tokens += outcome.tokens
        self._waiting.count_output(sequence, len(outcome.tokens))
        sequence.finish = outcome.finish
        if outcome.finish is not None:
            self._leave(sequence)
        logprobs = None if result.logprobs is None else result.logprobs[: len(outcome.tokens)]
        return [event(sequence, outcome.tokens, logprobs, prompt_logprobs, outcome.stop_reason)]

    def _end_scored(self, sequence: Sequence) -> list[TokenEvent]:
        """The end of a choice that was to generate nothing."""
        prompt_logprobs = self._prompt_logprobs(sequence)
        sequence.finish = FinishReason.LENGTH
        self._leave(sequence)
        return [event(sequence, prompt_logprobs=prompt_logprobs)]

    def _prompt_logprobs(self, sequence: Sequence) -> tuple[TokenLogprobs, ...] | None:
        """What the first event of a choice brings along."""
        if sequence.generated or sequence.request.params.prompt_logprobs is None:
            return None
        return tuple(self._live[sequence.request.request_id].scores)

    def _end_all(
        self, sequences: Iterable[Sequence], reason: FinishReason, error: FerrumError | None = None
    ) -> list[TokenEvent]:
        """End those that have not ended. All are marked before the first one leaves: none of them is an heir."""
        ending = [each for each in sequences if each.finish is None]
        for sequence in ending:
            sequence.finish = reason
        for sequence in ending:
            if sequence.cache_id not in self._in_flight:
                self._leave(sequence)
        return [event(sequence, error=error) for sequence in ending]

    def _leave(self, sequence: Sequence) -> None:
        """Give back all that an ended sequence holds."""
        live = self._live[sequence.request.request_id]
        if sequence in self._running:
            self._bequeath(sequence)
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._pages.release(sequence.cache_id)
        live.sequences.remove(sequence)
        if not live.sequences:
            del self._live[sequence.request.request_id]

    def _rank(self, sequence: Sequence) -> Rank:
        return (*self._live[sequence.request.request_id].rank, sequence.choice)

    def _share(self, sequence: Sequence) -> str:
        return self._policy.share(sequence.request)

    def _scored(self, sequence: Sequence) -> int:
        return 1 + len(self._live[sequence.request.request_id].scores)

    def _holds(self, length: int) -> bool:
        return self._pages.fits(length, self._max_tokens_per_step, empty=True)
