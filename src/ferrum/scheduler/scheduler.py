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

from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Series

from ferrum.cache.page_hashes import PrefixScope
from ferrum.core.errors import FerrumError, KvExhausted, RequestError
from ferrum.core.policy_config import POLICY, PolicyConfig
from ferrum.core.snapshots import PrefixCounts
from ferrum.core.step import Hidden, Span, SpanResult, StepOutput, TokenLogprobs
from ferrum.core.types import FinishReason, Request, Sequence, TokenEvent
from ferrum.scheduler.admission import Admission, GrowthReserve
from ferrum.scheduler.drafts import Drafter, DraftRequest, NoDrafts
from ferrum.scheduler.page_protocol import Pages
from ferrum.scheduler.prefix_sharing import ChoiceForks, PrefixMatch, PrefixSharing, PromptSources
from ferrum.scheduler.queues import LiveRequests, Policy, Ranked, WaitingQueue, next_victim, victims_for
from ferrum.scheduler.sequence import check_length, draft_limit, event, judge, make_span, pool, reusable
from ferrum.scheduler.step_plan import FirstTokenSteps, OpenStep, Plan, StepBudget, StepCosts


class Scheduler:
    """State of all live requests. Not thread-safe: the engine's loop owns it.

    A sequence in a plan is in flight until the plan is committed or failed. Meanwhile it is not planned again and keeps
    its pages, even when it is ended.

    Args:
        pages: the page table of the executor that runs the plans.
        policy: the order in which requests are served.
        max_tokens_per_step: largest number of tokens in a step, drafts included.
        max_sequences: largest number of running sequences.
        max_sequence_length: largest number of prompt and output tokens together. A smaller pool lowers it. A sequence
            that reaches the bound ends with `FinishReason.LENGTH`.
        drafter: source of draft tokens; default: none.
        costs: predicts durations of steps, and learns from each step.
        decode_seconds: target duration of a step in which sequences decode; see `StepBudget`.
        reserve: growth that admission reserves for each sequence; default: `growth_reserve`.
        prefixes: scope within which sequences share pages of equal prefixes; None: they do not.
        config: constants of the policies.

    Attributes:
        drafter: drafts for sequences whose tokens are computed except the last one.
        preemptions: number of times a sequence lost its pages.
    """

    def __init__(
        self,
        pages: Pages,
        *,
        policy: Policy,
        max_tokens_per_step: int,
        max_sequences: int,
        max_sequence_length: int,
        drafter: Drafter | None = None,
        costs: StepCosts | None = None,
        decode_seconds: float | None = None,
        reserve: GrowthReserve | None = None,
        prefixes: PrefixScope | None = None,
        config: PolicyConfig = POLICY,
    ) -> None:
        for name, value in (("max_tokens_per_step", max_tokens_per_step), ("max_sequences", max_sequences)):
            if value < 1:
                raise RequestError(f"must be at least 1, not {value}", param=name)
        self._pages = pages
        self._max_tokens_per_step = min(max_tokens_per_step, max_sequences * max_sequence_length)
        self._growth = pages.growth(self._max_tokens_per_step)
        self._max_sequences = max_sequences
        self._max_sequence_length = max_sequence_length
        self.drafter = drafter or NoDrafts()
        self._costs = costs or StepCosts()
        self._step_budget = StepBudget(self._costs, decode_seconds, config)
        lengths = range(1, max_sequence_length + 1)
        self._storable = bisect_left(lengths, True, key=lambda length: not pages.fits_empty_pool(length, self._growth))
        # The last token of a sequence is never stored: only its successor would need its keys.
        self._context = min(max_sequence_length, self._storable + 1)
        self._live = LiveRequests(policy)
        self._running = Ranked(self._live.rank)
        self._first_tokens = FirstTokenSteps(self._costs, self._live.tenant, config)
        self._waiting = WaitingQueue(self._live.rank, self._live.tenant, config)
        self._admission = Admission(
            self._live, self._running, pages, growth=self._growth, context=self._context, reserve=reserve
        )
        self._prefixes = PrefixSharing(pages, prefixes, self._growth, self._admission)
        self._forks = ChoiceForks(self._live, self._running, self._waiting, pages, self._prefixes)
        self._sources = PromptSources(self._live, self._forks, self._prefixes, config)
        self._in_flight: set[str] = set()
        self._unplaced: list[TokenEvent] = []
        self.preemptions = 0

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
        for sequence in self._live.add(request):
            self._waiting.add(sequence)

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

    # Planning

    def plan(self) -> Plan | None:
        """Return the next step, or None if there is nothing to do until a commit, an arrival or `expire`."""
        step = OpenStep(self._max_tokens_per_step)
        self._pages.restores.collect()
        self._plan_decodes(step)
        self._plan_prompts(step)
        while self._waiting and not (self._running or self._pages.restores):
            # Sequences outside this scheduler hold the other pages, and will not release them.
            error = KvExhausted("other sequences of the executor hold too many pages for this one (release them)")
            self._unplaced += self._end_all([next(self._waiting.rounds((), ()))], FinishReason.ERROR, error)
            self._plan_prompts(step)
        self._first_tokens.apply(step, self._running)
        self._add_drafts(step)
        plan = step.close()
        if plan is not None:
            self._in_flight.update(sequence.cache_id for sequence in plan.sequences)
        return plan

    def _plan_decodes(self, step: OpenStep) -> None:
        """Add spans for the running sequences that are one token behind."""
        for sequence in self._running_behind(range(1, 2)):
            if step.budget and sequence.computed:  # else it was just preempted
                self._continue(sequence, step)

    def _plan_prompts(self, step: OpenStep) -> None:
        """Add spans for running sequences far behind and for waiting ones, in rounds, until one does not fit.

        Later waiting sequences do not overtake that one, or it might never be admitted.
        """
        behind = self._running_behind(range(2, self._max_sequence_length + 1))
        step.admits = bool(self._waiting) and not self._admission.is_refused(self._waiting.next)
        if not behind and not step.admits:
            return
        self._step_budget.bound(step, self._running, behind, self._max_sequences)
        self._sources.reset()
        for sequence in self._waiting.rounds(self._running, behind, lambda: step.admits):
            if not step.budget:
                return
            if sequence in self._running:
                self._waiting.count_prompt(sequence, self._continue(sequence, step))
            elif step.admits:
                source = self._sources.find(sequence)
                step.admits = not self._sources.exhausted if source is None else self._admit(sequence, source, step)

    def _running_behind(self, tokens: range) -> list[Sequence]:
        """Return the running sequences that are this many tokens behind and not in flight."""
        ready = [each for each in self._running if each.cache_id not in self._in_flight]
        return [each for each in ready if len(each.tokens) - each.computed in tokens]

    def _continue(self, sequence: Sequence, step: OpenStep) -> int:
        """Add a span for a running sequence if there is room; return its number of tokens."""
        count = min(len(sequence.tokens) - sequence.computed, step.budget, self._growth)
        if not self._make_room(sequence, sequence.computed + count, step):
            return 0
        step.add(sequence, make_span(sequence, count, scored=self._live.scored(sequence)))
        return count

    def _add_drafts(self, step: OpenStep) -> None:
        """Spend the rest of the budget on draft tokens, so they take nothing from known tokens."""
        ready = [each for each, span in step.spans() if len(span.tokens) == 1 and span.end == len(each.tokens)]
        if not any(map(self.drafter.may_draft, ready)):
            return
        step.hold(None)
        requests = [
            DraftRequest(each, limit) for each in ready if (limit := min(step.budget, draft_limit(each, self._context)))
        ]
        for request, tokens in zip(requests, self.drafter.draft(requests, step.room) if requests else (), strict=True):
            sequence, drafts = request.sequence, tokens[: min(request.limit, step.budget)]
            if drafts and self._pages.reserve(sequence.cache_id, sequence.computed + 1 + len(drafts)):
                step.add(sequence, make_span(sequence, 1, drafts=drafts, scored=self._live.scored(sequence)))

    def _make_room(self, sequence: Sequence, length: int, step: OpenStep) -> bool:
        """Reserve pages for a running sequence; preempt those served last. False if that is the sequence itself."""
        while not self._pages.reserve(sequence.cache_id, length):
            last = next_victim(self._running, self._live.tenant, self._in_flight)
            assert last is not None  # the sequence itself is not in flight
            if last[0] is sequence and (self._in_flight or self._pages.restores):
                return False  # sequences in flight end or become victims, and restores release their pages
            self._preempt(last[0], step)
            if last[0] is sequence:
                return False
        return True

    def _make_room_for(self, waiting: Sequence, victims: Series[Sequence], step: OpenStep) -> bool:
        """Preempt as few of the victims as the waiting sequence needs, and none if all are not enough."""
        least = max(0, len(self._running) - step.max_sequences + 1)
        numbers = range(least, len(victims) + 1)
        count = least + bisect_left(numbers, True, key=lambda n: self._admission.fits(waiting, victims[:n]))
        for victim in victims[:count] if count <= len(victims) else ():
            self._preempt(victim, step)
        return count <= len(victims)

    def _preempt(self, victim: Sequence, step: OpenStep) -> None:
        """Take the sequence's pages and its span in this step; its tokens stay."""
        step.drop(victim)
        self._prefixes.release(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        if not victim.generated:
            victim.scheduled = None
        self._running.remove(victim)
        self._waiting.add(victim)
        self._admission.reconsider()

    def _admit(self, sequence: Sequence, source: Sequence | PrefixMatch, step: OpenStep) -> bool:
        """Admit the sequence, as a fork of another choice or with its cached prefix, if it fits."""
        victims = victims_for(sequence, self._running, self._live.tenant, self._in_flight)
        if len(self._running) - len(victims) >= step.max_sequences:
            if step.max_sequences == self._max_sequences:  # else the bound may rise with the next observed step
                self._refuse(sequence)
            return False
        if isinstance(source, Sequence):
            self._forks.fork(source, sequence)
        else:
            self._prefixes.adopt(sequence, source)
        fits = self._make_room_for(sequence, victims, step)
        count = min(len(sequence.tokens) - sequence.computed, step.budget, self._growth)
        if not (fits and self._pages.reserve(sequence.cache_id, sequence.computed + count)):
            self._pages.release(sequence.cache_id)
            sequence.computed = 0
            self._refuse(sequence)
            return False
        if not isinstance(source, Sequence):
            self._prefixes.start(sequence, reusable(sequence, self._live.scored(sequence)))
        self._waiting.remove(sequence)
        self._running.add(sequence)
        self._waiting.count_prompt(sequence, count)
        step.add(sequence, make_span(sequence, count, scored=self._live.scored(sequence)))
        return True

    def _refuse(self, waiting: Sequence) -> None:
        """Remember a refusal, unless sequences in flight may become victims later."""
        if not self._in_flight:
            self._admission.refuse(waiting)

    # The end of a step

    def commit(self, plan: Plan, output: StepOutput) -> list[TokenEvent]:
        """Apply a step's results; a span with an error ends only its own choice."""
        events: list[TokenEvent] = []
        self._costs.observe_step(plan.batch, output)
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
        sequence.finish = outcome.finish
        if outcome.finish is not None:
            self._leave(sequence)
        logprobs = None if result.logprobs is None else result.logprobs[: len(outcome.tokens)]
        return [event(sequence, outcome.tokens, logprobs, prompt_logprobs, outcome.stop_reason)]

    def _end_scored(self, sequence: Sequence) -> list[TokenEvent]:
        """End a choice that generates nothing."""
        prompt_logprobs = self._prompt_logprobs(sequence)
        self._prefixes.publish(sequence)
        sequence.finish = FinishReason.LENGTH
        self._leave(sequence)
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
        for sequence in ending:
            sequence.finish = reason
        for sequence in ending:
            if sequence.cache_id not in self._in_flight:
                self._leave(sequence)
        return [event(sequence, error=error) for sequence in ending]

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
