"""Continuous batching. Every sequence has known tokens and computed ones; a step lets the computed ones catch up.

There is no prefill phase and no decode phase: a prompt is a sequence that is far behind, a preempted one falls back to
the start, and one that is a single token behind decodes. A step gives its token budget first to those, then to prompts
by turns: the share that was served least goes first, in it whoever has the higher priority, then who came first.

A newcomer is let in when it and those that run will find their pages to the end, as far as one can tell. Where one was
wrong and the pages run out, the running sequence that is served last gives up its own and starts over. The one that is
served first never does so for another, so it ends at last, and then the next one is first. With several shares it is
the one with the most of its own share before it; such a sequence also gives way to a newcomer with fewer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Series

from ferrum.cache.prefix_hash import PrefixScope
from ferrum.core.errors import FerrumError, KvExhausted, RequestError
from ferrum.core.snapshots import PrefixCounts
from ferrum.core.step import Span, SpanResult, StepOutput, TokenLogprobs
from ferrum.core.types import FinishReason, Request, Sequence, TokenEvent
from ferrum.scheduler.admission import Newcomers, OutputLengths
from ferrum.scheduler.drafts import Drafter, NoDrafts, Wish
from ferrum.scheduler.page_protocol import Pages
from ferrum.scheduler.policy import Policy
from ferrum.scheduler.prefix_sharing import Beginnings, Found, Prefixes, Siblings
from ferrum.scheduler.queues import Ranked, Waiting, last_in_turn, yielding_to
from ferrum.scheduler.requests import LiveRequests
from ferrum.scheduler.sequence import check_length, draft_limit, event, judge, make_span, pool, reusable
from ferrum.scheduler.step_budget import FirstTokens, Pacing
from ferrum.scheduler.step_cost_model import StepCosts
from ferrum.scheduler.step_plan import OpenStep, Plan


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
        costs: told what the steps take.
        decode_seconds: how long a step may take in which sequences decode, as `costs` tell; see `Pacing`.
        outputs: told of those that end, and asked how long others will become.
        prefixes: within which the pages of one sequence serve another that begins alike; None: they do not.

    Attributes:
        drafter: guesses tokens of sequences all but whose last token are computed.
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
        drafter: Drafter | None = None,
        costs: StepCosts | None = None,
        decode_seconds: float | None = None,
        outputs: OutputLengths | None = None,
        prefixes: PrefixScope | None = None,
    ) -> None:
        for name, value in (("max_tokens_per_step", max_tokens_per_step), ("max_sequences", max_sequences)):
            if value < 1:
                raise RequestError(f"must be at least 1, not {value}", param=name)
        self._pages = pages
        self._max_tokens_per_step = min(max_tokens_per_step, max_sequences * max_sequence_length)  # all there can be
        self._growth = pages.growth(self._max_tokens_per_step)
        self._max_sequences = max_sequences
        self._max_sequence_length = max_sequence_length
        self.drafter = drafter or NoDrafts()
        self._costs = costs or StepCosts()
        self._pacing = Pacing(self._costs, decode_seconds)
        self._outputs = outputs or OutputLengths()
        # The last token of a sequence is never stored: only what follows it would need its keys.
        lengths = range(1, max_sequence_length + 1)
        self._storable = bisect_left(lengths, True, key=lambda length: not pages.fits(length, self._growth, empty=True))
        self._context = min(max_sequence_length, self._storable + 1)
        self._live = LiveRequests(policy)
        self._running = Ranked(self._live.rank)
        self._first_tokens = FirstTokens(self._costs, self._live.share)
        self._waiting = Waiting(self._live.rank, self._live.share)
        self._newcomers = Newcomers(
            self._live, self._running, pages, self._outputs, growth=self._growth, context=self._context
        )
        self._prefixes = Prefixes(pages, prefixes, self._growth, self._newcomers)
        self._siblings = Siblings(self._live, self._running, self._waiting, pages, self._prefixes)
        self._beginnings = Beginnings(self._live, self._siblings, self._prefixes)
        self._in_flight: set[str] = set()
        self._homeless: list[TokenEvent] = []
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
    def prefix_counts(self) -> PrefixCounts:
        """How the prefix cache has served."""
        return self._pages.prefix_counts()

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
        for sequence in self._live.add(request):
            self._waiting.add(sequence)

    def abort(
        self, request_id: str, reason: FinishReason = FinishReason.ABORT, *, choice: int | None = None
    ) -> list[TokenEvent]:
        """End a request, or one choice of it; what is unknown or ended is let be."""
        return self._end_all([each for each in self._live.choices(request_id) if choice in (None, each.choice)], reason)

    def expire(self, now: float) -> list[TokenEvent]:
        """End the requests whose deadline is `now` or past, and tell of the choices that `plan` found no room for."""
        events, self._homeless = self._homeless, []
        for request_id in self._live.due(now):
            events += self.abort(request_id, FinishReason.DEADLINE)
        return events

    def drain(self, cause: FinishReason | FerrumError) -> list[TokenEvent]:
        """End everything, for a reason or with an error."""
        error = cause if isinstance(cause, FerrumError) else None
        reason = cause if isinstance(cause, FinishReason) else FinishReason.ERROR
        events, self._homeless = self._homeless, []
        return events + self._end_all(self._live, reason, error)

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Have it told, from any thread, when something is there that `plan` has waited for."""
        self._pages.restores.on_ready = wake

    # Planning

    def plan(self) -> Plan | None:
        """The next step, or None when there is nothing to do until a commit, an arrival or `expire`."""
        step = OpenStep(self._max_tokens_per_step)
        self._pages.restores.collect()
        self._plan_decodes(step)
        self._plan_prompts(step)
        while self._waiting and not (self._running or self._pages.restores):
            # All pages are free but those of strangers to this scheduler, and they will not go.
            error = KvExhausted("the pages that others hold leave no room for this sequence")
            self._homeless += self._end_all([next(self._waiting.turns((), ()))], FinishReason.ERROR, error)
            self._plan_prompts(step)
        self._first_tokens.hurry(step, self._running)
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
        step.admits = bool(self._waiting) and not self._newcomers.is_refused(self._waiting.next)
        if not behind and not step.admits:
            return
        self._pacing.bound(step, self._running, behind, self._max_sequences)
        self._beginnings.renew()
        for sequence in self._waiting.turns(self._running, behind, lambda: step.admits):
            if not step.budget:
                return
            if sequence in self._running:
                self._waiting.count_prompt(sequence, self._continue(sequence, step))
            elif step.admits:
                beginning = self._beginnings.of(sequence)
                step.admits = (
                    not self._beginnings.spent if beginning is None else self._admit(sequence, beginning, step)
                )

    def _running_behind(self, tokens: range) -> list[Sequence]:
        """The running sequences that are so many tokens behind, without those in flight."""
        ready = [each for each in self._running if each.cache_id not in self._in_flight]
        return [each for each in ready if len(each.tokens) - each.computed in tokens]

    def _continue(self, sequence: Sequence, step: OpenStep) -> int:
        """A span for a running sequence, if there is room; its tokens."""
        count = min(len(sequence.tokens) - sequence.computed, step.budget, self._growth)
        if not self._make_room(sequence, sequence.computed + count, step):
            return 0
        step.add(sequence, make_span(sequence, count, scored=self._live.scored(sequence)))
        return count

    def _add_drafts(self, step: OpenStep) -> None:
        """Spend what is left of the budget on drafts: a guess takes no token and no page that anyone needs for sure."""
        ready = [each for each, span in step.spans() if len(span.tokens) == 1 and span.end == len(each.tokens)]
        if not any(map(self.drafter.may_guess, ready)):
            return
        step.hold(None)
        wishes = [Wish(each, limit) for each in ready if (limit := min(step.budget, draft_limit(each, self._context)))]
        for wish, guesses in zip(wishes, self.drafter.draft(wishes, step.room) if wishes else (), strict=True):
            sequence, drafts = wish.sequence, guesses[: min(wish.limit, step.budget)]
            if drafts and self._pages.reserve(sequence.cache_id, sequence.computed + 1 + len(drafts)):
                step.add(sequence, make_span(sequence, 1, drafts=drafts, scored=self._live.scored(sequence)))

    def _make_room(self, sequence: Sequence, length: int, step: OpenStep) -> bool:
        """Reserve for a running sequence, at the cost of those served last; False when that is the sequence itself."""
        while not self._pages.reserve(sequence.cache_id, length):
            last = last_in_turn(self._running, self._live.share, self._in_flight)
            assert last is not None  # the sequence itself is not in flight
            if last[0] is sequence and (self._in_flight or self._pages.restores):
                return False  # those in flight will give way or end, and what is on its way gives its pages back
            self._preempt(last[0], step)
            if last[0] is sequence:
                return False
        return True

    def _make_place(self, newcomer: Sequence, yielding: Series[Sequence], step: OpenStep) -> bool:
        """Preempt as few of those that yield to a newcomer as it takes, and nobody where all would not be enough."""
        least = max(0, len(self._running) - step.places + 1)
        numbers = range(least, len(yielding) + 1)
        count = least + bisect_left(numbers, True, key=lambda n: self._newcomers.fits(newcomer, yielding[:n]))
        for victim in yielding[:count] if count <= len(yielding) else ():
            self._preempt(victim, step)
        return count <= len(yielding)

    def _preempt(self, victim: Sequence, step: OpenStep) -> None:
        """Take the sequence's pages, and its span in this step; its tokens stay."""
        step.drop(victim)
        self._prefixes.leave(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        if not victim.generated:
            victim.scheduled = None
        self._running.remove(victim)
        self._waiting.add(victim)
        self._newcomers.reconsider()

    def _admit(self, sequence: Sequence, beginning: Sequence | Found, step: OpenStep) -> bool:
        """Let the sequence in, with the prefix of another choice or what was found of it, if all its tokens fit."""
        yielding = yielding_to(sequence, self._running, self._live.share, self._in_flight)
        if len(self._running) - len(yielding) >= step.places:
            if step.places == self._max_sequences:  # else there may be more of them soon, as costs become known
                self._refuse(sequence)
            return False
        if isinstance(beginning, Sequence):
            self._siblings.share(beginning, sequence)
        else:
            self._prefixes.adopt(sequence, beginning)
        fits = self._make_place(sequence, yielding, step)
        count = min(len(sequence.tokens) - sequence.computed, step.budget, self._growth)
        if not (fits and self._pages.reserve(sequence.cache_id, sequence.computed + count)):
            self._pages.release(sequence.cache_id)
            sequence.computed = 0
            self._refuse(sequence)
            return False
        if not isinstance(beginning, Sequence):
            self._prefixes.admit(sequence, reusable(sequence, self._live.scored(sequence)))
        self._waiting.remove(sequence)
        self._running.add(sequence)
        self._waiting.count_prompt(sequence, count)
        step.add(sequence, make_span(sequence, count, scored=self._live.scored(sequence)))
        return True

    def _refuse(self, newcomer: Sequence) -> None:
        """Remember it, but for what may change by itself: those in flight will be asked to give way, too."""
        if not self._in_flight:
            self._newcomers.refuse(newcomer)

    # The end of a step

    def commit(self, plan: Plan, output: StepOutput) -> list[TokenEvent]:
        """Take in a step's results; a span with an error ends its choice alone."""
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
        """Take in that the whole step failed: all its choices end."""
        return self.commit(plan, StepOutput((error,) * len(plan.sequences)))

    def _advance(self, sequence: Sequence, span: Span, result: SpanResult) -> list[TokenEvent]:
        """One good result: the computed tokens, the scores and the sampled tokens, of which there may be none."""
        assert result.length == span.end - span.drafts + result.accepted
        sequence.computed = result.length
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
        self._prefixes.prove(sequence)
        self._waiting.count_output(sequence, len(outcome.tokens))
        sequence.finish = outcome.finish
        if outcome.finish is not None:
            self._leave(sequence)
        logprobs = None if result.logprobs is None else result.logprobs[: len(outcome.tokens)]
        return [event(sequence, outcome.tokens, logprobs, prompt_logprobs, outcome.stop_reason)]

    def _end_scored(self, sequence: Sequence) -> list[TokenEvent]:
        """The end of a choice that was to generate nothing."""
        prompt_logprobs = self._prompt_logprobs(sequence)
        self._prefixes.prove(sequence)
        sequence.finish = FinishReason.LENGTH
        self._leave(sequence)
        return [event(sequence, prompt_logprobs=prompt_logprobs)]

    def _prompt_logprobs(self, sequence: Sequence) -> tuple[TokenLogprobs, ...] | None:
        """What the first event of a choice brings along."""
        if sequence.generated or sequence.request.params.prompt_logprobs is None:
            return None
        return tuple(self._live.scores(sequence))

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
        if sequence in self._running:
            self._siblings.bequeath(sequence)
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._prefixes.leave(sequence)
        self._newcomers.reconsider()
        self.drafter.forget(sequence)
        self._outputs.learn(sequence)
        self._live.remove(sequence)
